"""Authenticates the connections of a client, or of a broker to another one.

::

    log_in ── SaslHandshake 1 ── SaslAuthenticate ... ──▶ session ── before its end (KIP-368) ──▶ the same exchange again
                                                                     other requests wait meanwhile

A ``Login`` knows the credentials and begins an exchange of its mechanism for each authentication, so changed passwords and new tokens apply
to the next one. Source: KIP-43, KIP-152, KIP-368; Kafka's SaslClientAuthenticator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from ottla.net.client_connection import ClientConnection, ConnectionBroken
from ottla.net.sasl.mechanism import ClientMechanism, ServerRefused
from ottla.wire import errors
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

log = logging.getLogger("ottla.net")

HANDSHAKE_VERSION = 1
#: The session is renewed at a random part of its lifetime within these. Source: Kafka's SaslClientAuthenticator.
RENEW_AT = (0.85, 0.95)
#: Tokens of one exchange.
STEPS_MAX = 16


class Login(Protocol):
    """Credentials of one mechanism."""

    @property
    def mechanism(self) -> str:
        """Its name."""
        ...

    async def begin(self, host: str) -> ClientMechanism:
        """A new exchange with a broker; may wait for a token. Raises: LoginFailed."""
        ...


class LoginFailed(Exception):
    """The client is not authenticated; the message names the address, the mechanism and the cause, and has no secrets."""


class MechanismNotEnabled(LoginFailed):
    """The broker does not enable the mechanism."""

    def __init__(self, message: str, enabled: Sequence[str]) -> None:
        super().__init__(message)
        self.enabled = tuple(enabled)


class SaslNotExpected(LoginFailed):
    """The listener does not use SASL."""


class CredentialsRefused(LoginFailed):
    """The broker refused the credentials."""


async def log_in(link: ClientConnection, login: Login, *, host: str, versions: tuple[int, int], timeout_ms: float, rng: Random) -> None:
    """Authenticates a new connection, and again before the session ends.

    ``versions``: of SaslAuthenticate that both sides have. Raises: LoginFailed, ConnectionBroken.
    """
    lifetime_ms = await _exchange(link, login, host, versions[1], timeout_ms)
    if lifetime_ms > 0:

        def renew() -> None:
            link.renewal = asyncio.get_running_loop().create_task(_renew(link, login, host, versions, timeout_ms, rng))

        link.renewal = asyncio.get_running_loop().call_later(lifetime_ms * rng.uniform(*RENEW_AT) / 1000, renew)


async def _renew(link: ClientConnection, login: Login, host: str, versions: tuple[int, int], timeout_ms: float, rng: Random) -> None:
    link.hold()
    try:
        await log_in(link, login, host=host, versions=versions, timeout_ms=timeout_ms, rng=rng)
    except LoginFailed as error:
        log.warning("the session could not be renewed: %s", error)
        link.close(f"the session could not be renewed: {error}")
    except ConnectionBroken:
        pass
    else:
        link.resume()


async def _exchange(link: ClientConnection, login: Login, host: str, version: int, timeout_ms: float) -> int:
    """The lifetime of the session in ms; 0: no limit."""
    mechanism = login.mechanism
    # A token may take long to get, and a broker does not wait for it.
    exchange = await login.begin(host)
    handshake: SaslHandshakeResponse = await link.request(
        SaslHandshakeRequest(mechanism=mechanism), HANDSHAKE_VERSION, timeout_ms=timeout_ms, held=False
    )
    if handshake.error_code == errors.UnsupportedSaslMechanism.code:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise MechanismNotEnabled(f"{link.address} does not enable SASL mechanism {mechanism}; it has {offered}", handshake.mechanisms)
    if handshake.error_code == errors.IllegalSaslState.code:
        raise SaslNotExpected(f"{link.address} is a listener without SASL; use security_protocol PLAINTEXT or SSL, or another port")
    if handshake.error_code:
        raise LoginFailed(f"{link.address} refused the SASL handshake: {errors.error_for(handshake.error_code)}")
    challenge, lifetime_ms = b"", 0
    for _ in range(STEPS_MAX):
        try:
            token = await _in_turn(exchange, challenge)
        except ServerRefused as error:
            raise CredentialsRefused(f"{link.address}, SASL {mechanism}: {error}") from None
        if token is None:
            return lifetime_ms
        response: SaslAuthenticateResponse = await link.request(
            SaslAuthenticateRequest(auth_bytes=token), version, timeout_ms=timeout_ms, held=False
        )
        if response.error_code == errors.SaslAuthenticationFailed.code:
            raise CredentialsRefused(f"{link.address} refused the credentials of SASL {mechanism}: {response.error_message}")
        if response.error_code:
            raise LoginFailed(f"{link.address}, SASL {mechanism}: {response.error_message or errors.error_for(response.error_code)}")
        challenge, lifetime_ms = bytes(response.auth_bytes), response.session_lifetime_ms
    raise LoginFailed(f"{link.address}, SASL {mechanism}: the exchange did not end after {STEPS_MAX} tokens")


async def _in_turn(exchange: ClientMechanism, challenge: bytes) -> bytes | None:
    if exchange.slow:
        return await asyncio.get_running_loop().run_in_executor(None, exchange.step, challenge)
    return exchange.step(challenge)


class FixedLogin:
    """A ``Login`` whose exchanges need no token from elsewhere."""

    def __init__(self, mechanism: str, begin: Callable[[str], ClientMechanism]) -> None:
        self.mechanism = mechanism
        self._begin = begin

    async def begin(self, host: str) -> ClientMechanism:
        return self._begin(host)

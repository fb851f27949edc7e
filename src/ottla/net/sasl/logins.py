"""Logins from a mechanism and its credentials, as settings and login modules give them.

OAUTHBEARER gets its token for each authentication, from one of:

* a callable, which returns the token, or an awaitable of it
* a file, ``file:///PATH``
* the identity provider's token endpoint, by the client credentials grant (RFC 6749, section 4.4), which a library encodes and parses
"""

from __future__ import annotations

import asyncio
import inspect
import json
import secrets
import time
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from ottla.base import jaas
from ottla.base.jaas import LoginModule
from ottla.base.scram import BY_NAME
from ottla.net.sasl.gssapi import GssapiMissing, gssapi_login
from ottla.net.sasl.login import FixedLogin, Login, LoginFailed
from ottla.net.sasl.mechanism import ClientMechanism, ServerRefused
from ottla.net.sasl.oauthbearer import OAuthBearerClient
from ottla.net.sasl.plain import PlainClient
from ottla.net.sasl.scram import ScramClient

#: Returns a bearer token, or an awaitable of it.
TokenProvider = Callable[[], str | Awaitable[str]]
READ_TIMEOUT_MS = 10_000
ANSWER_BYTES_MAX = 1024 * 1024
SERVICE = "kafka"


class LoginRefused(ValueError):
    """The credentials of a mechanism are incomplete; the message names the missing settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSource:
    """Where tokens come from."""

    provider: TokenProvider | None = None
    url: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    read_timeout_ms: int = READ_TIMEOUT_MS


def login_of(mechanism: str, module: LoginModule, oauth: OAuthSource, *, service: str = "") -> Login:
    """``module``: user name, password and other options. Raises: LoginRefused."""
    user, password = module.option("username"), module.option("password")
    if mechanism == jaas.GSSAPI:
        try:
            return gssapi_login(module, service or module.option("serviceName") or SERVICE)
        except GssapiMissing as error:
            raise LoginRefused(str(error)) from None
    if mechanism == jaas.OAUTHBEARER:
        extensions = {name.removeprefix("extension_"): value for name, value in module.options.items() if name.startswith("extension_")}
        return OAuthLogin(_source(oauth, module), extensions)
    if not user or not password:
        raise LoginRefused(f"SASL {mechanism} needs a user name and a password")
    if mechanism == jaas.PLAIN:
        return FixedLogin(mechanism, lambda host: PlainClient(user, password))
    scram, token = BY_NAME[mechanism], module.option("tokenauth").lower() == "true"
    return FixedLogin(mechanism, lambda host: ScramClient(scram, user, password, secrets.token_bytes, token=token))


def _source(oauth: OAuthSource, module: LoginModule) -> OAuthSource:
    """The settings come first, then the options of the login module. Raises: LoginRefused."""
    if oauth.provider is not None:
        return oauth
    if not oauth.url:
        raise LoginRefused("SASL OAUTHBEARER needs a token provider, or sasl.oauthbearer.token.endpoint.url")
    found = OAuthSource(
        url=oauth.url,
        client_id=oauth.client_id or module.option("clientId"),
        client_secret=oauth.client_secret or module.option("clientSecret"),
        scope=oauth.scope or module.option("scope"),
        read_timeout_ms=oauth.read_timeout_ms,
    )
    if urlsplit(found.url).scheme != "file" and not (found.client_id and found.client_secret):
        raise LoginRefused("SASL OAUTHBEARER with a token endpoint needs a client id and a client secret")
    return found


class OAuthLogin:
    """A ``Login`` that gets a token for each exchange."""

    mechanism = jaas.OAUTHBEARER

    def __init__(self, source: OAuthSource, extensions: dict[str, str]) -> None:
        self._source = source
        self._extensions = extensions

    async def begin(self, host: str) -> ClientMechanism:
        if self._source.provider is None:
            token = await asyncio.get_running_loop().run_in_executor(None, fetch_token, self._source)
        else:
            try:
                given = self._source.provider()
                token = await given if inspect.isawaitable(given) else given
            except Exception as error:
                # The message of an unknown exception may contain a secret.
                raise LoginFailed(f"the token provider failed: {type(error).__name__}") from error
            if not isinstance(token, str):
                raise LoginFailed(f"the token provider returned {type(token).__name__}, not a str")
        return _Explained(token.strip(), self._extensions)


class _Explained:
    """An exchange of OAUTHBEARER that adds to a refusal whether the token has expired."""

    slow = False

    def __init__(self, token: str, extensions: dict[str, str]) -> None:
        self._exchange = OAuthBearerClient(token, extensions)
        self._expires_s = expiry_s(token)

    def step(self, challenge: bytes) -> bytes | None:
        if challenge and self._expires_s is not None and self._expires_s < time.time():
            raise ServerRefused(f"the token has expired {time.time() - self._expires_s:.0f} s ago; get a new one")
        return self._exchange.step(challenge)


def expiry_s(token: str) -> float | None:
    """The expiry time that a JWT claims, unverified; None for another token."""
    parts = token.split(".")
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def fetch_token(source: OAuthSource) -> str:
    """Reads or requests a token; waits for the network. Raises: LoginFailed."""
    parts = urlsplit(source.url)
    try:
        if parts.scheme == "file":
            with open(unquote(parts.path), encoding="ascii") as file:
                return file.read(ANSWER_BYTES_MAX).strip()
        return _client_credentials(source)
    except OSError as error:
        raise LoginFailed(f"no token from {parts.scheme}://{parts.hostname or ''}{parts.path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise LoginFailed(f"no token from {source.url}: the file has other characters than ASCII") from None


def _client_credentials(source: OAuthSource) -> str:
    """Raises: OSError, LoginFailed."""
    import http.client
    import urllib.error
    import urllib.request

    from oauthlib.oauth2 import BackendApplicationClient, OAuth2Error

    grant = BackendApplicationClient(source.client_id)
    body = grant.prepare_request_body(scope=source.scope or None, include_client_id=False)
    basic = b64encode(f"{source.client_id}:{source.client_secret}".encode()).decode()
    headers = {"Authorization": f"Basic {basic}", "Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    request = urllib.request.Request(source.url, data=body.encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=source.read_timeout_ms / 1000) as answer:
            text = answer.read(ANSWER_BYTES_MAX).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        text = error.read(ANSWER_BYTES_MAX).decode("utf-8", "replace")
        if not text.lstrip().startswith("{"):
            raise OSError(f"the identity provider answered HTTP {error.code}") from None
    except http.client.HTTPException as error:
        raise OSError(f"the identity provider did not answer in HTTP: {type(error).__name__}") from None
    try:
        token = grant.parse_request_body_response(text).get("access_token")
    except OAuth2Error as error:
        raise LoginFailed(f"the identity provider refused: {error.error}") from None
    except ValueError:
        raise LoginFailed("the answer of the identity provider is not JSON") from None
    if not isinstance(token, str) or not token:
        raise LoginFailed("the answer of the identity provider has no access token")
    return token

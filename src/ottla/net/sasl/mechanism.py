"""What the mechanisms have in common.

A server's mechanism gets the client's tokens one after another. Each step gives a challenge, or ends the exchange::

    step(token) ──▶ Challenge(data)        the client answers it with another token
                ──▶ Success(principal)     the client is authenticated; ``data`` is the last answer to it
                ──▶ Failure(message)       the message is for the client: it does not say whether a user exists

A mechanism gets credentials by the port ``Credentials``. It has no clock and no random source: both come in as arguments. A step of a
mechanism whose ``slow`` is set may take long or wait for the network, so it runs in a thread.
"""

from dataclasses import dataclass, field
from typing import Protocol

from ottla.base.scram import ScramCredential, ScramMechanism


@dataclass(frozen=True, slots=True)
class Challenge:
    """The exchange continues."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Success:
    """The client is who it says it is."""

    #: Name of the user.
    user: str
    data: bytes = field(default=b"", repr=False)
    #: Wall time in ms at which the credential expires; None: never.
    expires_ms: int | None = None
    #: Type of the principal.
    kind: str = "User"
    #: Whether it authenticated with a delegation token.
    token: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """The exchange ended without authentication."""

    #: For the client.
    message: str
    #: For the broker's log; no secrets.
    reason: str = ""


Outcome = Challenge | Success | Failure


class ServerMechanism(Protocol):
    """One exchange at a server."""

    #: Whether ``step`` may take long, and so runs in a thread.
    slow: bool

    def step(self, token: bytes) -> Outcome:
        """Takes the client's next token."""
        ...


class ClientMechanism(Protocol):
    """One exchange at a client."""

    #: Whether ``step`` may take long, and so runs in a thread.
    slow: bool

    def step(self, challenge: bytes) -> bytes | None:
        """The next token; the first challenge is empty. None: the client needs no more. Raises: ServerRefused, when the server does not
        prove that it knows the password, or refuses in the mechanism's own way.
        """
        ...


class ServerRefused(Exception):
    """The server failed to authenticate itself, or refused with a token of the mechanism."""


@dataclass(frozen=True, slots=True)
class TokenCredential:
    """A delegation token: SCRAM credentials, owner and expiry time."""

    owner_kind: str
    owner: str
    expires_ms: int
    credential: ScramCredential = field(repr=False)


class Credentials(Protocol):
    """The credentials that a broker knows."""

    def password(self, user: str) -> str | None:
        """The password of a user of PLAIN; None for an unknown one."""
        ...

    def scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """The credential of a user; None without one."""
        ...

    def token(self, mechanism: ScramMechanism, token_id: str) -> TokenCredential | None:
        """The credential of a delegation token; None if it does not exist or has expired."""
        ...


def invalid(mechanism: str, reason: str) -> Failure:
    """A failure whose message does not say what was wrong."""
    return Failure(f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}", reason)

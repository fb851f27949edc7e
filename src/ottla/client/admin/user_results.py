"""Results of admin requests about users and delegation tokens."""

from __future__ import annotations

from base64 import b64encode

import msgspec

from ottla.base.scram import ScramMechanism


class ScramCredentialInfo(msgspec.Struct, frozen=True):
    """A user's credential of one mechanism, without its secrets."""

    mechanism: ScramMechanism
    iterations: int


class DelegationToken(msgspec.Struct, frozen=True, kw_only=True):
    """A delegation token. Principals are `User:NAME`, times are ms since 1970. `hmac` in Base64 is its password: keep it secret."""

    token_id: str
    hmac: bytes
    owner: str
    requester: str
    renewers: tuple[str, ...] = ()
    issued_ms: int
    expires_ms: int
    max_ms: int

    def __repr__(self) -> str:
        return f"DelegationToken(token_id={self.token_id!r}, owner={self.owner!r}, expires_ms={self.expires_ms})"

    @property
    def password(self) -> str:
        """The HMAC in Base64: `sasl_password` of a client whose `sasl_username` is the token's id."""
        return b64encode(self.hmac).decode()

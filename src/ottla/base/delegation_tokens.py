"""Delegation tokens. A token's HMAC, of its id, with the key that the brokers share, is its password, in Base64.

Source: KIP-48; Kafka's DelegationTokenManager.
"""

import hmac
from base64 import b64encode

import msgspec


class DelegationToken(msgspec.Struct, frozen=True, kw_only=True):
    """A delegation token. Principals are ``TYPE:NAME``, times in ms since 1970. Source: KIP-48, KIP-373."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    #: After this time it cannot be renewed.
    max_ms: int
    expires_ms: int


def token_hmac(token_id: str, key: str) -> bytes:
    """64 bytes, by HMAC-SHA-512."""
    return hmac.digest(key.encode(), token_id.encode(), "sha512")


def token_password(token_id: str, key: str) -> str:
    """The HMAC in Base64, with which clients authenticate."""
    return b64encode(token_hmac(token_id, key)).decode()

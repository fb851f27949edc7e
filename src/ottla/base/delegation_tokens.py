"""The HMAC of a delegation token: of its id, with the key that the brokers share. It is the token's password, in Base64.

Source: KIP-48; Kafka's DelegationTokenManager.
"""

import hmac
from base64 import b64encode


def token_hmac(token_id: str, key: str) -> bytes:
    """64 bytes, by HMAC-SHA-512."""
    return hmac.digest(key.encode(), token_id.encode(), "sha512")


def token_password(token_id: str, key: str) -> str:
    """The HMAC in Base64, with which clients authenticate."""
    return b64encode(token_hmac(token_id, key)).decode()

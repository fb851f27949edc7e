"""Hashes of passwords, for the logins of the console and of the registry: `scrypt:N:R:P:SALT:HASH`, the last two in base64.

Source: RFC 7914.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

#: Cost, block size and parallelism: about 50 ms and 16 MiB.
N, R, P = 2**14, 8, 1
SALT_BYTES, HASH_BYTES = 16, 32
MEMORY_MAX = 64 * 2**20


def hashed(password: str, salt: bytes) -> str:
    """The hash of a password. ``salt``: ``SALT_BYTES`` random bytes."""
    key = _key(password, salt, N, R, P)
    return f"scrypt:{N}:{R}:{P}:{b64encode(salt).decode()}:{b64encode(key).decode()}"


def is_correct(password: str, stored: str) -> bool:
    """Whether a password has this hash; False for a hash that is not in the format."""
    try:
        _, n, r, p, salt, key = stored.split(":")
        made = _key(password, b64decode(salt), int(n), int(r), int(p))
        return hmac.compare_digest(made, b64decode(key))
    except ValueError:
        return False


def _key(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=MEMORY_MAX, dklen=HASH_BYTES)


#: Compared with when the user is unknown, so that the answer takes as long. No password has this hash. A real hash would cost each start
#: of a console 50 ms.
NOBODY = f"scrypt:{N}:{R}:{P}:{b64encode(bytes(SALT_BYTES)).decode()}:{b64encode(bytes(HASH_BYTES)).decode()}"

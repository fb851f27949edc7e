"""SCRAM credentials: keys that a server keeps instead of a password.

::

    salted password = PBKDF2(password, salt, iterations)
    client key      = HMAC(salted password, "Client Key")       the client proves that it knows it
    stored key      = H(client key)                             kept by the server, to check the proof
    server key      = HMAC(salted password, "Server Key")       kept by the server, to prove itself

In the store a credential is text: ``salt=BASE64,stored_key=BASE64,server_key=BASE64,iterations=NUMBER``, as Kafka writes it. Passwords are
encoded in UTF-8 without SASLprep, also as in Kafka.

Source: RFC 5802, RFC 7677; Kafka's ScramFormatter and ScramCredentialUtils.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from enum import Enum

#: Limits of the number of iterations. Source: RFC 7677; Kafka's ScramControlManager.
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16_384


class ScramMechanism(Enum):
    """Name, name of the hash function, and code in requests."""

    SHA_256 = ("SCRAM-SHA-256", "sha256", 1)
    SHA_512 = ("SCRAM-SHA-512", "sha512", 2)

    @property
    def mechanism(self) -> str:
        return self.value[0]

    @property
    def hash_name(self) -> str:
        return self.value[1]

    @property
    def code(self) -> int:
        return self.value[2]

    @property
    def key_bytes(self) -> int:
        """Size of a key."""
        return 32 if self is ScramMechanism.SHA_256 else 64

    def hmac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        return hashlib.new(self.hash_name, data).digest()


#: By name, and by code.
BY_NAME = {one.mechanism: one for one in ScramMechanism}
BY_CODE = {one.code: one for one in ScramMechanism}


class MalformedCredential(ValueError):
    """The text is not a SCRAM credential. The message does not contain the text."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server keeps of a password."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @property
    def text(self) -> str:
        """The form in the store."""
        salt, stored, server = (b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key))
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"

    @classmethod
    def parse(cls, text: str) -> "ScramCredential":
        """Raises: MalformedCredential."""
        parts = dict(part.strip().partition("=")[::2] for part in text.split(","))
        try:
            if parts.keys() != {"salt", "stored_key", "server_key", "iterations"}:
                raise ValueError
            salt, stored, server = (b64decode(parts[name], validate=True) for name in ("salt", "stored_key", "server_key"))
            return cls(salt, stored, server, int(parts["iterations"]))
        except ValueError:
            raise MalformedCredential("expected salt=...,stored_key=...,server_key=...,iterations=...") from None

    @classmethod
    def of_salted_password(cls, mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> "ScramCredential":
        stored_key = mechanism.hash(client_key(mechanism, salted))
        return cls(salt, stored_key, mechanism.hmac(salted, b"Server Key"), iterations)

    @classmethod
    def of_password(cls, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> "ScramCredential":
        """Takes time: see ``salted_password``."""
        return cls.of_salted_password(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Takes about 1 ms per 1,000 iterations."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def client_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return mechanism.hmac(salted, b"Client Key")


def xor(one: bytes, other: bytes) -> bytes:
    """Of two strings of one length."""
    return bytes(a ^ b for a, b in zip(one, other, strict=True))

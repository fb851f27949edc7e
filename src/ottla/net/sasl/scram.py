"""SCRAM-SHA-256 and SCRAM-SHA-512: client and server prove to each other that they know the password, without sending it.

::

    client-first   n,,n=USER,r=NONCE[,tokenauth=true]
    server-first   r=NONCE+SERVER'S,s=SALT,i=ITERATIONS
    client-final   c=biws,r=NONCE+SERVER'S,p=PROOF
    server-final   v=SIGNATURE

With Kafka's extension ``tokenauth=true`` the user is the id of a delegation token, and its HMAC in Base64 the password. There is no channel
binding. A wrong user and a wrong password fail at different steps, as in Kafka; the failures have one message.

Source: RFC 5802, RFC 7677, KIP-84, KIP-48; Kafka's ScramSaslServer and ScramMessages.
"""

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable

from ottla.base.scram import ITERATIONS_MIN, ScramCredential, ScramMechanism, client_key, salted_password, xor
from ottla.net.sasl.mechanism import Challenge, Credentials, Failure, Outcome, ServerRefused, Success, TokenCredential, invalid

#: Iterations that a client accepts from a server: more would take seconds.
CLIENT_ITERATIONS_MAX = 1_000_000
#: Bytes of a nonce before encoding.
NONCE_BYTES = 24

_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|[^\x00-\x7f]|=2C|=3D)+"
_VALUE = r"[^\x00,]+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = rf"(?:,[A-Za-z]+={_VALUE})*"
_FIRST = re.compile(rf"(?P<header>n,(?:a=(?P<authzid>{_NAME}))?,)(?P<bare>(?:m={_VALUE},)?n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE})"
                    rf"(?P<extensions>{_EXTENSIONS}))")  # fmt: skip
_SERVER_FIRST = re.compile(
    rf"(?:m={_VALUE},)?r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>\d{{1,9}}){_EXTENSIONS}"
)
_FINAL = re.compile(rf"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>[A-Za-z0-9+/=]+)")
_SERVER_FINAL = re.compile(rf"(?:e=(?P<error>[^,]+)|v=(?P<signature>[A-Za-z0-9+/=]+)){_EXTENSIONS}")


class ScramServer:
    """An exchange at a server."""

    def __init__(self, mechanism: ScramMechanism, credentials: Credentials, random: Callable[[int], bytes], *, slow: bool = False) -> None:
        """``random`` gives that many random bytes; ``slow``: the credentials take time."""
        self.slow = slow
        self._mechanism = mechanism
        self._credentials = credentials
        self._random = random
        #: The part of the messages that both sides sign; None before the first step.
        self._signed: str | None = None
        self._binding = b""
        self._nonce = ""
        self._credential: ScramCredential
        self._success: Success

    def step(self, token: bytes) -> Outcome:
        try:
            text = token.decode()
        except UnicodeDecodeError:
            return self._refused("token is not UTF-8")
        return self._first(text) if self._signed is None else self._final(text)

    def _first(self, text: str) -> Outcome:
        match = _FIRST.fullmatch(text)
        if match is None:
            return self._refused("malformed client-first message")
        user = _unescaped(match["name"])
        extensions = dict(part.split("=", 1) for part in match["extensions"].split(",") if part)
        if extensions.get("tokenauth", "").lower() == "true":
            token = self._credentials.token(self._mechanism, user)
            if token is None:
                return self._refused("unknown or expired delegation token")
            self._succeeds_with(token)
        else:
            credential = self._credentials.scram(self._mechanism, user)
            if credential is None:
                return self._refused("unknown user")
            self._credential, self._success = credential, Success(user)
        if match["authzid"] is not None and _unescaped(match["authzid"]) != user:
            message = "Authentication failed: Client requested an authorization id that is different from username"
            return Failure(message, "authorization id differs from the user")
        if self._credential.iterations < ITERATIONS_MIN:
            return self._refused(f"the credential has fewer than {ITERATIONS_MIN} iterations")
        self._nonce = match["nonce"] + _base64(self._random(NONCE_BYTES))
        answer = f"r={self._nonce},s={_base64(self._credential.salt)},i={self._credential.iterations}"
        self._binding = match["header"].encode()
        self._signed = f"{match['bare']},{answer}"
        return Challenge(answer.encode())

    def _succeeds_with(self, token: TokenCredential) -> None:
        self._credential = token.credential
        self._success = Success(token.owner, kind=token.owner_kind, expires_ms=token.expires_ms, token=True)

    def _final(self, text: str) -> Outcome:
        match = _FINAL.fullmatch(text)
        if match is None:
            return self._refused("malformed client-final message")
        try:
            binding, proof = b64decode(match["binding"], validate=True), b64decode(match["proof"], validate=True)
        except ValueError:
            return self._refused("malformed client-final message")
        if not hmac.compare_digest(match["nonce"].encode(), self._nonce.encode()) or binding != self._binding:
            return self._refused("another nonce or channel binding in the client-final message")
        signed = f"{self._signed},{match['unproved']}".encode()
        mechanism, credential = self._mechanism, self._credential
        signature = mechanism.hmac(credential.stored_key, signed)
        if len(proof) != len(signature):
            return self._refused("malformed proof")
        if not hmac.compare_digest(mechanism.hash(xor(proof, signature)), credential.stored_key):
            return self._refused("wrong password")
        done, answer = self._success, f"v={_base64(mechanism.hmac(credential.server_key, signed))}"
        return Success(done.user, answer.encode(), done.expires_ms, done.kind, done.token)

    def _refused(self, reason: str) -> Failure:
        return invalid(self._mechanism.mechanism, reason)


class ScramClient:
    """An exchange at a client. It checks the server's signature."""

    #: Salting a password takes milliseconds.
    slow = True

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, random: Callable[[int], bytes], *, token: bool = False) -> None:
        """``token``: the user is the id of a delegation token, and the password its HMAC in Base64."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = _base64(random(NONCE_BYTES))
        self._bare = f"n={_escaped(user)},r={self._nonce}" + (",tokenauth=true" if token else "")
        self._signature = b""
        self._step: Callable[[str], bytes | None] = self._first

    def step(self, challenge: bytes) -> bytes | None:
        try:
            return self._step(challenge.decode())
        except UnicodeDecodeError:
            raise ServerRefused("the server's SCRAM message is not UTF-8") from None

    def _first(self, _: str) -> bytes:
        self._step = self._answer
        return f"n,,{self._bare}".encode()

    def _answer(self, text: str) -> bytes:
        match = _SERVER_FIRST.fullmatch(text)
        if match is None or not match["nonce"].startswith(self._nonce) or match["nonce"] == self._nonce:
            raise ServerRefused("the server's first SCRAM message is malformed, or has another nonce")
        mechanism, iterations = self._mechanism, int(match["iterations"])
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise ServerRefused(f"the server asks for {iterations} iterations; {ITERATIONS_MIN} to {CLIENT_ITERATIONS_MAX} are accepted")
        salted = salted_password(mechanism, self._password, _decoded(match["salt"]), iterations)
        unproved = f"c=biws,r={match['nonce']}"
        signed = f"{self._bare},{text},{unproved}".encode()
        key = client_key(mechanism, salted)
        proof = xor(key, mechanism.hmac(mechanism.hash(key), signed))
        self._signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        self._step = self._check
        return f"{unproved},p={_base64(proof)}".encode()

    def _check(self, text: str) -> None:
        match = _SERVER_FINAL.fullmatch(text)
        if match is None:
            raise ServerRefused("the server's final SCRAM message is malformed")
        if match["error"] is not None:
            raise ServerRefused(f"the server refused: {match['error']}")
        if not hmac.compare_digest(_decoded(match["signature"]), self._signature):
            raise ServerRefused("the server's signature is wrong: it does not know the password, so it may be an impostor")


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ServerRefused("the server's SCRAM message has malformed Base64") from None


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")

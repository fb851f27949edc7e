"""Validates JSON Web Tokens with the keys of an identity provider.

The keys (JWKS) come from a file or a URL. They are read again after ``refresh_ms``, and when a token names a key that is not among them:
so a provider can rotate its keys at any time. Unknown keys cause a read at most every ``UNKNOWN_KEY_MS``, and failed reads are retried
with a growing pause, so that bad tokens cannot make a broker flood the provider. While a read fails, the last keys stay valid.

Only signatures with asymmetric keys are accepted: a token that is unsigned, or signed with a shared secret, is refused whatever it says.

Everything here may wait for the network, so it runs in threads; a lock lets one thread read at a time.

Source: RFC 7517, RFC 7519, KIP-768; Kafka's BrokerJwtValidator and RefreshingHttpsJwks.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from ottla.net.sasl.oauthbearer import TokenRefused, ValidToken

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
#: Largest key set.
JWKS_BYTES_MAX = 1024 * 1024
#: Largest token; the key id is part of it.
TOKEN_CHARACTERS_MAX = 64 * 1024
#: Unknown keys make the keys be read again at most once in this time.
UNKNOWN_KEY_MS = 5_000
#: Timeout of a read without sasl.login.read.timeout.ms.
READ_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtRules:
    """What a token must say. Each is a setting ``sasl.oauthbearer.*``."""

    jwks_url: str
    issuer: str = ""
    #: One of these must be in the token's audience; none: any audience.
    audience: tuple[str, ...] = ()
    clock_skew_s: int = 30
    scope_claim: str = "scope"
    sub_claim: str = "sub"
    refresh_ms: int = 3_600_000
    retry_ms: int = 100
    retry_max_ms: int = 10_000
    read_timeout_ms: int = READ_TIMEOUT_MS


#: Reads a URL within a timeout in ms. Raises: OSError.
Read = Callable[[str, int], bytes]


class KeySet:
    """The provider's keys."""

    def __init__(self, rules: JwtRules, read: Read, now_ms: Callable[[], int]) -> None:
        self._rules = rules
        self._read = read
        self._now_ms = now_ms
        self._lock = threading.Lock()
        #: Keys by id; None before the first read.
        self._keys: dict[str, Any] | None = None
        self._read_ms = 0
        #: After a failed read: not before this time, and the pause after the next failure.
        self._retry_at_ms = 0
        self._pause_ms = rules.retry_ms
        self._trouble = ""

    def key(self, key_id: str) -> Any:
        """The key of this id. Raises: TokenRefused."""
        with self._lock:
            now_ms = self._now_ms()
            age_ms = now_ms - self._read_ms
            if self._keys is None or age_ms >= self._rules.refresh_ms or (key_id not in self._keys and age_ms >= UNKNOWN_KEY_MS):
                self._refresh(now_ms)
            found = (self._keys or {}).get(key_id)
            if found is None:
                if self._keys is None:
                    raise TokenRefused(f"the keys cannot be read: {self._trouble}")
                raise TokenRefused("the token is signed with a key that is not in sasl.oauthbearer.jwks.endpoint.url")
            return found

    def _refresh(self, now_ms: int) -> None:
        if now_ms < self._retry_at_ms:
            return
        try:
            self._keys = parse_keys(self._read(self._rules.jwks_url, self._rules.read_timeout_ms))
        except (OSError, ValueError) as error:
            self._trouble = str(error)
            self._retry_at_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, self._rules.retry_max_ms)
            return
        self._read_ms, self._retry_at_ms, self._pause_ms = now_ms, 0, self._rules.retry_ms


class JwtValidator:
    """Validates tokens by the rules; call it in a thread."""

    def __init__(self, rules: JwtRules, *, read: Read | None = None, now_ms: Callable[[], int]) -> None:
        self._rules = rules
        self._keys = KeySet(rules, read or read_url, now_ms)
        self._now_ms = now_ms

    def __call__(self, token: str) -> ValidToken:
        """Raises: TokenRefused."""
        import jwt

        if len(token) > TOKEN_CHARACTERS_MAX:
            raise TokenRefused("the token is too long")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise TokenRefused(f"not a JWT: {type(error).__name__}") from None
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise TokenRefused("the token is not signed with an asymmetric key")
        key = self._keys.key(str(header.get("kid", "")))
        rules = self._rules
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                issuer=rules.issuer or None,
                audience=rules.audience or None,
                leeway=rules.clock_skew_s,
                # The times are checked with the broker's clock.
                options={
                    "require": ["exp"],
                    "verify_aud": bool(rules.audience),
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.PyJWTError as error:
            raise TokenRefused(f"{type(error).__name__}: the token is not valid for this broker") from None
        except (TypeError, ValueError) as error:
            raise TokenRefused(f"the key does not fit the token: {type(error).__name__}") from None
        return self._checked(claims)

    def _checked(self, claims: Mapping[str, Any]) -> ValidToken:
        rules, now_ms = self._rules, self._now_ms()
        skew_ms = rules.clock_skew_s * 1000
        expires_ms = _time_ms(claims, "exp")
        if expires_ms is None or expires_ms + skew_ms <= now_ms:
            raise TokenRefused("the token has expired")
        for name in ("nbf", "iat"):
            begins_ms = _time_ms(claims, name)
            if begins_ms is not None and begins_ms - skew_ms > now_ms:
                raise TokenRefused(f"the token is not valid yet: {name} is in the future")
        user = claims.get(rules.sub_claim)
        if not isinstance(user, str) or not user.strip():
            raise TokenRefused(f"the token has no claim {rules.sub_claim}")
        scopes = claims.get(rules.scope_claim, ())
        parts = scopes.split() if isinstance(scopes, str) else scopes if isinstance(scopes, list) else ()
        return ValidToken(user.strip(), expires_ms, frozenset(str(part) for part in parts))


def _time_ms(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**50:
        raise TokenRefused(f"the claim {name} is no time")
    return int(value * 1000)


def parse_keys(data: bytes) -> dict[str, Any]:
    """Keys by id, of those that sign. A key of a kind that the library does not know is left out. Raises: ValueError."""
    import jwt

    found: dict[str, Any] = {}
    content = json.loads(data)
    if not isinstance(content, dict) or not isinstance(content.get("keys"), list):
        raise ValueError("expected a JSON object with a list of keys")
    for entry in content["keys"]:
        try:
            if entry.get("use", "sig") == "sig" and entry.get("kty") != "oct":
                found[str(entry.get("kid", ""))] = jwt.PyJWK(entry).key
        except (jwt.PyJWTError, AttributeError):
            continue
    if not found:
        raise ValueError("the key set has no key for signatures")
    return found


def read_url(url: str, timeout_ms: int) -> bytes:
    """Reads ``file:``, ``https:`` and ``http:`` URLs. Raises: OSError."""
    import http.client
    import urllib.request

    parts = urlsplit(url)
    if parts.scheme == "file":
        with open(unquote(parts.path), "rb") as file:
            return file.read(JWKS_BYTES_MAX)
    # The scheme was checked when the setting was read; redirects to other schemes are refused by the library.
    try:
        with urllib.request.urlopen(url, timeout=timeout_ms / 1000) as answer:
            data: bytes = answer.read(JWKS_BYTES_MAX)
            return data
    except http.client.HTTPException as error:
        raise OSError(f"the server did not answer in HTTP: {type(error).__name__}") from None

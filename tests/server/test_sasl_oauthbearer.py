"""OAUTHBEARER: which tokens are valid, rotation of keys, and clients that get tokens from a function, a file and a token endpoint."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

import ottla
from ottla.net.sasl.jwt_validation import UNKNOWN_KEY_MS, JwtRules, JwtValidator
from ottla.net.sasl.logins import OAuthSource, fetch_token
from ottla.net.sasl.oauthbearer import TokenRefused
from ottla.testing import Broker, broker
from ottla.wire import errors

NOW_S = 1_700_000_000
KEYS: dict[str, Any] = {
    "rsa": rsa.generate_private_key(65537, 2048),
    "ec": ec.generate_private_key(ec.SECP256R1()),
    "other": ec.generate_private_key(ec.SECP256R1()),
}


def jwks(*names: str) -> bytes:
    """The public keys, and one of a kind that nobody knows."""
    found: list[dict[str, Any]] = [{"kty": "unknown", "kid": "x"}]
    for name in names:
        key = KEYS[name].public_key()
        algorithm: Any = jwt.algorithms.RSAAlgorithm if name == "rsa" else jwt.algorithms.ECAlgorithm
        found.append({**json.loads(algorithm.to_jwk(key)), "kid": name, "use": "sig"})
    return json.dumps({"keys": found}).encode()


def token(key: str = "ec", now_s: float = NOW_S, **changed: Any) -> str:
    claims = {"iss": "https://idp", "aud": "kafka", "sub": "alice", "exp": now_s + 300, "iat": now_s, "scope": "a b", **changed}
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, KEYS[key], algorithm="RS256" if key == "rsa" else "ES256", headers={"kid": key})


class Provider:
    """An identity provider whose keys and clock a test sets."""

    def __init__(self) -> None:
        self.keys = jwks("rsa", "ec")
        self.now_ms = NOW_S * 1000
        self.reads = 0
        self.fails = False

    def read(self, url: str, timeout_ms: int) -> bytes:
        self.reads += 1
        if self.fails:
            raise OSError("unreachable")
        return self.keys

    def validator(self, **rules: Any) -> JwtValidator:
        made = JwtRules(jwks_url="https://idp/keys", **{"issuer": "https://idp", "audience": ("kafka", "other"), **rules})
        return JwtValidator(made, read=self.read, now_ms=lambda: self.now_ms)


@pytest.mark.parametrize("key", ["rsa", "ec"])
def test_a_token_of_the_issuer_for_this_audience_is_valid(key: str) -> None:
    valid = Provider().validator()(token(key))
    assert (valid.user, valid.expires_ms, valid.scopes) == ("alice", (NOW_S + 300) * 1000, frozenset({"a", "b"}))
    assert Provider().validator(sub_claim="email", scope_claim="scp")(token(email="a@x", scp=["c"])).user == "a@x"


def unsigned() -> str:
    parts = [{"alg": "none", "kid": "ec"}, {"iss": "https://idp", "aud": "kafka", "sub": "alice", "exp": NOW_S + 300}]
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda: token(iss="https://evil"), "InvalidIssuerError"),
        (lambda: token(iss=None), "MissingRequiredClaimError"),
        (lambda: token(aud="else"), "InvalidAudienceError"),
        (lambda: token(aud=None), "MissingRequiredClaimError"),
        (lambda: token(exp=None), "MissingRequiredClaimError"),
        (lambda: token(exp=NOW_S - 31), "has expired"),
        (lambda: token(exp="soon"), "no time|InvalidTokenError|DecodeError"),
        (lambda: token(nbf=NOW_S + 31), "not valid yet: nbf"),
        (lambda: token(iat=NOW_S + 31), "not valid yet: iat"),
        (lambda: token(sub=None), "no claim sub"),
        (lambda: token(sub=" "), "no claim sub"),
        (lambda: token("other"), "a key that is not in"),
        (lambda: token()[:-4] + "AAAA", "InvalidSignatureError"),
        (unsigned, "not signed with an asymmetric key"),
        (lambda: jwt.encode({"sub": "alice"}, "shared" * 8, algorithm="HS256", headers={"kid": "ec"}), "not signed with an asymmetric key"),
        (lambda: "no.token", "not a JWT"),
        (lambda: "x" * 70_000, "too long"),
    ],
)
def test_other_tokens_are_refused_without_being_repeated(wrong: Any, problem: str) -> None:
    text = wrong()
    with pytest.raises(TokenRefused, match=problem) as refused:
        Provider().validator()(text)
    assert text not in str(refused.value)


def test_clocks_may_differ_by_the_skew() -> None:
    validate = Provider().validator(clock_skew_s=30)
    validate(token(exp=NOW_S - 29))
    validate(token(nbf=NOW_S + 29))


def test_keys_rotate_and_unknown_keys_do_not_flood_the_provider() -> None:
    provider = Provider()
    validate = provider.validator()
    validate(token("ec"))
    provider.keys = jwks("other")
    for _ in range(10):
        with pytest.raises(TokenRefused):
            validate(token("other"))
    assert provider.reads == 1, "the keys were read a moment ago"
    provider.now_ms += UNKNOWN_KEY_MS
    assert validate(token("other")).user == "alice"
    assert provider.reads == 2
    with pytest.raises(TokenRefused):
        validate(token("ec"))


def test_known_keys_stay_valid_while_the_provider_is_unreachable_and_retries_slow_down() -> None:
    provider = Provider()
    validate = provider.validator(refresh_ms=10_000)
    validate(token())
    provider.fails = True
    provider.now_ms += 10_000
    for _ in range(3):
        validate(token())
    assert provider.reads == 2, "one retry, then a pause"
    provider.now_ms += 100
    validate(token())
    provider.now_ms += 100
    validate(token())
    assert provider.reads == 3, "the pause doubles"


def test_without_any_keys_every_token_is_refused() -> None:
    provider = Provider()
    provider.keys = b'{"keys": []}'
    with pytest.raises(TokenRefused, match="the keys cannot be read: the key set has no key for signatures"):
        provider.validator()(token())


# A broker and clients.


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    path = tmp_path_factory.mktemp("idp") / "keys.json"
    path.write_bytes(jwks("rsa", "ec"))
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{path}",
        "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.expected.issuer": "https://idp",
        "sasl.oauthbearer.expected.audience": "kafka",
        "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "delegation.token.secret.key": "key",
    }
    with broker(settings=settings) as started:
        started.now_s = started.clock.wall_ms() / 1000  # type: ignore[attr-defined]
        yield started


def client(secured: Broker, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": secured.bootstrap_servers, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", **more}


@pytest.mark.server
def test_clients_get_tokens_from_a_function_and_from_a_file(secured: Broker, tmp_path: Path) -> None:
    async def provide() -> str:
        return token(now_s=secured.now_s)  # type: ignore[attr-defined]

    with ottla.Admin(**client(secured, sasl_oauth_token_provider=provide)) as admin:
        assert admin.create_delegation_token().owner == "User:alice"
    path = tmp_path / "token"
    path.write_text(token(now_s=secured.now_s) + "\n")  # type: ignore[attr-defined]
    with ottla.Admin(**client(secured, sasl_oauthbearer_token_endpoint_url=f"file://{path}")) as admin:
        admin.list_topics()


@pytest.mark.server
def test_an_expired_token_and_a_failing_provider_are_told_apart(secured: Broker) -> None:
    old = token(now_s=time.time() - 1_000)
    with (
        ottla.Admin(**client(secured, sasl_oauth_token_provider=lambda: old)) as admin,
        pytest.raises(errors.SaslAuthenticationFailed, match=r"the token has expired .* ago"),
    ):
        admin.list_topics()

    def fails() -> str:
        raise RuntimeError("SECRET")

    with (
        ottla.Admin(**client(secured, sasl_oauth_token_provider=fails)) as admin,
        pytest.raises(errors.SaslAuthenticationFailed, match="the token provider failed: RuntimeError") as failed,
    ):
        admin.list_topics()
    assert "SECRET" not in str(failed.value)


@pytest.mark.server
def test_confluent_kafka_authenticates_with_a_token(secured: Broker) -> None:
    from confluent_kafka.admin import AdminClient

    made = token(now_s=secured.now_s)  # type: ignore[attr-defined]
    settings = {
        "bootstrap.servers": secured.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (made, time.time() + 300),
    }  # fmt: skip
    admin = AdminClient(settings)
    admin.poll(0.1)
    assert admin.list_topics(timeout=10).cluster_id


class Endpoint(BaseHTTPRequestHandler):
    """Answers a client credentials grant."""

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        right = self.headers["Authorization"] == "Basic " + base64.b64encode(b"id:secret").decode() and form["grant_type"] == [
            "client_credentials"
        ]
        answer = {"access_token": f"token-for-{form['scope'][0]}", "token_type": "Bearer"} if right else {"error": "invalid_client"}
        self.send_response(200 if right else 401)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *arguments: Any) -> None: ...


def test_a_token_endpoint_grants_client_credentials() -> None:
    from ottla.net.sasl.login import LoginFailed

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/token"
        try:
            assert fetch_token(OAuthSource(url=url, client_id="id", client_secret="secret", scope="kafka")) == "token-for-kafka"
            with pytest.raises(LoginFailed, match="the identity provider refused: invalid_client") as refused:
                fetch_token(OAuthSource(url=url, client_id="id", client_secret="WRONG", scope="kafka"))
            assert "WRONG" not in str(refused.value)
        finally:
            server.shutdown()
    with pytest.raises(LoginFailed, match=r"no token from http://127.0.0.1/token"):
        fetch_token(OAuthSource(url=url, client_id="id", client_secret="secret"))

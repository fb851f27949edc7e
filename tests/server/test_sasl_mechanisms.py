"""SASL mechanisms as machines: server and client of each, and what refuses wrong credentials."""

import json
from base64 import b64decode
from collections.abc import Callable

import pytest

from ottla.base.jaas import JaasError, login_module, login_module_text
from ottla.base.scram import MalformedCredential, ScramCredential, ScramMechanism
from ottla.net.sasl.mechanism import Challenge, ClientMechanism, Failure, Outcome, ServerMechanism, ServerRefused, Success, TokenCredential
from ottla.net.sasl.oauthbearer import OAuthBearerClient, OAuthBearerServer, TokenRefused, ValidToken
from ottla.net.sasl.plain import PlainClient, PlainServer
from ottla.net.sasl.scram import ScramClient, ScramServer

SALT = b"0123456789abcdef"


class FakeCredentials:
    """Users and delegation tokens of one password each."""

    def __init__(self, users: dict[str, str], tokens: dict[str, str] | None = None, iterations: int = 4096) -> None:
        self.users = users
        self.tokens = tokens or {}
        self.iterations = iterations

    def password(self, user: str) -> str | None:
        return self.users.get(user)

    def scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return ScramCredential.of_password(mechanism, self.users[user], SALT, self.iterations) if user in self.users else None

    def token(self, mechanism: ScramMechanism, token_id: str) -> TokenCredential | None:
        if token_id not in self.tokens:
            return None
        return TokenCredential("User", "owner", 99, ScramCredential.of_password(mechanism, self.tokens[token_id], SALT, 4096))


def counting() -> Callable[[int], bytes]:
    """Different bytes with every call."""
    made = iter(range(256))
    return lambda size: bytes([next(made)] * size)


def exchange(client: ClientMechanism, server: ServerMechanism) -> Outcome:
    """Runs an exchange to its end; the client checks the server's last token."""
    token = client.step(b"")
    while True:
        assert token is not None
        outcome = server.step(token)
        if isinstance(outcome, Failure):
            return outcome
        token = client.step(outcome.data)
        if isinstance(outcome, Success):
            assert token is None
            return outcome


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_scram_authenticates_a_user_with_any_name_and_password(mechanism: ScramMechanism) -> None:
    server = ScramServer(mechanism, FakeCredentials({"a=b,c é": "p,w=ü"}), counting())
    outcome = exchange(ScramClient(mechanism, "a=b,c é", "p,w=ü", counting()), server)
    assert isinstance(outcome, Success)
    assert outcome.user == "a=b,c é"


def test_the_example_of_rfc_7677_has_the_proof_and_the_signature_of_the_rfc() -> None:
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", lambda size: b64decode("rOprNGfwEbeRWgbNEkqO"))
    assert client.step(b"") == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    proof = client.step(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert proof == b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert client.step(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "secret")])
def test_scram_refuses_a_wrong_password_and_an_unknown_user_with_one_message(user: str, password: str) -> None:
    server = ScramServer(ScramMechanism.SHA_256, FakeCredentials({"alice": "secret"}), counting())
    outcome = exchange(ScramClient(ScramMechanism.SHA_256, user, password, counting()), server)
    assert isinstance(outcome, Failure)
    assert outcome.message == "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"


def test_a_delegation_token_authenticates_as_its_owner_until_it_expires() -> None:
    credentials = FakeCredentials({}, {"id": "hmac"})
    client = ScramClient(ScramMechanism.SHA_512, "id", "hmac", counting(), token=True)
    outcome = exchange(client, ScramServer(ScramMechanism.SHA_512, credentials, counting()))
    assert isinstance(outcome, Success)
    assert (outcome.user, outcome.expires_ms, outcome.token) == ("owner", 99, True)
    refused = ScramServer(ScramMechanism.SHA_512, credentials, counting()).step(b"n,,n=id,r=abc")
    assert isinstance(refused, Failure), "without the extension the id is no user"


@pytest.mark.parametrize(
    "token",
    [
        b"", b"\xff", b"n,,n=alice", b"p=tls-unique,,n=alice,r=x", b"y,,n=,r=x", b"n,,n=al=ice,r=x", b"n,a=bob,n=alice,r=x",
        b"n,,n=alice,r=a b", b"n,,n=alice,r=x,tokenauth", b"n,,n=alice\0,r=x",
    ],
)  # fmt: skip
def test_scram_refuses_a_malformed_first_message(token: bytes) -> None:
    assert isinstance(ScramServer(ScramMechanism.SHA_256, FakeCredentials({"alice": "secret"}), counting()).step(token), Failure)


@pytest.mark.parametrize(
    ("wrong", "right"), [("r=", "r=z"), ("c=biws", "c=eSws"), ("p=", "p=AA"), ("p=", "x=1;p="), ("c=", "c=!"), (",p=", ",q=")]
)
def test_scram_refuses_a_changed_final_message(wrong: str, right: str) -> None:
    server = ScramServer(ScramMechanism.SHA_256, FakeCredentials({"alice": "secret"}), counting())
    client = ScramClient(ScramMechanism.SHA_256, "alice", "secret", counting())
    challenge = server.step(client.step(b"") or b"")
    assert isinstance(challenge, Challenge)
    final = (client.step(challenge.data) or b"").decode()
    assert isinstance(server.step(final.replace(wrong, right, 1).encode()), Failure)


def test_a_stored_credential_with_too_few_iterations_is_refused() -> None:
    server = ScramServer(ScramMechanism.SHA_256, FakeCredentials({"alice": "secret"}, iterations=4095), counting())
    assert isinstance(server.step(b"n,,n=alice,r=x"), Failure)


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([b"r=other,s=AAAA,i=4096"], "another nonce"),
        ([b"r={nonce}x,s=AAAA,i=1"], "asks for 1 iterations"),
        ([b"r={nonce}x,s=AAAA,i=999999999"], "asks for 999999999 iterations"),
        ([b"r={nonce}x,s=AAAA,i=4096", b"v=AAAA"], "impostor"),
        ([b"r={nonce}x,s=AAAA,i=4096", b"e=other-error"], "other-error"),
        ([b"\xff"], "not UTF-8"),
    ],
)
def test_a_scram_client_refuses_a_server_that_does_not_prove_itself(answers: list[bytes], problem: str) -> None:
    client = ScramClient(ScramMechanism.SHA_256, "alice", "secret", counting())
    nonce = (client.step(b"") or b"").rpartition(b"r=")[2]
    with pytest.raises(ServerRefused, match=problem):
        for answer in answers:
            client.step(answer.replace(b"{nonce}", nonce))


def test_plain_authenticates_and_refuses() -> None:
    credentials = FakeCredentials({"alice": "secret"})
    assert exchange(PlainClient("alice", "secret"), PlainServer(credentials)) == Success("alice")
    assert PlainServer(credentials).step(b"alice\0alice\0secret") == Success("alice")
    messages = {
        b"\0alice\0wrong": "Authentication failed: Invalid username or password",
        b"\0bob\0secret": "Authentication failed: Invalid username or password",
        b"\0bob\0\x00": "Invalid SASL/PLAIN response: expected 3 tokens, got 4",
        b"\0\0secret": "Authentication failed: username not specified",
        b"\0alice\0": "Authentication failed: password not specified",
        b"alice": "Invalid SASL/PLAIN response: expected 3 tokens, got 1",
        b"bob\0alice\0secret": "Authentication failed: Client requested an authorization id that is different from username",
        b"\xff": "Invalid SASL/PLAIN response: expected UTF-8",
    }
    for token, message in messages.items():
        outcome = PlainServer(credentials).step(token)
        assert isinstance(outcome, Failure)
        assert outcome.message == message


def validated(token: str) -> ValidToken:
    if token != "good.token":
        raise TokenRefused("no")
    return ValidToken("alice", 1_000)


def test_a_bearer_token_authenticates_with_its_expiry_time() -> None:
    client = OAuthBearerClient("good.token", {"tenant": "blue"})
    assert exchange(client, OAuthBearerServer(validated)) == Success("alice", expires_ms=1_000)


def test_a_bad_bearer_token_is_refused_after_the_client_has_seen_why() -> None:
    client, server = OAuthBearerClient("bad.token"), OAuthBearerServer(validated)
    challenge = server.step(client.step(b"") or b"")
    assert isinstance(challenge, Challenge)
    assert json.loads(challenge.data) == {"status": "invalid_token"}
    answer = client.step(challenge.data)
    assert answer == b"\x01"
    assert server.step(answer) == Failure(challenge.data.decode(), "no")


@pytest.mark.parametrize("token", [b"", b"\x01", b"n,,\x01\x01", b"n,,\x01auth=Basic good.token\x01\x01", b"n,,\x01auth=Bearer \x01\x01"])
def test_a_malformed_oauthbearer_message_is_refused(token: bytes) -> None:
    assert isinstance(OAuthBearerServer(validated).step(token), Failure)


def test_an_authorization_id_must_be_the_user_of_the_token() -> None:
    assert OAuthBearerServer(validated).step(b"n,a=alice,\x01auth=Bearer good.token\x01\x01") == Success("alice", expires_ms=1_000)
    assert isinstance(OAuthBearerServer(validated).step(b"n,a=bob,\x01auth=Bearer good.token\x01\x01"), Failure)


# Credentials as text.


def test_a_scram_credential_has_kafkas_form_and_hides_its_secrets() -> None:
    credential = ScramCredential.of_password(ScramMechanism.SHA_256, "pencil", SALT, 4096)
    assert ScramCredential.parse(credential.text) == credential
    assert credential.text.startswith("salt=MDEyMzQ1Njc4OWFiY2RlZg==,stored_key=")
    assert repr(credential) == "ScramCredential(iterations=4096)"
    for text in (
        "",
        "salt=AA==",
        credential.text + ",x=1",
        credential.text.replace("4096", "many"),
        credential.text.replace("salt=", "salt=!"),
    ):
        with pytest.raises(MalformedCredential, match="expected salt="):
            ScramCredential.parse(text)


def test_a_login_module_has_options_in_quotes_and_comments() -> None:
    module = login_module(
        'org.apache.kafka.common.security.plain.PlainLoginModule required // the broker\n username="a b" password=p-1 user_x="q\\"\\\\";',
        "PLAIN",
    )
    assert module.options == {"username": "a b", "password": "p-1", "user_x": 'q"\\'}
    assert module.users == {"x": 'q"\\'}
    assert login_module(login_module_text("PLAIN", module.options)) == module
    assert "p-1" not in repr(module)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a login module"),
        ("com.example.Other required;", "login module com.example.Other is not one of"),
        ("org.apache.kafka.common.security.scram.ScramLoginModule required;", "the login module of PLAIN is"),
        ("org.apache.kafka.common.security.plain.PlainLoginModule always;", "expected required, requisite"),
        ("org.apache.kafka.common.security.plain.PlainLoginModule required", "expected ; at the end"),
        ('org.apache.kafka.common.security.plain.PlainLoginModule required passwort="SECRET";', "option passwort of"),
        ('org.apache.kafka.common.security.plain.PlainLoginModule required password="SECRET" password="SECRET";', "set twice"),
        ('org.apache.kafka.common.security.plain.PlainLoginModule required password "SECRET";', "expected = after option password"),
        ("org.apache.kafka.common.security.plain.PlainLoginModule required password=;", "option password has no value"),
        ('org.apache.kafka.common.security.plain.PlainLoginModule required password="SECRET;', "character 75 is not part"),
        ('org.apache.kafka.common.security.plain.PlainLoginModule required password="SECRET"; x', "expected one login module"),
    ],
)
def test_a_wrong_login_module_is_refused_by_name_and_without_its_values(text: str, problem: str) -> None:
    with pytest.raises(JaasError, match=problem) as refused:
        login_module(text, "PLAIN")
    assert "SECRET" not in str(refused.value)

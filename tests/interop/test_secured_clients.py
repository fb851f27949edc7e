"""Seven foreign clients on every secured protocol with every mechanism that they have, while access rules are on.

One broker has all listeners. A client writes records and reads them in a group. Then it does the same with a wrong password, and on a topic
and in a group that it has no rights on; it must report that with its own error.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from secured_clients import CLIENTS, Client, Result, Task, expected

import ottla
from certificates import Certificate
from ottla.results import Acl, AclOperation, AclPatternType, AclResourceType, ScramMechanism
from serving import Serving

pytestmark = [
    pytest.mark.interop,
    pytest.mark.server,
    pytest.mark.timeout(420),
    pytest.mark.xdist_group("other_languages"),
    pytest.mark.usefixtures("own_server_only"),
]

PASSWORDS = {"admin": "admin-secret", "alice": "alice-secret"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
#: Protocol of each listener; MUTUAL requires a certificate of the client.
LISTENERS = {"SSL": "SSL", "MUTUAL": "SSL", "SASL_SSL": "SASL_SSL", "SASL_PLAINTEXT": "SASL_PLAINTEXT"}
#: Listeners and mechanisms.
WAYS = [("SSL", ""), ("MUTUAL", ""), *((protocol, one) for protocol in ("SASL_SSL", "SASL_PLAINTEXT") for one in MECHANISMS)]
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: A pattern of each client's error for a password or token that the broker refuses. kafka-python drops an answer that arrives together with
#: the end of the connection. KafkaJS takes the answer to a wrong token (RFC 7628) for a success, and goes on until the broker closes.
NOT_AUTHENTICATED = {
    "java": "SaslAuthenticationException",
    "librdkafka": "_AUTHENTICATION: ",
    "kafka-python": "SaslAuthenticationFailedError|socket disconnected",
    "aiokafka": "KafkaConnectionError",
    "franz-go": "SASL_AUTHENTICATION_FAILED|unexpected data in oauth response",
    "sarama": "SASL Authentication failed",
    "kafkajs": "KafkaJSSASLAuthenticationError|Closed connection",
}
#: A part of the error for a topic, and for a group. KafkaJS does not tell why it finds no coordinator.
NOT_AUTHORIZED = {
    "java": ("TopicAuthorizationException", "GroupAuthorizationException"),
    "librdkafka": ("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"),
    "kafka-python": ("TopicAuthorizationFailedError", "GroupAuthorizationFailedError"),
    "aiokafka": ("TopicAuthorizationFailedError", "GroupAuthorizationFailedError"),
    "franz-go": ("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"),
    "sarama": ("not authorized to access this topic", "not authorized to access this group"),
    "kafkajs": ("Topic authorization failed", "KafkaJSGroupCoordinatorNotFound"),
}


@dataclass(frozen=True, slots=True)
class Secured:
    """The broker, and the files of its clients."""

    ports: dict[str, str]
    directory: Path
    idp: ec.EllipticCurvePrivateKey

    def task(self, protocol: str, mechanism: str, client: str) -> Task:
        name = f"{client}-{protocol}-{mechanism or 'none'}".lower()
        task = Task(self.ports[protocol], LISTENERS[protocol], topic=f"open-{name}", group=f"open-{name}")
        if task.tls:
            task = replace(task, ca=str(self.directory / "ca.pem"))
        if protocol == "MUTUAL":
            task = replace(task, certificate=str(self.directory / "alice.crt"), key=str(self.directory / "alice.key"))
        if mechanism == "OAUTHBEARER":
            task = replace(task, mechanism=mechanism, token=self.token(self.idp))
        elif mechanism:
            task = replace(task, mechanism=mechanism, username="alice", password=PASSWORDS["alice"])
        return task

    def token(self, key: ec.EllipticCurvePrivateKey) -> str:
        now_s = int(time.time())
        claims = {"iss": "https://idp", "aud": "kafka", "sub": "alice", "scope": "kafka", "iat": now_s, "exp": now_s + 600}
        return jwt.encode(claims, key, algorithm="ES256", headers={"kid": "one"})


def _free_ports() -> dict[str, str]:
    """HOST:PORT of each listener."""
    with ExitStack() as ends:
        sockets = [ends.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in LISTENERS]
        return {name: f"127.0.0.1:{one.getsockname()[1]}" for name, one in zip(LISTENERS, sockets, strict=True)}


def _configuration(directory: Path, ports: dict[str, str], idp: ec.EllipticCurvePrivateKey) -> str:
    authority = Certificate.authority()
    authority.write_trusted(directory / "ca.pem")
    authority.issue("broker").write_pem(directory / "broker.pem")
    alice = authority.issue("alice")
    (directory / "alice.crt").write_text(alice.pem)
    (directory / "alice.key").write_text(alice.key_pem())
    jwk = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(idp.public_key())), "kid": "one", "use": "sig"}
    (directory / "keys.json").write_text(json.dumps({"keys": [jwk]}))
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    return f"""
listeners={",".join(f"{name}://{address}" for name, address in ports.items())}
listener.security.protocol.map={",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items())}
inter.broker.listener.name=SASL_SSL
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.enabled.mechanisms={",".join(MECHANISMS)}
listener.name.sasl_ssl.plain.sasl.jaas.config={MODULE} required username="admin" password="{PASSWORDS["admin"]}" {users};
listener.name.sasl_plaintext.plain.sasl.jaas.config={MODULE} required {users};
sasl.oauthbearer.jwks.endpoint.url=file://{directory / "keys.json"}
sasl.oauthbearer.expected.issuer=https://idp
sasl.oauthbearer.expected.audience=kafka
ssl.keystore.type=PEM
ssl.keystore.location={directory / "broker.pem"}
ssl.truststore.type=PEM
ssl.truststore.location={directory / "ca.pem"}
listener.name.mutual.ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^CN=([^,]+).*$/$1/,DEFAULT
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
auto.create.topics.enable=false
"""


def _rules() -> list[Acl]:
    """alice, and clients without authentication, may use what is called `open-`; alice may also write into `half-open`."""
    of_topics = (AclOperation.READ, AclOperation.WRITE)
    wanted = [(who, AclResourceType.TOPIC, what) for who in ("alice", "ANONYMOUS") for what in of_topics]
    wanted += [(who, AclResourceType.GROUP, AclOperation.READ) for who in ("alice", "ANONYMOUS")]
    return [
        Acl(principal=f"User:{who}", operation=what, resource_type=kind, name="open-", pattern_type=AclPatternType.PREFIXED)
        for who, kind, what in wanted
    ]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    idp = ec.generate_private_key(ec.SECP256R1())
    ports = _free_ports()
    (directory / "server.properties").write_text(_configuration(directory, ports, idp))
    with Serving(directory / "data", arguments=["--config", str(directory / "server.properties")], listen=False):
        made = Secured(ports, directory, idp)
        admin_settings: dict[str, Any] = {
            "bootstrap_servers": ports["SASL_PLAINTEXT"], "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN",
            "sasl_username": "admin", "sasl_password": PASSWORDS["admin"],
        }  # fmt: skip
        with ottla.Admin(**admin_settings) as admin:
            for mechanism in (ScramMechanism.SHA_256, ScramMechanism.SHA_512):
                admin.set_scram_credential("alice", mechanism, PASSWORDS["alice"])
            tasks = [made.task(protocol, mechanism, client) for client in CLIENTS for protocol, mechanism in WAYS]
            admin.create_topics([ottla.NewTopic(name, 1) for name in ("closed", *(task.topic for task in tasks))])
            assert not any(admin.create_acls(_rules()).values())
        yield made


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The client of each name, started when the first test needs it."""
    with ExitStack() as ends:
        started: dict[str, Client] = {}

        def client(name: str) -> Client:
            if name not in started:
                started[name] = ends.enter_context(CLIENTS[name](tmp_path_factory.mktemp(name)))
            return started[name]

        yield client


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_a_client_writes_and_reads_in_a_group(secured: Secured, clients: Any, name: str, protocol: str, mechanism: str) -> None:
    task = secured.task(protocol, mechanism, name)
    assert clients(name)(task) == expected(task)


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_reports_that_its_password_or_token_is_refused(secured: Secured, clients: Any, name: str, mechanism: str) -> None:
    task = secured.task("SASL_SSL", mechanism, name)
    if task.token:
        task = replace(task, token=secured.token(ec.generate_private_key(ec.SECP256R1())))
    else:
        task = replace(task, password="wrong")
    result: Result = clients(name)(task)
    assert re.search(NOT_AUTHENTICATED[name], result.error) and result.values == []


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_reports_what_it_has_no_right_on(secured: Secured, clients: Any, name: str) -> None:
    task = secured.task("SASL_SSL", "SCRAM-SHA-512", name)
    topic, group = NOT_AUTHORIZED[name]
    assert topic in clients(name)(replace(task, topic="closed")).error
    assert group in clients(name)(replace(task, group="closed")).error


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_without_a_certificate_is_refused_where_one_is_required(secured: Secured, clients: Any, name: str) -> None:
    task = replace(secured.task("MUTUAL", "", name), certificate="", key="")
    assert clients(name)(task).error

"""Errors of security are told apart, in every client, blocking and asyncio, and on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import ottla
import ottla.aio
from certificates import Certificate
from commands import Ottla, refused
from ottla.base.acls import Operation
from ottla.client.access_errors import refused_access
from ottla.client.options import ConsumerOptions, from_keywords
from ottla.errors import (
    ClusterAuthorizationFailed,
    ConnectionFailed,
    GroupAuthorizationFailed,
    KafkaError,
    RequestTimedOut,
    SaslAuthenticationFailed,
    SslAuthenticationFailed,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from ottla.results import Acl, AclOperation, AclResourceType
from ottla.testing import broker

pytestmark = pytest.mark.server

USERS = {"alice": "wonder"}
LIMIT_MS = 1_500
Settings = dict[str, Any]
#: May be described, not read or written.
DESCRIBED = Acl(principal="User:alice", operation=AclOperation.DESCRIBE, resource_type=AclResourceType.TOPIC, name="described")
READ = Acl(principal="User:alice", operation=AclOperation.READ, resource_type=AclResourceType.TOPIC, name="readable")


class Clusters:
    """Settings of a client with each mistake."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        authority = Certificate.authority()
        self.trusted = str(authority.write_trusted(directory / "ca.pem"))
        self.other = str(Certificate.authority("other").write_trusted(directory / "other.pem"))
        self.secured = stack.enter_context(broker(tls=True, users=USERS, acls=[DESCRIBED, READ]))
        for topic in ("described", "readable", "hidden"):
            self.secured.topic(topic).send(b"1")
        self.plain = stack.enter_context(broker())
        self.with_users = stack.enter_context(broker(users=USERS))
        self.wrong = {
            "expired": authority.issue(days=-0.5).write_pem(directory / "expired.pem"),
            "elsewhere": authority.issue(names=["elsewhere.example"]).write_pem(directory / "elsewhere.pem"),
        }
        self.served = {name: stack.enter_context(self._served(str(path))) for name, path in self.wrong.items()}

    @staticmethod
    def _served(certificate: str) -> Any:
        """A broker that shows this certificate; brokers among themselves do without TLS, which would refuse it."""
        settings = {
            "listeners": "SASL_SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
            "security.inter.broker.protocol": "PLAINTEXT",
            "ssl.keystore.location": certificate,
        }
        return broker(tls=True, users=USERS, settings=settings)

    def alice(self, **changed: Any) -> Settings:
        return {**self.secured.client_settings("alice", "SCRAM-SHA-512"), **changed}

    def settings(self, mistake: str) -> Settings:
        match mistake:
            case "wrong password":
                return self.alice(sasl_password="wrong")
            case "unknown authority":
                return self.alice(ssl_truststore_location=self.other)
            case "expired certificate" | "wrong host name":
                name = "expired" if mistake.startswith("expired") else "elsewhere"
                return self.alice(bootstrap_servers=self.served[name].bootstrap_servers, ssl_truststore_location=self.trusted)
            case "plaintext on a TLS port":
                return {"bootstrap_servers": self.secured.bootstrap_servers}
            case "TLS on a plaintext port":
                return self.alice(bootstrap_servers=self.with_users.bootstrap_servers)
            case "no SASL":
                return {"bootstrap_servers": self.with_users.bootstrap_servers}
        raise AssertionError(mistake)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with ExitStack() as stack:
        yield Clusters(stack, tmp_path_factory.mktemp("certificates"))


#: By mistake: the error, and what it says. Those that another attempt cannot mend are raised at once, as in Kafka's clients.
MISTAKES: dict[str, tuple[type[KafkaError], str]] = {
    "wrong password": (SaslAuthenticationFailed, "refused the credentials of SASL SCRAM-SHA-512"),
    "unknown authority": (SslAuthenticationFailed, "the authority of the peer's certificate is unknown"),
    "expired certificate": (SslAuthenticationFailed, "the certificate of the peer has expired"),
    "wrong host name": (SslAuthenticationFailed, "the certificate is for another host: IP address mismatch"),
    "plaintext on a TLS port": (RequestTimedOut, "the listener speaks TLS, and this client does not"),
    "TLS on a plaintext port": (RequestTimedOut, "is it a listener without TLS?"),
    "no SASL": (RequestTimedOut, "a listener with SASL hangs up like this on a client without it"),
}


def blocking_producer(settings: Settings) -> None:
    with ottla.Producer(max_block_ms=LIMIT_MS, **settings) as client:
        client.send("readable", b"x").result(20)


def blocking_consumer(settings: Settings) -> None:
    with ottla.Consumer(default_api_timeout_ms=LIMIT_MS, **settings) as client:
        client.end_offsets([ottla.TopicPartition("readable", 0)])


def blocking_admin(settings: Settings) -> None:
    with ottla.Admin(default_api_timeout_ms=LIMIT_MS, **settings) as client:
        client.list_topics()


def aio_producer(settings: Settings) -> None:
    async def run() -> None:
        async with ottla.aio.Producer(max_block_ms=LIMIT_MS, **settings) as client:
            await (await client.send("readable", b"x"))

    asyncio.run(run())


def aio_consumer(settings: Settings) -> None:
    async def run() -> None:
        async with ottla.aio.Consumer(default_api_timeout_ms=LIMIT_MS, **settings) as client:
            await client.end_offsets([ottla.TopicPartition("readable", 0)])

    asyncio.run(run())


def aio_admin(settings: Settings) -> None:
    async def run() -> None:
        async with ottla.aio.Admin(default_api_timeout_ms=LIMIT_MS, **settings) as client:
            await client.list_topics()

    asyncio.run(run())


CLIENTS = (blocking_producer, blocking_consumer, blocking_admin, aio_producer, aio_consumer, aio_admin)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_client_names_what_is_wrong_with_its_security(clusters: Clusters, mistake: str, client: Callable[[Settings], None]) -> None:
    settings, (kind, said) = clusters.settings(mistake), MISTAKES[mistake]
    with pytest.raises((kind, ConnectionFailed)) as failed:
        client(settings)
    assert isinstance(failed.value, kind) or kind is RequestTimedOut, "an error that lasts is not one of the connection"
    assert said in str(failed.value)
    assert settings["bootstrap_servers"] in str(failed.value)
    assert "wonder" not in str(failed.value)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_command_names_it_too(clusters: Clusters, mistake: str, ottla: Ottla, isolated_environment: Path) -> None:
    settings = {"default_api_timeout_ms": str(LIMIT_MS), **clusters.settings(mistake)}
    isolated_environment.write_text("[profiles.p]\n" + "".join(f'{name} = "{value}"\n' for name, value in settings.items()))
    assert MISTAKES[mistake][1] in refused(ottla("topic", "list", "--profile", "p"))


@pytest.mark.parametrize("mistake", ["unknown authority", "expired certificate", "wrong password"])
def test_a_member_of_a_group_is_told_at_its_first_poll(clusters: Clusters, mistake: str) -> None:
    with (
        ottla.Consumer("readable", group_id="g", **clusters.settings(mistake)) as consumer,
        pytest.raises(MISTAKES[mistake][0], match=MISTAKES[mistake][1][:20]),
    ):
        consumer.poll(30_000)


# Who may not do what, on what.


def poll(settings: Settings, topic: str, **more: Any) -> None:
    with ottla.Consumer(auto_offset_reset="earliest", **more, **settings) as client:
        if more:
            client.subscribe([topic])
        else:
            client.assign([ottla.TopicPartition(topic, 0)])
        for _ in range(20):
            client.poll(1_000)


def produce(settings: Settings, topic: str, **more: Any) -> None:
    with ottla.Producer(**more, **settings) as client:
        if "transactional_id" in more:
            client.init_transactions()
        client.send(topic, b"x").result(20)


def administer(settings: Settings, call: Callable[[ottla.Admin], Any]) -> None:
    with ottla.Admin(**settings) as client:
        call(client)


def delete_records(admin: ottla.Admin) -> None:
    [outcome] = admin.delete_records({ottla.TopicPartition("described", 0): 1}).values()
    assert isinstance(outcome, KafkaError)
    raise outcome


REFUSALS: dict[str, tuple[Callable[[Settings], None], type[KafkaError], str]] = {
    "write to a hidden topic": (lambda s: produce(s, "hidden"), TopicAuthorizationFailed, "User:alice may not Describe Topic hidden"),
    "write": (lambda s: produce(s, "described", acks=1), TopicAuthorizationFailed, "User:alice may not Write Topic described"),
    "write with idempotence": (
        lambda s: produce(s, "described"), ClusterAuthorizationFailed, "User:alice may not be an idempotent producer; that needs",
    ),
    "read": (lambda s: poll(s, "described"), TopicAuthorizationFailed, "User:alice may not Read Topic described"),
    "group": (lambda s: poll(s, "readable", group_id="g"), GroupAuthorizationFailed, "User:alice may not Read Group g"),
    "transaction": (
        lambda s: produce(s, "readable", transactional_id="x"), TransactionalIdAuthorizationFailed,
        "User:alice may not Describe TransactionalId x",
    ),
    "create": (
        lambda s: administer(s, lambda admin: admin.create_topic(ottla.NewTopic("new", 1))), TopicAuthorizationFailed,
        "User:alice may not Create Topic new",
    ),
    "describe": (
        lambda s: administer(s, lambda admin: admin.describe_topic("hidden")), TopicAuthorizationFailed,
        "User:alice may not Describe Topic hidden",
    ),
    "delete records": (
        lambda s: administer(s, delete_records),
        TopicAuthorizationFailed, "User:alice may not Delete Topic described",
    ),
    "rules": (
        lambda s: administer(s, lambda admin: admin.describe_acls()), ClusterAuthorizationFailed, "User:alice may not Describe the cluster",
    ),
}  # fmt: skip


@pytest.mark.parametrize("access", REFUSALS)
def test_a_refused_access_says_who_may_not_do_what_on_what(clusters: Clusters, access: str) -> None:
    attempt, kind, said = REFUSALS[access]
    with pytest.raises(kind) as refusal:
        attempt(clusters.alice())
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "who"),
    [
        ({}, "this client, which does not authenticate (User:ANONYMOUS), may not"),
        ({"security_protocol": "SSL", "ssl_keystore_location": "/k.pem"}, "this client, known by its certificate, may not"),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_jaas_config": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="bob" password="secret";',
            },
            "User:bob may not",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": lambda: "x"},
            "this client, authenticated by OAUTHBEARER, may not",
        ),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_username": "id",
                "sasl_password": "secret",
                "sasl_delegation_token": True,
            },
            "the owner of delegation token id may not",
        ),
    ],
)
def test_a_client_is_named_as_far_as_its_settings_say(settings: Settings, who: str) -> None:
    said = refused_access(TopicAuthorizationFailed.code, from_keywords(ConsumerOptions, settings), Operation.READ, "t") or ""
    assert said.startswith(f"{who} Read Topic t")
    assert "secret" not in said

"""zookeeper.set.acl: who may read and write the nodes of brokers, on a real ensemble."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from ottla.base.options import ConfigError
from ottla.base.ports import NodeState, Op
from ottla.broker.metadata.configs import Settings
from ottla.server.store_factory import read_and_watch, store_factory, submit_and_wait, zookeeper_connection
from ottla.server.zookeeper_ensemble import Ensemble
from ottla.store import layout
from ottla.store.zookeeper.opening import ZooKeeperUnavailable, open_session
from ottla.store.zookeeper.requests import OWN_ACL, READABLE_ACL, acl_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

SECRET = "sentinel"


def settings(connect: str, path: str, **more: str) -> Settings:
    return Settings(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "zookeeper.connect": f"{connect}/{path}",
            "zookeeper.connection.timeout.ms": "4000",
            **{name.replace("_", "."): text for name, text in more.items()},
        }
    )


SECURE = {"zookeeper_set_acl": "true", "ottla_zookeeper_digest": f"brokers:{SECRET}"}


@contextmanager
def stranger(connect: str) -> Iterator[KazooClient]:
    """A client without an identity."""
    client = KazooClient(hosts=connect)
    client.start(timeout=20)
    try:
        yield client
    finally:
        client.stop()
        client.close()


async def test_strangers_read_topics_and_no_secrets_and_write_nothing(zookeeper: Ensemble) -> None:
    session = await open_session(zookeeper_connection(settings(zookeeper.connect, "acls", **SECURE).options))
    user, topic, broker = layout.config("users", "alice"), layout.TOPICS + "/t", layout.config("brokers", "1")
    written = [Op("create", user, b"credential"), Op("create", topic, b"partitions"), Op("create", broker, b"secret")]
    assert (await submit_and_wait(session, *written)).error is None
    assert (await submit_and_wait(session, Op("create", "/ephemeral", ephemeral=True))).error is None
    with stranger(zookeeper.connect) as other:
        assert other.get(f"/acls{topic}")[0] == b"partitions"
        for path in (user, broker):
            with pytest.raises(NoAuthError):
                other.get(f"/acls{path}")
        with pytest.raises(NoAuthError):
            other.get_children(f"/acls{layout.DELEGATION_TOKENS}")
        for path in (user, topic, broker, "/ephemeral"):
            with pytest.raises(NoAuthError):
                other.set(f"/acls{path}", b"forged")
        with pytest.raises(NoAuthError):
            other.create(f"/acls{layout.TOPICS}/u", b"")
        with pytest.raises(NoAuthError):
            other.delete(f"/acls{topic}")
        rules, _ = other.get_acls(f"/acls{topic}")
        assert sorted((rule.id.scheme, rule.perms) for rule in rules) == [("digest", 31), ("world", 1)]
    session.close()
    await session.closed()


async def test_another_broker_with_the_identity_continues_and_one_without_is_refused_by_name(zookeeper: Ensemble) -> None:
    for number in (1, 2):
        session = await open_session(zookeeper_connection(settings(zookeeper.connect, "again", **SECURE).options))
        path = layout.config("users", f"u{number}")
        assert (await submit_and_wait(session, Op("create", path, b"credential"))).error is None
        seen: list[NodeState] = []
        await read_and_watch(session, "/config/users", seen.append)
        assert len([state for state in seen if state.data == b"credential"]) == number
        session.close()
        await session.closed()
    for wrong in ({}, {**SECURE, "ottla_zookeeper_digest": "brokers:wrong"}):
        with pytest.raises(ZooKeeperUnavailable, match=r"no access to .*see zookeeper.set.acl, .* and ottla.zookeeper.digest") as refused:
            await open_session(zookeeper_connection(settings(zookeeper.connect, "again", **wrong).options))
        assert SECRET not in str(refused.value)


async def test_without_the_setting_nodes_are_open(zookeeper: Ensemble) -> None:
    session = await open_session(zookeeper_connection(settings(zookeeper.connect, "open").options))
    with stranger(zookeeper.connect) as other:
        other.set(f"/open{layout.TOPICS}", b"anyone")
    session.close()
    await session.closed()


@pytest.mark.parametrize(
    ("path", "readable"),
    [
        ("/config/users/alice", False), ("/config/users", False), ("/config/brokers/1", False),
        ("/delegation_token/tokens/x", False),
        ("/config/topics/t", True), ("/brokers/ids/1", True), ("/delegation_token", True), ("/kafka-acl/Topic/t", True),
        ("/controller", True),
    ],
)  # fmt: skip
def test_the_rules_of_a_node_are_those_of_kafka(path: str, readable: bool) -> None:
    assert acl_of(path) == (READABLE_ACL if readable else OWN_ACL)


def test_rules_without_an_identity_refuse_the_start(tmp_path: object) -> None:
    for more, problem in (
        ({"zookeeper_set_acl": "true"}, "zookeeper.set.acl: brokers have no identity at ZooKeeper"),
        ({"zookeeper_set_acl": "true", "zookeeper_ssl_client_enable": "true"}, "zookeeper.set.acl: brokers have no identity"),
        ({"ottla_zookeeper_digest": SECRET}, "ottla.zookeeper.digest: expected USER:PASSWORD"),
        ({"ottla_zookeeper_sasl": f":{SECRET}"}, "ottla.zookeeper.sasl: expected USER:PASSWORD"),
    ):
        with pytest.raises(ConfigError, match=problem) as refused:
            zookeeper_connection(settings("h:1", "x", **more).options)
        assert SECRET not in str(refused.value)
    embedded = Settings({"zookeeper.set.acl": "true"}).options
    with pytest.raises(ConfigError, match=r"zookeeper.set.acl: is about nodes in ZooKeeper"):
        store_factory(embedded, tmp_path, lambda reason: None)  # type: ignore[arg-type]

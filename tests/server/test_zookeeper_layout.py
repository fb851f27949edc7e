"""What a cluster leaves in a real ZooKeeper is what Kafka 3.x leaves there, path by path, so that ZooKeeper's own tools show the same.

Source: ZkData.scala of Kafka 3.x. Two things differ. Kafka writes an empty node of overrides for a topic that has none; here it comes
with the first override. The states carry one key more, ``isr_broker_epochs``, which Kafka ignores.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import ottla
from ottla import ConfigChange, NewTopic, Resource
from ottla.broker.metadata.features import NEWEST, SUPPORTED
from ottla.server.zookeeper_ensemble import Ensemble
from serving import Serving

pytestmark = pytest.mark.server

FEATURES = {name: {"min_version": levels.lowest, "max_version": levels.highest} for name, levels in SUPPORTED.items()}
CHROOTS = count(1)

#: Nodes that Kafka makes when a broker starts, all of them empty.
EMPTY = {
    "/admin", "/admin/delete_topics", "/brokers", "/brokers/ids", "/brokers/seqid", "/brokers/topics", "/cluster", "/config",
    "/config/brokers", "/config/changes", "/config/clients", "/config/ips", "/config/topics", "/config/users", "/consumers",
    "/isr_change_notification", "/log_dir_event_notification",
}  # fmt: skip
TYPES = ("Topic", "Group", "Cluster", "TransactionalId", "DelegationToken", "User")
#: Nodes that Kafka makes if it has an authorizer or delegation tokens; all of them empty.
OF_SECURITY = {
    "/delegation_token", "/delegation_token/tokens", "/delegation_token/token_changes", "/kafka-acl", "/kafka-acl-changes",
    "/kafka-acl-extended", "/kafka-acl-extended-changes", "/kafka-acl-extended/prefixed",
    *(f"{root}/{name}" for root in ("/kafka-acl", "/kafka-acl-extended/prefixed") for name in TYPES),
}  # fmt: skip
#: Overrides of consumer groups and subscriptions to metrics of clients, which Kafka has without ZooKeeper only.
LATER = {"/config/groups", "/config/client-metrics"}


@pytest.fixture
def connect(zookeeper: Ensemble) -> str:
    return f"{zookeeper.connect}/layout-{next(CHROOTS)}"


@pytest.fixture
def client(connect: str) -> Iterator[KazooClient]:
    made = KazooClient(hosts=connect)
    made.start()
    yield made
    made.stop()
    made.close()


@pytest.fixture
def cluster(tmp_path: Path, connect: str) -> Iterator[Serving]:
    """Brokers 1 and 2, in one process."""
    with Serving(tmp_path / "data", brokers=2, arguments=["--zookeeper", connect]) as server:
        yield server


def tree(client: KazooClient) -> dict[str, tuple[Any, bool]]:
    """Content, and whether it is ephemeral, by path."""
    found: dict[str, tuple[Any, bool]] = {}
    paths = ["/"]
    while paths:
        path = paths.pop()
        if path != "/":
            data, stat = client.get(path)
            found[path] = (json.loads(data) if data else None, stat.ephemeralOwner != 0)
        paths += [f"{path.rstrip('/')}/{child}" for child in client.get_children(path)]
    return found


def state(leader: int, isr: list[int], found: dict[str, Any], *, epoch: int = 0) -> dict[str, Any]:
    """A partition's state; the key of our own is taken over from what was found."""
    kafkas = {"version": 1, "leader": leader, "leader_epoch": epoch, "controller_epoch": 1, "isr": isr}
    return {**kafkas, "isr_broker_epochs": found["isr_broker_epochs"]}


def test_every_node_is_where_kafka_has_it_and_holds_what_kafka_writes(cluster: Serving, client: KazooClient) -> None:
    with ottla.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        created = admin.create_topic(NewTopic("t", assignments={0: [1, 2], 1: [2, 1]}, configs={"retention.ms": "3600000"}))
        admin.create_topics([NewTopic("gone", 1, 1)])
        admin.delete_topic("gone")
        admin.incremental_alter_configs({Resource.broker(2): [ConfigChange("log.retention.ms", "20000")]})
        admin.incremental_alter_configs({Resource.broker(None): [ConfigChange("log.retention.ms", "10000")]})
        cluster_id = admin.describe_cluster().cluster_id
    with ottla.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send("t", b"x").result()
    found = tree(client)
    of_topic = {"/brokers/topics/t/partitions", "/brokers/topics/t/partitions/0", "/brokers/topics/t/partitions/1"}
    for path in EMPTY | LATER | OF_SECURITY | of_topic:
        assert found.pop(path) == (None, False), path
    for number, (host, port) in enumerate(cluster.addresses, 1):
        registration, ephemeral = found.pop(f"/brokers/ids/{number}")
        assert ephemeral and registration.pop("timestamp").isdecimal()
        assert registration == {
            "version": 5, "host": host, "port": port, "jmx_port": -1, "endpoints": [f"PLAINTEXT://{host}:{port}"],
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"}, "features": FEATURES, "implementation": "ottla",
        }  # fmt: skip
    controller, ephemeral = found.pop("/controller")
    assert ephemeral and controller.pop("timestamp").isdecimal() and controller.pop("brokerid") in (1, 2)
    assert controller == {"version": 2, "kraftControllerEpoch": -1}
    block, _ = found.pop("/latest_producer_id_block")
    assert block.pop("broker") in (1, 2)
    states = {number: found[f"/brokers/topics/t/partitions/{number}/state"][0] for number in (0, 1)}
    assert {path: content for path, (content, ephemeral) in found.items() if not ephemeral} == {
        "/brokers/topics/t": {
            "version": 3,
            "topic_id": base64.urlsafe_b64encode(created.topic_id).rstrip(b"=").decode(),
            "partitions": {"0": [1, 2], "1": [2, 1]},
            "adding_replicas": {},
            "removing_replicas": {},
        },
        "/brokers/topics/t/partitions/0/state": state(1, [1, 2], states[0]),
        "/brokers/topics/t/partitions/1/state": state(2, [2, 1], states[1]),
        "/cluster/id": {"version": "1", "id": cluster_id},
        "/config/brokers/2": {"version": 1, "config": {"log.retention.ms": "20000"}},
        "/config/brokers/<default>": {"version": 1, "config": {"log.retention.ms": "10000"}},
        "/config/topics/t": {"version": 1, "config": {"retention.ms": "3600000"}},
        "/controller_epoch": 1,
        "/feature": {"version": 2, "status": 1, "features": {name: {"max_version_level": level} for name, level in NEWEST.items()}},
    }
    assert block == {"version": 1, "block_start": "0", "block_end": "999"}
    assert len(found) == 9


def test_a_clean_stop_leaves_no_ephemeral_node_and_a_new_start_goes_on_with_larger_epochs(cluster: Serving, client: KazooClient) -> None:
    with ottla.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(NewTopic("t", assignments={0: [1, 2]}))
    lives = [client.get(f"/brokers/ids/{number}")[1].czxid for number in (1, 2)]
    cluster.stop()
    assert not [path for path, (_, ephemeral) in tree(client).items() if ephemeral]
    cluster.start()
    again = [client.get(f"/brokers/ids/{number}")[1].czxid for number in (1, 2)]
    assert min(again) > max(lives), "a broker epoch is the transaction that registered it"
    assert json.loads(client.get("/controller_epoch")[0]) == 2

"""The admin client over sockets against an Ottla broker and, if available, Apache Kafka: the same calls and results. Where the two
differ, the test says how.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from bench import kafka as apache
from bench.maven import PeerUnavailable

from ottla import Admin, ConfigChange, ConfigOperation, Consumer, NewTopic, OffsetAndMetadata, Producer, Resource, ResourceType, unwrap
from ottla import TopicPartition as Tp
from ottla.errors import (
    BrokerIdNotRegistered,
    BrokerIncompatible,
    ElectionNotNeeded,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    InvalidUpdateVersion,
    LogDirNotFound,
    NonEmptyGroup,
    NoReassignmentInProgress,
    OffsetOutOfRange,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.results import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    ConfigSource,
    ConfigType,
    GroupState,
    GroupType,
    Operation,
    Replica,
)
from serving import ELSEWHERE, needs_its_own

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]
WITHIN_S = 30.0


class Broker(NamedTuple):
    """One broker in a cluster of its own."""

    address: str
    is_kafka: bool
    node_id: int


#: One pytest worker runs the server that all these tests share.
KAFKA = pytest.param("kafka", marks=[pytest.mark.interop, pytest.mark.xdist_group("admin_kafka")])


@pytest.fixture(scope="module", params=["ottla", KAFKA])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with ExitStack() as stack:
        if ELSEWHERE:
            address = ELSEWHERE if request.param == "kafka" else needs_its_own("which is none of Apache Kafka's")
        elif request.param == "ottla":
            address = request.getfixturevalue("ottla_server").bootstrap
        else:
            try:
                found = apache.distribution()
            except PeerUnavailable as why:
                pytest.skip(f"Apache Kafka cannot be had here: {why}")
            address, _ = stack.enter_context(apache.running(found, tmp_path_factory.mktemp("kafka")))
        with Admin(bootstrap_servers=address) as asking:
            (node,) = asking.describe_cluster().nodes
        yield Broker(address, request.param == "kafka", node.id)


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.address) as made:
        yield made


@pytest.fixture
def topic(admin: Admin) -> str:
    """A topic with two partitions."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin.create_topic(NewTopic(name, 2, 1))
    wait_until(lambda: len(admin.describe_topic(name).partitions) == 2)
    return name


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for a change; a broker can learn of a new topic a moment later."""
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        try:
            if true():
                return
        except UnknownTopicOrPartition:
            pass
        assert time.monotonic() < deadline_s, "the condition holds in time"
        time.sleep(0.05)


def test_topics_are_created_described_and_deleted_by_name_and_by_id(admin: Admin, topic: str) -> None:
    other = f"{topic}-other"
    made = admin.create_topics(
        [NewTopic(topic), NewTopic("no/name"), NewTopic(f"{topic}-x", 1, 9), NewTopic(other, 1, 1, {"retention.ms": "1"})]
    )
    assert isinstance(made[topic], TopicAlreadyExists)
    assert isinstance(made["no/name"], InvalidTopic)
    assert isinstance(made[f"{topic}-x"], InvalidReplicationFactor)
    assert unwrap({other: made[other]})[other].configs["retention.ms"] == "1"
    with pytest.raises(InvalidConfig):
        admin.create_topic(NewTopic(f"{topic}-y", configs={"retention.ms": "soon"}), validate_only=True)

    admin.create_partitions({topic: 3}, validate_only=True)
    wait_until(lambda: admin.describe_topic(other).partitions[0].leader >= 0)
    described = unwrap(admin.describe_topics([topic, other], authorized_operations=True))
    assert [one.partition for one in described[topic].partitions] == [0, 1]
    assert {Operation.READ, Operation.DELETE} <= (described[other].authorized_operations or set())
    assert described[topic].partitions[0].elr == []
    topic_id = described[other].topic_id
    assert admin.describe_topic(topic_id).name == other
    assert isinstance(admin.describe_topics([bytes(15) + b"\1"])[bytes(15) + b"\1"], UnknownTopicId)
    assert {one.name: one.partition_count for one in admin.list_topics()}[topic] == 2

    admin.delete_topic(topic_id)
    wait_until(lambda: other not in {one.name for one in admin.list_topics()})
    with pytest.raises(UnknownTopicOrPartition, match=f"deleting|no topic|{other}|not exist|not host") as failed:
        unwrap(admin.delete_topics([other, f"{topic}-z"]))
    assert f"and {topic}-z" in failed.value.__notes__[0]


def test_settings_of_every_resource_type_are_described_and_changed(admin: Admin, topic: str, broker: Broker) -> None:
    resource, here, group = Resource.topic(topic), Resource.broker(broker.node_id), Resource.group(f"g-{topic}")
    admin.incremental_alter_config(resource, {"retention.ms": "5000", "cleanup.policy": "compact"}, validate_only=True)
    assert admin.describe_config(resource, names=["retention.ms"])["retention.ms"].is_default
    admin.incremental_alter_config(resource, {"retention.ms": "5000"})
    unwrap(admin.incremental_alter_configs({resource: [ConfigChange("cleanup.policy", "compact", ConfigOperation.APPEND)]}))
    wait_until(lambda: admin.describe_config(resource)["cleanup.policy"].value == "delete,compact")
    entries = admin.describe_config(resource, synonyms=True, documentation=True)
    assert (entries["retention.ms"].source, entries["retention.ms"].config_type) == (ConfigSource.TOPIC, ConfigType.LONG)
    assert entries["retention.ms"].synonyms and entries["retention.ms"].documentation
    with pytest.raises(InvalidConfig, match=r"retention\.ms"):
        admin.incremental_alter_config(resource, {"retention.ms": "soon"})
    admin.incremental_alter_config(resource, {"retention.ms": None})
    wait_until(lambda: admin.describe_config(resource)["retention.ms"].is_default)

    found = admin.describe_configs([resource, Resource.topic(f"{topic}-x"), here, Resource.broker(None)])
    assert isinstance(found[Resource.topic(f"{topic}-x")], UnknownTopicOrPartition)
    assert unwrap({here: found[here]})[here]["num.partitions"].value
    admin.incremental_alter_config(group, {"consumer.session.timeout.ms": "50000"})
    wait_until(lambda: admin.describe_config(group)["consumer.session.timeout.ms"].value == "50000")
    assert {resource, group} <= set(admin.list_config_resources([ResourceType.TOPIC, ResourceType.GROUP]))
    assert admin.list_config_resources([ResourceType.CLIENT_METRICS]) == []
    if broker.is_kafka:
        loggers = admin.describe_config(Resource.broker_logger(broker.node_id))
        assert loggers["root"].source is ConfigSource.DYNAMIC_BROKER_LOGGER


def test_records_are_looked_up_by_time_and_deleted(admin: Admin, topic: str, broker: Broker) -> None:
    place, empty = Tp(topic, 0), Tp(topic, 1)
    with Producer(bootstrap_servers=broker.address) as producer:
        for number in range(10):
            producer.send(topic, b"x", partition=0, timestamp_ms=1_000_000 + number)
    for when, offset in ((EARLIEST, 0), (LATEST, 10), (MAX_TIMESTAMP, 9), (EARLIEST_LOCAL, 0), (LATEST_TIERED, -1), (1_000_003, 3)):
        assert unwrap(admin.list_offsets({place: when}))[place].offset == offset
    assert not isinstance(admin.list_offsets({place: EARLIEST_PENDING_UPLOAD})[place], BrokerIncompatible)
    known = unwrap(admin.describe_producers([place, empty]))
    assert [(one.last_sequence, one.transaction_start_offset) for one in known[place]] == [(9, -1)]
    assert unwrap(admin.describe_producers([place], broker=broker.node_id))[place] == known[place]
    assert known[empty] == []
    done = admin.delete_records({place: 4, empty: 5, Tp(topic, 9): 1})
    assert done[place] == 4
    assert isinstance(done[empty], OffsetOutOfRange)
    assert isinstance(done[Tp(topic, 9)], UnknownTopicOrPartition)
    assert unwrap(admin.list_offsets({place: EARLIEST}, read_committed=True))[place].offset == 4
    assert unwrap(admin.delete_records({place: -1}))[place] == 10


def test_the_cluster_describes_its_brokers_versions_and_log_directories(admin: Admin, topic: str, broker: Broker) -> None:
    cluster = admin.describe_cluster(fenced=True, authorized_operations=True)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [broker.address]
    assert cluster.cluster_id and Operation.ALTER in (cluster.authorized_operations or set())
    versions = {one.name: one for one in admin.describe_api_versions(broker=broker.node_id)}
    assert (versions["Produce"].used or 0) >= 3
    place = Replica(topic, 0, broker.node_id)
    wait_until(lambda: all(len(dirs[0].replicas) == 2 for dirs in unwrap(admin.describe_log_dirs(topics=[topic])).values()))
    (dirs,) = unwrap(admin.describe_log_dirs(topics=[topic])).values()
    assert {(one.topic, one.partition) for one in dirs[0].replicas} == {(topic, 0), (topic, 1)}
    found = unwrap(admin.describe_replica_log_dirs([place, (topic, 7, broker.node_id)]))
    assert found[place].path and found[place].future_path is None
    assert found[Replica(topic, 7, broker.node_id)].path is None
    moved = admin.alter_replica_log_dirs({place: "/no/such/directory"})[place]
    if broker.is_kafka:
        assert admin.describe_features().finalized["metadata.version"].last > 0
        quorum = admin.describe_quorum()
        assert quorum.leader in {one.replica_id for one in quorum.voters}
        assert isinstance(moved, LogDirNotFound)
        with pytest.raises(BrokerIdNotRegistered):
            admin.unregister_broker(99)
    else:
        features = admin.describe_features(broker=broker.node_id)
        assert features.supported["metadata.version"] == (7, 33) and features.finalized["metadata.version"] == (33, 33)
        with pytest.raises(InvalidUpdateVersion, match="to lower it, ask for a downgrade"):
            admin.update_features({"metadata.version": 30})
        admin.update_features({"metadata.version": 30}, downgrade=True, validate_only=True)
        assert admin.describe_features() == features
        assert isinstance(moved, BrokerIncompatible)
        with pytest.raises(BrokerIncompatible, match=f"broker at {broker.address} does not offer DescribeQuorum"):
            admin.describe_quorum()
        with pytest.raises(BrokerIncompatible, match="does not offer UnregisterBroker"):
            admin.unregister_broker(99)


def test_replicas_and_leaders_are_placed_as_requested(admin: Admin, topic: str, broker: Broker) -> None:
    place = Tp(topic, 0)
    done = admin.alter_partition_reassignments({place: [98, 99], Tp(topic, 1): [broker.node_id], Tp(topic, 9): [broker.node_id]})
    assert isinstance(done[place], InvalidReplicaAssignment)
    assert done[Tp(topic, 1)] is None
    assert isinstance(done[Tp(topic, 9)], UnknownTopicOrPartition)
    wait_until(lambda: admin.list_partition_reassignments([place, Tp(topic, 1)]) == {})
    assert isinstance(admin.alter_partition_reassignments({place: None})[place], NoReassignmentInProgress)
    assert isinstance(admin.elect_leaders([place])[place], ElectionNotNeeded)
    assert isinstance(admin.elect_leaders([Tp(topic, 9)])[Tp(topic, 9)], UnknownTopicOrPartition)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_listed_described_reset_emptied_and_deleted(admin: Admin, topic: str, broker: Broker, protocol: str) -> None:
    group, place = f"g-{topic}", Tp(topic, 0)
    with Producer(bootstrap_servers=broker.address) as producer:
        for number in range(20):
            producer.send(topic, b"x", partition=number % 2)
    unwrap(admin.alter_consumer_group_offsets(group, {place: OffsetAndMetadata(3, "by hand")}))
    assert group in {one.group_id for one in admin.list_groups(states=[GroupState.EMPTY])}
    kind = GroupType.CLASSIC if protocol == "classic" else GroupType.CONSUMER
    consumer = Consumer(bootstrap_servers=broker.address, group_id=group, group_protocol=protocol, auto_offset_reset="earliest")
    with consumer:
        consumer.subscribe([topic])
        read: list[int] = []
        deadline_s = time.monotonic() + WITHIN_S
        while len(read) < 17:
            assert time.monotonic() < deadline_s, "all records behind the offsets arrive"
            read += [record.offset for record in consumer.poll(100)]
        consumer.commit()
        wait_until(lambda: admin.describe_consumer_group(group).state is GroupState.STABLE)
        described = admin.describe_consumer_group(group, authorized_operations=True)
        assert (described.type, described.coordinator.id) == (kind, broker.node_id)
        assert described.members[0].assignment == [Tp(topic, 0), Tp(topic, 1)]
        assert Operation.READ in (described.authorized_operations or set())
        assert group in {one.group_id for one in admin.list_groups(types=[kind], protocol_types=["consumer"])}
        lag = unwrap(admin.consumer_group_lag([group]))[group]
        assert (lag.lag, [one.committed_offset for one in lag.partitions]) == (0, [10, 10])
        with pytest.raises(NonEmptyGroup):
            admin.delete_consumer_group(group)
        assert isinstance(admin.delete_consumer_group_offsets(group, [place])[place], GroupSubscribedToTopic)
        if protocol == "classic":
            unwrap(admin.remove_members_from_consumer_group(group))
            assert group in {one.group_id for one in admin.list_groups()}
    wait_until(lambda: admin.describe_consumer_group(group).state is GroupState.EMPTY)
    unwrap(admin.delete_consumer_group_offsets(group, [place]))
    offsets = unwrap(admin.list_consumer_group_offsets({group: [place, Tp(topic, 1)], f"{group}-x": None}))
    assert (offsets[group][place], offsets[f"{group}-x"]) == (None, {})
    admin.delete_consumer_group(group)
    missing = admin.describe_consumer_groups([group])[group]
    assert isinstance(missing, GroupIdNotFound)

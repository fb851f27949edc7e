"""The admin client over sockets against an Ottla broker and, if available, Apache Kafka: the same calls and results. Where the two
differ, the test says how.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

import pytest
from bench import kafka as apache
from bench.maven import PeerUnavailable
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka import Producer as ForeignProducer
from confluent_kafka import TopicPartition as ForeignPartition
from tools.class_archives import options_for

from ottla import Admin, ConfigChange, ConfigOperation, Consumer, NewTopic, OffsetAndMetadata, Producer, Resource, ResourceType, unwrap
from ottla import TopicPartition as Tp
from ottla.errors import (
    BrokerIdNotRegistered,
    BrokerIncompatible,
    BrokerNotAvailable,
    ElectionNotNeeded,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    InvalidTxnState,
    InvalidUpdateVersion,
    LogDirNotFound,
    NonEmptyGroup,
    NoReassignmentInProgress,
    OffsetOutOfRange,
    TopicAlreadyExists,
    TransactionalIdNotFound,
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
    QuotaEntity,
    QuotaMatch,
    Replica,
    TransactionState,
    TransactionStatus,
)
from plain_kafka import hanging_transaction
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
                found = replace(apache.distribution(), options=options_for("kafka"))
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
    # Another test on the same server may have made some.
    assert {one.type for one in admin.list_config_resources([ResourceType.CLIENT_METRICS])} <= {ResourceType.CLIENT_METRICS}
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


def address_of(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.address.rpartition(":")
    return host, int(port)


def open_transaction(broker: Broker, transactional_id: str, topic: str) -> ForeignProducer:
    """A transaction with a record in partition 0, and without one in partition 1."""
    producer = ForeignProducer({"bootstrap.servers": broker.address, "transactional.id": transactional_id, "client.id": "biller"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(30)
    return producer


def test_transactions_are_listed_described_and_terminated(admin: Admin, topic: str, broker: Broker) -> None:
    name = f"id-{topic}"
    producer = open_transaction(broker, name, topic)
    for filters in ({}, {"states": ["ongoing"]}, {"longer_than_ms": 0}, {"pattern": f"id-{topic[:-1]}."}):
        listed = {one.transactional_id: one for one in admin.list_transactions(**filters)}
        assert (listed[name].coordinator, listed[name].state) == (broker.node_id, TransactionState.ONGOING)
    assert [one.transactional_id for one in admin.list_transactions(producer_ids=[listed[name].producer_id])] == [name]
    assert name not in {one.transactional_id for one in admin.list_transactions(states=[TransactionState.EMPTY])}
    described = admin.describe_transaction(name)
    assert (described.coordinator.id, described.state, described.partitions) == (broker.node_id, TransactionState.ONGOING, [Tp(topic, 0)])
    assert described.has_timeout and described.start_ms is not None and abs(described.start_ms - time.time() * 1000) < 60_000
    assert (described.client_id, described.client_host) == ((None, None) if broker.is_kafka else ("biller", "127.0.0.1"))
    assert isinstance(admin.describe_transactions([f"{name}-x"])[f"{name}-x"], TransactionalIdNotFound)

    fenced = admin.force_terminate_transaction(name)
    assert fenced.producer_id == described.producer_id and fenced.producer_epoch > described.producer_epoch
    wait_until(lambda: admin.open_transactions([(topic, 0)])[Tp(topic, 0)] == [])
    assert admin.describe_transaction(name).partitions == []
    with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
        producer.commit_transaction(30)
    with pytest.raises(TransactionalIdNotFound):
        admin.force_terminate_transaction(f"{name}-x")
    assert unwrap(admin.fence_producers([name, f"{name}-new"]))[f"{name}-new"].producer_epoch == 0


def test_what_holds_a_last_stable_offset_is_found_with_the_groups_that_wait(admin: Admin, topic: str, broker: Broker) -> None:
    place, far = Tp(topic, 0), Tp(topic, 1)
    name, reads, copies = f"id-{topic}", f"reads-{topic}", f"copies-{topic}"
    unwrap(admin.alter_consumer_group_offsets(reads, {place: 0}))
    unwrap(admin.alter_consumer_group_offsets(copies, {far: 0}))
    producer = open_transaction(broker, name, topic)
    assert admin.find_blocked_partitions([place, far], longer_than_ms=3_600_000) == {}
    group = ForeignConsumer({"bootstrap.servers": broker.address, "group.id": copies})
    producer.send_offsets_to_transaction([ForeignPartition(topic, 1, 5)], group.consumer_group_metadata(), 30)
    blocked = unwrap(admin.find_blocked_partitions())
    one = blocked[place]
    assert (one.last_stable_offset, one.end_offset, one.held_back) == (0, 1, 1)
    assert [(each.group_id, each.committed_offset) for each in one.groups] == [(reads, 0)]
    [blocking] = one.transactions
    assert (blocking.status, blocking.transaction.transactional_id, blocking.transaction.start_offset) == (
        TransactionStatus.ONGOING,
        name,
        0,
    )
    assert far not in blocked
    pending = [each for tp, each in blocked.items() if tp.topic == "__consumer_offsets"]
    assert [group.pending for each in pending for group in each.groups if group.group_id == copies] == [[far]]
    producer.commit_transaction(30)
    wait_until(lambda: admin.find_blocked_partitions([place]) == {})
    missing = admin.find_blocked_partitions([Tp(topic, 9)])[Tp(topic, 9)]
    assert isinstance(missing, UnknownTopicOrPartition)


def test_a_hanging_transaction_is_found_and_aborted(admin: Admin, topic: str, broker: Broker) -> None:
    place, setting = Tp(topic, 0), "transaction.partition.verification.enable"
    admin.incremental_alter_config(Resource.broker(None), {setting: False})
    try:
        wait_until(lambda: admin.describe_config(Resource.broker(broker.node_id))[setting].value == "false")
        # Younger ones may be about to be registered.
        written_ms = int(time.time() * 1000) - 20 * 60_000
        producer_id = hanging_transaction(address_of(broker), f"id-{topic}", topic, timestamp_ms=written_ms)
    finally:
        admin.incremental_alter_config(Resource.broker(None), {setting: None})
    assert admin.find_hanging_transactions([(topic, 1)]) == []
    assert admin.find_hanging_transactions([place], max_transaction_timeout_ms=3_600_000) == []
    with pytest.raises(BrokerNotAvailable):
        admin.find_hanging_transactions(broker=99)
    for found in (admin.find_hanging_transactions(), admin.find_hanging_transactions([place], broker=broker.node_id)):
        [hanging] = [one for one in found if one.topic == topic]
        assert (hanging.start_offset, hanging.producer_id, hanging.coordinator_epoch) == (0, producer_id, -1)
        assert (hanging.last_timestamp, hanging.transactional_id) == (written_ms, f"id-{topic}")
    [blocking] = unwrap(admin.find_blocked_partitions([place]))[place].transactions
    assert (blocking.status, blocking.since_ms) == (TransactionStatus.HANGING, written_ms)

    with pytest.raises(InvalidTxnState, match="no open transaction begins at offset 1"):
        admin.abort_transaction(place, start_offset=1)
    admin.abort_transaction(place, start_offset=0)
    wait_until(lambda: admin.find_blocked_partitions([place]) == {})
    assert admin.find_hanging_transactions([place]) == []
    # Named by the producer, as for brokers before Kafka 3.0. A marker without a transaction is written again.
    admin.abort_transaction(place, producer_id=producer_id, producer_epoch=0, coordinator_epoch=-1)
    with pytest.raises(ValueError, match="start_offset"):
        admin.abort_transaction(place)


def test_client_quotas_are_set_described_and_removed(admin: Admin) -> None:
    user = f"u-{uuid.uuid4().hex[:12]}"
    entity, narrow, wrong = QuotaEntity(user=user), QuotaEntity(user=user, client_id=""), QuotaEntity(ip="127.0.0.1")
    done = admin.alter_client_quotas(
        {
            entity: {"producer_byte_rate": 1_048_576, "request_percentage": 12.5},
            narrow: {"controller_mutation_rate": 0.5},
            wrong: {"producer_byte_rate": 1},
        }
    )
    assert done[entity] is None and done[narrow] is None and isinstance(done[wrong], InvalidRequest)
    both = {entity: {"producer_byte_rate": 1_048_576.0, "request_percentage": 12.5}, narrow: {"controller_mutation_rate": 0.5}}
    wait_until(lambda: admin.describe_client_quotas(user=user) == both)
    assert admin.describe_client_quotas(user=user, strict=True) == {entity: both[entity]}
    assert admin.describe_client_quotas(user=user, client_id=QuotaMatch.ANY) == {narrow: both[narrow]}
    removed = admin.alter_client_quotas({entity: dict.fromkeys(both[entity]), narrow: dict.fromkeys(both[narrow])})
    assert not any(removed.values())
    wait_until(lambda: admin.describe_client_quotas(user=user) == {})

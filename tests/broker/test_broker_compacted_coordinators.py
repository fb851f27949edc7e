"""Compaction of ``__transaction_state`` and ``__consumer_offsets``: a coordinator that loads what is left has the same state.

Producers write, commit offsets in transactions and end them by real requests; groups commit outside of transactions, and their offsets are
deleted; ids expire. Each batch of the coordinators' topics is a segment of its own, so that all but the last one can be compacted.
"""

from random import Random

import pytest
from cluster import Broker, Cluster
from groups import commit, committed
from transactional import Producer, cluster_of_transactions, coordinator, open_in, state_of

from ottla.base.ids import TopicPartition
from ottla.broker.transactions.states import TransactionState
from ottla.log.log import Log
from ottla.records.batch import headers
from ottla.records.read import records
from ottla.sim.shard_replay import differences
from ottla.wire import errors
from ottla.wire.messages.find_coordinator import GROUP
from ottla.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic

IDS, GROUPS, PARTITIONS = ("x", "y", "z"), ("g", "h"), 3
CLEANER_MS = 1_000
RETENTION_MS = 5_000
EXPIRATION_MS = 120_000
STATE, OFFSETS = "__transaction_state", "__consumer_offsets"


def a_cluster(brokers: int = 1) -> Cluster:
    return cluster_of_transactions(
        brokers,
        partitions=PARTITIONS,
        replicas=1,
        offsets_topic_segment_bytes="150",
        transaction_state_log_segment_bytes="150",
        log_cleaner_backoff_ms=str(CLEANER_MS),
        log_cleaner_min_cleanable_ratio="0",
        log_cleaner_delete_retention_ms=str(RETENTION_MS),
        transactional_id_expiration_ms=str(EXPIRATION_MS),
        transaction_remove_expired_transaction_cleanup_interval_ms="10000",
    )


def log_of(cluster: Cluster, topic: str, key: str) -> Log:
    broker = coordinator(cluster, key, GROUP) if topic == OFFSETS else coordinator(cluster, key)
    owner = broker.node.groups if topic == OFFSETS else broker.node.transactions
    return broker.node.partitions.leaders[TopicPartition(topic, owner.partition_of(key) or 0)].log


def batches(log: Log) -> int:
    """Batches that are left."""
    count, offset = 0, int(log.start_offset)
    while offset < log.end_offset:
        for _, header in headers(log.read(offset, max_bytes=1 << 16)):
            count += 1
            offset = header.last_offset + 1
    return count


def keys(log: Log) -> set[bytes]:
    """Keys of the records that are left, without their version."""
    data = log.read(log.start_offset, max_bytes=1 << 20)
    return {key[2:] for position, _ in headers(data) for _, _, key, _, _ in records(data, position) if key}


def is_compacted(log: Log) -> bool:
    """Whether less than a half of what was written is left."""
    return batches(log) < log.end_offset / 2


def compacted(cluster: Cluster) -> Broker:
    """Compacts, and restarts the broker, which loads what is left."""
    cluster.pass_ms(3 * CLEANER_MS)
    assert not differences(cluster[1].node)
    broker = cluster.restart(1)
    cluster.pass_ms(100)
    assert not differences(broker.node)
    return broker


def delete_offset(cluster: Cluster, group: str, partition: int) -> None:
    gone = OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=partition)])
    answer = coordinator(cluster, group, GROUP).ask(OffsetDeleteRequest(group_id=group, topics=[gone]), 0)
    assert answer.error_code in (0, errors.GroupIdNotFound.code)


def offsets(cluster: Cluster, group: str) -> dict[int, int]:
    """Partition of t -> committed offset."""
    return {partition: offset for (_, partition), (offset, _, _) in committed(coordinator(cluster, group, GROUP), group).items()}


def test_a_coordinator_loads_the_last_state_of_each_transactional_id_from_a_compacted_log() -> None:
    cluster = a_cluster()
    producer = Producer(cluster)
    for number in range(20):
        assert producer.send("a") == 0
        assert producer.end(commit=number % 2 == 0) == 0
    assert producer.send("open", partition=1) == 0
    before = state_of(cluster)
    compacted(cluster)
    assert is_compacted(log_of(cluster, STATE, "x"))
    assert state_of(cluster) == before
    assert before.state is TransactionState.ONGOING
    assert producer.end() == 0, "the transaction goes on where it was"
    assert not open_in(cluster, 1)


def test_a_decided_transaction_is_completed_from_a_compacted_log() -> None:
    """The leader of its partition is away, so its markers wait while other ids of the same log go on."""
    cluster = a_cluster(brokers=2)
    here = coordinator(cluster)
    [away] = {1, 2} - {here.broker_id}
    partition = next(number for number in range(PARTITIONS) if cluster.leading("t", number).broker_id == away)
    elsewhere = next(number for number in range(PARTITIONS) if number != partition and cluster.leading("t", number) is here)
    producer, other = Producer(cluster, "x"), Producer(cluster, "z")
    assert producer.send("a", partition=partition) == 0
    assert other.send("b", partition=elsewhere) == 0
    gone = cluster.kill(away)
    cluster.pass_ms(10_000)
    assert producer.end() == 0
    for _ in range(10):
        assert other.end() == 0
        assert other.send("b", partition=elsewhere) == 0
    cluster.pass_ms(3 * CLEANER_MS)
    assert is_compacted(log_of(cluster, STATE, "x"))
    again = cluster.restart(here.broker_id)
    cluster.pass_ms(10_000)
    assert coordinator(cluster) is again
    assert state_of(cluster).state is TransactionState.PREPARE_COMMIT
    cluster.start(away, gone.texts, [disk.restart() for disk in gone.disks.values()])
    cluster.pass_ms(10_000)
    assert state_of(cluster).state is TransactionState.COMPLETE_COMMIT
    assert not open_in(cluster, partition)


def test_an_expired_transactional_id_stays_away_when_its_tombstone_is_compacted_away() -> None:
    cluster = a_cluster()
    gone = Producer(cluster, "x")
    assert gone.send("a") == 0
    assert gone.end() == 0
    cluster.pass_ms(2 * EXPIRATION_MS)
    # In the same partition. The first compaction dates the tombstone, a later one removes it.
    kept = Producer(cluster, "z")
    assert b"\0\1x" in keys(log_of(cluster, STATE, "x"))
    for _ in range(4):
        assert kept.send("b") == 0
        assert kept.end() == 0
        cluster.pass_ms(2 * RETENTION_MS)
    assert keys(log_of(cluster, STATE, "x")) == {b"\0\1z"}
    compacted(cluster)
    with pytest.raises(errors.TransactionalIdNotFound):
        state_of(cluster, "x")


def test_pending_offsets_are_pending_after_a_compaction_around_them() -> None:
    cluster = a_cluster()
    producer, other = Producer(cluster), Producer(cluster, "y")
    for offset in range(1, 20):
        assert commit(coordinator(cluster, "g", GROUP), "g", "t", 0, offset) == 0
        assert other.commit_offset(offset, partition=1) == 0
        assert other.end() == 0
    assert producer.commit_offset(50) == 0
    # Later than the pending record, so it holds them back from compaction.
    for offset in range(20, 30):
        assert commit(coordinator(cluster, "g", GROUP), "g", "t", 1, offset) == 0
    compacted(cluster)
    log = log_of(cluster, OFFSETS, "g")
    assert is_compacted(log)
    assert offsets(cluster, "g") == {0: 19, 1: 29}
    assert producer.end() == 0
    cluster.pass_ms(1000)
    assert offsets(cluster, "g") == {0: 50, 1: 29}
    compacted(cluster)
    assert offsets(cluster, "g") == {0: 50, 1: 29}


class History:
    """Random requests about a few ids, groups and partitions, and the offsets that groups must have."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.cluster = a_cluster()
        self.producers = {name: Producer(self.cluster, name) for name in IDS}
        self.offsets: dict[str, dict[int, int]] = {group: {} for group in GROUPS}
        #: By id: offsets of its open transaction, in the order of their records: (number, group, partition, offset).
        self.pending: dict[str, list[tuple[int, str, int, int]]] = {name: [] for name in IDS}
        #: By group and partition: the number of the record that counts.
        self.latest: dict[tuple[str, int], int] = {}
        self.number = 0

    def step(self) -> None:
        self.number += 1
        actions = [self.commit_in_transaction] * 6 + [self.end] * 4 + [self.commit, self.commit, self.delete, self.send, self.initialize]
        self.rng.choice(actions)()

    def place(self) -> tuple[str, int]:
        return self.rng.choice(GROUPS), self.rng.randrange(PARTITIONS)

    def send(self) -> None:
        assert self.producers[self.rng.choice(IDS)].send("a", partition=self.rng.randrange(PARTITIONS)) == 0

    def commit(self) -> None:
        group, partition = self.place()
        assert commit(coordinator(self.cluster, group, GROUP), group, "t", partition, self.number) == 0
        self.offsets[group][partition] = self.number
        self.latest[group, partition] = self.number

    def commit_in_transaction(self) -> None:
        name, (group, partition) = self.rng.choice(IDS), self.place()
        assert self.producers[name].commit_offset(self.number, group, partition=partition) == 0
        self.pending[name].append((self.number, group, partition, self.number))

    def delete(self) -> None:
        group, partition = self.place()
        delete_offset(self.cluster, group, partition)
        self.offsets[group].pop(partition, None)
        for name in IDS:
            self.pending[name] = [one for one in self.pending[name] if one[1:3] != (group, partition)]

    def end(self) -> None:
        name, commits = self.rng.choice(IDS), self.rng.random() < 0.6
        self.settle(name, commits=commits)

    def settle(self, name: str, *, commits: bool) -> None:
        if state_of(self.cluster, name).state is not TransactionState.ONGOING:
            return
        assert self.producers[name].end(commit=commits) == 0
        self.cluster.pass_ms(50)
        self.ended(name, commits=commits)

    def initialize(self) -> None:
        """Aborts the open transaction of an id."""
        name = self.rng.choice(IDS)
        assert self.producers[name].initialize() == 0
        self.ended(name, commits=False)

    def ended(self, name: str, *, commits: bool) -> None:
        """A later record of the same place counts, whatever the order of the markers."""
        for number, group, partition, offset in self.pending[name] if commits else ():
            if number > self.latest.get((group, partition), 0):
                self.latest[group, partition] = number
                self.offsets[group][partition] = offset
        self.pending[name] = []

    def check(self) -> None:
        """Compacts, restarts, and compares."""
        compacted(self.cluster)
        assert {group: offsets(self.cluster, group) for group in GROUPS} == self.offsets


@pytest.mark.parametrize("seed", range(6))
def test_coordinators_load_the_same_state_from_compacted_logs_in_random_histories(seed: int) -> None:
    history = History(seed)
    for _ in range(6):
        for _ in range(15):
            history.step()
        history.check()
    for name in IDS:
        history.settle(name, commits=history.rng.random() < 0.5)
    for _ in range(2):
        history.cluster.pass_ms(2 * RETENTION_MS)
        history.commit()
    history.check()
    logs = [log_of(history.cluster, topic, key) for topic, keys in ((STATE, IDS), (OFFSETS, GROUPS)) for key in keys]
    assert all(is_compacted(log) for log in logs)

"""Transactional producers in tests of the broker: a line for each step of a transaction.

cluster = cluster_of_transactions()       # topic t, __consumer_offsets and __transaction_state are there
producer = Producer(cluster)              # InitProducerId
producer.send("a"); producer.end()        # a committed transaction
assert committed(cluster) == [b"a"]
"""

from typing import Any

from cluster import Broker, Cluster, Sent, batch, fetch, produce_request, unpacked

from ottla.base.ids import TopicPartition
from ottla.broker.transactions.transaction import Transaction
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.wire.messages.end_txn import EndTxnRequest
from ottla.wire.messages.find_coordinator import GROUP, TRANSACTION, FindCoordinatorRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

#: Few, so that tests are quick.
SETTINGS = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
TIMEOUT_MS = 60_000


def cluster_of_transactions(brokers: int = 1, *, partitions: int = 2, replicas: int | None = None, **settings: str) -> Cluster:
    """A cluster with topic t and both internal topics; settings with ``_`` for ``.``."""
    cluster = Cluster(brokers, settings={**SETTINGS, **{name.replace("_", "."): text for name, text in settings.items()}})
    cluster.topic("t", partitions=partitions, replicas=replicas or min(brokers, 3))
    for key_type in (GROUP, TRANSACTION):
        coordinator(cluster, "x", key_type)
    return cluster


def coordinator(cluster: Cluster, key: str = "x", key_type: int = TRANSACTION) -> Broker:
    """The broker that coordinates a key, once there is one."""
    some = next(iter(cluster.brokers.values()))
    for _ in range(5):
        answer = some.ask(FindCoordinatorRequest(key=key, key_type=key_type), 2)
        if not answer.error_code:
            return cluster[answer.node_id]
        cluster.pass_ms(100)
    raise AssertionError(f"a coordinator is found: {answer}")


def init_request(transactional_id: str | None = "x", **fields: Any) -> InitProducerIdRequest:
    return InitProducerIdRequest(**{"transactional_id": transactional_id, "transaction_timeout_ms": TIMEOUT_MS, **fields})


def state_of(cluster: Cluster, transactional_id: str = "x") -> Transaction:
    """What its coordinator has in memory."""
    return coordinator(cluster, transactional_id).node.transactions.shard_of(transactional_id).machine.find(transactional_id)


class Producer:
    """A transactional producer; with ``version`` 2 one of Kafka 4, with 1 an older one."""

    def __init__(self, cluster: Cluster, transactional_id: str = "x", *, version: int = 2, **fields: Any) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.version = version
        self.sequences: dict[int, int] = {}
        self.producer_id, self.epoch = -1, -1
        code = self.initialize(**fields)
        assert not code, f"InitProducerId failed: {code}"

    def initialize(self, **fields: Any) -> int:
        """InitProducerId, until it is no longer refused because of a transaction that is being aborted; the error code."""
        for _ in range(20):
            answer = coordinator(self.cluster, self.transactional_id).ask(init_request(self.transactional_id, **fields), 5)
            if answer.error_code not in (14, 15, 16, 51):
                break
            self.cluster.pass_ms(200)
        if not answer.error_code:
            self.adopt(answer)
        return int(answer.error_code)

    def adopt(self, answer: Any) -> None:
        if (self.producer_id, self.epoch) != (answer.producer_id, answer.producer_epoch):
            self.sequences = {}
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    @property
    def fields(self) -> dict[str, Any]:
        return {"transactional_id": self.transactional_id, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def add_request(self, *partitions: int, topic: str = "t") -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )

    def add(self, *partitions: int, topic: str = "t", version: int = 3) -> list[int]:
        """The error codes of AddPartitionsToTxn."""
        answer = coordinator(self.cluster, self.transactional_id).ask(self.add_request(*partitions, topic=topic), version)
        return [each.partition_error_code for each in answer.results_by_topic_v3_and_below[0].results_by_partition]

    def produce_request(self, *values: str, partition: int = 0, **fields: Any) -> Any:
        sequence = fields.pop("sequence", self.sequences.get(partition, 0))
        data = batch(
            *(value.encode() for value in values),
            transactional=True,
            producer_id=fields.pop("producer_id", self.producer_id),
            producer_epoch=fields.pop("producer_epoch", self.epoch),
            base_sequence=sequence,
        )
        return produce_request(data, partition=partition, **{"transactional_id": self.transactional_id, **fields})

    def start(self, *values: str, partition: int = 0, version: int | None = None, **fields: Any) -> Sent:
        """A Produce that may wait."""
        request = self.produce_request(*values, partition=partition, **fields)
        return self.cluster.leading("t", partition).send(request, version or (12 if self.version >= 2 else 10))

    def send(self, *values: str, partition: int = 0, version: int | None = None, **fields: Any) -> int:
        """Writes a batch, adding the partition first if the client has to; the error code."""
        if self.version < 2:
            [code] = self.add(partition)
            if code:
                return code
        sent = self.start(*values, partition=partition, version=version, **fields)
        if sent.waits:
            self.cluster.pass_ms(6000)
        code = int(sent.answer.responses[0].partition_responses[0].error_code)
        if not code:
            self.sequences[partition] = self.sequences.get(partition, 0) + len(values)
        return code

    def end_request(self, *, commit: bool = True, **fields: Any) -> EndTxnRequest:
        return EndTxnRequest(**{**self.fields, "committed": commit, **fields})

    def end(self, *, commit: bool = True, **fields: Any) -> int:
        """The error code of EndTxn; adopts the identity of the next transaction."""
        request = self.end_request(commit=commit, **fields)
        sent = coordinator(self.cluster, self.transactional_id).send(request, 5 if self.version >= 2 else 3)
        if sent.waits:
            self.cluster.pass_ms(6000)
        answer = sent.answer
        if not answer.error_code and self.version >= 2:
            self.adopt(answer)
        return int(answer.error_code)

    def add_offsets(self, group: str = "g") -> int:
        request = AddOffsetsToTxnRequest(**self.fields, group_id=group)
        return int(coordinator(self.cluster, self.transactional_id).ask(request, 3).error_code)

    def commit_offset(self, offset: int, group: str = "g", *, partition: int = 0, version: int | None = None, **fields: Any) -> int:
        """The error code of TxnOffsetCommit, after AddOffsetsToTxn if the client has to send that."""
        if self.version < 2:
            assert self.add_offsets(group) == 0
        sent = self.start_offsets(offset, partition=partition, group=group, version=version, **fields)
        if sent.waits:
            self.cluster.pass_ms(6000)
        return int(sent.answer.topics[0].partitions[0].error_code)

    def start_offsets(self, offset: int, *, partition: int = 0, group: str = "g", version: int | None = None, **fields: Any) -> Sent:
        """A TxnOffsetCommit that may wait."""
        place = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topic_id = self.cluster.leading("t", 0).node.context.image.topics["t"].topic_id
        topics = [TxnOffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[place])]
        request = TxnOffsetCommitRequest(**{**self.fields, "group_id": group, "topics": topics, **fields})
        return coordinator(self.cluster, group, GROUP).send(request, version or (5 if self.version >= 2 else 3))


def committed(cluster: Cluster, partition: int = 0, *, isolation_level: int = 1) -> list[bytes]:
    """Values that a read_committed consumer of topic t reads."""
    answer = fetch(cluster.leading("t", partition), partitions=(partition,), isolation_level=isolation_level)
    assert answer.error_code == 0
    aborted = sorted((entry.first_offset, entry.producer_id) for entry in answer.aborted_transactions or ())
    found: list[bytes] = []
    dropped: set[int] = set()
    data = bytes(answer.records or b"")
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        base = int.from_bytes(data[position : position + 8], "big")
        attributes = int.from_bytes(data[position + 21 : position + 23], "big")
        producer_id = int.from_bytes(data[position + 43 : position + 51], "big", signed=True)
        while aborted and aborted[0][0] <= base:
            dropped.add(aborted.pop(0)[1])
        if attributes & 32:
            dropped.discard(producer_id)
        elif producer_id not in dropped:
            found += [record[3] for record in unpacked(data[position : position + size])]
        position += size
    return found


def last_stable_offset(cluster: Cluster, partition: int = 0) -> int:
    return int(fetch(cluster.leading("t", partition), partitions=(partition,), isolation_level=1).last_stable_offset)


def open_in(cluster: Cluster, partition: int = 0) -> bool:
    """Whether a transaction is open in the log of a partition."""
    leader = cluster.leading("t", partition).node.partitions.leaders[TopicPartition("t", partition)]
    return bool(leader.log.producers.open_transactions)

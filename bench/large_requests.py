"""CPU time of the longest step of a request with 20,000 elements, for the APIs whose requests have lists.

    python -m bench.large_requests

A step is what the event loop of a broker does without a pause: decoding the request, or a turn of it; handling it, or a turn; encoding the
response, or a turn. Other clients wait for a step to end. No socket and no real disk. A request names 20,000 different elements, or one of
them again and again. 10,000 of its partitions exist and are led here; its other elements are unknown. This broker coordinates the group and
the transaction that the requests name, and all partitions of those about their offsets and of AddPartitionsToTxn exist.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from ottla.base.origin import ANONYMOUS, Origin
from ottla.broker import events
from ottla.wire import compile
from ottla.wire.framing import decode_request_header, encode_request, encode_response_in_turns
from ottla.wire.messages import API
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.wire.messages.find_coordinator import GROUP, TRANSACTION, FindCoordinatorRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "broker"))

MANY = 20_000
TOPIC = "led"
NAMES = [f"unknown-{number}" for number in range(MANY)]
NUMBERS = list(range(MANY))
#: Partitions that exist, each twice.
LED = [number % (MANY // 2) for number in NUMBERS]
GROUP_ID, TRANSACTIONAL_ID = "g", "x"
#: Before these requests, the group gets an offset for each partition.
NEED_OFFSETS = ("OffsetFetch", "OffsetDelete", "DeleteGroups, offsets")
SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "5",
}
#: What was measured: freeing it belongs to no step. The server frees in turns (``wire/freeing.py``).
KEPT: list[Any] = []


def each(**fields: Any) -> list[dict[str, Any]]:
    """An object for each number, with the fields; a list in place of a value has one for each."""
    return [{name: value[number] if isinstance(value, list) else value for name, value in fields.items()} for number in NUMBERS]


def requests(batch: bytes, producer_id: int) -> Iterator[tuple[str, str, int, Any]]:
    """Label, name of the API, version, and fields of the request, or the request."""
    waits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20}
    fetched = {"fetch_offset": 0, "partition_max_bytes": 1000}
    committed = {"committed_offset": 5, "committed_metadata": ""}

    def of_topic(partitions: Any, *, field: str = "partitions", name: str = "name") -> list[dict[str, Any]]:
        return [{name: TOPIC, field: partitions}]

    for label, numbers in (("", NUMBERS), (", repeated", [0] * MANY)):
        data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=number, records=batch) for number in numbers])
        yield f"Produce{label}", "Produce", 9, ProduceRequest(transactional_id=None, acks=1, timeout_ms=1000, topic_data=[data])
        yield f"Fetch{label}", "Fetch", 12, {**waits, "topics": of_topic(each(partition=numbers, **fetched), name="topic")}
        listed = each(partition_index=numbers, timestamp=-1)
        yield f"ListOffsets{label}", "ListOffsets", 7, {"replica_id": -1, "topics": of_topic(listed)}
    by_time = each(partition_index=NUMBERS, timestamp=5)
    yield "ListOffsets, by time", "ListOffsets", 7, {"replica_id": -1, "topics": of_topic(by_time)}
    waiting = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20}
    yield "Fetch, waits", "Fetch", 12, {**waiting, "topics": of_topic(each(partition=NUMBERS, **fetched), name="topic")}
    one = [{"partition": 0, **fetched}]
    yield "Fetch, unknown topics", "Fetch", 12, {**waits, "topics": [{"topic": name, "partitions": one} for name in NAMES]}
    yield "Metadata", "Metadata", 9, {"topics": each(name=NAMES), "allow_auto_topic_creation": False}
    yield "OffsetCommit", "OffsetCommit", 8, {"group_id": GROUP_ID, "topics": of_topic(each(partition_index=LED, **committed))}
    topics: Any = [{"name": name, "partitions": [{"partition_index": 0, **committed}]} for name in NAMES]
    yield "OffsetCommit, topics", "OffsetCommit", 8, {"group_id": GROUP_ID, "topics": topics}
    group = {"group_id": GROUP_ID, "topics": of_topic(NUMBERS, field="partition_indexes")}
    yield "OffsetFetch", "OffsetFetch", 8, {"groups": [group]}
    topics = [{"name": name, "partition_indexes": [0]} for name in NAMES]
    yield "OffsetFetch, topics", "OffsetFetch", 8, {"groups": [{"group_id": GROUP_ID, "topics": topics}]}
    yield "OffsetFetch, groups", "OffsetFetch", 8, {"groups": each(group_id=NAMES, topics=None)}
    yield "FindCoordinator", "FindCoordinator", 4, {"coordinator_keys": NAMES}
    yield "DescribeGroups", "DescribeGroups", 5, {"groups": NAMES}
    yield "DeleteGroups", "DeleteGroups", 2, {"groups_names": NAMES}
    yield "DeleteGroups, offsets", "DeleteGroups", 2, {"groups_names": [GROUP_ID]}
    yield "ConsumerGroupDescribe", "ConsumerGroupDescribe", 0, {"group_ids": NAMES}
    yield "OffsetDelete", "OffsetDelete", 0, {"group_id": GROUP_ID, "topics": of_topic(each(partition_index=LED))}
    topics = each(name=NAMES, num_partitions=1, replication_factor=1)
    yield "CreateTopics, validated", "CreateTopics", 7, {"topics": topics, "timeout_ms": 1000, "validate_only": True}
    topics = each(name=NAMES, count=3)
    yield "CreatePartitions, validated", "CreatePartitions", 3, {"topics": topics, "timeout_ms": 1000, "validate_only": True}
    yield "DeleteTopics", "DeleteTopics", 5, {"topic_names": NAMES, "timeout_ms": 1000}
    yield "DeleteRecords", "DeleteRecords", 2, {"topics": of_topic(each(partition_index=NUMBERS, offset=0)), "timeout_ms": 1000}
    ended = of_topic(each(partition=NUMBERS, leader_epoch=0), name="topic")
    yield "OffsetForLeaderEpoch", "OffsetForLeaderEpoch", 4, {"replica_id": -1, "topics": ended}
    transaction = {"v3_and_below_transactional_id": TRANSACTIONAL_ID, "v3_and_below_producer_id": producer_id}
    yield "AddPartitionsToTxn", "AddPartitionsToTxn", 3, {**transaction, "v3_and_below_topics": of_topic(LED)}
    commits = {"transactional_id": TRANSACTIONAL_ID, "group_id": GROUP_ID, "producer_id": producer_id}
    yield "TxnOffsetCommit", "TxnOffsetCommit", 3, {**commits, "topics": of_topic(each(partition_index=LED, **committed))}
    resources = each(resource_type=2, resource_name=NAMES)
    yield "DescribeConfigs", "DescribeConfigs", 4, {"resources": resources}
    yield "IncrementalAlterConfigs", "IncrementalAlterConfigs", 1, {"resources": resources, "validate_only": True}
    yield "DescribeLogDirs", "DescribeLogDirs", 4, {"topics": of_topic(NUMBERS, name="topic")}
    elected = {"topic_partitions": of_topic(NUMBERS, name="topic"), "timeout_ms": 1000}
    yield "ElectLeaders", "ElectLeaders", 2, elected
    moved = [{"name": name, "partitions": [{"partition_index": 0, "replicas": [1]}]} for name in NAMES]
    yield "AlterPartitionReassignments", "AlterPartitionReassignments", 0, {"topics": moved, "timeout_ms": 1000}
    yield "DescribeProducers", "DescribeProducers", 0, {"topics": of_topic(NUMBERS, field="partition_indexes")}
    yield "DescribeTransactions", "DescribeTransactions", 0, {"transactional_ids": NAMES}
    yield "DescribeTopicPartitions", "DescribeTopicPartitions", 0, {"topics": each(name=NAMES)}


def decoding(data: memoryview, message: type[Any], version: int, position: int) -> Iterator[Any]:
    """Decodes as the server does; the last value is the message."""
    work = compile.decode_in_turns(message, data, version, position)
    while True:
        try:
            next(work)
        except StopIteration as ended:
            yield ended.value
            return
        yield None


class Steps:
    """CPU time of each step of one request, in ms."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {"decode": [], "handle": [], "encode": []}

    def timed(self, kind: str, act: Callable[[], Any]) -> Any:
        began_ns = time.thread_time_ns()
        found = act()
        self.spent[kind].append((time.thread_time_ns() - began_ns) / 1e6)
        return found

    def line(self, label: str) -> str:
        parts = [f"{max(spent, default=0):7.1f} {sum(spent):7.1f}" for spent in self.spent.values()]
        return f"{label:28} {max(max(spent, default=0) for spent in self.spent.values()):7.1f} | {' | '.join(parts)}"


def measured(broker: Any, message: Any, version: int, origin: Origin) -> Steps:
    """``broker``: one of ``tests/broker/cluster.py``."""
    from cluster import Sent

    steps, cluster = Steps(), broker.cluster
    frame: list[Any] = encode_request(message, version, 1, "bench")
    data = memoryview(bytearray(b"".join(frame)))[4:]
    header, position = decode_request_header(data)
    work = decoding(data, type(message), version, position)
    body = None
    while body is None:
        body = steps.timed("decode", lambda: next(work))
    step = broker.node.step
    broker.node.step = lambda event, now_ms: steps.timed("handle", lambda: step(event, now_ms))
    sent = Sent(next(cluster.numbers))
    broker._sent[sent.connection] = sent
    broker.handle(
        events.RequestArrived(
            connection=sent.connection,
            correlation_id=1,
            api_key=header.api_key,
            api_version=version,
            client_id="bench",
            body=body,
            size=len(data),
            origin=origin,
        )
    )
    KEPT.extend((message, body, sent))
    cluster.run()
    while sent.waits and sent.closed is None:
        cluster.pass_ms(100)
    del broker.node.step
    encoding = encode_response_in_turns(sent.answer, version, 1)
    while steps.timed("encode", lambda: next(encoding, "ended")) is None:
        pass
    return steps


def coordinate(broker: Any) -> int:
    """Makes the broker the coordinator of the group and of a transaction that has its offsets; returns the producer id."""
    for key, key_type in ((GROUP_ID, GROUP), (TRANSACTIONAL_ID, TRANSACTION)):
        while broker.ask(FindCoordinatorRequest(key=key, key_type=key_type), 2).error_code:
            broker.cluster.pass_ms(100)
    asked = broker.send(InitProducerIdRequest(transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=60_000), 3)
    while asked.waits:
        broker.cluster.pass_ms(100)
    begun = AddOffsetsToTxnRequest(transactional_id=TRANSACTIONAL_ID, producer_id=asked.answer.producer_id, group_id=GROUP_ID)
    assert asked.answer.error_code == broker.ask(begun, 3).error_code == 0
    return int(asked.answer.producer_id)


def store_offsets(broker: Any) -> None:
    """Stores an offset of the group for each partition that exists."""
    places = [OffsetCommitRequestPartition(partition_index=number, committed_offset=5) for number in range(MANY // 2)]
    broker.ask(OffsetCommitRequest(group_id=GROUP_ID, topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=places)]), 8)


@click.command()
@click.option("--request", "labels", multiple=True, help="Only this one; repeatable.")
@click.option("--denied", is_flag=True, help="By a client that may do nothing.")
def main(labels: tuple[str, ...], denied: bool) -> None:
    """Print the CPU time of the longest step, and of each kind of step: the longest and all, in ms."""
    from access_rules import AUTHORIZER
    from cluster import Cluster, batch

    authorizer = {**AUTHORIZER, "super.users": AUTHORIZER["super.users"] + ";" + ANONYMOUS} if denied else {}
    cluster = Cluster(settings={**SETTINGS, **authorizer})
    broker = cluster.topic(TOPIC, partitions=MANY // 2)
    producer_id = coordinate(broker)
    # As in the server.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    origin = Origin(host="bench", principal="User:stranger" if denied else ANONYMOUS)
    classes = {api.name: api.request for api in API.values()}
    click.echo(f"{'request':28} longest | decode: longest, all | handle: longest, all | encode: longest, all")
    for label, api, version, fields in requests(bytes(batch(b"x" * 10)), producer_id):
        if not labels or label in labels:
            if label in NEED_OFFSETS:
                store_offsets(broker)
            message = fields if isinstance(fields, msgspec.Struct) else msgspec.convert(fields, classes[api])
            click.echo(measured(broker, message, version, origin).line(label))


if __name__ == "__main__":
    main()

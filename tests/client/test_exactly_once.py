"""`process` against an in-memory cluster: what it sends, and what happens when something fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from test_transactions import ANSWERS, read

import ottla
from ottla import ConsumerRecord, ProducerRecord, aio
from ottla.base.options import ConfigError
from ottla.broker.transactions.states import TransactionState as S
from ottla.wire import messages as m
from ottla.wire.errors import MessageTooLarge, TopicAuthorizationFailed, TransactionAbortable

EARLY: dict[str, Any] = {"group": "g", "commit_interval_ms": 5, "fetch_max_wait_ms": 10}


@pytest.fixture(params=(1, 2), ids=lambda version: f"transaction.version {version}")
def version(request: pytest.FixtureRequest, cluster: MemoryCluster) -> int:
    cluster.transactions.version = request.param
    return int(request.param)


@pytest.fixture
def quick(quick: dict[str, Any], cluster: MemoryCluster) -> dict[str, Any]:
    cluster.create("out", 2)
    del quick["rng"]
    return quick


async def written(quick: dict[str, Any], count: int, topic: str = "t", **fields: Any) -> None:
    async with aio.Producer(**quick) as producer:
        for index in range(count):
            await producer.send(topic, b"%d" % index, key=b"k%d" % index, **fields)


def committed(cluster: MemoryCluster) -> int:
    """The sum of the committed offsets of all partitions."""
    return sum(offset for offset, _, _ in cluster.groups.offsets.values())


async def run(cluster: MemoryCluster, processors: list[aio.Processor], function: Any, count: int) -> list[int]:
    """Run members until the group has committed as many records; returns the number of each."""
    changed = asyncio.Event()
    cluster.transactions.changed = changed.set
    tasks = [asyncio.create_task(processor(function)) for processor in processors]

    async def until_committed() -> None:
        while committed(cluster) < count:
            changed.clear()
            await changed.wait()

    waiting = asyncio.create_task(until_committed())
    await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    for processor in processors:
        processor.stop()
    return await asyncio.gather(*tasks)


# -- inputs and outputs


async def test_each_input_is_in_the_output_once_and_its_offset_is_committed(
    cluster: MemoryCluster, quick: dict[str, Any], version: int
) -> None:
    await written(quick, 30, "many")
    processor = aio.process("many", to="out", **EARLY, **quick)
    assert await run(cluster, [processor], lambda record: record.value + b"!", 30) == [30]
    assert sorted(await read(quick, topic="out")) == sorted(b"%d!" % index for index in range(30))
    again = aio.process("many", to="out", timeout_ms=100, **EARLY, **quick)
    assert await again(lambda record: record.value) == 0


def test_the_blocking_form_calls_the_function_in_the_callers_thread(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    import threading

    asyncio.run(written(quick, 30, "many"))
    threads = set()

    def function(record: ConsumerRecord) -> bytes:
        threads.add(threading.current_thread())
        return bytes(record.value)

    processor = ottla.process("many", to="out", **EARLY, **quick)
    cluster.transactions.changed = lambda: processor.stop() if committed(cluster) == 30 else None
    assert processor(function) == 30
    assert threads == {threading.current_thread()}
    assert len(asyncio.run(read(quick, topic="out"))) == 30


async def test_a_function_returns_nothing_a_value_a_record_or_several(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    await written(quick, 5, timestamp_ms=77)

    async def function(record: ConsumerRecord) -> Any:
        return [
            None,
            b"value",
            ProducerRecord("many", b"elsewhere", partition=1),
            [b"list", ProducerRecord("", b"own key", key=b"own")],
            (b"generated %d" % index for index in range(2)),
        ][int(record.value)]

    await run(cluster, [aio.process("t", to="out", **EARLY, **quick)], function, 5)
    async with aio.Consumer(auto_offset_reset="earliest", **quick) as consumer:
        consumer.assign([("out", 0), ("out", 1), ("many", 1)])
        found: list[ConsumerRecord] = []
        while len(found) < 6:
            found += await consumer.poll(1000)
    keys = {record.value: (record.topic, record.key) for record in found}
    assert keys == {
        b"value": ("out", b"k1"),
        b"elsewhere": ("many", None),
        b"list": ("out", b"k3"),
        b"own key": ("out", b"own"),
        b"generated 0": ("out", b"k4"),
        b"generated 1": ("out", b"k4"),
    }
    assert {record.timestamp for record in found if record.key in (b"k1", b"k3", b"k4")} == {77}


async def test_a_batch_is_one_call(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    await written(quick, 25)
    sizes = []

    def function(records: list[ConsumerRecord]) -> list[bytes]:
        sizes.append(len(records))
        return [b",".join(record.value for record in records)]

    processor = aio.process("t", to="out", batch=True, max_batch_records=10, **EARLY, **quick)
    assert await run(cluster, [processor], function, 25) == [25]
    assert sizes == [10, 10, 5]
    assert [len(value.split(b",")) for value in await read(quick, topic="out")] in ([10, 10, 5], [10, 5, 10], [5, 10, 10])


async def test_a_transaction_has_at_most_the_maximum_number_of_records(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    await written(quick, 25)
    settings = {**EARLY, "commit_interval_ms": 5000}
    processor = aio.process("t", to="out", max_batch_records=10, **settings, **quick)
    await run(cluster, [processor], lambda record: record.value, 20)
    offsets = [request.topics[0].partitions[0].committed_offset for request in cluster.sent(m.TxnOffsetCommitRequest)]
    assert offsets[:2] == [10, 20]


async def test_serializers_of_both_sides_are_used(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    await written(quick, 3)
    processor = aio.process(
        "t", to="out", value_deserializer="str", value_serializer="json", key_deserializer="str", key_serializer="str", **EARLY, **quick
    )
    await run(cluster, [processor], lambda record: {"was": record.value}, 3)
    assert sorted(await read(quick, topic="out")) == [b'{"was":"%d"}' % index for index in range(3)]


# -- failures


async def test_an_exception_of_the_function_aborts_and_is_raised(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    await written(quick, 5)

    def function(record: ConsumerRecord) -> bytes:
        if record.value == b"3":
            raise ZeroDivisionError
        return bytes(record.value)

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            # All records are in the first transaction, also on a busy machine.
            await aio.process("t", to="out", **{**EARLY, "commit_interval_ms": 9_000}, **quick)(function)
    assert await read(quick, topic="out") == []
    assert ("t", 0) not in cluster.groups.offsets
    await run(cluster, [aio.process("t", to="out", **EARLY, **quick)], lambda record: record.value, 5)
    assert len(await read(quick, topic="out")) == 5


def test_an_interrupt_in_the_function_aborts_and_is_raised(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    asyncio.run(written(quick, 5))

    def function(record: ConsumerRecord) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ottla.process("t", to="out", **EARLY, **quick)(function)
    assert ("t", 0) not in cluster.groups.offsets


async def test_on_error_gives_outputs_in_place_of_the_function(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    await written(quick, 5)
    processor = aio.process(
        "t", to="out", on_error=lambda record, error: ProducerRecord("many", record.value + repr(error).encode()), **EARLY, **quick
    )
    assert await run(cluster, [processor], lambda record: b"%d" % (6 // int(record.value)), 5) == [5]
    assert sorted(await read(quick, topic="out")) == [b"1", b"2", b"3", b"6"]
    assert await read(quick, topic="many") == [b"0ZeroDivisionError('integer division or modulo by zero')"]


RETRIED = {
    "a record is refused": lambda cluster: cluster.batch_faults.append(lambda topic, partition, header: 120 if topic == "out" else None),
    "the offsets are refused": lambda cluster: cluster.faults["TxnOffsetCommit"].append(ANSWERS["TxnOffsetCommit"](22)),
    "the commit is refused": lambda cluster: cluster.faults["EndTxn"].append(ANSWERS["EndTxn"](120)),
    "the producer is fenced": lambda cluster: cluster.faults["EndTxn"].append(ANSWERS["EndTxn"](90)),
    "the producer is fenced early": lambda cluster: cluster.faults["TxnOffsetCommit"].append(ANSWERS["TxnOffsetCommit"](90)),
    "the coordinator is away": lambda cluster: cluster.faults["EndTxn"].extend([ANSWERS["EndTxn"](15)] * 5),
}


@pytest.mark.parametrize("fault", RETRIED)
async def test_records_of_a_failed_transaction_are_processed_again(
    cluster: MemoryCluster, quick: dict[str, Any], version: int, fault: str
) -> None:
    await written(quick, 30, "many")
    RETRIED[fault](cluster)
    processor = aio.process("many", to="out", max_batch_records=12, **EARLY, **quick)
    assert await run(cluster, [processor], lambda record: record.value, 30) == [30]
    assert sorted(await read(quick, topic="out"), key=int) == [b"%d" % index for index in range(30)]
    assert cluster.transactions.ids
    assert {transaction.state for transaction in cluster.transactions.ids.values()} <= {S.COMPLETE_COMMIT, S.COMPLETE_ABORT, S.EMPTY}


async def test_a_failure_that_does_not_pass_is_raised_after_some_attempts(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    await written(quick, 3)
    processor = aio.process("t", to="out", max_attempts=3, max_request_size=2000, **EARLY, **quick)
    with pytest.raises(MessageTooLarge):
        await processor(lambda record: b"x" * 3000)
    cluster.faults["TxnOffsetCommit"].extend([ANSWERS["TxnOffsetCommit"](120)] * 3)
    with pytest.raises(TransactionAbortable):
        await aio.process("t", to="out", max_attempts=3, **EARLY, **quick)(lambda record: record.value)
    assert ("t", 0) not in cluster.groups.offsets


async def test_a_missing_permission_is_raised_at_once(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.transactions.version = 1
    await written(quick, 3)
    cluster.faults["AddPartitionsToTxn"].append(ANSWERS["AddPartitionsToTxn"](29))
    with pytest.raises((TopicAuthorizationFailed, TransactionAbortable)) as raised:
        await aio.process("t", to="out", **EARLY, **quick)(lambda record: record.value)
    assert isinstance(raised.value, TopicAuthorizationFailed) or isinstance(raised.value.__cause__, TopicAuthorizationFailed)
    assert len(cluster.sent(m.AddPartitionsToTxnRequest)) == 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_members_share_the_partitions_through_rebalances(
    cluster: MemoryCluster, quick: dict[str, Any], version: int, protocol: str
) -> None:
    async def slowly(record: ConsumerRecord) -> bytes:
        await asyncio.sleep(0.001)
        return bytes(record.value)

    settings = {**EARLY, **quick, "group_protocol": protocol, "commit_interval_ms": 20}
    if protocol == "classic":
        settings["heartbeat_interval_ms"] = 10
    await written(quick, 300, "many")
    counts = await run(cluster, [aio.process("many", to="out", **settings) for _ in range(3)], slowly, 300)
    assert sum(counts) == 300
    assert all(counts), "each had a partition"
    assert sorted(await read(quick, topic="out"), key=int) == [b"%d" % index for index in range(300)]


# -- stopping


async def test_stop_commits_what_was_processed(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    await written(quick, 10)
    processor = aio.process("t", **{**EARLY, "commit_interval_ms": 5000}, to="out", **quick)
    seen = []

    def function(record: ConsumerRecord) -> bytes:
        seen.append(record.offset)
        if len(seen) == 4:
            processor.stop()
        return bytes(record.value)

    count = await processor(function)
    assert committed(cluster) == count == len(seen) >= 4
    assert len(await read(quick, topic="out")) == count


async def test_a_cancelled_task_aborts_its_transaction(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    await written(quick, 10)
    called = asyncio.Event()

    async def function(record: ConsumerRecord) -> bytes:
        called.set()
        await asyncio.sleep(60)
        return b""

    task = asyncio.create_task(aio.process("t", group="g", to="out", **quick)(function))
    await called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ("t", 0) not in cluster.groups.offsets


# -- arguments


async def test_a_value_needs_a_topic(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    await written(quick, 1)
    with pytest.raises(TypeError, match=r"give process\(\) a topic with to="):
        await aio.process("t", **EARLY, **quick)(lambda record: b"v")


@pytest.mark.parametrize(
    ("topics", "arguments", "error", "message"),
    [
        ((), {"group": "g"}, ValueError, "needs a topic"),
        (("t",), {"group": ""}, ConfigError, "name of a group"),
        (("t",), {"group": "g", "enable_auto_commit": True}, ConfigError, "committed in the transactions"),
        (("t",), {"group": "g", "lingerms": 1}, ConfigError, "linger_ms"),
        (("t",), {"group": "g", "commit_interval_ms": 10_000}, ConfigError, "transaction_timeout_ms"),
        (("t",), {"group": "g", "on_error": 1}, TypeError, "function of"),
        ((1,), {"group": "g"}, TypeError, "a topic is named by a str"),
        (("t",), {"group": "g", "max_batch_records": 0}, ValueError, "max_batch_records"),
    ],
)
def test_arguments_are_checked(topics: Any, arguments: Any, error: type[Exception], message: str) -> None:
    for face in (ottla.process, aio.process):
        with pytest.raises(error, match=message):
            face(*topics, **arguments)


def test_the_transactional_id_is_that_of_the_instance_or_a_random_one() -> None:
    instances: list[dict[str, Any]] = [{"group_instance_id": "1"}, {}, {}]
    ids = [aio.process("t", group="g", **more)._plan.producer["transactional_id"] for more in instances]
    assert ids[0] == "g-1"
    assert ids[1].startswith("g-")
    assert len(set(ids)) == 3

"""Transactional producers against an in-memory cluster, in both versions of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from memory_cluster import CUT, CUT_AFTER, MemoryCluster

import ottla
from ottla.aio import Consumer, Producer
from ottla.base.ids import NO_TOPIC_ID, TopicPartition
from ottla.base.options import ConfigError
from ottla.broker.transactions.states import TransactionState as S
from ottla.client.errors import CommitFailed, DeliveryTimedOut, TransactionAborted
from ottla.client.group.commits import GroupMetadata
from ottla.client.options import ProducerOptions, from_keywords
from ottla.client.producer.transaction_requests import PreparedTransaction, end_transaction
from ottla.client.transport.network import Network
from ottla.records.batch import parse_header
from ottla.wire import messages as m
from ottla.wire.errors import (
    ErrorKind,
    InvalidRecord,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
)

T = TopicPartition("t", 0)
NO_MEMBER = GroupMetadata("g", -1, "", None)


@pytest.fixture(params=(1, 2), ids=lambda version: f"transaction.version {version}")
def version(request: pytest.FixtureRequest, cluster: MemoryCluster) -> int:
    cluster.transactions.version = request.param
    return int(request.param)


@pytest.fixture
def quick(quick: dict[str, Any]) -> dict[str, Any]:
    return {**quick, "transactional_id": "x", "linger_ms": 0}


def of_a_consumer(quick: dict[str, Any]) -> dict[str, Any]:
    """The settings that consumers have, too."""
    return {name: value for name, value in quick.items() if not name.startswith("transaction") and name != "linger_ms"}


async def read(quick: dict[str, Any], *, topic: str = "t", isolation_level: str = "read_committed") -> list[bytes]:
    """Values up to the end that this isolation level sees."""
    async with Consumer(auto_offset_reset="earliest", isolation_level=isolation_level, **of_a_consumer(quick)) as consumer:
        partitions = await consumer.partitions_for(topic)
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        found: list[bytes] = []
        while not all(consumer.has_passed(tp, end) for tp, end in ends.items()):
            found += [record.value or b"" for record in await consumer.poll(100)]
        return found


# -- whole transactions


async def test_records_of_a_transaction_are_visible_together_after_the_commit(
    cluster: MemoryCluster, quick: dict[str, Any], version: int
) -> None:
    async with Producer(**quick) as producer:
        await producer.init_transactions()
        producer.begin()
        for index in range(6):
            await producer.send("many", b"%d" % index, partition=index % 3)
        await producer.flush()
        assert await read(quick, topic="many") == []
        await producer.commit()
        assert sorted(await read(quick, topic="many")) == [b"%d" % index for index in range(6)]
    header = parse_header(cluster.logs["many"][0].batches[0])
    assert header.is_transactional
    assert (len(cluster.sent(m.AddPartitionsToTxnRequest)) > 0) == (version == 1)


async def test_records_of_an_aborted_transaction_are_never_visible(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    async with Producer(**quick) as producer:
        await producer.init_transactions()
        for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
            producer.begin()
            await (await producer.send("t", value))
            await (producer.commit() if commit else producer.abort())
    assert await read(quick) == [b"a", b"c"]
    assert b"b" in await read(quick, isolation_level="read_uncommitted")


async def test_a_block_commits_at_its_end_and_aborts_after_an_exception(
    cluster: MemoryCluster, quick: dict[str, Any], version: int
) -> None:
    async with Producer(**quick) as producer:
        async with producer.transaction():
            await producer.send("t", b"a")
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send("t", b"b")
                await producer.flush()
                _ = 1 / 0
        async with producer.transaction():
            await producer.send("t", b"c")
    assert await read(quick) == [b"a", b"c"]
    assert len(cluster.sent(m.EndTxnRequest)) == 3


def test_the_blocking_producer_has_the_same_transactions(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    with ottla.Producer(**quick) as producer:
        with producer.transaction() as same:
            assert same is producer
            producer.send("t", b"a")
            producer.send_offsets_to_transaction({T: 7}, NO_MEMBER)
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send("t", b"b").result()
            _ = 1 / 0
        producer.begin()
        producer.send("t", b"c")
        producer.commit()
    assert asyncio.run(read(quick)) == [b"a", b"c"]
    assert cluster.groups.offsets["t", 0] == (7, -1, "")


async def test_a_transaction_without_records_needs_no_request(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    async with Producer(**quick) as producer:
        for _ in range(2):
            async with producer.transaction():
                pass
        producer.begin()
        await producer.abort()
    assert not cluster.sent(m.EndTxnRequest)


async def test_sequence_numbers_restart_with_each_epoch_of_version_2_and_continue_in_version_1(
    cluster: MemoryCluster, quick: dict[str, Any], version: int
) -> None:
    async with Producer(**quick) as producer:
        for _ in range(3):
            async with producer.transaction():
                for _ in range(2):
                    await (await producer.send("t", b"v"))
    headers = [header for batch in cluster.logs["t"][0].batches if not (header := parse_header(batch)).is_control]
    numbers = [(header.producer_epoch, header.base_sequence) for header in headers]
    if version == 2:
        assert numbers == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    else:
        assert numbers == [(0, sequence) for sequence in range(6)]


async def test_the_next_transaction_waits_for_the_markers_of_the_one_before(
    cluster: MemoryCluster, quick: dict[str, Any], version: int
) -> None:
    async with Producer(**quick) as producer:
        async with producer.transaction():
            await producer.send("t", b"a")
            cluster.transactions.hold_markers = True
        producer.begin()
        delivery = await producer.send("t", b"b")
        refused = asyncio.Event()
        waiting = "Produce" if version == 2 else "AddPartitionsToTxn"
        cluster.faults[waiting].append(lambda node, request: refused.set())
        await refused.wait()
        await asyncio.sleep(0)
        assert not delivery.done()
        cluster.transactions.release()
        await delivery
        await producer.commit()
    assert await read(quick) == [b"a", b"b"]


async def test_tables_and_encoded_batches_are_part_of_the_transaction(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    import pyarrow

    table = pyarrow.table({"value": ["a", "b"]})
    async with Producer(**quick) as producer:
        await producer.init_transactions()
        for commit in (False, True):
            producer.begin()
            await (await producer.send_table("t", table, value="value"))
            await (producer.commit() if commit else producer.abort())
    assert await read(quick) == [b"a", b"b"]


# -- offsets


async def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    cluster: MemoryCluster, quick: dict[str, Any], version: int
) -> None:
    async with Producer(**quick) as producer:
        await producer.init_transactions()
        producer.begin()
        await producer.send_offsets_to_transaction({T: 5}, NO_MEMBER)
        await producer.abort()
        assert not cluster.groups.offsets
        producer.begin()
        await producer.send_offsets_to_transaction({T: 6}, NO_MEMBER)
        assert not cluster.groups.offsets
        await producer.commit()
    assert cluster.groups.offsets["t", 0] == (6, -1, "")
    assert bool(cluster.sent(m.AddOffsetsToTxnRequest)) == (version == 1)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_offsets_of_a_member_that_left_are_refused_and_the_transaction_can_be_aborted(
    cluster: MemoryCluster, quick: dict[str, Any], version: int, protocol: str
) -> None:
    settings = of_a_consumer(quick)
    async with Producer(**quick) as producer:
        async with Consumer("t", group_id="g", group_protocol=protocol, enable_auto_commit=False, **settings) as consumer:
            while not consumer.assignment():
                await consumer.poll(10)
            group = consumer.group_metadata()
            async with producer.transaction():
                await producer.send_offsets_to_transaction({T: 1}, group)
        producer.begin()
        with pytest.raises(CommitFailed, match="call abort"):
            await producer.send_offsets_to_transaction({T: 2}, group)
        with pytest.raises(TransactionAbortable, match="call abort"):
            await producer.commit()
        await producer.abort()
        async with producer.transaction():
            await producer.send("t", b"v")
    assert cluster.groups.offsets["t", 0][0] == 1


def named(request: Any) -> tuple[list[str], list[bytes]]:
    """The topics of a TxnOffsetCommit as it was sent: names, and ids."""
    return [topic.name for topic in request.topics], [topic.topic_id for topic in request.topics]


BY_NAME_WHERE: dict[str, Callable[[MemoryCluster], Any]] = {
    "the coordinator knows no ids": lambda cluster: cluster.versions.update({28: (0, 5)}),
    "the topics have no ids": lambda cluster: cluster.topic_ids.update({"t": NO_TOPIC_ID, "many": NO_TOPIC_ID}),
    "one of the topics has no id": lambda cluster: cluster.topic_ids.update({"many": NO_TOPIC_ID}),
    "partitions are added by the client": lambda cluster: setattr(cluster.transactions, "version", 1),
}


async def test_offsets_are_committed_by_topic_id(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        for offset in (3, 4):
            async with producer.transaction():
                await producer.send_offsets_to_transaction({T: offset, ("many", 1): 9}, NO_MEMBER)
    assert [named(request) for request in cluster.sent(m.TxnOffsetCommitRequest)] == [
        (["", ""], [cluster.topic_ids["t"], cluster.topic_ids["many"]])
    ] * 2
    assert {place: kept[0] for place, kept in cluster.groups.offsets.items()} == {("t", 0): 4, ("many", 1): 9}


@pytest.mark.parametrize("where", BY_NAME_WHERE)
async def test_offsets_are_committed_by_name_where_ids_cannot_be_used(cluster: MemoryCluster, quick: dict[str, Any], where: str) -> None:
    BY_NAME_WHERE[where](cluster)
    async with Producer(**quick) as producer, producer.transaction():
        await producer.send_offsets_to_transaction({T: 3, ("many", 1): 9}, NO_MEMBER)
    assert [named(request)[0] for request in cluster.sent(m.TxnOffsetCommitRequest)] == [["t", "many"]]
    assert {place: kept[0] for place, kept in cluster.groups.offsets.items()} == {("t", 0): 3, ("many", 1): 9}


async def test_a_topic_that_the_producer_does_not_write_to_is_looked_up_once(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        for _ in range(3):
            async with producer.transaction():
                await producer.send_offsets_to_transaction({T: 3}, NO_MEMBER)
    requests = [request for request in cluster.sent(m.MetadataRequest) if request.topics]
    assert [[topic.name for topic in request.topics] for request in requests] == [["t"]]
    assert not requests[0].allow_auto_topic_creation, "a topic that is only read is not created"


async def test_offsets_are_sent_again_until_the_coordinator_knows_the_topic(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.faults["TxnOffsetCommit"] += [ANSWERS["TxnOffsetCommit"](100)] * 3
    async with Producer(**quick) as producer, producer.transaction():
        await producer.send_offsets_to_transaction({T: 3}, NO_MEMBER)
    assert len(cluster.sent(m.TxnOffsetCommitRequest)) == 4
    assert cluster.groups.offsets["t", 0][0] == 3


async def test_offsets_of_a_topic_are_not_committed_for_one_that_took_its_name(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        async with producer.transaction():
            await producer.send_offsets_to_transaction({T: 3}, NO_MEMBER)
        cluster.delete("t")
        cluster.create("t")
        with pytest.raises(CommitFailed, match=r"topic t was deleted.*call abort\(\) and poll again"):
            async with producer.transaction():
                await producer.send_offsets_to_transaction({T: 4}, NO_MEMBER)
        assert cluster.groups.offsets["t", 0][0] == 3
        async with producer.transaction():
            await producer.send_offsets_to_transaction({T: 1}, NO_MEMBER)
    assert cluster.groups.offsets["t", 0][0] == 1


async def test_offsets_of_a_deleted_topic_fail_before_the_deadline(
    cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.client.transport.cluster.GONE_MS", 20)
    async with Producer(**quick) as producer:
        async with producer.transaction():
            await producer.send_offsets_to_transaction({T: 3}, NO_MEMBER)
        cluster.delete("t")
        with pytest.raises(CommitFailed, match="topic t was deleted"):
            async with producer.transaction():
                await producer.send_offsets_to_transaction({T: 4}, NO_MEMBER)
        async with producer.transaction():
            await producer.send("many", b"v")


@pytest.mark.parametrize("code", [69, 113], ids=["the group is gone", "its epoch is old"])
async def test_offsets_that_version_6_refuses_for_the_member_make_the_transaction_abortable(
    cluster: MemoryCluster, quick: dict[str, Any], code: int
) -> None:
    cluster.faults["TxnOffsetCommit"].append(ANSWERS["TxnOffsetCommit"](code))
    async with Producer(**quick) as producer:
        with pytest.raises(TransactionAbortable, match="call abort") as raised:
            async with producer.transaction():
                with pytest.raises(CommitFailed, match="the member has lost its partitions"):
                    await producer.send_offsets_to_transaction({T: 3}, NO_MEMBER)
        assert isinstance(raised.value.__cause__, CommitFailed)
        async with producer.transaction():
            await producer.send_offsets_to_transaction({T: 4}, NO_MEMBER)
    assert cluster.groups.offsets["t", 0][0] == 4


async def test_a_group_is_named_by_its_metadata(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer, producer.transaction():
        with pytest.raises(TypeError, match=r"such as consumer\.group_metadata\(\)"):
            await producer.send_offsets_to_transaction({T: 2}, "g")  # type: ignore[arg-type]


# -- what fails


async def test_a_record_that_fails_makes_the_transaction_abortable_and_the_next_one_works(
    cluster: MemoryCluster, quick: dict[str, Any], version: int
) -> None:
    cluster.batch_faults.append(lambda topic, partition, header: 87)
    async with Producer(**quick) as producer:
        await producer.init_transactions()
        producer.begin()
        failed = await producer.send("t", b"a")
        with pytest.raises(InvalidRecord):
            await failed
        for call in (lambda: producer.send("t", b"b"), producer.commit):
            with pytest.raises(TransactionAbortable, match="call abort") as raised:
                await call()
            assert isinstance(raised.value.__cause__, InvalidRecord)
            assert raised.value.kind is ErrorKind.ABORTABLE
        await producer.abort()
        async with producer.transaction():
            await producer.send("t", b"c")
    assert await read(quick) == [b"c"]


@pytest.mark.parametrize("code", [45, 47, 59, 120], ids=["out of order", "invalid epoch", "unknown producer", "abortable"])
async def test_errors_of_sequence_numbers_abort_the_transaction_and_not_the_producer(
    cluster: MemoryCluster, quick: dict[str, Any], version: int, code: int
) -> None:
    seen = []

    def later(topic: str, partition: int, header: Any) -> int | None:
        seen.append(header.base_sequence)
        return code if len(seen) == 2 else None

    cluster.batch_faults.append(later)
    async with Producer(**quick) as producer:
        with pytest.raises(TransactionAbortable):
            async with producer.transaction():
                await (await producer.send("t", b"a"))
                await producer.send("t", b"b")
        async with producer.transaction():
            await producer.send("t", b"c")
    assert await read(quick) == [b"c"]


async def test_a_record_without_acknowledgement_in_time_aborts_the_transaction(
    cluster: MemoryCluster, quick: dict[str, Any], version: int
) -> None:
    cluster.batch_faults += [lambda topic, partition, header: 19] * 100_000
    async with Producer(**{**quick, "delivery_timeout_ms": 60, "request_timeout_ms": 50}) as producer:
        with pytest.raises(TransactionAbortable) as raised:
            async with producer.transaction():
                await producer.send("t", b"a")
        assert isinstance(raised.value.__cause__, DeliveryTimedOut)
        cluster.batch_faults.clear()
        async with producer.transaction():
            await producer.send("t", b"b")
    assert await read(quick) == [b"b"]


async def test_records_that_were_not_sent_fail_when_the_transaction_is_aborted(
    cluster: MemoryCluster, quick: dict[str, Any], version: int
) -> None:
    async with Producer(**{**quick, "linger_ms": 10_000}) as producer:
        await producer.init_transactions()
        producer.begin()
        delivery = await producer.send("t", b"a")
        await producer.abort()
        with pytest.raises(TransactionAborted):
            await delivery
        producer.begin()
        await producer.send("t", b"b")
        await producer.commit()
    assert await read(quick) == [b"b"]


async def test_a_newer_producer_of_the_id_fences_the_older_one(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    async with Producer(**quick) as old, Producer(**quick) as new:
        await old.init_transactions()
        old.begin()
        await (await old.send("t", b"a"))
        await new.init_transactions()
        with pytest.raises(ProducerFenced, match="has replaced this one"):
            await old.commit()
        for call in (old.commit, old.abort, old.init_transactions, lambda: old.send("t", b"b")):
            with pytest.raises(ProducerFenced, match="create a new one") as raised:
                await call()
            assert raised.value.kind is ErrorKind.APPLICATION_RECOVERABLE
        async with new.transaction():
            await new.send("t", b"c")
    assert await read(quick) == [b"c"]


async def test_a_block_of_a_fenced_producer_raises_that_it_is_fenced(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    async with Producer(**quick) as old, Producer(**quick) as new:
        with pytest.raises(ProducerFenced):
            async with old.transaction():
                await (await old.send("t", b"a"))
                await new.init_transactions()
                await old.send("t", b"b")


async def test_a_transaction_that_timed_out_fences_its_producer(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    async with Producer(**quick) as producer:
        with pytest.raises(ProducerFenced, match=r"transaction_timeout_ms \(60000\)"):
            async with producer.transaction():
                await (await producer.send("t", b"a"))
                cluster.transactions.fence("x")


FAULTS: dict[str, Callable[[Any], list[Any]]] = {
    "moved": lambda make: [make(16)] * 3,
    "loading": lambda make: [make(14)] * 3,
    "not available": lambda make: [make(15)] * 3,
    "concurrent": lambda make: [make(51)] * 3,
    "cut before": lambda make: [lambda node, request: CUT] * 2,
    "cut after": lambda make: [lambda node, request: CUT_AFTER] * 2,
}
ANSWERS: dict[str, Any] = {
    "InitProducerId": lambda code: lambda node, request: m.InitProducerIdResponse(error_code=code),
    "EndTxn": lambda code: lambda node, request: m.EndTxnResponse(error_code=code),
    "AddOffsetsToTxn": lambda code: lambda node, request: m.AddOffsetsToTxnResponse(error_code=code),
    "AddPartitionsToTxn": lambda code: lambda node, request: partitions_refused(request, code),
    "TxnOffsetCommit": lambda code: lambda node, request: offsets_refused(request, code),
    "FindCoordinator": lambda code: (
        lambda node, request: m.FindCoordinatorResponse(
            coordinators=[m.find_coordinator.Coordinator(key=key, error_code=code) for key in request.coordinator_keys]
        )
    ),
}


def partitions_refused(request: Any, code: int) -> Any:
    messages = m.add_partitions_to_txn
    topics = [
        messages.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[messages.AddPartitionsToTxnPartitionResult(index, code) for index in topic.partitions],
        )
        for topic in request.v3_and_below_topics
    ]
    return m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)


def offsets_refused(request: Any, code: int) -> Any:
    messages = m.txn_offset_commit
    topics = [
        messages.TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[messages.TxnOffsetCommitResponsePartition(one.partition_index, code) for one in topic.partitions],
        )
        for topic in request.topics
    ]
    return m.TxnOffsetCommitResponse(topics=topics)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("request_name", ANSWERS)
async def test_requests_are_repeated_until_the_coordinator_answers(
    cluster: MemoryCluster, quick: dict[str, Any], version: int, request_name: str, fault: str
) -> None:
    cluster.faults[request_name] += FAULTS[fault](ANSWERS[request_name])
    async with Producer(**quick) as producer:
        await producer.init_transactions()
        for commit in (True, False, True):
            producer.begin()
            await producer.send("t", b"%d" % commit)
            await producer.send_offsets_to_transaction({T: 3}, NO_MEMBER)
            await (producer.commit() if commit else producer.abort())
    assert await read(quick) == [b"1", b"1"]
    assert cluster.groups.offsets["t", 0][0] == 3


FATAL = {"EndTxn": 48, "AddOffsetsToTxn": 53, "TxnOffsetCommit": 90, "AddPartitionsToTxn": 47}


@pytest.mark.parametrize("request_name", FATAL)
async def test_fatal_errors_of_coordinators_end_the_producer(cluster: MemoryCluster, quick: dict[str, Any], request_name: str) -> None:
    cluster.transactions.version = 1
    code = FATAL[request_name]
    cluster.faults[request_name].append(ANSWERS[request_name](code))
    kinds = (InvalidTxnState, TransactionalIdAuthorizationFailed, ProducerFenced)
    async with Producer(**quick) as producer:
        with pytest.raises(kinds):
            async with producer.transaction():
                await producer.send("t", b"a")
                await producer.send_offsets_to_transaction({T: 3}, NO_MEMBER)
        with pytest.raises(kinds, match="create a new"):
            producer.begin()


@pytest.mark.parametrize("code", [29, 49, 120], ids=["topic authorization", "unknown id", "abortable"])
async def test_abortable_errors_of_coordinators_leave_the_producer_usable(cluster: MemoryCluster, quick: dict[str, Any], code: int) -> None:
    cluster.transactions.version = 1
    cluster.faults["AddPartitionsToTxn"].append(ANSWERS["AddPartitionsToTxn"](code))
    async with Producer(**quick) as producer:
        with pytest.raises(TransactionAbortable):
            async with producer.transaction():
                await producer.send("t", b"a")
        async with producer.transaction():
            await producer.send("t", b"b")
    assert await read(quick) == [b"b"]


async def test_a_commit_that_times_out_is_called_again(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    async with Producer(**{**quick, "max_block_ms": 250}) as producer:
        while True:
            with suppress(RequestTimedOut):
                await producer.init_transactions()
                break
        producer.begin()
        await (await producer.send("t", b"a"))
        refused = [ANSWERS["EndTxn"](14)] * 100_000
        cluster.faults["EndTxn"] += refused
        with pytest.raises(RequestTimedOut, match=r"call commit\(\) again"):
            await producer.commit()
        with pytest.raises(RuntimeError, match=r"call commit\(\) again"):
            await producer.abort()
        with pytest.raises(RuntimeError, match=r"commit\(\) has not finished"):
            await producer.send("t", b"b")
        with pytest.raises(RuntimeError, match=r"call commit\(\) again"):
            producer.begin()
        cluster.faults["EndTxn"].clear()
        for _ in range(100):
            try:
                await producer.commit()
                break
            except RequestTimedOut:
                pass
        async with producer.transaction():
            await producer.send("t", b"c")
    assert await read(quick) == [b"a", b"c"]


async def test_a_cancelled_commit_can_be_awaited_again(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    async with Producer(**quick) as producer:
        await producer.init_transactions()
        producer.begin()
        await producer.send("t", b"a")
        task = asyncio.create_task(producer.commit())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await producer.commit()
    assert await read(quick) == [b"a"]


async def test_closing_the_producer_aborts_its_transaction(cluster: MemoryCluster, quick: dict[str, Any], version: int) -> None:
    async with Producer(**quick) as producer:
        await producer.init_transactions()
        producer.begin()
        await (await producer.send("t", b"a"))
    assert cluster.transactions.state() is S.COMPLETE_ABORT


# -- calls and settings


async def test_a_call_in_the_wrong_state_says_the_state_and_the_remedy(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        with pytest.raises(RuntimeError, match=r"uninitialized; call init_transactions\(\) first"):
            producer.begin()
        with pytest.raises(RuntimeError, match=r"uninitialized"):
            await producer.send("t", b"a")
        await producer.init_transactions()
        with pytest.raises(RuntimeError, match="call begin"):
            await producer.send("t", b"a")
        with pytest.raises(RuntimeError, match="is ready"):
            await producer.commit()
        with pytest.raises(RuntimeError, match="is ready"):
            await producer.init_transactions()
        producer.begin()
        with pytest.raises(RuntimeError, match=r"commit\(\) or abort\(\) it first|end the open transaction"):
            producer.begin()
        await producer.abort()


async def test_a_producer_without_transactional_id_has_no_transactions(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    quick.pop("transactional_id")
    async with Producer(**quick) as producer:
        with pytest.raises(ConfigError, match="give the producer a transactional_id"):
            producer.begin()
        await (await producer.send("t", b"a"))
    assert not parse_header(cluster.logs["t"][0].batches[0]).is_transactional


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"enable_idempotence": False}, "enable_idempotence"),
        ({"acks": 1}, "acks=all"),
        ({"max_in_flight_requests_per_connection": 6}, "at most 5"),
        ({"retries": 0}, "retries"),
        ({"transaction_two_phase_commit_enable": True, "transaction_timeout_ms": 5}, "no timeout"),
    ],
)
def test_settings_that_contradict_transactions_are_refused(quick: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Producer(**{**quick, **settings})


async def test_a_timeout_that_the_brokers_refuse_is_an_error_of_the_setting(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.faults["InitProducerId"].append(ANSWERS["InitProducerId"](50))
    async with Producer(**quick) as producer:
        with pytest.raises(InvalidTransactionTimeout, match=r"transaction\.max\.timeout\.ms"):
            await producer.init_transactions()
        await producer.init_transactions()


# -- two-phase commit


async def test_a_prepared_transaction_is_completed_by_the_next_producer(
    cluster: MemoryCluster, quick: dict[str, Any], version: int
) -> None:
    quick["transaction_two_phase_commit_enable"] = True
    prepared = []
    for value in (b"a", b"b"):
        async with Producer(**quick) as producer:
            await producer.init_transactions()
            producer.begin()
            await producer.send("t", value)
            prepared.append(await producer.prepare())
            with pytest.raises(RuntimeError, match="prepared"):
                await producer.send("t", b"late")
        assert cluster.transactions.state() is S.ONGOING
        async with Producer(**quick) as producer:
            await producer.init_transactions(keep_prepared=True)
            # The second time another transaction is asked for, so the open one is aborted.
            await producer.complete(PreparedTransaction.parse(str(prepared[0])))
            async with producer.transaction():
                await producer.send("t", value.upper())
            await producer.complete(prepared[0])
    assert await read(quick) == [b"a", b"A", b"B"]


async def test_two_phase_commit_has_to_be_enabled(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        with pytest.raises(ConfigError, match="two_phase"):
            await producer.init_transactions(keep_prepared=True)
        async with producer.transaction():
            with pytest.raises(ConfigError, match="two_phase"):
                await producer.prepare()


@pytest.mark.parametrize("commit", [True, False])
async def test_another_process_ends_a_transaction_by_its_identity(
    cluster: MemoryCluster, quick: dict[str, Any], version: int, commit: bool
) -> None:
    async with Producer(**quick) as producer:
        await producer.init_transactions()
        producer.begin()
        await producer.send("t", b"a")
        identity = await producer.transactions.hand_over()
        assert identity == await producer.numbered()
    assert cluster.transactions.state() is S.ONGOING
    options = from_keywords(ProducerOptions, {name: value for name, value in quick.items() if name != "rng"})
    network = Network(options)
    for _ in range(2):
        after = await end_transaction(network, "x", *identity, commit=commit)
    with pytest.raises(InvalidTxnState):
        await end_transaction(network, "x", *identity, commit=not commit)
    await network.close()
    assert after == (identity.producer_id, identity.epoch + (1 if version == 2 else 0))
    assert await read(quick) == [b"a"] * commit


async def test_a_producer_adopts_another_transactional_id_and_leaves_its_transaction_open(
    cluster: MemoryCluster, quick: dict[str, Any], version: int
) -> None:
    async with Producer(**quick) as producer:
        with pytest.raises(RuntimeError, match="init_transactions"):
            producer.begin()
        identities = []
        for name in ("x", "y", "z"):
            producer.adopt(name)
            await producer.init_transactions()
            producer.begin()
            await producer.send("t", name.encode())
            with pytest.raises(RuntimeError, match=f"adopt.. is not allowed: the producer of transactional_id '{name}'"):
                producer.adopt("other")
            identities.append(await producer.hand_over())
    assert len({one.producer_id for one in identities}) == 3
    assert [cluster.transactions.state(name) for name in "xyz"] == [S.ONGOING] * 3
    options = from_keywords(ProducerOptions, {name: value for name, value in quick.items() if name != "rng"})
    network = Network(options)
    for name, identity, commit in zip("xyz", identities, (True, False, True), strict=True):
        await end_transaction(network, name, *identity, commit=commit)
    await network.close()
    assert await read(quick) == [b"x", b"z"]


def test_the_text_of_a_prepared_transaction_is_checked() -> None:
    assert PreparedTransaction.parse("4000:7") == (4000, 7)
    for text in ("", "4000", "4000:", ":7", "a:b", "4000:-1"):
        with pytest.raises(ValueError, match="PRODUCER_ID:EPOCH"):
            PreparedTransaction.parse(text)

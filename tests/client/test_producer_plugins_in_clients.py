"""Plugins of the user in a complete producer, with asyncio and blocking, against an in-memory cluster."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from memory_cluster import CUT, CUT_AFTER, MemoryCluster

import ottla
from ottla import ProducerRecord
from ottla.aio import Consumer, Producer
from ottla.client.errors import BufferExhausted, MetadataTimedOut
from ottla.client.serializers import SerializationFailed
from ottla.records.batch import parse_header
from ottla.records.read import records
from ottla.wire.errors import InvalidRecord


def stored(cluster: MemoryCluster, topic: str = "t", partition: int = 0) -> list[Any]:
    """(key, value, headers) of a log's records."""
    return [(key, value, list(headers)) for batch in cluster.logs[topic][partition].batches for _, _, key, value, headers in records(batch)]


class Watching:
    """An interceptor that stamps records and records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, type[Exception] | None]] = []
        self.closed = False

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return msgspec.structs.replace(record, headers=[*(record.headers or ()), ("seen", b"1")])

    def on_acknowledgement(self, metadata: ottla.RecordMetadata, error: Exception | None) -> None:
        self.calls.append((metadata.partition, metadata.offset, None if error is None else type(error)))

    def close(self) -> None:
        self.closed = True


class Failing:
    """An interceptor that raises in every method."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("in on_send")

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        raise RuntimeError("in on_acknowledgement")

    def close(self) -> None:
        raise RuntimeError("in close")


async def test_interceptors_stamp_records_and_see_each_result_despite_one_that_fails(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    watching = Watching()
    async with Producer(interceptors=[Failing(), watching], **quick) as producer:
        for value in (b"a", b"b"):
            await producer.send("t", value)
    assert stored(cluster) == [(None, b"a", [("seen", b"1")]), (None, b"b", [("seen", b"1")])]
    assert watching.calls == [(0, 0, None), (0, 1, None)]
    assert watching.closed


async def test_interceptors_receive_the_error_of_a_failed_record(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    watching = Watching()
    cluster.batch_faults.append(lambda topic, partition, header: 87)
    async with Producer(interceptors=[watching], value_serializer="str", **quick) as producer:
        with pytest.raises(SerializationFailed):
            await producer.send("t", 5)
        with pytest.raises(TypeError):
            await producer.send("t", "a", key=5)
        with pytest.raises(InvalidRecord):
            await (await producer.send("t", "b"))
    assert watching.calls == [(-1, -1, SerializationFailed), (-1, -1, TypeError), (0, -1, InvalidRecord)]


async def test_serializers_encode_keys_and_values_and_can_add_headers(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    class Versioned:
        def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: Any) -> bytes | None:
            headers.append(("version", b"2"))
            return None if data is None else repr(data).encode()

    async with Producer(key_serializer=int, value_serializer=Versioned(), **quick) as producer:
        await producer.send("t", [1], key=1)
        await producer.send("t", None, key=2, headers=(("h", None),))
    assert stored(cluster) == [
        (b"\0\0\0\0\0\0\0\1", b"[1]", [("version", b"2")]),
        (b"\0\0\0\0\0\0\0\2", None, [("h", None), ("version", b"2")]),
    ]


async def test_a_users_partitioner_overrides_the_key_but_not_an_explicit_partition(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(partitioner=lambda topic, key, value, info: int(value), **quick) as producer:
        places = [await (await producer.send("many", b"%d" % number, key=b"same")) for number in (2, 0, 1)]
        given = await (await producer.send("many", b"2", partition=1))
    assert [place.partition for place in places] == [2, 0, 1]
    assert given.partition == 1


async def test_keys_can_be_ignored_for_partitioning(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(partitioner_ignore_keys=True, linger_ms=0, batch_size=100, **quick) as producer:
        places = {(await (await producer.send("many", b"x" * 90, key=b"same"))).partition for _ in range(30)}
    assert places == {0, 1, 2}


async def test_a_callback_receives_the_metadata_or_the_error(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    calls: list[Any] = []
    async with Producer(linger_ms=0, **quick) as producer:
        await (await producer.send("t", b"a", on_delivery=lambda metadata, error: calls.append((metadata, error))))
        cluster.batch_faults.append(lambda topic, partition, header: 87)
        delivery = await producer.send("t", b"b", on_delivery=lambda metadata, error: calls.append((metadata, error)))
        with pytest.raises(InvalidRecord):
            await delivery
    (metadata, none), (nowhere, error) = calls
    assert (metadata.offset, none) == (0, None)
    assert nowhere is None
    assert isinstance(error, InvalidRecord)


async def test_max_block_ms_covers_metadata_and_memory_together(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.faults["Produce"] += [lambda node, request: CUT] * 10_000
    async with Producer(max_block_ms=300, buffer_memory=1024, linger_ms=0, **quick) as producer:
        began = asyncio.get_running_loop().time()
        with pytest.raises(MetadataTimedOut):
            await producer.send("none", b"x")
        await producer.send("t", b"x" * 2000)
        with pytest.raises(BufferExhausted, match="t-0 waits longest"):
            await producer.send("t", b"x")
        assert asyncio.get_running_loop().time() - began < 10
        with contextlib.suppress(TimeoutError):
            await producer.close(10)


# -- the blocking API


@pytest.fixture
def blocking(cluster: MemoryCluster, quick: dict[str, Any]) -> Callable[..., ottla.Producer]:
    return lambda **settings: ottla.Producer(**{**quick, **settings})


def test_the_blocking_api_supports_the_same_plugins(cluster: MemoryCluster, blocking: Callable[..., ottla.Producer]) -> None:
    watching, calls = Watching(), []
    with blocking(
        interceptors=[watching], key_serializer="str", value_serializer="json", partitioner=lambda t, key, value, info: 2
    ) as producer:
        delivery = producer.send("many", {"a": 1}, "k", on_delivery=lambda metadata, error: calls.append(metadata))
        assert delivery.result(timeout_ms=5000).partition == 2
    assert stored(cluster, "many", 2) == [(b"k", b'{"a":1}', [("seen", b"1")])]
    assert [metadata.offset for metadata in calls if metadata] == [0]
    assert watching.calls == [(2, 0, None)]
    assert watching.closed


def test_a_callback_can_send_from_the_producers_own_thread(cluster: MemoryCluster, blocking: Callable[..., ottla.Producer]) -> None:
    done = threading.Event()
    with blocking(linger_ms=0) as producer:

        def again(metadata: Any, error: Any) -> None:
            producer.send("t", b"again", on_delivery=lambda *_: done.set())

        producer.send("t", b"first", on_delivery=again)
        assert done.wait(5)
    assert [value for _, value, _ in stored(cluster)] == [b"first", b"again"]


def test_a_callback_that_would_wait_for_memory_fails_at_once(cluster: MemoryCluster, blocking: Callable[..., ottla.Producer]) -> None:
    found: list[Any] = []
    done = threading.Event()
    with blocking(linger_ms=0, buffer_memory=1024) as producer:

        def fill(metadata: Any, error: Any) -> None:
            try:
                for _ in range(100):
                    producer.send("t", b"x" * 200)
            except BufferExhausted as full:
                found.append(full)
            done.set()

        producer.send("t", b"first", on_delivery=fill)
        assert done.wait(5)
    assert found


def test_records_of_each_thread_keep_their_order(cluster: MemoryCluster, blocking: Callable[..., ottla.Producer]) -> None:
    with blocking(batch_size=300, buffer_memory=4096) as producer:

        def send(number: int) -> None:
            for index in range(300):
                producer.send("many", b"%d" % index, b"%d" % number)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [record for partition in range(3) for record in stored(cluster, "many", partition)]
    for number in range(6):
        assert [int(value) for key, value, _ in found if key == b"%d" % number] == list(range(300))
    assert all(parse_header(batch).has_producer for log in cluster.logs["many"] for batch in log.batches)


# -- reading back


async def test_consumers_read_what_serializers_wrote(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    class Mine:
        closed = False

        def deserialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: bytes | None) -> Any:
            return (topic, data, headers)

        def close(self) -> None:
            self.closed = True

    async with Producer(key_serializer="int", value_serializer="json", **quick) as producer:
        await producer.send("t", {"a": 1}, 7, headers=[("h", b"x")])
        await producer.send("t", None, None)
    async with Consumer(key_deserializer="int", value_deserializer="json", auto_offset_reset="earliest", **quick) as consumer:
        consumer.assign(await consumer.partitions_for("t"))
        assert [(record.key, record.value) for record in await consumer.poll(2000)] == [(7, {"a": 1}), (None, None)]
    mine = Mine()
    async with Consumer(value_deserializer=mine, auto_offset_reset="earliest", **quick) as consumer:
        consumer.assign(await consumer.partitions_for("t"))
        assert (await consumer.poll(2000))[0].value == ("t", b'{"a":1}', [("h", b"x")])
    assert mine.closed


# -- order under faults


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 25))])
async def test_order_is_kept_over_leader_changes_lost_responses_errors_and_splits(
    quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = Random(seed)
    two = MemoryCluster(nodes=2)
    two.create("t", 2)
    monkeypatch.setattr("ottla.client.transport.network.open_connection", two.connect)

    def troubled(node: Any, request: Any) -> Any:
        if chance.random() < 0.1:
            two.move("t", chance.randrange(2), chance.choice((1, 2)))
        return CUT if chance.random() < 0.05 else CUT_AFTER if chance.random() < 0.05 else None

    def refused(topic: str, partition: int, header: Any) -> int | None:
        if header.count > 1 and header.batch_length > 600:
            return 10
        return chance.choice((6, 19, 7)) if chance.random() < 0.1 else None

    two.faults["Produce"] += [troubled] * 200
    two.batch_faults += [refused] * 400
    async with Producer(batch_size=800, linger_ms=0, **quick) as producer:
        deliveries = []
        for index in range(400):
            deliveries.append(await producer.send("t", b"%d" % index * chance.randrange(1, 40), b"%d" % index, partition=index % 2))
            if chance.random() < 0.1:
                await asyncio.sleep(0.001)
        places = [await asyncio.wait_for(delivery, 30) for delivery in deliveries]
    for partition in (0, 1):
        keys = [key for key, _, _ in stored(two, "t", partition)]
        assert keys == [b"%d" % index for index in range(partition, 400, 2)]
        assert [place.offset for place in places[partition::2]] == list(range(200))

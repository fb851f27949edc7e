"""The producer, consumer and admin client against an in-memory cluster that speaks real frames, with injected faults."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow
import pytest
from memory_cluster import CUT, CUT_AFTER, MemoryCluster, MemoryLog, MemoryNode

from ottla.aio import Admin, Consumer, Producer
from ottla.base.ids import TopicPartition
from ottla.client.admin.results import NewTopic
from ottla.client.errors import AlreadyClosed, BrokerIncompatible, BufferExhausted, ConnectionFailed, DeliveryTimedOut, MetadataTimedOut
from ottla.client.fetch import raw_fetch
from ottla.records.batch import parse_header
from ottla.records.build import build_batch
from ottla.records.read import records
from ottla.wire import messages as m
from ottla.wire.errors import InvalidRecord, RequestTimedOut, TopicAlreadyExists, UnknownTopicOrPartition

T = TopicPartition("t", 0)


def stored(cluster: MemoryCluster, topic: str = "t", partition: int = 0) -> list[bytes]:
    """Values of the records in a log, in offset order."""
    return [record[3] or b"" for batch in cluster.logs[topic][partition].batches for record in records(batch)]


# -- producing


async def test_a_record_is_written_and_its_offset_returned(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        first = await (await producer.send("t", b"a", key=b"k", headers=[("h", b"x")], timestamp_ms=5))
        second = await (await producer.send("t", b"b"))
    assert (first.topic, first.partition, first.offset, first.timestamp) == ("t", 0, 0, 5)
    assert second.offset == 1
    ((offset, timestamp, key, value, headers),) = records(cluster.logs["t"][0].batches[0])
    assert (offset, timestamp, key, value, list(headers)) == (0, 5, b"k", b"a", [("h", b"x")])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_is_written_and_read_back(cluster: MemoryCluster, quick: dict[str, Any], codec: str) -> None:
    values = [b"value %d" % index * 20 for index in range(50)]
    async with Producer(compression_type=codec, **quick) as producer:
        for value in values:
            await producer.send("t", value)
    assert parse_header(cluster.logs["t"][0].batches[0]).codec.wire_name == codec
    assert await consumed(quick, len(values)) == values


async def consumed(quick: dict[str, Any], count: int, topic: str = "t", **settings: Any) -> list[bytes]:
    found: list[bytes] = []
    async with Consumer(auto_offset_reset="earliest", **{**quick, **settings}) as consumer:
        consumer.assign(await consumer.partitions_for(topic))
        while len(found) < count:
            batch = await consumer.poll(2000)
            assert batch, f"{len(found)} of {count} came"
            found += [record.value for record in batch]
    return found


FAULTS = {
    "the connection breaks before the append": lambda node, request: CUT,
    "the connection breaks after the append": lambda node, request: CUT_AFTER,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("number", [0, 1, 4, 7])
async def test_a_broken_connection_neither_loses_duplicates_nor_reorders_records(
    cluster: MemoryCluster, quick: dict[str, Any], fault: Any, number: int
) -> None:
    waited = [number]

    def later(node: Any, request: Any) -> Any:
        waited[0] -= 1
        return fault(node, request) if waited[0] < 0 else None

    cluster.faults["Produce"].append(later)
    values = [b"%d" % index for index in range(200)]
    async with Producer(batch_size=150, linger_ms=0, **quick) as producer:
        for value in values:
            delivery = await producer.send("t", value)
        assert (await delivery).offset == 199
    assert stored(cluster) == values


async def test_retriable_errors_are_retried_in_order(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    # NotEnoughReplicas, then NotLeaderOrFollower, for the batches that arrive second and fifth.
    seen: list[int] = []

    def sometimes(topic: str, partition: int, header: Any) -> int | None:
        seen.append(header.base_sequence)
        return {2: 19, 5: 6}.get(len(seen))

    cluster.batch_faults += [sometimes, sometimes]
    values = [b"%d" % index for index in range(100)]
    async with Producer(batch_size=150, linger_ms=0, **quick) as producer:
        for value in values:
            await producer.send("t", value)
    assert stored(cluster) == values


async def test_a_batch_with_a_fatal_error_fails_alone(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.batch_faults.append(lambda topic, partition, header: 87 if header.base_sequence >= 2 else None)
    failed, written = [], []
    async with Producer(batch_size=80, linger_ms=0, **quick) as producer:
        deliveries = [(b"%d" % index, await producer.send("t", b"%d" % index)) for index in range(50)]
        for value, delivery in deliveries:
            try:
                await delivery
                written.append(value)
            except InvalidRecord as error:
                assert "t-0 at node1:9092" in str(error)
                failed.append(value)
    assert failed
    assert stored(cluster) == written


async def test_batches_too_large_for_the_broker_are_split_and_written_in_order(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    too_large = [lambda topic, partition, header: 10 if header.batch_length > 200 else None]
    cluster.batch_faults += too_large * 100
    values = [b"%03d" % index * 10 for index in range(200)]
    async with Producer(batch_size=900, linger_ms=0, **quick) as producer:
        deliveries = [await producer.send("t", value) for value in values]
        places = [(await delivery).offset for delivery in deliveries]
    assert stored(cluster) == values
    assert places == list(range(200))
    assert max(map(len, cluster.logs["t"][0].batches)) <= 212


async def test_a_broker_that_throttles_gets_no_request_for_the_throttle_time(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    times: list[float] = []

    def throttled(node: Any, request: Any) -> None:
        times.append(asyncio.get_running_loop().time())

    answer = cluster.nodes[1].on_Produce
    cluster.nodes[1].on_Produce = lambda request, header: setattr(made := answer(request, header), "throttle_time_ms", 50) or made  # type: ignore[func-returns-value, method-assign]
    cluster.faults["Produce"].append(throttled)
    async with Producer(linger_ms=0, **quick) as producer:
        for value in (b"a", b"b"):
            await (await producer.send("t", value))
    assert times[1] - times[0] >= 0.05
    assert stored(cluster) == [b"a", b"b"]


async def test_a_topic_with_a_producer_stays_in_the_metadata(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(linger_ms=0, metadata_max_idle_ms=5000, **quick) as producer:
        await (await producer.send("t", b"a"))
        assert producer._network is not None
        now_ms = producer._network.clock_ms()
        await (await producer.send("many", b"b"))
        producer._network.cluster._wanted["t"] -= 10_000
        await (await producer.send("t", b"c"))
        asked = producer._network.cluster.request(now_ms + 4000).topics
        assert {topic.name for topic in asked or []} == {"t", "many"}


async def test_a_callback_may_send_again(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(linger_ms=0, **quick) as producer:
        again: list[asyncio.Task[Any]] = []
        delivery = await producer.send("t", b"a")
        delivery.add_done_callback(lambda _: again.append(asyncio.ensure_future(producer.send("t", b"b"))))
        await delivery
        await (await again[0])
    assert stored(cluster) == [b"a", b"b"]


async def test_records_for_a_deleted_topic_fail_soon_and_say_why(
    cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.client.transport.cluster.GONE_MS", 20)
    async with Producer(linger_ms=0, **quick) as producer:
        await (await producer.send("t", b"a"))
        cluster.delete("t")
        with pytest.raises(UnknownTopicOrPartition, match="t was deleted"):
            await asyncio.wait_for(await producer.send("t", b"b"), 5)
        with pytest.raises(UnknownTopicOrPartition, match="t was deleted"):
            await asyncio.wait_for(producer.send("t", b"c"), 5)
        await (await producer.send("many", b"others are not held up"))


async def test_records_for_a_partition_missing_in_a_recreated_topic_fail_alone(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(linger_ms=0, **quick) as producer:
        for partition in range(3):
            await (await producer.send("many", b"old", partition=partition))
        cluster.delete("many")
        cluster.create("many", 1)
        kept, lost = await producer.send("many", b"new", partition=0), await producer.send("many", b"new", partition=2)
        with pytest.raises(UnknownTopicOrPartition, match="many was made again with 1 partitions"):
            await asyncio.wait_for(lost, 5)
        assert (await kept).offset == 0
    assert stored(cluster, "many") == [b"new"]


async def test_the_producer_follows_a_moved_leader(cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    two = MemoryCluster(nodes=2)
    two.create("t")
    monkeypatch.setattr("ottla.client.transport.network.open_connection", two.connect)
    async with Producer(linger_ms=0, **quick) as producer:
        await (await producer.send("t", b"a"))
        two.move("t", 0, 2)
        assert (await (await producer.send("t", b"b"))).offset == 1
    assert stored(two) == [b"a", b"b"]
    assert [node for node, request in two.requests if isinstance(request, m.ProduceRequest)][-1] == 2


async def test_requests_to_a_dead_broker_fail_as_soon_as_the_cluster_reports_it_dead(
    quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = MemoryCluster(nodes=2)
    two.create("t")
    monkeypatch.setattr("ottla.client.transport.network.open_connection", two.connect)

    def noticed() -> None:
        two.unnoticed.clear()
        two.move("t", 0, 2)

    async with (
        Producer(linger_ms=0, **quick) as producer,
        Consumer(auto_offset_reset="earliest", fetch_max_wait_ms=10, **quick) as consumer,
    ):
        consumer.assign([T])
        await (await producer.send("t", b"a"))
        assert len(await consumer.poll(2000)) == 1
        two.unnoticed.add(1)
        two.nodes[1].stop()
        asyncio.get_running_loop().call_later(0.1, noticed)
        async with asyncio.timeout(5):
            await (await producer.send("t", b"b"))
        assert [record.value for record in await consumer.poll(2000)] == [b"b"]


async def test_a_leader_hint_avoids_a_metadata_request(quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    two = MemoryCluster(nodes=2)
    two.create("t")
    monkeypatch.setattr("ottla.client.transport.network.open_connection", two.connect)

    def leader_moved(node: Any, request: Any) -> Any:
        two.move("t", 0, 2)
        hint = m.LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
        refused = m.PartitionProduceResponse(index=0, error_code=6, current_leader=hint)
        topic = request.topic_data[0]
        answer = m.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[refused])
        return m.ProduceResponse(responses=[answer], node_endpoints=[m.NodeEndpoint(node_id=2, host="node2", port=9092)])

    two.faults["Produce"].append(leader_moved)
    async with Producer(linger_ms=0, **quick) as producer:
        assert (await (await producer.send("t", b"a"))).offset == 0
    assert [node for node, request in two.requests if isinstance(request, m.ProduceRequest)] == [1, 2]


async def test_a_broker_restart_neither_loses_nor_duplicates_records(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    values = [b"%d" % index for index in range(300)]
    node = cluster.nodes[1]
    async with Producer(batch_size=150, linger_ms=0, **quick) as producer:
        for index, value in enumerate(values):
            await producer.send("t", value)
            if index in (100, 200):
                node.stop()
                asyncio.get_running_loop().call_later(0.02, setattr, node, "up", True)
        await producer.flush(5000)
    assert stored(cluster) == values


async def test_acks_0_does_not_wait_for_an_answer(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(acks=0, **quick) as producer:
        assert (await (await producer.send("t", b"a"))).offset == -1
        await (await producer.send("t", b"b"))
        await producer.partitions_for("many")
    assert stored(cluster) == [b"a", b"b"]


async def test_a_key_chooses_the_partition_and_an_explicit_partition_overrides_it(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        places = {(await (await producer.send("many", b"v", key=b"same"))).partition for _ in range(5)}
        assert len(places) == 1
        assert (await (await producer.send("many", b"v", key=b"same", partition=2))).partition == 2
        with pytest.raises(ValueError, match="partition is 0 or more, not -1"):
            await producer.send("many", b"v", partition=-1)


async def test_a_missing_partition_is_an_error_at_once(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        for send in (
            lambda: producer.send("many", b"v", partition=3),
            lambda: producer.send_batch("many", 3, bytes(build_batch([(5, b"k", b"v", ())]))),
            lambda: producer.send_table("many", pyarrow.table({"a": [1]}), partition=3),
        ):
            async with asyncio.timeout(20):
                with pytest.raises(UnknownTopicOrPartition, match="topic many has 3 partitions, counted from 0, no partition 3"):
                    await send()


async def test_the_producer_waits_for_a_new_partition_until_every_broker_knows_it(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    def asked(node: MemoryNode, request: Any) -> None:
        if len(cluster.sent(m.MetadataRequest)) == 4:
            cluster.logs["t"].append(MemoryLog())
            cluster.leaders["t", 1] = 1

    async with Producer(**quick) as producer:
        await producer.partitions_for("t")
        cluster.faults["Metadata"].append(asked)
        assert (await (await producer.send("t", b"v", partition=1))).partition == 1


async def test_an_encoded_batch_is_written_as_it_is(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        data = bytes(build_batch([(5, b"k", b"v", ()), (6, None, b"w", ())]))
        metadata = await (await producer.send_batch("t", 0, data))
        assert (metadata.offset, metadata.timestamp) == (0, 5)
    assert stored(cluster) == [b"v", b"w"]


async def test_send_waits_for_memory_and_the_timeout_error_names_the_full_partition(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.faults["Produce"].append(lambda node, request: None)
    async with Producer(buffer_memory=1024, max_block_ms=400, **quick) as producer:
        await producer.send("t", b"first")
        await producer.flush()
        cluster.nodes[1].stop()
        await producer.send("t", b"x" * 2000)
        with pytest.raises(BufferExhausted, match=r"within 400 ms.*of 1024 bytes \(buffer_memory\).*t-0"):
            await producer.send("t", b"y")
        cluster.nodes[1].up = True
        await producer.send("t", b"z")
    assert stored(cluster) == [b"first", b"x" * 2000, b"z"]


async def test_an_undeliverable_record_fails_with_the_last_error(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(delivery_timeout_ms=60, request_timeout_ms=50, linger_ms=0, **quick) as producer:
        await producer.partitions_for("t")
        cluster.batch_faults += [lambda topic, partition, header: 19] * 1000
        with pytest.raises(DeliveryTimedOut, match=r"1 records for t-0.*within 60 ms, sent \d+ times; last: .*t-0 at node1:9092"):
            await (await producer.send("t", b"a"))


async def test_a_topic_that_is_not_created_is_an_error_that_names_it(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(max_block_ms=250, **quick) as producer:
        with pytest.raises(MetadataTimedOut, match="after 250 ms: there is no topic nope: create it"):
            await producer.send("nope", b"a")


async def test_text_without_a_serializer_is_an_error_that_suggests_one(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        with pytest.raises(TypeError, match="value_serializer"):
            await producer.send("t", "text")
    async with Producer(value_serializer=str.encode, key_serializer=str.encode, **quick) as producer:
        await producer.send("t", "text", key="k")
    assert stored(cluster) == [b"text"]


async def test_close_delivers_queued_records_and_later_sends_are_refused(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    producer = Producer(linger_ms=60_000, **quick)
    delivery = await producer.send("t", b"a")
    await producer.close()
    assert (await delivery).offset == 0
    with pytest.raises(AlreadyClosed):
        await producer.send("t", b"b")
    await producer.close()


async def test_close_with_a_timeout_fails_records_without_a_result(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    producer = Producer(**quick)
    await producer.partitions_for("t")
    cluster.nodes[1].stop()
    delivery = await producer.send("t", b"a")
    await producer.close(timeout_ms=20)
    with pytest.raises(AlreadyClosed, match="before the record was acknowledged"):
        await delivery


# -- brokers and versions


async def test_an_unreachable_cluster_is_an_error_with_address_and_cause(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.nodes[1].stop()
    async with Producer(max_block_ms=250, **quick) as producer:
        with pytest.raises(MetadataTimedOut, match="connection refused by boot:1: nothing listens"):
            await producer.send("t", b"a")
    assert cluster.refused > 1


async def test_a_client_reconnects_through_the_bootstrap_addresses(quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    two = MemoryCluster(nodes=2)
    two.nodes[2].up = False
    two.create("t")
    monkeypatch.setattr("ottla.client.transport.network.open_connection", two.connect)
    async with Producer(linger_ms=0, **quick) as producer:
        await (await producer.send("t", b"a"))
        two.nodes[1].stop()
        two.nodes[2].up = True
        two.move("t", 0, 2)
        assert (await (await producer.send("t", b"b"))).offset == 1


@pytest.mark.parametrize(
    ("produce", "fetch", "metadata"), [((0, 3), (0, 4), (0, 4)), ((0, 9), (4, 11), (0, 9)), ((0, 12), (4, 12), (0, 12))]
)
async def test_requests_to_older_brokers_use_their_versions(
    cluster: MemoryCluster, quick: dict[str, Any], produce: tuple[int, int], fetch: tuple[int, int], metadata: tuple[int, int]
) -> None:
    cluster.versions = {0: produce, 1: fetch, 3: metadata, 2: (1, 1), 22: (0, 1)}
    async with Producer(**quick) as producer:
        await producer.send("t", b"a")
    assert await consumed(quick, 1) == [b"a"]


async def test_a_broker_with_apiversions_0_only_gets_a_second_request(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    asked: list[Any] = []

    def old(node: Any, request: Any) -> Any:
        asked.append(request)
        return m.ApiVersionsResponse(error_code=35) if request.client_software_name else None

    # In version 0: brokers answer an unknown version of ApiVersions with it.
    cluster.faults["ApiVersions"] += [old] * 4
    original = cluster.nodes[1].answer

    def in_version_0(transport: Any, header: Any, response: Any) -> None:
        refused = isinstance(response, m.ApiVersionsResponse) and response.error_code == 35
        original(transport, header._replace(api_version=0) if refused else header, response)

    cluster.nodes[1].answer = in_version_0  # type: ignore[method-assign]
    async with Producer(**quick) as producer:
        await (await producer.send("t", b"a"))
    assert [bool(request.client_software_name) for request in asked[:2]] == [True, False]


async def test_a_broker_too_old_for_produce_is_an_error_with_the_versions(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.versions = {0: (0, 2)}
    async with Producer(**quick) as producer:
        with pytest.raises(BrokerIncompatible, match="Produce: the broker at node1:9092 has versions 0 to 2, needed are 3 to"):
            await (await producer.send("t", b"a"))


# -- consuming


async def test_a_consumer_reads_all_partitions_from_the_beginning(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(batch_size=150, **quick) as producer:
        for index in range(60):
            await producer.send("many", b"%d" % index, partition=index % 3)
    assert sorted(map(int, await consumed(quick, 60, "many", max_poll_records=7, max_partition_fetch_bytes=200))) == list(range(60))
    incremental = [request for request in cluster.sent(m.FetchRequest) if request.session_epoch > 0]
    assert incremental
    assert all(request.session_id for request in incremental)


async def test_a_consumer_at_the_end_receives_new_records(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(linger_ms=0, **quick) as producer, Consumer(auto_offset_reset="latest", **quick) as consumer:
        await (await producer.send("t", b"before"))
        consumer.assign([T])
        assert await consumer.position(T) == 1
        assert await consumer.poll(20) == []
        await producer.send("t", b"after")
        assert [record.value for record in await consumer.poll(2000)] == [b"after"]
        assert consumer.high_watermark(T) == 2


async def test_seek_moves_the_position(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        for index in range(10):
            await producer.send("t", b"%d" % index)
    async with Consumer(**quick) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek(T, 7)
        assert [record.offset for record in await consumer.poll(2000)] == [7, 8, 9]
        consumer.seek_to_beginning()
        assert (await consumer.poll(2000, max_records=1))[0].offset == 0
        consumer.seek_to_end(T)
        assert await consumer.position(T) == 10
        assert await consumer.beginning_offsets([T]) == {T: 0}
        assert await consumer.end_offsets([T]) == {T: 10}


async def test_a_consumer_continues_after_its_broker_restarts(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(linger_ms=0, **quick) as producer, Consumer(auto_offset_reset="earliest", **quick) as consumer:
        consumer.assign([T])
        await (await producer.send("t", b"a"))
        assert [record.value for record in await consumer.poll(2000)] == [b"a"]
        cluster.nodes[1].stop()
        cluster.nodes[1].up = True
        await (await producer.send("t", b"b"))
        assert [record.value for record in await consumer.poll(2000)] == [b"b"]


async def test_a_consumer_follows_the_leader(quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    two = MemoryCluster(nodes=2)
    two.create("t")
    monkeypatch.setattr("ottla.client.transport.network.open_connection", two.connect)
    async with (
        Producer(linger_ms=0, **quick) as producer,
        Consumer(auto_offset_reset="earliest", fetch_max_wait_ms=10, **quick) as consumer,
    ):
        consumer.assign([T])
        await (await producer.send("t", b"a"))
        assert len(await consumer.poll(2000)) == 1
        two.move("t", 0, 2)
        await (await producer.send("t", b"b"))
        assert [record.value for record in await consumer.poll(2000)] == [b"b"]


async def test_iterating_yields_one_record_after_the_other(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        for index in range(5):
            await producer.send("t", b"%d" % index)
    offsets = []
    async with Consumer(auto_offset_reset="earliest", value_deserializer=lambda raw: int(raw or b"0"), **quick) as consumer:
        consumer.assign([T])
        async for record in consumer:
            offsets.append((record.offset, record.value))
            if record.offset == 4:
                break
    assert offsets == [(index, index) for index in range(5)]


async def test_a_raw_fetch_returns_the_bytes_of_the_log_and_its_offsets(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(batch_size=150, **quick) as producer:
        for index in range(20):
            await producer.send("t", b"%d" % index * 20)
    log = cluster.logs["t"][0]
    async with Consumer(**quick) as consumer:
        raw = await consumer.fetch_raw(T, 0, 10_000)
        assert bytes(raw.records) == b"".join(log.batches)
        assert (raw.high_watermark, raw.log_start_offset, raw.last_stable_offset) == (20, 0, 20)
        assert bytes((await consumer.fetch_raw(T, 0, 1)).records) == log.batches[0]
        assert len((await consumer.fetch_raw(T, 20, max_wait_ms=0)).records) == 0
        with pytest.raises(Exception, match="t-0 at offset 21"):
            await consumer.fetch_raw(T, 21)
    assert all(request.session_epoch == -1 for request in cluster.sent(m.FetchRequest))


@pytest.mark.parametrize(
    ("versions", "local", "until"),
    [({}, 1, 5), ({}, 2, 0), ({2: (1, 7)}, 2, 5)],
    ids=["held here", "held in remote storage", "a broker without remote storage"],
)
async def test_a_raw_fetch_reports_offsets_without_a_record_at_the_end_of_the_log(
    cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch, versions: Any, local: int, until: int
) -> None:
    monkeypatch.setattr(raw_fetch, "GAP_PAUSE_S", 0)
    cluster.versions = {**cluster.versions, **versions}
    async with Producer(**quick) as producer:
        await producer.send("t", b"zero")
    log = cluster.logs["t"][0]
    # Compaction leaves such a log if its last records were tombstones.
    log.end, log.local_start = 5, local
    async with Consumer(**quick) as consumer:
        assert (await consumer.fetch_raw(T, 0)).empty_until == 0
        gap = await consumer.fetch_raw(T, 1, max_wait_ms=0)
        assert (len(gap.records), gap.empty_until) == (0, until)
        assert (await consumer.fetch_raw(T, 5, max_wait_ms=0)).empty_until == 0


async def test_a_temporarily_empty_fetch_is_not_reported_as_a_gap(
    cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_fetch, "GAP_PAUSE_S", 0)
    async with Producer(**quick) as producer:
        await producer.send("t", b"zero")
    log = cluster.logs["t"][0]
    whole, answers = log.read, [b"", b""]
    monkeypatch.setattr(log, "read", lambda *asked: answers.pop() if answers else whole(*asked))
    async with Consumer(**quick) as consumer:
        found = await consumer.fetch_raw(T, 0, max_wait_ms=0)
        assert (bytes(found.records), found.empty_until, answers) == (log.batches[0], 0, [])


async def test_a_throttled_raw_fetch_is_repeated(cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async with Producer(**quick) as producer:
        await producer.send("t", b"zero")
    answer, throttled = MemoryNode.on_Fetch, [m.FetchResponse(throttle_time_ms=1, responses=[]) for _ in range(2)]
    monkeypatch.setattr(MemoryNode, "on_Fetch", lambda *given, **more: throttled.pop() if throttled else answer(*given, **more))
    async with Consumer(**quick) as consumer:
        assert bytes((await consumer.fetch_raw(T, 0)).records) == cluster.logs["t"][0].batches[0]
    assert not throttled


async def test_a_consumer_sends_no_fetch_during_the_throttle_time(
    cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(**quick) as producer:
        await producer.send("t", b"zero")
    times: list[float] = []
    answer, throttled = MemoryNode.on_Fetch, [m.FetchResponse(throttle_time_ms=80, responses=[]) for _ in range(2)]

    def noted(*given: Any, **more: Any) -> Any:
        times.append(asyncio.get_running_loop().time())
        return throttled.pop() if throttled else answer(*given, **more)

    monkeypatch.setattr(MemoryNode, "on_Fetch", noted)
    async with Consumer(auto_offset_reset="earliest", **quick) as consumer:
        consumer.assign([T])
        while not (records := await consumer.poll(timeout_ms=1_000)):
            pass
        assert [record.value for record in records] == [b"zero"]
        found: Any = consumer.metrics()["consumer-fetch-manager-metrics"]
        assert found["fetch-throttle-time-max"] == 80
    assert times[1] - times[0] >= 0.08 and times[2] - times[1] >= 0.08


async def test_a_poll_ends_when_the_consumer_closes(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    consumer = Consumer(**quick)
    consumer_task = asyncio.ensure_future(poll_error(consumer))
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(AlreadyClosed):
        await consumer_task


async def poll_error(consumer: Consumer) -> Any:
    await consumer.start()
    consumer.assign([T])
    return await consumer.poll()


# -- administering


async def test_admin_requests_go_to_the_controller_also_after_it_moves(quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    two = MemoryCluster(nodes=2)
    monkeypatch.setattr("ottla.client.transport.network.open_connection", two.connect)
    async with Admin(**quick) as admin:
        assert (await admin.create_topic(NewTopic("a"))).topic_id == two.topic_ids["a"]
        two.controller = 2
        await admin.create_topic(NewTopic("b", num_partitions=3))
        outcomes = await admin.create_topics([NewTopic("b"), NewTopic("c")])
    assert isinstance(outcomes["b"], TopicAlreadyExists)
    assert set(two.logs) == {"a", "b", "c"}


async def test_describing_an_unknown_topic_returns_an_error_without_waiting(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Admin(**quick) as admin:
        found = await admin.describe_topics(["t", "nope"])
        assert isinstance(found["nope"], UnknownTopicOrPartition)
        offsets = await admin.list_offsets({("nope", 0): -1, ("t", 5): -1, ("t", 0): -1})
        assert isinstance(offsets[TopicPartition("nope", 0)], UnknownTopicOrPartition)
        assert isinstance(offsets[TopicPartition("t", 5)], UnknownTopicOrPartition)
        assert not isinstance(offsets[T], Exception)


async def test_an_admin_call_without_a_cluster_times_out_with_the_cause(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.nodes[1].stop()
    async with Admin(default_api_timeout_ms=30, **quick) as admin:
        with pytest.raises(RequestTimedOut, match=r"within 30 ms: .*connection refused by boot:1"):
            await admin.list_topics()
    async with Admin(retries=1, **quick) as admin:
        with pytest.raises(ConnectionFailed, match="connection refused by boot:1"):
            await admin.list_topics()

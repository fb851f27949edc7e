"""Common mistakes with a client: each is an error at once, with its place, and leaves the client usable."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest
from memory_cluster import MemoryCluster

import ottla
from ottla import NewTopic, aio
from ottla.base.options import ConfigError
from ottla.client.errors import AlreadyClosed, MetadataTimedOut
from ottla.records.build import build_batch
from ottla.wire.errors import RequestTimedOut, UnknownTopicOrPartition

NO_NAMES = [None, b"t", 7]


@pytest.mark.parametrize("topic", NO_NAMES)
def test_a_topic_that_is_not_text_is_refused_at_once_and_the_producer_continues(
    cluster: MemoryCluster, quick: dict[str, Any], topic: Any
) -> None:
    with ottla.Producer(**quick) as producer:
        with pytest.raises(TypeError, match="a topic is named by a str"):
            producer.send(topic, b"x")
        with pytest.raises(TypeError, match="a topic is named by a str"):
            producer.send_table(topic, pa.table({"a": [1]}))
        assert producer.send("many", b"x").result().offset == 0


@pytest.mark.parametrize("topic", NO_NAMES)
def test_a_consumer_refuses_a_topic_that_is_not_text(cluster: MemoryCluster, quick: dict[str, Any], topic: Any) -> None:
    with ottla.Consumer(group_id="g", **quick) as consumer:
        with pytest.raises(TypeError, match="a topic is named by a str"):
            consumer.partitions_for(topic)
        with pytest.raises(TypeError, match="a topic is named by a str"):
            consumer.subscribe([topic])


@pytest.mark.parametrize("topic", [*NO_NAMES, ["t"]])
def test_an_invalid_range_is_refused_in_text(cluster: MemoryCluster, quick: dict[str, Any], topic: Any) -> None:
    for read in (ottla.read_table, ottla.consume):
        with pytest.raises(TypeError, match="several are given one by one"):
            read(topic, **quick)


@pytest.mark.parametrize("named", ["many", 3, None, ("many",), [("many", 0)]])
def test_an_invalid_partition_is_an_error_with_an_example(cluster: MemoryCluster, quick: dict[str, Any], named: Any) -> None:
    with ottla.Consumer(**quick) as consumer:
        with pytest.raises(TypeError, match=r"such as \('orders', 0\)"):
            consumer.assign([named])
        with pytest.raises(TypeError, match=r"such as \('orders', 0\)"):
            consumer.pause(named)


def test_a_closed_producer_refuses_flush(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    producer = ottla.Producer(**quick)
    producer.close()
    with pytest.raises(AlreadyClosed, match="the producer is closed"):
        producer.flush()


def test_headers_in_a_dict_are_an_error_with_the_right_form(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    headers: Any = {"a": b"1"}
    with ottla.Producer(**quick) as producer:
        with pytest.raises(TypeError, match=r"headers\.items"):
            producer.send("t", b"x", headers=headers)
        with pytest.raises(TypeError, match=r"headers\.items"):
            producer.send_table("t", pa.table({"a": [1]}), headers=headers)


@pytest.mark.parametrize(
    "setting", [{"value_deserializer": "json"}, {"key_deserializer": "str"}, {"interceptors": []}, {"group_id": "g"}, {"group": "g"}]
)
def test_unsupported_arguments_of_tables_are_refused(cluster: MemoryCluster, quick: dict[str, Any], setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        ottla.read_table("t", **setting, **quick)


def test_one_column_can_be_named_without_a_list(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    assert ottla.read_table("t", columns="value", **quick).column_names == ["value"]


def test_a_misspelt_topic_of_a_table_is_refused_long_before_an_unreachable_cluster(
    cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.client.arrow.tables.MISSING_MS", 50)
    cluster.auto_create = False
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic manny; did you mean many"):
        ottla.read_table("manny", **quick)


@pytest.mark.parametrize("count", [0, -5])
def test_a_poll_for_zero_records_is_refused(cluster: MemoryCluster, quick: dict[str, Any], count: int) -> None:
    with ottla.Consumer(**quick) as consumer:
        for poll in (consumer.poll, consumer.poll_table):
            with pytest.raises(ValueError, match="max_records is 1 or more"):
                poll(timeout_ms=0, max_records=count)


def test_a_loop_with_a_negative_limit_is_refused(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="limit is 0 or more"):
        ottla.consume("t", limit=-1, **quick)
    assert not [thread for thread in threading.enumerate() if thread.name == "ottla-consumer" and thread not in before], "it is closed"


def test_a_start_can_be_a_number(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.logs["t"][0].append(bytes(build_batch([(0, None, b"%d" % n, ()) for n in range(3)])))
    assert [record.offset for record in ottla.consume("t", start=1, limit=2, **quick)] == [1, 2]


@pytest.mark.parametrize("servers", [None, [], "", "kafka://broker:9092"])
def test_invalid_bootstrap_servers_are_refused_in_the_constructor(servers: Any) -> None:
    for client in (ottla.Producer, ottla.Consumer, ottla.Admin):
        with pytest.raises(ConfigError, match="bootstrap_servers"):
            client(bootstrap_servers=servers)


def test_a_loop_over_several_partitions_fetches_all_at_once(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.logs["many"][2].append(bytes(build_batch([(0, None, b"x", ())])))
    began = time.monotonic()
    # The first partition is empty: a fetch of it alone would wait, and the loop would time out before it read a record.
    assert [record.value for record in ottla.consume("many", fetch_max_wait_ms=60_000, timeout_ms=30_000, limit=1, **quick)] == [b"x"]
    assert time.monotonic() - began < 30


def test_a_single_name_is_not_split_into_letters(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.create("m")
    with ottla.Admin(**quick) as admin:
        for plural in (
            admin.delete_topics, admin.describe_topics, admin.delete_consumer_groups, admin.describe_consumer_groups,
            admin.list_consumer_group_offsets, admin.consumer_group_lag,
        ):  # fmt: skip
            with pytest.raises(TypeError, match="in a list"):
                plural("m")
    assert "m" in cluster.logs


def test_a_topic_to_create_needs_more_than_a_name(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    name: Any = "made"
    with ottla.Admin(**quick) as admin, pytest.raises(TypeError, match="such as NewTopic"):
        admin.create_topic(name)


CLIENTS: list[tuple[Any, Callable[[Any], Awaitable[Any]]]] = [
    (aio.Producer, lambda client: client.send("t", b"x")),
    (aio.Producer, lambda client: client.partitions_for("t")),
    (aio.Consumer, lambda client: client.partitions_for("t")),
    (aio.Admin, lambda client: client.list_topics()),
]


@pytest.mark.parametrize(("kind", "use"), CLIENTS)
def test_an_asyncio_client_of_another_loop_is_an_error(
    cluster: MemoryCluster, quick: dict[str, Any], kind: Any, use: Callable[[Any], Awaitable[Any]]
) -> None:
    client = kind(**quick)

    async def once() -> None:
        await use(client)

    asyncio.run(once())
    message = (
        rf"ottla.aio.{kind.__name__} belongs to the event loop in which it was first used, which is closed by now.*within each asyncio.run"
    )
    with pytest.raises(RuntimeError, match=message):
        asyncio.run(once())
    with pytest.raises(RuntimeError, match=message):
        asyncio.run(client.close())
    asyncio.run(client.close())


def test_an_asyncio_client_without_a_running_loop_is_an_error(quick: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match=r"ottla\.aio\.Consumer is used from coroutines, and ottla.Consumer from anywhere"):
        aio.Consumer(group_id="g", **quick).subscribe("t")


@pytest.mark.parametrize("kind", [ottla.Producer, ottla.Consumer, ottla.Admin])
def test_a_closed_client_cannot_be_entered(cluster: MemoryCluster, quick: dict[str, Any], kind: Any) -> None:
    client = kind(**quick)
    client.close()
    with pytest.raises(AlreadyClosed, match="closed; make another one"), client:
        pass


@pytest.mark.parametrize("kind", [aio.Producer, aio.Consumer, aio.Admin])
async def test_a_closed_asyncio_client_cannot_be_entered(cluster: MemoryCluster, quick: dict[str, Any], kind: Any) -> None:
    client = kind(**quick)
    await client.close()
    with pytest.raises(AlreadyClosed, match="closed; make another one"):
        async with client:
            pass


async def test_a_finished_record_loop_cannot_be_entered(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    over = ottla.consume("t@:end", **quick)
    assert list(over) == []
    with pytest.raises(AlreadyClosed), over:
        pass
    over_too = aio.consume("t@:end", **quick)
    assert [record async for record in over_too] == []
    with pytest.raises(AlreadyClosed):
        async with over_too:
            pass


def test_a_result_can_be_awaited_in_seconds_or_milliseconds(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    with ottla.Producer(**quick) as producer:
        for delivery in (producer.send("t", b"x"), producer.send_table("t", pa.table({"a": [1]}))):
            assert delivery.result(20) == delivery.result(timeout=20.0) == delivery.result(timeout_ms=20_000) == delivery.result()
            assert delivery.exception(20) is None
            with pytest.raises(TypeError, match="timeout= is in seconds, timeout_ms= in milliseconds"):
                delivery.result(20, timeout_ms=20_000)
            with pytest.raises(TypeError, match="timeout= of seconds or timeout_ms= of milliseconds, not '20'"):
                delivery.result("20")  # type: ignore[arg-type]
        cluster.nodes[1].up = False
        for late in (producer.send("t", b"y"), producer.send_table("t", pa.table({"a": [1]}))):
            with pytest.raises(TimeoutError, match="after 10 ms"):
                late.result(0.01)
        producer.close(timeout_ms=0)


def test_a_new_topic_accepts_either_name_of_the_partition_count() -> None:
    assert NewTopic("t", partitions=3) == NewTopic("t", num_partitions=3) == NewTopic("t", 3)
    with pytest.raises(TypeError, match="partitions= and num_partitions= are the same"):
        NewTopic("t", 3, partitions=3)
    for wrong in (
        {"partitions": "3"},
        {"replication_factor": 1.0},
        {"configs": ["a"]},
        {"assignments": [[1]]},
        {"assignments": {"0": [1]}},
    ):
        with pytest.raises(TypeError, match=r"is a whole number, not|are given in a dict, such as"):
            NewTopic("t", **wrong)


QUESTIONS: list[Callable[[ottla.Consumer, ottla.Admin, dict[str, Any]], object]] = [
    lambda consumer, admin, quick: consumer.partitions_for("new", timeout_ms=100),
    lambda consumer, admin, quick: consumer.end_offsets([("new", 0)], timeout_ms=100),
    lambda consumer, admin, quick: consumer.offsets_for_times({("new", 0): 0}, timeout_ms=100),
    lambda consumer, admin, quick: consumer.fetch_raw(("new", 0), 0, timeout_ms=100),
    lambda consumer, admin, quick: ottla.unwrap(admin.list_offsets({("new", 0): 0}, timeout_ms=100)),
    lambda consumer, admin, quick: admin.describe_topic("new"),
    lambda consumer, admin, quick: ottla.read_table("new", default_api_timeout_ms=100, **quick),
]


@pytest.mark.parametrize("ask", QUESTIONS)
def test_a_lookup_creates_no_topic(
    cluster: MemoryCluster, quick: dict[str, Any], ask: Callable[[ottla.Consumer, ottla.Admin, dict[str, Any]], object]
) -> None:
    cluster.auto_create = True
    refused = pytest.raises((MetadataTimedOut, RequestTimedOut, UnknownTopicOrPartition))
    with ottla.Consumer(**quick) as consumer, ottla.Admin(**quick) as admin, refused:
        ask(consumer, admin, quick)
    assert "new" not in cluster.logs


def test_reading_and_writing_creates_topics_if_the_broker_allows_it(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.auto_create = True
    with ottla.Consumer(auto_offset_reset="earliest", **quick) as consumer:
        consumer.assign([("assigned", 0)])
        assert consumer.position(("assigned", 0)) == 0
    assert list(ottla.consume("consumed", timeout_ms=1, **quick)) == []
    with ottla.Producer(**quick) as producer:
        producer.send("sent", b"x").result(20)
    with ottla.Consumer("subscribed", group_id="g", **quick) as consumer:
        deadline = time.monotonic() + 60
        while "subscribed" not in cluster.logs and time.monotonic() < deadline:
            consumer.poll(20)
    assert {"assigned", "consumed", "sent", "subscribed"} <= cluster.logs.keys()

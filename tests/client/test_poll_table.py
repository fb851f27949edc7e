"""`poll_table`: its rows equal those of `poll`, positions afterwards, and values that cannot be read."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_cluster import MemoryCluster

import ottla
from ottla import TopicPartition
from ottla.aio import Consumer, Producer
from ottla.client.serializers import Avro, SerializationFailed
from ottla.records.build import build_batch
from ottla.records.compression import Codec
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, marker
from ottla.wire.errors import CorruptMessage
from ottla.wire.messages.fetch import AbortedTransaction

T0 = 1_790_000_000_000


def put(cluster: MemoryCluster, values: list[Any], *, topic: str = "t", partition: int = 0, **fields: Any) -> None:
    """Append one batch of (key, value, headers) or values."""
    rows = [value if isinstance(value, tuple) else (None, value, ()) for value in values]
    batch = build_batch([(T0 + row, *record) for row, record in enumerate(rows)], **fields)
    cluster.logs[topic][partition].append(bytes(batch))


async def reading(quick: dict[str, Any], *partitions: tuple[str, int], **options: Any) -> Consumer:
    consumer = Consumer(**quick, **{"auto_offset_reset": "earliest", **options})
    await consumer.start()
    consumer.assign(partitions or [("t", 0)])
    return consumer


def numbers(table: Any) -> list[int]:
    found: list[int] = table.column("offset").to_pylist()
    return found


async def test_a_table_has_the_columns_of_records(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    put(cluster, [(b"k", b"v", (("h", b"1"), ("h", None))), (None, None, ())])
    async with await reading(quick) as consumer:
        table = await consumer.poll_table(5000)
    assert table.schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
        ]
    )
    table.validate(full=True)
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    rows = table.drop_columns(["timestamp"]).to_pylist()
    assert times == [T0, T0 + 1]
    assert rows == [
        {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}], "partition": 0, "offset": 0},
        {"key": None, "value": None, "headers": [], "partition": 0, "offset": 1},
    ]


async def test_a_table_of_several_topics_has_a_topic_column(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    put(cluster, [b"a"])
    put(cluster, [b"b"], topic="many", partition=2)
    async with await reading(quick, ("t", 0), ("many", 2)) as consumer:
        found = []  # type: ignore[var-annotated]
        async with asyncio.timeout(20):
            while len(found) < 2:
                found += (await consumer.poll_table(5000)).select(["topic", "partition", "value"]).to_pylist()
    assert sorted(map(str, found)) == sorted(
        map(str, [{"topic": "t", "partition": 0, "value": b"a"}, {"topic": "many", "partition": 2, "value": b"b"}])
    )


async def test_columns_can_be_chosen(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    put(cluster, [b"a"])
    async with await reading(quick) as consumer:
        table = await consumer.poll_table(5000, columns=["value", "topic", "timestamp_type"])
        assert table.to_pylist() == [{"value": b"a", "topic": "t", "timestamp_type": 0}]
        with pytest.raises(ValueError, match=r"a record has no column 'vlaue'; did you mean value\?"):
            await consumer.poll_table(0, columns=["vlaue"])
        with pytest.raises(ValueError, match="there twice"):
            await consumer.poll_table(0, columns=["key", "key"])
        with pytest.raises(ValueError, match="value_format needs the column value"):
            await consumer.poll_table(0, columns=["key"], value_format="json")
        with pytest.raises(ValueError, match="a schema needs value_format"):
            await consumer.poll_table(0, schema=pa.schema([]))


async def test_without_records_the_table_has_no_rows(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with await reading(quick) as consumer:
        table = await consumer.poll_table(20)
        assert (table.num_rows, table.column_names[:2]) == (0, ["key", "value"])
        decoded = await consumer.poll_table(0, value_format="json", schema=pa.schema([("a", pa.int8())]), on_corrupt="keep")
        assert decoded.schema.field("value").type == pa.struct([("a", pa.int8())])
        assert decoded.column_names[-1] == "_corrupt"


@pytest.mark.parametrize("codec", list(Codec))
async def test_every_codec_is_read(cluster: MemoryCluster, quick: dict[str, Any], codec: Codec) -> None:
    for first in range(0, 300, 100):
        put(cluster, [b"%d" % n for n in range(first, first + 100)], codec=codec)
    async with await reading(quick) as consumer:
        table = await consumer.poll_table(5000)
    assert table.column("value").to_pylist() == [b"%d" % n for n in range(300)]


# -- positions


async def test_positions_follow_the_returned_rows(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    for first in range(0, 30, 10):
        put(cluster, [b"%d" % n for n in range(first, first + 10)])
    async with await reading(quick) as consumer:
        seen: list[int] = []
        for limit in (3, 10, 1, 100):
            seen += numbers(await consumer.poll_table(5000, max_records=limit))
            assert await consumer.position(("t", 0)) == len(seen)
        assert seen == list(range(30))


async def test_poll_and_poll_table_continue_from_each_other(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    for first in range(0, 40, 10):
        put(cluster, [b"%d" % n for n in range(first, first + 10)])
    async with await reading(quick) as consumer:
        seen = [record.offset for record in await consumer.poll(5000, 3)]
        seen += numbers(await consumer.poll_table(5000, max_records=9))
        seen += [record.offset for record in await consumer.poll(5000, 2)]
        seen += numbers(await consumer.poll_table(5000, max_records=7))
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 25:
                break
        while len(seen) < 40:
            seen += numbers(await consumer.poll_table(5000))
    assert seen == list(range(40))


async def test_seek_and_pause_apply(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    put(cluster, [b"%d" % n for n in range(10)])
    put(cluster, [b"x"], topic="many", partition=1)
    async with await reading(quick, ("t", 0), ("many", 1)) as consumer:
        consumer.pause(("t", 0))
        assert (await consumer.poll_table(5000, columns=["topic", "value"])).to_pylist() == [{"topic": "many", "value": b"x"}]
        assert (await consumer.poll_table(30)).num_rows == 0
        consumer.seek(("t", 0), 7)
        consumer.resume(("t", 0))
        assert numbers(await consumer.poll_table(5000)) == [7, 8, 9]


async def test_a_group_commits_the_positions_of_tables(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    put(cluster, [b"%d" % n for n in range(10)])
    settings_ = {"group_id": "g", "auto_offset_reset": "earliest"}
    async with Consumer("t", **quick, **settings_) as consumer:  # type: ignore[arg-type]
        assert numbers(await consumer.poll_table(20_000, max_records=4)) == [0, 1, 2, 3]
        await consumer.commit()
        tp = TopicPartition("t", 0)
        kept = (await consumer.committed([tp]))[tp]
        assert kept is not None and kept.offset == 4
    async with Consumer("t", **quick, **settings_) as consumer:  # type: ignore[arg-type]
        assert numbers(await consumer.poll_table(20_000)) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("face", ["aio", "blocking"])
def test_a_table_is_not_committed_if_the_user_code_raises(cluster: MemoryCluster, quick: dict[str, Any], face: str) -> None:
    put(cluster, [b"%d" % n for n in range(10)])
    settings_ = {**quick, "group_id": "g", "auto_offset_reset": "earliest"}

    async def on_asyncio() -> None:
        async with Consumer("t", **settings_) as consumer:
            await consumer.poll_table(20_000, max_records=4)
            await consumer.poll_table(20_000, max_records=3)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        if face == "aio":
            asyncio.run(on_asyncio())
        with ottla.Consumer("t", **settings_) as blocking:
            blocking.poll_table(20_000, max_records=4)
            blocking.poll_table(20_000, max_records=3)
            raise RuntimeError
    assert cluster.groups.offsets["t", 0][0] == 4
    with ottla.Consumer("t", **settings_) as blocking:
        assert numbers(blocking.poll_table(20_000)) == [4, 5, 6, 7, 8, 9]
    assert cluster.groups.offsets["t", 0][0] == 10


async def test_a_cancelled_poll_loses_nothing(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    put(cluster, [b"%d" % n for n in range(10)])
    async with await reading(quick) as consumer:
        for follow in (consumer.poll, consumer.poll_table):
            consumer.seek(("t", 0), 0)
            tables = consumer.tables
            lent = await tables.lend(_tables(), None, None)
            lent.read()
            assert lent.table.num_rows == 10
            found = await follow(5000)
            assert len(found) == 10


def _tables() -> Any:
    from ottla.client.arrow.table_polls import tables_of

    return tables_of({})


async def test_rows_of_a_revoked_partition_are_dropped(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    put(cluster, [b"a"])
    put(cluster, [b"b"], topic="many", partition=0)
    async with await reading(quick, ("t", 0), ("many", 0)) as consumer:
        polled = await consumer.tables.lend(_tables(), None, None)
        while len(polled._lent) < 2:
            consumer.tables.put_back()
            await asyncio.sleep(0)
            polled = await consumer.tables.lend(_tables(), None, None)
        polled.read()
        consumer.seek(("t", 0), 0)
        consumer.tables.take_back(polled)
        assert polled.table.column("value").to_pylist() == [b"b"]
        assert await consumer.position(("t", 0)) == 0


# -- control batches, aborted transactions, damage


def control(cluster: MemoryCluster, kind: int, producer_id: int) -> None:
    fields = {"control": True, "transactional": True, "producer_id": producer_id, "producer_epoch": 0}
    cluster.logs["t"][0].append(bytes(build_batch([(T0, *marker(kind, 0), ())], **fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_read_committed_omits_aborted_transactions_however_chunks_are_cut(
    cluster: MemoryCluster, quick: dict[str, Any], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = cluster.logs["t"][0]
    ids = iter([1, 2, 1, 3])
    for values in ([b"bad", b"bad"], [b"good"], [b"bad"], [b"plain", b"more"]):
        producer_id = next(ids)
        fields = {"transactional": producer_id != 3, "producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        log.producers.clear()
        put(cluster, values, **fields)  # type: ignore[arg-type]
    control(cluster, ABORT_MARKER, 1)
    log.producers.clear()
    put(cluster, [b"later"], transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    control(cluster, COMMIT_MARKER, 1)
    put(cluster, [b"end"])
    cluster.aborted["t", 0] = [AbortedTransaction(producer_id=1, first_offset=0)]
    async with await reading(quick, isolation_level="read_committed") as consumer:
        seen: list[Any] = []
        async with asyncio.timeout(20):
            while b"end" not in seen:
                seen += (await consumer.poll_table(5000, max_records=limit)).column("value").to_pylist()
    assert seen == [b"good", b"plain", b"more", b"later", b"end"]


async def test_a_fetch_of_only_control_batches_keeps_waiting(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    control(cluster, COMMIT_MARKER, 1)
    async with await reading(quick) as consumer:
        assert (await consumer.poll_table(50)).num_rows == 0
        assert await consumer.position(("t", 0)) == 1
        put(cluster, [b"x"])
        for node in cluster.nodes.values():
            node.look_again()
        assert numbers(await consumer.poll_table(5000)) == [1]


async def test_a_damaged_batch_raises_after_the_rows_before_it(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    put(cluster, [b"a", b"b"])
    put(cluster, [b"c"])
    put(cluster, [b"d"])
    log = cluster.logs["t"][0]
    log.batches[1] = log.batches[1][:-3] + bytes([log.batches[1][-3] ^ 1]) + log.batches[1][-2:]
    async with await reading(quick) as consumer:
        assert numbers(await consumer.poll_table(5000)) == [0, 1]
        for _ in range(2):
            with pytest.raises(CorruptMessage, match=r"the batch at offset 2 cannot be read.*seek past it"):
                await consumer.poll_table(5000)
        consumer.seek(("t", 0), 3)
        assert numbers(await consumer.poll_table(5000)) == [3]


# -- values


async def test_json_values_become_typed_columns(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    put(cluster, [b'{"a":1,"b":["x"]}', b'{"a":2.5}', None, b"null"])
    async with await reading(quick) as consumer:
        table = await consumer.poll_table(5000, value_format="json")
        assert table.schema.field("value").type == pa.struct([("a", pa.float64()), ("b", pa.list_(pa.string()))])
        assert table.column("value").to_pylist() == [{"a": 1.0, "b": ["x"]}, {"a": 2.5, "b": None}, None, None]
        consumer.seek(("t", 0), 0)
        chosen = await consumer.poll_table(5000, value_format="json", schema=pa.schema([("a", pa.float32())]))
        assert chosen.column("value").to_pylist() == [{"a": 1.0}, {"a": 2.5}, None, None]


async def test_types_that_differ_between_chunks_are_unified(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    put(cluster, [b'{"a":1}'], partition=0, topic="many")
    put(cluster, [b'{"a":1.5,"b":"x"}'], partition=1, topic="many")
    async with await reading(quick, ("many", 0), ("many", 1)) as consumer:
        rows: list[Any] = []
        async with asyncio.timeout(20):
            while len(rows) < 2:
                consumer.seek(("many", 0), 0)
                consumer.seek(("many", 1), 0)
                await asyncio.sleep(0)
                rows = (await consumer.poll_table(5000, value_format="json")).column("value").to_pylist()
    assert sorted(map(str, rows)) == sorted(map(str, [{"a": 1.0, "b": None}, {"a": 1.5, "b": "x"}]))


@pytest.mark.parametrize("bad", [b"{", b"", b'{"a":1}}', b'{"a":1} {"a":2}', b'{"a":"text"}', b"\xff", b"[1]"])
async def test_an_unreadable_value_raises_or_is_kept(cluster: MemoryCluster, quick: dict[str, Any], bad: bytes) -> None:
    put(cluster, [b'{"a":1}', None, bad, b'{"a":2}'])
    schema = pa.schema([("a", pa.int64())])
    async with await reading(quick) as consumer:
        with pytest.raises(SerializationFailed, match="t-0 at offset 2: its value cannot be read as json"):
            await consumer.poll_table(5000, value_format="json", schema=schema)
        assert await consumer.position(("t", 0)) == 0
        table = await consumer.poll_table(5000, value_format="json", schema=schema, on_corrupt="keep")
    assert table.column("value").to_pylist() == [{"a": 1}, None, None, {"a": 2}]
    assert table.column("_corrupt").to_pylist() == [None, None, bad, None]


async def test_avro_values_have_the_types_of_their_schema(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "tags", "type": {"type": "map", "values": "int"}},
            {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        ],
    }
    framed = Avro(schema, schema_id=3)
    row = {"id": 1, "name": None, "at": T0, "tags": {"x": 1}, "kind": "B"}
    good = framed.encode(row)
    put(cluster, [good, None, b"\0\0\0\0\4", good + b"!"])
    async with await reading(quick) as consumer:
        table = await consumer.poll_table(5000, value_format=framed, on_corrupt="keep")
    kind = pa.struct(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("at", pa.timestamp("ms", tz="UTC")),
            ("tags", pa.map_(pa.string(), pa.int32())),
            ("kind", pa.string()),
        ]
    )
    assert table.schema.field("value").type == kind
    found = table.column("value").to_pylist()
    assert found[0]["tags"] == [("x", 1)] and found[0]["at"].timestamp() * 1000 == T0 and found[0]["kind"] == "B"
    assert found[1:] == [None, None, None]
    assert table.column("_corrupt").to_pylist() == [None, None, b"\0\0\0\0\4", good + b"!"]


@pytest.mark.parametrize(
    ("form", "raw", "becomes", "kind"),
    [
        ("str", ["é".encode(), None], ["é", None], pa.string()),
        ("int", [(5).to_bytes(8, "big"), None, (-1).to_bytes(8, "big", signed=True)], [5, None, -1], pa.int64()),
        ("int", [b"\0\0\0\7"], [7], pa.int32()),
        ("float", [b"\x3f\xf0" + bytes(6), None], [1.0, None], pa.float64()),
        ("bytes", [b"\xff"], [b"\xff"], pa.binary()),
    ],
)
async def test_keys_and_values_in_simple_formats(
    cluster: MemoryCluster, quick: dict[str, Any], form: str, raw: list[Any], becomes: list[Any], kind: Any
) -> None:
    put(cluster, [(data, data, ()) for data in raw])
    async with await reading(quick) as consumer:
        table = await consumer.poll_table(5000, key_format=form, value_format=form)
    for name in ("key", "value"):
        assert (table.schema.field(name).type, table.column(name).to_pylist()) == (kind, becomes)


@pytest.mark.parametrize(("form", "bad"), [("str", b"\xff"), ("int", b"\0\0\0"), ("float", b"")])
async def test_bytes_in_the_wrong_format_are_kept_in_their_own_column(
    cluster: MemoryCluster, quick: dict[str, Any], form: str, bad: bytes
) -> None:
    put(cluster, [b"8 bytes.", bad, None, b"8 bytes."])
    async with await reading(quick) as consumer:
        table = await consumer.poll_table(5000, value_format=form, on_corrupt="keep")
    assert table.column("_corrupt").to_pylist() == [None, bad, None, None]
    assert [value is None for value in table.column("value").to_pylist()] == [False, True, True, False]


# -- round trips


def test_the_blocking_consumer_reads_the_same(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    table = pa.table({"v": [f"value {n}" for n in range(1000)], "k": [n % 3 for n in range(1000)]})
    with ottla.Producer(**quick, batch_size=1000) as producer:
        assert producer.send_table("many", table, key="k", value="v").result(timeout_ms=20_000).rows == 1000
    with ottla.Consumer(**quick, auto_offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions_for("many"))
        found: list[Any] = []
        while len(found) < 1000:
            part = consumer.poll_table(5000, max_records=300, value_format="str", key_format="str")
            assert 0 < part.num_rows <= 300
            found += zip(part.column("value").to_pylist(), part.column("key").to_pylist(), strict=True)
    assert sorted(found) == sorted((f"value {n}", str(n % 3)) for n in range(1000))


CELLS = st.none() | st.binary(max_size=30)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=20), min_size=1, max_size=6), st.data())
async def test_tables_equal_records_wherever_chunks_are_cut(
    cluster: MemoryCluster, quick: dict[str, Any], batches: list[Any], data: st.DataObject
) -> None:
    cluster.create("p")
    total = 0
    for batch in batches:
        codec = data.draw(st.sampled_from(list(Codec)))
        put(cluster, [(key, value, ((f"h{total}", value),)) for key, value in batch], topic="p", codec=codec)
        # Offsets removed by compaction.
        cluster.logs["p"][0].end += data.draw(st.integers(0, 3))
        total += len(batch)
    async with await reading(quick, ("p", 0), fetch_max_wait_ms=10) as consumer:
        records: list[Any] = []
        while len(records) < total:
            records += await consumer.poll(5000)
        consumer.seek(("p", 0), 0)
        rows: list[Any] = []
        while len(rows) < total:
            if data.draw(st.booleans()):
                rows += (await consumer.poll_table(5000, max_records=data.draw(st.integers(1, 9)))).to_pylist()
            else:
                part = await consumer.poll(5000, data.draw(st.integers(1, 9)))
                rows += [
                    {"key": r.key, "value": r.value, "offset": r.offset, "headers": [{"key": n, "value": v} for n, v in r.headers]}
                    for r in part
                ]
    assert [(row["key"], row["value"], row["offset"], [tuple(one.values()) for one in row["headers"]]) for row in rows] == [
        (record.key, record.value, record.offset, list(record.headers)) for record in records
    ]


async def test_a_polled_table_can_be_sent_unchanged(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    put(cluster, [(b"k%d" % n, None if n % 5 == 0 else b"v%d" % n, (("h", b"%d" % n),)) for n in range(50)])
    async with await reading(quick) as consumer, Producer(**quick) as producer:
        table = await consumer.poll_table(5000)
        cluster.create("copy")
        await (await producer.send_table("copy", table, key="key", value="value", headers="headers", timestamp="timestamp"))
        consumer.assign([("copy", 0)])
        assert (await consumer.poll_table(5000)).equals(table)

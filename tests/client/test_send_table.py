"""`send_table`: column types, partitioning, and the delivery of a table. Against an in-memory cluster."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_cluster import MemoryCluster

import ottla
from ottla.aio import Producer
from ottla.client.arrow.send import TableDelivery, TableMetadata
from ottla.client.errors import BufferExhausted
from ottla.client.serializers import Avro, SerializationFailed
from ottla.records import partition_for_key
from ottla.records.batch import parse_header
from ottla.records.read import records
from ottla.wire.errors import MessageTooLarge, TopicAuthorizationFailed
from ottla.wire.messages import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

T0 = 1_790_000_000_000


def stored(cluster: MemoryCluster, topic: str = "t") -> list[list[Any]]:
    """(timestamp, key, value, headers) of each record, by partition."""
    return [
        [(time, key, value, list(headers)) for batch in log.batches for _, time, key, value, headers in records(batch)]
        for log in cluster.logs[topic]
    ]


async def sent(cluster: MemoryCluster, quick: dict[str, Any], table: Any, *, topic: str = "t", to: Any = None, **columns: Any) -> Any:
    """The records in the topic after the table was sent."""
    async with Producer(**quick, **(to or {})) as producer:
        delivery = await producer.send_table(topic, table, **columns)
        metadata = await delivery
    assert delivery.done() and len(delivery.failed_rows()) == 0
    assert metadata.rows == sum(map(len, stored(cluster, topic)))
    return stored(cluster, topic)


async def values(cluster: MemoryCluster, quick: dict[str, Any], table: Any, **columns: Any) -> list[bytes | None]:
    (log,) = await sent(cluster, quick, table, **columns)
    return [value for _, _, value, _ in log]


# -- columns


async def test_each_column_becomes_a_part_of_the_record(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    headers = pa.array([[("a", b"1"), ("a", None)], None, []], pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])))
    times = pa.array([T0 * 1000 + 999, (T0 + 1) * 1000, (T0 + 2) * 1000], pa.timestamp("us", tz="UTC"))
    table = pa.table({"k": ["x", None, ""], "v": pa.array([b"1", None, b""], pa.binary()), "h": headers, "t": times})
    assert await sent(cluster, quick, table, key="k", value="v", headers="h", timestamp_ms="t") == [
        [(T0, b"x", b"1", [("a", b"1"), ("a", None)]), (T0 + 1, None, None, []), (T0 + 2, b"", b"", [])]
    ]


@pytest.mark.parametrize(
    ("column", "becomes"),
    [
        (pa.array(["é", None], pa.string()), ["é".encode(), None]),
        (pa.array(["é", None], pa.large_string()), ["é".encode(), None]),
        (pa.array(["é", None], pa.string_view()), ["é".encode(), None]),
        (pa.array([b"\xff", None], pa.binary()), [b"\xff", None]),
        (pa.array([b"\xff", None], pa.large_binary()), [b"\xff", None]),
        (pa.array([b"\xff", None], pa.binary_view()), [b"\xff", None]),
        (pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
        (pa.array(["x", None, "x"]).dictionary_encode(), [b"x", None, b"x"]),
        (pa.array([b"x", b"x", None]).dictionary_encode(), [b"x", b"x", None]),
        (pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["x", None])), [b"x", b"x", None]),
        (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef", None], pa.binary(16))), [b"0123456789abcdef", None]),
        (pa.nulls(2), [None, None]),
        (pa.array([7, None]), [b"7", None]),
        (pa.array([1.5, None]), [b"1.5", None]),
        (pa.array([True, None]), [b"true", None]),
        (pa.array([[1], None]), [b"[1]", None]),
        (pa.array([{"a": None}, None], pa.struct([("a", pa.int8())])), [b'{"a":null}', None]),
        (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())), [b'{"k":1}', None]),
        (pa.array([Decimal("1.50"), None]), [b'"1.50"', None]),
    ],
    ids=lambda given: str(given.type) if isinstance(given, pa.Array | pa.ExtensionArray) else "",
)
async def test_a_value_of_each_type(cluster: MemoryCluster, quick: dict[str, Any], column: Any, becomes: list[bytes | None]) -> None:
    assert await values(cluster, quick, pa.table({"v": column}), value="v") == becomes


@pytest.mark.parametrize(
    ("form", "column", "becomes"),
    [
        ("int", pa.array([1, None, -2], pa.int64()), [b"\0\0\0\0\0\0\0\1", None, b"\xff" * 7 + b"\xfe"]),
        ("int", pa.array([1, None], pa.int32())[0:1], [b"\0\0\0\1"]),
        ("int", pa.array([9, None, 258], pa.int16())[1:], [None, b"\1\2"]),
        ("int", pa.array([1], pa.uint8()), [b"\0\0\0\0\0\0\0\1"]),
        ("float", pa.array([1.0, None]), [b"\x3f\xf0" + bytes(6), None]),
        ("float", pa.array([1.0], pa.float32()), [b"\x3f\x80\0\0"]),
        ("str", pa.array([1, None]), [b"1", None]),
        ("bytes", pa.array(["x"]), [b"x"]),
        ("json", pa.array(["x", None]), [b'"x"', None]),
    ],
)
async def test_a_format_name_selects_the_serializer(
    cluster: MemoryCluster, quick: dict[str, Any], form: str, column: Any, becomes: list[bytes | None]
) -> None:
    assert await values(cluster, quick, pa.table({"v": column}), value="v", value_format=form) == becomes
    cluster.logs["t"][0].batches.clear()
    plain = getattr(ottla.serializers, form.capitalize())()
    assert await values(cluster, quick, pa.table({"v": column}), value="v", value_format=plain) == becomes


async def test_rows_become_objects_and_null_rows_tombstones(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    table = pa.table({"id": ["1", "2", "3"], "a": [1, None, None], "b": ["x", "y", None]})
    ((one, two, three),) = await sent(cluster, quick, table, key="id", value=["a", "b"])
    assert [record[1] for record in (one, two, three)] == [b"1", b"2", b"3"]
    assert [json.loads(one[2]), json.loads(two[2]), three[2]] == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None]


async def test_without_a_value_column_the_remaining_columns_are_the_value(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    table = pa.table(
        {"id": [1], "a": ["x"], "at": pa.array([T0]), "p": [0], "h": pa.array([[("n", b"")]], pa.map_(pa.string(), pa.binary()))}
    )
    ((record,),) = await sent(cluster, quick, table, key="id", timestamp="at", partition="p", headers="h")
    assert record[:2] == (T0, b"1") and record[3] == [("n", b"")]
    assert json.loads(record[2]) == {"id": 1, "a": "x"}


async def test_avro_values_equal_those_of_the_serializer(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": ["null", "string"]}]}
    rows = [{"a": 1, "b": "x"}, {"a": -2, "b": None}]
    framed = Avro(schema, schema_id=7)
    assert await values(cluster, quick, pa.Table.from_pylist(rows), value_format=framed) == [framed.encode(row) for row in rows]
    with pytest.raises(SerializationFailed, match="row 1 cannot be written as Avro"):
        await values(cluster, quick, pa.table({"a": [1, None], "b": ["x", "y"]}), value_format="avro", schema=schema)


async def test_one_partition_time_or_headers_can_apply_to_all_rows(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    found = await sent(
        cluster,
        quick,
        pa.table({"v": ["a", "b"]}),
        topic="many",
        value="v",
        partition=2,
        timestamp_ms=5,
        headers=[("n", b"1"), ("m", None)],
    )
    assert found == [[], [], [(5, None, value, [("n", b"1"), ("m", None)]) for value in (b"a", b"b")]]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("s"), pa.timestamp("ms", tz="Europe/Berlin"), pa.timestamp("us"), pa.timestamp("ns"), pa.int64()]
)
async def test_times_of_every_unit_become_milliseconds_and_null_becomes_now(
    cluster: MemoryCluster, quick: dict[str, Any], kind: Any
) -> None:
    factor = {"s": 0.001, "ms": 1, "us": 1000, "ns": 1_000_000}[getattr(kind, "unit", "ms")]
    times = pa.array([0, None, int(T0 * factor)], pa.int64()).cast(kind)
    table = pa.table({"v": ["-", "a", "b"], "t": times}).slice(1)
    ((now, then),) = await sent(cluster, quick, table, value="v", timestamp_ms="t")
    assert then[0] == T0 and now[0] > 1_700_000_000_000


# -- partitioning


async def test_keys_are_partitioned_as_in_java_and_stay_in_order(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    keys = [f"k{number % 17}" for number in range(500)]
    found = await sent(cluster, quick, pa.table({"k": keys, "v": [str(n) for n in range(500)]}), topic="many", key="k", value="v")
    for partition, log in enumerate(found):
        assert log and all(partition_for_key(key, 3) == partition for _, key, _, _ in log)
        numbers = [int(value) for _, _, value, _ in log]
        assert numbers == sorted(numbers)
    assert {value: key for log in found for _, key, value, _ in log} == {b"%d" % n: keys[n].encode() for n in range(500)}


async def test_a_large_table_with_a_partition_column_is_sent_once(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    # More than one chunk: rows of the next chunk must not count as rows of this one.
    count = 3000
    table = pa.table({"v": ["x" * 2000] * count, "n": range(count), "p": pa.array([n % 3 for n in range(count)], pa.int32())})
    found = await sent(cluster, quick, table, topic="many", key="n", value="v", partition="p")
    assert [[int(key) for _, key, _, _ in log] for log in found] == [list(range(first, count, 3)) for first in range(3)]


async def test_a_partition_column_overrides_the_key(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    table = pa.table({"k": ["a", "a", None, None], "p": pa.array([2, None, 0, None], pa.int8()), "v": ["0", "1", "2", "3"]})
    found = await sent(cluster, quick, table, topic="many", key="k", value="v", partition="p")
    home = partition_for_key(b"a", 3)
    assert b"0" in [record[2] for record in found[2]]
    assert b"1" in [record[2] for record in found[home]]
    assert b"2" in [record[2] for record in found[0]]
    assert sum(map(len, found)) == 4


async def test_rows_without_key_and_partition_are_spread_over_partitions_by_batch(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    table = pa.table({"v": [f"{number:0200}" for number in range(3000)]})
    found = await sent(cluster, quick, table, topic="many", to={"batch_size": 4000}, value="v")
    assert all(len(log) > 300 for log in found)
    assert sorted(int(value) for log in found for _, _, value, _ in log) == list(range(3000))
    for log in cluster.logs["many"]:
        assert all(len(batch) <= 4000 for batch in log.batches)
        sequences = [(header.base_sequence, header.count) for header in map(parse_header, log.batches)]
        assert [first for first, _ in sequences] == [sum(size for _, size in sequences[:n]) for n in range(len(sequences))]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_compressed_by_the_producers_codec_and_stay_in_order(
    cluster: MemoryCluster, quick: dict[str, Any], codec: str
) -> None:
    table = pa.table({"v": [f"value {number} of many" for number in range(5000)]})
    ((*log,),) = await sent(cluster, quick, table, to={"compression_type": codec, "batch_size": 8000}, value="v")
    assert [value for _, _, value, _ in log] == [b"value %d of many" % number for number in range(5000)]
    assert {parse_header(batch).codec.wire_name for batch in cluster.logs["t"][0].batches} == {codec}


async def test_a_table_is_ordered_between_earlier_and_later_records(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick, linger_ms=1000) as producer:
        await producer.send("t", b"before")
        await producer.send_table("t", pa.table({"v": ["in"]}), value="v")
        await producer.send("t", b"after")
    assert [value for _, _, value, _ in stored(cluster)[0]] == [b"before", b"in", b"after"]


# -- tables of all shapes


async def test_slices_and_chunks_are_sent_row_by_row(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    chunks = [pa.array([None if n % 7 == 0 else f"v{n}" for n in range(first, first + 50)]) for first in range(0, 200, 50)]
    keys = [pa.array([f"k{n}" for n in range(120)]).dictionary_encode(), pa.array([f"k{n}" for n in range(120, 200)]).dictionary_encode()]
    lists = pa.chunked_array([pa.array([[("n", b"%d" % n)] for n in range(200)], pa.map_(pa.string(), pa.binary()))])
    table = pa.table({"v": pa.chunked_array(chunks), "k": pa.chunked_array(keys), "h": lists}).slice(3, 190)
    (log,) = await sent(cluster, quick, table, key="k", value="v", headers="h")
    assert [record[1:] for record in log] == [(b"k%d" % n, None if n % 7 == 0 else b"v%d" % n, [("n", b"%d" % n)]) for n in range(3, 193)]


@pytest.mark.parametrize("empty", [pa.table({"v": pa.array([], pa.string())}), pa.table({"v": pa.chunked_array([], pa.string())})])
async def test_an_empty_table_completes_at_once(cluster: MemoryCluster, quick: dict[str, Any], empty: Any) -> None:
    async with Producer(**quick) as producer:
        assert await (await producer.send_table("t", empty, value="v")) == TableMetadata("t", 0, {})


async def test_any_object_with_the_arrow_interface_is_a_table(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    table = pa.table({"v": ["a", "b"]})

    class Stream:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return table.__arrow_c_stream__(requested_schema)

    class Array:
        def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
            return table.to_batches()[0].__arrow_c_array__(requested_schema)

    for speaking in (table, table.to_batches()[0], table.to_reader(), Stream(), Array()):
        assert await values(cluster, quick, speaking, value="v") == [b"a", b"b"]
        cluster.logs["t"][0].batches.clear()


async def test_polars_and_duckdb_tables_are_accepted(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    assert await values(cluster, quick, polars.DataFrame({"v": ["a", None], "k": [1, 2]}), key="k", value="v") == [b"a", None]
    cluster.logs["t"][0].batches.clear()
    assert await values(cluster, quick, duckdb.sql("SELECT 'a' AS v UNION ALL SELECT 'b'"), value="v") == [b"a", b"b"]


async def test_a_stream_is_read_as_memory_allows(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    asked = count()

    def batches() -> Any:
        for _ in range(60):
            next(asked)
            yield pa.record_batch({"v": ["x" * 1000] * 200})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("v", pa.string())]), batches())
    async with Producer(**quick, buffer_memory=1_000_000) as producer:
        metadata = await (await producer.send_table("t", reader, value="v"))
    assert metadata == TableMetadata("t", 12_000, {0: (0, 12_000)})


# -- errors


@pytest.mark.parametrize(
    ("columns", "error", "why"),
    [
        ({"value": "w"}, ValueError, "the table has no column 'w'.*it has v, n, h"),
        ({"value": "v", "key": "vv"}, ValueError, "no column 'vv'; did you mean v?"),
        ({"value": ["v", "x"]}, ValueError, "no column 'x'"),
        ({"value": "v", "headers": "n"}, TypeError, "headers are lists"),
        ({"value": "v", "partition": "v"}, TypeError, "partition: column v is string; expected whole numbers"),
        ({"value": "v", "timestamp_ms": 1, "timestamp": 2}, TypeError, "timestamp= and timestamp_ms= are the same"),
        ({"value": "v", "timestamp_ms": "v"}, TypeError, "timestamp_ms: column v is string; expected whole numbers or timestamps"),
        ({"value": "v", "value_format": "jsn"}, ValueError, "no format of columns is called 'jsn'; did you mean json?"),
        ({"value_format": "str"}, ValueError, "a row of columns is written as json or avro"),
        ({"value": "v", "key_format": "int"}, ValueError, "key_format needs"),
        ({"value": "v", "value_format": "avro"}, ValueError, "avro needs its schema"),
        ({"value": "v", "value_format": "int"}, SerializationFailed, "column v cannot be written as int: it is string"),
        ({"value": "n", "value_format": "bytes"}, SerializationFailed, "column n cannot be written as bytes: it is int64"),
        ({"value": "v", "partition": "n"}, ValueError, "row 1 is for partition 5, and there are 1"),
        ({"value": "v", "schemes": 1}, TypeError, "no schemes=; did you mean schema?"),
    ],
)
async def test_invalid_columns_are_refused_with_advice(
    cluster: MemoryCluster, quick: dict[str, Any], columns: dict[str, Any], error: type[Exception], why: str
) -> None:
    table = pa.table({"v": ["a", "b"], "n": [0, 5], "h": [1.5, 2]})
    async with Producer(**quick) as producer:
        with pytest.raises(error, match=why.replace("?", r"\?")):
            await producer.send_table("t", table, **columns)
    assert stored(cluster) == [[]]


async def test_an_object_that_is_not_a_table_is_refused(quick: dict[str, Any], cluster: MemoryCluster) -> None:
    async with Producer(**quick) as producer:
        with pytest.raises(TypeError, match="from_pylist"):
            await producer.send_table("t", [{"v": 1}])


async def test_a_negative_partition_is_refused_with_its_row(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        with pytest.raises(ValueError, match="row 1 is for partition -1; partitions count from 0"):
            await producer.send_table("t", pa.table({"v": ["a", "b"], "p": [0, -1]}), value="v", partition="p")


async def test_a_row_that_is_too_large_ends_the_table_after_the_rows_before_it(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    table = pa.table({"v": ["a", "x" * 2000, "b"]})
    async with Producer(**quick, max_request_size=1000) as producer:
        with pytest.raises(MessageTooLarge) as caught:
            await producer.send_table("t", table, value="v")
    assert caught.value.__notes__ == ["1 rows of the table were put on their way to t before; flush() waits for them"]
    assert [value for _, _, value, _ in stored(cluster)[0]] == [b"a"]


async def test_full_memory_times_out_as_for_records(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    for node in cluster.nodes.values():
        node.on_Produce = lambda request, header: None  # type: ignore[method-assign]
    async with Producer(**quick, buffer_memory=2000, max_block_ms=500, max_request_size=1000, delivery_timeout_ms=40_000) as producer:
        with pytest.raises(BufferExhausted):
            await producer.send_table("t", pa.table({"v": ["x" * 500] * 100}), value="v")
        await producer.close(timeout_ms=0)


async def test_rows_of_a_failed_batch_are_reported(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    def refuse(node: Any, request: Any) -> Any:
        (topic,) = request.topic_data
        if all(data.index != 1 for data in topic.partition_data):
            return None
        answers = []
        for data in topic.partition_data:
            code, offset = (29, -1) if data.index == 1 else node.produce("many", data.index, bytes(data.records))
            answers.append(PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset))
        return ProduceResponse(responses=[TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)])

    cluster.faults["Produce"].append(refuse)
    table = pa.table({"v": list("abcdef"), "p": [0, 1, 2, 1, 0, 1]})
    async with Producer(**quick) as producer:
        delivery = await producer.send_table("many", table, value="v", partition="p")
        with pytest.raises(TopicAuthorizationFailed):
            await delivery
    assert delivery.failed_rows().to_pylist() == [1, 3, 5]
    assert [len(log) for log in stored(cluster, "many")] == [2, 0, 1]


# -- both APIs


async def test_the_delivery_releases_bytes_it_no_longer_needs(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        delivery = await producer.send_table("t", pa.table({"v": ["x"] * 10}), value="v")
        await delivery
    assert [batch.data for batch, _ in delivery._sent] == [None]


ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=60),
        st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
        st.integers(0, 2**40),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, st.data())
async def test_a_table_becomes_the_same_records_as_sending_its_rows(
    cluster: MemoryCluster, quick: dict[str, Any], rows: list[Any], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(rows)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    wide = data.draw(st.booleans())
    kinds = [
        ("k", pa.binary()),
        ("v", pa.large_binary() if wide else pa.binary()),
        ("h", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ("t", pa.int64()),
    ]
    schema = pa.schema(kinds)
    pieces = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    batches = [
        pa.RecordBatch.from_arrays(
            [pa.array(column, kind) for column, (_, kind) in zip(zip(*piece, strict=True), kinds, strict=True)], schema=schema
        )
        for piece in pieces
        if piece
    ]
    table = pa.Table.from_batches(batches, schema).slice(first)
    for name, size in (("table", 3), ("records", 3)):
        cluster.create(name, size)
    async with Producer(**quick, batch_size=data.draw(st.sampled_from([100, 1000, 65536]))) as producer:
        await (await producer.send_table("table", table, key="k", value="v", headers="h", timestamp_ms="t"))
        for key, value, headers, time in rows[first:]:
            await producer.send("records", value, key, headers or [], timestamp_ms=time)
    keyed = [[record for record in log if record[1] is not None] for log in stored(cluster, "table")]
    assert keyed == [[record for record in log if record[1] is not None] for log in stored(cluster, "records")]
    loose = [
        sorted(map(repr, (record for log in stored(cluster, name) for record in log if record[1] is None))) for name in ("table", "records")
    ]
    assert loose[0] == loose[1]


def test_a_delivery_without_rows_has_no_failed_rows() -> None:
    assert TableDelivery("t").failed_rows().to_pylist() == []

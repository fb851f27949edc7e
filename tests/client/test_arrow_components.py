"""The components of sending and reading tables: JSON of columns, formats, chunks, and buffers of every layout."""

from __future__ import annotations

import json
import math
import mmap
from array import array
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_batches import build_columns
from ottla.client.arrow.avro import AvroColumn, _values_one_by_one
from ottla.client.arrow.columns import as_binary, binary_column, gathered, headers_column, same_number, same_text
from ottla.client.arrow.json import NotJson, json_texts, json_values
from ottla.client.arrow.read import Tables
from ottla.client.arrow.rows import TableRows
from ottla.client.arrow.send import RowSelection, batches_of_table
from ottla.client.arrow.values import ColumnFormat
from ottla.client.serializers import Avro, SerializationFailed
from ottla.records.compression import Codec
from ottla.records.read import records

# -- columns


@pytest.mark.parametrize("rows", [0, 1, 1000])
@pytest.mark.parametrize("text", ["", "t", "Größe-und-Maß"])
def test_one_text_for_every_row_is_an_ordinary_column(text: str, rows: int) -> None:
    column = same_text(text, rows)
    column.validate(full=True)
    assert column.equals(pa.array([text] * rows, pa.string()))


@pytest.mark.parametrize("rows", [0, 1, 3, 1024, (1 << 17) + 1])
def test_one_number_for_every_row_is_an_ordinary_column(rows: int) -> None:
    column = same_number(7, rows)
    column.validate(full=True)
    assert column.equals(pa.repeat(pa.scalar(7, pa.int32()), rows))


def test_batches_of_similar_size_share_their_constant_columns() -> None:
    one, other = same_text("visits", 70_000), same_text("visits", 65_537)
    assert one.buffers()[2].address == other.buffers()[2].address
    sent = pa.ipc.read_message(pa.record_batch([other], ["topic"]).serialize())
    assert sent.body.size < 65_537 * 10 + 1024, "only the bytes of the rows are sent"


# -- JSON


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (pa.array([1, None, -(2**63)]), ["1", None, str(-(2**63))]),
        (pa.array([2**64 - 1], pa.uint64()), [str(2**64 - 1)]),
        (pa.array([1.0, 1e300, math.nan, math.inf, None]), ["1", "1e+300", "null", "null", None]),
        (pa.array([1.5], pa.float16()), ["1.5"]),
        (pa.array([True, None]), ["true", None]),
        (pa.nulls(2), [None, None]),
        (pa.array(['a"b\\\n\x01é', ""]), ['"a\\"b\\\\\\n\\u0001é"', '""']),
        (pa.array(["x", "y", "x"]).dictionary_encode(), ['"x"', '"y"', '"x"']),
        (pa.array([date(2026, 11, 1), None]), ['"2026-11-01"', None]),
        (pa.array([time(1, 2, 3, 4)]), ['"01:02:03.000004"']),
        (pa.array([datetime(2026, 11, 1, 1, 2, 3)], pa.timestamp("s")), ['"2026-11-01T01:02:03"']),
        (pa.array([datetime(2026, 11, 1, tzinfo=UTC)], pa.timestamp("ms", tz="UTC")), ['"2026-11-01T00:00:00.000Z"']),
        (pa.array([timedelta(seconds=2)], pa.duration("ms")), ["2000"]),
        (pa.array([[1, None], None, []]), ["[1,null]", None, "[]"]),
        (pa.array([["a"], ["b"]], pa.list_(pa.string(), 1)), ['["a"]', '["b"]']),
        (pa.array([[[1], []], [None]]), ["[[1],[]]", "[null]"]),
        (pa.array([{"a": 1, "b": {"c": None}}, None]), ['{"a":1,"b":{"c":null}}', None]),
        (pa.array([{}], pa.struct([])), ["{}"]),
        (pa.array([[('k"', 1), ("l", None)], None, []], pa.map_(pa.string(), pa.int8())), ['{"k\\"":1,"l":null}', None, "{}"]),
        (pa.array([b"text", None]), ['"text"', None]),
    ],
    ids=lambda given: str(given.type) if hasattr(given, "type") else "",
)
@pytest.mark.parametrize("compiled", [True, False])
def test_json_of_each_type(column: Any, texts: list[str | None], compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr("ottla.client.arrow.json.join_json", None)
    assert json_texts(column).to_pylist() == texts
    assert json_texts(pa.concat_arrays([column, column])[len(column) :]).to_pylist() == texts


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pa.array([{"a": b"\xff"}]), "column a: its bytes are not text"),
        (pa.array([[(1, 1)]], pa.map_(pa.int8(), pa.int8())), "this map's keys are int8"),
        (pa.array([{"a": [pa.MonthDayNano([1, 2, 3])]}]), "column a: JSON has no form for"),
    ],
)
def test_a_type_without_json_form_is_refused_by_name(column: Any, why: str) -> None:
    with pytest.raises(NotJson, match=why):
        json_texts(column)


CELL = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "s": st.none() | st.text(max_size=12),
        "b": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.none() | st.text(max_size=4), max_size=3),
        "o": st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 9)}),
    }
)
KIND = pa.struct(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.string())),
        ("o", pa.struct([("x", pa.int64())])),
    ]
)


@settings(deadline=None)
@given(st.lists(st.none() | CELL, min_size=1, max_size=20), st.data())
def test_rows_round_trip_through_json(rows: list[Any], data: st.DataObject) -> None:
    column = pa.array(rows, KIND)[data.draw(st.integers(0, len(rows) - 1)) :]
    texts = json_texts(column)
    assert [None if text is None else json.loads(text) for text in texts.to_pylist()] == column.to_pylist()
    assert json_values(texts.cast(pa.binary()), KIND).array.to_pylist() == column.to_pylist()


BAD = st.sampled_from([b"", b"{", b'{"a":1}}', b'{"a":1}{"a":2}', b'{"a":"x"}', b"\xff", b'"open', b"[", b"1", b'{"a":1},', b"}\n{"])


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), BAD, st.integers(-9, 9).map(lambda n: b'{"a":%d,"b":[%d]}' % (n, n))), min_size=1, max_size=30))
def test_an_invalid_text_does_not_affect_its_neighbours(texts: list[bytes | None]) -> None:
    good = [None if text is None or b'"b"' not in text else json.loads(text)["a"] for text in texts]
    found = json_values(pa.array(texts, pa.binary()), pa.struct([("a", pa.int64())]))
    assert [None if row is None else row["a"] for row in found.array.to_pylist()] == good
    wrong = [text is not None and row is None for text, row in zip(texts, good, strict=True)]
    assert (wrong if any(wrong) else None) == (None if found.bad is None else found.bad.to_pylist())
    assert bool(found.why) == any(wrong)


def test_a_large_column_of_json_is_read_in_blocks() -> None:
    texts = pa.array([b'{"n":%d,"x":"%s"}' % (n, b"y" * 1000) for n in range(20_000)], pa.binary())
    found = json_values(texts, pa.struct([("n", pa.int32())]))
    assert found.bad is None and found.array.field("n").to_pylist() == list(range(20_000))


# -- formats


@settings(deadline=None)
@given(
    st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=20),
    st.sampled_from([pa.int16(), pa.int32(), pa.int64()]),
    st.integers(0, 5),
)
def test_numbers_are_decoded_from_bytes(numbers: list[int | None], kind: Any, first: int) -> None:
    fit = [None if number is None else number % 2**15 for number in numbers] if kind == pa.int16() else numbers
    column = pa.array(fit, kind)[first:]
    form = ColumnFormat("int")
    found = form.decoded(form.encoded(column, "it"))
    assert found.bad is None and found.array.to_pylist() == column.to_pylist()


EVERY_TYPE = {
    "type": "record",
    "name": "Every",
    "fields": [
        {"name": "n", "type": "null"},
        {"name": "b", "type": "boolean"},
        {"name": "i", "type": ["int", "null"]},
        {"name": "l", "type": ["null", "long"]},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "y", "type": "bytes"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "x", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "e", "type": ["null", {"type": "enum", "name": "E", "symbols": ["A", "BB", "C"]}]},
        {"name": "e2", "type": "E"},
        {"name": "a", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "aa", "type": ["null", {"type": "array", "items": {"type": "array", "items": "int"}}]},
        {
            "name": "m",
            "type": {"type": "map", "values": {"type": "record", "name": "In", "fields": [{"name": "v", "type": ["null", "int"]}]}},
        },
        {"name": "r", "type": ["null", "In"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "money", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}},
        {"name": "money4", "type": {"type": "fixed", "name": "M", "size": 6, "logicalType": "decimal", "precision": 12, "scale": 3}},
    ],
}
INT = st.integers(-(2**31), 2**31 - 1)
IN = st.fixed_dictionaries({"v": st.none() | INT})
TIMES = st.integers(0, 4_000_000_000)
EVERY = st.fixed_dictionaries(
    {
        "n": st.none(),
        "b": st.booleans(),
        "i": st.none() | INT,
        "l": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "y": st.binary(max_size=6),
        "s": st.none() | st.text(max_size=6),
        "x": st.binary(min_size=4, max_size=4),
        "e": st.sampled_from([None, "A", "BB", "C"]),
        "e2": st.sampled_from(["A", "BB", "C"]),
        "a": st.lists(st.none() | st.text(max_size=3), max_size=3),
        "aa": st.none() | st.lists(st.lists(INT, max_size=3), max_size=3),
        "m": st.dictionaries(st.text(max_size=3), IN, max_size=3),
        "r": st.none() | IN,
        "day": st.dates(date(1970, 1, 1), date(2100, 1, 1)),
        "at": TIMES.map(lambda s: datetime.fromtimestamp(s, UTC)),
        "us": TIMES.map(lambda s: datetime.fromtimestamp(s, UTC)),
        "money": st.decimals(-(10**17), 10**17, places=2),
        "money4": st.decimals(-(10**8), 10**8, places=3),
    }
)


@settings(deadline=None)
@given(st.lists(st.none() | EVERY, max_size=12), st.sampled_from([None, 9]), st.data())
def test_avro_decodes_to_columns_as_with_fastavro(rows: list[Any], schema_id: int | None, data: st.DataObject) -> None:
    avro = Avro(EVERY_TYPE, schema_id=schema_id)
    encoded = [None if row is None else avro.encode(row) for row in rows]
    bad = data.draw(st.sets(st.integers(0, len(rows) - 1))) if rows else set()
    for row in bad:
        whole = encoded[row] or b"\0"
        encoded[row] = data.draw(st.sampled_from([whole + b"\0", whole[:-1], whole[: len(whole) // 2], b"\xff" * 30, b""]))
    first = data.draw(st.integers(0, len(rows)))
    column = pa.array(encoded, pa.binary())[first:]
    found = ColumnFormat(avro).decoded(column)
    found.array.validate(full=True)
    one_by_one = _values_one_by_one(column, avro, AvroColumn.of(avro.read_schema, {}).type)
    assert found.array.equals(one_by_one.array)
    assert (found.bad is None) == (one_by_one.bad is None)
    assert found.bad is None or found.bad.equals(one_by_one.bad)


@settings(deadline=None)
@given(st.lists(st.none() | EVERY, max_size=12), st.sampled_from([None, 9]), st.data())
def test_columns_encode_to_avro_as_rows_with_fastavro(rows: list[Any], schema_id: int | None, data: st.DataObject) -> None:
    avro = Avro(EVERY_TYPE, schema_id=schema_id)
    first = data.draw(st.integers(0, len(rows)))
    column = pa.array(rows, AvroColumn.of(avro.read_schema, {}).type)[first:]
    found = ColumnFormat(avro).encoded(column, "it").to_pylist()
    assert [None if one is None else avro.decode(one) for one in found] == [
        None if row is None else avro.decode(avro.encode(row)) for row in rows[first:]
    ]
    plain = [field["name"] for field in EVERY_TYPE["fields"] if not field["name"].startswith("money")]  # type: ignore[index]
    fewer = Avro({"type": "record", "name": "Fewer", "fields": [one for one in EVERY_TYPE["fields"] if one["name"] in plain]})  # type: ignore[index]
    exact = ColumnFormat(fewer).encoded(column, "it").to_pylist()
    assert exact == [None if row is None else fewer.encode(row) for row in rows[first:]]


@pytest.mark.parametrize(
    ("schema", "column", "why"),
    [
        ("int", pa.array([1, 2**40]), "a row cannot be written as Avro: Integer value 1099511627776"),
        ("string", pa.array([1]), "row 0 cannot be written as Avro"),
        ({"type": "fixed", "name": "F", "size": 2}, pa.array([b"ab", b"abc"]), "row 1 cannot be written as Avro"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.array(["A", "B"]), "row 1 cannot be written as Avro"),
        ({"type": "array", "items": "int"}, pa.array([[1], [None]]), "row 1 cannot be written as Avro"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]},
            pa.array([{"b": 1}]),
            "row 0 cannot be written as Avro",
        ),
    ],
)
def test_a_value_outside_of_the_schema_is_refused_with_its_row(schema: Any, column: Any, why: str) -> None:
    avro = Avro(json.dumps(schema))
    with pytest.raises(SerializationFailed, match=why):
        ColumnFormat(avro).encoded(column, "it")


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        ("long", pa.array([1, None, 3], pa.int8())[1:]),
        ("double", pa.array([1, 2], pa.int32())),
        ("string", pa.array(["a", "b"]).dictionary_encode()),
        ("bytes", pa.array(["a", "é"])),
        ({"type": "array", "items": "string"}, pa.array([["a"], []], pa.large_list(pa.string()))),
        ({"type": "array", "items": "int"}, pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))[1:]),
        ({"type": "map", "values": "int"}, pa.array([{"x": 1, "y": 2}])),
        (["int", "string"], pa.array([1, 2])),
        (["null", "int"], pa.array([1, None])),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "int"]}]}, pa.array([{"b": 1}])),
    ],
)
def test_columns_of_other_types_are_cast_to_the_schema(schema: Any, column: Any) -> None:
    avro = Avro(json.dumps(schema))
    found = ColumnFormat(avro).encoded(column, "it").to_pylist()
    written = [None if value is None else avro.encode(value.encode() if schema == "bytes" else value) for value in column.to_pylist()]
    assert found == written


@given(st.binary(max_size=60))
def test_invalid_avro_affects_only_its_row(data: bytes) -> None:
    avro = Avro(EVERY_TYPE)
    good = avro.encode(
        {
            "n": None, "b": True, "i": 1, "l": None, "f": 1.0, "d": 2.0, "y": b"", "s": "x", "x": b"1234", "e": "A", "e2": "C", "a": ["p"],
            "aa": [[1]], "m": {"k": {"v": 1}}, "r": None, "day": date(2026, 1, 1), "at": datetime(2026, 1, 1, tzinfo=UTC),
            "us": datetime(2026, 1, 1, tzinfo=UTC), "money": Decimal("1.50"), "money4": Decimal("-2.125"),
        }
    )  # fmt: skip
    found = ColumnFormat(avro).decoded(pa.array([good, data, good, good[:-3] + data, good], pa.binary()))
    found.array.validate(full=True)
    rows = found.array.to_pylist()
    assert rows[0] is not None and rows[0] == rows[2] == rows[4]


def test_invalid_utf_8_is_invalid_in_avro_too() -> None:
    avro = Avro('"string"')
    found = ColumnFormat(avro).decoded(pa.array([b"\2a", b"\2\xff", b"\2b"], pa.binary()))
    assert (found.array.to_pylist(), found.bad.to_pylist()) == (["a", None, "b"], [False, True, False])


def test_a_reader_schema_projects_the_columns() -> None:
    written = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int"}]}
    read = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "long"}, {"name": "c", "type": "string", "default": "-"}]}
    found = ColumnFormat(Avro(written, reader_schema=read)).decoded(pa.array([Avro(written).encode({"a": 1, "b": 2})], pa.binary()))
    assert found.array.to_pylist() == [{"b": 2, "c": "-"}]


def test_avro_types_without_a_column_type_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the union .* has several"):
        ColumnFormat(Avro(["int", "string"])).decoded(pa.array([b"\0\2"]))
    loop = Avro({"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]})
    with pytest.raises(ValueError, match="none of that name is declared before"):
        AvroColumn.of(loop.read_schema, {})


def test_formats_report_missing_options() -> None:
    with pytest.raises(ValueError, match="the format str has no schema"):
        ColumnFormat("str", {})
    with pytest.raises(SerializationFailed, match="column v cannot be written as float: it is string"):
        ColumnFormat("float").encoded(pa.array(["x"]), "column v")
    with pytest.raises(TypeError, match="a table has no colums="):
        Tables({"colums": ["key"]})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(ValueError, match="on_corrupt is 'raise' or 'keep'"):
        Tables({"on_corrupt": "drop"})


# -- buffers and chunks


@given(
    st.lists(
        st.none() | st.text(max_size=20) | st.sampled_from(["".join(map(chr, range(128))), '"' * 40, "x" * 5000]), min_size=1, max_size=9
    )
)
def test_texts_are_quoted_as_in_json(texts: list[str | None]) -> None:
    quoted = json_texts(pa.array(texts, pa.large_string())).to_pylist()
    assert [None if text is None else json.loads(text) for text in quoted] == texts


def test_offsets_beyond_2_gib_are_followed() -> None:
    # Untouched pages take no memory.
    room = mmap.mmap(-1, 5 << 29)
    start = (1 << 31) + 100
    room[start : start + 10] = b"helloworld"
    ends = array("q", [start, start + 5, start + 5, start + 10])
    column = pa.Array.from_buffers(pa.large_binary(), 3, [None, pa.py_buffer(ends), pa.py_buffer(room)])
    (batch,) = build_columns(binary_column(column), first=0, last=3, timestamps=0)
    assert [record[3] for record in records(batch)] == [b"hello", b"", b"world"]
    (one,) = batches_of_table(TableRows(pa.table({"v": column}), now_ms=0, value="v"), 1, 65536, Codec.NONE, None)
    assert [record[3] for record in records(one.data)] == [b"hello", b"", b"world"]


@given(st.lists(st.lists(st.none() | st.binary(max_size=30), max_size=20), max_size=8), st.integers(1, 200))
def test_chunks_hold_all_rows_in_order(chunks: list[Any], size: int) -> None:
    batches = [pa.record_batch({"v": pa.array(chunk, pa.binary())}) for chunk in chunks]
    portions = list(gathered(batches, size))
    assert all(portion.num_rows for portion in portions)
    assert [row for portion in portions for row in portion.column("v").to_pylist()] == [row for chunk in chunks for row in chunk]


@given(
    st.lists(st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3), max_size=12), st.data()
)
def test_headers_of_a_slice_are_those_of_its_rows(rows: list[Any], data: st.DataObject) -> None:
    first, last = sorted((data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, len(rows)))))
    pair = pa.struct([("n", pa.string()), ("v", pa.binary())])
    kind = data.draw(st.sampled_from([pa.list_(pair), pa.large_list(pair), pa.map_(pa.string(), pa.binary())]))
    lists = [row if row is None or pa.types.is_map(kind) else [{"n": name, "v": value} for name, value in row] for row in rows]
    column = pa.array(lists, kind)[first:last]
    values = as_binary(pa.array(["x"] * len(rows))[first:last])
    built = build_columns(binary_column(values), first=0, last=last - first, timestamps=0, headers=headers_column(column), size_max=1 << 20)
    assert [list(record[4]) for batch in built for record in records(batch)] == [row or [] for row in rows[first:last]]


def test_rows_know_their_index_in_the_table() -> None:
    assert RowSelection(2, 3, None, 10).numbers() == [12, 13, 14]
    assert RowSelection(1, 2, array("q", [5, 7, 9]).tobytes(), 100).numbers() == [107, 109]

"""Conversion of records to rows: inferred schemas, given schemas, and records that do not fit."""

import json
from typing import Any

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa

from ottla.client.arrow.columns import record_schema
from ottla.client.serializers import Avro
from ottla.lake.ddl import parse_schema
from ottla.lake.table.csv_rows import csv_values
from ottla.lake.table.delta import TableMismatch
from ottla.lake.table.json_rows import json_rows
from ottla.lake.table.parquet_files import aligned
from ottla.lake.table.rows import DecodedRows, Rows
from ottla.lake.table.schema import METADATA_COLUMNS, TableFormat, checked, infer_formats

NOTHING = pa.struct([])


def texts(*values: Any) -> pa.Array:
    return pa.array([value if value is None or isinstance(value, bytes) else json.dumps(value).encode() for value in values], pa.binary())


def read(*values: Any, known: Any = NOTHING, widens: bool = False) -> tuple[list[Any], list[int]]:
    found = json_rows(texts(*values), known, widens=widens)
    bad = [] if found.bad is None else [row for row, wrong in enumerate(found.bad.to_pylist()) if wrong]
    return found.array.to_pylist(), bad


def test_json_fields_have_inferred_types() -> None:
    assert read({"a": 1}, {"b": [1.5]}, None) == ([{"a": 1, "b": None}, {"a": None, "b": [1.5]}, None], [])


def test_text_that_looks_like_a_timestamp_stays_text() -> None:
    assert read({"at": "2026-01-01 00:00:00"}) == ([{"at": "2026-01-01 00:00:00"}], [])


def test_a_field_with_only_nulls_is_no_column_yet() -> None:
    found = json_rows(texts({"a": 1, "b": None, "c": [], "d": {"e": None}}), NOTHING)
    assert [field.name for field in found.array.type] == ["a"]


def test_a_value_that_is_no_object_or_does_not_fit_is_bad_alone() -> None:
    known = pa.struct([("a", pa.int64())])
    rows, bad = read(b"{", {"a": 1}, 7, {"a": "x"}, b"\xff", {"a": 2**70}, {"a": 2, "new": True}, known=known)
    assert bad == [0, 2, 3, 4, 5]
    assert [rows[1], rows[6]] == [{"a": 1, "new": None}, {"a": 2, "new": True}]


@pytest.mark.parametrize(
    "deep", [b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a":' * 2_000 + b"1" + b"}" * 2_000], ids=["lists", "objects"]
)
def test_a_value_that_is_nested_very_deeply_is_bad_alone(deep: bytes) -> None:
    """Arrow's parser recurses: such a record ended the process, at each start again."""
    assert read({"b": 1}, deep, {"b": 2}) == ([{"b": 1}, None, {"b": 2}], [1])


def test_a_new_field_with_two_types_gets_the_type_of_the_first() -> None:
    rows, bad = read({"n": 1}, {"n": 2}, {"n": "x"}, {"n": 3, "m": True}, {"n": {}}, {"n": 4})
    assert bad == [2, 4]
    assert [rows[place]["n"] for place in (0, 1, 3, 5)] == [1, 2, 3, 4] and rows[3]["m"] is True


def test_integers_become_doubles_only_if_allowed() -> None:
    known = pa.struct([("n", pa.int64()), ("s", pa.struct([("m", pa.int64())]))])
    values = [{"n": 1, "s": {"m": 1}}, {"n": 1.5, "s": {"m": 0.25}}]
    assert read(*values, known=known) == ([{"n": 1, "s": {"m": 1}}, None], [1])
    rows, bad = read(*values, known=known, widens=True)
    assert bad == [] and rows[1] == {"n": 1.5, "s": {"m": 0.25}}
    assert isinstance(rows[0]["n"], float)


def records(values: list[Any], keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    columns = {
        "key": keys or [None] * len(values),
        "value": texts(*values),
        "headers": [[]] * len(values),
        "partition": [0] * len(values),
        "offset": list(range(len(values))),
        "timestamp": [86_400_000] * len(values),
    }
    schema = record_schema(tuple(columns))
    return pa.RecordBatch.from_arrays([pa.array(columns[name], schema.field(name).type) for name in columns], schema=schema)


def rows_of(form: TableFormat, batch: pa.RecordBatch, **others: Any) -> DecodedRows:
    rows = Rows(form, **others)
    return rows.made(batch, rows.first_schema())


def test_reserved_or_invalid_column_names_are_replaced_consistently() -> None:
    batch = records([{"a": 1, "A": 2, "_key": 3, "x y": 4}])
    rows = Rows(TableFormat(value="json"))
    made = rows.made(batch, rows.first_schema())
    again = rows.made(batch, made.table.schema)
    assert again.table.equals(made.table)
    names = [name for name in made.table.column_names if not name.startswith("_")]
    assert names[0] == "a" and {name[:2] for name in names[1:]} == {"A_", "x_"} and made.table.column("_key").to_pylist() == [None]
    assert sorted(value for name in names for value in made.table.column(name).to_pylist()) == [1, 2, 4]


def test_avro_values_are_read_with_the_schema_of_their_id() -> None:
    fields = [{"name": "n", "type": "int"}, {"name": "t", "type": ["null", "string"]}]
    schemas = {number: json.dumps({"type": "record", "name": "R", "fields": fields[:number]}) for number in (1, 2)}
    first, second = Avro(schemas[1], schema_id=1), Avro(schemas[2], schema_id=2)
    values = [second.encode({"n": 5, "t": "x"}), first.encode({"n": 6}), b"\0\0\0\0\1", b"no", None, first.encode({"n": 7})]
    made = rows_of(TableFormat(value="avro", framed=True), records(values), schema_by_id=schemas.__getitem__)
    assert made.table.column("n").to_pylist() == [5, 6, None, None, None, 7]
    assert made.table.column("t").to_pylist() == ["x", None, None, None, None, None]
    assert made.table.column("_corrupt").to_pylist() == [None, None, b"\0\0\0\0\1", b"no", None, None] and made.corrupt == 2


def test_an_avro_value_with_an_unknown_schema_id_is_bad_alone() -> None:
    asked: list[int] = []

    def schema_by_id(number: int) -> str | None:
        asked.append(number)
        return schema if number == 1 else None

    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
    known = Avro(schema, schema_id=1).encode({"n": 5})
    rows = Rows(TableFormat(value="avro", framed=True), schema_by_id=schema_by_id)
    lost = b"\0\0\0\0\7\2"
    made = rows.made(records([lost, known, lost]), rows.first_schema())
    assert made.table.column("n").to_pylist() == [None, 5, None]
    assert made.table.column("_corrupt").to_pylist() == [lost, None, lost] and made.corrupt == 2
    assert rows.made(records([lost]), rows.first_schema()).corrupt == 1 and asked == [7, 1]


@pytest.mark.parametrize(
    "schema",
    [
        '{"$schema": "http://json-schema.org/draft-07/schema#"}',
        'syntax = "proto3"; message M {}',
        '{"type": "record", "name": "R", "fields": [{"name": "n", "type": ["int", "string"]}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "of.Another"}]}',
    ],
)
def test_an_avro_value_whose_schema_has_no_columns_is_bad_alone(schema: str) -> None:
    schemas = {1: json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}), 7: schema}
    rows = Rows(TableFormat(value="avro", framed=True), schema_by_id=schemas.get)
    foreign = b"\0\0\0\0\7\2"
    made = rows.made(records([foreign, Avro(schemas[1], schema_id=1).encode({"n": 5}), foreign]), rows.first_schema())
    assert made.table.column("n").to_pylist() == [None, 5, None]
    assert made.table.column("_corrupt").to_pylist() == [foreign, None, foreign] and made.corrupt == 2


def test_schemas_with_incompatible_types_of_a_field_are_an_error() -> None:
    schemas = {
        number: json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]})
        for number, kind in ((1, "long"), (2, "string"))
    }
    values = [Avro(schemas[1], schema_id=1).encode({"n": 5}), Avro(schemas[2], schema_id=2).encode({"n": "x"})]
    with pytest.raises(TableMismatch, match=r"schemas 1, 2 of the registry do not go into one table: .*\bn\b.*--schema"):
        rows_of(TableFormat(value="avro", framed=True), records(values), schema_by_id=schemas.__getitem__)


def test_csv_is_read_with_its_schema() -> None:
    lines = pa.array([b'1,"a, b",2026-01-01 10:00:00', b"2,,", b"x,c,", b"1,2", b"3,d,2026-01-01T00:00:00Z", None], pa.binary())
    found = csv_values(lines, pa.struct(list(parse_schema("id INT, name STRING, at TIMESTAMP"))))
    assert found.bad.to_pylist() == [False, False, True, True, False, False]
    shown = found.array.to_pylist()
    assert (shown[0]["id"], shown[0]["name"], shown[0]["at"].hour) == (1, "a, b", 10)
    assert shown[1] == {"id": 2, "name": "", "at": None} and shown[4]["id"] == 3


def test_a_schema_text_becomes_an_arrow_schema() -> None:
    found = parse_schema("id BIGINT, `a b`: ARRAY<STRUCT<x: DOUBLE, y DECIMAL(8,2)>>, m MAP<STRING, INT>")
    assert found.field("id").type == pa.int64() and found.field("m").type == pa.map_(pa.string(), pa.int32())
    assert found.field("a b").type.value_type == pa.struct([("x", pa.float64()), ("y", pa.decimal128(8, 2))])


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("id BIGINTT", "did you mean bigint", " where 'id BIGINTT' has 'BIGINTT'; types are string, "),
        ("id", "expected a type", " after 'id'; types are string, "),
        ("a INT b INT", "',' or the end", " where 'a INT b INT' has 'b INT'"),
    ],
)
def test_an_invalid_schema_text_is_marked_at_the_mistake(text: str, message: str, place: str) -> None:
    with pytest.raises(ValueError, match="expected ") as refused:
        parse_schema(text)
    assert message in str(refused.value)
    assert place in str(refused.value)


def test_the_format_is_the_first_that_fits_all_values() -> None:
    assert infer_formats([b"a", None], [b'{"a":1}', None, b" {}"]) == ("text", "json")
    assert infer_formats([b"\xff"], [b"{}", b"x"]) == ("raw", "text")
    assert infer_formats([], [b"\x00\x01"]) == ("text", "raw")
    assert infer_formats([], [b"\0\0\0\0\1x"], registry=True) == ("text", "avro")


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (TableFormat(value="jsn"), "did you mean json"),
        (TableFormat(value="csv"), "--schema"),
        (TableFormat(value="avro"), "--registry"),
        (TableFormat(columns=("ofset",)), "did you mean 'offset'|did you mean offset"),
        (TableFormat(mode="upsert", columns=("offset",)), "add key"),
        (TableFormat(value="text", schema="a INT"), "no schema"),
    ],
)
def test_an_invalid_format_is_refused(form: TableFormat, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked(form)


def test_rows_are_cast_to_the_columns_of_the_table_also_in_structs_and_lists() -> None:
    table = pa.table({"s": [{"x": 1}, None], "l": [[{"x": 1}], None]})
    members = pa.struct([("y", pa.string()), ("x", pa.float64())])
    target = pa.schema([("new", pa.int32()), ("s", members), ("l", pa.list_(pa.field("element", members)))])
    assert aligned(table.slice(0, 2), target).to_pylist() == [
        {"new": None, "s": {"y": None, "x": 1.0}, "l": [{"y": None, "x": 1.0}]},
        {"new": None, "s": None, "l": None},
    ]
    assert aligned(table.slice(1), target).to_pylist() == [{"new": None, "s": None, "l": None}]


def test_plain_tables_have_the_value_in_one_column() -> None:
    made = rows_of(TableFormat(value="text", key="int", by_date=True), records([b"a", b"\xff"], [b"\0\0\0\0\0\0\0\7", None]))
    assert made.table.column("value").to_pylist() == ["a", None] and made.table.column("_corrupt").to_pylist() == [None, b"\xff"]
    assert made.table.column("key").to_pylist() == [7, None] and str(made.table.column("record_date")[0]) == "1970-01-02"
    assert set(METADATA_COLUMNS) < set(made.table.column_names)

"""Values as typed columns, format by format, without Spark and brokers."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from ottla.client.schema_registry import RegistryFailed
from ottla.client.serializers import Avro
from ottla.lake.ddl import BadDdl
from ottla.spark.source.options import OptionError, SourceOptions
from ottla.spark.values.decode import columns_of

from .decoding import BASE, decoded, plan
from .schemas import AT, ONE, ORDER, ORDER_2, OTHER_ORDER, TWO, WITHOUT_COLUMNS


def test_json_fields_become_columns_of_their_types() -> None:
    text = b'{"id": 7, "at": "2026-05-17T10:05:03.250Z", "day": "2026-05-17", "price": 1.25, "tags": ["a"], "who": {"name": "x", "age": 3}}'
    schema = "id BIGINT, at TIMESTAMP, day DATE, price DECIMAL(10,2), tags ARRAY<STRING>, who STRUCT<name: STRING>"
    assert decoded([text], schema, valueFormat="json") == [
        {
            "id": 7,
            "at": datetime(2026, 5, 17, 10, 5, 3, 250000, UTC),
            "day": date(2026, 5, 17),
            "price": Decimal("1.25"),
            "tags": ["a"],
            "who": {"name": "x"},
        }
    ]


def test_a_value_can_be_a_struct_with_its_fields_and_its_bytes() -> None:
    made = plan("value STRUCT<id: INT>, name STRING, offset BIGINT", valueFormat="json")
    assert (made.decoded, made.read) == (("value", "name"), ("offset", "value"))
    assert plan("value BINARY, offset BIGINT", valueFormat="json").value is None, "nothing needs decoding"
    assert decoded([b'{"id": 1, "name": "n"}'], "value STRUCT<id: INT>, name STRING", valueFormat="json") == [
        {"value": {"id": 1}, "name": "n"}
    ]


@pytest.mark.parametrize(
    "bad", [b"{", b"", b'{"id": "seven"}', b"[1]", b'{"id": 1} {"id": 2}', b'{"id": 1} trailing', b'{"id": 1}, "x": 1', b"\xff"]
)
def test_json_that_does_not_match_the_schema_is_kept_as_bytes(bad: bytes) -> None:
    found = decoded([b'{"id": 1}', bad, None], "id INT, _corrupt BINARY", valueFormat="json")
    assert found == [{"id": 1, "_corrupt": None}, {"id": None, "_corrupt": bad}, {"id": None, "_corrupt": None}]


def test_a_read_without_a_schema_has_the_whole_value_and_corrupt_bytes() -> None:
    names = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert plan(None, valueFormat="json", valueSchema="id INT").names == (*names, "_corrupt")
    assert plan(None, valueFormat="json", valueSchema="id INT", valueMode="failfast").names == names


@pytest.mark.parametrize(
    ("schema", "options", "sentence"),
    [
        ("ofset BIGINT, id INT", {"valueSchema": "id INT"}, "column 'ofset'"),
        ("id STRING", {"valueSchema": "id INT"}, "field id of the value is int, not string"),
        ("value STRING", {}, "a STRUCT of fields, or BINARY"),
        ("_corrupt STRING", {"valueSchema": "id INT"}, "_corrupt must be BINARY"),
        ("_corrupt BINARY", {}, "valueSchema is missing"),
        ("offset STRING", {"valueSchema": "id INT"}, "column offset is BIGINT"),
    ],
)
def test_a_schema_with_unsupported_types_is_refused(schema: str, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        plan(schema, valueFormat="json", **options)


def test_maps_of_json_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="field m: the source cannot decode JSON to map"):
        decoded([b"{}"], "m MAP<STRING, INT>", valueFormat="json")


def test_csv_fields_fill_the_columns_of_the_schema_in_order() -> None:
    given = [b"1,a,2026-05-17,1.5,true,2026-05-17T10:00:00", b'2,"b, ""c""",,,,', b'3,"two\nlines",,,false,2026-05-17 12:00:00+02:00', None]
    found = decoded(
        given, "name STRING, id INT, _corrupt BINARY, at TIMESTAMP, ok BOOLEAN", valueFormat="csv",
        valueSchema="id INT, name STRING, day DATE, x DOUBLE, ok BOOLEAN, at TIMESTAMP",
    )  # fmt: skip
    at = datetime(2026, 5, 17, 10, tzinfo=UTC)
    assert [tuple(row.values()) for row in found] == [
        ("a", 1, None, at, True),
        ('b, "c"', 2, None, None, None),
        ("two\nlines", 3, None, at, False),
        (None, None, None, None, None),
    ]


@pytest.mark.parametrize("bad", [b"1", b"1,a,b", b"x,a", b'1,"a', b"1,a\n2,b", b"\xff,a"])
def test_a_csv_row_that_does_not_match_the_schema_is_kept_as_bytes(bad: bytes) -> None:
    found = decoded([b"1,a", bad, b"3,c"], "id INT, name STRING, _corrupt BINARY", valueFormat="csv")
    assert found == [
        {"id": 1, "name": "a", "_corrupt": None},
        {"id": None, "name": None, "_corrupt": bad},
        {"id": 3, "name": "c", "_corrupt": None},
    ]


def test_csv_can_have_another_separator_and_null_text() -> None:
    found = decoded([b"1;-;x"], "a INT, b STRING, c STRING", valueFormat="csv", valueSeparator=";", valueNull="-")
    assert found == [{"a": 1, "b": None, "c": "x"}]
    assert decoded([b"0", b"1"], "a INT, _corrupt BINARY", valueFormat="csv", valueNull="0") == [
        {"a": None, "_corrupt": None},
        {"a": 1, "_corrupt": None},
    ]


def test_avro_gives_the_columns_of_its_schema() -> None:
    given = [Avro(ORDER).encode(ONE), b"\x02", None]
    found = decoded(given, None, valueFormat="avro", valueSchema=json.dumps(ORDER))
    assert found == [
        {"value": {**ONE, "attributes": [("a", 1)]}, "_corrupt": None},
        {"value": None, "_corrupt": b"\x02"},
        {"value": None, "_corrupt": None},
    ]
    assert decoded(given[:1], "id INT, value STRUCT<note: STRING>", valueFormat="avro", valueSchema=json.dumps(ORDER)) == [
        {"id": 1, "value": {"note": "n"}}
    ]


@pytest.mark.server
def test_framed_avro_is_read_with_the_schema_of_each_value(registry: str) -> None:
    one, two = Avro(ORDER, schema_id=1).encode(ONE), Avro(ORDER_2, schema_id=2).encode(TWO)
    unknown, plain = b"\0\0\0\0\x09x", b"{}"
    found = decoded([two, one, unknown, None, plain, one], None, valueFormat="avro", schema__registry__url=registry)
    assert [row["_corrupt"] for row in found] == [None, None, unknown, None, plain, None]
    assert [row["value"] and (row["value"]["id"], row["value"]["more"]) for row in found] == [
        (2, "m"),
        (1, None),
        None,
        None,
        None,
        (1, None),
    ]


@pytest.mark.server
def test_framed_avro_of_one_schema_is_read_as_one_block(registry: str) -> None:
    two = Avro(ORDER_2, schema_id=2).encode(TWO)
    assert decoded([two, two], "more STRING", valueFormat="avro", schema__registry__url=registry) == [{"more": "m"}] * 2


@pytest.mark.server
@pytest.mark.parametrize("schema_id", [3, *WITHOUT_COLUMNS])
def test_only_values_with_an_incompatible_schema_are_bad(registry: str, schema_id: int) -> None:
    two = Avro(ORDER_2, schema_id=2).encode(TWO)
    foreign = b"\0\0\0\0" + bytes([schema_id]) + b"\x02x"
    if schema_id == 3:
        foreign = Avro(OTHER_ORDER, schema_id=3).encode({"id": "three", "at": AT, "attributes": {}})
    for given in ([foreign], [two, foreign, None, foreign], [foreign, two]):
        found = decoded(given, "id BIGINT, more STRING, _corrupt BINARY", valueFormat="avro", schema__registry__url=registry)  # type: ignore[arg-type]
        assert [row["_corrupt"] for row in found] == [foreign if value == foreign else None for value in given]
        assert [row["id"] for row in found] == [2 if value == two else None for value in given]


@pytest.mark.server
def test_numbers_of_another_schema_are_widened_and_too_large_ones_are_bad(registry: str) -> None:
    new = [Avro(ORDER_2, schema_id=2).encode({**TWO, "id": number}) for number in (7, 1 << 40, 8, 9, -(1 << 31) - 1)]
    options = {"valueFormat": "avro", "schema__registry__url": registry}
    found = decoded([*new, Avro(ORDER, schema_id=1).encode(ONE)], None, **options)
    assert [row["value"]["id"] for row in found] == [7, 1 << 40, 8, 9, -(1 << 31) - 1, 1]
    # The query's columns have an older schema.
    narrow = decoded(new, None, valueSubject="older-value", **options)  # type: ignore[arg-type]
    assert [row["value"] and row["value"]["id"] for row in narrow] == [7, None, 8, 9, None]
    assert [row["_corrupt"] for row in narrow] == [None, new[1], None, None, new[4]]


@pytest.mark.server
@pytest.mark.parametrize(("subject", "sentence"), [("none", "no subject none"), ("json-value", "is JSON, not Avro")])
def test_a_schema_missing_in_the_registry_is_named(registry: str, subject: str, sentence: str) -> None:
    with pytest.raises(RegistryFailed, match=sentence):
        plan(None, valueFormat="avro", schema__registry__url=registry, valueSubject=subject)


def test_protobuf_gives_the_columns_of_its_message(descriptors: Path) -> None:
    from ottla.spark.values.protobuf import message_class

    made = message_class(descriptors.read_bytes(), "shop.Order")
    whole = made(id=7, tags=["a", "b"], kind=1, counts={"x": 2})
    whole.at.FromDatetime(AT)
    given = [whole.SerializeToString(), b"", b"\xff\xff", None, made(id=1 << 63).SerializeToString()]
    found = decoded(given, None, valueFormat="protobuf", valueDescriptor=str(descriptors), valueMessage="shop.Order")
    assert [row["value"] for row in found] == [
        {"id": 7, "tags": ["a", "b"], "kind": "OLD", "at": AT, "counts": [("x", 2)]},
        {"id": 0, "tags": [], "kind": "NEW", "at": None, "counts": []},
        None,
        None,
        None,
    ]
    assert [row["_corrupt"] for row in found] == [None, None, b"\xff\xff", None, given[4]]


def test_a_message_missing_in_the_descriptors_is_refused_with_the_existing_ones(descriptors: Path) -> None:
    with pytest.raises(ValueError, match=r"no message Order; they have google.protobuf.Timestamp, shop.Order"):
        plan(None, valueFormat="protobuf", valueDescriptor=str(descriptors), valueMessage="Order")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"valueSchema": "id INT"}, "needs valueFormat"),
        ({"valueFormat": "xml"}, "json or avro or csv or protobuf"),
        ({"valueFormat": "json", "valueMode": "lax"}, "permissive or dropmalformed or failfast"),
        ({"valueFormat": "json", "valueSeparator": ";"}, "does not apply to json"),
        ({"valueFormat": "csv", "valueSeparator": ";;"}, "expected one character"),
        ({"valueFormat": "avro"}, "its schema as JSON, or schema.registry.url"),
        ({"valueFormat": "protobuf", "valueDescriptor": "x"}, "valueMessage: is missing"),
    ],
)
def test_invalid_value_options_are_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as refused:
        SourceOptions.of({**BASE, **options}, streaming=True)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("id BIGINT", "struct<id:bigint>"),
        ("`a b` INT, c: STRING", "struct<a b:int,c:string>"),
        ("a DECIMAL(12, 3), b DECIMAL, c ARRAY<STRUCT<d: MAP<STRING, TIMESTAMP_NTZ>>>",
         "struct<a:decimal(12,3),b:decimal(10,0),c:array<struct<d:map<string,timestamp_ntz>>>>"),
    ],
)  # fmt: skip
def test_columns_are_parsed_from_ddl(text: str, simple: str) -> None:
    assert columns_of(text).simpleString() == simple


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("id BIGNIT", "did you mean bigint"),
        ("id", "expected a type after"),
        ("id INT)", "expected ',' or the end where 'id INT\\)' has '\\)'"),
        ("a ARRAY<INT", "expected '>'"),
    ],
)
def test_invalid_ddl_is_refused_with_its_position(text: str, sentence: str) -> None:
    with pytest.raises(BadDdl, match=sentence):
        columns_of(text)

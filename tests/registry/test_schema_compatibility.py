"""Which schemas may follow which: Avro, JSON Schema and Protobuf. Each case is (what changes, old, new, kinds of the differences)."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from ottla.registry.compatibility import level_incompatibilities
from ottla.registry.errors import InvalidSchema
from ottla.registry.formats import budget
from ottla.registry.formats.json_schema import KEYWORDS
from ottla.registry.formats.parse import ParsedSchema, parse_schema
from ottla.registry.records import AVRO, JSON, PROTOBUF


def parsed(kind: str, schema: Any, **how: Any) -> ParsedSchema:
    return parse_schema(kind, schema if isinstance(schema, str) else json.dumps(schema), **how)


def kinds(kind: str, old: Any, new: Any) -> set[str]:
    """The kinds of differences that a reader with the new schema has."""
    found = parsed(kind, new).incompatibilities(parsed(kind, old))
    return {match[1] for one in found if (match := re.match(r"\{errorType:['\"](\w+)", one))}


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "namespace": "n", "fields": [{"name": "f", "type": one} if not isinstance(one, dict) or "name"
            not in one or "fields" in one or "symbols" in one else one for one in fields], **more}  # fmt: skip


AB = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
AVRO_CASES: list[tuple[str, Any, Any, set[str]]] = [
    ("int to long", "int", "long", set()),
    ("long to int", "long", "int", {"TYPE_MISMATCH"}),
    ("float to double", record("float"), record("double"), set()),
    ("bytes to string", "bytes", "string", set()),
    ("a field with a default", record(), record({"name": "x", "type": "int", "default": 1}), set()),
    ("a field without a default", record(), record({"name": "x", "type": "int"}), {"READER_FIELD_MISSING_DEFAULT_VALUE"}),
    ("a removed field", record("int"), record(), set()),
    ("a renamed field", record("int"), record({"name": "g", "type": "int", "aliases": ["f"]}), set()),
    ("a renamed record", record(), {**record(), "name": "S"}, {"NAME_MISMATCH"}),
    ("a record with an alias", record(), {**record(), "name": "S", "aliases": ["R"]}, set()),
    ("another namespace", record(), {**record(), "namespace": "m"}, set()),
    ("null permitted", "int", ["null", "int"], set()),
    ("null no longer permitted", ["null", "int"], "int", {"TYPE_MISMATCH"}),
    ("a smaller union", ["int", "string", "boolean"], ["int", "string"], {"MISSING_UNION_BRANCH"}),
    ("a union of wider types", ["int"], ["long"], set()),
    ("a symbol more", AB, {**AB, "symbols": ["A", "B", "C"]}, set()),
    ("a symbol less", AB, {**AB, "symbols": ["A"]}, {"MISSING_ENUM_SYMBOLS"}),
    ("a symbol less with a default", AB, {**AB, "symbols": ["A"], "default": "A"}, set()),
    ("another size", {"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, {"FIXED_SIZE_MISMATCH"}),
    ("items of an array", {"type": "array", "items": "long"}, {"type": "array", "items": "int"}, {"TYPE_MISMATCH"}),
    ("values of a map", {"type": "map", "values": "int"}, {"type": "map", "values": "long"}, set()),
    ("a recursive type", record(["null", "n.R"]), record(["null", "n.R"], {"name": "x", "type": "int", "default": 0}), set()),
    ("a recursive type with a change", record(["null", "n.R"]), record(["null", "n.R"], {"name": "x", "type": "int"}),
     {"READER_FIELD_MISSING_DEFAULT_VALUE"}),
]  # fmt: skip


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def opened(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
JSON_CASES: list[tuple[str, Any, Any, set[str]]] = [
    ("integer to number", {"type": "integer"}, NUMBER, set()),
    ("number to integer", NUMBER, {"type": "integer"}, {"TYPE_NARROWED"}),
    ("another type", NUMBER, TEXT, {"TYPE_CHANGED"}),
    ("one more type", TEXT, {"type": ["string", "null"]}, set()),
    ("one type less", {"type": ["string", "null"]}, TEXT, {"TYPE_CHANGED"}),
    ("a longer text", {**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 6}, set()),
    ("a shorter text", {**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 4}, {"MAX_LENGTH_DECREASED"}),
    ("a minimum", NUMBER, {**NUMBER, "minimum": 0}, {"MINIMUM_ADDED"}),
    ("a divisor", {**NUMBER, "multipleOf": 10}, {**NUMBER, "multipleOf": 5}, set()),
    ("a multiple", {**NUMBER, "multipleOf": 5}, {**NUMBER, "multipleOf": 10}, {"MULTIPLE_OF_EXPANDED"}),
    ("a pattern", TEXT, {**TEXT, "pattern": "^a"}, {"PATTERN_ADDED"}),
    ("an enum's value", {"enum": ["a"]}, {"enum": ["a", "b"]}, set()),
    ("an enum's value less", {"enum": ["a", "b"]}, {"enum": ["a"]}, {"ENUM_ARRAY_NARROWED"}),
    ("a property in a closed model", closed(a=TEXT), closed(a=TEXT, b=TEXT), set()),
    ("a property in an open model", opened(a=TEXT), opened(a=TEXT, b=TEXT), {"PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"}),
    ("a property less in a closed model", closed(a=TEXT, b=TEXT), closed(a=TEXT), {"PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"}),
    ("a property less in an open model", opened(a=TEXT, b=TEXT), opened(a=TEXT), set()),
    ("a closed model", opened(a=TEXT), closed(a=TEXT), {"ADDITIONAL_PROPERTIES_REMOVED"}),
    ("a required name", closed(a=TEXT), {**closed(a=TEXT), "required": ["a"]}, {"REQUIRED_ATTRIBUTE_ADDED"}),
    ("a required name with a default", closed(a=TEXT), {**closed(a={**TEXT, "default": ""}), "required": ["a"]}, set()),
    ("a part of oneOf", {"oneOf": [TEXT, NUMBER]}, {"oneOf": [NUMBER, {"type": "null"}, TEXT]}, set()),
    ("a part of oneOf less", {"oneOf": [TEXT, NUMBER]}, {"oneOf": [TEXT]}, {"SUM_TYPE_NARROWED"}),
    ("a part of allOf", {"allOf": [TEXT]}, {"allOf": [TEXT, {"maxLength": 3}]}, {"PRODUCT_TYPE_EXTENDED"}),
    ("items", {"type": "array", "items": NUMBER}, {"type": "array", "items": TEXT}, {"TYPE_CHANGED"}),
    ("unique items", {"type": "array"}, {"type": "array", "uniqueItems": True}, {"UNIQUE_ITEMS_ADDED"}),
    ("a referenced definition", {"$ref": "#/$defs/a", "$defs": {"a": TEXT}}, {"$ref": "#/definitions/b", "definitions": {"b": NUMBER}},
     {"TYPE_CHANGED"}),
    ("a recursive definition", {"$defs": {"n": opened(next={"$ref": "#/$defs/n"}, v=NUMBER)}, "$ref": "#/$defs/n"},
     {"$defs": {"n": opened(next={"$ref": "#/$defs/n"}, v=TEXT)}, "$ref": "#/$defs/n"}, {"TYPE_CHANGED"}),
]  # fmt: skip


def proto(body: str, *, package: str = "shop", syntax: str = "proto3", extra: str = "") -> str:
    return f'syntax = "{syntax}"; package {package}; message M {{ {body} }} {extra}'


PROTOBUF_CASES: list[tuple[str, str, str, set[str]]] = [
    ("a new field", proto("int32 a = 1;"), proto("int32 a = 1; string b = 2;"), set()),
    ("a removed field", proto("int32 a = 1; string b = 2;"), proto("int32 a = 1;"), set()),
    ("a renamed field", proto("int32 a = 1;"), proto("int32 b = 1;"), set()),
    ("a wider number", proto("int32 a = 1;"), proto("int64 a = 1;"), set()),
    ("another wire type", proto("int32 a = 1;"), proto("sint32 a = 1;"), {"FIELD_SCALAR_KIND_CHANGED"}),
    ("a message for a number", proto("int32 a = 1;"), proto("M a = 1;"), {"FIELD_KIND_CHANGED"}),
    ("another message", proto("A a = 1;", extra="message A{} message B{}"), proto("B a = 1;", extra="message A{} message B{}"),
     {"FIELD_NAMED_TYPE_CHANGED"}),
    ("a removed message", proto("", extra="message A{}"), proto(""), {"MESSAGE_REMOVED"}),
    ("another package", proto(""), proto("", package="other"), {"PACKAGE_CHANGED"}),
    ("a field in a oneof", proto("oneof o { int32 a = 1; }"), proto("oneof o { int32 a = 1; int32 b = 2; }"), set()),
    ("a field less in a oneof", proto("oneof o { int32 a = 1; int32 b = 2; }"), proto("oneof o { int32 a = 1; }"), {"ONEOF_FIELD_REMOVED"}),
    ("two fields into a oneof", proto("int32 a = 1; int32 b = 2;"), proto("oneof o { int32 a = 1; int32 b = 2; }"),
     {"MULTIPLE_FIELDS_MOVED_TO_ONEOF"}),
    ("values of a map", proto("map<string, int32> a = 1;"), proto("map<string, string> a = 1;"), {"FIELD_SCALAR_KIND_CHANGED"}),
    ("a required field", proto("", syntax="proto2"), proto("required int32 a = 1;", syntax="proto2"), {"REQUIRED_FIELD_ADDED"}),
    ("a change in a nested message", proto("N n = 1; message N { int32 a = 1; }"), proto("N n = 1; message N { string a = 1; }"),
     {"FIELD_SCALAR_KIND_CHANGED", "FIELD_NAMED_TYPE_CHANGED"}),
]  # fmt: skip


def _named(cases: list[tuple[str, Any, Any, set[str]]]) -> list[Any]:
    return [pytest.param(*one[1:], id=one[0]) for one in cases]


@pytest.mark.parametrize(("old", "new", "expected"), _named(AVRO_CASES))
def test_avro(old: Any, new: Any, expected: set[str]) -> None:
    assert kinds(AVRO, old, new) == expected


@pytest.mark.parametrize(("old", "new", "expected"), _named(JSON_CASES))
def test_json_schema(old: Any, new: Any, expected: set[str]) -> None:
    found = kinds(JSON, old, new)
    assert found >= expected and bool(found) == bool(expected)


@pytest.mark.parametrize(("old", "new", "expected"), _named(PROTOBUF_CASES))
def test_protobuf(old: str, new: str, expected: set[str]) -> None:
    pytest.importorskip("grpc_tools")
    assert kinds(PROTOBUF, old, new) == expected


@pytest.mark.parametrize(
    ("level", "given", "permitted"),
    [
        ("NONE", ["string", "int"], True),
        ("BACKWARD", ["int", "long"], True),
        ("BACKWARD", ["long", "int"], False),
        ("BACKWARD", ["string", "int", "long"], True),
        ("BACKWARD_TRANSITIVE", ["string", "int", "long"], False),
        ("FORWARD", ["long", "int"], True),
        ("FORWARD", ["int", "long"], False),
        ("FORWARD_TRANSITIVE", ["string", "long", "int"], False),
        ("FULL", ["int", "long"], False),
        ("FULL", ["bytes", "string"], True),
        ("FULL_TRANSITIVE", ["int", "bytes", "string"], False),
    ],
)
def test_levels(level: str, given: list[str], permitted: bool) -> None:
    *earlier, new = (parsed(AVRO, json.dumps(one)) for one in given)
    reasons = level_incompatibilities(level, new, earlier)
    assert (not reasons) == permitted
    if reasons:
        assert reasons[-1] == f"{{compatibility: '{level}'}}"


def test_a_schema_of_another_type_may_follow_only_without_checks() -> None:
    new, old = parsed(JSON, TEXT), parsed(AVRO, '"string"')
    assert level_incompatibilities("BACKWARD", new, [old]) and not level_incompatibilities("NONE", new, [old])


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        (' {"type": "int"} ', '"int"'),
        ('{"type": "long", "logicalType": "timestamp-millis"}', '{"type":"long","logicalType":"timestamp-millis"}'),
        (
            '{"name":"n.R","doc":"d","x":1,"type":"record","fields":[{"type":"n.E","default":"A","name":"a"}]}'.replace(
                '"n.E"', '{"symbols":["A"],"name":"E","type":"enum"}'
            ),
            '{"type":"record","name":"R","namespace":"n","doc":"d","fields":[{"name":"a","type":{"type":"enum","name":"E","symbols":["A"]},'
            '"default":"A"}],"x":1}',
        ),
    ],
)
def test_avro_is_stored_in_javas_form(given: str, canonical: str) -> None:
    assert parsed(AVRO, given).text == canonical


@pytest.mark.parametrize(
    ("kind", "schema", "why"),
    [
        (AVRO, "nope{", "not JSON"),
        (AVRO, '"n.Unknown"', "Undefined name"),
        (AVRO, record({"name": "x", "type": "int", "default": "one"}), "Invalid default for field x"),
        (AVRO, record({"name": "x", "type": "int"}, {"name": "x", "type": "int"}), "Duplicate field x"),
        (AVRO, ["int", "int"], "Duplicate in union"),
        (AVRO, {"type": "enum", "name": "E", "symbols": ["A", "A"]}, "Duplicate enum symbol"),
        (AVRO, {"type": "record", "name": "a-b", "fields": []}, "Illegal character"),
        (JSON, "[]", "object, true or false"),
        (JSON, {"type": "text"}, "not a JSON schema"),
        (JSON, {"$ref": "#/$defs/missing"}, "is not found"),
        (PROTOBUF, 'syntax = "proto3"; message M { Unknown a = 1; }', 'line 1: "Unknown" is not defined'),
        ("THRIFT", "struct A {}", "Invalid schema type THRIFT"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(kind: str, schema: Any, why: str) -> None:
    if kind == PROTOBUF:
        pytest.importorskip("grpc_tools")
    with pytest.raises(InvalidSchema, match=re.escape(why)):
        parsed(kind, schema, is_new=True)


def test_the_import_of_a_reference_cannot_leave_its_directory() -> None:
    pytest.importorskip("grpc_tools")
    with pytest.raises(InvalidSchema, match="path of an import"):
        parsed(PROTOBUF, 'syntax = "proto3";', imports=[("../../x.proto", 'syntax = "proto3";')])


def test_protobuf_is_kept_as_text_and_printed_from_a_descriptor() -> None:
    pytest.importorskip("grpc_tools")
    text = """// An order.
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
option java_package = "com.shop";
message Order {
  reserved 9, 12 to 15;
  reserved "old";
  optional int64 id = 1;
  map<string, int32> counts = 2;
  oneof price { double exact = 3; string told = 4 [deprecated = true]; }
  repeated Kind kinds = 5 [json_name = "theKinds"];
  google.protobuf.Timestamp at = 6;
  enum Kind { NONE = 0; SOME = 1; }
  message Line { string sku = 1; }
}
service Orders { rpc Get(Order) returns (stream Order); }
"""
    schema = parsed(PROTOBUF, text)
    assert schema.text == text
    again = parsed(PROTOBUF, schema.print("serialized"))
    assert again.is_equivalent(schema) and again.text.startswith('syntax = "proto3";\npackage shop;')
    assert parsed(PROTOBUF, text, normalized=True).text == again.text


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(?=x)(a+)+$"])
def test_a_regular_expression_of_a_schema_takes_no_long_time(pattern: str) -> None:
    """With Python's engine the first two take years; RE2 does not know the third."""
    old = {"type": "object", "patternProperties": {pattern: {"type": "string"}}, "additionalProperties": {"type": "number"}}
    named = {**old, "properties": {"a" * 200 + "!": {"type": "number"}}}
    assert kinds(JSON, old, named) == set()


# What a schema may cost.


def doubled(kind: str, depth: int, leaf: str) -> Any:
    """A type with two fields of a type with two fields, and so on."""
    if kind == AVRO:
        made: Any = {"type": "record", "name": "L", "fields": [{"name": "x", "type": leaf}]}
        for level in range(depth):
            made = {"type": "record", "name": f"R{level}", "fields": [{"name": "a", "type": made}, {"name": "b", "type": made["name"]}]}
        return made
    if kind == JSON:
        levels = {f"d{n}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/d{n + 1}"} for name in "ab"}} for n in range(depth)}
        return {"$defs": {**levels, f"d{depth}": {"type": leaf}}, "$ref": "#/$defs/d0"}
    return proto(f"message M0 {{ {leaf} x = 1; }}" + "".join(f"message M{n + 1} {{ M{n} a = 1; M{n} b = 2; }}" for n in range(depth)))


@pytest.mark.parametrize(("kind", "old", "new"), [(AVRO, "int", "string"), (JSON, "string", "number"), (PROTOBUF, "int32", "string")])
def test_a_small_schema_with_very_many_paths_is_compared_or_refused_at_once(kind: str, old: str, new: str) -> None:
    """50 levels have 2^50 paths. Equal ones are compared once each; of different ones there are too many differences."""
    before = parsed(kind, doubled(kind, 50, old))
    assert level_incompatibilities("FULL", parsed(kind, doubled(kind, 50, old)), [before]) == []
    with pytest.raises(InvalidSchema, match="too complex"):
        level_incompatibilities("FULL", parsed(kind, doubled(kind, 50, new)), [before])
    assert kinds(kind, doubled(kind, 3, old), doubled(kind, 3, new))


def test_nested_messages_are_compared_once_per_message() -> None:
    """A message is a field's type and a part of the message around it, at each level."""
    text = proto("".join(f"message M{n} {{ " for n in range(30)) + "".join(f"}} optional M{n} f = 1;" for n in range(29, 0, -1)) + "}")
    assert parsed(PROTOBUF, text).incompatibilities(parsed(PROTOBUF, text)) == []


def test_a_union_of_very_many_types_is_compared_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each type with each one were 100 million comparisons, and 5 GB."""
    monkeypatch.setattr(budget, "STEPS_MAX", 30_000)
    union = [{"type": "fixed", "name": f"n.F{number}", "size": 1} for number in range(10_000)]
    assert kinds(AVRO, union, [*union, "null"]) == set() and kinds(AVRO, union, union[1:]) == {"MISSING_UNION_BRANCH"}
    renamed = {**union[0], "name": "m.G", "aliases": ["n.F0"]}
    assert kinds(AVRO, union, [*union[1:], renamed]) == set()
    assert kinds(AVRO, [union[0], "int"], [{**union[0], "name": "other.F0"}, "long"]) == set()


def test_regular_expressions_of_very_many_properties_are_limited() -> None:
    old = closed(**{f"p{number}": {"type": "string"} for number in range(1_000)})
    new = {**closed(), "patternProperties": {f"q{number}": {"type": "string"} for number in range(1_000)}}
    with pytest.raises(InvalidSchema, match="too complex"):
        kinds(JSON, old, new)


OPTION = 'syntax = "proto2"; import "google/protobuf/descriptor.proto"; message T { optional T a = 1; } \
extend google.protobuf.FileOptions { optional T my = 50000; } option (my) = { %s };'


@pytest.mark.parametrize(
    "text",
    [
        OPTION % ("a <" * 100_000 + ">" * 100_000),
        OPTION % ("a {" * 100_000 + "}" * 100_000),
        OPTION % ('a < /* > */ # ">" \n' * 200 + ">" * 200),
        "message M {" + "optional group A = 1 {" * 4_000 + "}" * 4_001,
        "}" * 1_000 + "message A {" * 1_000,
    ],
    ids=["angle brackets", "braces", "hidden brackets", "groups", "brackets that close nothing"],
)
def test_a_protobuf_schema_that_is_nested_very_deeply_does_not_reach_protoc(text: str) -> None:
    """It would end the process: protoc's stack overflows, or it takes all memory."""
    with pytest.raises(InvalidSchema, match="levels of brackets"):
        parsed(PROTOBUF, text)


def test_brackets_in_comments_and_literals_are_no_levels() -> None:
    text = proto(f'// {"{" * 200}\n/* {"<" * 200} */ message M {{ string a = 1 [json_name = "{"[" * 200}"]; }}')
    assert parsed(PROTOBUF, text).text == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("\n" * 300_000 + "x", "Expected top-level statement"),
        ("x;" * 100_000, "Expected top-level statement"),
        ("//" + "x" * 2**20, "at most 1048576 characters"),
    ],
    ids=["empty lines", "errors", "size"],
)
def test_a_large_protobuf_schema_is_refused_in_little_time_and_text(text: str, why: str) -> None:
    """The search for its syntax took time of the square of the empty lines: 17 s for 50 KB."""
    with pytest.raises(InvalidSchema, match=why) as refused:
        parsed(PROTOBUF, text)
    assert len(str(refused.value)) < 10_000


@pytest.mark.parametrize("name", ["a" * 300, "b.proto/c", "\ud800"])
def test_a_reference_that_cannot_be_a_file_is_refused(name: str) -> None:
    with pytest.raises(InvalidSchema, match="cannot be a file"):
        parsed(PROTOBUF, proto("message A {}"), imports=[("b.proto", proto("")), (name, proto(""))])


def test_an_avro_schema_with_very_many_names_is_parsed_in_little_time() -> None:
    """Each name was looked up among all before: 30 s for 500 KB."""
    names = [f"f{number}" for number in range(30_000)]
    parsed(AVRO, record(*({"name": name, "type": "int"} for name in names)))
    parsed(AVRO, {"type": "enum", "name": "E", "symbols": names})
    parsed(AVRO, [{"type": "fixed", "name": name, "size": 1} for name in names])


def test_a_multiple_that_decimal_numbers_cannot_express_is_a_change() -> None:
    assert kinds(JSON, {"multipleOf": 1e308}, {"multipleOf": 1e-300}) == {"MULTIPLE_OF_CHANGED"}


def test_a_descriptor_that_contradicts_itself_is_refused() -> None:
    """A field of the oneof number 7, of which there is none."""
    field = b"\x0a\x01a\x18\x01\x20\x01\x28\x05\x48\x07"
    message = b"\x0a\x01M\x12" + bytes([len(field)]) + field
    with pytest.raises(InvalidSchema, match="contradicts itself"):
        parsed(PROTOBUF, b64encode(b"\x22" + bytes([len(message)]) + message).decode())


def test_a_meta_schema_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="must be a text"):
        parsed(JSON, {"$schema": {}}, is_new=True)


@pytest.mark.parametrize("value", [None, True, 1, "x", "^(", [], [1], [None], {"a": None}, {"a": [1]}, [[]]])
@pytest.mark.parametrize("wrap", [lambda schema: schema, lambda schema: {"properties": {"a": schema}}, lambda schema: {"items": schema}])
def test_a_keyword_with_a_value_of_a_wrong_type_is_compared_or_refused(wrap: Callable[[Any], Any], value: Any) -> None:
    """Schemas that are imported are not checked when they are stored."""
    known = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"type": "array", "items": {"maximum": 3}}}}
    refused = 0
    for keyword in [
        *chain(*KEYWORDS.values()),
        "type",
        "enum",
        "$ref",
        "$id",
        "allOf",
        "not",
        "definitions",
        "$defs",
        "$schema",
        "$anchor",
    ]:
        one = parsed(JSON, wrap({keyword: value}))
        for other in (parsed(JSON, known), parsed(JSON, wrap({keyword: 2})), parsed(JSON, wrap({keyword: {"a": {}}}))):
            for reader, writer in ((one, other), (other, one)):
                try:
                    assert isinstance(reader.incompatibilities(writer), list)
                except InvalidSchema:
                    refused += 1
    assert refused > 0


def test_a_new_schema_with_a_wrong_value_of_another_draft_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="a keyword has a value that it cannot have"):
        parsed(JSON, {"prefixItems": None}, is_new=True)


def test_a_number_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="NaN is not a number of JSON"):
        parsed(JSON, '{"multipleOf": NaN}')

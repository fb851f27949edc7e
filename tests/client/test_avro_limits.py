"""Avro values that would cost their reader its stack, its memory or its time are refused; all others are read."""

import random
from typing import Any

import pytest

pytest.importorskip("fastavro")
from ottla.client.serializers import Avro
from ottla.client.values.avro_limits import DEPTH_MAX, TYPES_MAX, AvroLimits

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
TREE = {
    "type": "record",
    "name": "n.Tree",
    "fields": [{"name": "leaf", "type": "string"}, {"name": "kids", "type": {"type": "array", "items": "Tree"}}],
}
EMPTY = {"type": "record", "name": "E", "fields": [{"name": "x", "type": "null"}]}


def array_of(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def doubled(levels: int) -> dict[str, Any]:
    """A record with two fields of a record with two fields of a record, and so on, of nulls in the end."""
    made: dict[str, Any] = EMPTY
    for level in range(levels):
        made = {"type": "record", "name": f"R{level}", "fields": [{"name": "a", "type": made}, {"name": "b", "type": made["name"]}]}
    return made


@pytest.mark.parametrize("length", [5_000, 1_000_000])
def test_a_value_that_is_nested_very_deeply_does_not_end_the_process(length: int) -> None:
    with pytest.raises(ValueError, match="levels deep"):
        Avro(NODE).decode(b"\2" * length + b"\0")


def test_values_of_recursive_types_are_read() -> None:
    node: Any = None
    for _ in range(DEPTH_MAX // 2 - 1):
        node = {"next": node}
    assert Avro(NODE).decode(Avro(NODE).encode(node)) == node
    tree = {"leaf": "a", "kids": [{"leaf": "b" * 200, "kids": []}] * 1_000}
    assert Avro(TREE).decode(Avro(TREE).encode(tree)) == tree


@pytest.mark.parametrize(
    "items", ["null", EMPTY, {"type": "fixed", "name": "F", "size": 0}, doubled(3)], ids=["null", "record", "fixed", "records"]
)
def test_an_array_of_very_many_items_without_bytes_is_refused(items: Any) -> None:
    avro = Avro(array_of(items))
    with pytest.raises(ValueError, match=f"more than {TYPES_MAX}"):
        avro.decode(b"\xfe\xff\xff\xff\xff\xff\x7f\0")
    assert len(avro.decode(b"\x64\0")) == 50


def test_a_record_of_very_many_empty_fields_is_refused() -> None:
    with pytest.raises(ValueError, match=f"more than {TYPES_MAX}"):
        Avro(doubled(40)).decode(b"")
    with pytest.raises(ValueError, match=f"more than {TYPES_MAX}"):
        Avro({"type": "map", "values": doubled(40)}).decode(b"\2\2a\0")
    assert Avro(doubled(2)).decode(b"")["b"]["b"] == {"x": None}


def test_a_length_or_a_branch_that_the_schema_does_not_have_fails_as_without_a_check() -> None:
    avro = Avro(array_of([NODE, "null", "string"]))
    for data in (b"\2\x0a\0", b"\2\4\1", b"\2\4\x7f", b"\2", b"\xff" * 20, b"\2\4\2a"):
        with pytest.raises(avro.failures):
            avro.decode(data)


def value_of(kind: Any, rng: random.Random, depth: int = 0) -> Any:
    """A random value of a schema."""
    if isinstance(kind, list):
        return value_of(rng.choice(kind) if depth < 8 else kind[0], rng, depth + 1)
    name = kind["type"] if isinstance(kind, dict) else kind
    few = range(rng.randint(0, 3) if depth < 8 else 0)
    match name:
        case "Node" | "Tree":
            return value_of(NODE if name == "Node" else TREE, rng, depth + 1)
        case "record":
            return {field["name"]: value_of(field["type"], rng, depth + 1) for field in kind["fields"]}
        case "array":
            return [value_of(kind["items"], rng, depth + 1) for _ in few]
        case "map":
            return {f"k{number}": value_of(kind["values"], rng, depth + 1) for number in few}
        case "enum":
            return rng.choice(kind["symbols"])
        case "fixed":
            return rng.randbytes(kind["size"])
        case _:
            simple = {
                "null": None, "boolean": rng.random() < 0.5, "int": rng.randint(-(2**31), 2**31 - 1), "long": rng.getrandbits(62),
                "float": 0.5, "double": rng.random(), "string": "x" * rng.randint(0, 200), "bytes": rng.randbytes(9),
            }  # fmt: skip
            return simple[name]


def test_the_check_goes_through_a_value_as_fastavro_does() -> None:
    enum, fixed = {"type": "enum", "name": "En", "symbols": ["A", "B"]}, {"type": "fixed", "name": "Fi", "size": 5}
    simple = ["null", "boolean", "int", "long", "float", "double", "string", "bytes"]
    kinds = [*simple, NODE, array_of("null"), {"type": "map", "values": TREE}, enum, fixed, ["null", "Node"], array_of(["null", "Node"])]
    schema = {"type": "record", "name": "All", "fields": [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]}
    avro, rng = Avro(schema), random.Random(3)
    limits = AvroLimits(avro.write_schema)
    for _ in range(300):
        data = avro.encode(value_of(schema, rng))
        limits.check(data, 0)
        assert limits._walk(data, 0, avro.write_schema, 0) == len(data)
        assert avro.encode(avro.decode(data)) == data

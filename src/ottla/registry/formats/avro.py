"""Avro schemas: parsed, printed in one canonical form, and checked with their defaults.

The canonical form is that of Avro's Java library, which Confluent's registry stores: compact JSON with the attributes in a fixed order,
names as short as the enclosing namespace allows, a named type's definition at its first use. The normalized form also has full names and
sorted attributes and aliases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ottla.registry.errors import InvalidSchema
from ottla.registry.formats.avro_compatibility import incompatibilities
from ottla.registry.formats.avro_nodes import MISSING, AvroField, AvroNode
from ottla.registry.records import AVRO

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "error", "enum", "fixed")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Attributes that are not passed through as properties.
_OWN = {
    "record": ("type", "name", "namespace", "doc", "aliases", "fields"),
    "error": ("type", "name", "namespace", "doc", "aliases", "fields"),
    "enum": ("type", "name", "namespace", "doc", "aliases", "symbols", "default"),
    "fixed": ("type", "name", "namespace", "doc", "aliases", "size"),
    "array": ("type", "items"),
    "map": ("type", "values"),
}
_FIELD = ("name", "type", "doc", "default", "order", "aliases")
_DEPTH_MAX = 100


@dataclass(slots=True, eq=False)
class AvroSchema:
    """A parsed schema."""

    root: AvroNode
    text: str
    #: Types that its references define.
    imported: frozenset[str]
    type: str = AVRO

    def print(self, form: str) -> str:
        """`resolved`: with the types of its references inside. Any other form: the text."""
        return _printed(self.root, frozenset(), normalized=False) if form == "resolved" else self.text

    def is_equivalent(self, other: Any) -> bool:
        """Whether both are equal once references are resolved."""
        return isinstance(other, AvroSchema) and self.print("resolved") == other.print("resolved")

    def incompatibilities(self, writer: Any) -> list[str]:
        """Why a reader with this schema cannot read values of the other."""
        return incompatibilities(self.root, writer.root)


def parse_avro(text: str, references: Iterable[tuple[str, str]] = (), *, normalized: bool = False, is_new: bool = False) -> AvroSchema:
    """Parses a schema. `references`: (name, text), each after those that it needs. `is_new`: checks defaults. Raises: InvalidSchema."""
    parser = _Parser()
    for _, imported in references:
        parser.parse(_json(imported), "")
    known = frozenset(parser.named)
    parser.checks_defaults = is_new
    root = parser.parse(_json(text), "")
    return AvroSchema(root, _printed(root, known, normalized=normalized), known)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if re.fullmatch(r"\s*[A-Za-z_][\w.]*\s*", text):
            # A type's name without quotes.
            return text.strip()
        raise InvalidSchema(f"not JSON: {error}") from None


class _Parser:
    """Resolves names. One per schema with its references."""

    def __init__(self) -> None:
        self.named: dict[str, AvroNode] = {}
        self.checks_defaults = False
        self._depth = 0
        #: Defaults are checked when all types are known.
        self._defaults: list[tuple[str, AvroField]] = []

    def parse(self, given: Any, namespace: str) -> AvroNode:
        node = self._node(given, namespace)
        for record, one in self._defaults:
            if self.checks_defaults and not fits(one.type, one.default):
                raise InvalidSchema(f"Invalid default for field {one.name} of {record}: {json.dumps(one.default)} is not a {one.type.kind}")
        self._defaults.clear()
        return node

    def _node(self, given: Any, namespace: str) -> AvroNode:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise InvalidSchema(f"types are nested more than {_DEPTH_MAX} levels deep")
        try:
            if isinstance(given, str):
                return self._by_name(given, namespace)
            if isinstance(given, list):
                return self._union(given, namespace)
            if isinstance(given, dict):
                return self._complex(given, namespace)
        finally:
            self._depth -= 1
        raise InvalidSchema(f"{json.dumps(given)} is not a type")

    def _by_name(self, name: str, namespace: str) -> AvroNode:
        if name in PRIMITIVES:
            return AvroNode(name)
        found = self.named.get(_full(name, namespace)) or self.named.get(name)
        if found is None:
            raise InvalidSchema(f'Undefined name: "{name}"')
        return found

    def _union(self, given: list[Any], namespace: str) -> AvroNode:
        branches = [self._node(one, namespace) for one in given]
        names = [one.name or one.kind for one in branches]
        if "union" in names:
            raise InvalidSchema("a union directly contains a union")
        doubled = _doubled(names)
        if doubled is not None:
            raise InvalidSchema(f"Duplicate in union: {doubled}")
        return AvroNode("union", branches=branches)

    def _complex(self, given: dict[str, Any], namespace: str) -> AvroNode:
        kind = given.get("type", MISSING)
        if kind is MISSING:
            raise InvalidSchema(f"no type: {json.dumps(given)[:100]}")
        if not isinstance(kind, str):
            return self._node(kind, namespace)
        properties = {name: value for name, value in given.items() if name not in _OWN.get(kind, ("type",))}
        if kind in PRIMITIVES:
            return AvroNode(kind, properties=properties)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            if part not in given:
                raise InvalidSchema(f"{kind} has no {part}")
            return AvroNode(kind, inner=self._node(given[part], namespace), properties=properties)
        if kind not in NAMED:
            return self._by_name(kind, namespace)
        return self._named(kind, given, namespace, properties)

    def _named(self, kind: str, given: dict[str, Any], namespace: str, properties: dict[str, Any]) -> AvroNode:
        name = given.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidSchema(f"{kind} has no name")
        own = given.get("namespace")
        full = _full(name, own if isinstance(own, str) else namespace)
        for part in full.split("."):
            if not _NAME.fullmatch(part):
                raise InvalidSchema(f"Illegal character in: {full}" if part else f"Empty name in {full!r}")
        if full in self.named or full in PRIMITIVES:
            raise InvalidSchema(f"Can't redefine: {full}")
        doc = given.get("doc")
        node = AvroNode(kind, full, doc=doc if isinstance(doc, str) else None, properties=properties)
        node.aliases = tuple(_full(one, node.namespace) for one in _texts(given, "aliases"))
        self.named[full] = node
        if kind == "enum":
            self._fill_enum(node, given)
        elif kind == "fixed":
            size = given.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InvalidSchema(f"fixed {full} has no size")
            node.size = size
        else:
            self._fill_record(node, given)
        return node

    def _fill_enum(self, node: AvroNode, given: dict[str, Any]) -> None:
        symbols = given.get("symbols")
        if not isinstance(symbols, list):
            raise InvalidSchema(f"enum {node.name} has no symbols")
        for symbol in symbols:
            if not isinstance(symbol, str) or not _NAME.fullmatch(symbol):
                raise InvalidSchema(f"enum {node.name} has an invalid symbol {symbol!r}")
        doubled = _doubled(symbols)
        if doubled is not None:
            raise InvalidSchema(f"Duplicate enum symbol: {doubled}")
        node.symbols = tuple(symbols)
        if "default" in given:
            # Older libraries let a wrong default pass; such a schema may be in the topic.
            if self.checks_defaults and given["default"] not in symbols:
                raise InvalidSchema(f"The Enum Default: {given['default']} is not in the enum symbol set: {symbols}")
            node.default = given["default"]

    def _fill_record(self, node: AvroNode, given: dict[str, Any]) -> None:
        fields = given.get("fields")
        if not isinstance(fields, list):
            raise InvalidSchema(f"Record has no fields: {node.name}")
        names = set[str]()
        for one in fields:
            if not isinstance(one, dict) or "type" not in one or not isinstance(one.get("name"), str):
                raise InvalidSchema(f"a field of {node.name} has no name or no type: {json.dumps(one)[:100]}")
            name, order, doc = one["name"], one.get("order", "ascending"), one.get("doc")
            if not _NAME.fullmatch(name):
                raise InvalidSchema(f"Illegal character in: {name}")
            if name in names:
                raise InvalidSchema(f"Duplicate field {name} in record {node.name}")
            names.add(name)
            if order not in ("ascending", "descending", "ignore"):
                raise InvalidSchema(f"field {name} of {node.name} has an invalid order {order!r}")
            properties = {key: value for key, value in one.items() if key not in _FIELD}
            found = AvroField(
                name, self._node(one["type"], node.namespace), doc if isinstance(doc, str) else None, one.get("default", MISSING), order,
                _texts(one, "aliases"), properties,
            )  # fmt: skip
            node.fields.append(found)
            if found.has_default:
                self._defaults.append((node.name, found))


def _doubled(names: Iterable[str]) -> str | None:
    """The first name that is there before."""
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _full(name: str, namespace: str) -> str:
    return name.lstrip(".") if "." in name else f"{namespace}.{name}" if namespace else name


def _texts(given: dict[str, Any], attribute: str) -> tuple[str, ...]:
    found = given.get(attribute, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise InvalidSchema(f"{attribute} must be a list of names")
    return tuple(found)


def fits(node: AvroNode, value: Any) -> bool:
    """Whether a JSON value is a valid default of a type. A union's default is a value of any branch, as in Avro 1.12."""
    match node.kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bits = 31 if node.kind == "int" else 63
            return isinstance(value, int) and not isinstance(value, bool) and -(2**bits) <= value < 2**bits
        case "float" | "double":
            return (isinstance(value, int | float) and not isinstance(value, bool)) or value in ("NaN", "Infinity", "-Infinity")
        case "bytes" | "string":
            return isinstance(value, str)
        case "fixed":
            return isinstance(value, str) and len(value) == node.size
        case "enum":
            return value in node.symbols
        case "array":
            assert node.inner is not None, "an array has elements"
            return isinstance(value, list) and all(fits(node.inner, one) for one in value)
        case "map":
            assert node.inner is not None, "a map has values"
            return isinstance(value, dict) and all(fits(node.inner, one) for one in value.values())
        case "union":
            return any(fits(branch, value) for branch in node.branches)
        case _:
            return isinstance(value, dict) and all(
                fits(one.type, value[one.name]) if one.name in value else one.has_default for one in node.fields
            )


def _printed(root: AvroNode, known: frozenset[str], *, normalized: bool) -> str:
    """The canonical text. Types in `known` are printed by name."""
    seen = set(known)

    def properties(given: dict[str, Any]) -> dict[str, Any]:
        return dict(sorted(given.items())) if normalized else given

    def aliases(given: tuple[str, ...], namespace: str) -> dict[str, Any]:
        if not given:
            return {}
        shown = [one if normalized or _space(one) != namespace else one.rpartition(".")[2] for one in given]
        return {"aliases": sorted(shown) if normalized else shown}

    def shape(node: AvroNode, namespace: str) -> Any:
        if node.kind in PRIMITIVES:
            return {"type": node.kind, **properties(node.properties)} if node.properties else node.kind
        if node.kind == "union":
            return [shape(one, namespace) for one in node.branches]
        if node.kind in ("array", "map"):
            assert node.inner is not None, "arrays and maps have an inner type"
            part = "items" if node.kind == "array" else "values"
            return {"type": node.kind, part: shape(node.inner, namespace), **properties(node.properties)}
        if node.name in seen:
            return node.name if normalized or node.namespace != namespace else node.short_name
        seen.add(node.name)
        found: dict[str, Any] = {"type": node.kind, "name": node.name if normalized else node.short_name}
        if node.namespace != namespace and not normalized:
            found["namespace"] = node.namespace
        if node.doc is not None:
            found["doc"] = node.doc
        if node.kind == "enum":
            found["symbols"] = list(node.symbols)
            if node.default is not None:
                found["default"] = node.default
        elif node.kind == "fixed":
            found["size"] = node.size
        else:
            found["fields"] = [of_field(one, node.namespace) for one in node.fields]
        return {**found, **properties(node.properties), **aliases(node.aliases, node.namespace)}

    def of_field(one: AvroField, namespace: str) -> dict[str, Any]:
        found: dict[str, Any] = {"name": one.name, "type": shape(one.type, namespace)}
        if one.doc is not None:
            found["doc"] = one.doc
        if one.has_default:
            found["default"] = one.default
        if one.order != "ascending":
            found["order"] = one.order
        if one.aliases:
            found["aliases"] = sorted(one.aliases) if normalized else list(one.aliases)
        return {**found, **properties(one.properties)}

    return json.dumps(shape(root, ""), separators=(",", ":"), ensure_ascii=False)


def _space(name: str) -> str:
    return name.rpartition(".")[0]

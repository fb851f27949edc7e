"""JSON Schema: parsed into nodes by what a value may be, for comparisons.

    {"type": "string", "maxLength": 5}                    string
    {"type": ["string", "null"]}                          anyOf of string and null
    {"type": "string", "enum": ["a", "b"]}                allOf of string and enum
    {"properties": {...}, "anyOf": [...]}                 allOf of object and anyOf
    {}, true                                              empty: any value
    false                                                 false: no value

Keywords say the type where `type` is missing. `$ref` is a link to a node, within the text or in a reference, by its name or its `$id`.
Drafts 4 to 2020-12; schemas are validated against the meta-schema that `$schema` names, draft 7 without one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from ottla.registry.errors import InvalidSchema
from ottla.registry.formats.json_compatibility import incompatibilities
from ottla.registry.formats.json_nodes import COMBINERS, DEPTH_MAX, JsonNode
from ottla.registry.records import JSON

#: Keywords by the type that they concern.
KEYWORDS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf"),
    "array": ("items", "additionalItems", "prefixItems", "maxItems", "minItems", "uniqueItems", "contains", "maxContains", "minContains",
              "unevaluatedItems"),
    "object": ("properties", "patternProperties", "additionalProperties", "required", "maxProperties", "minProperties", "dependencies",
               "dependentRequired", "dependentSchemas", "propertyNames", "unevaluatedProperties"),
}  # fmt: skip
DRAFT_7 = "http://json-schema.org/draft-07/schema"
#: What a value of a wrong type raises.
WRONG_VALUES = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError)


@dataclass(slots=True, eq=False)
class JsonSchema:
    """A parsed schema."""

    raw: Any
    text: str
    imports: tuple[tuple[str, str], ...]
    type: str = JSON

    def print(self, form: str) -> str:
        return self.text

    def is_equivalent(self, other: Any) -> bool:
        return (
            isinstance(other, JsonSchema) and _comparable(self.raw) == _comparable(other.raw) and dict(self.imports) == dict(other.imports)
        )

    def node(self) -> JsonNode:
        """The schema as a node. Raises: InvalidSchema."""
        try:
            return _Builder(self.raw, self.imports).root()
        except WRONG_VALUES as error:
            raise self._invalid(error) from None

    def incompatibilities(self, writer: Any) -> list[str]:
        """Why a reader with this schema refuses values that the other one accepts. Raises: InvalidSchema."""
        reader, other = self.node(), writer.node()
        try:
            return incompatibilities(reader, other)
        except WRONG_VALUES as error:
            raise self._invalid(error, writer) from None

    def _invalid(self, error: Exception, *others: JsonSchema) -> InvalidSchema:
        """Which keyword has a value of a wrong type.

        The mode IMPORT stores texts unchecked, and a meta-schema knows the keywords of its draft only.
        """
        if isinstance(error, InvalidSchema):
            return error
        try:
            for one in (self, *others):
                _check_meta_schema(one.raw)
                for _, text in one.imports:
                    _check_meta_schema(_json(text))
        except InvalidSchema as why:
            return why
        return InvalidSchema(f"not a JSON schema: a keyword has a value that it cannot have ({error})")


def _comparable(raw: Any) -> str:
    return json.dumps(raw, sort_keys=True)


def parse_json_schema(text: str, imports: Iterable[tuple[str, str]] = (), *, normalized: bool = False, is_new: bool = False) -> JsonSchema:
    """`is_new`: validates against the meta-schema and resolves references. Raises: InvalidSchema."""
    raw = _json(text)
    if not isinstance(raw, dict | bool):
        raise InvalidSchema("a JSON schema is an object, true or false")
    made = JsonSchema(raw, json.dumps(raw, separators=(",", ":"), ensure_ascii=False, sort_keys=normalized), tuple(imports))
    if is_new:
        _check_meta_schema(raw)
        made.node()
    return made


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(f"not JSON: {error}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _check_meta_schema(raw: Any) -> None:
    """Raises: InvalidSchema, ImportError."""
    try:
        from jsonschema import Draft7Validator
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for
    except ImportError as error:
        raise ImportError("JSON Schema needs jsonschema: pip install 'ottla[registry]'") from error
    if isinstance(raw, dict) and not isinstance(raw.get("$schema", ""), str):
        raise InvalidSchema("not a JSON schema: $schema must be a text")
    try:
        validator_for(raw, default=Draft7Validator).check_schema(raw)
    except SchemaError as error:
        place = "/".join(map(str, error.absolute_path))
        raise InvalidSchema(f"not a JSON schema: {error.message} at /{place}") from None
    except RecursionError:
        raise InvalidSchema("not a JSON schema: it is nested too deeply") from None


class _Builder:
    """Builds the nodes of a schema, each part once, so that recursive schemas end."""

    def __init__(self, raw: Any, imports: Iterable[tuple[str, str]]) -> None:
        self._nodes: dict[int, JsonNode] = {}
        #: Documents and subschemas by their URI without a fragment; anchors with one.
        self._documents: dict[str, Any] = {}
        self._depth = 0
        for name, text in imports:
            document = _json(text)
            self._documents[name] = document
            self._index(document, _id(document, name))
        self._root, self._base = raw, _id(raw, "")
        self._documents[self._base] = raw
        self._documents.setdefault("", raw)
        self._index(raw, self._base)

    def _index(self, raw: Any, base: str) -> None:
        """Finds `$id` and anchors below a document."""
        stack = [(raw, base)]
        while stack:
            part, base = stack.pop()
            if isinstance(part, dict):
                own = part.get("$id", part.get("id") if "$schema" in part or part is raw else None)
                if isinstance(own, str):
                    base = urljoin(base, own)
                    self._documents.setdefault(base.rstrip("#"), part)
                for anchor in ("$anchor", "$dynamicAnchor"):
                    if isinstance(part.get(anchor), str):
                        self._documents.setdefault(f"{base.rstrip('#')}#{part[anchor]}", part)
                stack += [(inner, base) for name, inner in part.items() if name not in ("enum", "const", "default", "examples")]
            elif isinstance(part, list):
                stack += [(inner, base) for inner in part]

    def root(self) -> JsonNode:
        return self._node(self._root, self._base)

    def _node(self, raw: Any, base: str) -> JsonNode:
        if raw is True or raw == {}:
            return JsonNode("empty")
        if raw is False:
            return JsonNode("false")
        if not isinstance(raw, dict):
            raise InvalidSchema(f"{json.dumps(raw)[:100]} is not a schema")
        found = self._nodes.get(id(raw))
        if found is None:
            found = self._nodes[id(raw)] = JsonNode("?", raw)
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise InvalidSchema(f"schemas are nested more than {DEPTH_MAX} levels deep")
            self._fill(found, raw, _id(raw, base))
            self._depth -= 1
        return found

    def _fill(self, node: JsonNode, raw: dict[str, Any], base: str) -> None:
        node.has_default, node.default = "default" in raw, raw.get("default")
        facets = self._facets(raw, base)
        if not facets:
            node.kind = "empty"
        elif len(facets) == 1:
            only = facets[0]
            for name in ("kind", "parts", "inner", "properties", "patterns", "others", "unevaluated", "dependent", "items", "each"):
                setattr(node, name, getattr(only, name))
        else:
            node.kind, node.parts = "allOf", facets

    def _facets(self, raw: dict[str, Any], base: str) -> list[JsonNode]:
        """The restrictions that a schema makes, each as a node."""
        found: list[JsonNode] = []
        if "$ref" in raw:
            found.append(JsonNode("ref", raw, inner=self._resolved(raw["$ref"], base)))
        types = raw.get("type")
        if isinstance(types, list) and len(types) > 1:
            found.append(JsonNode("anyOf", raw, parts=[self._typed(one, raw, base) for one in types]))
        elif types:
            found.append(self._typed(types[0] if isinstance(types, list) else types, raw, base))
        else:
            found += [self._typed(kind, raw, base) for kind, words in KEYWORDS.items() if any(word in raw for word in words)]
        found += [JsonNode(kind, raw) for kind in ("enum", "const") if kind in raw]
        if "not" in raw:
            found.append(JsonNode("not", raw, inner=self._node(raw["not"], base)))
        if "if" in raw:
            found.append(JsonNode("conditional", raw))
        found += [
            JsonNode(kind, raw, parts=[self._node(one, base) for one in raw[kind]]) for kind in COMBINERS if isinstance(raw.get(kind), list)
        ]
        return found

    def _typed(self, kind: str, raw: dict[str, Any], base: str) -> JsonNode:
        if kind == "integer":
            kind = "number"
        node = JsonNode(kind, raw)
        if kind == "object":
            self._fill_object(node, raw, base)
        elif kind == "array":
            self._fill_array(node, raw, base)
        return node

    def _fill_object(self, node: JsonNode, raw: dict[str, Any], base: str) -> None:
        node.properties = {name: self._node(one, base) for name, one in raw.get("properties", {}).items()}
        node.patterns = {name: self._node(one, base) for name, one in raw.get("patternProperties", {}).items()}
        node.others = self._others(raw, "additionalProperties", base)
        node.unevaluated = self._node(raw["unevaluatedProperties"], base) if "unevaluatedProperties" in raw else None
        dependent = {name: one for name, one in raw.get("dependencies", {}).items() if not isinstance(one, list)}
        node.dependent = {name: self._node(one, base) for name, one in (dependent | raw.get("dependentSchemas", {})).items()}

    def _fill_array(self, node: JsonNode, raw: dict[str, Any], base: str) -> None:
        items = raw.get("items")
        if "prefixItems" in raw:
            node.items = [self._node(one, base) for one in raw["prefixItems"]]
            node.others = self._others(raw, "items", base)
        else:
            node.others = self._others(raw, "additionalItems", base)
            if isinstance(items, list):
                node.items = [self._node(one, base) for one in items]
            elif items is not None:
                node.each = self._node(items, base)
        node.unevaluated = self._node(raw["unevaluatedItems"], base) if "unevaluatedItems" in raw else None

    def _others(self, raw: dict[str, Any], keyword: str, base: str) -> JsonNode | None:
        given = raw.get(keyword, True)
        return None if given is True else self._node(given, base) if given != {} else JsonNode("empty")

    def _resolved(self, reference: Any, base: str) -> JsonNode:
        """Raises: InvalidSchema."""
        if not isinstance(reference, str):
            raise InvalidSchema("$ref must be a text")
        whole = urljoin(base, reference) if base else reference
        for candidate in (whole, reference):
            address, fragment = urldefrag(candidate)
            if candidate.rstrip("#") in self._documents:
                return self._node(self._documents[candidate.rstrip("#")], address or base)
            document = self._documents.get(address)
            if document is None and not address:
                document = self._documents.get(base, self._root)
            if document is not None:
                found = _pointed(document, fragment)
                if found is not None:
                    return self._node(found, _id(document, address or base))
            if address.rstrip("#") == DRAFT_7:
                return JsonNode("empty")
        raise InvalidSchema(f"$ref {reference!r} is not found, neither in the schema nor in its references")


def _id(raw: Any, base: str) -> str:
    own = raw.get("$id") if isinstance(raw, dict) else None
    return urljoin(base, own).rstrip("#") if isinstance(own, str) else base


def _pointed(document: Any, fragment: str) -> Any:
    """The part of a document that a JSON pointer names; None if there is none."""
    if not fragment:
        return document
    if not fragment.startswith("/"):
        return None
    for token in unquote(fragment)[1:].split("/"):
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and token in document:
            document = document[token]
        elif isinstance(document, list) and token.isdecimal() and int(token) < len(document):
            document = document[int(token)]
        else:
            return None
    return document

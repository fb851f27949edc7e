"""Limits of values in Avro's binary form, checked before fastavro reads them.

Some schemas let a few bytes cost the process that reads them:

    recursive types          fastavro calls itself per level: 5 KB of a list of one-byte nodes overflow the stack and end the process
    arrays of empty items    null, a fixed of no bytes, a record of such fields: 6 bytes can say that there are 2^40 of them
    records of records       two fields of a record with two fields of a record, and so on: 2^40 empty fields in no byte

Values of other schemas are not looked at. The check walks over the bytes by the schema of the writer. It ends at the first thing that is
above a limit, or that fastavro refuses anyway.
"""

from __future__ import annotations

from typing import Any

from ottla.base.varint import read_varint

#: Types inside of each other.
DEPTH_MAX = 300
#: Types in a value: so many, and so many per byte. Each takes a byte, but nulls, empty fixed types, and records.
TYPES_MAX, TYPES_PER_BYTE_MAX = 100_000, 8
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class AvroLimits:
    """The check of one schema, which fastavro has parsed."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._named: dict[str, Any] = {}
        #: Whether values can have no bytes, and the number of their types without items of arrays and maps, by name of a record.
        self._records: dict[str, tuple[bool, int]] = {}
        self._is_needed = False
        _, types = self._inspect(schema, frozenset())
        self._is_needed |= types > TYPES_MAX
        #: Types that the value may still have.
        self._left = 0

    def check(self, data: bytes, start: int) -> None:
        """Checks the value that begins at a position. Raises: ValueError, EOFError, IndexError."""
        if self._is_needed:
            self._left = TYPES_MAX + TYPES_PER_BYTE_MAX * (len(data) - start)
            self._walk(data, start, self._schema, 0)

    def _inspect(self, node: Any, above: frozenset[str]) -> tuple[bool, int]:
        """Whether a value can have no bytes, and the number of its types. ``above``: names of the records around."""
        kind, node = self._resolved(node)
        if kind == "union":
            return False, 1 + max((self._inspect(branch, above)[1] for branch in node), default=0)
        if kind in ("array", "map"):
            is_empty, types = self._inspect(node["items" if kind == "array" else "values"], above)
            self._is_needed |= (kind == "array" and is_empty) or types > TYPES_MAX
            return False, 1
        if kind in ("record", "error"):
            return self._inspect_record(node, above)
        if kind in ("fixed", "enum"):
            self._named.setdefault(node["name"], node)
        return kind == "null" or (kind == "fixed" and not node["size"]), 1

    def _inspect_record(self, node: Any, above: frozenset[str]) -> tuple[bool, int]:
        name = node["name"]
        self._named.setdefault(name, node)
        if name in above:
            self._is_needed = True
            return True, 1
        if name not in self._records:
            fields = [self._inspect(field["type"], above | {name}) for field in node["fields"]]
            self._records[name] = all(is_empty for is_empty, _ in fields), 1 + sum(types for _, types in fields)
        return self._records[name]

    def _resolved(self, node: Any) -> tuple[str, Any]:
        """(kind, its schema) of a type: a name, a list of branches, or an object whose type may be an object again."""
        while True:
            if isinstance(node, list):
                return "union", node
            if isinstance(node, dict):
                kind = node["type"]
                if isinstance(kind, str) and kind not in self._named:
                    return kind, node
                node = kind
            elif node in self._named:
                node = self._named[node]
            else:
                return node, {}

    def _walk(self, data: bytes, position: int, node: Any, depth: int) -> int:
        """The end of a value."""
        if depth > DEPTH_MAX:
            raise ValueError(f"the value is nested more than {DEPTH_MAX} levels deep")
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"the value has more than {TYPES_MAX} fields or items without bytes")
        if position > len(data):
            raise EOFError("the value ends too early")
        kind, node = self._resolved(node)
        size = _SIZES.get(kind)
        if size is not None:
            return position + size
        if kind in ("record", "error"):
            for field in node["fields"]:
                position = self._walk(data, position, field["type"], depth + 1)
            return position
        if kind == "fixed":
            return position + int(node["size"])
        if kind in ("array", "map"):
            return self._walk_items(data, position, kind, node, depth)
        number, position = _long(data, position)
        if kind == "union":
            if not 0 <= number < len(node):
                raise IndexError(f"the union has no branch {number}")
            return self._walk(data, position, node[number], depth + 1)
        if kind in ("bytes", "string"):
            if number < 0:
                raise ValueError(f"a length of {number} bytes")
            return position + number
        return position

    def _walk_items(self, data: bytes, position: int, kind: str, node: Any, depth: int) -> int:
        inner = node["items" if kind == "array" else "values"]
        while True:
            count, position = _long(data, position)
            if not count:
                return position
            if count < 0:
                count = -count
                _, position = _long(data, position)
            for _ in range(count):
                if kind == "map":
                    position = self._walk(data, position, "string", depth + 1)
                position = self._walk(data, position, inner, depth + 1)


def _long(data: bytes, position: int) -> tuple[int, int]:
    """A number in zigzag form, and the position behind it. Raises: EOFError."""
    found, position = read_varint(data, position)
    return (found >> 1) ^ -(found & 1), position

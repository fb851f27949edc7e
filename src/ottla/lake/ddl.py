"""Parses Spark's DDL for columns, ``id BIGINT, tags ARRAY<STRING>``, to Arrow types. Needs neither Spark nor a JVM.

columns  name [:] type [, ...]           a name with characters other than letters, digits, _ . and - is in `backticks`
type     BIGINT ... | VARCHAR(10) | DECIMAL(10, 2) | ARRAY<type> | MAP<type, type> | STRUCT<columns>
"""

import re
from typing import Any

import pyarrow as pa

from ottla.base.options import suggestion

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([A-Za-z_][\w.-]*|\d+)|([<>(),:]))")
_TYPES = {
    "string": pa.string(), "varchar": pa.string(), "binary": pa.binary(), "boolean": pa.bool_(), "bool": pa.bool_(),
    "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(), "int": pa.int32(), "integer": pa.int32(),
    "bigint": pa.int64(), "long": pa.int64(), "float": pa.float32(), "real": pa.float32(), "double": pa.float64(),
    "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
_KNOWN = (*_TYPES, "decimal", "dec", "numeric", "array", "map", "struct")


class BadDdl(ValueError):
    """Invalid DDL. The message shows where."""


def parse_schema(text: str) -> pa.Schema:
    """Raises: BadDdl."""
    reader = _Reader(text)
    fields = reader.columns()
    if reader.position < len(text.rstrip()):
        raise reader.wrong("',' or the end")
    return pa.schema(fields)


class _Reader:
    """Recursive descent parser."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def columns(self) -> list[Any]:
        fields = []
        while True:
            name = self.word("the name of a column")
            self.sign(":")
            fields.append(pa.field(name, self.type()))
            if not self.sign(","):
                return fields

    def type(self) -> Any:
        before = self.position
        match name := self.word("a type").lower():
            case "array":
                (item,) = self.inside(self.type)
                return pa.list_(pa.field("element", item))
            case "map":
                return pa.map_(*self.inside(self.type, self.type))
            case "struct":
                return pa.struct(*self.inside(self.columns))
            case "decimal" | "dec" | "numeric":
                return pa.decimal128(*self.decimal())
            case "varchar" if self.sign("("):
                self.number()
                self.need(")")
        if name not in _TYPES:
            self.position = before
            raise self.wrong(f"a type{suggestion(name, _KNOWN)}")
        return _TYPES[name]

    def inside(self, *parts: Any) -> list[Any]:
        """What `parts` parse, with commas between them, in angle brackets."""
        found = []
        for sign, part in zip(("<", *"," * (len(parts) - 1)), parts, strict=True):
            self.need(sign)
            found.append(part())
        self.need(">")
        return found

    def decimal(self) -> tuple[int, int]:
        """Digits and scale."""
        if not self.sign("("):
            return 10, 0
        digits, scale = self.number(), self.number() if self.sign(",") else 0
        self.need(")")
        return digits, scale

    def number(self) -> int:
        word = self.word("a number")
        if not word.isdigit():
            raise self.wrong("a number")
        return int(word)

    def word(self, what: str) -> str:
        found = _TOKEN.match(self.text, self.position)
        if found is None or found[3]:
            raise self.wrong(what)
        self.position = found.end()
        return found[2] if found[2] is not None else found[1].replace("``", "`")

    def sign(self, expected: str) -> bool:
        """Consumes the sign if it is next, and returns whether it was."""
        found = _TOKEN.match(self.text, self.position)
        if found is None or found[3] != expected:
            return False
        self.position = found.end()
        return True

    def need(self, expected: str) -> None:
        if not self.sign(expected):
            raise self.wrong(f"{expected!r}")

    def wrong(self, expected: str) -> BadDdl:
        rest = self.text[self.position :].strip()
        types = f"; types are {', '.join(_KNOWN)}" if expected.startswith("a type") else ""
        return BadDdl(f"expected {expected} {f'where {self.text!r} has {rest[:30]!r}' if rest else f'after {self.text!r}'}{types}")

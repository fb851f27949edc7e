"""Parses Spark's DDL for columns, ``id BIGINT, tags ARRAY<STRING>``, without a JVM: the processes that plan a source have none.

columns  name [:] type [, ...]           a name with characters other than letters, digits and _ is in `backticks`
type     BIGINT ... | DECIMAL(10, 2) | ARRAY<type> | MAP<type, type> | STRUCT<columns>
"""

import re
from typing import Any

from ottla.base.options import suggestion

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([A-Za-z_]\w*|\d+)|([<>(),:]))")
#: Spark's class of each type.
_TYPES = {
    "boolean": "BooleanType", "tinyint": "ByteType", "byte": "ByteType", "smallint": "ShortType", "short": "ShortType",
    "int": "IntegerType", "integer": "IntegerType", "bigint": "LongType", "long": "LongType", "float": "FloatType", "real": "FloatType",
    "double": "DoubleType", "string": "StringType", "binary": "BinaryType", "date": "DateType", "timestamp": "TimestampType",
    "timestamp_ltz": "TimestampType", "timestamp_ntz": "TimestampNTZType",
}  # fmt: skip
_NESTED = ("decimal", "dec", "numeric", "array", "map", "struct")


class BadDdl(ValueError):
    """Invalid DDL. The message shows where."""


def columns_of(text: str) -> Any:
    """The columns as Spark's StructType. Raises: BadDdl."""
    reader = _Reader(text)
    found = reader.columns("")
    if reader.position < len(text.rstrip()):
        raise reader.wrong("the end")
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def columns(self, closing: str) -> Any:
        from pyspark.sql.types import StructField, StructType

        fields = []
        while True:
            name = self.word("the name of a column")
            self.sign(":")
            fields.append(StructField(name, self.type()))
            if not self.sign(","):
                break
        self.need(closing)
        return StructType(fields)

    def type(self) -> Any:
        from pyspark.sql import types

        before = self.position
        name = self.word("a type").lower()
        match name:
            case "array":
                self.need("<")
                found = types.ArrayType(self.type())
                self.need(">")
                return found
            case "map":
                self.need("<")
                key = self.type()
                self.need(",")
                found = types.MapType(key, self.type())
                self.need(">")
                return found
            case "struct":
                self.need("<")
                return self.columns(">")
            case "decimal" | "dec" | "numeric":
                return self.decimal()
        if name not in _TYPES:
            self.position = before
            raise self.wrong(f"a type{suggestion(name, [*_TYPES, *_NESTED])}")
        return getattr(types, _TYPES[name])()

    def decimal(self) -> Any:
        from pyspark.sql.types import DecimalType

        precision, scale = 10, 0
        if self.sign("("):
            precision = self.number()
            scale = self.number() if self.sign(",") else 0
            self.need(")")
        return DecimalType(precision, scale)

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
        if expected and not self.sign(expected):
            raise self.wrong(f"{expected!r}")

    def wrong(self, expected: str) -> BadDdl:
        rest = self.text[self.position :].strip()
        return BadDdl(f"expected {expected} where {self.text!r} has {rest[:30]!r}" if rest else f"expected {expected} after {self.text!r}")

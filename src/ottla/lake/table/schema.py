"""What the rows of a topic's table are: how keys and values are read, and which columns of a record stand beside. Pure but for Arrow types.

A form is settled when a table is made, kept in it, and holds from then on.

    raw, text      one column `value`, binary or text; beside it key, headers, partition, offset, timestamp
    json, avro,    a column per field; beside them _key, _headers, _partition, _offset, _timestamp, and _corrupt: the bytes of a value that
    csv            could not be read, or does not fit the columns
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ottla.base.options import suggestion

if TYPE_CHECKING:
    import pyarrow as pa

VALUE_FORMATS = ("json", "avro", "csv", "text", "raw")
KEY_FORMATS = ("text", "raw", "int")
#: Columns of a record besides its value.
BESIDE = ("key", "headers", "partition", "offset", "timestamp")
CORRUPT = "_corrupt"
#: With these, the value is one column.
PLAIN = ("text", "raw")
#: The day of a record, as directories have it. Readers of Parquet pass over what begins with an underscore.
DATE = "record_date"


class Form(msgspec.Struct, frozen=True):
    """See the module."""

    value: str = "raw"
    key: str = "raw"
    #: Of `BESIDE`, and `value` for the bytes beside decoded columns.
    columns: tuple[str, ...] = BESIDE
    #: Of values: Spark's words for json and csv (`parse_schema`), Avro's JSON; None: what shows.
    schema: str | None = None
    #: Whether files lie in a directory per day of the records' timestamps.
    by_date: bool = False
    #: append or upsert.
    mode: str = "append"
    #: Whether Avro values begin with the id of their schema in a registry.
    framed: bool = False

    def name(self, column: str) -> str:
        """The name in the table of a record's column."""
        return column if self.value in PLAIN else f"_{column}"

    def read_names(self) -> tuple[str, ...]:
        """The columns of records that have to be read."""
        needed = ["value", "offset", *self.columns, *(["timestamp"] if self.by_date else []), *(["key"] if self.mode == "upsert" else [])]
        return tuple(dict.fromkeys(needed))

    def schema_beside(self) -> pa.Schema:
        """The columns that the table has from the beginning."""
        import pyarrow as pa

        from ottla.client.arrow.columns import headers_type

        types = {
            "key": {"raw": pa.binary(), "text": pa.string(), "int": pa.int64()}[self.key],
            "headers": headers_type(),
            "partition": pa.int32(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", "UTC"),
            "value": pa.string() if self.value == "text" else pa.binary(),
        }
        names = [*(["value"] if self.value in PLAIN and "value" not in self.columns else []), *self.columns]
        names = sorted(names, key=lambda name: name == "value" and self.value in PLAIN, reverse=True)
        fields = [(self.name(name), types[name]) for name in names]
        if self.value == "text" or self.value not in PLAIN:
            fields.append((CORRUPT, pa.binary()))
        if self.by_date:
            fields.append((DATE, pa.date32()))
        return pa.schema(fields)


def checked(form: Form) -> Form:
    """The form, if there is one like it. Raises: ValueError."""
    for what, given, known in (("--value", form.value, VALUE_FORMATS), ("--key", form.key, KEY_FORMATS)):
        if given not in known:
            raise ValueError(f"{what} {given}: no such format{suggestion(given, known)}; there are {', '.join(known)}")
    for name in form.columns:
        if name not in (*BESIDE, "value"):
            raise ValueError(f"--columns: a record has no column {name!r}{suggestion(name, BESIDE)}; it has value, {', '.join(BESIDE)}")
    if form.mode == "upsert" and "key" not in form.columns:
        raise ValueError("upsert finds rows by their key: leave key among --columns")
    if form.value == "csv" and form.schema is None:
        raise ValueError("csv needs the names and types of its columns, such as --schema 'id BIGINT, name STRING'")
    if form.value in PLAIN and form.schema is not None:
        raise ValueError(f"values that are {form.value} have no schema: --value json, csv or avro")
    if form.value == "avro" and form.schema is None and not form.framed:
        raise ValueError("avro needs its schema: --schema FILE.avsc, or --registry URL")
    if form.schema is not None and form.value in ("json", "csv"):
        parse_schema(form.schema)
    return form


#: A registry's frame before a value: a zero byte and the schema's id.
FRAME_BYTES = 5


def guessed(keys: Sequence[bytes | None], values: Sequence[bytes | None], *, registry: bool = False) -> tuple[str, str]:
    """Formats of keys and values that fit some of them: json where values are objects, avro where there is a `registry` and they tell
    the ids of schemas, else text, else raw.
    """
    there = [value for value in values if value is not None]
    return ("text" if all(map(_is_text, keys)) else "raw"), _guessed_value(there, registry=registry)


def _guessed_value(values: Sequence[bytes], *, registry: bool) -> str:
    if registry and values and all(len(value) > FRAME_BYTES and value[0] == 0 for value in values):
        return "avro"
    if values and all(value.lstrip()[:1] == b"{" and _is_json(value) for value in values):
        return "json"
    return "text" if values and all(map(_is_text, values)) else "raw"


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except msgspec.MsgspecError:
        return False
    return True


def _is_text(data: bytes | None) -> bool:
    try:
        return data is None or "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


# ---------------------------------------------------------------------------------------------------------------- schemas as text

_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z_][\w.-]*)|`(?P<quoted>[^`]+)`|(?P<number>\d+)|(?P<sign>[<>(),:]))")
_CLOSING = {"<": ">", "(": ")"}


def parse_schema(text: str) -> pa.Schema:
    """Columns in Spark's words: `id BIGINT, tags ARRAY<STRING>, at TIMESTAMP, place STRUCT<lat: DOUBLE, lon: DOUBLE>`.

    Raises: ValueError that shows the place.
    """
    import pyarrow as pa

    reader = _SchemaReader(text)
    fields = reader.fields(None)
    return pa.schema(fields)


class _SchemaReader:
    """Reads a schema from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._token: re.Match[str] | None = None
        self._next()

    def _next(self) -> None:
        rest = self._text[self._at :]
        if not rest.strip():
            self._token = None
            return
        self._token = _TOKEN.match(self._text, self._at)
        if self._token is None:
            self._refuse("a name or a type")
        assert self._token is not None, "checked above"
        self._at = self._token.end()

    def _refuse(self, expected: str) -> None:
        at = len(self._text) if self._token is None else self._token.start() + len(self._token[0]) - len(self._token[0].lstrip())
        at = self._at if self._token is None and self._text[self._at :].strip() else at
        raise ValueError(f"expected {expected}\n  {self._text}\n  {' ' * at}^")

    def _sign(self, sign: str) -> bool:
        if self._token is None or self._token["sign"] != sign:
            return False
        self._next()
        return True

    def _need(self, sign: str) -> None:
        if not self._sign(sign):
            self._refuse(f"{sign!r}")

    def _number(self) -> int:
        if self._token is None or self._token["number"] is None:
            self._refuse("a number")
        assert self._token is not None, "checked above"
        found = int(self._token["number"])
        self._next()
        return found

    def fields(self, closing: str | None) -> list[Any]:
        import pyarrow as pa

        found = []
        while True:
            if self._token is None or not (self._token["word"] or self._token["quoted"]):
                self._refuse("the name of a column")
            assert self._token is not None, "checked above"
            name = self._token["word"] or self._token["quoted"]
            self._next()
            self._sign(":")
            found.append(pa.field(name, self._type()))
            if self._sign(","):
                continue
            if closing is not None:
                self._need(closing)
            elif self._token is not None:
                self._refuse("',' or the end")
            return found

    def _type(self) -> Any:
        import pyarrow as pa

        types = {
            "string": pa.string(), "varchar": pa.string(), "binary": pa.binary(), "boolean": pa.bool_(), "bool": pa.bool_(),
            "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(), "int": pa.int32(), "integer": pa.int32(),
            "bigint": pa.int64(), "long": pa.int64(), "float": pa.float32(), "real": pa.float32(), "double": pa.float64(),
            "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
        }  # fmt: skip
        known = [*types, "decimal", "array", "map", "struct"]
        word = (self._token["word"] or "").lower() if self._token is not None else ""
        if word not in known:
            self._refuse(f"a type{suggestion(word, known) if word else ''}: {', '.join(known)}")
        self._next()
        match word:
            case "decimal":
                digits, scale = 10, 0
                if self._sign("("):
                    digits = self._number()
                    scale = self._number() if self._sign(",") else 0
                    self._need(")")
                return pa.decimal128(digits, scale)
            case "array":
                self._need("<")
                item = self._type()
                self._need(">")
                return pa.list_(pa.field("element", item))
            case "map":
                self._need("<")
                key = self._type()
                self._need(",")
                value = self._type()
                self._need(">")
                return pa.map_(key, value)
            case "struct":
                self._need("<")
                return pa.struct(self.fields(">"))
        if word == "varchar" and self._sign("("):
            self._number()
            self._need(")")
        return types[word]

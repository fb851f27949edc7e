"""The format of a table: how keys and values are decoded, and which metadata columns it has.

The format is chosen when the table is created, stored in it, and does not change.

    raw, text          one column `value`, binary or text; metadata columns key, headers, partition, offset, timestamp
    json, avro, csv    a column per field; metadata columns _key, _headers, _partition, _offset, _timestamp; and _corrupt: the bytes of a
                       value that cannot be decoded or does not fit the columns
"""

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from ottla.base.options import suggestion
from ottla.client.arrow.columns import headers_type
from ottla.lake.ddl import parse_schema

VALUE_FORMATS = ("json", "avro", "csv", "text", "raw")
KEY_FORMATS = ("text", "raw", "int")
#: Columns of a record, except its value.
METADATA_COLUMNS = ("key", "headers", "partition", "offset", "timestamp")
CORRUPT = "_corrupt"
#: Formats with one column for the value.
SINGLE_COLUMN_FORMATS = ("text", "raw")
#: Column of the partition directories: the day of a record. No underscore, because Parquet readers skip such directories.
DATE = "record_date"


class TableFormat(msgspec.Struct, frozen=True):
    """Stored in the table as JSON, so its class name may change and its fields may not."""

    value: str = "raw"
    key: str = "raw"
    #: Some of `METADATA_COLUMNS`; `value` adds the raw bytes next to the decoded columns.
    columns: tuple[str, ...] = METADATA_COLUMNS
    #: Schema of values: Spark's DDL for json and csv, JSON for avro; None: inferred.
    schema: str | None = None
    #: Whether there is a directory per day of the records' timestamps.
    by_date: bool = False
    #: append or upsert.
    mode: str = "append"
    #: Whether Avro values start with a schema id of a registry.
    framed: bool = False

    def name(self, column: str) -> str:
        """The table's name of a metadata column."""
        return column if self.value in SINGLE_COLUMN_FORMATS else f"_{column}"

    def read_names(self) -> tuple[str, ...]:
        """The record columns to read."""
        needed = ["value", "offset", *self.columns, *(["timestamp"] if self.by_date else []), *(["key"] if self.mode == "upsert" else [])]
        return tuple(dict.fromkeys(needed))

    def metadata_schema(self) -> pa.Schema:
        """The columns that do not come from decoded values."""
        types = {
            "key": {"raw": pa.binary(), "text": pa.string(), "int": pa.int64()}[self.key],
            "headers": headers_type(),
            "partition": pa.int32(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", "UTC"),
            "value": pa.string() if self.value == "text" else pa.binary(),
        }
        names = [*(["value"] if self.value in SINGLE_COLUMN_FORMATS and "value" not in self.columns else []), *self.columns]
        names = sorted(names, key=lambda name: name == "value" and self.value in SINGLE_COLUMN_FORMATS, reverse=True)
        fields = [(self.name(name), types[name]) for name in names]
        if self.value == "text" or self.value not in SINGLE_COLUMN_FORMATS:
            fields.append((CORRUPT, pa.binary()))
        if self.by_date:
            fields.append((DATE, pa.date32()))
        return pa.schema(fields)


def checked(form: TableFormat) -> TableFormat:
    """The format, if it is valid. Raises: ValueError."""
    for what, given, known in (("--value", form.value, VALUE_FORMATS), ("--key", form.key, KEY_FORMATS)):
        if given not in known:
            raise ValueError(f"{what} {given}: unknown format{suggestion(given, known)}; use one of {', '.join(known)}")
    for name in form.columns:
        if name not in (*METADATA_COLUMNS, "value"):
            near = suggestion(name, METADATA_COLUMNS)
            raise ValueError(f"--columns: a record has no column {name!r}{near}; it has value, {', '.join(METADATA_COLUMNS)}")
    if form.mode == "upsert" and "key" not in form.columns:
        raise ValueError("upsert identifies rows by key: add key to --columns")
    if form.value == "csv" and form.schema is None:
        raise ValueError("csv needs column names and types, such as --schema 'id BIGINT, name STRING'")
    if form.value in SINGLE_COLUMN_FORMATS and form.schema is not None:
        raise ValueError(f"{form.value} values have no schema: use --value json, csv or avro")
    if form.value == "avro" and form.schema is None and not form.framed:
        raise ValueError("avro needs a schema: use --schema FILE.avsc or --registry URL")
    if form.schema is not None and form.value in ("json", "csv"):
        parse_schema(form.schema)
    return form


#: Bytes before a value with a schema id: a zero byte and the id.
FRAME_BYTES = 5


def infer_formats(keys: Sequence[bytes | None], values: Sequence[bytes | None], *, registry: bool = False) -> tuple[str, str]:
    """Infer the key format and the value format: json if all values are objects, avro if there is a `registry` and all values have a
    schema id, else text, else raw.
    """
    present = [value for value in values if value is not None]
    return ("text" if all(map(_is_text, keys)) else "raw"), _infer_value_format(present, registry=registry)


def _infer_value_format(values: Sequence[bytes], *, registry: bool) -> str:
    if registry and values and all(len(value) > FRAME_BYTES and value[0] == 0 for value in values):
        return "avro"
    if values and all(value.lstrip()[:1] == b"{" and _is_json(value) for value in values):
        return "json"
    return "text" if values and all(map(_is_text, values)) else "raw"


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _is_text(data: bytes | None) -> bool:
    try:
        return data is None or "\0" not in data.decode()
    except UnicodeDecodeError:
        return False

"""The columns of records for `consume --show`, in each output format.

topic  partition  offset  timestamp (ms)  time (ISO 8601)  timestamp_type  key  value  headers
header.NAME       the last header with that name
.customer.id      a path into a JSON value;  key.customer.id  a path into a JSON key
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from ottla.base.options import suggestion
from ottla.cli.common.errors import json_bytes
from ottla.cli.common.record_format import FieldFormats, Part, Render, Token, iso_time
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.values.json_path import decoder, parse_path
from ottla.client.values.value_formats import TEXT

NAMES = ("topic", "partition", "offset", "timestamp", "time", "timestamp_type", "key", "value", "headers")
TYPES = ("create", "append")
#: Default columns of JSON lines, CSV and Parquet: all that is needed to produce the records again.
ALL = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_TOKENS = {
    "topic": Token("t"),
    "partition": Token("p"),
    "offset": Token("o"),
    "timestamp": Token("T"),
    "time": Token("T", "iso"),
    "timestamp_type": Token("y"),
    "key": Token("k"),
    "value": Token("s"),
    "headers": Token("h"),
}
_COLOURS = {"key": b"36", "time": b"2", "timestamp": b"2", "timestamp_type": b"2", "headers": b"35"}
_COLOURS |= dict.fromkeys(("topic", "partition", "offset"), b"33")


class RecordColumn(NamedTuple):
    """A column: its name, and how to compute it from a record, as a JSON type."""

    name: str
    #: Source of an expression over a record `r`, and the names it uses.
    expression: str
    names: dict[str, Any]
    #: The equivalent token of `-f`.
    token: Token


def columns(texts: Sequence[str], formats: FieldFormats) -> list[RecordColumn]:
    """The columns with these names. Raises: ValueError."""
    json = {"key": decoder(), "value": decoder()}
    selected = [_column(text.strip(), formats, json, number) for number, text in enumerate(texts)]
    twice = [column.name for number, column in enumerate(selected) if column.name in [one.name for one in selected[:number]]]
    if twice:
        raise ValueError(f"--show has column {twice[0]} twice")
    return selected


def _column(text: str, formats: FieldFormats, json: dict[str, Callable[[bytes | None], Any]], number: int) -> RecordColumn:
    if text in ("key", "value"):
        form = getattr(formats, text)
        if form is TEXT:
            return RecordColumn(text, f"(None if r.{text} is None else r.{text}.decode())", {}, _TOKENS[text])
        name = f"v{number}"
        return RecordColumn(text, f"(None if r.{text} is None else {name}(r.{text}))", {name: form.value}, _TOKENS[text])
    if text in NAMES:
        expression = {
            "time": "iso_time(r.timestamp)",
            "timestamp_type": "TYPES[r.timestamp_type]",
            "headers": "r.headers and [[n, None if v is None else v.decode()] for n, v in r.headers]",
        }.get(text, f"r.{text}")
        return RecordColumn(text, expression, {"iso_time": iso_time, "TYPES": TYPES}, _TOKENS[text])
    if text.startswith("header.") and len(text) > 7:
        name = f"h{number}"
        return RecordColumn(text, f"{name}(r.headers)", {name: _last(text[7:])}, Token("h", text[7:]))
    field = "key" if text.startswith(("key.", "key[")) else "value"
    try:
        path = parse_path(text.removeprefix(field))
    except ValueError:
        raise ValueError(
            f"--show: unknown column {text!r}{suggestion(text, NAMES)}; columns are {', '.join(NAMES)}, header.NAME, .path, key.path"
        ) from None
    name, decoded = f"p{number}", json[field]
    return RecordColumn(
        text, f"{name}(r.{field})", {name: lambda data: path.one(decoded(data))}, Token("k" if field == "key" else "s", path.text)
    )


def _last(name: str) -> Callable[[Any], Any]:
    def last(headers: Any) -> Any:
        return next((json_bytes(value) for one, value in reversed(headers) if one == name), None)

    return last


def text_parts(chosen: Sequence[RecordColumn], delimiter: bytes, *, coloured: bool) -> list[Part]:
    """The format that prints columns separated by tabs."""
    parts: list[Part] = []
    for column in chosen:
        colour = _COLOURS.get(column.name) if coloured else None
        parts += [b"\t"] if parts else []
        parts += [b"\x1b[%bm" % colour, column.token, b"\x1b[0m"] if colour else [column.token]
    return [*parts, delimiter]


def rows(chosen: Sequence[RecordColumn], row: Callable[..., Any] | None = None) -> Callable[[Sequence[ConsumerRecord]], list[Any]]:
    """A function that returns the columns of records as `row(...)` or as tuples. Bytes that are not UTF-8 become {"base64": "..."}."""
    made = "Row({})" if row is not None else "({},)"
    names: dict[str, Any] = {"json_bytes": json_bytes, "Row": row}
    for column in chosen:
        names |= column.names
    # The fast function assumes UTF-8. Chunks with other bytes fail there and are computed again by the slow one.
    fast = made.format(", ".join(column.expression for column in chosen))
    slow = made.format(", ".join(_safe_expression(column) for column in chosen))
    exec(f"def fast(records):\n    return [{fast} for r in records]\ndef slow(records):\n    return [{slow} for r in records]", names)

    def compute(records: Sequence[ConsumerRecord]) -> list[Any]:
        try:
            computed: list[Any] = names["fast"](records)
        except UnicodeDecodeError:
            computed = names["slow"](records)
        return computed

    return compute


def _safe_expression(column: RecordColumn) -> str:
    if is_bytes(column):
        return f"json_bytes(r.{column.name})"
    if column.name == "headers":
        return "[[n, json_bytes(v)] for n, v in r.headers]"
    return column.expression


def is_bytes(column: RecordColumn) -> bool:
    """Whether the column is a key or value in the format text."""
    return column.name in ("key", "value") and not column.names


def byte_rows(chosen: Sequence[RecordColumn]) -> Callable[[Sequence[ConsumerRecord]], list[tuple[Any, ...]]]:
    """Like `rows`, with keys and values as bytes."""
    return rows(
        [column._replace(expression=f"r.{column.name}", names={"same": bytes}) if is_bytes(column) else column for column in chosen]
    )


def json_lines(chosen: Sequence[RecordColumn]) -> Render:
    """A function that formats records as JSON lines."""
    renamed = {f"f{number}": column.name for number, column in enumerate(chosen)}
    row = msgspec.defstruct("Row", [(field, Any) for field in renamed], rename=renamed.__getitem__, gc=False)
    compute, encode = rows(chosen, row), msgspec.json.Encoder().encode_lines
    return lambda records: encode(compute(records))

"""The columns of records that `consume --show` chooses, for each kind of output.

topic  partition  offset  timestamp (ms)  time (ISO 8601)  timestamp_type  key  value  headers
header.NAME       the last header of that name
.customer.id      what stands there in a JSON value;  key.customer.id  in a JSON key
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from ottla.cli.common.errors import json_bytes
from ottla.cli.common.json_path import decoder, path
from ottla.cli.common.record_format import Part, Render, Seen, Token, iso_time
from ottla.cli.common.value_formats import TEXT
from ottla.client.consumer.record import ConsumerRecord

NAMES = ("topic", "partition", "offset", "timestamp", "time", "timestamp_type", "key", "value", "headers")
TYPES = ("create", "append")
#: What JSON lines, CSV and Parquet have unless columns are chosen: enough to produce them again.
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


class Column(NamedTuple):
    """One column: its name, and what of a record is in it, in the types of JSON."""

    name: str
    #: The source text of an expression over a record `r`, and what it refers to.
    expression: str
    names: dict[str, Any]
    #: The same as a token of `-f`.
    token: Token


def columns(texts: Sequence[str], seen: Seen) -> list[Column]:
    """The columns with these names. Raises: ValueError."""
    json = {"key": decoder(), "value": decoder()}
    made = [_column(text.strip(), seen, json, number) for number, text in enumerate(texts)]
    twice = [column.name for number, column in enumerate(made) if column.name in [one.name for one in made[:number]]]
    if twice:
        raise ValueError(f"--show names {twice[0]} twice")
    return made


def _column(text: str, seen: Seen, json: dict[str, Callable[[bytes | None], Any]], number: int) -> Column:
    if text in ("key", "value"):
        form = getattr(seen, text)
        if form is TEXT:
            return Column(text, f"(None if r.{text} is None else r.{text}.decode())", {}, _TOKENS[text])
        name = f"v{number}"
        return Column(text, f"(None if r.{text} is None else {name}(r.{text}))", {name: form.value}, _TOKENS[text])
    if text in NAMES:
        expression = {
            "time": "iso_time(r.timestamp)",
            "timestamp_type": "TYPES[r.timestamp_type]",
            "headers": "r.headers and [[n, None if v is None else v.decode()] for n, v in r.headers]",
        }.get(text, f"r.{text}")
        return Column(text, expression, {"iso_time": iso_time, "TYPES": TYPES}, _TOKENS[text])
    if text.startswith("header.") and len(text) > 7:
        name = f"h{number}"
        return Column(text, f"{name}(r.headers)", {name: _last(text[7:])}, Token("h", text[7:]))
    whose = "key" if text.startswith(("key.", "key[")) else "value"
    try:
        found = path(text.removeprefix(whose))
    except ValueError:
        from ottla.base.options import suggestion

        raise ValueError(
            f"--show: there is no column {text!r}{suggestion(text, NAMES)}; there are {', '.join(NAMES)}, header.NAME, .path, key.path"
        ) from None
    name, decoded = f"p{number}", json[whose]
    return Column(text, f"{name}(r.{whose})", {name: lambda data: found.one(decoded(data))}, Token(whose[0].replace("v", "s"), found.text))


def _last(name: str) -> Callable[[Any], Any]:
    def last(headers: Any) -> Any:
        return next((json_bytes(value) for one, value in reversed(headers) if one == name), None)

    return last


def text_parts(chosen: Sequence[Column], delimiter: bytes, *, coloured: bool) -> list[Part]:
    """The format that prints columns with tabs between them."""
    parts: list[Part] = []
    for column in chosen:
        colour = _COLOURS.get(column.name) if coloured else None
        parts += [b"\t"] if parts else []
        parts += [b"\x1b[%bm" % colour, column.token, b"\x1b[0m"] if colour else [column.token]
    return [*parts, delimiter]


def rows(chosen: Sequence[Column], row: Callable[..., Any] | None = None) -> Callable[[Sequence[ConsumerRecord]], list[Any]]:
    """A function that gives records' columns in the types of JSON: as `row(...)`, or as tuples. Bytes that are not UTF-8 become
    {"base64": "..."}.
    """
    made = "Row({})" if row is not None else "({},)"
    names: dict[str, Any] = {"json_bytes": json_bytes, "Row": row}
    for column in chosen:
        names |= column.names
    # Nearly all are UTF-8: only a chunk that has others is made a second time, with care.
    quick = made.format(", ".join(column.expression for column in chosen))
    careful = made.format(", ".join(_careful(column) for column in chosen))
    exec(f"def quick(records):\n    return [{quick} for r in records]\ndef slow(records):\n    return [{careful} for r in records]", names)

    def given(records: Sequence[ConsumerRecord]) -> list[Any]:
        try:
            found: list[Any] = names["quick"](records)
        except UnicodeDecodeError:
            found = names["slow"](records)
        return found

    return given


def _careful(column: Column) -> str:
    if is_bytes(column):
        return f"json_bytes(r.{column.name})"
    if column.name == "headers":
        return "[[n, json_bytes(v)] for n, v in r.headers]"
    return column.expression


def is_bytes(column: Column) -> bool:
    """Whether it has the bytes of a key or value as they are."""
    return column.name in ("key", "value") and not column.names


def byte_rows(chosen: Sequence[Column]) -> Callable[[Sequence[ConsumerRecord]], list[tuple[Any, ...]]]:
    """As `rows`, with the bytes of keys and values as bytes."""
    return rows(
        [column._replace(expression=f"r.{column.name}", names={"same": bytes}) if is_bytes(column) else column for column in chosen]
    )


def json_lines(chosen: Sequence[Column]) -> Render:
    """A function that prints records as JSON objects, one on a line."""
    renamed = {f"f{number}": column.name for number, column in enumerate(chosen)}
    row = msgspec.defstruct("Row", [(field, Any) for field in renamed], rename=renamed.__getitem__, gc=False)
    given, encode = rows(chosen, row), msgspec.json.Encoder().encode_lines
    return lambda records: encode(given(records))

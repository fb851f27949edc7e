r"""Records as comma-separated values. CSV is written and read as bytes, so any value survives a round trip.

    key,value            null is empty, the empty text is "":   a,     has a null value,   a,""   an empty one
    a,"1,5"              fields with , " or newlines are quoted, quotes in them doubled
    "a ""b"" c",2        lines end in \n; \r\n is also read

Numbers are written as digits, headers as the JSON list [["name", "value"], ...], structures as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from ottla.cli.common.record_format import Render
from ottla.cli.consume.columns import RecordColumn, byte_rows, is_bytes
from ottla.client.consumer.record import ConsumerRecord

_NEEDS_QUOTES = re.compile(rb'[",\r\n]').search
_WHOLE = ("partition", "offset", "timestamp")
_CELL = re.compile(rb'(?:"((?:[^"]|"")*)"|([^,"\n]*))(,|\r?\n|$)')


def cell(value: Any) -> bytes:
    """A value of any type as a field."""
    if isinstance(value, bytes):
        return text(value)
    if isinstance(value, str):
        return text(value.encode())
    if value is None or value == ():
        return b""
    return text(msgspec.json.encode(value))


def csv_lines(chosen: Sequence[RecordColumn], *, heading: bool) -> Render:
    """A function that formats records as lines. With `heading`, the first line has the column names."""
    names: dict[str, Any] = {"cell": cell, "text": text, "topic": cache(cell), "slowly": byte_rows(chosen)}
    template, expressions = [], []
    for column in chosen:
        template.append("%d" if column.name in _WHOLE else "%b")
        expressions.append(_expression(column))
        names |= column.names
    line = f"b'{','.join(template)}\\n' % ({', '.join(expressions)},)"
    exec(f"def quick(records):\n    return [{line} for r in records]", names)
    head = b",".join(cell(column.name) for column in chosen) + b"\n" if heading else b""

    def render(records: Sequence[ConsumerRecord]) -> bytes:
        nonlocal head
        try:
            lines = names["quick"](records)
        except UnicodeDecodeError:
            # A header value is not UTF-8.
            lines = [b",".join(map(cell, row)) + b"\n" for row in names["slowly"](records)]
        made, head = head + b"".join(lines), b""
        return made

    return render


def _expression(column: RecordColumn) -> str:
    if is_bytes(column):
        return f"text(r.{column.name})"
    if column.name == "topic":
        return "topic(r.topic)"
    if column.name == "headers":
        return f"(cell({column.expression}) if r.headers else b'')"
    return column.expression if column.name in _WHOLE else f"cell({column.expression})"


def text(data: bytes | None) -> bytes:
    """Bytes as a field."""
    if not data:
        return b"" if data is None else b'""'
    return b'"' + data.replace(b'"', b'""') + b'"' if _NEEDS_QUOTES(data) else data


def fields(line: bytes) -> list[bytes | None]:
    """The fields of a record; None for an empty one. Raises: ValueError, if quotes are misplaced."""
    found: list[bytes | None] = []
    at = 0
    while True:
        one = _CELL.match(line, at)
        if one is None:
            raise ValueError(f"unexpected quote after {line[:at][-20:]!r}")
        quoted, plain, end = one.groups()
        if quoted is not None:
            found.append(quoted.replace(b'""', b'"'))
        else:
            found.append(plain.removesuffix(b"\r") or None)
        at = one.end()
        if end != b",":
            if at < len(line):
                raise ValueError("unexpected newline")
            return found


def joined(lines: Iterable[tuple[int, bytes]], longest: int) -> Iterator[tuple[int, bytes]]:
    """Records with the number of their first line: joins lines where a quoted field holds newlines.

    Raises: ValueError, if a quote is not closed at the end of input or within `longest` bytes.
    """
    number = quotes = size = 0
    parts: list[bytes] = []
    for at, line in lines:
        if not parts:
            if line.count(b'"') % 2 == 0:
                yield at, line
                continue
            number = at
        parts.append(line)
        size += len(line)
        quotes += line.count(b'"')
        if quotes % 2 == 0:
            yield number, b"\n".join(parts)
            parts, quotes, size = [], 0, 0
        elif size > longest:
            break
    if parts:
        raise ValueError(f"line {number}: unclosed quote")

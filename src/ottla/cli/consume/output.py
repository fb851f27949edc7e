"""Where `ottla consume` puts records, in which form: text, JSON lines, CSV, bytes as they are, Parquet.

Everything is rendered and written many records at a time. Colours, and escapes for what could move a terminal's cursor, are for terminals
alone; NO_COLOR and `--color never` turn colours off (https://no-color.org).
"""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from ottla.cli.common.record_csv import csv_lines
from ottla.cli.common.record_format import Render, Seen, compiled, parsed, unescaped
from ottla.cli.common.value_formats import Form
from ottla.cli.consume.columns import ALL, columns, json_lines, text_parts
from ottla.client.consumer.record import ConsumerRecord

FORMS = ("text", "json", "csv", "raw", "parquet")
_JSON_PIECE = re.compile(rb'("(?:[^"\\]|\\.)*")(\s*:)?|(\b(?:true|false|null)\b|-?\d[\d.eE+-]*)')


class Output(Protocol):
    """Takes records, in their order."""

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        """Raises: BrokenPipeError when nobody reads what is written any more; ValueError over a record that cannot be shown."""

    def close(self) -> None:
        """Nothing more comes."""

    def unread(self) -> bool:
        """Whether nobody reads what is written any more."""


class Wanted(NamedTuple):
    """What the command line says of the output."""

    form: str
    key: Form
    value: Form
    format: str | None = None
    show: str | None = None
    delimiter: str | None = None
    null: str = ""
    heading: bool = True
    parquet: str | None = None
    color: str = "auto"


def output(wanted: Wanted) -> Output:
    """The output. Raises: ValueError, ImportError, OSError."""
    terminal = sys.stdout.isatty()
    seen = Seen(wanted.key, wanted.value, unescaped(wanted.null), harmless=terminal and wanted.form == "text")
    if wanted.form == "parquet":
        if wanted.parquet is None and terminal:
            raise ValueError("Parquet is nothing for a terminal: name a file with --parquet FILE, or redirect the output")
        return _Parquet(wanted, seen)
    return _Stream(renderer(wanted, seen, coloured=_coloured(wanted.color, terminal)))


def _coloured(color: str, terminal: bool) -> bool:
    if color != "auto":
        return color == "always"
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def renderer(wanted: Wanted, seen: Seen, *, coloured: bool) -> Render:
    """What makes bytes of records. Raises: ValueError."""
    chosen = columns(wanted.show.split(",") if wanted.show else ALL, seen)
    if wanted.form == "json":
        plain = json_lines(chosen)
        return (lambda records: json_coloured(plain(records))) if coloured else plain
    if wanted.form == "csv":
        return csv_lines(chosen, heading=wanted.heading)
    if wanted.format is not None:
        return compiled(parsed(wanted.format), seen)
    delimiter = unescaped(("" if wanted.form == "raw" else "\\n") if wanted.delimiter is None else wanted.delimiter)
    if wanted.show is None:
        chosen = columns(["value"], seen)
    return compiled(text_parts(chosen, delimiter, coloured=coloured), seen)


def json_coloured(lines: bytes) -> bytes:
    """JSON with colours: names, strings, and everything else."""

    def one(found: re.Match[bytes]) -> bytes:
        text, colon, other = found.groups()
        if colon is not None:
            return b"\x1b[36m%b\x1b[0m%b" % (text, colon)
        return b"\x1b[32m%b\x1b[0m" % text if text is not None else b"\x1b[33m%b\x1b[0m" % other

    return _JSON_PIECE.sub(one, lines)


class _Stream:
    """Standard output."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._out: BinaryIO = sys.stdout.buffer

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        self._out.write(self._render(records))
        self._out.flush()

    def close(self) -> None:
        self._out.flush()

    def unread(self) -> bool:
        # A pipe whose other end was closed says so before anything is written to it.
        with suppress(OSError, ValueError, AttributeError):
            poller = select.poll()
            poller.register(self._out, 0)
            return any(event & select.POLLERR for _, event in poller.poll(0))
        return False


class _Parquet:
    """A Parquet file, or one on standard output."""

    def __init__(self, wanted: Wanted, seen: Seen) -> None:
        from ottla.cli.consume.parquet_output import ParquetFile

        numbers = {name: alias for name, form in (("key", seen.key), ("value", seen.value)) if (alias := _alias(form))}
        chosen = columns(wanted.show.split(",") if wanted.show else ALL, seen)
        self._opened: BinaryIO | None = None
        if wanted.parquet is not None:
            self._opened = Path(wanted.parquet).open("wb")  # noqa: SIM115 - closed by close()
        self._file = ParquetFile(self._opened or sys.stdout.buffer, chosen, numbers=numbers)

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        self._file.write(records)

    def close(self) -> None:
        self._file.close()
        if self._opened is not None:
            self._opened.close()

    def unread(self) -> bool:
        return False


def _alias(form: Form) -> str | None:
    """Arrow's type of a format's numbers."""
    return {"whole number": "int64", "floating point number": "double"}.get(form.name)

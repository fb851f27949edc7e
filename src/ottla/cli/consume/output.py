"""The outputs of `ottla consume`: text, JSON lines, CSV, raw bytes, Parquet.

Records are formatted and written in chunks. Only on a terminal, colours are used and control characters escaped; NO_COLOR and `--color
never` turn colours off (https://no-color.org).
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
from ottla.cli.common.record_format import FieldFormats, Render, compiled, parsed, unescaped
from ottla.cli.consume.columns import ALL, columns, json_lines, text_parts
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.values.value_formats import ValueFormat

FORMS = ("text", "json", "csv", "raw", "parquet")
_JSON_PIECE = re.compile(rb'("(?:[^"\\]|\\.)*")(\s*:)?|(\b(?:true|false|null)\b|-?\d[\d.eE+-]*)')


class Output(Protocol):
    """Writes records in order."""

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        """Raises: BrokenPipeError, if the reader closed the pipe; ValueError for a record that does not fit its format."""

    def close(self) -> None:
        """Completes the output."""

    def is_abandoned(self) -> bool:
        """Whether the reader closed the pipe."""


class OutputOptions(NamedTuple):
    """The options of the command that determine the output."""

    form: str
    key: ValueFormat
    value: ValueFormat
    format: str | None = None
    show: str | None = None
    delimiter: str | None = None
    null: str = ""
    heading: bool = True
    parquet: str | None = None
    color: str = "auto"


def output(options: OutputOptions) -> Output:
    """Raises: ValueError, ImportError, OSError."""
    terminal = sys.stdout.isatty()
    formats = FieldFormats(options.key, options.value, unescaped(options.null), terminal_safe=terminal and options.form == "text")
    if options.form == "parquet":
        if options.parquet is None and terminal:
            raise ValueError("Parquet cannot be written to a terminal: use --parquet FILE, or redirect the output")
        return _Parquet(options, formats)
    return _Stream(renderer(options, formats, coloured=_coloured(options.color, terminal)))


def _coloured(color: str, terminal: bool) -> bool:
    if color != "auto":
        return color == "always"
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def renderer(options: OutputOptions, formats: FieldFormats, *, coloured: bool) -> Render:
    """The function that formats records. Raises: ValueError."""
    chosen = columns(options.show.split(",") if options.show else ALL, formats)
    if options.form == "json":
        plain = json_lines(chosen)
        return (lambda records: json_coloured(plain(records))) if coloured else plain
    if options.form == "csv":
        return csv_lines(chosen, heading=options.heading)
    if options.format is not None:
        return compiled(parsed(options.format), formats)
    delimiter = unescaped(("" if options.form == "raw" else "\\n") if options.delimiter is None else options.delimiter)
    if options.show is None:
        chosen = columns(["value"], formats)
    return compiled(text_parts(chosen, delimiter, coloured=coloured), formats)


def json_coloured(lines: bytes) -> bytes:
    """JSON with colours for names, strings and other values."""

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

    def is_abandoned(self) -> bool:
        # A pipe reports a closed read end before anything is written to it.
        with suppress(OSError, ValueError, AttributeError):
            poller = select.poll()
            poller.register(self._out, 0)
            return any(event & select.POLLERR for _, event in poller.poll(0))
        return False


class _Parquet:
    """A Parquet file, or Parquet on standard output."""

    def __init__(self, options: OutputOptions, formats: FieldFormats) -> None:
        from ottla.cli.consume.parquet_output import ParquetFile

        numbers = {name: alias for name, form in (("key", formats.key), ("value", formats.value)) if (alias := _alias(form))}
        chosen = columns(options.show.split(",") if options.show else ALL, formats)
        self._opened: BinaryIO | None = None
        if options.parquet is not None:
            self._opened = Path(options.parquet).open("wb")  # noqa: SIM115 - closed by close()
        self._file = ParquetFile(self._opened or sys.stdout.buffer, chosen, numbers=numbers)

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        self._file.write(records)

    def close(self) -> None:
        self._file.close()
        if self._opened is not None:
            self._opened.close()

    def is_abandoned(self) -> bool:
        return False


def _alias(form: ValueFormat) -> str | None:
    """The Arrow type of a numeric format."""
    return {"whole number": "int64", "floating point number": "double"}.get(form.name)

"""Comma-separated values with types, parsed by Arrow in blocks of complete lines.

The first line has the column names. Types are inferred from the first rows: integers, numbers, booleans, dates, times, text. Values that
would lose something as a number stay text: 007, and numbers with too many digits. An empty field is null, ``""`` the empty text. A later
row with a value of another type is rejected; types can be given instead.
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from ottla.base.options import suggestion
from ottla.lake.load.inputs import CannotLoad
from ottla.lake.load.line_files import LineSource, blocks, records
from ottla.lake.load.reader import ReadOptions, RejectedRow, RowBatch, json_type

#: Bytes of the first block from which types are inferred.
SAMPLE_BYTES = 1 << 20
#: Codes with leading zeros, and numbers with more digits than a float keeps.
_CODE, _MANY_DIGITS = r"^-?0[0-9]", r"^-?[0-9]{16,}$"
_CONVERSION = re.compile(r"In CSV column #(\d+):.*?conversion error to ([\w\[\], ]+): (.*)", re.DOTALL)
_FIELDS = re.compile(r"Expected (\d+) columns, got (\d+)")


class CsvReader:
    """Reads csv. Raises: CannotLoad on construction, for an empty file, or an unknown column or type."""

    value: str | None = None
    skipped = 0

    def __init__(self, source: LineSource, how: ReadOptions, delimiter: str) -> None:
        self._source, self._how = source, how
        self._quote = how.quote.encode() if how.quote else None
        self._parse_options: dict[str, Any] = {
            "delimiter": how.delimiter or delimiter,
            "quote_char": how.quote or False,
            "double_quote": bool(how.quote),
            "ignore_empty_lines": True,
        }
        self._convert_options = {
            "null_values": ["", *how.nulls], "strings_can_be_null": True, "quoted_strings_can_be_null": False,
        }  # fmt: skip
        coming = blocks(source, self._quote)
        number, block = next(coming, (1, b""))
        self._names = list(how.names)
        if not self._names:
            number, block = self._head(number, block)
        self._blocks = chain([(number, block)], coming)
        self._kinds = self._types(block)
        self._schema = pa.schema(list(self._kinds.items()))
        self.columns = {field.name: json_type(field.type) for field in self._schema}

    def _head(self, number: int, block: bytes) -> tuple[int, bytes]:
        """Reads the column names; returns the rest."""
        begin = len(block) - len(block.lstrip(b"\r\n"))
        end = _line_end(block, begin, begin, self._quote)
        if not block[begin:end].strip():
            raise CannotLoad("it has no line that names the columns")
        head = pa.BufferReader(block[begin:end])
        read = arrow_csv.ReadOptions(autogenerate_column_names=True)
        parse = arrow_csv.ParseOptions(**self._parse_options, newlines_in_values=True)
        width = arrow_csv.read_csv(head, read, parse).num_columns
        head.seek(0)
        text = arrow_csv.ConvertOptions(column_types={f"f{index}": pa.string() for index in range(width)})
        found = arrow_csv.read_csv(head, read, parse, text).to_pylist()[0].values()
        self._names = [name.strip() or f"column{index}" for index, name in enumerate(found, 1)]
        if twice := [name for name in self._names if self._names.count(name) > 1]:
            raise CannotLoad(f"several of its columns are called {twice[0]}")
        return number + block.count(b"\n", 0, end), block[end:]

    def _types(self, block: bytes) -> dict[str, Any]:
        """The types of the columns, inferred from the first rows."""
        said = {name: _type(text) for name, text in self._how.types.items()}
        if unknown := [name for name in said if name not in self._names]:
            raise CannotLoad(f"it has no column {unknown[0]!r}{suggestion(unknown[0], self._names)}; it has {', '.join(self._names)}")
        text = {name: pa.string() for name in self._names}
        if self._how.all_text:
            return {**text, **said}
        sample = _sample(block, self._quote)
        try:
            seen = {field.name: field.type for field in self._parsed(sample, said).schema}
            words = self._parsed(sample, text)
        except pa.ArrowInvalid:
            # Some line is invalid and will be reported; types are inferred from the others.
            sample = b"\n".join(self._sound(records(1, sample, self._quote), text))
            seen = {field.name: field.type for field in self._parsed(sample, {}).schema}
            words = self._parsed(sample, text)
        for name, kind in seen.items():
            if name not in said and (pa.types.is_null(kind) or (not pa.types.is_string(kind) and _loses(words[name], kind))):
                seen[name] = pa.string()
        return {**seen, **said}

    def _sound(self, lines: list[tuple[int, bytes]], types: Any) -> Iterator[bytes]:
        """The lines that can be parsed."""
        for first, last in self._searched(lines, types):
            yield from (line for _, line in lines[first:last])

    def _parsed(self, block: bytes, types: Any) -> Any:
        """Raises: ArrowInvalid."""
        if not block.strip(b"\r\n"):
            return pa.schema([(name, types.get(name, pa.null())) for name in self._names]).empty_table()
        return arrow_csv.read_csv(
            pa.BufferReader(block),
            arrow_csv.ReadOptions(column_names=self._names, block_size=len(block) + 1),
            arrow_csv.ParseOptions(**self._parse_options, newlines_in_values=self._quote is not None and self._quote in block),
            arrow_csv.ConvertOptions(**self._convert_options, column_types=types),
        )

    def portions(self, skip: int) -> Iterator[RowBatch]:
        for number, block in self._blocks:
            bad: list[RejectedRow] = []
            try:
                tables = [self._parsed(block, self._kinds)]
            except pa.ArrowInvalid:
                lines = records(number, block, self._quote)
                tables, rows, at = [], 0, 0
                for first, last in [*self._searched(lines, self._kinds), (len(lines), len(lines))]:
                    bad += [RejectedRow(rows, line, self._why(data), data) for line, data in lines[at:first]]
                    if last > first:
                        tables.append(self._parsed(b"\n".join(data for _, data in lines[first:last]), self._kinds))
                        rows += tables[-1].num_rows
                    at = last
            whole = pa.concat_tables(tables or [self._schema.empty_table()]).combine_chunks()
            for batch in whole.to_batches() or [pa.RecordBatch.from_pylist([], self._schema)]:
                yield RowBatch(batch, bad, self._source.done)

    def _searched(self, lines: list[tuple[int, bytes]], types: Any) -> Iterator[tuple[int, int]]:
        """The runs ``[first, last)`` of valid lines, by bisection."""
        waiting = [(0, len(lines))]
        while waiting:
            first, last = waiting.pop()
            try:
                self._parsed(b"\n".join(data for _, data in lines[first:last]), types)
            except pa.ArrowInvalid:
                if last - first > 1:
                    middle = (first + last) // 2
                    waiting += [(middle, last), (first, middle)]
            else:
                if last > first:
                    yield first, last

    def _why(self, line: bytes) -> str:
        """The problem of a line."""
        try:
            self._parsed(line, self._kinds)
        except pa.ArrowInvalid as error:
            said = str(error)
            if found := _CONVERSION.match(said):
                name = self._names[int(found[1])]
                return f"column {name}: {found[3].removeprefix('invalid value ')} is not {found[2]}"
            if found := _FIELDS.search(said):
                return f"{found[2]} fields, and there are {found[1]} columns"
            return said.splitlines()[0].removeprefix("CSV parse error: ")
        return "it cannot be read"


def _sample(block: bytes, quote: bytes | None) -> bytes:
    """The first complete lines of a block."""
    return block[: _line_end(block, 0, SAMPLE_BYTES, quote)]


def _line_end(block: bytes, begin: int, start: int, quote: bytes | None) -> int:
    """The end of the line that contains the byte `start`, outside of quotes, which are counted from `begin`."""
    end = block.find(b"\n", start)
    while quote is not None and end >= 0 and block.count(quote, begin, end) % 2:
        end = block.find(b"\n", end + 1)
    return len(block) if end < 0 else end + 1


def _loses(words: Any, kind: Any) -> bool:
    """Whether some of the texts would lose something as a number."""
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return False
    patterns = [_CODE] if pa.types.is_integer(kind) else [_CODE, _MANY_DIGITS]
    return any(pc.any(pc.match_substring_regex(words, pattern)).as_py() for pattern in patterns)


def _type(text: str) -> Any:
    """The Arrow type with this name. Raises: CannotLoad."""
    try:
        return pa.type_for_alias(text)
    except ValueError:
        known = ("string", "int32", "int64", "double", "bool", "date32", "timestamp[ms]", "binary")
        raise CannotLoad(
            f"there is no type {text!r}{suggestion(text, known)}; there are {', '.join(known)} and others of Arrow's"
        ) from None

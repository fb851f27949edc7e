"""Records from Parquet and Arrow files, for `ottla produce -i parquet` and `-i arrow`; `ottla pipeline load` has the same reader.

In a file with a column ``value``, such as `consume -o parquet` writes, the columns key, value, headers, partition and timestamp have these
meanings. In other files the value is a JSON object of all columns. As for CSV, options can name other columns for key and value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ottla.cli.produce.input import BadLine, Chunk, CountedInput, Headers, InputFormat, InputRecord, encode_field, line_label
from ottla.client.values.value_formats import TEXT
from ottla.lake.load.column_mapping import ColumnMapping, Records, Template, map_columns
from ottla.lake.load.inputs import STDIN, CannotLoad, inputs
from ottla.lake.load.reader import ReadOptions
from ottla.lake.load.readers import open_reader


def arrow_chunks(name: str, source: CountedInput, reading: InputFormat, complain: Callable[[str], None]) -> Iterator[Chunk]:
    """All records of a file. Raises: BadLine, OSError, ImportError; what ``complain`` raises."""
    before, row = source.done, 0
    try:
        (given,) = inputs([name], reading.form)
        with open_reader(given, ReadOptions()) as reader:
            shape = _mapping(reader.columns or {}, reading)
            shape.check(reader.columns, name)
            for portion in reader.portions(0):
                found = map_columns(shape, portion.batch, None, row, name)
                source.done = before + portion.done
                for bad in found.bad:
                    complain(f"{line_label(name, row + bad.at + 1, 'record')}: {bad.why}")
                yield Chunk(name, [number + 1 for number in found.rows.to_pylist()], _records(found, reading))
                row += portion.batch.num_rows
    except CannotLoad as error:
        raise BadLine(f"{'standard input' if name == STDIN else name}: {error}" if name not in str(error) else str(error)) from None


def _mapping(columns: Any, reading: InputFormat) -> ColumnMapping:
    """The column mapping of a file."""
    ignore = reading.ignore
    has_value = reading.value_column is not None or ("value" in columns and "value" not in ignore)
    key = reading.key_column or ("key" if "key" in columns and "key" not in ignore else None)
    named = {name: name if has_value and name in columns and name not in ignore else None for name in ("headers", "partition", "timestamp")}
    return ColumnMapping(
        key=None if key is None else Template(((key,),)),
        value=(reading.value_column or "value") if has_value else None,
        headers_column=named["headers"],
        partition=named["partition"],
        timestamp=named["timestamp"],
        bytes_max=reading.longest,
    )


def _records(found: Records, reading: InputFormat) -> list[InputRecord]:
    columns = {name: found.batch.column(name) for name in found.batch.schema.names}
    count = found.batch.num_rows
    nothing: list[Any] = [None] * count

    def plain(name: str) -> list[Any]:
        return columns[name].to_pylist() if name in columns else nothing

    def data(name: str) -> list[bytes | None]:
        import pyarrow as pa

        form = reading.key if name == "key" else reading.value
        values = columns[name].cast(pa.large_binary()).to_pylist() if name in columns else nothing
        return values if form is TEXT else [None if one is None else encode_field(form, one, name) for one in values]

    times = nothing
    if "timestamp" in columns:
        times = columns["timestamp"].cast("int64").to_pylist()
    headers = [_headers(one) for one in plain("headers")]
    return list(zip(data("value"), data("key"), headers, plain("partition"), times, strict=True))


def _headers(pairs: Any) -> Headers:
    return tuple((pair["key"], pair["value"]) for pair in pairs or ())

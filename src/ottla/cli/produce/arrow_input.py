"""Records from Parquet and Arrow files, for `ottla produce -o parquet` and `-o arrow`: read as `ottla pipeline load` reads them.

A file with a column ``value`` is one of records, such as `consume -o parquet` writes: key, value, headers, partition and timestamp are what
they say. Of other files the value is a JSON object of all columns. Options name the columns of key and value otherwise, as for CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ottla.cli.common.value_formats import TEXT
from ottla.cli.produce.input import BadLine, Chunk, Counted, Given, Headers, Reading, form_read, where
from ottla.lake.load.column_mapping import ColumnMapping, Records, Template, map_columns
from ottla.lake.load.inputs import STDIN, CannotLoad, inputs
from ottla.lake.load.readers import ReadOptions, open_reader


def arrow_chunks(name: str, source: Counted, reading: Reading, complain: Callable[[str], None]) -> Iterator[Chunk]:
    """All records of a file. Raises: BadLine, OSError, ImportError; what ``complain`` raises."""
    before, row = source.done, 0
    try:
        (given,) = inputs([name], reading.form)
        with open_reader(given, ReadOptions()) as reader:
            shape = _shape(reader.columns or {}, reading)
            shape.check(reader.columns, name)
            for portion in reader.portions(0):
                found = map_columns(shape, portion.batch, None, row, name)
                source.done = before + portion.done
                for bad in found.bad:
                    complain(f"{where(name, row + bad.at + 1, 'record')}: {bad.why}")
                yield Chunk(name, [number + 1 for number in found.rows.to_pylist()], _records(found, reading))
                row += portion.batch.num_rows
    except CannotLoad as error:
        raise BadLine(f"{'standard input' if name == STDIN else name}: {error}" if name not in str(error) else str(error)) from None


def _shape(columns: Any, reading: Reading) -> ColumnMapping:
    """Which column is what."""
    ignore = reading.ignore
    ours = reading.value_column is not None or ("value" in columns and "value" not in ignore)
    key = reading.key_column or ("key" if "key" in columns and "key" not in ignore else None)
    named = {name: name if ours and name in columns and name not in ignore else None for name in ("headers", "partition", "timestamp")}
    return ColumnMapping(
        key=None if key is None else Template(((key,),)),
        value=(reading.value_column or "value") if ours else None,
        headers_column=named["headers"],
        partition=named["partition"],
        timestamp=named["timestamp"],
        bytes_max=reading.longest,
    )


def _records(found: Records, reading: Reading) -> list[Given]:
    columns = {name: found.batch.column(name) for name in found.batch.schema.names}
    count = found.batch.num_rows
    nothing: list[Any] = [None] * count

    def plain(name: str) -> list[Any]:
        return columns[name].to_pylist() if name in columns else nothing

    def data(name: str) -> list[bytes | None]:
        import pyarrow as pa

        form = reading.key if name == "key" else reading.value
        given = columns[name].cast(pa.large_binary()).to_pylist() if name in columns else nothing
        return given if form is TEXT else [None if one is None else form_read(form, one, name) for one in given]

    times = nothing
    if "timestamp" in columns:
        times = columns["timestamp"].cast("int64").to_pylist()
    headers = [_headers(one) for one in plain("headers")]
    return list(zip(data("value"), data("key"), headers, plain("partition"), times, strict=True))


def _headers(given: Any) -> Headers:
    if not given:
        return ()
    return tuple((pair["key"], pair["value"]) for pair in given)

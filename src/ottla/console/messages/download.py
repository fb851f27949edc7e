"""Matches as a file: JSON lines, CSV or Parquet. Records are read in the order of partitions and offsets, and written as they come.

JSON lines are those of `ottla consume -o json`, which `ottla produce -i json` reads.
"""

from __future__ import annotations

import asyncio
import csv
import io
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from ottla.client.consumer.record import ConsumerRecord
from ottla.client.values.json_bytes import json_bytes
from ottla.client.values.value_formats import ValueFormat, printed_value
from ottla.console.messages.preview import Formats
from ottla.console.messages.query import Query, Window
from ottla.console.messages.search import Search

RECORDS_MAX = 1_000_000
#: Of keys and values.
BYTES_MAX = 2 * 2**30
FORMATS = {"jsonl": "application/x-ndjson", "csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
Decode = Callable[[bytes | None], Any]


async def matches(search: Search, query: Query) -> AsyncGenerator[list[ConsumerRecord], None]:
    """The matches of a search, in order, up to the limits of a download."""
    records = size = 0
    for partition, (first, last) in sorted((await search.spans()).items()):
        async with aclosing(search.window(Window(partition, first, last))) as found:
            async for some in found:
                some = some[: RECORDS_MAX - records]
                records += len(some)
                size += sum(len(one.key or b"") + len(one.value or b"") for one in some)
                yield some
                if records >= RECORDS_MAX or size >= BYTES_MAX:
                    return


def decoders(query: Query, keys: Formats, values: Formats) -> tuple[Decode, Decode]:
    """Functions from the bytes of keys and values to JSON values. Bytes of another format stay bytes."""
    return _decoder(keys.chosen(query.key_format)), _decoder(values.chosen(query.value_format))


def _decoder(form: ValueFormat | None) -> Decode:
    if form is None:
        return json_bytes

    def decode(data: bytes | None) -> Any:
        if data is None:
            return None
        try:
            return form.value(data)
        except ValueError:
            return json_bytes(data)

    return decode


def json_lines(records: Iterable[ConsumerRecord], decode: tuple[Decode, Decode]) -> bytes:
    """Records as JSON lines."""
    return b"".join(
        msgspec.json.encode(
            {
                "topic": one.topic,
                "partition": one.partition,
                "offset": one.offset,
                "timestamp": one.timestamp,
                "key": decode[0](one.key),
                "value": decode[1](one.value),
                "headers": [[name, json_bytes(content)] for name, content in one.headers],
            }
        )
        + b"\n"
        for one in records
    )


def csv_lines(records: Iterable[ConsumerRecord], decode: tuple[Decode, Decode], *, heading: bool = False) -> bytes:
    """Records as CSV. A null key or value is an empty cell; headers are JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if heading:
        writer.writerow(COLUMNS)

    def cell(value: Any) -> str:
        return "" if value is None else printed_value(value).decode("utf-8", "replace")

    for one in records:
        pairs = [[name, json_bytes(content)] for name, content in one.headers]
        writer.writerow(
            (one.topic, one.partition, one.offset, one.timestamp, cell(decode[0](one.key)), cell(decode[1](one.value)), cell(pairs))
        )
    return out.getvalue().encode()


async def text_file(search: Search, query: Query, form: str, decode: tuple[Decode, Decode]) -> AsyncGenerator[bytes, None]:
    """The parts of a file of JSON lines or CSV."""
    if form == "csv":
        yield csv_lines([], decode, heading=True)
    write = csv_lines if form == "csv" else json_lines
    async with aclosing(matches(search, query)) as found:
        async for records in found:
            yield await asyncio.to_thread(write, records, decode)


async def parquet_file(search: Search, query: Query) -> Path:
    """A temporary file with the records, which the caller deletes; keys, values and headers are binary. Raises: ImportError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("key", pa.binary()), ("value", pa.binary()),
            ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ]
    )  # fmt: skip
    with tempfile.NamedTemporaryFile(prefix="ottla-console-", suffix=".parquet", delete=False) as file:
        path = Path(file.name)

    def table(records: list[ConsumerRecord]) -> Any:
        columns = [[getattr(one, name) for one in records] for name in COLUMNS[:-1]]
        pairs = [[{"name": name, "value": content} for name, content in one.headers] for one in records]
        return pa.table([*columns, pairs], schema=schema)

    try:
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            async with aclosing(matches(search, query)) as found:
                async for records in found:
                    await asyncio.to_thread(lambda some: writer.write_table(table(some)), records)
    except BaseException:
        _remove(path)
        raise
    return path


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)

"""The first records of files as they would be sent: encoded, and decoded again."""

from collections.abc import Iterator, Sequence
from time import time_ns
from typing import Any, NamedTuple

from ottla.client.arrow.rows import TableRows
from ottla.client.arrow.send import batches_of_table
from ottla.lake.load.column_mapping import ColumnMapping, map_columns
from ottla.lake.load.inputs import CannotLoad, Input
from ottla.lake.load.reader import ReadOptions
from ottla.lake.load.readers import open_reader
from ottla.records.compression import Codec
from ottla.records.read import records

#: Rows that are processed at once; a batch may have many more.
ROWS = 1000
BATCH_BYTES = 1 << 30


class Preview(NamedTuple):
    """A record. Without a partition: chosen by key or at random; without a timestamp: the time of sending."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    timestamp_ms: int | None


def preview(files: Sequence[Input], shape: ColumnMapping, how: ReadOptions, limit: int) -> Iterator[Preview]:
    """The first ``limit`` records. Raises: CannotLoad for the first invalid one, OSError."""
    left = limit
    for given in files:
        with open_reader(given, how) as reader:
            shape.check(reader.columns, given.name)
            row = 0
            for portion in reader.portions(0):
                for first in range(0, max(portion.batch.num_rows, 1), ROWS):
                    batch = portion.batch.slice(first, min(ROWS, left))
                    made = map_columns(shape, batch, reader.value, row, given.name)
                    row += batch.num_rows
                    end = first + batch.num_rows
                    more = batch.num_rows < left and end == portion.batch.num_rows
                    bad = [one for one in portion.bad if first <= one.at < end or (more and one.at == end)]
                    bad += [one._replace(at=first + one.at) for one in made.bad]
                    if bad:
                        where = f"line {bad[0].line}" if bad[0].line is not None else f"record {row - end + bad[0].at + 1}"
                        raise CannotLoad(f"{given.name}, {where}: {bad[0].why}")
                    for one in _read_back(made.batch):
                        yield one
                        left -= 1
                        if not left:
                            return


def _read_back(batch: Any) -> Iterator[Preview]:
    names = batch.schema.names
    partitions = batch.column("partition").to_pylist() if "partition" in names else [None] * batch.num_rows
    columns: Any = {name: name for name in ("key", "value", "headers", "timestamp") if name in names}
    times = batch.column("timestamp") if "timestamp" in names else None
    table = TableRows(batch, now_ms=time_ns() // 1_000_000, **columns)
    row = 0
    for encoded in batches_of_table(table, 1, BATCH_BYTES, Codec.NONE, None):
        for _, timestamp_ms, key, value, headers in records(encoded.data):
            said = times is not None and times[row].is_valid
            yield Preview(_plain(key), _plain(value), tuple(headers), partitions[row], timestamp_ms if said else None)
            row += 1


def _plain(data: Any) -> bytes | None:
    return None if data is None else bytes(data)

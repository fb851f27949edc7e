"""Million records a second built, checked and read, compared with aiokafka and kafka-python: `python -m bench.records_codec`.

Records have 100-byte values, no key and no headers; batches are uncompressed unless noted. Each figure is the best of many short runs.
The last table is the broker's side: µs to check one batch as produced, checksum included, by codec.
"""

import argparse
import timeit
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from aiokafka.record import _crecords as aiokafka
from aiokafka.record import default_records as aiokafka_python
from kafka.record import default_records as kafka_python
from rich.console import Console
from rich.table import Table

from ottla.records import NATIVE, _pure
from ottla.records.batch import HEADER_SIZE, parse_header
from ottla.records.build import BatchBuilder, BinaryColumn, build_batch, column_encoder, seal_encoded
from ottla.records.checksum import crc32c
from ottla.records.codec import Builder, check_records
from ottla.records.columns import columns
from ottla.records.compression import Codec
from ottla.records.read import records
from ottla.records.validation import examine_batch

T0 = 1_700_000_000_000
COUNTS = (140, 9_000)
VALUE = b"x" * 100


def best_s(work: Callable[[], object], budget_s: float) -> float:
    """Seconds of the fastest run within a time budget."""
    once = min(timeit.repeat(work, number=1, repeat=3))
    number = max(1, int(0.002 / once))
    repeat = max(5, int(budget_s / (number * once)))
    return min(timeit.repeat(work, number=number, repeat=repeat)) / number


def peer_built(builder: Any, count: int) -> bytes:
    batch = builder(2, 0, False, -1, -1, -1, 1 << 30)
    for place in range(count):
        batch.append(place, T0, None, VALUE, [])
    return bytes(batch.build())


def appended(builder: Any, count: int) -> Any:
    append = builder.append
    for _ in range(count):
        append(T0, None, VALUE)
    return builder


def encoded(column: BinaryColumn, count: int) -> Builder:
    builder = column_encoder(column, first=0, last=count, timestamps=T0).encode(1 << 30)
    assert builder is not None, "there are rows"
    return builder


def writers(count: int) -> dict[str, Callable[[], object]]:
    values = [VALUE] * count
    array = pa.array(values, pa.binary())
    column = BinaryColumn(array.buffers()[1], array.buffers()[2])
    return {
        "BatchBuilder.append": lambda: appended(BatchBuilder(), count).finish(),
        "BatchBuilder.extend(lists)": lambda: (builder := BatchBuilder(), builder.extend(T0, None, values), builder.finish()),
        "Arrow columns, one batch": lambda: seal_encoded(encoded(column, count), size_max=1 << 30),
        "pure twin, append": lambda: appended(_pure.Builder(), count).take(),
        "aiokafka": lambda: peer_built(aiokafka.DefaultRecordBatchBuilder, count),
        "aiokafka in Python": lambda: peer_built(aiokafka_python._DefaultRecordBatchBuilderPy, count),
        "kafka-python": lambda: peer_built(kafka_python.DefaultRecordBatchBuilder, count),
    }


def readers(count: int) -> dict[str, Callable[[], object]]:
    batch = bytes(build_batch([(T0 + i % 100, None, VALUE, ()) for i in range(count)]))
    changeable = bytearray(batch)
    span = (HEADER_SIZE, len(batch), count)
    base = parse_header(batch).base_timestamp

    def wrapped() -> object:
        found = columns(batch)
        numbers = [pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(data)]) for data in (found.offsets, found.timestamps)]
        value = [None, pa.py_buffer(found.value.offsets), pa.py_buffer(found.value.data)]
        return pa.record_batch([*numbers, pa.Array.from_buffers(pa.binary(), count, value)], ["offset", "timestamp", "value"])

    return {
        "structure check alone": lambda: check_records(batch, *span, base),
        "examine_batch, with CRC": lambda: examine_batch(batch, max_decompressed=1 << 20),
        "columns": lambda: columns(batch),
        "columns as pyarrow.RecordBatch": wrapped,
        "list of tuples": lambda: records(batch),
        "pure twin, check": lambda: _pure.check_records(batch, *span, base),
        "pure twin, tuples": lambda: _pure.decode_records(batch, *span, 0, base, None, 0, count),
        "aiokafka": lambda: list(aiokafka.DefaultRecordBatch(batch)),
        "aiokafka in Python": lambda: list(aiokafka_python._DefaultRecordBatchPy(changeable)),
        "kafka-python": lambda: list(kafka_python.DefaultRecordBatch(changeable)),
    }


def speeds(title: str, cases: Callable[[int], dict[str, Callable[[], object]]], budget_s: float) -> Table:
    table = Table("M records/s", *(f"batch of {count:,}" for count in COUNTS), title=title)
    by_count = [cases(count) for count in COUNTS]
    for name in by_count[0]:
        table.add_row(name, *(f"{count / best_s(works[name], budget_s) / 1e6:.2f}" for count, works in zip(COUNTS, by_count, strict=True)))
    return table


def produced(budget_s: float) -> Table:
    table = Table("140 records of JSON", "bytes", "examine_batch µs", "CRC alone µs", title="Checking a produced batch")
    values = [
        b'{"user": %d, "page": "/item/%d", "ms": %d, "agent": "Mozilla/5.0 (X11; Linux)"}' % (i * 7919, i % 40, i * 13) for i in range(140)
    ]
    for codec in Codec:
        batch = bytes(build_batch([(T0 + i, None, value, ()) for i, value in enumerate(values)], codec=codec))
        view = memoryview(batch)
        whole = best_s(lambda batch=batch: examine_batch(batch, max_decompressed=1 << 20), budget_s)  # type: ignore[misc]
        crc = best_s(lambda view=view: crc32c(view[21:]), budget_s)  # type: ignore[misc]
        table.add_row(codec.wire_name, f"{len(batch):,}", f"{whole * 1e6:.2f}", f"{crc * 1e6:.2f}")
    return table


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--seconds", type=float, default=0.5, help="time for each figure")
    budget_s = arguments.parse_args().seconds
    console = Console()
    console.print(f"compiled codec: {NATIVE}")
    console.print(speeds("Building", writers, budget_s))
    console.print(speeds("Reading", readers, budget_s))
    console.print(produced(budget_s))


if __name__ == "__main__":
    main()

"""Cost of Log.append beyond the write itself, speed of recovery, and time to open many partitions.

python -m bench.log_append [--batches 20000]
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ottla.base.ids import TopicId, TopicPartition
from ottla.log.directory import LogDirectory
from ottla.log.options import TopicOptions
from ottla.records.batch import parse_header
from ottla.records.build import build_batch
from ottla.server.disk import RealDisk


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--batches", type=int, default=20_000)
    arguments.add_argument("--partitions", type=int, default=1_000)
    chosen = arguments.parse_args()
    root = Path(tempfile.mkdtemp(prefix="ottla-bench-"))
    try:
        append(root / "append", chosen.batches)
        many(root / "many", chosen.partitions)
    finally:
        shutil.rmtree(root)


def opened(root: Path) -> LogDirectory:
    return LogDirectory.open(RealDisk(root), broker_id=1, cluster_id="bench", now_ms=0)


def timed(label: str, count: int, work: Callable[[], object], unit: str = "µs", scale: float = 1e6) -> float:
    begun = time.perf_counter()
    work()
    took = time.perf_counter() - begun
    print(f"{label:48} {took / count * scale:10.2f} {unit}")
    return took


def append(root: Path, count: int) -> None:
    """15 KiB batches: the log compared with a plain write."""
    directory = opened(root)
    batch = memoryview(build_batch([(0, None, b"v" * 100, ())] * 140))
    header = parse_header(batch)
    log = directory.create(TopicPartition("bench", 0), TopicId(bytes(16)), TopicOptions(), 0)

    def through_the_log() -> None:
        for _ in range(count):
            log.append(batch, header, leader_epoch=0, now_ms=0)

    def bare() -> None:
        descriptor = os.open(root / "bare", os.O_RDWR | os.O_CREAT)
        position = 0
        for _ in range(count):
            position += os.pwrite(descriptor, batch, position)
        os.close(descriptor)

    def idempotent() -> None:
        made = memoryview(build_batch([(0, None, b"v" * 100, ())] * 140, producer_id=7, producer_epoch=0, base_sequence=0))
        stamped = parse_header(made)
        for sequence in range(count):
            following = stamped._replace(base_sequence=sequence * 140 % 2**31)
            log.sequence_check(following, now_ms=0)
            log.append(made, following, leader_epoch=0, now_ms=0)

    print(f"{count} batches of {len(batch)} bytes")
    bare_s = timed("bare pwrite", count, bare)
    log_s = timed("Log.append", count, through_the_log)
    print(f"{'Log.append beyond the write':48} {(log_s - bare_s) / count * 1e6:10.2f} µs")
    timed("Log.append, idempotent, with its check", count, idempotent)
    middle = log.end_offset // 2
    first = log.flush_plan()
    assert first is not None, "nothing was flushed yet"
    first.carry_out(directory.disk)
    log.flushed(first.upto)
    log.append(batch, header, leader_epoch=0, now_ms=0)

    def plan() -> None:
        for _ in range(10_000):
            log.flush_plan()

    def tail() -> None:
        for _ in range(10_000):
            log.locate(log.end_offset - 140, max_bytes=1 << 20, upto=log.end_offset)

    def past() -> None:
        for step in range(2_000):
            log.locate(middle - step * 977 % middle, max_bytes=1 << 20, upto=log.end_offset)

    timed("flush_plan", 10_000, plan)
    timed("locate at the end", 10_000, tail)
    timed("locate in the past", 2_000, past)
    size = log.size
    log.close()
    took = timed("recovery scan, whole, from the medium", 1, lambda: opened(root), "ms", 1e3)
    print(f"{'':48} {size / took / 1e9:10.2f} GB/s")


def many(root: Path, count: int) -> None:
    """A directory of small partitions."""
    directory = opened(root)
    batch = memoryview(build_batch([(0, None, b"v" * 100, ())] * 10))
    header = parse_header(batch)
    options = TopicOptions()

    def create() -> None:
        for number in range(count):
            directory.create(TopicPartition("bench", number), TopicId(bytes(16)), options, 0)

    def fill() -> None:
        for log in directory.logs.values():
            log.append(batch, header, leader_epoch=0, now_ms=0)

    print(f"{count} partitions")
    timed("create", count, create)
    timed("first append", count, fill)
    timed("clean stop, with every fsync", count, lambda: directory.close(now_ms=0))
    timed("clean start", count, lambda: opened(root))


if __name__ == "__main__":
    main()

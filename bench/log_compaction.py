"""Speed of compaction, and its effect on the latency of an event loop while it runs in a thread.

python -m bench.log_compaction [--megabytes 200] [--value-size 100]
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from random import Random

from ottla.base.ids import TopicId, TopicPartition
from ottla.base.units import MiB
from ottla.broker import effects, events
from ottla.log.compaction import CompactionResources, dirty_range, plan
from ottla.log.directory import LogDirectory
from ottla.log.log import Log
from ottla.log.options import TopicOptions
from ottla.records.batch import parse_header
from ottla.records.build import build_batch
from ottla.records.compression import Codec
from ottla.server.disk import RealDisk
from ottla.server.log_maintenance import Cleaners
from ottla.server.metrics.counters import Counters

PARTITION = TopicPartition("bench", 0)
BATCH_BYTES = 16 << 10
#: Kafka's defaults.
MEANS = CompactionResources(buffer_bytes=128 * MiB, load_factor=0.9, chunk_bytes=MiB // 2, secret=bytes(range(16)))
BEAT_S = 0.001


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--megabytes", type=int, default=200)
    arguments.add_argument("--value-size", type=int, action="append")
    chosen = arguments.parse_args()
    for value_size in chosen.value_size or [100, 1024]:
        for codec, duplicates in ((Codec.NONE, 10), (Codec.NONE, 2), (Codec.LZ4, 10)):
            root = Path(tempfile.mkdtemp(prefix="ottla-bench-"))
            try:
                asyncio.run(measure(root, chosen.megabytes << 20, value_size, codec, duplicates))
            finally:
                shutil.rmtree(root)
    for records in (1, 100_000):
        root = Path(tempfile.mkdtemp(prefix="ottla-bench-"))
        try:
            asyncio.run(measure(root, chosen.megabytes << (18 if records == 1 else 20), 100, Codec.NONE, 10, batch_records=records))
        finally:
            shutil.rmtree(root)


def filled(root: Path, size: int, value_size: int, codec: Codec, duplicates: int, batch_records: int) -> Log:
    """A log in which each key occurs ``duplicates`` times."""
    directory = LogDirectory.open(RealDisk(root), broker_id=1, cluster_id="bench", now_ms=0)
    options = TopicOptions.of({"cleanup.policy": "compact", "segment.bytes": str(64 * MiB)})
    log = directory.create(PARTITION, TopicId(bytes(16)), options, 0)
    random = Random(1)
    keys = max(size // (value_size + 20) // duplicates, 1)
    written = 0
    while written < size:
        records = [
            (0, b"key-%08d" % random.randrange(keys), random.randbytes(value_size // 2) + bytes(value_size - value_size // 2), ())
            for _ in range(batch_records)
        ]
        batch = memoryview(build_batch(records, codec=codec))
        log.append(batch, parse_header(batch), leader_epoch=0, now_ms=0)
        written += batch_records * (value_size + 20)
    log.roll(0)
    flush = log.flush_plan()
    assert flush is not None, "there is something to flush"
    flush.carry_out(log.disk)
    log.flushed(flush.upto)
    return log


async def measure(root: Path, size: int, value_size: int, codec: Codec, duplicates: int, *, batch_records: int = 0) -> None:
    batch_records = batch_records or max(BATCH_BYTES // (value_size + 20), 1)
    log = filled(root, size, value_size, codec, duplicates, batch_records)
    print(f"{value_size} B values, {codec.wire_name}, {batch_records} in a batch, each key {duplicates} times")
    idle = await beats(asyncio.sleep(1.0))
    found = dirty_range(log, high_watermark=log.end_offset, now_ms=0)
    assert found is not None, "the log is dirty"
    effect = effects.Clean(
        partition=PARTITION, directory=str(root), plan=plan(log, found, means=MEANS, now_ms=0), bytes_per_second=float("inf")
    )
    cleaners = Cleaners(Counters())
    done: list[events.Cleaned] = []

    async def clean() -> None:
        done.append(await cleaners.clean(effect, RealDisk(root)))

    began_s, cpu_s = time.perf_counter(), time.process_time()
    late = await beats(clean())
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    cleaners.stop()
    result = done[0].result
    assert result is not None, "the log was compacted"
    mib = found.total_bytes / MiB
    print(f"  {mib:.0f} MiB to {result.written_bytes / MiB:.0f} MiB: {mib / took_s:.0f} MiB/s, {mib / cpu_s:.0f} MiB per CPU second")
    print(f"  the loop's lateness: idle {idle}; meanwhile {late}")


async def beats(work: Awaitable[object]) -> str:
    """Lateness of a one-millisecond timer during the work."""
    task = asyncio.ensure_future(work)
    late: list[float] = []
    while not task.done():
        due = time.perf_counter() + BEAT_S
        await asyncio.sleep(BEAT_S)
        late.append(time.perf_counter() - due)
    await task
    late.sort()
    return ", ".join(
        f"{name} {late[min(int(len(late) * part), len(late) - 1)] * 1e3:.2f} ms"
        for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    )


if __name__ == "__main__":
    main()

"""Time to open the logs of one log directory, by number of recovery threads.

    python -m bench.log_recovery [--partitions 2000] [--delayed 500] [--delay-ms 1] [--threads 1,2,4]

    clean       after a clean stop
    killed      after kill -9, with all records behind the recovery point, so each log is read and synced
    idle        after kill -9, with no record behind the recovery point

The second disk waits for ``--delay-ms`` in each open, listing, read of a small file and sync of a directory. It simulates a busy device,
and its ratios depend little on other load. The best of ``--rounds`` counts; in each round the numbers of threads take turns. CPU is that
of all threads of the process.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from ottla.base.ids import TopicId, TopicPartition
from ottla.log import filenames
from ottla.log.directory import LogDirectory
from ottla.log.options import TopicOptions
from ottla.records.batch import parse_header
from ottla.records.build import build_batch
from ottla.server.disk import RealDisk
from ottla.server.log_recovery import open_in_threads

DESCRIPTORS = 100_000


class SlowDisk(RealDisk):
    """Waits before each call that may wait for the device."""

    delay_s = 0.001

    def descriptor(self, path: str, *, create: bool = False) -> int:
        time.sleep(self.delay_s)
        return super().descriptor(path, create=create)

    def listdir(self, path: str = "") -> list[str]:
        time.sleep(self.delay_s)
        return super().listdir(path)

    def read_file(self, path: str) -> bytes:
        time.sleep(self.delay_s)
        return super().read_file(path)

    def sync_dir(self, path: str = "") -> None:
        time.sleep(self.delay_s)
        super().sync_dir(path)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--partitions", type=int, default=2_000)
    arguments.add_argument("--delayed", type=int, default=500)
    arguments.add_argument("--threads", default="1,2,4")
    arguments.add_argument("--delay-ms", type=float, default=1)
    arguments.add_argument("--rounds", type=int, default=3)
    chosen = arguments.parse_args()
    counts = [int(text) for text in chosen.threads.split(",")]
    SlowDisk.delay_s = chosen.delay_ms / 1000
    for kind, partitions in ((SlowDisk, chosen.delayed), (RealDisk, chosen.partitions)):
        root = Path(tempfile.mkdtemp(prefix="ottla-bench-"))
        try:
            fill(root, partitions)
            for state in ("clean", "idle", "killed"):
                report(root, kind, state, counts, rounds=chosen.rounds)
        finally:
            shutil.rmtree(root)


def fill(root: Path, partitions: int) -> None:
    """Ten batches of 1 KiB in each partition."""
    directory = LogDirectory.open(RealDisk(root, descriptors_max=DESCRIPTORS), broker_id=1, cluster_id="bench", now_ms=0)
    for number in range(partitions):
        log = directory.create(TopicPartition("bench", number), TopicId(bytes(16)), TopicOptions(), 0)
        for _ in range(10):
            batch = memoryview(build_batch([(0, None, b"v" * 1000, ())]))
            log.append(batch, parse_header(batch), leader_epoch=0, now_ms=0)
    directory.close(carry_out=lambda plans: None)


def report(root: Path, kind: type[RealDisk], state: str, counts: list[int], *, rounds: int) -> None:
    """Prints a line for each number of threads."""
    best: dict[int, tuple[float, float]] = {}
    for _ in range(rounds):
        for threads in counts:
            best[threads] = min(best.get(threads, (1e9, 1e9)), opening(root, kind, state, threads))
    first = best[counts[0]][0]
    for threads, (wall_s, cpu_s) in best.items():
        print(f"{kind.__name__:9} {state:7} {threads} threads: {wall_s:7.2f} s, CPU {cpu_s:6.2f} s, ratio {first / wall_s:.2f}", flush=True)


def opening(root: Path, kind: type[RealDisk], state: str, threads: int) -> tuple[float, float]:
    """(wall time, CPU time) in seconds."""
    if state != "clean":
        (root / filenames.CLEAN_SHUTDOWN).unlink()
    if state == "killed":
        (root / filenames.RECOVERY_POINTS).unlink()
    disk = kind(root, descriptors_max=DESCRIPTORS)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    directory = LogDirectory.open(
        disk, broker_id=1, cluster_id="bench", now_ms=0, open_logs=lambda logs: open_in_threads(logs, threads=threads)
    )
    took = time.perf_counter() - wall_s, time.process_time() - cpu_s
    directory.close(carry_out=lambda plans: None)
    return took


if __name__ == "__main__":
    main()

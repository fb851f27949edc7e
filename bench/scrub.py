"""Cost of a scrub per batch, and of a follower's check of a batch, by size of batch. One process, page cache warm.

python bench/scrub.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from ottla.log.scrub import ScrubPlan, ScrubResult, carry_out
from ottla.records.batch import crc_ok, headers, patch
from ottla.records.build import build_batch
from ottla.server.disk import RealDisk

TOTAL_BYTES = 64 << 20


def main() -> None:
    for value_bytes in (100, 1_000, 16_000, 100_000, 1_000_000):
        batch = bytearray(build_batch([(0, None, b"x" * value_bytes, ())]))
        count = min(TOTAL_BYTES // len(batch), 100_000)
        data = bytearray()
        for offset in range(count):
            patch(batch, base_offset=offset, leader_epoch=0)
            data += batch
        with tempfile.TemporaryDirectory() as root:
            (Path(root) / "t-0").mkdir()
            (Path(root) / "t-0" / f"{0:020d}.log").write_bytes(data)
            plan = ScrubPlan(directory="t-0", base_offset=0, size=len(data), bound=count, holes_below=0, epochs=((0, 0),), indexed=False)
            begun = time.perf_counter()
            *_, found = carry_out(RealDisk(root, descriptors_max=4), plan)
            took_s = time.perf_counter() - begun
            assert isinstance(found, ScrubResult) and found.batches == count and not found.damages
        view = memoryview(data)
        begun = time.perf_counter()
        for _ in headers(view):
            pass
        parse_s = time.perf_counter() - begun
        begun = time.perf_counter()
        for position, _ in headers(view):
            assert crc_ok(view, position)
        check_s = time.perf_counter() - begun
        check_s = max(check_s - parse_s, 1e-9)
        scrub = f"{len(data) / took_s / 1e6:8.0f} MB/s, {took_s / count * 1e6:7.2f} us per batch"
        check = f"{len(data) / check_s / 1e6:8.0f} MB/s, {check_s / count * 1e6:7.2f} us per batch"
        print(f"batch {len(batch):>8} B: scrub {scrub}; follower's checksum {check}")


if __name__ == "__main__":
    main()

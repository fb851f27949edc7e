"""Compaction of a log in a test: records with keys, one complete compaction, the resulting tables."""

from collections.abc import Iterable
from typing import Any

from log_builders import NOW_MS

from ottla.log.compaction import CompactionResources, dirty_range, is_due, plan, swap
from ottla.log.compactor import CompactionResult, carry_out
from ottla.log.log import Log
from ottla.records.batch import headers, parse_header
from ottla.records.build import build_batch
from ottla.records.read import records

MEANS = CompactionResources(buffer_bytes=1 << 20, load_factor=0.9, chunk_bytes=500, secret=bytes(range(16)))
COMPACT = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0, "internal_segment_bytes": 600, "index_interval_bytes": 100}


def put(log: Log, *pairs: tuple[bytes | None, bytes | None], at_ms: int = NOW_MS, now_ms: int = NOW_MS, **fields: Any) -> int:
    """Appends one batch of (key, value); its first offset."""
    batch = memoryview(build_batch([(at_ms, key, value, ()) for key, value in pairs], **fields))
    epoch = fields.get("leader_epoch", max(log.epochs.latest, 0))
    return log.append(batch, parse_header(batch), leader_epoch=epoch, now_ms=now_ms).base_offset


def flushed(log: Log) -> None:
    work = log.flush_plan()
    if work is not None:
        work.carry_out(log.disk)
        log.flushed(work.upto)


def compact(
    log: Log, *, now_ms: int = NOW_MS, means: CompactionResources = MEANS, high_watermark: int | None = None
) -> CompactionResult | None:
    """One compaction, from the plan to the removal of what it replaced; None when the log was not due."""
    flushed(log)
    found = dirty_range(log, high_watermark=log.end_offset if high_watermark is None else high_watermark, now_ms=now_ms)
    if found is None or not is_due(log, found):
        return None
    *_, cleaned = carry_out(log.disk, plan(log, found, means=means, now_ms=now_ms))
    assert isinstance(cleaned, CompactionResult)
    removed = swap(log, found, cleaned, now_ms)
    assert removed is not None
    flushed(log)
    for path in removed:
        log.disk.unlink(path)
    return cleaned


def everything(log: Log, start: int | None = None) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of every record of data, as a consumer meets them. Batches must follow each other."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    offset = log.start_offset if start is None else start
    while offset < log.end_offset:
        data = log.read(offset, max_bytes=1000)
        assert data, f"a reader at {offset} of {log.end_offset} goes on"
        for place, header in headers(data):
            assert header.last_offset >= offset
            found += [(at, key, value) for at, _, key, value, _ in records(data, place) if at >= offset]
            offset = header.last_offset + 1
    return found


def table(found: Iterable[tuple[int, bytes | None, bytes | None]]) -> dict[bytes, tuple[int, bytes]]:
    """Key -> (offset, value) of its last record; tombstones leave nothing."""
    last: dict[bytes, tuple[int, bytes | None]] = {}
    for offset, key, value in found:
        if key is not None:
            last[key] = (offset, value)
    return {key: (offset, value) for key, (offset, value) in last.items() if value is not None}

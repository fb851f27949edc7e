"""Logs, batches and disks with defaults, for tests that name only what matters to them."""

from collections.abc import Sequence
from random import Random
from typing import Any

from ottla.base.ids import TopicId, TopicPartition
from ottla.log.directory import LogDirectory
from ottla.log.log import Appended, Log
from ottla.log.options import TopicOptions
from ottla.records.batch import BatchHeader, parse_header
from ottla.records.build import build_batch
from ottla.records.read import marker
from ottla.sim.disk import SimDisk

ORDERS = TopicPartition("orders", 0)
TOPIC_ID = TopicId(bytes(range(1, 17)))
NOW_MS = 1_700_000_000_000


def options(**texts: Any) -> TopicOptions:
    """Topic options by attribute name: ``options(internal_segment_bytes=1000)``."""
    return TopicOptions.of({name.replace("_", "."): str(value) for name, value in texts.items()})


def opened(disk: SimDisk, topic: TopicOptions | None = None, *, now_ms: int = NOW_MS) -> LogDirectory:
    """The directory on the disk, as broker 1 of the test's cluster opens it."""
    chosen = topic or TopicOptions()
    return LogDirectory.open(disk, broker_id=1, cluster_id="cluster-of-the-tests", now_ms=now_ms, options_for=lambda _: chosen)


def a_log(disk: SimDisk | None = None, **texts: Any) -> Log:
    """An empty log, its creation durable."""
    topic = options(**texts)
    log = opened(disk or SimDisk(), topic).create(ORDERS, TOPIC_ID, topic, NOW_MS)
    flush(log)
    return log


def reopened(disk: SimDisk, **texts: Any) -> Log:
    """The log of ORDERS as a new process finds it."""
    return opened(disk, options(**texts)).logs[ORDERS]


def a_batch(
    values: Sequence[bytes] | int = 1, *, at_ms: int = NOW_MS, sizes: int = 10, timestamps: Sequence[int] | None = None, **fields: Any
) -> tuple[memoryview, BatchHeader]:
    """A batch of these values, or of so many made up; ``timestamps`` one per record, or all ``at_ms``."""
    if isinstance(values, int):
        values = [b"%0*d" % (sizes, number) for number in range(values)]
    times = timestamps or [at_ms] * len(values)
    batch = memoryview(build_batch([(time, None, value, ()) for time, value in zip(times, values, strict=True)], **fields))
    return batch, parse_header(batch)


def append(log: Log, values: Sequence[bytes] | int = 1, *, epoch: int | None = None, now_ms: int = NOW_MS, **fields: Any) -> Appended:
    """Appends a made-up batch, in the present epoch if none is given."""
    batch, header = a_batch(values, **{"at_ms": now_ms, **fields})
    return log.append(batch, header, leader_epoch=max(log.epochs.latest, 0) if epoch is None else epoch, now_ms=now_ms)


def a_marker(
    log: Log, producer_id: int, producer_epoch: int = 0, *, commit: bool, coordinator_epoch: int = 0, now_ms: int = NOW_MS
) -> Appended:
    """Appends a transaction marker."""
    key, value = marker(1 if commit else 0, coordinator_epoch)
    batch = memoryview(
        build_batch([(now_ms, key, value, ())], control=True, transactional=True, producer_id=producer_id, producer_epoch=producer_epoch)
    )
    return log.append(batch, parse_header(batch), leader_epoch=max(log.epochs.latest, 0), now_ms=now_ms)


def flush(log: Log) -> None:
    """Carries the flush plan out, if there is one."""
    plan = log.flush_plan()
    if plan is not None:
        plan.carry_out(log.disk)
        log.flushed(plan.upto)


def crashed(disk: SimDisk, seed: int = 0) -> SimDisk:
    """The disk after a power cut."""
    return disk.crash(Random(seed))


def offsets(log: Log) -> list[tuple[int, int]]:
    """(first, last) offset of each batch that can be read, walking as a consumer does."""
    found = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, max_bytes=1, upto=log.end_offset)
        header = parse_header(data)
        assert header.size == len(data), "one byte asked for gives one whole batch"
        found.append((header.base_offset, header.last_offset))
        offset = header.last_offset + 1  # type: ignore[assignment]
    return found

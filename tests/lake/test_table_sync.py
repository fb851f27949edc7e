"""Table sync of a topic without a broker: truncated logs, and errors that are retried or not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa

from ottla.client.arrow.columns import record_schema
from ottla.client.errors import ConnectionFailed
from ottla.client.fetch.ranges import END, START, Bound, BoundKind, Range
from ottla.lake.table.delta import opened
from ottla.lake.table.rows import Rows
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.sync import RETRY_S, SyncOptions, SyncProgress, TableSync
from ottla.lake.table.target import DeltaTarget, TableConflict
from ottla.lake.table.topic import DataLost, PartitionRead, Topic
from ottla.wire.errors import UnknownTopicOrPartition

FORM = TableFormat(value="raw", columns=("offset",))


class Log:
    """A topic of one partition; `values` are its records by offset. `looked` is called before each read of its end, `read_hook` before
    each read of records.
    """

    name, topic_id, partitions = "t", "id", (0,)
    present_id, is_deleted = "id", False

    def __init__(self, *values: bytes) -> None:
        self.values = list(values)
        #: Last stable offset; None: the log end.
        self.stable: int | None = None
        self.looked: Callable[[], None] = lambda: None
        self.read_hook: Callable[[], None] = lambda: None

    def offsets(self, range: Range) -> dict[int, tuple[int, int]]:
        return {0: range.offsets(0, len(self.values))}

    def ends(self) -> dict[int, int]:
        self.looked()
        return {0: len(self.values) if self.stable is None else self.stable}

    def log_ends(self) -> dict[int, int]:
        return {0: len(self.values)}

    def refresh(self) -> None:
        if self.is_deleted:
            raise UnknownTopicOrPartition(f"there is no topic {self.name}")
        self.topic_id = self.present_id

    def create_again(self, *values: bytes) -> None:
        """Delete the topic, and create it with these records. Readers learn its id when they refresh."""
        self.present_id, self.values = f"{self.present_id}-again", list(values)

    def read(self, requested: Mapping[int, tuple[int, int]], names: Sequence[str], lost: Any) -> Iterator[PartitionRead]:
        self.read_hook()
        ((start, end),) = requested.values()
        rows = [{"value": self.values[offset], "offset": offset} for offset in range(start, end)]
        yield PartitionRead(0, start, end, [pa.RecordBatch.from_pylist(rows, record_schema(names))])


class Clock(Event):
    """An event whose waits take no time and let the fake clock advance."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0
        return self.is_set()


class Notes:
    """Recorded progress."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def moved(self, progress: SyncProgress) -> None: ...

    def committed(self, progress: SyncProgress) -> None: ...

    def noted(self, kind: str, story: str) -> None:
        self.kinds.append(kind)


def synced(log: Log, path: Path, clock: Clock | None = None, **plan: Any) -> Notes:
    """Sync the table until it ends. Returns the recorded progress."""
    notes, clock = Notes(), clock or Clock()
    TableSync(cast(Topic, log), DeltaTarget(path), Rows(FORM), SyncOptions(**plan), watcher=notes, stop=clock, clock=clock).run()  # type: ignore[arg-type]
    return notes


def rows(path: Path) -> list[tuple[int, bytes]]:
    table = pa.table(opened(str(path)).scan().read_all())
    return sorted((row["offset"], row["value"]) for row in table.to_pylist())


def test_truncation_before_the_start_of_a_new_table_ends_it_or_is_reported(tmp_path: Path) -> None:
    log = Log(b"a", b"b", b"c")
    synced(log, tmp_path / "t", once=True)
    log.values = [b"a"]
    with pytest.raises(DataLost, match=r"t-0 ends at 1 and the table at 3: .* --on-loss warn"):
        synced(log, tmp_path / "t", once=True)
    assert synced(log, tmp_path / "t", once=True, fails_on_loss=False).kinds == ["cut off"]
    log.values += [b"d"]
    assert synced(log, tmp_path / "t", once=True).kinds == []
    assert rows(tmp_path / "t") == [(0, b"a"), (1, b"b"), (1, b"d"), (2, b"c")]


def cut_then_grown(log: Log, clock: Clock) -> Callable[[], None]:
    """The log has two records at the first look, then one, then two with another last record; then sync stops."""
    logs = iter([[b"a", b"b"], [b"a"], [b"a", b"c"]])

    def looked() -> None:
        values = next(logs, None)
        if values is None:
            clock.set()
        else:
            log.values = values

    return looked


def test_truncation_during_sync_ends_it_or_is_reported(tmp_path: Path) -> None:
    for fails in (True, False):
        log, clock, path = Log(), Clock(), tmp_path / str(fails)
        log.looked = cut_then_grown(log, clock)
        if fails:
            with pytest.raises(DataLost, match="ends at 1"):
                synced(log, path, clock)
        else:
            assert synced(log, path, clock, fails_on_loss=False).kinds == ["cut off"]
            assert rows(path) == [(0, b"a"), (1, b"b"), (1, b"c")]


def test_records_of_a_topic_that_was_created_again_are_not_committed(tmp_path: Path) -> None:
    for once in (True, False):
        log, clock, path = Log(b"a", b"b"), Clock(), tmp_path / str(once)
        synced(log, path, once=True)
        log.values.append(b"c")
        # Between the look at the end and the read.
        log.read_hook = partial(log.create_again, b"x", b"y", b"z")
        with pytest.raises(TableConflict, match="was deleted and recreated"):
            synced(log, path, clock, once=once)
        assert rows(path) == [(0, b"a"), (1, b"b")]


def test_records_of_a_topic_that_was_deleted_meanwhile_are_committed(tmp_path: Path) -> None:
    log = Log(b"a", b"b")
    log.is_deleted = True
    synced(log, tmp_path, once=True)
    assert rows(tmp_path) == [(0, b"a"), (1, b"b")]


def test_open_transactions_after_the_position_are_no_data_loss(tmp_path: Path) -> None:
    log = Log(b"a", b"b")
    synced(log, tmp_path / "t", once=True)
    log.stable = 1
    assert synced(log, tmp_path / "t", once=True).kinds == []


def test_a_range_that_starts_below_the_log_start_reports_the_missing_records(tmp_path: Path) -> None:
    log, last_one = Log(b"a"), Range(Bound(BoundKind.BEFORE_END, 1), END)
    assert synced(log, tmp_path / "t", once=True, range=last_one).kinds == []
    log.values += [b"b", b"c"]
    assert synced(log, tmp_path / "t", once=True, range=last_one).kinds == ["left out"]
    log.values += [b"d", b"e"]
    assert synced(log, tmp_path / "t", once=True, range=Range(START, END)).kinds == []
    assert [offset for offset, _ in rows(tmp_path / "t")] == [0, 2, 3, 4]


def test_the_retry_time_restarts_after_a_recovered_error(tmp_path: Path) -> None:
    """The broker is unreachable twice, with a long time without new records in between."""
    log, clock = Log(b"a"), Clock()

    def looked() -> None:
        if clock.now > 3 * RETRY_S:
            clock.set()
        elif 10 < clock.now < 20 or 2 * RETRY_S < clock.now < 2 * RETRY_S + 20:
            raise ConnectionFailed("away")

    log.looked = looked
    assert set(synced(log, tmp_path / "t", clock).kinds) == {"retry"}
    assert clock.now > 3 * RETRY_S


def test_a_persistent_error_ends_the_sync(tmp_path: Path) -> None:
    log, clock = Log(b"a"), Clock()

    def looked() -> None:
        if clock.now > 10:
            raise ConnectionFailed("away")

    log.looked = looked
    with pytest.raises(ConnectionFailed):
        synced(log, tmp_path / "t", clock)
    assert RETRY_S < clock.now - 10 < RETRY_S + 30

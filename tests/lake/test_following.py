"""A table that follows a topic, without a broker: logs that were cut off, and trouble that passes or does not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa

from ottla.client.arrow.columns import record_schema
from ottla.client.errors import ConnectionFailed
from ottla.client.fetch.ranges import END, START, Bound, Kind, Range
from ottla.lake.table.delta import opened
from ottla.lake.table.rows import Rows
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.sync import RETRY_S, SyncOptions, SyncProgress, TableSync
from ottla.lake.table.target import DeltaTarget
from ottla.lake.table.topic import DataLost, PartitionRead, Topic

FORM = TableFormat(value="raw", columns=("offset",))


class Log:
    """A topic of one partition whose value at each offset is that of `values`; `looked` is called before each look at its end."""

    name, topic_id, partitions = "t", "id", (0,)

    def __init__(self, *values: bytes) -> None:
        self.values = list(values)
        #: Behind the last record whose transaction has ended; None: of all.
        self.stable: int | None = None
        self.looked: Callable[[], None] = lambda: None

    def offsets(self, range: Range) -> dict[int, tuple[int, int]]:
        return {0: range.offsets(0, len(self.values))}

    def ends(self) -> dict[int, int]:
        self.looked()
        return {0: len(self.values) if self.stable is None else self.stable}

    def log_ends(self) -> dict[int, int]:
        return {0: len(self.values)}

    def refresh(self) -> None: ...

    def read(self, wanted: Mapping[int, tuple[int, int]], names: Sequence[str], lost: Any) -> Iterator[PartitionRead]:
        ((start, end),) = wanted.values()
        rows = [{"value": self.values[offset], "offset": offset} for offset in range(start, end)]
        yield PartitionRead(0, start, end, [pa.RecordBatch.from_pylist(rows, record_schema(names))])


class Clock(Event):
    """An event whose waits take no time, and pass."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0
        return self.is_set()


class Notes:
    """What was noted."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def moved(self, progress: SyncProgress) -> None: ...

    def committed(self, progress: SyncProgress) -> None: ...

    def noted(self, kind: str, story: str) -> None:
        self.kinds.append(kind)


def kept(log: Log, path: Path, clock: Clock | None = None, **plan: Any) -> Notes:
    """Keeps the table until it ends, and tells what was noted."""
    notes, clock = Notes(), clock or Clock()
    TableSync(cast(Topic, log), DeltaTarget(path), Rows(FORM), SyncOptions(**plan), watcher=notes, stop=clock, clock=clock).run()  # type: ignore[arg-type]
    return notes


def rows(path: Path) -> list[tuple[int, bytes]]:
    table = pa.table(opened(str(path)).scan().read_all())
    return sorted((row["offset"], row["value"]) for row in table.to_pylist())


def test_a_log_that_was_cut_off_before_a_table_began_anew_ends_it_or_is_told(tmp_path: Path) -> None:
    log = Log(b"a", b"b", b"c")
    kept(log, tmp_path / "t", once=True)
    log.values = [b"a"]
    with pytest.raises(DataLost, match=r"t-0 ends at 1 and the table at 3: .* --on-loss warn"):
        kept(log, tmp_path / "t", once=True)
    assert kept(log, tmp_path / "t", once=True, fails_on_loss=False).kinds == ["cut off"]
    log.values += [b"d"]
    assert kept(log, tmp_path / "t", once=True).kinds == []
    assert rows(tmp_path / "t") == [(0, b"a"), (1, b"b"), (1, b"d"), (2, b"c")]


def cut_then_grown(log: Log, clock: Clock) -> Callable[[], None]:
    """At the first look there are two records, then one, then two of which the last is another; then it is stopped."""
    logs = iter([[b"a", b"b"], [b"a"], [b"a", b"c"]])

    def looked() -> None:
        values = next(logs, None)
        if values is None:
            clock.set()
        else:
            log.values = values

    return looked


def test_a_log_that_is_cut_off_while_a_table_follows_it_ends_it_or_is_told(tmp_path: Path) -> None:
    for fails in (True, False):
        log, clock, path = Log(), Clock(), tmp_path / str(fails)
        log.looked = cut_then_grown(log, clock)
        if fails:
            with pytest.raises(DataLost, match="ends at 1"):
                kept(log, path, clock)
        else:
            assert kept(log, path, clock, fails_on_loss=False).kinds == ["cut off"]
            assert rows(path) == [(0, b"a"), (1, b"b"), (1, b"c")]


def test_open_transactions_behind_what_a_table_has_are_no_loss(tmp_path: Path) -> None:
    log = Log(b"a", b"b")
    kept(log, tmp_path / "t", once=True)
    log.stable = 1
    assert kept(log, tmp_path / "t", once=True).kinds == []


def test_a_range_that_begins_behind_what_is_there_tells_what_it_leaves_out(tmp_path: Path) -> None:
    log, last_one = Log(b"a"), Range(Bound(Kind.BEFORE_END, 1), END)
    assert kept(log, tmp_path / "t", once=True, range=last_one).kinds == []
    log.values += [b"b", b"c"]
    assert kept(log, tmp_path / "t", once=True, range=last_one).kinds == ["left out"]
    log.values += [b"d", b"e"]
    assert kept(log, tmp_path / "t", once=True, range=Range(START, END)).kinds == []
    assert [offset for offset, _ in rows(tmp_path / "t")] == [0, 2, 3, 4]


def test_trouble_that_was_over_does_not_count_for_the_next_one(tmp_path: Path) -> None:
    """The broker is away twice for a while, with a long time without new records between."""
    log, clock = Log(b"a"), Clock()

    def looked() -> None:
        if clock.now > 3 * RETRY_S:
            clock.set()
        elif 10 < clock.now < 20 or 2 * RETRY_S < clock.now < 2 * RETRY_S + 20:
            raise ConnectionFailed("away")

    log.looked = looked
    assert set(kept(log, tmp_path / "t", clock).kinds) == {"retry"}
    assert clock.now > 3 * RETRY_S


def test_trouble_that_does_not_pass_ends_it(tmp_path: Path) -> None:
    log, clock = Log(b"a"), Clock()

    def looked() -> None:
        if clock.now > 10:
            raise ConnectionFailed("away")

    log.looked = looked
    with pytest.raises(ConnectionFailed):
        kept(log, tmp_path / "t", clock)
    assert RETRY_S < clock.now - 10 < RETRY_S + 30

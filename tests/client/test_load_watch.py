"""Progress events of a load for programs, and its rate limit."""

from __future__ import annotations

import json

import pytest

from ottla.cli.pipeline import load_progress
from ottla.cli.pipeline.load_progress import LoadWatch
from ottla.lake.load.inputs import Input
from ottla.lake.load.plan import FilePlan
from ottla.lake.load.run import LoadTotals


class Clock:
    """Replaces the module `time`."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def a_file(name: str, size: int) -> FilePlan:
    return FilePlan(Input(name, "csv", None, size, 0), None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(load_progress, "time", made)
    return made


def test_programs_receive_progress_once_a_second(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, totals = a_file("a.csv", 600), a_file("b.csv", 400), LoadTotals()
    watch = LoadWatch([first, second], totals, "skip", None, human=False)
    watch.begins(first, None)
    for tick in range(1, 9):
        clock.now_s += 0.25
        watch.on(75 * tick, 10 * tick)
    watch.ended(first.given, True)
    totals.written = 80
    watch.begins(second, None)
    clock.now_s += 1
    watch.on(100, 20)
    totals.written, totals.files = 120, 2
    clock.now_s += 1
    watch.ends("t", already=0)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["event"] for one in lines] == ["file", "progress", "progress", "file", "progress", "loaded"]
    names = ("file", "records", "bytes", "bytes_total", "records_per_second", "seconds_left")
    figures = [tuple(one[name] for name in names) for one in lines if one["event"] == "progress"][::2]
    assert figures == [("a.csv", 40, 300, 1000, 40.0, 2.3), ("b.csv", 100, 700, 1000, 33.3, 1.3)], "the first and the third"
    assert (lines[5]["files"], lines[5]["records"], lines[5]["seconds"], lines[5]["records_per_second"]) == (2, 120, 4.0, 30.0)


def test_a_load_with_a_rate_sends_small_chunks_and_waits_after_each(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[tuple[float, int]] = []

    class FakeLimiter:
        chunk_records = 7

        def __init__(self, rate: float) -> None:
            self._rate = rate

        def wait(self, records: int) -> None:
            waited.append((self._rate, records))

    monkeypatch.setattr(load_progress, "RateLimiter", FakeLimiter)
    watch = LoadWatch([], LoadTotals(), "fail", 50.0, human=False)
    assert watch.portion == 7
    watch.pause(5)
    assert waited == [(50.0, 5)]
    free = LoadWatch([], LoadTotals(), "fail", None, human=False)
    assert free.portion is None
    free.pause(5)
    assert len(waited) == 1

"""Compaction threads: their common rate limit, and their end."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.base.ids import Offset, TopicPartition
from ottla.broker import effects
from ottla.log.compactor import CompactionResult
from ottla.log.errors import CorruptLog
from ottla.server import log_maintenance
from ottla.server.disk import RealDisk
from ottla.server.log_maintenance import Cleaners, Throttle
from ottla.server.metrics.counters import Counters

pytestmark = pytest.mark.server

DONE = CompactionResult(Offset(7), (), 1000, 300, 3)


def a_clean(bytes_per_second: float = 1e12) -> effects.Clean:
    plan: Any = None
    return effects.Clean(partition=TopicPartition("t", 0), directory="", plan=plan, bytes_per_second=bytes_per_second)


def work_of(monkeypatch: pytest.MonkeyPatch, *steps: int | CompactionResult | Exception) -> list[float]:
    """A compaction of these steps, and when each was asked for."""
    asked: list[float] = []

    def carry_out(*arguments: Any) -> Iterator[int | CompactionResult]:
        for step in steps:
            asked.append(time.monotonic())
            if isinstance(step, Exception):
                raise step
            yield step

    monkeypatch.setattr(log_maintenance, "carry_out", carry_out)
    return asked


def test_bytes_of_all_are_spread_over_time() -> None:
    throttle = Throttle()
    assert throttle.pause_s(1000, 10_000) == pytest.approx(0.1, abs=0.01)
    assert throttle.pause_s(1000, 10_000) == pytest.approx(0.2, abs=0.01)
    time.sleep(0.25)
    assert throttle.pause_s(1000, 10_000) == pytest.approx(0.1, abs=0.01), "time without work is not saved up"


async def test_a_compaction_keeps_to_its_rate_and_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = work_of(monkeypatch, 1000, 1000, DONE)
    counters = Counters()
    done = await Cleaners(counters).clean(a_clean(20_000), RealDisk(tmp_path))
    assert done.result == DONE
    assert 0.09 < asked[2] - asked[0] < 1.0
    assert (counters.compactions, counters.compaction_read_bytes, counters.compaction_written_bytes) == (1, 1000, 300)


async def test_two_compactions_share_the_rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work_of(monkeypatch, 1000, 1000, DONE)
    cleaners = Cleaners(Counters())
    before = time.monotonic()
    await asyncio.gather(*(cleaners.clean(a_clean(20_000), RealDisk(tmp_path)) for _ in range(2)))
    assert time.monotonic() - before > 0.19


async def test_a_stop_ends_what_is_under_way_and_begins_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = work_of(monkeypatch, 1000, 1000, DONE)
    begun = asyncio.Event()
    pause_s = Throttle.pause_s

    def noted(self: Throttle, size: int, bytes_per_second: float) -> float:
        loop.call_soon_threadsafe(begun.set)
        return pause_s(self, size, bytes_per_second)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Throttle, "pause_s", noted)
    cleaners = Cleaners(Counters())
    work = asyncio.ensure_future(cleaners.clean(a_clean(1.0), RealDisk(tmp_path)))
    await begun.wait()
    cleaners.stop()
    async with asyncio.timeout(5):
        assert (await work).result is None
        assert (await cleaners.clean(a_clean(), RealDisk(tmp_path))).result is None
    assert len(asked) == 1


@pytest.mark.parametrize("error", [FileNotFoundError("gone"), OSError(28, "full")])
async def test_a_partition_that_is_gone_or_a_full_disk_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError
) -> None:
    work_of(monkeypatch, 1000, error)
    done = await Cleaners(Counters()).clean(a_clean(), RealDisk(tmp_path))
    assert done.result is None and not done.damage


async def test_damage_is_a_result_and_any_other_error_fails_the_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work_of(monkeypatch, 1000, CorruptLog("at 5"))
    assert (await Cleaners(Counters()).clean(a_clean(), RealDisk(tmp_path))).damage == "at 5"
    work_of(monkeypatch, 1000, OSError(5, "failed"))
    with pytest.raises(OSError, match="failed"):
        await Cleaners(Counters()).clean(a_clean(), RealDisk(tmp_path))

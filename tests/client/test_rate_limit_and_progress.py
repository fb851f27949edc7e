"""Rate limits, and the progress line of a transfer."""

from __future__ import annotations

import io

import click
import pytest

from ottla.cli.common.progress import ProgressBar, bytes_text, rate_text
from ottla.cli.common.rate_limit import RateLimiter, parse_rate


class Clock:
    """A clock that advances in each sleep."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_records_pass_at_the_configured_rate() -> None:
    clock = Clock()
    pace = RateLimiter(50, clock=clock, sleep=clock.sleep)
    for _ in range(40):
        pace.wait(pace.chunk_records)
    assert clock.now - 100 == pytest.approx(40 * pace.chunk_records / 50)


def test_a_pause_is_not_followed_by_a_burst() -> None:
    clock = Clock()
    pace = RateLimiter(10, clock=clock, sleep=clock.sleep)
    pace.wait(1)
    clock.now += 1000
    for _ in range(30):
        pace.wait(1)
    assert clock.now - 1100.1 == pytest.approx(2.0, abs=0.11), "ten of the thirty can follow immediately"


def test_a_low_rate_passes_one_record_at_a_time() -> None:
    assert RateLimiter(0.5).chunk_records == 1
    assert RateLimiter(1000).chunk_records == 100


@pytest.mark.parametrize(("text", "expected"), [("500", 500), ("2.5", 2.5), ("10k", 10_000), ("1M/s", 1e6), ("7/s", 7)])
def test_rates_are_parsed(text: str, expected: float) -> None:
    assert parse_rate(text, "--rate") == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "fast", "1MB/s", "1 k"])
def test_an_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="--rate expects records per second"):
        parse_rate(text, "--rate")


def test_a_line_reports_share_rate_and_remaining_time() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = ProgressBar(1000, stream=stream, clock=clock, width=120)
    clock.now += 0.1
    progress.update(10, 1, 10)
    assert stream.getvalue() == "", "it is not redrawn faster than a person can see"
    clock.now += 0.9
    progress.update(250, 5000, 250)
    assert stream.getvalue() == "\r 25 % ━━━━━━━─────────────────────  5,000 records  250 B  5,000/s  3.0s left\x1b[K"
    progress.clear()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_the_rate_covers_the_last_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = ProgressBar(None, stream=stream, clock=clock, width=120)
    for second in range(1, 21):
        clock.now += 1
        progress.update(0, second * 10 if second <= 10 else 100 + (second - 10) * 1000, 0)
    assert "1,000/s" in progress.line(0, 10_100, 0)
    assert "%" not in stream.getvalue(), "without a total there is no progress bar"


def test_a_line_is_no_wider_than_the_terminal() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = ProgressBar(1000, stream=stream, clock=clock, width=20)
    clock.now += 1
    progress.update(250, 5000, 250)
    assert len(stream.getvalue().removeprefix("\r").removesuffix("\x1b[K")) == 19


def test_nothing_is_erased_that_was_not_drawn() -> None:
    stream = io.StringIO()
    ProgressBar(None, stream=stream).clear()
    assert stream.getvalue() == ""


def test_sizes_and_rates_are_human_readable() -> None:
    assert [bytes_text(count) for count in (0, 999, 1500, 123_456, 5_000_000, 2.5e9)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "123 kB",
        "5.0 MB",
        "2.5 GB",
    ]
    assert [rate_text(one) for one in (0, 0.25, 12.7, 230_900)] == ["0/s", "0.2/s", "13/s", "230,900/s"]

"""Counters, statistics and output of `ottla perf`, with the test's own clock."""

from __future__ import annotations

import io
from math import ceil
from random import Random

import pytest

from ottla.cli.perf.display import Display, Goal, Snapshot, interval_line, live_line
from ottla.cli.perf.figures import MB, NS, Figures, Tally, latency_document
from ottla.cli.perf.histogram import BUCKETS_PER_POWER, Histogram
from ottla.cli.perf.load import Schedule, file_payloads, numbers, random_payloads

MS = 1_000_000


def test_percentiles_are_never_too_low_and_at_most_slightly_too_high() -> None:
    rng = Random(5)
    values = sorted(int(10 ** rng.uniform(0, 12)) for _ in range(5000))
    made = Histogram()
    made.add_each(values)
    for share in (0.001, 0.25, 0.5, 0.95, 0.99, 0.999, 1.0):
        exact = values[ceil(round(share * 5000, 6)) - 1]
        found = made.percentile(share)
        assert found is not None
        assert exact <= found <= exact * (1 + 1 / BUCKETS_PER_POWER)
    assert (made.count, made.total, made.greatest) == (5000, sum(values), values[-1])


@pytest.mark.parametrize("value", [0, 1, 255, 256, 257, 511, 512, 2**40 + 1, 2**63 - 1])
def test_a_single_value_is_every_percentile(value: int) -> None:
    made = Histogram()
    made.add(value, 3)
    assert [made.percentile(share) for share in (0.0, 0.5, 0.999)] == [value] * 3
    assert made.average == pytest.approx(value)


def test_without_values_there_are_no_percentiles() -> None:
    assert set(latency_document(Histogram()).values()) == {None}


def test_the_99th_percentile_of_a_hundred_excludes_the_largest() -> None:
    made = Histogram()
    made.add(1, 99)
    made.add(200)
    assert (made.percentile(0.99), made.percentile(0.999)) == (1, 200)


def test_rates_end_at_the_last_acknowledgement() -> None:
    figures = Figures(10 * NS)
    figures.add_acknowledged([10 * NS, 11 * NS], MB, 12 * NS, warm=False)
    figures.add_acknowledged_together(6, 12 * NS, 3 * MB, 14 * NS, warm=False)
    assert figures.total.document() == {"records": 8, "bytes": 4 * MB, "seconds": 4.0, "records_per_s": 2.0, "mb_per_s": 1.0}
    found = latency_document(figures.total.latencies)
    assert (found["avg"], found["max"]) == (1875.0, 2000.0)


def test_zero_records_in_zero_time_have_a_rate_of_zero() -> None:
    assert Tally(5).document() == {"records": 0, "bytes": 0, "seconds": 0.0, "records_per_s": 0.0, "mb_per_s": 0.0}


def test_the_steady_figures_exclude_the_warm_up() -> None:
    figures = Figures(0, warmup=2)
    figures.steady_from(NS)
    figures.add_acknowledged([0, 0], 20, 2 * NS, warm=False)
    figures.add_acknowledged([NS], 10, 3 * NS, warm=True)
    assert figures.steady is not None
    assert (figures.steady.records, figures.steady.seconds) == (1, 2.0)
    assert figures.total.records == 3


def test_without_a_warm_up_there_are_no_steady_figures() -> None:
    figures = Figures(0)
    figures.steady_from(NS)
    assert figures.steady is None


def test_at_a_rate_records_are_due_by_the_clock_regardless_of_earlier_ones() -> None:
    schedule = Schedule(rate=100, records=50)
    schedule.begin(NS)
    assert schedule.due(0, NS, 500) == 1
    assert schedule.due(1, NS + 9 * MS, 500) == 0
    assert schedule.wait_ns(1, NS + 4 * MS) == 6 * MS
    assert schedule.due(1, NS + 200 * MS, 500) == 20, "a stall does not postpone records that were due meanwhile"
    assert [schedule.due_ns(number, 9 * NS) for number in (0, 1, 20)] == [NS, NS + 10 * MS, NS + 200 * MS]
    assert schedule.due(40, 9 * NS, 500) == 10
    assert schedule.over(50, NS)


def test_without_a_rate_records_are_due_when_they_are_sent() -> None:
    schedule = Schedule(duration_ns=2 * NS)
    schedule.begin(NS)
    assert (schedule.due(7, NS, 500), schedule.due_ns(7, 5 * NS)) == (500, 5 * NS)
    assert [schedule.over(10**9, now) for now in (NS, 3 * NS - 1, 3 * NS)] == [False, False, True]


@pytest.mark.parametrize("rate", [0.3, 3.0, 7.7, 999_999.9])
def test_after_the_wait_a_record_is_due(rate: float) -> None:
    schedule, now, looks = Schedule(rate=rate), 0, 0
    schedule.begin(now)
    for sent in range(50):
        while not schedule.due(sent, now, 1):
            now += schedule.wait_ns(sent, now)
            looks += 1
    assert looks <= 100
    assert now == pytest.approx(49 / rate * NS, abs=100)


def test_no_wait_exceeds_the_end() -> None:
    schedule = Schedule(rate=0.1, duration_ns=NS)
    schedule.begin(0)
    assert schedule.wait_ns(1, NS // 2) == NS // 2


def test_payloads_are_letters_lines_or_numbers() -> None:
    made = random_payloads(10, Random(0))
    assert all(len(made.value(number)) == 10 and made.value(number).isalpha() for number in range(20))
    assert len({made.value(number) for number in range(1000)}) == 1000
    lines = file_payloads(b"a\nbc\n", b"\n", Random(0))
    assert {lines.value(number) for number in range(50)} == {b"a", b"bc"}
    assert [numbers().value(number) for number in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(ValueError, match="no payload"):
        file_payloads(b"", b"\n", Random(0))


def test_the_line_reports_share_rate_and_remaining_time() -> None:
    moment = Snapshot(250_000, 25 * MB, 2 * NS, 150_000.0, 15.0 * MB, 4_123_456)
    assert live_line(Goal(1_000_000, None), moment) == (
        " 25 % ━━━━━━━───────────────────── 250,000 records  now 150,000/s  15.0 MB/s  average 125,000/s  p99 4.12 ms  5.0s left"
    )
    assert live_line(Goal(None, 4 * NS), moment).startswith(" 50 %")
    assert live_line(Goal(None, 4 * NS), moment).endswith("2.0s left")
    assert live_line(Goal(None, None), moment._replace(p99_ns=None)) == ("250,000 records  now 150,000/s  15.0 MB/s  average 125,000/s")


def test_progress_shows_the_end_that_comes_first() -> None:
    moment = Snapshot(100, 100, NS, 100.0, 100.0, None)
    assert live_line(Goal(1000, 2 * NS), moment).startswith(" 50 %")
    assert live_line(Goal(1000, 2 * NS), moment).endswith("1.0s left")


def test_an_interval_reports_its_rate_and_its_latencies() -> None:
    figures = Figures(0)
    figures.add_acknowledged_together(1000, 0, 2 * MB, 3 * MS, warm=False)
    assert interval_line(figures.next_window(2 * NS)) == "1,000 records, 500/s, 1.00 MB/s, latency avg 3.00 ms, p99 3.00 ms, max 3.00 ms"
    figures.add_received(10, MB, 3 * NS)
    assert interval_line(figures.next_window(4 * NS)) == "10 records, 5.0/s, 0.50 MB/s"


def test_a_file_gets_a_line_per_interval_and_the_result_if_requested() -> None:
    figures, written = Figures(0), io.StringIO()
    display = Display(figures, Goal(20, None), interval_ns=NS, detailed=True, stream=written, terminal=False)
    figures.add_received(10, 100, NS // 2)
    display.update(NS // 2)
    assert written.getvalue() == ""
    display.update(NS)
    assert written.getvalue() == "10 records, 10/s, 0.00 MB/s\n"
    figures.add_received(10, 100, NS + NS // 2)
    display.end(NS + NS // 2)
    assert [(one["after_s"], one["records"], one["records_per_s"]) for one in display.intervals] == [(0.0, 10, 10.0), (1.0, 10, 20.0)]


def test_a_terminal_gets_one_line_that_fits_and_is_erased() -> None:
    figures, written = Figures(0), io.StringIO()
    display = Display(figures, Goal(100, None), interval_ns=NS, stream=written, terminal=True, columns=30)
    display.update(NS // 10)
    assert written.getvalue() == "", "not redrawn faster than a person can see"
    figures.add_received(50, 100, NS)
    display.update(NS)
    output = written.getvalue()
    assert output.startswith("\r 50 % ━━")
    assert len(output.removeprefix("\r").removesuffix("\x1b[K")) == 29
    display.end(NS)
    assert written.getvalue().endswith("\r\x1b[K")
    assert display.intervals == []


def test_the_current_rate_covers_the_last_two_seconds() -> None:
    figures = Figures(0)
    display = Display(figures, Goal(None, None), interval_ns=60 * NS, stream=io.StringIO(), terminal=True)
    for second in range(1, 11):
        figures.add_received(100 if second <= 5 else 10, 0, second * NS)
        found = display.moment(second * NS)
    assert (found.rate, found.records) == (10.0, 550)

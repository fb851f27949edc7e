"""Times, durations and partitions as command-line arguments and in output."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest

from ottla.base.ids import TopicPartition
from ottla.cli.common.arguments import duration_ms, duration_text, is_selected, partition_selection, partitions_text, time_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("2D", 172_800_000),
        ("1w", 604_800_000),
        ("PT1H", 3_600_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt10m", 600_000),
        ("P1W", 604_800_000),
    ],
)
def test_durations_are_parsed_in_short_form_and_iso(text: str, ms: int) -> None:
    assert duration_ms(text, "--by-duration") == ms


@pytest.mark.parametrize("text", ["", "5", "h", "1h x", "P", "PT", "-1h", "1y", "P1H"])
def test_invalid_durations_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.UsageError, match="--by-duration expects a duration like 1h30m"):
        duration_ms(text, "--by-duration")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (350, "350ms"),
        (5300, "5.3s"),
        (59_999, "59s"),
        (65_000, "1m 5s"),
        (3_600_000, "1h"),
        (3_660_000, "1h 1m"),
        (93_784_500, "1d 2h"),
        (86_460_000, "1d"),
    ],
)
def test_durations_are_printed_in_their_two_largest_units(ms: int, text: str) -> None:
    assert duration_text(ms) == text


def test_times_are_dates_or_milliseconds() -> None:
    assert time_ms("1700000000000", "-O") == 1_700_000_000_000
    assert time_ms("2026-01-31T12:00:00+00:00", "-O") == datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000
    assert time_ms("2026-01-31", "-O") == datetime(2026, 1, 31).timestamp() * 1000
    with pytest.raises(click.UsageError, match="-O expects milliseconds or a date like"):
        time_ms("yesterday", "-O")


def test_partitions_are_printed_as_intervals_and_parsed_back() -> None:
    partitions = [TopicPartition("t", number) for number in (5, 0, 1, 2, 7)] + [TopicPartition("s", 3)]
    text = partitions_text(partitions)
    assert text == "s:3 t:0-2,5,7"
    assert partition_selection(text.split(), "--topic") == {"s": {3}, "t": {0, 1, 2, 5, 7}}


def test_a_topic_named_without_numbers_means_all_its_partitions() -> None:
    wanted = partition_selection(["t", "t:1", "s:1", "s:2-3"], "--topic")
    assert wanted == {"t": None, "s": {1, 2, 3}}
    assert [is_selected(wanted, TopicPartition(*tp)) for tp in (("t", 9), ("s", 2), ("s", 9), ("r", 0))] == [True, True, False, False]


@pytest.mark.parametrize("text", ["", ":1", "t:", "t:x", "t:3-1", "t:1,,2", "t:0-9999999"])
def test_invalid_scopes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.UsageError, match=r"--topic expects TOPIC or TOPIC:0,2-5"):
        partition_selection([text], "--topic")

"""Ranges of topics in text form: the meaning of each form, its offsets in a log, and how mistakes are marked."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.fetch.ranges import END, START, BadRange, Bound, BoundKind, Range, TopicRange, parse_part, parse_partitions, parse_range

NOW_MS = int(datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp() * 1000)
HOUR_MS = 3_600_000


def time(ms: int) -> Bound:
    return Bound(BoundKind.TIME, ms)


def at(*when: int) -> Bound:
    return time(int(datetime(*when, tzinfo=UTC).timestamp() * 1000))  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", Range()),
        (":", Range()),
        ("start:end", Range(START, END)),
        ("beginning:", Range(START)),
        ("Earliest:LATEST", Range(START, END)),
        ("oldest:newest", Range(START, END)),
        ("100:200", Range(Bound(BoundKind.OFFSET, 100), Bound(BoundKind.OFFSET, 200))),
        ("100", Range(Bound(BoundKind.OFFSET, 100))),
        (":200", Range(START, Bound(BoundKind.OFFSET, 200))),
        ("-10:", Range(Bound(BoundKind.BEFORE_END, 10))),
        ("-10", Range(Bound(BoundKind.BEFORE_END, 10))),
        ("+10:-10", Range(Bound(BoundKind.AFTER_START, 10), Bound(BoundKind.BEFORE_END, 10))),
        ("100:+50", Range(Bound(BoundKind.OFFSET, 100), Bound(BoundKind.AFTER_FIRST, 50))),
        (":+5", Range(START, Bound(BoundKind.AFTER_FIRST, 5))),
        ("@-1h:end", Range(time(NOW_MS - HOUR_MS), END)),
        ("-1h:end", Range(time(NOW_MS - HOUR_MS), END)),
        ("@-48h:-24h", Range(time(NOW_MS - 48 * HOUR_MS), time(NOW_MS - 24 * HOUR_MS))),
        ("-1h30m", Range(time(NOW_MS - 3 * HOUR_MS // 2))),
        ("-1.5h:now", Range(time(NOW_MS - 3 * HOUR_MS // 2), time(NOW_MS))),
        ("-500ms", Range(time(NOW_MS - 500))),
        ("-2w", Range(time(NOW_MS - 14 * 24 * HOUR_MS))),
        ("@2026-11-01T00:00:00Z:@2026-11-02T01:02:03.5+01:00", Range(at(2026, 11, 1), at(2026, 11, 2, 0, 2, 3, 500_000))),
        ("2026-11-01T00:00Z:+1h", Range(at(2026, 11, 1), at(2026, 11, 1, 1))),
        ("@1793500000:@1793500001500", Range(time(1_793_500_000_000), time(1_793_500_001_500))),
        ("1793500000:", Range(Bound(BoundKind.OFFSET, 1_793_500_000))),
    ],
)
def test_a_range_text_is_parsed(text: str, meant: Range) -> None:
    assert parse_range(text, NOW_MS) == meant


def test_a_date_without_a_zone_is_local_time() -> None:
    midnight = time(int(datetime(2026, 11, 1).timestamp() * 1000))
    assert parse_range("2026-11-01", NOW_MS) == parse_range("@2026-11-01 00:00", NOW_MS) == Range(midnight)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("orders", TopicRange("orders")),
        ("orders/3", TopicRange("orders", (3,))),
        ("or.de_rs-1/4-5,0", TopicRange("or.de_rs-1", (0, 4, 5))),
        ("orders@-1h:end", TopicRange("orders", None, Range(time(NOW_MS - HOUR_MS), END))),
        ("orders@@-1h:end", TopicRange("orders", None, Range(time(NOW_MS - HOUR_MS), END))),
        ("orders/0,2-3@100:200", TopicRange("orders", (0, 2, 3), Range(Bound(BoundKind.OFFSET, 100), Bound(BoundKind.OFFSET, 200)))),
        ("orders@2026-11-01T00:00:00Z:", TopicRange("orders", None, Range(at(2026, 11, 1)))),
        ("orders@@1793500000000", TopicRange("orders", None, Range(time(1_793_500_000_000)))),
        ("orders@", TopicRange("orders")),
    ],
)
def test_a_topic_range_text_is_parsed(text: str, meant: TopicRange) -> None:
    assert parse_part(text, NOW_MS) == meant


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("", "", "name of a topic"),
        ("@1:2", "@", "name of a topic"),
        ("orders:1:2", ":", "a range follows @, as in orders@-1h:end"),
        ("orders/", "", "expected partitions"),
        ("orders/a@1:2", "a", "expected partitions"),
        ("orders/1,,2", ",", "expected partitions"),
        ("orders/5-2", "5-2", "no topic has the partitions 5 to 2"),
        ("orders/0-999999999", "0-999999999", "no topic has"),
        ("orders@1h:end", "1h", "expected an offset"),
        ("orders@-1x:end", "-1x", "expected an offset"),
        ("orders@begining:end", "begining", "did you mean beginning?"),
        ("orders@1:2:3", ":3", "two ends"),
        ("orders@200:100", "200:100", "ends before it begins"),
        ("orders@-10:-20", "-10:-20", "ends before it begins"),
        ("orders@-1h:-2h", "-1h:-2h", "ends before it begins"),
        ("orders@2026-13-01:", "2026-13-01", "no such time"),
        ("orders@1793500000000:", "1793500000000", "written @@1793500000000"),
        ("orders@0:1793500000000", "1793500000000", "written @1793500000000"),
        ("orders@@100:", "@100", "@ precedes a time"),
        ("orders@@-100:", "@-100", "@ precedes a time"),
        ("orders@100:+1h", "+1h", "begins with none"),
        ("orders@+1h:", "+1h", "begins with none"),
    ],
)
def test_a_mistake_is_marked_at_its_position(text: str, place: str, why: str) -> None:
    with pytest.raises(BadRange, match=why.replace("?", r"\?")) as caught:
        parse_part(text, NOW_MS)
    error = caught.value
    assert text[error.at : error.at + error.size] == place
    assert str(error).splitlines()[-1].strip() == "^" * error.size


def test_partitions_are_numbers_and_intervals() -> None:
    assert parse_partitions("7,0-2,1") == (0, 1, 2, 7)


LOG = (50, 150)


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("", (50, 150)),
        ("start:end", (50, 150)),
        ("60:70", (60, 70)),
        ("0:1000", (50, 150)),
        ("0:10", (50, 50)),
        ("200:", (150, 150)),
        ("-10:", (140, 150)),
        ("-1000:-90", (50, 60)),
        ("+10:+5", (60, 65)),
        ("145:+50", (145, 150)),
        (":+5", (50, 55)),
        ("end:", (150, 150)),
    ],
)
def test_a_range_is_clipped_to_the_log(text: str, offsets: tuple[int, int]) -> None:
    assert parse_range(text, NOW_MS).offsets(*LOG) == offsets


@pytest.mark.parametrize(
    ("text", "found", "offsets"),
    [
        ("-1h:", (100, None), (100, 150)),
        ("-1h:", (None, None), (150, 150)),
        ("-2h:-1h", (60, 90), (60, 90)),
        ("-2h:-1h", (60, None), (60, 150)),
        (":-1h", (None, 90), (50, 90)),
        ("-2h:+10", (60, None), (60, 70)),
        ("120:-1h", (None, 90), (120, 120)),
        ("-2h:-1h", (10, 20), (50, 50)),
    ],
)
def test_times_are_resolved_to_offsets(text: str, found: tuple[int | None, int | None], offsets: tuple[int, int]) -> None:
    meant = parse_range(text, NOW_MS)
    assert [when is not None for when in meant.times()] == [bound is not None and bound.kind is BoundKind.TIME for bound in meant]
    assert meant.offsets(*LOG, *found) == offsets


numbers = st.integers(0, 10**11 - 1)
bounds = st.one_of(
    st.sampled_from([("start", START), ("end", END)]),
    numbers.map(lambda n: (str(n), Bound(BoundKind.OFFSET, n))),
    numbers.map(lambda n: (f"-{n}", Bound(BoundKind.BEFORE_END, n))),
    st.integers(10**11, 10**13).map(lambda ms: (f"@{ms}", time(ms))),
    st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1)).map(
        lambda when: (f"@{when.isoformat()}Z", time(int(when.replace(tzinfo=UTC).timestamp() * 1000)))
    ),
)


@given(bounds, st.none() | bounds, st.sets(st.integers(0, 1000), max_size=5), st.integers(0, 1000), st.integers(0, 1000))
def test_a_formatted_range_parses_back_and_stays_within_the_log(
    first: tuple[str, Bound], last: tuple[str, Bound] | None, partitions: set[int], start: int, size: int
) -> None:
    chosen = "/" + ",".join(map(str, partitions)) if partitions else ""
    text = f"a.b-c_D{chosen}@{first[0]}:{'' if last is None else last[0]}"
    try:
        part = parse_part(text, NOW_MS)
    except BadRange as error:
        assert "ends before it begins" in str(error)
        return
    assert part == TopicRange("a.b-c_D", tuple(sorted(partitions)) or None, Range(first[1], None if last is None else last[1]))
    begin, end = part.range.offsets(start, start + size)
    assert start <= begin <= end <= start + size


@given(st.text("orders/@:-+0123hTZ.,@ ", max_size=30))
def test_any_text_is_a_range_or_is_refused(text: str) -> None:
    try:
        parse_part(text, NOW_MS)
    except BadRange as error:
        assert 0 <= error.at <= len(text)

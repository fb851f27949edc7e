"""What a search looks for, as parsed from the address of a page; and the order in which it reads. Pure.

    show=newest     from the end backwards              show=range     from=..&to=.. as in `ottla consume -O FROM:TO`
    show=oldest     from the start                      show=live      new records, until the page is closed

A search reads in rounds. A round has a window of offsets of each partition, so that the first results come from all partitions, and are
ordered by time within the round:

                        round 3      2    1
    partition 0     |-----------|------|--|  end        newest first: windows grow from the end
    partition 1         |-------|------|--|  end
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from ottla.client.fetch.ranges import END, START, BadRange, Bound, BoundKind, Range, parse_partitions, parse_range
from ottla.client.values.record_filter import FilterError
from ottla.console.messages.filters import parsed

NEWEST, OLDEST, RANGE, LIVE = "newest", "oldest", "range", "live"
SHOWS = (NEWEST, OLDEST, RANGE, LIVE)
LIMIT, LIMIT_MAX = 50, 1_000
#: Offsets of a partition in the first round of a search with conditions, the growth, and the most.
FIRST_OFFSETS, GROWTH, OFFSETS_MAX = 5_000, 4, 200_000
TEXT_MAX = 4_000
FORMATS = ("auto", "text", "json", "hex", "base64", "int", "float", "uuid", "avro")


class BadQuery(ValueError):
    """A field of the search that is not valid; `field` names it."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(why)
        self.field = field


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A search. Conditions are empty if they are not set; all must hold."""

    topic: str
    show: str = NEWEST
    range: Range = Range()
    partitions: tuple[int, ...] | None = None
    #: The whole key; a part of the value; NAME or NAME=VALUE of a header; an expression as in `ottla consume --filter`.
    key: str = ""
    value: str = ""
    header: str = ""
    filter: str = ""
    key_format: str = "auto"
    value_format: str = "auto"
    limit: int = LIMIT
    is_committed: bool = False

    @property
    def has_conditions(self) -> bool:
        """Whether records are searched, not only shown."""
        return bool(self.key or self.value or self.header or self.filter)

    @property
    def is_newest_first(self) -> bool:
        """Whether it reads backwards."""
        return self.show == NEWEST


def parse(topic: str, given: Mapping[str, str], now_ms: int) -> Query:
    """The search of these parameters. Raises: BadQuery."""
    show = given.get("show", NEWEST)
    if show not in SHOWS:
        raise BadQuery("show", f"expected one of {', '.join(SHOWS)}")
    for name in ("key", "value", "header", "filter"):
        if len(given.get(name, "")) > TEXT_MAX:
            raise BadQuery(name, f"expected at most {TEXT_MAX} characters")
    formats = [given.get(name) or "auto" for name in ("kf", "vf")]
    for name, form in zip(("kf", "vf"), formats, strict=True):
        if form not in FORMATS:
            raise BadQuery(name, f"expected one of {', '.join(FORMATS)}")
    if expression := given.get("filter", ""):
        try:
            parsed(expression)
        except FilterError as error:
            raise BadQuery("filter", str(error)) from None
    limit = given.get("limit", str(LIMIT))
    if not limit.isdecimal() or not 0 < int(limit[:9]) <= LIMIT_MAX:
        raise BadQuery("limit", f"expected a number from 1 to {LIMIT_MAX}")
    return Query(
        topic=topic, show=show, range=_range(show, given, now_ms), partitions=_partitions(given.get("partitions", "")),
        key=given.get("key", ""), value=given.get("value", ""), header=given.get("header", ""), filter=expression,
        key_format=formats[0], value_format=formats[1], limit=int(limit), is_committed=given.get("committed") == "1",
    )  # fmt: skip


def _partitions(given: str) -> tuple[int, ...] | None:
    if not given.strip():
        return None
    try:
        return parse_partitions(given.replace(" ", ""))
    except BadRange as error:
        raise BadQuery("partitions", error.why) from None


def _range(show: str, given: Mapping[str, str], now_ms: int) -> Range:
    if show != RANGE:
        return Range(START, END)
    first = _bound(given.get("from", ""), "from", now_ms) or START
    last = _bound(given.get("to", ""), "to", now_ms)
    return Range(first, last or END)


def _bound(text: str, field: str, now_ms: int) -> Bound | None:
    text = text.strip()
    if not text:
        return None
    try:
        found = parse_range(text, now_ms)
    except BadRange as error:
        raise BadQuery(field, error.why) from None
    if found.last is not None:
        raise BadQuery(field, "expected one position, such as 100, -1h or 2026-11-25T12:00Z, not a range")
    if field == "to" and found.first.kind is BoundKind.AFTER_START:
        return Bound(BoundKind.AFTER_FIRST, found.first.value)
    return found.first


class Window(msgspec.Struct, frozen=True):
    """Offsets of a partition to read, half-open."""

    partition: int
    first: int
    last: int


def rounds(spans: Mapping[int, tuple[int, int]], query: Query) -> Iterator[list[Window]]:
    """The windows of each round, over the offsets of each partition. All offsets are in exactly one window."""
    size = FIRST_OFFSETS if query.has_conditions else query.limit
    left = {partition: span for partition, span in sorted(spans.items()) if span[0] < span[1]}
    while left:
        windows = []
        for partition, (first, last) in list(left.items()):
            if query.is_newest_first:
                at = max(last - size, first)
                windows.append(Window(partition, at, last))
                left[partition] = (first, at)
            else:
                at = min(first + size, last)
                windows.append(Window(partition, first, at))
                left[partition] = (at, last)
            if left[partition][0] >= left[partition][1]:
                del left[partition]
        yield windows
        size = min(size * GROWTH, OFFSETS_MAX)

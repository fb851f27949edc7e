"""Ranges of topics as text: ``orders@-1h:end``, ``orders/0,2-4@100:200``. Pure.

    orders                     all records
    orders/3                   all records of partition 3; /0,2-4 for several
    orders@FROM:TO             in each partition, from FROM to before TO
    orders@FROM                from FROM on

    FROM, TO        meaning
    --------        -------
    start           the first record in the log; also: beginning, earliest, oldest; the default of FROM
    end             after the last record at the time of the request; also: latest, newest
    100             offset 100
    -10             ten offsets before the end
    +10             ten offsets after the start; in TO, after FROM: 100:+50
    -1h             the first record of the last hour: w d h m s ms, also combined as in -1h30m; in TO +1h is an hour after the time FROM
    2026-11-01      the first record at or after that time: a date, optionally with time and zone (2026-11-01T12:00:00Z);
                    local time without a zone
    @1793500000     the same in seconds since 1970, or with 12 or more digits in milliseconds
    now             the time of the request

``@`` is allowed before every time, and required before a number that is a time. Without TO, a table ends at the end, and a consumer does
not end. Topic names have no ``/``, ``@`` or ``:``, so each part is identified by its first character.

Offsets and times of rpk and kcat have the same meaning here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from typing import NamedTuple, NoReturn

from ottla.base.options import suggestion
from ottla.base.readable import UNITS_MS


class BadRange(ValueError):
    """An invalid range. The message marks the position."""

    def __init__(self, text: str, at: int, size: int, why: str) -> None:
        self.text, self.at, self.size, self.why = text, at, max(size, 1), why
        super().__init__(f"{why}\n  {text}\n  {' ' * at}{'^' * self.size}")


class BoundKind(Enum):
    """Base of a bound."""

    START = "start"
    END = "end"
    #: An offset.
    OFFSET = "offset"
    #: Offsets after the log start.
    AFTER_START = "after the start"
    #: Offsets before the end.
    BEFORE_END = "before the end"
    #: Offsets after the first bound.
    AFTER_FIRST = "after the first"
    #: The first record at or after a time, in ms since 1970.
    TIME = "time"


class Bound(NamedTuple):
    """One end of a range."""

    kind: BoundKind
    value: int = 0


START, END = Bound(BoundKind.START), Bound(BoundKind.END)


class Range(NamedTuple):
    """Records of each partition from ``first`` to before ``last``. None: no end, or the present end for readers that do not wait."""

    first: Bound = START
    last: Bound | None = None

    def times(self) -> tuple[int | None, int | None]:
        """Times (ms) to look up before ``offsets``; None for bounds without a time."""
        first, last = (bound.value if bound is not None and bound.kind is BoundKind.TIME else None for bound in self)
        return first, last

    def offsets(self, start: int, end: int, first_at: int | None = None, last_at: int | None = None) -> tuple[int, int]:
        """The half-open range of offsets in a partition with the log ``[start, end)``; within that, possibly empty.

        ``first_at`` and ``last_at`` are the results for ``times``; None if there is no later record.
        """
        first = self._place(self.first, start, end, first_at, start)
        last = end if self.last is None else self._place(self.last, start, end, last_at, first)
        return first, max(first, last)

    def _place(self, bound: Bound, start: int, end: int, found: int | None, first: int) -> int:
        match bound.kind:
            case BoundKind.START:
                return start
            case BoundKind.END:
                return end
            case BoundKind.OFFSET:
                at = bound.value
            case BoundKind.AFTER_START:
                at = start + bound.value
            case BoundKind.BEFORE_END:
                at = end - bound.value
            case BoundKind.AFTER_FIRST:
                at = first + bound.value
            case BoundKind.TIME:
                at = end if found is None else found
        return min(max(at, start), end)


class TopicRange(NamedTuple):
    """A topic, some of its partitions (None: all), and a range."""

    topic: str
    partitions: tuple[int, ...] | None = None
    range: Range = Range()


_WORDS = {
    "start": START, "beginning": START, "earliest": START, "oldest": START,
    "end": END, "latest": END, "newest": END,
}  # fmt: skip
_DURATION = r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+"
_DATE = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?"
#: In this order: a date begins like a number, a duration like an offset.
_BOUND = re.compile(
    rf"(?P<at>@?)(?:(?P<date>{_DATE})|(?P<way>[+-])(?P<duration>{_DURATION})|(?P<sign>[+-]?)(?P<number>\d+)|(?P<word>[A-Za-z]+))"
    r"(?=:|$)"
)
_PARTITIONS = re.compile(r"(\d+)(?:-(\d+))?")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
#: A number with this many digits is not an offset but a time in ms.
MS_DIGITS = 12
SECONDS_DIGITS = 9
#: A longer range of partitions is a typing error.
PARTITIONS_MAX = 200_000
EXPECTED = "expected an offset (100, -10, +10), a time (-1h, 2026-11-01T12:00:00Z, @MILLISECONDS), start or end"


def parse_part(text: str, now_ms: int) -> TopicRange:
    """Parses a topic with its range. Raises: BadRange; TypeError if it is not text."""
    if not isinstance(text, str):
        raise TypeError(f"a topic is a str, such as 'orders' or 'orders@-1h:end', and several are given one by one; not {text!r}")
    named = _TOPIC.match(text)
    if named is None:
        raise BadRange(text, 0, 1, "expected the name of a topic, with perhaps /PARTITIONS and @FROM:TO behind it")
    position = named.end()
    partitions = None
    if text[position : position + 1] == "/":
        stop = text.find("@", position)
        stop = len(text) if stop < 0 else stop
        partitions = tuple(_partitions(text, position + 1, stop))
        position = stop
    if position == len(text):
        return TopicRange(named[0], partitions)
    if text[position] != "@":
        raise BadRange(text, position, 1, f"{text[position]!r} is in no topic's name; a range follows @, as in {named[0]}@-1h:end")
    return TopicRange(named[0], partitions, _range(text, position + 1, now_ms, in_part=True))


def parse_range(text: str, now_ms: int) -> Range:
    """Parses ``FROM:TO`` or ``FROM``. Raises: BadRange."""
    return _range(text, 0, now_ms, in_part=False)


def parse_partitions(text: str) -> tuple[int, ...]:
    """Parses ``0,2-4``: numbers and ranges, in ascending order. Raises: BadRange."""
    return tuple(_partitions(text, 0, len(text)))


def _partitions(text: str, position: int, stop: int) -> Iterator[int]:
    found: set[int] = set()
    while True:
        comma = text.find(",", position, stop)
        end = stop if comma < 0 else comma
        run = _PARTITIONS.fullmatch(text[position:end])
        if run is None:
            raise BadRange(text, position, end - position, "expected partitions: numbers and runs of them, as in 0,2-4")
        first, last = int(run[1]), int(run[2] or run[1])
        if not 0 <= last - first < PARTITIONS_MAX:
            raise BadRange(text, position, end - position, f"no topic has the partitions {first} to {last}")
        found.update(range(first, last + 1))
        if comma < 0:
            return iter(sorted(found))
        position = comma + 1


def _range(text: str, position: int, now_ms: int, *, in_part: bool) -> Range:
    first, last = START, None
    first_at = position
    if position < len(text) and text[position] != ":":
        first, position = _bound(text, position, now_ms, None, in_part=in_part)
    if position < len(text):
        position += 1
        if position < len(text):
            last, end = _bound(text, position, now_ms, first, in_part=in_part)
            if end < len(text):
                raise BadRange(text, end, len(text) - end, "a range has two ends, FROM:TO")
    if last is not None and first.kind is last.kind and _backwards(first, last):
        raise BadRange(text, first_at, len(text) - first_at, "this range ends before it begins")
    return Range(first, last)


def _backwards(first: Bound, last: Bound) -> bool:
    if first.kind is BoundKind.BEFORE_END:
        return first.value < last.value
    return first.value > last.value


def _bound(text: str, position: int, now_ms: int, first: Bound | None, *, in_part: bool) -> tuple[Bound, int]:
    """The bound at a position, and its end; ``first`` is the range's first bound, None for this one."""
    found = _BOUND.match(text, position)
    if found is None:
        stop = text.find(":", position + 1)
        _refuse(text, position, len(text) if stop < 0 else stop)
    if found["date"]:
        return Bound(BoundKind.TIME, _date_ms(text, found)), found.end()
    if found["duration"]:
        return _moved(text, found, now_ms, first), found.end()
    if found["word"]:
        if found["word"].lower() == "now":
            return Bound(BoundKind.TIME, now_ms), found.end()
        bound = _WORDS.get(found["word"].lower())
        if bound is None:
            _refuse(text, position, found.end())
        return bound, found.end()
    return _numbered(text, found, first, in_part=in_part), found.end()


def _date_ms(text: str, found: re.Match[str]) -> int:
    try:
        return int(datetime.fromisoformat(found["date"].replace(",", ".")).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise BadRange(text, found.start("date"), len(found["date"]), f"there is no such time: {error}") from None


def _moved(text: str, found: re.Match[str], now_ms: int, first: Bound | None) -> Bound:
    """A time before now, or after the first bound."""
    moved_ms = int(sum(float(count) * UNITS_MS[unit] for count, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|[smhdw])", found["duration"])))
    if found["way"] == "-":
        return Bound(BoundKind.TIME, now_ms - moved_ms)
    if first is None or first.kind is not BoundKind.TIME:
        size = found.end() - found.start()
        raise BadRange(text, found.start(), size, "a time +so long counts from the time at which the range begins, and it begins with none")
    return Bound(BoundKind.TIME, first.value + moved_ms)


def _numbered(text: str, found: re.Match[str], first: Bound | None, *, in_part: bool) -> Bound:
    number, digits = int(found["number"]), len(found["number"])
    at, size = found.start(), found.end() - found.start()
    if found["at"]:
        if found["sign"] or digits < SECONDS_DIGITS:
            raise BadRange(text, at, size, "@ precedes a time: a date, -1h, or seconds or milliseconds since 1970")
        return Bound(BoundKind.TIME, number if digits >= MS_DIGITS else number * 1000)
    if digits >= MS_DIGITS:
        double = "@@" if in_part and first is None else "@"
        raise BadRange(text, at, size, f"no log has so many records; a time in milliseconds is written {double}{number}")
    match found["sign"]:
        case "-":
            return Bound(BoundKind.BEFORE_END, number)
        case "+":
            return Bound(BoundKind.AFTER_START if first is None else BoundKind.AFTER_FIRST, number)
        case _:
            return Bound(BoundKind.OFFSET, number)


def _refuse(text: str, position: int, stop: int) -> NoReturn:
    said = text[position:stop].lstrip("@")
    why = EXPECTED
    if said.isalpha():
        why = f"{said!r} is no place in a log{suggestion(said, [*_WORDS, 'now'])}; {EXPECTED}"
    raise BadRange(text, position, stop - position, why)

"""What a load is made of: what records hold, and when each is to be sent.

At a rate, record n is due at `begin + n / rate`, whatever became of those before. A broker (or this process) that stalls does not put off
what is due meanwhile: those records are sent as soon as can be, and their latency counts from when they were due. Measured from the moment
of sending, a stall of one second would show in the few records that were on their way, and not in the thousands that it held up
("coordinated omission"). Without a rate, a record is due when it is handed over.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from ottla.cli.perf.figures import NS

#: So many different values of random letters are made, and then again and again ...
DIFFERENT = 1000
#: ... but not more than so many bytes of them, unless one is larger.
DIFFERENT_BYTES = 16 << 20
_LETTERS = bytes(65 + byte % 26 for byte in range(256))


class Payload(NamedTuple):
    """What records hold."""

    #: The value of the nth.
    value: Callable[[int], bytes]
    #: Whether any stretch of them is as good as another, so that one table may be sent again and again.
    alike: bool


def letters(size: int, rng: Random) -> bytes:
    """So many of A to Z."""
    return rng.randbytes(size).translate(_LETTERS)


def random_payloads(size: int, rng: Random) -> Payload:
    """Random letters, so many bytes in each."""
    made = [letters(size, rng) for _ in range(max(1, min(DIFFERENT, DIFFERENT_BYTES // max(size, 1))))]
    count = len(made)
    return Payload(lambda number: made[number % count], alike=True)


def payloads_of(data: bytes, delimiter: bytes, rng: Random) -> Payload:
    """What stands between delimiters, in random order. Raises: ValueError when there is nothing."""
    found = data.split(delimiter)
    if found and not found[-1]:
        # What the last delimiter ends is no payload behind it.
        found.pop()
    if not found:
        raise ValueError("there is no payload in it")
    return Payload(lambda number: found[rng.randrange(len(found))], alike=True)


def numbers() -> Payload:
    """0, 1, 2 ... as text."""
    return Payload(lambda number: b"%d" % number, alike=False)


class Schedule:
    """When each record is due, and how many there are to be: `records` and `duration_ns` are limits, None for none."""

    def __init__(self, *, rate: float | None = None, records: int | None = None, duration_ns: int | None = None) -> None:
        self.rate, self.records, self.duration_ns = rate, records, duration_ns
        self.began_ns = 0

    def begin(self, now_ns: int) -> None:
        """The first record is due now."""
        self.began_ns = now_ns

    def due_ns(self, number: int, now_ns: int) -> int:
        """When a record should be sent; without a rate, now."""
        return now_ns if self.rate is None else self.began_ns + int(number * NS / self.rate)

    def due(self, sent: int, now_ns: int, most: int) -> int:
        """How many to send now, where so many were sent: at most `most`."""
        if self.rate is not None:
            # The nth is due once n / rate has passed; the first at once.
            most = min(most, int((now_ns - self.began_ns) * self.rate / NS) + 1 - sent)
        if self.records is not None:
            most = min(most, self.records - sent)
        return max(most, 0)

    def over(self, sent: int, now_ns: int) -> bool:
        """Whether nothing is left to send."""
        enough = self.records is not None and sent >= self.records
        return enough or (self.duration_ns is not None and now_ns - self.began_ns >= self.duration_ns)

    def wait_ns(self, sent: int, now_ns: int) -> int:
        """How long until the next is due, or all is over; at least a nanosecond, so that a moment that is rounded down is passed."""
        waits = self.due_ns(sent, now_ns) - now_ns
        if self.duration_ns is not None:
            waits = min(waits, self.began_ns + self.duration_ns - now_ns)
        return max(waits, 1)

"""A load: the content of records, and when each is due.

At a rate, record n is due at `begin + n / rate`, independent of the records before. After a stall of a broker or this process, the overdue
records are sent at once, and their latency counts from when they were due. If it counted from the send, a stall of one second would show
only in the few records in flight, not in the thousands that it delayed ("coordinated omission"). Without a rate, a record is due when it is
sent.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from ottla.cli.perf.figures import NS

#: Limits of the distinct random values, which are repeated: their number and total size.
DISTINCT_PAYLOADS = 1000
DISTINCT_BYTES = 16 << 20
_LETTERS = bytes(65 + byte % 26 for byte in range(256))


class Payload(NamedTuple):
    """The values of records."""

    #: The value of record n.
    value: Callable[[int], bytes]
    #: Whether one table can be sent repeatedly, because the values have no order.
    repeatable: bool


def random_letters(size: int, rng: Random) -> bytes:
    """Random letters A to Z."""
    return rng.randbytes(size).translate(_LETTERS)


def random_payloads(size: int, rng: Random) -> Payload:
    """Values of random letters, `size` bytes each."""
    made = [random_letters(size, rng) for _ in range(max(1, min(DISTINCT_PAYLOADS, DISTINCT_BYTES // max(size, 1))))]
    count = len(made)
    return Payload(lambda number: made[number % count], repeatable=True)


def file_payloads(data: bytes, delimiter: bytes, rng: Random) -> Payload:
    """The values between delimiters, in random order. Raises: ValueError, if there is none."""
    values = data.split(delimiter)
    if values and not values[-1]:
        # The text after the last delimiter is empty: not a payload.
        values.pop()
    if not values:
        raise ValueError("contains no payload")
    return Payload(lambda number: values[rng.randrange(len(values))], repeatable=True)


def numbers() -> Payload:
    """0, 1, 2 ... as text."""
    return Payload(lambda number: b"%d" % number, repeatable=False)


class Schedule:
    """The due times of records; `records` and `duration_ns` are limits, None for unlimited."""

    def __init__(self, *, rate: float | None = None, records: int | None = None, duration_ns: int | None = None) -> None:
        self.rate, self.records, self.duration_ns = rate, records, duration_ns
        self.began_ns = 0

    def begin(self, now_ns: int) -> None:
        self.began_ns = now_ns

    def due_ns(self, number: int, now_ns: int) -> int:
        """Due time of a record; without a rate, now."""
        return now_ns if self.rate is None else self.began_ns + int(number * NS / self.rate)

    def due(self, sent: int, now_ns: int, most: int) -> int:
        """Number of records to send now, after `sent` records: at most `most`."""
        if self.rate is not None:
            # The first record is due at once.
            most = min(most, int((now_ns - self.began_ns) * self.rate / NS) + 1 - sent)
        if self.records is not None:
            most = min(most, self.records - sent)
        return max(most, 0)

    def over(self, sent: int, now_ns: int) -> bool:
        """Whether a limit is reached."""
        enough = self.records is not None and sent >= self.records
        return enough or (self.duration_ns is not None and now_ns - self.began_ns >= self.duration_ns)

    def wait_ns(self, sent: int, now_ns: int) -> int:
        """Time until the next record is due or the duration is over; at least 1 ns, because due times are rounded down."""
        waits = self.due_ns(sent, now_ns) - now_ns
        if self.duration_ns is not None:
            waits = min(waits, self.began_ns + self.duration_ns - now_ns)
        return max(waits, 1)

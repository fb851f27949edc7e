"""Output of a group member on standard output, one JSON object a line, each at the moment of the event.

    {"assigned": [0, 2]}            newly assigned partitions
    {"revoked": [2]}                revoked partitions
    {"read": [0, 17]}               partition and offset of a record returned to the application
    {"committed": [[0, 18]]}        positions acknowledged by the broker
    {"refused": "..."}              a commit refused by the broker or the client

Each has the time of the system's monotonic clock, too, in ns: "at".

The arguments of a member program are BOOTSTRAP GROUP TOPIC SETTINGS. SETTINGS is a JSON object with Kafka's names. The program leaves the
group on SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

#: Large enough for some throughput, small enough that a member that dies leaves records unread.
RECORDS_PER_POLL = 25


class MemberArguments(NamedTuple):
    """The arguments of a member program."""

    bootstrap: str
    group: str
    topic: str
    settings: dict[str, Any]


def member_arguments() -> MemberArguments:
    bootstrap, group, topic, settings = sys.argv[1:5]
    return MemberArguments(bootstrap, group, topic, json.loads(settings))


def emit(**what: Any) -> None:
    sys.stdout.write(json.dumps({**what, "at": time.monotonic_ns()}) + "\n")
    sys.stdout.flush()


def emit_read(places: Iterable[tuple[int, int]]) -> None:
    """Writes a line for each partition and offset at once."""
    at = time.monotonic_ns()
    sys.stdout.write("".join(f'{{"read": [{partition}, {offset}], "at": {at}}}\n' for partition, offset in places))
    sys.stdout.flush()


class LeaveSignal:
    """Whether SIGTERM was received."""

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, *_: object) -> None:
        self.received = True

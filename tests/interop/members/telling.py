"""What a member of a group tells on its standard output, one JSON object a line, each at the moment it happened.

    {"assigned": [0, 2]}            partitions it was given, beside those it has
    {"revoked": [2]}                partitions taken away
    {"read": [0, 17]}               partition and offset of a record handed to the application
    {"committed": [[0, 18]]}        positions that the broker has acknowledged
    {"refused": "..."}              a commit that the broker, or the client, did not take

A program of a member is called with BOOTSTRAP GROUP TOPIC SETTINGS; the last is a JSON object in Kafka's words. It leaves on SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

#: Enough for a little throughput, little enough that a member that dies leaves work behind.
RECORDS_PER_POLL = 25


class Call(NamedTuple):
    """What a member was asked to be."""

    bootstrap: str
    group: str
    topic: str
    settings: dict[str, Any]


def called() -> Call:
    bootstrap, group, topic, settings = sys.argv[1:5]
    return Call(bootstrap, group, topic, json.loads(settings))


def tell(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def tell_read(places: Iterable[tuple[int, int]]) -> None:
    """A line for each partition and offset, written at once."""
    sys.stdout.write("".join(f'{{"read": [{partition}, {offset}]}}\n' for partition, offset in places))
    sys.stdout.flush()


class Leaving:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True

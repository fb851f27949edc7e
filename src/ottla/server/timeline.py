"""``GET /timeline`` of the HTTP listener: the timelines of the brokers of this process, as JSON.

====================  ==============================================================================================================
``kind=KIND``         only changes of groups, partitions, transactions or the controller; may be repeated
``name=NAME``         only of this group, partition, transactional id or broker; may be repeated
``after=ID:NUMBER``   of broker ID only entries after this number, oldest first; may be repeated
``limit=NUMBER``      at most so many entries of each broker; the latest ones without ``after``
====================  ==============================================================================================================

::

    {"brokers": [{"id": 1, "began_ms": 1761000000000, "oldest": 1, "last": 7, "more": false, "entries": [
        {"number": 7, "wall_ms": 1761000005120, "kind": "group", "name": "billing", "what": "joined", "fields": {...}}]}]}

``began_ms`` changes when a broker restarts, and its numbers begin anew then. Entries before ``oldest`` are lost when a
ring is full.

A thread reads the rings while the event loop adds to them. A copy of a ring is one call, and the rest is done in small pieces.
"""

from collections.abc import Iterator
from heapq import merge
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec

from ottla.broker.timeline import KINDS, Entry, Kind, Timeline
from ottla.server.metrics.exposition import Pace
from ottla.server.metrics.observed import ObservedBroker

LIMIT, LIMIT_MAX = 1_000, 10_000
#: Entries encoded in one piece: about 50 µs.
PIECE = 50

_encode = msgspec.json.Encoder(enc_hook=str).encode


class WrongQuery(ValueError):
    """A parameter is unknown or malformed."""


class Query(NamedTuple):
    """The parameters of a request."""

    kinds: tuple[Kind, ...] = KINDS
    #: Empty: all.
    names: frozenset[str] = frozenset()
    #: By broker.
    after: dict[int, int] = {}
    limit: int = LIMIT


def query_of(text: str) -> Query:
    """Raises: WrongQuery."""
    kinds: list[Kind] = []
    names: set[str] = set()
    after: dict[int, int] = {}
    limit = LIMIT
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name == "kind":
            found = next((kind for kind in KINDS if kind == value), None)
            if found is None:
                raise WrongQuery(f"kind={value}: it is one of {', '.join(KINDS)}")
            kinds.append(found)
        elif name == "name":
            names.add(value)
        elif name == "after":
            broker, _, number = value.partition(":")
            after[_number(name, broker, 1 << 31)] = _number(name, number, 1 << 62)
        elif name == "limit":
            limit = _number(name, value, LIMIT_MAX)
        else:
            raise WrongQuery(f"{name} is no parameter: there are kind, name, after and limit")
    return Query(tuple(kinds) or KINDS, frozenset(names), after, limit)


def _number(name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) > most:
        raise WrongQuery(f"{name}: {text!r} is no number from 0 to {most}")
    return int(text)


def timeline_json(brokers: list[ObservedBroker], query: Query, pace: Pace) -> Iterator[bytes]:
    """The answer, in pieces."""
    yield b'{"brokers":['
    for place, broker in enumerate(brokers):
        context = broker.node.context
        entries, head = _selected(context.timeline, query, query.after.get(context.broker_id), pace)
        yield (b"," if place else b"") + _encode({"id": context.broker_id, **head})[:-1] + b',"entries":['
        for first in range(0, len(entries), PIECE):
            yield (b"," if first else b"") + _encode(entries[first : first + PIECE])[1:-1]
            pace.step()
        yield b"]}"
    yield b"]}\n"


def _selected(timeline: Timeline, query: Query, after: int | None, pace: Pace) -> tuple[list[Entry], dict[str, int | bool]]:
    rings: list[list[Entry]] = []
    oldest = last = 0
    for kind in query.kinds:
        ring = timeline.rings[kind]
        # One call: the loop cannot add an entry meanwhile.
        whole = list(ring)
        pace.step()
        if whole and len(whole) == ring.maxlen:
            oldest = max(oldest, whole[0].number)
        last = max(last, whole[-1].number if whole else 0)
        rings.append(list(_matching(whole, query.names, after, pace)))
    found = list(merge(*rings, key=lambda entry: entry.number))
    more = len(found) > query.limit
    if more:
        found = found[: query.limit] if after is not None else found[len(found) - query.limit :]
    return found, {"began_ms": timeline.began_ms, "oldest": oldest, "last": last, "more": more}


def _matching(entries: list[Entry], names: frozenset[str], after: int | None, pace: Pace) -> Iterator[Entry]:
    for place, entry in enumerate(entries):
        if place % 100 == 0:
            pace.step()
        if (after is None or entry.number > after) and (not names or entry.name in names):
            yield entry

"""Reads timelines and segments of partitions from the HTTP listeners of brokers (`ottla serve --http`).

`--http` of the console names the listeners: `HOST:PORT`, or `:PORT` for this port on the host of each broker. Brokers of one process share
a listener, and each broker is in the result once. Apache Kafka and Redpanda have no such listener.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from http.client import HTTPException
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

import msgspec

from ottla.base.options import ConfigError

T = TypeVar("T")
TIMEOUT_S = 3.0
#: Largest answer of a listener.
ANSWER_BYTES_MAX = 32 << 20
#: Listeners that are asked at once.
ASKED_AT_ONCE = 8

Kind = Literal["group", "partition", "transaction", "controller"]


class TimelineEntry(msgspec.Struct, frozen=True):
    """An entry of a timeline."""

    number: int
    wall_ms: int
    kind: Kind
    name: str
    what: str
    fields: dict[str, Any]
    #: The broker that noted it; set by the reader.
    broker: int = -1


class BrokerTimeline(msgspec.Struct, frozen=True):
    """What one broker answered."""

    id: int
    began_ms: int
    oldest: int
    last: int
    more: bool
    entries: list[TimelineEntry]


class _Answer(msgspec.Struct, frozen=True):
    brokers: list[BrokerTimeline]


class Segment(msgspec.Struct, frozen=True):
    """A segment of a log."""

    base_offset: int
    size_bytes: int


class ReplicaSegments(msgspec.Struct, frozen=True):
    """A replica's log. `left_out`: older segments that are not listed."""

    broker: int
    directory: str
    role: str
    start_offset: int
    end_offset: int
    high_watermark: int
    recovery_point: int
    left_out: int
    segments: list[Segment]

    @property
    def size_bytes(self) -> int:
        """Of the listed segments."""
        return sum(one.size_bytes for one in self.segments)


class _Replicas(msgspec.Struct, frozen=True):
    replicas: list[ReplicaSegments]


class Timelines(msgspec.Struct, frozen=True):
    """Changes of all brokers by time, and which listeners could not be read."""

    changes: list[TimelineEntry]
    brokers: list[int]
    problems: list[str]
    #: Brokers with older changes than those that were asked for.
    more: bool = False


_decode_timelines = msgspec.json.Decoder(_Answer).decode
_decode_segments = msgspec.json.Decoder(_Replicas).decode


def checked_http(addresses: Iterable[str], option: str = "--http") -> tuple[str, ...]:
    """The addresses of listeners. Raises: ConfigError."""
    found = tuple(dict.fromkeys(one.removeprefix("http://").rstrip("/") for one in addresses))
    for one in found:
        port = one.rpartition(":")[2]
        if not port.isdecimal() or not 0 < int(port) < 65536 or ":" not in one or any(char in one for char in "/@? "):
            raise ConfigError(option, f"expected HOST:PORT of a broker's --http, or :PORT for this port on all brokers, not {one!r}")
    return found


def listeners(addresses: Sequence[str], hosts: Iterable[str]) -> list[str]:
    """Addresses of the listeners; `hosts` are those of the brokers."""
    named = list(hosts)
    found: dict[str, None] = {}
    for one in addresses:
        if one.startswith(":"):
            found |= dict.fromkeys(f"[{host}]{one}" if ":" in host else f"{host}{one}" for host in named)
        else:
            found[one] = None
    return list(found)


async def read_timelines(addresses: Sequence[str], *, kind: Kind, names: Sequence[str] = (), limit: int = 1_000) -> Timelines:
    """Asks all listeners; one that does not answer is a problem in the result."""
    pairs = [("kind", kind), *(("name", name) for name in names), ("limit", str(limit))]
    answers = await _ask_all(addresses, f"/timeline?{urlencode(pairs)}", _decode_timelines)
    brokers = {found.id: found for answer in answers if not isinstance(answer, str) for found in answer.brokers}
    changes = [msgspec.structs.replace(entry, broker=found.id) for found in brokers.values() for entry in found.entries]
    changes.sort(key=lambda change: (change.wall_ms, change.broker, change.number))
    problems = [answer for answer in answers if isinstance(answer, str)]
    return Timelines(changes, sorted(brokers), problems, any(found.more for found in brokers.values()))


async def read_segments(addresses: Sequence[str], topic: str, partition: int) -> tuple[list[ReplicaSegments], list[str]]:
    """The replicas of a partition by broker, and which listeners could not be read."""
    query = urlencode({"topic": topic, "partition": partition})
    answers = await _ask_all(addresses, f"/segments?{query}", _decode_segments)
    found = {one.broker: one for answer in answers if not isinstance(answer, str) for one in answer.replicas}
    return [found[broker] for broker in sorted(found)], [answer for answer in answers if isinstance(answer, str)]


async def _ask_all(addresses: Sequence[str], path: str, decode: Callable[[bytes], T]) -> list[T | str]:
    """An answer of each listener, or why there is none."""
    free = asyncio.Semaphore(ASKED_AT_ONCE)

    async def one(address: str) -> T | str:
        async with free:
            return await asyncio.to_thread(_read, address, path, decode)

    return await asyncio.gather(*map(one, addresses))


#: No proxy: the listeners are those of the cluster.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _read(address: str, path: str, decode: Callable[[bytes], T]) -> T | str:
    try:
        with _opener.open(f"http://{address}{path}", timeout=TIMEOUT_S) as answer:
            data = answer.read(ANSWER_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        where = path.partition("?")[0]
        return f"{address} has no {where} ({error.code}): it is not the HTTP listener of an Ottla broker of this version"
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return f"{address} cannot be read: {reason}"
    if len(data) > ANSWER_BYTES_MAX:
        return f"{address} answered more than {ANSWER_BYTES_MAX >> 20} MiB"
    try:
        return decode(data)
    except msgspec.MsgspecError as error:
        return f"{address} did not answer as a broker of this version: {error}"

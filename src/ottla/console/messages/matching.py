"""Finds the records of a fetch that match a search. Runs in a thread; touches neither loop nor network.

Batches are decompressed, and searched as a whole for the texts that a match must contain. Only batches with all of them are decoded into
records. So a search for a text runs at the speed of `bytes.find`, and a filter at that of decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from ottla.client.consumer.record import ConsumerRecord
from ottla.client.fetch.raw_fetch import RawFetch
from ottla.client.values.record_filter import Filter
from ottla.console.messages.filters import parsed
from ottla.console.messages.query import Query
from ottla.records.batch import BatchHeader, headers
from ottla.records.codec import decode_records
from ottla.records.columns import AbortedTransactions
from ottla.records.errors import RecordsError
from ottla.records.read import payload

#: A batch that is larger after decompression is reported and not read.
DECOMPRESSED_MAX = 64 * 2**20


class Unreadable(msgspec.Struct, frozen=True):
    """A batch that cannot be read, or is too large after decompression."""

    partition: int
    first: int
    last: int
    why: str


class Found(msgspec.Struct):
    """What one fetch holds: records within the window, unreadable batches, the next offset, and how much was read."""

    records: list[ConsumerRecord]
    unreadable: list[Unreadable]
    next_offset: int
    #: Bytes of decompressed batches.
    size_bytes: int = 0


def predicate(query: Query) -> Filter | None:
    """Whether a record matches; None if all do."""
    terms: list[Filter] = []
    if query.key:
        key = query.key.encode()
        terms.append(lambda record: record.key == key)
    if query.value:
        value = query.value.encode()
        terms.append(lambda record: record.value is not None and value in record.value)
    if query.header:
        terms.append(_has_header(query.header))
    if query.filter:
        terms.append(parsed(query.filter))
    if not terms:
        return None
    return terms[0] if len(terms) == 1 else lambda record: all(term(record) for term in terms)


def _has_header(text: str) -> Filter:
    name, equals, value = text.partition("=")
    content = value.encode()
    if not equals:
        return lambda record: any(one == name for one, _ in record.headers)
    return lambda record: any(one == name and data == content for one, data in record.headers)


def needles(query: Query) -> list[bytes]:
    """Texts that a batch with a match contains."""
    name, _, value = query.header.partition("=")
    return [text.encode() for text in (query.key, query.value, name, value) if text]


class Matcher:
    """Matches the fetches of one search."""

    def __init__(self, query: Query) -> None:
        self._topic = query.topic
        self._needles = needles(query)
        self._matches = predicate(query)
        self._is_committed = query.is_committed

    def match(self, raw: RawFetch, partition: int, first: int, last: int) -> Found:
        """The matching records with `first <= offset < last`. `next_offset` is at most `last`."""
        data = bytes(raw.records)
        found = Found([], [], max(first, raw.empty_until))
        aborted = AbortedTransactions(raw.aborted) if self._is_committed else None
        for at, header in headers(data):
            if header.base_offset >= last:
                found.next_offset = last
                break
            found.next_offset = max(found.next_offset, header.last_offset + 1)
            hidden = header.is_control if aborted is None else aborted.hide(data, at, header)
            if hidden or not header.count or header.last_offset < first:
                continue
            try:
                found.records += self._of_batch(data, at, header, partition, first, last, found)
            except RecordsError as error:
                found.unreadable.append(Unreadable(partition, header.base_offset, header.last_offset, str(error)))
        found.next_offset = min(found.next_offset, last)
        return found

    def _of_batch(
        self, data: bytes, at: int, header: BatchHeader, partition: int, first: int, last: int, found: Found
    ) -> Iterator[ConsumerRecord]:
        content, start, end = payload(data, at, header, DECOMPRESSED_MAX)
        found.size_bytes += end - start
        find: Callable[..., int] = content.find  # type: ignore[union-attr]
        if any(find(needle, start, end) < 0 for needle in self._needles):
            return iter(())
        append_time = header.max_timestamp if header.timestamp_type else None
        decoded = decode_records(content, start, end, header.count, header.base_offset, header.base_timestamp, append_time, first, last)
        kind = header.timestamp_type
        made = (
            ConsumerRecord(self._topic, partition, offset, time, kind, key, value, pairs) for offset, time, key, value, pairs in decoded
        )
        return made if self._matches is None else filter(self._matches, made)

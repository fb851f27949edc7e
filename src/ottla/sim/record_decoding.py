"""Decoding of fetched records by simulated clients."""

from collections.abc import Iterator

from ottla.records.batch import crc_ok, headers
from ottla.records.errors import RecordsError
from ottla.records.read import records


def decoded(batches: memoryview, position: int) -> Iterator[tuple[int, bytes]]:
    """(offset, value) from an offset on, without a torn tail. Raises: RecordsError for a damaged batch."""
    for place, header in headers(batches):
        if place + header.size > len(batches):
            break
        if not crc_ok(batches, place):
            raise RecordsError("checksum")
        yield from ((offset, value or b"") for offset, _, _, value, _ in records(batches, place) if offset >= position)

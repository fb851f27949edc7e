"""Kafka frames for the raw loads, built before the measurement.

The raw loads replay prepared bytes, so they measure the server and not a client library. The record batches come from
kafka-python's encoder, which neither server uses; the requests around them are built here:

    Produce v9   flexible, one topic, one batch per partition
    Fetch v11    one topic, every partition, no fetch session
    Metadata v12 one topic

In every frame the correlation id is at byte 8, where `stamp` overwrites it.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kafka.record.default_records import DefaultRecordBatchBuilder

CORRELATION_POSITION = 8
CLIENT_ID = b"bench"
#: One partition of a Produce v9 response: index, error, base offset, append time, log start offset; no record errors, message or tags.
PRODUCED_PARTITION_SIZE = 33
BATCH_OVERHEAD = 61
#: Attribute of a control batch.
CONTROL = 0x20


class RequestFailed(RuntimeError):
    """The server returned an error, or an invalid response."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One uncompressed record batch, v2, with its number of records."""

    data: bytes
    records: int
    value_bytes: int


def batch_of(value_size: int, batch_size: int, *, seed: int = 7) -> Batch:
    """Fill `batch_size` bytes with records without keys, at least one; values are random, so they do not compress."""
    source = random.Random(seed)
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=batch_size
    )
    now_ms = int(time.time() * 1000)
    records = 0
    while builder.append(records, now_ms, None, source.randbytes(value_size), []) is not None:
        records += 1
    return Batch(bytes(builder.build()), records, records * value_size)


def stamp(frame: bytearray, correlation_id: int) -> None:
    struct.pack_into(">i", frame, CORRELATION_POSITION, correlation_id & 0x7FFFFFFF)


def produce_frame(topic: str, partitions: Sequence[int], batch: bytes, *, acks: int, timeout_ms: int = 30_000) -> bytearray:
    name = topic.encode()
    body = bytearray(b"\x00") + struct.pack(">hi", acks, timeout_ms)
    body += _uvarint(2) + _uvarint(len(name) + 1) + name + _uvarint(len(partitions) + 1)
    for partition in partitions:
        body += struct.pack(">i", partition) + _uvarint(len(batch) + 1) + batch + b"\x00"
    return _frame(0, 9, bytes(body + b"\x00\x00"), flexible=True)


def stamped_produce_frame(
    topic: str, batches: Mapping[int, bytes], *, version: int, transactional_id: str | None
) -> tuple[bytearray, dict[int, int]]:
    """A Produce request of version 9 to 12 with acks=all, and the position of each partition's batch in it."""
    name = topic.encode()
    body = bytearray(b"\x00" if transactional_id is None else _uvarint(len(transactional_id) + 1) + transactional_id.encode())
    body += struct.pack(">hi", -1, 30_000)
    body += _uvarint(2) + _uvarint(len(name) + 1) + name + _uvarint(len(batches) + 1)
    places: dict[int, int] = {}
    for partition, batch in batches.items():
        body += struct.pack(">i", partition) + _uvarint(len(batch) + 1)
        places[partition] = len(body)
        body += batch + b"\x00"
    frame = _frame(0, version, bytes(body + b"\x00\x00"), flexible=True)
    before = len(frame) - len(body) - 2
    return frame, {partition: before + place for partition, place in places.items()}


def check_produced(reply: bytes | bytearray | memoryview, topic: str, partitions: int) -> None:
    """Raises RequestFailed unless every partition appended its batch. `reply` starts at the correlation id."""
    start = 4 + 1 + 1 + len(_uvarint(len(topic) + 1)) + len(topic) + 1
    expected = start + partitions * PRODUCED_PARTITION_SIZE + 1 + 4 + 1
    for index in range(partitions):
        (code,) = struct.unpack_from(">h", reply, start + index * PRODUCED_PARTITION_SIZE + 4)
        if code or len(reply) != expected:
            raise RequestFailed(f"Produce to {topic} was answered with error code {code} in {len(reply)} bytes (expected {expected})")


def fetch_frame(
    topic: str,
    offsets: dict[int, int],
    *,
    partition_bytes_max: int,
    bytes_max: int = 50 << 20,
    wait_ms: int = 500,
    read_committed: bool = False,
) -> bytearray:
    name = topic.encode()
    body = bytearray(struct.pack(">iiiibii", -1, wait_ms, 1, bytes_max, read_committed, 0, -1))
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", len(offsets))
    for partition, offset in offsets.items():
        body += struct.pack(">iiqqi", partition, -1, offset, -1, partition_bytes_max)
    return _frame(1, 11, bytes(body + struct.pack(">ih", 0, 0)), flexible=False)


@dataclass(slots=True)
class Fetched:
    """The whole batches of one partition in a Fetch response."""

    next_offset: int
    record_bytes: int
    records: int


def fetched(reply: memoryview, offsets: dict[int, int]) -> dict[int, Fetched]:
    """Read the batch headers of a Fetch v11 response; the records are not decoded. Raises RequestFailed."""
    _, code, _, topics = struct.unpack_from(">ihii", reply, 4)
    if code or topics > 1:
        raise RequestFailed(f"Fetch was answered with error code {code} and {topics} topics")
    found: dict[int, Fetched] = {}
    for partition, start, end in _partitions(reply) if topics else ():
        found[partition] = _walk(reply, start, end, offsets[partition])
    return found


def fetched_batches(reply: memoryview, offsets: dict[int, int]) -> dict[int, list[bytes]]:
    """The whole data batches of a Fetch v11 response; moves `offsets` behind all batches. Raises RequestFailed."""
    _, code, _, topics = struct.unpack_from(">ihii", reply, 4)
    if code or topics > 1:
        raise RequestFailed(f"Fetch was answered with error code {code} and {topics} topics")
    found: dict[int, list[bytes]] = {}
    for partition, start, end in _partitions(reply) if topics else ():
        batches = found[partition] = []
        position = start
        while position + BATCH_OVERHEAD <= end:
            base_offset, length = struct.unpack_from(">qi", reply, position)
            if position + length + 12 > end:
                break
            attributes, last_delta = struct.unpack_from(">hi", reply, position + 21)
            if not attributes & CONTROL:
                batches.append(bytes(reply[position : position + length + 12]))
            offsets[partition] = base_offset + last_delta + 1
            position += length + 12
    return found


def _partitions(reply: memoryview) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of the records of each partition. Raises RequestFailed."""
    (name_size,) = struct.unpack_from(">h", reply, 18)
    position = 20 + name_size
    (partitions,) = struct.unpack_from(">i", reply, position)
    position += 4
    for _ in range(partitions):
        partition, code, _, _, _, aborted = struct.unpack_from(">ihqqqi", reply, position)
        if code:
            raise RequestFailed(f"Fetch of partition {partition} was answered with error code {code}")
        position += 34 + max(aborted, 0) * 16 + 4
        (size,) = struct.unpack_from(">i", reply, position)
        position += 4
        size = max(size, 0)
        yield partition, position, position + size
        position += size


def _walk(reply: memoryview, position: int, end: int, offset: int) -> Fetched:
    result = Fetched(offset, 0, 0)
    while position + BATCH_OVERHEAD <= end:
        base_offset, length = struct.unpack_from(">qi", reply, position)
        size = length + 12
        if position + size > end:
            break
        (last_delta,) = struct.unpack_from(">i", reply, position + 23)
        result.next_offset = base_offset + last_delta + 1
        result.records += last_delta + 1
        result.record_bytes += size
        position += size
    return result


def metadata_frame(topic: str) -> bytearray:
    name = topic.encode()
    body = _uvarint(2) + bytes(16) + _uvarint(len(name) + 1) + name + b"\x00" + b"\x00\x00\x00"
    return _frame(3, 12, body, flexible=True)


def check_metadata(reply: bytes | bytearray | memoryview) -> None:
    """Raises RequestFailed unless a Metadata v12 response names a broker and has its one topic without an error."""
    data = bytes(reply)
    position = 4 + 1 + 4
    brokers = data[position] - 1
    position += 1
    for _ in range(brokers):
        position += 4
        position += data[position]  # A compact string: its length plus one, then the bytes.
        position += 4
        position += max(data[position], 1)
        position += 1
    position += max(data[position], 1) + 4
    topics = data[position] - 1
    (code,) = struct.unpack_from(">h", data, position + 1)
    if brokers < 1 or topics != 1 or code:
        raise RequestFailed(f"Metadata was answered with {brokers} brokers, {topics} topics and error code {code}")


def _frame(key: int, version: int, body: bytes, *, flexible: bool) -> bytearray:
    header = struct.pack(">hhih", key, version, 0, len(CLIENT_ID)) + CLIENT_ID + (b"\x00" if flexible else b"")
    return bytearray(struct.pack(">i", len(header) + len(body)) + header + body)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

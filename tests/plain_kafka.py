"""Kafka's formats read and written by hand: struct, sockets and each codec's own package, nothing of Ottla.

It is what the tests hold Ottla against, so it is written for the eye: one batch, one record, one field after the other.

Record batch v2, all numbers big-endian, the CRC-32C over everything behind it:

    base offset 8 | length 4 | leader epoch 4 | magic 1 | crc 4 | attributes 2 | last offset delta 4 | base timestamp 8 |
    max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | count 4 | records, compressed as a whole

Source: KIP-98, KIP-32, KIP-110 (zstd).
"""

from __future__ import annotations

import gzip
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import lz4.frame
import snappy
import zstandard

BATCH = struct.Struct(">qiibIhiqqqhii")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
XERIAL = b"\x82SNAPPY\x00"
#: Unknown topic or partition, leader not available, not leader or follower: clients ask again.
NOT_YET = (3, 5, 6)
LEADER_WITHIN_S = 20.0


#: Attribute of a batch.
TRANSACTIONAL = 0x10


class Record(NamedTuple):
    """One record as a consumer sees it; `headers` keeps order and repeats."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch and its position."""

    position: int
    size: int
    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: tuple[Record, ...]

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> str:
        return CODECS[self.attributes & 7]


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc32c_table()


def crc32c(data: bytes) -> int:
    """Castagnoli's CRC, a byte at a time: slow, and without a library."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def decompressed(codec: str, data: bytes) -> bytes:
    """The records of a batch as they were before compression."""
    match codec:
        case "gzip":
            return gzip.decompress(data)
        case "snappy":
            return _snappy(data)
        case "lz4":
            return bytes(lz4.frame.decompress(data))
        case "zstd":
            return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data


def _snappy(data: bytes) -> bytes:
    """Java frames snappy blocks with a header and lengths of its own; librdkafka sends one bare block."""
    if not data.startswith(XERIAL):
        return bytes(snappy.uncompress(data))
    position, parts = 16, []
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        parts.append(snappy.uncompress(data[position + 4 : position + 4 + size]))
        position += 4 + size
    return b"".join(parts)


class Cursor:
    """Reads along a buffer."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def unpack(self, code: str) -> int:
        (value,) = struct.unpack_from(f">{code}", self.data, self.at)
        self.at += struct.calcsize(f">{code}")
        assert isinstance(value, int)
        return value

    def varint(self) -> int:
        """Zigzag: 0, -1, 1, -2 ... are written 0, 1, 2, 3 ..."""
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)

    def take(self, size: int) -> bytes:
        assert size <= len(self.data) - self.at, "a length stays inside its buffer"
        self.at += size
        return self.data[self.at - size : self.at]

    def sized(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)

    def string(self) -> str | None:
        size = self.unpack("h")
        return None if size < 0 else self.take(size).decode()


def _records(data: bytes, count: int, base_offset: int, base_timestamp: int) -> Iterator[Record]:
    cursor = Cursor(data)
    for _ in range(count):
        size = cursor.varint()
        end = cursor.at + size
        assert cursor.unpack("b") == 0, "no attribute of a record is defined"
        timestamp_ms = base_timestamp + cursor.varint()
        offset = base_offset + cursor.varint()
        key, value = cursor.sized(), cursor.sized()
        headers = []
        for _ in range(cursor.varint()):
            name = cursor.sized()
            assert name is not None, "a header has a name"
            headers.append((name.decode(), cursor.sized()))
        assert cursor.at == end, "a record is as long as it says"
        yield Record(offset, timestamp_ms, key, value, tuple(headers))
    assert cursor.at == len(data), "nothing stands behind the last record"


def batch_at(data: bytes, position: int, *, check_crc: bool = True) -> Batch:
    """Read the batch at a position."""
    (
        base_offset, length, leader_epoch, magic, crc, attributes, last_offset_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    ) = BATCH.unpack_from(data, position)  # fmt: skip
    assert magic == 2, "only batches of version 2 are written"
    end = position + 12 + length
    assert end <= len(data), "the batch is whole"
    if check_crc:
        assert crc32c(data[position + 21 : end]) == crc, f"the checksum of the batch at {base_offset} holds"
    payload = decompressed(CODECS[attributes & 7], data[position + BATCH.size : end])
    records = tuple(_records(payload, count, base_offset, base_timestamp))
    return Batch(
        position, 12 + length, base_offset, leader_epoch, attributes, last_offset_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, records,
    )  # fmt: skip


def batches(data: bytes, *, check_crc: bool = True) -> Iterator[Batch]:
    """Every batch of a buffer, which ends where its last batch ends."""
    position = 0
    while position < len(data):
        batch = batch_at(data, position, check_crc=check_crc)
        yield batch
        position += batch.size


# What is needed of the wire: requests in their oldest served, inflexible versions.


def string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def frame(key: int, version: int, body: bytes, *, correlation_id: int = 7, client_id: str | None = "plain") -> bytes:
    """A request with an inflexible header and its size in front."""
    payload = struct.pack(">hhi", key, version, correlation_id) + string(client_id) + body
    return struct.pack(">i", len(payload)) + payload


def received(sock: socket.socket, size: int) -> bytes:
    """Exactly so many bytes. Raises EOFError when the other side closes before."""
    data = bytearray()
    while len(data) < size:
        got = sock.recv(min(size - len(data), 1 << 20))
        if not got:
            raise EOFError(f"closed after {len(data)} of {size} bytes")
        data += got
    return bytes(data)


def answer(sock: socket.socket) -> bytes:
    """The next response, without its size."""
    (size,) = struct.unpack(">i", received(sock, 4))
    return received(sock, size)


def ask(address: tuple[str, int], request: bytes, *, timeout_s: float = 10.0) -> bytes:
    """One request on a connection of its own; the body of the response."""
    with socket.create_connection(address, timeout=timeout_s) as sock:
        sock.sendall(request)
        return answer(sock)[4:]


def api_versions(address: tuple[str, int], *, timeout_s: float = 10.0) -> dict[int, tuple[int, int]]:
    """What the broker serves: the lowest and highest version by API key."""
    body = Cursor(ask(address, frame(18, 0, b""), timeout_s=timeout_s))
    assert body.unpack("h") == 0, "ApiVersions is answered without an error"
    return {body.unpack("h"): (body.unpack("h"), body.unpack("h")) for _ in range(body.unpack("i"))}


def fetch(address: tuple[str, int], topic: str, partition: int, offset: int, *, bytes_max: int = 1 << 26) -> tuple[int, int, bytes]:
    """Fetch v4 of one partition: error code, high watermark, and the batches as they came."""
    where = struct.pack(">i", 1) + string(topic) + struct.pack(">iiqi", 1, partition, offset, bytes_max)
    body = Cursor(ask(address, frame(1, 4, struct.pack(">iiiib", -1, 100, 1, bytes_max, 0) + where)))
    body.take(4)  # throttle time
    assert body.unpack("i") == 1, "one topic was asked for"
    assert body.string() == topic, "and it is the one"
    assert (body.unpack("i"), body.unpack("i")) == (1, partition), "one partition was asked for, and it is the one"
    error, high_watermark = body.unpack("h"), body.unpack("q")
    body.take(8)  # last stable offset
    for _ in range(max(0, body.unpack("i"))):
        body.take(16)  # an aborted transaction
    return error, high_watermark, body.take(max(0, body.unpack("i")))


def fetch_all(
    address: tuple[str, int] | Callable[[], tuple[str, int]], topic: str, partition: int = 0, offset: int = 0, *, check_crc: bool = True
) -> list[Batch]:
    """Every batch of a partition from an offset up to the high watermark.

    A broker that has just begun may not lead it yet. Where the leader may move meanwhile, ``address`` is a function that tells who it is.
    """
    found: list[Batch] = []
    deadline = time.monotonic() + LEADER_WITHIN_S
    while True:
        error, high_watermark, data = fetch(address() if callable(address) else address, topic, partition, offset)
        if error in NOT_YET and time.monotonic() < deadline:
            time.sleep(0.05)
            continue
        assert error == 0, f"the fetch at {offset} is answered, not refused with {error}"
        found += batches(whole(data), check_crc=check_crc)
        if not data or offset >= high_watermark:
            return found
        offset = found[-1].last_offset + 1


def whole(data: bytes) -> bytes:
    """The buffer without a batch that was cut off at its end."""
    end = 0
    while len(data) - end >= 12:
        size = 12 + struct.unpack_from(">i", data, end + 8)[0]
        if len(data) - end < size:
            break
        end += size
    return data[:end]


def varint(number: int) -> bytes:
    """A zigzag varint."""
    left = number << 1 ^ number >> 63
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def batch_of(
    records: list[tuple[int, bytes | None, bytes | None]],
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """An uncompressed batch of (timestamp, key, value), as a producer sends it."""
    base = records[0][0]
    payload = bytearray()
    for i, (timestamp_ms, key, value) in enumerate(records):
        body = b"\0" + varint(timestamp_ms - base) + varint(i) + _sized(key) + _sized(value) + varint(0)
        payload += varint(len(body)) + body
    last = max(timestamp_ms for timestamp_ms, _, _ in records)
    head = (attributes, len(records) - 1, base, last, producer_id, producer_epoch, base_sequence, len(records))
    checked = struct.pack(">hiqqqhii", *head) + payload
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked)) + checked


def produce_request(
    topic: str, partition: int, records: bytes, *, acks: int = -1, version: int = 3, transactional_id: str | None = None
) -> bytes:
    """Produce of one partition, in version 3 to 8."""
    return frame(
        0,
        version,
        string(transactional_id)
        + struct.pack(">hii", acks, 10_000, 1)
        + string(topic)
        + struct.pack(">iii", 1, partition, len(records))
        + records,
    )  # fmt: skip


def produced(response: bytes) -> tuple[int, int]:
    """Error code and base offset of the only partition in the body of a response to Produce."""
    body = Cursor(response)
    assert body.unpack("i") == 1, "one topic was written"
    body.string()
    assert body.unpack("i") == 1, "one partition was written"
    body.unpack("i")
    return body.unpack("h"), body.unpack("q")


def produce(address: tuple[str, int], topic: str, partition: int, records: bytes, *, acks: int = -1, version: int = 3) -> tuple[int, int]:
    """Error code and base offset."""
    return produced(ask(address, produce_request(topic, partition, records, acks=acks, version=version)))


def offset_at(address: tuple[str, int], topic: str, partition: int, timestamp_ms: int) -> tuple[int, int]:
    """ListOffsets v1: error code and offset (-1: none); -1 and -2 as times are the end and the beginning."""
    body = struct.pack(">ii", -1, 1) + string(topic) + struct.pack(">iiq", 1, partition, timestamp_ms)
    response = Cursor(ask(address, frame(2, 1, body)))
    response.take(4)
    response.string()
    response.take(8)
    error = response.unpack("h")
    response.take(8)
    return error, response.unpack("q")


def create_topics(address: tuple[str, int], topics: dict[str, int], settings: dict[str, str] | None = None) -> None:
    """CreateTopics v2, one replica each; the value is the number of partitions."""
    config = b"".join(string(name) + string(value) for name, value in (settings or {}).items())
    body = struct.pack(">i", len(topics))
    for name, partitions in topics.items():
        body += string(name) + struct.pack(">ihii", partitions, 1, 0, len(settings or {})) + config
    response = Cursor(ask(address, frame(19, 2, body + struct.pack(">ib", 10_000, 0))))
    response.take(4)
    for _ in range(response.unpack("i")):
        topic, error, why = response.string(), response.unpack("h"), response.string()
        assert error == 0, f"{topic} is made, not refused with {error}: {why}"


def hanging_transaction(address: tuple[str, int], transactional_id: str, topic: str, *, timestamp_ms: int) -> int:
    """Writes a transactional record into partition 0, which was not added to the transaction: no coordinator will end it. Returns the
    producer id. Brokers accept this with `transaction.partition.verification.enable=false`.
    """
    deadline = time.monotonic() + 30
    while True:
        # Looking for the coordinator creates its topic.
        ask(address, frame(10, 1, string(transactional_id) + b"\1"))
        init = Cursor(ask(address, frame(22, 1, string(transactional_id) + struct.pack(">i", 60_000))))
        init.take(4)
        code, producer_id, epoch = init.unpack("h"), init.unpack("q"), init.unpack("h")
        if code == 0:
            break
        assert time.monotonic() < deadline, f"the coordinator is there: {code}"
        time.sleep(0.05)
    records = batch_of(
        [(timestamp_ms, b"k", b"v")], producer_id=producer_id, producer_epoch=epoch, base_sequence=0, attributes=TRANSACTIONAL
    )
    code, _ = produced(ask(address, produce_request(topic, 0, records, transactional_id=transactional_id)))
    assert code == 0, f"the broker refused the record: {code}"
    return producer_id

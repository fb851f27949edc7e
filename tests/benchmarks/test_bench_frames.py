"""The benchmark's own frames, read by kio: a load that says something else than it claims would measure something else."""

from __future__ import annotations

import importlib
import struct
from typing import Any

import pytest
from bench import frames
from kio.serial import entity_reader


def read_by_kio(api: str, version: int, frame: bytearray, header_size: int) -> Any:
    """The request in a frame as kio understands it; fails when bytes are left over."""
    module = importlib.import_module(f"kio.schema.{api}.v{version}.request")
    body = bytes(frame[4 + header_size :])
    (size,) = struct.unpack_from(">i", frame)
    assert size == len(frame) - 4
    message, used = entity_reader(getattr(module, f"{api.title()}Request"))(body, 0)
    assert used == len(body)
    return message


PLAIN_HEADER = 2 + 2 + 4 + 2 + len(frames.CLIENT_ID)
FLEXIBLE_HEADER = PLAIN_HEADER + 1


def test_produce_frame_carries_one_batch_for_each_partition() -> None:
    batch = frames.batch_of(100, 16 << 10)
    message = read_by_kio("produce", 9, frames.produce_frame("t", range(6), batch.data, acks=-1), FLEXIBLE_HEADER)
    (topic,) = message.topic_data
    assert (topic.name, message.acks) == ("t", -1)
    assert [(part.index, bytes(part.records)) for part in topic.partition_data] == [(index, batch.data) for index in range(6)]


def test_a_batch_has_the_number_of_records_in_its_header() -> None:
    batch = frames.batch_of(100, 16 << 10)
    assert struct.unpack_from(">i", batch.data, 57) == (batch.records,)
    assert batch.value_bytes == batch.records * 100
    assert 15 << 10 < len(batch.data) <= 16 << 10


def test_a_batch_for_single_records_holds_one() -> None:
    assert frames.batch_of(100, 200).records == 1


def test_a_fetch_frame_requests_every_partition_at_its_offset() -> None:
    message = read_by_kio("fetch", 11, frames.fetch_frame("t", {0: 5, 3: 7}, partition_bytes_max=1 << 20), PLAIN_HEADER)
    (topic,) = message.topics
    assert [(part.partition, part.fetch_offset, part.partition_max_bytes) for part in topic.partitions] == [
        (0, 5, 1 << 20),
        (3, 7, 1 << 20),
    ]


def test_a_metadata_frame_requests_one_topic_and_creates_none() -> None:
    message = read_by_kio("metadata", 12, frames.metadata_frame("t"), FLEXIBLE_HEADER)
    assert [topic.name for topic in message.topics] == ["t"]
    assert not message.allow_auto_topic_creation


def produced(topic: bytes, *codes: int) -> bytes:
    parts = b"".join(struct.pack(">ihqqq", index, code, 0, -1, 0) + b"\x01\x00\x00" for index, code in enumerate(codes))
    return (
        struct.pack(">i", 1)
        + b"\x00\x02"
        + bytes([len(topic) + 1])
        + topic
        + bytes([len(codes) + 1])
        + parts
        + b"\x00"
        + bytes(4)
        + b"\x00"
    )


def test_a_produce_answer_without_errors_passes() -> None:
    frames.check_produced(produced(b"t", 0, 0), "t", 2)


def test_an_error_for_one_partition_fails_the_load() -> None:
    with pytest.raises(frames.RequestFailed, match="error code 6"):
        frames.check_produced(produced(b"t", 0, 6), "t", 2)


def fetch_answer(records: bytes, *, code: int = 0) -> memoryview:
    part = struct.pack(">ihqqqi", 0, code, 100, 100, 0, -1) + struct.pack(">ii", -1, len(records)) + records
    return memoryview(struct.pack(">iihiih", 1, 0, 0, 0, 1, 1) + b"t" + struct.pack(">i", 1) + part)


def test_a_batch_that_is_cut_off_does_not_count() -> None:
    batch = frames.batch_of(100, 1000)
    found = frames.fetched(fetch_answer(batch.data + batch.data[:-1]), {0: 0})
    assert (found[0].records, found[0].next_offset, found[0].record_bytes) == (batch.records, batch.records, len(batch.data))


def test_an_error_in_a_fetch_answer_fails_the_load() -> None:
    with pytest.raises(frames.RequestFailed, match="error code 1"):
        frames.fetched(fetch_answer(b"", code=1), {0: 0})

"""Our bytes against two independent codecs, for every declared API and version."""

from __future__ import annotations

import zlib
from random import Random
from typing import Any

import msgspec
import pytest
from oracles import from_kafka_python, kafka_python_class, kio_class, kio_read, kio_write, to_kafka_python, to_kio

from ottla.wire.compile import decode, encode, encode_chunks
from ottla.wire.declare import schema_of
from random_messages import label, messages, random_message

pytestmark = pytest.mark.slow

CASES = messages()
#: What brokers ask one another, the group protocol of KIP-848, what concerns authentication, and metrics of clients (KIP-714).
UNKNOWN_TO_KAFKA_PYTHON = (17, 36, 38, 39, 40, 41, 50, 51, 56, 58, 64, 68, 69, 71, 72)
#: Versions that are newer than both; ``test_wire_declare`` has their bytes.
NEWER = ((18, 5), (28, 6), (42, 3))
ROUNDS = 6


def older(cases: list[tuple[type[msgspec.Struct], int]], *, without: tuple[int, ...] = ()) -> list[tuple[type[msgspec.Struct], int]]:
    return [case for case in cases if (key := schema_of(case[0]).key) not in without and (key, case[1]) not in NEWER]


def at_random(cls: type[msgspec.Struct], version: int) -> list[Any]:
    """The default message and a few random ones, the same in every run."""
    random = Random(zlib.crc32(cls.__name__.encode()) + version)
    return [cls(), *(random_message(cls, version, random) for _ in range(ROUNDS))]


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_message_reads_back_as_it_was_written(case: tuple[type[msgspec.Struct], int]) -> None:
    cls, version = case
    for message in at_random(cls, version):
        data = encode(message, version)
        assert b"".join(encode_chunks(message, version)) == data  # type: ignore[arg-type]
        for buffer in (data, bytearray(data), memoryview(data)):
            assert decode(cls, buffer, version) == message
        assert decode(cls, b"head" + data, version, 4) == message


@pytest.mark.parametrize("case", older(CASES), ids=label)
def test_kio_writes_the_same_bytes_and_reads_ours(case: tuple[type[msgspec.Struct], int]) -> None:
    cls, version = case
    theirs = kio_class(cls, version)
    assert theirs is not None
    for message in at_random(cls, version):
        data = encode(message, version)
        same = to_kio(message, theirs, version)
        assert kio_write(same) == data
        assert kio_read(theirs, data) == same


@pytest.mark.parametrize("case", older(CASES, without=UNKNOWN_TO_KAFKA_PYTHON), ids=label)
def test_kafka_python_writes_the_same_bytes_and_reads_ours(case: tuple[type[msgspec.Struct], int]) -> None:
    cls, version = case
    theirs = kafka_python_class(cls, version)
    assert theirs is not None
    for message in at_random(cls, version):
        data = encode(message, version)
        assert to_kafka_python(message, theirs, version).encode(version=version, header=False) == data
        if cls.__name__ == "ApiVersionsResponse" and message.error_code:
            continue  # It reads a failed one in version 0.
        assert from_kafka_python(theirs.decode(data, version=version, header=False), cls, version) == message

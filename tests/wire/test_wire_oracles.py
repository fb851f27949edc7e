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
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from random_messages import label, messages, random_message

CASES = messages()
#: What brokers ask one another, and the group protocol of KIP-848.
UNKNOWN_TO_KAFKA_PYTHON = (56, 64, 68, 69)
#: Versions that neither codec has yet, compared by hand below.
NEW = {("TxnOffsetCommitRequest", 6), ("TxnOffsetCommitResponse", 6)}
KNOWN = [case for case in CASES if (case[0].__name__, case[1]) not in NEW]
ROUNDS = 6


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


@pytest.mark.parametrize("case", KNOWN, ids=label)
def test_kio_writes_the_same_bytes_and_reads_ours(case: tuple[type[msgspec.Struct], int]) -> None:
    cls, version = case
    theirs = kio_class(cls, version)
    assert theirs is not None
    for message in at_random(cls, version):
        data = encode(message, version)
        same = to_kio(message, theirs, version)
        assert kio_write(same) == data
        assert kio_read(theirs, data) == same


@pytest.mark.parametrize("case", [case for case in KNOWN if schema_of(case[0]).key not in UNKNOWN_TO_KAFKA_PYTHON], ids=label)
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


def test_offsets_of_a_transaction_name_topics_by_id_from_version_6_on() -> None:
    """Kafka 4.4: the topic id takes the place of the name in request and response; everything else is version 5."""
    uuid = bytes(range(16))
    partition = TxnOffsetCommitRequestPartition(partition_index=1, committed_offset=2, committed_leader_epoch=3, committed_metadata="m")
    named = TxnOffsetCommitRequest("tx", "g", 5, 6, 7, "m", None, [TxnOffsetCommitRequestTopic(name="name", partitions=[partition])])
    by_id = msgspec.structs.replace(named, topics=[TxnOffsetCommitRequestTopic(topic_id=uuid, partitions=[partition])])
    assert encode(by_id, 6) == encode(named, 5).replace(b"\x05name", uuid)
    result = TxnOffsetCommitResponsePartition(partition_index=1, error_code=2)
    answer = TxnOffsetCommitResponse(3, [TxnOffsetCommitResponseTopic(name="name", partitions=[result])])
    other = TxnOffsetCommitResponse(3, [TxnOffsetCommitResponseTopic(topic_id=uuid, partitions=[result])])
    assert encode(other, 6) == encode(answer, 5).replace(b"\x05name", uuid)

"""Malformed bytes raise MalformedMessage and nothing else, and allocate no announced memory."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from random import Random

import msgspec
import pytest

from ottla.wire.compile import decode, encode
from ottla.wire.declare import MalformedMessage, schema_of
from ottla.wire.errors import UnsupportedVersion
from ottla.wire.messages import (
    CreateTopicsRequest,
    DescribeTopicPartitionsRequest,
    FetchRequest,
    FetchTopic,
    ListConfigResourcesRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    ProduceRequest,
)
from random_messages import label, messages, random_message

pytestmark = pytest.mark.slow

CASES = messages()
Case = tuple[type[msgspec.Struct], int]


def seeded(case: Case) -> Random:
    return Random(zlib.crc32(label(case).encode()))


def refused(cls: type[msgspec.Struct], data: bytes, version: int) -> MalformedMessage:
    with pytest.raises(MalformedMessage) as caught:
        decode(cls, data, version)
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_message_cut_short_anywhere_is_malformed(case: Case) -> None:
    cls, version = case
    data = encode(random_message(cls, version, seeded(case)), version)
    for size in range(len(data)):
        error = refused(cls, data[:size], version)
        assert (error.message, error.version) == (cls.__name__, version)
        assert 0 <= error.position <= size


@pytest.mark.parametrize("case", CASES, ids=label)
def test_bytes_after_the_end_are_malformed_in_a_response_and_ignored_elsewhere_as_kafka_does(case: Case) -> None:
    cls, version = case
    data = encode(cls(), version)
    if cls.__name__.endswith("Response"):
        assert "follow the end" in str(refused(cls, data + b"\0", version))
    else:
        assert decode(cls, data + b"\1\0\0", version) == decode(cls, data, version)


@pytest.mark.parametrize("case", CASES, ids=label)
def test_whatever_is_changed_gives_a_message_or_is_malformed(case: Case) -> None:
    cls, version = case
    random = seeded(case)
    for _ in range(8):
        data = encode(random_message(cls, version, random), version)
        for _ in range(8):
            damaged = mutate(data, random)
            try:
                message = decode(cls, damaged, version)
            except MalformedMessage:
                continue
            # What was taken for a message is one: it can be written, and says the same again.
            assert decode(cls, encode(message, version), version) == message


def mutate(data: bytes, random: Random) -> bytes:
    """Damage a message in one or several places."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        place = random.randrange(len(out) + 1)
        match random.randrange(5):
            case 0:
                out[place : place + 1] = random.randbytes(1)
            case 1:
                out[place : place + 4] = random.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xfe"))
            case 2:
                out[place:place] = random.choice((b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x80\x80", b"\x80\0"))
            case 3:
                del out[place : place + random.randrange(1, 9)]
            case _:
                out[place : place + 2] = b"\xc3\x28"
    return bytes(out)


HUGE = [
    (ProduceRequest, 8, b"\xff\xff" + struct.pack(">hi", 1, 1) + b"\x7f\xff\xff\xff"),
    (ProduceRequest, 9, b"\0" + struct.pack(">hi", 1, 1) + b"\xff\xff\xff\xff\x07"),
    (MetadataRequest, 4, b"\x7f\xff\xff\xff\1"),
    (MetadataRequest, 12, b"\xff\xff\xff\xff\x07\1\0\0"),
    (MetadataResponse, 12, bytes(4) + b"\1" + b"\0" + bytes(4) + b"\xff\xff\xff\xff\x07"),
    (MetadataResponse, 12, bytes(4) + b"\1" + b"\0" + bytes(4) + b"\1" + b"\xff\xff\xff\xff\x07"),
    (CreateTopicsRequest, 4, b"\0\0\0\1\0\1t" + bytes(6) + b"\x10\0\0\0"),
    (ListConfigResourcesRequest, 1, b"\xff\xff\xff\xff\x07" + bytes(100)),
]


@pytest.mark.parametrize(("cls", "version", "data"), HUGE)
def test_a_huge_count_allocates_nothing(cls: type[msgspec.Struct], version: int, data: bytes) -> None:
    refused(cls, data, version)
    tracemalloc.start()
    try:
        refused(cls, data, version)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000


def test_a_count_must_fit_the_least_its_elements_can_take() -> None:
    # A FetchTopic of version 13 takes at least 18 bytes: its id, an empty array, no tags.
    head = struct.pack(">iiibii", 0, 0, 0, 0, 0, 0)
    error = refused(FetchRequest, head + b"\3" + bytes(16) + b"\1\0" + bytes(16), 15)
    assert error.field == "topics"
    assert "2 elements take at least 36 bytes, 34 are left" in str(error)


def test_the_number_of_elements_in_one_message_is_limited() -> None:
    request = FetchRequest(topics=[FetchTopic(topic="t") for _ in range(50)])
    for version in (11, 12):
        data = encode(request, version)
        assert decode(FetchRequest, data, version, elements_max=50) == request
        with pytest.raises(MalformedMessage, match="more elements than a message may have"):
            decode(FetchRequest, data, version, elements_max=49)


def test_a_request_of_more_than_a_hundred_thousand_elements_is_refused() -> None:
    data = b"\x81\x9a\x0c" + bytes(200_000) + b"\0"
    assert "more elements" in str(refused(ListConfigResourcesRequest, data, 1))


def tagged(section: bytes) -> bytes:
    """A Metadata request of version 9 for no topics, with these tagged fields."""
    return b"\1\0\0\0" + section


def test_unknown_tagged_fields_are_passed_over() -> None:
    """Line 74."""
    expected = MetadataRequest(allow_auto_topic_creation=False)
    assert decode(MetadataRequest, tagged(b"\2\0\2hi\x80\x01\0"), 9) == expected
    assert decode(MetadataRequest, tagged(b"\1\xff\xff\xff\xff\x07\1!"), 9) == expected


def test_unknown_tags_between_known_ones_are_passed_over() -> None:
    request = FetchRequest(cluster_id="c", rack_id="r")
    data = encode(request, 18)
    assert data.endswith(b"\1\0\2\2c")
    more = data.removesuffix(b"\1\0\2\2c") + b"\3\0\2\2c\2\3xyz\x09\0"
    assert decode(FetchRequest, more, 18) == request


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (b"\2\1\0\0\0", "tag 0 follows tag 1"),
        (b"\2\1\0\1\0", "tag 1 follows tag 1"),
        (b"\1\0\5hi", "tag 0 has 5 bytes, 2 are left"),
        (b"\xff\xff\xff\xff\x07\0\0", "tagged fields take at least"),
        (b"\5\0\0\1\0", "5 tagged fields take at least 10 bytes, 4 are left"),
        (b"\1", "take at least 2 bytes, 0 are left"),
        (b"\1\xff\xff\xff\xff\xff\1\0", "longer than five bytes"),
        (b"\1\xff\xff\xff\xff\x0f\0", "too large"),
    ],
)
def test_damaged_tagged_fields_are_malformed(section: bytes, reason: str) -> None:
    error = refused(MetadataRequest, tagged(section), 9)
    assert reason in str(error)
    assert error.field == "tags"


def test_a_known_tag_must_have_its_declared_size() -> None:
    data = encode(FetchRequest(), 12).removesuffix(b"\0")
    error = refused(FetchRequest, data + b"\1\0\4\2c\0\0", 12)
    assert error.field == "cluster_id"
    assert "ends -2 bytes from where its size puts the end" in str(error)


def test_tagged_fields_count_as_elements() -> None:
    section = b"".join(bytes([tag, 0]) for tag in range(100))
    decode(MetadataRequest, tagged(b"\x64" + section), 9, elements_max=100)
    with pytest.raises(MalformedMessage, match="more elements"):
        decode(MetadataRequest, tagged(b"\x64" + section), 9, elements_max=99)


@pytest.mark.parametrize(
    ("version", "data", "reason"),
    [
        (1, b"\0\0\0\1\xff\xff", "null where a value is required"),
        (1, b"\0\0\0\1\xff\xfe", "length -2"),
        (1, b"\0\0\0\1\x80\0", "length -32768"),
        (1, b"\0\0\0\1\0\5abc", "length 5, 3 bytes are left"),
        (1, b"\xff\xff\xff\xfe", "count -2"),
        (0, b"\xff\xff\xff\xff", "null where an array is required"),
        (9, b"\2\0\0\0\0\0", "null where a value is required"),
        (9, b"\2\x81\x80\2" + b"a" * 32768 + bytes(5), "a string of 32768 bytes is longer than 32767"),
        (9, b"\2\x80\x80\x80\x80\x80\1", "longer than five bytes"),
        (1, b"\0\0\0\1\0\2\xc3\x28", "not UTF-8"),
        (1, b"\0\0\0\1\0\3\xed\xa0\x80", "not UTF-8"),
        (9, b"\2\3\xff\xfe\0\0\0\0\0", "not UTF-8"),
    ],
)
def test_damaged_lengths_and_text_are_malformed(version: int, data: bytes, reason: str) -> None:
    error = refused(MetadataRequest, data, version)
    assert reason in str(error)
    assert error.field in ("topics", "topics[0].name")


def test_a_string_of_the_greatest_length_and_an_embedded_zero_are_taken() -> None:
    name = "a\0b" + "x" * 32764
    for version in (8, 9):
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        assert decode(MetadataRequest, encode(request, version), version) == request


def test_a_varint_longer_than_it_needs_to_be_is_read_as_kafka_reads_it() -> None:
    assert decode(MetadataRequest, b"\x81\0\1\0\0\0", 9) == MetadataRequest()


def test_a_null_structure_is_any_negative_byte_and_any_other_is_a_structure() -> None:
    head = b"\1" + struct.pack(">i", 10)
    assert decode(DescribeTopicPartitionsRequest, head + b"\x80\0", 0).cursor is None
    cursor = decode(DescribeTopicPartitionsRequest, head + b"\1\2t\0\0\0\7\0\0", 0).cursor
    assert cursor is not None
    assert (cursor.topic_name, cursor.partition_index) == ("t", 7)


def test_an_error_names_the_field_the_element_and_the_position() -> None:
    data = b"\0" + struct.pack(">hi", -1, 1000) + b"\2\2t\3" + struct.pack(">i", 4) + b"\1\0" + struct.pack(">i", 5) + b"\x0a"
    error = refused(ProduceRequest, data + b"abc", 9)
    assert error.field == "topic_data[0].partition_data[1].records"
    assert error.position == len(data)
    assert str(error) == f"ProduceRequest v9: topic_data[0].partition_data[1].records at byte {len(data)}: length 9, 3 bytes are left"


def test_a_field_in_a_run_of_fixed_ones_is_named_when_the_message_ends_in_it() -> None:
    assert refused(ProduceRequest, b"\0\0\1\0\0", 9).field == "timeout_ms"


def test_a_malformed_message_lets_go_of_the_buffer() -> None:
    buffer = bytearray(b"\0\0\1\0\0")
    with pytest.raises(MalformedMessage) as caught:
        decode(ProduceRequest, buffer, 9)
    buffer.append(1)
    assert caught.value.__traceback__ is not None


@pytest.mark.parametrize("cls", list(dict.fromkeys(cls for cls, _ in CASES)), ids=lambda cls: cls.__name__)
def test_a_version_that_is_not_declared_is_unsupported(cls: type[msgspec.Struct]) -> None:
    schema = schema_of(cls)
    for version in (schema.since - 1, schema.until + 1, -(2**15), 2**15 - 1):
        with pytest.raises(UnsupportedVersion):
            decode(cls, b"", version)
        with pytest.raises(UnsupportedVersion):
            encode(cls(), version)

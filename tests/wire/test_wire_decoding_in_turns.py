"""A decoder in turns returns the messages of the one that decodes all at once, and refuses what it refuses."""

import gc
import weakref
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from ottla.wire import compile, decoding
from ottla.wire.compile import decode, decode_in_turns, encode
from ottla.wire.declare import MalformedMessage
from ottla.wire.messages import API
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from random_messages import random_message


def in_turns(cls: type[msgspec.Struct], data: bytes, version: int) -> tuple[Any, int]:
    """The message, and the number of its turns."""
    work, turns = decode_in_turns(cls, memoryview(data), version), 1
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return ended.value, turns
        turns += 1


def whole(cls: type[msgspec.Struct], data: bytes, version: int) -> Any:
    return in_turns(cls, data, version)[0]


def outcome(decoded: Callable[[type[msgspec.Struct], bytes, int], Any], cls: type[msgspec.Struct], data: bytes, version: int) -> object:
    """The message with its records as bytes, or what is wrong with it."""
    try:
        message = decoded(cls, data, version)
    except MalformedMessage as error:
        return str(error)
    return msgspec.json.encode(message, enc_hook=lambda value: bytes(value).hex())


@pytest.mark.parametrize("version", [1, 9, 13])
def test_a_large_request_takes_several_turns(version: int) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=f"topic-{number}") for number in range(20_000)])
    message, turns = in_turns(MetadataRequest, encode(request, version), version)
    assert message == request
    assert turns > 20


def test_nested_arrays_take_turns() -> None:
    partitions = [FetchPartition(partition=number, fetch_offset=number) for number in range(5_000)]
    request = FetchRequest(topics=[FetchTopic(topic="a", partitions=partitions), FetchTopic(topic="b", partitions=partitions)])
    message, turns = in_turns(FetchRequest, encode(request, 12), 12)
    assert message == request
    assert turns > 10


def test_large_records_take_no_turns() -> None:
    data = [PartitionProduceData(index=number, records=bytes(100_000)) for number in range(100)]
    request = ProduceRequest(transactional_id=None, topic_data=[TopicProduceData(name="t", partition_data=data)])
    message, turns = in_turns(ProduceRequest, encode(request, 9), 9)
    assert message == request
    assert turns == 1


def test_unknown_tags_take_turns() -> None:
    count = 50_000
    tags = b"".join(bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14, 0]) for number in range(count))
    data = encode(ApiVersionsRequest(), 3)[:-1] + bytes([count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14]) + tags
    message, turns = in_turns(ApiVersionsRequest, data, 3)
    assert message == ApiVersionsRequest()
    assert turns > 20


def test_every_request_is_decoded_and_refused_in_turns_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "TURN_BYTES", 1)
    # Decoders with these turns.
    monkeypatch.setattr(compile, "_compiled", {})
    monkeypatch.setattr(compile, "_decoders", {})
    random = Random(1)
    for api in API.values():
        for version in range(api.versions[0], api.versions[1] + 1):
            data = encode(random_message(api.request, version, random), version)
            damaged = bytearray(data)
            for _ in range(min(3, len(data))):
                damaged[random.randrange(len(data))] = random.randrange(256)
            for each in (data, bytes(damaged), data[: random.randrange(len(data) + 1)]):
                at_once = outcome(decode, api.request, each, version)
                assert outcome(whole, api.request, each, version) == at_once, f"{api.name} v{version}"


def test_an_element_that_is_not_valid_is_named() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=f"topic-{number}") for number in range(20_000)])
    data = bytearray(encode(request, 9))
    data[data.index(b"topic-19999")] = 0xFF
    with pytest.raises(MalformedMessage) as caught:
        in_turns(MetadataRequest, bytes(data), 9)
    assert "topics[19999].name" in str(caught.value)


def test_a_malformed_message_is_freed_without_the_garbage_collector() -> None:
    class Data(bytearray):
        """A buffer that can be watched."""

    def refused(buffer: memoryview) -> bool:
        try:
            list(decode_in_turns(MetadataRequest, buffer, 9))
        except MalformedMessage:
            return True
        return False

    gc.disable()
    try:
        data = Data(b"\x05" * 10_000)
        watched = weakref.ref(data)
        assert refused(memoryview(data))
        del data
        assert watched() is None
    finally:
        gc.enable()

"""An encoder in turns writes the bytes of the one that writes all at once."""

from random import Random

import pytest

from ottla.wire import compile, encoding
from ottla.wire.framing import encode_response, encode_response_in_turns
from ottla.wire.messages import API
from ottla.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.wire.messages.metadata import MetadataResponse, MetadataResponseTopic
from random_messages import random_message


def in_turns(message: object, version: int) -> tuple[bytes, int]:
    """The frame, and the number of its turns."""
    work, turns = encode_response_in_turns(message, version, 7), 1  # type: ignore[arg-type]
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return b"".join(ended.value), turns
        turns += 1


@pytest.mark.parametrize("version", [0, 4, 9, 13])
def test_a_large_response_takes_several_turns(version: int) -> None:
    response = MetadataResponse(topics=[MetadataResponseTopic(name=f"topic-{number}") for number in range(10_000)])
    frame, turns = in_turns(response, version)
    assert frame == b"".join(encode_response(response, version, 7))  # type: ignore[arg-type]
    assert turns > 2


def test_large_records_are_chunks_of_their_own_before_and_after_a_turn() -> None:
    def data(number: int) -> PartitionData:
        size = encoding.FAR_BYTES_MIN if number in (0, 1, 5_000, 9_999) else 3
        return PartitionData(partition_index=number, records=bytes([number % 256]) * size)

    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data(number) for number in range(10_000)])])
    for version in (4, 12):
        frame, turns = in_turns(response, version)
        assert frame == b"".join(encode_response(response, version, 7))  # type: ignore[arg-type]
        assert turns > 2


def test_every_response_has_the_same_bytes_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "TURN_PIECES", 2)
    # Encoders with this number of pieces.
    monkeypatch.setattr(compile, "_compiled", {})
    random = Random(1)
    for api in API.values():
        for version in range(api.versions[0], api.versions[1] + 1):
            message = random_message(api.response, version, random)
            assert in_turns(message, version)[0] == b"".join(encode_response(message, version, 7)), f"{api.name} v{version}"  # type: ignore[arg-type]


def test_a_value_that_a_version_cannot_hold_is_named() -> None:
    topics: list[object] = [MetadataResponseTopic(name=f"topic-{number}") for number in range(5_000)]
    response = MetadataResponse(topics=[*topics, MetadataResponseTopic(name=5)])  # type: ignore[arg-type, list-item]
    with pytest.raises(AttributeError) as caught:
        in_turns(response, 9)
    assert "while encoding MetadataResponse v9, at topics[].name" in caught.value.__notes__

"""Frames and headers, byte for byte."""

from __future__ import annotations

import struct

import pytest
from kafka.protocol.metadata import MetadataRequest as TheirMetadataRequest

from ottla.wire.compile import decode, encode, encode_chunks
from ottla.wire.declare import MalformedMessage
from ottla.wire.framing import (
    RequestHeader,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from ottla.wire.messages import (
    API,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchableTopicResponse,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionData,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)


class FileSlice:
    """What a broker gives as records when they are still in a file: only its length is asked for."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def joined(chunks: list) -> bytes:  # type: ignore[type-arg]
    return b"".join(chunks)


def test_a_request_is_framed_as_kafka_python_frames_it() -> None:
    for version in (1, 9, 12):
        theirs = TheirMetadataRequest(version=version, topics=None)
        theirs.with_header(correlation_id=7, client_id="me")
        ours = joined(encode_request(MetadataRequest(topics=None), version, 7, "me"))
        assert ours == theirs.encode(header=True, framed=True)


@pytest.mark.parametrize("client_id", [None, "", "me", "größer"])
@pytest.mark.parametrize("version", [1, 8, 9, 12])
def test_a_request_header_reads_back(version: int, client_id: str | None) -> None:
    request = MetadataRequest(topics=None)
    frame = joined(encode_request(request, version, -5, client_id))
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    header, position = decode_request_header(memoryview(frame)[4:])
    assert header == RequestHeader(3, version, -5, client_id)
    assert decode(MetadataRequest, frame[4:], version, position) == request


def test_tags_in_a_flexible_header_are_passed_over() -> None:
    body = encode(MetadataRequest(), 9)
    plain = struct.pack(">hhih", 3, 9, 1, -1)
    header, position = decode_request_header(plain + b"\2" + b"\0\2hi" + b"\5\0" + body)
    assert header.correlation_id == 1
    assert decode(MetadataRequest, plain + b"\2\0\2hi\5\0" + body, 9, position) == MetadataRequest()


def test_the_client_id_keeps_its_int16_length_in_a_flexible_header() -> None:
    frame = joined(encode_request(ApiVersionsRequest(), 3, 1, "ab"))
    assert frame[12:16] == b"\0\2ab"


@pytest.mark.parametrize("key", sorted(API))
def test_each_api_takes_flexible_headers_from_its_own_version_on(key: int) -> None:
    api = API[key]
    for version in range(api.versions[0], api.versions[1] + 1):
        flexible = api.flexible_since is not None and version >= api.flexible_since
        request = joined(encode_request(api.request(), version, 1, None))
        assert len(request) - 4 - len(encode(api.request(), version)) == (11 if flexible else 10)
        response = joined(encode_response(api.response(), version, 1))
        tags = flexible and api.name != "ApiVersions"
        assert len(response) - 4 - len(encode(api.response(), version)) == (5 if tags else 4)


def test_a_response_to_api_versions_never_has_tags_in_its_header() -> None:
    """Line 2."""
    response = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, max_version=4)])
    for version in (0, 3, 4):
        frame = joined(encode_response(response, version, 9))
        assert frame == struct.pack(">ii", len(frame) - 4, 9) + encode(response, version)
        assert decode_response(ApiVersionsResponse, frame[4:], version) == (9, response)


def test_a_request_of_a_version_from_the_future_still_has_a_readable_header() -> None:
    header, _ = decode_request_header(struct.pack(">hhih", 18, 99, 5, 2) + b"me\0" + b"whatever")
    assert header == RequestHeader(18, 99, 5, "me")


def test_of_an_unknown_api_only_the_plain_header_is_read() -> None:
    header, position = decode_request_header(struct.pack(">hhih", 999, 0, 5, 2) + b"me" + b"\xff")
    assert (header, position) == (RequestHeader(999, 0, 5, "me"), 12)


def test_a_response_reads_back() -> None:
    response = MetadataResponse(cluster_id="c", controller_id=1)
    for version in (7, 12):
        frame = joined(encode_response(response, version, 2**31 - 1))
        assert decode_response(MetadataResponse, memoryview(frame)[4:], version) == (2**31 - 1, response)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\3\0\1\0\0",
        struct.pack(">hhih", 3, 1, 0, -2),
        struct.pack(">hhih", 3, 1, 0, 5) + b"abc",
        struct.pack(">hhih", 3, 1, 0, 2) + b"\xff\xfe",
        struct.pack(">hhih", 3, 9, 0, -1),
        struct.pack(">hhih", 3, 9, 0, -1) + b"\xff\xff\xff\xff\x0f" + bytes(40),
        struct.pack(">hhih", 3, 9, 0, -1) + b"\x41" + b"\0\0" * 200,
        struct.pack(">hhih", 3, 9, 0, -1) + b"\2\1\0\1\0",
        struct.pack(">hhih", 3, 9, 0, -1) + b"\1\0\x7fabc",
    ],
)
def test_a_damaged_request_header_is_malformed_and_nothing_else(data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="RequestHeader"):
        decode_request_header(data)


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"\0\0\0\1"])
def test_a_response_that_ends_in_its_header_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_response(MetadataResponse, data, 9)


def test_large_records_and_file_ranges_are_chunks_without_a_copy() -> None:
    large, small, piece = bytes(16 * 1024), memoryview(b"x" * 100), FileSlice(70_000)
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="t",
                partitions=[
                    PartitionData(partition_index=0, records=small),
                    PartitionData(partition_index=1, records=large),
                    PartitionData(partition_index=2, records=piece),
                    PartitionData(partition_index=3, records=FileSlice(3)),
                    PartitionData(partition_index=4, records=None),
                ],
            )
        ]
    )
    for version in (11, 12):
        chunks = encode_response(response, version, 1)
        kinds = [type(chunk).__name__ for chunk in chunks]
        assert kinds == ["bytes", "bytes", "bytes", "FileSlice", "bytes", "FileSlice", "bytes"]
        assert chunks[1] is large and chunks[3] is piece
        assert struct.unpack_from(">i", chunks[0]) == (sum(map(len, chunks)) - 4,)  # type: ignore[arg-type]
        written = b"".join(bytes(len(c)) if isinstance(c, FileSlice) else c for c in chunks)  # type: ignore[misc]
        _, back = decode_response(FetchResponse, written[4:], version)
        assert [p.records and len(p.records) for p in back.responses[0].partitions] == [100, 16384, 70_000, 3, None]


def test_records_just_below_the_limit_are_joined_with_the_rest() -> None:
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=bytes(16383))])])
    assert len(encode_chunks(request, 9)) == 1


def test_decoded_records_are_a_view_of_the_buffer() -> None:
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"abc")])])
    buffer = bytearray(encode(request, 9))
    records = decode(ProduceRequest, buffer, 9).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    buffer[buffer.index(b"abc")] = ord("X")
    assert bytes(records) == b"Xbc"

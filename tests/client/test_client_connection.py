"""A client connection without a socket: frames in pieces, responses in order, and every way to break."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.net.client_connection import SCRATCH_BYTES, ClientConnection, ConnectionBroken
from ottla.wire import messages as m
from ottla.wire.framing import decode_request_header, encode_response
from ottla.wire.messages.fetch import FetchableTopicResponse, PartitionData


class Wire(asyncio.Transport):
    """A transport that keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.frames.append(bytes(data))

    def writelines(self, chunks: Any) -> None:
        self.frames.append(b"".join(chunks))

    def abort(self) -> None:
        self.aborted = True


def a_link(frame_bytes_max: int = 10_000_000) -> tuple[ClientConnection, Wire, list[ConnectionBroken]]:
    lost: list[ConnectionBroken] = []
    link, wire = ClientConnection("h:1", client_id="c", frame_bytes_max=frame_bytes_max, lost=lost.append), Wire()
    link.connection_made(wire)
    return link, wire, lost


def feed(link: ClientConnection, data: bytes, piece: int = 1 << 30) -> None:
    while data and link.broken is None:
        room = link.get_buffer(-1)
        size = min(len(room), piece, len(data))
        room[:size] = data[:size]
        data = data[size:]
        link.buffer_updated(size)


def answered(frame: bytes, message: Any) -> bytes:
    header, _ = decode_request_header(frame[4:])
    return b"".join(bytes(chunk) for chunk in encode_response(message, header.api_version, header.correlation_id))  # type: ignore[arg-type]


def a_fetch_response(size: int) -> m.FetchResponse:
    records = bytes(range(256)) * (size // 256 + 1)
    topic = FetchableTopicResponse(topic="t", partitions=[PartitionData(partition_index=0, records=records[:size])])
    return m.FetchResponse(session_id=3, responses=[topic])


@pytest.mark.parametrize("size", [0, 100, SCRATCH_BYTES - 100, SCRATCH_BYTES, 300_000])
@pytest.mark.parametrize("piece", [1 << 30, 1000, 7])
async def test_a_response_arrives_complete_in_pieces_of_any_size(size: int, piece: int) -> None:
    if size > SCRATCH_BYTES and piece == 7:
        size = SCRATCH_BYTES + 500
    link, wire, _ = a_link()
    for _ in range(3):
        answer = link.request(m.FetchRequest(), 12, timeout_ms=1000)
        feed(link, answered(wire.frames[-1], a_fetch_response(size)), piece)
        found = (await answer).responses[0].partitions[0].records
        assert bytes(found or b"") == bytes(a_fetch_response(size).responses[0].partitions[0].records or b"")  # type: ignore[call-overload]


async def test_several_responses_in_one_piece_reach_their_requests_in_order() -> None:
    link, wire, _ = a_link()
    answers = [link.request(m.InitProducerIdRequest(), 4, timeout_ms=1000) for _ in range(2000)]
    data = b"".join(answered(frame, m.InitProducerIdResponse(producer_id=index)) for index, frame in enumerate(wire.frames))
    feed(link, data, 50_001)
    assert [(await answer).producer_id for answer in answers] == list(range(2000))


async def test_records_are_a_view_of_a_buffer_that_is_not_reused() -> None:
    link, wire, _ = a_link()
    first = link.request(m.FetchRequest(), 12, timeout_ms=1000)
    second = link.request(m.FetchRequest(), 12, timeout_ms=1000)
    feed(link, answered(wire.frames[0], a_fetch_response(50)))
    kept = (await first).responses[0].partitions[0].records
    before = bytes(kept)
    feed(link, answered(wire.frames[1], a_fetch_response(60_000)))
    await second
    assert isinstance(kept, memoryview)
    assert bytes(kept) == before


async def test_a_closing_peer_fails_pending_requests_with_address_and_api() -> None:
    link, wire, lost = a_link()
    feed(link, b"")
    first = link.request(m.MetadataRequest(), 12, timeout_ms=1000)
    feed(link, answered(wire.frames[0], m.MetadataResponse()))
    await first
    second, third = (link.request(m.MetadataRequest(), 12, timeout_ms=1000) for _ in range(2))
    link.connection_lost(ConnectionResetError("reset"))
    for answer in (second, third):
        with pytest.raises(ConnectionBroken, match=r"h:1 closed the connection while Metadata v12 was waiting.*reset"):
            await answer
    assert len(lost) == 1
    with pytest.raises(ConnectionBroken, match="h:1"):
        link.request(m.MetadataRequest(), 12, timeout_ms=1000)


async def test_a_peer_that_closes_before_any_response_may_expect_tls() -> None:
    link, _, _ = a_link()
    answer = link.request(m.MetadataRequest(), 12, timeout_ms=1000)
    link.eof_received()
    with pytest.raises(ConnectionBroken, match=r"before it answered Metadata v12.*TLS"):
        await answer


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP server"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS"),
        (b"\x00\x00\x00\x02\x00\x00", "frame of 2 bytes"),
        (b"\xff\xff\xff\xff", "frame of -1 bytes"),
        (b"\x7f\xff\xff\xff", "receive_message_max_bytes"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x63\x00\x00", "correlation id 1, not 99"),
        (b"\x00\x00\x00\x05\x00\x00\x00\x01\xff", "Metadata|ResponseHeader"),
    ],
)
async def test_an_invalid_response_breaks_the_connection_with_an_error(data: bytes, message: str) -> None:
    link, wire, _ = a_link(frame_bytes_max=1000)
    answer = link.request(m.MetadataRequest(), 12, timeout_ms=1000)
    feed(link, data)
    with pytest.raises(ConnectionBroken, match=message):
        await answer
    assert wire.aborted


async def test_an_unexpected_response_breaks_the_connection() -> None:
    link, _, lost = a_link()
    feed(link, b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00")
    assert "to no request" in str(lost[0])


async def test_a_request_timeout_breaks_the_connection() -> None:
    link, _, _ = a_link()
    slow = link.request(m.MetadataRequest(), 12, timeout_ms=60_000)
    quick = link.request(m.FetchRequest(), 12, timeout_ms=20)
    for answer in (quick, slow):
        with pytest.raises(ConnectionBroken, match="did not answer Fetch v12 within 20 ms") as caught:
            await answer
        assert caught.value.timed_out


async def test_a_response_in_time_keeps_the_connection() -> None:
    link, wire, _ = a_link()
    first = link.request(m.MetadataRequest(), 12, timeout_ms=30)
    feed(link, answered(wire.frames[0], m.MetadataResponse()))
    await first
    link._check_deadlines()
    assert link.broken is None


async def test_a_cancelled_request_does_not_affect_others() -> None:
    link, wire, _ = a_link()
    first, second = (link.request(m.InitProducerIdRequest(), 4, timeout_ms=1000) for _ in range(2))
    first.cancel()
    feed(link, b"".join(answered(frame, m.InitProducerIdResponse(producer_id=5)) for frame in wire.frames))
    assert (await second).producer_id == 5

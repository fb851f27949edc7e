"""A Produce request of very many partitions is handled in parts, and its client notices nothing of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest

from ottla.base.ids import ConnectionId
from ottla.broker import effects
from ottla.broker.events import RequestArrived
from ottla.records.build import build_batch
from ottla.server.produce_parts import PARTITIONS_MAX, ProduceParts, is_large
from ottla.wire.framing import decode_response, encode_request
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from plain_kafka import answer, create_topics
from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("produce_parts")]

VERSION = 9
UNKNOWN_TOPIC = 3
MANY = PARTITIONS_MAX + 150
#: Below and above the size from which a frame has memory of its own.
SIZES = (10, 1_000)


def batch(value: bytes) -> bytes:
    return bytes(build_batch([(1_700_000_000_000, None, value, ())]))


def request(*topics: tuple[str, list[tuple[int, bytes]]], acks: int = -1) -> ProduceRequest:
    named = [
        TopicProduceData(name=name, partition_data=[PartitionProduceData(index=number, records=batch(value)) for number, value in of])
        for name, of in topics
    ]
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=named)


# The parts.


def parts_of(body: ProduceRequest, size: int, *, frame_bytes: int = 5_000) -> tuple[ProduceParts, list[RequestArrived[ProduceRequest]]]:
    call = RequestArrived(
        connection=ConnectionId(5), correlation_id=9, api_key=0, api_version=VERSION, client_id="c", body=body, ticket=3, size=frame_bytes
    )
    parts = ProduceParts(call, size, count(-1, -1))
    return parts, [part for part in parts.turns if part is not None]


def test_each_partition_is_in_one_part_with_its_last_batch() -> None:
    body = request(("a", [(0, b"old"), (1, b"1"), (2, b"2")]), ("b", [(7, b"7")]), ("a", [(0, b"new"), (3, b"3")]))
    parts, made = parts_of(body, 2)
    found = [(topic.name, data.index, data.records) for part in made for topic in part.body.topic_data for data in topic.partition_data]
    new = batch(b"new")
    assert sorted(found) == [("a", 0, new), ("a", 1, batch(b"1")), ("a", 2, batch(b"2")), ("a", 3, batch(b"3")), ("b", 7, batch(b"7"))]
    assert [sum(len(topic.partition_data) for topic in part.body.topic_data) for part in made] == [2, 2, 1]
    assert sum(part.size for part in made) == 5_000
    assert len(parts.waiting) == 3 and all(ticket < 0 for ticket in parts.waiting)


def test_the_answer_has_all_parts_and_the_longest_throttling() -> None:
    parts, made = parts_of(request(("a", [(number, b"x") for number in range(4)]), ("b", [(0, b"x")])), 2)
    parts.handled = True
    for number, part in enumerate(made):
        assert not parts.done
        topics = [
            TopicProduceResponse(
                name=topic.name, partition_responses=[PartitionProduceResponse(index=data.index) for data in topic.partition_data]
            )
            for topic in part.body.topic_data
        ]
        parts.answered(
            effects.Respond(
                connection=part.connection,
                correlation_id=9,
                api_version=VERSION,
                message=ProduceResponse(responses=topics),
                ticket=part.ticket,
                throttle_ms=[5, 70, 6][number],
            )
        )
    assert parts.done
    whole = parts.answer()
    assert isinstance(whole, effects.Respond)
    assert {topic.name: [one.index for one in topic.partition_responses] for topic in whole.message.responses} == {
        "a": [0, 1, 2, 3],
        "b": [0],
    }
    assert (whole.ticket, whole.throttle_ms, whole.message.throttle_time_ms) == (3, 70, 70)


def test_many_topics_count_like_many_partitions() -> None:
    few = [(f"t-{number}", [(0, b"x")]) for number in range(3)]
    assert not is_large(request(*few), 3)
    assert is_large(request(*few, ("u", [(0, b"x")])), 3)
    assert is_large(request(("t", [(number, b"x") for number in range(4)])), 3)


# With a broker.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("parts") / "data") as served:
        yield served


NAMES = (f"wide-{number}" for number in count())


@pytest.fixture
def topic(server: Serving) -> str:
    name = next(NAMES)
    create_topics(server.address, {name: MANY})
    return name


def connected(server: Serving) -> socket.socket:
    return socket.create_connection(server.address, timeout=30)


def send(sock: socket.socket, message: Any, version: int, number: int) -> None:
    sock.sendall(b"".join(encode_request(message, version, number, "c")))  # type: ignore[arg-type]


def received(sock: socket.socket, kind: type[Any], version: int, number: int) -> Any:
    correlation_id, message = decode_response(kind, answer(sock), version)
    assert correlation_id == number
    return message


def offsets(response: ProduceResponse) -> dict[tuple[str, int], tuple[int, int]]:
    return {(topic.name, one.index): (one.error_code, one.base_offset) for topic in response.responses for one in topic.partition_responses}


def values(sock: socket.socket, topic: str, partition: int) -> bytes:
    asked = FetchTopic(topic=topic, partitions=[FetchPartition(partition=partition, partition_max_bytes=1 << 20)])
    send(sock, FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[asked]), 12, 77)
    response = received(sock, FetchResponse, 12, 77)
    return bytes(response.responses[0].partitions[0].records)


@pytest.mark.parametrize("size", SIZES)
def test_a_large_request_is_answered_as_small_ones_are(server: Serving, topic: str, size: int) -> None:
    with connected(server) as sock:
        wide = [(number, b"%d" % number * size) for number in range(MANY)]
        send(sock, request((topic, [(5, b"replaced"), *wide]), ("nowhere", [(0, b"x")])), VERSION, 1)
        found = offsets(received(sock, ProduceResponse, VERSION, 1))
        assert found == {("nowhere", 0): (UNKNOWN_TOPIC, -1)} | {(topic, number): (0, 0) for number in range(MANY)}
        for number in (0, 5, MANY - 1):
            assert b"%d" % number * size in values(sock, topic, number)
        assert b"replaced" not in values(sock, topic, 5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_later_requests_of_the_connection_do_not_pass_by(server: Serving, topic: str, acks: int, size: int) -> None:
    with connected(server) as sock:
        send(sock, request((topic, [(number, b"first" * size) for number in range(MANY)]), acks=acks), VERSION, 1)
        for number in (2, 3):
            send(sock, request((topic, [(MANY - 1, b"%d" % number)])), VERSION, number)
        if acks:
            assert set(offsets(received(sock, ProduceResponse, VERSION, 1)).values()) == {(0, 0)}
        for number in (2, 3):
            assert offsets(received(sock, ProduceResponse, VERSION, number)) == {(topic, MANY - 1): (0, number - 1)}


def test_a_client_that_leaves_between_the_parts_leaves_nothing_behind(server: Serving, topic: str) -> None:
    for _ in range(5):
        with connected(server) as sock:
            send(sock, request((topic, [(number, b"x" * 1_000) for number in range(MANY)])), VERSION, 1)
    with connected(server) as sock:
        send(sock, request((topic, [(number, b"y") for number in range(MANY)])), VERSION, 2)
        assert {code for code, _ in offsets(received(sock, ProduceResponse, VERSION, 2)).values()} == {0}
    assert "Traceback" not in server.logs()


def test_large_requests_of_several_clients_at_once_have_all_their_batches(server: Serving, topic: str) -> None:
    socks = [connected(server) for _ in range(3)]
    for sock in socks:
        send(sock, request((topic, [(number, b"x") for number in range(MANY)]), acks=1), VERSION, 1)
    found = [offsets(received(sock, ProduceResponse, VERSION, 1)) for sock in socks]
    for number in islice(range(MANY), 0, MANY, 7):
        assert sorted(each[topic, number] for each in found) == [(0, 0), (0, 1), (0, 2)]
    for sock in socks:
        sock.close()

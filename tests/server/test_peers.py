"""Requests between brokers over the network: one that waits does not delay others."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from socket_peers import Served, until

from ottla.base.ids import BrokerId
from ottla.net.server_connection import ServerConnection
from ottla.server.peer_requests import CONNECTIONS_MAX, PeerClient
from ottla.wire.framing import decode_request_header, encode_response
from ottla.wire.messages import AlterPartitionRequest, AlterPartitionResponse, CreateTopicsRequest, FetchRequest

pytestmark = pytest.mark.server

OTHER = BrokerId(2)


class Broker:
    """Answers AlterPartition at once, and other requests when the test permits it."""

    def __init__(self) -> None:
        self.served = Served(self._take)
        #: What waits, in order.
        self.waiting: list[ServerConnection] = []

    def _take(self, connection: ServerConnection, frame: bytes) -> None:
        connection.trust()
        header, _ = decode_request_header(memoryview(frame))
        if header.api_key == 56:
            answer = encode_response(AlterPartitionResponse(), header.api_version, header.correlation_id)
            connection.respond([bytes(chunk) for chunk in answer])  # type: ignore[arg-type]
        else:
            self.waiting.append(connection)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    found = Broker()
    async with found.served:
        yield found


@pytest.fixture
async def peers(broker: Broker) -> AsyncIterator[PeerClient]:
    found = PeerClient({}, lambda other: broker.served.address if other == OTHER else None)
    yield found
    await found.close()


async def asked(peers: PeerClient, message: Any, version: int) -> Any:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    peers.send(OTHER, message, version, answer.set_result)
    async with asyncio.timeout(20):
        return await answer


async def test_a_fetch_that_waits_for_records_keeps_no_change_of_an_isr_waiting(broker: Broker, peers: PeerClient) -> None:
    peers.send(OTHER, FetchRequest(), 12, lambda answer: None)
    await until(lambda: len(broker.waiting) == 1, 20)
    assert isinstance(await asked(peers, AlterPartitionRequest(), 3), AlterPartitionResponse)


async def test_fetchers_do_not_wait_for_each_other(broker: Broker, peers: PeerClient) -> None:
    for _ in range(CONNECTIONS_MAX + 2):
        peers.send(OTHER, FetchRequest(), 12, lambda answer: None)
    await until(lambda: len(broker.waiting) == CONNECTIONS_MAX + 2, 20)
    assert len(broker.served.context.connections) == CONNECTIONS_MAX + 2


async def test_what_clients_hand_on_waits_for_each_other_only_when_there_is_much_of_it(broker: Broker, peers: PeerClient) -> None:
    for _ in range(3 * CONNECTIONS_MAX):
        peers.send(OTHER, CreateTopicsRequest(), 7, lambda answer: None)
    await until(lambda: len(broker.waiting) == CONNECTIONS_MAX, 20)
    assert len(broker.served.context.connections) == CONNECTIONS_MAX


async def test_one_connection_serves_requests_that_follow_each_other(broker: Broker, peers: PeerClient) -> None:
    for _ in range(3):
        assert await asked(peers, AlterPartitionRequest(), 3) is not None
    assert len(broker.served.context.connections) == 1


async def test_a_connection_that_broke_is_replaced_and_what_it_carried_has_no_answer(broker: Broker, peers: PeerClient) -> None:
    answers: list[Any] = []
    peers.send(OTHER, FetchRequest(), 12, answers.append)
    await until(lambda: broker.waiting, 20)
    broker.waiting[0].abort()
    await until(lambda: answers == [None], 20)
    peers.send(OTHER, FetchRequest(), 12, answers.append)
    await until(lambda: len(broker.waiting) == 2, 20)
    assert answers == [None]


async def test_a_broker_that_is_not_registered_gives_no_response(broker: Broker) -> None:
    peers = PeerClient({}, lambda other: None)
    assert await asked(peers, AlterPartitionRequest(), 3) is None
    await peers.close()


async def test_a_request_without_a_response_ends_after_the_request_timeout(broker: Broker) -> None:
    peers = PeerClient({}, lambda other: broker.served.address, timeout_ms=50)
    assert await asked(peers, CreateTopicsRequest(), 7) is None
    assert len(broker.waiting) == 1
    await peers.close()

"""Tests of the order processor against a real broker in the test's process: no container, no JVM, nothing to start first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from order_processor import OrderProcessor, Topics

import ottla.aio
from ottla.testing import Broker, Topic

ORDER = {"id": 1, "customer": "ada", "lines": [{"price_cents": 250, "count": 3}]}
#: Short backoffs of the application's clients.
SETTINGS: dict[str, Any] = {"reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50, "retry_backoff_ms": 10, "retry_backoff_max_ms": 50}


@pytest.fixture
def orders(ottla_topics: Any) -> Topic:
    return ottla_topics("orders", value="json")


@pytest.fixture
def invoices(ottla_topics: Any) -> Topic:
    return ottla_topics("invoices", partitions=3, key="str", value="json", config={"retention.ms": 7 * 86_400_000})


@pytest.fixture
def rejected(ottla_topics: Any) -> Topic:
    return ottla_topics("rejected")


@pytest.fixture
def processor(orders: Topic, invoices: Topic, rejected: Topic, ottla_topics: Any) -> Iterator[OrderProcessor]:
    topics = Topics(orders=orders.name, invoices=invoices.name, rejected=rejected.name)
    with OrderProcessor(ottla_topics.broker.bootstrap_servers, topics, group_id=orders.name, **SETTINGS) as running:
        yield running


def order(number: int) -> dict[str, Any]:
    return {**ORDER, "id": number}


# Behaviour


@pytest.mark.usefixtures("processor")
def test_an_order_becomes_an_invoice(orders: Topic, invoices: Topic) -> None:
    orders.send(ORDER)
    (record,) = invoices.wait_for(1)
    assert record.key == "ada"
    assert record.value == {"order": 1, "customer": "ada", "total_cents": 750}


@pytest.mark.usefixtures("processor")
def test_an_invalid_order_is_rejected_and_does_not_block_others(orders: Topic, invoices: Topic, rejected: Topic) -> None:
    orders.send({"id": 1})
    orders.send(ORDER)
    invoices.wait_for(1)
    (record,) = rejected.wait_for(1)
    assert record.headers == (("reason", b"it is not an order: 'lines'"),)
    orders.wait_until_read(orders.name)


# Failures


@pytest.mark.usefixtures("processor")
def test_no_order_is_lost_when_the_broker_is_killed(ottla_own_broker: Broker, orders: Topic, invoices: Topic) -> None:
    orders.send_all(*map(order, range(10)))
    invoices.wait_for(1)
    ottla_own_broker.kill(unsynced="lost")
    ottla_own_broker.restart()
    orders.send_all(*map(order, range(10, 20)))
    orders.wait_until_read(orders.name, timeout_ms=30_000)
    assert {value["order"] for value in invoices.values()} == set(range(20))


@pytest.mark.usefixtures("processor")
def test_an_invoice_whose_answer_is_lost_is_written_once(ottla_own_broker: Broker, orders: Topic, invoices: Topic) -> None:
    with ottla_own_broker.cutting_after("Produce", times=1) as fault:
        orders.send(ORDER)
        fault.wait()
        orders.wait_until_read(orders.name, timeout_ms=30_000)
    assert len(invoices.values()) == 1


@pytest.mark.usefixtures("processor")
def test_the_processor_waits_for_a_leader(ottla_own_broker: Broker, orders: Topic, invoices: Topic) -> None:
    with ottla_own_broker.answering("NOT_LEADER_OR_FOLLOWER", "Produce", times=3):
        orders.send(ORDER)
        assert [record.value["order"] for record in invoices.wait_for(1, timeout_ms=30_000)] == [1]


@pytest.mark.usefixtures("processor")
def test_the_processor_continues_after_a_pause_of_the_broker(ottla_own_broker: Broker, orders: Topic, invoices: Topic) -> None:
    with ottla_own_broker.paused():
        orders.send(ORDER)
        assert invoices.values() == []
    invoices.wait_for(1, timeout_ms=30_000)


# Effects after a long time


@pytest.mark.usefixtures("processor")
def test_invoices_are_retained_for_a_week(ottla_own_broker: Broker, orders: Topic, invoices: Topic) -> None:
    orders.send(ORDER)
    invoices.wait_for(1)
    ottla_own_broker.clock.advance(days=6)
    assert len(invoices.values()) == 1
    ottla_own_broker.clock.advance(days=1)
    assert invoices.values() == []


# With an event loop


async def test_invoices_can_be_read_with_asyncio(ottla_broker: Broker, ottla_topic: Topic) -> None:
    async with ottla.aio.Producer(bootstrap_servers=ottla_broker.bootstrap_servers) as producer:
        await producer.send(ottla_topic.name, b"1")
    # A blocking wait runs in a thread, so that it does not block the event loop.
    assert [record.value for record in await asyncio.to_thread(ottla_topic.wait_for, 1)] == [b"1"]

"""Injected faults as clients see them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

import ottla
from ottla import Admin, Consumer, Producer
from ottla.errors import CoordinatorNotAvailable, NotLeaderOrFollower
from ottla.testing import Broker, Topic

pytestmark = pytest.mark.server
PATIENCE_MS = 30_000


@pytest.fixture
def settings(ottla_broker: Broker) -> dict[str, Any]:
    """Settings of clients with short backoffs."""
    return {
        "bootstrap_servers": ottla_broker.bootstrap_servers,
        "retry_backoff_ms": 5,
        "retry_backoff_max_ms": 20,
        "reconnect_backoff_ms": 5,
        "reconnect_backoff_max_ms": 20,
    }


@pytest.fixture
def producer(settings: dict[str, Any], ottla_topic: Topic) -> Iterator[Producer]:
    """A producer that knows the topic and has a producer id."""
    with Producer(**settings, linger_ms=0) as made:
        made.send(ottla_topic.name, b"first").result(timeout_ms=PATIENCE_MS)
        yield made


def test_an_error_response_is_sent_the_given_number_of_times_and_the_request_is_not_executed(
    ottla_broker: Broker, ottla_topic: Topic, producer: Producer
) -> None:
    with ottla_broker.answering(NotLeaderOrFollower, "Produce", times=2) as fault:
        assert producer.send(ottla_topic.name, b"1").result(timeout_ms=PATIENCE_MS).offset == 1
        assert fault.count == 2
    assert ottla_topic.values() == [b"first", b"1"]


def test_a_fatal_error_response_is_raised_by_the_client(settings: dict[str, Any], ottla_broker: Broker) -> None:
    with (
        Admin(**settings) as admin,
        ottla_broker.answering("POLICY_VIOLATION", "CreateTopics"),
        pytest.raises(ottla.errors.PolicyViolation, match="a test injected this error"),
    ):
        admin.create_topic(ottla.NewTopic("never"))


def test_another_projects_client_gets_the_same_errors(ottla_broker: Broker, ottla_topic: Topic) -> None:
    ottla_topic.send(b"1")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": ottla_broker.bootstrap_servers, "group.id": ottla_topic.name, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([ottla_topic.name])
    with ottla_broker.answering(CoordinatorNotAvailable(), "FindCoordinator", times=2) as fault:
        fault.wait(2, timeout_ms=30_000)
    deadline_s = time.monotonic() + 30
    while (message := consumer.poll(1)) is None and time.monotonic() < deadline_s:
        pass
    assert message is not None and message.value() == b"1"
    consumer.close()


def test_a_dropped_request_is_not_executed(ottla_broker: Broker, ottla_topic: Topic, settings: dict[str, Any]) -> None:
    with Producer(**settings, request_timeout_ms=500, delivery_timeout_ms=1000, enable_idempotence=False) as producer:
        producer.partitions_for(ottla_topic.name)
        with ottla_broker.dropping_requests("Produce"), pytest.raises(ottla.KafkaError):
            producer.send(ottla_topic.name, b"1").result(timeout_ms=PATIENCE_MS)
        assert ottla_topic.values() == []


def test_a_request_with_a_dropped_response_is_executed(ottla_broker: Broker, ottla_topic: Topic, settings: dict[str, Any]) -> None:
    with Producer(**settings, request_timeout_ms=500, retries=0, enable_idempotence=False) as producer:
        producer.partitions_for(ottla_topic.name)
        with ottla_broker.dropping_answers("Produce", times=1), pytest.raises(ottla.KafkaError):
            producer.send(ottla_topic.name, b"1").result(timeout_ms=PATIENCE_MS)
        assert [record.value for record in ottla_topic.wait_for(timeout_ms=30_000)] == [b"1"]


def test_an_idempotent_producer_writes_a_retried_batch_once(ottla_broker: Broker, ottla_topic: Topic, producer: Producer) -> None:
    with ottla_broker.cutting_after("Produce", times=1) as fault:
        assert producer.send(ottla_topic.name, b"1").result(timeout_ms=PATIENCE_MS).offset == 1
        assert fault.count == 1
    assert ottla_topic.values() == [b"first", b"1"]


def test_a_producer_without_idempotence_writes_a_retried_batch_twice(
    ottla_broker: Broker, ottla_topic: Topic, settings: dict[str, Any]
) -> None:
    with Producer(**settings, enable_idempotence=False) as producer, ottla_broker.cutting_after("Produce", times=1):
        producer.send(ottla_topic.name, b"1").result(timeout_ms=PATIENCE_MS)
    assert ottla_topic.values() == [b"1", b"1"]


def test_a_request_on_a_connection_cut_before_it_is_not_executed(
    ottla_broker: Broker, ottla_topic: Topic, settings: dict[str, Any]
) -> None:
    with Producer(**settings, enable_idempotence=False) as producer, ottla_broker.cutting_before("Produce", times=1):
        producer.send(ottla_topic.name, b"1").result(timeout_ms=PATIENCE_MS)
    assert ottla_topic.values() == [b"1"]


def test_delayed_requests_arrive_later_and_in_order(ottla_broker: Broker, ottla_topic: Topic, producer: Producer) -> None:
    with ottla_broker.delaying("Produce", seconds=0.1):
        began_s = time.monotonic()
        sent = []
        for number in range(3):
            sent.append(producer.send(ottla_topic.name, b"%d" % number))
            producer.flush()
        assert [one.result(timeout_ms=PATIENCE_MS).offset for one in sent] == [1, 2, 3]
        assert time.monotonic() - began_s >= 0.28
    assert ottla_topic.values() == [b"first", b"0", b"1", b"2"]


def test_requests_in_flight_behind_a_delayed_one_keep_their_order(ottla_broker: Broker, ottla_topic: Topic, producer: Producer) -> None:
    with ottla_broker.delaying("Produce", seconds=0.05, times=1) as fault:
        sent = [producer.send(ottla_topic.name, b"0")]
        fault.wait(timeout_ms=30_000)
        sent += [producer.send(ottla_topic.name, b"%d" % number) for number in range(1, 100)]
        assert [one.result(timeout_ms=PATIENCE_MS).offset for one in sent] == list(range(1, 101))


def test_a_paused_broker_answers_after_resume(ottla_broker: Broker, ottla_topic: Topic, producer: Producer) -> None:
    with ottla_broker.paused():
        sent = producer.send(ottla_topic.name, b"1")
        with pytest.raises(TimeoutError):
            sent.result(timeout_ms=50)
        # The test's own reads are not paused, and show that nothing was written.
        assert ottla_topic.values() == [b"first"]
    assert sent.result(timeout_ms=PATIENCE_MS).offset == 1


def test_a_pause_also_withholds_responses_to_earlier_requests(ottla_broker: Broker, ottla_topic: Topic, settings: dict[str, Any]) -> None:
    with Consumer(**settings, auto_offset_reset="earliest", fetch_max_wait_ms=60_000) as consumer:
        consumer.assign([(ottla_topic.name, 0)])
        assert consumer.poll(100) == []
        with ottla_broker.paused():
            ottla_topic.send(b"1")
            assert consumer.poll(100) == []
        assert [record.value for record in consumer.poll(PATIENCE_MS)] == [b"1"]


def test_requests_of_a_client_that_timed_out_are_executed_after_the_pause(
    ottla_broker: Broker, ottla_topic: Topic, settings: dict[str, Any]
) -> None:
    with Producer(**settings, request_timeout_ms=1500, retries=0, enable_idempotence=False) as producer:
        producer.send(ottla_topic.name, b"0").result(timeout_ms=PATIENCE_MS)
        with ottla_broker.paused(), pytest.raises(ottla.KafkaError):
            producer.send(ottla_topic.name, b"1").result(timeout_ms=PATIENCE_MS)
        assert {record.value for record in ottla_topic.wait_for(2, timeout_ms=30_000)} == {b"0", b"1"}


def test_all_connections_can_be_cut(ottla_broker: Broker, ottla_topic: Topic, producer: Producer) -> None:
    assert ottla_broker.cut_connections() >= 1
    assert producer.send(ottla_topic.name, b"1").result(timeout_ms=PATIENCE_MS).offset == 1


def test_a_fault_can_be_limited_to_one_client(ottla_broker: Broker, ottla_topic: Topic, settings: dict[str, Any]) -> None:
    with (
        Producer(**settings, client_id="unlucky") as unlucky,
        Producer(**settings, client_id="lucky") as lucky,
        ottla_broker.answering("TOPIC_AUTHORIZATION_FAILED", "Produce", client_id="unlucky"),
    ):
        with pytest.raises(ottla.errors.TopicAuthorizationFailed):
            unlucky.send(ottla_topic.name, b"1").result(timeout_ms=PATIENCE_MS)
        lucky.send(ottla_topic.name, b"2").result(timeout_ms=PATIENCE_MS)
    assert ottla_topic.values() == [b"2"]


def test_a_test_can_wait_until_a_fault_happens(ottla_broker: Broker, ottla_topic: Topic, producer: Producer) -> None:
    with ottla_broker.answering("NOT_LEADER_OR_FOLLOWER", "Produce", times=3) as fault:
        threading.Timer(0.02, lambda: producer.send(ottla_topic.name, b"1")).start()
        fault.wait(3, timeout_ms=30_000)
        with pytest.raises(AssertionError, match=r"happened 3 times of 3\), not 4 times"):
            fault.wait(4, timeout_ms=0)


def test_a_dropped_request_blocks_its_client_no_longer_than_the_fault(
    ottla_broker: Broker, ottla_topic: Topic, settings: dict[str, Any]
) -> None:
    with Producer(**settings) as producer:
        with ottla_broker.dropping_requests("Produce", times=1) as fault:
            sent = producer.send(ottla_topic.name, b"1")
            fault.wait(timeout_ms=30_000)
        assert sent.result(timeout_ms=PATIENCE_MS).offset == 0


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (lambda broker: broker.dropping_requests("Prodcue"), "no API 'Prodcue'; did you mean Produce"),
        (lambda broker: broker.answering("NOT_LEADER", "Produce"), "no error 'NOT_LEADER'; did you mean NOT_LEADER_OR_FOLLOWER"),
        (lambda broker: broker.delaying("Produce", seconds=1, times=0), "at least once, not 0 times"),
    ],
)
def test_an_impossible_fault_is_refused(ottla_broker: Broker, order: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        order(ottla_broker)

"""Small client components: settings, backoff, in-flight limit, fetch sessions, metadata."""

from __future__ import annotations

from random import Random

import pytest

from ottla.base.ids import TopicPartition
from ottla.base.options import ConfigError
from ottla.client.fetch.session import FetchSession, PartitionFetch
from ottla.client.options import (
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    address_problem,
    address_text,
    from_keywords,
    parse_address,
)
from ottla.client.producer.sender import InFlight
from ottla.client.transport.backoff import Backoff
from ottla.client.transport.cluster import GONE_MS, Cluster
from ottla.wire import messages as m
from ottla.wire.errors import TopicAuthorizationFailed

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


# -- settings


def test_settings_are_python_values_or_kafkas_text() -> None:
    options = from_keywords(
        ProducerOptions, {"acks": 1, "linger_ms": "7", "enable_idempotence": "false", "bootstrap_servers": ["a:1", "b:2"]}
    )
    assert (options.acks, options.linger_ms, options.enable_idempotence) == ("1", 7, False)
    assert options.bootstrap_servers == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lingerms": 5}, "did you mean linger_ms"),
        ({"linger_ms": -1}, "smallest"),
        ({"linger_ms": None}, "whole number"),
        ({"enable_idempotence": 1}, "True or False"),
        ({"linger_ms": True}, "whole number"),
        ({"acks": "2"}, "not one of"),
        ({"compression_type": "brotli"}, "not one of"),
        ({"enable_idempotence": True, "acks": 1}, "acks=1"),
        ({"enable_idempotence": True, "max_in_flight_requests_per_connection": 6}, "at most 5"),
        ({"delivery_timeout_ms": 100}, "linger_ms"),
    ],
)
def test_a_bad_setting_is_refused_by_name(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_keywords(ProducerOptions, settings)


def test_idempotence_is_disabled_by_incompatible_settings_unless_requested() -> None:
    assert from_keywords(ProducerOptions, {}).enable_idempotence
    assert not from_keywords(ProducerOptions, {"acks": 1}).enable_idempotence
    assert not from_keywords(ProducerOptions, {"retries": 0}).enable_idempotence


def test_each_setting_has_kafkas_name_and_a_description() -> None:
    for table in (ClientOptions, ProducerOptions, ConsumerOptions):
        for name, spec in table.SPECS.items():
            assert spec.attribute == name.replace(".", "_")
            assert spec.doc.endswith((".", "..."))


@pytest.mark.parametrize(
    ("text", "address"), [("h:1", ("h", 1)), ("h", ("h", 9092)), ("[::1]:5", ("::1", 5)), ("[::1]", ("::1", 9092)), ("::1", ("::1", 9092))]
)
def test_addresses_are_split(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["h:", "h:0x", ":9", "h:70000"])
def test_a_bad_address_is_refused(text: str) -> None:
    if text == "h:":
        assert parse_address(text) == ("h", 9092)
        return
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize(
    ("servers", "problem"),
    [
        ("h:1", None),
        ("h:1, [::1]:5 ,", None),
        ("h", "'h' has no port; write h:9092 if"),
        ("h:1,b:", "'b:' has no port; write b:9092 if"),
        ("[::1]", "write [::1]:9092 if"),
        ("fe80::1", "write [fe80::1]:9092 if"),
        ("h:x", "'h:x' is not HOST:PORT; expected HOST:PORT, such as 127.0.0.1:9092"),
    ],
)
def test_a_broker_address_without_a_port_is_an_error_with_the_default_port(servers: str, problem: str | None) -> None:
    found = address_problem(servers)
    assert found is None if problem is None else problem in str(found)


def test_an_ipv6_address_needs_brackets() -> None:
    assert address_text("::1", 5) == "[::1]:5"


# -- backoff and limits


def test_backoff_doubles_up_to_a_limit_and_resets_after_a_success() -> None:
    backoff = Backoff(100, 1000, Random(3))
    pauses = [backoff.failed() for _ in range(6)]
    for pause, middle in zip(pauses, (100, 200, 400, 800, 1000, 1000), strict=True):
        assert 0.8 * middle <= pause <= 1.2 * middle
    backoff.succeeded()
    assert backoff.failed() <= 120


def test_backoff_differs_between_clients() -> None:
    assert Backoff(100, 1000, Random(1)).failed() != Backoff(100, 1000, Random(2)).failed()


def test_in_flight_requests_per_broker_are_limited() -> None:
    flights = InFlight(2)
    flights.sent(1)
    flights.sent(1)
    assert not flights.room(1)
    assert flights.room(2)
    flights.answered(1)
    assert flights.room(1)
    assert flights.total == 1


# -- fetch sessions


def an_ask(offset: int = 0, topic_id: bytes = b"i" * 16) -> PartitionFetch:
    return PartitionFetch(topic_id, offset, 0, -1, 100)


def test_the_first_fetch_is_full_and_the_next_contains_changes() -> None:
    session = FetchSession()
    first = session.request({A: an_ask(), B: an_ask()}, by_id=True)
    assert (first.session_id, first.epoch, set(first.send)) == (0, 0, {A, B})
    session.answered(0, 9)
    second = session.request({A: an_ask(5), B: an_ask()}, by_id=True)
    assert (second.session_id, second.epoch, second.send, second.forget) == (9, 1, {A: an_ask(5)}, [])
    session.answered(0, 9)
    third = session.request({A: an_ask(5)}, by_id=True)
    assert (third.epoch, third.send, third.forget) == (2, {}, [(B, b"i" * 16)])


def test_a_recreated_topic_is_forgotten_under_its_old_id() -> None:
    session = FetchSession()
    session.request({A: an_ask()}, by_id=True)
    session.answered(0, 9)
    changed = session.request({A: an_ask(topic_id=b"j" * 16)}, by_id=True)
    assert changed.forget == [(A, b"i" * 16)]
    assert set(changed.send) == {A}


@pytest.mark.parametrize(("code", "session_id"), [(70, 0), (71, 9), (106, 9)])
def test_after_a_session_error_the_next_fetch_is_full(code: int, session_id: int) -> None:
    session = FetchSession()
    session.request({A: an_ask()}, by_id=True)
    session.answered(0, 9)
    session.request({A: an_ask()}, by_id=True)
    session.answered(code, 0)
    again = session.request({A: an_ask()}, by_id=True)
    assert (again.session_id, again.epoch, set(again.send)) == (session_id, 0, {A})


def test_a_broker_without_session_slots_gets_full_fetches() -> None:
    session = FetchSession()
    for _ in range(2):
        assert session.request({A: an_ask()}, by_id=True).epoch == 0
        session.answered(0, 0)


def test_a_failed_fetch_makes_the_next_full() -> None:
    session = FetchSession()
    session.request({A: an_ask()}, by_id=True)
    session.answered(0, 9)
    session.request({A: an_ask(1)}, by_id=True)
    session.failed()
    assert session.request({A: an_ask(1)}, by_id=True).epoch == 0


def test_a_session_by_name_cannot_continue_by_id() -> None:
    session = FetchSession()
    session.request({A: an_ask()}, by_id=False)
    session.answered(0, 9)
    assert session.request({A: an_ask()}, by_id=True).epoch == 0


# -- cluster metadata


def metadata(
    *partitions: tuple[int, int], topic_id: bytes = b"i" * 16, error: int = 0, brokers: tuple[int, ...] = (1, 2)
) -> m.MetadataResponse:
    return m.MetadataResponse(
        brokers=[m.MetadataResponseBroker(node_id=node, host=f"h{node}", port=1) for node in brokers],
        topics=[
            m.MetadataResponseTopic(
                name="t",
                error_code=error,
                topic_id=topic_id,
                partitions=[
                    m.MetadataResponsePartition(partition_index=index, leader_id=leader, leader_epoch=epoch)
                    for index, (leader, epoch) in enumerate(partitions)
                ],
            )
        ],
    )


def a_cluster(*partitions: tuple[int, int]) -> Cluster:
    cluster = Cluster(max_age_ms=1000)
    cluster.want("t", 0)
    cluster.apply(metadata(*partitions), 0, asked=["t"])
    return cluster


def test_a_leader_and_its_epoch_are_known_as_long_as_its_address() -> None:
    cluster = a_cluster((1, 5), (9, 2))
    assert cluster.leader("t", 0) == (1, 5)
    assert cluster.leader("t", 1) is None
    assert cluster.leader("t", 2) is None
    assert "has 2 partitions" in cluster.why_not("t", 2)


def test_stale_metadata_does_not_restore_an_old_leader() -> None:
    cluster = a_cluster((2, 6))
    cluster.apply(metadata((1, 5)), 1, asked=["t"])
    assert cluster.leader("t", 0) == (2, 6)
    cluster.apply(metadata((1, 7)), 2, asked=["t"])
    assert cluster.leader("t", 0) == (1, 7)


def test_a_recreated_topic_restarts_its_epochs() -> None:
    cluster = a_cluster((2, 6))
    cluster.apply(metadata((1, 0), topic_id=b"j" * 16), 1, asked=["t"])
    assert cluster.leader("t", 0) == (1, 0)
    assert cluster.names == {b"j" * 16: "t"}


def test_a_leader_hint_is_used_if_newer_and_its_broker_is_known() -> None:
    cluster = a_cluster((1, 5))
    assert not cluster.hint("t", 0, leader=2, leader_epoch=5)
    assert not cluster.hint("t", 0, leader=3, leader_epoch=6)
    assert cluster.hint("t", 0, leader=3, leader_epoch=6, endpoints=[(3, "h3", 1, None)])
    assert cluster.leader("t", 0) == (3, 6)


def test_metadata_is_refreshed_when_old_or_stale_or_for_a_new_topic() -> None:
    cluster = a_cluster((1, 0))
    assert cluster.due_ms() == 1000
    cluster.want("t", 5)
    assert cluster.due_ms() == 1000
    cluster.want("other", 5)
    assert cluster.due_ms() == float("-inf")
    assert [topic.name for topic in cluster.request(5).topics or ()] == ["t", "other"]


def test_a_partition_without_a_leader_triggers_a_refresh() -> None:
    assert a_cluster((-1, 0)).due_ms() == float("-inf")


def test_a_deleted_topic_disappears() -> None:
    cluster = a_cluster((1, 0))
    cluster.apply(metadata(error=3), 1, asked=["t"])
    assert cluster.partition_count("t") is None
    assert cluster.fatal("t") is None
    assert "t: " in cluster.why_not("t")


def test_an_unauthorized_topic_is_fatal() -> None:
    cluster = Cluster(max_age_ms=1000)
    cluster.apply(metadata(error=29), 0, asked=["t"])
    assert isinstance(cluster.fatal("t"), TopicAuthorizationFailed)


def test_a_known_topic_that_stays_unknown_was_deleted() -> None:
    cluster = a_cluster((1, 0))
    cluster.apply(metadata(error=3), 10, asked=["t"])
    assert cluster.deleted("t", 0, 10 + GONE_MS - 1) is None, "the broker that answered can have stale metadata"
    cluster.apply(metadata(error=3), 500, asked=["t"])
    assert "t was deleted" in str(cluster.deleted("t", 0, 10 + GONE_MS))
    cluster.apply(metadata((1, 0)), 600, asked=["t"])
    assert cluster.deleted("t", 0, 10 + GONE_MS) is None


def test_a_topic_that_was_never_known_was_not_deleted() -> None:
    cluster = Cluster(max_age_ms=1000)
    cluster.apply(metadata(error=3), 0, asked=["t"])
    assert cluster.deleted("t", None, 2 * GONE_MS) is None


def test_a_topic_keeps_its_partition_count_unless_recreated() -> None:
    cluster = a_cluster((1, 0), (2, 0))
    cluster.apply(metadata((1, 0)), 10, asked=["t"])
    assert cluster.partition_count("t") == 2, "the response of a broker with stale metadata"
    cluster.apply(metadata((1, 0), topic_id=b"n" * 16), 20, asked=["t"])
    assert cluster.deleted("t", 0, 20) is None
    assert "made again with 1 partitions" in str(cluster.deleted("t", 1, 20))


def test_an_unused_topic_is_no_longer_requested() -> None:
    cluster = a_cluster((1, 0))
    assert cluster.request(10 * 60 * 1000).topics == []


def test_topics_that_are_only_described_are_not_created_and_take_turns_with_others() -> None:
    cluster = Cluster(max_age_ms=1000)
    cluster.want("question", 0, create=False)
    asked = cluster.request(0)
    assert ([topic.name for topic in asked.topics or ()], asked.allow_auto_topic_creation) == (["question"], False)
    cluster.want("output", 0)
    both = [cluster.request(0), cluster.request(0)]
    assert [([topic.name for topic in one.topics or ()], one.allow_auto_topic_creation) for one in both] == [
        (["output"], True),
        (["question", "output"], False),
    ]
    cluster.want("question", 0)
    assert cluster.due_ms() == float("-inf")
    assert cluster.request(0).allow_auto_topic_creation
    assert not Cluster(max_age_ms=1000, allow_auto_create=False).request(0).allow_auto_topic_creation

"""Small pure parts: settings, backoff, in-flight limit, partitioner, fetch sessions, the cluster's picture."""

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


def test_settings_are_taken_as_python_values_or_as_kafkas_text() -> None:
    options = from_keywords(
        ProducerOptions, {"acks": 1, "linger_ms": "7", "enable_idempotence": "false", "bootstrap_servers": ["a:1", "b:2"]}
    )
    assert (options.acks, options.linger_ms, options.enable_idempotence) == ("1", 7, False)
    assert options.bootstrap_servers == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("settings", "said"),
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
def test_a_bad_setting_is_refused_by_name(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        from_keywords(ProducerOptions, settings)


def test_idempotence_gives_way_to_settings_it_cannot_live_with_unless_asked_for() -> None:
    assert from_keywords(ProducerOptions, {}).enable_idempotence
    assert not from_keywords(ProducerOptions, {"acks": 1}).enable_idempotence
    assert not from_keywords(ProducerOptions, {"retries": 0}).enable_idempotence


def test_each_setting_has_kafkas_name_and_a_sentence() -> None:
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
def test_a_broker_address_without_a_port_is_told_with_the_usual_one(servers: str, problem: str | None) -> None:
    found = address_problem(servers)
    assert found is None if problem is None else problem in str(found)


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert address_text("::1", 5) == "[::1]:5"


# -- backoff and limits


def test_pauses_double_up_to_a_limit_and_start_again_after_a_success() -> None:
    backoff = Backoff(100, 1000, Random(3))
    pauses = [backoff.failed() for _ in range(6)]
    for pause, middle in zip(pauses, (100, 200, 400, 800, 1000, 1000), strict=True):
        assert 0.8 * middle <= pause <= 1.2 * middle
    backoff.succeeded()
    assert backoff.failed() <= 120


def test_two_clients_do_not_come_back_at_the_same_time() -> None:
    assert Backoff(100, 1000, Random(1)).failed() != Backoff(100, 1000, Random(2)).failed()


def test_a_broker_owes_at_most_so_many_answers() -> None:
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


def test_the_first_fetch_is_whole_and_the_next_says_only_what_changed() -> None:
    session = FetchSession()
    first = session.request({A: an_ask(), B: an_ask()}, by_id=True)
    assert (first.session_id, first.epoch, set(first.send)) == (0, 0, {A, B})
    session.answered(0, 9)
    second = session.request({A: an_ask(5), B: an_ask()}, by_id=True)
    assert (second.session_id, second.epoch, second.send, second.forget) == (9, 1, {A: an_ask(5)}, [])
    session.answered(0, 9)
    third = session.request({A: an_ask(5)}, by_id=True)
    assert (third.epoch, third.send, third.forget) == (2, {}, [(B, b"i" * 16)])


def test_a_topic_made_again_is_forgotten_under_its_old_id() -> None:
    session = FetchSession()
    session.request({A: an_ask()}, by_id=True)
    session.answered(0, 9)
    changed = session.request({A: an_ask(topic_id=b"j" * 16)}, by_id=True)
    assert changed.forget == [(A, b"i" * 16)]
    assert set(changed.send) == {A}


@pytest.mark.parametrize(("code", "session_id"), [(70, 0), (71, 9), (106, 9)])
def test_after_a_session_error_the_next_fetch_is_whole(code: int, session_id: int) -> None:
    session = FetchSession()
    session.request({A: an_ask()}, by_id=True)
    session.answered(0, 9)
    session.request({A: an_ask()}, by_id=True)
    session.answered(code, 0)
    again = session.request({A: an_ask()}, by_id=True)
    assert (again.session_id, again.epoch, set(again.send)) == (session_id, 0, {A})


def test_a_broker_without_room_for_sessions_gets_whole_fetches() -> None:
    session = FetchSession()
    for _ in range(2):
        assert session.request({A: an_ask()}, by_id=True).epoch == 0
        session.answered(0, 0)


def test_a_fetch_without_an_answer_makes_the_next_whole() -> None:
    session = FetchSession()
    session.request({A: an_ask()}, by_id=True)
    session.answered(0, 9)
    session.request({A: an_ask(1)}, by_id=True)
    session.failed()
    assert session.request({A: an_ask(1)}, by_id=True).epoch == 0


def test_a_session_by_name_cannot_go_on_by_id() -> None:
    session = FetchSession()
    session.request({A: an_ask()}, by_id=False)
    session.answered(0, 9)
    assert session.request({A: an_ask()}, by_id=True).epoch == 0


# -- the cluster


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


def test_a_leader_is_known_with_its_epoch_while_its_address_is() -> None:
    cluster = a_cluster((1, 5), (9, 2))
    assert cluster.leader("t", 0) == (1, 5)
    assert cluster.leader("t", 1) is None
    assert cluster.leader("t", 2) is None
    assert "has 2 partitions" in cluster.why_not("t", 2)


def test_an_answer_from_a_broker_that_lags_does_not_bring_an_old_leader_back() -> None:
    cluster = a_cluster((2, 6))
    cluster.apply(metadata((1, 5)), 1, asked=["t"])
    assert cluster.leader("t", 0) == (2, 6)
    cluster.apply(metadata((1, 7)), 2, asked=["t"])
    assert cluster.leader("t", 0) == (1, 7)


def test_a_topic_made_again_starts_its_epochs_over() -> None:
    cluster = a_cluster((2, 6))
    cluster.apply(metadata((1, 0), topic_id=b"j" * 16), 1, asked=["t"])
    assert cluster.leader("t", 0) == (1, 0)
    assert cluster.names == {b"j" * 16: "t"}


def test_a_hint_is_taken_when_it_is_newer_and_its_leader_can_be_reached() -> None:
    cluster = a_cluster((1, 5))
    assert not cluster.hint("t", 0, leader=2, leader_epoch=5)
    assert not cluster.hint("t", 0, leader=3, leader_epoch=6)
    assert cluster.hint("t", 0, leader=3, leader_epoch=6, endpoints=[(3, "h3", 1, None)])
    assert cluster.leader("t", 0) == (3, 6)


def test_metadata_is_due_when_old_wrong_or_when_a_topic_is_new() -> None:
    cluster = a_cluster((1, 0))
    assert cluster.due_ms() == 1000
    cluster.want("t", 5)
    assert cluster.due_ms() == 1000
    cluster.want("other", 5)
    assert cluster.due_ms() == float("-inf")
    assert [topic.name for topic in cluster.request(5).topics or ()] == ["t", "other"]


def test_a_partition_without_a_leader_is_asked_for_again() -> None:
    assert a_cluster((-1, 0)).due_ms() == float("-inf")


def test_a_deleted_topic_disappears() -> None:
    cluster = a_cluster((1, 0))
    cluster.apply(metadata(error=3), 1, asked=["t"])
    assert cluster.partition_count("t") is None
    assert cluster.fatal("t") is None
    assert "t: " in cluster.why_not("t")


def test_a_topic_that_may_not_be_seen_is_fatal() -> None:
    cluster = Cluster(max_age_ms=1000)
    cluster.apply(metadata(error=29), 0, asked=["t"])
    assert isinstance(cluster.fatal("t"), TopicAuthorizationFailed)


def test_a_topic_that_was_here_and_stays_unknown_was_deleted() -> None:
    cluster = a_cluster((1, 0))
    cluster.apply(metadata(error=3), 10, asked=["t"])
    assert cluster.deleted("t", 0, 10 + GONE_MS - 1) is None, "the broker that answered may lag behind the others"
    cluster.apply(metadata(error=3), 500, asked=["t"])
    assert "t was deleted" in str(cluster.deleted("t", 0, 10 + GONE_MS))
    cluster.apply(metadata((1, 0)), 600, asked=["t"])
    assert cluster.deleted("t", 0, 10 + GONE_MS) is None


def test_a_topic_that_never_was_here_was_not_deleted() -> None:
    cluster = Cluster(max_age_ms=1000)
    cluster.apply(metadata(error=3), 0, asked=["t"])
    assert cluster.deleted("t", None, 2 * GONE_MS) is None


def test_a_topic_keeps_its_partitions_unless_it_was_made_again() -> None:
    cluster = a_cluster((1, 0), (2, 0))
    cluster.apply(metadata((1, 0)), 10, asked=["t"])
    assert cluster.partition_count("t") == 2, "an answer of a broker that lags"
    cluster.apply(metadata((1, 0), topic_id=b"n" * 16), 20, asked=["t"])
    assert cluster.deleted("t", 0, 20) is None
    assert "made again with 1 partitions" in str(cluster.deleted("t", 1, 20))


def test_a_topic_that_nobody_uses_is_no_longer_asked_for() -> None:
    cluster = a_cluster((1, 0))
    assert cluster.request(10 * 60 * 1000).topics == []


def test_topics_that_are_only_looked_up_are_not_created_and_others_are_asked_about_in_turn() -> None:
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

"""Client quotas: which one applies, what is counted, how long a client is throttled, and how tools set quotas."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from access_rules import AUTHORIZER
from cluster import Broker, Cluster, Sent, batch, fetch_request, produce_request, values
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.base.ids import NO_TOPIC_ID, ConnectionId
from ottla.base.origin import ANONYMOUS, Origin
from ottla.base.ports import Op
from ottla.base.sampled_rate import SampledRate, TokenBucket, Window
from ottla.base.units import MINUTE_MS, SECOND_MS
from ottla.broker import events
from ottla.broker.quotas.client_quotas import NAME_MAX
from ottla.broker.quotas.limits import CLIENT_KEYS, Limit, Quota, QuotaLimits
from ottla.broker.registration.peers import PEER
from ottla.store import layout, layout_quotas
from ottla.store.layout_quotas import QuotaEntity
from ottla.wire import errors
from ottla.wire.messages import alter_client_quotas as altering
from ottla.wire.messages import describe_client_quotas as describing
from ottla.wire.messages.alter_client_quotas import AlterClientQuotasRequest
from ottla.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from ottla.wire.messages.incremental_alter_configs import AlterConfigsResource, IncrementalAlterConfigsRequest
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

ALICE = "User:alice"
#: Requests of tests without a principal may do everything; Alice may do nothing.
RULES = {**AUTHORIZER, "super.users": f"{ANONYMOUS};User:broker", "allow.everyone.if.no.acl.found": "false"}
EXCEEDED = errors.ThrottlingQuotaExceeded.code
INVALID = errors.InvalidRequest.code


def change(entity: dict[str, str | None], quotas: dict[str, float | None], *, twice: bool = False) -> altering.EntryData:
    parts = [altering.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    ops = [altering.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()]
    return altering.EntryData(entity=parts, ops=ops * (2 if twice else 1))


def alter(broker: Broker, *entries: altering.EntryData, validate_only: bool = False) -> list[int]:
    """The error code of each entity."""
    answer = broker.ask(AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only), 1)
    assert all((entry.error_code == 0) == (entry.error_message is None) for entry in answer.entries)
    return [entry.error_code for entry in answer.entries]


def set_quota(cluster: Cluster, entity: dict[str, str | None], **quotas: float | None) -> None:
    assert alter(cluster.controller, change(entity, quotas)) == [0]


def describe(
    broker: Broker, *components: tuple[str, int, str | None], strict: bool = False
) -> dict[tuple[tuple[str, str | None], ...], Any]:
    wanted = [describing.ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    answer = broker.ask(DescribeClientQuotasRequest(components=wanted, strict=strict), 1)
    if answer.error_code:
        assert answer.entries is None
        return {(): answer.error_code}
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {one.key: one.value for one in entry.values}
        for entry in answer.entries
    }


def send_while_muted(cluster: Cluster, duration_ms: int, send: Callable[[], tuple[Sent, int]]) -> int:
    """One client sends, waits while it is muted, and sends again; what it moved in this time."""
    end_ms, moved = cluster.now_ms + duration_ms, 0
    while cluster.now_ms < end_ms:
        sent, size = send()
        moved += size
        cluster.pass_ms(max(1, min(sent.throttle_ms, end_ms - cluster.now_ms)))
    return moved


# Rates.


def test_a_rate_is_the_mean_over_at_least_ten_samples() -> None:
    rate = SampledRate(Window())
    rate.record(1_000, 0)
    assert rate.rate(0) == 100
    assert rate.throttle_ms(50, 0) == 10_000


def test_a_rate_is_down_to_the_bound_after_the_throttle_time() -> None:
    rate = SampledRate(Window())
    now_ms = 0
    for now_ms in range(0, 30_000, 500):
        rate.record(150, now_ms)
    throttle_ms = rate.throttle_ms(200, now_ms)
    assert throttle_ms > 0
    assert rate.throttle_ms(200, now_ms + throttle_ms) == 0


def test_samples_without_events_for_the_whole_window_count_no_more() -> None:
    rate = SampledRate(Window(samples=2, sample_ms=1_000))
    rate.record(10, 0)
    assert rate.rate(1_999) > 0
    assert rate.rate(2_000) == 0


def test_a_bucket_holds_the_tokens_of_its_capacity_and_can_be_overdrawn() -> None:
    bucket = TokenBucket(5_000, 0, 2)
    bucket.take(15, 2, 0)
    assert bucket.tokens(2, 0) == -5
    assert bucket.throttle_ms(2, 500) == 2_000
    assert bucket.tokens(2, 60_000) == 10


# Precedence.

NAMES = st.sampled_from(["", "a", "b"])
ENTITIES = st.one_of(
    st.builds(QuotaEntity, user=NAMES), st.builds(QuotaEntity, client=NAMES), st.builds(QuotaEntity, user=NAMES, client=NAMES)
)


def naive(quotas: dict[QuotaEntity, float], user: str, client: str) -> Limit | None:
    """The order of KIP-55, written down."""
    order = [
        (QuotaEntity(user, client), (user, client)),
        (QuotaEntity(user, ""), (user, client)),
        (QuotaEntity(user), (user, "")),
        (QuotaEntity("", client), (user, client)),
        (QuotaEntity("", ""), (user, client)),
        (QuotaEntity(""), (user, "")),
        (QuotaEntity(None, client), ("", client)),
        (QuotaEntity(None, ""), ("", client)),
    ]
    return next((Limit(*owner, quotas[entity]) for entity, owner in order if entity in quotas), None)


@given(st.dictionaries(ENTITIES, st.integers(1, 100)), st.sampled_from(["a", "b", "c"]), st.sampled_from(["a", "b", "c"]))
@settings(max_examples=300, deadline=None)
def test_the_most_specific_quota_applies(quotas: dict[QuotaEntity, int], user: str, client: str) -> None:
    limits = QuotaLimits.of((entity, {Quota.FETCH: str(value)}) for entity, value in quotas.items())
    assert limits.find(Quota.FETCH, user, client) == naive({entity: float(value) for entity, value in quotas.items()}, user, client)


@given(st.lists(st.tuples(ENTITIES, st.dictionaries(st.sampled_from([Quota.FETCH, Quota.PRODUCE]), st.integers(1, 9), max_size=2))))
@settings(max_examples=100, deadline=None)
def test_changes_one_by_one_give_the_same_limits_as_all_at_once(changes: list[tuple[QuotaEntity, dict[Quota, int]]]) -> None:
    made, nodes = QuotaLimits(), {}
    for entity, quotas in changes:
        nodes[entity] = {str(key): str(value) for key, value in quotas.items()}
        made.change(entity, nodes[entity])
    assert made == QuotaLimits.of(nodes.items())


def test_a_client_without_id_has_the_quotas_of_users_only() -> None:
    quotas = {QuotaEntity(client=""): "1", QuotaEntity(user="", client=""): "2"}
    assert QuotaLimits.of((one, {Quota.FETCH: text}) for one, text in quotas.items()).find(Quota.FETCH, "alice", "") is None
    quotas[QuotaEntity(user="")] = "3"
    found = QuotaLimits.of((one, {Quota.FETCH: text}) for one, text in quotas.items()).find(Quota.FETCH, "alice", "")
    assert found == Limit("alice", "", 3)


# Produce and fetch.


def a_producer(broker: Broker, size: int = 10_000, **fields: Any) -> Callable[[], tuple[Sent, int]]:
    request = produce_request(batch(bytes(size)), **{"acks": 1, **fields})

    def send() -> tuple[Sent, int]:
        sent = broker.send(request, 9, client_id="loud")
        assert sent.answer is not None and sent.answer.throttle_time_ms == sent.throttle_ms
        return sent, size

    return send


def test_a_producer_far_above_its_quota_is_held_to_it() -> None:
    """Line 6."""
    cluster = Cluster()
    broker = cluster.topic()
    set_quota(cluster, {"client-id": "loud"}, producer_byte_rate=20_000)
    send = a_producer(broker)
    send_while_muted(cluster, 15 * SECOND_MS, send)
    moved = send_while_muted(cluster, MINUTE_MS, send)
    assert moved / 60 == pytest.approx(20_000, rel=0.02)


def test_other_clients_are_not_throttled() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    set_quota(cluster, {"client-id": "loud"}, producer_byte_rate=1)
    send = a_producer(broker)
    assert send()[0].throttle_ms > 0
    assert broker.send(produce_request(batch(b"a"), acks=1), 9, client_id="quiet").throttle_ms == 0


def test_a_consumer_far_above_its_quota_is_held_to_it() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    for _ in range(30):
        broker.ask(produce_request(batch(bytes(10_000)), acks=-1), 9)
    set_quota(cluster, {"client-id": "loud"}, consumer_byte_rate=20_000)

    def send() -> tuple[Sent, int]:
        sent = broker.send(fetch_request(0, max_bytes=10_000), 12, client_id="loud")
        assert sent.answer.throttle_time_ms == sent.throttle_ms
        assert bool(sent.throttle_ms) == (not sent.answer.responses), "a throttled answer is empty"
        return sent, 0 if sent.throttle_ms else len(sent.answer.responses[0].partitions[0].records)

    send_while_muted(cluster, 15 * SECOND_MS, send)
    moved = send_while_muted(cluster, MINUTE_MS, send)
    assert moved / 60 == pytest.approx(20_000, rel=0.02)


def test_a_fetch_returns_at_most_the_quota_of_the_window() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    for _ in range(10):
        broker.ask(produce_request(batch(bytes(1_000)), acks=-1), 9)
    set_quota(cluster, {"client-id": "loud"}, consumer_byte_rate=300)
    sent = broker.send(fetch_request(0), 12, client_id="loud")
    assert sent.throttle_ms == 0
    assert len(values(sent.answer.responses[0].partitions[0].records)) == 2


def test_a_batch_above_the_quota_of_the_window_is_served_and_paid_off() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    broker.ask(produce_request(batch(bytes(10_000)), acks=-1), 9)
    set_quota(cluster, {"client-id": "loud"}, consumer_byte_rate=100)
    first = broker.send(fetch_request(0), 12, client_id="loud")
    assert first.throttle_ms == 0 and first.answer.responses
    second = broker.send(fetch_request(0), 12, client_id="loud")
    # 10,000 bytes are 100 s of the quota, and the window has 10 s.
    assert not second.answer.responses and 90 * SECOND_MS < second.throttle_ms < 92 * SECOND_MS
    cluster.pass_ms(second.throttle_ms)
    assert broker.send(fetch_request(0), 12, client_id="loud").answer.responses


def test_a_throttled_fetch_keeps_the_session_and_loses_no_records() -> None:
    """Line 6."""
    cluster = Cluster()
    broker = cluster.topic()
    set_quota(cluster, {"client-id": "loud"}, consumer_byte_rate=100)
    broker.ask(produce_request(batch(bytes(1_500)), acks=-1), 9)
    opened = broker.send(fetch_request(0, session_epoch=0), 12, client_id="loud").answer
    assert opened.session_id and opened.responses
    broker.ask(produce_request(batch(bytes(1_500)), acks=-1), 9)
    again = fetch_request(1, session_epoch=1, session_id=opened.session_id)
    sent = broker.send(again, 12, client_id="loud")
    assert sent.throttle_ms and sent.answer.session_id == opened.session_id and not sent.answer.responses
    cluster.pass_ms(sent.throttle_ms)
    again = fetch_request(1, session_epoch=2, session_id=opened.session_id)
    sent = broker.send(again, 12, client_id="loud")
    assert not sent.throttle_ms and len(values(sent.answer.responses[0].partitions[0].records)) == 1


def test_a_throttled_full_fetch_opens_no_session() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    broker.ask(produce_request(batch(bytes(3_000)), acks=-1), 9)
    set_quota(cluster, {"client-id": "loud"}, consumer_byte_rate=100)
    broker.send(fetch_request(0), 12, client_id="loud")
    sent = broker.send(fetch_request(0, session_epoch=0), 12, client_id="loud")
    assert sent.throttle_ms and not sent.answer.session_id and not len(broker.node.sessions)


def test_a_waiting_fetch_is_counted_when_it_is_answered() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    set_quota(cluster, {"client-id": "loud"}, consumer_byte_rate=10)
    broker.ask(produce_request(batch(bytes(3_000)), acks=-1), 9)
    assert broker.send(fetch_request(0), 12, client_id="loud").answer.responses
    sent = broker.send(fetch_request(1, max_wait_ms=1_000), 12, client_id="loud")
    assert sent.waits
    broker.ask(produce_request(batch(b"a"), acks=-1), 9)
    assert sent.answer.throttle_time_ms > 0 and not sent.answer.responses


def test_followers_are_exempt() -> None:
    cluster = Cluster(3)
    broker = cluster.topic(replicas=3)
    set_quota(cluster, {"client-id": None}, consumer_byte_rate=1)
    for _ in range(5):
        assert broker.send(produce_request(batch(bytes(5_000))), 9).answer.responses[0].partition_responses[0].error_code == 0
    assert broker.leader("t").high_watermark == 5


def test_a_producer_without_answers_is_muted_too() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    set_quota(cluster, {"client-id": "loud"}, producer_byte_rate=100)
    sent = broker.send(produce_request(batch(bytes(10_000)), acks=0), 9, client_id="loud")
    assert sent.released and sent.throttle_ms > 0


def test_a_version_without_a_throttle_time_is_muted_all_the_same() -> None:
    cluster = Cluster()
    cluster.topic()
    broker = cluster[1]
    set_quota(cluster, {"client-id": "loud"}, request_percentage=0.001)
    timed(broker, "loud", 1_000_000)
    sent = broker.send(MetadataRequest(topics=[]), 1, client_id="loud")
    assert sent.throttle_ms > 0


def test_a_usage_outlives_a_change_of_its_quota() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    set_quota(cluster, {"client-id": "loud"}, producer_byte_rate=1_000_000)
    send = a_producer(broker)
    assert send()[0].throttle_ms == 0
    set_quota(cluster, {"client-id": "loud"}, producer_byte_rate=100)
    assert send()[0].throttle_ms > 90 * SECOND_MS
    set_quota(cluster, {"client-id": "loud"}, producer_byte_rate=None)
    assert send()[0].throttle_ms == 0 and not broker.node.context.quotas.active


def test_usages_are_bounded_in_number_and_time() -> None:
    cluster = Cluster(settings={"ottla.quota.clients.max": "3"})
    broker = cluster.topic()
    set_quota(cluster, {"client-id": None}, producer_byte_rate=10)
    for number in range(5):
        broker.send(produce_request(batch(b"a"), acks=1), 9, client_id=f"client-{number}")
    quotas = broker.node.context.quotas
    assert {usage.client_id for usage in quotas.metrics()} == {"client-2", "client-3", "client-4"}
    cluster.jump_ms(61 * MINUTE_MS)
    assert len(quotas) == 0


def test_long_client_ids_that_begin_alike_share_a_usage() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    set_quota(cluster, {"client-id": None}, producer_byte_rate=10)
    for number in range(3):
        broker.send(produce_request(batch(b"a"), acks=1), 9, client_id=f"{'c' * 30_000}{number}")
    assert [usage.client_id for usage in broker.node.context.quotas.metrics()] == ["c" * NAME_MAX]


def test_metrics_have_kafkas_names() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    set_quota(cluster, {"user": "alice"}, producer_byte_rate=100, controller_mutation_rate=1)
    broker.send(produce_request(batch(bytes(10_000)), acks=1), 9, principal=ALICE)
    create(broker, "a", principal=ALICE)
    found = {usage.type: usage for usage in broker.node.context.quotas.metrics()}
    assert (found["Produce"].user, found["Produce"].client_id) == ("alice", "")
    assert found["Produce"].values["byte-rate"] > 1_000 and found["Produce"].values["throttle-time"] > 0
    assert set(found["ControllerMutation"].values) == {"mutation-rate", "tokens", "throttle-time"}


def test_only_brokers_are_exempt_by_their_client_id() -> None:
    """With access rules those with ClusterAction, without them those at the address of a broker."""
    cases: list[tuple[dict[str, str], str, bool]] = [
        ({}, ALICE, True),
        (RULES, ALICE, False),
        (RULES, "User:broker", True),
    ]
    for rules, principal, exempt in cases:
        cluster = Cluster(settings=rules)
        broker = cluster.topic()
        set_quota(cluster, {"client-id": None}, producer_byte_rate=1)
        request = produce_request(batch(b"a"), acks=1)
        sent = broker.send(request, 9, client_id=PEER, principal=principal)
        assert bool(sent.throttle_ms) != exempt, (rules, principal)


def test_a_forwarded_request_does_not_mute_the_connection_of_the_broker() -> None:
    cluster = Cluster(2, settings=RULES)
    other = next(broker for broker in cluster.brokers.values() if broker is not cluster.controller)
    set_quota(cluster, {"client-id": "busy"}, request_percentage=1)
    for broker in cluster.brokers.values():
        timed(broker, "busy", 110_000_000)
    sent = create(other, "a", client_id="busy")
    assert codes(sent) == [0] and sent.throttle_ms == 1_000


# Request time.


def timed(broker: Broker, client_id: str, spent_ns: int) -> None:
    """A request of the client took this long."""
    broker.handle(
        events.RequestTimed(connection=ConnectionId(99), api_key=16, client_id=client_id, origin=Origin(host="client"), spent_ns=spent_ns)
    )


def test_request_time_above_the_quota_mutes_for_at_most_a_sample() -> None:
    cluster = Cluster()
    broker = cluster[1]
    set_quota(cluster, {"client-id": "busy"}, request_percentage=1)
    assert broker.node.context.quotas.timed
    timed(broker, "busy", 110_000_000)
    sent = broker.send(ListGroupsRequest(), 4, client_id="busy")
    # 0.11 s in 10 s are 1.1 %: 1 s above the quota.
    assert sent.throttle_ms == sent.answer.throttle_time_ms == 1_000
    assert broker.send(ListGroupsRequest(), 4, client_id="other").throttle_ms == 0


def test_the_longest_throttle_of_several_quotas_counts() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    set_quota(cluster, {"client-id": "loud"}, request_percentage=1, producer_byte_rate=100)
    timed(broker, "loud", 110_000_000)
    sent = a_producer(broker)()[0]
    assert sent.throttle_ms > 10 * SECOND_MS


def test_without_quotas_of_request_time_nothing_is_measured() -> None:
    cluster = Cluster()
    set_quota(cluster, {"client-id": "loud"}, producer_byte_rate=100)
    assert not cluster[1].node.context.quotas.timed


# Partitions created and deleted.


def create(broker: Broker, *names: str, partitions: int = 1, version: int = 7, validate_only: bool = False, **client: Any) -> Sent:
    topics = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    return broker.send(CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only), version, **client)


def codes(sent: Sent) -> list[int]:
    return [topic.error_code for topic in sent.answer.topics]


def a_limited_cluster(rate: float = 1, **fields: Any) -> Cluster:
    """Alice may create 5 partitions at once, and one per second."""
    cluster = Cluster(**fields, settings={"controller.quota.window.num": "5"})
    set_quota(cluster, {"user": "alice"}, controller_mutation_rate=rate)
    return cluster


def test_topics_are_created_until_the_bucket_is_overdrawn() -> None:
    cluster = a_limited_cluster()
    sent = create(cluster.controller, "a", "b", "c", "d", partitions=2, principal=ALICE)
    assert codes(sent) == [0, 0, 0, EXCEEDED]
    assert sent.throttle_ms == sent.answer.throttle_time_ms == 1_000
    assert set(cluster[1].node.context.image.topics) == {"a", "b", "c"}
    cluster.pass_ms(sent.throttle_ms)
    assert codes(create(cluster.controller, "d", principal=ALICE)) == [0]


def test_a_version_without_the_error_creates_all_and_is_throttled() -> None:
    cluster = a_limited_cluster()
    sent = create(cluster.controller, "a", "b", "c", "d", partitions=2, version=5, principal=ALICE)
    assert codes(sent) == [0, 0, 0, 0]
    assert sent.throttle_ms == 3_000


def test_refused_and_validated_topics_do_not_count() -> None:
    cluster = a_limited_cluster()
    assert codes(create(cluster.controller, *(f"t{n}" for n in range(8)), validate_only=True, principal=ALICE)) == [0] * 8
    assert codes(create(cluster.controller, "..", partitions=50, principal=ALICE)) == [errors.InvalidTopic.code]
    assert codes(create(cluster.controller, *(f"t{n}" for n in range(5)), principal=ALICE)) == [0] * 5


def test_users_without_the_quota_are_not_limited() -> None:
    cluster = a_limited_cluster()
    assert codes(create(cluster.controller, *(f"t{n}" for n in range(20)))) == [0] * 20


def delete(broker: Broker, *names: str, version: int, **client: Any) -> Sent:
    states = [DeleteTopicState(name=name, topic_id=NO_TOPIC_ID) for name in names]
    request = DeleteTopicsRequest(topics=states) if version >= 6 else DeleteTopicsRequest(topic_names=list(names))
    return broker.send(request, version, **client)


@pytest.mark.parametrize(
    ("version", "expected", "throttle_ms"), [(6, [0, 0, EXCEEDED], 1_000), (5, [0, 0, EXCEEDED], 1_000), (4, [0, 0, 0], 4_000)]
)
def test_deleted_partitions_count(version: int, expected: list[int], throttle_ms: int) -> None:
    cluster = a_limited_cluster()
    create(cluster.controller, "a", "b", "c", partitions=3)
    sent = delete(cluster.controller, "a", "b", "c", version=version, principal=ALICE)
    assert [topic.error_code for topic in sent.answer.responses] == expected
    assert sent.throttle_ms == throttle_ms


@pytest.mark.parametrize(("version", "expected", "throttle_ms"), [(3, [0, EXCEEDED], 1_000), (2, [0, 0], 7_000)])
def test_added_partitions_count(version: int, expected: list[int], throttle_ms: int) -> None:
    cluster = a_limited_cluster()
    create(cluster.controller, "a", "b", partitions=2)
    topics = [CreatePartitionsTopic(name=name, count=8, assignments=None) for name in ("a", "b")]
    sent = cluster.controller.send(CreatePartitionsRequest(topics=topics, timeout_ms=1000), version, principal=ALICE)
    assert [topic.error_code for topic in sent.answer.results] == expected
    assert sent.throttle_ms == throttle_ms


def test_automatic_creation_counts_too() -> None:
    cluster = a_limited_cluster()
    request = MetadataRequest(topics=[MetadataRequestTopic(name=f"auto{n}") for n in range(9)])
    cluster.controller.send(request, 12, principal=ALICE)
    # Five tokens, the sixth is overdrawn.
    assert len(cluster[1].node.context.image.topics) == 6


def test_only_the_controller_counts_so_other_brokers_do_not_forward() -> None:
    cluster = a_limited_cluster(brokers=2)
    other = next(broker for broker in cluster.brokers.values() if broker is not cluster.controller)
    assert codes(create(other, "a", principal=ALICE)) == [errors.NotController.code]
    assert codes(create(other, "a")) == [0]


# Setting quotas.


def test_quotas_are_in_kafkas_layout() -> None:
    cluster = Cluster()
    entities: list[dict[str, str | None]] = [
        {"user": "a b/c"},
        {"user": None},
        {"client-id": "x"},
        {"client-id": None},
        {"user": "u", "client-id": "x:1"},
    ]
    entities.append({"user": None, "client-id": None})
    for entity in entities:
        set_quota(cluster, entity, producer_byte_rate=1_048_576, request_percentage=12.5)
    set_quota(cluster, {"ip": "127.0.0.1"}, connection_creation_rate=5)
    set_quota(cluster, {"ip": None}, connection_creation_rate=7)
    nodes = cluster.store.tree.nodes
    found = {
        path: json.loads(node.data)["config"]
        for path, node in nodes.items()
        if layout_quotas.quota_entity_of(path) is not None and node.data
    }
    both = {"producer_byte_rate": "1048576", "request_percentage": "12.5"}
    assert found == {
        "/config/users/a%20b%2Fc": both,
        "/config/users/<default>": both,
        "/config/clients/x": both,
        "/config/clients/<default>": both,
        "/config/users/u/clients/x%3A1": both,
        "/config/users/<default>/clients/<default>": both,
        "/config/ips/127.0.0.1": {"connection_creation_rate": "5"},
        "/config/ips/<default>": {"connection_creation_rate": "7"},
    }
    assert [layout_quotas.quota_config(layout_quotas.quota_entity_of(path) or QuotaEntity()) for path in found] == list(found)
    assert describe(cluster[1], ("ip", describing.ANY, None)) == {
        (("ip", "127.0.0.1"),): {"connection_creation_rate": 5},
        (("ip", None),): {"connection_creation_rate": 7},
    }


def test_other_keys_of_a_user_stay() -> None:
    cluster = Cluster()
    secret = layout.encode_config({"SCRAM-SHA-256": "salt=..."})
    cluster.store.tree.apply([Op("create", "/config/users/alice", secret)], 0)
    cluster.restart(1)
    cluster.pass_ms(SECOND_MS)
    set_quota(cluster, {"user": "alice"}, consumer_byte_rate=5)
    assert describe(cluster[1]) == {(("user", "alice"),): {"consumer_byte_rate": 5}}
    set_quota(cluster, {"user": "alice"}, consumer_byte_rate=None)
    assert describe(cluster[1]) == {}
    assert layout.decode_config(cluster.store.tree.nodes["/config/users/alice"].data) == {"SCRAM-SHA-256": "salt=..."}


def test_a_user_with_quotas_of_client_ids_can_lose_everything_else() -> None:
    cluster = Cluster()
    deletion = ScramCredentialDeletion(name="alice", mechanism=1)
    upsertion = ScramCredentialUpsertion(name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32))
    for changes in ({"upsertions": [upsertion]}, {"deletions": [deletion]}):
        assert cluster[1].ask(AlterUserScramCredentialsRequest(**changes), 0).results[0].error_code == 0
        set_quota(cluster, {"user": "alice", "client-id": "etl"}, producer_byte_rate=1)
    set_quota(cluster, {"user": "alice"}, producer_byte_rate=2)
    set_quota(cluster, {"user": "alice"}, producer_byte_rate=None)
    assert describe(cluster[1]) == {(("user", "alice"), ("client-id", "etl")): {"producer_byte_rate": 1}}


def test_quotas_are_changed_and_removed_one_by_one() -> None:
    cluster = Cluster()
    client: dict[str, str | None] = {"client-id": "x"}
    set_quota(cluster, client, producer_byte_rate=1, consumer_byte_rate=2)
    set_quota(cluster, client, producer_byte_rate=3)
    assert describe(cluster[1]) == {(("client-id", "x"),): {"producer_byte_rate": 3, "consumer_byte_rate": 2}}
    set_quota(cluster, client, producer_byte_rate=None, request_percentage=None)
    assert describe(cluster[1]) == {(("client-id", "x"),): {"consumer_byte_rate": 2}}
    set_quota(cluster, client, consumer_byte_rate=None)
    assert describe(cluster[1]) == {}
    assert "/config/clients/x" not in cluster.store.tree.nodes and not cluster[1].node.context.image.quotas


def test_a_change_that_is_only_validated_is_not_made() -> None:
    cluster = Cluster()
    assert alter(cluster[1], change({"client-id": "x"}, {"producer_byte_rate": 1}), validate_only=True) == [0]
    assert alter(cluster[1], change({"client-id": "x"}, {"producer_byte_rate": -1}), validate_only=True) == [INVALID]
    assert describe(cluster[1]) == {}


@pytest.mark.parametrize(
    ("entity", "quotas"),
    [
        ({}, {"producer_byte_rate": 1}),
        ({"group": "x"}, {"producer_byte_rate": 1}),
        ({"user": ""}, {"producer_byte_rate": 1}),
        ({"user": "x", "ip": "1.2.3.4"}, {"connection_creation_rate": 1}),
        ({"ip": "1.2.3"}, {"connection_creation_rate": 1}),
        ({"ip": "a b"}, {"connection_creation_rate": 1}),
        ({"ip": "1.2.3.4"}, {"producer_byte_rate": 1}),
        ({"user": "x"}, {"connection_creation_rate": 1}),
        ({"user": "x"}, {"SCRAM-SHA-256": 1}),
        ({"user": "x"}, {"unknown": 1}),
        ({"user": "x"}, {"producer_byte_rate": 0}),
        ({"user": "x"}, {"producer_byte_rate": -1}),
        ({"user": "x"}, {"producer_byte_rate": 1.5}),
        ({"user": "x"}, {"producer_byte_rate": 1e30}),
        ({"user": "x"}, {"request_percentage": float("nan")}),
        ({"ip": "1.2.3.4"}, {"connection_creation_rate": 2**31}),
    ],
)
def test_wrong_quotas_are_refused(entity: dict[str, str | None], quotas: dict[str, float | None]) -> None:
    cluster = Cluster()
    good = change({"client-id": "x"}, {"producer_byte_rate": 1})
    assert alter(cluster[1], change(entity, quotas), good) == [INVALID, 0]
    assert describe(cluster[1]) == {(("client-id", "x"),): {"producer_byte_rate": 1}}


def test_what_is_named_twice_is_refused() -> None:
    cluster = Cluster()
    entry = change({"client-id": "x"}, {"producer_byte_rate": 1})
    assert alter(cluster[1], entry, entry) == [INVALID]
    assert alter(cluster[1], change({"client-id": "x"}, {"producer_byte_rate": 1}, twice=True)) == [INVALID]
    assert describe(cluster[1]) == {}


def test_every_broker_describes_and_forwards_changes() -> None:
    cluster = Cluster(2)
    for broker in cluster.brokers.values():
        assert alter(broker, change({"client-id": str(broker.broker_id)}, {"producer_byte_rate": 1})) == [0]
    assert all(len(describe(broker)) == 2 for broker in cluster.brokers.values())


E, D, A = describing.EXACT, describing.DEFAULT, describing.ANY


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ([], False, {"u", "U", "c", "uc", "uC"}),
        ([], True, set()),
        ([("user", E, "u")], False, {"u", "uc", "uC"}),
        ([("user", E, "u")], True, {"u"}),
        ([("user", D, None)], False, {"U"}),
        ([("user", A, None)], True, {"u", "U"}),
        ([("user", A, None), ("client-id", A, None)], True, {"uc", "uC"}),
        ([("user", E, "u"), ("client-id", D, None)], False, {"uC"}),
        ([("client-id", E, "c")], False, {"c", "uc"}),
        ([("user", E, "")], False, set()),
    ],
)
def test_filters(components: list[tuple[str, int, str | None]], strict: bool, expected: set[str]) -> None:
    cluster = Cluster()
    entities: dict[str, dict[str, str | None]] = {
        "u": {"user": "u"},
        "U": {"user": None},
        "c": {"client-id": "c"},
        "uc": {"user": "u", "client-id": "c"},
        "uC": {"user": "u", "client-id": None},
    }
    for entity in entities.values():
        set_quota(cluster, entity, producer_byte_rate=1)
    found = describe(cluster[1], *components, strict=strict)
    assert set(found) == {tuple(entities[name].items()) for name in expected}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", A, None)], INVALID),
        ([("user", A, None), ("user", D, None)], INVALID),
        ([("group", A, None)], errors.UnsupportedVersion.code),
        ([("user", E, None)], INVALID),
        ([("user", D, "u")], INVALID),
        ([("user", A, "u")], INVALID),
        ([("user", 3, None)], INVALID),
        ([("user", A, None), ("ip", A, None)], INVALID),
    ],
)
def test_wrong_filters_are_refused(components: list[tuple[str, int, str | None]], code: int) -> None:
    assert describe(Cluster()[1], *components) == {(): code}


def test_users_are_no_resources_with_settings() -> None:
    for kind in (3, 5, 6):
        request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(resource_type=kind, resource_name="u")])
        assert Cluster()[1].ask(request, 1).responses[0].error_code != 0


def test_a_host_name_is_accepted_for_an_ip() -> None:
    cluster = Cluster()
    for name in ("localhost", "a.example.com", "::1"):
        set_quota(cluster, {"ip": name}, connection_creation_rate=1)
    assert cluster[1].adopted >= 3


def test_the_quotas_of_clients_are_those_of_kafka() -> None:
    assert set(CLIENT_KEYS) == {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}

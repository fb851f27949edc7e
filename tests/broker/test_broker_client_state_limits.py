"""Limits of the state that clients create on a broker, except groups: producers, fetch sessions, settings."""

from contextlib import suppress
from random import Random

import pytest
from cluster import WALL_MS, Cluster, batch, fetch_request, produce

from ottla.broker.metadata.config_entries import BROKER, GROUP, TOPIC
from ottla.broker.replica.fetch_sessions import Context, FetchSessions
from ottla.broker.storage.periodic_tasks import even_share
from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest

CHECK_MS = 11_000


def idempotent(producer_id: int, sequence: int = 0) -> bytes:
    return batch(b"v", producer_id=producer_id, producer_epoch=0, base_sequence=sequence, timestamp_ms=WALL_MS)


# Producers.


def test_producers_beyond_the_bound_are_forgotten_where_there_are_most() -> None:
    cluster = Cluster(settings={"ottla.producer.ids.max": "10"})
    busy, calm = cluster.topic("busy"), cluster.topic("calm")
    for producer_id in (1, 2):
        assert produce(calm, idempotent(producer_id), topic="calm").error_code == 0
    for producer_id in range(100, 130):
        assert produce(busy, idempotent(producer_id), topic="busy").error_code == 0
    cluster.pass_ms(CHECK_MS)
    assert list(calm.leader("calm").log.producers.by_id) == [1, 2]
    assert list(busy.leader("busy").log.producers.by_id) == list(range(122, 130)), "the newest stay"
    assert produce(busy, idempotent(100, sequence=1), topic="busy").error_code == 0, "a forgotten producer continues"


def test_producers_of_many_partitions_are_counted_and_forgotten_in_pieces() -> None:
    cluster = Cluster(settings={"ottla.producer.ids.max": "5"})
    broker = cluster.topic("t", partitions=5)
    broker.node.periodic_tasks.piece = 2
    for producer_id in range(15):
        assert produce(broker, idempotent(producer_id), partition=producer_id % 5).error_code == 0
    cluster.pass_ms(CHECK_MS)
    assert [list(broker.leader("t", number).log.producers.by_id) for number in range(5)] == [[10], [11], [12], [13], [14]]


def test_a_partition_that_is_deleted_before_its_piece_is_left_out() -> None:
    cluster = Cluster()
    broker = cluster.topic("t", partitions=5)
    broker.node.periodic_tasks.piece = 2
    tasks = [broker.node.periodic_tasks._work[name]() for name in ("retention", "producers", "flush_ms")]
    assert [next(task, "done") for task in tasks if task is not None] == [None] * 3
    broker.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5)
    assert not broker.node.partitions.leaders
    assert [next(task, "done") for task in tasks if task is not None] == [None] * 3
    assert [next(task, "done") for task in tasks if task is not None] == ["done"] * 3


def test_producers_of_a_partition_that_is_named_again_and_again_are_listed_only_so_often() -> None:
    cluster = Cluster(settings={"ottla.producer.ids.max": "10"})
    broker = cluster.topic("t")
    for producer_id in range(5):
        produce(broker, idempotent(producer_id))
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0] * 100)])
    partitions = broker.ask(request, 0).topics[0].partitions
    assert len(partitions) == 100 and sum(len(each.active_producers) for each in partitions) == 20
    assert {each.error_code for each in partitions} == {0, errors.InvalidRequest.code}


@pytest.mark.parametrize(
    ("counts", "most", "share"),
    [([], 5, None), ([1, 2], 3, None), ([1, 2], 2, 1), ([3, 3, 3], 6, 2), ([1, 100, 100], 21, 10), ([0, 0, 9], 4, 4), ([5, 5], 1, 0)],
)
def test_all_counts_are_cut_to_the_same_share(counts: list[int], most: int, share: int | None) -> None:
    assert even_share(counts, most) == share
    if share is not None:
        assert sum(min(count, share) for count in counts) <= most


# Fetch sessions.


def asking(count: int, *, session_id: int = 0, epoch: int = 0, first: int = 0) -> FetchRequest:
    asks = [FetchPartition(partition=first + number) for number in range(count)]
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=[FetchTopic(topic="t", partitions=asks)] if asks else [])


def begin(sessions: FetchSessions, request: FetchRequest, now_ms: int = 0, replica: int = -1, replica_epoch: int = -1) -> Context:
    return sessions.begin(request, by_id=False, now_ms=now_ms, rng=Random(now_ms), replica=replica, replica_epoch=replica_epoch)


def test_the_sessions_of_all_consumers_remember_a_bounded_number_of_partitions() -> None:
    sessions = FetchSessions(100, 100, 250)
    opened = [begin(sessions, asking(100), now_ms) for now_ms in range(4)]
    assert [bool(each.session_id) for each in opened] == [True, True, False, False] and sessions.partitions == 200
    assert len(opened[3].wanted) == 100, "it is served without a session"
    assert begin(sessions, asking(100), 5, replica=2).session_id, "followers always have room"
    assert begin(sessions, asking(30), 6).session_id and sessions.partitions == 230


def test_a_session_that_grows_beyond_what_all_may_remember_ends() -> None:
    sessions = FetchSessions(100, 100, 150)
    first, second = (begin(sessions, asking(70), now_ms) for now_ms in (0, 1))
    with pytest.raises(errors.FetchSessionIdNotFound, match="150"):
        begin(sessions, asking(20, session_id=second.session_id, epoch=1, first=70), 2)
    assert sessions.partitions == 70 and len(sessions) == 1
    begin(sessions, asking(20, session_id=first.session_id, epoch=1, first=70), 3)
    assert sessions.partitions == 90


def test_idle_sessions_make_room_for_partitions() -> None:
    sessions = FetchSessions(100, 100, 150)
    for now_ms in (0, 1):
        begin(sessions, asking(70), now_ms)
    assert not begin(sessions, asking(100), 120_000).session_id
    assert begin(sessions, asking(140), 120_002).session_id == 0, "a session with too many partitions evicts no other"
    assert begin(sessions, asking(100), 120_002).session_id and sessions.partitions == 100


def test_full_slots_go_to_larger_sessions() -> None:
    """Line 50; the smallest session goes first, and only for a larger one. Source: KIP-227."""
    sessions = FetchSessions(3, 100, 1_000)
    opened = [begin(sessions, asking(count), count) for count in (20, 10, 30)]
    for now_ms in (100_000, 120_021):
        for each in opened:
            assert each.session is not None
            begin(sessions, asking(0, session_id=each.session_id, epoch=each.session.epoch), now_ms)
    assert begin(sessions, asking(10), 120_021).session_id == 0, "one of the same size is not larger"
    assert begin(sessions, asking(11), 120_021).session_id
    assert [each.session_id in sessions._sessions for each in opened] == [True, False, True]
    assert begin(sessions, asking(12), 120_021).session_id == 0, "those left are larger, or were created just now"


def test_larger_session_evicts_as_many_smaller_ones_as_it_needs_or_none() -> None:
    """Line 50."""
    sessions = FetchSessions(100, 100, 100)
    opened = [begin(sessions, asking(count), count) for count in (20, 10, 30, 40)]
    for each in opened:
        assert each.session is not None
        begin(sessions, asking(0, session_id=each.session_id, epoch=1), 100_000)
    assert begin(sessions, asking(100), 125_000).session_id and sessions.partitions == 100
    assert len(sessions) == 1
    begin(sessions, asking(50), 250_000)
    small = begin(sessions, asking(40), 250_001)
    assert small.session is not None
    begin(sessions, asking(0, session_id=small.session_id, epoch=1), 350_000)
    assert begin(sessions, asking(45), 380_000).session_id, "an idle session goes first"
    assert small.session_id in sessions._sessions


def test_partitions_of_sessions_are_counted_as_they_come_and_go() -> None:
    sessions = FetchSessions(3, 50, 10_000)
    rng, opened = Random(1), list[Context]()
    for now_ms in range(500):
        if opened and rng.random() < 0.7:
            session = rng.choice(opened).session
            assert session is not None
            request = asking(rng.randrange(10), session_id=session.number, epoch=session.epoch, first=rng.randrange(60))
            request.forgotten_topics_data = [ForgottenTopic(topic="t", partitions=[rng.randrange(60)])]
        else:
            request = asking(rng.randrange(60))
        with suppress(errors.KafkaError):
            opened.append(sessions.begin(request, by_id=False, now_ms=now_ms * 10_000, rng=rng))
        opened = [each for each in opened if each.session is not None and each.session in sessions._sessions.values()]
        assert sessions.partitions == sum(len(session.wanted) for session in sessions._sessions.values())


# Fetches that wait.


def test_fetches_that_wait_name_a_bounded_number_of_partitions_and_others_are_answered_at_once() -> None:
    cluster = Cluster(settings={"ottla.fetch.waiting.partitions.max": "250"})
    broker = cluster.topic("t", partitions=100)
    wide = fetch_request(partitions=range(100), max_wait_ms=60_000)
    sent = [broker.send(wide, 4) for _ in range(4)]
    assert [each.waits for each in sent] == [True, True, False, False]
    assert len(sent[3].answer.responses[0].partitions) == 100
    narrow = broker.send(fetch_request(max_wait_ms=60_000), 4)
    assert narrow.waits, "one that needs less may still wait"
    broker.hang_up(sent[0])
    assert broker.send(wide, 4).answer is None, "a client that went away makes room"
    produce(broker, batch(b"v"))
    assert sent[1].answer is not None and narrow.answer is not None
    assert broker.node.sessions.waiting.partitions == 0


# Settings.


def set_config(cluster: Cluster, kind: int, name: str, *configs: tuple[str, str]) -> tuple[int, str | None]:
    changes = [AlterableConfig(name=key, config_operation=0, value=value) for key, value in configs]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    answer = cluster[1].ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0]
    return answer.error_code, answer.error_message


def test_the_settings_of_one_topic_broker_or_group_are_bounded_in_bytes() -> None:
    cluster = Cluster(settings={"ottla.config.overrides.max.bytes": "2000"})
    cluster.topic("t")
    code, message = set_config(cluster, TOPIC, "t", ("leader.replication.throttled.replicas", ",".join(["1:1"] * 1000)))
    assert code == errors.InvalidConfig.code and "ottla.config.overrides.max.bytes is 2000" in str(message)
    for number in range(30):
        code, message = set_config(cluster, BROKER, "1", (f"plugin.{number}", "x" * 100))
    assert code == errors.InvalidRequest.code, message
    assert set_config(cluster, BROKER, "1", ("plugin.0", "short"))[0] == 0, "what does not grow passes"
    assert set_config(cluster, GROUP, "g" * 3000, ("consumer.session.timeout.ms", "45000"))[0] == errors.InvalidConfig.code
    requested = CreatableTopic(name="u", num_partitions=1, replication_factor=1)
    requested.configs = [CreatableTopicConfig(name="leader.replication.throttled.replicas", value="1:1," * 1000)]
    answer = cluster[1].ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 5).topics[0]
    assert answer.error_code == errors.InvalidConfig.code


def test_settings_of_groups_that_do_not_exist_are_bounded_in_all() -> None:
    cluster = Cluster(settings={"ottla.config.max.bytes": "20000"})
    one = ("consumer.session.timeout.ms", "46000")
    codes = [set_config(cluster, GROUP, f"g{number}", one)[0] for number in range(60)]
    assert set(codes) == {0, errors.PolicyViolation.code} and codes[0] == 0 and codes[-1] != 0
    changes = [AlterableConfig(name=one[0], config_operation=0, value=one[1])]
    resources = [AlterConfigsResource(resource_type=GROUP, resource_name=f"h{number}", configs=changes) for number in range(60)]
    answer = Cluster(settings={"ottla.config.max.bytes": "20000"})[1].ask(IncrementalAlterConfigsRequest(resources=resources), 1)
    assert {each.error_code for each in answer.responses} == {0, errors.PolicyViolation.code}, "in one request, too"
    gone = [AlterableConfig(name=one[0], config_operation=1, value=None)]
    for number in range(10):
        resource = AlterConfigsResource(resource_type=GROUP, resource_name=f"g{number}", configs=gone)
        assert not cluster[1].ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code
    assert set_config(cluster, GROUP, "g99", one)[0] == 0
    assert sum(kind == "groups" for kind, _ in cluster[1].node.context.image.configs) == codes.count(0) - 9

"""Followers fetch in sessions: idle partitions cost nothing, and none is forgotten for it. Source: KIP-227."""

from typing import Any

import pytest
from cluster import Broker, Cluster, batch, fetch_request, produce

from ottla.base.ids import TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker import effects
from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.fetch import FetchRequest, ReplicaState

T0 = TopicPartition("t", 0)


class Received:
    """Fetches between brokers, as they are asked."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[tuple[int, FetchRequest]] = []
        ask_peer = Broker._ask_peer

        def ask(broker: Broker, effect: effects.PeerRequest) -> None:
            if isinstance(effect.message, FetchRequest):
                self.requests.append((broker.broker_id, effect.message))
            ask_peer(broker, effect)

        monkeypatch.setattr(Broker, "_ask_peer", ask)

    def named(self) -> int:
        """Partitions named in all of them, and forget them."""
        count = sum(len(topic.partitions) for _, request in self.requests for topic in request.topics)
        self.requests = []
        return count


def a_cluster(partitions: int = 1, replicas: int = 2, **configs: str) -> tuple[Cluster, Broker]:
    cluster = Cluster(brokers=replicas)
    leader = cluster.topic(partitions=partitions, replicas=replicas, configs={key.replace("_", "."): text for key, text in configs.items()})
    cluster.pass_ms(1500)
    return cluster, leader


def followed(cluster: Cluster) -> tuple[Broker, Any]:
    return next(
        (broker, broker.node.partitions.followers[T0]) for broker in cluster.brokers.values() if T0 in broker.node.partitions.followers
    )


def state_isr(cluster: Cluster) -> set[int]:
    state = cluster.controller.node.context.image.state(T0)
    assert state is not None
    return set(state.isr)


def test_idle_partitions_are_not_in_fetch_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, leader = a_cluster(partitions=20)
    received = Received(cluster, monkeypatch)
    cluster.pass_ms(10 * SECOND_MS)
    assert len(received.requests) >= 20 and received.named() == 0
    assert produce(leader, batch(b"a")).error_code == 0
    cluster.pass_ms(SECOND_MS)
    assert received.named() == 1, "the one that moved on"


def test_idle_partitions_are_not_visited() -> None:
    cluster, leader = a_cluster(partitions=20)
    (session,) = [one for one in leader.node.sessions._sessions.values() if one.replica >= 0]
    assert len(session.wanted) >= 10 and not session.awake
    assert produce(leader, batch(b"a"), acks=1).error_code == 0
    cluster.pass_ms(SECOND_MS)
    assert not session.awake, "all partitions are reported again"
    assert followed(cluster)[1].high_watermark == 1


def test_a_follower_that_had_nothing_to_fetch_for_long_is_not_late_with_the_next_record() -> None:
    cluster, leader = a_cluster()
    cluster.pass_ms(120 * SECOND_MS)
    cluster.flushing = False
    produce(leader, batch(b"a"), acks=1)
    cluster.pass_ms(20 * SECOND_MS)
    assert state_isr(cluster) == {1, 2}, "when the record came it had everything"


def test_a_follower_that_fell_silent_while_idle_is_late_from_then_on() -> None:
    cluster, leader = a_cluster()
    follower, _ = followed(cluster)
    follower.halted = "stopped in the middle"
    cluster.pass_ms(25 * SECOND_MS)
    produce(leader, batch(b"a"), acks=1)
    cluster.pass_ms(2 * SECOND_MS)
    assert state_isr(cluster) == {1, 2}
    cluster.pass_ms(6 * SECOND_MS)
    assert state_isr(cluster) == {leader.broker_id}, "thirty seconds after its last fetch"


def test_a_follower_sends_a_full_fetch_after_its_session_was_lost() -> None:
    cluster, leader = a_cluster(partitions=4)
    leader.node.sessions.__init__(1000, 1000, 1000)  # type: ignore[misc]
    leader.node.sessions.poke = leader.node.context.delayed.poke
    leader.node.context.delayed.poked = leader.node.sessions.poked
    assert produce(leader, batch(b"a"), acks=1).error_code == 0
    cluster.pass_ms(SECOND_MS)
    assert followed(cluster)[1].log.end_offset == 1


def test_a_partition_that_leads_elsewhere_leaves_the_session() -> None:
    cluster, leader = a_cluster(partitions=4, replicas=3)
    cluster.kill(leader.broker_id)
    cluster.pass_ms(3 * SECOND_MS)
    sessions = [(broker, session) for broker in cluster.brokers.values() for session in broker.node.sessions._sessions.values()]
    live = [(broker, session) for broker, session in sessions if session.replica in cluster.brokers]
    assert live
    for broker, session in live:
        assert {wanted.partition for wanted in session.wanted.values()} <= set(broker.node.partitions.leaders)


def test_a_follower_that_is_registered_anew_has_no_other_session() -> None:
    cluster, leader = a_cluster()
    follower, _ = followed(cluster)
    for _ in range(3):
        cluster.restart(follower.broker_id)
        cluster.pass_ms(1500)
    assert len([one for one in leader.node.sessions._sessions.values() if one.replica == follower.broker_id]) == 1


def test_followers_have_sessions_although_consumers_took_all_the_slots() -> None:
    cluster = Cluster(brokers=2, settings={"max.incremental.fetch.session.cache.slots": "0"})
    leader = cluster.topic(replicas=2)
    cluster.pass_ms(1500)
    assert leader.ask(fetch_request(session_epoch=0), 12).session_id == 0
    assert [one.replica for one in leader.node.sessions._sessions.values()] == [3 - leader.broker_id]


def test_unused_fetch_session_does_not_grow() -> None:
    broker = Cluster().topic()
    number = broker.ask(fetch_request(session_epoch=0), 12).session_id
    session = broker.node.sessions._sessions[number]
    for _ in range(5):
        produce(broker, batch(b"a"))
    assert len(session.stirred) == len(session.awake) == 1


def test_a_leader_that_resumes_in_the_same_epoch_gets_the_offsets_of_its_followers() -> None:
    """The follower has nothing new to say, and the leader knows nothing any more."""
    cluster, leader = a_cluster()
    assert produce(leader, batch(b"a")).error_code == 0
    cluster.pass_ms(1000)
    leader.session.suspend()
    cluster.run()
    assert T0 not in leader.node.partitions.leaders
    leader.session.resume()
    cluster.run()
    assert leader.leader("t").epoch == 0
    cluster.pass_ms(1000)
    assert leader.leader("t").isr_state.progress[3 - leader.broker_id].position == 1
    assert produce(leader, batch(b"b")).error_code == errors.NONE


def test_a_followers_progress_in_a_deleted_topic_does_not_count_for_a_new_one_of_its_name() -> None:
    """The follower does not know yet that the topic was recreated; the leader does, and has the partition in its session."""
    cluster, leader = a_cluster()
    (other,) = [broker for broker in cluster.brokers.values() if broker is not leader]
    replica = ReplicaState(replica_id=other.broker_id, replica_epoch=other.node.context.epoch or 0)
    assert produce(leader, batch(b"a")).error_code == 0
    cluster.cut_off(other.broker_id)
    topic_id = leader.node.context.image.topics["t"].topic_id
    late = fetch_request(1, topic=topic_id, session_epoch=0, current_leader_epoch=0, last_fetched_epoch=0, replica_state=replica)
    session = leader.ask(late, 15).session_id
    deleted = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
    assert leader.send(deleted, 6).answer.responses[0].error_code == 0
    # Which of two brokers leads is chance.
    requested = CreatableTopic(
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[leader.broker_id, other.broker_id])],
    )
    assert cluster.controller.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7).topics[0].error_code == 0
    produce(leader, batch(b"b"), acks=1)
    again = leader.ask(FetchRequest(replica_state=replica, session_id=session, session_epoch=1, max_bytes=1000), 15)
    assert again.responses[0].partitions[0].error_code == errors.UnknownTopicId.code
    assert leader.leader("t").high_watermark == 0, "the other one has nothing of this topic"

"""A waiting fetch of a follower is recalled when its leader gets another partition: the next fetch asks for both."""

from typing import Any

from cluster import Broker, Cluster, batch, fetch, fetch_request, produce_request, values

from ottla.base.ids import TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker.replica.fetchers import RECALL_MS
from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.fetch import FetchRequest, ReplicaState


def a_topic(cluster: Cluster, name: str, *replicas: list[int]) -> None:
    assignments = [CreatableReplicaAssignment(partition_index=number, broker_ids=ids) for number, ids in enumerate(replicas)]
    requested = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)
    assert cluster.controller.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7).topics[0].error_code == 0


def an_elected_leader(cluster: Cluster) -> None:
    """Broker 2 leads t since a moment; broker 3 follows it, and has waited there for records of another topic."""
    a_topic(cluster, "quiet", [2, 3, 1])
    a_topic(cluster, "t", [1, 2, 3])
    cluster.pass_ms(2 * SECOND_MS)
    cluster.kill(1)
    assert cluster.leading("t").broker_id == 2


def fetches(broker: Broker) -> list[FetchRequest]:
    """What the broker is asked for by followers from now on."""
    found: list[FetchRequest] = []
    send = broker.send

    def noted(request: Any, version: int, **fields: Any) -> Any:
        if isinstance(request, FetchRequest):
            found.append(request)
        return send(request, version, **fields)

    broker.send = noted  # type: ignore[method-assign]
    return found


def test_the_first_record_after_an_election_is_committed_soon() -> None:
    cluster = Cluster(3)
    an_elected_leader(cluster)
    sent = cluster[2].send(produce_request(batch(b"a"), timeout_ms=20_000), 12)
    cluster.pass_ms(3 * RECALL_MS)
    assert sent.answer is not None and sent.answer.responses[0].partition_responses[0].error_code == 0
    cluster.pass_ms(SECOND_MS)
    assert values(fetch(cluster[2]).records) == [b"a"]


def test_a_waiting_fetch_is_recalled_once_however_many_partitions_come() -> None:
    cluster = Cluster(3)
    a_topic(cluster, "quiet", [2, 3, 1])
    a_topic(cluster, "t", *([1, 2, 3] for _ in range(30)))
    cluster.pass_ms(2 * SECOND_MS)
    asked = fetches(cluster[2])
    cluster.kill(1)
    cluster.pass_ms(3 * RECALL_MS)
    recalls = [request for request in asked if not request.topics and request.session_epoch == -1]
    assert len(recalls) == 1
    topic_id = cluster[2].node.context.image.topics["t"].topic_id
    topics = [topic for request in asked for topic in request.topics if topic.topic_id == topic_id]
    named = [partition.partition for topic in topics for partition in topic.partitions]
    assert sorted(named) == list(range(30)), "each is named once"


def test_another_isr_of_the_same_leader_recalls_nothing() -> None:
    cluster = Cluster(3)
    a_topic(cluster, "t", [2, 3, 1])
    cluster.pass_ms(2 * SECOND_MS)
    asked = fetches(cluster[2])
    cluster.kill(1)
    state = cluster[3].node.context.image.state(TopicPartition("t", 0))
    assert state is not None and sorted(state.isr) == [2, 3]
    cluster.pass_ms(3 * RECALL_MS)
    assert asked == []


def test_only_the_fetches_of_the_recalling_connection_are_answered() -> None:
    cluster = Cluster(3)
    a_topic(cluster, "t", [1, 2, 3])
    cluster.pass_ms(2 * SECOND_MS)
    parked = cluster[1].node.context.delayed.count
    epoch = cluster[2].node.context.epoch
    assert epoch is not None
    consumer = cluster[1].send(fetch_request(0, max_wait_ms=30_000), 12)
    nothing = FetchRequest(replica_state=ReplicaState(replica_id=2, replica_epoch=epoch), session_epoch=-1)
    answer = cluster[1].ask(nothing, 15)
    assert (answer.error_code, answer.responses) == (0, []) and consumer.waits
    assert cluster[1].node.context.delayed.count == parked + 1, "the follower has asked again"
    stale = FetchRequest(replica_state=ReplicaState(replica_id=2, replica_epoch=epoch - 1), session_epoch=-1)
    assert cluster[1].ask(stale, 15).error_code == errors.StaleBrokerEpoch.code

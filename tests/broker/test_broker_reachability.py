"""A controller that the brokers cannot reach, although it reaches the store, resigns."""

import pytest
from cluster import Broker, Cluster, batch, produce_request

from ottla.base.ids import TopicPartition
from ottla.base.ports import Op
from ottla.base.units import SECOND_MS
from ottla.broker.controller.reachability import GRACE_TICKS, HEARTBEAT_MS, HOLD_MS, UNHEARD_MS
from ottla.store.layout import CONTROLLER, BrokerRegistration, decode_broker, encode_broker
from ottla.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest

LAG_MS = 2 * SECOND_MS
#: By then a cut is detected, at whichever phase of the ticks it comes.
DETECTED_MS = HEARTBEAT_MS + UNHEARD_MS + (GRACE_TICKS + 1) * SECOND_MS


def a_cluster(brokers: int = 3, *, lag_ms: int = LAG_MS, min_insync: int = 2) -> tuple[Cluster, Broker]:
    """With a partition led by each broker, and its controller."""
    cluster = Cluster(brokers, settings={"replica.lag.time.max.ms": str(lag_ms), "min.insync.replicas": str(min_insync)})
    numbers = list(cluster.brokers)
    replicas = [[*numbers[first:], *numbers[:first]] for first in range(brokers)]
    assignments = [CreatableReplicaAssignment(partition_index=number, broker_ids=ids) for number, ids in enumerate(replicas)]
    requested = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
    assert cluster.controller.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7).topics[0].error_code == 0
    cluster.pass_ms(2 * SECOND_MS)
    return cluster, cluster.controller


def controller_id(cluster: Cluster) -> int:
    found = cluster.brokers[2].node.context.image.controller
    assert found is not None
    return int(found)


def busy(cluster: Cluster) -> None:
    """Something is written to each partition that others are to follow."""
    for number in range(len(cluster.brokers)):
        cluster.leading("t", number).send(produce_request(batch(b"a"), partition=number, timeout_ms=60_000), 12)


def test_a_controller_that_most_brokers_cannot_reach_resigns_and_is_fenced() -> None:
    cluster, deaf = a_cluster()
    cluster.cut_off(deaf.broker_id)
    busy(cluster)
    cluster.pass_ms(UNHEARD_MS)
    assert controller_id(cluster) == deaf.broker_id, "it may answer again"
    cluster.pass_ms(DETECTED_MS - UNHEARD_MS)
    assert controller_id(cluster) != deaf.broker_id
    (warning,) = [text for text in deaf.warnings if "resigns" in text]
    assert warning == (
        f"broker {deaf.broker_id} resigns as controller and is fenced: brokers [2, 3] cannot reach it; check their network links"
    )
    cluster.pass_ms(2 * SECOND_MS)
    states = [cluster[2].node.context.image.state(TopicPartition("t", number)) for number in range(3)]
    assert all(state is not None and state.leader in (2, 3) and set(state.isr) == {2, 3} for state in states), "all go on without it"
    cluster.pass_ms(60 * SECOND_MS)
    assert controller_id(cluster) != deaf.broker_id and cluster[2].node.context.image.controller_epoch == 2, (
        "and the controller stays there"
    )


def test_a_fenced_leader_with_the_only_eligible_replica_continues_to_lead() -> None:
    cluster, deaf = a_cluster(min_insync=1)
    cluster.cut_off(deaf.broker_id)
    busy(cluster)
    cluster.pass_ms(DETECTED_MS + 2 * SECOND_MS)
    assert cluster[2].node.context.image.brokers[deaf.broker_id].fenced  # type: ignore[index]
    state = cluster[2].node.context.image.state(TopicPartition("t", 0))
    assert state is not None and (state.leader, state.isr) == (deaf.broker_id, (deaf.broker_id,))


def test_followers_do_not_wait_for_the_lag_time_when_the_controller_is_fenced() -> None:
    cluster, deaf = a_cluster(lag_ms=30 * SECOND_MS)
    cluster.cut_off(deaf.broker_id)
    busy(cluster)
    cluster.pass_ms(DETECTED_MS + SECOND_MS)
    states = [cluster[2].node.context.image.state(TopicPartition("t", number)) for number in range(3)]
    assert all(state is not None and state.leader in (2, 3) and set(state.isr) == {2, 3} for state in states)


def test_a_fenced_broker_is_fenced_no_more_once_others_reach_it_and_joins_the_isrs() -> None:
    cluster, deaf = a_cluster()
    cluster.cut_off(deaf.broker_id)
    busy(cluster)
    cluster.pass_ms(DETECTED_MS + 60 * SECOND_MS)
    assert cluster[2].node.context.image.brokers[deaf.broker_id].fenced  # type: ignore[index]
    cluster.cut.clear()
    cluster.pass_ms(10 * SECOND_MS)
    image = cluster[2].node.context.image
    assert not image.brokers[deaf.broker_id].fenced  # type: ignore[index]
    assert [found.unheard for found in image.brokers.values()] == [-1, -1, -1]
    states = [image.state(TopicPartition("t", number)) for number in range(3)]
    assert all(state is not None and set(state.isr) == {1, 2, 3} for state in states)
    assert image.controller != deaf.broker_id, "the controller stays"


def test_a_fenced_broker_that_starts_again_is_not_fenced() -> None:
    cluster, deaf = a_cluster()
    cluster.cut_off(deaf.broker_id)
    busy(cluster)
    cluster.pass_ms(DETECTED_MS)
    number = deaf.broker_id
    cluster.cut.clear()
    cluster.restart(number)
    cluster.pass_ms(10 * SECOND_MS)
    image = cluster[2].node.context.image
    assert not image.brokers[cluster[number].broker_id].fenced  # type: ignore[index]
    assert [found.unheard for found in image.brokers.values()] == [-1, -1, -1]


def test_if_no_broker_reaches_another_a_minority_is_fenced_and_the_controller_changes() -> None:
    cluster, _ = a_cluster()
    for number in (1, 2, 3):
        cluster.cut_off(number)
    cluster.pass_ms(60 * SECOND_MS)
    image = cluster[2].node.context.image
    assert sum(found.fenced for found in image.brokers.values()) == 1
    assert image.controller_epoch > 3
    cluster.cut.clear()
    cluster.pass_ms(30 * SECOND_MS)
    assert not any(found.fenced for found in image.brokers.values()) and image.controller is not None


def test_a_broker_that_was_not_running_does_not_take_its_own_pause_for_the_controllers() -> None:
    """It had no CPU time for longer than the limit, so that its heartbeat expired before the answer was read; twice in a row."""
    cluster, controller = a_cluster()
    for _ in range(2):
        cluster.cut_off(controller.broker_id)
        cluster.jump_ms(3 * UNHEARD_MS)
        cluster.cut.clear()
        cluster.pass_ms(SECOND_MS)
    cluster.pass_ms(DETECTED_MS)
    assert controller_id(cluster) == controller.broker_id and cluster[2].node.context.image.controller_epoch == 1
    assert [found.unheard for found in cluster[2].node.context.image.brokers.values()] == [-1, -1, -1]


def test_a_controller_that_answers_before_it_has_counted_the_reports_stays() -> None:
    """As one does that had no CPU time: the reports and the heartbeats wait for it together."""
    cluster, controller = a_cluster()
    cluster.cut_off(controller.broker_id)
    while not any(found.unheard == 1 for found in cluster[1].node.context.image.brokers.values()):
        cluster.pass_ms(SECOND_MS // 10)
    cluster.cut.clear()
    cluster.pass_ms(DETECTED_MS)
    assert controller_id(cluster) == controller.broker_id and cluster[2].node.context.image.controller_epoch == 1


def test_an_isr_change_is_sent_to_the_next_controller_at_once() -> None:
    """The request to the one before may stay without an answer for ten seconds."""
    cluster, controller = a_cluster()
    # Only one broker does not reach the controller, so that it stays until an operator deletes its node.
    cluster.cut.add(frozenset((controller.broker_id, 3)))
    controller.node.controller.reachability.hold_ms = cluster.now_ms + 60 * SECOND_MS
    busy(cluster)
    cluster.pass_ms(LAG_MS + SECOND_MS)
    operator = cluster.store.session()
    operator.submit((Op("delete", CONTROLLER),), lambda result: None)
    cluster.pass_ms(SECOND_MS)
    assert controller_id(cluster) != controller.broker_id
    state = cluster[2].node.context.image.state(TopicPartition("t", 2))
    assert state is not None and (state.leader, set(state.isr)) == (3, {2, 3})


def test_a_broker_that_resigned_may_become_controller_again_if_no_other_does() -> None:
    cluster, deaf = a_cluster()
    cluster.cut_off(deaf.broker_id)
    busy(cluster)
    cluster.pass_ms(LAG_MS + 2 * UNHEARD_MS)
    assert not deaf.node.controller.active
    cluster.cut.clear()
    for number in (2, 3):
        cluster.kill(number)
    cluster.pass_ms(HOLD_MS)
    assert deaf.node.controller.active


@pytest.mark.parametrize("brokers", [2, 3])
def test_a_broker_that_is_cut_off_itself_changes_nothing(brokers: int) -> None:
    cluster, controller = a_cluster(brokers)
    cluster.cut_off(2)
    busy(cluster)
    cluster.pass_ms(LAG_MS + 4 * UNHEARD_MS)
    assert controller_id(cluster) == controller.broker_id and cluster[2].node.context.image.controller_epoch == 1
    assert cluster[1].node.context.image.brokers[cluster[2].broker_id].unheard == 1, "its registration says so"  # type: ignore[index]
    cluster.cut.clear()
    cluster.pass_ms(4 * SECOND_MS)
    assert cluster[1].node.context.image.brokers[cluster[2].broker_id].unheard == -1  # type: ignore[index]


def test_a_controller_that_answers_in_between_stays() -> None:
    cluster, controller = a_cluster()
    for _ in range(4):
        cluster.cut_off(controller.broker_id)
        busy(cluster)
        cluster.pass_ms(LAG_MS + UNHEARD_MS // 2)
        cluster.cut.clear()
        cluster.pass_ms(4 * SECOND_MS)
    assert controller_id(cluster) == controller.broker_id and cluster[2].node.context.image.controller_epoch == 1


def test_a_registration_reports_an_unreachable_controller_and_fencing_only_when_true() -> None:
    made = BrokerRegistration(host="h", port=1, endpoints=("PLAINTEXT://h:1",), timestamp_ms=0, unheard=7, fenced=True)
    assert decode_broker(encode_broker(made)) == made
    plain = encode_broker(BrokerRegistration(host="h", port=1, endpoints=(), timestamp_ms=0))
    assert b"unreachable" not in plain and b"fenced" not in plain

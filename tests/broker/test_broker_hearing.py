"""A controller that the brokers cannot reach, though the store does, gives up its office."""

import pytest
from cluster import Broker, Cluster, batch, produce_request

from ottla.base.ids import TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker.controller.hearing import HOLD_MS, UNHEARD_MS
from ottla.store.layout import BrokerRegistration, decode_broker, encode_broker
from ottla.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest

LAG_MS = 2 * SECOND_MS


def a_cluster(brokers: int = 3) -> tuple[Cluster, Broker]:
    """With a partition led by each broker, and its controller."""
    cluster = Cluster(brokers, settings={"replica.lag.time.max.ms": str(LAG_MS)})
    numbers = list(cluster.brokers)
    replicas = [[*numbers[first:], *numbers[:first]] for first in range(brokers)]
    assignments = [CreatableReplicaAssignment(partition_index=number, broker_ids=ids) for number, ids in enumerate(replicas)]
    wish = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
    assert cluster.controller.ask(CreateTopicsRequest(topics=[wish], timeout_ms=1000), 7).topics[0].error_code == 0
    cluster.pass_ms(2 * SECOND_MS)
    return cluster, cluster.controller


def office(cluster: Cluster) -> int:
    found = cluster.brokers[2].node.image.controller
    assert found is not None
    return int(found)


def busy(cluster: Cluster) -> None:
    """Something is written to each partition that others are to follow."""
    for number in range(len(cluster.brokers)):
        cluster.leading("t", number).send(produce_request(batch(b"a"), partition=number, timeout_ms=60_000), 12)


def test_a_controller_that_most_brokers_cannot_reach_leaves_its_office_to_one_that_they_can() -> None:
    cluster, deaf = a_cluster()
    cluster.cut_off(deaf.broker_id)
    busy(cluster)
    cluster.pass_ms(LAG_MS + UNHEARD_MS // 2)
    assert office(cluster) == deaf.broker_id, "it might be heard again"
    cluster.pass_ms(UNHEARD_MS)
    assert office(cluster) != deaf.broker_id
    (warning,) = [text for text in deaf.warnings if "office" in text]
    assert warning == f"broker {deaf.broker_id} gives up the controller's office: brokers [2, 3] cannot reach it"
    cluster.pass_ms(2 * LAG_MS)
    led = {number: cluster[number].node.image.state(TopicPartition("t", number - 1)) for number in (2, 3)}
    assert all(state is not None and set(state.isr) == {2, 3} for state in led.values()), "their leaders go on without it"
    cluster.pass_ms(60 * SECOND_MS)
    assert office(cluster) != deaf.broker_id and cluster[2].node.image.controller_epoch == 2, "and the office stays there"


def test_who_resigned_may_be_controller_again_when_no_other_is() -> None:
    cluster, deaf = a_cluster()
    cluster.cut_off(deaf.broker_id)
    busy(cluster)
    cluster.pass_ms(LAG_MS + 2 * UNHEARD_MS)
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
    assert office(cluster) == controller.broker_id and cluster[2].node.image.controller_epoch == 1
    assert cluster[1].node.image.brokers[cluster[2].broker_id].unheard == 1, "it says so"
    cluster.cut.clear()
    cluster.pass_ms(4 * SECOND_MS)
    assert cluster[1].node.image.brokers[cluster[2].broker_id].unheard == -1


def test_a_controller_that_answers_in_between_stays() -> None:
    cluster, controller = a_cluster()
    for _ in range(4):
        cluster.cut_off(controller.broker_id)
        busy(cluster)
        cluster.pass_ms(LAG_MS + UNHEARD_MS // 2)
        cluster.cut.clear()
        cluster.pass_ms(4 * SECOND_MS)
    assert office(cluster) == controller.broker_id and cluster[2].node.image.controller_epoch == 1


def test_a_registration_names_the_controller_that_is_not_reached_only_where_there_is_one() -> None:
    made = BrokerRegistration(host="h", port=1, endpoints=("PLAINTEXT://h:1",), timestamp_ms=0, unheard=7)
    assert decode_broker(encode_broker(made)) == made
    assert b"unreachable" not in encode_broker(BrokerRegistration(host="h", port=1, endpoints=(), timestamp_ms=0))

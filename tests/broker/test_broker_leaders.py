"""Leader election: preferred leaders by request, by an operator's node and at intervals; unclean elections by request."""

import msgspec
import pytest
from cluster import Broker, Cluster, batch, produce

from ottla.base.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition
from ottla.base.ports import Op
from ottla.broker import events
from ottla.broker.controller import election_queue
from ottla.broker.controller.preferred_leaders import FIRST_LOOK_MS, imbalanced
from ottla.broker.metadata.image import Image, Registration, Topic
from ottla.store import layout
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.messages import CreatableTopic, CreateTopicsRequest, ElectLeadersRequest, ElectLeadersRequestTopicPartitions
from ottla.wire.messages.create_topics import CreatableReplicaAssignment as Assigned
from ottla.wire.messages.elect_leaders import ElectLeadersResponse

CALM = {"auto.leader.rebalance.enable": "false"}
PREFERRED, UNCLEAN = 0, 1


def a_cluster(*assignments: list[int], brokers: int = 3, **settings: str) -> Cluster:
    """A cluster with a topic of these replicas, all of them in sync."""
    cluster = Cluster(brokers=brokers, settings={**CALM, **{name.replace("_", "."): value for name, value in settings.items()}})
    assign(cluster, "t", *assignments)
    cluster.pass_ms(1500)
    return cluster


def assign(cluster: Cluster, name: str, *assignments: list[int]) -> None:
    replicas = [Assigned(partition_index=number, broker_ids=ids) for number, ids in enumerate(assignments)]
    requested = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=replicas)
    assert cluster.controller.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7).topics[0].error_code == 0


def leaders(cluster: Cluster, topic: str = "t") -> list[int]:
    return [state.leader for _, state in sorted(cluster.controller.node.context.image.topics[topic].states.items())]


def come_back(cluster: Cluster, gone: Broker) -> Broker:
    back = cluster.start(gone.broker_id, gone.texts, [disk.restart() for disk in gone.disks.values()])
    cluster.pass_ms(3000)
    return back


def elect(broker: Broker, *partitions: int, kind: int = PREFERRED, version: int = 2) -> dict[int, int]:
    """Error codes by partition."""
    requested = [ElectLeadersRequestTopicPartitions(topic="t", partitions=list(partitions))]
    answer = broker.ask(ElectLeadersRequest(election_type=kind, topic_partitions=requested, timeout_ms=1000), version)
    return codes(answer)


def codes(answer: ElectLeadersResponse) -> dict[int, int]:
    assert answer.error_code == 0
    return {result.partition_id: result.error_code for topic in answer.replica_election_results for result in topic.partition_result}


def election_of(partitions: list[TopicPartition]) -> bytes:
    """Content of the node with which a tool asks for an election."""
    return msgspec.json.encode({"version": 1, "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]})


# On request.


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_returned_broker_leads_its_preferred_partitions_after_an_election_request(version: int) -> None:
    cluster = a_cluster([1, 2, 3], [2, 3, 1])
    gone = cluster.kill(1)
    assert leaders(cluster) == [2, 2]
    come_back(cluster, gone)
    assert leaders(cluster) == [2, 2]
    epoch = cluster.controller.node.context.image.topics["t"].states[0].leader_epoch
    assert elect(cluster.controller, 0, 1, version=version) == {0: 0, 1: errors.ElectionNotNeeded.code}
    assert leaders(cluster) == [1, 2]
    state = cluster.controller.node.context.image.topics["t"].states[0]
    assert state.leader_epoch == epoch + 1 and set(state.isr) == {1, 2, 3}
    assert produce(cluster[1], batch(b"a"), acks=1).error_code == 0


def test_any_broker_accepts_the_request() -> None:
    cluster = a_cluster([1, 2, 3])
    come_back(cluster, cluster.kill(1))
    other = next(broker for broker in cluster.brokers.values() if broker is not cluster.controller)
    assert elect(other, 0) == {0: 0}
    assert leaders(cluster) == [1]


def test_a_preferred_replica_that_is_away_is_not_available() -> None:
    cluster = a_cluster([1, 2, 3])
    cluster.kill(1)
    assert elect(cluster.controller, 0) == {0: errors.PreferredLeaderNotAvailable.code}


def test_a_preferred_replica_that_is_not_in_sync_is_not_available() -> None:
    cluster = a_cluster([1, 2, 3])
    gone = cluster.kill(1)
    cluster.cut_off(1)
    cluster.start(1, gone.texts, [disk.restart() for disk in gone.disks.values()])
    assert elect(cluster.controller, 0) == {0: errors.PreferredLeaderNotAvailable.code}


def test_a_partition_that_is_not_there_is_unknown_beside_others_that_are_elected() -> None:
    cluster = a_cluster([1, 2, 3])
    come_back(cluster, cluster.kill(1))
    assert elect(cluster.controller, 0, 7) == {0: 0, 7: errors.UnknownTopicOrPartition.code}
    assert leaders(cluster) == [1]


def test_null_partitions_are_all_and_those_that_need_nothing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.apis.k43_elect_leaders.PORTION", 2)
    cluster = a_cluster([1, 2], [2, 1], [1, 3], [1, 2], [3, 2])
    come_back(cluster, cluster.kill(1))
    answer = cluster.controller.ask(ElectLeadersRequest(topic_partitions=None, timeout_ms=1000), 2)
    assert codes(answer) == {0: 0, 2: 0, 3: 0}
    assert leaders(cluster) == [1, 2, 1, 1, 3]


def test_an_unclean_election_picks_a_live_replica_if_none_is_in_sync() -> None:
    cluster = a_cluster([1, 2])
    two = cluster.kill(2)
    cluster.kill(1)
    assert leaders(cluster) == [-1]
    assert elect(cluster.controller, 0, kind=UNCLEAN) == {0: errors.EligibleLeadersNotAvailable.code}
    come_back(cluster, two)
    assert leaders(cluster) == [-1], "what it has may be too little"
    assert elect(cluster.controller, 0, kind=UNCLEAN) == {0: 0}
    assert leaders(cluster) == [2]
    assert elect(cluster.controller, 0, kind=UNCLEAN) == {0: errors.ElectionNotNeeded.code}


def test_an_election_of_another_kind_is_refused() -> None:
    cluster = a_cluster([1, 2])
    requested = [ElectLeadersRequestTopicPartitions(topic="t", partitions=[0])]
    answer = cluster.controller.ask(ElectLeadersRequest(election_type=7, topic_partitions=requested), 2)
    assert answer.error_code == errors.InvalidRequest.code


def test_an_election_that_another_change_overtakes_is_decided_anew() -> None:
    cluster = a_cluster([1, 2, 3])
    come_back(cluster, cluster.kill(1))
    controller_id = cluster.controller
    path = layout.partition_state("t", 0)
    cluster.store_delivers = False
    node = cluster.store.tree.nodes[path]
    cluster.store.session().submit((Op("set", path, node.data),), lambda result: None)
    requested = [ElectLeadersRequestTopicPartitions(topic="t", partitions=[0])]
    sent = controller_id.send(ElectLeadersRequest(topic_partitions=requested, timeout_ms=1000), 2)
    cluster.store_delivers = True
    cluster.run()
    assert codes(sent.answer) == {0: 0} and leaders(cluster) == [1]


# By an operator's node.


def write(cluster: Cluster, path: str, data: bytes) -> None:
    cluster.store.session().submit((Op("create", path, data),), lambda result: None)
    cluster.run()


def test_an_election_node_of_a_tool_is_carried_out_and_deleted() -> None:
    cluster = a_cluster([1, 2, 3], [1, 3, 2], [2, 1, 3])
    come_back(cluster, cluster.kill(1))
    assert leaders(cluster) == [2, 3, 2]
    wanted = [TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("gone", 0)]
    write(cluster, layout.PREFERRED_ELECTION, election_of(wanted))
    assert leaders(cluster) == [1, 3, 2]
    assert layout.PREFERRED_ELECTION not in cluster.store.tree.nodes


def test_an_election_node_is_carried_out_although_another_change_covers_a_partition() -> None:
    cluster = a_cluster([1, 2, 3])
    come_back(cluster, cluster.kill(1))
    path = layout.partition_state("t", 0)
    wanted = election_of([TopicPartition("t", 0)])
    other = cluster.store.session()
    # The controller gets the election request, and decides, before it gets the other change.
    other.submit((Op("create", layout.PREFERRED_ELECTION, wanted),), lambda result: None)
    other.submit((Op("set", path, cluster.store.tree.nodes[path].data),), lambda result: None)
    cluster.run()
    assert leaders(cluster) == [1]
    assert layout.PREFERRED_ELECTION not in cluster.store.tree.nodes


def test_an_unreadable_election_node_is_deleted_with_a_warning() -> None:
    cluster = a_cluster([1, 2, 3])
    write(cluster, layout.PREFERRED_ELECTION, b"all of them, please")
    assert layout.PREFERRED_ELECTION not in cluster.store.tree.nodes
    assert "nothing is elected" in cluster.controller.warnings[-1]


def test_the_next_controller_carries_out_what_the_last_one_did_not() -> None:
    cluster = a_cluster([1, 2, 3], brokers=3)
    come_back(cluster, cluster.kill(1))
    controller_id = cluster.controller.broker_id
    assert controller_id != 1
    cluster.store_delivers = False
    cluster.store.session().submit((Op("create", layout.PREFERRED_ELECTION, election_of([TopicPartition("t", 0)])),), lambda result: None)
    cluster.brokers[controller_id].halted = "killed"
    cluster.store_delivers = True
    cluster.kill(controller_id)
    cluster.pass_ms(100)
    assert leaders(cluster) == [1]
    assert layout.PREFERRED_ELECTION not in cluster.store.tree.nodes


# By the clock.


def test_leadership_is_rebalanced_periodically_above_the_imbalance_limit() -> None:
    cluster = a_cluster([1, 2], [2, 3], [3, 1], auto_leader_rebalance_enable="true", leader_imbalance_check_interval_seconds="60")
    cluster.pass_ms(FIRST_LOOK_MS)
    controller_id = cluster.controller.broker_id
    other = next(number for number in cluster.brokers if number != controller_id)
    come_back(cluster, cluster.kill(other))
    assert leaders(cluster)[other - 1] != other
    cluster.pass_ms(61_000)
    assert leaders(cluster) == [1, 2, 3]


def test_a_new_controller_looks_soon() -> None:
    cluster = a_cluster([1, 2], [2, 3], [3, 1], auto_leader_rebalance_enable="true")
    controller_id = cluster.controller.broker_id
    come_back(cluster, cluster.kill(controller_id))
    assert leaders(cluster)[controller_id - 1] != controller_id
    cluster.pass_ms(FIRST_LOOK_MS)
    assert leaders(cluster) == [1, 2, 3]


def test_leadership_stays_where_it_is_when_that_is_switched_off() -> None:
    cluster = a_cluster([1, 2], [2, 3], [3, 1], leader_imbalance_check_interval_seconds="1")
    gone = cluster.controller.broker_id
    come_back(cluster, cluster.kill(gone))
    cluster.pass_ms(20_000)
    assert leaders(cluster)[gone - 1] != gone


def an_image(*led: tuple[int, tuple[int, ...], tuple[int, ...]], alive: tuple[int, ...] = (1, 2, 3)) -> Image:
    """Partitions as (leader, replicas, ISR)."""
    image = Image()
    image.brokers = {BrokerId(broker): Registration(BrokerId(broker), "h", 1, None, 7) for broker in alive}
    states = {
        number: PartitionState(leader=leader, leader_epoch=LeaderEpoch(0), isr=isr, isr_epochs=(7,) * len(isr), controller_epoch=1)
        for number, (leader, _, isr) in enumerate(led)
    }
    replicas = {number: replicas for number, (_, replicas, _) in enumerate(led)}
    image.topics["t"] = Topic("t", TopicId(bytes(16)), replicas, 0, states, dict.fromkeys(states, 0))
    return image


def test_a_tenth_is_too_much_only_when_it_is_more_than_a_tenth() -> None:
    there, away = (1, (1, 2), (1, 2)), (2, (1, 2), (1, 2))
    assert imbalanced(an_image(*[there] * 9, away), percentage=10) == []
    assert imbalanced(an_image(*[there] * 8, away), percentage=10) == [TopicPartition("t", 8)]


def test_each_broker_is_looked_at_alone() -> None:
    one = [(1, (1, 2), (1, 2))] * 20
    assert imbalanced(an_image(*one, (3, (2, 3), (2, 3))), percentage=50) == [TopicPartition("t", 20)]


def test_leadership_that_cannot_move_back_stays() -> None:
    away = [(2, (1, 2), (2,)), (2, (4, 2), (2, 4)), (2, (3, 2), (2, 3))]
    assert imbalanced(an_image(*away), percentage=0) == [TopicPartition("t", 2)]


# Settings.


def test_leaderless_partitions_get_a_leader_when_unclean_elections_are_allowed_for_their_topic() -> None:
    cluster = a_cluster([1, 2])
    two = cluster.kill(2)
    cluster.kill(1)
    cluster.start(2, two.texts, [disk.restart() for disk in two.disks.values()])
    assert leaders(cluster) == [-1]
    write(cluster, layout.config("topics", "t"), layout.encode_config({"unclean.leader.election.enable": "true"}))
    assert leaders(cluster) == [2]


def test_a_large_number_of_partitions_is_checked_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election_queue, "PORTION", 4)
    cluster = a_cluster(*[[1, 2, 3]] * 30)
    controller_id = cluster.controller.node
    controller_id.controller.election_queue.add(TopicPartition("t", number) for number in range(30))
    controller_id.controller.election_queue.go_on()
    assert not controller_id.controller.election_queue.idle, "nothing is to be done, but there is more to look at"
    cluster.pass_ms(1000)
    assert controller_id.controller.election_queue.idle


def test_a_state_for_a_missing_partition_written_by_an_operator_is_ignored() -> None:
    cluster = a_cluster([1, 2, 3])
    state = cluster.store.tree.nodes[layout.partition_state("t", 0)].data
    write(cluster, layout.partition("t", 7), b"")
    write(cluster, layout.partition_state("t", 7), state)
    assert imbalanced(cluster.controller.node.context.image, percentage=0) == []
    assert elect(cluster.controller, 7) == {7: errors.UnknownTopicOrPartition.code}
    cluster.kill(3)
    cluster[1].handle(events.StopRequested())
    cluster.run()
    assert leaders(cluster)[0] == 2 and all(broker.halted is None for broker in cluster.brokers.values())

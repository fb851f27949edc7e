"""Fencing: zombie controllers, brokers that return, and former leaders change nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from cluster import Broker, Cluster, batch, produce, values
from cluster import fetch as fetched

from ottla.base.ids import LeaderEpoch, TopicPartition
from ottla.base.ports import Op
from ottla.broker import events
from ottla.store import layout
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.messages import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)
from ottla.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerState,
)
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource

T0 = TopicPartition("t", 0)


def a_cluster(replicas: int = 3) -> Cluster:
    cluster = Cluster(brokers=3)
    cluster.topic(replicas=replicas, partitions=3)
    cluster.pass_ms(1500)
    return cluster


def state_of(broker: Broker, partition: TopicPartition = T0) -> PartitionState:
    state = broker.node.context.image.state(partition)
    assert state is not None
    return state


def stored(cluster: Cluster) -> dict[str, bytes]:
    """All that a controller writes."""
    nodes = cluster.store.tree.nodes
    return {path: node.data for path, node in nodes.items() if path.startswith(("/brokers/topics/", "/config/", "/admin/"))}


def deliver(brokers: list[Broker]) -> None:
    """Only these brokers receive the store's events."""
    while sum(broker.session.deliver() for broker in brokers):
        pass


# Zombie controllers.


def pauses_past_its_session(cluster: Cluster, zombie: Broker) -> None:
    """SIGSTOP for longer than the session lives; when it resumes, its client already has another session, and no event has arrived yet."""
    cluster.store_delivers = False
    zombie.session.expire()
    zombie.session.renew()
    deliver([broker for broker in cluster.brokers.values() if broker is not zombie])


def is_deposed_without_knowing(cluster: Cluster, zombie: Broker) -> None:
    """Its session is alive; its events are late, and another broker was elected as controller."""
    cluster.store_delivers = False
    cluster.store.session().submit((Op("delete", layout.CONTROLLER),), lambda result: None)
    deliver([broker for broker in cluster.brokers.values() if broker is not zombie])


def creates_a_topic(zombie: Broker) -> Any:
    requested = CreatableTopic(name="new", num_partitions=2, replication_factor=1)
    return zombie.send(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7)


def deletes_a_topic(zombie: Broker) -> Any:
    return zombie.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6)


def adds_partitions(zombie: Broker) -> Any:
    requested = CreatePartitionsTopic(name="t", count=9, assignments=None)
    return zombie.send(CreatePartitionsRequest(topics=[requested], timeout_ms=1000), 3)


def alters_settings(zombie: Broker) -> Any:
    change = AlterConfigsResource(resource_type=2, resource_name="t", configs=[AlterableConfig(name="retention.ms", value="1")])
    return zombie.send(IncrementalAlterConfigsRequest(resources=[change]), 1)


def step(broker: Broker, act: Callable[[], None]) -> None:
    """Something that a broker does within a step."""
    broker.node.context.effects = []
    act()
    broker._perform(broker.node.context.effects)


def elects_leaders(zombie: Broker) -> Any:
    topic = zombie.node.context.image.topics["t"]
    topic.replicas = {number: replicas[::-1] for number, replicas in topic.replicas.items()}
    return zombie.send(ElectLeadersRequest(topic_partitions=None, timeout_ms=1000), 2)


def elects_by_itself(zombie: Broker) -> Any:
    """As when a broker goes: everything is looked at, and much would be written."""
    gone = next(broker for broker in zombie.node.context.image.brokers if broker != zombie.broker_id)
    del zombie.node.context.image.brokers[gone]
    queue = zombie.node.controller.election_queue
    queue.add(TopicPartition("t", number) for number in range(3))
    step(zombie, queue.go_on)
    assert not queue.idle, "it has written"


def takes_a_broker_out_of_an_isr(zombie: Broker) -> Any:
    state, topic = state_of(zombie), zombie.node.context.image.topics["t"]
    epoch = zombie.node.context.image.brokers[topic.leader(0)].epoch
    part = AlterPartitionRequestPartition(
        leader_epoch=state.leader_epoch,
        partition_epoch=topic.versions[0],
        new_isr_with_epochs=[BrokerState(broker_id=state.leader, broker_epoch=epoch)],
    )
    requested = AlterPartitionRequestTopic(topic_id=topic.topic_id, partitions=[part])
    return zombie.send(AlterPartitionRequest(broker_id=state.leader, broker_epoch=epoch, topics=[requested]), 3)


@pytest.mark.parametrize("falls", [pauses_past_its_session, is_deposed_without_knowing])
@pytest.mark.parametrize(
    "acts",
    [
        creates_a_topic, deletes_a_topic, adds_partitions, alters_settings, elects_leaders, elects_by_itself, takes_a_broker_out_of_an_isr,
    ],
)  # fmt: skip
def test_a_zombie_controller_writes_nothing(falls: Callable[[Cluster, Broker], None], acts: Callable[[Broker], Any]) -> None:
    """KAFKA-6082."""
    cluster = a_cluster()
    zombie = cluster.controller
    falls(cluster, zombie)
    assert zombie.node.controller.active and zombie.node.context.image.controller == zombie.broker_id, "as far as it knows"
    (successor,) = [broker for broker in cluster.brokers.values() if broker.node.controller.active and broker is not zombie]
    before = stored(cluster)
    sent = acts(zombie)
    assert stored(cluster) == before
    cluster.store_delivers = True
    cluster.run()
    cluster.pass_ms(3000)
    assert not zombie.node.controller.active or zombie.node.context.image.controller_epoch > successor.node.context.image.controller_epoch
    if sent is not None and acts is not elects_leaders:
        reported = {getattr(part, "error_code", 0) for name in sent.answer.__struct_fields__ for part in _parts(getattr(sent.answer, name))}
        assert reported & {errors.NotController.code, errors.UnknownServerError.code}, sent.answer


def _parts(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [deep for part in value for deep in [part, *(_parts(getattr(part, "partitions", [])))]]
    return []


def test_a_zombie_does_not_end_a_deletion_that_it_began() -> None:
    cluster = a_cluster()
    zombie = cluster.controller
    cluster.store.session().submit((Op("create", layout.deleted_topic("u")),), lambda result: None)
    is_deposed_without_knowing(cluster, zombie)
    before = stored(cluster)
    step(zombie, lambda: zombie.node.controller.topics.delete("t", lambda result: None))
    assert stored(cluster) == before


# Brokers that were away.


def bounces(cluster: Cluster, number: int) -> Broker:
    """A restart so quick that the registration is replaced before another broker noticed its end."""
    cluster.store_delivers = False
    gone = cluster.brokers.pop(number)
    gone.session.expire()
    gone.halted = "killed"
    back = cluster.start(number, gone.texts, [disk.restart() for disk in gone.disks.values()])
    cluster.store_delivers = True
    cluster.run()
    return back


def test_a_follower_that_bounces_leaves_the_isr_until_it_has_caught_up() -> None:
    cluster = a_cluster()
    leader = state_of(cluster.controller).leader
    number = next(one for one in cluster.brokers if one not in (leader, cluster.controller.broker_id))
    cluster.cut_off(number)
    bounces(cluster, number)
    assert number not in state_of(cluster.controller).isr
    cluster.cut.clear()
    cluster.pass_ms(5000)
    assert set(state_of(cluster.controller).isr) == {1, 2, 3}
    assert state_of(cluster.controller).registration_of(number) == cluster[number].node.context.epoch


def test_a_leader_that_bounces_hands_over_to_a_member_that_was_not_away() -> None:
    cluster = a_cluster()
    partition = next(
        TopicPartition("t", number)
        for number, state in cluster.controller.node.context.image.topics["t"].states.items()
        if state.leader != cluster.controller.broker_id
    )
    before = state_of(cluster.controller, partition)
    bounces(cluster, before.leader)
    after = state_of(cluster.controller, partition)
    assert after.leader not in (before.leader, -1) and after.leader_epoch == before.leader_epoch + 1
    assert before.leader not in after.isr


def test_a_state_that_names_an_earlier_life_makes_no_leader_of_this_one() -> None:
    """A control write decided for a broker that has bounced since. Source: KIP-380."""
    cluster = a_cluster()
    number = next(one for one in cluster.brokers if one != cluster.controller.broker_id)
    partition = next(
        TopicPartition("t", p) for p, s in cluster.controller.node.context.image.topics["t"].states.items() if s.leader == number
    )
    old = cluster[number].node.context.epoch
    assert old is not None
    # The controller gets no events, and repeats its write.
    controller_id = cluster.controller
    cluster.store_delivers = False
    gone = cluster.brokers.pop(number)
    gone.session.expire()
    gone.halted = "killed"
    version = controller_id.node.context.image.topics["t"].versions[partition.partition]
    state = state_of(controller_id, partition)
    late = PartitionState(
        leader=number,
        leader_epoch=LeaderEpoch(state.leader_epoch + 1),
        isr=(number,),
        isr_epochs=(old,),
        controller_epoch=state.controller_epoch,
    )
    path = layout.partition_state(partition.topic, partition.partition)
    write = Op("set", path, layout.encode_partition_state(late), version=version)
    step(controller_id, lambda: controller_id.node.controller.writes.write((write,), lambda result: None))
    back = cluster.start(number, gone.texts, [disk.restart() for disk in gone.disks.values()])
    deliver([back])
    assert state_of(back, partition).leader == number and partition not in back.node.partitions.leaders
    cluster.store_delivers = True
    cluster.run()
    assert state_of(cluster.controller, partition).registration_of(number) in (-1, back.node.context.epoch)


def test_a_mark_that_a_broker_leaves_does_not_outlive_its_registration() -> None:
    cluster = a_cluster()
    number = next(one for one in cluster.brokers if one != cluster.controller.broker_id)
    cluster[number].handle(events.StopRequested())
    cluster.run()
    assert cluster.controller.node.context.image.brokers[cluster[number].node.context.broker_id].leaving
    back = bounces(cluster, number)
    cluster.pass_ms(5000)
    assert not cluster.controller.node.context.image.brokers[back.node.context.broker_id].leaving
    assert all(set(state.isr) == {1, 2, 3} for state in cluster.controller.node.context.image.topics["t"].states.values())


def test_a_restart_of_the_controller_increases_the_epoch_and_loses_nothing() -> None:
    cluster = a_cluster()
    produce(cluster.leading("t"), batch(b"a"), acks=1)
    cluster.pass_ms(1000)
    epoch = cluster.controller.node.context.image.controller_epoch
    controller_id = cluster.controller.broker_id
    bounces(cluster, controller_id)
    cluster.pass_ms(3000)
    assert cluster.controller.node.context.image.controller_epoch > epoch
    assert values(fetched(cluster.leading("t")).records) == [b"a"]


# Leaders of the past.


def an_isr(broker: Broker, leader: int, *, members: tuple[int, ...], epoch: int | None = None, **fields: int) -> AlterPartitionRequest:
    image = broker.node.context.image
    topic, state = image.topics["t"], state_of(broker)
    epochs = {number: found.epoch for number, found in image.brokers.items()}
    part = AlterPartitionRequestPartition(
        **{"leader_epoch": state.leader_epoch, "partition_epoch": topic.versions[0], **fields},  # type: ignore[arg-type]
        new_isr_with_epochs=[BrokerState(broker_id=member, broker_epoch=epochs.get(member, -1)) for member in members],  # type: ignore[call-overload]
    )
    requested = AlterPartitionRequestTopic(topic_id=topic.topic_id, partitions=[part])
    return AlterPartitionRequest(broker_id=leader, broker_epoch=epochs[leader] if epoch is None else epoch, topics=[requested])  # type: ignore[index]


def answer_to(broker: Broker, request: AlterPartitionRequest) -> int:
    """The error of the one partition, or of the whole request."""
    answer = broker.ask(request, 3)
    return int(answer.error_code or answer.topics[0].partitions[0].error_code)


def test_isr_request_of_a_former_leader_is_refused() -> None:
    cluster = a_cluster()
    leader = state_of(cluster.controller).leader
    late = an_isr(cluster.controller, leader, members=(leader,))
    cluster[leader].handle(events.StopRequested())
    cluster.run()
    assert state_of(cluster.controller).leader != leader
    assert answer_to(cluster.controller, late) == errors.FencedLeaderEpoch.code


def test_repeated_isr_request_is_applied_once() -> None:
    cluster = a_cluster()
    leader = state_of(cluster.controller).leader
    others = tuple(number for number in (1, 2, 3) if number != leader)
    requested = an_isr(cluster.controller, leader, members=(leader, others[0]))
    assert answer_to(cluster.controller, requested) == 0
    assert answer_to(cluster.controller, requested) == errors.InvalidUpdateVersion.code


def test_isr_request_of_an_earlier_broker_epoch_is_refused_as_a_whole() -> None:
    cluster = a_cluster()
    leader = state_of(cluster.controller).leader
    requested = an_isr(cluster.controller, leader, members=(leader,), epoch=1)
    assert answer_to(cluster.controller, requested) == errors.StaleBrokerEpoch.code


def test_isr_request_with_a_restarted_replica_is_refused() -> None:
    cluster = a_cluster()
    leader = state_of(cluster.controller).leader
    number = next(one for one in cluster.brokers if one not in (leader, cluster.controller.broker_id))
    members = an_isr(cluster.controller, leader, members=(leader, number)).topics[0].partitions[0].new_isr_with_epochs
    cluster.cut_off(number)
    bounces(cluster, number)
    requested = an_isr(cluster.controller, leader, members=(leader, number))
    requested.topics[0].partitions[0].new_isr_with_epochs = members
    assert answer_to(cluster.controller, requested) == errors.IneligibleReplica.code

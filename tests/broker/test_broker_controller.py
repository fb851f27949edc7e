"""Election of the controller, election of leaders, and placement of replicas."""

import json
from collections import Counter
from random import Random

import pytest
from cluster import Cluster, batch, fetch, produce, values

from ottla.base.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition
from ottla.base.ports import Op
from ottla.broker.controller.election import election
from ottla.broker.controller.placement import place
from ottla.broker.metadata.image import Image, Registration, Topic
from ottla.log.options import TopicOptions
from ottla.sim.disk import SimDisk
from ottla.store import layout
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

CREATE = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=1000)


def held(cluster: Cluster) -> list[int]:
    return [number for number, broker in cluster.brokers.items() if broker.node.controller.active]


# The controller's election.


def test_one_broker_of_many_is_controller() -> None:
    cluster = Cluster(brokers=3)
    assert len(held(cluster)) == 1
    assert {broker.node.context.image.controller for broker in cluster.brokers.values()} == set(held(cluster))
    assert cluster.store.tree.nodes["/controller_epoch"].data == b"1"


def test_another_broker_is_elected_when_the_controller_fails() -> None:
    cluster = Cluster(brokers=3)
    (first,) = held(cluster)
    cluster.kill(first)
    (second,) = held(cluster)
    assert second != first
    assert cluster.store.tree.nodes["/controller_epoch"].data == b"2"
    assert cluster[second].ask(CREATE, 7).topics[0].error_code == 0


def test_deposed_controller_that_does_not_know_it_cannot_write() -> None:
    """The epoch in the store fences it. Source: KAFKA-6082."""
    cluster = Cluster(brokers=2)
    zombie = cluster.controller
    other = next(broker for broker in cluster.brokers.values() if broker is not zombie)
    cluster.store_delivers = False
    raised = Op("set", "/controller_epoch", b"2")
    taken = Op("set", "/controller", layout.encode_controller(other.broker_id, 0))
    cluster.store.session().submit((taken, raised), lambda result: None)
    sent = zombie.send(CREATE, 7)
    assert zombie.node.controller.active, "it does not know yet"
    cluster.store_delivers = True
    cluster.run()
    assert sent.answer.topics[0].error_code == errors.NotController.code
    assert "/brokers/topics/t" not in cluster.store.tree.nodes


def test_a_store_request_without_an_answer_is_retried() -> None:
    cluster = Cluster(brokers=2)
    (first,) = held(cluster)
    other = next(broker for broker in cluster.brokers.values() if broker.broker_id != first)
    other.session.fail_next(applied=False)
    cluster.kill(first)
    assert held(cluster) == []
    cluster.pass_ms(2000)
    assert held(cluster) == [other.broker_id]


def test_a_request_for_the_controller_is_forwarded_and_refused_when_there_is_none() -> None:
    cluster = Cluster(brokers=2)
    other = next(broker for broker in cluster.brokers.values() if broker is not cluster.controller)
    gone = cluster.brokers.pop(cluster.controller.broker_id)
    answer = other.send(CREATE, 7).answer
    assert answer.topics[0].error_code == errors.NotController.code, "the controller could not be reached"
    cluster.store_delivers = False
    gone.session.expire()
    other.session.deliver(1)
    assert other.send(CREATE, 7).answer.topics[0].error_code == errors.NotController.code


def test_a_controller_that_does_not_answer_is_given_up() -> None:
    cluster = Cluster(brokers=2)
    other = next(broker for broker in cluster.brokers.values() if broker is not cluster.controller)
    cluster.controller.halted = "stopped in the middle"
    sent = other.send(CREATE, 7)
    assert sent.waits
    cluster.pass_ms(31_000)
    assert sent.answer.topics[0].error_code == errors.NotController.code


# Elections, as the cluster lives through them.


def test_a_broker_that_is_gone_leads_nothing_and_leads_again_when_it_is_back() -> None:
    cluster = Cluster(brokers=3)
    broker = cluster.topic()
    produce(broker, batch(b"a"))
    number = broker.broker_id
    gone = cluster.kill(number)
    state = cluster.controller.node.context.image.state(TopicPartition("t", 0))
    assert state is not None and (state.leader, state.isr) == (-1, (number,))
    back = cluster.start(number, gone.texts, [disk.restart() for disk in gone.disks.values()])
    assert back.leader("t").epoch > 0
    assert values(fetch(back).records) == [b"a"]


def test_each_life_of_a_leader_has_an_epoch_of_its_own() -> None:
    cluster = Cluster()
    cluster.topic()
    epochs = [cluster.restart(1).leader("t").epoch for _ in range(3)]
    assert epochs == [1, 2, 3]


def test_an_unnoticed_quick_restart_still_begins_a_leader_epoch() -> None:
    """The registration is a new one. Source: KIP-380."""
    cluster = Cluster(brokers=2)
    broker = next(one for one in cluster.brokers.values() if one is not cluster.controller)
    while cluster.topic(f"t{len(cluster[1].node.context.image.topics)}") is not broker:
        pass
    topic = next(partition.topic for partition in broker.node.partitions.leaders)
    cluster.store_delivers = False
    gone = cluster.kill(broker.broker_id)
    back = cluster.start(broker.broker_id, gone.texts, [disk.restart() for disk in gone.disks.values()])
    cluster.store_delivers = True
    cluster.run()
    assert back.leader(topic).epoch >= 1


def test_a_broker_id_is_taken_once() -> None:
    cluster = Cluster()
    twin = cluster.start(1, {}, [SimDisk("twin")])
    assert twin.halted is not None and "already registered" in twin.halted


def test_the_states_in_the_store_are_kafkas_and_name_the_registrations_of_the_isr() -> None:
    cluster = Cluster()
    cluster.topic()
    state = json.loads(cluster.store.tree.nodes["/brokers/topics/t/partitions/0/state"].data)
    registered = cluster.store.tree.nodes["/brokers/ids/1"].created_zxid
    assert state.pop("isr_broker_epochs") == [registered]
    assert state == {"version": 1, "leader": 1, "leader_epoch": 0, "controller_epoch": 1, "isr": [1]}


# Elections as a function.


def an_image(leader: int, isr: dict[int, int], alive: dict[int, int], replicas: tuple[int, ...] = (1, 2, 3)) -> Image:
    """A topic of one partition; ``isr`` gives the registration under which each member was counted in, ``alive`` those of now."""
    image = Image()
    image.controller_epoch = 9
    for broker, epoch in alive.items():
        image.brokers[BrokerId(broker)] = Registration(BrokerId(broker), "h", 1, None, epoch)
    state = PartitionState(leader=leader, leader_epoch=LeaderEpoch(5), isr=tuple(isr), isr_epochs=tuple(isr.values()), controller_epoch=1)
    image.topics["t"] = Topic("t", TopicId(bytes(16)), {0: replicas}, 0, {0: state}, {0: 0})
    return image


@pytest.mark.parametrize(
    ("leader", "isr", "alive", "unclean", "outcome"),
    [
        (1, {1: 7, 2: 7}, {1: 7, 2: 7}, False, None),
        (1, {1: 7, 2: 7, 3: 7}, {1: 7, 2: 7}, False, (1, (1, 2), 5)),
        (1, {1: 7, 2: 7}, {1: 7, 2: 8}, False, (1, (1,), 5)),
        (1, {1: 7, 2: 7}, {1: 8, 2: 7}, False, (2, (2,), 6)),
        (1, {1: 7}, {1: 8, 2: 7}, False, (1, (1,), 6)),
        (1, {1: 7, 2: 7, 3: 7}, {2: 7, 3: 7}, False, (2, (2, 3), 6)),
        (1, {3: 7, 1: 7}, {2: 7, 3: 7}, False, (3, (3,), 6)),
        (1, {1: 7}, {2: 7, 3: 7}, False, (-1, (1,), 6)),
        (1, {1: 7}, {3: 7, 2: 7}, True, (2, (2,), 6)),
        (-1, {1: 7}, {2: 7}, False, None),
        (-1, {1: 7}, {1: 9, 2: 7}, False, (1, (1,), 6)),
        (2, {1: 7, 2: 7}, {1: 8, 2: 8}, False, (2, (2,), 6)),
        (1, {1: 7, 2: 7}, {}, False, (-1, (1, 2), 6)),
    ],
    ids=[
        "a live leader stays, whoever is controller",
        "a follower that is gone leaves the ISR",
        "a follower that registered anew leaves the ISR until it has caught up",
        "a leader that registered anew hands over to a member that was not away",
        "a leader that registered anew and is alone in the ISR begins an epoch",
        "the first live replica of the ISR follows",
        "a live replica outside of the ISR does not lead",
        "without a live member of the ISR there is no leader",
        "unless losing records is allowed",
        "no leader is elected once",
        "the last member of the ISR leads again when it is back",
        "the last leader comes first where all were away",
        "the ISR keeps its members when all are gone",
    ],
)
def test_elections(
    leader: int, isr: dict[int, int], alive: dict[int, int], unclean: bool, outcome: tuple[int, tuple[int, ...], int] | None
) -> None:
    options = TopicOptions.of({"unclean.leader.election.enable": str(unclean).lower()})
    image = an_image(leader, isr, alive)
    state = election(image, image.topics["t"], 0, options=options)
    if outcome is None:
        assert state is None
    else:
        assert state is not None
        assert (state.leader, state.isr, state.leader_epoch, state.controller_epoch) == (*outcome, 9)
        assert all(state.registration_of(broker) == alive[broker] for broker in state.isr if state.leader >= 0)


def test_a_new_controller_leaves_what_is_in_order_as_it_is() -> None:
    cluster = Cluster(brokers=3)
    cluster.topic(partitions=6)
    controller_id = cluster.controller.broker_id
    before = {
        number: state
        for number, state in cluster[controller_id].node.context.image.topics["t"].states.items()
        if state.leader != controller_id
    }
    cluster.kill(controller_id)
    after = cluster.controller.node.context.image.topics["t"].states
    assert before and all(after[number] == state for number, state in before.items())


# Placement.


def racks(**named: str) -> dict[BrokerId, str | None]:
    return {BrokerId(int(name.removeprefix("b"))): rack for name, rack in named.items()}


def test_partitions_are_spread_evenly_over_the_brokers() -> None:
    for seed in range(20):
        placed = place(dict.fromkeys(map(BrokerId, range(5)), None), partitions=10, replication_factor=3, rng=Random(seed))
        assert all(len(set(replicas)) == 3 for replicas in placed)
        assert set(Counter(replicas[0] for replicas in placed).values()) == {2}
        assert set(Counter(broker for replicas in placed for broker in replicas).values()) == {6}


def test_new_partitions_go_on_where_the_others_ended() -> None:
    alive = dict.fromkeys(map(BrokerId, range(4)), None)
    later = place(alive, partitions=4, replication_factor=1, rng=Random(3), first_partition=5)
    assert sorted(replicas[0] for replicas in later) == [0, 1, 2, 3]


def test_neighbouring_replicas_lie_in_different_racks() -> None:
    alive = racks(b0="a", b1="a", b2="b", b3="b")
    for seed in range(20):
        for replicas in place(alive, partitions=4, replication_factor=2, rng=Random(seed))[:2]:
            assert len({alive[broker] for broker in replicas}) >= 1
            assert len(set(replicas)) == 2


def test_one_broker_holds_everything_when_it_is_alone() -> None:
    assert place({BrokerId(7): None}, partitions=3, replication_factor=1, rng=Random(0)) == [(7,)] * 3


def test_the_same_seed_places_the_same_way() -> None:
    alive = dict.fromkeys(map(BrokerId, range(5)), None)
    assert place(alive, partitions=9, replication_factor=2, rng=Random(1)) == place(
        alive, partitions=9, replication_factor=2, rng=Random(1)
    )

"""Moving partitions to other brokers. Pure: an image and a wish in; the partition as it is to be, or a KafkaError, out.

Replicas are added before any is removed, so that at no moment fewer brokers hold the records than before or after::

                        replicas            adding    removing    ISR
    before              1 2 3               -         -           1 2 3
    begun               4 5 6 1 2 3         4 5 6     1 2 3       1 2 3          all six follow; 1 2 3 count as ever
    caught up           4 5 6 1 2 3         4 5 6     1 2 3       1 2 3 4 5 6
    completed           4 5 6               -         -           4 5 6          1 2 3 delete their logs
    or cancelled        1 2 3               -         -           1 2 3          4 5 6 delete theirs

All of it stands in the topic's node of the store, so a controller that takes over goes on from there. Assignment and state change in one
``multi``, each under its version; the leader epoch rises each time, so that whatever was asked or told before the change is void after it.
A move is completed when every replica of the target is in the ISR, alive, and has been since it was counted in.

A wish that meets a running move starts from the replicas that were there before it. What the earlier move had begun to add, and the new
one does not want, goes at once, unless nobody else of the ISR is alive: then it stays as one that is being removed.

A topic that was created while there were fewer brokers than it is to have replicas says so in its node. The controller adds what is missing
as brokers come (``grown``), by such moves as anybody may wish for. Whoever wishes for replicas of such a topic has taken it into his own
hands: the node says so no more.

Source: KIP-455, KIP-860 (insisting on the replication factor); Kafka's ReplicaAssignment.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.base.ids import BrokerId, LeaderEpoch, TopicPartition
from ottla.base.ports import Op
from ottla.base.units import KiB
from ottla.broker.controller.election import Case, OptionsOf, is_fit, is_full, is_leaving, is_sound
from ottla.broker.metadata.image import NO_LEADER, Image, Topic
from ottla.store import layout
from ottla.store.layout import PartitionState
from ottla.wire import errors

#: Bytes that a topic's node may have by a wish: with the states of ``moves.MOVES_AT_ONCE`` partitions beside it, that is what a store takes
#: at once, so what was begun can be completed. Some 15,000 partitions of one topic may so be on their way.
NODE_BYTES_MAX = 640 * KiB


class Move(NamedTuple):
    """A partition as it is to be."""

    #: The target's, preferred leader first, then those being removed.
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    state: PartitionState

    @property
    def begins(self) -> bool:
        """Whether the partition is on its way when this is written, and not there."""
        return bool(self.adding or self.removing)


def without(brokers: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    """Those of the first that are not among the second, in their order."""
    return tuple(broker for broker in brokers if broker not in others)


def is_moving(topic: Topic, number: int) -> bool:
    """Whether replicas of this partition are being added or removed."""
    return bool(topic.adding.get(number) or topic.removing.get(number))


def target_of(topic: Topic, number: int) -> tuple[int, ...]:
    """The replicas that a partition has when its move, if there is one, is done."""
    return without(topic.replicas[number], topic.removing.get(number, ()))


def origin_of(topic: Topic, number: int) -> tuple[int, ...]:
    """The replicas that a partition had before its move."""
    return without(topic.replicas[number], topic.adding.get(number, ()))


# Begin, cancel, complete.


def begun(image: Image, topic: Topic, number: int, wish: Sequence[int], *, factor_may_change: bool = True) -> Move | None:
    """The partition on its way to the brokers wished for, or there already; None when nothing is to be done.

    Raises: UnknownTopicOrPartition, InvalidReplicaAssignment, InvalidReplicationFactor.
    """
    state = _state_of(image, topic, number)
    target, origin = tuple(wish), origin_of(topic, number)
    _check(image, target, origin)
    factor = len(target_of(topic, number))
    if not factor_may_change and len(target) != factor:
        raise errors.InvalidReplicationFactor(f"{topic.name}-{number} has {factor} replicas, and is to keep as many, not {len(target)}")
    if target == target_of(topic, number) and (is_moving(topic, number) or target == topic.replicas[number]):
        return None
    adding, removing = without(target, origin), without(origin, target)
    unwanted = without(topic.replicas[number], (*target, *origin))
    partition = TopicPartition(topic.name, number)
    if not any(_counts(image, partition, state, broker) for broker in without(state.isr, unwanted)):
        # Nobody else can lead: the log of these must not go.
        needed = without(state.isr, without(state.isr, unwanted))
        removing, unwanted = (*removing, *needed), without(unwanted, needed)
    replicas = (*target, *removing)
    changed = _changed(image, partition, state, replicas, without(state.isr, unwanted))
    return _done(image, partition, state, target) or Move(replicas, adding, removing, changed)


def cancelled(image: Image, topic: Topic, number: int, *, options: OptionsOf) -> Move:
    """The partition with the replicas that it had before its move. Where only brokers that were being added are in sync, an eligible
    replica leads that has what was committed.

    Raises: UnknownTopicOrPartition, NoReassignmentInProgress, InvalidReplicaAssignment when only brokers that were being added can lead.
    """
    state = _state_of(image, topic, number)
    if not is_moving(topic, number):
        raise errors.NoReassignmentInProgress(f"{topic.name}-{number} does not move")
    replicas = origin_of(topic, number)
    isr = without(state.isr, without(topic.replicas[number], replicas))
    partition = TopicPartition(topic.name, number)
    sound = [broker for broker in state.isr if _counts(image, partition, state, broker)]
    if not isr or (sound and not set(sound) & set(isr)):
        case = Case(image, partition, state, replicas, (), options(topic.name))
        for broker in replicas:
            if broker in state.elr and case.intact(broker, state.eligible_since(broker)):
                return Move(replicas, (), (), case.led_by(broker, [broker]))
        alive = [broker for broker in replicas if case.works(broker)]
        if not case.options.unclean_leader_election_enable or not alive:
            raise errors.InvalidReplicaAssignment(
                f"only {list(state.isr)} have all of {topic.name}-{number}; going back to {list(replicas)} would be an unclean election"
            )
        leader = min(alive, key=lambda broker: (case.misses_records(broker), is_leaving(image, broker), case.full(broker)))
        return Move(replicas, (), (), _led_uncleanly_by(image, partition, state, leader, replicas))
    return Move(replicas, (), (), _changed(image, partition, state, replicas, isr))


def completed(image: Image, topic: Topic, number: int) -> Move | None:
    """The partition with the replicas of its target only; None while it does not move, one of them is not in sync, or the topic is on its
    way out."""
    state = topic.states.get(number)
    if state is None or not is_moving(topic, number) or topic.name in image.deleting:
        return None
    return _done(image, TopicPartition(topic.name, number), state, target_of(topic, number))


def _done(image: Image, partition: TopicPartition, state: PartitionState, target: Sequence[int]) -> Move | None:
    if not all(_counts(image, partition, state, broker) for broker in target):
        return None
    return Move(tuple(target), (), (), _changed(image, partition, state, target, without(state.isr, without(state.isr, target))))


def _counts(image: Image, partition: TopicPartition, state: PartitionState, broker: int) -> bool:
    """In the ISR, alive since it was counted in, and fit."""
    return is_sound(image, state, broker) and is_fit(image, partition, state, broker)


def _check(image: Image, target: Sequence[int], origin: Sequence[int]) -> None:
    if not target:
        raise errors.InvalidReplicaAssignment("a partition has at least one replica")
    if len(set(target)) < len(target):
        raise errors.InvalidReplicaAssignment(f"a broker holds a partition once, not {list(target)}")
    dead = [broker for broker in without(target, origin) if BrokerId(broker) not in image.brokers]
    if dead:
        raise errors.InvalidReplicaAssignment(f"no broker {dead[0]} is alive; there are {list(image.brokers)}")


def _state_of(image: Image, topic: Topic, number: int) -> PartitionState:
    state = topic.states.get(number)
    if state is None or number not in topic.replicas or topic.name in image.deleting:
        raise errors.UnknownTopicOrPartition(f"there is no partition {topic.name}-{number}")
    return state


def _changed(image: Image, partition: TopicPartition, state: PartitionState, replicas: Sequence[int], isr: Sequence[int]) -> PartitionState:
    """A later epoch with a smaller ISR, under the same leader if it stays; else under the first replica that can lead, rather one whose
    broker is not about to stop and has room."""
    leader = state.leader
    if leader != NO_LEADER and leader not in isr:
        able = [broker for broker in replicas if broker in isr and _counts(image, partition, state, broker)]
        leader = min(able, key=lambda broker: (is_leaving(image, broker), is_full(image, partition, broker)), default=NO_LEADER)
    elr = tuple(broker for broker in state.elr if broker in replicas)
    return PartitionState(
        leader=leader,
        leader_epoch=LeaderEpoch(state.leader_epoch + 1),
        isr=tuple(isr),
        isr_epochs=tuple(state.registration_of(broker) for broker in isr) if state.isr_epochs else (),
        controller_epoch=image.controller_epoch,
        recovering=state.recovering and leader == state.leader,
        elr=elr,
        elr_epochs=tuple(state.eligible_since(broker) for broker in elr),
        last_known_elr=tuple(broker for broker in state.last_known_elr if broker in replicas),
        last_leader=state.last_leader if leader == NO_LEADER else -1,
    )


def _led_uncleanly_by(
    image: Image, partition: TopicPartition, state: PartitionState, leader: int, replicas: Sequence[int]
) -> PartitionState:
    return PartitionState(
        leader=leader,
        leader_epoch=LeaderEpoch(state.leader_epoch + 1),
        isr=(leader,),
        isr_epochs=(image.brokers[BrokerId(leader)].epoch,),
        controller_epoch=image.controller_epoch,
        recovering=len(replicas) > 1 or partition in image.brokers[BrokerId(leader)].impaired,
    )


def is_small(image: Image, topic: Topic, number: int) -> bool:
    """Whether a partition is to have more replicas than it has, and there are brokers for one more."""
    takers = set(topic.replicas[number]).union(_takers(image))
    return len(topic.replicas[number]) < min(topic.factor_wanted, len(takers)) and not is_moving(topic, number)


def _takers(image: Image) -> list[BrokerId]:
    """Brokers that may be given new replicas without being asked for."""
    return [broker for broker, found in image.brokers.items() if not found.leaving and not found.full]


def grown(image: Image, topic: Topic, number: int) -> Move | None:
    """The partition on its way to as many replicas as it is to have, or as there are brokers for; None when it has them, or moves.

    Racks without a replica come first; among equals, and for the preferred leader, it is the partition's number that spreads them.
    """
    if not is_small(image, topic, number) or number not in topic.states or topic.name in image.deleting:
        return None
    target = list(topic.replicas[number])
    fresh = [broker for broker in _takers(image) if broker not in target]
    fresh = fresh[number % len(fresh) :] + fresh[: number % len(fresh)] if fresh else []
    while fresh and len(target) < topic.factor_wanted:
        taken = {found.rack for broker in target if (found := image.brokers.get(BrokerId(broker))) is not None and found.rack is not None}
        best = min(fresh, key=lambda broker: image.brokers[broker].rack in taken)
        fresh.remove(best)
        target.append(best)
    target.sort()
    turn = number % len(target)
    return begun(image, topic, number, (*target[turn:], *target[:turn]))


# Operations on the store.


def has_room(ops: Sequence[Op]) -> bool:
    """Whether what ``writes`` made for moves that begin leaves room to complete them."""
    return len(ops[0].data) <= NODE_BYTES_MAX


def writes(topic: Topic, moves: Mapping[int, Move], *, by_wish: bool) -> list[Op]:
    """What makes some partitions of one topic as they are to be, together; ``by_wish``: as somebody wished for."""
    replicas, adding, removing = dict(topic.replicas), dict(topic.adding), dict(topic.removing)
    for number, move in moves.items():
        replicas[number], adding[number], removing[number] = move.replicas, move.adding, move.removing
    wanted = topic.factor_wanted
    if by_wish or all(len(without(held, removing.get(number, ()))) >= wanted for number, held in replicas.items()):
        wanted = 0
    assignment = layout.TopicAssignment(topic_id=topic.topic_id, replicas=replicas, adding=adding, removing=removing, factor_wanted=wanted)
    ops = [Op("set", layout.topic(topic.name), layout.encode_topic(assignment), version=topic.version)]
    for number, move in moves.items():
        path = layout.partition_state(topic.name, number)
        ops.append(Op("set", path, layout.encode_partition_state(move.state), version=topic.versions[number]))
    return ops

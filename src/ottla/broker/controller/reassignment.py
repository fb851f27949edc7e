"""Partition reassignment. Pure: an image and a request in; the changed partition, or a KafkaError, out.

Replicas are added before any is removed, so that the number of copies never decreases::

                        replicas            adding    removing    ISR
    before              1 2 3               -         -           1 2 3
    started             4 5 6 1 2 3         4 5 6     1 2 3       1 2 3          all six replicate; 1 2 3 count
    caught up           4 5 6 1 2 3         4 5 6     1 2 3       1 2 3 4 5 6
    completed           4 5 6               -         -           4 5 6          1 2 3 delete their logs
    or cancelled        1 2 3               -         -           1 2 3          4 5 6 delete theirs

The topic's node in the store has all of it, so a new controller continues. Assignment and state change in one ``multi``, each conditional
on its version; the leader epoch increases each time, so that earlier requests and responses become void. A reassignment is completed when
all target replicas are in the ISR, alive and not restarted since.

A request during a reassignment starts from the replicas before it. Adding replicas that the new request does not have are removed at once,
unless no other ISR member is alive: then they become removing replicas.

A topic that was created with fewer brokers than its replication factor has that factor in its node. The controller adds the missing
replicas as brokers join (``grown``), by normal reassignments. A user's reassignment of such a topic deletes the factor from the node.

Source: KIP-455, KIP-860 (fixed replication factor); Kafka's ReplicaAssignment.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.base.ids import BrokerId, LeaderEpoch, TopicPartition
from ottla.base.ports import Op
from ottla.base.units import KiB
from ottla.broker.controller.election import ElectionContext, OptionsOf, is_fit, is_full, is_leaving, is_sound
from ottla.broker.metadata.image import NO_LEADER, Image, Topic
from ottla.store import layout
from ottla.store.layout import PartitionState
from ottla.wire import errors

#: Maximum bytes of a topic's node after a request: with the states of ``MOVES_AT_ONCE`` partitions in the same multi, the store still
#: accepts it, so a reassignment can be completed. Some 15,000 partitions of one topic can be reassigned at once.
NODE_BYTES_MAX = 640 * KiB


class Move(NamedTuple):
    """A partition after a change."""

    #: Target replicas, preferred leader first, then removing ones.
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    state: PartitionState

    @property
    def begins(self) -> bool:
        """Whether the reassignment is in progress after this change."""
        return bool(self.adding or self.removing)


def without(brokers: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    """Elements of the first sequence that are not in the second, in order."""
    return tuple(broker for broker in brokers if broker not in others)


def is_moving(topic: Topic, number: int) -> bool:
    """Whether this partition has adding or removing replicas."""
    return bool(topic.adding.get(number) or topic.removing.get(number))


def target_of(topic: Topic, number: int) -> tuple[int, ...]:
    """Replicas after the reassignment, if there is one."""
    return without(topic.replicas[number], topic.removing.get(number, ()))


def origin_of(topic: Topic, number: int) -> tuple[int, ...]:
    """Replicas before the reassignment."""
    return without(topic.replicas[number], topic.adding.get(number, ()))


# Start, cancel, complete.


def begun(image: Image, topic: Topic, number: int, requested: Sequence[int], *, factor_may_change: bool = True) -> Move | None:
    """The partition after the start of a reassignment to these brokers; None if nothing changes.

    Raises: UnknownTopicOrPartition, InvalidReplicaAssignment, InvalidReplicationFactor.
    """
    state = _state_of(image, topic, number)
    target, origin = tuple(requested), origin_of(topic, number)
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
        # No other replica can lead: their logs must not be deleted.
        needed = without(state.isr, without(state.isr, unwanted))
        removing, unwanted = (*removing, *needed), without(unwanted, needed)
    replicas = (*target, *removing)
    changed = _changed(image, partition, state, replicas, without(state.isr, unwanted))
    return _done(image, partition, state, target) or Move(replicas, adding, removing, changed)


def cancelled(image: Image, topic: Topic, number: int, *, options: OptionsOf) -> Move:
    """The partition with its replicas before the reassignment. If only adding replicas are in sync, an eligible replica with all
    committed records leads.

    Raises: UnknownTopicOrPartition, NoReassignmentInProgress, InvalidReplicaAssignment if only adding replicas can lead.
    """
    state = _state_of(image, topic, number)
    if not is_moving(topic, number):
        raise errors.NoReassignmentInProgress(f"{topic.name}-{number} does not move")
    replicas = origin_of(topic, number)
    isr = without(state.isr, without(topic.replicas[number], replicas))
    partition = TopicPartition(topic.name, number)
    sound = [broker for broker in state.isr if _counts(image, partition, state, broker)]
    if not isr or (sound and not set(sound) & set(isr)):
        context = ElectionContext(image, partition, state, replicas, (), options(topic.name))
        for broker in replicas:
            if broker in state.elr and context.intact(broker, state.eligible_since(broker)):
                return Move(replicas, (), (), context.led_by(broker, [broker]))
        alive = [broker for broker in replicas if context.works(broker)]
        if not context.options.unclean_leader_election_enable or not alive:
            raise errors.InvalidReplicaAssignment(
                f"only {list(state.isr)} have all of {topic.name}-{number}; going back to {list(replicas)} would be an unclean election"
            )
        leader = min(alive, key=lambda broker: (context.misses_records(broker), is_leaving(image, broker), context.full(broker)))
        return Move(replicas, (), (), context.recovered_by(leader))
    return Move(replicas, (), (), _changed(image, partition, state, replicas, isr))


def completed(image: Image, topic: Topic, number: int) -> Move | None:
    """The partition with only its target replicas; None without a reassignment, if a target replica is not in sync, or if the topic is
    being deleted.
    """
    state = topic.states.get(number)
    if state is None or not is_moving(topic, number) or topic.name in image.deleting:
        return None
    return _done(image, TopicPartition(topic.name, number), state, target_of(topic, number))


def _done(image: Image, partition: TopicPartition, state: PartitionState, target: Sequence[int]) -> Move | None:
    if not all(_counts(image, partition, state, broker) for broker in target):
        return None
    return Move(tuple(target), (), (), _changed(image, partition, state, target, without(state.isr, without(state.isr, target))))


def _counts(image: Image, partition: TopicPartition, state: PartitionState, broker: int) -> bool:
    """In the ISR, alive since it was added, and healthy."""
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
    """The next epoch with a smaller ISR, with the same leader if it stays; otherwise the first replica that can lead, preferably one
    that is not stopping and has room.
    """
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


def is_small(image: Image, topic: Topic, number: int) -> bool:
    """Whether a partition lacks replicas and there is a broker for another one."""
    takers = set(topic.replicas[number]).union(_takers(image))
    return len(topic.replicas[number]) < min(topic.factor_wanted, len(takers)) and not is_moving(topic, number)


def _takers(image: Image) -> list[BrokerId]:
    """Brokers that can get new replicas automatically."""
    return [broker for broker, found in image.brokers.items() if not found.leaving and not found.full]


def grown(image: Image, topic: Topic, number: int) -> Move | None:
    """The partition with the replicas that it lacks added, as far as there are brokers; None if it has them or is being reassigned.

    Racks without a replica come first; among equals, and for the preferred leader, the partition's number distributes them.
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


# Store operations.


def has_room(ops: Sequence[Op]) -> bool:
    """Whether the operations of started reassignments leave room to complete them."""
    return len(ops[0].data) <= NODE_BYTES_MAX


def writes(topic: Topic, moves: Mapping[int, Move], *, by_request: bool) -> list[Op]:
    """Operations for changes of some partitions of one topic; ``by_request``: at a user's request."""
    replicas, adding, removing = dict(topic.replicas), dict(topic.adding), dict(topic.removing)
    for number, move in moves.items():
        replicas[number], adding[number], removing[number] = move.replicas, move.adding, move.removing
    wanted = topic.factor_wanted
    if by_request or all(len(without(held, removing.get(number, ()))) >= wanted for number, held in replicas.items()):
        wanted = 0
    assignment = layout.TopicAssignment(topic_id=topic.topic_id, replicas=replicas, adding=adding, removing=removing, factor_wanted=wanted)
    ops = [Op("set", layout.topic(topic.name), layout.encode_topic(assignment), version=topic.version)]
    for number, move in moves.items():
        path = layout.partition_state(topic.name, number)
        ops.append(Op("set", path, layout.encode_partition_state(move.state), version=topic.versions[number]))
    return ops

"""Who leads each partition, given who is alive. Pure: an image in, new partition states out.

A member of the ISR is *sound* while it is alive under the registration that the state names for it: it has not been away since it was
counted in. Any other has to catch up before it counts again, for it may have lost what was never on disk. A sound member *stays* unless
its broker is about to stop; one that is leads and counts only where no other can.

==========================  ==================================  ========================================================
leader                      members of the ISR                  new state
==========================  ==================================  ========================================================
stays                       all stay                            unchanged, whoever became controller meanwhile
stays                       some do not                         same leader and epoch, ISR of those that stay
sound, about to stop        some stay                           first replica among these, epoch + 1, ISR of these
sound, about to stop        none stays                          same leader and epoch, alone in the ISR
gone, or registered anew    some sound                          first replica among those that stay, epoch + 1, ISR of these;
                                                                where none stays, the first of the sound, alone in the ISR
gone, or registered anew    none sound, some alive              one of these (the last leader first), epoch + 1, alone in the ISR
gone                        none alive, unclean allowed         first live replica, epoch + 1, alone in the ISR
gone                        none alive                          leader -1, epoch + 1, once; the ISR stays, for it holds the log
==========================  ==================================  ========================================================

Source: Kafka's PartitionStateMachine; KIP-380 and KIP-903 for registrations, KIP-106 for unclean elections, KIP-841 for brokers that stop.
"""

from collections.abc import Callable, Iterator, Sequence

from ottla.base.ids import BrokerId, LeaderEpoch, TopicPartition
from ottla.broker.image import NO_LEADER, Image, Topic
from ottla.store.layout import PartitionState


def elections(image: Image, *, unclean: Callable[[str], bool]) -> Iterator[tuple[TopicPartition, PartitionState]]:
    """New states for the partitions that need one; ``unclean`` tells whether a topic would rather lose records than wait."""
    for topic in image.topics.values():
        for number in topic.states:
            state = election(image, topic, number, unclean=unclean)
            if state is not None:
                yield TopicPartition(topic.name, number), state


def election(image: Image, topic: Topic, number: int, *, unclean: Callable[[str], bool]) -> PartitionState | None:
    """The new state of one partition; None when it needs none."""
    state, replicas = topic.states[number], topic.replicas[number]
    sound = [broker for broker in state.isr if is_sound(image, state, broker)]
    stay = [broker for broker in sound if not is_leaving(image, broker)]
    if state.leader in stay or (state.leader in sound and not stay):
        members = stay or [state.leader]
        return None if len(members) == len(state.isr) else _state(image, state, state.leader, state.leader_epoch, members)
    epoch = LeaderEpoch(state.leader_epoch + 1)
    for broker in replicas:
        if broker in (stay or sound):
            return _state(image, state, broker, epoch, stay or [broker])
    for broker in (state.leader, *replicas):
        if broker in state.isr and broker in image.brokers:
            return _state(image, state, broker, epoch, [broker])
    if unclean(topic.name):
        # One that is being added may have nothing at all yet.
        adding = topic.adding.get(number, ())
        for broker in sorted(replicas, key=lambda broker: broker in adding):
            if broker in image.brokers:
                return _state(image, state, broker, epoch, [broker])
    if state.leader == NO_LEADER:
        return None
    return PartitionState(
        leader=NO_LEADER, leader_epoch=epoch, isr=state.isr, isr_epochs=state.isr_epochs, controller_epoch=image.controller_epoch
    )


def preferred(image: Image, topic: Topic, number: int) -> PartitionState | None:
    """The partition as its preferred replica, the first of its assignment, leads it; None when that one does already, or cannot.

    It can when it is a member of the ISR that stays. Source: Kafka's preferred replica election.
    """
    state, first = topic.states[number], topic.replicas[number][0]
    stay = [broker for broker in state.isr if is_sound(image, state, broker) and not is_leaving(image, broker)]
    if state.leader == first or first not in stay:
        return None
    return _state(image, state, first, LeaderEpoch(state.leader_epoch + 1), stay)


def first_state(image: Image, replicas: Sequence[int]) -> PartitionState | None:
    """The state of a partition that never had one, and so is empty: its live replicas are in sync; None when there is none."""
    alive = [broker for broker in replicas if BrokerId(broker) in image.brokers]
    alive = [broker for broker in alive if not is_leaving(image, broker)] or alive
    if not alive:
        return None
    return PartitionState(
        leader=alive[0],
        leader_epoch=LeaderEpoch(0),
        isr=tuple(alive),
        isr_epochs=tuple(image.brokers[BrokerId(broker)].epoch for broker in alive),
        controller_epoch=image.controller_epoch,
    )


def is_sound(image: Image, state: PartitionState, broker: int) -> bool:
    """Whether a member of the ISR is alive, and has been since it was counted in."""
    found = image.brokers.get(BrokerId(broker))
    return found is not None and found.epoch == state.registration_of(broker)


def is_leaving(image: Image, broker: int) -> bool:
    """Whether a broker is about to stop."""
    found = image.brokers.get(BrokerId(broker))
    return found is not None and found.leaving


def _state(image: Image, before: PartitionState, leader: int, epoch: LeaderEpoch, isr: Sequence[int]) -> PartitionState:
    return PartitionState(
        leader=leader,
        leader_epoch=epoch,
        isr=tuple(isr),
        isr_epochs=tuple(image.brokers[BrokerId(broker)].epoch for broker in isr),
        controller_epoch=image.controller_epoch,
        recovering=before.recovering and leader == before.leader,
    )

"""Who leads each partition, given who is alive. Pure: an image in, new partition states out.

A member of the ISR is *sound* while it is alive under the registration that the state names for it: it has not been away since it was
counted in. Any other has to catch up before it counts again, for it may have lost what was never on disk.

==========================  ==================================  ========================================================
leader                      members of the ISR                  new state
==========================  ==================================  ========================================================
sound                       all sound                           unchanged, whoever became controller meanwhile
sound                       some not                            same leader and epoch, ISR of the sound ones
gone, or registered anew    some sound                          first replica among the sound, epoch + 1, ISR of the sound
gone, or registered anew    none sound, some alive              one of these (the last leader first), epoch + 1, alone in the ISR
gone                        none alive, unclean allowed         first live replica, epoch + 1, alone in the ISR
gone                        none alive                          leader -1, epoch + 1, once; the ISR stays, for it holds the log
==========================  ==================================  ========================================================

Source: Kafka's PartitionStateMachine; KIP-380 and KIP-903 for registrations, KIP-106 for unclean elections.
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
    if state.leader in sound:
        return None if len(sound) == len(state.isr) else _state(image, state, state.leader, state.leader_epoch, sound)
    epoch = LeaderEpoch(state.leader_epoch + 1)
    for broker in replicas:
        if broker in sound:
            return _state(image, state, broker, epoch, sound)
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


def is_sound(image: Image, state: PartitionState, broker: int) -> bool:
    """Whether a member of the ISR is alive, and has been since it was counted in."""
    found = image.brokers.get(BrokerId(broker))
    return found is not None and found.epoch == state.registration_of(broker)


def _state(image: Image, before: PartitionState, leader: int, epoch: LeaderEpoch, isr: Sequence[int]) -> PartitionState:
    return PartitionState(
        leader=leader,
        leader_epoch=epoch,
        isr=tuple(isr),
        isr_epochs=tuple(image.brokers[BrokerId(broker)].epoch for broker in isr),
        controller_epoch=image.controller_epoch,
        recovering=before.recovering and leader == before.leader,
    )

"""Who leads each partition, given who is alive. Pure: an image in, new partition states out.

A partition keeps a live leader. A leader that came back under a new registration is elected anew, with a larger leader epoch, since it may
have lost what was never on disk. Without a live member of the ISR there is no leader; the ISR keeps its last members, for they hold the
log.

======================  ==========================  ==============================
leader                  a member of the ISR alive   new state
======================  ==========================  ==============================
alive, known            any                         unchanged
alive, registered anew  yes (itself)                same leader, epoch + 1
gone                    yes                         first replica alive in ISR, epoch + 1
gone                    no                          leader -1, epoch + 1, once
======================  ==========================  ==============================

Source: Kafka's PartitionStateMachine; KIP-380 for registrations.
"""

from collections.abc import Iterator, Mapping

from ottla.base.ids import BrokerId, LeaderEpoch, TopicPartition
from ottla.broker.image import NO_LEADER, Image
from ottla.store.layout import PartitionState


def elections(image: Image, known: Mapping[BrokerId, int]) -> Iterator[tuple[TopicPartition, PartitionState]]:
    """New states for the partitions that need one.

    ``known`` gives, by broker, the registration epoch for which elections were already held.
    """
    renewed = {broker for broker, registration in image.brokers.items() if known.get(broker) != registration.epoch}
    for topic in image.topics.values():
        for number, state in topic.states.items():
            leader = BrokerId(state.leader)
            if leader in image.brokers and leader not in renewed:
                continue
            chosen = _choice(topic.replicas[number], state, image)
            if chosen == NO_LEADER and leader == NO_LEADER:
                continue
            yield (
                TopicPartition(topic.name, number),
                PartitionState(
                    leader=chosen,
                    leader_epoch=LeaderEpoch(state.leader_epoch + 1),
                    isr=state.isr if chosen == NO_LEADER else tuple(broker for broker in state.isr if broker in image.brokers),
                    controller_epoch=image.controller_epoch,
                ),
            )


def _choice(replicas: tuple[int, ...], state: PartitionState, image: Image) -> BrokerId:
    alive = [broker for broker in replicas if broker in image.brokers and broker in state.isr]
    if state.leader in alive:
        return BrokerId(state.leader)
    return BrokerId(alive[0]) if alive else NO_LEADER

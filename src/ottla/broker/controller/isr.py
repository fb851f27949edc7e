"""Whether a leader may have the ISR it asks for. Pure: an image and a wish in; the new state, or a KafkaError, out.

The leader must be the one of this epoch, and know the state it wants to change (the version of its node is the partition epoch). Every
member must be a replica, alive, and still be of the registration under which the leader counts it: one that went away and came back since
may have lost what it had. Nor is a broker counted in that is about to stop, but for the leader itself. Source: KIP-497, KIP-841, KIP-903;
Kafka's ReplicationControlManager.alterPartition for the order of checks.
"""

from ottla.base.ids import BrokerId
from ottla.broker.image import Image, Topic
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.messages.alter_partition import AlterPartitionRequestPartition


def altered(image: Image, topic: Topic, broker: int, wish: AlterPartitionRequestPartition) -> PartitionState:
    """The state as its leader, ``broker``, wants it.

    Raises: UnknownTopicOrPartition, FencedLeaderEpoch, NotController, InvalidRequest, InvalidUpdateVersion, IneligibleReplica.
    """
    number = wish.partition_index
    state = topic.states.get(number)
    name = f"{topic.name}-{number}"
    if state is None:
        raise errors.UnknownTopicOrPartition(f"there is no partition {name}")
    if wish.leader_epoch < state.leader_epoch:
        raise errors.FencedLeaderEpoch(f"{name} is at leader epoch {state.leader_epoch}, not {wish.leader_epoch}")
    if wish.leader_epoch > state.leader_epoch:
        raise errors.NotController(f"{name} is at leader epoch {state.leader_epoch} here; {wish.leader_epoch} is not known yet")
    if state.leader != broker:
        raise errors.InvalidRequest(f"broker {broker} does not lead {name}")
    if wish.partition_epoch != topic.versions[number]:
        raise errors.InvalidUpdateVersion(f"{name} is at partition epoch {topic.versions[number]}, not {wish.partition_epoch}")
    members = [member.broker_id for member in wish.new_isr_with_epochs]
    if broker not in members or len(set(members)) != len(members) or not set(members) <= set(topic.replicas[number]):
        raise errors.InvalidRequest(
            f"{members} cannot be in sync with leader {broker} of {name}, whose replicas are {topic.replicas[number]}"
        )
    for member in wish.new_isr_with_epochs:
        found = image.brokers.get(BrokerId(member.broker_id))
        if found is None or found.epoch != member.broker_epoch:
            raise errors.IneligibleReplica(f"broker {member.broker_id} of epoch {member.broker_epoch} is not alive")
        if found.leaving and member.broker_id != broker:
            raise errors.IneligibleReplica(f"broker {member.broker_id} is about to stop")
    return PartitionState(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=tuple(members),
        isr_epochs=tuple(member.broker_epoch for member in wish.new_isr_with_epochs),
        controller_epoch=image.controller_epoch,
        recovering=wish.leader_recovery_state == 1,
    )

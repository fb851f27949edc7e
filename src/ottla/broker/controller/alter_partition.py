"""Validates a leader's AlterPartition. Pure: an image and a request in; the new state, or a KafkaError, out.

The sender must be the leader of this epoch and know the state that it changes (the version of the state's node is the partition epoch).
Each member must be a replica, alive, healthy, and registered under the broker epoch in the request: a broker that restarted since may have
lost records. A broker in controlled shutdown is not added, except the leader itself. Members that leave while the ISR is too small to
commit become eligible replicas (``election.py``).

A leader after an unclean election ends its recovery with such a request; until then it is alone in the ISR.

Source: KIP-497, KIP-704, KIP-841, KIP-903, KIP-966; Kafka's ReplicationControlManager.alterPartition for the order of checks.
"""

import msgspec

from ottla.base.ids import BrokerId, TopicPartition
from ottla.broker.controller.election import ElectionContext, is_fit
from ottla.broker.metadata.image import Image, Topic
from ottla.log.options import TopicOptions
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.messages.alter_partition import AlterPartitionRequestPartition

RECOVERING = 1


def altered(image: Image, topic: Topic, broker: int, requested: AlterPartitionRequestPartition, *, options: TopicOptions) -> PartitionState:
    """The state that the leader, ``broker``, requests.

    Raises: UnknownTopicOrPartition, FencedLeaderEpoch, NotController, InvalidRequest, InvalidUpdateVersion, IneligibleReplica.
    """
    number = requested.partition_index
    state = topic.states.get(number)
    name = f"{topic.name}-{number}"
    if state is None or number not in topic.replicas:
        raise errors.UnknownTopicOrPartition(f"there is no partition {name}")
    if requested.leader_epoch < state.leader_epoch:
        raise errors.FencedLeaderEpoch(f"{name} is at leader epoch {state.leader_epoch}, not {requested.leader_epoch}")
    if requested.leader_epoch > state.leader_epoch:
        raise errors.NotController(f"{name} is at leader epoch {state.leader_epoch} here; {requested.leader_epoch} is not known yet")
    if state.leader != broker:
        raise errors.InvalidRequest(f"broker {broker} does not lead {name}")
    if requested.partition_epoch != topic.versions[number]:
        raise errors.InvalidUpdateVersion(f"{name} is at partition epoch {topic.versions[number]}, not {requested.partition_epoch}")
    members = [member.broker_id for member in requested.new_isr_with_epochs]
    if broker not in members or len(set(members)) != len(members) or not set(members) <= set(topic.replicas[number]):
        raise errors.InvalidRequest(
            f"{members} cannot be in sync with leader {broker} of {name}, whose replicas are {topic.replicas[number]}"
        )
    _check_recovery(name, state, requested)
    partition = TopicPartition(topic.name, number)
    for member in requested.new_isr_with_epochs:
        found = image.brokers.get(BrokerId(member.broker_id))
        if found is None or found.epoch != member.broker_epoch:
            raise errors.IneligibleReplica(f"broker {member.broker_id} of epoch {member.broker_epoch} is not alive")
        if found.leaving and member.broker_id != broker:
            raise errors.IneligibleReplica(f"broker {member.broker_id} is about to stop, or fenced")
        if not is_fit(image, partition, state, member.broker_id):
            raise errors.IneligibleReplica(f"broker {member.broker_id} says itself that its replica of {name} is not fit")
    after = ElectionContext.of(image, topic, number, options).led_by(broker, members, same_epoch=True)
    assert after.isr_epochs == tuple(member.broker_epoch for member in requested.new_isr_with_epochs), "they were looked at above"
    return after if requested.leader_recovery_state == RECOVERING else msgspec.structs.replace(after, recovering=False)


def _check_recovery(name: str, state: PartitionState, requested: AlterPartitionRequestPartition) -> None:
    if requested.leader_recovery_state != RECOVERING:
        return
    if not state.recovering:
        raise errors.InvalidRequest(f"the leader of {name} has recovered its log; it cannot be recovering again")
    if len(requested.new_isr_with_epochs) > 1:
        raise errors.InvalidRequest(f"the leader of {name} still recovers its log; until then it is alone in the ISR")

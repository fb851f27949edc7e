"""The preferred read replica of a consumer: a follower in its rack, if the broker is configured for it (KIP-392).

::

    consumer's rack      leader's rack      ISR members in the consumer's rack            reads from
    none                                                                                  the leader
    a                    a                                                                the leader
    a                    b                  none that has the offset                      the leader
    a                    b                  some                                          the one with the highest log end

Only ISR members are chosen: a lagging replica would be chosen again each time and make the consumer lag for ever.
"""

from ottla.base.ids import BrokerId
from ottla.broker.metadata.image import Image
from ottla.broker.replica.leader import Leader

LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
#: Also without the Java package.
RACK_AWARE = (RACK_AWARE_SELECTOR, RACK_AWARE_SELECTOR.rpartition(".")[2])
SELECTORS = (LEADER_SELECTOR, LEADER_SELECTOR.rpartition(".")[2], *RACK_AWARE)


def replica_near(image: Image, leader: Leader, me: BrokerId, rack: str, offset: int) -> int:
    """The follower in this rack for a consumer at ``offset``; -1 for the leader itself."""
    own = image.brokers.get(me)
    if not rack or own is None or own.rack == rack:
        return -1
    best, most = -1, -1
    for broker in leader.isr_state.isr:
        progress, found = leader.isr_state.progress.get(broker), image.brokers.get(BrokerId(broker))
        if progress is None or found is None or found.rack != rack or leader.partition in found.offline:
            continue
        if progress.position >= offset and progress.position > most:
            best, most = broker, progress.position
    return best

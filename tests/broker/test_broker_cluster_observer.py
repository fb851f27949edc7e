"""What the cluster observer reports, and what it does not."""

from typing import Any

import pytest
from cluster import Cluster, batch, produce

from ottla.base.ids import LeaderEpoch, TopicPartition
from ottla.sim.checkers.cluster import CommittedIsSpread, CopiesAgree
from ottla.store.layout import PartitionState


class Above:
    """The store as it is seen from above."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.epochs_later = 0
        self.isr: tuple[int, ...] = (1,)
        #: What the process that the ISR names had at its end, by broker.
        self.ended: dict[int, int] = {}
        self.copies: dict[int, Any] = {}

    def state(self, partition: TopicPartition) -> PartitionState:
        leader = self.cluster.leading(partition.topic).leader(partition.topic)
        epochs = tuple(10 + broker for broker in self.isr)
        return PartitionState(
            leader=1,
            leader_epoch=LeaderEpoch(leader.epoch + self.epochs_later),
            isr=self.isr,
            controller_epoch=1,
            isr_epochs=epochs,
        )

    def registration(self, broker: int) -> int | None:
        return None

    def replica(self, broker: int, partition: TopicPartition) -> Any:
        return self.copies.get(broker)

    def held_at_end(self, broker: int, registration: int, partition: TopicPartition) -> int | None:
        return self.ended.get(broker) if registration == 10 + broker else None

    def is_rotten(self, broker: int, partition: TopicPartition) -> bool:
        return False


@pytest.mark.parametrize(("epochs_later", "complaints"), [(0, 1), (1, 0)])
def test_a_new_leader_without_committed_records_is_a_violation_unless_another_leads_by_now(epochs_later: int, complaints: int) -> None:
    cluster, other = Cluster(), Cluster()
    full, behind = cluster.topic(), other.topic()
    produce(full, batch(b"a"))
    above = Above(other)
    observer = CopiesAgree(above, lambda topic: True)
    observer.moved(1, full.leader("t"), 0)
    above.epochs_later = epochs_later
    observer.led(2, behind.leader("t"))
    assert len(observer.problems) == complaints


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize(("named", "held", "complaints"), [(True, 2, 0), (True, 1, 1), (False, 2, None)])
def test_an_ended_process_counts_with_what_it_had_while_the_isr_names_it(
    named: bool, held: int, complaints: int | None, started: bool
) -> None:
    """Two records are committed. The next process has an empty disk, if it has started; a third replica is empty too."""
    cluster, empty = Cluster(3), Cluster(3)
    broker = cluster.topic(configs={"min.insync.replicas": "2"}, replicas=3)
    empty.topic(replicas=3)
    produce(broker, batch(b"a", b"b"))
    one, other = (each for each in cluster.brokers if each != broker.broker_id)
    above = Above(cluster)
    above.isr = (broker.broker_id, one) if named else (broker.broker_id,)
    above.ended = {one: held}
    above.copies = {each: empty.brokers[each].node.partitions.replica(TopicPartition("t", 0)) for each in (one, other)}
    above.copies[broker.broker_id] = broker.leader("t")
    if not started:
        del above.copies[one]
    checker = CommittedIsSpread(above)
    checker.moved(broker.broker_id, broker.leader("t"), 1)
    # A broker that is down and that the ISR does not name may have any records.
    assert len(checker.problems) == (int(started) if complaints is None else complaints)

"""What the cluster observer reports, and what it does not."""

from typing import Any

import pytest
from cluster import Cluster, batch, produce

from ottla.base.ids import TopicPartition
from ottla.sim.checkers.cluster import CopiesAgree
from ottla.store.layout import PartitionState


class Above:
    """The store as it is seen from above."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.epochs_later = 0

    def state(self, partition: TopicPartition) -> PartitionState:
        leader = self.cluster.leading(partition.topic).leader(partition.topic)
        return PartitionState(leader=1, leader_epoch=leader.epoch + self.epochs_later, isr=(1,), controller_epoch=1)  # type: ignore[arg-type]

    def registration(self, broker: int) -> int | None:
        return None

    def replica(self, broker: int, partition: TopicPartition) -> Any:
        return None

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

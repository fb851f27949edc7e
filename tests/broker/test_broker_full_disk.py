"""A full disk: its broker continues to serve reads and to follow, and other brokers lead where they can."""

from typing import Any

from cluster import Broker, Cluster, batch, fetch, produce, values

from ottla.base.ids import TopicPartition
from ottla.base.units import MiB
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersRequestTopicPartitions

RESERVE = 256 * MiB


def state(cluster: Cluster) -> PartitionState:
    found = cluster.controller.node.context.image.state(TopicPartition("t", 0))
    assert found is not None
    return found


def a_cluster(brokers: int = 3) -> tuple[Cluster, Broker]:
    """With a topic of three copies, and its preferred leader."""
    cluster = Cluster(brokers)
    leader = cluster.topic("t", replicas=brokers)
    assert produce(leader, batch(b"a"), acks=1).error_code == 0
    cluster.pass_ms(1_500)
    assert len(state(cluster).isr) == brokers
    return cluster, leader


def fill(broker: Broker, free_bytes: int = 100) -> None:
    """As it is measured from now on."""
    for _ in range(2):
        broker.measured(free_bytes)


def elect(cluster: Cluster) -> Any:
    request = ElectLeadersRequest(election_type=0, topic_partitions=[ElectLeadersRequestTopicPartitions(topic="t", partitions=[0])])
    return cluster.controller.ask(request, 2).replica_election_results[0].partition_result[0]


def test_a_leader_whose_disk_is_full_hands_over_and_stays_in_sync() -> None:
    cluster, full = a_cluster()
    full.measured(100)
    assert state(cluster).leader == full.broker_id, "what it took last is being copied"
    full.measured(100)
    now = state(cluster)
    assert now.leader != full.broker_id and len(now.isr) == 3 and now.leader_epoch == 1
    leader = cluster.leading("t")
    sent = produce(leader, batch(b"b"), acks=1)
    assert sent.error_code == 0
    cluster.pass_ms(1_000)
    assert leader.leader("t").high_watermark == 2
    assert values(fetch(leader).records) == [b"a", b"b"]


def test_it_leads_again_when_there_is_clearly_more_than_the_reserve() -> None:
    cluster, full = a_cluster()
    fill(full)
    full.measured(RESERVE + RESERVE // 8)
    assert elect(cluster).error_code == errors.PreferredLeaderNotAvailable.code
    full.measured(RESERVE + RESERVE // 2)
    assert elect(cluster).error_code == 0
    assert state(cluster).leader == full.broker_id
    assert produce(full, batch(b"b"), acks=1).error_code == 0


def test_leaders_stay_if_all_disks_are_full() -> None:
    cluster, full = a_cluster()
    for broker in cluster.brokers.values():
        if broker is not full:
            fill(broker)
    before = state(cluster)
    fill(full)
    assert state(cluster) == before
    assert produce(full, batch(b"b"), acks=1).error_code == errors.KafkaStorageError.code


def test_new_replicas_go_where_there_is_room() -> None:
    cluster, full = a_cluster()
    fill(full)
    requested = CreatableTopic(name="u", num_partitions=12, replication_factor=2)
    assert cluster.controller.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7).topics[0].error_code == 0
    held = [broker for replicas in cluster.controller.node.context.image.topics["u"].replicas.values() for broker in replicas]
    assert full.broker_id not in held and len(held) == 24
    requested = CreatableTopic(name="v", num_partitions=1, replication_factor=3)
    assert cluster.controller.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7).topics[0].error_code == 0


def test_single_broker_with_a_full_disk_writes_nothing_to_the_store() -> None:
    cluster, full = a_cluster(1)
    writes = cluster.store.tree.zxid
    fill(full)
    assert cluster.store.tree.zxid == writes

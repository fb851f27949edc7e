"""Topics that are deleted while a broker is down: their logs are set aside at its start and deleted later."""

import pytest
from cluster import WALL_MS, Broker, Cluster, batch, fetch, produce, values

from ottla.base.ids import TopicPartition
from ottla.base.ports import NodeState
from ottla.base.units import DAY_MS, MINUTE_MS, SECOND_MS
from ottla.broker import events
from ottla.store import layout
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState


def delete(cluster: Cluster, *names: str) -> None:
    answer = cluster.controller.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=1000), 6)
    assert not any(one.error_code for one in answer.responses)


def strays(broker: Broker) -> list[str]:
    (disk,) = broker.disks.values()
    return [name for name in disk.listdir() if name.endswith("-stray")]


def back_after_a_deletion(cluster: Cluster, *names: str) -> Broker:
    """Broker 2 dies, these topics are deleted, and it is back."""
    gone = cluster.kill(2)
    delete(cluster, *names)
    return cluster.start(2, gone.texts, [disk.restart() for disk in gone.disks.values()])


def a_cluster(*names: str, **settings: str) -> Cluster:
    cluster = Cluster(2, settings={name.replace("_", "."): text for name, text in settings.items()})
    for name in names:
        cluster.topic(name, partitions=2, replicas=2)
        assert produce(cluster.leading(name), batch(b"a"), topic=name, acks=1).error_code == 0
    cluster.pass_ms(2 * SECOND_MS)
    return cluster


def held(broker: Broker) -> set[TopicPartition]:
    return {partition for _, partition in broker.node.partitions.hosted()}


def test_logs_of_a_topic_that_went_meanwhile_are_set_aside_and_removed_later() -> None:
    cluster = a_cluster("t", "kept", ottla_stray_retention_ms=str(DAY_MS))
    broker = back_after_a_deletion(cluster, "t")
    assert {partition.topic for partition in held(broker)} == {"kept"}
    assert sorted(name.partition(".")[0] for name in strays(broker)) == ["t-0", "t-1"]
    (warning,) = [text for text in broker.warnings if "stray" in text]
    assert warning == (
        "2 logs are of topics that the store has no more (t): they are set aside for 86400000 ms (ottla.stray.retention.ms), "
        "under names ending in -stray"
    )
    cluster.pass_ms(10 * MINUTE_MS)
    assert len(strays(broker)) == 2
    cluster.jump_ms(DAY_MS)
    cluster.pass_ms(10 * MINUTE_MS)
    assert strays(broker) == [] and len(broker.removed) == 2


def test_stray_logs_are_deleted_in_time_also_across_a_restart() -> None:
    cluster = a_cluster("t", ottla_stray_retention_ms=str(DAY_MS))
    back_after_a_deletion(cluster, "t")
    cluster.jump_ms(DAY_MS - MINUTE_MS)
    broker = cluster.restart(2)
    assert len(strays(broker)) == 2 and not any("stray" in text for text in broker.warnings)
    cluster.pass_ms(10 * MINUTE_MS)
    assert strays(broker) == []


def test_stray_logs_are_kept_if_the_setting_says_so() -> None:
    cluster = a_cluster("t", ottla_stray_retention_ms="-1")
    broker = back_after_a_deletion(cluster, "t")
    cluster.jump_ms(1000 * DAY_MS)
    cluster.pass_ms(10 * MINUTE_MS)
    assert len(strays(broker)) == 2


def test_a_recreated_topic_starts_empty_on_a_broker_that_was_down() -> None:
    cluster = a_cluster("t")
    gone = cluster.kill(2)
    delete(cluster, "t")
    cluster.topic("t")
    broker = cluster.start(2, gone.texts, [disk.restart() for disk in gone.disks.values()])
    assert held(broker) == set() and len(strays(broker)) == 2
    assert values(fetch(cluster.leading("t")).records) == []


@pytest.mark.slow
def test_thousands_of_strays_take_several_steps() -> None:
    cluster = Cluster(2)
    cluster.topic("t", partitions=700, replicas=2)
    gone = cluster.kill(2)
    delete(cluster, "t")
    broker = cluster.start(2, gone.texts, [disk.restart() for disk in gone.disks.values()])
    assert 0 < len(strays(broker)) < 700
    cluster.pass_ms(SECOND_MS)
    assert len(strays(broker)) == 700 and held(broker) == set()


def test_unregistered_broker_keeps_logs_of_deleted_topics() -> None:
    """Another server of the ensemble may not know yet what this one has."""
    cluster = a_cluster("t")
    broker = cluster[2]
    broker.node.context.epoch = None
    broker.handle(events.StoreChanged(state=NodeState(layout.topic("t"), None)))
    assert held(broker) == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert not broker.node.partitions.replica(TopicPartition("t", 0)) and strays(broker) == []


def test_the_time_of_setting_aside_is_that_of_a_file() -> None:
    cluster = a_cluster("t")
    broker = back_after_a_deletion(cluster, "t")
    (directory,) = broker.node.context.directories
    assert sorted(directory.strays) == strays(broker)
    assert set(directory.strays.values()) == {WALL_MS + cluster.now_ms}
    assert directory.expired_strays(WALL_MS) == ()

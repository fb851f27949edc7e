"""Logs are created, renamed and removed off the loop: no step does file work, and requests meanwhile get the right response."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EIO, ENOSPC
from typing import Any, NoReturn

import pytest
from cluster import Broker, Cluster, Sent, batch, fetch, produce, values

from ottla.base.ids import TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker.storage.log_files import PORTION
from ottla.log import filenames
from ottla.sim.disk import SimDisk
from ottla.wire.errors import KafkaStorageError, NotLeaderOrFollower
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

T0 = TopicPartition("t", 0)


def create(cluster: Cluster, topic: str, partitions: int = 1) -> Sent:
    """Asks for a topic. The answer comes once its logs are there."""
    requested = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    return cluster.controller.send(CreateTopicsRequest(topics=[requested], timeout_ms=60_000), 7)


def delete(cluster: Cluster, *topics: str) -> None:
    requests = [DeleteTopicState(name=topic) for topic in topics]
    answer = cluster.controller.ask(DeleteTopicsRequest(topics=requests, timeout_ms=1000), 6)
    assert not any(topic.error_code for topic in answer.responses)


def a_cluster(*, disks: int = 1) -> Cluster:
    """One broker, whose changes of logs wait for ``change_logs()``."""
    cluster = Cluster(disks=disks)
    cluster[1].changing = False
    return cluster


def carry_out(cluster: Cluster, broker: Broker) -> int:
    """Carries out everything that waits, portion by portion; how many portions there were."""
    portions = 0
    while broker.changes:
        portions += 1
        broker.change_logs()
        cluster.run()
    return portions


@contextmanager
def no_file_work_in_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within this block a step that creates, renames, removes or syncs a file fails."""

    def refused(*arguments: Any, **keywords: Any) -> NoReturn:
        raise AssertionError(f"a step did file work: {arguments[1:]}")

    with monkeypatch.context() as patched:
        for call in ("open", "mkdir", "create_files", "rename", "unlink", "remove_tree", "replace_file", "sync_dir"):
            patched.setattr(SimDisk, call, refused)
        yield


def test_no_step_does_file_work_when_topics_are_created_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster()
    broker = cluster[1]
    cluster.flushing = False
    with no_file_work_in_steps(monkeypatch):
        create(cluster, "t", 200)
    broker.change_logs()
    with no_file_work_in_steps(monkeypatch):
        cluster.run()
    carry_out(cluster, broker)
    with no_file_work_in_steps(monkeypatch):
        delete(cluster, "t")
    assert broker.halted is None and "t" not in broker.node.context.image.topics


def test_thousands_of_logs_are_created_and_removed_in_portions() -> None:
    cluster = a_cluster()
    broker = cluster[1]
    create(cluster, "t", 10 * PORTION)
    (first,) = broker.changes
    assert len(first.changes.creations) <= PORTION
    assert carry_out(cluster, broker) >= 10
    assert len(broker.node.partitions.leaders) == 10 * PORTION
    delete(cluster, "t")
    assert all(len(effect.changes.moves) <= PORTION for effect in broker.changes)
    assert carry_out(cluster, broker) >= 10
    assert not [name for name in broker.disks["disk0"].listdir() if name.startswith("t-")]


def test_a_request_to_a_partition_whose_log_is_being_created_is_to_be_tried_again() -> None:
    cluster = a_cluster()
    broker = cluster[1]
    sent = create(cluster, "t")
    assert not broker.node.ready and sent.waits
    assert produce(broker, batch(b"a")).error_code == NotLeaderOrFollower.code
    assert fetch(broker).error_code == NotLeaderOrFollower.code
    with pytest.raises(NotLeaderOrFollower, match="is creating the log of t-0; try again"):
        broker.leader("t")
    carry_out(cluster, broker)
    assert broker.node.ready and sent.answer.topics[0].error_code == 0
    assert produce(broker, batch(b"a")).error_code == 0
    assert values(fetch(broker).records) == [b"a"]


def test_files_of_a_new_log_are_those_of_kafka() -> None:
    cluster = Cluster()
    cluster.topic("t", configs={"cleanup.policy": "compact"})
    files = cluster[1].disks["disk0"].listdir("t-0")
    segment = [filenames.segment_name(0, suffix) for suffix in (filenames.OFFSET_INDEX, filenames.LOG, filenames.TIME_INDEX)]
    assert files == sorted([*segment, filenames.HOLES, filenames.LEADER_EPOCHS, filenames.PARTITION_METADATA])


def test_a_topic_that_is_deleted_and_created_again_begins_empty_while_old_files_are_still_there() -> None:
    cluster = Cluster()
    create(cluster, "t")
    broker = cluster[1]
    assert produce(broker, batch(b"old")).error_code == 0
    cluster.pass_ms(120 * SECOND_MS)
    broker.changing = False
    delete(cluster, "t")
    create(cluster, "t")
    assert broker.disks["disk0"].exists("t-0") and broker.node.partitions.replica(T0) is None
    carry_out(cluster, broker)
    assert values(fetch(broker).records) == []
    assert produce(broker, batch(b"new")).base_offset == 0
    # Checkpoints of the old log do not apply to the new one, whatever happens to the process.
    broker = cluster.restart(1)
    assert values(fetch(broker).records) == [b"new"]


def test_a_topic_that_is_deleted_while_its_log_is_being_created_leaves_nothing() -> None:
    cluster = a_cluster()
    broker = cluster[1]
    create(cluster, "t")
    delete(cluster, "t")
    carry_out(cluster, broker)
    assert not broker.node.partitions.files.opening and not [*broker.node.partitions.hosted()]
    assert not [name for name in broker.disks["disk0"].listdir() if name.startswith("t-")]


def test_a_topic_recreated_while_files_wait_has_the_log_of_its_latest_id() -> None:
    cluster = a_cluster()
    broker = cluster[1]
    for _ in range(3):
        create(cluster, "t")
        delete(cluster, "t")
    create(cluster, "t")
    carry_out(cluster, broker)
    assert broker.leader("t").log.topic_id == broker.node.context.image.topics["t"].topic_id
    assert produce(broker, batch(b"a")).error_code == 0


def test_a_topic_recreated_while_its_logs_are_created_has_the_logs_of_its_latest_id() -> None:
    cluster = a_cluster()
    broker = cluster[1]
    create(cluster, "other")
    create(cluster, "t", 3)
    broker.change_logs()
    cluster.run()
    assert len(broker.changes[0].changes.creations) == 3, "one portion has all of them"
    delete(cluster, "t")
    create(cluster, "t", 3)
    carry_out(cluster, broker)
    for number in range(3):
        assert broker.leader("t", number).log.topic_id == broker.node.context.image.topics["t"].topic_id


@pytest.mark.parametrize("steps", range(9))
def test_a_crash_before_a_portion_is_done_is_made_good_by_the_next_start(steps: int) -> None:
    """A process that is killed leaves the first few files of a log, or none."""
    cluster = a_cluster()
    broker = cluster[1]
    create(cluster, "t")
    (effect,) = broker.changes
    disk = broker.disks["disk0"]
    disk.fail("create", "t-0", after=steps, errno=EIO)
    with suppress(OSError):
        effect.changes.carry_out(disk)
    broker = cluster.restart(1)
    cluster.pass_ms(SECOND_MS)
    assert produce(broker, batch(b"a")).error_code == 0
    assert values(fetch(broker).records) == [b"a"]


def test_a_log_that_a_failed_directory_did_not_take_is_created_in_another() -> None:
    cluster = a_cluster(disks=2)
    broker = cluster[1]
    create(cluster, "t")
    (effect,) = broker.changes
    broker.disks[effect.directory].fail("create", "t-0", errno=EIO)
    carry_out(cluster, broker)
    leader = broker.leader("t")
    assert leader.directory.root != effect.directory and leader.directory.failed is None
    assert produce(broker, batch(b"a")).error_code == 0


def test_a_log_that_a_full_disk_did_not_take_is_offline_until_there_is_room() -> None:
    cluster = a_cluster()
    broker = cluster[1]
    disk = broker.disks["disk0"]
    create(cluster, "t")
    disk.fail("append", "t-0", errno=ENOSPC)
    carry_out(cluster, broker)
    assert not disk.exists("t-0")
    with pytest.raises(KafkaStorageError, match="no log directory could take it"):
        broker.leader("t")
    broker.measured(1 << 40)
    with pytest.raises(KafkaStorageError):
        broker.leader("t")
    carry_out(cluster, broker)
    assert produce(broker, batch(b"a")).error_code == 0

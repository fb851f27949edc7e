"""Log directories that fill up, fail or return, as clients see it."""

from errno import ENOSPC
from random import Random
from typing import Any

from cluster import Broker, Cluster, batch, fetch, produce, produce_request, values

from ottla.base.ids import LeaderEpoch, TopicPartition
from ottla.base.log_levels import CONTROLLER, STORAGE, LogLevel
from ottla.base.ports import Op
from ottla.base.units import DAY_MS, MINUTE_MS, MiB
from ottla.broker import events
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic


def delete_topic(broker: Broker, name: str = "t") -> None:
    answer = broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000), 6)
    assert answer.responses[0].error_code == 0


def directory_of(broker: Broker, topic: str, partition: int = 0) -> str:
    return broker.leader(topic, partition).directory.root


# Failing.


def test_a_failed_sync_makes_only_the_partitions_of_its_directory_offline() -> None:
    cluster = Cluster(disks=2)
    broker = cluster.topic(partitions=2)
    first, second = directory_of(broker, "t", 0), directory_of(broker, "t", 1)
    assert first != second, "partitions are spread over the directories"
    broker.disks[first].fail("sync")
    lost = broker.send(produce_request(batch(b"a"), timeout_ms=60_000), 12)
    answer = lost.answer.responses[0].partition_responses[0]
    assert answer.error_code == errors.KafkaStorageError.code, "waiting requests are answered at once"
    assert produce(broker, batch(b"b")).error_code == errors.KafkaStorageError.code
    assert fetch(broker).error_code == errors.KafkaStorageError.code
    assert produce(broker, batch(b"c"), partition=1).error_code == 0
    assert broker.halted is None
    (warning,) = broker.logged(STORAGE, LogLevel.WARNING)
    assert f"log directory {first} failed" in warning
    assert broker.logged(CONTROLLER, LogLevel.WARNING) == ["no replica can lead t-0"]


def test_a_failed_sync_is_never_tried_again() -> None:
    cluster = Cluster(disks=2)
    broker = cluster.topic()
    root = directory_of(broker, "t")
    broker.disks[root].fail("sync")
    broker.send(produce_request(batch(b"a")), 12)
    steps = broker.disks[root].steps
    cluster.pass_ms(2 * MINUTE_MS)
    assert broker.disks[root].steps == steps, "nothing in a failed directory is touched again"


def test_a_failed_append_is_answered_and_its_directory_goes_offline() -> None:
    cluster = Cluster(disks=2)
    broker = cluster.topic()
    broker.disks[directory_of(broker, "t")].fail("append")
    assert produce(broker, batch(b"a")).error_code == errors.KafkaStorageError.code
    assert TopicPartition("t", 0) in broker.node.partitions.offline


def test_metadata_shows_offline_replicas() -> None:
    cluster = Cluster(disks=2)
    broker = cluster.topic()
    broker.handle(events.DirectoryFailed(directory=directory_of(broker, "t"), reason="test"))
    found = broker.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12).topics[0].partitions[0]
    assert (found.error_code, found.leader_id, found.offline_replicas) == (errors.LeaderNotAvailable.code, -1, [1])


def test_a_broker_without_any_directory_left_stops() -> None:
    cluster = Cluster(disks=2)
    broker = cluster[1]
    for root in broker.disks:
        assert broker.halted is None
        broker.handle(events.DirectoryFailed(directory=root, reason="test"))
    assert broker.halted is not None and "test" in broker.halted


def test_a_new_log_is_created_in_an_online_directory() -> None:
    cluster = Cluster(disks=2)
    broker = cluster[1]
    broker.handle(events.DirectoryFailed(directory="disk0", reason="test"))
    cluster.topic("a")
    cluster.topic("b")
    assert directory_of(broker, "a") == directory_of(broker, "b") == "disk1"


def test_a_directory_that_fails_while_a_log_is_created_is_replaced_by_another() -> None:
    cluster = Cluster(disks=2)
    broker = cluster[1]
    broker.disks["disk0"].fail("mkdir")
    cluster.topic("t")
    assert directory_of(broker, "t") == "disk1"
    assert broker.node.context.directories[0].failed is not None


def test_a_topic_created_anew_does_not_touch_what_a_failed_directory_has_of_it() -> None:
    cluster = Cluster(disks=2)
    broker = cluster.topic("t")
    failed = directory_of(broker, "t")
    broker.handle(events.DirectoryFailed(directory=failed, reason="test"))
    delete_topic(broker)
    steps = broker.disks[failed].steps
    broker = cluster.topic("t")
    assert directory_of(broker, "t") != failed and broker.disks[failed].steps == steps
    assert produce(broker, batch(b"new")).base_offset == 0


# Flushes and logs that go meanwhile.


def test_flush_of_a_deleted_topic_does_not_advance_a_new_topic_of_the_same_name() -> None:
    """Its offsets would acknowledge records that are not on disk."""
    cluster = Cluster()
    broker = cluster.topic("t")
    cluster.flushing = False
    for _ in range(3):
        produce(broker, batch(b"old"), acks=1)
    delete_topic(broker)
    broker = cluster.topic("t")
    new = broker.send(produce_request(batch(b"new"), timeout_ms=60_000), 12)
    assert len(broker.flushes) == 1, "the new log waits for the flush of the old one"
    old = broker.flushes.pop()
    broker._flush(old)
    assert broker.leader("t").high_watermark == 0 and new.waits
    broker.flush()
    assert new.answer.responses[0].partition_responses[0].base_offset == 0


def test_a_flush_that_its_directory_never_answers_does_not_hold_up_another_directory() -> None:
    cluster = Cluster(disks=2)
    broker = cluster.topic("t")
    root = directory_of(broker, "t")
    cluster.flushing = False
    produce(broker, batch(b"old"), acks=1)
    broker.handle(events.DirectoryFailed(directory=root, reason="test"))
    broker.flushes.clear()
    delete_topic(broker)
    cluster.flushing = True
    broker = cluster.topic("t")
    assert produce(broker, batch(b"new")).error_code == 0


def test_restarted_leader_ignores_a_flush_of_its_previous_epoch() -> None:
    cluster = Cluster()
    broker = cluster.topic("t")
    cluster.flushing = False
    produce(broker, batch(b"a"), acks=1)
    before = broker.leader("t")
    assert [flush.partition for flush in broker.flushes] == [TopicPartition("t", 0)]
    path = layout.partition_state("t", 0)
    state = layout.PartitionState(leader=-1, leader_epoch=LeaderEpoch(1), isr=(1,), controller_epoch=1)
    cluster.store.session().submit((Op("set", path, layout.encode_partition_state(state)),), lambda result: None)
    cluster.run()
    now = broker.leader("t")
    assert now is not before and now.epoch == 2 and len(broker.flushes) == 1
    broker.flush()
    assert broker.leader("t").high_watermark == 1


# Filling up.


def test_below_the_reserve_produce_is_refused_with_how_much_is_free() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, batch(b"before"))
    broker.measured(free_bytes=255 * MiB)
    answer = produce(broker, batch(b"a"))
    assert answer.error_code == errors.KafkaStorageError.code
    assert str(255 * MiB) in answer.error_message and "ottla.disk.reserve.bytes" in answer.error_message
    assert broker.node.partitions.offline == {}


def test_a_warning_is_logged_when_a_disk_goes_below_its_reserve_and_when_it_recovers() -> None:
    broker = Cluster().topic()
    for free_bytes in (300 * MiB, 255 * MiB, 254 * MiB, 300 * MiB, 301 * MiB):
        broker.measured(free_bytes)
    low, back = broker.warnings
    assert str(255 * MiB) in low and low.endswith("produce is refused")
    assert str(300 * MiB) in back and back.endswith("produce is accepted again")


def test_bytes_appended_since_the_last_measurement_count_against_the_reserve() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    broker.measured(free_bytes=256 * MiB + 1)
    assert produce(broker, batch(b"a")).error_code == 0
    assert produce(broker, batch(b"b")).error_code == errors.KafkaStorageError.code
    broker.measured(free_bytes=256 * MiB + 1)
    assert produce(broker, batch(b"b")).error_code == 0


def test_below_the_reserve_only_produce_is_refused() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, batch(b"before"))
    broker.measured(free_bytes=0)
    assert values(fetch(broker).records) == [b"before"]
    assert broker.ask(MetadataRequest(topics=None), 12).topics[0].error_code == 0
    delete_topic(broker)
    assert broker.removed
    broker.measured(free_bytes=256 * MiB)
    cluster.topic("u")
    assert produce(broker, batch(b"a"), topic="u").error_code == 0


def test_a_full_disk_is_not_a_broken_one() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    broker.disks["disk0"].fail("append", ".log", errno=ENOSPC)
    answer = produce(broker, batch(b"a"))
    assert answer.error_code == errors.KafkaStorageError.code and "full" in answer.error_message
    assert broker.node.context.directories[0].failed is None
    assert produce(broker, batch(b"b")).base_offset == 0


def test_batches_sent_after_one_refused_for_space_are_refused_with_the_same_error() -> None:
    """A producer that gets an out-of-order error resets its sequences, and its batches in flight elsewhere are written twice."""
    cluster = Cluster()
    broker = cluster.topic()
    broker.measured(free_bytes=1 << 40)
    broker.disks["disk0"].fail("append", ".log", errno=ENOSPC)
    first, second = (batch(value, producer_id=1, producer_epoch=0, base_sequence=place) for place, value in enumerate((b"a", b"b")))
    assert [produce(broker, one).error_code for one in (first, second)] == [errors.KafkaStorageError.code] * 2
    broker.measured(free_bytes=1 << 40)
    assert [produce(broker, one).error_code for one in (first, second)] == [0, 0]


def test_a_log_that_found_no_room_is_made_when_there_is_some() -> None:
    cluster = Cluster()
    broker = cluster[1]
    broker.disks["disk0"].fail("mkdir", errno=ENOSPC, times=2)
    broker.ask(CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)]), 7)
    assert produce(broker, batch(b"a")).error_code == errors.KafkaStorageError.code
    assert broker.node.context.directories[0].failed is None
    broker.measured(free_bytes=0)
    assert produce(broker, batch(b"a")).error_code == errors.KafkaStorageError.code
    broker.measured(free_bytes=1 << 40)
    assert produce(broker, batch(b"a")).error_code == 0


# By the clock.


def test_old_segments_are_dropped_and_their_files_go_after_the_delay() -> None:
    cluster = Cluster(settings={"log.retention.check.interval.ms": "1000"})
    broker = cluster.topic(configs={"retention.ms": str(DAY_MS), "internal.segment.bytes": "100", "file.delete.delay.ms": "1000"})
    for _ in range(3):
        produce(broker, batch(b"x" * 50))
    cluster.jump_ms(DAY_MS - 10_000)
    assert fetch(broker).error_code == 0
    cluster.pass_ms(12_000)
    assert fetch(broker).error_code == errors.OffsetOutOfRange.code
    cluster.pass_ms(2000)
    assert broker.removed
    assert fetch(broker, 3).error_code == 0 and produce(broker, batch(b"new")).error_code == 0


def test_checkpoints_are_written_by_the_minute() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, batch(b"a"))
    cluster.pass_ms(MINUTE_MS + 100)
    assert b"t 0 1" in broker.disks["disk0"].read_file("recovery-point-offset-checkpoint")
    assert b"t 0 1" in broker.disks["disk0"].read_file("replication-offset-checkpoint")


def test_under_write_caching_records_are_flushed_as_the_topic_settings_require() -> None:
    cluster = Cluster()
    broker = cluster.topic(configs={"write.caching": "true", "flush.ms": "2000"})
    cluster.flushing = False
    produce(broker, batch(b"a"))
    assert broker.flushes == []
    cluster.pass_ms(4000)
    assert [flush.plan.upto for flush in broker.flushes] == [1]


def test_the_interval_of_flush_checks_is_a_setting_and_the_default_of_flush_ms() -> None:
    cluster = Cluster(settings={"log.flush.scheduler.interval.ms": "300", "write.caching": "true"})
    broker = cluster.topic()
    cluster.flushing = False
    produce(broker, batch(b"a"))
    cluster.pass_ms(250)
    assert broker.flushes == []
    cluster.pass_ms(400)
    assert [flush.plan.upto for flush in broker.flushes] == [1]


# Coming back.


def test_everything_acknowledged_survives_a_power_cut() -> None:
    for seed in range(20):
        cluster = Cluster()
        broker = cluster.topic()
        produce(broker, batch(b"a", b"b"))
        produce(broker, batch(b"c"))
        cluster.flushing = False
        broker.send(produce_request(batch(b"never acknowledged")), 12)
        gone = cluster.kill(1)
        cluster.flushing = True
        broker = cluster.start(1, gone.texts, [disk.crash(Random(seed)) for disk in gone.disks.values()])
        assert values(fetch(broker).records)[:3] == [b"a", b"b", b"c"]


def test_logs_of_a_topic_that_was_deleted_and_created_anew_meanwhile_are_not_served() -> None:
    cluster = Cluster(brokers=2)
    broker = cluster.topic("t")
    produce(broker, batch(b"old"))
    gone = cluster.kill(broker.broker_id)
    delete_topic(cluster.controller)
    requested = CreatableTopic(
        name="t", num_partitions=-1, replication_factor=-1, assignments=[CreatableReplicaAssignment(broker_ids=[gone.broker_id])]
    )
    back = cluster.start(gone.broker_id, gone.texts, [disk.restart() for disk in gone.disks.values()])
    assert back.ask(CreateTopicsRequest(topics=[requested]), 7).topics[0].error_code == 0
    assert back.leader("t").log.end_offset == 0


# DescribeLogDirs.


def test_log_directories_report_partitions_and_free_space() -> None:
    cluster = Cluster(disks=2)
    broker = cluster.topic(partitions=3)
    records = batch(b"x" * 100)
    produce(broker, records)
    broker.measured(free_bytes=700, total_bytes=1000)
    answer = broker.ask(DescribeLogDirsRequest(topics=None), 5)
    assert [(one.log_dir, one.error_code, one.total_bytes, one.usable_bytes, one.is_cordoned) for one in answer.results] == [
        ("disk0", 0, 1000, 700, False),
        ("disk1", 0, 1000, 700, False),
    ]
    parts = {part.partition_index: part for one in answer.results for topic in one.topics for part in topic.partitions}
    assert {number: part.partition_size for number, part in parts.items()} == {0: len(records), 1: 0, 2: 0}
    assert all((part.offset_lag, part.is_future_key) == (0, False) for part in parts.values())


def test_only_the_requested_partitions_are_described() -> None:
    broker = Cluster().topic(partitions=3)

    def reported(*topics: DescribableLogDirTopic) -> list[Any]:
        answer = broker.ask(DescribeLogDirsRequest(topics=list(topics)), 4)
        return [part.partition_index for topic in answer.results[0].topics for part in topic.partitions]

    assert reported(DescribableLogDirTopic(topic="t", partitions=[1, 9]), DescribableLogDirTopic(topic="no", partitions=[0])) == [1]
    assert reported() == []


def test_failed_log_directory_is_described_with_its_error_only() -> None:
    broker = Cluster(disks=2).topic(partitions=2)
    broker.handle(events.DirectoryFailed(directory="disk1", reason="test"))
    good, bad = broker.ask(DescribeLogDirsRequest(topics=None), 4).results
    assert (good.error_code, len(good.topics)) == (0, 1)
    assert (bad.log_dir, bad.error_code, bad.topics, bad.total_bytes) == ("disk1", errors.KafkaStorageError.code, [], -1)


def described(answer: Any) -> list[tuple[str, int]]:
    return sorted((topic.name, part.partition_index) for one in answer.results for topic in one.topics for part in topic.partitions)


def test_many_partitions_are_described_in_turns_between_which_other_requests_are_answered() -> None:
    cluster = Cluster()
    broker = cluster.topic(partitions=5)
    broker.node.context.turns.elements = 2
    cluster.turning = False
    sent = broker.send(DescribeLogDirsRequest(topics=None), 5)
    assert sent.waits
    assert broker.ask(MetadataRequest(topics=[]), 12).brokers
    broker.turn()
    assert sent.waits, "the second of three turns"
    broker.turn()
    assert described(sent.answer) == [("t", number) for number in range(5)]
    cluster.turning = True
    named = DescribableLogDirTopic(topic="t", partitions=[4, 0, 4, 1, 9])
    assert described(broker.ask(DescribeLogDirsRequest(topics=[named]), 5)) == [("t", 0), ("t", 1), ("t", 4)]


def test_changes_between_turns_appear_in_the_answer() -> None:
    cluster = Cluster(disks=2)
    broker = cluster.topic("a", partitions=4)
    cluster.topic("b", partitions=4)
    broker.node.context.turns.elements = 2
    cluster.turning = False
    deleted, failed = broker.send(DescribeLogDirsRequest(topics=None), 5), broker.send(DescribeLogDirsRequest(topics=None), 5)
    broker.node.context.turns.elements = 1_000
    delete_topic(broker, "b")
    broker.node.context.turns.elements = 2
    broker.turn()
    assert deleted.waits
    broker.handle(events.DirectoryFailed(directory="disk1", reason="test"))
    while broker.turns_due:
        broker.turn()
    for sent in (deleted, failed):
        good, bad = sent.answer.results
        assert {topic.name for topic in good.topics} == {"a"}, "a deleted topic is omitted"
        assert (bad.error_code, bad.topics) == (errors.KafkaStorageError.code, [])

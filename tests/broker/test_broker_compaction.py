"""Scheduling of compaction: at intervals, the dirtiest log first, off the loop; abandoned if its log was replaced."""

from typing import Any

from cluster import WALL_MS, Broker, Cluster, batch, fetch_request, produce

from ottla.base.ids import TopicPartition
from ottla.base.units import HOUR_MS, MINUTE_MS, SECOND_MS
from ottla.records.batch import headers
from ottla.records.read import records
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest

CONFIGS = {"cleanup.policy": "compact", "internal.segment.bytes": "400", "min.cleanable.dirty.ratio": "0.3", "file.delete.delay.ms": "1000"}


def a_cluster(**settings: str) -> Cluster:
    return Cluster(settings={"log.cleaner.backoff.ms": "1000", **{name.replace("_", "."): text for name, text in settings.items()}})


def write(broker: Broker, count: int = 30, *, topic: str = "t", keys: int = 3, partition: int = 0) -> None:
    for number in range(count):
        data = batch(b"value-%02d" % number, key=b"key-%d" % (number % keys), timestamp_ms=WALL_MS + number)
        assert produce(broker, data, topic=topic, partition=partition).error_code == 0


def read(broker: Broker, *, topic: str = "t") -> dict[int, bytes]:
    """Offset -> value of everything, by fetches of one batch or more each."""
    found: dict[int, bytes] = {}
    offset, end = 0, broker.leader(topic).high_watermark
    while offset < end:
        answer = broker.ask(fetch_request(offset, topic=topic, partition_max_bytes=200), 12).responses[0].partitions[0]
        assert answer.error_code == 0 and answer.records, f"nothing at {offset} of {end}"
        for place, header in headers(answer.records):
            found |= {at: value or b"" for at, _, _, value, _ in records(answer.records, place) if at >= offset}
            offset = header.last_offset + 1
    return found


def segments(broker: Broker, topic: str = "t") -> int:
    return len(broker.leader(topic).log.segments)


def test_a_compacted_topic_shrinks_with_time_and_keeps_the_last_value_of_each_key() -> None:
    cluster = a_cluster()
    broker = cluster.topic(configs=CONFIGS)
    write(broker)
    size, before = broker.leader("t").log.size, read(broker)
    cluster.pass_ms(2 * SECOND_MS)
    after = read(broker)
    assert broker.leader("t").log.size < size / 2
    assert set(after.items()) < set(before.items()) and set(after) >= {27, 28, 29}
    cluster.pass_ms(2 * SECOND_MS)
    assert any(path.endswith(".deleted") for path in broker.removed), "what was replaced goes after its delay"
    disk = next(iter(broker.disks.values()))
    assert not [name for name in disk.listdir("t-0") if name.endswith((".deleted", ".cleaned", ".swap"))]
    cluster.pass_ms(MINUTE_MS)
    assert disk.read_file("cleaner-offset-checkpoint").startswith(b"0\n1\nt 0 ")
    again = cluster.restart(1)
    assert read(again) == after


def test_the_time_between_two_looks_may_change_while_the_broker_runs() -> None:
    cluster = a_cluster(log_cleaner_backoff_ms=str(HOUR_MS))
    broker = cluster.topic(configs=CONFIGS)
    write(broker)
    size = broker.leader("t").log.size
    cluster.pass_ms(2 * SECOND_MS)
    assert broker.leader("t").log.size == size
    sooner = AlterableConfig(name="log.cleaner.backoff.ms", config_operation=0, value="1000")
    resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[sooner])
    assert broker.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code == 0
    cluster.pass_ms(2 * SECOND_MS)
    assert broker.leader("t").log.size < size / 2


def test_a_topic_that_only_deletes_is_not_compacted() -> None:
    cluster = a_cluster()
    broker = cluster.topic(configs={**CONFIGS, "cleanup.policy": "delete"})
    broker.cleaning = False
    write(broker)
    cluster.pass_ms(3 * SECOND_MS)
    assert not broker.cleans


def test_the_cleaner_can_be_switched_off() -> None:
    cluster = a_cluster(log_cleaner_enable="false")
    broker = cluster.topic(configs=CONFIGS)
    broker.cleaning = False
    write(broker)
    cluster.pass_ms(3 * SECOND_MS)
    assert not broker.cleans


def test_as_many_logs_are_compacted_at_once_as_there_are_threads_the_dirtiest_first() -> None:
    cluster = a_cluster(log_cleaner_threads="2")
    broker = cluster.topic(partitions=4, configs=CONFIGS)
    broker.cleaning = False
    for partition in (0, 1):
        write(broker, partition=partition)
    cluster.pass_ms(SECOND_MS)
    broker.clean()
    for partition, count in ((0, 10), (1, 20), (2, 30), (3, 30)):
        write(broker, count, partition=partition)
    cluster.pass_ms(SECOND_MS)
    assert [effect.partition.partition for effect in broker.cleans] == [2, 3]
    cluster.pass_ms(5 * SECOND_MS)
    assert len(broker.cleans) == 2
    broker._clean(broker.cleans.pop(0))
    cluster.run()
    assert [effect.partition.partition for effect in broker.cleans] == [3, 1], "the next one begins when one is done"


def test_with_a_small_buffer_several_compactions_follow_each_other() -> None:
    cluster = a_cluster(log_cleaner_dedupe_buffer_size="1024")
    broker = cluster.topic(configs={**CONFIGS, "min.cleanable.dirty.ratio": "0"})
    write(broker, 150, keys=90)
    done: list[Any] = []
    original = broker._clean
    broker._clean = lambda effect: (done.append(effect), original(effect))  # type: ignore[assignment, func-returns-value, method-assign]
    cluster.pass_ms(SECOND_MS)
    assert len(done) > 3
    held = read(broker)
    newest = {number % 90: number for number in range(150)}
    assert set(newest.values()) <= set(held) and len(held) < 110


def test_the_result_for_a_topic_that_was_deleted_and_made_anew_meanwhile_is_thrown_away() -> None:
    cluster = a_cluster()
    broker = cluster.topic(configs=CONFIGS)
    broker.cleaning = False
    write(broker)
    cluster.pass_ms(SECOND_MS)
    (effect,) = broker.cleans
    broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6)
    cluster.topic(configs=CONFIGS)
    write(broker, 20)
    before = read(broker)
    cluster.pass_ms(SECOND_MS)
    assert effect.plan.wanted is False
    broker.clean()
    assert read(broker) == before
    assert not [name for name in broker.disks[effect.directory].listdir("t-0") if name.endswith(".cleaned")]
    cluster.pass_ms(SECOND_MS)
    broker.clean()
    assert len(read(broker)) < len(before), "the new topic has its own turn"


def test_a_log_truncated_meanwhile_stays_as_it_is_and_is_compacted_later() -> None:
    cluster = a_cluster()
    broker = cluster.topic(configs=CONFIGS)
    broker.cleaning = False
    write(broker)
    cluster.pass_ms(SECOND_MS)
    leader = broker.leader("t")
    leader.log.truncate_to(12)
    leader.high_watermark = 12
    broker._marks.clear()
    before = read(broker)
    broker.clean()
    assert read(broker) == before
    write(broker)
    cluster.pass_ms(SECOND_MS)
    broker.clean()
    assert len(read(broker)) < 20


def test_damaged_batch_is_reported_once_and_the_log_is_not_scrubbed_until_a_restart() -> None:
    cluster = a_cluster()
    broker = cluster.topic(configs=CONFIGS)
    cluster.topic("other", configs=CONFIGS)
    write(broker)
    log = broker.leader("t").log
    disk = broker.disks[broker.leader("t").directory.root]
    disk.flip_bit(log.segments[1].file.path, 80)
    before = segments(broker)
    cluster.pass_ms(10 * SECOND_MS)
    assert segments(broker) == before
    first, second = broker.warnings
    assert "t-0" in first and "not compacted" in first
    assert f"{log.segments[1].base_offset:020d}.log" in second and "CORRUPT_MESSAGE" in second
    write(broker, topic="other")
    cluster.pass_ms(2 * SECOND_MS)
    assert len(read(broker, topic="other")) < 30, "others are compacted all the same"
    assert broker.halted is None and TopicPartition("t", 0) in broker.node.partitions.leaders


def test_a_directory_that_fails_during_a_compaction_ends_it() -> None:
    cluster = Cluster(disks=2, settings={"log.cleaner.backoff.ms": "1000"})
    broker = cluster.topic(configs=CONFIGS)
    broker.cleaning = False
    write(broker)
    cluster.pass_ms(SECOND_MS)
    (effect,) = broker.cleans
    broker.node.partitions.directory_failed(effect.directory, "pulled out")
    broker.clean()
    assert not broker.node.compaction.under_way and broker.halted is None


def test_the_settings_reach_the_plan() -> None:
    settings = {"log_cleaner_threads": "2", "log_cleaner_dedupe_buffer_size": "4096", "log_cleaner_io_buffer_size": "8192"}
    cluster = a_cluster(**settings, log_cleaner_io_max_bytes_per_second="1234.5", log_cleaner_io_buffer_load_factor="0.5")
    broker = cluster.topic(configs={**CONFIGS, "delete.retention.ms": "77", "index.interval.bytes": "50"})
    broker.cleaning = False
    write(broker)
    cluster.pass_ms(SECOND_MS)
    (effect,) = broker.cleans
    plan = effect.plan
    assert (plan.buffer_bytes, plan.chunk_bytes, plan.load_factor) == (2048, 4096, 0.5)
    assert (plan.delete_retention_ms, plan.segment_bytes, plan.interval_bytes) == (77, 400, 50)
    assert effect.bytes_per_second == 1234.5


def test_a_backoff_of_nothing_does_not_keep_the_broker_busy() -> None:
    """Found by the fuzzer: brokers looked for logs to compact every millisecond."""
    cluster = Cluster(settings={"log.cleaner.backoff.ms": "0"})
    node = cluster[1].node
    assert node.next_deadline_ms() >= cluster.now_ms + 100  # type: ignore[operator]
    cluster.pass_ms(250)
    assert node.next_deadline_ms() >= cluster.now_ms + 50  # type: ignore[operator]

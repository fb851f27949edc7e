"""Damage in log files: every byte of a batch header, of leaders and followers, found live or at a start; the scrub; a single replica."""

from collections.abc import Iterator

import pytest
from cluster import Broker, Cluster, batch, fetch, produce, values

from ottla.base.ids import TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker.replica.follower import Follower, Unsound
from ottla.log.log import Log
from ottla.records.batch import HEADER_SIZE
from ottla.sim.disk import SimDisk
from ottla.wire import errors

pytestmark = pytest.mark.slow

RECORDS = 9
VALUES = [b"%d" % number for number in range(RECORDS)]
#: Three batches to a segment.
SEGMENTED = {"internal.segment.bytes": "220"}
SOON = {"ottla.log.scrub.interval.ms": str(20 * SECOND_MS), "log.flush.offset.checkpoint.interval.ms": "1000"}
NEVER = {**SOON, "ottla.log.scrub.interval.ms": "-1"}


def a_cluster(partitions: int = 1, *, brokers: int = 3, replicas: int = 3, settings: dict[str, str] | None = None) -> Cluster:
    """Some brokers, and a topic of three segments with a record in each batch."""
    cluster = Cluster(brokers=brokers, settings=SOON if settings is None else settings)
    cluster.topic(partitions=partitions, replicas=replicas, configs=SEGMENTED)
    cluster.pass_ms(1500)
    for number in range(partitions):
        for value in VALUES:
            assert produce(cluster.leading("t", number), batch(value), partition=number).error_code == 0
    cluster.pass_ms(2 * SECOND_MS)
    return cluster


def log_of(broker: Broker, number: int = 0) -> Log:
    replica = broker.node.partitions.replica(TopicPartition("t", number))
    assert replica is not None
    return replica.log


def values_of(log: Log) -> Iterator[bytes | None]:
    """All values, segment by segment."""
    offset = log.start_offset
    while (found := log.locate(offset, max_bytes=1 << 20, upto=log.end_offset)) is not None:
        read = values(found.read())
        yield from read
        offset += len(read)  # type: ignore[assignment]


def place(log: Log, offset: int) -> tuple[str, int]:
    """File and position of the batch at an offset."""
    found = log.locate(offset, max_bytes=1, upto=log.end_offset)
    assert found is not None
    return found.file.path, found.position


def flip(broker: Broker, offset: int, at: int, number: int = 0, *, disk: SimDisk | None = None) -> None:
    """Changes a bit of a byte of the batch at this offset."""
    path, position = place(log_of(broker, number), offset)
    (disk or broker.disks["disk0"]).flip_bit(path, position + at, (at * 5) % 8)


def restart(cluster: Cluster, broker: Broker, *, cleanly: bool) -> Broker:
    """Ends and starts a broker, whose disk is as it was."""
    if cleanly:
        node = broker.node
        broker._perform(node.stop(cluster.now_ms))
        cluster.run()
        for directory in node.context.directories:
            marks = node.partitions.high_watermarks(directory)
            assert directory.close(marks, cluster.wall_ms, broker_epoch=node.context.epoch or -1, clean_since=node.registration.clean_since)
    gone = cluster.kill(broker.broker_id)
    return cluster.start(gone.broker_id, gone.texts, [disk.restart() for disk in gone.disks.values()])


@pytest.mark.parametrize("when", ["live", "after a kill", "after a stop"])
@pytest.mark.parametrize("offset", [1, RECORDS - 2, RECORDS - 1], ids=["older segment", "active segment", "last batch"])
def test_every_byte_of_a_batch_header_heals_from_other_replicas(offset: int, when: str) -> None:
    """A partition for each byte that the broker leads, and one that it follows, all damaged at once."""
    count = 2 * HEADER_SIZE
    cluster = a_cluster(count, brokers=2, replicas=2, settings={**SOON, "ottla.log.scrub.interval.ms": "3000"})
    hit = cluster.leading("t", 0)
    led = [partition.partition for partition in hit.node.partitions.leaders]
    followed = [partition.partition for partition in hit.node.partitions.followers]
    flipped = dict(zip([*led, *followed], [*range(HEADER_SIZE)] * 2, strict=True))
    for number, at in flipped.items():
        flip(hit, offset, at, number)
    if when != "live":
        hit = restart(cluster, hit, cleanly=when == "after a stop")
    cluster.pass_ms(10 * SECOND_MS)
    for number in range(count):
        state = cluster.controller.node.context.image.state(TopicPartition("t", number))
        assert state is not None and state.leader >= 0 and len(state.isr) == 2, (number, flipped.get(number), state)
        for broker in cluster.brokers.values():
            assert broker.halted is None
            assert list(values_of(log_of(broker, number))) == VALUES, (number, flipped.get(number), broker.broker_id)
            assert not log_of(broker, number).damages
        assert produce(cluster.leading("t", number), batch(b"more"), partition=number).error_code == 0


@pytest.mark.parametrize("at", range(HEADER_SIZE + 2))
def test_a_log_is_cut_at_any_damaged_byte_of_a_header(at: int) -> None:
    """Truncation needs nothing of what it cuts; the byte is met before any scrub is."""
    cluster = a_cluster(settings=NEVER)
    leader = cluster.leading("t")
    for offset in (RECORDS - 1, 4, 3, 1, 0):
        broker = next(one for one in cluster.brokers.values() if one is not leader)
        replica = broker.node.partitions.followers[TopicPartition("t", 0)]
        flip(broker, offset, at)
        removed = replica.cut_damage(offset, wall_ms=0)
        broker.node.partitions.dropped(replica, removed)
        assert replica.log.end_offset == offset and list(values_of(replica.log)) == VALUES[:offset]


@pytest.mark.parametrize("at", [0, 8, 9, 10, 11, 16])
def test_a_consumer_that_meets_a_damaged_header_makes_the_leader_heal(at: int) -> None:
    """Length, magic and base offset: what stopped the broker, while it cut its log there. No scrub is due."""
    cluster = a_cluster(settings=NEVER)
    leader = cluster.leading("t")
    leader = restart(cluster, leader, cleanly=False)
    cluster.pass_ms(5 * SECOND_MS)
    leader = cluster.leading("t")
    flip(leader, 1, at)
    fetch(leader, 2)
    fetch(leader, 1)
    cluster.pass_ms(20 * SECOND_MS)
    if cluster.leading("t") is leader:  # The flipped base offset was not met: where nobody looks, only the scrub finds it.
        leader.node.context.effects = []
        leader.node.scrubs.look_at(leader.leader("t"), 0, whole=True)
        leader._perform(leader.node.context.effects)
        cluster.pass_ms(20 * SECOND_MS)
    assert cluster.leading("t") is not leader and leader.halted is None
    assert all(list(values_of(log_of(broker))) == VALUES for broker in cluster.brokers.values())


# A single replica.


def alone(at: int = 66, *, offset: int = 4, settings: dict[str, str] | None = None) -> tuple[Cluster, Broker]:
    cluster = a_cluster(replicas=1, settings=settings)
    leader = cluster.leading("t")
    flip(leader, offset, at)
    cluster.pass_ms(30 * SECOND_MS)
    return cluster, leader


@pytest.mark.parametrize("at", [3, 7, 9, 11, 16, 17, 25, 66], ids=lambda at: f"byte {at}")
def test_with_one_replica_only_the_damaged_offsets_are_refused(at: int) -> None:
    cluster, leader = alone(at)
    for _ in range(2):
        for offset in range(RECORDS):
            answer = fetch(leader, offset)
            if offset == 4:
                assert answer.error_code == errors.CorruptMessage.code and not answer.records
            else:
                assert answer.error_code == 0 and values(answer.records)[0] == VALUES[offset]
        assert produce(leader, batch(b"more")).error_code == 0
        leader = restart(cluster, leader, cleanly=False)
        cluster.pass_ms(2 * SECOND_MS)


def test_damage_of_a_single_replica_is_reported_with_file_offsets_and_position() -> None:
    _, leader = alone()
    path, position = place(log_of(leader), 3)
    (reported,) = [warning for warning in leader.warnings if "damaged" in warning]
    for part in ("t-0 in disk0", "offsets 4 to 4", path.rpartition("/")[2], "checksum", "nothing is deleted", "CORRUPT_MESSAGE"):
        assert part in reported
    assert leader.node.replica_health.state_of(TopicPartition("t", 0)).startswith("offsets 4 to 4")
    assert position >= 0


def test_reported_damage_of_a_single_replica_heals_when_another_replica_has_the_records() -> None:
    cluster = a_cluster()
    leader = cluster.leading("t")
    gone = [cluster.kill(number) for number in list(cluster.brokers) if number != leader.broker_id]
    cluster.pass_ms(20 * SECOND_MS)
    flip(leader, 4, 9)
    cluster.pass_ms(30 * SECOND_MS)
    assert [one.first for one in log_of(leader).damages] == [4]
    for broker in gone:
        cluster.start(broker.broker_id, broker.texts, [disk.restart() for disk in broker.disks.values()])
    cluster.pass_ms(60 * SECOND_MS)
    assert cluster.leading("t").node.context.image.state(TopicPartition("t", 0)).isr.__len__() == 3  # type: ignore[union-attr]
    assert all(list(values_of(log_of(broker))) == VALUES and not log_of(broker).damages for broker in cluster.brokers.values())


# When the scrub runs.


def test_every_log_is_scrubbed_once_in_an_interval_also_across_restarts() -> None:
    cluster = a_cluster(4, replicas=1, settings={**SOON, "ottla.log.scrub.interval.ms": "80000"})
    leader = cluster.leading("t", 0)
    begun_ms = cluster.wall_ms
    seen: list[str] = []
    for _ in range(6):
        cluster.pass_ms(20 * SECOND_MS)
        leader = restart(cluster, cluster.leading("t", 0), cleanly=False)
        cluster.pass_ms(SECOND_MS)
    for broker in cluster.brokers.values():
        (directory,) = broker.node.context.directories
        for partition in directory.logs:
            assert directory.scrubs[partition].done_ms > begun_ms, f"{partition} was scrubbed"
            seen.append(str(partition))
    assert len(seen) == 4 and leader.halted is None


@pytest.mark.parametrize("interval", ["0", "-1"])
def test_without_an_interval_nothing_is_scrubbed(interval: str) -> None:
    _, leader = alone(settings={**NEVER, "ottla.log.scrub.interval.ms": interval})
    assert not leader.warnings and fetch(leader, 4).error_code == 0


# Followers.


def a_follower() -> Follower:
    cluster = a_cluster(settings=NEVER)
    leader = cluster.leading("t")
    return next(broker.node.partitions.followers[TopicPartition("t", 0)] for broker in cluster.brokers.values() if broker is not leader)


def test_a_follower_writes_no_batch_whose_base_offset_points_beyond_the_high_watermark() -> None:
    follower = a_follower()
    wrong = bytearray(batch(b"a", base_offset=RECORDS + 4, leader_epoch=0))
    with pytest.raises(Unsound, match=f"offset {RECORDS + 4} where {RECORDS} is due"):
        follower.append(wrong, high_watermark=RECORDS + 1, wall_ms=0)
    assert follower.log.end_offset == RECORDS


def test_a_follower_writes_no_batch_that_overlaps_the_next_one() -> None:
    follower = a_follower()
    wrong = bytearray(batch(b"a", base_offset=RECORDS + 2, leader_epoch=0)) + bytearray(
        batch(b"b", base_offset=RECORDS + 1, leader_epoch=0)
    )
    with pytest.raises(Unsound, match="the next one says"):
        follower.append(wrong, high_watermark=RECORDS + 9, wall_ms=0)
    assert follower.log.end_offset == RECORDS


@pytest.mark.parametrize("at", [7, 9, 16, 20, 66])
def test_a_batch_refused_by_a_follower_makes_its_leader_check_its_log(at: int) -> None:
    """The leader's log is damaged, and a new replica copies from it: it gets an error, and the leader resigns and heals."""
    cluster = a_cluster(settings=NEVER)
    leader = cluster.leading("t")
    gone = cluster.kill(next(number for number in cluster.brokers if number != leader.broker_id))
    flip(leader, 4, at)
    now = cluster.start(gone.broker_id, gone.texts, [SimDisk("disk0", now_ms=lambda: cluster.wall_ms)])
    cluster.pass_ms(60 * SECOND_MS)
    assert cluster.leading("t") is not leader
    for broker in cluster.brokers.values():
        assert list(values_of(log_of(broker))) == VALUES and broker.halted is None
    refusals = [warning for warning in now.warnings if "does not copy what broker" in warning]
    assert len(refusals) <= 2, refusals


def test_a_mark_of_a_time_to_come_does_not_keep_a_log_from_being_scrubbed() -> None:
    cluster = a_cluster(1, replicas=1, settings={**SOON, "ottla.log.scrub.interval.ms": "80000"})
    broker = cluster.leading("t")
    marks = broker.node.context.directories[0].scrubs
    marks[TopicPartition("t", 0)].done_ms = broker.node.context.wall_ms + 10**12
    cluster.pass_ms(20 * SECOND_MS)
    assert marks[TopicPartition("t", 0)].done_ms <= broker.node.context.wall_ms


@pytest.mark.parametrize("keeps", [0, 30])
def test_an_older_segment_that_lost_its_content_is_found_after_a_clean_stop_and_heals(keeps: int) -> None:
    cluster = a_cluster(1, settings={**SOON, "ottla.log.scrub.interval.ms": "3000"})
    hit = next(broker for broker in cluster.brokers.values() if broker is not cluster.leading("t"))
    log = log_of(hit)
    path = f"{log.directory}/{log.bases[1]:020}.log"
    (disk,) = hit.disks.values()
    disk.open(path).truncate(keeps)
    restart(cluster, hit, cleanly=True)
    cluster.pass_ms(10 * SECOND_MS)
    assert [list(values_of(log_of(broker))) for broker in cluster.brokers.values()] == [VALUES] * 3


def test_a_damaged_leader_epoch_heals_though_the_recovery_point_is_lost() -> None:
    """Recovery takes the epoch for a new one, since nothing says otherwise: the follower then asks with an epoch that no leader knows."""
    cluster = a_cluster(1)
    hit = next(broker for broker in cluster.brokers.values() if broker is not cluster.leading("t"))
    flip(hit, RECORDS - 3, 14)
    for disk in hit.disks.values():
        disk.unlink("recovery-point-offset-checkpoint")
        disk.sync_dir()
    restart(cluster, hit, cleanly=False)
    cluster.pass_ms(10 * SECOND_MS)
    assert [list(values_of(log_of(broker))) for broker in cluster.brokers.values()] == [VALUES] * 3
    assert len(cluster.controller.node.context.image.state(TopicPartition("t", 0)).isr) == 3  # type: ignore[union-attr]

"""The files a server leaves behind, read from Kafka's formats alone and held against what clients wrote.

Nothing of Ottla is imported here: batches are read by `plain_kafka`, everything else by the few lines below. Sources: KIP-98 (batches,
producer snapshots), KIP-33 (time index), KIP-101 (leader epochs), KIP-516 (partition.metadata), KIP-858 (directory.id).
"""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

import confluent_kafka
import pytest

import kafka
from plain_kafka import CODECS, Batch, Record, batch_of, batches, crc32c, create_topics, produce
from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("independent_reader")]

TOPIC = "read-me.by_hand"
INTERVAL, SEGMENT_BYTES = 700, 8_192
NOW_MS = time.time_ns() // 1_000_000 - 100_000
PRODUCER_ID = 777
#: Before the whole story of a partition, this many records were deleted.
DELETED = 50


@dataclass
class Segment:
    """One segment, its files read whole."""

    base: int
    log: bytes
    index: list[tuple[int, int]]
    timeindex: list[tuple[int, int]]

    @property
    def batches(self) -> list[Batch]:
        return list(batches(self.log))


def segments(directory: Path) -> list[Segment]:
    """In the order of their offsets."""
    found = []
    for file in sorted(directory.glob("*.log")):
        assert len(file.stem) == 20 and file.stem.isdigit(), "a segment is named by its first offset, in 20 digits"
        index, timeindex = file.with_suffix(".index"), file.with_suffix(".timeindex")
        entries = [struct.Struct(">ii").iter_unpack(index.read_bytes()), struct.Struct(">qi").iter_unpack(timeindex.read_bytes())]
        found.append(Segment(int(file.stem), file.read_bytes(), *(list(each) for each in entries)))
    return found


def text_lines(path: Path) -> list[list[str]]:
    """The rows of a checkpoint: a version, a count, and so many rows."""
    version, count, *rows = path.read_text().splitlines()
    assert version == "0" and int(count) == len(rows)
    return [row.split(" ") for row in rows]


def properties(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@dataclass
class Left:
    """What a stopped server left, and what was written to it: records by partition, in order."""

    root: Path
    written: dict[int, list[Record]]
    cluster_id: str
    topic_id: str

    def partition(self, number: int) -> Path:
        return self.root / f"{TOPIC}-{number}"


def write(bootstrap: str) -> dict[int, list[Record]]:
    """Partition 0: every codec of two clients. Partition 1: many plain batches. Partition 2: nothing."""
    random = Random(8)
    written: dict[int, list[Record]] = {0: [], 1: [], 2: []}

    def record(partition: int, size: int) -> Record:
        offset = len(written[partition])
        headers = (("h", b"1"), ("h", None)) if offset % 3 == 0 else ()
        key = None if offset % 4 == 0 else b"k%d" % (offset % 5)
        value = None if offset % 7 == 6 else random.randbytes(size) + b"z" * size
        # Times go back and forth, so that the greatest so far is often not the newest.
        made = Record(offset, NOW_MS + offset * 10 - random.randrange(100), key, value, headers)
        written[partition].append(made)
        return made

    for codec in CODECS:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50, "enable.idempotence": True}
        )
        for _ in range(100):
            made = record(0, 30)
            producer.produce(TOPIC, made.value, made.key, 0, timestamp=made.timestamp_ms, headers=list(made.headers))
        assert producer.flush(20) == 0
        python = kafka.KafkaProducer(bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, linger_ms=50)
        for _ in range(100):
            made = record(0, 30)._replace(headers=(("only", b"bytes"),))
            made = made if made.key is not None or made.value is not None else made._replace(key=b"a key")
            written[0][-1] = made
            python.send(TOPIC, made.value, made.key, list(made.headers), 0, made.timestamp_ms)
        python.close()
    address = (bootstrap.split(":")[0], int(bootstrap.split(":")[1]))
    for number in range(200):
        some = [record(1, 20)._replace(headers=()) for _ in range(3)]
        written[1][-3:] = some
        data = batch_of(
            [(r.timestamp_ms, r.key, r.value) for r in some], producer_id=PRODUCER_ID, producer_epoch=2, base_sequence=number * 3
        )
        assert produce(address, TOPIC, 1, data) == (0, number * 3)
    return written


def checkpointed(path: Path) -> dict[int, int]:
    """The offsets of the topic's partitions in a checkpoint of the directory; none if there is no file."""
    rows = text_lines(path) if path.exists() else []
    return {int(partition): int(offset) for topic, partition, offset in rows if topic == TOPIC}


@pytest.fixture(scope="module", params=["stopped", "killed"])
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    settings = {
        "internal.segment.bytes": str(SEGMENT_BYTES),
        "log.index.interval.bytes": str(INTERVAL),
        "log.flush.offset.checkpoint.interval.ms": "100",
    }
    with Serving(tmp_path_factory.mktemp(request.param) / "data", settings=settings) as server:
        create_topics(server.address, {TOPIC: 3})
        written = write(server.bootstrap)
        admin = kafka.KafkaAdminClient(bootstrap_servers=server.bootstrap)
        admin.delete_records({kafka.TopicPartition(TOPIC, 1): DELETED})
        cluster_id = str(admin.describe_cluster()["cluster_id"])
        topic_id = str(admin.describe_topics([TOPIC])[0]["topic_id"])
        admin.close()
        if request.param == "killed":
            ends = {number: len(records) for number, records in written.items()}
            deadline_s = time.monotonic() + 20
            while checkpointed(server.data_dir / "broker-1" / "replication-offset-checkpoint") != ends:
                assert time.monotonic() < deadline_s, "the high watermarks are written every 100 ms"
                time.sleep(0.02)
            server.kill()
        else:
            server.stop()
        yield Left(server.data_dir / "broker-1", written, cluster_id, topic_id)


def test_every_record_is_in_the_log_as_written(left: Left) -> None:
    for partition, records in left.written.items():
        found = [record for segment in segments(left.partition(partition)) for batch in segment.batches for record in batch.records]
        assert found == records[found[0].offset if found else 0 :]
        assert partition != 1 or found[0].offset <= DELETED, "nothing above the log start is gone"
    codecs = {batch.codec for segment in segments(left.partition(0)) for batch in segment.batches}
    assert codecs == set(CODECS)


def test_offsets_are_dense_over_batches_and_segments(left: Left) -> None:
    for partition in (0, 1):
        found = segments(left.partition(partition))
        assert len(found) > 3
        every = [batch for segment in found for batch in segment.batches]
        assert all(b.base_offset == a.last_offset + 1 for a, b in pairwise(every))
        assert all(segment.base == segment.batches[0].base_offset for segment in found if segment.log)
        assert all(len(segment.log) <= SEGMENT_BYTES for segment in found), "a segment is no larger than segment.bytes"


def test_batches_carry_the_leader_epoch_and_its_checkpoint_has_the_start_offset(left: Left) -> None:
    for partition in (0, 1):
        epochs = [(int(epoch), int(offset)) for epoch, offset in text_lines(left.partition(partition) / "leader-epoch-checkpoint")]
        every = [batch for segment in segments(left.partition(partition)) for batch in segment.batches]
        assert {batch.leader_epoch for batch in every} == {epoch for epoch, _ in epochs} == {0}
        assert epochs[0][1] in (0, DELETED)
    assert text_lines(left.partition(2) / "leader-epoch-checkpoint") == [["0", "0"]], "it begins with leading, not with writing"


def test_an_offset_index_points_at_batches_at_least_an_interval_apart(left: Left, request: pytest.FixtureRequest) -> None:
    entries = 0
    for partition in (0, 1):
        for segment in segments(left.partition(partition)):
            starts = {batch.position: batch for batch in segment.batches}
            for relative, position in segment.index:
                assert position in starts, "an entry points at the beginning of a batch"
                assert starts[position].base_offset <= segment.base + relative <= starts[position].last_offset
            for (offset, position), (next_offset, next_position) in pairwise(segment.index):
                assert offset < next_offset and next_position - position > INTERVAL
            entries += len(segment.index)
            if segment.log and "stopped" in request.node.name:
                unindexed = len(segment.log) - (segment.index[-1][1] if segment.index else 0)
                assert unindexed < INTERVAL + 2 * max(batch.size for batch in segment.batches), "no stretch of a log is left out"
    assert entries > 20 or "killed" in request.node.name


def test_a_time_index_entry_has_the_greatest_time_so_far_and_its_offset(left: Left, request: pytest.FixtureRequest) -> None:
    for partition in (0, 1):
        found = segments(left.partition(partition))
        for number, segment in enumerate(found):
            for timestamp_ms, relative in segment.timeindex:
                offset = segment.base + relative
                before = [batch for batch in segment.batches if batch.base_offset <= offset]
                assert max(batch.max_timestamp for batch in before) == timestamp_ms
                assert before[-1].max_timestamp == timestamp_ms, "the batch at that offset is the one with the greatest time"
            for (timestamp_ms, offset), (next_ms, next_offset) in pairwise(segment.timeindex):
                assert timestamp_ms < next_ms and offset < next_offset
            closed = number < len(found) - 1 or "stopped" in request.node.name
            if segment.log and closed and segment.timeindex:
                assert segment.timeindex[-1][0] == max(batch.max_timestamp for batch in segment.batches)
            assert segment.timeindex or not segment.log or "killed" in request.node.name


def test_a_producer_snapshot_holds_the_last_batch_of_each_producer(left: Left) -> None:
    checked = 0
    for file in left.partition(1).glob("*.snapshot"):
        offset, data = int(file.stem), file.read_bytes()
        version, crc, count = struct.unpack_from(">hIi", data)
        assert version == 1 and crc == crc32c(data[6:])
        producers = list(struct.Struct(">qhiqiqiq").iter_unpack(data[10:]))
        assert len(producers) == count
        last = max((r for r in left.written[1] if r.offset < offset), key=lambda r: r.offset)
        newest = max(r.timestamp_ms for r in left.written[1][last.offset - 2 : last.offset + 1])
        assert producers == [(PRODUCER_ID, 2, last.offset, last.offset, 2, newest, -1, -1)]
        checked += 1
    assert checked > 0


def test_a_partition_knows_its_topic(left: Left) -> None:
    for partition in range(3):
        lines = dict(line.split(": ") for line in (left.partition(partition) / "partition.metadata").read_text().splitlines())
        assert lines["version"] == "0"
        raw = base64.urlsafe_b64decode(lines["topic_id"] + "==")
        assert len(raw) == 16 and raw.hex() == left.topic_id.replace("-", "")


def test_the_directory_knows_its_cluster_and_broker(left: Left) -> None:
    found = properties(left.root / "meta.properties")
    assert found["version"] in ("0", "1") and found["cluster.id"] == left.cluster_id
    assert found.get("node.id", found.get("broker.id")) == "1"
    assert len(base64.urlsafe_b64decode(found["directory.id"] + "==")) == 16


def test_the_checkpoints_of_the_directory_are_true(left: Left, request: pytest.FixtureRequest) -> None:
    stopped = "stopped" in request.node.name
    ends = {number: len(records) for number, records in left.written.items()}
    assert checkpointed(left.root / "replication-offset-checkpoint") == ends
    starts = checkpointed(left.root / "log-start-offset-checkpoint")
    recovery_points = checkpointed(left.root / "recovery-point-offset-checkpoint")
    if stopped:
        assert (starts[1], recovery_points) == (DELETED, ends), "a clean stop writes the ends of the logs"
    else:
        assert starts.get(1, DELETED) == DELETED
        assert all(0 <= offset <= ends[partition] for partition, offset in recovery_points.items())
    assert starts.get(0, 0) == 0


def test_the_marker_of_a_clean_stop_is_there_only_after_one(left: Left, request: pytest.FixtureRequest) -> None:
    marker = left.root / ".kafka_cleanshutdown"
    if "stopped" in request.node.name:
        content = json.loads(marker.read_text())
        assert content["version"] == 0 and isinstance(content["brokerEpoch"], int)
    else:
        assert not marker.exists()


def test_the_data_directory_has_no_unknown_files(left: Left) -> None:
    known = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
    for partition in range(3):
        names = {file.name for file in left.partition(partition).iterdir() if file.suffix not in known}
        assert names == {"leader-epoch-checkpoint", "partition.metadata"}

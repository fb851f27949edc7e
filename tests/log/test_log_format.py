"""Log files are Kafka's, byte for byte: an independent reader reads ours, and files written by Kafka are read here."""

import json
import struct
import zlib
from dataclasses import dataclass

import crc32c
import pytest
from log_builders import NOW_MS, ORDERS, TOPIC_ID, a_log, a_marker, append, flush, offsets, opened, options, reopened

from ottla.base.ids import TopicPartition, topic_id_text
from ottla.log import checkpoints, filenames
from ottla.log.errors import DirectoryRefused
from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex
from ottla.sim.disk import SimDisk

BASE = "orders-0/00000000000000000000"


# The independent reader.


@dataclass
class StoredBatch:
    position: int
    size: int
    base: int
    last: int
    epoch: int
    max_timestamp: int
    attributes: int
    values: list[bytes]


def varint(data: bytes, at: int) -> tuple[int, int]:
    shift = raw = 0
    while True:
        byte = data[at]
        raw |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return (raw >> 1) ^ -(raw & 1), at


def read_log(data: bytes) -> list[StoredBatch]:
    found = []
    at = 0
    while at < len(data):
        base, length, epoch, magic, crc = struct.unpack_from(">qiibI", data, at)
        body = data[at + 21 : at + 12 + length]
        assert magic == 2 and crc == crc32c.crc32c(body)
        attributes, delta, _, max_timestamp, _, _, _, count = struct.unpack_from(">hiqqqhii", body)
        assert attributes & 7 == 0, "the reader knows no codec"
        records, values = body[40:], []
        place = 0
        for _ in range(count):
            size, place = varint(records, place)
            end = place + size
            _, inner = varint(records, place + 1)
            _, inner = varint(records, inner)
            key_size, inner = varint(records, inner)
            value_size, inner = varint(records, inner + max(key_size, 0))
            values.append(records[inner : inner + value_size])
            place = end
        found.append(StoredBatch(at, 12 + length, base, base + delta, epoch, max_timestamp, attributes, values))
        at += 12 + length
    return found


def test_log_and_indexes_read_back_from_the_format_alone() -> None:
    disk = SimDisk()
    log = a_log(disk, internal_segment_bytes=2500, index_interval_bytes=500)
    for number in range(100):
        append(log, [b"%d" % number] * (1 + number % 3), epoch=number // 40, at_ms=NOW_MS + number % 7 * 100)
    log_values: list[bytes] = []
    following = 0
    directory = opened(disk.restart(), options(internal_segment_bytes=2500, index_interval_bytes=500))
    directory.close(now_ms=NOW_MS)
    disk = directory.disk  # type: ignore[assignment]
    bases = [int(name[:20]) for name in disk.listdir("orders-0") if name.endswith(".log")]
    assert len(bases) > 2
    for base in bases:
        batches = read_log(disk.read_file(f"orders-0/{base:020d}.log"))
        assert batches[0].base == base == following
        for batch in batches:
            assert batch.base == following
            following = batch.last + 1
            log_values += batch.values
        by_position = {batch.position: batch for batch in batches}
        index = list(struct.iter_unpack(">ii", disk.read_file(f"orders-0/{base:020d}.index")))
        assert all(by_position[position].last == base + relative for relative, position in index)
        gaps = [b - a for (_, a), (_, b) in zip([(0, 0), *index], index, strict=False)]
        assert bool(index) == (batches[-1].position > 500)
        assert not index or (min(gaps) > 500 and max(gaps) < 500 + 2 * max(batch.size for batch in batches))
        times = list(struct.iter_unpack(">qi", disk.read_file(f"orders-0/{base:020d}.timeindex")))
        assert times[-1][0] == max(batch.max_timestamp for batch in batches)
        by_last = {batch.last: batch for batch in batches}
        for timestamp, relative in times:
            named = by_last[base + relative]
            assert named.max_timestamp == timestamp
            assert all(batch.max_timestamp < timestamp for batch in batches if batch.last < named.last)
        assert [t for t, _ in times] == sorted({t for t, _ in times})
    assert log_values == [b"%d" % number for number in range(100) for _ in range(1 + number % 3)]
    assert disk.read_file("orders-0/leader-epoch-checkpoint") == b"0\n3\n0 0\n1 79\n2 159\n"


def test_a_producer_snapshot_has_kafkas_layout() -> None:
    disk = SimDisk()
    log = a_log(disk)
    append(log, 3, producer_id=4000, producer_epoch=2, base_sequence=0, at_ms=NOW_MS)
    append(log, 2, producer_id=4000, producer_epoch=2, base_sequence=3, at_ms=NOW_MS + 1, transactional=True)
    log.snapshot()
    data = disk.read_file("orders-0/00000000000000000005.snapshot")
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, count, len(data)) == (1, 1, 10 + 46) and crc == crc32c.crc32c(data[6:])
    assert struct.unpack_from(">qhiqiqiq", data, 10) == (4000, 2, 4, 4, 1, NOW_MS + 1, -1, 3)


def test_a_transaction_index_has_kafkas_layout() -> None:
    disk = SimDisk()
    log = a_log(disk, internal_segment_bytes=300)
    append(log, 1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    append(log, 1, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    a_marker(log, 7, commit=False)
    append(log, 1, sizes=200)
    data = disk.read_file(f"{BASE}.txnindex")
    assert struct.unpack(">hqqqq", data) == (0, 7, 0, 2, 1)


def test_a_segment_without_aborted_transactions_has_no_transaction_index() -> None:
    disk = SimDisk()
    log = a_log(disk, internal_segment_bytes=200)
    for _ in range(9):
        append(log)
    assert not [name for name in disk.listdir("orders-0") if name.endswith(".txnindex")]


def test_partition_metadata_checkpoints_and_marker_have_kafkas_text() -> None:
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, TOPIC_ID, options(), NOW_MS)
    append(log, 4, epoch=6)
    log.delete_before(2, NOW_MS)
    assert directory.close({ORDERS: 3}, NOW_MS, broker_epoch=12)
    assert disk.read_file("orders-0/partition.metadata") == f"version: 0\ntopic_id: {topic_id_text(TOPIC_ID)}".encode()
    assert disk.read_file("orders-0/leader-epoch-checkpoint") == b"0\n1\n6 2\n"
    assert disk.read_file("recovery-point-offset-checkpoint") == b"0\n1\norders 0 4\n"
    # The last row is the checksum of the others, in the place of a partition.
    assert disk.read_file("log-start-offset-checkpoint") == b"0\n2\norders 0 2\n#crc32c 0 %d\n" % crc32c.crc32c(b"orders 0 2")
    assert disk.read_file("replication-offset-checkpoint") == b"0\n1\norders 0 3\n"
    assert disk.read_file(".kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":12}'
    assert json.loads(disk.read_file(".kafka_cleanshutdown")) == {"version": 0, "brokerEpoch": 12}


def test_meta_properties_names_broker_cluster_and_directory_as_java_writes_properties() -> None:
    disk = SimDisk()
    directory = opened(disk)
    lines = disk.read_file("meta.properties").decode().splitlines()
    assert lines[:2] == ["#", "#Tue Nov 14 22:13:20 UTC 2023"]
    assert lines[2] == f"#crc32c={crc32c.crc32c(chr(10).join(lines[3:]).encode())}", "a comment for Java"
    assert lines[3:] == [
        "version=0", "broker.id=1", "cluster.id=cluster-of-the-tests", f"directory.id={topic_id_text(directory.directory_id)}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"#\n#Thu Jan 01 00:00:00 UTC 1970\nversion=1\nnode.id=3\ncluster.id=abc\n", ("abc", 3, None)),
        (b"broker.id=3\nversion=0\n", (None, 3, None)),
        (b"version=0\ncluster.id=a\\=b\n", ("a=b", None, None)),
    ],
)
def test_meta_properties_of_any_kafka_are_read(text: bytes, expected: tuple[str | None, int | None, bytes | None]) -> None:
    found = checkpoints.read_meta_properties(text, "here")
    assert (found.cluster_id, found.broker_id, found.directory_id) == expected


@pytest.mark.parametrize("text", [b"version=7\n", b"version=0\nbroker.id=one\n", b"version=1\nnode.id=1\ndirectory.id=x\n"])
def test_meta_properties_that_make_no_sense_are_refused(text: bytes) -> None:
    with pytest.raises(DirectoryRefused, match=r"here.*meta\.properties"):
        checkpoints.read_meta_properties(text, "here")


@pytest.mark.parametrize("data", [b"0\n", b"1\n0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na zero 1\n", b"\xff\xfe", b"x"])
def test_a_malformed_checkpoint_counts_as_absent(data: bytes) -> None:
    assert checkpoints.read_offsets(data) is None


def test_an_empty_checkpoint_as_kafka_creates_it_holds_nothing() -> None:
    assert checkpoints.read_offsets(b"") == {} and checkpoints.read_epochs(b"") == []


@pytest.mark.parametrize("data", [b"0\n2\n1 5\n1 6\n", b"0\n2\n1 5\n2 5\n", b"0\n1\n-1 0\n", b"0\n1\n1 x\n"])
def test_leader_epochs_out_of_order_count_as_absent(data: bytes) -> None:
    assert checkpoints.read_epochs(data) is None


def test_old_clean_shutdown_markers_tell_no_broker_epoch() -> None:
    assert checkpoints.read_clean_shutdown(b"") == checkpoints.read_clean_shutdown(b"[]") == (-1, -1)
    assert checkpoints.read_clean_shutdown(b'{"version":0,"brokerEpoch":5,"more":1}') == (5, 5)
    assert checkpoints.read_clean_shutdown(checkpoints.clean_shutdown_file(9, 5)) == (9, 5)


def test_names_are_kafkas() -> None:
    assert filenames.segment_name(42, filenames.LOG) == "00000000000000000042.log"
    assert filenames.offset_of("00000000000000000042.log.deleted") == 42 and filenames.offset_of("leader-epoch-checkpoint") is None
    assert filenames.partition_of("a-b.c-12") == TopicPartition("a-b.c", 12)
    for other in ("lost+found", "orders", "-1", "orders-", "orders-0.0123456789abcdef0123456789abcdef-delete", "orders-01", "orders-²"):
        assert filenames.partition_of(other) is None
    long = TopicPartition("t" * 249, 17)
    assert len(filenames.delete_directory_name(long, "u" * 32)) == 255
    assert filenames.delete_directory_name(ORDERS, "u" * 32) == "orders-0." + "u" * 32 + "-delete"


# What Kafka leaves, opened here.


def preallocate(disk: SimDisk, suffix: str, size: int) -> None:
    disk.open(BASE + suffix).truncate(size)


@pytest.mark.parametrize("clean", [True, False])
def test_index_files_that_kafka_preallocated_with_zeros_open(clean: bool) -> None:
    disk = SimDisk()
    texts = {"index_interval_bytes": 200}
    directory = opened(disk, options(**texts))
    log = directory.create(ORDERS, TOPIC_ID, options(**texts), NOW_MS)
    for number in range(50):
        append(log, at_ms=NOW_MS + number)
    flush(log)
    directory.close(now_ms=NOW_MS)
    preallocate(disk, ".index", 10 << 20)
    preallocate(disk, ".timeindex", 10 << 20)
    if not clean:
        disk.unlink(".kafka_cleanshutdown")
    before = log.end_offset
    log = reopened(disk.restart(), **texts)
    assert log.end_offset == before and offsets(log) == [(number, number) for number in range(50)]
    found = log.offset_for_time(NOW_MS + 33, upto=50)
    assert found is not None and found.offset == 33
    append(log, at_ms=NOW_MS + 100)
    flush(log)
    directory = opened(log.disk.restart(), options(**texts))  # type: ignore[attr-defined]
    directory.close(now_ms=NOW_MS)
    assert directory.disk.size(BASE + ".index") < 1000, "the zeros behind the entries are gone"


def test_a_tail_of_zeros_is_distinguished_from_entries_whatever_their_number() -> None:
    for count in (0, 1, 2, 3, 63, 64, 65, 600):
        for zeros in (0, 1, 7, 1000):
            disk = SimDisk()
            disk.mkdir("d")
            disk.open("d/i", create=True).append(b"".join(OFFSET_ENTRY.pack(n * 3, n * 7) for n in range(1, count + 1)) + bytes(8 * zeros))
            index = SparseIndex(disk, "d/i", OFFSET_ENTRY, fresh=False)
            assert len(index) == count and index.last == ((count * 3, count * 7) if count else None)
            for key in range(0, count * 3 + 5, 1 if count < 10 else 97):
                expected = min(key // 3, count)
                assert index.lookup(key) == ((expected * 3, expected * 7) if expected else None)


def test_an_index_finds_entries_in_its_file_and_in_memory_alike() -> None:
    disk = SimDisk()
    disk.mkdir("d")
    index = SparseIndex(disk, "d/t", TIME_ENTRY, fresh=True)
    for number in range(1, 1300):
        index.append(number * 10, number)
    assert disk.size("d/t") == 1024 * 12, "whole blocks are written"
    for key in (0, 9, 10, 15, 640, 5119, 5120, 10_239, 10_240, 10_245, 12_990, 99_999):
        expected = min(key // 10, 1299)
        assert index.lookup(key) == ((expected * 10, expected) if expected else None)
    index.truncate(below_key=5_000)
    assert index.last == (4_990, 499) and index.lookup(9_999) == (4_990, 499)
    index.write()
    assert disk.size("d/t") == 499 * 12


def test_log_segments_from_kafka_with_foreign_files_around_them_open() -> None:
    disk = SimDisk()
    log = a_log(disk)
    append(log, 3)
    flush(log)
    disk.open("orders-0/00000000000000000003.snapshot", create=True).append(b"\0\1garbage")
    disk.mkdir("lost+found")
    disk.mkdir("other-0.0123456789abcdef0123456789abcdef-stray")
    disk.open("notes-1", create=True)
    log = reopened(disk.restart())
    assert log.end_offset == 3 and log.topic_id == TOPIC_ID


def test_crc32c_is_not_zlibs_crc() -> None:
    assert crc32c.crc32c(b"123456789") == 0xE3069283 != zlib.crc32(b"123456789")

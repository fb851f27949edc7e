"""Small files of a log directory with one flipped bit: read as written, refused, or treated as absent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from log_builders import NOW_MS, ORDERS, TOPIC_ID, append, opened, options, reopened

from ottla.base.ids import TopicPartition
from ottla.log import checkpoints
from ottla.log.checkpoints import MetaProperties
from ottla.log.errors import DirectoryRefused
from ottla.records.batch import ATTRIBUTES_AT
from ottla.sim.disk import SimDisk

META = MetaProperties("4L6g3nShT-eMCtK--X86sw", 12, bytes(range(16)), (bytes(range(16)), bytes(range(1, 17))), 3)
STARTS = {TopicPartition("orders", 0): 1700, TopicPartition("orders", 11): 90}


def flips(data: bytes) -> Iterator[bytes]:
    for place in range(len(data)):
        for bit in range(8):
            yield data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def test_meta_properties_with_a_changed_bit_are_refused_or_have_the_same_content() -> None:
    data = META.file(NOW_MS)
    assert checkpoints.read_meta_properties(data, "d") == META
    refused = 0
    for changed in flips(data):
        try:
            found = checkpoints.read_meta_properties(changed, "d")
        except DirectoryRefused as error:
            refused += 1
            assert "move the file away and start again: the file is created again, and the logs are kept" in str(error)
        else:
            assert found == META
    assert refused > 8 * 100


def test_meta_properties_of_kafka_have_no_checksum_and_are_read() -> None:
    found = checkpoints.read_meta_properties(b"#\n#Thu Jan 1 00:00:00 UTC 1970\nversion=0\nbroker.id=7\ncluster.id=c\n", "d")
    assert (found.broker_id, found.cluster_id) == (7, "c")


def test_start_offsets_with_a_changed_bit_are_ignored_or_have_the_same_content() -> None:
    data = checkpoints.offsets_file(STARTS, has_checksum=True)
    assert checkpoints.read_offsets(data) == STARTS
    for changed in flips(data):
        found = checkpoints.read_offsets(changed)
        # Where the name of the checksum's row was changed, it is the row of a partition that does not exist.
        assert found is None or {one: offset for one, offset in found.items() if one.topic == "orders"} == STARTS


def test_a_directory_whose_damaged_meta_properties_were_moved_away_keeps_its_logs() -> None:
    disk = SimDisk()
    directory = opened(disk)
    directory.create(ORDERS, TOPIC_ID, options(), NOW_MS)
    directory.close()
    data = disk.read_file("meta.properties")
    disk.replace_file("meta.properties", data.replace(b"version=0", b"version=1"))
    with pytest.raises(DirectoryRefused, match="is damaged or was edited"):
        opened(disk)
    disk.unlink("meta.properties")
    assert list(opened(disk).logs) == [ORDERS]


@pytest.mark.parametrize("codec", range(8))
def test_a_log_opens_when_damage_made_a_control_batch_of_an_old_batch(codec: int) -> None:
    """Producer state is read from headers; what they say of the payload is not to be believed before the checksum is."""
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, TOPIC_ID, options(internal_segment_bytes=400), NOW_MS)
    for number in range(8):
        append(log, 3, producer_id=7, base_sequence=3 * number)
    assert directory.close()
    for bit in (0, 1, 2, 5):
        # The bits of the codec, and the one of a control batch.
        if bit == 5 or codec >> bit & 1:
            disk.flip_bit("orders-0/00000000000000000000.log", ATTRIBUTES_AT + 1, bit)
    for name in disk.listdir("orders-0"):
        if name.endswith(".snapshot"):
            disk.unlink(f"orders-0/{name}")
    assert reopened(disk).end_offset == log.end_offset

"""Producer snapshots: the state of all producers before the offset in the file name.

Source: Kafka's ProducerSnapshot, version 1.

offset  size  field
0       2     version: 1
2       4     CRC-32C of 6..end
6       4     count of producers
10      46 each:
  0       8     producer id
  8       2     epoch
  10      4     last sequence; -1 without a batch
  14      8     last offset; -1 without a batch
  22      4     offset delta of the last batch
  26      8     timestamp of the last batch or marker
  34      4     coordinator epoch; -1 without a marker
  38      8     first offset of the open transaction; -1 without one
"""

from errno import ENOSPC
from struct import Struct

from ottla.base.ports import Disk, File
from ottla.log.filenames import SNAPSHOT, segment_name
from ottla.log.producer_state import NO_SEQUENCE, PastBatch, Producer
from ottla.records.checksum import crc32c

_HEAD = Struct(">hIi")
_CHECKED_FROM = 6
_ENTRY = Struct(">qhiqiqiq")
_VERSION = 1
_NO_BATCH = PastBatch(NO_SEQUENCE, -1, 0, -1)


def snapshot_file(producers: dict[int, Producer]) -> bytes:
    """Content of a snapshot."""
    data = bytearray(_HEAD.pack(_VERSION, 0, len(producers)))
    for producer_id, producer in producers.items():
        batches = producer.batches
        last = batches[-1] if batches else _NO_BATCH
        data += _ENTRY.pack(
            producer_id, producer.epoch, last.last_sequence, last.last_offset, last.offset_delta,
            producer.timestamp_ms, producer.coordinator_epoch, producer.transaction_from,
        )  # fmt: skip
    _HEAD.pack_into(data, 0, _VERSION, crc32c(data, _CHECKED_FROM, len(data)), len(producers))
    return bytes(data)


def read_snapshot(data: bytes, now_ms: int) -> dict[int, Producer] | None:
    """Producers by id, last used now; None when the file is torn or not a snapshot."""
    if len(data) < _HEAD.size:
        return None
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION or len(data) != _HEAD.size + count * _ENTRY.size or crc != crc32c(data, _CHECKED_FROM, len(data)):
        return None
    producers = {}
    for producer_id, epoch, sequence, offset, delta, timestamp_ms, coordinator_epoch, first in _ENTRY.iter_unpack(data[_HEAD.size :]):
        producer = producers[producer_id] = Producer(epoch, coordinator_epoch, timestamp_ms, first, now_ms)
        if offset >= 0:
            producer.remember(PastBatch(sequence, offset, delta, timestamp_ms))
    return producers


def write_snapshot(disk: Disk, directory: str, offset: int, producers: dict[int, Producer]) -> File | None:
    """Writes the snapshot for ``offset``, unsynced: its CRC detects a torn one.

    None when the disk is full; the snapshot is optional.
    """
    path = f"{directory}/{segment_name(offset, SNAPSHOT)}"
    try:
        file = disk.open(path, create=True)
        file.truncate(0)
        file.append(snapshot_file(producers))
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        disk.unlink(path)
        return None
    return file

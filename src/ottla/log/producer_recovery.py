"""Rebuilds producer state from the newest valid snapshot and the headers of all later batches."""

from contextlib import suppress

from ottla.base.ids import NO_OFFSET, Offset
from ottla.base.units import MiB
from ottla.log.batch_scan import headers, headers_in_chunks
from ottla.log.errors import CorruptLog
from ottla.log.filenames import SNAPSHOT, offset_of, segment_name
from ottla.log.producer_snapshots import read_snapshot
from ottla.log.producer_state import BATCHES_KEPT, NO_SEQUENCE, PastBatch, Producers
from ottla.log.segment import Segment
from ottla.log.state import LogState
from ottla.records.batch import BatchHeader, crc_ok
from ottla.records.checksum import Buffer
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, control_record

#: Bytes before the end that a start reads again for the four older batches of each producer, which snapshots omit: about what a few
#: producers have in flight. An older batch that is repeated after a restart is out of order, as in Kafka.
REFILL_BYTES = 2 * MiB


def snapshot_offsets(names: list[str]) -> list[int]:
    """Offsets of the snapshots among the file names, in order."""
    offsets = [offset_of(name) for name in names if name.endswith(SNAPSHOT)]
    return sorted(offset for offset in offsets if offset is not None)


def rebuild_producers(log: LogState, upto: int, now_ms: int, *, names: list[str] | None = None) -> None:
    """Restores the producer state at offset ``upto``, where a batch begins. Removes later snapshots.

    ``names``: the files of the partition's directory, if already listed.
    """
    producers = log.producers
    producers.restore({}, log.bases[0])
    producers.snapshot_offset = NO_OFFSET
    for offset in reversed(snapshot_offsets(log.disk.listdir(log.directory) if names is None else names)):
        path = f"{log.directory}/{segment_name(offset, SNAPSHOT)}"
        snapshot = read_snapshot(log.disk.read_file(path), now_ms) if offset <= upto else None
        if snapshot is None:
            log.disk.unlink(path)
            continue
        if offset >= log.bases[0]:
            producers.restore(snapshot, offset)
            producers.snapshot_offset = Offset(offset)
            if snapshot:
                with suppress(CorruptLog):
                    _refill(log, offset)
        break
    if producers.end_offset < upto:
        _replay(log, producers.end_offset, upto, now_ms)
    producers.end_offset = Offset(upto)


def _replay(log: LogState, first: int, upto: int, now_ms: int) -> None:
    for index in range(log.segment_of(first), len(log.segments)):
        segment = log.segments[index]
        if segment.base_offset >= upto:
            return
        with suppress(CorruptLog):  # Readers of an old segment report its damage; it must not prevent the log from opening.
            _replay_segment(log, segment, first, upto, now_ms)


def _replay_segment(log: LogState, segment: Segment, first: int, upto: int, now_ms: int) -> None:
    position = segment.position_of(first) if first > segment.base_offset else 0
    # Markers are small, and there may be as many of them as of other batches: they are taken from the chunks that were read for headers.
    for at, header, chunk, inside in headers_in_chunks(segment.file, segment.size if position is None else position, segment.size):
        if header.base_offset >= upto:
            return
        if header.has_producer:
            if header.is_control and inside + header.size > len(chunk):
                chunk, inside = segment.file.read(at, header.size), 0
            if header.is_control and not crc_ok(chunk, inside):
                # A data batch that damage turned into a control batch. The scrub reports it.
                continue
            note_batch(log.producers, header, chunk, inside, now_ms, None)


def note_batch(producers: Producers, header: BatchHeader, buffer: Buffer, position: int, now_ms: int, segment: Segment | None) -> None:
    """Applies a batch of the log; adds an abort to the transaction index of ``segment``, if given.

    ``buffer`` has the batch at ``position`` if it is a control batch.
    """
    if not header.is_control:
        producers.data_appended(header, header.base_offset, now_ms)
        return
    control = control_record(buffer, position)
    if control is None or control.kind not in (ABORT_MARKER, COMMIT_MARKER):
        return
    aborted = producers.marker_appended(
        header,
        header.base_offset,
        commit=control.kind == COMMIT_MARKER,
        coordinator_epoch=control.coordinator_epoch,
        timestamp_ms=header.max_timestamp,
        now_ms=now_ms,
    )
    if aborted is not None and segment is not None:
        segment.note_aborted(aborted)


def _refill(log: LogState, end_offset: int) -> None:
    """Adds older batches to the producers of a snapshot, so that duplicates of several batches are detected after a restart."""
    past: dict[int, list[PastBatch]] = {}
    for segment, position in _last_bytes(log, end_offset):
        for _, header in headers(segment.file, position, segment.size):
            if header.base_offset >= end_offset:
                break
            producer = log.producers.by_id.get(header.producer_id)
            if producer is None or header.is_control or header.producer_epoch != producer.epoch or header.base_sequence == NO_SEQUENCE:
                continue
            batch = PastBatch(header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)
            past.setdefault(header.producer_id, []).append(batch)
    for producer_id, batches in past.items():
        producer = log.producers.by_id[producer_id]
        known = producer.batches
        if known and batches[-1].last_offset == known[-1].last_offset:
            producer.replace_batches(batches[-BATCHES_KEPT:])


def _last_bytes(log: LogState, end_offset: int) -> list[tuple[Segment, int]]:
    """Start position in each segment, oldest first, for about ``REFILL_BYTES`` before ``end_offset``."""
    places: list[tuple[Segment, int]] = []
    left = REFILL_BYTES
    index = log.segment_of(end_offset - 1)
    found = log.segments[index].header_of(end_offset - 1)
    end = found[0] + found[1].size if found else 0
    while True:
        segment = log.segments[index]
        bound = max(end - left, 0)
        entry = segment.offsets.lookup(bound, by_value=True) if bound else None
        places.append((segment, entry[1] if entry else 0))
        left -= end
        if left <= 0 or index == 0:
            return places[::-1]
        index -= 1
        end = log.segments[index].size

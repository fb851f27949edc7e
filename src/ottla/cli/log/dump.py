"""`ottla log dump` and `verify`: read the files of a log directory from disk.

File names are Kafka's (`ottla.log.filenames`). For a directory, all its files are read. Files are opened read-only and without a lock, so a
running broker is not disturbed. Records that it appends meanwhile may be missing, and the last batch may be incomplete.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import click

from ottla.base.ids import topic_id_text
from ottla.cli.common import tables
from ottla.cli.common.errors import json_bytes, reporting_errors
from ottla.cli.common.lazy import CommandGroup
from ottla.cli.common.output_formats import OutputFormat, fields, note, output_option
from ottla.cli.common.paths import LocalPath
from ottla.cli.log import index_check
from ottla.log import filenames
from ottla.log.transaction_index import read_entries

Row = dict[str, Any]
OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")
#: Topics whose records are decoded.
COORDINATOR_TOPICS = ("__consumer_offsets", "__transaction_state")
ENTRY = {
    "file": "file of the entry",
    "damage": "kind of damage; only if there is one",
    "offset": "of a batch: base offset; of a record, index entry or checkpoint entry: offset",
    "last": "last offset of a batch",
    "count": "number of records of a batch",
    "position": "position in the file, in bytes",
    "size": "size of a batch in bytes",
    "epoch": "leader epoch",
    "codec": "compression codec",
    "timestamp": "of a batch: base timestamp; of a time index: largest timestamp of the batch",
    "max_timestamp": "largest timestamp of a batch",
    "timestamp_type": "CreateTime or LogAppendTime",
    "producer": "producer id",
    "producer_epoch": "producer epoch",
    "sequence": "sequence number of the first record",
    "last_sequence": "sequence number of the last record",
    "transactional": "whether the batch belongs to a transaction",
    "control": "whether the batch is a control batch",
    "crc": "stored checksum, in hexadecimal",
    "tail": "incomplete batch at the end, which a broker may be writing",
    "bytes": "size of the tail or of the damage in bytes",
    "record": "true: a record of the previous batch",
    "key": "key: text, or {base64} for other bytes",
    "value": "value, like the key",
    "headers": "headers: pairs of name and value",
    "type": "type of a record of __consumer_offsets or __transaction_state; its fields are in key and value",
    "marker": "commit or abort",
    "coordinator_epoch": "epoch of the coordinator that wrote the marker",
    "first": "first offset of an aborted transaction",
    "last_stable": "last stable offset when the transaction ended",
    "last_offset": "last offset of a producer",
    "transaction_from": "first offset of a producer's open transaction",
    "topic": "topic of a checkpoint entry",
    "partition": "partition of a checkpoint entry",
    "topic_id": "topic id of partition.metadata",
    "clean": "whether the broker shut down cleanly",
    "broker_epoch": "broker epoch at that shutdown",
}


@click.group(name="log", cls=CommandGroup)
def command() -> None:
    """Dump and verify files of a log directory."""


@fields(ENTRY)
@command.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=LocalPath(exists=True, path_type=Path))
@click.option("--deep", is_flag=True, help="Print the records of each batch; those of __consumer_offsets and __transaction_state decoded.")
@click.option("--verify", is_flag=True, help="For indexes print only the entries that contradict the log file.")
@click.option("-n", "--max", "limit", type=click.IntRange(min=0), help="Maximum number of entries per file.")
@click.option("--max-bytes", type=click.IntRange(min=1), metavar="N", help="Read at most N bytes of each log file.")
@output_option
def dump(paths: tuple[Path, ...], deep: bool, verify: bool, limit: int | None, max_bytes: int | None, output: OutputFormat) -> None:
    """Print the entries of log files, or of all in directories.

    Files are segments, indexes, snapshots and checkpoints.

    json prints a line per entry, yaml a document. Exit code 1 if something is damaged.
    """
    damaged = False
    options = DumpOptions(deep, verify, max_bytes)
    with reporting_errors():
        files = [file for path in paths for file in (_readable_files(path) if path.is_dir() else [path])]
        for file in files:
            reader = reader_for(file, options)
            if reader is None:
                raise click.ClickException(f"{file}: unknown file name; expected a file of a log directory")
            if not output.is_structured and len(files) > 1:
                print(f"== {file}")
            damaged |= _show(file, reader(), limit, output)
    sys.stdout.flush()
    if damaged:
        raise SystemExit(1)


VERIFIED = {
    "file": "log file of the segment",
    "topic": "topic",
    "partition": "partition",
    "batches": "number of valid batches",
    "bytes": "size of the valid batches in bytes",
    "size": "size of the file in bytes",
    "first_offset": "first damaged offset; this and the following fields only if there is damage",
    "last_offset": "last damaged offset",
    "position": "position of the damage in the file, in bytes",
    "damaged_bytes": "size of the damage in bytes",
    "damage": "kind of damage",
}


@fields(VERIFIED)
@command.command()
@click.argument("paths", nargs=-1, required=True, metavar="DIR...", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--live", is_flag=True, help="Allow a running broker: skip data above its recovery points.")
@output_option
def verify(paths: tuple[Path, ...], live: bool, output: OutputFormat) -> None:
    """Check checksums, offsets, epochs and indexes of logs. DIR is a data directory, a log directory or a partition's directory.

    Changes and locks nothing. json prints a line per segment, yaml a document. Exit code 1 if something is damaged.
    """
    from ottla.cli.log import scrub

    damages = segments = read_bytes = 0
    with reporting_errors():
        directories = [one for path in paths for directory in scrub.log_directories(path) for one in scrub.partitions(directory)]
        if not directories:
            raise click.ClickException(f"{paths[0]}: contains no log of a partition")
        seen: set[str] = set()
        for directory in directories:
            for row in scrub.verified(directory, live=live):
                damages += "damage" in row
                if row["file"] not in seen:
                    seen.add(row["file"])
                    segments, read_bytes = segments + 1, read_bytes + row["bytes"]
                if output.is_structured:
                    output.document(row, of_many=True)
                elif "damage" in row:
                    print(_line({name: value for name, value in row.items() if name not in ("batches", "bytes", "size")}))
    sys.stdout.flush()
    if not output.is_structured:
        result = f"{damages or 'no'} damage{'s' if damages > 1 else ''}"
        note(f"{segments} segments of {len(directories)} partitions, {read_bytes} bytes: {result}")
    if damages:
        raise SystemExit(1)


class DumpOptions(NamedTuple):
    """Options of `ottla log dump`."""

    deep: bool = False
    verify: bool = False
    bytes_max: int | None = None


def _readable_files(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.iterdir()) if path.is_file() and reader_for(path, DumpOptions()) is not None]


def _show(file: Path, rows: Iterable[Row], limit: int | None, output: OutputFormat) -> bool:
    """Prints rows; returns whether one has damage."""
    damaged = False
    shown = 0
    for row in rows:
        if limit is not None and shown >= limit:
            break
        shown += "record" not in row
        damaged |= "damage" in row
        if output.is_structured:
            output.document({"file": str(file), **row}, of_many=True)
        else:
            print(_line(row))
    return damaged


def _line(row: Row) -> str:
    """`name value` pairs, tab-separated in a pipe; records are indented below their batch."""
    between = "  " if tables.is_terminal() else "\t"
    cells = [f"{name} {_cell(value)}" for name, value in row.items() if value is not None and name != "record"]
    return ("    " if "record" in row else "") + between.join(cells)


def _cell(value: object) -> object:
    if not isinstance(value, dict | list):
        return value
    import msgspec

    return msgspec.json.encode(value).decode()


def reader_for(path: Path, options: DumpOptions) -> Callable[[], Iterator[Row]] | None:
    """The reader for a file; None if its name is unknown."""
    name = path.name
    for suffix in (filenames.DELETED, filenames.SWAP, filenames.CLEANED):
        name = name.removesuffix(suffix)
    by_name: dict[str, Callable[[], Iterator[Row]]] = {
        filenames.LEADER_EPOCHS: lambda: _epochs(path),
        filenames.RECOVERY_POINTS: lambda: _offsets(path),
        filenames.LOG_STARTS: lambda: _offsets(path),
        filenames.HIGH_WATERMARKS: lambda: _offsets(path),
        filenames.PARTITION_METADATA: lambda: _partition_metadata(path),
        filenames.META_PROPERTIES: lambda: _meta_properties(path),
        filenames.CLEAN_SHUTDOWN: lambda: _clean_shutdown(path),
    }
    by_suffix: dict[str, Callable[[], Iterator[Row]]] = {
        filenames.LOG: lambda: _batches(path, options),
        filenames.OFFSET_INDEX: lambda: _index(path, _offset_index, index_check.misplaced, options),
        filenames.TIME_INDEX: lambda: _index(path, _time_index, index_check.mistimed, options),
        filenames.TXN_INDEX: lambda: _aborted(path),
        filenames.SNAPSHOT: lambda: _producers(path),
    }
    if filenames.offset_of(name) is None:
        return by_name.get(name)
    return by_suffix.get("." + name.rpartition(".")[2])


def _base_offset(path: Path) -> int:
    offset = filenames.offset_of(path.name)
    assert offset is not None, "reader_for checked the name"
    return offset


def _batches(path: Path, options: DumpOptions) -> Iterator[Row]:
    from ottla.records.batch import crc_ok, headers
    from ottla.records.errors import RecordsError

    size = path.stat().st_size
    read = size if options.bytes_max is None else min(size, options.bytes_max)
    if not read:
        return
    topic = path.absolute().parent.name.rpartition("-")[0]
    with path.open("rb") as file, mmap.mmap(file.fileno(), read, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
        end, before = 0, -1
        try:
            for position, header in headers(view):
                valid = crc_ok(view, position)
                row = _batch(header, position, valid)
                if header.base_offset <= before and "damage" not in row:
                    row["damage"] = f"base offset is not above the last offset {before} of the previous batch"
                yield row
                if options.deep and valid:
                    yield from _records(view, position, header, topic)
                end, before = position + header.size, header.last_offset
        except RecordsError as error:
            if read == size:
                yield {"damage": str(error), "position": end, "bytes": size - end}
            return
        if end < size and read == size:
            # Not damage: the broker may be appending.
            yield {"tail": "incomplete batch", "position": end, "bytes": size - end}


def _batch(header: Any, position: int, valid: bool) -> Row:
    from ottla.records.errors import RecordsError

    try:
        codec = header.codec.wire_name
    except RecordsError as error:
        codec = str(error)
    row: Row = {
        "offset": header.base_offset,
        "last": header.last_offset,
        "count": header.count,
        "position": position,
        "size": header.size,
        "epoch": header.leader_epoch,
        "codec": codec,
        "timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "LogAppendTime" if header.timestamp_type else "CreateTime",
    }
    if header.has_producer:
        row |= {"producer": header.producer_id, "producer_epoch": header.producer_epoch, "sequence": header.base_sequence}
        row |= {"last_sequence": header.last_sequence}
    if header.is_transactional:
        row["transactional"] = True
    if header.is_control:
        row["control"] = True
    row["crc"] = f"{header.crc & 0xFFFFFFFF:08x}"
    if not valid:
        row["damage"] = "checksum mismatch"
    return row


def _records(view: memoryview, position: int, header: Any, topic: str) -> Iterator[Row]:
    from ottla.records.errors import RecordsError
    from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, control_record, records

    try:
        if header.is_control:
            control = control_record(view, position)
            if control is not None:
                kind = {ABORT_MARKER: "abort", COMMIT_MARKER: "commit"}.get(control.kind, str(control.kind))
                yield {"record": True, "offset": header.base_offset, "marker": kind, "coordinator_epoch": control.coordinator_epoch}
            return
        for offset, timestamp, key, value, pairs in records(view, position):
            row: Row = {"record": True, "offset": offset, "timestamp": timestamp}
            row |= _coordinator_record(topic, key, value) or {"key": json_bytes(key), "value": json_bytes(value)}
            if pairs:
                row["headers"] = [[name, json_bytes(content)] for name, content in pairs]
            yield row
    except RecordsError as error:
        yield {"record": True, "damage": str(error)}


def _coordinator_record(topic: str, key: bytes | None, value: bytes | None) -> Row | None:
    """The fields of a record of a coordinator; None for other records."""
    if topic not in COORDINATOR_TOPICS:
        return None
    from ottla.server import coordinator_records

    found = coordinator_records.describe_record(topic, key, value)
    return None if found is None else {name: _readable(one) for name, one in found.items()}


def _readable(value: Any) -> Any:
    match value:
        case bytes():
            return json_bytes(value)
        case dict():
            return {name: _readable(one) for name, one in value.items()}
        case list():
            return [_readable(one) for one in value]
        case _:
            return value


def _index(
    path: Path,
    entries: Callable[[Path], Iterator[Row]],
    mismatches: Callable[[Iterable[Row], list[index_check.IndexedBatch]], Iterator[Row]],
    options: DumpOptions,
) -> Iterator[Row]:
    """All entries of an index, or with `verify` those that contradict its log file."""
    if not options.verify:
        return entries(path)
    return mismatches(entries(path), index_check.batches(index_check.log_of(path)))


def _entries(path: Path, entry: Struct) -> Iterator[tuple[int, ...]]:
    """The entries before the zeros of the preallocated space."""
    data = path.read_bytes()
    for values in entry.iter_unpack(data[: len(data) // entry.size * entry.size]):
        if not any(values):
            return
        yield values


def _offset_index(path: Path) -> Iterator[Row]:
    base = _base_offset(path)
    for relative, position in _entries(path, OFFSET_ENTRY):
        yield {"offset": base + relative, "position": position}


def _time_index(path: Path) -> Iterator[Row]:
    base = _base_offset(path)
    for timestamp, relative in _entries(path, TIME_ENTRY):
        yield {"timestamp": timestamp, "offset": base + relative}


def _aborted(path: Path) -> Iterator[Row]:
    entries = read_entries(path.read_bytes(), _base_offset(path))
    if entries is None:
        yield {"damage": "not a transaction index of this segment"}
    for one in entries or ():
        yield {"producer": one.producer_id, "first": one.first_offset, "last": one.last_offset, "last_stable": one.last_stable_offset}


def _producers(path: Path) -> Iterator[Row]:
    from ottla.log.producer_snapshots import read_snapshot

    snapshot = read_snapshot(path.read_bytes(), 0)
    if snapshot is None:
        yield {"damage": "not a complete producer snapshot"}
    for producer_id, one in (snapshot or {}).items():
        last = one.batches[-1] if one.batches else None
        yield {
            "producer": producer_id,
            "producer_epoch": one.epoch,
            "last_sequence": None if last is None else last.last_sequence,
            "last_offset": None if last is None else last.last_offset,
            "timestamp": one.timestamp_ms,
            "coordinator_epoch": one.coordinator_epoch,
            "transaction_from": one.transaction_from if one.transaction_from >= 0 else None,
        }


def _epochs(path: Path) -> Iterator[Row]:
    from ottla.log.checkpoints import read_epochs

    epochs = read_epochs(path.read_bytes())
    if epochs is None:
        yield {"damage": "not a leader epoch checkpoint"}
    for epoch, offset in epochs or ():
        yield {"epoch": epoch, "offset": offset}


def _offsets(path: Path) -> Iterator[Row]:
    from ottla.log.checkpoints import read_offsets

    offsets = read_offsets(path.read_bytes())
    if offsets is None:
        yield {"damage": "not an offset checkpoint"}
    for tp, offset in (offsets or {}).items():
        yield {"topic": tp.topic, "partition": tp.partition, "offset": offset}


def _partition_metadata(path: Path) -> Iterator[Row]:
    from ottla.log.checkpoints import read_partition_metadata

    topic_id = read_partition_metadata(path.read_bytes())
    yield {"damage": "not partition.metadata"} if topic_id is None else {"topic_id": topic_id_text(topic_id)}


def _meta_properties(path: Path) -> Iterator[Row]:
    for line in path.read_text(errors="replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield {name.strip(): value.strip()}


def _clean_shutdown(path: Path) -> Iterator[Row]:
    from ottla.log.checkpoints import read_clean_shutdown

    epoch, _ = read_clean_shutdown(path.read_bytes())
    yield {"clean": True, "broker_epoch": epoch if epoch >= 0 else None}

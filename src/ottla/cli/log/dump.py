"""`ottla log dump` and `verify`: what stands in the files of a log directory, read straight from the disk.

File names are Kafka's (`ottla.log.filenames`). A directory means all files in it. Files are opened read-only and without a lock, so a
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

from ottla.cli.common import tables
from ottla.cli.common.errors import json_bytes, told
from ottla.cli.common.lazy import Commands
from ottla.cli.common.output_formats import Form, fields, note, output_option
from ottla.cli.common.paths import LocalPath
from ottla.cli.log import index_check
from ottla.log import filenames

Row = dict[str, Any]
OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")


#: Of which topic the directory of a partition is.
OF_OFFSETS = "__consumer_offsets-"
ENTRY = {
    "file": "where it stands",
    "damage": "what is wrong; only where something is",
    "offset": "of a batch or record: its first; of an index: what it points to; of a checkpoint: a partition's",
    "last": "a batch's last offset",
    "count": "its records",
    "position": "where it begins in the file",
    "size": "its bytes",
    "epoch": "the leader epoch",
    "codec": "how it is compressed",
    "timestamp": "of a batch: its first; of an index: what is looked for",
    "max_timestamp": "the largest of a batch",
    "timestamp_type": "CreateTime or LogAppendTime",
    "producer": "the id of an idempotent producer",
    "producer_epoch": "its epoch",
    "sequence": "the number of its first record",
    "last_sequence": "of its last one",
    "transactional": "whether it belongs to a transaction",
    "control": "whether it is a marker",
    "crc": "the checksum that is written, in hexadecimal",
    "tail": "what follows the last whole batch, which a broker may be writing",
    "bytes": "how much of it or of damage there is",
    "record": "true: this is a record of the batch before",
    "key": "its key, with text as it is and {base64} for other bytes",
    "value": "its value",
    "headers": "its headers, pairs of name and value",
    "type": "of a record of __consumer_offsets: which one; key and value are its fields then",
    "marker": "commit or abort",
    "coordinator_epoch": "who wrote the marker",
    "first": "an aborted transaction's first offset",
    "last_stable": "the last stable offset when it ended",
    "last_offset": "the last that a producer wrote",
    "transaction_from": "where its open transaction begins",
    "topic": "in a checkpoint",
    "partition": "in a checkpoint",
    "topic_id": "in partition.metadata",
    "clean": "the broker stopped in order",
    "broker_epoch": "its epoch then",
}


@click.group(name="log", cls=Commands)
def command() -> None:
    """Look into the files of a log directory."""


@fields(ENTRY)
@command.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=LocalPath(exists=True, path_type=Path))
@click.option("--deep", is_flag=True, help="Show the records in each batch; those of __consumer_offsets field by field.")
@click.option("--verify", is_flag=True, help="Of indexes show only the entries that do not fit the log beside them.")
@click.option("-n", "--max", "limit", type=click.IntRange(min=0), help="Show at most so many entries of each file.")
@click.option("--max-bytes", type=click.IntRange(min=1), metavar="N", help="Read only so many bytes of each log file.")
@output_option
def dump(paths: tuple[Path, ...], deep: bool, verify: bool, limit: int | None, max_bytes: int | None, output: Form) -> None:
    """Print what is in log files, indexes, snapshots and checkpoints; of directories what is in their files.

    json is a line per entry, yaml a document. Exit code 1 when something in them is damaged.
    """
    damaged = False
    wish = Wish(deep, verify, max_bytes)
    with told():
        files = [file for path in paths for file in (_known(path) if path.is_dir() else [path])]
        for file in files:
            reader = reader_for(file, wish)
            if reader is None:
                raise click.ClickException(f"{file}: not a file of a log directory, as far as its name tells")
            if not output.for_programs and len(files) > 1:
                print(f"== {file}")
            damaged |= _show(file, reader(), limit, output)
    sys.stdout.flush()
    if damaged:
        raise SystemExit(1)


VERIFIED = {
    "file": "the segment",
    "topic": "its topic",
    "partition": "its partition",
    "batches": "sound batches",
    "bytes": "their bytes",
    "size": "bytes of the file",
    "first_offset": "the first damaged offset; only where something is damaged, as are the next",
    "last_offset": "the last one",
    "position": "where the damage begins in the file",
    "damaged_bytes": "how long it is",
    "damage": "what is wrong",
}


@fields(VERIFIED)
@command.command()
@click.argument("paths", nargs=-1, required=True, metavar="DIR...", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--live", is_flag=True, help="A broker may be running there: leave out what it has not recorded as on disk yet.")
@output_option
def verify(paths: tuple[Path, ...], live: bool, output: Form) -> None:
    """Compare logs with their checksums, offsets, epochs and indexes. DIR is a data directory, a log directory, or that of a partition.

    Nothing is changed or locked. json is a line per segment, yaml a document. Exit code 1 when something is damaged.
    """
    from ottla.cli.log import scrub

    damages = segments = read_bytes = 0
    with told():
        directories = [one for path in paths for directory in scrub.log_directories(path) for one in scrub.partitions(directory)]
        if not directories:
            raise click.ClickException(f"{paths[0]}: no log of a partition is in it")
        seen: set[str] = set()
        for directory in directories:
            for row in scrub.verified(directory, live=live):
                damages += "damage" in row
                if row["file"] not in seen:
                    seen.add(row["file"])
                    segments, read_bytes = segments + 1, read_bytes + row["bytes"]
                if output.for_programs:
                    output.document(row, of_many=True)
                elif "damage" in row:
                    print(_line({name: value for name, value in row.items() if name not in ("batches", "bytes", "size")}))
    sys.stdout.flush()
    if not output.for_programs:
        found = f"{damages or 'no'} damage{'s' if damages > 1 else ''}"
        note(f"{segments} segments of {len(directories)} partitions, {read_bytes} bytes: {found}")
    if damages:
        raise SystemExit(1)


class Wish(NamedTuple):
    """How a file is to be read."""

    deep: bool = False
    verify: bool = False
    bytes_max: int | None = None


def _known(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.iterdir()) if path.is_file() and reader_for(path, Wish()) is not None]


def _show(file: Path, rows: Iterable[Row], limit: int | None, output: Form) -> bool:
    """Print rows as they come; True when one of them tells of damage."""
    damaged = False
    shown = 0
    for row in rows:
        if limit is not None and shown >= limit:
            break
        shown += "record" not in row
        damaged |= "damage" in row
        if output.for_programs:
            output.document({"file": str(file), **row}, of_many=True)
        else:
            print(_line(row))
    return damaged


def _line(row: Row) -> str:
    """`name value` pairs for a person, tab-separated in a pipe; records are indented below their batch."""
    between = "  " if tables.is_terminal() else "\t"
    cells = [f"{name} {_cell(value)}" for name, value in row.items() if value is not None and name != "record"]
    return ("    " if "record" in row else "") + between.join(cells)


def _cell(value: object) -> object:
    if not isinstance(value, dict | list):
        return value
    import msgspec

    return msgspec.json.encode(value).decode()


def reader_for(path: Path, wish: Wish) -> Callable[[], Iterator[Row]] | None:
    """How to read this file; None when its name says nothing."""
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
        filenames.LOG: lambda: _batches(path, wish),
        filenames.OFFSET_INDEX: lambda: _index(path, _offset_index, index_check.misplaced, wish),
        filenames.TIME_INDEX: lambda: _index(path, _time_index, index_check.mistimed, wish),
        filenames.TXN_INDEX: lambda: _aborted(path),
        filenames.SNAPSHOT: lambda: _producers(path),
    }
    if filenames.offset_of(name) is None:
        return by_name.get(name)
    return by_suffix.get("." + name.rpartition(".")[2])


def _base_offset(path: Path) -> int:
    found = filenames.offset_of(path.name)
    assert found is not None, "the name was looked at before"
    return found


# -- batches


def _batches(path: Path, wish: Wish) -> Iterator[Row]:
    from ottla.records.batch import crc_ok, headers
    from ottla.records.errors import RecordsError

    size = path.stat().st_size
    read = size if wish.bytes_max is None else min(size, wish.bytes_max)
    if not read:
        return
    of_offsets = path.absolute().parent.name.startswith(OF_OFFSETS)
    with path.open("rb") as file, mmap.mmap(file.fileno(), read, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
        end, before = 0, -1
        try:
            for position, header in headers(view):
                sound = crc_ok(view, position)
                row = _batch(header, position, sound)
                if header.base_offset <= before and "damage" not in row:
                    row["damage"] = f"begins at an offset that was there before: the batch before ends at {before}"
                yield row
                if wish.deep and sound:
                    yield from _records(view, position, header, of_offsets)
                end, before = position + header.size, header.last_offset
        except RecordsError as error:
            if read == size:
                yield {"damage": str(error), "position": end, "bytes": size - end}
            return
        if end < size and read == size:
            # A live log may be in the middle of an append, so this alone is no damage.
            yield {"tail": "no whole batch", "position": end, "bytes": size - end}


def _batch(header: Any, position: int, sound: bool) -> Row:
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
    if not sound:
        row["damage"] = "checksum does not fit"
    return row


def _records(view: memoryview, position: int, header: Any, of_offsets: bool) -> Iterator[Row]:
    from ottla.records.errors import RecordsError
    from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, control_record, records

    try:
        if header.is_control:
            found = control_record(view, position)
            if found is not None:
                kind = {ABORT_MARKER: "abort", COMMIT_MARKER: "commit"}.get(found.kind, str(found.kind))
                yield {"record": True, "offset": header.base_offset, "marker": kind, "coordinator_epoch": found.coordinator_epoch}
            return
        for offset, timestamp, key, value, pairs in records(view, position):
            row: Row = {"record": True, "offset": offset, "timestamp": timestamp}
            row |= (_of_group(key, value) if of_offsets else None) or {"key": json_bytes(key), "value": json_bytes(value)}
            if pairs:
                row["headers"] = [[name, json_bytes(content)] for name, content in pairs]
            yield row
    except RecordsError as error:
        yield {"record": True, "damage": str(error)}


def _of_group(key: bytes | None, value: bytes | None) -> Row | None:
    """What a coordinator of groups wrote; None for anything else."""
    from ottla.server import coordinator_records

    found = coordinator_records.describe_record(key, value)
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


# -- the files beside


def _index(
    path: Path,
    entries: Callable[[Path], Iterator[Row]],
    unfit: Callable[[Iterable[Row], list[index_check.Batch]], Iterator[Row]],
    wish: Wish,
) -> Iterator[Row]:
    """All entries of an index, or those that do not fit the log beside it."""
    if not wish.verify:
        return entries(path)
    return unfit(entries(path), index_check.batches(index_check.beside(path)))


def _entries(path: Path, entry: Struct) -> Iterator[tuple[int, ...]]:
    """Entries up to the zeros that preallocation leaves behind them."""
    data = path.read_bytes()
    for found in entry.iter_unpack(data[: len(data) // entry.size * entry.size]):
        if not any(found):
            return
        yield found


def _offset_index(path: Path) -> Iterator[Row]:
    base = _base_offset(path)
    for relative, position in _entries(path, OFFSET_ENTRY):
        yield {"offset": base + relative, "position": position}


def _time_index(path: Path) -> Iterator[Row]:
    base = _base_offset(path)
    for timestamp, relative in _entries(path, TIME_ENTRY):
        yield {"timestamp": timestamp, "offset": base + relative}


def _aborted(path: Path) -> Iterator[Row]:
    from ottla.log.transaction_index import read_entries

    found = read_entries(path.read_bytes(), _base_offset(path))
    if found is None:
        yield {"damage": "not a transaction index of this segment"}
    for one in found or ():
        yield {"producer": one.producer_id, "first": one.first_offset, "last": one.last_offset, "last_stable": one.last_stable_offset}


def _producers(path: Path) -> Iterator[Row]:
    from ottla.log.producer_snapshots import read_snapshot

    found = read_snapshot(path.read_bytes(), 0)
    if found is None:
        yield {"damage": "not a producer snapshot, or torn"}
    for producer_id, one in (found or {}).items():
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

    found = read_epochs(path.read_bytes())
    if found is None:
        yield {"damage": "not a leader epoch checkpoint"}
    for epoch, offset in found or ():
        yield {"epoch": epoch, "offset": offset}


def _offsets(path: Path) -> Iterator[Row]:
    from ottla.log.checkpoints import read_offsets

    found = read_offsets(path.read_bytes())
    if found is None:
        yield {"damage": "not an offset checkpoint"}
    for tp, offset in (found or {}).items():
        yield {"topic": tp.topic, "partition": tp.partition, "offset": offset}


def _partition_metadata(path: Path) -> Iterator[Row]:
    from ottla.base.ids import topic_id_text
    from ottla.log.checkpoints import read_partition_metadata

    found = read_partition_metadata(path.read_bytes())
    yield {"damage": "not partition.metadata"} if found is None else {"topic_id": topic_id_text(found)}


def _meta_properties(path: Path) -> Iterator[Row]:
    for line in path.read_text(errors="replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield {name.strip(): value.strip()}


def _clean_shutdown(path: Path) -> Iterator[Row]:
    from ottla.log.checkpoints import read_clean_shutdown

    epoch, _ = read_clean_shutdown(path.read_bytes())
    yield {"clean": True, "broker_epoch": epoch if epoch >= 0 else None}

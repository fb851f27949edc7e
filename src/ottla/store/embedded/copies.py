"""Copies of the embedded store, which the server keeps beside it, and restoring one.

::

    ottla-store.sqlite                              the store
    ottla-store.sqlite-copy-<20 digits: zxid>       a copy in the same format, with the state after transaction zxid; the newest two are
    kept ottla-store.sqlite-damaged-<UTC time>           what a restore replaced, with …-wal and …-last if there were such files

A copy is made from the nodes in memory, so damage in the store's file does not reach it. It is synced before it gets its name.

A restored older state must not assign numbers a second time: transaction numbers (which are broker epochs), leader epochs, the controller
epoch, producer ids. ``advanced`` increases them by the number of lost transactions, since each number takes at least one transaction.

The same applies to the store itself if its note (``…-last``) is missing or unreadable. Then nothing proves that the file has the last
transactions: SQLite ignores a write-ahead log whose header is damaged. A store that is older than a copy is refused. Any other one is
opened and advanced by ``LOST_UNKNOWN``. The advanced state is copied at once, so that the next restore starts from it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ottla.base.ids import LeaderEpoch, ProducerId
from ottla.store import layout
from ottla.store.embedded.file import (
    FORMAT,
    Contents,
    Last,
    Row,
    StoreDamaged,
    StoreFileError,
    check_last,
    last_file,
    last_path,
    read_contents,
    read_last,
    sync,
    wal_path,
    write_new,
)

COPIES_KEPT = 2
#: How far an older state is advanced if the number of lost transactions is unknown.
LOST_UNKNOWN = 10_000
#: Producer ids per block that the controller assigns.
BLOCK_IDS = 1000
NEW = "-new"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A valid state to which a damaged store can be restored."""

    path: Path
    contents: Contents
    #: Time of the copy in seconds since 1970; None for the store's own file, whose last complete transaction has no time.
    made_s: float | None
    #: Number of lost transactions after it; None if unknown.
    lost: int | None


def copy_paths(path: Path) -> list[Path]:
    """The copies of a store, newest first by name."""
    with contextlib.suppress(OSError):
        return sorted((one for one in path.parent.iterdir() if _is_copy(one.name, path.name)), reverse=True)
    return []


def _is_copy(name: str, store: str) -> bool:
    return re.fullmatch(re.escape(store) + r"-copy-\d{20}", name) is not None


def copy_path(path: Path, zxid: int) -> Path:
    return path.with_name(f"{path.name}-copy-{zxid:020}")


def write_copy(path: Path, contents: Contents) -> Path:
    """Makes a copy, and removes all but the newest ones. If it raises, the old ones are unchanged.

    Raises: sqlite3.Error, OSError, StoreFileError.
    """
    contents = replace(contents, format=FORMAT)
    made = copy_path(path, contents.zxid)
    unnamed = made.with_name(made.name + NEW)
    try:
        write_new(unnamed, contents)
        written = read_contents(unnamed)
        if written is None or written.last != contents.last:
            raise StoreFileError(f"a copy of the coordination store {path} is not what was written")
        os.replace(unnamed, made)
    finally:
        unnamed.unlink(missing_ok=True)
    sync(path.parent)
    for old in copy_paths(path)[COPIES_KEPT:]:
        old.unlink(missing_ok=True)
    return made


def read_store(path: Path) -> Contents | None:
    """The contents of a store after all checks, including the files beside it; None for a new store.

    Raises: StoreFileError, StoreDamaged.
    """
    beside = [one for one in (last_path(path), *copy_paths(path)) if one.exists()]
    if not os.path.lexists(path):
        if beside or wal_path(path).exists():
            raise StoreDamaged(path, "the file is missing")
        return None
    contents = read_contents(path)
    if contents is None:
        if beside:
            raise StoreDamaged(path, "it is empty")
        return None
    check_last(path, contents)
    newest = newest_known(path)
    if newest > contents.zxid:
        raise StoreDamaged(path, f"it ends with transaction {contents.zxid}, and {copy_path(path, newest).name} has transaction {newest}")
    return contents


def newest_known(path: Path) -> int:
    """The last transaction of a store according to its note or the name of a copy; 0 without either."""
    noted = read_last(path)
    copies = copy_paths(path)[:1]
    return max([noted.zxid if noted else 0, *(int(copy.name.rpartition("-")[2]) for copy in copies)])


def doubt(path: Path) -> str | None:
    """Why a valid store may lack its last transactions; None if its note proves that it has them, and for a new store."""
    if read_last(path) is not None:
        return None
    if os.path.lexists(last_path(path)):
        return f"{last_path(path)} cannot be read"
    return f"{last_path(path)} is missing" if copy_paths(path) else None


def candidates(path: Path) -> list[Candidate]:
    """All valid states of a store, newest first: its own file as far as it is complete, and the copies."""
    found = [*_whole(path, is_copy=False), *(one for copy in copy_paths(path) for one in _whole(copy, is_copy=True))]
    ordered = sorted(found, key=lambda one: one.contents.zxid, reverse=True)
    return [replace(one, lost=lost_after(path, one.contents)) for one in ordered]


def lost_after(path: Path, contents: Contents) -> int | None:
    """Number of transactions after these contents; None if unknown, because the store has no readable note."""
    return None if read_last(path) is None else max(newest_known(path) - contents.zxid, 0)


def _whole(path: Path, *, is_copy: bool) -> Iterator[Candidate]:
    with contextlib.suppress(StoreFileError):
        contents = read_contents(path)
        if contents is not None:
            yield Candidate(path, contents, path.stat().st_mtime if is_copy else None, None)


def remedy(path: Path, data_dir: Path, *, now_s: float) -> str:
    """The remedy for an unusable store, in one or two sentences."""
    command = f"ottla store restore --data-dir {data_dir}"
    found = candidates(path)
    if not found:
        return f"There is no good copy of it: restore a backup with {command} --from FILE, or choose an empty --data-dir"
    return f"Restore {described(found[0], now_s=now_s)} with: {command}"


def described(candidate: Candidate, *, now_s: float) -> str:
    """Describes a candidate and the loss if it is chosen."""
    if candidate.made_s is None:
        what = f"its state after transaction {candidate.contents.zxid}"
    else:
        made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(candidate.made_s))
        what = f"the copy of {made} ({age_text(now_s - candidate.made_s)} old, after transaction {candidate.contents.zxid})"
    match candidate.lost:
        case None:
            return f"{what}; changes of topics, settings and leaders after it are lost"
        case 0:
            return f"{what}; nothing is lost"
        case lost:
            return f"{what}; up to {lost} changes of topics, settings and leaders after it are lost"


def age_text(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def restore(path: Path, candidate: Candidate, *, now_s: float) -> list[Path]:
    """Replaces a store by another state. The old files are kept under other names, which are returned.

    The new file is complete and synced before anything is moved. A crash in between leaves a missing store, which the next start refuses.
    Raises: OSError, sqlite3.Error, StoreFileError.
    """
    lost = candidate.lost if candidate.lost is not None else lost_after(path, candidate.contents)
    contents = advanced(candidate.contents, lost) if lost is not None else doubted(path, candidate.contents)
    fresh = path.with_name(path.name + NEW)
    write_new(fresh, contents)
    if contents is not candidate.contents:
        # Otherwise a second restore from the same state would assign the same numbers.
        write_copy(path, contents)
    aside = f"-damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_s))}"
    # The log first: a store must never meet the write-ahead log of another one.
    kept = [_set_aside(old, aside) for old in (wal_path(path), path, last_path(path)) if os.path.lexists(old)]
    write_last(path, contents.last)
    os.replace(fresh, path)
    sync(path.parent)
    return kept


def _set_aside(path: Path, suffix: str) -> Path:
    """Raises: OSError."""
    there = path.with_name(path.name + suffix)
    number = 1
    while os.path.lexists(there):
        number += 1
        there = path.with_name(f"{path.name}{suffix}-{number}")
    os.rename(path, there)
    return there


def write_last(path: Path, last: Last) -> None:
    """Raises: OSError."""
    last_path(path).write_bytes(last_file(last))


def advanced(contents: Contents, lost: int) -> Contents:
    """A state with epochs and ids above all that ``lost`` later transactions can have assigned."""
    if not lost:
        return contents
    made = contents.copy()
    changes: list[Row] = []
    for path, (data, version, created_zxid) in contents.rows.items():
        with contextlib.suppress(layout.MalformedNode):
            if (ahead := _ahead(path, data, lost)) is not None:
                changes.append((path, (ahead, version + lost, created_zxid)))
    if layout.PRODUCER_ID_BLOCK not in contents.rows:
        # The first block may be lost.
        block = layout.ProducerIdBlock(0, ProducerId(0), ProducerId(lost * BLOCK_IDS - 1))
        changes.append((layout.PRODUCER_ID_BLOCK, (layout.encode_producer_id_block(block), 0, contents.zxid + lost)))
    made.change(changes, contents.zxid + lost)
    return made


def doubted(path: Path, contents: Contents) -> Contents:
    """A state with epochs and ids above all that the store can have assigned later."""
    return advanced(contents, LOST_UNKNOWN + max(newest_known(path) - contents.zxid, 0))


def _ahead(path: str, data: bytes, lost: int) -> bytes | None:
    """The advanced content of a node; None for nodes without epochs and ids. Raises: MalformedNode."""
    if layout.partition_state_of(path) is not None:
        state = layout.decode_partition_state(data)
        return layout.encode_partition_state(msgspec.structs.replace(state, leader_epoch=LeaderEpoch(state.leader_epoch + lost)))
    if path == layout.CONTROLLER_EPOCH:
        return layout.encode_controller_epoch(layout.decode_controller_epoch(data) + lost)
    if path == layout.PRODUCER_ID_BLOCK:
        block = layout.decode_producer_id_block(data)
        start, end = ProducerId(block.start + lost * BLOCK_IDS), ProducerId(block.end + lost * BLOCK_IDS)
        return layout.encode_producer_id_block(layout.ProducerIdBlock(block.broker_id, start, end))
    return None

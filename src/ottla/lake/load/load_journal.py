"""How far each file was loaded into a topic: a journal on disk, written before and while records are sent.

One JSON object on each line; the last one about a file counts, and a line that was torn by a crash counts for nothing.

    {"topic": "orders", "topic_id": "b2N..."}
    {"file": "/data/a.csv", "size": 5120, "mtime_ns": ..., "print": "9f3c...", "shape": "51d0...", "rows": 120000, "done": false,
     "partitions": 3, "writers": [{"id": 7001, "epoch": 0, "since": {"0": 40960}}], "offsets": {"0": 41007, "1": ...}}

``rows`` were written for certain. What was written behind them, and nobody lived to note, is in the log behind ``offsets``, in batches that
carry the numbers of the ``writers``, counted from ``since`` on (`load_tail`); none, and there is nothing in doubt.

The file belongs to one process at a time.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from ottla.lake.load.inputs import CannotLoad

#: Where journals are by default, below the current directory: pipelines keep their checkpoints beside them.
DIRECTORY = Path(".ottla") / "load"
#: A journal with so many lines that say nothing any more is written anew.
STALE_LINES = 1000


class Writer(msgspec.Struct):
    """A producer that wrote rows of a file: its number, and by partition the sequence number of its next record at the beginning."""

    id: int
    epoch: int
    since: dict[str, int] = {}


class Entry(msgspec.Struct, omit_defaults=True):
    """A file."""

    file: str
    size: int
    mtime_ns: int
    print: str
    #: Of the options that decide what its records are.
    shape: str
    rows: int = 0
    done: bool = False
    partitions: int = 0
    writers: list[Writer] = []
    offsets: dict[str, int] = {}
    #: The file is as if it had never been seen.
    forgotten: bool = False


class Head(msgspec.Struct):
    """What a journal is about."""

    topic: str
    topic_id: str


class Journal:
    """See the module. Raises: CannotLoad when another process has it, or it is about another topic; OSError."""

    def __init__(self, path: Path, head: Head) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _locked(path)
        self.entries: dict[str, Entry] = {}
        lines = self._read(head)
        if lines > 2 * len(self.entries) + STALE_LINES:
            self._write_anew(head)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read(self, head: Head) -> int:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        torn = lines.pop()
        if torn:
            self._file.truncate(self._file.tell() - len(torn))
        if not lines:
            self._append(head)
            return 1
        try:
            found = msgspec.json.decode(lines[0], type=Head)
            read = [msgspec.json.decode(line, type=Entry) for line in lines[1:]]
        except msgspec.MsgspecError as error:
            raise CannotLoad(f"{self.path} is no journal of loads: {error}") from None
        if found != head:
            same = "another topic of that name, made at another time or in another cluster" if found.topic == head.topic else found.topic
            raise CannotLoad(f"{self.path} is about {same}; give another --state, or remove it")
        for entry in read:
            self.entries.pop(entry.file, None)
            if not entry.forgotten:
                self.entries[entry.file] = entry
        return len(lines)

    def _write_anew(self, head: Head) -> None:
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.unlink(missing_ok=True)
        file = _locked(fresh)
        encoder = msgspec.json.Encoder()
        file.write(encoder.encode_lines([head, *self.entries.values()]))
        file.flush()
        os.fsync(file.fileno())
        fresh.replace(self.path)
        self._file.close()
        self._file = file

    def _append(self, line: Head | Entry) -> None:
        self._file.seek(0, os.SEEK_END)
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def note(self, entry: Entry) -> None:
        """How far a file is, on disk before this returns."""
        self.entries[entry.file] = entry
        self._append(entry)

    def forget(self, file: str) -> None:
        """A file is to be loaded from its beginning."""
        entry = self.entries.pop(file, None)
        if entry is not None:
            entry.forgotten = True
            self._append(entry)


def _locked(path: Path) -> BinaryIO:
    file = open(path, "a+b")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise CannotLoad(f"{path} is in use: another load into this topic runs here; wait for it, or give another --state") from None
    return file

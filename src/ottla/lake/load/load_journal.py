"""The load journal: how far each file was loaded into a topic. Written before and while records are sent.

One JSON object per line. The last line of a file is valid; a line torn by a crash is ignored.

    {"topic": "orders", "topic_id": "b2N..."}
    {"file": "/data/a.csv", "size": 5120, "mtime_ns": ..., "print": "9f3c...", "shape": "51d0...", "rows": 120000, "done": false,
     "partitions": 3, "writers": [{"id": 7001, "epoch": 0, "since": {"0": 40960}}], "offsets": {"0": 41007, "1": ...}}

The first ``rows`` rows are written. Later rows that a crashed process wrote are in the log from ``offsets`` on, in batches with the
producer ids of ``writers`` and sequence numbers from ``since`` on (`log_tail`). Without ``writers`` no row is uncertain.

A file lock admits one process at a time.
"""

import fcntl
import os
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from ottla.lake.load.inputs import CannotLoad

#: Default directory of journals, below the current directory; pipelines keep their checkpoints beside it.
DIRECTORY = Path(".ottla") / "load"
#: A journal is rewritten when it has this many obsolete lines.
STALE_LINES = 1000


class Writer(msgspec.Struct):
    """A producer that wrote rows of a file: its id, and by partition the sequence number at which it started."""

    id: int
    epoch: int
    since: dict[str, int] = {}


class JournalEntry(msgspec.Struct, omit_defaults=True):
    """Progress of one file."""

    file: str
    size: int
    mtime_ns: int
    fingerprint: str = msgspec.field(name="print")
    #: `plan.digest` of the options that decide which records the file becomes.
    options_digest: str = msgspec.field(name="shape")
    rows: int = 0
    done: bool = False
    partitions: int = 0
    writers: list[Writer] = []
    offsets: dict[str, int] = {}
    #: The earlier entries of the file are void.
    forgotten: bool = False


class JournalHeader(msgspec.Struct):
    """First line: the topic of the journal."""

    topic: str
    topic_id: str


class LoadJournal:
    """Raises: CannotLoad if another process holds the journal, or it belongs to another topic; OSError."""

    def __init__(self, path: Path, header: JournalHeader) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _locked(path)
        self.entries: dict[str, JournalEntry] = {}
        lines = self._read(header)
        if lines > 2 * len(self.entries) + STALE_LINES:
            self._rewrite(header)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read(self, header: JournalHeader) -> int:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        torn = lines.pop()
        if torn:
            self._file.truncate(self._file.tell() - len(torn))
        if not lines:
            self._append(header)
            return 1
        try:
            found = msgspec.json.decode(lines[0], type=JournalHeader)
            read = [msgspec.json.decode(line, type=JournalEntry) for line in lines[1:]]
        except msgspec.MsgspecError as error:
            raise CannotLoad(f"{self.path} is not a load journal: {error}") from None
        if found != header:
            same = "another topic of this name, which was deleted or is in another cluster" if found.topic == header.topic else found.topic
            raise CannotLoad(f"{self.path} belongs to {same}; use another --state, or remove the file")
        for entry in read:
            self.entries.pop(entry.file, None)
            if not entry.forgotten:
                self.entries[entry.file] = entry
        return len(lines)

    def _rewrite(self, header: JournalHeader) -> None:
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.unlink(missing_ok=True)
        file = _locked(fresh)
        encoder = msgspec.json.Encoder()
        file.write(encoder.encode_lines([header, *self.entries.values()]))
        file.flush()
        os.fsync(file.fileno())
        fresh.replace(self.path)
        self._file.close()
        self._file = file

    def _append(self, line: JournalHeader | JournalEntry) -> None:
        self._file.seek(0, os.SEEK_END)
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def note(self, entry: JournalEntry) -> None:
        """Append an entry; it is on disk when this returns."""
        self.entries[entry.file] = entry
        self._append(entry)

    def forget(self, file: str) -> None:
        """Forget a file, so that it is loaded from its beginning."""
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
        raise CannotLoad(f"{path} is locked: another load into this topic is running; wait for it, or use another --state") from None
    return file

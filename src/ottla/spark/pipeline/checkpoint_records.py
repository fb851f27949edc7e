"""The files of a pipeline's checkpoint as records of a compacted topic, and back. No I/O besides local files.

    key      ["PIPELINE","PATH"] as JSON; PATH is relative to the checkpoint: VIEW-FORM/offsets/7, pipeline.json
    value    the file's bytes; null: the file was removed

The newest record of a key counts, so the content is the same before and after compaction. Several pipelines may share a topic.

Not in the topic: hidden files (checksums and unfinished writes), Spark's log, and state, which is too large and changes too often for
records. `pipeline.lock` is written by its owner (checkpoint_topic.py), not copied from the directory.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from ottla.spark.pipeline.checkpoint import LOCK

#: Relative path -> content.
Files = dict[str, bytes]
#: Relative path -> new content; None: removed.
Changes = dict[str, bytes | None]
#: Files of the directory that belong to this machine.
LOCAL = (LOCK, "spark.log")
STATE = "state"


class InvalidRecord(ValueError):
    """A record of this pipeline that Ottla did not write."""


def key_of(pipeline: str, path: str) -> bytes:
    return json.dumps([pipeline, path], separators=(",", ":")).encode()


def replay(files: Files, pipeline: str, key: bytes | None, value: bytes | None) -> None:
    """Applies a record to `files`; those of other pipelines are ignored. Raises: InvalidRecord for a path outside of the checkpoint."""
    try:
        parts = json.loads(key or b"null")
    except ValueError:
        return
    if not (isinstance(parts, list) and len(parts) == 2 and parts[0] == pipeline and isinstance(parts[1], str)):
        return
    path = parts[1]
    if not _is_inside(path):
        raise InvalidRecord(f"the record of {path!r} names no file of a checkpoint")
    if value is None:
        files.pop(path, None)
    else:
        files[path] = value


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return not any(part in ("", ".", "..") or "\0" in part or "\\" in part or ":" in part for part in parts)


def differences(local: Mapping[str, bytes], written: Mapping[str, bytes]) -> Changes:
    """What makes the topic's files `written` the directory's files `local`."""
    changes: Changes = {path: content for path, content in local.items() if written.get(path) != content}
    return changes | {path: None for path in written if path not in local and path != LOCK}


def restore(files: Mapping[str, bytes], directory: Path) -> None:
    """Replaces the directory's checkpoint by `files`. The files of this machine stay. Raises: OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for one in directory.iterdir():
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one)
        elif one.name not in LOCAL:
            one.unlink()
    for path, content in files.items():
        if path in LOCAL:
            continue
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


class LocalFiles:
    """The files of a checkpoint's directory. A file is read again when its time, size or inode has changed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read: dict[str, tuple[tuple[int, int, int], bytes]] = {}

    def read(self) -> Files:
        """The present files. Raises: OSError.

        Planned batches are listed first: Spark writes the entries of a source, and that the batch before is finished, before it plans one.
        So a planned batch is never found without them, also while the query runs.
        """
        paths = list(self._paths())
        found = {}
        for path in sorted(paths, key=lambda one: "/offsets/" not in one):
            try:
                found[path] = self._content(path)
            except FileNotFoundError:
                # Spark removes old batches.
                continue
        self._read = {path: self._read[path] for path in found}
        return found

    def _paths(self) -> Iterator[str]:
        queries = [one for one in _visible(self.directory) if (self.directory / one).is_dir()]
        for query in queries:
            yield from _below(self.directory, f"{query}/offsets")
        for query in queries:
            for name in _visible(self.directory / query):
                if name not in ("offsets", STATE):
                    yield from _below(self.directory, f"{query}/{name}")
        yield from (one for one in _visible(self.directory) if one not in LOCAL and (self.directory / one).is_file())

    def _content(self, path: str) -> bytes:
        file = self.directory / path
        stat = file.stat()
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        known = self._read.get(path)
        if known is None or known[0] != stamp:
            known = self._read[path] = (stamp, file.read_bytes())
        return known[1]


def _below(directory: Path, path: str) -> Iterator[str]:
    place = directory / path
    if place.is_file():
        yield path
    for name in _visible(place) if place.is_dir() else ():
        yield from _below(directory, str(PurePosixPath(path, name)))


def _visible(directory: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except FileNotFoundError:
        return []

"""Where an export to Parquet keeps its manifest and its files: a local directory, or a prefix of an object store.

                        local directory                     object store
    one writer          the lock of a file                  each manifest replaces the one that its writer has read (conditional write)
    atomic manifest     a file is renamed                   an object is replaced
    hidden files        the suffix `.unfinished`            the same
    publishing          rename                              copy, then delete; repeated after a crash

A writer of an object store first replaces the manifest by one with its own id. From then on the commit of an earlier writer fails, so the
new one may remove the other's unfinished files.
"""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ottla.lake.storage import ConditionFailed, Location
from ottla.lake.table.delta import Overtaken
from ottla.lake.table.parquet_files import on_disk
from ottla.lake.table.target import TableConflict

UNFINISHED = ".unfinished"
MANIFEST = "_ottla/manifest.json"


class InUse(TableConflict):
    """Another process writes to the directory."""


class ManifestFiles(Protocol):
    """The files of an export."""

    def lock(self) -> None:
        """Keeps other writers of this machine out. Raises: InUse; StorageError if the store cannot tell writers apart; OSError."""

    def read(self) -> bytes | None:
        """The manifest; None if there is none."""

    def write(self, data: bytes) -> None:
        """Replaces the manifest that was read. Raises: Overtaken if it was replaced by another writer; OSError."""

    def unfinished(self) -> Iterator[str]:
        """The names of files that are not published, without the suffix."""

    def publish(self, name: str) -> None:
        """Removes the suffix of a file."""

    def discard(self, name: str) -> None:
        """Removes a file that is not published."""

    def close(self) -> None:
        """Lets other writers in."""


class LocalFiles:
    """A directory of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / MANIFEST
        self._lock: int | None = None

    def lock(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._path.with_name("lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUse(f"another process writes to {self._directory}; one is enough") from None

    def read(self) -> bytes | None:
        return self._path.read_bytes() if self._path.exists() else None

    def write(self, data: bytes) -> None:
        beside = self._path.with_name("manifest.json.new")
        beside.write_bytes(data)
        on_disk(beside)
        beside.replace(self._path)
        on_disk(self._path)

    def unfinished(self) -> Iterator[str]:
        for path in self._directory.rglob(f"*{UNFINISHED}"):
            yield path.relative_to(self._directory).as_posix().removesuffix(UNFINISHED)

    def publish(self, name: str) -> None:
        (self._directory / (name + UNFINISHED)).rename(self._directory / name)

    def discard(self, name: str) -> None:
        (self._directory / (name + UNFINISHED)).unlink()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class ObjectFiles:
    """A prefix of an object store."""

    def __init__(self, place: Location) -> None:
        self._place = place
        #: The tag of the manifest that was read or written last; None: there was none.
        self._tag: str | None = None

    def lock(self) -> None:
        self._place.require_conditional_writes()

    def read(self) -> bytes | None:
        found = self._place.read(MANIFEST)
        self._tag = None if found is None else found[1]
        return None if found is None else found[0]

    def write(self, data: bytes) -> None:
        try:
            self._tag = self._place.replace(MANIFEST, data, self._tag)
        except ConditionFailed:
            raise Overtaken(f"another process writes to {self._place}; stop one of the two") from None

    def unfinished(self) -> Iterator[str]:
        for one in list(self._place.list()):
            if one.name.endswith(UNFINISHED):
                yield one.name.removesuffix(UNFINISHED)

    def publish(self, name: str) -> None:
        try:
            self._place.rename(name + UNFINISHED, name)
        except FileNotFoundError:
            # A later writer has published it.
            if self._place.head(name) is None:
                raise

    def discard(self, name: str) -> None:
        self._place.remove([name + UNFINISHED])

    def close(self) -> None:
        """Nothing is held."""


def manifest_files(place: Location) -> ManifestFiles:
    """The files of an export at a location."""
    return LocalFiles(place.path) if place.is_local else ObjectFiles(place)

"""Flush plans of a log, and slices: ranges of log files that a fetch sends without reading them."""

from collections.abc import Iterator
from contextlib import suppress
from errno import ENOSPC

import msgspec

from ottla.base.ids import Offset
from ottla.base.ports import Disk, File


class FlushPlan(msgspec.Struct, gc=False):
    """Sync files, then replace small files, then sync directories with new names: afterwards every record below ``upto`` is durable.

    ``carry_out`` performs one plan. A shell may sync the files of many plans together if it keeps this order.
    """

    upto: Offset
    files: tuple["File | NamedFile", ...]
    #: Relative to the disk's root, which is "".
    directories: tuple[str, ...] = ()
    #: (path, content) of small files to replace atomically and durably.
    replacements: tuple[tuple[str, bytes], ...] = ()
    #: Replacements that a full disk refused. The log plans them again; no durable state depends on them meanwhile.
    postponed: list[str] = []

    def carry_out(self, disk: Disk) -> None:
        """Waits for the device; runs in a thread, or where blocking is harmless.

        Skips missing files and directories: their partition was removed.
        Raises: OSError, after which the log directory is no longer used.
        """
        for file in self.files:
            with suppress(FileNotFoundError):
                file.sync()
        for path, data in self.replacements:
            try:
                disk.replace_file(path, data)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != ENOSPC:
                    raise
                self.postponed.append(path)
        for directory in self.unsynced_directories():
            with suppress(FileNotFoundError):
                disk.sync_dir(directory)

    def unsynced_directories(self) -> Iterator[str]:
        """Directories to sync after the replacements, which sync their own directories."""
        synced = {path.rpartition("/")[0] for path, _ in self.replacements if path not in self.postponed}
        return (directory for directory in self.directories if directory not in synced)


class NamedFile:
    """A small closed file that is synced once."""

    __slots__ = ("_disk", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path

    def sync(self) -> None:
        """Raises: FileNotFoundError when its partition was removed meanwhile."""
        self._disk.sync_file(self.path)


class Slice:
    """Bytes ``position`` to ``position + size`` of a log file, sent with sendfile. ``len()`` is the size."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        """The bytes, for small answers and tests."""
        return self.file.read(self.position, self.size)

    def __repr__(self) -> str:
        return f"Slice({self.file.path}, {self.position}, {self.size})"

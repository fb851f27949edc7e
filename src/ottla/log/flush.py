"""What a log asks to have on disk, and how a fetch names bytes of a log file without reading them."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from errno import ENOSPC

from ottla.base.ids import Offset
from ottla.base.ports import Disk, File


@dataclass(slots=True)
class FlushPlan:
    """Sync these files, replace those, sync these directories (new or renamed names): then every record below ``upto`` is durable.

    ``carry_out`` does it; so may a shell of its own, which syncs the files of many plans together, as long as it keeps the order.
    """

    upto: Offset
    files: tuple["File | NamedFile", ...]
    #: Relative to the disk's root, which is "".
    directories: tuple[str, ...] = ()
    #: (path, content) of small files to replace atomically and durably.
    replacements: tuple[tuple[str, bytes], ...] = ()
    #: Replacements for which the disk had no room. The log asks for them again; nothing durable depends on them meanwhile.
    postponed: list[str] = field(default_factory=list)

    def carry_out(self, disk: Disk) -> None:
        """Waits for the device; runs in a thread, or wherever nothing else waits.

        A file or directory that is gone belongs to a partition that was removed meanwhile, and needs nothing.
        Raises: OSError, after which the directory is not to be trusted.
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
        """Directories that are still to be synced once the small files are replaced, which syncs the directories they are in."""
        synced = {path.rpartition("/")[0] for path, _ in self.replacements if path not in self.postponed}
        return (directory for directory in self.directories if directory not in synced)


class NamedFile:
    """A small file to be synced once, which nobody has open."""

    __slots__ = ("_disk", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path

    def sync(self) -> None:
        """Raises: FileNotFoundError when its partition was removed meanwhile."""
        self._disk.sync_file(self.path)


class Slice:
    """Bytes ``position`` to ``position + size`` of a log file, to be sent without passing through Python. ``len()`` is the size."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        """The bytes themselves, for TLS, for small answers and for tests."""
        return self.file.read(self.position, self.size)

    def __repr__(self) -> str:
        return f"Slice({self.file.path}, {self.position}, {self.size})"

"""Disk and File over the operating system.

A log directory can have many more files than a process may open. A ``RealFile`` opens its descriptor on use and can lose it: above
``descriptors_max`` open ones, the least recently used tenth is closed. A descriptor that another thread uses (``sync``, ``read``) is pinned
meanwhile; a thread that finds none opens its own. All calls but ``sync``, ``read`` and ``sync_dir`` belong to the disk's owner. Only the
owner opens and closes the descriptors that files keep, so a descriptor number is never reused while the owner holds it.

While logs are opened, the owner waits and several threads use the disk, each with its own files. Such a thread opens and creates files
but closes no descriptor of another file: above ``descriptors_max`` its file keeps none. So no thread touches a file of another thread.

Appends go to the known end of the file. A short write is continued; after a failed one the file is truncated to its former size.
Directories are synced by opening them, which Linux and macOS permit.
"""

# Paths are concatenated strings: Path objects would cost more than the system calls.

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from errno import EIO, ENOENT
from pathlib import Path
from threading import RLock, get_ident
from weakref import ref
from zlib import crc32

from ottla.base.ports import Buffer

#: Buffers that one call may write; Linux and macOS allow 1024.
_IOV_MAX = 1024
_MODE = 0o644
#: Ending of an unfinished copy of a file with two names; a start removes it.
_SEPARATE = ".tmp"
#: How a file's descriptor is used: by the disk's owner; by another thread, until when it is pinned; or opened for this use only.
KEPT, PINNED, OPENED = 0, 1, 2
#: Number of locks for replacing small files: more than the threads that do so.
REPLACED_AT_ONCE = 64


class RealFile:
    """Made by ``RealDisk.open``."""

    __slots__ = ("__weakref__", "_descriptor", "_disk", "_is_linked", "_pins", "_used", "path", "size")

    def __init__(self, disk: "RealDisk", path: str, descriptor: int) -> None:
        self._disk = disk
        #: Relative to the root; follows renames.
        self.path = path
        state = os.fstat(descriptor)
        self.size = state.st_size
        #: Whether the file has another name, as an imported segment does; it is copied before its first change.
        self._is_linked = state.st_nlink > 1
        self._descriptor = descriptor
        self._pins = 0
        self._used = 0

    def __repr__(self) -> str:
        return f"RealFile({self.path}, {self.size})"

    def fileno(self) -> int:
        """The descriptor, for sendfile. Valid until the next call of the disk. Raises: OSError."""
        disk, descriptor = self._disk, self._descriptor
        self._used = disk.clock = disk.clock + 1
        if descriptor < 0:
            with disk.lock:
                if self._descriptor < 0:
                    self._descriptor = disk.reopen(self)
                descriptor = self._descriptor
        return descriptor

    def append(self, *chunks: Buffer) -> int:
        if self._is_linked:
            self._separate()
        position = self.size
        descriptor, use = self._borrow()
        try:
            if len(chunks) == 1:
                (chunk,) = chunks
                size = os.pwrite(descriptor, chunk, position)
                if size < len(chunk):
                    size += _write(descriptor, memoryview(chunk)[size:], position + size)
            else:
                size = _write_all(descriptor, chunks, position)
        except OSError:
            os.ftruncate(descriptor, position)
            raise
        finally:
            if use != KEPT:
                self._give_back(descriptor, use)
        self.size = position + size
        return position

    def read(self, position: int, size: int) -> bytes:
        descriptor, use = self._borrow()
        try:
            data = os.pread(descriptor, size, position)
            while 0 < len(data) < size and position + len(data) < self.size:
                more = os.pread(descriptor, size - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data
        finally:
            if use != KEPT:
                self._give_back(descriptor, use)

    def truncate(self, size: int) -> None:
        if self._is_linked:
            self._separate()
        descriptor, use = self._borrow()
        try:
            os.ftruncate(descriptor, size)
        finally:
            if use != KEPT:
                self._give_back(descriptor, use)
        self.size = size

    def _separate(self) -> None:
        """Replaces the file by a copy, so that the file under its other name does not change. Raises: OSError."""
        path = self._disk.prefix + self.path
        shutil.copy2(path, path + _SEPARATE)
        with open(path + _SEPARATE, "rb") as copy:
            os.fsync(copy.fileno())
        os.replace(path + _SEPARATE, path)
        descriptor = self._disk.descriptor(self.path)
        with self._disk.lock:
            if self._descriptor >= 0 and not self._pins:
                os.close(self._descriptor)
                self._descriptor = descriptor
            elif self._descriptor >= 0:
                # A thread reads the former file: its number now stands for the copy, whose content is the same.
                os.dup2(descriptor, self._descriptor, inheritable=False)
                os.close(descriptor)
            else:
                os.close(descriptor)
        self._is_linked = False

    def sync(self) -> None:
        """Waits for the device; safe in a thread while the owner appends."""
        descriptor, use = self._borrow()
        try:
            os.fdatasync(descriptor)
        finally:
            if use != KEPT:
                self._give_back(descriptor, use)

    def drop_cache(self) -> None:
        """Drops clean pages; the kernel keeps dirty ones."""
        if hasattr(os, "posix_fadvise"):
            descriptor, use = self._borrow()
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                if use != KEPT:
                    self._give_back(descriptor, use)

    def close(self) -> None:
        """Closes the descriptor. The next use opens it again."""
        with self._disk.lock:
            if self._descriptor >= 0 and not self._pins:
                os.close(self._descriptor)
                self._descriptor = -1
                self._disk.opened.pop(id(self), None)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._disk.opened.pop(id(self), None)
        known = self._disk.files.get(self.path)
        if known is not None and known() is None:
            self._disk.files.pop(self.path, None)

    def _borrow(self) -> tuple[int, int]:
        """A descriptor that stays open until ``_give_back``, and what that has to undo: KEPT, PINNED or OPENED."""
        disk = self._disk
        if get_ident() == disk.owner:
            return self.fileno(), KEPT
        with disk.lock:
            if self._descriptor >= 0:
                self._pins += 1
                return self._descriptor, PINNED
        return disk.descriptor(self.path), OPENED

    def _give_back(self, descriptor: int, use: int) -> None:
        if use == OPENED:
            os.close(descriptor)
        elif use == PINNED:
            with self._disk.lock:
                self._pins -= 1


def _write(descriptor: int, chunk: Buffer, position: int) -> int:
    """Writes one buffer completely; returns its size."""
    size = len(chunk)
    written = 0
    while written < size:
        more = os.pwrite(descriptor, memoryview(chunk)[written:], position + written)
        if not more:
            raise OSError(EIO, "the device accepts no more bytes and reports no error")
        written += more
    return size


def _write_all(descriptor: int, chunks: tuple[Buffer, ...], position: int) -> int:
    """Writes many buffers completely, in as few calls as possible; returns their size."""
    waiting = [memoryview(chunk).cast("B") for chunk in chunks if len(chunk)]
    total = sum(map(len, waiting))
    first = done = 0
    while done < total:
        written = os.pwritev(descriptor, waiting[first : first + _IOV_MAX], position + done)
        if not written:
            raise OSError(EIO, "the device accepts no more bytes and reports no error")
        done += written
        while written and written >= len(waiting[first]):
            written -= len(waiting[first])
            first += 1
        if written:
            waiting[first] = waiting[first][written:]
    return total


class RealDisk:
    """A directory of the operating system's file system."""

    def __init__(self, root: str | os.PathLike[str], *, descriptors_max: int = 4096) -> None:
        """Creates the directory if missing. Raises: OSError."""
        self._root = Path(root).absolute()
        self._root.mkdir(parents=True, exist_ok=True)
        self.prefix = f"{self._root}/"
        self._descriptors_max = descriptors_max
        self.lock = RLock()
        #: The thread that made the disk or took it over. Only it closes descriptors of other files, so its own calls need no lock.
        self.owner = get_ident()
        #: One thread at a time replaces a path; its checksum selects the lock.
        self._replacing = tuple(RLock() for _ in range(REPLACED_AT_ONCE))
        #: Grows with each use of a file.
        self.clock = 0
        #: Files with a descriptor, by identity.
        self.opened: dict[int, ref[RealFile]] = {}
        #: Live files by path: renames update them, and a path has one file.
        self.files: dict[str, ref[RealFile]] = {}

    @property
    def root(self) -> str:
        return str(self._root)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        known = self.files.get(path)
        file = known() if known is not None else None
        if file is None:
            file = RealFile(self, path, self.descriptor(path, create=create))
            self.files[path] = ref(file)
            self._opened(file)
        return file

    def reopen(self, file: RealFile) -> int:
        """A descriptor for a file that lost its own."""
        descriptor = self.descriptor(file.path)
        self._opened(file)
        return descriptor

    def descriptor(self, path: str, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return os.open(self.prefix + path, flags, _MODE)

    def _opened(self, file: RealFile) -> None:
        file._used = self.clock = self.clock + 1
        with self.lock:
            self.opened[id(file)] = ref(file)
            excess = len(self.opened) - self._descriptors_max
            if excess <= 0:
                return
            if get_ident() != self.owner:
                # Other files belong to other threads.
                os.close(file._descriptor)
                file._descriptor = -1
                self.opened.pop(id(file), None)
                return
            idle = [other for entry in list(self.opened.values()) if (other := entry()) is not None and other is not file]
            idle.sort(key=lambda other: other._used)
            for other in idle[: max(excess, self._descriptors_max // 10)]:
                if not other._pins and other._descriptor >= 0:
                    os.close(other._descriptor)
                    other._descriptor = -1
                    self.opened.pop(id(other), None)

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.prefix + path)

    def listdir(self, path: str = "") -> list[str]:
        return sorted(os.listdir(self.prefix + path))

    def size(self, path: str) -> int:
        return os.stat(self.prefix + path).st_size

    def mtime_ms(self, path: str) -> int:
        return os.stat(self.prefix + path).st_mtime_ns // 1_000_000

    def mkdir(self, path: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(self.prefix + path)

    def create_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        with suppress(FileExistsError):
            os.mkdir(self.prefix + directory)
        for name, data in files:
            descriptor = os.open(f"{self.prefix}{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
            try:
                if data:
                    _write(descriptor, data, 0)
            finally:
                os.close(descriptor)

    def sync_file(self, path: str) -> None:
        descriptor = self.descriptor(path)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        os.rename(self.prefix + old, self.prefix + new)
        self._moved(old, new)
        if old not in self.files and os.path.isdir(self.prefix + new):
            for name in os.listdir(self.prefix + new):
                self._moved(f"{old}/{name}", f"{new}/{name}")

    def _moved(self, old: str, new: str) -> None:
        """Holders of a replaced file keep it; its path now names the new file."""
        known = self.files.pop(old, None)
        file = known() if known is not None else None
        if file is None:
            self.files.pop(new, None)
        else:
            assert known is not None, "a file is known by a reference"
            file.path = new
            self.files[new] = known

    def unlink(self, path: str) -> None:
        self.files.pop(path, None)
        with suppress(FileNotFoundError):
            os.unlink(self.prefix + path)

    def remove_tree(self, path: str) -> None:
        """Removes a file or a directory tree; no error if missing. Safe in a thread."""
        try:
            for name in os.listdir(self.prefix + path):
                self.files.pop(f"{path}/{name}", None)
            shutil.rmtree(self.prefix + path)
        except NotADirectoryError:
            self.unlink(path)
        except OSError as error:
            if error.errno != ENOENT:
                raise

    def read_file(self, path: str) -> bytes:
        with open(self.prefix + path, "rb") as file:
            return file.read()

    def replace_file(self, path: str, data: bytes) -> None:
        # The owner may write a checkpoint while a thread still writes the previous one.
        with self._replacing[crc32(path.encode()) % REPLACED_AT_ONCE]:
            self._replace_file(path, data)

    def _replace_file(self, path: str, data: bytes) -> None:
        temporary = f"{self.prefix}{path}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
        try:
            _write(descriptor, data, 0)
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)
        os.replace(temporary, self.prefix + path)
        self.files.pop(path, None)
        self.sync_dir(path.rpartition("/")[0])

    def sync_dir(self, path: str = "") -> None:
        descriptor = os.open(self.prefix + path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        stats = os.statvfs(self._root)
        return stats.f_bavail * stats.f_frsize

    def total_bytes(self) -> int:
        """Of the file system that holds the directory."""
        stats = os.statvfs(self._root)
        return stats.f_blocks * stats.f_frsize

"""Disk and File over the operating system.

A log directory can hold many more files than a process may have open. A ``RealFile`` opens its descriptor when it is used and may lose it
again: when more than ``descriptors_max`` are open, the tenth that was used least recently is closed. A descriptor that another thread is
using (``sync``, ``read``) is pinned meanwhile; a thread that finds none opens one for itself. Everything but ``sync``, ``read`` and
``sync_dir`` belongs to the disk's owner, which alone opens and closes the descriptors that files keep: a number that it
holds cannot become another file's under its hands.

While logs are opened, the owner waits and several threads use the disk, each with files of its own. They open and create files as the
owner does, but they close no descriptor of another file: a file that such a thread opens above ``descriptors_max`` keeps none. So no
thread touches a file of another thread.

Appends go to the position where the file ends, known without asking; a short write is continued, a failed one undone by cutting the file
back. Directories are synced by opening them, which Linux and macOS allow.
"""

# A path is one concatenation here; building Path objects would cost more than the calls themselves.

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
#: Small files of different paths that can be replaced at the same time: more than there are threads that do so.
REPLACED_AT_ONCE = 64


class RealFile:
    """A file under a ``RealDisk``; made by ``RealDisk.open``."""

    __slots__ = ("__weakref__", "_descriptor", "_disk", "_pins", "_used", "path", "size")

    def __init__(self, disk: "RealDisk", path: str, descriptor: int) -> None:
        self._disk = disk
        #: Relative to the root; follows renames.
        self.path = path
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._pins = 0
        self._used = 0

    def __repr__(self) -> str:
        return f"RealFile({self.path}, {self.size})"

    def fileno(self) -> int:
        """The descriptor, for sendfile: to be used at once, before anything else is asked of the disk. Raises: OSError."""
        self._used = self._disk.clock = self._disk.clock + 1
        if self._descriptor < 0:
            with self._disk.lock:
                if self._descriptor < 0:
                    self._descriptor = self._disk.reopen(self)
        return self._descriptor

    def append(self, *chunks: Buffer) -> int:
        position = self.size
        descriptor, own = self._borrow()
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
            self._give_back(descriptor, own)
        self.size = position + size
        return position

    def read(self, position: int, size: int) -> bytes:
        descriptor, own = self._borrow()
        try:
            data = os.pread(descriptor, size, position)
            while 0 < len(data) < size and position + len(data) < self.size:
                more = os.pread(descriptor, size - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data
        finally:
            self._give_back(descriptor, own)

    def truncate(self, size: int) -> None:
        descriptor, own = self._borrow()
        try:
            os.ftruncate(descriptor, size)
        finally:
            self._give_back(descriptor, own)
        self.size = size

    def sync(self) -> None:
        """Waits for the device; safe in a thread while the owner appends."""
        descriptor, own = self._borrow()
        try:
            os.fdatasync(descriptor)
        finally:
            self._give_back(descriptor, own)

    def drop_cache(self) -> None:
        """Clean pages are dropped; the kernel keeps dirty ones, which are still to be written."""
        if hasattr(os, "posix_fadvise"):
            descriptor, own = self._borrow()
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                self._give_back(descriptor, own)

    def close(self) -> None:
        """Gives the descriptor back. The file can be used again, which opens it anew."""
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

    def _borrow(self) -> tuple[int, bool]:
        """A descriptor that stays open until it is given back, and whether it was opened for this use alone."""
        disk = self._disk
        if get_ident() == disk.owner:
            return self.fileno(), False
        with disk.lock:
            if self._descriptor >= 0:
                self._pins += 1
                return self._descriptor, False
        return disk.descriptor(self.path), True

    def _give_back(self, descriptor: int, own: bool) -> None:
        if own:
            os.close(descriptor)
        elif get_ident() != self._disk.owner:
            with self._disk.lock:
                self._pins -= 1


def _write(descriptor: int, chunk: Buffer, position: int) -> int:
    """Writes one buffer wholly; its size."""
    size = len(chunk)
    written = 0
    while written < size:
        more = os.pwrite(descriptor, memoryview(chunk)[written:], position + written)
        if not more:
            raise OSError(EIO, "the device takes no more bytes and says no reason")
        written += more
    return size


def _write_all(descriptor: int, chunks: tuple[Buffer, ...], position: int) -> int:
    """Writes many buffers wholly, in as few calls as the system allows; their size."""
    waiting = [memoryview(chunk).cast("B") for chunk in chunks if len(chunk)]
    total = sum(map(len, waiting))
    first = done = 0
    while done < total:
        written = os.pwritev(descriptor, waiting[first : first + _IOV_MAX], position + done)
        if not written:
            raise OSError(EIO, "the device takes no more bytes and says no reason")
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
        """Makes the directory if need be. Raises: OSError."""
        self._root = Path(root).absolute()
        self._root.mkdir(parents=True, exist_ok=True)
        self._prefix = f"{self._root}/"
        self._descriptors_max = descriptors_max
        self.lock = RLock()
        #: The thread that made the disk, or took it over. It alone closes descriptors of other files, so its own calls need no lock.
        self.owner = get_ident()
        #: A path is replaced by one thread at a time; its checksum chooses the lock.
        self._replacing = tuple(RLock() for _ in range(REPLACED_AT_ONCE))
        #: Grows with each use of a file.
        self.clock = 0
        #: Files with a descriptor, by identity.
        self.opened: dict[int, ref[RealFile]] = {}
        #: Live files by path, so that renames reach them and a path has one file.
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
        return os.open(self._prefix + path, flags, _MODE)

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
        return os.path.lexists(self._prefix + path)

    def listdir(self, path: str = "") -> list[str]:
        return sorted(os.listdir(self._prefix + path))

    def size(self, path: str) -> int:
        return os.stat(self._prefix + path).st_size

    def mtime_ms(self, path: str) -> int:
        return os.stat(self._prefix + path).st_mtime_ns // 1_000_000

    def mkdir(self, path: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(self._prefix + path)

    def create_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        with suppress(FileExistsError):
            os.mkdir(self._prefix + directory)
        for name, data in files:
            descriptor = os.open(f"{self._prefix}{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
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
        os.rename(self._prefix + old, self._prefix + new)
        self._moved(old, new)
        if old not in self.files and os.path.isdir(self._prefix + new):
            for name in os.listdir(self._prefix + new):
                self._moved(f"{old}/{name}", f"{new}/{name}")

    def _moved(self, old: str, new: str) -> None:
        """Whoever holds a file that was replaced keeps it, but nobody finds it by its path any more."""
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
            os.unlink(self._prefix + path)

    def remove_tree(self, path: str) -> None:
        """Removes a file or a directory with all in it; no error when it is already gone. Safe in a thread."""
        try:
            for name in os.listdir(self._prefix + path):
                self.files.pop(f"{path}/{name}", None)
            shutil.rmtree(self._prefix + path)
        except NotADirectoryError:
            self.unlink(path)
        except OSError as error:
            if error.errno != ENOENT:
                raise

    def read_file(self, path: str) -> bytes:
        with open(self._prefix + path, "rb") as file:
            return file.read()

    def replace_file(self, path: str, data: bytes) -> None:
        # A checkpoint may be written by the owner while a thread still writes the one before.
        with self._replacing[crc32(path.encode()) % REPLACED_AT_ONCE]:
            self._replace_file(path, data)

    def _replace_file(self, path: str, data: bytes) -> None:
        temporary = f"{self._prefix}{path}.tmp"
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
        os.replace(temporary, self._prefix + path)
        self.files.pop(path, None)
        self.sync_dir(path.rpartition("/")[0])

    def sync_dir(self, path: str = "") -> None:
        descriptor = os.open(self._prefix + path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def total_bytes(self) -> int:
        """Of the file system that holds the directory."""
        found = os.statvfs(self._root)
        return found.f_blocks * found.f_frsize

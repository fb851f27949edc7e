"""A disk in memory that loses unsynced data like a real one: a ``Disk`` for tests and for the simulator.

Writes are visible at once, and durable after a sync. ``crash`` returns the disk as the next start finds it:

- Of the bytes written since a file's last ``sync``, a random subset of sectors (512 B or 4 KiB) is there, in any order. The file has its
  old size, its new size or one between. Missing bytes are zeros or the sector's old content.
- Of the names created, changed or removed since a directory's last ``sync_dir``, the first few are there, a random number. Journals keep
  the order within a directory, but not between directories, nor between names and data.
- Data of a failed ``sync`` is lost: kernels mark such pages clean, so a second sync succeeds and saves nothing.

Faults are set explicitly: ``capacity_bytes`` (ENOSPC), ``fail`` (EIO on the n-th call of a kind), ``flip_bit``, and ``cut_power_at``, which
raises PowerCut instead of performing the n-th change. All randomness comes from the ``Random`` given to ``crash``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from errno import EIO, ENOSPC
from random import Random

from ottla.base.ports import Buffer

SECTORS = (512, 4096)
#: Time of one sync, of one read, and of each KiB read.
SYNC_US, READ_US, READ_KIB_US = 2_000, 20, 1


class PowerCut(Exception):
    """The power failed before this change. Later changes of the program do not reach the disk."""


@dataclass(slots=True, eq=False)
class Inode:
    """The content of a file, as programs see it and as the medium has it."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    #: Changes since the last sync, in order: (position, bytes) written, or (size, None) truncated.
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)
    mtime_ms: int = 0


class Directory(dict[str, "Inode | Directory"]):
    """Names as programs see them. ``durable``: as the medium has them. ``unsynced``: changes since the last sync."""

    __slots__ = ("durable", "unsynced")

    def __init__(self) -> None:
        super().__init__()
        self.durable: dict[str, Inode | Directory] = {}
        self.unsynced: list[tuple[tuple[str, Inode | Directory | None], ...]] = []

    def change(self, *names: tuple[str, "Inode | Directory | None"]) -> None:
        """Creates and removes names in one change, like a rename."""
        point(self, names)
        self.unsynced.append(names)

    def sync(self) -> None:
        self.durable = dict(self)
        self.unsynced = []


def point(names: dict[str, Inode | Directory], changes: tuple[tuple[str, Inode | Directory | None], ...]) -> None:
    """Applies a change of names."""
    for name, entry in changes:
        if entry is None:
            names.pop(name, None)
        else:
            names[name] = entry


class SimFile:
    """A file of a ``SimDisk``."""

    __slots__ = ("_disk", "_inode", "path")

    def __init__(self, disk: "SimDisk", path: str, inode: Inode) -> None:
        self._disk = disk
        self.path = path
        self._inode = inode

    def __repr__(self) -> str:
        return f"SimFile({self.path}, {self.size})"

    @property
    def size(self) -> int:
        return len(self._inode.data)

    def append(self, *chunks: Buffer) -> int:
        data = b"".join(chunks)
        self._disk.step("append", self.path)
        self._disk.use(len(data))
        position = len(self._inode.data)
        self._inode.data += data
        self._inode.unsynced.append((position, data))
        self._inode.mtime_ms = self._disk.now_ms()
        return position

    def read(self, position: int, size: int) -> bytes:
        self._disk.fault("read", self.path)
        self._disk.work_us += READ_US + size * READ_KIB_US // 1024
        return bytes(self._inode.data[position : position + size])

    def truncate(self, size: int) -> None:
        self._disk.step("truncate", self.path)
        inode = self._inode
        if size > len(inode.data):
            self._disk.use(size - len(inode.data))
            inode.data.extend(bytes(size - len(inode.data)))
        else:
            self._disk.used_bytes -= len(inode.data) - size
            del inode.data[size:]
        inode.unsynced.append((size, None))

    def sync(self) -> None:
        inode = self._inode
        try:
            self._disk.step("sync", self.path)
        except OSError:
            inode.unsynced = []  # The pages count as clean from now on.
            raise
        if inode.unsynced:
            apply(inode.durable, inode.unsynced)
            inode.unsynced = []

    def drop_cache(self) -> None:
        inode = self._inode
        before = len(inode.data)
        inode.data = bytearray(inode.durable)
        apply(inode.data, inode.unsynced)
        self._disk.used_bytes += len(inode.data) - before

    def close(self) -> None:
        pass


def apply(data: bytearray, changes: list[tuple[int, bytes | None]]) -> None:
    """Applies writes and truncations in order; holes are zeros."""
    for position, written in changes:
        if written is None:
            data.extend(bytes(max(position - len(data), 0)))
            del data[position:]
        else:
            data.extend(bytes(max(position - len(data), 0)))
            data[position : position + len(written)] = written


class SimDisk:
    """A disk with directories and files in memory."""

    def __init__(
        self, root: str = "sim", *, capacity_bytes: int = 1 << 40, now_ms: Callable[[], int] = lambda: 0, tree: Directory | None = None
    ) -> None:
        self._root = root
        self.capacity_bytes = capacity_bytes
        self.now_ms = now_ms
        self.used_bytes = 0
        #: Changes performed so far.
        self.steps = 0
        #: Time that a device would have taken so far. The machine charges what its steps add.
        self.work_us = 0
        #: Number of the change at which the power fails; 0 for never.
        self.cut_power_at = 0
        self._dead = False
        #: (kind, part of the path) -> [calls that succeed, errno, calls that fail]
        self._faults: dict[tuple[str, str], list[int]] = {}
        self._tree = Directory() if tree is None else tree
        self._files: dict[str, SimFile] = {}

    def __repr__(self) -> str:
        return f"SimDisk({self._root}, {self.steps} steps)"

    @property
    def root(self) -> str:
        return self._root

    # Faults

    def fail(self, kind: str, path_part: str = "", *, after: int = 0, times: int = 1, errno: int = EIO) -> None:
        """Makes calls of a kind (append, read, truncate, sync, sync_dir, create, rename, unlink, mkdir) fail on paths with this part."""
        self._faults[kind, path_part] = [after, errno, times]

    def will_fail(self, kind: str) -> bool:
        """Whether a later call of this kind will fail."""
        return any(wanted == kind and state[2] for (wanted, _), state in self._faults.items())

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Flips one bit on the medium and in memory."""
        inode = self._inode(path)
        inode.data[position] ^= 1 << bit
        if position < len(inode.durable):
            inode.durable[position] ^= 1 << bit
        inode.unsynced = [
            (at, written[: position - at] + bytes([inode.data[position]]) + written[position - at + 1 :])
            if written is not None and at <= position < at + len(written)
            else (at, written)
            for at, written in inode.unsynced
        ]

    def fault(self, kind: str, path: str) -> None:
        if self._dead:
            raise PowerCut(f"no power for {kind} {path}")
        for (wanted, part), state in self._faults.items():
            if wanted == kind and part in path:
                if state[0]:
                    state[0] -= 1
                elif state[2]:
                    state[2] -= 1
                    raise OSError(state[1], f"simulated failure of {kind}", path)

    def step(self, kind: str, path: str) -> None:
        """Counts a change. Raises: PowerCut, OSError if a fault is due."""
        if self.cut_power_at and self.steps + 1 == self.cut_power_at:
            self._dead = True
        self.fault(kind, path)
        self.steps += 1
        if kind in ("sync", "sync_dir"):
            self.work_us += SYNC_US

    def use(self, size: int) -> None:
        """Allocates ``size`` bytes. Raises: OSError ENOSPC."""
        if self.used_bytes + size > self.capacity_bytes:
            raise OSError(ENOSPC, "simulated disk is full")
        self.used_bytes += size

    def crash(self, random: Random) -> "SimDisk":
        """The disk after a power failure now. The old object must not be used any more."""
        keep = random.choice((0.0, 0.5, 0.9, 1.0))

        def names(directory: Directory) -> dict[str, Inode | Directory]:
            left = dict(directory.durable)
            done = len(directory.unsynced) if keep == 1.0 else random.randint(0, len(directory.unsynced))
            for changes in directory.unsynced[:done]:
                point(left, changes)
            return left

        return self._successor(_rebuilt(self._tree, names, lambda inode: _left_of(inode, random, keep), {}))

    def lose(self) -> "SimDisk":
        """The disk after a power failure that lost all unsynced changes, and nothing else. The old object must not be used any more."""
        return self._successor(_rebuilt(self._tree, lambda directory: directory.durable, lambda inode: bytearray(inode.durable), {}))

    def restart(self) -> "SimDisk":
        """The disk after the process ended: all writes are there, still unsynced."""
        return self._successor(self._tree, self.used_bytes)

    def _successor(self, tree: Directory, used_bytes: int | None = None) -> "SimDisk":
        self._dead = True
        after = SimDisk(self._root, capacity_bytes=self.capacity_bytes, now_ms=self.now_ms, tree=tree)
        after.used_bytes = _size(tree) if used_bytes is None else used_bytes
        return after

    # Disk

    def open(self, path: str, *, create: bool = False) -> SimFile:
        directory, name = self._parent(path)
        entry = directory.get(name)
        if entry is None:
            if not create:
                self.fault("open", path)
                raise FileNotFoundError(path)
            self.step("create", path)
            entry = Inode(mtime_ms=self.now_ms())
            directory.change((name, entry))
        if not isinstance(entry, Inode):
            raise IsADirectoryError(path)
        file = self._files.get(path)
        if file is None or file._inode is not entry:
            file = self._files[path] = SimFile(self, path, entry)
        return file

    def exists(self, path: str) -> bool:
        try:
            directory, name = self._parent(path)
        except OSError:
            return False
        return name in directory

    def listdir(self, path: str = "") -> list[str]:
        self.fault("listdir", path)
        return sorted(self._directory(path))

    def size(self, path: str) -> int:
        return len(self._inode(path).data)

    def mtime_ms(self, path: str) -> int:
        return self._inode(path).mtime_ms

    def mkdir(self, path: str) -> None:
        directory, name = self._parent(path)
        if name not in directory:
            self.step("mkdir", path)
            directory.change((name, Directory()))

    def create_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        self.mkdir(directory)
        for name, data in files:
            file = self.open(f"{directory}/{name}", create=True)
            if file.size:
                file.truncate(0)
            if data:
                file.append(data)

    def sync_file(self, path: str) -> None:
        self.open(path).sync()

    def rename(self, old: str, new: str) -> None:
        directory, name = self._parent(old)
        if name not in directory:
            raise FileNotFoundError(old)
        target, new_name = self._parent(new)
        self.step("rename", old)
        replaced = target.get(new_name)
        if isinstance(replaced, Inode):
            self.used_bytes -= len(replaced.data)
        entry = directory[name]
        if target is directory:
            directory.change((name, None), (new_name, entry))
        else:
            directory.change((name, None))
            target.change((new_name, entry))
        if isinstance(entry, Directory):
            moved = [path for path in self._files if path.startswith(old + "/")]
        else:
            moved = [old] if old in self._files else []
        for path in moved:
            file = self._files.pop(path)
            file.path = new + path[len(old) :]
            self._files[file.path] = file

    def unlink(self, path: str) -> None:
        try:
            directory, name = self._parent(path)
        except FileNotFoundError:
            return
        if name in directory:
            self.step("unlink", path)
            entry = directory[name]
            directory.change((name, None))
            self.used_bytes -= len(entry.data) if isinstance(entry, Inode) else 0
            self._files.pop(path, None)

    def remove_tree(self, path: str) -> None:
        try:
            directory, name = self._parent(path)
        except FileNotFoundError:
            return
        entry = directory.get(name)
        if isinstance(entry, Directory):
            for child in sorted(entry):
                self.remove_tree(f"{path}/{child}")
            self.step("unlink", path)
            directory.change((name, None))
        elif entry is not None:
            self.unlink(path)

    def read_file(self, path: str) -> bytes:
        self.fault("read", path)
        return bytes(self._inode(path).data)

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = self.open(path + ".tmp", create=True)
        try:
            temporary.truncate(0)
            temporary.append(data)
            temporary.sync()
        except OSError as error:
            if error.errno == ENOSPC:
                self.unlink(path + ".tmp")
            raise
        self.rename(path + ".tmp", path)
        self.sync_dir(path.rpartition("/")[0])

    def sync_dir(self, path: str = "") -> None:
        directory = self._directory(path)
        self.step("sync_dir", path)
        directory.sync()

    def free_bytes(self) -> int:
        return max(self.capacity_bytes - self.used_bytes, 0)

    def total_bytes(self) -> int:
        return self.capacity_bytes

    def _directory(self, path: str) -> Directory:
        entry: Inode | Directory = self._tree
        for name in path.split("/") if path else ():
            if not isinstance(entry, Directory):
                raise NotADirectoryError(path)
            if name not in entry:
                raise FileNotFoundError(path)
            entry = entry[name]
        if not isinstance(entry, Directory):
            raise NotADirectoryError(path)
        return entry

    def _parent(self, path: str) -> tuple[Directory, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name

    def _inode(self, path: str) -> Inode:
        directory, name = self._parent(path)
        entry = directory.get(name)
        if not isinstance(entry, Inode):
            raise FileNotFoundError(path)
        return entry


def _rebuilt(
    directory: Directory,
    names_of: Callable[[Directory], Mapping[str, "Inode | Directory"]],
    content_of: Callable[[Inode], bytearray],
    seen: dict[int, "Inode | Directory"],
) -> Directory:
    """A directory with these of its names and contents, all synced. ``seen`` has the entries already processed: a rename can leave one
    under two names.
    """
    after = Directory()
    for name, entry in sorted(names_of(directory).items(), key=lambda item: item[0]):
        if id(entry) not in seen:
            if isinstance(entry, Directory):
                seen[id(entry)] = _rebuilt(entry, names_of, content_of, seen)
            else:
                content = content_of(entry)
                seen[id(entry)] = Inode(bytearray(content), content, [], entry.mtime_ms)
        after[name] = seen[id(entry)]
    after.sync()
    return after


def _left_of(inode: Inode, random: Random, keep: float) -> bytearray:
    """The bytes of a file after a power failure: the size after some prefix of the changes; each sector is old, new or zero."""
    data = bytearray(inode.durable)
    if not inode.unsynced:
        return data
    sizes = [len(data)]
    for position, written in inode.unsynced:
        sizes.append(position if written is None else max(sizes[-1], position + len(written)))
    prefix = len(inode.unsynced) if keep == 1.0 else random.randrange(len(sizes))
    size = sizes[prefix]
    sector = random.choice(SECTORS)
    for position, written in inode.unsynced[:prefix] if random.random() < 0.5 else inode.unsynced:
        if written is None:
            if random.random() < keep:
                del data[position:]
            continue
        start = position
        while start < position + len(written):
            end = min((start // sector + 1) * sector, position + len(written))
            if random.random() < keep:
                data.extend(bytes(max(start - len(data), 0)))
                data[start:end] = written[start - position : end - position]
            start = end
    data.extend(bytes(max(size - len(data), 0)))
    del data[size:]
    return data


def _size(directory: Directory) -> int:
    return sum(_size(entry) if isinstance(entry, Directory) else len(entry.data) for entry in directory.values())

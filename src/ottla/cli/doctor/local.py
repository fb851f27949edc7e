"""Facts about this machine for `ottla doctor`: limits, the user's profiles, and a broker's data directory. Changes nothing.

The holder of a directory's lock is found in /proc, because taking the lock could stop a broker from starting. The holder wrote its process
id into the file, has it open, and is listed in /proc/locks. Without /proc the holder is unknown.

Without a holder, the embedded store is checked completely, as at a start, and metadata files are read. A broker rebuilds unreadable ones of
a log from the log.
"""

from __future__ import annotations

import os
import pwd
import resource
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ottla.client import profiles
from ottla.client.doctor.facts import DataDir, MachineFacts
from ottla.log import checkpoints, filenames
from ottla.log.errors import DirectoryRefused
from ottla.server.data_directory import STORE
from ottla.store.embedded.copies import doubt, read_store
from ottla.store.embedded.file import StoreFileError

#: Files of a log directory and of a partition, with their readers, which return None for an invalid file.
DIRECTORY_CHECKPOINTS: dict[str, Callable[[bytes], object]] = {
    filenames.RECOVERY_POINTS: checkpoints.read_offsets,
    filenames.LOG_STARTS: checkpoints.read_offsets,
    filenames.HIGH_WATERMARKS: checkpoints.read_offsets,
    filenames.CLEANER_OFFSETS: checkpoints.read_offsets,
}
PARTITION_CHECKPOINTS: dict[str, Callable[[bytes], object]] = {
    filenames.LEADER_EPOCHS: checkpoints.read_epochs,
    filenames.PARTITION_METADATA: checkpoints.read_partition_metadata,
}
#: Partitions per log directory that are checked.
PARTITIONS_MAX = 10_000


def store_problem(data_dir: Path) -> str | None:
    """Why the embedded store is damaged; None if it is good or does not exist."""
    try:
        read_store(data_dir.absolute() / STORE)
    except StoreFileError as error:
        return str(error)
    return None


def metadata_problems(data_dir: Path) -> Iterator[tuple[str, str]]:
    """(path, problem) of each unreadable metadata file. Raises: OSError."""
    for directory in [data_dir, *sorted(path for path in data_dir.iterdir() if path.is_dir())]:
        properties = directory / filenames.META_PROPERTIES
        if not properties.exists():
            continue
        try:
            checkpoints.read_meta_properties(properties.read_bytes(), str(directory))
        except DirectoryRefused as error:
            yield str(properties), f"{error}; a broker does not start with it"
        yield from _unreadable(directory, DIRECTORY_CHECKPOINTS)
        partitions = [path for path in sorted(directory.iterdir()) if filenames.partition_of(path.name) is not None and path.is_dir()]
        for partition in partitions[:PARTITIONS_MAX]:
            yield from _unreadable(partition, PARTITION_CHECKPOINTS)


def _unreadable(directory: Path, readers: dict[str, Callable[[bytes], object]]) -> Iterator[tuple[str, str]]:
    for name, read in readers.items():
        path = directory / name
        if path.exists() and read(path.read_bytes()) is None:
            yield str(path), "it is unreadable; the next start rebuilds it from the log"


LOCK = ".lock"
#: Files whose owner is checked.
ENTRIES_MAX = 100_000


def machine(environ: Mapping[str, str]) -> MachineFacts:
    """The facts about this machine that concern clients."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineFacts(files_max=None if limit == resource.RLIM_INFINITY else limit, profile_problems=profile_problems(environ))


def profile_problems(environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(what, evidence, remedy) of each problem of the profiles and of the variables that select one."""
    path = profiles.config_path()
    problems = _environment(environ)
    try:
        text, mode = path.read_text(), path.stat().st_mode
        found = profiles.parsed(text)
    except FileNotFoundError:
        found, mode = profiles.Profiles(None, {}), 0
    except (OSError, ValueError) as error:
        return [*problems, ("The file of profiles is invalid or unreadable", f"{path}: {error}", "Correct it, or remove it.")]
    secret = [name for name, one in found.by_name.items() if any(map(profiles.is_secret, one.settings))]
    if secret and mode & (stat.S_IRWXG | stat.S_IRWXO):
        evidence = f"{path} has secrets (profile {secret[0]}) and mode {stat.S_IMODE(mode):o}"
        problems.append(("Other users can read the secrets of profiles", evidence, f"chmod 600 {path}"))
    for name, one in found.by_name.items():
        for problem in one.problems():
            problems.append(("A profile has an invalid setting", f"{path}, profile {name}: {problem}", "Correct it there."))
    named = environ.get("OTTLA_PROFILE")
    if named and named not in found.by_name:
        problems.append(
            (
                "OTTLA_PROFILE names a profile that does not exist",
                f"OTTLA_PROFILE={named}; profiles: {', '.join(found.by_name) or 'none'}",
                "Use one of these, or add it with ottla profile add.",
            )
        )
    return problems


def _environment(environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    addresses = {name: environ[name] for name in profiles.ENVIRONMENT if environ.get(name)}
    problems = []
    if len(set(addresses.values())) > 1:
        evidence = ", ".join(f"{name}={value}" for name, value in addresses.items())
        problems.append(("Two variables name different clusters", evidence, f"{next(iter(addresses))} is used; unset the other one."))
    if addresses and environ.get("OTTLA_PROFILE"):
        evidence = f"{next(iter(addresses))} and OTTLA_PROFILE={environ['OTTLA_PROFILE']} are both set"
        problems.append(("The profile in OTTLA_PROFILE is ignored", evidence, "Unset one of them."))
    return problems


def data_dir(path: Path) -> DataDir:
    """The facts about a data directory. Errors are part of the result."""
    seen = DataDir(path=str(path.absolute()))
    try:
        if not path.is_dir():
            seen.error = "it is not a directory" if path.exists() else "it does not exist"
            return seen
        _disk_space(seen, path)
        _owners(seen, path)
        _holder(seen, path)
        if seen.holder is None:
            seen.store_problem, seen.store_doubt = store_problem(path), doubt(path.absolute() / STORE)
            seen.metadata_problems = list(metadata_problems(path))
    except OSError as error:
        seen.error = error.strerror or str(error)
    return seen


def _disk_space(seen: DataDir, path: Path) -> None:
    room = os.statvfs(path)
    seen.free_bytes, seen.total_bytes = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    # Some file systems create inodes on demand and report 0 of 0.
    seen.free_files = room.f_favail if room.f_files else None
    seen.is_read_only = bool(room.f_flag & os.ST_RDONLY)


def _owners(seen: DataDir, path: Path) -> None:
    """Raises: OSError."""
    owner = path.stat().st_uid
    seen.owner = _user(owner)
    count = 0
    for top, below, files in os.walk(path):
        for name in [*below, *files]:
            count += 1
            try:
                file_owner = os.lstat(os.path.join(top, name)).st_uid
            except FileNotFoundError:
                # A running broker removes files.
                continue
            if file_owner != owner:
                seen.foreign_files.append(f"{os.path.relpath(os.path.join(top, name), path)} ({_user(file_owner)})")
        if count > ENTRIES_MAX:
            return


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _holder(seen: DataDir, path: Path) -> None:
    lock = path / LOCK
    if not lock.exists():
        return
    seen.has_lock = True
    try:
        written_pid = lock.read_text(errors="replace").strip()
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        # No /proc, or no permission.
        return
    # A line: number, FLOCK, ADVISORY, WRITE, process, device:inode, range. On some file systems the inode differs from that of stat.
    holders = {words[4]: words[5].rpartition(":")[2] for words in held if len(words) > 5 and words[1] == "FLOCK"}
    inode = str(lock.stat().st_ino)
    for pid in dict.fromkeys([written_pid, *(pid for pid, number in holders.items() if number == inode)]):
        if pid in holders and _has_open(pid, lock):
            seen.holder = int(pid)
            seen.holder_files, seen.holder_files_max = _files_of(pid)
            return


def _has_open(pid: str, file: Path) -> bool:
    """Whether a process has a file open; True without permission to see it."""
    try:
        return any(one.exists() and one.samefile(file) for one in (Path("/proc") / pid / "fd").iterdir())
    except PermissionError:
        return True
    except OSError:
        return False


def _files_of(pid: str) -> tuple[int | None, int | None]:
    """Number of open files of a process, and its limit."""
    process = Path("/proc") / pid
    try:
        soft = next(line.split()[3] for line in (process / "limits").read_text().splitlines() if line.startswith("Max open files"))
        return len(list((process / "fd").iterdir())), int(soft) if soft.isdecimal() else None
    except (OSError, StopIteration):
        return None, None

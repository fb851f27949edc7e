"""What `ottla doctor` sees of the machine it runs on: limits, the user's profiles, and a broker's data directory. It only looks.

Whether a directory is locked is read from /proc, since to try the lock is to take it from a broker that starts just then: whoever holds it
has signed it with its process id, has it open, and stands in /proc/locks. Where there is no /proc, nobody is said to hold it.
"""

from __future__ import annotations

import os
import pwd
import resource
import stat
from collections.abc import Mapping
from pathlib import Path

from ottla.cli.common import profiles
from ottla.cli.common.connection import ENVIRONMENT
from ottla.cli.doctor.data_dir import metadata_troubles, store_doubt, store_trouble
from ottla.cli.doctor.facts import DataDir, Machine

LOCK = ".lock"
#: Directories of a broker are two levels deep; so much is looked at, no more.
ENTRIES_MAX = 100_000


def machine(environ: Mapping[str, str]) -> Machine:
    """This machine, as far as clients on it care."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(files_max=None if limit == resource.RLIM_INFINITY else limit, profile_troubles=profile_troubles(environ))


def profile_troubles(environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """What is wrong with the profiles and what the environment says of them: (what, evidence, remedy) each."""
    path = profiles.config_path()
    troubles = _environment(environ)
    try:
        text, mode = path.read_text(), path.stat().st_mode
        found = profiles.parsed(text)
    except FileNotFoundError:
        found, mode = profiles.Profiles(None, {}), 0
    except (OSError, ValueError) as error:
        return [*troubles, ("The file of profiles cannot be read", f"{path}: {error}", "Correct it, or remove it.")]
    secret = [name for name, one in found.by_name.items() if any(map(profiles.is_secret, one.settings))]
    if secret and mode & (stat.S_IRWXG | stat.S_IRWXO):
        evidence = f"{path} has secrets (profile {secret[0]}) and mode {stat.S_IMODE(mode):o}"
        troubles.append(("Others on this machine can read the secrets of profiles", evidence, f"chmod 600 {path}"))
    for name, one in found.by_name.items():
        for setting, value in one.settings.items():
            if problem := profiles.refused(setting, value):
                troubles.append(("A profile has a setting that cannot be used", f"{path}, profile {name}: {problem}", "Correct it there."))
    named = environ.get("OTTLA_PROFILE")
    if named and named not in found.by_name:
        troubles.append(
            (
                "OTTLA_PROFILE names a profile that there is not",
                f"OTTLA_PROFILE={named}; there are: {', '.join(found.by_name) or 'none'}",
                "Name one of these, or add it: ottla profile add.",
            )
        )
    return troubles


def _environment(environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    given = {name: environ[name] for name in ENVIRONMENT if environ.get(name)}
    troubles = []
    if len(set(given.values())) > 1:
        said = ", ".join(f"{name}={value}" for name, value in given.items())
        troubles.append(("Two variables name different clusters", said, f"{next(iter(given))} is taken; unset the other one."))
    if given and environ.get("OTTLA_PROFILE"):
        evidence = f"{next(iter(given))} and OTTLA_PROFILE={environ['OTTLA_PROFILE']} are both set"
        troubles.append(("The profile that the environment names is not read", evidence, "Unset one of them."))
    return troubles


# -- a data directory


def data_dir(path: Path) -> DataDir:
    """A broker's directory. Never raises: what went wrong is in it."""
    seen = DataDir(path=str(path.absolute()))
    try:
        if not path.is_dir():
            seen.error = "it is not a directory" if path.exists() else "there is no such directory"
            return seen
        _room(seen, path)
        _owners(seen, path)
        _holder(seen, path)
        if seen.holder is None:
            seen.store_trouble = store_trouble(path)
            seen.store_doubt = store_doubt(path)
            seen.metadata_troubles = list(metadata_troubles(path))
    except OSError as error:
        seen.error = error.strerror or str(error)
    return seen


def _room(seen: DataDir, path: Path) -> None:
    room = os.statvfs(path)
    seen.free_bytes, seen.total_bytes = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    # Some file systems make room for files as they go, and say 0 of 0.
    seen.free_files = room.f_favail if room.f_files else None
    seen.is_read_only = bool(room.f_flag & os.ST_RDONLY)


def _owners(seen: DataDir, path: Path) -> None:
    """Raises: OSError."""
    owner = path.stat().st_uid
    seen.owner = _user(owner)
    looked = 0
    for top, below, files in os.walk(path):
        for name in [*below, *files]:
            looked += 1
            try:
                whose = os.lstat(os.path.join(top, name)).st_uid
            except FileNotFoundError:
                # A broker that runs removes files.
                continue
            if whose != owner:
                seen.of_others.append(f"{os.path.relpath(os.path.join(top, name), path)} ({_user(whose)})")
        if looked > ENTRIES_MAX:
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
        signed = lock.read_text(errors="replace").strip()
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        # No /proc here, or the directory is somebody else's.
        return
    # Of a lock: number, FLOCK, ADVISORY, WRITE, process, device:inode, range. Not every file system tells the inode that stat does.
    holders = {words[4]: words[5].rpartition(":")[2] for words in held if len(words) > 5 and words[1] == "FLOCK"}
    inode = str(lock.stat().st_ino)
    for pid in dict.fromkeys([signed, *(pid for pid, number in holders.items() if number == inode)]):
        if pid in holders and _has_open(pid, lock):
            seen.holder = int(pid)
            seen.holder_files, seen.holder_files_max = _files_of(pid)
            return


def _has_open(pid: str, file: Path) -> bool:
    """Whether a process has a file open; true where that may not be seen."""
    try:
        return any(one.exists() and one.samefile(file) for one in (Path("/proc") / pid / "fd").iterdir())
    except PermissionError:
        return True
    except OSError:
        return False


def _files_of(pid: str) -> tuple[int | None, int | None]:
    """How many files a process has open, and may have."""
    process = Path("/proc") / pid
    try:
        soft = next(line.split()[3] for line in (process / "limits").read_text().splitlines() if line.startswith("Max open files"))
        return len(list((process / "fd").iterdir())), int(soft) if soft.isdecimal() else None
    except (OSError, StopIteration):
        return None, None

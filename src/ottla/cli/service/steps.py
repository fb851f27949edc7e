"""Steps of an installation: decided first, then shown or carried out one after the other. Each may be repeated."""

from __future__ import annotations

import grp
import os
import pwd
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias, assert_never

import click

from ottla.cli.service.unit import MARK, Service

#: systemd made it if it is the machine's first process (sd_booted(3)).
BOOTED = Path("/run/systemd/system")


class AddUser(NamedTuple):
    """Adds a system user that cannot log in, unless it exists."""

    name: str
    home: PurePosixPath

    def __str__(self) -> str:
        return f"add the system user {self.name}, unless it exists"


class MakeDirectory(NamedTuple):
    """Makes a directory; `group`: of a directory that only root writes."""

    path: PurePosixPath
    owner: str
    group: str

    def __str__(self) -> str:
        return f"make {self.path}, mode 0750, owner {self.owner}:{self.group}"


class WriteFile(NamedTuple):
    """Writes a file of root. `keep`: unless it exists."""

    path: PurePosixPath
    text: str
    mode: int
    group: str
    keep: bool

    def __str__(self) -> str:
        return f"write {self.path}, mode {self.mode:04o}" + (", unless it exists" if self.keep else "")


class RemoveFile(NamedTuple):
    """Removes a file."""

    path: PurePosixPath

    def __str__(self) -> str:
        return f"remove {self.path}"


class RunCommand(NamedTuple):
    """Runs a command."""

    command: tuple[str, ...]

    def __str__(self) -> str:
        return f"run {' '.join(self.command)}"


Step: TypeAlias = AddUser | MakeDirectory | WriteFile | RemoveFile | RunCommand


def installation(service: Service, *, start: bool) -> Iterator[Step]:
    yield AddUser(service.user, service.data_dir)
    yield MakeDirectory(service.data_dir, service.user, service.user)
    yield MakeDirectory(service.config_dir, "root", service.user)
    # Settings may hold passwords: the service reads them and nobody else.
    yield WriteFile(service.config, service.settings_text(), 0o640, service.user, keep=True)
    yield WriteFile(PurePosixPath(service.unit), service.unit_text(), 0o644, "root", keep=False)
    yield RunCommand(("systemctl", "daemon-reload"))
    yield RunCommand(("systemctl", "enable", *(("--now",) if start else ()), service.unit.name))


def removal(unit: Path) -> Iterator[Step]:
    yield RunCommand(("systemctl", "disable", "--now", unit.name))
    yield RemoveFile(PurePosixPath(unit))
    yield RunCommand(("systemctl", "daemon-reload"))


def carry_out(step: Step, root: Path | None) -> None:
    """``root``: a directory that becomes the file system of another machine; only files are written there. Raises: ClickException."""
    try:
        match step:
            case AddUser(name, home):
                if root is None and not _exists(name):
                    _run(
                        "useradd",
                        "--system",
                        "--user-group",
                        "--home-dir",
                        str(home),
                        "--no-create-home",
                        "--shell",
                        "/usr/sbin/nologin",
                        name,
                    )
            case MakeDirectory(path, owner, group):
                made = _below(root, path)
                made.mkdir(parents=True, exist_ok=True)
                made.chmod(0o750)
                if root is None:
                    os.chown(made, pwd.getpwnam(owner).pw_uid, grp.getgrnam(group).gr_gid)
            case WriteFile():
                _write(step, root)
            case RemoveFile(path):
                _below(root, path).unlink(missing_ok=True)
            case RunCommand(command):
                if root is None:
                    _run(*command)
            case _:
                assert_never(step)
    except OSError as error:
        raise click.ClickException(f"cannot {step}: {error.strerror or error}") from None
    except KeyError as error:
        raise click.ClickException(f"cannot {step}: {error.args[0]}") from None


def _below(root: Path | None, path: PurePosixPath) -> Path:
    return Path(path) if root is None else root / path.relative_to("/")


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _write(step: WriteFile, root: Path | None) -> None:
    """A file of another owner than this program is not replaced."""
    path = _below(root, step.path)
    if path.exists():
        if step.keep:
            return
        if not is_ours(path):
            raise click.ClickException(f"{path} was not written by ottla service install; remove it, or choose another --name")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(step.text)
        if root is None:
            os.fchown(file.fileno(), 0, grp.getgrnam(step.group).gr_gid)
        os.fchmod(file.fileno(), step.mode)
        os.fsync(file.fileno())
    unfinished.replace(path)


def is_ours(unit: Path) -> bool:
    """Whether `ottla service install` wrote a unit."""
    return unit.read_text(errors="replace").startswith(MARK)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise click.ClickException(f"{command[0]} is not installed on this machine") from None
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")

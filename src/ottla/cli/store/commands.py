"""``ottla store``: checks the embedded coordination store of a data directory, and restores it from a good copy.

The server keeps two copies of its store (``ottla.store.embedded.copies``). It never restores one by itself, because changes after the
copy are lost: the operator decides that with ``ottla store restore``. Exit code 1: the store is damaged, or nothing was restored.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ottla.cli.common.confirmation import DRY, agreed, dry_run_option, yes_option
from ottla.cli.common.lazy import Commands
from ottla.server.data_directory import STORE, CannotStart, LockedDirectory, default_data_directory
from ottla.store.embedded.copies import LOST_UNKNOWN, Candidate, candidates, described, doubt, lost_after, read_store, restore
from ottla.store.embedded.file import StoreFileError, read_contents

F = TypeVar("F", bound=Callable[..., Any])


def data_dir_option(function: F) -> F:
    """`--data-dir` of `ottla serve`."""
    return click.option(
        "--data-dir",
        metavar="DIR",
        type=click.Path(path_type=Path),
        default=default_data_directory(),
        show_default=True,
        help="Data directory of the server, as given to ottla serve.",
    )(function)


@click.group(name="store", cls=Commands)
def command() -> None:
    """Check the embedded coordination store, and restore it. The server must not run."""


@command.command(name="check")
@data_dir_option
def check(data_dir: Path) -> None:
    """Check every page and every node of the store, and list the states that it can be restored to.

    Exit code 0 when the store is good, and 1 otherwise. Changes nothing.
    """
    path = data_dir.absolute() / STORE
    held = _held(data_dir)
    try:
        now_s = time.time()
        problem = None
        try:
            contents = read_store(path)
        except StoreFileError as error:
            problem = str(error)
        else:
            found = "there is no store" if contents is None else f"{len(contents.rows)} nodes, {contents.zxid} transactions"
            click.echo(f"{path} is good: {found}")
            if (unknown := doubt(path)) is not None:
                click.echo(
                    f"Warning: {unknown}, so the last changes may be missing; the next start puts epochs and ids ahead by {LOST_UNKNOWN}"
                )
        for one in candidates(path):
            if one.path != path or problem is not None:
                click.echo(f"{one.path.name}: {described(one, now_s=now_s)}")
    finally:
        held.release()
    if problem is not None:
        raise click.ClickException(problem)


@command.command(name="restore")
@data_dir_option
@click.option("--from", "source", metavar="FILE", type=click.Path(path_type=Path), help="State to restore. [default: the newest good one]")
@click.option("--even-if-good", is_flag=True, help="Restore also when the store is not damaged.")
@yes_option
@dry_run_option
def restore_command(data_dir: Path, source: Path | None, even_if_good: bool, yes: bool, dry_run: bool) -> None:
    """Replace a damaged store by its newest good state, and keep the damaged files under other names.

    Changes of topics, settings and leaders after that state are lost; records are not. Epochs and ids of the state are put ahead, so that
    none is given out a second time.
    """
    path = data_dir.absolute() / STORE
    held = _held(data_dir)
    try:
        try:
            there = read_store(path)
        except StoreFileError as error:
            click.echo(str(error), err=True)
        else:
            if not even_if_good:
                raise click.ClickException(f"{path} is {'not damaged' if there else 'not there'}; nothing was restored")
        candidate = _from(path, source) if source is not None else next(iter(candidates(path)), None)
        if candidate is None:
            raise click.ClickException(f"there is no good copy of {path}; restore a backup of it with --from FILE")
        what = f"Restore {described(candidate, now_s=time.time())}."
        if dry_run:
            click.echo(f"{what} {DRY}")
            return
        agreed(what, [str(candidate.path)], yes=yes)
        kept = restore(path, candidate, now_s=time.time())
    except (OSError, sqlite3.Error, StoreFileError) as error:
        raise click.ClickException(f"cannot restore {path}: {error}") from None
    finally:
        held.release()
    names = ", ".join(one.name for one in kept)
    click.echo(f"ottla: {path} is restored from {candidate.path.name}" + (f"; the damaged files are {names}" if kept else ""))


def _held(data_dir: Path) -> LockedDirectory:
    """The data directory, which no server uses meanwhile. Raises: ClickException."""
    if not data_dir.is_dir():
        raise click.ClickException(f"{data_dir} is not a directory; name the server's with --data-dir")
    try:
        return LockedDirectory(data_dir)
    except CannotStart as error:
        raise click.ClickException(str(error)) from None


def _from(path: Path, source: Path) -> Candidate:
    """A state that the operator names. Raises: ClickException."""
    try:
        contents = read_contents(source.absolute())
    except StoreFileError as error:
        raise click.ClickException(str(error)) from None
    if contents is None:
        raise click.ClickException(f"{source} is empty")
    return Candidate(source, contents, source.stat().st_mtime, lost_after(path, contents))

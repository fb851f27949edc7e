"""``ottla store``: checks the embedded coordination store of a data directory, and restores it from a good copy.

The server keeps two copies of its store (``ottla.store.embedded.copies``). It never restores one by itself, because changes after the
copy are lost; ``ottla store restore`` does it. Exit code 1: the store is damaged, or nothing was restored.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import click

from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.lazy import CommandGroup
from ottla.cli.common.output_formats import OUTCOME, OutputFormat, fields, output_option
from ottla.server.data_directory import STORE, CannotStart, LockedDirectory, default_data_directory
from ottla.store.embedded.copies import LOST_UNKNOWN, Candidate, candidates, described, doubt, lost_after, read_store, restore
from ottla.store.embedded.file import StoreFileError, read_contents

#: `--data-dir` of `ottla serve`.
data_dir_option = click.option(
    "--data-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=default_data_directory(),
    show_default=True,
    help="Data directory of ottla serve.",
)


@click.group(name="store", cls=CommandGroup)
def command() -> None:
    """Check and restore the embedded coordination store. Stop the server first."""


@fields(
    path="the store",
    good="whether it is not damaged",
    problem="the damage; null: none",
    nodes="number of its nodes; null: damaged, or there is no store",
    transactions="number of its transactions; null: damaged, or there is no store",
    doubt="why its last changes may be missing; null: they are not",
    **{
        "copies[].path": "file of a state that it can be restored to",
        "copies[].made_ms": "time of the copy; null: unknown",
        "copies[].transactions": "number of its transactions",
        "copies[].lost": "number of lost transactions after it; null: unknown",
    },
)
@command.command(name="check")
@data_dir_option
@output_option
def check(data_dir: Path, output: OutputFormat) -> None:
    """Check the store and list its good copies.

    Every page and node is checked. The store can be restored to each listed state.

    Exit code 0 if the store is good, else 1. Changes nothing.
    """
    path = data_dir.absolute() / STORE
    held = _held(data_dir)
    try:
        contents, problem, unknown = None, None, None
        try:
            contents = read_store(path)
            unknown = doubt(path)
        except StoreFileError as error:
            problem = str(error)
        copies = [one for one in candidates(path) if one.path != path or problem is not None]
    finally:
        held.release()
    if output.is_structured:
        document = {"path": str(path), "good": problem is None, "problem": problem, "doubt": unknown}
        document |= {"nodes": contents and len(contents.rows), "transactions": contents and contents.zxid}
        output.document({**document, "copies": [_copy_document(one) for one in copies]})
        raise SystemExit(problem is not None)
    if problem is None:
        content = "there is no store" if contents is None else f"{len(contents.rows)} nodes, {contents.zxid} transactions"
        click.echo(f"{path} is good: {content}")
    if unknown is not None:
        click.echo(f"Warning: {unknown}, so the last changes may be missing; the next start skips {LOST_UNKNOWN} epochs and ids ahead")
    now_s = time.time()
    for one in copies:
        click.echo(f"{one.path.name}: {described(one, now_s=now_s)}")
    if problem is not None:
        raise click.ClickException(problem)


def _copy_document(one: Candidate) -> dict[str, Any]:
    made_ms = None if one.made_s is None else int(one.made_s * 1000)
    return {"path": str(one.path), "made_ms": made_ms, "transactions": one.contents.zxid, "lost": one.lost}


@fields(OUTCOME, restored_from="file that it is restored from", kept="files of the damaged store; empty in a dry run")
@command.command(name="restore")
@data_dir_option
@click.option(
    "--from", "source", metavar="FILE", type=click.Path(path_type=Path), help="File to restore from. [default: the newest good copy]"
)
@click.option("--even-if-good", is_flag=True, help="Restore a store that is not damaged.")
@yes_option
@dry_run_option
@output_option
def restore_command(data_dir: Path, source: Path | None, even_if_good: bool, yes: bool, dry_run: bool, output: OutputFormat) -> None:
    """Replace a damaged store by its newest good copy.

    The damaged files are kept under other names.

    Changes of topics, settings and leaders after that copy are lost; records are not. Epochs and ids skip ahead, so that none is used
    twice.
    """
    path = data_dir.absolute() / STORE
    held = _held(data_dir)
    try:
        try:
            contents = read_store(path)
        except StoreFileError as error:
            click.echo(str(error), err=True)
        else:
            if not even_if_good:
                raise click.ClickException(f"{path} is {'not damaged' if contents else 'missing'}; nothing was restored")
        candidate = _from(path, source) if source is not None else next(iter(candidates(path)), None)
        if candidate is None:
            raise click.ClickException(f"{path} has no good copy; restore a backup with --from FILE")
        question = f"Restore {described(candidate, now_s=time.time())}."
        if dry_run and output.is_structured:
            output.outcome(str(path), "would be restored", restored_from=str(candidate.path), kept=[])
        elif dry_run:
            click.echo(f"{question} {NOTHING_CHANGED}")
        if dry_run:
            return
        confirm(question, [str(candidate.path)], yes=yes)
        kept = restore(path, candidate, now_s=time.time())
    except (OSError, sqlite3.Error, StoreFileError) as error:
        raise click.ClickException(f"cannot restore {path}: {error}") from None
    finally:
        held.release()
    if output.is_structured:
        output.outcome(str(path), "restored", restored_from=str(candidate.path), kept=[str(one) for one in kept])
        return
    names = ", ".join(one.name for one in kept)
    click.echo(f"ottla: {path} is restored from {candidate.path.name}" + (f"; the damaged files are {names}" if kept else ""))


def _held(data_dir: Path) -> LockedDirectory:
    """The locked data directory. Raises: ClickException, if a server uses it."""
    if not data_dir.is_dir():
        raise click.ClickException(f"{data_dir} is not a directory; set the server's data directory with --data-dir")
    try:
        return LockedDirectory(data_dir)
    except CannotStart as error:
        raise click.ClickException(str(error)) from None


def _from(path: Path, source: Path) -> Candidate:
    """The state in a file of `--from`. Raises: ClickException."""
    try:
        contents = read_contents(source.absolute())
    except StoreFileError as error:
        raise click.ClickException(str(error)) from None
    if contents is None:
        raise click.ClickException(f"{source} is empty")
    return Candidate(source, contents, source.stat().st_mtime, lost_after(path, contents))

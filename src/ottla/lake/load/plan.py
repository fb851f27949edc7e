"""Decides which files to load, and from which row, by comparing them with the journal.

    in the journal      the file now                       loaded
    --------------      ------------                       ------
    no entry            any                                all rows
    done                unchanged                          nothing
    not done            unchanged                          the remaining rows
    either              longer, same beginning             the added rows (a growing log)
    either              changed otherwise                  by --changed: fail, again, continue, skip

A file is unchanged if its size is, and either its modification time or its fingerprint.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from ottla.lake.load.column_mapping import ColumnMapping
from ottla.lake.load.inputs import LINES, STDIN, CannotLoad, Input, ends_in_line, fingerprint
from ottla.lake.load.load_journal import JournalEntry, LoadJournal
from ottla.lake.load.reader import ReadOptions, column_difference
from ottla.lake.load.readers import open_reader

#: Most files whose columns are compared before the first record is sent.
COMPARED_MAX = 1000


class FilePlan(NamedTuple):
    """A file to load."""

    given: Input
    #: Its progress; None: the file has no journal entry.
    entry: JournalEntry | None
    #: A message for the user, or empty.
    note: str = ""


class LoadPlan(NamedTuple):
    """Files to load, and files to leave out."""

    files: list[FilePlan]
    #: Files that are loaded already, and changed files that --changed skip leaves out.
    loaded: list[Input]
    changed: list[Input]


def digest(mapping: ColumnMapping, options: ReadOptions, form: str) -> str:
    """A hash of the options that decide which records a file becomes."""
    # Journals of earlier versions hold hashes with these class names, so the text must not change.
    shape, how = f"Shape{repr(mapping).removeprefix('ColumnMapping')}", f"How{repr(options).removeprefix('ReadOptions')}"
    return blake2b(f"({shape}, {how}, {form!r})".encode(), digest_size=12).hexdigest()


def plan_files(
    files: Iterable[Input], journal: LoadJournal | None, mapping: ColumnMapping, options: ReadOptions, *, changed: str, again: bool
) -> LoadPlan:
    """Raises: CannotLoad; OSError."""
    plan = LoadPlan([], [], [])
    for given in files:
        if journal is None or given.name == STDIN:
            plan.files.append(FilePlan(given, None))
            continue
        if again:
            journal.forget(given.identity)
        _plan_file(plan, given, journal.entries.get(given.identity), digest(mapping, options, given.format), changed)
    return plan


def _plan_file(plan: LoadPlan, given: Input, entry: JournalEntry | None, word: str, changed: str) -> None:
    fresh = JournalEntry(given.identity, given.size, given.mtime_ns, fingerprint(given, given.size), word)
    if entry is None:
        plan.files.append(FilePlan(given, fresh))
        return
    if _same(given, entry, fresh):
        if entry.done:
            plan.loaded.append(given)
            return
        _check_options(given, entry, word)
        plan.files.append(FilePlan(given, entry, _continues_behind(entry)))
        return
    follows = msgspec.structs.replace(
        entry,
        size=fresh.size,
        mtime_ns=fresh.mtime_ns,
        fingerprint=fresh.fingerprint,
        done=False,
        options_digest=word if entry.done else entry.options_digest,
    )
    if _grown(given, entry):
        _check_options(given, follows, word)
        plan.files.append(FilePlan(given, follows, f"grew from {entry.size:,} to {given.size:,} bytes; {_continues_behind(entry)}"))
        return
    match changed:
        case "again":
            plan.files.append(FilePlan(given, fresh, "has changed, and is loaded again"))
        case "continue":
            # Records behind these rows came from the old content, so they cannot be matched with the new rows.
            sure = msgspec.structs.replace(follows, writers=[], offsets={})
            again = "; some of the next records may be duplicates" if entry.writers else ""
            plan.files.append(FilePlan(given, sure, f"has changed; {_continues_behind(entry)}{again}"))
        case "skip":
            plan.changed.append(given)
        case _:
            raise CannotLoad(
                f"{given.name} has changed since {entry.rows:,} of its records were loaded ({entry.size:,} bytes then,"
                f" {given.size:,} now): --changed continue continues behind them, --changed again loads all of it, --changed skip none"
            )


def _same(given: Input, entry: JournalEntry, fresh: JournalEntry) -> bool:
    return given.size == entry.size and (given.mtime_ns == entry.mtime_ns or fresh.fingerprint == entry.fingerprint)


def _grown(given: Input, entry: JournalEntry) -> bool:
    if given.format not in LINES or given.codec is not None or given.size <= entry.size or not entry.size:
        return False
    return fingerprint(given, entry.size) == entry.fingerprint and ends_in_line(given, entry.size)


def _continues_behind(entry: JournalEntry) -> str:
    return f"continues behind {entry.rows:,} records"


def _check_options(given: Input, entry: JournalEntry, word: str) -> None:
    if entry.options_digest != word and (entry.rows or entry.writers):
        raise CannotLoad(
            f"{given.name} was started with other options (columns, key, headers ...), and {entry.rows:,} of its records are written:"
            " finish it with those, or load all of it --again"
        )


def compare_columns(files: Sequence[FilePlan], mapping: ColumnMapping, options: ReadOptions, *, mixed: bool) -> None:
    """Checks that the files have the mapped columns, and the same ones. Raises: CannotLoad."""
    first: tuple[str, dict[str, str]] | None = None
    for given, *_ in files[:COMPARED_MAX]:
        if given.name == STDIN or given.format in ("json", "text"):
            continue
        with open_reader(given, options) as reader:
            mapping.check(reader.columns, given.name)
            columns = dict(reader.columns or {})
        if first is None:
            first = given.name, columns
        elif not mixed and (why := column_difference(first[1], columns)):
            raise CannotLoad(
                f"the columns of {given.name} and {first[0]} differ: {why}; load both with --mixed, or set types with --type NAME=TYPE"
            )

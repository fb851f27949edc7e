"""Which files are still to be loaded, and from which row on, by what the journal says of them.

    in the journal      the file now                       what is done
    --------------      ------------                       ------------
    nothing             whatever                           all of it
    done                the same                           nothing
    not done            the same                           the rest
    either              longer, its beginning the same     what has been added: a log that grows
    either              changed otherwise                  as --changed says: fail, again, continue, skip

A file is the same when size and time of its last change are, or size and its bytes at both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from ottla.lake.load.column_mapping import Shape
from ottla.lake.load.inputs import LINES, STDIN, CannotLoad, Input, ends_in_line, fingerprint
from ottla.lake.load.load_journal import Entry, Journal
from ottla.lake.load.readers import How, differing, opened

CHANGED = ("fail", "again", "continue", "skip")
#: Columns of so many files are compared before anything is sent.
COMPARED_MAX = 1000


class Planned(NamedTuple):
    """A file to load."""

    given: Input
    #: How far it is; None: nothing is kept of it.
    entry: Entry | None
    #: What is to be told of it, if anything.
    note: str = ""


class Plan(NamedTuple):
    """What is to be done, and what needs not be."""

    files: list[Planned]
    #: Files that are loaded already, and those left out because they changed.
    loaded: list[Input]
    changed: list[Input]


def digest(shape: Shape, how: How, form: str) -> str:
    """A short word for the options that decide what a file's records are."""
    return blake2b(repr((shape, how, form)).encode(), digest_size=12).hexdigest()


def planned(files: Iterable[Input], journal: Journal | None, shape: Shape, how: How, *, changed: str, again: bool) -> Plan:
    """Raises: CannotLoad; OSError."""
    plan = Plan([], [], [])
    for given in files:
        if journal is None or given.name == STDIN:
            plan.files.append(Planned(given, None))
            continue
        if again:
            journal.forget(given.identity)
        _plan_file(plan, given, journal.entries.get(given.identity), digest(shape, how, given.format), changed)
    return plan


def _plan_file(plan: Plan, given: Input, entry: Entry | None, word: str, changed: str) -> None:
    fresh = Entry(given.identity, given.size, given.mtime_ns, fingerprint(given.name, given.size), word)
    if entry is None:
        plan.files.append(Planned(given, fresh))
        return
    if _same(given, entry, fresh):
        if entry.done:
            plan.loaded.append(given)
            return
        _check_options(given, entry, word)
        plan.files.append(Planned(given, entry, _goes_on(entry)))
        return
    follows = msgspec.structs.replace(
        entry, size=fresh.size, mtime_ns=fresh.mtime_ns, print=fresh.print, done=False, shape=word if entry.done else entry.shape
    )
    if _grown(given, entry):
        _check_options(given, follows, word)
        plan.files.append(Planned(given, follows, f"has grown from {entry.size:,} to {given.size:,} bytes; {_goes_on(entry)}"))
        return
    match changed:
        case "again":
            plan.files.append(Planned(given, fresh, "has changed, and is loaded again"))
        case "continue":
            # What the log has behind those rows was counted of the old content: to be sure, the new is sent.
            sure = msgspec.structs.replace(follows, writers=[], offsets={})
            again = "; some of the next may be there twice" if entry.writers else ""
            plan.files.append(Planned(given, sure, f"has changed; {_goes_on(entry)}{again}"))
        case "skip":
            plan.changed.append(given)
        case _:
            raise CannotLoad(
                f"{given.name} has changed since {entry.rows:,} of its records were loaded ({entry.size:,} bytes then,"
                f" {given.size:,} now): --changed continue goes on behind them, --changed again loads all of it, --changed skip none"
            )


def _same(given: Input, entry: Entry, fresh: Entry) -> bool:
    return given.size == entry.size and (given.mtime_ns == entry.mtime_ns or fresh.print == entry.print)


def _grown(given: Input, entry: Entry) -> bool:
    if given.format not in LINES or given.codec is not None or given.size <= entry.size or not entry.size:
        return False
    return fingerprint(given.name, entry.size) == entry.print and ends_in_line(given.name, entry.size)


def _goes_on(entry: Entry) -> str:
    return f"goes on behind {entry.rows:,} records"


def _check_options(given: Input, entry: Entry, word: str) -> None:
    if entry.shape != word and (entry.rows or entry.writers):
        raise CannotLoad(
            f"{given.name} was begun with other options (columns, key, headers ...), and {entry.rows:,} of its records are written:"
            " finish it with those, or load all of it --again"
        )


def compared(files: Sequence[Planned], shape: Shape, how: How, *, mixed: bool) -> None:
    """Opens the files, and looks at their columns. Raises: CannotLoad for one that is not there, or a file that differs from the first."""
    first: tuple[str, dict[str, str]] | None = None
    for given, *_ in files[:COMPARED_MAX]:
        if given.name == STDIN or given.format in ("json", "text"):
            continue
        with opened(given, how) as reader:
            shape.check(reader.columns, given.name)
            columns = dict(reader.columns or {})
        if first is None:
            first = given.name, columns
        elif not mixed and (why := differing(first[1], columns)):
            raise CannotLoad(
                f"{given.name} has not the columns of {first[0]}: {why}; --mixed loads both, --type NAME=TYPE says what is meant"
            )

"""How commands answer: `-o text|wide|json|yaml`, one mechanism for all of them.

A command makes documents: plain dictionaries whose fields are named by `@fields`, from which the reference page is made. json and yaml
print them as they are; text shows them as a table whose columns are declared over the same documents, wide with more of these columns.

    text    on a terminal an aligned table, in a pipe tab-separated lines without headings (see `ottla.cli.common.tables`)
    wide    the same with more columns
    json    one document, on one line in a pipe, indented on a terminal
    yaml    the same as YAML 1.1

Fields keep their names and meanings; new ones may come. What is not there is null. Times are milliseconds since 1970, sizes bytes. Lists
are sorted.

Exit codes: 0 done, 1 failed, or something is not well where that was asked, 2 asked wrongly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from ottla.cli.common import tables
from ottla.cli.common.tables import Column, Row

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=click.Command)
KINDS = ("text", "wide", "json", "yaml")
_HEADINGS = "ottla.headings"
#: What `Form.report` prints of each thing.
OUTCOME = {
    "name": "what the command was asked to change",
    "outcome": "what became of it; null: it failed",
    "error": "null, or {code, message}: the protocol's error code and a sentence",
}


OUTCOMES = (Column("NAME", "name"), Column("OUTCOME", "outcome"))


class Form:
    """The form that was asked for."""

    def __init__(self, kind: str = "text", *, headings: bool | None = None) -> None:
        self.kind = kind
        #: Whether tables have headings; None: on a terminal.
        self.headings = headings

    @property
    def for_programs(self) -> bool:
        """Whether a document is wanted, not a table."""
        return self.kind in ("json", "yaml")

    @property
    def is_wide(self) -> bool:
        """Whether more than the usual columns are wanted."""
        return self.kind == "wide"

    def show(self, documents: Sequence[Row], columns: Sequence[Column], *, title: str = "") -> None:
        """A list of documents, one row each."""
        if self.for_programs:
            self.document(documents)
        else:
            self.table(documents, columns, title=title)

    def table(self, rows: Iterable[Row], columns: Sequence[Column], *, title: str = "", prefix: tuple[str, object] | None = None) -> None:
        """A table; `title` stands above it on a terminal; in a pipe `prefix`, (heading, value), is a column before the others."""
        sys.stdout.write(self.drawn(rows, columns, title=title, prefix=prefix))

    def drawn(self, rows: Iterable[Row], columns: Sequence[Column], *, title: str = "", prefix: tuple[str, object] | None = None) -> str:
        """What `table` prints."""
        shown = [column for column in columns if self.is_wide or not column.wide]
        if not tables.is_terminal():
            return tables.tabbed(shown, rows, headings=bool(self.headings), prefix=prefix)
        return tables.drawn(
            shown, rows, title=title, headings=self.headings is not False, width=tables.terminal_columns(), colours=tables.has_colours()
        )

    def each(self, documents: Sequence[dict[str, Any]], show: Callable[[dict[str, Any], Form], None]) -> None:
        """Documents whole: one value for programs; for people each by `show`, with an empty line between them on a terminal."""
        if self.for_programs:
            self.document(documents)
            return
        for number, document in enumerate(documents):
            if number and tables.is_terminal():
                click.echo()
            show(document, self)

    def document(self, value: Any, *, of_many: bool = False) -> None:
        """One document as JSON or YAML; one of a row of them is a line, or begins with `---`."""
        if self.kind == "yaml":
            sys.stdout.write(("---\n" if of_many else "") + _yaml(value))
            return
        import msgspec

        encoded = msgspec.json.encode(value)
        if tables.is_terminal() and not of_many:
            encoded = msgspec.json.format(encoded, indent=2)
        sys.stdout.write(encoded.decode() + "\n")

    def report(self, names: Iterable[str], failed: Mapping[str, Any], done: str, otherwise: Mapping[str, str] | None = None) -> None:
        """Say what became of each thing that was named; failures on stderr, or in the document, and as the exit code."""
        outcomes = {name: None if name in failed else (otherwise or {}).get(name, done) for name in names}
        if self.for_programs:
            errors = {name: {"code": getattr(error, "code", None), "message": str(error)} for name, error in failed.items()}
            self.document([{"name": name, "outcome": outcome, "error": errors.get(name)} for name, outcome in outcomes.items()])
        else:
            # A line or two need no headings, unless they are asked for.
            told = [{"name": name, "outcome": outcome} for name, outcome in outcomes.items() if outcome is not None]
            Form(self.kind, headings=bool(self.headings)).table(told, OUTCOMES)
            for name in failed:
                note(f"Error: {name}: {' '.join(str(failed[name]).split())}")
        if failed:
            raise SystemExit(1)


def output_option(function: F) -> F:
    """`-o` and `--no-headers`; the command gets a `Form` named `output`."""

    def made(context: click.Context, parameter: click.Parameter, kind: str) -> Form:
        return Form(kind, headings=context.meta.get(_HEADINGS))

    def headed(context: click.Context, parameter: click.Parameter, wanted: bool | None) -> None:
        context.meta[_HEADINGS] = wanted

    function = click.option(
        "--headers/--no-headers",
        default=None,
        is_eager=True,
        expose_value=False,
        callback=headed,
        help="Headings above tables or not. [default: on a terminal]",
    )(function)
    return click.option(
        "-o",
        "--output",
        type=click.Choice(KINDS),
        default="text",
        show_default=True,
        callback=made,
        help="text or wide for people and pipes, json or yaml for programs.",
    )(function)


def fields(*documents: Mapping[str, str], **named: str) -> Callable[[C], C]:
    """Name the fields of the documents that a command prints: of a nested one `outer.inner`, of those in a list `outer[].inner`."""

    def told(command: C) -> C:
        found = [item for document in (*documents, named) for item in document.items()]
        # Those of the document itself first.
        command.ottla_fields = dict(sorted(found, key=lambda item: "." in item[0]))  # type: ignore[attr-defined]
        return command

    return told


def fields_of(command: click.Command) -> dict[str, str]:
    """What `fields` said of a command; nothing if it prints none."""
    found: dict[str, str] = getattr(command, "ottla_fields", {})
    return found


def note(sentence: str) -> None:
    """Something to know beside the answer: on standard error, so that it is in nobody's pipe."""
    click.echo(sentence, err=True)


def _yaml(value: Any) -> str:
    import msgspec
    import yaml

    plain = msgspec.to_builtins(value)
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    made: str = yaml.dump(
        plain, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=tables.terminal_columns()
    )
    return made

"""The output formats of all commands: `-o text|wide|json|yaml`.

A command produces documents: plain dictionaries. `@fields` declares their fields; the reference page is generated from it. json and yaml
print the documents, text and wide print a table whose columns are declared over the same documents.

    text    on a terminal an aligned table, in a pipe tab-separated lines; headings unless --no-headers (see `ottla.cli.common.tables`)
    wide    the same with more columns
    json    one document, on one line in a pipe, indented on a terminal
    yaml    the same as YAML 1.1

Fields keep their names and meanings; fields may be added. A missing value is null. Times are in milliseconds since 1970, sizes in bytes.
Lists are sorted.

Exit codes: 0 success, 1 failed or problem found, 2 usage error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from ottla.cli.common import tables
from ottla.cli.common.connection import combined
from ottla.cli.common.tables import Column, Row

C = TypeVar("C", bound=click.Command)
KINDS = ("text", "wide", "json", "yaml")
_HEADINGS = "ottla.headings"
#: Fields that `OutputFormat.report` prints.
OUTCOME = {
    "name": "name of the resource to change",
    "outcome": "result; null: failed",
    "error": "null, or {code, message}: the protocol's error code and a message",
}


OUTCOMES = (Column("NAME", "name"), Column("OUTCOME", "outcome"))


class OutputFormat:
    """The output format of one call of a command."""

    def __init__(self, kind: str = "text", *, headings: bool | None = None) -> None:
        self.kind = kind
        #: Whether tables have headings; None: all but those of `report`.
        self.headings = headings
        #: Headings of the last table in a pipe. A table with the same ones continues it.
        self._columns: list[str] = []

    @property
    def is_structured(self) -> bool:
        """Whether documents are printed (json, yaml), not tables."""
        return self.kind in ("json", "yaml")

    @property
    def is_wide(self) -> bool:
        """Whether tables include the wide columns."""
        return self.kind == "wide"

    def show(self, documents: Sequence[Row], columns: Sequence[Column], *, title: str = "") -> None:
        """Prints a list of documents, or a table with a row for each."""
        if self.is_structured:
            self.document(documents)
        else:
            self.table(documents, columns, title=title)

    def table(self, rows: Iterable[Row], columns: Sequence[Column], *, title: str = "", prefix: tuple[str, object] | None = None) -> None:
        """Prints a table. `title` is printed above it on a terminal; `prefix`, (heading, value), is the first column in a pipe."""
        sys.stdout.write(self.rendered(rows, columns, title=title, prefix=prefix))

    def rendered(self, rows: Iterable[Row], columns: Sequence[Column], *, title: str = "", prefix: tuple[str, object] | None = None) -> str:
        """The text that `table` prints."""
        shown = [column for column in columns if self.is_wide or not column.wide]
        if not tables.is_terminal():
            names = [column.heading for column in shown]
            headings = self.headings is not False and names != self._columns
            self._columns = names
            return tables.tab_separated(shown, rows, headings=headings, prefix=prefix)
        return tables.aligned(
            shown, rows, title=title, headings=self.headings is not False, width=tables.terminal_columns(), colours=tables.has_colours()
        )

    def each(self, documents: Sequence[dict[str, Any]], show: Callable[[dict[str, Any], OutputFormat], None]) -> None:
        """Prints all documents as one value, or each with `show`, with an empty line between them on a terminal."""
        if self.is_structured:
            self.document(documents)
            return
        for number, document in enumerate(documents):
            if number and tables.is_terminal():
                click.echo()
            show(document, self)

    def document(self, value: Any, *, of_many: bool = False) -> None:
        """Prints a document as JSON or YAML. With `of_many`, JSON stays on one line and YAML begins with `---`."""
        if self.kind == "yaml":
            sys.stdout.write(("---\n" if of_many else "") + _yaml(value))
            return
        import msgspec

        encoded = msgspec.json.encode(value)
        if tables.is_terminal() and not of_many:
            encoded = msgspec.json.format(encoded, indent=2)
        sys.stdout.write(encoded.decode() + "\n")

    def outcome(self, name: str, outcome: str, *, shown: str = "", **more: Any) -> None:
        """Prints the result of a change: a document of `OUTCOME` with `more` fields, or a line with `shown`, by default the outcome."""
        if self.is_structured:
            self.document({"name": name, "outcome": outcome, "error": None, **more})
        else:
            click.echo(f"{name}\t{shown or outcome}")

    def report(self, names: Iterable[str], failed: Mapping[str, Any], done: str, otherwise: Mapping[str, str] | None = None) -> None:
        """Prints the result for each name. Errors go to stderr, or into the document. Exits with 1 if one failed."""
        outcomes = {name: None if name in failed else (otherwise or {}).get(name, done) for name in names}
        if self.is_structured:
            errors = {name: {"code": getattr(error, "code", None), "message": str(error)} for name, error in failed.items()}
            self.document([{"name": name, "outcome": outcome, "error": errors.get(name)} for name, outcome in outcomes.items()])
        else:
            # No headings by default: the table is usually one line.
            rows = [{"name": name, "outcome": outcome} for name, outcome in outcomes.items() if outcome is not None]
            OutputFormat(self.kind, headings=bool(self.headings)).table(rows, OUTCOMES)
            for name in failed:
                note(f"Error: {name}: {' '.join(str(failed[name]).split())}")
        if failed:
            raise SystemExit(1)


def _output_format(context: click.Context, parameter: click.Parameter, kind: str) -> OutputFormat:
    return OutputFormat(kind, headings=context.meta.get(_HEADINGS))


def _set_headings(context: click.Context, parameter: click.Parameter, headings: bool | None) -> None:
    context.meta[_HEADINGS] = headings


#: `-o` and `--no-headers`; the command receives an `OutputFormat` named `output`.
output_option = combined(
    click.option(
        "--headers/--no-headers",
        default=None,
        is_eager=True,
        expose_value=False,
        callback=_set_headings,
        help="Print headings above tables. [default: headers]",
    ),
    click.option(
        "-o",
        "--output",
        type=click.Choice(KINDS),
        default="text",
        show_default=True,
        callback=_output_format,
        help="Output format; wide is text with more columns.",
    ),
)


def fields(*documents: Mapping[str, str], **named: str) -> Callable[[C], C]:
    """Declares the fields of a command's documents. Nested fields are `outer.inner`, fields of list items `outer[].inner`."""

    def declare(command: C) -> C:
        declared = [item for document in (*documents, named) for item in document.items()]
        # Top-level fields come first.
        command.ottla_fields = dict(sorted(declared, key=lambda item: "." in item[0]))  # type: ignore[attr-defined]
        return command

    return declare


def fields_of(command: click.Command) -> dict[str, str]:
    """The fields that a command declares with `fields`."""
    declared: dict[str, str] = getattr(command, "ottla_fields", {})
    return declared


def note(sentence: str) -> None:
    """Prints a remark to standard error, outside the command's output."""
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

"""What the options of ``ottla pipeline load`` mean. All raise UsageError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ottla.lake.load.column_mapping import ColumnMapping, Template, parse_template
from ottla.lake.load.inputs import CannotLoad
from ottla.lake.load.readers import ReadOptions


def names_of(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def shape_asked(asked: Mapping[str, Any], bytes_max: int) -> ColumnMapping:
    """What is what of a record."""
    columns, without = names_of(asked["columns"]), names_of(asked["without"])
    if asked["value"] is not None and (columns or without):
        raise click.UsageError("--value takes one column as it is, --columns and --without make JSON of several: one or the other")
    if asked["headers"] and asked["headers_column"]:
        raise click.UsageError("--headers takes them from a column, --header says them: one or the other")
    headers = []
    for text in asked["headers"]:
        name, equals, value = text.partition("=")
        if not name:
            raise click.UsageError(f"--header expects NAME=TEMPLATE, or NAME alone for null, not {text!r}")
        headers.append((name, _template(value, "--header") if equals else None))
    partition = asked["partition"]
    return ColumnMapping(
        key=None if asked["key"] is None else _key(asked["key"]),
        value=asked["value"],
        columns=columns or None,
        without=without,
        headers=tuple(headers),
        headers_column=asked["headers_column"],
        timestamp=asked["timestamp"],
        partition=int(partition) if partition is not None and partition.isdecimal() else partition,
        base64=names_of(asked["base64"]),
        bytes_max=bytes_max,
    )


def _key(text: str) -> Template:
    """A column's name, or a template with braces."""
    return _template(text, "--key") if "{" in text or "}" in text else Template(((text,),))


def _template(text: str, option: str) -> Template:
    try:
        return parse_template(text)
    except CannotLoad as error:
        raise click.UsageError(f"{option}: {error}") from None


def how_asked(asked: Mapping[str, Any], shape: ColumnMapping) -> ReadOptions:
    """How files are to be read."""
    quote: str | None = None if asked["quote"] == "none" else asked["quote"]
    delimiter = None if asked["delimiter"] is None else asked["delimiter"].replace("\\t", "\t")
    for option, one in (("--delimiter", delimiter), ("--quote", quote)):
        if one is not None and len(one.encode()) != 1:
            raise click.UsageError(f"{option} is one character of ASCII, not {one!r}")
    types = {}
    for text in asked["types"]:
        name, equals, kind = text.partition("=")
        if not name or not equals or not kind:
            raise click.UsageError(f"--type expects NAME=TYPE, such as zip=string, not {text!r}")
        types[name] = kind
    return ReadOptions(
        delimiter, quote, names_of(asked["names"]), asked["nulls"], types, asked["all_text"],
        fields=shape.needed, chosen=shape.columns, without=shape.without,
    )  # fmt: skip


def rate_asked(text: str) -> float:
    """Records a second."""
    from ottla.cli.common.rate_limit import rate

    try:
        return rate(text, "--rate")
    except ValueError as error:
        raise click.UsageError(str(error)) from None

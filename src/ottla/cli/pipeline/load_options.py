"""Parses the options of ``ottla pipeline load``. All functions raise UsageError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ottla.lake.load.column_mapping import ColumnMapping, Template, parse_template
from ottla.lake.load.inputs import CannotLoad
from ottla.lake.load.reader import ReadOptions


def parse_names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def column_mapping(options: Mapping[str, Any], bytes_max: int) -> ColumnMapping:
    """The mapping of columns to the fields of a record."""
    columns, without = parse_names(options["columns"]), parse_names(options["without"])
    if options["value"] is not None and (columns or without):
        raise click.UsageError("--value (one column unchanged) cannot be combined with --columns and --without (columns as JSON)")
    if options["headers"] and options["headers_column"]:
        raise click.UsageError("--header and --headers cannot be combined")
    headers = []
    for text in options["headers"]:
        name, equals, value = text.partition("=")
        if not name:
            raise click.UsageError(f"--header expects NAME=TEMPLATE, or NAME alone for null, not {text!r}")
        headers.append((name, _template(value, "--header") if equals else None))
    partition = options["partition"]
    return ColumnMapping(
        key=None if options["key"] is None else _key(options["key"]),
        value=options["value"],
        columns=columns or None,
        without=without,
        headers=tuple(headers),
        headers_column=options["headers_column"],
        timestamp=options["timestamp"],
        partition=int(partition) if partition is not None and partition.isdecimal() else partition,
        base64=parse_names(options["base64"]),
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


def read_options(options: Mapping[str, Any], shape: ColumnMapping) -> ReadOptions:
    """Options for reading files."""
    quote: str | None = None if options["quote"] == "none" else options["quote"]
    delimiter = None if options["delimiter"] is None else options["delimiter"].replace("\\t", "\t")
    for option, one in (("--delimiter", delimiter), ("--quote", quote)):
        if one is not None and len(one.encode()) != 1:
            raise click.UsageError(f"{option} expects one ASCII character, not {one!r}")
    types = {}
    for text in options["types"]:
        name, equals, kind = text.partition("=")
        if not name or not equals or not kind:
            raise click.UsageError(f"--type expects NAME=TYPE, such as zip=string, not {text!r}")
        types[name] = kind
    return ReadOptions(
        delimiter, quote, parse_names(options["names"]), options["nulls"], types, options["all_text"],
        fields=shape.needed, chosen=shape.columns, without=shape.without,
    )  # fmt: skip

"""Formats of keys and values by their names, as in `--value-format`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ottla.base.options import suggestion

if TYPE_CHECKING:
    from ottla.client.values.value_formats import ValueFormat


def parse_value_format(text: str, option: str, *, registry: str | None = None, subject: str = "") -> ValueFormat:
    """The format with that name. `subject`: writes with its newest schema. Raises: ValueError, OSError, ImportError."""
    from ottla.client.values.value_formats import NAMES, VALUE_FORMATS, packed

    name, _, argument = text.partition(":")
    if name in ("avro", "protobuf"):
        from ottla.client.values import schemas

        if name == "avro":
            return schemas.avro(argument, registry, subject)
        file, _, message = argument.rpartition(":")
        if registry is not None:
            from ottla.client.values.framed import protobuf_framed

            return protobuf_framed(registry, subject, Path(file) if file else None, message)
        if not file or not message:
            raise ValueError(f"{option} expects protobuf:FILE:NAME, or --registry URL, not {text!r}")
        return schemas.protobuf(Path(file), message)
    if name == "json-schema":
        from ottla.client.values.framed import json_schema

        return json_schema(argument, registry, subject)
    if name == "pack" and argument:
        return packed(argument, option)
    if not argument and text in VALUE_FORMATS:
        return VALUE_FORMATS[text]
    raise ValueError(f"{option}: unknown format {text!r}{suggestion(text, NAMES)}; formats are {', '.join(NAMES)}")

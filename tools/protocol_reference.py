"""The protocol reference, rendered in Markdown from the declarations: every API, its messages, their fields by version, and the errors."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from ottla.wire.declare import ZERO_UUID, Array, Blob, Field, Fixed, Type, fields_of, schema_of
from ottla.wire.errors import BY_CODE
from ottla.wire.messages import API, ApiSchema

_PREFACE = """Generated from the declarations in `src/ottla/wire`.

A field that a version lacks has its default there. A value other than the default is an error then, or, for an *ignorable* field, left out.
A field with a *tag* is sent only when it differs from its default. A dot before a name means one level further in."""


def protocol_reference() -> str:
    """Render every declared API, by key, and the table of error codes."""
    parts = ["# Protocol", "", _PREFACE, "", *_contents()]
    for key in sorted(API):
        parts += ["", *_api(API[key])]
    parts += ["", *_errors()]
    return "\n".join(parts) + "\n"


def _contents() -> Iterator[str]:
    yield "| key | API | versions | flexible from |"
    yield "|-|-|-|-|"
    for key, api in sorted(API.items()):
        yield f"| {key} | [{api.name}](#{api.name.lower()}-{key}) | {_range(*api.versions)} | {_or_never(api.flexible_since)} |"


def _api(api: ApiSchema) -> Iterator[str]:
    yield f"## {api.name} ({api.key})"
    yield ""
    module = inspect.getdoc(sys.modules[api.request.__module__]) or ""
    # Remove the API and its key from the module's docstring: the heading has them.
    _, _, text = module.partition(f"key {api.key}")
    yield text.lstrip(":. ").strip()[:1].upper() + text.lstrip(":. ").strip()[1:]
    for cls in (api.request, api.response):
        schema = schema_of(cls)
        yield ""
        yield f"### {cls.__name__}"
        yield ""
        yield inspect.getdoc(cls) or ""
        yield ""
        yield "| field | type | versions | notes |"
        yield "|-|-|-|-|"
        yield from _fields(cls, (schema.since, schema.until), "")
        if not fields_of(cls):
            yield "| | | | empty |"


def _fields(cls: type[msgspec.Struct], around: tuple[int, int], indent: str) -> Iterator[str]:
    """One row per field; `around` is the range of versions that have the structure."""
    for field in fields_of(cls):
        first = max(field.since, around[0])
        last = around[1] if field.until is None else min(field.until, around[1])
        yield f"| {indent}`{field.name}` | {_type(field.type)} | {_range(first, last)} | {', '.join(_notes(field, around))} |"
        inner = field.type.element if isinstance(field.type, Array) else field.type
        if isinstance(inner, type):
            yield from _fields(inner, (first, last), indent + "· ")


def _type(kind: Type) -> str:
    if isinstance(kind, Array):
        return f"[{_type(kind.element)}]"
    return kind.name if isinstance(kind, Fixed | Blob) else kind.__name__


def _notes(field: Field, around: tuple[int, int]) -> Iterator[str]:
    if field.tag is not None:
        yield f"tag {field.tag}"
    if field.nullable_since is not None:
        yield "nullable" if field.nullable_since <= max(around[0], field.since) else f"nullable from {field.nullable_since}"
    if field.default not in (0, "", [], b"", ZERO_UUID) and not isinstance(field.default, msgspec.Struct):
        yield f"default {_value(field.default)}"
    if field.ignorable and (field.since > around[0] or field.until is not None):
        yield "ignorable"


def _value(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _or_never(version: int | None) -> str:
    return "never" if version is None else str(version)


def _errors() -> Iterator[str]:
    yield "## Errors"
    yield ""
    yield "| code | error | class | retriable | |"
    yield "|-|-|-|-|-|"
    for code, cls in sorted(BY_CODE.items()):
        yield f"| {code} | {cls.constant} | `{cls.__name__}` | {'yes' if cls.retriable else ''} | {cls.sentence} |"

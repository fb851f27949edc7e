"""Parses a schema of any type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ottla.registry.errors import InvalidSchema
from ottla.registry.formats.avro import parse_avro
from ottla.registry.records import AVRO, JSON, PROTOBUF, TYPES

#: Text of an imported schema, by its name in the text that imports it.
Imports = Sequence[tuple[str, str]]


class ParsedSchema(Protocol):
    """A schema of one type. Comparisons are with schemas of the same type."""

    @property
    def type(self) -> str: ...

    @property
    def text(self) -> str:
        """The text that is stored."""

    def print(self, form: str) -> str:
        """The text in a form that its type has; the stored text for others."""

    def is_equivalent(self, other: Any) -> bool:
        """Whether the other schema means the same."""

    def incompatibilities(self, writer: Any) -> list[str]:
        """Why a reader with this schema cannot read values that the other one wrote; empty if it can."""


def parse_schema(kind: str, text: str, imports: Imports = (), *, normalized: bool = False, is_new: bool = False) -> ParsedSchema:
    """Parses a schema; `imports` in the order of their dependencies.

    `normalized`: the text is brought into one form. `is_new`: the text is also checked for what older registries let pass.
    Raises: InvalidSchema; ImportError with the command to install the type's library.
    """
    if kind == AVRO:
        return parse_avro(text, imports, normalized=normalized, is_new=is_new)
    if kind == JSON:
        from ottla.registry.formats.json_schema import parse_json_schema

        return parse_json_schema(text, imports, normalized=normalized, is_new=is_new)
    if kind == PROTOBUF:
        from ottla.registry.formats.protobuf import parse_protobuf

        return parse_protobuf(text, imports, normalized=normalized)
    raise InvalidSchema(f"Invalid schema type {kind}; there are {', '.join(TYPES)}")

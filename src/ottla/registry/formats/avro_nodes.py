"""Types of Avro schemas, with all names resolved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: The default of a field without one; null is a default.
MISSING: Any = object()


@dataclass(slots=True, eq=False)
class AvroNode:
    """A type of a schema. Named types that are used several times are one node."""

    kind: str
    #: Full name of named types.
    name: str = ""
    #: Full names.
    aliases: tuple[str, ...] = ()
    doc: str | None = None
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    #: Default symbol of an enum.
    default: str | None = None
    size: int = 0
    #: Elements of an array, values of a map.
    inner: AvroNode | None = None
    branches: list[AvroNode] = field(default_factory=list)
    properties: dict[str, Any] = field(default_factory=dict)

    @property
    def short_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]

    @property
    def namespace(self) -> str:
        return self.name.rpartition(".")[0]


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroNode
    doc: str | None
    #: MISSING without one.
    default: Any
    order: str
    aliases: tuple[str, ...]
    properties: dict[str, Any]

    @property
    def has_default(self) -> bool:
        return self.default is not MISSING

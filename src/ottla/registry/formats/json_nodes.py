"""JSON schemas as nodes: what a value may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ottla.registry.errors import InvalidSchema

COMBINERS = ("allOf", "anyOf", "oneOf")
#: Keywords that restrict nothing.
ANNOTATIONS = ("title", "description", "default")
DEPTH_MAX = 200


@dataclass(slots=True, eq=False)
class JsonNode:
    """What a value may be. `kind`: empty, false, a type's name, enum, const, not, conditional, allOf, anyOf, oneOf, ref."""

    kind: str
    #: The JSON of the schema, whose keywords of this kind count.
    raw: dict[str, Any] = field(default_factory=dict)
    #: Parts of allOf, anyOf, oneOf.
    parts: list[JsonNode] = field(default_factory=list)
    #: Target of ref; what `not` refuses.
    inner: JsonNode | None = None
    properties: dict[str, JsonNode] = field(default_factory=dict)
    patterns: dict[str, JsonNode] = field(default_factory=dict)
    #: Properties or items without a schema of their own: None for any; a false node for none.
    others: JsonNode | None = None
    unevaluated: JsonNode | None = None
    #: Schemas that count if a property is there.
    dependent: dict[str, JsonNode] = field(default_factory=dict)
    #: Items by place, and all further ones.
    items: list[JsonNode] = field(default_factory=list)
    each: JsonNode | None = None
    default: Any = None
    has_default: bool = False

    @property
    def target(self) -> JsonNode:
        """The node behind references."""
        node, steps = self, 0
        while node.kind == "ref":
            assert node.inner is not None, "references are resolved when the schema is parsed"
            node, steps = node.inner, steps + 1
            if steps > DEPTH_MAX:
                raise InvalidSchema("a $ref leads to itself")
        return node

"""Compatibility levels: which earlier versions a new schema is compared with, and in which direction. Pure.

    level                 the new schema reads          the earlier one reads     compared with
    BACKWARD              values of the earlier one                               the newest version
    FORWARD                                             values of the new one     the newest version
    FULL                  both directions                                         the newest version
    ..._TRANSITIVE        the same                                                all versions
    NONE                  nothing is checked

A message begins with a brace, as Confluent's do; the last ones name the earlier schema and the level.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.registry.formats.parse import ParsedSchema

LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")


def compared_versions(level: str, earlier: int) -> int:
    """How many of the newest of `earlier` versions the level compares with."""
    return 0 if level == "NONE" else earlier if level.endswith("_TRANSITIVE") else min(earlier, 1)


def level_incompatibilities(level: str, new: ParsedSchema, earlier: Sequence[ParsedSchema]) -> list[str]:
    """Why the level does not permit the new schema after the earlier ones (ascending); empty if it does."""
    if level == "NONE":
        return []
    direction = level.removesuffix("_TRANSITIVE")
    for old in reversed(earlier[len(earlier) - compared_versions(level, len(earlier)) :]):
        if old.type != new.type:
            found = [f'{{errorType:"TYPE_CHANGED", description:"the earlier schema is {old.type}, the new one {new.type}"}}']
        else:
            found = []
            if direction in ("BACKWARD", "FULL"):
                found += new.incompatibilities(old)
            if direction in ("FORWARD", "FULL"):
                found = list(dict.fromkeys([*found, *old.incompatibilities(new)]))
        if found:
            return [*found, f"{{oldSchema: '{old.text}'}}", f"{{compatibility: '{level}'}}"]
    return []

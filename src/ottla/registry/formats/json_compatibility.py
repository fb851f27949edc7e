"""Which values of an old JSON schema a new one accepts: a check of both schemas, part by part.

A restriction may be loosened or removed, not tightened or added:

    keyword                          may
    maxLength, maximum, maxItems ..  grow or go
    minLength, minimum, minItems ..  shrink or go
    pattern, uniqueItems             go
    multipleOf                       become a divisor of the old one, or go
    enum                             get more values
    type                             integer becomes number
    required                         lose names; get those whose property has a default
    anyOf, oneOf                     get more parts; each old part needs its own compatible new one
    allOf                            lose parts
    not                              refuse less

A property that only the new schema has is compatible if the old one does not permit other properties (a closed content model), because old
values do not have it then. One that only the old schema has is compatible if the new one permits others (an open content model). Between
both, a schema of patternProperties, additionalProperties or unevaluatedProperties must cover it.

The types of the differences are those of Confluent's registry. It has a lenient policy, too; this is the strict one, its default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import re2

from ottla.registry.formats.budget import Budget
from ottla.registry.formats.json_nodes import ANNOTATIONS, COMBINERS, JsonNode

#: Memory of one compiled regular expression.
PATTERN_MEMORY_BYTES = 1 << 20
#: (keyword, prefix of the differences): a value that may only grow, or only shrink.
UPPER = {
    "string": [("maxLength", "MAX_LENGTH")],
    "number": [("maximum", "MAXIMUM"), ("exclusiveMaximum", "EXCLUSIVE_MAXIMUM")],
    "array": [("maxItems", "MAX_ITEMS"), ("maxContains", "MAX_CONTAINS")],
    "object": [("maxProperties", "MAX_PROPERTIES")],
}
LOWER = {
    "string": [("minLength", "MIN_LENGTH")],
    "number": [("minimum", "MINIMUM"), ("exclusiveMinimum", "EXCLUSIVE_MINIMUM")],
    "array": [("minItems", "MIN_ITEMS"), ("minContains", "MIN_CONTAINS")],
    "object": [("minProperties", "MIN_PROPERTIES")],
}
TEXTS = {
    "TYPE_CHANGED": "the type at path '{}' was changed",
    "TYPE_NARROWED": "the number at path '{}' must be an integer now",
    "PATTERN_ADDED": "a pattern was added at path '{}'",
}


class Difference(NamedTuple):
    """A change that makes old values unreadable. `path`: a JSON pointer with # in front."""

    type: str
    path: str

    def __str__(self) -> str:
        said = TEXTS.get(self.type, self.type.lower().replace("_", " ") + " at path '{}'").format(self.path)
        return f'{{errorType:"{self.type}", description:"{said}"}}'


def incompatibilities(reader: JsonNode, writer: JsonNode) -> list[str]:
    """Why the new schema refuses values of the old one."""
    return list(dict.fromkeys(str(one) for one in differences(writer, reader)))


def differences(old: JsonNode, new: JsonNode) -> list[Difference]:
    """What makes values of the old schema invalid in the new one.

    A pair that is compared inside of itself counts as compatible. Where that assumption proves wrong, the comparison is repeated with what
    is known now, until nothing changes.
    """
    refused: frozenset[tuple[int, int]] = frozenset()
    budget = Budget()
    while True:
        check = _Check(refused, budget)
        found = check.compare(old, new, "#/")
        now = frozenset(pair for pair, one in check.known.items() if one)
        if not check.assumed or now == refused:
            return found
        refused = now


class _Check:
    def __init__(self, refused: frozenset[tuple[int, int]], budget: Budget) -> None:
        self._budget = budget
        #: Results by pair, with paths as at their first place.
        self.known: dict[tuple[int, int], list[Difference]] = {}
        self._open: set[tuple[int, int]] = set()
        self._refused = refused
        self.assumed = False
        #: Keeps nodes alive whose ids are keys.
        self._kept: list[JsonNode] = []

    def compare(self, old: JsonNode, new: JsonNode, path: str) -> list[Difference]:
        old, new = old.target, new.target
        pair = (id(old), id(new))
        if pair in self.known:
            self._budget.spend(1 + len(self.known[pair]))
            return self.known[pair]
        if pair in self._open:
            if pair in self._refused:
                return [Difference("TYPE_CHANGED", path)]
            self.assumed = True
            return []
        self._open.add(pair)
        self._kept += (old, new)
        found = self.known[pair] = self._compared(old, new, path)
        self._open.discard(pair)
        self._budget.spend(1 + len(found))
        return found

    def _compared(self, old: JsonNode, new: JsonNode, path: str) -> list[Difference]:
        if new.kind == "empty" or old.kind == "false":
            return []
        is_old, is_new = old.kind in COMBINERS, new.kind in COMBINERS
        if is_new and not is_old and self._any(new.parts, lambda one: self.compare(old, one, path), new.kind != "allOf"):
            return []
        if is_old and not is_new and self._any(old.parts, lambda one: self.compare(one, new, path), old.kind == "allOf"):
            return []
        if is_old and is_new:
            return self._combined(old, new, path)
        if old.kind != new.kind:
            both_bytes = old.raw.get("connect.type") == new.raw.get("connect.type") == "bytes"
            return [] if both_bytes else [Difference("TYPE_CHANGED", path)]
        match old.kind:
            case "enum":
                return self._enums(old, new, path)
            case "const":
                same = _same(old.raw["const"], new.raw["const"])
                return [] if same else [Difference("ENUM_ARRAY_CHANGED", f"{path}const")]
            case "not":
                assert old.inner is not None and new.inner is not None, "a not has a schema"
                return [Difference("NOT_TYPE_EXTENDED", f"{path}not")] if self.compare(new.inner, old.inner, f"{path}not/") else []
            case "conditional":
                kept = [{name: one.raw.get(name) for name in ("if", "then", "else")} for one in (old, new)]
                return [] if _same(*kept) else [Difference("CONDITION_CHANGED", path)]
        found = _limits(old, new, path)
        if old.kind == "object":
            found += self._objects(old, new, path)
        elif old.kind == "array":
            found += self._arrays(old, new, path)
        return found

    @staticmethod
    def _any(parts: list[JsonNode], compare: Callable[[JsonNode], list[Difference]], is_enough: bool) -> bool:
        """Whether one part is compatible: of several if one is enough, else the only one."""
        return (is_enough or len(parts) == 1) and any(not compare(one) for one in parts)

    def _combined(self, old: JsonNode, new: JsonNode, path: str) -> list[Difference]:
        olds, news = _distinct(old.parts), _distinct(new.parts)
        if old.kind != new.kind:
            single = (len(olds) == 1 and (len(news) == 1 or new.kind == "oneOf")) or (len(news) == 1 and old.kind == "allOf")
            if new.kind != "anyOf" and not single:
                return [Difference("COMBINED_TYPE_CHANGED", path)]
        found = []
        if len(olds) < len(news) and new.kind == "allOf":
            found.append(Difference("PRODUCT_TYPE_EXTENDED", path))
        if len(olds) > len(news) and old.kind != "allOf":
            found.append(Difference("SUM_TYPE_NARROWED", path))
        fits = [
            [index for index, two in enumerate(news) if not self.compare(one, two, f"{path}{old.kind}/{place}/")]
            for place, one in enumerate(olds)
        ]
        if _matching(fits) < min(len(olds), len(news)):
            found.append(Difference("COMBINED_TYPE_SUBSCHEMAS_CHANGED", path))
        return found

    @staticmethod
    def _enums(old: JsonNode, new: JsonNode, path: str) -> list[Difference]:
        olds, news = ({json.dumps(one, sort_keys=True) for one in node.raw["enum"]} for node in (old, new))
        if olds <= news:
            return []
        return [Difference("ENUM_ARRAY_NARROWED" if news <= olds else "ENUM_ARRAY_CHANGED", f"{path}enum")]

    # -- Objects.

    def _objects(self, old: JsonNode, new: JsonNode, path: str) -> list[Difference]:
        found: list[Difference] = []
        required_before, required = set(old.raw.get("required", ())), set(new.raw.get("required", ()))
        for name in sorted(old.properties.keys() | new.properties.keys()):
            place = f"{path}properties/{name}"
            before, after = old.properties.get(name), new.properties.get(name)
            if before is not None and after is not None:
                if name in required - required_before and not after.target.has_default and not after.has_default:
                    found.append(Difference("REQUIRED_ATTRIBUTE_ADDED", f"{path}required/{name}"))
                found += self.compare(before, after, f"{place}/")
            elif before is not None:
                found += self._removed(before, new, self._cover(new, name), place, "PROPERTY")
            elif after is not None:
                found += self._added(old, after, name, place, is_required=name in required)
        found += _dependencies(old, new, path)
        for name in sorted(old.dependent.keys() | new.dependent.keys()):
            place = f"{path}dependencies/{name}"
            if name not in old.dependent:
                found.append(Difference("DEPENDENCY_SCHEMA_ADDED", place))
            elif name in new.dependent:
                found += self.compare(old.dependent[name], new.dependent[name], f"{place}/")
        found += self._others(old.others, new.others, f"{path}additionalProperties", "ADDITIONAL_PROPERTIES")
        return found + self._others(old.unevaluated, new.unevaluated, f"{path}unevaluatedProperties", "UNEVALUATED_PROPERTIES")

    def _removed(self, before: JsonNode, new: JsonNode, cover: JsonNode | None, place: str, what: str) -> list[Difference]:
        """A PROPERTY or an ITEM that the new schema does not list. ``cover``: the schema of others, if there is one."""
        if _is_open(new):
            return []
        if cover is not None:
            why = self.compare(before, cover, f"{place}/")
            return [*why, Difference(f"{what}_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place)] if why else []
        return [] if before.target.kind == "false" else [Difference(f"{what}_REMOVED_FROM_CLOSED_CONTENT_MODEL", place)]

    def _added(self, old: JsonNode, after: JsonNode, name: str, place: str, *, is_required: bool) -> list[Difference]:
        if _is_open(old):
            if after.target.kind == "empty":
                return []
            if not is_required:
                return [Difference("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", place)]
            kind = "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO" if after.has_default else "REQUIRED_PROPERTY_ADDED_TO"
            return [Difference(f"{kind}_OPEN_CONTENT_MODEL", place)]
        found: list[Difference] = []
        cover = self._cover(old, name)
        if cover is not None:
            why = self.compare(cover, after, f"{place}/")
            if why:
                found = [*why, Difference("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place)]
        if is_required and not after.has_default:
            found.append(Difference("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", place))
        return found

    def _others(self, old: JsonNode | None, new: JsonNode | None, path: str, prefix: str) -> list[Difference]:
        """Differences between the schemas of names that are not listed; None: any value is valid."""
        if new is None or (old is not None and old.kind == "false"):
            return []
        if new.kind == "false":
            return [Difference(f"{prefix}_REMOVED", path)]
        if old is None or (old.kind == "empty" and new.kind != "empty" and prefix.startswith("UNEVALUATED")):
            return [Difference(f"{prefix}_NARROWED", path)]
        return self.compare(old, new, f"{path}/")

    # -- Arrays.

    def _arrays(self, old: JsonNode, new: JsonNode, path: str) -> list[Difference]:
        found: list[Difference] = []
        if new.each is not None:
            found += [Difference("SCHEMA_ADDED", f"{path}items")] if old.each is None else self.compare(old.each, new.each, f"{path}items/")
        for index in range(max(len(old.items), len(new.items))):
            place = f"{path}items/{index}"
            before = old.items[index] if index < len(old.items) else None
            after = new.items[index] if index < len(new.items) else None
            if before is not None and after is not None:
                found += self.compare(before, after, f"{place}/")
            elif before is not None:
                found += self._removed(before, new, self._cover(new, ""), place, "ITEM")
            elif after is not None:
                found += self._item_added(old, after, place)
        if new.raw.get("uniqueItems") and not old.raw.get("uniqueItems"):
            found.append(Difference("UNIQUE_ITEMS_ADDED", f"{path}uniqueItems"))
        found += self._others(old.others, new.others, f"{path}additionalItems", "ADDITIONAL_ITEMS")
        return found + self._others(old.unevaluated, new.unevaluated, f"{path}unevaluatedItems", "UNEVALUATED_ITEMS")

    def _item_added(self, old: JsonNode, after: JsonNode, place: str) -> list[Difference]:
        if _is_open(old):
            return [] if after.target.kind == "empty" else [Difference("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", place)]
        cover = self._cover(old, "")
        why = [] if cover is None else self.compare(cover, after, f"{place}/")
        return [*why, Difference("ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place)] if why else []

    def _cover(self, node: JsonNode, name: str) -> JsonNode | None:
        """The schema of a property or item that is not listed; None if there is none, or if it is not permitted."""
        for pattern, one in node.patterns.items():
            self._budget.spend()
            matcher = _compiled(pattern)
            if matcher is not None and matcher.search(name):
                return one
        if node.others is not None:
            return None if node.others.kind == "false" else node.others
        return None if node.unevaluated is None or node.unevaluated.kind in ("false", "empty") else node.unevaluated


def _is_open(node: JsonNode) -> bool:
    """Whether any other property or item is permitted."""
    return node.others is None and not node.patterns and (node.unevaluated is None or node.unevaluated.kind == "empty")


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    """A regular expression of ``patternProperties``; None if RE2 does not know it.

    RE2 takes time linear in a name. Python's own engine may take years for ``^(a+)+$``, and no other thread runs meanwhile. An expression
    with a lookahead or a backreference, which RE2 does not have, matches nothing.
    """
    options = re2.Options()
    options.log_errors, options.never_capture, options.max_mem = False, True, PATTERN_MEMORY_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error:
        return None


def _limits(old: JsonNode, new: JsonNode, path: str) -> list[Difference]:
    """Numbers and patterns of one type."""
    found = []
    for table, grows in ((UPPER, True), (LOWER, False)):
        for keyword, prefix in table.get(old.kind, ()):
            before, after = _bound(old, keyword), _bound(new, keyword)
            if after is None or before == after:
                continue
            if before is None:
                found.append(Difference(f"{prefix}_ADDED", path + keyword))
            elif (after < before) == grows:
                found.append(Difference(f"{prefix}_{'DECREASED' if grows else 'INCREASED'}", path + keyword))
    if old.kind == "string":
        before, after = old.raw.get("pattern"), new.raw.get("pattern")
        if after is not None and after != before:
            found.append(Difference("PATTERN_ADDED" if before is None else "PATTERN_CHANGED", f"{path}pattern"))
    elif old.kind == "number":
        found += _multiples(old, new, path)
        if _is_integer(new) and not _is_integer(old):
            found.append(Difference("TYPE_NARROWED", path))
    return found


def _bound(node: JsonNode, keyword: str) -> Any:
    """A limit; draft 4 says with a boolean that `maximum` is exclusive."""
    value = node.raw.get(keyword)
    if isinstance(value, bool):
        return node.raw.get("maximum" if keyword == "exclusiveMaximum" else "minimum") if value else None
    if keyword in ("maximum", "minimum") and node.raw.get(f"exclusive{keyword.capitalize()}") is True:
        return None
    return value


def _is_integer(node: JsonNode) -> bool:
    types = node.raw.get("type")
    return types == "integer" or (isinstance(types, list) and "integer" in types and "number" not in types)


def _multiples(old: JsonNode, new: JsonNode, path: str) -> list[Difference]:
    before, after = (None if (value := node.raw.get("multipleOf")) is None else Decimal(str(value)) for node in (old, new))
    if after is None or before == after:
        return []
    if before is None:
        return [Difference("MULTIPLE_OF_ADDED", f"{path}multipleOf")]
    if _is_multiple(before, after):
        return []
    return [Difference("MULTIPLE_OF_EXPANDED" if _is_multiple(after, before) else "MULTIPLE_OF_CHANGED", f"{path}multipleOf")]


def _is_multiple(number: Decimal, divisor: Decimal) -> bool:
    try:
        return number % divisor == 0
    except ArithmeticError:
        # More digits than decimal numbers have, or a divisor of 0.
        return False


def _dependencies(old: JsonNode, new: JsonNode, path: str) -> list[Difference]:
    """Names that a property needs beside it."""
    found = []
    before, after = _needed_names(old), _needed_names(new)
    for name, needed in sorted(after.items()):
        if name not in before:
            found.append(Difference("DEPENDENCY_ARRAY_ADDED", f"{path}dependencies/{name}"))
        elif not needed <= before[name]:
            kind = "EXTENDED" if before[name] <= needed else "CHANGED"
            found.append(Difference(f"DEPENDENCY_ARRAY_{kind}", f"{path}dependencies/{name}"))
    return found


def _needed_names(node: JsonNode) -> dict[str, set[str]]:
    listed = {name: one for name, one in node.raw.get("dependencies", {}).items() if isinstance(one, list)}
    return {name: set(one) for name, one in (listed | node.raw.get("dependentRequired", {})).items()}


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _distinct(parts: Iterable[JsonNode]) -> list[JsonNode]:
    """Parts without repetitions."""
    found: dict[str, JsonNode] = {}
    for one in parts:
        kept = {name: value for name, value in one.raw.items() if name not in ANNOTATIONS} if one.kind != "ref" else one.raw
        found.setdefault(one.kind + json.dumps(kept, sort_keys=True), one)
    return list(found.values())


def _matching(fits: list[list[int]]) -> int:
    """Size of the largest matching: each old part gets one new part that fits, and each new part is given once."""
    owner: dict[int, int] = {}

    def place(old: int, tried: set[int]) -> bool:
        for new in fits[old]:
            if new not in tried:
                tried.add(new)
                if new not in owner or place(owner[new], tried):
                    owner[new] = old
                    return True
        return False

    return sum(place(old, set()) for old in range(len(fits)))

"""Which messages of an old Protobuf schema a new one reads: a check of both files, message by message.

Fields are compared by number, wherever they are:

    permitted                                                   not permitted
    a new field, a removed field, another name                  a required field added or removed
    int32, int64, uint32, uint64, bool and enums in turn        another wire type
    sint32 and sint64; fixed32 and sfixed32; string and bytes   a message instead of a scalar, a map instead of a message
    repeated for a singular string or bytes                     the same for numbers, if both have a label
    a field that leaves its oneof                               fields that were independent and share a oneof now
    a new message or enum; a removed enum                       a removed message, another package

Types of fields are compared without their packages, and their messages as well. The types of the differences are those of Confluent's
registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ottla.client.values.proto_text import ENUM, GROUP, MESSAGE, OPTIONAL, REPEATED, REQUIRED
from ottla.registry.formats.budget import Budget

#: FieldDescriptorProto.Type -> what it can be read as.
_NUMBER, _SIGNED, _TEXT = "number", "signed number", "text"
KINDS = {
    3: _NUMBER, 4: _NUMBER, 5: _NUMBER, 8: _NUMBER, 13: _NUMBER, ENUM: _NUMBER, 17: _SIGNED, 18: _SIGNED, 9: _TEXT, 12: _TEXT,
    7: "32 bits", 15: "32 bits", 6: "64 bits", 16: "64 bits", 2: "float", 1: "double",
}  # fmt: skip


class _Type(NamedTuple):
    """A message or enum of a file. `local`: its name without the package."""

    descriptor: Any
    local: str
    syntax: str


class Difference(NamedTuple):
    """A change that makes old messages unreadable."""

    type: str
    path: str

    def __str__(self) -> str:
        said = self.type.lower().replace("_", " ")
        return f'{{errorType:"{self.type}", description:"{said} at path \'{self.path}\'"}}'


def incompatibilities(reader: Sequence[Any], writer: Sequence[Any]) -> list[str]:
    """Why the new files misread messages of the old ones. The last file is the schema, the others its imports."""
    return list(dict.fromkeys(map(str, differences(writer, reader))))


def differences(old: Sequence[Any], new: Sequence[Any]) -> list[Difference]:
    check = _Check(_types(old), _types(new))
    before, after = old[-1], new[-1]
    found = [] if before.package == after.package else [Difference("PACKAGE_CHANGED", "#/")]
    return found + check.messages(before.message_type, after.message_type, "#/", _syntax(before), _syntax(after))


def _syntax(file: Any) -> str:
    return file.syntax or "proto2"


def _types(files: Iterable[Any]) -> dict[str, _Type]:
    """Types by full name, with a dot in front."""
    found: dict[str, _Type] = {}

    def add(descriptor: Any, above: str, package: str, syntax: str) -> None:
        local = f"{above}.{descriptor.name}" if above else descriptor.name
        found[f".{package}.{local}" if package else f".{local}"] = _Type(descriptor, local, syntax)
        for inner in [*getattr(descriptor, "nested_type", ()), *getattr(descriptor, "enum_type", ())]:
            add(inner, local, package, syntax)

    for file in files:
        for descriptor in [*file.message_type, *file.enum_type]:
            add(descriptor, "", file.package, _syntax(file))
    return found


class _Check:
    def __init__(self, old: dict[str, _Type], new: dict[str, _Type]) -> None:
        self._old, self._new = old, new
        self._budget = Budget()
        #: Results by pair of messages, with paths as at their first place. A pair that is being compared counts as compatible.
        self._known: dict[tuple[int, int], list[Difference]] = {}
        #: Keeps messages alive whose ids are keys.
        self._kept: list[Any] = []

    def messages(self, old: Sequence[Any], new: Sequence[Any], path: str, syntax_old: str, syntax_new: str) -> list[Difference]:
        """Messages of one level, by name."""
        after = {one.name: one for one in new}
        found: list[Difference] = []
        for one in old:
            if one.options.map_entry:
                continue
            if one.name not in after:
                found.append(Difference("MESSAGE_REMOVED", path + one.name))
            else:
                found += self.message(one, after[one.name], f"{path}{one.name}/", syntax_old, syntax_new)
        return found

    def message(self, old: Any, new: Any, path: str, syntax_old: str, syntax_new: str) -> list[Difference]:
        pair = (id(old), id(new))
        if pair not in self._known:
            self._known[pair] = []
            self._kept += (old, new)
            self._known[pair] = self._compared(old, new, path, syntax_old, syntax_new)
        found = self._known[pair]
        self._budget.spend(1 + len(found))
        return found

    def _compared(self, old: Any, new: Any, path: str, syntax_old: str, syntax_new: str) -> list[Difference]:
        before, after = {one.number: one for one in old.field}, {one.number: one for one in new.field}
        oneofs_old, oneofs_new = _oneofs(old), _oneofs(new)
        gone = set(oneofs_old.values()) - set(oneofs_new.values())
        survived = {oneofs_old[number] for number in after if number in oneofs_old}
        found = _merged(before, oneofs_old, oneofs_new, path)
        for number in sorted(before.keys() | after.keys()):
            place = f"{path}{number}"
            if number not in after:
                oneof = oneofs_old.get(number)
                if oneof is None:
                    if before[number].label == REQUIRED:
                        found.append(Difference("REQUIRED_FIELD_REMOVED", place))
                elif oneof not in gone or oneof in survived:
                    found.append(Difference("ONEOF_FIELD_REMOVED", f"{path}{oneof}/{number}"))
            elif number not in before:
                if after[number].label == REQUIRED:
                    found.append(Difference("REQUIRED_FIELD_ADDED", place))
            else:
                found += self._field((before[number], syntax_old), (after[number], syntax_new), place)
        return found + self.messages(old.nested_type, new.nested_type, path, syntax_old, syntax_new)

    def _field(self, old: tuple[Any, str], new: tuple[Any, str], place: str) -> list[Difference]:
        before, after = old[0], new[0]
        map_before, map_after = self._map(before, self._old), self._map(after, self._new)
        kinds = [
            "map" if entry is not None else "message" if one.type in (MESSAGE, GROUP) else "scalar"
            for one, entry in ((before, map_before), (after, map_after))
        ]
        if kinds[0] != kinds[1]:
            return [Difference("FIELD_KIND_CHANGED", place)]
        if kinds[0] == "scalar":
            return self._scalar(old, new, place)
        if map_before is None or map_after is None:
            return self._named(before, after, place)
        found: list[Difference] = []
        for one, other in zip(map_before.field, map_after.field, strict=True):
            # Keys and values of maps have no labels.
            found += self._field((one, "proto3"), (other, "proto3"), place)
        return found

    @staticmethod
    def _map(field: Any, types: dict[str, _Type]) -> Any:
        """The entry type of a map; None for other fields."""
        known = types.get(field.type_name) if field.type == MESSAGE else None
        return known.descriptor if known is not None and known.descriptor.options.map_entry else None

    @staticmethod
    def _scalar(old: tuple[Any, str], new: tuple[Any, str], place: str) -> list[Difference]:
        kind = KINDS[old[0].type]
        if kind != KINDS[new[0].type]:
            return [Difference("FIELD_SCALAR_KIND_CHANGED", place)]
        before, after = _label(*old), _label(*new)
        if before is None or after is None or before == after or kind == _TEXT:
            return []
        return [Difference("FIELD_NUMERIC_LABEL_CHANGED", place)]

    def _named(self, before: Any, after: Any, place: str) -> list[Difference]:
        old, new = self._old.get(before.type_name), self._new.get(after.type_name)
        if old is None or new is None:
            return [] if before.type_name == after.type_name else [Difference("FIELD_NAMED_TYPE_CHANGED", place)]
        if old.local != new.local:
            return [Difference("FIELD_NAMED_TYPE_CHANGED", place)]
        found = self.message(old.descriptor, new.descriptor, f"{place}/", old.syntax, new.syntax)
        return [*found, Difference("FIELD_NAMED_TYPE_CHANGED", place)] if found else []


def _label(field: Any, syntax: str) -> int | None:
    """The label that the text has; None without one."""
    if field.HasField("oneof_index") and not field.proto3_optional:
        return None
    if field.label == OPTIONAL and syntax != "proto2" and not field.proto3_optional:
        return None
    return int(field.label) if field.label in (OPTIONAL, REQUIRED, REPEATED) else None


def _oneofs(message: Any) -> dict[int, str]:
    """Names of oneofs by the numbers of their fields."""
    return {
        one.number: message.oneof_decl[one.oneof_index].name
        for one in message.field
        if one.HasField("oneof_index") and not one.proto3_optional
    }


def _merged(before: dict[int, Any], oneofs_old: dict[int, str], oneofs_new: dict[int, str], path: str) -> list[Difference]:
    """Fields that exclude each other now, and did not before."""
    found = []
    by_name: dict[str, list[int]] = {}
    for number, oneof in oneofs_new.items():
        by_name.setdefault(oneof, []).extend([number] if number in before else [])
    for name, members in by_name.items():
        origins = {oneofs_old.get(number, f"#{number}") for number in members}
        if len(origins) > 1:
            alone = sum(number not in oneofs_old for number in members)
            found.append(Difference("MULTIPLE_FIELDS_MOVED_TO_ONEOF" if alone > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF", path + name))
    return found

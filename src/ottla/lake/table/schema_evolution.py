"""What becomes of a Delta table's columns when rows come with others: which are added, which fit, which cannot be. Pure.

Types are those of Delta's schemas as JSON has them: a name, or an object of type struct, array or map.

    there      wanted            becomes
    -----      ------            -------
    (none)     any               added; every row before has null
    long       integer           long: the narrower goes into the wider, nothing changes
    integer    long              *wider*: only by writing the table anew, since files that are there hold the narrower
    struct     struct            the same, member by member; those of lists and maps too
    long       string            *refused*

A column that rows do not have stays, and is null for them. Names that differ only in capitals are one name to Delta, and refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

Type = Any
#: Into which types each goes without loss that a reader would see.
WIDER = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "long": ("double",),
    "float": ("double",),
    "void": (),
}


class ColumnChange(NamedTuple):
    """A column, by its path with dots, and its types."""

    column: str
    #: None where the table does not have it.
    there: str | None
    wanted: str
    becomes: str

    def __str__(self) -> str:
        return f"{self.column} {self.becomes}" if self.there is None else f"{self.column} {self.there}, not {self.wanted}"


@dataclass(slots=True)
class Evolution:
    """The columns afterwards, and what it takes."""

    #: Delta's schema as JSON has it.
    schema: dict[str, Any]
    added: list[ColumnChange] = field(default_factory=list)
    #: Needs the table to be written anew.
    wider: list[ColumnChange] = field(default_factory=list)
    refused: list[ColumnChange] = field(default_factory=list)


def evolution(there: dict[str, Any], wanted: dict[str, Any]) -> Evolution:
    """From the schema that a table has to one that holds both. Refused columns stay as they are."""
    found = Evolution(there)
    found.schema = _struct(there, wanted, "", found)
    return found


def _struct(there: dict[str, Any], wanted: dict[str, Any], path: str, found: Evolution) -> dict[str, Any]:
    fields = {one["name"].lower(): one for one in there["fields"]}
    for one in wanted["fields"]:
        name, whole = one["name"], f"{path}{one['name']}"
        before = fields.get(name.lower())
        if before is None:
            if _has_void(one["type"]):
                # Nothing but null is known of it yet; the table gets it when more is.
                continue
            found.added.append(ColumnChange(whole, None, shown(one["type"]), shown(one["type"])))
            fields[name.lower()] = {**one, "nullable": True}
        elif before["name"] != name:
            story = f"{shown(before['type'])} (as {before['name']})"
            found.refused.append(ColumnChange(whole, story, shown(one["type"]), shown(before["type"])))
        else:
            fields[name.lower()] = {**before, "type": _merged(before["type"], one["type"], whole, found)}
    return {**there, "fields": list(fields.values())}


def _has_void(kind: Type) -> bool:
    if isinstance(kind, str):
        return kind == "void"
    if kind["type"] == "array":
        return _has_void(kind["elementType"])
    return False


def _merged(there: Type, wanted: Type, path: str, found: Evolution) -> Type:
    if there == wanted or wanted == "void":
        return there
    if isinstance(there, dict) and isinstance(wanted, dict) and there["type"] == wanted["type"]:
        match there["type"]:
            case "struct":
                return _struct(there, wanted, f"{path}.", found)
            case "array":
                return {**there, "elementType": _merged(there["elementType"], wanted["elementType"], f"{path}[]", found)}
            case "map" if there["keyType"] == wanted["keyType"]:
                return {**there, "valueType": _merged(there["valueType"], wanted["valueType"], f"{path}{{}}", found)}
    if isinstance(there, str) and isinstance(wanted, str):
        if _goes_into(wanted, there):
            return there
        if _goes_into(there, wanted):
            found.wider.append(ColumnChange(path, there, wanted, wanted))
            return wanted
    found.refused.append(ColumnChange(path, shown(there), shown(wanted), shown(there)))
    return there


def _goes_into(narrow: str, wide: str) -> bool:
    if narrow.startswith("decimal(") and wide.startswith("decimal("):
        (digits, scale), (digits_there, scale_there) = _decimal(narrow), _decimal(wide)
        return scale <= scale_there and digits - scale <= digits_there - scale_there
    return wide in WIDER.get(narrow, ())


def _decimal(kind: str) -> tuple[int, int]:
    digits, _, scale = kind[len("decimal(") : -1].partition(",")
    return int(digits), int(scale or 0)


def shown(kind: Type) -> str:
    """A type for people, as Spark writes it."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            members = [f"{one['name']}: {shown(one['type'])}" for one in kind["fields"]]
            return f"struct<{', '.join(members)}>"
        case "array":
            return f"array<{shown(kind['elementType'])}>"
        case "map":
            return f"map<{shown(kind['keyType'])}, {shown(kind['valueType'])}>"
    return str(kind["type"])

"""Compares a Delta table's columns with those of new rows: which are added, which fit, which are refused. Pure.

Types are those of Delta's JSON schemas: a name, or an object of type struct, array or map.

    table      rows              result
    -----      ------            -------
    (none)     any               added; earlier rows have null
    long       integer           long: the narrower type fits
    integer    long              *wider*: the table must be rewritten, because existing files have the narrower type
    struct     struct            the same, member by member; also for lists and maps
    long       string            *refused*

A column that rows do not have is kept, with null. Names that differ only in case are one name to Delta, and refused.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

Type = Any
#: Wider types of each type, without a loss that readers would see.
WIDER = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "long": ("double",),
    "float": ("double",),
    "void": (),
}


class ColumnChange(NamedTuple):
    """A column by its dotted path, and its types."""

    column: str
    #: None if the table does not have it.
    there: str | None
    wanted: str
    becomes: str

    def __str__(self) -> str:
        return f"{self.column} {self.becomes}" if self.there is None else f"{self.column} {self.there}, not {self.wanted}"


@dataclass(slots=True)
class Evolution:
    """The resulting columns, and the necessary changes."""

    #: Delta's JSON schema.
    schema: dict[str, Any]
    added: list[ColumnChange] = field(default_factory=list)
    #: Columns for which the table must be rewritten.
    wider: list[ColumnChange] = field(default_factory=list)
    refused: list[ColumnChange] = field(default_factory=list)


def evolution(there: dict[str, Any], wanted: dict[str, Any]) -> Evolution:
    """The schema that has both the table's columns and those of the rows. Refused columns stay unchanged."""
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
                # All null so far; it is added when it has a type.
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
    """A type in Spark's notation."""
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

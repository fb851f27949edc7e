"""Which Avro values a reader's schema can read: the specification's schema resolution, as a check of two schemas.

    writer               reader
    int                  int, long, float, double
    long                 long, float, double
    float                float, double
    string, bytes        string, bytes
    enum                 enum of the same name whose symbols cover the writer's, or that has a default
    fixed                fixed of the same name and size
    record               record of the same name: each of its fields is the writer's, by name or alias, or has a default
    union                anything that reads each of its branches
    anything             a union with a branch that reads it

Names are equal without their namespaces, or if the reader has the writer's name as an alias. The words of the messages are those of
Confluent's registry, which tools may look for.
"""

from __future__ import annotations

from ottla.registry.formats.avro_nodes import AvroField, AvroNode
from ottla.registry.formats.budget import Budget

#: What a reader's type reads beside its own.
_PROMOTIONS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}


def incompatibilities(reader: AvroNode, writer: AvroNode) -> list[str]:
    """Why the reader cannot read the writer's values."""
    return [
        f"{{errorType:'{kind}', description:'{text} at path '{path}'', additionalInfo:'{info}'}}"
        for kind, text, path, info in _Check().compare(reader, writer, "")
    ]


#: Type, description, JSON pointer into the reader, and detail.
Problem = tuple[str, str, str, str]


class _Check:
    """One comparison. A pair that is being compared is compatible, as far as it is concerned itself."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], list[Problem]] = {}
        self._budget = Budget()
        #: Branches of unions, by the union: those with a name by its last part and by aliases, the others by "".
        self._branches: dict[int, dict[str, list[AvroNode]]] = {}

    def compare(self, reader: AvroNode, writer: AvroNode, path: str) -> list[Problem]:
        pair = (id(reader), id(writer))
        if pair not in self._known:
            self._known[pair] = []
            self._known[pair] = self._problems(reader, writer, path)
        found = self._known[pair]
        self._budget.spend(1 + len(found))
        return found

    def _problems(self, reader: AvroNode, writer: AvroNode, path: str) -> list[Problem]:
        if writer.kind == "union":
            return self._from_union(reader, writer, path)
        if reader.kind == "union":
            return self._to_union(reader, writer, path)
        if reader.kind != writer.kind:
            if writer.kind in _PROMOTIONS.get(reader.kind, ()):
                return []
            said = f"reader type: {reader.kind.upper()} not compatible with writer type: {writer.kind.upper()}"
            return [("TYPE_MISMATCH", "The type of a field in the new schema does not match with the old schema", path or "/", said)]
        match reader.kind:
            case "array" | "map":
                assert reader.inner is not None and writer.inner is not None, "both have an inner type"
                return self.compare(reader.inner, writer.inner, f"{path}/{'items' if reader.kind == 'array' else 'values'}")
            case "fixed":
                return self._names(reader, writer, path) or self._sizes(reader, writer, path)
            case "enum":
                return self._names(reader, writer, path) + self._symbols(reader, writer, path)
            case "record" | "error":
                return self._names(reader, writer, path) + self._fields(reader, writer, path)
        return []

    def _from_union(self, reader: AvroNode, writer: AvroNode, path: str) -> list[Problem]:
        found: list[Problem] = []
        for index, branch in enumerate(writer.branches):
            if reader.kind != "union":
                found += self.compare(reader, branch, path)
            elif self._to_union(reader, branch, path):
                found.append(_lacking(branch, f"{path}/{index}"))
        return found

    def _to_union(self, reader: AvroNode, writer: AvroNode, path: str) -> list[Problem]:
        if any(not self.compare(branch, writer, path) for branch in self._candidates(reader, writer)):
            return []
        return [_lacking(writer, path or "/")]

    def _candidates(self, reader: AvroNode, writer: AvroNode) -> list[AvroNode]:
        """The branches of a union that can read a type: a named type is read by those that have its name."""
        branches = self._branches.get(id(reader))
        if branches is None:
            branches = self._branches[id(reader)] = {}
            for one in reader.branches:
                for name in {one.short_name, *one.aliases}:
                    branches.setdefault(name, []).append(one)
        if not writer.name:
            return branches.get("", [])
        return branches.get(writer.short_name, []) + (branches.get(writer.name, []) if writer.namespace else [])

    @staticmethod
    def _names(reader: AvroNode, writer: AvroNode, path: str) -> list[Problem]:
        if reader.short_name == writer.short_name or writer.name in reader.aliases:
            return []
        return [("NAME_MISMATCH", "The name of the schema has changed", f"{path}/name", f"expected: {writer.name}")]

    @staticmethod
    def _sizes(reader: AvroNode, writer: AvroNode, path: str) -> list[Problem]:
        if reader.size == writer.size:
            return []
        return [("FIXED_SIZE_MISMATCH", "The size of FIXED type field has changed", f"{path}/size",
                 f"expected: {writer.size}, found: {reader.size}")]  # fmt: skip

    @staticmethod
    def _symbols(reader: AvroNode, writer: AvroNode, path: str) -> list[Problem]:
        known = set(reader.symbols)
        missing = [one for one in writer.symbols if one not in known]
        if not missing or reader.default is not None:
            return []
        return [("MISSING_ENUM_SYMBOLS", "The new schema is missing enum symbols that exist in the old schema", f"{path}/symbols",
                 f"[{', '.join(missing)}]")]  # fmt: skip

    def _fields(self, reader: AvroNode, writer: AvroNode, path: str) -> list[Problem]:
        found: list[Problem] = []
        by_name = {one.name: one for one in writer.fields}
        for index, one in enumerate(reader.fields):
            place = f"{path}/fields/{index}"
            written = _written(one, by_name)
            if written is not None:
                found += self.compare(one.type, written.type, f"{place}/type")
            elif not one.has_default:
                said = f"The field '{one.name}' in the new schema has no default value and is missing in the old schema"
                found.append(("READER_FIELD_MISSING_DEFAULT_VALUE", said, place, one.name))
        return found


def _written(one: AvroField, by_name: dict[str, AvroField]) -> AvroField | None:
    """The writer's field that the reader's field takes its value from."""
    return next((by_name[name] for name in (one.name, *one.aliases) if name in by_name), None)


def _lacking(writer: AvroNode, path: str) -> Problem:
    said = "The new schema is missing a type inside a union field that the old schema has"
    return ("MISSING_UNION_BRANCH", said, path, f"reader union lacking writer type: {writer.kind.upper()}")

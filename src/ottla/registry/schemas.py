"""Parsed schemas of the registry's versions, cached, with their references resolved. Pure.

References are resolved depth first, so that each text comes after those that it imports. A schema that is imported by several names or ways
comes once per name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from ottla.registry.errors import InvalidSchema
from ottla.registry.formats.parse import Imports, ParsedSchema, parse_schema
from ottla.registry.records import Reference, SchemaRecord
from ottla.registry.state import RegistryState
from ottla.registry.subjects import qualified_beside

#: Parsed schemas in memory.
CACHED_MAX = 2000
IMPORTS_MAX = 1000


class Schemas:
    """Parses versions of a state."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._cached: OrderedDict[tuple[str, tuple[str, ...]], ParsedSchema] = OrderedDict()

    def imports(self, subject: str, references: Iterable[Reference]) -> Imports:
        """The texts that a schema of the subject imports. Raises: InvalidSchema."""
        found: dict[str, str] = {}
        self._collect(subject, references, found, ())
        return list(found.items())

    def _collect(self, subject: str, references: Iterable[Reference], found: dict[str, str], above: tuple[tuple[str, int], ...]) -> None:
        for one in references:
            target = qualified_beside(subject, one.subject)
            schema = self._state.latest(target) if one.version == -1 else self._state.subjects.get(target, {}).get(one.version)
            if schema is None:
                raise InvalidSchema(f"No schema reference found for subject {target!r} and version {one.version} (reference {one.name!r})")
            place = (schema.subject, schema.version)
            if place in above or len(found) >= IMPORTS_MAX:
                raise InvalidSchema(f"the reference {one.name!r} leads back to {target}" if place in above else "too many references")
            self._collect(schema.subject, schema.references, found, (*above, place))
            if found.setdefault(one.name, schema.schema) != schema.schema:
                raise InvalidSchema(f"two references are called {one.name!r} and have different schemas")

    def parsed(self, schema: SchemaRecord) -> ParsedSchema:
        """The parsed form of a version. Raises: InvalidSchema."""
        imports = self.imports(schema.subject, schema.references)
        key = (schema.schema_type, (schema.schema, *(part for pair in imports for part in pair)))
        found = self._cached.get(key)
        if found is None:
            found = self._cached[key] = parse_schema(schema.schema_type, schema.schema, imports)
            if len(self._cached) > CACHED_MAX:
                self._cached.popitem(last=False)
        else:
            self._cached.move_to_end(key)
        return found

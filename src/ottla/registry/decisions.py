"""Decisions of the writing instance: a request in, records and the response out. Pure: `State.replay` of the records changes the state.

A registration has three steps, because a comparison with many versions takes time and can run beside the event loop:

    found = registration(...)          an existing version, or a candidate
    reasons = candidate.reasons()      compares it with earlier versions
    change = register(candidate)       the id, the version and the records

No other write may come between the first step and the replay of the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from ottla.registry import errors, records
from ottla.registry.compatibility import LEVELS, compared_versions, level_incompatibilities
from ottla.registry.errors import InvalidSchema, RegistryError
from ottla.registry.formats.parse import ParsedSchema, parse_schema
from ottla.registry.records import AVRO, Record, Reference, SchemaRecord
from ottla.registry.schemas import Schemas
from ottla.registry.state import GLOBAL_SETTINGS, RegistryState
from ottla.registry.subjects import DEFAULT_CONTEXT, context_of, is_valid_subject, parse_subject

MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
READ_ONLY = ("READONLY", "READONLY_OVERRIDE")
#: Fields of a configuration that are understood.
CONFIG_FIELDS = {"compatibilityLevel": str, "normalize": bool, "compatibilityGroup": str, "validateFields": bool}


class RegistryChange(NamedTuple):
    """Records to write, and what the request gets afterwards."""

    records: list[Record]
    response: Any


class SchemaRequest(msgspec.Struct, rename="camel"):
    """The body of a registration, a look-up or a compatibility check."""

    schema: str = ""
    schema_type: str = AVRO
    references: list[Reference] = []
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    version: int | None = None
    id: int | None = None


@dataclass(slots=True)
class Candidate:
    """A schema that is new to its subject. `id`: of an equal schema of the context, or None."""

    subject: str
    request: SchemaRequest
    parsed: ParsedSchema
    id: int | None
    version: int
    level: str
    earlier: list[ParsedSchema]
    #: Soft-deleted versions with the same id, which it replaces.
    replaced: list[int]

    def reasons(self) -> list[str]:
        """Why it must not follow the earlier versions; empty if it may."""
        return level_incompatibilities(self.level, self.parsed, self.earlier)


class Decisions:
    """Decides on a state, which it does not change."""

    def __init__(self, state: RegistryState, schemas: Schemas) -> None:
        self._state = state
        self._schemas = schemas

    # -- Schemas.

    def parse(self, subject: str, request: SchemaRequest, *, normalize: bool, is_new: bool) -> ParsedSchema:
        """The parsed schema of a request. Raises: RegistryError (42201)."""
        if not request.schema.strip():
            raise errors.invalid_schema("Empty schema")
        try:
            imports = self._schemas.imports(subject, request.references)
            return parse_schema(request.schema_type, request.schema, imports, normalized=normalize, is_new=is_new)
        except InvalidSchema as error:
            raise errors.invalid_schema(str(error)) from None
        except RecursionError:
            raise errors.invalid_schema(errors.TOO_DEEP) from None
        except ImportError as error:
            raise RegistryError(501, str(error)) from None

    def normalizes(self, subject: str, asked: bool) -> bool:
        return asked or self._state.config(subject).get("normalize") is True

    def lookup(self, subject: str, request: SchemaRequest, *, normalize: bool, deleted: bool) -> SchemaRecord | None:
        """The version of the subject that has this schema. Raises: RegistryError."""
        return self._equal_version(subject, request, self.parse(subject, request, normalize=normalize, is_new=False), deleted=deleted)

    def _equal_version(self, subject: str, request: SchemaRequest, parsed: ParsedSchema, *, deleted: bool) -> SchemaRecord | None:
        versions = self._state.versions(subject, deleted=deleted)[::-1]
        references = tuple(request.references)
        for one in versions:
            if one.schema == parsed.text and one.schema_type == parsed.type and one.references == references and _same(one, request):
                return one
        for one in versions:
            if one.schema_type == parsed.type and _same(one, request) and parsed.is_equivalent(self._parsed(one)):
                return one
        return None

    def _parsed(self, schema: SchemaRecord) -> ParsedSchema:
        try:
            return self._schemas.parsed(schema)
        except InvalidSchema as error:
            raise errors.store_error(f"version {schema.version} of {schema.subject} cannot be parsed: {error}") from None

    def registration(self, subject: str, request: SchemaRequest, *, normalize: bool, force: bool) -> SchemaRecord | Candidate:
        """The version that has this schema already, or a candidate. Raises: RegistryError."""
        if not is_valid_subject(subject):
            raise errors.invalid_subject(subject)
        state, mode = self._state, self._state.mode(subject)
        given_id = request.id if request.id is not None and request.id >= 0 else None
        self._check_mode(subject, mode, imports=given_id is not None)
        config = state.config(subject)
        if mode != "IMPORT":
            request = self._inherited(subject, request)
        parsed = self.parse(subject, request, normalize=self.normalizes(subject, normalize), is_new=given_id is None)
        asked_version = request.version or 0
        if asked_version <= 0:
            found = self._equal_version(subject, request, parsed, deleted=False)
            if found is not None and given_id in (None, found.id):
                return found
        schema_id = given_id if given_id is not None else self._id_of_equal(subject, request, parsed)
        every = state.versions(subject, deleted=True)
        next_version = max((one.version for one in every), default=0) + 1
        if asked_version > 0 and asked_version != next_version and mode != "IMPORT":
            raise errors.invalid_schema("Version is not one more than previous version")
        level = "NONE" if force or mode == "IMPORT" else str(config["compatibilityLevel"])
        return Candidate(
            subject, request, parsed, schema_id, asked_version if asked_version > 0 else next_version, level,
            self.earlier(subject, level, request, config.get("compatibilityGroup")),
            [one.version for one in every if one.deleted and one.id == schema_id and not self._is_referenced(one)],
        )  # fmt: skip

    def _inherited(self, subject: str, request: SchemaRequest) -> SchemaRequest:
        """Metadata and rules that a request does not have are those of the newest version."""
        latest = self._state.latest(subject)
        if latest is None:
            return request
        metadata = latest.metadata if request.metadata is None else request.metadata
        rule_set = latest.rule_set if request.rule_set is None else request.rule_set
        return msgspec.structs.replace(request, metadata=metadata, rule_set=rule_set)

    def earlier(self, subject: str, level: str, request: SchemaRequest, group: str | None = None) -> list[ParsedSchema]:
        """The versions that the level compares with, ascending; with a compatibility group only those of the same group."""
        versions = self._state.versions(subject)
        if group is not None:
            versions = [one for one in versions if _group(one.metadata, group) == _group(request.metadata, group)]
        count = compared_versions(level, len(versions))
        return [self._parsed(one) for one in versions[len(versions) - count :]]

    def _is_referenced(self, schema: SchemaRecord) -> bool:
        return bool(self._state.referenced_by(schema.subject, schema.version, deleted=True))

    @staticmethod
    def _check_mode(subject: str, mode: str, *, imports: bool) -> None:
        where = f"Subject {subject} in context {parse_subject(subject).prefix}"
        if mode in READ_ONLY:
            raise errors.not_permitted(f"{where} is in read-only mode")
        if imports and mode != "IMPORT":
            raise errors.not_permitted(f"{where} is not in import mode")
        if not imports and mode != "READWRITE":
            raise errors.not_permitted(f"{where} is not in read-write mode")

    def _id_of_equal(self, subject: str, request: SchemaRequest, parsed: ParsedSchema) -> int | None:
        made = SchemaRecord("", 0, 0, parsed.text, parsed.type, tuple(request.references), request.metadata, request.rule_set)
        known = self._state.guids.get(self._state.guid(made), {}).get(context_of(subject))
        if known is not None:
            return known
        for one in self._state.versions(subject, deleted=True):
            if one.deleted and one.schema_type == parsed.type and _same(one, request) and parsed.is_equivalent(self._parsed(one)):
                return one.id
        return None

    def register(self, candidate: Candidate) -> RegistryChange:
        """Raises: RegistryError if the id belongs to another schema."""
        state, subject, request = self._state, candidate.subject, candidate.request
        context = context_of(subject)
        schema_id = candidate.id if candidate.id is not None else state.largest_id.get(context, 0) + 1
        made = SchemaRecord(
            subject, candidate.version, schema_id, candidate.parsed.text, candidate.parsed.type,
            tuple(self._pinned(subject, one) for one in request.references), request.metadata, request.rule_set,
        )  # fmt: skip
        other = state.by_id(schema_id, parse_subject(subject).prefix or None)
        if other is not None and other.schema != made.schema:
            raise errors.not_permitted(
                f"Overwrite new schema with id {schema_id} in context {parse_subject(subject).prefix} is not permitted."
            )
        found: list[Record] = []
        if context != DEFAULT_CONTEXT and context not in state.contexts:
            found.append(records.context_record(context))
        found += [records.schema_tombstone(subject, version) for version in candidate.replaced if version != candidate.version]
        return RegistryChange([*found, records.schema_record(made)], made)

    def _pinned(self, subject: str, reference: Reference) -> Reference:
        """A reference to the latest version becomes one to its number."""
        if reference.version != -1:
            return reference
        latest = self._state.latest(parse_subject(subject).prefix + reference.subject)
        return reference if latest is None else Reference(reference.name, reference.subject, latest.version)

    # -- Deletes.

    def delete_version(self, subject: str, version: int, *, permanent: bool) -> RegistryChange:
        """Raises: RegistryError."""
        state = self._state
        schema = state.latest(subject) if version == -1 else state.subjects.get(subject, {}).get(version)
        if schema is None:
            raise errors.version_not_found(version) if state.has_subject(subject, deleted=True) else errors.subject_not_found(subject)
        if schema.deleted and not permanent:
            raise errors.version_soft_deleted(subject, schema.version)
        self._check_writable(subject)
        if state.referenced_by(subject, schema.version, deleted=permanent):
            raise errors.reference_exists(subject, schema.version)
        if not permanent:
            return RegistryChange([records.schema_record(msgspec.structs.replace(schema, deleted=True))], schema.version)
        if not schema.deleted:
            raise errors.version_not_soft_deleted(subject, schema.version)
        found = [records.schema_tombstone(subject, schema.version)]
        if len(state.versions(subject, deleted=True)) == 1:
            found += self._settings_gone(subject)
        return RegistryChange(found, schema.version)

    def delete_subject(self, subject: str, *, permanent: bool) -> RegistryChange:
        """Raises: RegistryError."""
        state = self._state
        if not state.has_subject(subject, deleted=True):
            raise errors.subject_not_found(subject)
        if not permanent and not state.has_subject(subject, deleted=False):
            raise errors.subject_soft_deleted(subject)
        self._check_writable(subject)
        versions = state.versions(subject, deleted=permanent)
        for one in versions:
            if any(other.subject != subject for other in state.referenced_by(subject, one.version, deleted=permanent)):
                raise errors.reference_exists(subject, one.version)
            if permanent and not one.deleted:
                raise errors.subject_not_soft_deleted(subject)
        numbers = [one.version for one in versions]
        if not permanent:
            return RegistryChange([records.delete_subject_record(subject, numbers[-1])], numbers)
        return RegistryChange(
            [*(records.schema_tombstone(subject, version) for version in reversed(numbers)), *self._settings_gone(subject)], numbers
        )

    def _settings_gone(self, subject: str) -> list[Record]:
        found = []
        if subject in self._state.modes:
            found.append(records.mode_record(subject, None))
        if subject in self._state.configs:
            found.append(records.config_record(subject, None))
        return found

    def _check_writable(self, subject: str | None) -> None:
        if self._state.mode(subject) in READ_ONLY:
            raise errors.not_permitted(f"Subject {subject or 'of the default context'} is in read-only mode")

    def delete_context(self, context: str) -> RegistryChange:
        """Raises: RegistryError."""
        if self._state.has_subject(f":{context}:", deleted=True):
            raise errors.context_not_empty(context)
        return RegistryChange([records.context_record(context, deleted=True)], None)

    # -- Settings.

    def set_config(self, subject: str | None, given: dict[str, Any]) -> RegistryChange:
        """`given`: fields by Confluent's names, `compatibility` for the level. Raises: RegistryError."""
        if subject is not None and not is_valid_subject(subject, for_settings=True):
            raise errors.invalid_subject(subject)
        asked = {("compatibilityLevel" if name == "compatibility" else name): value for name, value in given.items() if value is not None}
        for name, value in asked.items():
            if name not in CONFIG_FIELDS:
                raise RegistryError(422, f"The configuration field {name!r} is not supported; there are compatibility, normalize,"
                                    " compatibilityGroup and validateFields")  # fmt: skip
            if not isinstance(value, CONFIG_FIELDS[name]):
                raise RegistryError(422, f"{name} must be a {CONFIG_FIELDS[name].__name__}, not {value!r}")
        level = asked.get("compatibilityLevel")
        if level is not None:
            if level.upper() not in LEVELS:
                raise errors.invalid_level(level)
            asked["compatibilityLevel"] = level.upper()
        if not asked:
            raise errors.invalid_level(None)
        self._check_writable(subject)
        response = {("compatibility" if name == "compatibilityLevel" else name): value for name, value in asked.items()}
        return RegistryChange([records.config_record(subject, {**self._state.configs.get(subject, {}), **asked})], response)

    def delete_config(self, subject: str | None) -> RegistryChange:
        """Raises: RegistryError."""
        if subject is not None and subject not in self._state.configs:
            raise errors.subject_not_found(subject)
        self._check_writable(subject)
        old = self._state.config(None) if subject is None else self._state.configs[subject]
        return RegistryChange([records.config_record(subject, None)], old)

    def set_mode(self, subject: str | None, mode: Any, *, force: bool) -> RegistryChange:
        """Raises: RegistryError."""
        if subject is not None and not is_valid_subject(subject, for_settings=True):
            raise errors.invalid_subject(subject)
        if not isinstance(mode, str) or mode.upper() not in MODES:
            raise errors.invalid_mode(mode)
        mode, state = mode.upper(), self._state
        found: list[Record] = []
        if mode == "IMPORT" and state.mode(subject) != "IMPORT" and not force:
            if state.has_subject(subject, deleted=False):
                raise errors.not_permitted("Cannot import since found existing subjects")
            for name in [name for name in state.subjects if state.belongs(name, subject)]:
                for one in state.versions(name, deleted=True)[::-1]:
                    if state.referenced_by(name, one.version, deleted=True):
                        raise errors.reference_exists(name, one.version)
                    found.append(records.schema_tombstone(name, one.version))
            found.append(records.clear_subject_record(subject))
        return RegistryChange([*found, records.mode_record(subject, mode)], {"mode": mode})

    def delete_mode(self, subject: str | None, *, recursive: bool = False) -> RegistryChange:
        """Raises: RegistryError."""
        state = self._state
        if subject is not None and subject not in state.modes and not recursive:
            raise errors.subject_not_found(subject)
        found = [records.mode_record(subject, None)]
        if recursive and (subject is None or not parse_subject(subject).subject):
            found += [
                records.mode_record(name, None) for name in state.modes
                if name is not None and name not in (subject, GLOBAL_SETTINGS) and state.belongs(name, subject)
            ]  # fmt: skip
        mode = state.modes.get(subject, state.mode(None) if subject is None else None)
        return RegistryChange(found, {} if mode is None else {"mode": mode})


def _same(schema: SchemaRecord, request: SchemaRequest) -> bool:
    """Whether metadata and rules are equal; a request without them asks for any."""
    return (request.metadata is None or schema.metadata == request.metadata) and (
        request.rule_set is None or schema.rule_set == request.rule_set
    )


def _group(metadata: dict[str, Any] | None, name: str) -> Any:
    properties = (metadata or {}).get("properties")
    return properties.get(name) if isinstance(properties, dict) else None

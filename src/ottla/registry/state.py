"""The registry's state: a replay of the records of `_schemas`. Pure.

`replay` alone changes it. Look-ups answer from indexes:

    subjects   name -> version -> schema
    ids        context -> id -> the versions that have it        equal schemas of several subjects share one id
    guids      hash of a schema -> (context, id)                 the same text, references and metadata in any context
    referrers  (subject, version) -> versions that refer to it

A schema with an id that another schema of the context has is not applied: two instances wrote at once, and the first record counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ottla.registry.records import Key, Reference, SchemaRecord, key_decoder, schema_decoder
from ottla.registry.subjects import (
    ALL_CONTEXTS,
    DEFAULT_CONTEXT,
    GLOBAL_CONTEXT,
    QualifiedSubject,
    context_of,
    parse_subject,
    qualified_beside,
)

DEFAULT_LEVEL = "BACKWARD"
DEFAULT_MODE = "READWRITE"
#: Settings of all contexts.
GLOBAL_SETTINGS = f":{GLOBAL_CONTEXT}:"
Place = tuple[str, int]


def guid_of(schema: str, references: Iterable[Reference], metadata: dict[str, Any] | None, rule_set: dict[str, Any] | None) -> str:
    """A hash of what makes a schema, as a UUID."""
    digest = hashlib.md5(schema.encode(), usedforsecurity=False)
    for one in references:
        digest.update(one.name.encode() + one.subject.encode() + one.version.to_bytes(4, "big", signed=True))
    for part in (metadata, rule_set):
        if part is not None:
            digest.update(b"\1" + msgspec.json.encode(part, order="sorted"))
    found = digest.hexdigest()
    return f"{found[:8]}-{found[8:12]}-{found[12:16]}-{found[16:20]}-{found[20:]}"


@dataclass(slots=True)
class RegistryState:
    """What the records say. One per instance."""

    subjects: dict[str, dict[int, SchemaRecord]] = field(default_factory=dict)
    ids: dict[str, dict[int, dict[Place, SchemaRecord]]] = field(default_factory=dict)
    guids: dict[str, dict[str, int]] = field(default_factory=dict)
    referrers: dict[Place, set[Place]] = field(default_factory=dict)
    configs: dict[str | None, dict[str, Any]] = field(default_factory=dict)
    modes: dict[str | None, str] = field(default_factory=dict)
    contexts: set[str] = field(default_factory=set)
    #: The largest id that was ever seen, by context. Never shrinks, so that ids of deleted schemas are not given again.
    largest_id: dict[str, int] = field(default_factory=dict)

    # -- Replay.

    def replay(self, key: bytes | None, value: bytes | None) -> str | None:
        """Applies a record. Returns why it was ignored, if it was."""
        if key is None:
            return "it has no key"
        try:
            found = key_decoder.decode(key)
            return self._apply(found, value)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return f"it is not a record of a registry: {error}"

    def _apply(self, key: Key, value: bytes | None) -> str | None:
        match key.keytype:
            case "SCHEMA":
                if key.subject is None or key.version < 1:
                    return "its key names no version of a subject"
                if value is None:
                    self._remove(key.subject, key.version)
                    return None
                return self._put(key, schema_decoder.decode(value))
            case "CONFIG" | "MODE":
                self._set(key, None if value is None else msgspec.json.decode(value, type=dict[str, Any]))
            case "DELETE_SUBJECT" if value is not None and key.subject is not None:
                until = int(msgspec.json.decode(value, type=dict[str, Any]).get("version") or 0)
                for version, schema in self.subjects.get(key.subject, {}).items():
                    if version <= until:
                        schema.deleted = True
            case "CLEAR_SUBJECT" if value is not None:
                self._clear(key.subject)
            case "CONTEXT" if key.context:
                (self.contexts.discard if value is None else self.contexts.add)(key.context)
            case "NOOP" | "DELETE_SUBJECT" | "CLEAR_SUBJECT" | "CONTEXT":
                pass
            case _:
                return f"its key type {key.keytype!r} is not known"
        return None

    def _set(self, key: Key, value: dict[str, Any] | None) -> None:
        subject = key.subject or None
        if key.keytype == "CONFIG":
            if value is None:
                self.configs.pop(subject, None)
            else:
                self.configs[subject] = {name: one for name, one in value.items() if name != "subject" and one is not None}
        elif value is None or not value.get("mode"):
            self.modes.pop(subject, None)
        else:
            self.modes[subject] = str(value["mode"])

    def _put(self, key: Key, schema: SchemaRecord) -> str | None:
        assert key.subject is not None, "checked by the caller"
        schema.subject, schema.version = key.subject, key.version
        context, place = context_of(schema.subject), (schema.subject, schema.version)
        ids = self.ids.setdefault(context, {})
        others = ids.get(schema.id, {})
        if any(one.schema != schema.schema for other, one in others.items() if other != place):
            return f"schema id {schema.id} already belongs to another schema, and the first record counts"
        previous = self.subjects.get(schema.subject, {}).get(schema.version)
        if previous is not None:
            self._remove(*place)
            others = ids.get(schema.id, {})
        others[place] = schema
        ids[schema.id] = others
        self.subjects.setdefault(schema.subject, {})[schema.version] = schema
        self.guids.setdefault(self.guid(schema), {}).setdefault(context, schema.id)
        for target in self.targets(schema):
            self.referrers.setdefault(target, set()).add(place)
        self.largest_id[context] = max(self.largest_id.get(context, 0), schema.id)
        if context != DEFAULT_CONTEXT:
            self.contexts.add(context)
        return None

    def _remove(self, subject: str, version: int) -> None:
        versions = self.subjects.get(subject, {})
        schema = versions.pop(version, None)
        if schema is None:
            return
        if not versions:
            del self.subjects[subject]
        context, place = context_of(subject), (subject, version)
        places = self.ids[context][schema.id]
        del places[place]
        if not places:
            del self.ids[context][schema.id]
            known = self.guids.get(self.guid(schema), {})
            if known.get(context) == schema.id:
                del known[context]
        for target in self.targets(schema):
            self.referrers.get(target, set()).discard(place)

    def _clear(self, subject: str | None) -> None:
        for name in [name for name in self.subjects if self.belongs(name, subject)]:
            for version in [number for number, one in self.subjects[name].items() if one.deleted]:
                self._remove(name, version)

    # -- Look-ups.

    @staticmethod
    def guid(schema: SchemaRecord) -> str:
        return guid_of(schema.schema, schema.references, schema.metadata, schema.rule_set)

    @staticmethod
    def targets(schema: SchemaRecord) -> list[Place]:
        """The versions that a schema refers to."""
        return [(qualified_beside(schema.subject, one.subject), one.version) for one in schema.references]

    @staticmethod
    def belongs(name: str, subject: str | None) -> bool:
        """Whether a subject is this one, or of this context (`:.c:`); None: of the default context."""
        if subject is None:
            return context_of(name) == DEFAULT_CONTEXT
        found = parse_subject(subject)
        if found.context == GLOBAL_CONTEXT:
            return True
        return name == found.text if found.subject else context_of(name) == found.context

    def has_subject(self, subject: str | None, *, deleted: bool) -> bool:
        """Whether there are versions of the subject, or of a subject of the context."""
        if subject is not None and parse_subject(subject).subject:
            return any(deleted or not one.deleted for one in self.subjects.get(subject, {}).values())
        return any(self.belongs(name, subject) and self.has_subject(name, deleted=deleted) for name in self.subjects)

    def subject_names(self, prefix: str, *, deleted: bool = False, deleted_only: bool = False) -> Iterator[str]:
        """Subjects by prefix, sorted. `:*:` covers all contexts, a prefix without a context the default one."""
        everywhere = prefix.startswith(ALL_CONTEXTS)
        wanted = parse_subject(prefix)
        for name in sorted(self.subjects):
            found = parse_subject(name)
            if (everywhere or found.context == wanted.context) and found.subject.startswith(wanted.subject):
                versions = self.subjects[name].values()
                live = any(not one.deleted for one in versions)
                if (not live) if deleted_only else (live or deleted):
                    yield name

    def versions(self, subject: str, *, deleted: bool = False) -> list[SchemaRecord]:
        """The versions of a subject, ascending."""
        return [one for _, one in sorted(self.subjects.get(subject, {}).items()) if deleted or not one.deleted]

    def latest(self, subject: str) -> SchemaRecord | None:
        """The newest version that is not deleted."""
        live = [one for one in self.subjects.get(subject, {}).values() if not one.deleted]
        return max(live, key=lambda one: one.version, default=None)

    def by_id(self, number: int, subject: str | None = None) -> SchemaRecord | None:
        """A schema by id, deleted or not. `subject`: of its context; without a context, of any context where the subject has this id."""
        wanted = parse_subject(subject or "")
        found = self._with_id(wanted.context, number, wanted.subject and wanted.text)
        if found is not None or wanted.context != DEFAULT_CONTEXT or not wanted.subject:
            return found
        for context in sorted(self.contexts):
            places = self.ids.get(context, {}).get(number, {})
            name = QualifiedSubject(context, wanted.subject).text
            for (other, _), schema in places.items():
                if other == name:
                    return schema
        return self._with_id(DEFAULT_CONTEXT, number, "")

    def _with_id(self, context: str, number: int, subject: str) -> SchemaRecord | None:
        places = self.ids.get(context, {}).get(number, {})
        chosen = [one for (name, _), one in places.items() if not subject or name == subject]
        if not chosen and subject and context != DEFAULT_CONTEXT:
            chosen = list(places.values())
        return next(iter(chosen), None)

    def places_of_id(self, number: int, context: str, *, deleted: bool) -> list[SchemaRecord]:
        """The versions with this id, sorted."""
        places = self.ids.get(context, {}).get(number, {})
        return [one for _, one in sorted(places.items()) if deleted or not one.deleted]

    def referenced_by(self, subject: str, version: int, *, deleted: bool) -> list[SchemaRecord]:
        """Versions that refer to this one."""
        found = [self.subjects[name][number] for name, number in sorted(self.referrers.get((subject, version), ()))]
        return [one for one in found if deleted or not one.deleted]

    # -- Settings.

    def config(self, subject: str | None) -> dict[str, Any]:
        """The configuration in effect for a subject: its own over the next wider one."""
        wider = self._wider(subject)
        base: dict[str, Any] = next((self.configs[name] for name in wider if name in self.configs), {})
        own = self.configs.get(subject, {}) if subject is not None else {}
        merged = {**base, **own}
        merged.setdefault("compatibilityLevel", DEFAULT_LEVEL)
        return merged

    def mode(self, subject: str | None) -> str:
        """The mode in effect for a subject. READONLY_OVERRIDE of all contexts or globally overrides every other."""
        for name in (None, GLOBAL_SETTINGS):
            if self.modes.get(name) == "READONLY_OVERRIDE":
                return "READONLY_OVERRIDE"
        names = ([] if subject is None else [subject]) + self._wider(subject)
        return next((self.modes[name] for name in names if name in self.modes), DEFAULT_MODE)

    @staticmethod
    def _wider(subject: str | None) -> list[str | None]:
        context = DEFAULT_CONTEXT if subject is None else context_of(subject)
        return [None if context == DEFAULT_CONTEXT else f":{context}:", GLOBAL_SETTINGS]

"""Records of the topic `_schemas`, in Confluent's format: JSON keys and values.

    key                                                                value
    {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}           {"subject":"s","version":1,"id":1,"schema":"...","deleted":false}
    {"keytype":"CONFIG","subject":"s","magic":0}                       {"subject":"s","compatibilityLevel":"FULL"}
    {"keytype":"MODE","subject":"s","magic":0}                         {"subject":"s","mode":"READONLY"}
    {"keytype":"DELETE_SUBJECT","subject":"s","magic":0}               {"subject":"s","version":3}           soft-deletes versions 1 to 3
    {"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}                {"subject":"s"}
    {"keytype":"CONTEXT","tenant":"default","context":".c","magic":0}  {"tenant":"default","context":".c"}
    {"keytype":"NOOP","magic":0}                                       none

A SCHEMA record without a value is a hard delete. Global settings have no subject in the key. The order of the fields in a key matters:
compaction compares bytes, and so do records of both registries.
"""

from __future__ import annotations

from typing import Any

import msgspec

Record = tuple[bytes, bytes | None]
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
TYPES = (JSON, PROTOBUF, AVRO)
TENANT = "default"


class Reference(msgspec.Struct, frozen=True):
    """A schema that another one imports: by `name` in its text, found as a version of a subject."""

    name: str
    subject: str
    version: int


class SchemaRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """The value of a SCHEMA record, and of each version in memory."""

    subject: str
    version: int
    id: int
    schema: str = ""
    schema_type: str = AVRO
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    deleted: bool = False


class Key(msgspec.Struct):
    """The key of any record."""

    keytype: str
    subject: str | None = None
    version: int = 0
    magic: int = 0
    context: str | None = None


key_decoder = msgspec.json.Decoder(Key)
schema_decoder = msgspec.json.Decoder(SchemaRecord)
_encode = msgspec.json.encode


def schema_key(subject: str, version: int) -> bytes:
    return _encode({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def additions(schema: SchemaRecord) -> dict[str, Any]:
    """References, metadata and rules of a schema, under the registry's names, as far as it has them."""
    found: dict[str, Any] = {}
    if schema.references:
        found["references"] = [msgspec.structs.asdict(one) for one in schema.references]
    if schema.metadata is not None:
        found["metadata"] = schema.metadata
    if schema.rule_set is not None:
        found["ruleSet"] = schema.rule_set
    return found


def schema_record(schema: SchemaRecord) -> Record:
    """Registers a version, or soft-deletes it."""
    value: dict[str, Any] = {"subject": schema.subject, "version": schema.version, "id": schema.id}
    if schema.schema_type != AVRO:
        value["schemaType"] = schema.schema_type
    value |= {**additions(schema), "schema": schema.schema, "deleted": schema.deleted}
    return schema_key(schema.subject, schema.version), _encode(value)


def schema_tombstone(subject: str, version: int) -> Record:
    return schema_key(subject, version), None


def _settings_key(keytype: str, subject: str | None) -> bytes:
    named = {} if subject is None else {"subject": subject}
    return _encode({"keytype": keytype, **named, "magic": 0})


def config_record(subject: str | None, config: dict[str, Any] | None) -> Record:
    """Sets the configuration of a subject, a context, or all; None removes it."""
    named = {} if subject is None else {"subject": subject}
    return _settings_key("CONFIG", subject), None if config is None else _encode({**named, **config})


def mode_record(subject: str | None, mode: str | None) -> Record:
    named = {} if subject is None else {"subject": subject}
    return _settings_key("MODE", subject), None if mode is None else _encode({**named, "mode": mode})


def delete_subject_record(subject: str, version: int) -> Record:
    return _settings_key("DELETE_SUBJECT", subject), _encode({"subject": subject, "version": version})


def clear_subject_record(subject: str | None) -> Record:
    named = {} if subject is None else {"subject": subject}
    return _settings_key("CLEAR_SUBJECT", subject), _encode(named)


def context_record(context: str, *, deleted: bool = False) -> Record:
    key = _encode({"keytype": "CONTEXT", "tenant": TENANT, "context": context, "magic": 0})
    return key, None if deleted else _encode({"tenant": TENANT, "context": context})


def noop_record() -> Record:
    return _encode({"keytype": "NOOP", "magic": 0}), None

"""The file of a backup: one JSON document, readable by people, written whole or not at all, with mode 0600.

    {"format": "ottla-backup", "version": 1, "cluster_id": ..., "created_ms": ..., "brokers": [...], "topics": [...], "settings": [...],
     "acls": [...], "quotas": [...], "users": [...], "groups": [...], "left_out": [...]}

Fields may be added; a file with a higher version is refused. There are no secrets in it: Kafka's protocol does not give them out.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import msgspec

from ottla.base.acls import Operation, PatternType, Permission, ResourceType
from ottla.client.admin import results as r
from ottla.client.admin.acl_results import Acl
from ottla.client.admin.quotas import QuotaEntity
from ottla.client.group.commits import OffsetAndMetadata

FORMAT, VERSION = "ottla-backup", 1
#: What can be left out.
PARTS = ("topics", "settings", "acls", "quotas", "users", "groups")
#: As a file name: standard output or input.
STREAM = "-"


class SavedBroker(msgspec.Struct):
    """A broker. Its static settings are in its own configuration and only here to be read."""

    id: int
    host: str
    port: int
    rack: str | None = None
    static_settings: dict[str, str] = {}


class SavedTopic(msgspec.Struct):
    """A topic with the settings that it overrides. `replicas`: brokers by partition, the preferred leader first."""

    name: str
    partitions: int
    replication_factor: int
    replicas: list[list[int]]
    settings: dict[str, str] = {}


class SavedSettings(msgspec.Struct):
    """Settings that were changed at run time: of a broker, of all brokers (the empty name), a group, a subscription of client metrics."""

    type: str
    name: str
    settings: dict[str, str]

    @property
    def resource(self) -> r.Resource:
        return r.Resource(r.ResourceType[self.type], self.name)


class SavedAcl(msgspec.Struct):
    """An access rule, with Kafka's names."""

    principal: str
    host: str
    operation: str
    permission: str
    resource_type: str
    name: str
    pattern_type: str

    @classmethod
    def of(cls, acl: Acl) -> SavedAcl:
        return cls(
            principal=acl.principal, host=acl.host, operation=acl.operation.label, permission=acl.permission.label,
            resource_type=acl.resource_type.label, name=acl.name, pattern_type=acl.pattern_type.label,
        )  # fmt: skip

    def acl(self) -> Acl:
        """Raises: ValueError for an unknown name."""
        operation, permission = Operation.labelled(self.operation), Permission.labelled(self.permission)
        resource_type, pattern_type = ResourceType.labelled(self.resource_type), PatternType.labelled(self.pattern_type)
        if operation is None or permission is None or resource_type is None or pattern_type is None:
            names = f"{self.operation}, {self.permission}, {self.resource_type} or {self.pattern_type}"
            raise ValueError(f"the access rule of {self.principal} on {self.name} has a name that this version does not know: {names}")
        return Acl(
            principal=self.principal, host=self.host, operation=operation, permission=permission,
            resource_type=resource_type, name=self.name, pattern_type=pattern_type,
        )  # fmt: skip


class SavedQuota(msgspec.Struct):
    """Quotas of an entity. None: not a part of it; the empty name: the default of all others."""

    user: str | None
    client_id: str | None
    ip: str | None
    quotas: dict[str, float]

    @property
    def entity(self) -> QuotaEntity:
        return QuotaEntity(user=self.user, client_id=self.client_id, ip=self.ip)


class SavedUser(msgspec.Struct):
    """A user of SCRAM: iterations by mechanism. Brokers do not give out the keys."""

    name: str
    mechanisms: dict[str, int]


class SavedOffset(msgspec.Struct, omit_defaults=True):
    """A committed offset."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""

    @property
    def committed(self) -> OffsetAndMetadata:
        return OffsetAndMetadata(self.offset, self.metadata, self.leader_epoch)


class SavedGroup(msgspec.Struct):
    """Committed offsets of a group, by topic and partition. `has_members`: when it was read."""

    name: str
    offsets: dict[str, dict[int, SavedOffset]]
    has_members: bool = False


class Backup(msgspec.Struct):
    """Metadata and configuration of a cluster. A part is None if it was left out; `left_out` says which, and why."""

    format: str
    version: int
    created_ms: int
    ottla: str
    cluster_id: str | None
    brokers: list[SavedBroker]
    features: dict[str, int] = {}
    topics: list[SavedTopic] | None = None
    settings: list[SavedSettings] | None = None
    acls: list[SavedAcl] | None = None
    quotas: list[SavedQuota] | None = None
    users: list[SavedUser] | None = None
    groups: list[SavedGroup] | None = None
    left_out: list[str] = []


def write(backup: Backup, name: str, *, overwrite: bool) -> None:
    """Writes a file that only its owner can read. Raises: FileExistsError, OSError."""
    text = msgspec.json.format(msgspec.json.encode(backup), indent=1) + b"\n"
    if name == STREAM:
        sys.stdout.buffer.write(text)
        return
    path = Path(name)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; choose another name, or replace it with --overwrite")
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def read(name: str) -> Backup:
    """Raises: ValueError if it is no backup, or of a later version; OSError."""
    text = sys.stdin.buffer.read() if name == STREAM else Path(name).read_bytes()
    what = "standard input" if name == STREAM else name
    try:
        head = msgspec.json.decode(text, type=dict[str, object])
        if head.get("format") != FORMAT:
            raise msgspec.ValidationError(f'its "format" is not "{FORMAT}"')
        version = head.get("version")
        if isinstance(version, int) and version > VERSION:
            raise ValueError(f"{what} has version {version} of the format, and this Ottla reads up to {VERSION}; upgrade Ottla")
        return msgspec.json.decode(text, type=Backup)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{what} is not a backup by ottla backup, or is damaged: {error}") from None

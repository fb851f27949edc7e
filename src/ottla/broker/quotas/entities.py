"""Entities of client quotas in requests, their filters, and checks of changed quotas.

Source: KIP-546, Kafka's ClientQuotaControlManager and ClientQuotasImage.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from math import isfinite
from typing import Protocol

from ottla.broker.quotas.limits import DEFAULT, Quota, keys_of, quota_text
from ottla.store.layout_quotas import QuotaEntity
from ottla.wire import errors
from ottla.wire.messages import alter_client_quotas as altering
from ottla.wire.messages import describe_client_quotas as describing

USER, CLIENT_ID, IP = "user", "client-id", "ip"
TYPES = (USER, CLIENT_ID, IP)
#: How far a quota of whole numbers may be from one.
WHOLE = 1e-6
_HOST = re.compile(r"(?=.{1,253}$)([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?")


class EntityPart(Protocol):
    """A part of an entity in a request; the name is null for the default."""

    entity_type: str
    entity_name: str | None


def entity_of(parts: Sequence[EntityPart]) -> QuotaEntity:
    """The entity of a change. Raises: InvalidRequest."""
    names: dict[str, str] = {}
    for part in parts:
        kind, name = part.entity_type, part.entity_name
        if kind not in TYPES:
            raise errors.InvalidRequest(f"quotas have no entities of type {kind!r}; types are {', '.join(TYPES)}")
        if kind in names:
            raise errors.InvalidRequest(f"the entity has more than one {kind}")
        if name == "":
            raise errors.InvalidRequest(f"the {kind} is empty; null names the default")
        names[kind] = DEFAULT if name is None else name
    if not names:
        raise errors.InvalidRequest("an entity has a user, a client-id or both, or an ip")
    if IP in names and len(names) > 1:
        raise errors.InvalidRequest("an ip has quotas of its own, not together with a user or client-id")
    if names.get(IP):
        _check_host(names[IP])
    return QuotaEntity(user=names.get(USER), client=names.get(CLIENT_ID), ip=names.get(IP))


def _check_host(name: str) -> None:
    try:
        ip_address(name)
    except ValueError:
        if not _HOST.fullmatch(name):
            raise errors.InvalidRequest(f"{name!r} is not an IP address or a host name") from None


def parts_of(entity: QuotaEntity) -> list[describing.EntityData]:
    """The entity as in a response."""
    names = ((USER, entity.user), (CLIENT_ID, entity.client), (IP, entity.ip))
    return [describing.EntityData(entity_type=kind, entity_name=name or None) for kind, name in names if name is not None]


def checked_changes(entity: QuotaEntity, ops: Iterable[altering.OpData]) -> dict[Quota, str | None]:
    """The text of each quota to set, or None to remove it. Raises: InvalidRequest."""
    known = {str(key): found for key, found in keys_of(entity).items()}
    changes: dict[Quota, str | None] = {}
    for op in ops:
        key = known.get(op.key)
        if op.key in changes:
            raise errors.InvalidRequest(f"quota {op.key} is named more than once")
        if op.remove:
            if key is not None:
                changes[key.name] = None
            continue
        if key is None:
            raise errors.InvalidRequest(f"there is no quota {op.key!r} here; there are {', '.join(known)}")
        if not op.value > 0 or not isfinite(op.value):
            raise errors.InvalidRequest(f"{op.key} is {op.value:g}; it must be above 0")
        if key.whole_max is not None and op.value > key.whole_max:
            raise errors.InvalidRequest(f"{op.key} is {op.value:g}; it must be at most {key.whole_max}")
        if key.whole_max is not None and abs(op.value - round(op.value)) > WHOLE:
            raise errors.InvalidRequest(f"{op.key} is {op.value:g}; it must be a whole number")
        changes[key.name] = quota_text(entity, op.key, op.value)
    return changes


@dataclass(slots=True)
class EntityFilter:
    """The conditions of a DescribeClientQuotas request."""

    #: By type: the name, or DEFAULT.
    exact: dict[str, str] = field(default_factory=dict)
    #: Types with any name, or the default.
    present: set[str] = field(default_factory=set)
    #: Whether an entity must have no other part.
    strict: bool = False

    @classmethod
    def of(cls, request: describing.DescribeClientQuotasRequest) -> "EntityFilter":
        """Raises: InvalidRequest, UnsupportedVersion for an unknown type."""
        made = cls(strict=request.strict)
        for component in request.components:
            kind, name = component.entity_type, component.match
            if not kind:
                raise errors.InvalidRequest("the type of an entity is empty")
            if kind in made.exact or kind in made.present:
                raise errors.InvalidRequest(f"the filter has {kind} more than once")
            if kind not in TYPES:
                raise errors.UnsupportedVersion(f"quotas have no entities of type {kind!r}; types are {', '.join(TYPES)}")
            if component.match_type not in (describing.EXACT, describing.DEFAULT, describing.ANY):
                raise errors.InvalidRequest(f"there is no type of match {component.match_type}")
            if (name is not None) != (component.match_type == describing.EXACT):
                raise errors.InvalidRequest(f"the filter for {kind} has a name if, and only if, it matches a name")
            if component.match_type == describing.ANY:
                made.present.add(kind)
            elif name != "":
                made.exact[kind] = DEFAULT if name is None else name
            else:
                # No entity has an empty name, which is the default in memory.
                made.exact[kind] = "\0"
        kinds = made.exact.keys() | made.present
        if IP in kinds and len(kinds) > 1:
            raise errors.InvalidRequest("a filter has an ip, or a user and client-id")
        return made

    def matches(self, entity: QuotaEntity) -> bool:
        """Whether all conditions hold."""
        parts = {USER: entity.user, CLIENT_ID: entity.client, IP: entity.ip}
        names = {kind: name for kind, name in parts.items() if name is not None}
        if self.strict and len(names) != len(self.exact) + len(self.present):
            return False
        return all(names.get(kind) == name for kind, name in self.exact.items()) and self.present <= names.keys()

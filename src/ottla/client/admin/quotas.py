"""Admin requests about client quotas: how much users, client ids and addresses may use.

    await admin.alter_client_quotas({QuotaEntity(user="alice"): {"producer_byte_rate": 1_048_576}})
    await admin.describe_client_quotas(user="alice")

A client has the quota of the most specific entity: a user's client id, a user, a client id, and defaults in between. Each broker applies it
for itself. Source: KIP-546, KIP-612.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from ottla.client.admin.calls import HasCalls, Outcome, failed
from ottla.wire import messages as m
from ottla.wire.messages import alter_client_quotas as altering
from ottla.wire.messages import describe_client_quotas as describing

USER, CLIENT_ID, IP = "user", "client-id", "ip"


class QuotaMatch(Enum):
    """A condition of `describe_client_quotas`."""

    #: Every entity with this part, also the default.
    ANY = "any"


class QuotaEntity(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """What has quotas: a user, a client id, both, or an IP address. None: not a part of it; the empty name: the default of all others."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def parts(self) -> dict[str, str | None]:
        """Name by Kafka's type; None for the default."""
        named = {USER: self.user, CLIENT_ID: self.client_id, IP: self.ip}
        return {kind: name or None for kind, name in named.items() if name is not None}

    @classmethod
    def of(cls, parts: Mapping[str, str | None]) -> QuotaEntity:
        """The entity with these parts; None for the default."""
        names = {kind.replace("-", "_"): name or "" for kind, name in parts.items()}
        return cls(**{kind: name for kind, name in names.items() if kind in cls.__struct_fields__})

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name or '(default)'}" for kind, name in self.parts.items())


async def describe_client_quotas(
    self: HasCalls,
    *,
    user: str | QuotaMatch | None = None,
    client_id: str | QuotaMatch | None = None,
    ip: str | QuotaMatch | None = None,
    strict: bool = False,
    timeout_ms: float | None = None,
) -> dict[QuotaEntity, dict[str, float]]:
    """Quotas of the entities that match all conditions, by name of the quota. A condition is a name, the empty name for the default, or
    `QuotaMatch.ANY`. `strict`: only entities without further parts.

    Raises: InvalidRequest, BrokerIncompatible before Kafka 2.6.

    Example: `admin.describe_client_quotas(user="ann", strict=True)`.
    """
    conditions = {USER: user, CLIENT_ID: client_id, IP: ip}
    components = [_component(kind, wanted) for kind, wanted in conditions.items() if wanted is not None]
    request = m.DescribeClientQuotasRequest(components=components, strict=strict)
    response = await self._calls.any_broker(request, timeout_ms, "describing client quotas")
    return {_entity(entry.entity): {one.key: one.value for one in entry.values} for entry in response.entries or ()}


async def alter_client_quotas(
    self: HasCalls,
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
    *,
    validate_only: bool = False,
    timeout_ms: float | None = None,
) -> dict[QuotaEntity, Outcome[None]]:
    """Set quotas by name, or remove them (None); others of the entity stay.

    Users and client ids have `producer_byte_rate`, `consumer_byte_rate`, `request_percentage` and `controller_mutation_rate`, addresses
    `connection_creation_rate`.

    Example: `admin.alter_client_quotas({QuotaEntity(user="ann"): {"producer_byte_rate": 1_000_000}})`.
    """

    async def ask(entities: list[QuotaEntity], left_ms: float) -> dict[QuotaEntity, Outcome[None]]:
        entries = [_change(entity, changes[entity]) for entity in entities]
        request = m.AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
        response = await self._calls.network.ask_any(request)
        return {_entity(entry.entity): failed(entry) for entry in response.entries}

    return await self._calls.each(list(changes), ask, timeout_ms, "changing quotas of")


def _component(kind: str, wanted: str | QuotaMatch) -> describing.ComponentData:
    if isinstance(wanted, QuotaMatch):
        return describing.ComponentData(entity_type=kind, match_type=describing.ANY, match=None)
    how = describing.EXACT if wanted else describing.DEFAULT
    return describing.ComponentData(entity_type=kind, match_type=how, match=wanted or None)


def _change(entity: QuotaEntity, quotas: Mapping[str, float | None]) -> altering.EntryData:
    parts = [altering.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts.items()]
    ops = [altering.OpData(key=key, value=0.0 if value is None else float(value), remove=value is None) for key, value in quotas.items()]
    return altering.EntryData(entity=parts, ops=ops)


def _entity(parts: list[Any]) -> QuotaEntity:
    return QuotaEntity.of({part.entity_type: part.entity_name for part in parts})

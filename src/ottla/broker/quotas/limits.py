"""Which quota applies to a user and a client id: the most specific one of eight levels.

::

    1  /config/users/<user>/clients/<client-id>
    2  /config/users/<user>/clients/<default>
    3  /config/users/<user>                          shared by all client ids of the user
    4  /config/users/<default>/clients/<client-id>
    5  /config/users/<default>/clients/<default>
    6  /config/users/<default>                       each user separately
    7  /config/clients/<client-id>                   shared by all users
    8  /config/clients/<default>                     each client id separately

Each quota is looked up on its own: a user's produce quota does not hide the fetch quota of its client id. A client without a client id has
only quotas of levels 3 and 6, as in Kafka.

Source: KIP-13, KIP-55, Kafka's ClientQuotaManager.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import NamedTuple

from ottla.base.units import INT32_MAX, INT64_MAX
from ottla.store.layout_quotas import QuotaEntity

#: The default of a user, client id or address: every one without a quota of its own.
DEFAULT = ""


class Quota(StrEnum):
    """Kafka's names of the quotas."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    CONTROLLER_MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


@dataclass(frozen=True, slots=True)
class QuotaKey:
    """A quota that a tool can set."""

    name: Quota
    #: Whole numbers only, up to this; None: any number.
    whole_max: int | None
    doc: str


#: By name, for users and client ids, and for addresses.
CLIENT_KEYS = {
    Quota.PRODUCE: QuotaKey(Quota.PRODUCE, INT64_MAX, "bytes of Produce requests per second and broker"),
    Quota.FETCH: QuotaKey(Quota.FETCH, INT64_MAX, "bytes of fetched records per second and broker"),
    Quota.REQUEST: QuotaKey(Quota.REQUEST, None, "percentage of a broker's event loop"),
    Quota.CONTROLLER_MUTATION: QuotaKey(Quota.CONTROLLER_MUTATION, None, "partitions created or deleted per second"),
}
IP_KEYS = {Quota.CONNECTION: QuotaKey(Quota.CONNECTION, INT32_MAX, "connections per second and broker")}


def keys_of(entity: QuotaEntity) -> Mapping[Quota, QuotaKey]:
    """The quotas that an entity can have."""
    return CLIENT_KEYS if entity.ip is None else IP_KEYS


def values_of(entity: QuotaEntity, texts: Mapping[str, str]) -> dict[Quota, float]:
    """The quotas in a store node; the node of a user may have other keys. Values that are not numbers above 0 are ignored."""
    found = {}
    for key in keys_of(entity):
        try:
            value = float(texts.get(key, ""))
        except ValueError:
            continue
        if value > 0 and isfinite(value):
            found[key] = value
    return found


def quota_text(entity: QuotaEntity, key: str, value: float) -> str:
    """A quota as in a store node; numbers of Kafka's type long have no fraction there."""
    known = {str(name): found for name, found in keys_of(entity).items()}.get(key)
    return str(float(value)) if known is None or known.whole_max is None else str(min(round(value), known.whole_max))


class Limit(NamedTuple):
    """The quota of a client, and the user and client id between which it is shared; empty ones do not matter."""

    user: str
    client: str
    bound: float


@dataclass(slots=True)
class QuotaLimits:
    """All quotas of the cluster."""

    #: Of each quota, the bound by user and client id; None: it does not matter.
    _bounds: dict[Quota, dict[tuple[str | None, str | None], float]] = field(default_factory=dict)
    #: Connections per second by host; DEFAULT: of each other one.
    connection_rates: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, configs: Iterable[tuple[QuotaEntity, Mapping[str, str]]]) -> "QuotaLimits":
        made = cls()
        for entity, texts in configs:
            made.change(entity, texts)
        return made

    def change(self, entity: QuotaEntity, texts: Mapping[str, str]) -> None:
        """Adopts the quotas of one entity, which may have none."""
        values = values_of(entity, texts)
        if entity.ip is not None:
            if Quota.CONNECTION in values:
                self.connection_rates[entity.ip] = values[Quota.CONNECTION]
            else:
                self.connection_rates.pop(entity.ip, None)
            return
        for key in CLIENT_KEYS:
            if key in values:
                self._bounds.setdefault(key, {})[entity.user, entity.client] = values[key]
            elif key in self._bounds:
                self._bounds[key].pop((entity.user, entity.client), None)
                if not self._bounds[key]:
                    del self._bounds[key]

    def has(self, key: Quota) -> bool:
        """Whether any client has this quota."""
        return key in self._bounds

    def find(self, key: Quota, user: str, client: str) -> Limit | None:
        """The quota of a user with a client id; None: no limit."""
        bounds = self._bounds.get(key)
        if bounds is None:
            return None
        for level, owner in _levels(user, client):
            if level in bounds:
                return Limit(*owner, bounds[level])
        return None


def _levels(user: str, client: str) -> Iterator[tuple[tuple[str | None, str | None], tuple[str, str]]]:
    """The entities whose quota may apply, most specific first, and the user and client id that share it."""
    if client:
        yield (user, client), (user, client)
        yield (user, DEFAULT), (user, client)
    yield (user, None), (user, "")
    if client:
        yield (DEFAULT, client), (user, client)
        yield (DEFAULT, DEFAULT), (user, client)
    yield (DEFAULT, None), (user, "")
    if client:
        yield (None, client), ("", client)
        yield (None, DEFAULT), ("", client)

"""AlterClientQuotas, key 49: set and remove quotas of users, client ids and addresses (KIP-546). Version 1 is flexible.

DescribeClientQuotas has structures of the same names and other fields: import them from its module.
"""

from ottla.wire.declare import Float64, Int16, Int32, Struct, message

__all__ = ["AlterClientQuotasRequest", "AlterClientQuotasResponse"]


class EntityData(Struct):
    """A part of an entity: user, client-id or ip, and the name; null is the default."""

    entity_type: str = ""
    entity_name: str | None = ""


class OpData(Struct):
    """A quota to set, or to remove; then the value does not matter."""

    key: str = ""
    value: Float64 = 0.0
    remove: bool = False


class EntryData(Struct):
    """The changes of one entity."""

    entity: list[EntityData] = []
    ops: list[OpData] = []


@message(key=49, since=0, until=1, flexible_since=1)
class AlterClientQuotasRequest(Struct):
    """Validate_only runs every check and changes nothing."""

    entries: list[EntryData] = []
    validate_only: bool = False


class EntryResult(Struct):
    """The answer for one entity."""

    error_code: Int16 = 0
    error_message: str | None = ""
    entity: list[EntityData] = []


@message(key=49, since=0, until=1, flexible_since=1)
class AlterClientQuotasResponse(Struct):
    """One answer for each entity of the request."""

    throttle_time_ms: Int32 = 0
    entries: list[EntryResult] = []

"""DescribeClientQuotas, key 48: quotas of users, client ids and addresses (KIP-546). Version 1 is flexible.

AlterClientQuotas has structures of the same names and other fields: import them from its module.
"""

from ottla.wire.declare import Float64, Int8, Int16, Int32, Struct, message

__all__ = ["DescribeClientQuotasRequest", "DescribeClientQuotasResponse"]

#: Types of a match: the entity with this name, the default one, every one with a name of this type or the default.
EXACT, DEFAULT, ANY = 0, 1, 2


class ComponentData(Struct):
    """A condition on one part of an entity; the name is null except for EXACT."""

    entity_type: str = ""
    match_type: Int8 = 0
    match: str | None = ""


@message(key=48, since=0, until=1, flexible_since=1)
class DescribeClientQuotasRequest(Struct):
    """All conditions must hold. Strict: and the entity has no further part."""

    components: list[ComponentData] = []
    strict: bool = False


class EntityData(Struct):
    """A part of an entity: user, client-id or ip, and the name; null is the default."""

    entity_type: str = ""
    entity_name: str | None = ""


class ValueData(Struct):
    """A quota and its value."""

    key: str = ""
    value: Float64 = 0.0


class EntryData(Struct):
    """The quotas of one entity."""

    entity: list[EntityData] = []
    values: list[ValueData] = []


@message(key=48, since=0, until=1, flexible_since=1)
class DescribeClientQuotasResponse(Struct):
    """The entities that match; null after an error."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    entries: list[EntryData] | None = []

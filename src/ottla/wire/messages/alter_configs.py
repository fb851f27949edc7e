"""AlterConfigs, key 33: replace all settings of a resource; those not named go back to their defaults. Version 2 is flexible.

IncrementalAlterConfigs has structures of the same names and other fields: import them from its module.
"""

from ottla.wire.declare import Int8, Int16, Int32, Struct, message

__all__ = ["AlterConfigsRequest", "AlterConfigsResourceResponse", "AlterConfigsResponse"]


class AlterableConfig(Struct):
    """A setting and its new value."""

    name: str = ""
    value: str | None = ""


class AlterConfigsResource(Struct):
    """All that shall be set on one resource."""

    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = []


@message(key=33, since=0, until=2, flexible_since=2)
class AlterConfigsRequest(Struct):
    """Validate_only runs every check and changes nothing."""

    resources: list[AlterConfigsResource] = []
    validate_only: bool = False


class AlterConfigsResourceResponse(Struct):
    """The answer for one resource."""

    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""


@message(key=33, since=0, until=2, flexible_since=2)
class AlterConfigsResponse(Struct):
    """One answer per resource of the request."""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []

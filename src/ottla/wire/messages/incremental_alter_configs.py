"""IncrementalAlterConfigs, key 44: change single settings of a resource (KIP-339). Version 1 is flexible.

AlterConfigs has structures of the same names and other fields: import them from its module.
"""

from ottla.wire.declare import Int8, Int32, Struct, message
from ottla.wire.messages.alter_configs import AlterConfigsResourceResponse

__all__ = ["AlterConfigsResourceResponse", "IncrementalAlterConfigsRequest", "IncrementalAlterConfigsResponse"]


class AlterableConfig(Struct):
    """A setting and its operation: 0 set, 1 delete, 2 append to the list, 3 subtract from the list."""

    name: str = ""
    config_operation: Int8 = 0
    value: str | None = ""


class AlterConfigsResource(Struct):
    """The changes to one resource."""

    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = []


@message(key=44, since=0, until=1, flexible_since=1)
class IncrementalAlterConfigsRequest(Struct):
    """Validate_only runs every check and changes nothing."""

    resources: list[AlterConfigsResource] = []
    validate_only: bool = False


@message(key=44, since=0, until=1, flexible_since=1)
class IncrementalAlterConfigsResponse(Struct):
    """One answer per resource of the request."""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []

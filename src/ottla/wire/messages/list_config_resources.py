"""ListConfigResources, key 74: the names of the resources that have settings.

Version 0 lists client metrics alone (KIP-714); version 1 takes and gives resource types, numbered as in DescribeConfigs (KIP-1142).
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int8, Int16, Int32, Since, Struct, message

CLIENT_METRICS = 16


@message(key=74, since=0, until=1, flexible_since=0)
class ListConfigResourcesRequest(Struct):
    """No types: all that can be listed."""

    resource_types: Annotated[list[Int8], Since(1)] = []


class ConfigResource(Struct):
    """A resource that has, or can have, settings."""

    resource_name: str = ""
    resource_type: Annotated[Int8, Since(1), Ignorable] = CLIENT_METRICS


@message(key=74, since=0, until=1, flexible_since=0)
class ListConfigResourcesResponse(Struct):
    """The resources of the requested types."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = []

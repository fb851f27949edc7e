"""DescribeConfigs, key 32: the settings of topics and brokers, and where each value comes from.

| version | change |
|-|-|
| 1 | source and synonyms instead of a mark for defaults (KIP-226) |
| 3 | types and documentation (KIP-569) |
| 4 | flexible |

Resource types: 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group. Sources: 1 topic, 2 broker (dynamic), 3 all brokers
(dynamic), 4 broker (file), 5 default, 6 logger, 7 client metrics, 8 group.
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int8, Int16, Int32, Since, Struct, message


class DescribeConfigsResource(Struct):
    """Null keys: every setting."""

    resource_type: Int8 = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = []


@message(key=32, since=1, until=4, flexible_since=4)
class DescribeConfigsRequest(Struct):
    """The settings of any number of resources."""

    resources: list[DescribeConfigsResource] = []
    include_synonyms: bool = False
    include_documentation: Annotated[bool, Since(3)] = False


class DescribeConfigsSynonym(Struct):
    """A name under which the same value may be set; the first in the list wins."""

    name: str = ""
    value: str | None = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(Struct):
    """One setting; a sensitive one has a null value."""

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: Int8 = -1
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: Annotated[Int8, Since(3), Ignorable] = 0
    documentation: Annotated[str | None, Since(3), Ignorable] = ""


class DescribeConfigsResult(Struct):
    """The settings of one resource."""

    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = []


@message(key=32, since=1, until=4, flexible_since=4)
class DescribeConfigsResponse(Struct):
    """One answer per resource of the request."""

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []

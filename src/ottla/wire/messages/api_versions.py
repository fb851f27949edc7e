"""ApiVersions, key 18: which requests this broker understands, at which versions.

| version | change |
|-|-|
| 1 | throttle time |
| 3 | flexible; the client names itself; features (KIP-511, KIP-584) |
| 4 | a feature's minimum may be 0 (KAFKA-17011) |
| 5 | the client names the cluster and the broker to which it means to connect (KIP-1242) |

The one response whose header never has tagged fields, so that a client can read it before it knows the broker. A request of a version
this broker does not know is answered in version 0, with error 35 and the range it does know (KIP-511).
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Int64, Since, Struct, Tag, message


@message(key=18, since=0, until=5, flexible_since=3)
class ApiVersionsRequest(Struct):
    """The first request of every connection."""

    client_software_name: Annotated[str, Since(3), Ignorable] = ""
    client_software_version: Annotated[str, Since(3), Ignorable] = ""
    #: Both or neither; None and -1: unknown.
    cluster_id: Annotated[str | None, Since(5), Ignorable] = None
    node_id: Annotated[Int32, Since(5), Ignorable] = -1


class ApiVersion(Struct):
    """The versions of one API, both ends included."""

    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Struct):
    """The levels of a feature that this broker can work at."""

    name: str = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


class FinalizedFeatureKey(Struct):
    """The levels of a feature that the cluster works at."""

    name: str = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


@message(key=18, since=0, until=5, flexible_since=3)
class ApiVersionsResponse(Struct):
    """Everything the broker answers to; the epoch is -1 when it knows no finalized features."""

    error_code: Int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    supported_features: Annotated[list[SupportedFeatureKey], Since(3), Tag(0), Ignorable] = []
    finalized_features_epoch: Annotated[Int64, Since(3), Tag(1), Ignorable] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], Since(3), Tag(2), Ignorable] = []
    zk_migration_ready: Annotated[bool, Since(3), Tag(3), Ignorable] = False

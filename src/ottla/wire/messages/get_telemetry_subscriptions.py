"""GetTelemetrySubscriptions, key 71: which metrics a client pushes to the brokers, and how often (KIP-714)."""

from ottla.wire.declare import ZERO_UUID, Int8, Int16, Int32, Struct, Uuid, message


@message(key=71, since=0, until=0, flexible_since=0)
class GetTelemetrySubscriptionsRequest(Struct):
    """A client instance without an id gets one."""

    client_instance_id: Uuid = ZERO_UUID


@message(key=71, since=0, until=0, flexible_since=0)
class GetTelemetrySubscriptionsResponse(Struct):
    """Requested metrics are prefixes of names: none means no metrics, an asterisk all of them."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    accepted_compression_types: list[Int8] = []
    push_interval_ms: Int32 = 0
    telemetry_max_bytes: Int32 = 0
    delta_temporality: bool = False
    requested_metrics: list[str] = []

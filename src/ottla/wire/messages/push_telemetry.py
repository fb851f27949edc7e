"""PushTelemetry, key 72: metrics of a client, as OpenTelemetry's MetricsData (KIP-714)."""

from ottla.wire.declare import ZERO_UUID, Int8, Int16, Int32, Struct, Uuid, message


@message(key=72, since=0, until=0, flexible_since=0)
class PushTelemetryRequest(Struct):
    """``terminating``: the client closes; this is its last push."""

    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    terminating: bool = False
    compression_type: Int8 = 0
    metrics: bytes = b""


@message(key=72, since=0, until=0, flexible_since=0)
class PushTelemetryResponse(Struct):
    """Whether the push was accepted."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0

"""PushTelemetry: metrics of a client, which the shell decodes and keeps for /metrics and OpenTelemetry.

Errors: INVALID_REQUEST without an id or after the last push; THROTTLING_QUOTA_EXCEEDED before the interval is over; UNKNOWN_SUBSCRIPTION_ID
after the settings changed; UNSUPPORTED_COMPRESSION_TYPE; TELEMETRY_TOO_LARGE above telemetry.max.bytes.

Difference from Kafka: metrics that cannot be decoded are counted and dropped, not answered INVALID_RECORD, because they are decoded after
the answer, in a thread. Source: KIP-714. See ``broker/telemetry.py``.
"""

from ottla.broker.apis.k71_get_telemetry_subscriptions import enabled
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.node import Node
from ottla.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse


@handles(PushTelemetryRequest, (0, 0), refuse=whole_error(PushTelemetryResponse), enabled=enabled)
def push_telemetry(node: Node, call: RequestArrived[PushTelemetryRequest]) -> PushTelemetryResponse:
    node.telemetry.push(call)
    return PushTelemetryResponse()

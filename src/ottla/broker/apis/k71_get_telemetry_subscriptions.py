"""GetTelemetrySubscriptions: which metrics a client pushes, and how often.

Behaviour: a client without an id gets one. Errors: THROTTLING_QUOTA_EXCEEDED before the push interval is over. Served and advertised with
``ottla.client.metrics.enable``; Kafka advertises it with a plugin that receives the metrics. Source: KIP-714. See ``broker/telemetry.py``.
"""

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.metadata.configs import ServerOptions
from ottla.broker.node import Node
from ottla.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse


def enabled(options: ServerOptions) -> bool:
    return options.client_metrics_enable


@handles(GetTelemetrySubscriptionsRequest, (0, 0), refuse=whole_error(GetTelemetrySubscriptionsResponse), enabled=enabled)
def get_telemetry_subscriptions(node: Node, call: RequestArrived[GetTelemetrySubscriptionsRequest]) -> GetTelemetrySubscriptionsResponse:
    return node.telemetry.subscribe(call)

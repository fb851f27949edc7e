"""Metrics of clients: subscriptions, and the client instances that push (KIP-714).

::

    client metrics settings ──▶ subscriptions ──┐ matched against the client's attributes
    GetTelemetrySubscriptions ──────────────────┴▶ instance: subscription id, metrics, interval
    PushTelemetry ──▶ checks ──▶ effect ReceiveTelemetry: the shell decodes and keeps the metrics

A subscription has prefixes of metrics, an interval, and patterns of client attributes, all of which must match. An instance has the metrics
of every matching subscription, and the shortest of their intervals. Its subscription id is a hash of these; after a change of the settings
a push with the old id is refused, and the client asks again.

An instance that pushes too early gets THROTTLING_QUOTA_EXCEEDED. At most ``INSTANCES_MAX`` are kept, the least recently used ones are
dropped, and so are those that are silent for three intervals. Source: KIP-714; Kafka's ClientMetricsManager. Differences: the pattern
language is RE2's; counters are requested as cumulative values, not deltas, because the last value of each series is kept; a client whose
last push was refused because of its subscription id or compression may ask again at once, as the KIP says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from ottla.base.ids import ConnectionId
from ottla.base.options import ConfigError
from ottla.base.units import MINUTE_MS
from ottla.broker import effects
from ottla.broker.context import BrokerContext
from ottla.broker.events import RequestArrived
from ottla.broker.groups.consumer.topic_patterns import compiled
from ottla.broker.isolation import indivisible
from ottla.broker.metadata.configs import ClientMetricsOptions
from ottla.wire import errors
from ottla.wire.declare import ZERO_UUID
from ottla.wire.errors import KafkaError
from ottla.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse
from ottla.wire.messages.push_telemetry import PushTelemetryRequest

CLIENT_METRICS_KIND = "client-metrics"
INSTANCES_MAX = 16_384
#: An instance is kept at least this long without a request.
EXPIRY_MS = MINUTE_MS
EXPIRY_INTERVALS = 3
ALL_METRICS = "*"
#: Characters of a name that a client chose; it may send 32,767, and each instance keeps its own.
NAME_MAX = 255
#: Attributes of clients that a pattern can name.
ATTRIBUTES = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
#: In the order of preference: zstd, lz4, gzip, snappy.
COMPRESSIONS = (4, 3, 1, 2)
NO_COMPRESSION = 0
#: Kafka's reserved ids: zero, and one.
RESERVED = (ZERO_UUID, bytes(15) + b"\1")


def match_patterns(entries: tuple[str, ...]) -> dict[str, str]:
    """Patterns by attribute of a setting ``match``. Raises: ConfigError."""
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, pattern = (part.strip() for part in entry.partition("="))
        if not equals or name not in ATTRIBUTES or not pattern or "=" in pattern:
            raise ConfigError("match", f"{entry!r} is no ATTRIBUTE=PATTERN; attributes are {', '.join(ATTRIBUTES)}")
        try:
            compiled(pattern)
        except KafkaError as error:
            raise ConfigError("match", str(error)) from None
        found[name] = pattern
    return found


@dataclass(slots=True)
class Subscription:
    """One resource of the type client metrics."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: dict[str, str]

    def applies(self, attributes: Mapping[str, str]) -> bool:
        return all(compiled(pattern).fullmatch(attributes.get(name, "")) is not None for name, pattern in self.match.items())


@dataclass(slots=True)
class Instance:
    """A client instance."""

    client_instance_id: bytes
    attributes: dict[str, str]
    subscription_id: int
    metrics: tuple[str, ...]
    interval_ms: int
    #: Version of the subscriptions by which it was made.
    version: int
    used_ms: int
    #: Times of its last accepted requests; None before the first.
    asked_ms: int | None = None
    pushed_ms: int | None = None
    terminating: bool = False
    #: Whether it may ask again at once, because its last push was refused.
    may_ask: bool = False
    #: Whether it has asked since its last push.
    fresh: bool = False

    def may_get(self, now_ms: int) -> bool:
        """Whether it may ask for its subscription now; notes the time."""
        last = max((at for at in (self.asked_ms, self.pushed_ms) if at is not None), default=None)
        if last is not None and now_ms - last < self.interval_ms and not self.may_ask:
            return False
        self.asked_ms, self.may_ask, self.fresh = now_ms, False, True
        return True

    def may_push(self, now_ms: int) -> bool:
        """Whether it may push now: once after it asked, and then once per interval; notes the time."""
        if not self.fresh and self.pushed_ms is not None and now_ms - self.pushed_ms < self.interval_ms:
            return False
        self.pushed_ms, self.fresh = now_ms, False
        return True


class ClientTelemetry:
    """Client instances of one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        #: By client instance id, the least recently used first.
        self.instances: dict[bytes, Instance] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._version = 0

    def settings_changed(self, name: str) -> None:
        """The settings of a subscription changed in the image."""
        overrides = self._context.image.overrides(CLIENT_METRICS_KIND, name)
        self._version += 1
        if not overrides:
            self._subscriptions.pop(name, None)
            return
        try:
            options = ClientMetricsOptions.of({key: text for key, text in overrides.items() if key in ClientMetricsOptions.SPECS})
            self._subscriptions[name] = Subscription(options.metrics, options.interval_ms, match_patterns(options.match))
        except ConfigError:
            # A tool wrote it; the node logs a warning.
            self._subscriptions.pop(name, None)

    def tick(self) -> None:
        """Every minute: drops instances that are silent."""
        now_ms = self._context.now_ms
        for instance in list(self.instances.values()):
            if now_ms - instance.used_ms > max(EXPIRY_MS, EXPIRY_INTERVALS * instance.interval_ms):
                del self.instances[instance.client_instance_id]

    def subscribe(self, call: RequestArrived[GetTelemetrySubscriptionsRequest]) -> GetTelemetrySubscriptionsResponse:
        """GetTelemetrySubscriptions. Raises: ThrottlingQuotaExceeded."""
        asked = call.body.client_instance_id
        instance = self._instance(self._context.rng.randbytes(16) if asked == ZERO_UUID else asked, call)
        if not instance.may_get(self._context.now_ms):
            raise errors.ThrottlingQuotaExceeded(f"ask again after the push interval of {instance.interval_ms} ms")
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance.client_instance_id,
            subscription_id=instance.subscription_id,
            accepted_compression_types=list(COMPRESSIONS),
            push_interval_ms=instance.interval_ms,
            telemetry_max_bytes=self._context.options.telemetry_max_bytes,
            delta_temporality=False,
            requested_metrics=list(instance.metrics),
        )

    def push(self, call: RequestArrived[PushTelemetryRequest]) -> None:
        """PushTelemetry.

        Raises: InvalidRequest, ThrottlingQuotaExceeded, UnknownSubscriptionId, UnsupportedCompressionType, TelemetryTooLarge.
        """
        request = call.body
        if request.client_instance_id in RESERVED:
            raise errors.InvalidRequest("a push needs the id that GetTelemetrySubscriptions gave the client")
        instance = self._instance(request.client_instance_id, call)
        try:
            self._check(instance, request)
        except (errors.UnknownSubscriptionId, errors.UnsupportedCompressionType):
            instance.may_ask = True
            raise
        finally:
            instance.terminating = request.terminating
        if request.metrics:
            self._context.effects.append(
                effects.ReceiveTelemetry(
                    client_instance_id=instance.client_instance_id,
                    attributes=dict(instance.attributes),
                    compression=request.compression_type,
                    metrics=bytes(request.metrics),
                    kept_ms=max(EXPIRY_MS, EXPIRY_INTERVALS * instance.interval_ms),
                )
            )

    def _check(self, instance: Instance, request: PushTelemetryRequest) -> None:
        if instance.terminating:
            raise errors.InvalidRequest("the client said that its last push was the last one")
        if not instance.may_push(self._context.now_ms) and not request.terminating:
            raise errors.ThrottlingQuotaExceeded(f"push again after the push interval of {instance.interval_ms} ms")
        if request.subscription_id != instance.subscription_id:
            raise errors.UnknownSubscriptionId("the subscription has changed; ask for it again")
        if request.compression_type != NO_COMPRESSION and request.compression_type not in COMPRESSIONS:
            raise errors.UnsupportedCompressionType(f"there is no compression type {request.compression_type}")
        limit = self._context.options.telemetry_max_bytes
        if len(request.metrics) > limit:
            raise errors.TelemetryTooLarge(f"the push has {len(request.metrics)} bytes; telemetry.max.bytes is {limit}")

    def _instance(self, client_instance_id: bytes, call: RequestArrived[Any]) -> Instance:
        """The instance, made or made again if it is new or the subscriptions have changed."""
        found = self.instances.pop(client_instance_id, None)
        if found is None or found.version != self._version:
            attributes = self._attributes(client_instance_id, call) if found is None else found.attributes
            found = self._made(client_instance_id, attributes)
        found.used_ms = self._context.now_ms
        self._keep(found)
        return found

    @indivisible
    def _keep(self, instance: Instance) -> None:
        self.instances[instance.client_instance_id] = instance
        if len(self.instances) > INSTANCES_MAX:
            del self.instances[next(iter(self.instances))]

    def _attributes(self, client_instance_id: bytes, call: RequestArrived[Any]) -> dict[str, str]:
        name, version = self._context.client_software.get(call.connection, ("unknown", "unknown"))
        return {
            "client_instance_id": client_instance_id.hex(),
            "client_id": (call.client_id or "")[:NAME_MAX],
            "client_software_name": name,
            "client_software_version": version,
            "client_source_address": call.origin.host,
            # The port of the peer is not known here: a pattern on it matches no client.
            "client_source_port": "",
        }

    def _made(self, client_instance_id: bytes, attributes: dict[str, str]) -> Instance:
        matching = [one for one in self._subscriptions.values() if one.applies(attributes)]
        metrics = tuple(sorted({name for one in matching for name in one.metrics}))
        if ALL_METRICS in metrics:
            metrics = (ALL_METRICS,)
        interval_ms = min((one.interval_ms for one in matching), default=ClientMetricsOptions().interval_ms)
        return Instance(
            client_instance_id,
            attributes,
            subscription_id(client_instance_id, metrics, interval_ms),
            metrics,
            interval_ms,
            version=self._version,
            used_ms=self._context.now_ms,
        )


def subscription_id(client_instance_id: bytes, metrics: tuple[str, ...], interval_ms: int) -> int:
    """A hash of the subscription and the client, as a signed number of 32 bits."""
    found = crc32(f"{interval_ms} {' '.join(metrics)}".encode()) ^ crc32(client_instance_id)
    return found - (1 << 32) if found >= 1 << 31 else found


def note_software(context: BrokerContext, connection: ConnectionId, name: str, version: str) -> None:
    """Keeps the name and version of a client until its connection closes, for patterns of subscriptions."""
    if context.options.client_metrics_enable:
        context.client_software[connection] = (name[:NAME_MAX], version[:NAME_MAX])

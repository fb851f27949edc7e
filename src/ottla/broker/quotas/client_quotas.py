"""What clients have used of their quotas, and how long each is throttled.

::

                 counted                                          above the quota
    Produce      its bytes, when it is answered                   the answer goes at once, then the connection is muted
    Fetch        bytes of records, when it is answered            an empty answer, whose records do not count; then muted
    any request  CPU time of the event loop, after the step       muted after this client's next answer, at most one sample
    partitions   created or deleted, at the controller            see ``MutationQuota``

A throttled answer carries the throttle time, and the broker does not read the client's connection for this time (KIP-219). It is the time
until the rate is down to the quota; of several quotas the longest counts. Requests of brokers are exempt.

Without quotas ``active`` and ``timed`` are false, and nothing is counted. A usage that was idle for an hour is dropped, and the one that
is idle for longest if there are more than ottla.quota.clients.max: a client can send any client id.

Bytes and partitions are tokens of a bucket. It holds those of the whole window, as a client may send in Kafka at once, and may be overdrawn
by one request. The throttle time is the debt divided by the quota.

Differences from Kafka: its quotas of bytes are rates over samples (docs/decisions/0051). Without a quota nothing is measured here. The
bytes of a fetch are those of its records. The time of a request is CPU time of its step, so the client's next answer is the first to be
throttled.

Source: KIP-13, KIP-55, KIP-124, KIP-219, KIP-599.
"""

from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec

from ottla.base.sampled_rate import SampledRate, TokenBucket, Window
from ottla.base.units import INT32_MAX, MINUTE_MS, SECOND_MS
from ottla.broker import effects
from ottla.broker.events import RequestArrived, RequestTimed
from ottla.broker.handlers import HANDLERS
from ottla.broker.isolation import respond
from ottla.broker.metadata.configs import ClusterOptions
from ottla.broker.metadata.image import Image
from ottla.broker.quotas.limits import Limit, Quota, QuotaLimits
from ottla.broker.registration.peers import PEER, PeerAddresses
from ottla.broker.security.access import Access
from ottla.store.layout_quotas import QuotaEntity
from ottla.wire.declare import fields_of
from ottla.wire.errors import ThrottlingQuotaExceeded
from ottla.wire.messages.fetch import FetchRequest

PRODUCE, FETCH = 0, 1
#: CreateTopics, DeleteTopics, CreatePartitions.
MUTATING = (19, 20, 37)
#: Characters of a client id in a usage.
NAME_MAX = 255
#: A usage that was idle for this time is dropped, as Kafka's sensors are.
IDLE_MS = 60 * MINUTE_MS
#: A hundred percent of the event loop, in ns per second.
WHOLE_NS = 1_000_000_000
CLIENT_QUOTAS = (Quota.PRODUCE, Quota.FETCH, Quota.REQUEST, Quota.CONTROLLER_MUTATION)


class Requests(Protocol):
    """What this module uses of the broker's context."""

    image: Image
    peers: PeerAddresses
    access: Access | None
    now_ms: int

    @property
    def options(self) -> ClusterOptions:
        """Settings in effect."""


class Usage:
    """What a user and client id used of one quota."""

    __slots__ = ("bucket", "rate", "throttle_ms", "throttled", "used_ms")

    def __init__(self, window: Window, bucket: TokenBucket) -> None:
        #: It decides for request time; else it is a metric.
        self.rate = SampledRate(window)
        #: Of bytes and partitions.
        self.bucket = bucket
        self.used_ms = 0
        #: Number of throttled answers, and the sum of their throttle times.
        self.throttled = self.throttle_ms = 0

    def take(self, value: float, bound: float, now_ms: int) -> None:
        """Counts bytes or partitions."""
        self.rate.record(value, now_ms)
        self.bucket.take(value, bound, now_ms)


class UsageMetrics(NamedTuple):
    """Metrics of one usage, under Kafka's names."""

    #: Kafka's type: Produce, Fetch, Request, ControllerMutation.
    type: str
    user: str
    client_id: str
    #: ``byte-rate``, ``request-time`` or ``mutation-rate`` and ``tokens``; and ``throttle-time``, the mean in ms.
    values: Mapping[str, float]


class MutationQuota:
    """The quota of one request that creates or deletes partitions; without a usage there is no limit."""

    __slots__ = ("_bound", "_now_ms", "_strict", "_usage", "throttle_ms")

    def __init__(self, usage: Usage | None, bound: float, now_ms: int, *, strict: bool) -> None:
        """``strict``: the version's client knows THROTTLING_QUOTA_EXCEEDED. For others everything is done, and the answer throttled."""
        self._usage = usage
        self._bound = bound
        self._now_ms = now_ms
        self._strict = strict
        #: Of the answer.
        self.throttle_ms = 0

    def take(self, partitions: int) -> None:
        """Takes tokens for one topic. Overdrawing is permitted; then nothing more until the tokens are back.

        Raises: ThrottlingQuotaExceeded.
        """
        usage, now_ms = self._usage, self._now_ms
        if usage is None:
            return
        if self._strict and (throttle_ms := usage.bucket.throttle_ms(self._bound, now_ms)):
            self.throttle_ms = min(throttle_ms, INT32_MAX)
            raise ThrottlingQuotaExceeded(
                f"the quota of {self._bound:g} partitions per second ({Quota.CONTROLLER_MUTATION}) is used up; retry after {throttle_ms} ms"
            )
        usage.take(partitions, self._bound, now_ms)
        if not self._strict:
            self.throttle_ms = min(usage.bucket.throttle_ms(self._bound, now_ms), INT32_MAX)


class ClientQuotas:
    """The usage of all quotas at one broker."""

    def __init__(self, context: Requests) -> None:
        self._context = context
        #: Whether any client has a quota; if not, no other method need be called for a request.
        self.active = False
        #: Whether any client has a quota of request time: then the shell measures steps, and reports them as RequestTimed.
        self.timed = False
        self.limits = QuotaLimits()
        #: By quota, user and client id; the one that is idle for longest first.
        self._usages: dict[tuple[Quota, str, str], Usage] = {}

    def adopt(self, entity: QuotaEntity) -> None:
        """The quotas of an entity changed in the image. Usages stay."""
        self.limits.change(entity, self._context.image.quotas.get(entity, {}))
        self.active = any(map(self.limits.has, CLIENT_QUOTAS))
        self.timed = self.limits.has(Quota.REQUEST)

    # Answers.

    def respond(self, call: RequestArrived[Any], message: Any) -> effects.Respond:
        """Counts a request that is answered now; the effect that answers it."""
        throttle_ms = 0 if self._is_exempt(call) else self._throttle_ms(call, message)
        if throttle_ms and throttle_ms != getattr(message, "throttle_time_ms", 0):
            kind: type[msgspec.Struct] = type(message)
            if _tells_throttle(kind, call.api_version):
                # A copy: handlers may answer several requests with one message.
                message = msgspec.structs.replace(message, throttle_time_ms=throttle_ms)
        answer = respond(call, message)
        answer.throttle_ms = throttle_ms
        return answer

    def release(self, call: RequestArrived[Any]) -> effects.Release:
        """The same for a Produce with acks=0; its request time is exempt, as in Kafka."""
        throttle_ms = 0 if self._is_exempt(call) else self._count(Quota.PRODUCE, call, call.size)
        return effects.Release(connection=call.connection, ticket=call.ticket, throttle_ms=throttle_ms)

    def _throttle_ms(self, call: RequestArrived[Any], message: Any) -> int:
        # Set by a quota of the controller, or by ``fetched``.
        throttle_ms: int = getattr(message, "throttle_time_ms", 0)
        if call.api_key == FETCH:
            return throttle_ms
        if call.api_key == PRODUCE:
            throttle_ms = max(throttle_ms, self._count(Quota.PRODUCE, call, call.size))
        return max(throttle_ms, self._request_throttle_ms(call))

    def _is_exempt(self, call: RequestArrived[Any] | RequestTimed) -> bool:
        """Whether a broker sent the request."""
        if call.connection < 0 or HANDLERS[call.api_key].from_brokers:
            return True
        # The broker that forwarded a request has counted it; its connection serves others, too.
        if isinstance(call, RequestArrived) and (call.envelope is not None or (call.api_key == FETCH and replica_of(call.body) >= 0)):
            return True
        if call.client_id != PEER:
            return False
        access, origin = self._context.access, call.origin
        return self._context.peers.accept(origin.host, origin.local[0]) if access is None else access.acts_for_cluster(origin)

    # Fetches.

    def fetched(self, call: RequestArrived[Any], size: int) -> int:
        """Counts the records of a Fetch; returns the throttle time in ms. If there is one, they do not count, and must not be sent."""
        if self._is_exempt(call):
            return 0
        throttle_ms = self._request_throttle_ms(call)
        limit = self._limit(Quota.FETCH, call)
        if limit is None:
            return throttle_ms
        usage, now_ms = self._usage(Quota.FETCH, limit), self._context.now_ms
        own_ms = min(usage.bucket.throttle_ms(limit.bound, now_ms), INT32_MAX)
        throttle_ms = max(throttle_ms, self._throttled(usage, own_ms))
        if not throttle_ms:
            usage.take(size, limit.bound, now_ms)
        return throttle_ms

    def fetch_bytes_max(self, call: RequestArrived[Any]) -> int:
        """Bytes that a client may fetch at once without being throttled, if it fetched nothing in the window."""
        limit = None if self._is_exempt(call) else self._limit(Quota.FETCH, call)
        if limit is None:
            return INT32_MAX
        options = self._context.options
        window = Window(options.quota_window_num, options.quota_window_size_seconds * SECOND_MS)
        return min(int(limit.bound * window.least_ms / SECOND_MS), INT32_MAX)

    # Request time.

    def request_timed(self, event: RequestTimed) -> None:
        """Counts the time of a step that handled a request."""
        if self._is_exempt(event):
            return
        limit = self._limit(Quota.REQUEST, event)
        if limit is not None:
            self._usage(Quota.REQUEST, limit).rate.record(event.spent_ns * 100 / WHOLE_NS, self._context.now_ms)

    def _request_throttle_ms(self, call: RequestArrived[Any]) -> int:
        limit = self._limit(Quota.REQUEST, call) if self.timed else None
        if limit is None:
            return 0
        usage = self._usage(Quota.REQUEST, limit)
        throttle_ms = usage.rate.throttle_ms(limit.bound, self._context.now_ms)
        return self._throttled(usage, min(throttle_ms, self._context.options.quota_window_size_seconds * SECOND_MS))

    # Partitions created and deleted.

    def mutations(self, call: RequestArrived[Any], *, strict_since: int) -> MutationQuota:
        """The quota of a request that creates or deletes partitions."""
        limit = None if not self.active or self._is_exempt(call) else self._limit(Quota.CONTROLLER_MUTATION, call)
        usage = None if limit is None else self._usage(Quota.CONTROLLER_MUTATION, limit)
        bound = 0.0 if limit is None else limit.bound
        return MutationQuota(usage, bound, self._context.now_ms, strict=call.api_version >= strict_since)

    def limits_mutations(self, call: RequestArrived[Any]) -> bool:
        """Whether the client has a quota of partitions. Only the controller counts them, so other brokers do not forward its requests."""
        return call.api_key in MUTATING and not self._is_exempt(call) and self._limit(Quota.CONTROLLER_MUTATION, call) is not None

    # Usages.

    def _limit(self, key: Quota, call: RequestArrived[Any] | RequestTimed) -> Limit | None:
        return self.limits.find(key, call.origin.principal.partition(":")[2], call.client_id or "")

    def _count(self, key: Quota, call: RequestArrived[Any], value: float) -> int:
        """Counts a value; returns the throttle time in ms."""
        limit = self._limit(key, call)
        if limit is None:
            return 0
        usage, now_ms = self._usage(key, limit), self._context.now_ms
        usage.take(value, limit.bound, now_ms)
        return self._throttled(usage, min(usage.bucket.throttle_ms(limit.bound, now_ms), INT32_MAX))

    @staticmethod
    def _throttled(usage: Usage, throttle_ms: int) -> int:
        if throttle_ms:
            usage.throttled += 1
            usage.throttle_ms += throttle_ms
        return throttle_ms

    def _usage(self, key: Quota, limit: Limit) -> Usage:
        # Long client ids that begin alike share a usage: a client chooses them.
        name = (key, limit.user, limit.client[:NAME_MAX])
        usage = self._usages.pop(name, None)
        options, now_ms = self._context.options, self._context.now_ms
        if usage is None:
            while len(self._usages) >= options.quota_clients_max:
                del self._usages[next(iter(self._usages))]
            usage = self._new_usage(key, limit.bound)
        self._usages[name] = usage
        usage.used_ms = now_ms
        return usage

    def _new_usage(self, key: Quota, bound: float) -> Usage:
        options = self._context.options
        if key is Quota.CONTROLLER_MUTATION:
            window = Window(options.controller_quota_window_num, options.controller_quota_window_size_seconds * SECOND_MS)
            return Usage(window, TokenBucket(window.whole_ms, self._context.now_ms, bound))
        window = Window(options.quota_window_num, options.quota_window_size_seconds * SECOND_MS)
        return Usage(window, TokenBucket(window.least_ms, self._context.now_ms, bound))

    def expire(self) -> None:
        """Drops usages that are idle."""
        since_ms = self._context.now_ms - IDLE_MS
        while self._usages:
            name = next(iter(self._usages))
            if self._usages[name].used_ms > since_ms:
                return
            del self._usages[name]

    def __len__(self) -> int:
        return len(self._usages)

    def metrics(self) -> Iterator[UsageMetrics]:
        """Metrics of all usages now."""
        now_ms = self._context.now_ms
        names = {
            Quota.PRODUCE: ("Produce", "byte-rate"),
            Quota.FETCH: ("Fetch", "byte-rate"),
            Quota.REQUEST: ("Request", "request-time"),
            Quota.CONTROLLER_MUTATION: ("ControllerMutation", "mutation-rate"),
        }
        for (key, user, client), usage in self._usages.items():
            kind, rate = names[key]
            values = {rate: usage.rate.rate(now_ms), "throttle-time": usage.throttle_ms / max(usage.throttled, 1)}
            limit = self.limits.find(key, user, client)
            if key is Quota.CONTROLLER_MUTATION and limit is not None:
                values["tokens"] = usage.bucket.tokens(limit.bound, now_ms)
            yield UsageMetrics(kind, user, client, values)


def replica_of(request: FetchRequest) -> int:
    """The follower that sends the request; -1 for a consumer."""
    return max(request.replica_id, request.replica_state.replica_id)


@lru_cache(1_000)
def _tells_throttle(message: Hashable, version: int) -> bool:
    """Whether a response of this class and version has a throttle time."""
    assert isinstance(message, type), "a response is an instance of a class"
    return any(field.name == "throttle_time_ms" and field.present(version) for field in fields_of(message))

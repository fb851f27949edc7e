"""Replication throttles: reassignments leave bandwidth for producers and consumers.

There are two rates, for what followers fetch from this broker and for what it copies. They apply to partitions named in topic settings. All
traffic of such a partition counts, but only replicas that are not in sync wait, so a throttle never removes a replica from the ISR::

    leader    a follower outside of the ISR gets no bytes of a throttled partition while the leader rate is exceeded
    follower  a replica outside of the ISR does not fetch while the follower rate is exceeded

A rate is exceeded while more was sent or copied than it allows, beyond the bytes of one second. One response may be much larger; then
there is a longer pause.

Difference from Kafka: a rate applies over any length of time, where Kafka averages over eleven samples of a second; so there are no
replication.quota.window.* settings. Source: KIP-73.
"""

from ottla.base.ids import TopicPartition
from ottla.base.units import INT64_MAX
from ottla.broker.context import BrokerContext
from ottla.broker.replica.follower import Follower

#: Bytes of this time may be sent at once.
ALLOWANCE_MS = 1_000


class Throttle:
    """Usage of one rate; ``now_ms`` never decreases."""

    __slots__ = ("_at_ms", "_used", "rate")

    def __init__(self, rate: int) -> None:
        #: Bytes per second.
        self.rate = rate
        #: A thousand times the bytes in excess of the rate, as of ``_at_ms``.
        self._used = 0
        self._at_ms = 0

    def note(self, count: int, now_ms: int) -> None:
        """Counts bytes."""
        self._used = self._left(now_ms) + count * 1000
        self._at_ms = now_ms

    def free_at_ms(self, now_ms: int) -> int:
        """When more may be sent: ``now_ms`` or later."""
        over = self._left(now_ms) - self.rate * ALLOWANCE_MS
        return now_ms if over <= 0 else now_ms + -(-over // max(self.rate, 1))

    def follow(self, rate: int, now_ms: int) -> None:
        """Adopts another rate."""
        if rate != self.rate:
            self._used, self._at_ms, self.rate = self._left(now_ms), now_ms, rate

    def _left(self, now_ms: int) -> int:
        return max(0, self._used - self.rate * (now_ms - self._at_ms))


class Throttles:
    """Both throttles of a broker, and the partitions that they apply to."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._leader = Throttle(context.options.leader_replication_throttled_rate)
        self._follower = Throttle(context.options.follower_replication_throttled_rate)
        #: By topic: throttled partitions where this broker leads, and where it follows; None for all.
        self._named: dict[str, tuple[frozenset[int] | None, frozenset[int] | None]] = {}

    def settings_changed(self) -> None:
        """Settings of the broker or of a topic changed."""
        options, now = self._context.options, self._context.now_ms
        self._leader.follow(options.leader_replication_throttled_rate, now)
        self._follower.follow(options.follower_replication_throttled_rate, now)
        self._named.clear()

    def sent(self, partition: TopicPartition, count: int) -> None:
        """A follower gets bytes of a partition led here."""
        if self._leader.rate < INT64_MAX and self._is_named(partition, 0):
            self._leader.note(count, self._context.now_ms)

    def copied(self, partition: TopicPartition, count: int) -> None:
        """Bytes of a partition were copied from its leader."""
        if self._follower.rate < INT64_MAX and self._is_named(partition, 1):
            self._follower.note(count, self._context.now_ms)

    def sends_at_ms(self, partition: TopicPartition) -> int:
        """When a follower that is not in sync may get more of a partition led here: now or later."""
        now = self._context.now_ms
        if self._leader.rate == INT64_MAX or not self._is_named(partition, 0):
            return now
        return self._leader.free_at_ms(now)

    def copies_at_ms(self, follower: Follower) -> int:
        """When a follower may fetch more: now or later. One that is in sync never waits."""
        context, partition = self._context, follower.partition
        if self._follower.rate == INT64_MAX or not self._is_named(partition, 1):
            return context.now_ms
        state = context.image.state(partition)
        return context.now_ms if state is not None and context.broker_id in state.isr else self._follower.free_at_ms(context.now_ms)

    def _is_named(self, partition: TopicPartition, side: int) -> bool:
        named = self._named.get(partition.topic)
        if named is None:
            options = self._context.topic_options(partition.topic)
            me = self._context.broker_id
            named = self._named[partition.topic] = (
                partitions_of(options.leader_replication_throttled_replicas, me),
                partitions_of(options.follower_replication_throttled_replicas, me),
            )
        numbers = named[side]
        return numbers is None or partition.partition in numbers


def partitions_of(replicas: tuple[str, ...], broker: int) -> frozenset[int] | None:
    """Partitions in a list of PARTITION:BROKER entries for this broker; None for all."""
    if replicas == ("*",):
        return None
    pairs = (replica.split(":") for replica in replicas)
    return frozenset(int(number) for number, holder in pairs if int(holder) == broker)

"""Replication throttles: moves of partitions leave room for those who produce and consume.

Two rates, of what followers get here and of what this broker copies, hold for partitions that their topics name. All traffic of such a
partition counts; only a replica that is not in sync is made to wait, so that a throttle never costs a member of the ISR its place::

    leader    a follower outside of the ISR gets no bytes of a throttled partition while the leaders' rate is exceeded
    follower  a replica outside of the ISR is not asked for while the followers' rate is exceeded

A rate is exceeded while more was sent or copied than it allows since, beyond the bytes of one second. One answer may be much larger than
that; it is then a while before the next.

Differences from Kafka: a rate holds over any length of time, where Kafka averages over eleven samples of a second; so there are no
replication.quota.window.* settings. Source: KIP-73.
"""

from typing import TYPE_CHECKING

from ottla.base.ids import TopicPartition
from ottla.base.units import INT64_MAX
from ottla.broker.replica.follower import Follower

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: Bytes of so much time may go at once.
ALLOWANCE_MS = 1_000


class Throttle:
    """How far one rate is exceeded; ``now_ms`` never goes back."""

    __slots__ = ("_at_ms", "_used", "rate")

    def __init__(self, rate: int) -> None:
        #: Bytes per second.
        self.rate = rate
        #: A thousand times the bytes that the rate has not made up for yet, as of ``_at_ms``.
        self._used = 0
        self._at_ms = 0

    def note(self, count: int, now_ms: int) -> None:
        """So many bytes went."""
        self._used = self._left(now_ms) + count * 1000
        self._at_ms = now_ms

    def free_at_ms(self, now_ms: int) -> int:
        """When more may go: ``now_ms`` or later."""
        over = self._left(now_ms) - self.rate * ALLOWANCE_MS
        return now_ms if over <= 0 else now_ms + -(-over // max(self.rate, 1))

    def follow(self, rate: int, now_ms: int) -> None:
        """Another rate holds from now on."""
        if rate != self.rate:
            self._used, self._at_ms, self.rate = self._left(now_ms), now_ms, rate

    def _left(self, now_ms: int) -> int:
        return max(0, self._used - self.rate * (now_ms - self._at_ms))


class Throttles:
    """Both throttles of a broker, and the partitions they are for."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._leader = Throttle(node.options.leader_replication_throttled_rate)
        self._follower = Throttle(node.options.follower_replication_throttled_rate)
        #: By topic: the numbers of partitions that are throttled where this broker leads, and where it follows; None for all.
        self._named: dict[str, tuple[frozenset[int] | None, frozenset[int] | None]] = {}

    def settings_changed(self) -> None:
        """Settings of the broker or of a topic are other ones now."""
        options, now = self._node.options, self._node.now_ms
        self._leader.follow(options.leader_replication_throttled_rate, now)
        self._follower.follow(options.follower_replication_throttled_rate, now)
        self._named.clear()
        self._node.fetchers.stir_all()

    def sent(self, partition: TopicPartition, count: int) -> None:
        """A follower gets so many bytes of a partition led here."""
        if self._leader.rate < INT64_MAX and self._is_named(partition, 0):
            self._leader.note(count, self._node.now_ms)

    def copied(self, partition: TopicPartition, count: int) -> None:
        """So many bytes of a partition came from its leader."""
        if self._follower.rate < INT64_MAX and self._is_named(partition, 1):
            self._follower.note(count, self._node.now_ms)

    def sends_at_ms(self, partition: TopicPartition) -> int:
        """When a follower that is not in sync may have more of a partition led here: now or later."""
        now = self._node.now_ms
        if self._leader.rate == INT64_MAX or not self._is_named(partition, 0):
            return now
        return self._leader.free_at_ms(now)

    def copies_at_ms(self, follower: Follower) -> int:
        """When a follower may ask for more: now or later. One that is in sync is never held up."""
        node, partition = self._node, follower.partition
        if self._follower.rate == INT64_MAX or not self._is_named(partition, 1):
            return node.now_ms
        state = node.image.state(partition)
        return node.now_ms if state is not None and node.broker_id in state.isr else self._follower.free_at_ms(node.now_ms)

    def _is_named(self, partition: TopicPartition, side: int) -> bool:
        named = self._named.get(partition.topic)
        if named is None:
            options = self._node.topic_options(partition.topic)
            me = self._node.broker_id
            named = self._named[partition.topic] = (
                partitions_of(options.leader_replication_throttled_replicas, me),
                partitions_of(options.follower_replication_throttled_replicas, me),
            )
        numbers = named[side]
        return numbers is None or partition.partition in numbers


def partitions_of(replicas: tuple[str, ...], broker: int) -> frozenset[int] | None:
    """Partitions of which a list of PARTITION:BROKER names this broker's replica; None for all of them."""
    if replicas == ("*",):
        return None
    pairs = (replica.split(":") for replica in replicas)
    return frozenset(int(number) for number, holder in pairs if int(holder) == broker)

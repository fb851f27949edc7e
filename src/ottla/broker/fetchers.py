"""Following: the fetches with which this broker copies what others lead.

One ``Fetcher`` asks one leading broker for some of the partitions followed from there (all, with num.replica.fetchers 1), one request at a
time::

    ask ──▶ answer: append, cut back, follow the marks ──▶ flush ──▶ ask again, from behind what is on disk now
                                                  write.caching: at once

The next request says what was made durable since the last, so the leader's high watermark rises with it: one round is one group commit of
all the partitions in it. A partition that met an error waits for itself, a leader that cannot be reached makes its fetcher wait; each time
twice as long, up to replica.fetch.backoff.ms.

Requests carry the broker epoch (KIP-903), the leader epoch (KIP-320) and the epoch of the last batch in the log (KIP-595).
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ottla.base.ids import BrokerId, TopicPartition
from ottla.broker import effects
from ottla.broker.follower import Follower, Unsound
from ottla.broker.purgatory import Parked
from ottla.log.errors import LogError
from ottla.records.errors import RecordsError
from ottla.wire import errors
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData, ReplicaState

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: By id, with the replica's state, without what a broker has no use for.
VERSION = 15
#: After a first failure.
BACKOFF_MS = 20
#: Beyond replica.fetch.wait.max.ms, before a leader counts as unreachable.
PATIENCE_MS = 10_000


class Asked(NamedTuple):
    """What a request asks about one partition. An answer counts only while a request would ask the same: one that comes late may be of a
    leader that leads no more, about a log that was another then, and must neither cut nor fill the present one."""

    follower: Follower
    epoch: int
    end_offset: int
    truncations: int

    @classmethod
    def now(cls, follower: Follower) -> Self:
        return cls(follower, follower.epoch, follower.log.end_offset, follower.log.truncations)


class Fetcher:
    """See the module's theory."""

    def __init__(self, node: "Node", leader: BrokerId) -> None:
        self._node = node
        self.leader = leader
        #: What it copies, in the order in which the leader is asked.
        self.followers: dict[TopicPartition, Follower] = {}
        #: By topic id and partition: what the request under way asks for; None when none is.
        self._asked: dict[tuple[bytes, int], Asked] | None = None
        self._failures = 0
        self._not_before_ms = 0
        self._timer: Parked | None = None
        self._timer_ms = 0

    def go_on(self) -> None:
        """Ask, unless a request is under way or what came last is not yet on disk."""
        node = self._node
        if self._asked is not None or not self.followers or node.epoch is None or node.stopping:
            return
        if not all(follower.settled for follower in self.followers.values()):
            return
        ready: list[Follower] = []
        later: list[int] = []
        for follower in self.followers.values():
            due_ms = max(follower.not_before_ms, node.throttles.copies_at_ms(follower))
            if due_ms <= node.now_ms:
                ready.append(follower)
            else:
                later.append(due_ms)
        if not ready or self._not_before_ms > node.now_ms:
            self._wait_until(max(0 if ready else min(later), self._not_before_ms))
            return
        # Those that met an error, or are throttled, are asked for again when their time has come, if no answer is nearer.
        self._asked = {}
        request = self._request(ready, min(later) - node.now_ms if later else None)
        timeout_ms = node.options.replica_fetch_wait_max_ms + PATIENCE_MS
        node.ask(self.leader, request, version=VERSION, timeout_ms=timeout_ms, done=self._answered)

    def _request(self, ready: list[Follower], soon_ms: int | None) -> FetchRequest:
        """``soon_ms``: when others will be ready."""
        node, options = self._node, self._node.options
        assert self._asked is not None and node.epoch is not None, "a registered broker asks"
        topics: dict[str, FetchTopic] = {}
        for follower in ready:
            log, partition = follower.log, follower.partition
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = FetchTopic(topic_id=log.topic_id, partitions=[])
            self._asked[log.topic_id, partition.partition] = Asked.now(follower)
            topic.partitions.append(
                FetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=follower.epoch,
                    fetch_offset=log.end_offset,
                    last_fetched_epoch=log.epochs.latest,
                    log_start_offset=log.start_offset,
                    partition_max_bytes=options.replica_fetch_max_bytes,
                )
            )
        wait_ms = options.replica_fetch_wait_max_ms
        return FetchRequest(
            replica_state=ReplicaState(replica_id=node.broker_id, replica_epoch=node.epoch),
            max_wait_ms=wait_ms if soon_ms is None else min(wait_ms, max(soon_ms, BACKOFF_MS)),
            min_bytes=options.replica_fetch_min_bytes,
            max_bytes=options.replica_fetch_response_max_bytes,
            session_epoch=-1,
            topics=list(topics.values()),
        )

    def _answered(self, response: Any) -> None:
        asked, self._asked = self._asked, None
        node = self._node
        if asked is None or node.stopping:
            return
        if not isinstance(response, FetchResponse) or response.error_code:
            self._failures += 1
            self._not_before_ms = node.now_ms + self._backoff_ms(self._failures)
        else:
            self._failures = 0
            for topic in response.responses:
                for data in topic.partitions:
                    ask = asked.get((topic.topic_id, data.partition_index))
                    if ask is not None and self._still_asks(ask):
                        self._take_in(ask.follower, data)
            # Served in turn: what came first goes last, so that a full answer starves nobody.
            first = next(iter(asked.values())).follower.partition
            if first in self.followers:
                self.followers[first] = self.followers.pop(first)
        self.go_on()

    def _still_asks(self, ask: Asked) -> bool:
        follower = ask.follower
        return self._node.partitions.followers.get(follower.partition) is follower and ask == Asked.now(follower)

    def _take_in(self, follower: Follower, data: PartitionData) -> None:
        """What the leader says of one partition, which is what was asked."""
        node, log = self._node, follower.log
        if data.error_code not in (errors.NONE, errors.OffsetOutOfRange.code):
            self._failed(follower)
            return
        removed: tuple[str, ...] = ()
        try:
            if data.error_code:
                # Its log begins behind the end of ours; anything else does not tell that ours is worth nothing.
                if data.log_start_offset > log.end_offset:
                    removed = follower.begin_anew(data.log_start_offset, wall_ms=node.wall_ms)
                else:
                    self._failed(follower)
            elif data.diverging_epoch.epoch >= 0:
                diverging = data.diverging_epoch
                removed = follower.diverged(diverging.epoch, diverging.end_offset, wall_ms=node.wall_ms)
            else:
                if data.records:
                    node.throttles.copied(follower.partition, len(data.records))
                    follower.append(data.records, high_watermark=data.high_watermark, wall_ms=node.wall_ms)  # type: ignore[arg-type]
                removed = follower.follow_marks(high_watermark=data.high_watermark, log_start=data.log_start_offset, wall_ms=node.wall_ms)
                follower.failures = 0
        except OSError as error:
            node.partitions.append_failed(follower, error)
            self._failed(follower)
        except (Unsound, LogError, RecordsError) as error:
            if not follower.failures:
                node.effects.append(effects.Warn(message=f"{follower.partition} cannot follow broker {follower.leader}: {error}"))
            self._failed(follower)
        node.upkeep.remove_later(follower.directory.root, removed, follower.options.file_delete_delay_ms)
        if log.unflushed:
            node.partitions.dirty[follower.partition] = follower

    def _failed(self, follower: Follower) -> None:
        follower.failures += 1
        follower.not_before_ms = self._node.now_ms + self._backoff_ms(follower.failures)

    def _backoff_ms(self, failures: int) -> int:
        return min(BACKOFF_MS << min(failures - 1, 16), self._node.options.replica_fetch_backoff_ms)

    def _wait_until(self, due_ms: int) -> None:
        if self._timer is not None and not self._timer.done:
            if self._timer_ms <= due_ms:
                return
            self._node.purgatory.cancel(self._timer)
        self._timer = Parked((), lambda: False, lambda expired: self.go_on())
        self._timer_ms = due_ms
        self._node.purgatory.park(self._timer, due_ms)


class Fetchers:
    """All fetchers of this broker."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._fetchers: dict[Hashable, Fetcher] = {}
        #: The fetcher of each partition followed.
        self._of: dict[TopicPartition, Fetcher] = {}
        #: Fetchers that may have something to ask.
        self._stirred: dict[Fetcher, None] = {}

    def follow(self, follower: Follower) -> None:
        """Copy a partition from its leader from now on; from nobody while it has none."""
        self.forget(follower.partition)
        if follower.leader < 0 or follower.leader == self._node.broker_id:
            return
        lane = hash_of(follower.partition) % self._node.options.num_replica_fetchers
        key = (follower.leader, lane)
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = Fetcher(self._node, BrokerId(follower.leader))
        fetcher.followers[follower.partition] = follower
        self._of[follower.partition] = fetcher
        self._stirred[fetcher] = None

    def forget(self, partition: TopicPartition) -> None:
        """Copy a partition no more."""
        fetcher = self._of.pop(partition, None)
        if fetcher is not None:
            del fetcher.followers[partition]
            self._stirred[fetcher] = None

    def flushed(self, partition: TopicPartition) -> None:
        """More of a partition followed is on disk."""
        fetcher = self._of.get(partition)
        if fetcher is not None:
            self._stirred[fetcher] = None

    def of(self, partition: TopicPartition) -> Fetcher:
        """The fetcher of a partition that is followed from somebody."""
        return self._of[partition]

    def go_on(self) -> None:
        """At the end of a step: ask what has become possible to ask."""
        while self._stirred:
            stirred, self._stirred = self._stirred, {}
            for fetcher in stirred:
                fetcher.go_on()

    def stir_all(self) -> None:
        """This broker is registered: begin."""
        self._stirred = dict.fromkeys(self._fetchers.values())


def hash_of(partition: TopicPartition) -> int:
    """Spreads partitions over fetchers, the same in every run."""
    return sum(partition.topic.encode()) + 31 * partition.partition

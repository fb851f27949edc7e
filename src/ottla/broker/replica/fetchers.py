"""Fetchers: the fetch requests with which this broker copies partitions from their leaders.

One ``Fetcher`` fetches from one leading broker some of the partitions followed from it (all with num.replica.fetchers 1), one request at a
time::

    request ──▶ response: append, truncate, adopt marks ──▶ flush ──▶ next request, from the offset that is on disk
                                                  write.caching: at once

The next request reports what was made durable, so the leader's high watermark rises with it: one round is one group commit of all its
partitions. A partition with an error waits alone, an unreachable leader makes its fetcher wait; each time twice as long, up to
replica.fetch.backoff.ms.

Fetches use a session (KIP-227): after a full request, each names only partitions that changed here, and each response only those that
changed there. So the cost of a round depends on changes, not on the number of partitions. After an error of the whole request the next one
is full again.

A request may wait at the leader for records. If partitions are added meanwhile, for example after an election, the request is recalled: an
empty request makes the leader answer it at once, and the next one has all partitions. Otherwise records written right after the election
would be committed only after the wait. Several additions are collected for a moment.

Requests have the broker epoch (KIP-903), the leader epoch (KIP-320) and the epoch of the last batch in the log (KIP-595).
"""

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple, Self

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.log_levels import REPLICA
from ottla.base.units import INT32_MAX, INT64_MAX
from ottla.broker.context import BrokerContext
from ottla.broker.delayed import DelayedOperation
from ottla.broker.replica.follower import Follower, Unsound
from ottla.broker.replica.replicas import Replicas
from ottla.broker.replica.throttle import Throttles
from ottla.broker.storage.periodic_tasks import FileRemovals
from ottla.log.errors import LogError
from ottla.records.errors import RecordsError
from ottla.wire import errors
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic, PartitionData, ReplicaState

#: Topics by id, with the replica's state.
VERSION = 15
#: After the first failure.
BACKOFF_MS = 20
#: In addition to replica.fetch.wait.max.ms, before a leader counts as unreachable.
PATIENCE_MS = 10_000
#: From the first added partition to the recall of the request in flight.
RECALL_MS = 10
#: Errors that only mean that the session is gone: the next request is full and needs no backoff.
SESSION_GONE = (errors.FetchSessionIdNotFound.code, errors.InvalidFetchSessionEpoch.code, errors.FetchSessionTopicIdError.code)


class FetchPosition(NamedTuple):
    """What a request asks about one partition. A response counts only while a request would ask the same: a late one may come from a former
    leader, about a log that has changed, and must neither truncate nor extend the present log.
    """

    follower: Follower
    epoch: int
    end_offset: int
    truncations: int
    #: The leader only compares it with its own: a response also counts after it moved.
    log_start: int

    @classmethod
    def now(cls, follower: Follower) -> Self:
        return cls(follower, follower.epoch, follower.log.end_offset, follower.log.truncations, follower.reported_start)


#: Topic id and partition, as in responses.
FetchKey = tuple[bytes, int]


class Fetcher:
    """Fetches from one leading broker."""

    def __init__(self, context: BrokerContext, replicas: Replicas, throttles: Throttles, removals: FileRemovals, leader: BrokerId) -> None:
        self._context = context
        self._replicas = replicas
        self._throttles = throttles
        self._removals = removals
        self.leader = leader
        #: Partitions to copy, in request order.
        self.followers: dict[TopicPartition, Follower] = {}
        #: Of these: partitions with changes for the leader; partitions that wait; and partitions whose log is not on disk yet. A round
        #: begins when the last group is empty.
        self._changed: dict[TopicPartition, Follower] = {}
        self._waiting: dict[TopicPartition, Follower] = {}
        self._unsettled: dict[TopicPartition, Follower] = {}
        #: No waiting partition is ready before this time, except those that wait for another event.
        self._due_ms = INT64_MAX
        #: What the leader has for the session, as of the last request; and what it must remove.
        self._asked: dict[FetchKey, FetchPosition] = {}
        self._gone: dict[FetchKey, FetchPosition] = {}
        self._session = 0
        self._epoch = 0
        self._under_way = False
        #: Whether the request in flight lacks partitions; and when it is recalled.
        self._fresh = False
        self._recalling: DelayedOperation | None = None
        self._failures = 0
        self._not_before_ms = 0
        self._timer: DelayedOperation | None = None
        self._timer_ms = 0

    def follow(self, follower: Follower) -> None:
        """Copies this partition too, or notes that its state may have changed."""
        self.followers[follower.partition] = follower
        # A partition that the leader already has in this form is named again, but the request need not be recalled for it.
        self._fresh |= self._gone.get(_fetch_key(follower)) != FetchPosition.now(follower)
        self.changed(follower.partition)

    def forget(self, partition: TopicPartition) -> None:
        """Stops copying this partition."""
        follower = self.followers.pop(partition)
        for some in (self._changed, self._waiting, self._unsettled):
            some.pop(partition, None)
        self._leave(follower)

    def changed(self, partition: TopicPartition) -> None:
        """A partition changed here: more of it is on disk, it was truncated, or its wait ended."""
        follower = self.followers[partition]
        self._waiting.pop(partition, None)
        self._changed[partition] = follower
        if follower.settled:
            self._unsettled.pop(partition, None)
        else:
            self._unsettled[partition] = follower

    def go_on(self) -> None:
        """Sends a request, unless one is in flight or the last data is not on disk yet."""
        context = self._context
        if self._under_way and self._fresh and self._recalling is None:
            self._recalling = context.delayed.timer("recall of a fetch", self._recall, context.now_ms + RECALL_MS)
        if self._under_way or not self.followers or context.epoch is None or context.stopping or self._unsettled:
            return
        if self._due_ms <= context.now_ms:
            self._look_at_waiting()
        for partition in [key for key, follower in self._changed.items() if not self._is_ready(follower)]:
            follower = self._waiting[partition] = self._changed.pop(partition)
            if not follower.paused:
                self._due_ms = min(self._due_ms, self._ready_at_ms(follower))
            self._leave(follower)
        if len(self._waiting) == len(self.followers):
            if self._due_ms < INT64_MAX:
                self._wait_until(max(self._due_ms, self._not_before_ms))
        elif self._not_before_ms > context.now_ms:
            self._wait_until(self._not_before_ms)
        else:
            self._under_way, self._fresh = True, False
            # Partitions with errors or throttles are asked again at their time, if no response comes earlier.
            wait_ms = context.options.replica_fetch_wait_max_ms
            if self._due_ms < INT64_MAX:
                wait_ms = min(wait_ms, max(self._due_ms - context.now_ms, BACKOFF_MS))
            request = self._request(wait_ms)
            context.ask(self.leader, request, version=VERSION, timeout_ms=wait_ms + PATIENCE_MS, done=self._answered)

    def look_again(self) -> None:
        """Waiting partitions may be ready earlier."""
        self._due_ms = 0

    def _look_at_waiting(self) -> None:
        """Moves waiting partitions that are ready. During a throttled reassignment there may be thousands."""
        due_ms = INT64_MAX
        for partition, follower in list(self._waiting.items()):
            if not follower.paused:
                ready_ms = self._ready_at_ms(follower)
                if ready_ms <= self._context.now_ms:
                    self.changed(partition)
                else:
                    due_ms = min(due_ms, ready_ms)
        self._due_ms = due_ms

    def _recall(self) -> None:
        """Makes the leader answer the request in flight if it still lacks partitions."""
        context = self._context
        self._recalling = None
        if self._under_way and self._fresh and context.epoch is not None and not context.stopping:
            self._fresh = False
            state = ReplicaState(replica_id=context.broker_id, replica_epoch=context.epoch)
            nothing = FetchRequest(replica_state=state, max_wait_ms=0, session_id=0, session_epoch=-1)
            context.ask(self.leader, nothing, version=VERSION, timeout_ms=PATIENCE_MS, done=lambda response: None)

    def _ready_at_ms(self, follower: Follower) -> int:
        return max(follower.not_before_ms, self._throttles.copies_at_ms(follower))

    def _is_ready(self, follower: Follower) -> bool:
        return not follower.paused and self._ready_at_ms(follower) <= self._context.now_ms

    # Requests.

    def _request(self, wait_ms: int) -> FetchRequest:
        context, options = self._context, self._context.options
        assert context.epoch is not None, "a registered broker asks"
        if self._epoch == 0:
            self._asked, self._gone = {}, {}
            told: Iterable[Follower] = [follower for partition, follower in self.followers.items() if partition not in self._waiting]
        else:
            told = self._changed.values()
        topics = self._topics(told)
        self._changed = {}
        gone: dict[bytes, list[int]] = {}
        for topic_id, number in self._gone:
            gone.setdefault(topic_id, []).append(number)
        self._gone = {}
        return FetchRequest(
            replica_state=ReplicaState(replica_id=context.broker_id, replica_epoch=context.epoch),
            max_wait_ms=wait_ms,
            min_bytes=options.replica_fetch_min_bytes,
            max_bytes=options.replica_fetch_response_max_bytes,
            session_id=self._session,
            session_epoch=self._epoch,
            topics=topics,
            forgotten_topics_data=[ForgottenTopic(topic_id=topic_id, partitions=numbers) for topic_id, numbers in gone.items()],
        )

    def _topics(self, told: Iterable[Follower]) -> list[FetchTopic]:
        """Partitions that the leader does not have in this form."""
        topics: dict[bytes, FetchTopic] = {}
        for follower in told:
            log, partition = follower.log, follower.partition
            place, ask = _fetch_key(follower), FetchPosition.now(follower)
            self._gone.pop(place, None)
            if self._asked.get(place) == ask:
                continue
            self._asked[place] = ask
            topic = topics.get(place[0])
            if topic is None:
                topic = topics[place[0]] = FetchTopic(topic_id=log.topic_id, partitions=[])
            topic.partitions.append(
                FetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=follower.epoch,
                    fetch_offset=log.end_offset,
                    last_fetched_epoch=log.epochs.latest,
                    log_start_offset=ask.log_start,
                    partition_max_bytes=self._context.options.replica_fetch_max_bytes,
                )
            )
        return list(topics.values())

    def _leave(self, follower: Follower) -> None:
        """Removes this partition from the session."""
        place = _fetch_key(follower)
        asked = self._asked.pop(place, None)
        if asked is not None:
            self._gone[place] = asked

    # Responses.

    def _answered(self, response: Any) -> None:
        self._under_way = False
        context = self._context
        if context.stopping:
            return
        if not isinstance(response, FetchResponse) or response.error_code:
            self._epoch = 0
            if isinstance(response, FetchResponse) and response.error_code in SESSION_GONE:
                self._session = 0
            else:
                self._failures += 1
                self._not_before_ms = context.now_ms + self._backoff_ms(self._failures)
        else:
            self._failures = 0
            self._session = response.session_id
            self._epoch = 0 if response.session_id == 0 else self._epoch % INT32_MAX + 1
            whole = self._epoch <= 1
            for topic in response.responses:
                for data in topic.partitions:
                    ask = self._asked.get((bytes(topic.topic_id), data.partition_index))
                    if ask is not None and self._still_asks(ask):
                        self._take_in(ask.follower, data)
            if whole and self.followers:
                # In rotation: the first partition goes last, so that full responses starve none.
                first = next(iter(self.followers))
                self.followers[first] = self.followers.pop(first)
        self.go_on()

    def _still_asks(self, ask: FetchPosition) -> bool:
        follower = ask.follower
        return self._replicas.followers.get(follower.partition) is follower and ask[:4] == FetchPosition.now(follower)[:4]

    def _take_in(self, follower: Follower, data: PartitionData) -> None:
        """Applies the response of one partition."""
        context, log = self._context, follower.log
        log_start = log.start_offset
        if data.error_code not in (errors.NONE, errors.OffsetOutOfRange.code):
            self._failed(follower)
            self.changed(follower.partition)
            return
        removed: tuple[str, ...] = ()
        try:
            if data.error_code:
                # Its log begins after the end of ours; any other error does not prove that our log is useless.
                if data.log_start_offset > log.end_offset:
                    removed = follower.begin_anew(data.log_start_offset, wall_ms=context.wall_ms)
                else:
                    self._failed(follower)
            elif data.diverging_epoch.epoch >= 0:
                diverging = data.diverging_epoch
                removed = follower.diverged(diverging.epoch, diverging.end_offset, wall_ms=context.wall_ms)
            elif data.records and (before := follower.begins_before(data.records)) is not None:  # type: ignore[arg-type]
                removed = follower.begin_anew(before, wall_ms=context.wall_ms)
            else:
                if data.records:
                    self._throttles.copied(follower.partition, len(data.records))
                    follower.append(data.records, high_watermark=data.high_watermark, wall_ms=context.wall_ms)  # type: ignore[arg-type]
                    follower.traffic.replication_bytes_in += len(data.records)
                mark = follower.high_watermark
                removed = follower.follow_marks(
                    high_watermark=data.high_watermark, log_start=data.log_start_offset, wall_ms=context.wall_ms
                )
                follower.failures = 0
                follower.refused = ""
                if follower.high_watermark != mark:
                    context.delayed.poke(follower.partition)
        except OSError as error:
            self._replicas.append_failed(follower, error)
            self._failed(follower)
        except (Unsound, LogError, RecordsError) as error:
            if follower.refused != str(error):
                refused = f"{follower.partition} in {follower.directory.root} does not copy what broker {follower.leader} sent: {error}"
                message = f"{refused}; it asks again, and the leader then scrubs that segment of its own log"
                context.log.warn(REPLICA, message)
                follower.refused = str(error)
            self._failed(follower)
        self._removals.remove_later(follower.directory.root, removed, follower.options.file_delete_delay_ms)
        if log.unflushed:
            self._replicas.dirty[follower.partition] = follower
        if log.start_offset > log_start:
            self._replicas.record_start(follower)
        if self.followers.get(follower.partition) is follower:
            self.changed(follower.partition)

    def _failed(self, follower: Follower) -> None:
        follower.failures += 1
        follower.not_before_ms = self._context.now_ms + self._backoff_ms(follower.failures)

    def _backoff_ms(self, failures: int) -> int:
        return min(BACKOFF_MS << min(failures - 1, 16), self._context.options.replica_fetch_backoff_ms)

    def _wait_until(self, due_ms: int) -> None:
        if self._timer is not None and not self._timer.done:
            if self._timer_ms <= due_ms:
                return
            self._context.delayed.cancel(self._timer)
        self._timer_ms = due_ms
        self._timer = self._context.delayed.timer("next fetch", self.go_on, due_ms)


class Fetchers:
    """All fetchers of this broker."""

    def __init__(self, context: BrokerContext, replicas: Replicas, throttles: Throttles, removals: FileRemovals) -> None:
        self._context = context
        self._replicas = replicas
        self._throttles = throttles
        self._removals = removals
        self._fetchers: dict[Hashable, Fetcher] = {}
        #: The fetcher of each followed partition.
        self._of: dict[TopicPartition, Fetcher] = {}
        self._lanes = context.options.num_replica_fetchers
        #: Fetchers that may have to send a request.
        self.stirred: dict[Fetcher, None] = {}

    def follow(self, follower: Follower) -> None:
        """Copies a partition from its leader, if it has one."""
        self.forget(follower.partition)
        if follower.leader < 0 or follower.leader == self._context.broker_id:
            return
        lane = hash_of(follower.partition) % self._lanes
        key = (follower.leader, lane)
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = Fetcher(
                self._context, self._replicas, self._throttles, self._removals, BrokerId(follower.leader)
            )
        fetcher.follow(follower)
        self._of[follower.partition] = fetcher
        self.stirred[fetcher] = None

    def forget(self, partition: TopicPartition) -> None:
        """Stops copying a partition."""
        fetcher = self._of.pop(partition, None)
        if fetcher is not None:
            fetcher.forget(partition)
            self.stirred[fetcher] = None

    def flushed(self, partition: TopicPartition) -> None:
        """More of a followed partition is on disk, or its wait ended."""
        fetcher = self._of.get(partition)
        if fetcher is not None:
            fetcher.changed(partition)
            self.stirred[fetcher] = None

    def of(self, partition: TopicPartition) -> Fetcher:
        """The fetcher of a partition that has a leader."""
        return self._of[partition]

    def go_on(self) -> None:
        """Sends requests that became possible; called at the end of a step."""
        while self.stirred:
            stirred, self.stirred = self.stirred, {}
            for fetcher in stirred:
                fetcher.go_on()

    def settings_changed(self) -> None:
        """Distributes the partitions over a changed number of fetchers, num.replica.fetchers."""
        if self._lanes != self._context.options.num_replica_fetchers:
            self._lanes = self._context.options.num_replica_fetchers
            for partition, fetcher in list(self._of.items()):
                self.follow(fetcher.followers[partition])

    def stir_all(self) -> None:
        """The broker was registered, or throttles changed."""
        self.stirred = dict.fromkeys(self._fetchers.values())
        for fetcher in self.stirred:
            fetcher.look_again()


def _fetch_key(follower: Follower) -> FetchKey:
    return bytes(follower.log.topic_id), follower.partition.partition


def hash_of(partition: TopicPartition) -> int:
    """Distributes partitions over fetchers, equal in every run."""
    return sum(partition.topic.encode()) + 31 * partition.partition

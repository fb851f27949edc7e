"""The consumer for asyncio, with manual assignment or in a group.

    async with Consumer("orders", group_id="billing", bootstrap_servers="127.0.0.1:9092") as consumer:
        async for record in consumer:
            ...

Between polls, fetches continue until two chunks of each partition are buffered, and heartbeats continue. Partitions are assigned and
revoked only inside the user's own calls (`rebalance`).

Queries (topics, log ends, offsets by timestamp, raw batches) take at most `timeout_ms` (`default_api_timeout_ms`) and retry retriable
errors. They never create topics; subscriptions and assignments do if `allow_auto_create_topics` and the brokers allow it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from random import Random
from time import monotonic_ns
from types import TracebackType
from typing import Any, Self, Unpack

from ottla.base.ids import TopicPartition, as_partition
from ottla.base.options import ConfigError
from ottla.client.argument_validation import INT64_MAX, checked, fitting, patience, whole_number
from ottla.client.arrow.optional import pa
from ottla.client.arrow.read import TableForm
from ottla.client.arrow.table_polls import TablePolls
from ottla.client.consumer.delivery import LOOP_RECORDS, RecordDelivery
from ottla.client.consumer.metrics import ConsumerMetrics
from ottla.client.consumer.rebalance import CommitCallback, RebalanceListener, UserSide, invoke
from ottla.client.consumer.record import ConsumerRecord, Deserializers
from ottla.client.consumer.subscribed_topics import SubscribedTopics
from ottla.client.consumer.wakeup import Alarm
from ottla.client.errors import AlreadyClosed, MetadataTimedOut
from ottla.client.fetch.fetch_loop import Fetching
from ottla.client.fetch.fetcher import Fetcher
from ottla.client.fetch.offsets import EARLIEST, LATEST, OffsetAndTime, Partition, Times, list_offsets, raised
from ottla.client.fetch.ranges import Range
from ottla.client.fetch.raw_fetch import RawFetch, fetch_raw
from ottla.client.group.assignors import assignors_from
from ottla.client.group.commits import GroupMetadata, OffsetAndMetadata, OffsetsGiven, offsets_given
from ottla.client.group.coordinator_client import CoordinatorClient
from ottla.client.html_tables import HtmlRows
from ottla.client.interceptors import ConsumerInterceptors
from ottla.client.options import ConsumerOptions
from ottla.client.producer.producer import partitions_of
from ottla.client.profiles import client_options
from ottla.client.sampled_stats import Figures
from ottla.client.settings import ConsumerSettings
from ottla.client.transport.backoff import Backoff
from ottla.client.transport.event_loop import OneLoop
from ottla.client.transport.network import METADATA_VERSION_MIN, Network, monotonic_ms
from ottla.wire.errors import InvalidGroupId, KafkaError
from ottla.wire.messages import MetadataRequest

#: Maximum time that leaving the group delays close.
CLOSE_TIMEOUT_MS = 30_000
NO_GROUP = "this needs a group: give the consumer a group_id, or assign() partitions to it"


@checked(
    "assign", "commit", "commit_async", "committed", "enforce_rebalance", "seek", "seek_to_beginning", "seek_to_end", "position", "pause",
    "resume", "partitions_for", "list_topics", "beginning_offsets", "end_offsets", "offsets_for_times", "offsets_of", "fetch_raw", "close",
)  # fmt: skip
class Consumer:
    """Reads records. Settings are keyword arguments of `ConsumerOptions`. Belongs to the event loop of its first use. Topics given here
    are subscribed to.

    Raises: ConfigError for an unknown or contradictory setting.
    """

    def __init__(
        self,
        *topics: str,
        key_deserializer: Any = None,
        value_deserializer: Any = None,
        interceptors: Iterable[Any] = (),
        listener: RebalanceListener | None = None,
        rng: Random | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        assignors = None
        if "partition_assignment_strategy" in settings:
            assignors = assignors_from(settings["partition_assignment_strategy"])
            settings["partition_assignment_strategy"] = [one.name for one in assignors]
        self.options = client_options(ConsumerOptions, settings)
        self._assignors = assignors or assignors_from(self.options.partition_assignment_strategy)
        if listener is not None and not self.options.group_id:
            raise ConfigError("listener", "only a group rebalances: give a group_id too")
        set_to = {spec.attribute: getattr(self.options, spec.attribute) for spec in self.options.SPECS.values()}
        self._interceptors = ConsumerInterceptors(interceptors, set_to)
        #: Records between the fetcher and the user.
        self.delivery = RecordDelivery(self.options, Deserializers(set_to, key_deserializer, value_deserializer), self._interceptors)
        self._rng = rng or Random()
        self._fetcher = Fetcher(self.options, self._rng)
        #: The same for tables.
        self.tables = TablePolls(self.options, self._fetcher, self.delivery, self.turn, self._reads_several, self.clock_ms)
        self._metrics = ConsumerMetrics()
        self._network_: Network | None = None
        self._own = OneLoop("Consumer")
        self._fetching: Fetching | None = None
        self._user: UserSide | None = None
        self._group: CoordinatorClient | None = None
        self._news: asyncio.Event | None = None
        self._alarm = Alarm()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._polling = False
        #: The subscription without a group.
        self._topics: SubscribedTopics | None = None
        #: The subscription; None for none.
        self._subscribed: tuple[frozenset[str], str | re.Pattern[str] | None] | None = None
        self._listener: Any = listener
        self._early = topics
        #: Calls listeners and callbacks.
        self.invoke: Callable[..., Awaitable[None]] = invoke

    # -- Lifecycle.

    async def start(self) -> Self:
        """Binds to the running event loop. Does not contact a broker."""
        _ = self._network
        return self

    @property
    def _network(self) -> Network:
        if self._closed:
            raise AlreadyClosed("the consumer is closed; make another one")
        self._own.check()
        if self._network_ is None:
            network = Network(self.options, rng=self._rng, allow_auto_create=self.options.allow_auto_create_topics)
            self._network_, self._news = network, asyncio.Event()
            self._alarm.bind(self._news.set)
            network.changed = self._changed
            if self.options.group_id:
                self._group = CoordinatorClient(network, self.options, self._assignors, self._rng, self._metrics, self._changed)
                self._user = UserSide(
                    network, self._fetcher, self._group, self.options, self.delivery, self._interceptors, self._metrics, self._invoke
                )
            self._fetching = Fetching(network, self._fetcher, self.options, self._group, self._metrics, self._changed)
            if self._early:
                self.subscribe(self._early, listener=self._listener)
        return self._network_

    async def _invoke(self, function: Callable[..., Any], *arguments: Any) -> None:
        await self.invoke(function, *arguments)

    @property
    def in_group(self) -> bool:
        """Whether there is a group, with listeners and callbacks."""
        return bool(self.options.group_id)

    @property
    def settled(self) -> bool:
        """Whether no group membership has to be established before records can arrive."""
        return self._group is None or self._subscribed is None or self._group.machine.settled

    def clock_ms(self) -> float:
        """Clock for timeouts; for any thread."""
        return monotonic_ms() if self._network_ is None else self._network_.clock_ms()

    @property
    def _members(self) -> tuple[CoordinatorClient, UserSide]:
        """The group's parts. Raises: InvalidGroupId without a group."""
        _ = self._network
        if self._group is None or self._user is None:
            raise InvalidGroupId(NO_GROUP)
        return self._group, self._user

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.tables.not_done()
        await self.close()

    async def close(self, timeout_ms: float | None = None, *, leave_group: bool | None = None) -> None:
        """Commits if auto-commit is enabled, leaves the group, closes connections; waits for brokers at most `timeout_ms` (30 s). Closing
        twice is allowed.

        A static member, with a `group_instance_id`, does not leave, so that it can rejoin within its session timeout. `leave_group`
        overrides this: True makes any member leave, False none (KIP-1092).

        Example: `await consumer.close(timeout_ms=10_000, leave_group=True)`.
        """
        if self._closed:
            return
        limit_ms = CLOSE_TIMEOUT_MS if timeout_ms is None else timeout_ms
        if self._own.elsewhere():
            self._closed = True
            raise self._own.wrong()
        try:
            if self._user is not None and self._group is not None:
                await self._part(limit_ms, "the consumer was closed", leave_group)
                await self._user.tell_outcomes()
        finally:
            self._closed = True
            self.delivery.close()
            if self._timer is not None:
                self._timer.cancel()
            if self._news is not None:
                self._news.set()
            if self._network_ is not None:
                await self._network_.close()

    async def _part(self, limit_ms: float, reason: str, leave_group: bool | None = None) -> None:
        """Gives up all partitions and leaves."""
        group, user = self._members
        clock_ms = self._network.clock_ms
        deadline_ms = clock_ms() + limit_ms

        def left_ms() -> float:
            return max(deadline_ms - clock_ms(), 0)

        if self._subscribed is None:
            await user.commit_all(left_ms())
            await user.quiet(left_ms())
            return
        try:
            await user.give_up_all(left_ms())
            await user.quiet(left_ms())
        finally:
            await group.leave(reason, left_ms(), leave_group)
            self._fetcher.assign([])
            user.drop(lambda _: True)

    # -- Groups.

    def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Subscribes to topics as a member of the group, in place of the previous subscription; the next poll joins the group. Without a
        `group_id` this consumer reads all partitions of the topics, and commits nothing.

        Names, or a pattern that must match the whole name, also of topics that are created later. In the classic protocol this client
        evaluates it as Python's regular expression; in the consumer protocol the brokers evaluate it in RE2's syntax, unless it is a
        compiled pattern.

        Raises: InvalidGroupId for a listener without a group; ValueError if partitions were assigned.

        Example: `consumer.subscribe(["orders", "payments"])`.
        """
        network = self._network
        names: frozenset[str] = frozenset()
        if isinstance(topics, re.Pattern):
            pattern = topics
        else:
            fitting("topics", topics, str | Iterable[str], "topics")
            names = frozenset([topics] if isinstance(topics, str) else topics)
        if pattern is not None and not isinstance(getattr(pattern, "pattern", pattern), str):
            raise TypeError(f"a pattern is a str, or one that re.compile() made of a str, not {pattern!r}")
        if bool(names) == (pattern is not None):
            raise ValueError("subscribe to names or to a pattern; to none at all with unsubscribe()")
        if self._subscribed is None and self._fetcher.assignment:
            raise ValueError("partitions were assigned: end that with unsubscribe() before you subscribe")
        if self._group is None:
            if listener is not None:
                raise InvalidGroupId(NO_GROUP)
            self._drop_topics()
            self._topics = SubscribedTopics(network, self._fetcher, self.options, names, pattern, self._changed)
        else:
            group, user = self._members
            user.listener = listener
            group.subscribe(names, pattern)
        self._subscribed = (names, pattern)
        self._pump()

    def _drop_topics(self) -> None:
        if self._topics is not None:
            self._topics.stop()
            self._topics = None
            self._fetcher.assign([])
            self.delivery.drop(lambda _: True)

    def subscription(self) -> frozenset[str]:
        """Subscribed topics; for a pattern, the known topics that match. Example: `consumer.subscription()`."""
        if self._topics is not None:
            return self._topics.topics
        if self._subscribed is None or self._group is None:
            return frozenset(self._early) if not self._closed and self._network_ is None else frozenset()
        return self._subscribed[0] or self._group.machine.wanted | {tp.topic for tp in self._fetcher.assignment}

    async def unsubscribe(self) -> None:
        """Leaves the group, or drops the manual assignment. Example: `await consumer.unsubscribe()`."""
        _ = self._network
        if self._group is None:
            self._drop_topics()
        elif self._subscribed is not None:
            await self._part(self.options.request_timeout_ms, "the consumer unsubscribed")
        self._subscribed, self._early = None, ()
        self._fetcher.assign([])

    def enforce_rebalance(self, reason: str = "asked for by the user") -> None:
        """Triggers a rebalance with the next poll. Example: `consumer.enforce_rebalance("new members")`."""
        self._members[0].machine.rejoin(reason)
        self._pump()

    def group_metadata(self) -> GroupMetadata:
        """The consumer's group membership. Example: `consumer.group_metadata()`."""
        return self._members[0].metadata

    async def commit(self, offsets: OffsetsGiven | None = None, timeout_ms: float | None = None) -> None:
        """Commits offsets: those given (the next record to read each), or the consumer's positions of all assigned partitions.

        Raises: CommitFailed if the group assigned the partitions to others; RebalanceInProgress: poll, then commit again;
        OffsetMetadataTooLarge and others; RequestTimedOut; InvalidGroupId without a group; WokenUp.

        Example: `await consumer.commit({("orders", 0): 1000})`.
        """
        limit_ms = self._limit_ms(timeout_ms)
        user = self._members[1]

        async def committed() -> None:
            await user.quiet(limit_ms)
            await user.commit(self._offsets_given(offsets), limit_ms)

        began_ns = monotonic_ns()
        await self._alarm.wakeable(committed())
        self._metrics.commit_sync_ns += monotonic_ns() - began_ns

    def commit_async(self, offsets: OffsetsGiven | None = None, callback: CommitCallback | None = None) -> None:
        """Commits in the background, with one attempt. `callback(offsets, error or None)` is called in a later poll or close.

        Example: `consumer.commit_async(callback=lambda offsets, error: print(error or offsets))`.
        """
        self._members[1].commit_soon(self._offsets_given(offsets), callback)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What `commit()` commits: the next record to process, of each assigned partition with a position. Pass it to the producer's
        `send_offsets_to_transaction` with `group_metadata()`.

        Raises: InvalidGroupId without a group.

        Example: `consumer.positions()`.
        """
        return self._members[1].positions()

    def _offsets_given(self, offsets: OffsetsGiven | None) -> dict[TopicPartition, OffsetAndMetadata]:
        return self._members[1].positions() if offsets is None else offsets_given(offsets)

    async def committed(
        self, partitions: Iterable[Partition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets, None without one. Raises: GroupAuthorizationFailed and others; RequestTimedOut; WokenUp.

        Example: `await consumer.committed([("orders", 0)])`.
        """
        limit_ms = self._limit_ms(timeout_ms)
        wanted = [as_partition(tp) for tp in partitions]
        began_ns = monotonic_ns()
        found = await self._alarm.wakeable(self._members[0].committed(wanted, timeout_ms=limit_ms))
        self._metrics.committed_ns += monotonic_ns() - began_ns
        return found

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Assigns exactly these partitions; those assigned before keep their position. With a group_id, the others start at the group's
        committed offset, without membership.

        Raises: ValueError if topics were subscribed to.

        Example: `consumer.assign([("orders", 0), ("orders", 1)])`.
        """
        if self._subscribed is not None or self._early:
            raise ValueError("topics were subscribed to: end that with unsubscribe() before you assign")
        _ = self._network
        self._fetcher.assign(as_partition(tp) for tp in partitions)
        self._sought(lambda tp: tp not in self._fetcher.assignment)
        self._pump()

    # -- Records.

    def wakeup(self) -> None:
        """Makes the present or next call that polls, iterates, commits, or waits for a position or committed offsets raise WokenUp. The
        only method that another thread may call while the consumer is in use.

        Example: `consumer.wakeup()`.
        """
        if not self._closed:
            self._alarm.wake()

    async def poll(self, timeout_ms: float | None = None, max_records: int | None = None) -> list[ConsumerRecord]:
        """Returns the next records, in order per partition; waits for the first at most `timeout_ms` (None: without limit), then returns an
        empty list.

        Raises: OffsetOutOfRange and other errors of a partition; NoOffsetToStart, LogTruncated; CorruptMessage;
        RecordDeserializationFailed; WokenUp.

        Example: `await consumer.poll(timeout_ms=1_000, max_records=100)`.
        """
        limit = self.options.max_poll_records if max_records is None else max_records
        await self.turn(limit, patience(timeout_ms))
        return HtmlRows(self.delivery.give(limit))

    async def poll_table(self, timeout_ms: float | None = None, max_records: int | None = None, **form: Unpack[TableForm]) -> pa.Table:
        """Returns the next records as an Arrow table, without a Python object per record: all fetched records, at most `max_records`.
        Deserializers and interceptors are not used. Otherwise like `poll`, and both can be mixed.

        `columns=`, `key_format=`, `value_format=`, `schema=` and `on_corrupt=` set the form of the table (`client.arrow.read`).

        Raises: errors of `poll`; SerializationFailed for a value that cannot be decoded, without changing positions; ImportError.

        Example: `await consumer.poll_table(timeout_ms=1_000, value_format="json")`.
        """
        return await self.tables.poll(timeout_ms, max_records, form)

    def metrics(self) -> dict[str, Figures | dict[str, Figures]]:
        """Metrics with Kafka's names, in the groups listed in `consumer.metrics`; those of topics, partitions and brokers by these first.
        Averages, maxima and rates cover the last minute; NaN without samples.

        Example: `consumer.metrics()`.
        """
        network, fetcher = self._network, self._fetcher
        # Records of tables are counted after their poll.
        self._count(network.clock_ms())
        progress = fetcher.progress(self.delivery.first_offsets())
        return self._metrics.figures(progress, fetcher.preferred_replicas.replicas, network.connections, self.in_group, network.clock_ms())

    def _reads_several(self) -> bool:
        """Whether records may come from several topics."""
        topics = {tp.topic for tp in self._fetcher.assignment} | self.subscription()
        return len(topics) > 1 or (self._subscribed is not None and self._subscribed[1] is not None)

    async def turn(self, limit: int, timeout_ms: float | None, take: Callable[[], bool] | None = None) -> None:
        """The part of a poll before records are returned: handles the group, and waits until `take`, by default the delivery's, has
        some."""
        network = self._network
        whole_number("max_records", limit, at_least=1, at_most=INT64_MAX)
        self.delivery.done()
        self.tables.put_back()
        take, began_ms = take or partial(self.delivery.take, self._fetcher, limit), network.clock_ms()
        try:
            await self._as_member(take, timeout_ms)
        finally:
            now_ms = network.clock_ms()
            self._metrics.polled(began_ms, now_ms)
            self._count(now_ms)

    def _count(self, now_ms: float) -> None:
        """Counts taken records in metrics."""
        if consumed := self._fetcher.buffer.consumed:
            self._metrics.consumed(consumed, now_ms)
            consumed.clear()

    async def _as_member(self, take: Callable[[], bool], timeout_ms: float | None) -> None:
        network = self._network
        if self._group is None:
            await self._fill(take, timeout_ms)
            return
        if self._subscribed is None and not self._fetcher.assignment:
            raise ValueError("nothing to poll for: subscribe() to topics or assign() partitions first")
        machine = self._group.machine
        machine.poll_began()
        self._polling = True
        try:
            await self._fill(take, timeout_ms)
        finally:
            self._polling = False
            machine.poll_ended(network.clock_ms())

    async def _fill(self, take: Callable[[], bool], timeout_ms: float | None) -> None:
        """Waits until there are records, or until the timeout."""
        deadline_ms = float("inf") if timeout_ms is None else self._network.clock_ms() + timeout_ms
        while True:
            self._alarm.look()
            self._pump()
            if self._user is not None:
                await self._user.attend()
            elif self._topics is not None and (error := self._topics.fatal()) is not None:
                raise error
            if take():
                self._pump()
                # A caller that polls in a loop must not keep responses from being received.
                await asyncio.sleep(0)
                return
            left_ms = deadline_ms - self._network.clock_ms()
            if left_ms <= 0:
                return
            try:
                async with asyncio.timeout(None if left_ms == float("inf") else left_ms / 1000):
                    await self._wait()
            except TimeoutError:
                deadline_ms = float("-inf")

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """All records, without end. The next poll or loop continues after the last record. A record counts as processed when the next one
        is requested.
        """
        while True:
            await self.turn(LOOP_RECORDS, None)
            for record in self.delivery.each():
                yield record

    async def _wait(self) -> None:
        """Waits until something may have changed."""
        _ = self._network
        assert self._news is not None, "a network comes with its news"
        self._news.clear()
        self._alarm.look()
        self._pump()
        await self._news.wait()
        self._alarm.look()
        _ = self._network

    def _changed(self) -> None:
        """Handles an event: wakes waiting callers, and starts new work."""
        if self._news is not None:
            self._news.set()
        self._pump()

    def _pump(self) -> None:
        """Starts everything that is due."""
        if self._closed or self._network_ is None or self._fetching is None:
            return
        network, now_ms = self._network, self._network_.clock_ms()
        times = []
        if self._group is not None and self._user is not None:
            times.append(self._group.pump(now_ms))
            if self._polling:
                self._user.commit_if_due(now_ms)
                times.append(self._user.commit_at_ms)
        elif self._topics is not None:
            times.append(self._topics.pump(now_ms))
        times.append(self._fetching.pump(now_ms))
        times.append(network.refresh_soon())
        self._wake_at(min(times), now_ms)

    def _wake_at(self, at_ms: float, now_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at_ms < float("inf"):
            self._timer = asyncio.get_running_loop().call_later(max(at_ms - now_ms, 1) / 1000, self._pump)

    # -- Positions.

    def assignment(self) -> list[TopicPartition]:
        """Assigned partitions. Example: `consumer.assignment()`."""
        return self._fetcher.assignment

    def seek(self, partition: Partition, offset: int | OffsetAndMetadata) -> None:
        """Sets the position; a committed offset has the leader epoch, which detects a diverged log (KIP-320).

        Raises: ValueError if the partition is not assigned.

        Example: `consumer.seek(("orders", 0), 1000)`.
        """
        at = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        sought = as_partition(partition)
        self._fetcher.seek(sought, at.offset, at.leader_epoch)
        self._sought(lambda tp: tp == sought)
        self._pump()

    def seek_each(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Sets positions. All partitions are then in one fetch: otherwise the others would wait for the first one's response, which an
        empty partition delays by `fetch_max_wait_ms`.
        """
        for tp, offset in offsets.items():
            self._fetcher.seek(tp, offset)
        self._sought(lambda tp: tp in offsets)
        self._pump()

    def _sought(self, gone: Callable[[TopicPartition], bool]) -> None:
        """Drops records of partitions that were sought."""
        self.delivery.done()
        self.delivery.drop(gone)
        if self._user is not None:
            self._user.drop(gone)

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Seeks to the log start, in these partitions or all assigned ones. Example: `consumer.seek_to_beginning(("orders", 0))`."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Seeks to the present log end, in these partitions or all assigned ones. Example: `consumer.seek_to_end()`."""
        self._seek_to(partitions, LATEST)

    def _seek_to(self, partitions: tuple[Partition, ...], when: int) -> None:
        sought = [as_partition(tp) for tp in partitions] or self._fetcher.assignment
        for tp in sought:
            self._fetcher.seek_to(tp, when)
        self._sought(lambda tp: tp in sought)
        self._pump()

    async def position(self, partition: Partition, timeout_ms: float | None = None) -> int:
        """The offset of the next record that poll() returns; looks it up if it is unknown. Raises: MetadataTimedOut, the partition's error;
        WokenUp.

        Example: `await consumer.position(("orders", 0))`.
        """
        tp = as_partition(partition)
        limit_ms = self._limit_ms(timeout_ms)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while (offset := self._fetcher.position(tp)) is None:
                    await self._wait()
        except TimeoutError:
            raise MetadataTimedOut(
                f"the position of {tp} is not known after {limit_ms:.0f} ms: {self._network.cluster.why_not(*tp)}"
            ) from None
        return self.delivery.first_offsets().get(tp, offset)

    def pause(self, *partitions: Partition) -> None:
        """Pauses these partitions: no records are returned until they are resumed; buffered ones are kept.

        Example: `consumer.pause(("orders", 0), ("orders", 1))`.
        """
        for tp in partitions:
            self._fetcher.pause(as_partition(tp))

    def resume(self, *partitions: Partition) -> None:
        """Resumes these partitions. Example: `consumer.resume(("orders", 0))`."""
        for tp in partitions:
            self._fetcher.pause(as_partition(tp), False)
        self._pump()

    def paused(self) -> list[TopicPartition]:
        """Paused partitions. Example: `consumer.paused()`."""
        return self._fetcher.paused

    def high_watermark(self, partition: Partition) -> int:
        """The log end (exclusive) in the last response; -1 before the first. Example: `consumer.high_watermark(("orders", 0))`."""
        return self._fetcher.ends(as_partition(partition))[1]

    def current_lag(self, partition: Partition) -> int | None:
        """The known lag in offsets: from the position to the high watermark, with read_committed the last stable offset, of the last
        response; None before the first.

        Raises: ValueError if the partition is not assigned.

        Example: `consumer.current_lag(("orders", 0))`.
        """
        tp = as_partition(partition)
        return self._fetcher.lag(tp, self.delivery.first_offsets().get(tp))

    def has_passed(self, partition: TopicPartition, offset: int) -> bool:
        """Whether the position is at or after this offset; an error of the partition is left for poll() to raise."""
        at = self.delivery.first_offsets().get(partition, self._fetcher.place(partition))
        return at is not None and at >= offset

    # -- Queries, independent of the assignment. They never create topics.

    def _limit_ms(self, timeout_ms: float | None) -> float:
        return self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms

    async def partitions_for(self, topic: str, timeout_ms: float | None = None) -> list[TopicPartition]:
        """The topic's partitions in order. Raises: MetadataTimedOut if the topic does not exist in time.

        Example: `await consumer.partitions_for("orders")`.
        """
        return await self.partitions_to_read(topic, timeout_ms, create=False)

    async def partitions_to_read(self, topic: str, timeout_ms: float | None = None, *, create: bool = True) -> list[TopicPartition]:
        """The partitions of a topic that is about to be read, and may be created for that."""
        count = await partitions_of(self._network, topic, None, self._limit_ms(timeout_ms), create=create)
        return [TopicPartition(topic, partition) for partition in range(count)]

    async def list_topics(self, timeout_ms: float | None = None) -> dict[str, list[TopicPartition]]:
        """All authorized topics with their partitions; without internal ones if `exclude_internal_topics`.

        Raises: ConnectionFailed if no broker answers in time.

        Example: `await consumer.list_topics(timeout_ms=5_000)`.
        """
        network, options = self._network, self.options
        deadline_ms = network.clock_ms() + self._limit_ms(timeout_ms)
        backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms, network.rng)
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        while True:
            try:
                response = await network.ask_any(request, at_least=METADATA_VERSION_MIN)
                break
            except KafkaError as error:
                left_ms = deadline_ms - network.clock_ms()
                if not error.retriable or left_ms <= 0:
                    raise
                await asyncio.sleep(min(backoff.failed(), left_ms) / 1000)
        shown = [topic for topic in response.topics if topic.name and not (topic.is_internal and options.exclude_internal_topics)]
        return {
            topic.name: [TopicPartition(topic.name, index) for index in sorted(one.partition_index for one in topic.partitions)]
            for topic in sorted(shown, key=lambda topic: topic.name)
        }

    async def beginning_offsets(self, partitions: Iterable[Partition], timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """The log start offset of each partition. Example: `await consumer.beginning_offsets([("orders", 0)], timeout_ms=5_000)`."""
        found = await self._offsets(dict.fromkeys((as_partition(tp) for tp in partitions), EARLIEST), timeout_ms)
        return {tp: one.offset for tp, one in found.items()}

    async def end_offsets(self, partitions: Iterable[Partition], timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition: the high watermark, with read_committed the last stable offset.

        Example: `await consumer.end_offsets([("orders", 0)])`.
        """
        found = await self._offsets(dict.fromkeys((as_partition(tp) for tp in partitions), LATEST), timeout_ms)
        return {tp: one.offset for tp, one in found.items()}

    async def offsets_for_times(self, times: Times, timeout_ms: float | None = None) -> dict[TopicPartition, OffsetAndTime | None]:
        """The first record of each partition at or after the given timestamp (ms); None without one.

        Example: `await consumer.offsets_for_times({("orders", 0): 1_767_225_600_000})`.
        """
        found = await self._offsets({as_partition(tp): when for tp, when in times.items()}, timeout_ms)
        return {tp: one if one.offset >= 0 else None for tp, one in found.items()}

    async def offsets_of(
        self, ranges: Mapping[TopicPartition, Range], timeout_ms: float | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The offsets of each range now: first offset, and offset after the last, within the log."""
        if not ranges:
            return {}
        starts, ends = await self.beginning_offsets(ranges, timeout_ms), await self.end_offsets(ranges, timeout_ms)
        found: list[dict[TopicPartition, int]] = []
        for side in (0, 1):
            times: dict[Partition, int] = {tp: when for tp, one in ranges.items() if (when := one.times()[side]) is not None}
            answers = await self.offsets_for_times(times, timeout_ms) if times else {}
            found.append({tp: one.offset for tp, one in answers.items() if one is not None})
        return {tp: one.offsets(starts[tp], ends[tp], found[0].get(tp), found[1].get(tp)) for tp, one in ranges.items()}

    async def _offsets(self, times: dict[TopicPartition, int], timeout_ms: float | None) -> dict[TopicPartition, OffsetAndTime]:
        read_committed = self.options.isolation_level == "read_committed"
        return raised(await list_offsets(self._network, times, read_committed=read_committed, timeout_ms=self._limit_ms(timeout_ms)))

    async def fetch_raw(
        self, partition: Partition, offset: int, max_bytes: int | None = None, *, max_wait_ms: int | None = None,
        timeout_ms: float | None = None,
    ) -> RawFetch:  # fmt: skip
        """Record batches from `offset` on, undecoded; independent of assignment and positions. The view is into the response, without a
        copy.

        `max_bytes` defaults to `max_partition_fetch_bytes`; a larger first batch is returned whole. At the log end the broker waits up to
        `max_wait_ms` (`fetch_max_wait_ms`) for more; then the records are empty. If the last offsets of the log have no record,
        `empty_until` is the end of the gap, after a second.

        Raises: OffsetOutOfRange, TopicAuthorizationFailed and others; RequestTimedOut if no leader answers within `timeout_ms`.

        Example: `await consumer.fetch_raw(("orders", 0), 1000, max_wait_ms=500)`.
        """
        options = self.options
        return await fetch_raw(
            self._network, options, as_partition(partition), offset,
            max_bytes=options.max_partition_fetch_bytes if max_bytes is None else max_bytes,
            max_wait_ms=options.fetch_max_wait_ms if max_wait_ms is None else max_wait_ms,
            timeout_ms=self._limit_ms(timeout_ms),
        )  # fmt: skip

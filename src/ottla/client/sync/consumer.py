"""The blocking consumer, for code without an event loop. Its loop runs in a thread of its own, so heartbeats and fetches continue while
the user's code runs.

Calls run on the loop, and the caller waits; Ctrl-C interrupts the wait. Rebalance listeners and commit callbacks run in the thread that
polls, so they may use the consumer. One thread at a time may use a consumer, as in Kafka.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from queue import SimpleQueue
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from ottla.base.ids import TopicPartition
from ottla.client.argument_validation import patience
from ottla.client.arrow.table_polls import tables_of
from ottla.client.consumer import consumer as aio
from ottla.client.consumer.delivery import LOOP_RECORDS
from ottla.client.consumer.rebalance import CommitCallback, RebalanceListener
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import AlreadyClosed
from ottla.client.fetch.offsets import OffsetAndTime, Partition, Times
from ottla.client.fetch.ranges import Range
from ottla.client.fetch.raw_fetch import RawFetch
from ottla.client.group.commits import GroupMetadata, OffsetAndMetadata, OffsetsGiven
from ottla.client.sampled_stats import Figures
from ottla.client.sync.loop_thread import Errands, LoopThread, close_at_exit

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.arrow.read import TableForm

T = TypeVar("T")


class Consumer:
    """Reads records. Settings are keyword arguments of `ConsumerOptions`. Topics given here are subscribed to.

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
        **settings: Any,
    ) -> None:
        #: The consumer on the loop; not thread-safe.
        self.core = aio.Consumer(
            *topics, key_deserializer=key_deserializer, value_deserializer=value_deserializer, interceptors=interceptors,
            listener=listener, rng=rng, **settings,
        )  # fmt: skip
        self.options = self.core.options
        self._closed = False
        self._thread = LoopThread("ottla-consumer")
        #: Calls into the user's code, for the thread that waits.
        self._errands: Errands | None = None
        #: The thread that waits in such a call.
        self._waiting: int | None = None
        self.core.invoke = self._invoke
        self._thread.call(self.core.start())
        close_at_exit(self)

    def __enter__(self) -> Self:
        self._raise_if_closed()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not self._closed:
            self._call(self.core.tables.not_done)
        self.close()

    def close(self, timeout_ms: float | None = None, *, leave_group: bool | None = None) -> None:
        """Commits if auto-commit is enabled, leaves the group, closes connections; waits for brokers at most `timeout_ms` (30 s). Closing
        twice is allowed.

        A static member, with a `group_instance_id`, does not leave, so that it can rejoin within its session timeout. `leave_group`
        overrides this: True makes any member leave, False none (KIP-1092).

        Raises: RuntimeError while another thread polls: end its call with `wakeup()`, and close the consumer there.
        """
        if not self._closed:
            self._raise_if_waiting()
            try:
                self.wait_for(lambda: self.core.close(timeout_ms, leave_group=leave_group))
            finally:
                self._closed = True
                self._thread.stop()

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise AlreadyClosed("the consumer is closed; make another one")

    def _call(self, work: Callable[[], T]) -> T:
        self._raise_if_closed()
        return self._thread.run(work)

    def _await(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._raise_if_closed()
        return self._thread.call(work())

    async def _invoke(self, function: Callable[..., Any], *arguments: Any) -> None:
        """On the loop: makes the waiting thread call a function."""
        assert self._errands is not None, "only calls that wait for errands run the user's code"
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._errands.put(lambda: self._run(partial(function, *arguments), done))
        await done

    def _raise_if_waiting(self) -> None:
        if self._waiting == threading.get_ident():
            raise RuntimeError("a rebalance listener or commit callback cannot poll, unsubscribe or close the consumer that called it")
        if self._waiting is not None:
            raise RuntimeError("another thread polls or closes this consumer now, and one at a time may: end its call with wakeup()")

    def wait_for(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine on the loop, and meanwhile in this thread the listeners and callbacks that it calls."""
        self._raise_if_closed()
        self._raise_if_waiting()
        self._waiting = threading.get_ident()
        try:
            self._errands = SimpleQueue()
            return self._thread.call(work(), self._errands)
        finally:
            self._errands = self._waiting = None

    def _run(self, function: Callable[[], Any], done: asyncio.Future[None]) -> None:
        error: Exception | None = None
        try:
            function()
        except Exception as raised:
            error = raised
        self._thread.loop.call_soon_threadsafe(_settle, done, error)

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Assigns exactly these partitions; those assigned before keep their position. With a group_id, the others start at the group's
        committed offset, without membership.

        Raises: ValueError if topics were subscribed to.
        """
        given = list(partitions) if isinstance(partitions, Iterator) else partitions
        self._call(lambda: self.core.assign(given))

    def unsubscribe(self) -> None:
        """Leaves the group, or drops the manual assignment."""
        self.wait_for(self.core.unsubscribe)

    def poll(self, timeout_ms: float | None = None, max_records: int | None = None) -> list[ConsumerRecord]:
        """Returns the next records, in order per partition; waits for the first at most `timeout_ms` (None: without limit), then returns an
        empty list.

        Raises: OffsetOutOfRange and other errors of a partition; NoOffsetToStart, LogTruncated; CorruptMessage;
        RecordDeserializationFailed; WokenUp; RuntimeError while another thread polls.
        """
        limit = self.options.max_poll_records if max_records is None else max_records
        self.wait_for(lambda: self.core.turn(limit, patience(timeout_ms)))
        return self.core.delivery.give(limit)

    def poll_table(self, timeout_ms: float | None = None, max_records: int | None = None, **form: Unpack[TableForm]) -> pa.Table:
        """Returns the next records as an Arrow table, without a Python object per record: all fetched records, at most `max_records`.
        Deserializers and interceptors are not used. Otherwise like `poll`, and both can be mixed.

        `columns=`, `key_format=`, `value_format=`, `schema=` and `on_corrupt=` set the form of the table (`client.arrow.read`).

        Raises: errors of `poll`; SerializationFailed for a value that cannot be decoded, without changing positions; ImportError.
        """
        polls, tables = self.core.tables, tables_of(form)
        deadline_ms = self._call(lambda: polls.deadline_ms(timeout_ms))
        while True:
            polled = self.wait_for(lambda: polls.lend(tables, max_records, deadline_ms))
            # In this thread: the loop's fetches the next records meanwhile.
            polled.read()
            self._call(partial(polls.take_back, polled))
            if polled.table.num_rows or polls.over(deadline_ms):
                return polled.table

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """All records, without end. The next poll or loop continues where this one stopped. A record is consumed when the next one is
        requested.
        """
        while True:
            self.wait_for(lambda: self.core.turn(LOOP_RECORDS, None))
            yield from self.core.delivery.each()

    def wakeup(self) -> None:
        """Makes the present or next call that polls, iterates, commits, or waits for a position or committed offsets raise WokenUp. The
        only method that another thread may call while the consumer is in use.
        """
        if not self._closed:
            self.core.wakeup()

    # Generated by tools/blocking_clients.py; do not edit below.

    def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Subscribes to topics as a member of the group, in place of the previous subscription; the next poll joins the group.

        Names, or a pattern that must match the whole name, also of topics that are created later. In the classic protocol this client
        evaluates it as Python's regular expression; in the consumer protocol the brokers evaluate it in RE2's syntax, unless it is a
        compiled pattern.

        Raises: InvalidGroupId without a group_id; ValueError if partitions were assigned.
        """
        self._call(lambda: self.core.subscribe(topics, pattern=pattern, listener=listener))

    def subscription(self) -> frozenset[str]:
        """Subscribed topics; for a pattern, the known topics that match."""
        return self.core.subscription()

    def enforce_rebalance(self, reason: str = "asked for by the user") -> None:
        """Triggers a rebalance with the next poll."""
        self._call(lambda: self.core.enforce_rebalance(reason))

    def group_metadata(self) -> GroupMetadata:
        """The consumer's group membership."""
        return self._call(lambda: self.core.group_metadata())

    def commit(self, offsets: OffsetsGiven | None = None, timeout_ms: float | None = None) -> None:
        """Commits offsets: those given (the next record to read each), or the consumer's positions of all assigned partitions.

        Raises: CommitFailed if the group assigned the partitions to others; RebalanceInProgress: poll, then commit again;
        OffsetMetadataTooLarge and others; RequestTimedOut; InvalidGroupId without a group; WokenUp.
        """
        self._await(lambda: self.core.commit(offsets, timeout_ms))

    def commit_async(self, offsets: OffsetsGiven | None = None, callback: CommitCallback | None = None) -> None:
        """Commits in the background, with one attempt. `callback(offsets, error or None)` is called in a later poll or close."""
        self._call(lambda: self.core.commit_async(offsets, callback))

    def committed(self, partitions: Iterable[Partition], timeout_ms: float | None = None) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets, None without one. Raises: GroupAuthorizationFailed and others; RequestTimedOut; WokenUp."""
        return self._await(lambda: self.core.committed(partitions, timeout_ms))

    def metrics(self) -> dict[str, Figures | dict[str, Figures]]:
        """Metrics with Kafka's names, in the groups listed in `consumer.metrics`; those of topics, partitions and brokers by these first.
        Averages, maxima and rates cover the last minute; NaN without samples.
        """
        return self._call(lambda: self.core.metrics())

    def assignment(self) -> list[TopicPartition]:
        """Assigned partitions."""
        return self.core.assignment()

    def seek(self, partition: Partition, offset: int | OffsetAndMetadata) -> None:
        """Sets the position; a committed offset has the leader epoch, which detects a diverged log (KIP-320).

        Raises: ValueError if the partition is not assigned.
        """
        self._call(lambda: self.core.seek(partition, offset))

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Seeks to the log start, in these partitions or all assigned ones."""
        self._call(lambda: self.core.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: Partition) -> None:
        """Seeks to the present log end, in these partitions or all assigned ones."""
        self._call(lambda: self.core.seek_to_end(*partitions))

    def position(self, partition: Partition, timeout_ms: float | None = None) -> int:
        """The offset of the next record that poll() returns; looks it up if it is unknown. Raises: MetadataTimedOut, the partition's error;
        WokenUp.
        """
        return self._await(lambda: self.core.position(partition, timeout_ms))

    def pause(self, *partitions: Partition) -> None:
        """Pauses these partitions: no records are returned until they are resumed; buffered ones are kept."""
        self._call(lambda: self.core.pause(*partitions))

    def resume(self, *partitions: Partition) -> None:
        """Resumes these partitions."""
        self._call(lambda: self.core.resume(*partitions))

    def paused(self) -> list[TopicPartition]:
        """Paused partitions."""
        return self.core.paused()

    def high_watermark(self, partition: Partition) -> int:
        """The log end (exclusive) in the last response; -1 before the first."""
        return self.core.high_watermark(partition)

    def current_lag(self, partition: Partition) -> int | None:
        """The known lag in offsets: from the position to the high watermark, with read_committed the last stable offset, of the last
        response; None before the first.

        Raises: ValueError if the partition is not assigned.
        """
        return self.core.current_lag(partition)

    def partitions_for(self, topic: str, timeout_ms: float | None = None) -> list[TopicPartition]:
        """The topic's partitions in order. Raises: MetadataTimedOut if the topic does not exist in time."""
        return self._await(lambda: self.core.partitions_for(topic, timeout_ms))

    def list_topics(self, timeout_ms: float | None = None) -> dict[str, list[TopicPartition]]:
        """All authorized topics with their partitions; without internal ones if `exclude_internal_topics`.

        Raises: ConnectionFailed if no broker answers in time.
        """
        return self._await(lambda: self.core.list_topics(timeout_ms))

    def beginning_offsets(self, partitions: Iterable[Partition], timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """The log start offset of each partition."""
        return self._await(lambda: self.core.beginning_offsets(partitions, timeout_ms))

    def end_offsets(self, partitions: Iterable[Partition], timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition: the high watermark, with read_committed the last stable offset."""
        return self._await(lambda: self.core.end_offsets(partitions, timeout_ms))

    def offsets_for_times(self, times: Times, timeout_ms: float | None = None) -> dict[TopicPartition, OffsetAndTime | None]:
        """The first record of each partition at or after the given timestamp (ms); None without one."""
        return self._await(lambda: self.core.offsets_for_times(times, timeout_ms))

    def offsets_of(self, ranges: Mapping[TopicPartition, Range], timeout_ms: float | None = None) -> dict[TopicPartition, tuple[int, int]]:
        """The offsets of each range now: first offset, and offset after the last, within the log."""
        return self._await(lambda: self.core.offsets_of(ranges, timeout_ms))

    def fetch_raw(
        self, partition: Partition, offset: int, max_bytes: int | None = None, *, max_wait_ms: int | None = None,
        timeout_ms: float | None = None,
    ) -> RawFetch:  # fmt: skip
        """Record batches from `offset` on, undecoded; independent of assignment and positions. The view is into the response, without a
        copy.

        `max_bytes` defaults to `max_partition_fetch_bytes`; a larger first batch is returned whole. At the log end the broker waits up to
        `max_wait_ms` (`fetch_max_wait_ms`) for more; then the records are empty. If the last offsets of the log have no record,
        `empty_until` is the end of the gap, after a second.

        Raises: OffsetOutOfRange, TopicAuthorizationFailed and others; RequestTimedOut if no leader answers within `timeout_ms`.
        """
        return self._await(lambda: self.core.fetch_raw(partition, offset, max_bytes, max_wait_ms=max_wait_ms, timeout_ms=timeout_ms))


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if not done.done():
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

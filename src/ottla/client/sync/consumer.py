"""The blocking consumer, for code without an event loop: its loop runs in a thread of its own, and heartbeats and fetches with it, whatever
the user's code does.

Everything is carried over to the loop and waited for, which Ctrl-C interrupts. What a poll has to call, listeners and callbacks of commits,
comes back and runs in the thread that polls, so that it may use the consumer itself. A consumer belongs to one thread at a time, as in
Kafka.
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
from ottla.client.consumer.metadata_queries import Partition, Times
from ottla.client.consumer.rebalance import CommitCallback, RebalanceListener
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import AlreadyClosed
from ottla.client.fetch.offsets import OffsetAndTime
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
    """Reads records. Settings are those of `ConsumerOptions`, as keyword arguments. Topics given here are subscribed to.

    Raises: ConfigError for a setting that is unknown or makes no sense.
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
        #: The consumer on the loop, for those who know what belongs to which thread.
        self.core = aio.Consumer(
            *topics, key_deserializer=key_deserializer, value_deserializer=value_deserializer, interceptors=interceptors,
            listener=listener, rng=rng, **settings,
        )  # fmt: skip
        self.options = self.core.options
        self._closed = False
        self._thread = LoopThread("ottla-consumer")
        #: Calls into the user's code, for whoever waits in a call that may have some.
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
        """Commit if that is automatic, leave the group, close the connections; waits for brokers at most `timeout_ms` (30 s). Closing twice
        is no error.

        A static member, one with a `group_instance_id`, does not leave, so that it may come back within its session. `leave_group` says
        otherwise: True has any member leave, False has none (KIP-1092).

        Raises: RuntimeError while another thread polls: wake it with `wakeup()`, and close the consumer there.
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

    # -- calls into the user's code

    async def _invoke(self, function: Callable[..., Any], *arguments: Any) -> None:
        """On the loop: have the waiting thread call something."""
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
        """Run something on the loop, and meanwhile here what it has to call."""
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

    # -- assignment and positions

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Consume exactly these partitions, which replaces what was assigned; those that stay keep their position. With a group_id, the
        others begin where the group is, without being a member of it.

        Raises: ValueError when topics were subscribed to.
        """
        given = list(partitions) if isinstance(partitions, Iterator) else partitions
        self._call(lambda: self.core.assign(given))

    def assignment(self) -> list[TopicPartition]:
        """The partitions assigned."""
        return self.core.assignment()

    def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Share these topics with the group, instead of what was subscribed to before; the next poll joins it.

        Names, or a pattern that the whole name must match; topics that begin to match later count. Under the classic protocol this client
        applies it, as Python's regular expression; under the next one the brokers do, in RE2's syntax, unless it is a compiled pattern.

        Raises: InvalidGroupId without a group_id; ValueError when partitions were assigned.
        """
        self._call(lambda: self.core.subscribe(topics, pattern=pattern, listener=listener))

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to; for a pattern, those that match as far as is known."""
        return self.core.subscription()

    def unsubscribe(self) -> None:
        """Leave the group, or give up what was assigned."""
        self.wait_for(self.core.unsubscribe)

    def enforce_rebalance(self, reason: str = "asked for by the user") -> None:
        """Have the group rebalance with the next poll."""
        self._call(lambda: self.core.enforce_rebalance(reason))

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group."""
        return self._call(self.core.group_metadata)

    def commit(self, offsets: OffsetsGiven | None = None, timeout_ms: float | None = None) -> None:
        """Keep the group's offsets: those given, the next record to read each, or where this consumer is in all that it is assigned.

        Raises: CommitFailed when the group has given the partitions to others; RebalanceInProgress: poll, then commit again;
        OffsetMetadataTooLarge and the like; RequestTimedOut; InvalidGroupId without a group; WokenUp.
        """
        self._await(lambda: self.core.commit(offsets, timeout_ms))

    def commit_async(self, offsets: OffsetsGiven | None = None, callback: CommitCallback | None = None) -> None:
        """Keep offsets in the background, with one try. `callback(offsets, error or None)` is called by a later poll, or by close."""
        self._call(lambda: self.core.commit_async(offsets, callback))

    def committed(self, partitions: Iterable[Partition], timeout_ms: float | None = None) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's offsets, None where it has none. Raises: GroupAuthorizationFailed and the like; RequestTimedOut; WokenUp."""
        return self._await(lambda: self.core.committed(partitions, timeout_ms))

    def seek(self, partition: Partition, offset: int | OffsetAndMetadata) -> None:
        """Continue at this offset; what was committed brings the epoch with it, by which a log with another history is noticed (KIP-320).

        Raises: ValueError when the partition is not assigned.
        """
        self._call(lambda: self.core.seek(partition, offset))

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Continue at the start of the log, in these partitions or all assigned."""
        self._call(lambda: self.core.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: Partition) -> None:
        """Continue at the end of the log as it is now, in these partitions or all assigned."""
        self._call(lambda: self.core.seek_to_end(*partitions))

    def position(self, partition: Partition, timeout_ms: float | None = None) -> int:
        """The offset of the next record that poll() gives; looks it up when it is not known. Raises: MetadataTimedOut, the partition's
        error; WokenUp.
        """
        offset: int = self._await(lambda: self.core.position(partition, timeout_ms))
        return offset

    def pause(self, *partitions: Partition) -> None:
        """Give no records of these partitions until they are resumed; what is buffered is kept."""
        self._call(lambda: self.core.pause(*partitions))

    def resume(self, *partitions: Partition) -> None:
        """End a pause."""
        self._call(lambda: self.core.resume(*partitions))

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self.core.paused()

    def high_watermark(self, partition: Partition) -> int:
        """The end of the log, exclusive, as the last answer told; -1 before the first."""
        return self.core.high_watermark(partition)

    def current_lag(self, partition: Partition) -> int | None:
        """How many offsets this consumer is behind the end, as far as that is known without asking: the high watermark, with
        read_committed the last stable offset, of the last answer; None before the first.

        Raises: ValueError when the partition is not assigned.
        """
        return self.core.current_lag(partition)

    def metrics(self) -> dict[str, Figures | dict[str, Figures]]:
        """What the consumer counts, under Kafka's names, in the groups that `consumer_metrics` lists; figures of topics, partitions and
        brokers stand under theirs. Averages, maxima and rates are of the last minute; NaN where nothing was measured.
        """
        return self._call(self.core.metrics)

    def poll(self, timeout_ms: float | None = None, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, each partition's in order; waits for the first at most `timeout_ms` (None: as long as it takes), then may be
        empty.

        Raises: OffsetOutOfRange and the like of a partition; NoOffsetToStart, LogTruncated; CorruptMessage; RecordDeserializationFailed;
        WokenUp; RuntimeError while another thread polls.
        """
        limit = self.options.max_poll_records if max_records is None else max_records
        self.wait_for(lambda: self.core.turn(limit, patience(timeout_ms)))
        return self.core.delivery.give(limit)

    def poll_table(self, timeout_ms: float | None = None, max_records: int | None = None, **form: Unpack[TableForm]) -> pa.Table:
        """The next records as an Arrow table, without a Python object per record; all that were fetched, unless `max_records` says
        otherwise. Deserializers and interceptors see nothing of it; in all else it is as `poll`, and the two can be mixed.

        `columns=`, `key_format=`, `value_format=`, `schema=` and `on_corrupt=` say what it is to be like (`client.arrow_read`).

        Raises: what `poll` raises; SerializationFailed for a value that cannot be read, which moves no position; ImportError.
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
        """All records, without end. When the loop is left, the next poll or loop goes on behind it. A record is done with when the next
        one is asked for.
        """
        while True:
            self.wait_for(lambda: self.core.turn(LOOP_RECORDS, None))
            yield from self.core.delivery.each()

    def wakeup(self) -> None:
        """Have whoever polls, iterates, commits, or waits for a position or for committed offsets raise WokenUp, now or in the next such
        call. Any thread may call it, and nothing else of a consumer that another uses.
        """
        if not self._closed:
            self.core.wakeup()

    def partitions_for(self, topic: str, timeout_ms: float | None = None) -> list[TopicPartition]:
        """The topic's partitions, in order. Raises: MetadataTimedOut when there is no such topic in time."""
        found: list[TopicPartition] = self._await(lambda: self.core.partitions_for(topic, timeout_ms))
        return found

    def list_topics(self, timeout_ms: float | None = None) -> dict[str, list[TopicPartition]]:
        """All topics that this client may see, by name, with their partitions; without the brokers' own if `exclude_internal_topics`.

        Raises: ConnectionFailed when no broker answers in time.
        """
        found: dict[str, list[TopicPartition]] = self._await(lambda: self.core.list_topics(timeout_ms))
        return found

    def beginning_offsets(self, partitions: Iterable[Partition], timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """The first offset of each log."""
        found: dict[TopicPartition, int] = self._await(lambda: self.core.beginning_offsets(partitions, timeout_ms))
        return found

    def end_offsets(self, partitions: Iterable[Partition], timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record of each log: the high watermark, with read_committed the last stable offset."""
        found: dict[TopicPartition, int] = self._await(lambda: self.core.end_offsets(partitions, timeout_ms))
        return found

    def offsets_for_times(self, times: Times, timeout_ms: float | None = None) -> dict[TopicPartition, OffsetAndTime | None]:
        """The first record of each partition whose timestamp, in milliseconds, is not before the given one; None where there is none."""
        found: dict[TopicPartition, OffsetAndTime | None] = self._await(lambda: self.core.offsets_for_times(times, timeout_ms))
        return found

    def offsets_of(self, ranges: Mapping[TopicPartition, Range], timeout_ms: float | None = None) -> dict[TopicPartition, tuple[int, int]]:
        """What each range (`ranges`) stands for now: its first offset and the one behind its last, within what the log has."""
        return self._await(lambda: self.core.offsets_of(ranges, timeout_ms))

    def fetch_raw(
        self,
        partition: Partition,
        offset: int,
        max_bytes: int | None = None,
        *,
        max_wait_ms: int | None = None,
        timeout_ms: float | None = None,
    ) -> RawFetch:
        """Record batches from `offset` on, undecoded; independent of assignment and positions. The view is into the response: nothing is
        copied.

        `max_bytes` defaults to `max_partition_fetch_bytes`; a first batch that is larger comes whole. At the end of the log the broker
        waits up to `max_wait_ms` (`fetch_max_wait_ms`) for more, then the records are empty.

        Raises: OffsetOutOfRange, TopicAuthorizationFailed and the like; RequestTimedOut when no leader answers within `timeout_ms`.
        """
        found: RawFetch = self._await(
            lambda: self.core.fetch_raw(partition, offset, max_bytes, max_wait_ms=max_wait_ms, timeout_ms=timeout_ms)
        )
        return found


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if not done.done():
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

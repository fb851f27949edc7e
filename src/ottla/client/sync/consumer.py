"""The blocking consumer, for code without an event loop. Its loop runs in a thread of its own, so heartbeats and fetches continue while
the user's code runs.

Calls run on the loop, and the caller waits; Ctrl-C interrupts the wait. Rebalance listeners and commit callbacks run in the thread that
polls, so they may use the consumer. One thread at a time may use a consumer, as in Kafka.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial, wraps
from queue import SimpleQueue
from random import Random
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from ottla.client.argument_validation import patience
from ottla.client.arrow.optional import pa
from ottla.client.arrow.read import TableForm
from ottla.client.arrow.table_polls import tables_of
from ottla.client.consumer import consumer as aio
from ottla.client.consumer.delivery import LOOP_RECORDS
from ottla.client.consumer.rebalance import RebalanceListener
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import AlreadyClosed
from ottla.client.fetch.offsets import Partition
from ottla.client.html_tables import HtmlRows
from ottla.client.settings import ConsumerSettings
from ottla.client.sync.loop_thread import Errands, LoopThread, close_at_exit

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(method: Callable[Concatenate[aio.Consumer, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Consumer, P], T]:
    """A coroutine of the asyncio consumer: runs on the loop, and the caller waits for its result."""

    @wraps(method)
    def call(self: Consumer, /, *arguments: P.args, **named: P.kwargs) -> T:
        return self._await(lambda: method(self.core, *arguments, **named))

    return call


def _on_loop(method: Callable[Concatenate[aio.Consumer, P], T]) -> Callable[Concatenate[Consumer, P], T]:
    """A function of the asyncio consumer: runs on the loop, and the caller waits for its result."""

    @wraps(method)
    def call(self: Consumer, /, *arguments: P.args, **named: P.kwargs) -> T:
        return self._call(lambda: method(self.core, *arguments, **named))

    return call


def _direct(method: Callable[Concatenate[aio.Consumer, P], T]) -> Callable[Concatenate[Consumer, P], T]:
    """A function of the asyncio consumer that any thread may call."""

    @wraps(method)
    def call(self: Consumer, /, *arguments: P.args, **named: P.kwargs) -> T:
        return method(self.core, *arguments, **named)

    return call


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
        **settings: Unpack[ConsumerSettings],
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

        Example: `consumer.close(timeout_ms=10_000, leave_group=True)`.
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

        Example: `consumer.assign([("orders", 0), ("orders", 1)])`.
        """
        given = list(partitions) if isinstance(partitions, Iterator) else partitions
        self._call(lambda: self.core.assign(given))

    def unsubscribe(self) -> None:
        """Leaves the group, or drops the manual assignment. Example: `consumer.unsubscribe()`."""
        self.wait_for(self.core.unsubscribe)

    def poll(self, timeout_ms: float | None = None, max_records: int | None = None) -> list[ConsumerRecord]:
        """Returns the next records, in order per partition; waits for the first at most `timeout_ms` (None: without limit), then returns an
        empty list.

        Raises: OffsetOutOfRange and other errors of a partition; NoOffsetToStart, LogTruncated; CorruptMessage;
        RecordDeserializationFailed; WokenUp; RuntimeError while another thread polls.

        Example: `consumer.poll(timeout_ms=1_000, max_records=100)`.
        """
        limit = self.options.max_poll_records if max_records is None else max_records
        self.wait_for(lambda: self.core.turn(limit, patience(timeout_ms)))
        return HtmlRows(self.core.delivery.give(limit))

    def poll_table(self, timeout_ms: float | None = None, max_records: int | None = None, **form: Unpack[TableForm]) -> pa.Table:
        """Returns the next records as an Arrow table, without a Python object per record: all fetched records, at most `max_records`.
        Deserializers and interceptors are not used. Otherwise like `poll`, and both can be mixed.

        `columns=`, `key_format=`, `value_format=`, `schema=` and `on_corrupt=` set the form of the table (`client.arrow.read`).

        Raises: errors of `poll`; SerializationFailed for a value that cannot be decoded, without changing positions; ImportError.

        Example: `consumer.poll_table(timeout_ms=1_000, value_format="json")`.
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

        Example: `consumer.wakeup()`.
        """
        if not self._closed:
            self.core.wakeup()

    subscribe = _on_loop(aio.Consumer.subscribe)
    subscription = _direct(aio.Consumer.subscription)
    enforce_rebalance = _on_loop(aio.Consumer.enforce_rebalance)
    group_metadata = _on_loop(aio.Consumer.group_metadata)
    positions = _on_loop(aio.Consumer.positions)
    commit = _awaited(aio.Consumer.commit)
    commit_async = _on_loop(aio.Consumer.commit_async)
    committed = _awaited(aio.Consumer.committed)
    metrics = _on_loop(aio.Consumer.metrics)
    assignment = _direct(aio.Consumer.assignment)
    seek = _on_loop(aio.Consumer.seek)
    seek_to_beginning = _on_loop(aio.Consumer.seek_to_beginning)
    seek_to_end = _on_loop(aio.Consumer.seek_to_end)
    position = _awaited(aio.Consumer.position)
    pause = _on_loop(aio.Consumer.pause)
    resume = _on_loop(aio.Consumer.resume)
    paused = _direct(aio.Consumer.paused)
    high_watermark = _direct(aio.Consumer.high_watermark)
    current_lag = _direct(aio.Consumer.current_lag)
    partitions_for = _awaited(aio.Consumer.partitions_for)
    list_topics = _awaited(aio.Consumer.list_topics)
    beginning_offsets = _awaited(aio.Consumer.beginning_offsets)
    end_offsets = _awaited(aio.Consumer.end_offsets)
    offsets_for_times = _awaited(aio.Consumer.offsets_for_times)
    offsets_of = _awaited(aio.Consumer.offsets_of)
    fetch_raw = _awaited(aio.Consumer.fetch_raw)


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if not done.done():
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

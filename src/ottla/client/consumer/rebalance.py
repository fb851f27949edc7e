"""Rebalances on the user's side: partitions are assigned and revoked, listeners called, offsets committed.

All of it happens inside the user's own calls, because only then the records returned before are processed:

    poll() begins ---> commit processed records, if auto-commit is due
                  ---> revoked partitions: commit, call the listener, stop reading
                  ---> assigned partitions: start reading, call the listener
                  ---> return records

Records that were taken from the fetcher and not returned yet are not processed: `positions` excludes them, so they are never committed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.client.consumer.delivery import RecordDelivery
from ottla.client.consumer.metrics import ConsumerMetrics
from ottla.client.fetch.fetcher import Fetcher
from ottla.client.group.commits import OffsetAndMetadata
from ottla.client.group.coordinator_client import CoordinatorClient
from ottla.client.group.coordinator_search import AssignmentChange, AssignmentChangeKind
from ottla.client.interceptors import ConsumerInterceptors
from ottla.client.options import ConsumerOptions
from ottla.client.transport.network import Network
from ottla.wire.errors import FencedInstanceId, KafkaError, RebalanceInProgress

log = logging.getLogger("ottla.client")
#: Called with the offsets, and the error or None.
CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], KafkaError | None], Any]


class RebalanceListener:
    """Gets the partitions that are assigned and revoked, inside of `poll()`, `close()` and `unsubscribe()`. Derive from it and override
    methods; with `ottla.aio` they may be coroutines.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Any:
        """New partitions; called after each rebalance, also without new ones. May seek."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Any:
        """Partitions to be revoked; they are still owned, so processed records can be committed."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Any:
        """Partitions that are already lost and may have other owners: a commit is not possible. Default: on_partitions_revoked."""
        return self.on_partitions_revoked(partitions)


async def invoke(function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a user's function, and awaits a coroutine."""
    result = function(*arguments)
    if inspect.isawaitable(result):
        await result


class UserSide:
    """Rebalances of one consumer. Belongs to one event loop."""

    def __init__(
        self,
        network: Network,
        fetcher: Fetcher,
        group: CoordinatorClient,
        options: ConsumerOptions,
        delivery: RecordDelivery,
        interceptors: ConsumerInterceptors,
        metrics: ConsumerMetrics,
        invoke: Callable[..., Awaitable[None]],
    ) -> None:
        self._network = network
        self._fetcher = fetcher
        self._group = group
        self._options = options
        self.listener: Any = None
        self._invoke = invoke
        self._delivery = delivery
        self._interceptors = interceptors
        self._metrics = metrics
        #: Time of the next auto-commit.
        self.commit_at_ms = network.clock_ms() + options.auto_commit_interval_ms if options.enable_auto_commit else float("inf")
        self._kept: dict[TopicPartition, OffsetAndMetadata] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._outcomes: deque[tuple[CommitCallback, Mapping[TopicPartition, OffsetAndMetadata], KafkaError | None]] = deque()

    # -- Rebalances.

    async def attend(self) -> None:
        """Applies pending changes. Raises: errors of the membership, and of the listener."""
        machine = self._group.machine
        await self.tell_outcomes()
        while (change := machine.change()) is not None:
            await self._carry_out(change, self._options.request_timeout_ms)
            self._metrics.rebalance(machine.settled, self._network.clock_ms())
        error = machine.error() or self._group.fatal()
        if error is not None:
            raise error

    async def _carry_out(self, change: AssignmentChange, limit_ms: float) -> None:
        machine, partitions = self._group.machine, list(change.partitions)
        if change.kind is AssignmentChangeKind.ASSIGNED:
            machine.changed(change)
            self._read(machine.owned)
            await self._tell("on_partitions_assigned", partitions)
            return
        try:
            if change.kind is AssignmentChangeKind.REVOKED:
                await self.commit_all(limit_ms)
                await self._tell("on_partitions_revoked", partitions)
            else:
                there = hasattr(self.listener, "on_partitions_lost")
                await self._tell("on_partitions_lost" if there else "on_partitions_revoked", partitions)
        finally:
            machine.changed(change)
            self._read(machine.owned)

    async def _tell(self, name: str, partitions: list[TopicPartition]) -> None:
        function = getattr(self.listener, name, None)
        if function is not None:
            clock_ms = self._network.clock_ms
            began_ms = clock_ms()
            try:
                await self._invoke(function, partitions)
            finally:
                self._metrics.listened(name, (now_ms := clock_ms()) - began_ms, now_ms)

    def _read(self, owned: Iterable[TopicPartition]) -> None:
        self._fetcher.assign(owned)
        there = set(self._fetcher.assignment)
        self.drop(lambda tp: tp not in there)

    async def give_up_all(self, limit_ms: float) -> None:
        """Before the member leaves: commits, and calls the listener."""
        machine = self._group.machine
        owned = tuple(machine.owned)
        if owned:
            lost = machine.committing[1] < 0
            await self._carry_out(AssignmentChange(AssignmentChangeKind.LOST if lost else AssignmentChangeKind.REVOKED, owned), limit_ms)

    # -- Positions.

    def drop(self, gone: Callable[[TopicPartition], bool]) -> None:
        """Drops records and commits of partitions that were sought or revoked."""
        self._delivery.drop(gone)
        self._kept = {tp: kept for tp, kept in self._kept.items() if not gone(tp)}

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Positions that can be committed."""
        found = {tp: OffsetAndMetadata(offset, "", epoch) for tp, (offset, epoch) in self._fetcher.committable().items()}
        return found | {tp: OffsetAndMetadata(offset) for tp, offset in self._delivery.first_offsets().items() if tp in found}

    # -- Commits.

    def commit_if_due(self, now_ms: float) -> None:
        """Auto-commits in the background if due; called only while the user polls."""
        if now_ms < self.commit_at_ms:
            return
        self.commit_at_ms = now_ms + self._options.auto_commit_interval_ms
        news = self._news()
        if news and not self._background:
            self._spawn(self._commit_quietly(news))

    def _news(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {tp: kept for tp, kept in self.positions().items() if self._kept.get(tp) != kept}

    async def _committing(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], limit_ms: float, *, patient: bool = True) -> None:
        await self._group.commit(offsets, timeout_ms=limit_ms, patient=patient)
        self._kept |= offsets
        self._interceptors.on_commit(offsets)

    async def _commit_quietly(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        try:
            await self._committing(offsets, self._options.request_timeout_ms, patient=False)
        except FencedInstanceId:
            # The membership raises it in a poll.
            pass
        except KafkaError as error:
            log.warning("automatic commit failed; it is tried again after auto.commit.interval.ms: %s", error)

    async def commit_all(self, limit_ms: float) -> None:
        """Auto-commits before partitions are revoked; after an error their records are read again.

        A coordinator refuses commits between the JoinGroup and the SyncGroup of a rebalance: they are sent again until it is done.
        """
        if not self._options.enable_auto_commit:
            return
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self.quiet(limit_ms)
                while news := self._news():
                    try:
                        await self._committing(news, limit_ms)
                    except RebalanceInProgress:
                        await asyncio.sleep(self._options.retry_backoff_ms / 1000)
        except (KafkaError, TimeoutError) as error:
            log.warning(
                "automatic commit before giving up partitions failed; their records are read again: %s",
                str(error) or f"no answer within {limit_ms:.0f} ms",
            )

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float) -> None:
        """See `Consumer.commit`."""
        await self._committing(offsets, timeout_ms)

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None) -> None:
        """See `Consumer.commit_async`."""
        self._spawn(self._commit_and_tell(dict(offsets), callback))

    async def _commit_and_tell(self, offsets: dict[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None) -> None:
        error: KafkaError | None = None
        try:
            await self._committing(offsets, self._options.request_timeout_ms, patient=False)
        except KafkaError as failed:
            error = failed
        if callback is not None:
            self._outcomes.append((callback, offsets, error))
        elif error is not None:
            log.warning("commit_async failed: %s", error)

    async def tell_outcomes(self) -> None:
        """Calls the callbacks of finished commits."""
        while self._outcomes:
            callback, offsets, error = self._outcomes.popleft()
            await self._invoke(callback, offsets, error)

    async def quiet(self, limit_ms: float) -> None:
        """Waits until commits in the background are done."""
        if self._background:
            await asyncio.wait(self._background, timeout=limit_ms / 1000)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._network.spawn(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

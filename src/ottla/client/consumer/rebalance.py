"""What a group's member does while its user polls: partitions come and go, the listener is told, offsets are committed.

All of it happens in the user's own calls, because only these say that the records given before are done with:

    poll() begins ---> commit what was given before, if it is time
                  ---> partitions that go: commit, tell the listener, stop reading
                  ---> partitions that come: begin to read, tell the listener
                  ---> give records

Records that were taken out of the fetcher and not given to the user yet (who iterates gets them one by one) are not done with: `positions`
leaves them out, so they are never committed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.client.consumer.delivery import Giving
from ottla.client.consumer.metrics import ConsumerMetrics
from ottla.client.fetch.fetcher import Fetcher
from ottla.client.group.commits import OffsetAndMetadata
from ottla.client.group.coordinator_client import GroupPostman
from ottla.client.group.coordinator_search import Change, Kind
from ottla.client.interceptors import ConsumerInterceptors
from ottla.client.options import ConsumerOptions
from ottla.client.transport.network import Network
from ottla.wire.errors import FencedInstanceId, KafkaError

log = logging.getLogger("ottla.client")
#: Called with what was to be committed, and why it was not, or None.
CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], KafkaError | None], Any]


class RebalanceListener:
    """Hears what partitions the consumer gets and gives up, inside of `poll()`, `close()` and `unsubscribe()`. Derive from it, and say what
    you need; with `ottla.aio` the methods may be coroutines.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Any:
        """These came, besides what was there; called after each rebalance, also when nothing came. A seek in here counts."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Any:
        """These go; they are still ours, so that this is the time to commit what was done with them."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Any:
        """These are gone already, and may be read by others: it is too late to commit. Unless said otherwise, as if revoked."""
        return self.on_partitions_revoked(partitions)


async def invoke(function: Callable[..., Any], *arguments: Any) -> None:
    """Call what the user gave, and wait for it if it is a coroutine."""
    result = function(*arguments)
    if inspect.isawaitable(result):
        await result


class UserSide:
    """See the module. Belongs to one loop."""

    def __init__(
        self,
        network: Network,
        fetcher: Fetcher,
        group: GroupPostman,
        options: ConsumerOptions,
        giving: Giving,
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
        self._giving = giving
        self._interceptors = interceptors
        self._metrics = metrics
        #: When the next automatic commit is due.
        self.commit_at_ms = network.clock_ms() + options.auto_commit_interval_ms if options.enable_auto_commit else float("inf")
        self._kept: dict[TopicPartition, OffsetAndMetadata] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._outcomes: deque[tuple[CommitCallback, Mapping[TopicPartition, OffsetAndMetadata], KafkaError | None]] = deque()

    # -- rebalances

    async def attend(self) -> None:
        """Carry out what waits for the user. Raises: what the machine has to tell, and what the listener raises."""
        machine = self._group.machine
        await self.tell_outcomes()
        while (change := machine.change()) is not None:
            await self._carry_out(change, self._options.request_timeout_ms)
            self._metrics.rebalance(machine.settled, self._network.clock_ms())
        error = machine.error() or self._group.fatal()
        if error is not None:
            raise error

    async def _carry_out(self, change: Change, limit_ms: float) -> None:
        machine, partitions = self._group.machine, list(change.partitions)
        if change.kind is Kind.ASSIGNED:
            machine.changed(change)
            self._read(machine.owned)
            await self._tell("on_partitions_assigned", partitions)
            return
        try:
            if change.kind is Kind.REVOKED:
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
        """Before the member leaves by itself: commit, and tell the listener."""
        machine = self._group.machine
        owned = tuple(machine.owned)
        if owned:
            lost = machine.committing[1] < 0
            await self._carry_out(Change(Kind.LOST if lost else Kind.REVOKED, owned), limit_ms)

    # -- what the user has seen

    def drop(self, gone: Callable[[TopicPartition], bool]) -> None:
        """Forget records and commits of partitions that are sought or read no more."""
        self._giving.drop(gone)
        self._kept = {tp: kept for tp, kept in self._kept.items() if not gone(tp)}

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What can be committed: where the user is."""
        found = {tp: OffsetAndMetadata(offset, "", epoch) for tp, (offset, epoch) in self._fetcher.committable().items()}
        return found | {tp: OffsetAndMetadata(offset) for tp, offset in self._giving.first_offsets().items() if tp in found}

    # -- commits

    def commit_if_due(self, now_ms: float) -> None:
        """The automatic commit, in the background; called only while the user polls."""
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
            # The machine tells it to the user.
            pass
        except KafkaError as error:
            log.warning("automatic commit failed; it is tried again after auto.commit.interval.ms: %s", error)

    async def commit_all(self, limit_ms: float) -> None:
        """The automatic commit before partitions go; if it fails, their records are read again."""
        if not self._options.enable_auto_commit:
            return
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self.quiet(limit_ms)
                if news := self._news():
                    await self._committing(news, limit_ms)
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
        """Call the callbacks of commits that are done."""
        while self._outcomes:
            callback, offsets, error = self._outcomes.popleft()
            await self._invoke(callback, offsets, error)

    async def quiet(self, limit_ms: float) -> None:
        """Until the commits in the background are done."""
        if self._background:
            await asyncio.wait(self._background, timeout=limit_ms / 1000)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._network.spawn(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

"""Where a consumer stands in its partitions: positions, seeks, pauses, and how far it is behind."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping

from ottla.base.ids import TopicPartition, as_partition
from ottla.client.consumer.delivery import Giving
from ottla.client.consumer.metadata_queries import Partition, Questions
from ottla.client.consumer.rebalance import UserSide
from ottla.client.errors import MetadataTimedOut
from ottla.client.fetch.fetcher import Fetcher
from ottla.client.fetch.offsets import EARLIEST, LATEST
from ottla.client.group.commits import OffsetAndMetadata


class Positions(Questions):
    """See the module; the asyncio consumer has them."""

    _fetcher: Fetcher
    _user: UserSide | None
    #: What is taken out of the fetcher and on its way to the user.
    giving: Giving

    @abstractmethod
    def _pump(self) -> None:
        """Begin all that can begin now."""

    @abstractmethod
    async def _wait(self) -> None:
        """Until something may have changed."""

    def assignment(self) -> list[TopicPartition]:
        """The partitions assigned."""
        return self._fetcher.assignment

    def seek(self, partition: Partition, offset: int | OffsetAndMetadata) -> None:
        """Continue at this offset; what was committed brings the epoch with it, by which a log with another history is noticed (KIP-320).

        Raises: ValueError when the partition is not assigned.
        """
        at = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        sought = as_partition(partition)
        self._fetcher.seek(sought, at.offset, at.leader_epoch)
        self._sought(lambda tp: tp == sought)
        self._pump()

    def seek_each(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue at these offsets. One fetch asks for all: where the first went alone, the others would wait for its answer, which an
        empty partition holds back for `fetch_max_wait_ms`.
        """
        for tp, offset in offsets.items():
            self._fetcher.seek(tp, offset)
        self._sought(lambda tp: tp in offsets)
        self._pump()

    def _sought(self, gone: Callable[[TopicPartition], bool]) -> None:
        """Partitions go on elsewhere: forget what was taken of them."""
        self.giving.done()
        self.giving.drop(gone)
        if self._user is not None:
            self._user.drop(gone)

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Continue at the start of the log, in these partitions or all assigned."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Continue at the end of the log as it is now, in these partitions or all assigned."""
        self._seek_to(partitions, LATEST)

    def _seek_to(self, partitions: tuple[Partition, ...], when: int) -> None:
        sought = [as_partition(tp) for tp in partitions] or self._fetcher.assignment
        for tp in sought:
            self._fetcher.seek_to(tp, when)
        self._sought(lambda tp: tp in sought)
        self._pump()

    async def position(self, partition: Partition, timeout_ms: float | None = None) -> int:
        """The offset of the next record that poll() gives; looks it up when it is not known. Raises: MetadataTimedOut, the partition's
        error; WokenUp.
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
        return self.giving.first_offsets().get(tp, offset)

    def pause(self, *partitions: Partition) -> None:
        """Give no records of these partitions until they are resumed; what is buffered is kept."""
        for tp in partitions:
            self._fetcher.pause(as_partition(tp))

    def resume(self, *partitions: Partition) -> None:
        """End a pause."""
        for tp in partitions:
            self._fetcher.pause(as_partition(tp), False)
        self._pump()

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self._fetcher.paused

    def high_watermark(self, partition: Partition) -> int:
        """The end of the log, exclusive, as the last answer told; -1 before the first."""
        return self._fetcher.ends(as_partition(partition))[1]

    def current_lag(self, partition: Partition) -> int | None:
        """How many offsets this consumer is behind the end, as far as that is known without asking: the high watermark, with
        read_committed the last stable offset, of the last answer; None before the first.

        Raises: ValueError when the partition is not assigned.
        """
        tp = as_partition(partition)
        return self._fetcher.lag(tp, self.giving.first_offsets().get(tp))

    def has_passed(self, partition: TopicPartition, offset: int) -> bool:
        """Whether what follows is at this offset, or behind it; an error of the partition is left for poll() to raise."""
        at = self.giving.first_offsets().get(partition, self._fetcher.place(partition))
        return at is not None and at >= offset

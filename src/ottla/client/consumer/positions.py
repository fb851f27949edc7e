"""Positions of a consumer: seeks, pauses, lag."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping

from ottla.base.ids import TopicPartition, as_partition
from ottla.client.consumer.delivery import RecordDelivery
from ottla.client.consumer.metadata_queries import MetadataQueries, Partition
from ottla.client.consumer.rebalance import UserSide
from ottla.client.errors import MetadataTimedOut
from ottla.client.fetch.fetcher import Fetcher
from ottla.client.fetch.offsets import EARLIEST, LATEST
from ottla.client.group.commits import OffsetAndMetadata


class Positions(MetadataQueries):
    """Positions of the asyncio consumer."""

    _fetcher: Fetcher
    _user: UserSide | None
    #: Records between the fetcher and the user.
    delivery: RecordDelivery

    @abstractmethod
    def _pump(self) -> None:
        """Starts everything that is due."""

    @abstractmethod
    async def _wait(self) -> None:
        """Waits until something may have changed."""

    def assignment(self) -> list[TopicPartition]:
        """Assigned partitions."""
        return self._fetcher.assignment

    def seek(self, partition: Partition, offset: int | OffsetAndMetadata) -> None:
        """Sets the position; a committed offset has the leader epoch, which detects a diverged log (KIP-320).

        Raises: ValueError if the partition is not assigned.
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
        """Seeks to the log start, in these partitions or all assigned ones."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Seeks to the present log end, in these partitions or all assigned ones."""
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
        """Pauses these partitions: no records are returned until they are resumed; buffered ones are kept."""
        for tp in partitions:
            self._fetcher.pause(as_partition(tp))

    def resume(self, *partitions: Partition) -> None:
        """Resumes these partitions."""
        for tp in partitions:
            self._fetcher.pause(as_partition(tp), False)
        self._pump()

    def paused(self) -> list[TopicPartition]:
        """Paused partitions."""
        return self._fetcher.paused

    def high_watermark(self, partition: Partition) -> int:
        """The log end (exclusive) in the last response; -1 before the first."""
        return self._fetcher.ends(as_partition(partition))[1]

    def current_lag(self, partition: Partition) -> int | None:
        """The known lag in offsets: from the position to the high watermark, with read_committed the last stable offset, of the last
        response; None before the first.

        Raises: ValueError if the partition is not assigned.
        """
        tp = as_partition(partition)
        return self._fetcher.lag(tp, self.delivery.first_offsets().get(tp))

    def has_passed(self, partition: TopicPartition, offset: int) -> bool:
        """Whether the position is at or after this offset; an error of the partition is left for poll() to raise."""
        at = self.delivery.first_offsets().get(partition, self._fetcher.place(partition))
        return at is not None and at >= offset

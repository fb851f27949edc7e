"""The start offset of each leader epoch, with which replicas find their divergence. Source: KIP-101, KIP-279.

    epoch   0        2              5
    offset  0 1 2 3  4 5 6 7 8 9    10 11 |  end of the log: 12
            `-----'  `---------'    `---'
    end_of(0) = (0, 4)   end_of(1) = (0, 4)   end_of(2) = (2, 10)   end_of(5) = (5, 12)   end_of(6) = None

Epochs and offsets increase strictly. Every batch contains its epoch, so recovery restores entries that a crash removed from the checkpoint.
"""

from bisect import bisect_right

from ottla.base.ids import NO_EPOCH, LeaderEpoch, Offset
from ottla.log import checkpoints


class LeaderEpochs:
    """Epochs of one log with their first offsets."""

    __slots__ = ("_epochs", "_starts", "end_offset", "latest", "unsaved_from", "version")

    def __init__(self, entries: list[tuple[LeaderEpoch, Offset]] | None = None) -> None:
        self._epochs = [epoch for epoch, _ in entries or ()]
        self._starts = [start for _, start in entries or ()]
        #: The newest epoch; -1 without one.
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH
        #: End offset of the log, which updates it.
        self.end_offset = Offset(0)
        #: Increases with each change.
        self.version = 0
        #: Start offset of the first entry that is not on disk; None when all are. A written recovery point must not exceed it.
        self.unsaved_from: Offset | None = None

    @property
    def entries(self) -> list[tuple[LeaderEpoch, Offset]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Begins an epoch at this offset, and drops entries that contradict it. False when nothing changed."""
        if self._epochs and self._epochs[-1] == epoch and start_offset >= self._starts[-1]:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(LeaderEpoch(epoch))
        self._starts.append(Offset(start_offset))
        self._changed(start_offset)
        return True

    def end_of(self, epoch: int) -> tuple[LeaderEpoch, Offset] | None:
        """The largest epoch that is at most ``epoch``, and its end offset; None for -1 and for epochs not begun yet.

        The newest epoch ends at the end of the log. An epoch before the first known one ends where that one begins.
        """
        if not self._epochs or epoch < 0 or epoch > self._epochs[-1]:
            return None
        if epoch == self._epochs[-1]:
            return LeaderEpoch(epoch), self.end_offset
        slot = bisect_right(self._epochs, epoch)
        return (self._epochs[slot - 1] if slot else LeaderEpoch(epoch)), self._starts[slot]

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """The epoch of the record at ``offset``; -1 when unknown."""
        slot = bisect_right(self._starts, offset)
        return self._epochs[slot - 1] if slot else NO_EPOCH

    def truncate_end(self, end_offset: int) -> None:
        """Drops epochs that begin at or above ``end_offset``."""
        kept = len(self._starts)
        while kept and self._starts[kept - 1] >= end_offset:
            kept -= 1
        if kept < len(self._starts):
            del self._epochs[kept:], self._starts[kept:]
            self._changed(end_offset)

    def truncate_start(self, start_offset: int) -> None:
        """Drops epochs that ended at or below ``start_offset``; the epoch of that offset then begins there."""
        slot = bisect_right(self._starts, start_offset)
        if slot and (slot > 1 or self._starts[0] != start_offset):
            del self._epochs[: slot - 1], self._starts[: slot - 1]
            self._starts[0] = Offset(start_offset)
            self._changed(None)

    def file(self) -> bytes:
        """Content of the checkpoint."""
        return checkpoints.epochs_file(self.entries)

    def mark_unsaved(self) -> None:
        """The whole table differs from the one on disk."""
        self._changed(0)

    def saved(self, version: int) -> None:
        """The table of that version is on disk."""
        if version == self.version:
            self.unsaved_from = None

    @property
    def dirty(self) -> bool:
        return self.unsaved_from is not None

    def _changed(self, from_offset: int | None) -> None:
        self.version += 1
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH
        bound = self.end_offset if from_offset is None else from_offset
        self.unsaved_from = Offset(bound if self.unsaved_from is None else min(bound, self.unsaved_from))

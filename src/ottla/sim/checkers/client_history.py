"""Converts what ``Checker`` receives into a history for ``log_history``, so that simulated clients are checked like real ones.

A consumer reports one record at a time, so each is a poll of its own; reading the logs at the end is the last poll.
"""

from itertools import count

from ottla.sim.checkers.checks import Checker, Log
from ottla.sim.checkers.log_history import check
from ottla.sim.checkers.recorder import Operation, Recorder

END = "the end"


class HistoryIsSound(Checker):
    """Everything that clients observed fits one append-only log per partition. Not for compacted topics."""

    def __init__(self) -> None:
        super().__init__()
        ticks = count(1)
        self._recorder = Recorder(lambda: next(ticks))
        self._open: dict[tuple[int, bytes], Operation] = {}
        self._readers: set[tuple[int, int]] = set()

    def sent(self, producer: int, partition: int, values: list[bytes], *, idempotent: bool) -> None:
        process = f"producer {producer}"
        if idempotent:
            self._recorder.idempotent.add(process)
        for value in values:
            self._open[partition, value] = self._recorder.send(process, partition, value)

    def acknowledged(self, partition: int, base_offset: int, values: list[bytes]) -> None:
        for place, value in enumerate(values):
            self._recorder.acknowledged(self._open.pop((partition, value)), base_offset + place)

    def read(self, reader: int, partition: int, offset: int, value: bytes) -> None:
        process = f"reader {reader} of {partition}"
        if (reader, partition) not in self._readers:
            self._readers.add((reader, partition))
            self._recorder.assigned(process, {partition: 0})
        self._recorder.polled(self._recorder.polling(process), {partition: [(offset, value)]})

    def finish(self, final: dict[int, Log]) -> None:
        self._recorder.assigned(END, dict.fromkeys(final, 0))
        self._recorder.polled(self._recorder.polling(END), final)
        self.problems += check(self._recorder).lines()

"""Sends the reports of a topic's clients to all its checkers and to the trace."""

from collections.abc import Sequence

from ottla.sim.checkers import Checker
from ottla.sim.world import World


class Reports:
    """The ``ClientObserver`` of a topic's clients."""

    def __init__(self, world: World, checkers: Sequence[Checker], *, of: str | None = "", watermarks: bool = False) -> None:
        """``of``: the topic's name in the trace; None omits acknowledgements. ``watermarks``: whether they are checked; a new leader may
        know a lower one for a moment.
        """
        self.checkers = checkers
        #: Responses that no correct broker sends, and violations found by the history itself; each once.
        self.complaints: list[str] = []
        self.acknowledged_count = 0
        self._world = world
        self._of = f"{of} " if of else of
        self._watermarks = watermarks

    @property
    def problems(self) -> list[str]:
        """The first violations of each checker."""
        return [problem for checker in self.checkers for problem in checker.problems[:3]]

    def sent(self, producer: int, partition: int, values: list[bytes], *, idempotent: bool) -> None:
        for checker in self.checkers:
            checker.sent(producer, partition, values, idempotent=idempotent)

    def acknowledged(self, partition: int, base_offset: int, values: list[bytes]) -> None:
        self.acknowledged_count += len(values)
        if self._of is not None:
            self._world.note(f"acknowledged {self._of}{partition}:{base_offset}+{len(values)}")
        for checker in self.checkers:
            checker.acknowledged(partition, base_offset, values)

    def read(self, reader: int, partition: int, offset: int, value: bytes) -> None:
        for checker in self.checkers:
            checker.read(reader, partition, offset, value)

    def watermark(self, reader: int, partition: int, offset: int) -> None:
        if self._watermarks:
            self._world.note(f"watermark {partition}:{offset}")
            for checker in self.checkers:
                checker.watermark(reader, partition, offset)

    def complaint(self, text: str) -> None:
        if text not in self.complaints:
            self.complaints.append(text)

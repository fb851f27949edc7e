"""A simulated client process that runs one program: a generator that yields waits.

A wait is a function that takes a callback and calls it when the awaited thing is there. A dead process does nothing any more; a paused one
does it later.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

from ottla.sim.client_connection import RETRY_MS, Caller
from ottla.sim.world import Gate, World

#: What a program waits for: a function that takes the callback.
Wait: TypeAlias = Callable[[Callable[[Any], None]], None]
Program: TypeAlias = Generator[Wait, Any, Any]


class ClientProcess:
    """Runs the program of one client."""

    def __init__(self, world: World, ended: Callable[[], None]) -> None:
        """``ended`` is called when the program ends, but not after ``kill``."""
        self._world = world
        self._ended = ended
        self._gate = Gate(world)
        self._program: Program | None = None
        self.dead = False

    def run(self, program: Program) -> None:
        """Starts the program."""
        self._program = program
        self._go_on(None)

    def kill(self) -> None:
        self.dead = True

    def pause(self, duration_ms: int) -> None:
        """Sends SIGSTOP, and SIGCONT after a while."""
        self._gate.shut(duration_ms)

    def awake(self, act: Callable[[], None]) -> None:
        """Runs ``act`` unless the process is dead; later if it is paused."""

        def received() -> None:
            if not self.dead:
                act()

        self._gate.enter(received)

    def _go_on(self, found: Any) -> None:
        """Runs the program until it waits again."""
        assert self._program is not None, "it runs"
        try:
            wait = self._program.send(found)
        except StopIteration:
            self._ended()
        else:
            wait(self._go_on)

    # Waits.

    def sleep(self, duration_ms: int) -> Wait:
        return lambda resume: self._world.after(duration_ms, lambda: self.awake(lambda: resume(None)))

    def ask(self, caller: Caller, message: Any, timeout_ms: int, *, version: int | None = None, batch: bytes | bytearray = b"") -> Wait:
        """The response to a request; None if it is lost."""

        def wait(resume: Callable[[Any], None]) -> None:
            def answered(response: Any) -> None:
                self.awake(lambda: resume(response))

            def lost() -> None:
                self.awake(lambda: resume(None))

            if not caller.call(message, answered, lost=lost, timeout_ms=timeout_ms, version=version, batch=batch):
                self._world.after(RETRY_MS, lost)

        return wait


def all_of(waits: Sequence[Wait]) -> Wait:
    """The results of several waits, in their order; begun in this order."""

    def wait(resume: Callable[[Any], None]) -> None:
        results: list[Any] = [None] * len(waits)
        left = len(waits)

        def done(place: int, result: Any) -> None:
            nonlocal left
            results[place] = result
            left -= 1
            if left == 0:
                resume(results)

        for place, each in enumerate(waits):
            each(lambda result, place=place: done(place, result))  # type: ignore[misc]

    return wait

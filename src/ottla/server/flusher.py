"""Group commit: the flushes of one log directory, carried out group by group in a thread of their own.

While one group is under way the next gathers, so that the cost of a sync is shared by all requests that came meanwhile. Within a group the
order is: the logs' files; small files to replace; directories. A failed sync is never tried again: after it the kernel counts the pages
as clean, and a second try would succeed without having written them.

A group of one file, which is what a busy partition makes again and again, costs one hand-over to the thread and one back. Where the first
file shows that the device takes its time, the others of the group are synced at once in further threads, so that the device can take them
together; where it does not, handing them over would cost more than it saves.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from queue import SimpleQueue
from threading import Thread

from ottla.base.ids import Offset, TopicPartition
from ottla.base.ports import Disk, File
from ottla.log.flush import FlushPlan
from ottla.server.observe import Counters

#: A device that takes longer for one file is slow enough for further threads to pay.
SLOW_NS = 1_000_000

Plans = Sequence[tuple[TopicPartition, FlushPlan]]
Marks = tuple[tuple[TopicPartition, Offset], ...]


class Flusher:
    """The flushes of one log directory. Belongs to the loop it is made on."""

    def __init__(
        self,
        disk: Disk,
        *,
        executor: Executor,
        lanes: int,
        counters: Counters,
        done: Callable[[Marks], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """``done`` hears of each group what is on disk, ``failed`` of the error after which nothing more is flushed.

        ``lanes`` is how many files are synced at once at most, in threads of the executor; 0 for a disk in memory, which nobody waits
        for: groups are carried out on the loop.
        """
        self._disk = disk
        self._executor = executor
        self._lanes = lanes
        self._counters = counters
        self._done = done
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        #: Groups for the thread, one at a time; None ends it. It is started by the first one.
        self._groups: SimpleQueue[Plans | None] = SimpleQueue()
        self._thread: Thread | None = None
        #: Whether a group is under way, and what waits for the next one.
        self._busy = self._broken = False
        self._gathering: list[tuple[TopicPartition, FlushPlan]] = []
        self._resting: asyncio.Future[None] | None = None

    def flush(self, plans: Plans) -> None:
        """Carry these out as soon as the group under way is done."""
        if self._broken:
            return
        if self._busy:
            self._gathering.extend(plans)
        else:
            self._begin(plans)

    async def rest(self) -> None:
        """Returns when nothing is under way."""
        while self._busy:
            if self._resting is None:
                self._resting = self._loop.create_future()
            await self._resting

    def close(self) -> None:
        """Ends the thread. To be called at rest."""
        if self._thread is not None:
            self._groups.put(None)
            self._thread.join()
            self._thread = None

    def _begin(self, plans: Plans) -> None:
        self._busy = True
        self._counters.commits += 1
        self._counters.flushes += len(plans)
        if not self._lanes:
            self._act(plans)
            return
        if self._thread is None:
            self._thread = Thread(target=self._run, name="ottla-flush", daemon=True)
            self._thread.start()
        self._groups.put(plans)

    def _ended(self, plans: Plans, error: Exception | None) -> None:
        """Back on the loop. The next group begins before anybody hears of this one."""
        self._busy = False
        if error is None:
            if self._gathering:
                waiting, self._gathering = self._gathering, []
                self._begin(waiting)
            self._done(tuple([(partition, plan.upto) for partition, plan in plans]))
        else:
            self._broken = True
            self._gathering = []
            self._failed(error)
        if self._resting is not None and not self._busy:
            self._resting.set_result(None)
            self._resting = None

    def _act(self, plans: Plans) -> None:
        """Carries out a group, and has the loop hear of it."""
        met: Exception | None = None
        try:
            self.carry_out([plan for _, plan in plans])
        except Exception as error:
            # Whatever it is, the loop must hear of it: an error of our own ends the process, not this thread alone.
            met = error
        self._loop.call_soon_threadsafe(self._ended, plans, met)

    # In the thread.

    def _run(self) -> None:
        while self._next():
            # Nothing is held meanwhile: a file that was removed gives its room back only when nobody has it open.
            pass

    def _next(self) -> bool:
        plans = self._groups.get()
        if plans is None:
            return False
        self._act(plans)
        return True

    def carry_out(self, plans: Sequence[FlushPlan]) -> None:
        """Returns when all of it is on disk. To be called in a thread, or at rest. Raises: OSError, when nothing more is under way."""
        if not plans:
            return
        files: Sequence[File] = plans[0].files
        if len(plans) > 1:
            files = list(dict.fromkeys(file for plan in plans for file in plan.files))
        began_ns = time.monotonic_ns()
        _sync(files[:1])
        rest = files[1:]
        if len(rest) > 1 and time.monotonic_ns() - began_ns > SLOW_NS:
            lanes = min(self._lanes, len(rest))
            syncing = [self._executor.submit(_sync, rest[lane::lanes]) for lane in range(lanes)]
            for error in [lane.exception() for lane in syncing]:
                if error is not None:
                    raise error
        else:
            _sync(rest)
        directories: dict[str, None] = {}
        for plan in plans:
            if plan.replacements:
                FlushPlan(plan.upto, (), (), plan.replacements, plan.postponed).carry_out(self._disk)
            directories.update(dict.fromkeys(plan.directories))
        if directories:
            FlushPlan(Offset(0), (), tuple(directories)).carry_out(self._disk)


def _sync(files: Iterable[File]) -> None:
    """A file that is gone belonged to a partition that was removed meanwhile, and needs nothing. Raises: OSError."""
    for file in files:
        try:
            file.sync()
        except FileNotFoundError:
            continue

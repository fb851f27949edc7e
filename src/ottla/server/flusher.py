"""Group commit: flushes the logs of one log directory in batches, in dedicated threads.

While one batch is flushed the next one gathers, so all requests that arrive meanwhile share the cost of a sync. The order within a batch:
log files, small files to replace, directories. A failed sync is never retried: the kernel then counts the pages as clean, and a second
sync would succeed without writing them.

There are two queues, each with one thread and one batch at a time. A plan that only syncs files goes to the first. A plan that also
replaces small files or syncs directories, such as that of a new log, waits for the device several times. It goes to the second queue, in
smaller batches, plans with records first. So thousands of new topics do not delay writes to existing ones.

A batch has a limited number of partitions, and of each all plans that wait. So a file is synced once for them, however far the flushes are
behind the writes.

A batch of one file, the usual case of a busy partition, costs one switch to the thread and one back. If the first sync is slow, the other
files of the batch are synced in parallel in further threads; if it is fast, the switches would cost more than they save.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import Protocol, TypeVar

from ottla.base.ids import Offset, TopicPartition
from ottla.base.ports import Disk, File
from ottla.log.flush import FlushPlan, NamedFile
from ottla.server.batch_thread import enter_batch_thread
from ottla.server.metrics.counters import Counters

#: A sync that takes longer makes further threads worthwhile.
SLOW_NS = 1_000_000
#: Partitions in one batch: a step of the loop between two batches takes 0.3 ms, with the report of the first marks.
FILES_AT_ONCE = 256
#: Partitions with small files or directories in one batch: 0.1 s when each waits 3 ms for the device.
NAMES_AT_ONCE = 32
#: Flushed partitions that are reported in one turn of the loop: 0.1 to 0.5 ms.
MARKS_AT_ONCE = 16

Plans = Sequence[tuple[TopicPartition, FlushPlan]]
Marks = tuple[tuple[TopicPartition, Offset], ...]
T = TypeVar("T")


class Worker(Protocol):
    """Runs batches one after the other, away from the event loop."""

    def put(self, batch: Plans) -> None: ...

    def close(self) -> None:
        """Ends the worker. Call when it is idle."""
        ...


#: Makes the worker of a queue from its name and from what it does with a batch.
Workers = Callable[[str, Callable[[Plans], None]], Worker]


class FlushThread:
    """A ``Worker``: a thread that the first batch starts."""

    def __init__(self, name: str, act: Callable[[Plans], None]) -> None:
        self._name = name
        self._act = act
        #: None ends the thread.
        self._batches: SimpleQueue[Plans | None] = SimpleQueue()
        self._thread: Thread | None = None

    def put(self, batch: Plans) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._batches.put(batch)

    def close(self) -> None:
        if self._thread is not None:
            self._batches.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        enter_batch_thread()
        while self._next():
            # No reference to a plan stays here: a removed file frees its space only when it is closed.
            pass

    def _next(self) -> bool:
        batch = self._batches.get()
        if batch is None:
            return False
        self._act(batch)
        return True


class Flusher:
    """Flushes one log directory. Belongs to the loop it is made on."""

    def __init__(
        self,
        disk: Disk,
        *,
        executor: Executor,
        lanes: int,
        counters: Counters,
        done: Callable[[Marks], None],
        failed: Callable[[Exception], None],
        workers: Workers = FlushThread,
    ) -> None:
        """``done`` gets the flushed offsets of each batch, in several turns if there are many; ``failed`` the error after which nothing
        more is flushed.

        ``lanes`` is the largest number of files synced at once, in threads of the executor.
        """
        self._disk = disk
        self._executor = executor
        self._lanes = lanes
        self._counters = counters
        self._done = done
        self._failed = failed
        self._broken = False
        self._files = _FlushQueue(self, workers, lanes=lanes, name="ottla-flush", at_once=FILES_AT_ONCE)
        self._names = _FlushQueue(self, workers, lanes=lanes // 4, name="ottla-flush-names", at_once=NAMES_AT_ONCE)
        self._loop = asyncio.get_running_loop()
        #: Batches that are partly reported.
        self._reports = 0
        self._idle: asyncio.Future[None] | None = None

    def flush(self, plans: Plans) -> None:
        """Adds plans to the next batch of their queue."""
        if self._broken:
            return
        names = [entry for entry in plans if entry[1].replacements or entry[1].directories]
        files = plans if not names else [entry for entry in plans if not (entry[1].replacements or entry[1].directories)]
        if files:
            self._files.flush(files)
        if names:
            # Plans with records first: requests wait for them, but not for empty new logs.
            names.sort(key=lambda entry: not entry[1].upto)
            self._names.flush(names)

    def set_lanes(self, lanes: int) -> None:
        """Sets the largest number of files synced at once, from the next batch on."""
        self._lanes = lanes
        self._files.lanes = lanes
        self._names.lanes = lanes // 4

    async def idle(self) -> None:
        """Returns when no batch is in progress, and all are reported."""
        while self._is_busy:
            if self._idle is None:
                self._idle = self._loop.create_future()
            await self._idle

    @property
    def _is_busy(self) -> bool:
        return self._files.busy or self._names.busy or self._reports > 0

    def close(self) -> None:
        """Ends the threads. Call when idle."""
        self._files.close()
        self._names.close()

    def took(self, commit_ns: int, sync_ns: int) -> None:
        """Counts the times of a batch."""
        self._counters.commit_times.observe(commit_ns)
        self._counters.sync_times.observe(sync_ns)

    def begun(self, plans: Plans) -> None:
        """A queue began a batch."""
        self._counters.commits += 1
        self._counters.flushes += len(plans)

    def ended(self, plans: Plans, error: Exception | None) -> None:
        """A batch ended; the next one of its queue has begun."""
        if error is None:
            self._report(plans)
        elif not self._broken:
            self._broken = True
            self._files.forget()
            self._names.forget()
            self._failed(error)
        self._wake()

    def _report(self, plans: Plans) -> None:
        self._done(tuple([(partition, plan.upto) for partition, plan in plans[:MARKS_AT_ONCE]]))
        if len(plans) > MARKS_AT_ONCE:
            self._reports += 1
            self._loop.call_soon(self._report_rest, plans[MARKS_AT_ONCE:])

    def _report_rest(self, plans: Plans) -> None:
        self._reports -= 1
        self._report(plans)
        self._wake()

    def _wake(self) -> None:
        if self._idle is not None and not self._is_busy:
            self._idle.set_result(None)
            self._idle = None

    # In a thread

    def carry_out(self, plans: Sequence[FlushPlan], lanes: int | None = None) -> None:
        """Performs the plans; returns when all is on disk. Call in a thread, or when idle. Raises: OSError, after all threads ended."""
        if not plans:
            return
        lanes = self._lanes if lanes is None else lanes
        files: Sequence[File | NamedFile] = plans[0].files
        if len(plans) > 1:
            files = list(dict.fromkeys(file for plan in plans for file in plan.files))
        self._spread(files, _sync, lanes)
        replacing = [FlushPlan(plan.upto, (), (), plan.replacements, plan.postponed) for plan in plans if plan.replacements]
        if replacing:
            self._spread(replacing, self._replace, lanes)
        directories = list(dict.fromkeys(directory for plan in plans for directory in plan.unsynced_directories()))
        if directories:
            self._spread(directories, self._sync_directories, lanes)

    def _spread(self, work: Sequence[T], act: Callable[[Sequence[T]], None], lanes: int) -> None:
        """Runs ``act`` on the first item, then on the others, in further threads if the first was slow. Raises: OSError."""
        began_ns = time.monotonic_ns()
        act(work[:1])
        rest = work[1:]
        if len(rest) > 1 and lanes > 1 and time.monotonic_ns() - began_ns > SLOW_NS:
            lanes = min(lanes, len(rest))
            acting = [self._executor.submit(act, rest[lane::lanes]) for lane in range(lanes)]
            for error in [lane.exception() for lane in acting]:
                if error is not None:
                    raise error
        elif rest:
            act(rest)

    def _replace(self, plans: Sequence[FlushPlan]) -> None:
        for plan in plans:
            plan.carry_out(self._disk)

    def _sync_directories(self, directories: Sequence[str]) -> None:
        FlushPlan(Offset(0), (), tuple(directories)).carry_out(self._disk)


class _FlushQueue:
    """Flush batches, one at a time, in a worker."""

    def __init__(self, flusher: Flusher, workers: Workers, *, lanes: int, name: str, at_once: int) -> None:
        """``at_once`` is the largest number of partitions in a batch."""
        self._flusher = flusher
        self.lanes = lanes
        self._at_once = at_once
        self._loop = asyncio.get_running_loop()
        self._worker = workers(name, self._act)
        #: Whether a batch is in progress, and the plans of the next one.
        self.busy = False
        self._gathering: dict[TopicPartition, list[FlushPlan]] = {}
        self._began_ns = 0

    def flush(self, plans: Plans) -> None:
        for partition, plan in plans:
            self._gathering.setdefault(partition, []).append(plan)
        if not self.busy:
            self._next_batch()

    def forget(self) -> None:
        """Drops the waiting plans."""
        self._gathering = {}

    def close(self) -> None:
        self._worker.close()

    def _next_batch(self) -> None:
        gathered = self._gathering
        plans = [(partition, plan) for partition in list(islice(gathered, self._at_once)) for plan in gathered.pop(partition)]
        self.busy = True
        self._began_ns = time.monotonic_ns()
        self._flusher.begun(plans)
        self._worker.put(plans)

    def _ended(self, plans: Plans, error: Exception | None, sync_ns: int) -> None:
        """Runs on the loop. The next batch begins before this one is reported."""
        self._flusher.took(time.monotonic_ns() - self._began_ns, sync_ns)
        self.busy = False
        if error is None and self._gathering:
            self._next_batch()
        self._flusher.ended(plans, error)

    def _act(self, plans: Plans) -> None:
        """Flushes a batch, and reports it to the loop. Runs in the worker."""
        failure: Exception | None = None
        began_ns = time.monotonic_ns()
        try:
            self._flusher.carry_out([plan for _, plan in plans], self.lanes)
        except Exception as error:
            # Any error goes to the loop: an internal error must end the process, not only this thread.
            failure = error
        self._loop.call_soon_threadsafe(self._ended, plans, failure, time.monotonic_ns() - began_ns)


def _sync(files: Iterable[File | NamedFile]) -> None:
    """Skips missing files: their partition was removed. Raises: OSError."""
    for file in files:
        try:
            file.sync()
        except FileNotFoundError:
            continue

"""Measures the cluster in a thread with an event loop of its own, so that pages answer while 20,000 partitions are decoded.

A measurement follows another after `INTERVAL_S`, or ten times as long as it took, so that a large cluster is not kept busy. Checks of the
doctor run every `CHECKS_S`. Nothing is measured while no page was shown for `IDLE_S`.

Pages read `snapshot` and `report`, which are replaced as a whole.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from ottla.client.admin.admin import Admin
from ottla.client.doctor.checks import CHECKS, LOCAL, required_facts, run_checks
from ottla.client.doctor.facts import Finding
from ottla.client.doctor.gather import gather
from ottla.console.watch.measure import measure
from ottla.console.watch.snapshot import Measured, Snapshot, summarize
from ottla.wire.errors import KafkaError

INTERVAL_S, IDLE_S = 4.0, 90.0
#: A measurement takes at most this share of the time.
BUSY_SHARE = 0.1
CHECKS_S, CHECK_TIMEOUT_S, BETWEEN_S = 30.0, 5.0, 3.0
HISTORY_MAX = 90
#: Of the first measurement, until a page is shown without it.
FIRST_S = 0.7


class Report(msgspec.Struct, frozen=True):
    """Findings of the doctor at a time, the worst first; `took_ms` is the duration of all checks."""

    at_ms: int
    took_ms: float
    checks: int
    findings: list[Finding]


class Watcher:
    """The thread. Attributes are read by others, and written by it alone."""

    def __init__(self, bootstrap: str, settings: Mapping[str, Any]) -> None:
        self._bootstrap = bootstrap
        self._settings = dict(settings)
        self.snapshot: Snapshot | None = None
        self.report: Report | None = None
        #: Why the last measurement failed; None: it did not.
        self.error: KafkaError | None = None
        #: (time in ms, records per second) of the last measurements.
        self.history: deque[tuple[int, float]] = deque(maxlen=HISTORY_MAX)
        self._wanted_s = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: asyncio.Event | None = None
        self._stopped = False
        self._is_hurried = False
        #: Waiters of other loops for the next measurement.
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._main, name="ottla-console-watch", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread, and waits for it."""
        self._stopped = True
        self.touch()
        self._thread.join(timeout=5)

    def touch(self) -> None:
        """A page is shown: measure on."""
        self._wanted_s = time.monotonic()
        if self._loop is not None and self._news is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)

    def hurry(self) -> None:
        """The cluster was changed: measure at once."""
        self._is_hurried = True
        self.touch()

    async def latest(self, wait_s: float = FIRST_S) -> Snapshot | None:
        """The last measurement; waits for the first one, but not long. Raises: KafkaError, if there is none and the first one failed."""
        self.touch()
        if self.snapshot is None:
            await self.next(wait_s)
        if self.snapshot is None and self.error is not None:
            raise self.error
        return self.snapshot

    async def next(self, wait_s: float) -> None:
        """Waits for the end of a measurement, at most this long."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._waiting.append((loop, future))
        try:
            async with asyncio.timeout(wait_s):
                await future
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._waiting = [one for one in self._waiting if one[1] is not future]

    # The thread.

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        checks: asyncio.Task[None] | None = None
        try:
            async with Admin(bootstrap_servers=self._bootstrap, client_id="ottla-console", **self._settings) as admin:
                before: Measured | None = None
                while not self._stopped:
                    began_s = time.monotonic()
                    self._is_hurried = False
                    before = await self._measure(admin, before)
                    checks = checks or asyncio.create_task(self._check_repeatedly())
                    took_s = time.monotonic() - began_s
                    await self._pause(max(INTERVAL_S, took_s / BUSY_SHARE), hurries=True)
        finally:
            if checks is not None:
                checks.cancel()

    async def _measure(self, admin: Admin, before: Measured | None) -> Measured | None:
        try:
            measured = await measure(admin, self._early if self.snapshot is None else None)
        except KafkaError as error:
            self.error = error
            self._tell()
            return None
        snapshot = summarize(measured, before)
        self.snapshot, self.error = snapshot, None
        if snapshot.rate is not None:
            self.history.append((measured.at_ms, snapshot.rate))
        self._tell()
        return measured

    def _early(self, measured: Measured) -> None:
        """The first pages show brokers and topics before offsets and sizes are known."""
        self.snapshot, self.error = summarize(measured), None
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future)

    async def _pause(self, least_s: float, *, hurries: bool = False) -> None:
        """Waits for this time, and then until a page is shown. `hurries`: ends at once after a change."""
        end_s = time.monotonic() + least_s
        assert self._news is not None, "the thread made it"
        while not self._stopped:
            now_s = time.monotonic()
            if (now_s >= end_s or (hurries and self._is_hurried)) and now_s - self._wanted_s < IDLE_S:
                return
            self._news.clear()
            if self._stopped:
                return
            try:
                async with asyncio.timeout(end_s - now_s if now_s < end_s else None):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _check_repeatedly(self) -> None:
        names = [name for name in CHECKS if name not in LOCAL]
        while not self._stopped:
            began_s = time.monotonic()
            facts = await gather(
                self._bootstrap, required_facts(names), timeout_s=CHECK_TIMEOUT_S, between_s=BETWEEN_S, settings=self._settings
            )
            took_ms = (time.monotonic() - began_s) * 1000
            self.report = Report(facts.now_ms, took_ms, len(names), run_checks(facts, names))
            self._tell()
            await self._pause(max(CHECKS_S, took_ms / 1000 / BUSY_SHARE))


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

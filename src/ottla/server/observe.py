"""What a process counts about itself, and the watch over its event loop.

A loop that stands still is a broker that leads without serving. So a tick on the loop measures how late it comes, and a thread looks
whether it came at all: when it did not for ``STALL_S``, the thread writes down where the loop's thread stands.
"""

import asyncio
import logging
import sys
import threading
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger("ottla.server")

TICK_S = 0.1
STALL_S = 0.25


@dataclass(slots=True)
class Counters:
    """Plain counters since the start, of all brokers of the process."""

    #: By API key.
    requests: Counter[int] = field(default_factory=Counter)
    failed_requests: int = 0
    #: Group commits, and the flushes of partitions they carried.
    commits: int = 0
    flushes: int = 0
    #: Logs that were compacted, and what was read and written for it.
    compactions: int = 0
    compaction_read_bytes: int = 0
    compaction_written_bytes: int = 0
    #: Longest time the loop stood still, and how often it did for longer than ``STALL_S``.
    lag_max_s: float = 0.0
    stalls: int = 0

    def snapshot(self) -> dict[str, Any]:
        """All of them, by name."""
        return {name: getattr(self, name) for name in self.__slots__}


class Watchdog:
    """Watches the loop it is made on."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._beats = 0
        self._over = threading.Event()
        self._due = self._loop.time() + TICK_S
        self._timer = self._loop.call_at(self._due, self._beat)
        threading.Thread(target=self._watch, name="ottla-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        self._timer.cancel()

    def _beat(self) -> None:
        now = self._loop.time()
        self._counters.lag_max_s = max(self._counters.lag_max_s, now - self._due)
        self._beats += 1
        self._due = now + TICK_S
        self._timer = self._loop.call_at(self._due, self._beat)

    def _watch(self) -> None:
        seen, reported = -1, -1
        while not self._over.wait(STALL_S + TICK_S):
            if self._beats != seen:
                seen = self._beats
            elif reported != seen:
                reported = seen
                self._counters.stalls += 1
                frame = sys._current_frames().get(self._thread_id)
                where = "".join(traceback.format_stack(frame, limit=6)) if frame is not None else ""
                log.warning("the event loop has stood still for %.2f s at\n%s", STALL_S, where)

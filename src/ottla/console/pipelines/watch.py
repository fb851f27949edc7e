"""The status of pipelines: `ottla pipeline status FILE -o json`, in a process of its own, while a page is open.

A running pipeline notes each batch in its checkpoint directory, `pipeline.json`; the command joins the notes with the offsets of the
checkpoint and the ends of the topics. So the console must reach the directory: it runs on the driver's machine, or both share it.

The command takes about a second of CPU time, so a status is read again after ten times as long as it took, and at least `READ_EVERY_S`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

READ_EVERY_S, SHARE = 10.0, 10
TIMEOUT_S = 40.0
#: Statuses that are kept for the lines of rates and lag.
HISTORY = 90
ERROR_CHARACTERS = 2_000


class QueryStatus(msgspec.Struct, frozen=True):
    """A query of a pipeline; the figures of its last batch are None before the first one."""

    query: str
    batch: int | None
    at: str | None
    unfinished: int | None
    lag: int | None
    rows_in: int
    rows_out: int
    dead_letters: int
    rows_in_per_s: float | None = None
    rows_out_per_s: float | None = None
    batch_ms: int | None = None
    watermark: str | None = None
    state_rows: int | None = None
    #: Offset, end and lag by topic and partition.
    sources: dict[str, dict[str, dict[str, int | None]]] = {}


class SourceStatus(msgspec.Struct, frozen=True):
    """A source: the name of its view, and its topic; empty for files, tables and patterns."""

    name: str
    topic: str = ""


class PipelineStatus(msgspec.Struct, frozen=True):
    """The output of the command."""

    pipeline: str
    file: str
    checkpoint: str
    state: str
    process: dict[str, Any] | None
    brokers: str | None
    queries: list[QueryStatus]
    targets: list[dict[str, Any]]
    views: list[SourceStatus] = []

    @property
    def lag(self) -> int | None:
        """Of all queries; None if one is unknown."""
        lags = [one.lag for one in self.queries]
        return None if None in lags else sum(filter(None, lags))

    def total(self, figure: str) -> float:
        """The sum of a figure over the queries."""
        return sum(getattr(one, figure) or 0 for one in self.queries)

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic of dead letters, if they go to a topic."""
        return next((str(one["topic"]) for one in self.targets if one.get("dead_letters") and one.get("topic")), None)

    @property
    def sources_by_view(self) -> dict[str, str]:
        """Topics by the name of their view."""
        return {one.name: one.topic for one in self.views if one.topic}


class Pipeline:
    """A pipeline file and its state."""

    def __init__(self, pipeline_id: str, file: Path) -> None:
        self.id = pipeline_id
        self.file = file
        self.status: PipelineStatus | None = None
        self.problem = ""
        self.read_ms = 0
        #: Time of the next reading, monotonic.
        self._due_s = 0.0
        self._reading: asyncio.Task[None] | None = None
        #: Rows in per second and lag of the last statuses.
        self.rates: deque[float] = deque(maxlen=HISTORY)
        self.lags: deque[float] = deque(maxlen=HISTORY)

    async def look(self, *, wait: bool = False) -> None:
        """Reads the status if it is due; waits for the first one, or with `wait`."""
        if self._reading is None and (time.monotonic() >= self._due_s or wait):
            self._reading = asyncio.create_task(self._read())
        if self._reading is not None and (wait or (self.status is None and not self.problem)):
            await asyncio.shield(self._reading)

    async def _read(self) -> None:
        began_s = time.monotonic()
        try:
            self.status, self.problem = await _status(self.file)
        finally:
            now_s = time.monotonic()
            self._due_s = now_s + max(READ_EVERY_S, SHARE * (now_s - began_s))
            self._reading = None
        self.read_ms = int(time.time() * 1000)
        if self.status is not None:
            self.rates.append(self.status.total("rows_in_per_s") if self.status.state == "running" else 0.0)
            if self.status.lag is not None:
                self.lags.append(float(self.status.lag))

    async def close(self) -> None:
        """Ends a reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


def pipelines_of(files: tuple[Path, ...]) -> dict[str, Pipeline]:
    """By the name in the address: that of the file, with a number if several have it."""
    found: dict[str, Pipeline] = {}
    for file in files:
        name, number = file.stem, 1
        while name in found:
            number += 1
            name = f"{file.stem}-{number}"
        found[name] = Pipeline(name, file)
    return found


async def _status(file: Path) -> tuple[PipelineStatus | None, str]:
    """The status, or the problem."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ottla", "pipeline", "status", str(file), "-o", "json",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        return None, f"its status could not be read in {TIMEOUT_S:.0f} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        text = errors.decode("utf-8", "replace").strip().removeprefix("ottla: ")
        return None, text[-ERROR_CHARACTERS:] or f"ottla pipeline status ended with code {process.returncode}"
    try:
        return msgspec.json.decode(output, type=PipelineStatus), ""
    except msgspec.MsgspecError as error:
        return None, f"the output of ottla pipeline status is not known here: {error}"

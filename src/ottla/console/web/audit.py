"""The audit log: one line of JSON for every change that a user asked for, done or refused.

    {"time": "2026-11-25T12:00:00.000Z", "user": "alice", "role": "editor", "address": "10.0.0.7", "action": "topic.create",
     "outcome": "done", "topic": "orders", "partitions": 6}

`outcome` is `done`, `refused` (role, read-only) or `failed`, with `error`. Values of records and passwords are never written. A line is
handed to the operating system before the browser sees the result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec


class AuditLog:
    """Appends to a file, or to standard error."""

    def __init__(self, path: Path | None, clock_s: Callable[[], float]) -> None:
        """Raises: OSError if the file cannot be written."""
        self._out: TextIO = sys.stderr if path is None else path.open("a")
        self._owned = path is not None
        self._clock_s = clock_s

    def write(self, fields: Mapping[str, Any]) -> None:
        """Appends a line; the time is added."""
        time = datetime.fromtimestamp(self._clock_s(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._out.write(msgspec.json.encode({"time": time, **fields}).decode() + "\n")
        self._out.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._owned:
            self._out.close()

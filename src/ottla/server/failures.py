"""Requests that failed with an unexpected exception: counted, logged and recorded, within limits.

A client can repeat such a request without limit. So the log gets at most ``LINES_MAX`` lines per ``WINDOW_MS``, and then one line with the
number of lines left out. A flight record is written once per raising source line, for at most ``RECORDS_MAX`` source lines of a process.
A log line names the request and never contains its data.
"""

import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ottla.broker.events import RequestArrived
from ottla.broker.isolation import root_of
from ottla.server.metrics.counters import Counters
from ottla.wire.messages import API

log = logging.getLogger("ottla.server")

LINES_MAX = 10
WINDOW_MS = 60_000
RECORDS_MAX = 8
#: Characters of an error, or of a client id, in a log line.
TEXT_MAX = 200


class RequestFailures:
    def __init__(self, counters: Counters, record: Callable[[BaseException], Path]) -> None:
        """``record`` writes a flight record. Raises: OSError."""
        self._counters = counters
        self._record = record
        #: Source lines that have a record: file, line, type of the exception.
        self._places: set[tuple[str, int, str]] = set()
        #: Start of the current window, and its number of lines.
        self._since_ms = 0
        self._lines = 0
        self._left_out = 0

    def note(self, call: RequestArrived[Any] | None, what: str, error: Exception, now_ms: int) -> None:
        """A request failed; ``call`` is None when it could not be decoded at all."""
        self._counters.failed_requests += 1
        self.tick(now_ms)
        path = self._written(error)
        if self._lines >= LINES_MAX and path is None:
            self._left_out += 1
            return
        self._lines += 1
        file, line, kind = place_of(error)
        suffix = f"; flight record: {path}" if path is not None else ""
        fields = {} if call is None else {"client_id": short(call.client_id or ""), "host": call.origin.host}
        said = (described(call, what), kind, short(str(error)), file, line, suffix)
        log.error("%s failed: %s: %s, at %s:%d%s", *said, extra={"fields": fields})

    def tick(self, now_ms: int) -> None:
        """Ends the window when its time is over, and logs how many lines were left out."""
        if now_ms - self._since_ms < WINDOW_MS:
            return
        if self._left_out:
            log.error("%d more requests failed in the last %d s; see the counter failed_requests", self._left_out, WINDOW_MS // 1000)
        self._since_ms, self._lines, self._left_out = now_ms, 0, 0

    def _written(self, error: Exception) -> str | None:
        place = place_of(error)
        if place in self._places or len(self._places) >= RECORDS_MAX:
            return None
        self._places.add(place)
        try:
            return str(self._record(error))
        except OSError as failure:
            return f"none: {failure}"


def place_of(error: BaseException) -> tuple[str, int, str]:
    """File, line and type of the exception at the root of an error."""
    root = root_of(error)
    frames = traceback.extract_tb(root.__traceback__)
    return (frames[-1].filename, frames[-1].lineno or 0, type(root).__name__) if frames else ("unknown", 0, type(root).__name__)


def described(call: RequestArrived[Any] | None, what: str) -> str:
    """Names a request without its data."""
    if call is None:
        return what
    api = API.get(call.api_key)
    name = api.name if api is not None else f"API {call.api_key}"
    client = "no client id" if call.client_id is None else f"client {short(call.client_id)!r}"
    host = call.origin.host or "this process"
    return f"{name} version {call.api_version}, {client} at {host}, correlation id {call.correlation_id}: {what}"


def short(text: str) -> str:
    """At most ``TEXT_MAX`` characters, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= TEXT_MAX else f"{line[:TEXT_MAX]}... ({len(line)} characters)"

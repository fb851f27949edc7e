"""The log of a server: one line per event, as text or JSON, through Python's ``logging``.

::

    2026-01-31T12:00:00.123Z INFO ottla.replica: became leader of 312 partitions  broker=1 count=312 partitions=t-0,t-1,...
    {"time":"2026-01-31T12:00:00.123Z","level":"INFO","logger":"ottla.replica","message":"...","broker":1,"count":312,...}

Times are UTC. A message or field has at most ``TEXT_MAX`` characters, and control characters are escaped: clients choose names that appear
in them, and must not forge lines. Only tracebacks of internal errors span several lines, and only as text.

Loggers of connections have at most ``NET_LINES_MAX`` lines per second, since anyone who reaches a listener can cause them.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from ottla.base.log_levels import LOGGERS, ROOT, LogLevel
from ottla.broker import effects

FORMATS = ("text", "json")
RED, PLAIN = "\x1b[31m", "\x1b[0m"
#: Characters of a message, or of one field.
TEXT_MAX = 4_000
#: Lines per second of a logger that anyone can make write.
NET_LINES_MAX = 20
NET_LOGGERS = ("ottla.net", "ottla.request")

#: Control characters, and the separators that some programs take for the end of a line.
_ESCAPES = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160))} | {0x2028: "\\u2028", 0x2029: "\\u2029"}
#: Characters of a field's value that need no quotes.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/@+,*%[]")


def time_text(record_s: float) -> str:
    """ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(record_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def bounded(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"


def _value_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return _quoted(",".join(map(str, value)))
    if isinstance(value, Mapping):
        return _quoted(" ".join(f"{name}={text}" for name, text in value.items()))
    return _quoted(str(value))


def _quoted(text: str) -> str:
    text = bounded(text)
    return text if text and _PLAIN.issuperset(text) else json.dumps(text)


class TextFormatter(logging.Formatter):
    """`colours`: warnings and errors are red."""

    def __init__(self, *, colours: bool = False) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback follows it."""
        message = bounded(record.getMessage()).translate(_ESCAPES)
        fields = " ".join(f"{name}={_value_text(value)}" for name, value in getattr(record, "fields", {}).items())
        line = f"{time_text(record.created)} {record.levelname} {record.name}: {message}"
        if fields:
            line = f"{line}  {fields}"
        if self._colours and record.levelno >= logging.WARNING:
            line = f"{RED}{line}{PLAIN}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One JSON object."""
        content = {
            "time": time_text(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": bounded(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(content, enc_hook=str).decode()


class LineLimit(logging.Filter):
    """Drops lines above a number per second, and counts them in the first line of a later second."""

    def __init__(self, lines_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._lines_max = lines_max
        self._clock = clock
        self._second = -1
        self._lines = 0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        second = int(self._clock())
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines > self._lines_max:
            self._left_out += 1
            return False
        if self._left_out:
            record.msg, record.args = f"{record.getMessage()} ({self._left_out} lines before it were left out)", None
            self._left_out = 0
        return True


def set_up(format_name: str, level: LogLevel, handler: logging.Handler | None = None) -> logging.Handler:
    """Sends the log of this process to ``handler``, by default standard error, with colours on a terminal. Returns the handler."""
    colours = handler is None and sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    handler = logging.StreamHandler(sys.stderr) if handler is None else handler
    handler.setFormatter(JsonFormatter() if format_name == "json" else TextFormatter(colours=colours))
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.captureWarnings(True)
    for name in NET_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(one, LineLimit) for one in logger.filters):
            logger.addFilter(LineLimit(NET_LINES_MAX))
    return handler


def write(effect: effects.Log, *, broker_id: int) -> None:
    """Logs a line of a broker."""
    logger = logging.getLogger(effect.logger)
    if logger.isEnabledFor(effect.level):
        logger.log(effect.level, "%s", effect.message, extra={"fields": {"broker": broker_id, **effect.fields}})


def write_always(message: str, **fields: Any) -> None:
    """Logs a line that was asked for, whatever the level."""
    logger = logging.getLogger("ottla.server")
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, message, (), None, extra={"fields": fields})
    logger.handle(record)


def levels() -> dict[str, LogLevel]:
    """Levels that are set, by logger."""
    found: dict[str, LogLevel] = {}
    for name in LOGGERS:
        number = _logger(name).level
        if number or name == ROOT:
            # Another level, such as 15, counts as the next higher one.
            found[name] = next((level for level in LogLevel if level >= number), LogLevel.CRITICAL)
    return found


def set_levels(changed: Mapping[str, LogLevel | None]) -> None:
    """Sets levels of loggers; None: the level of the logger above."""
    for name, level in changed.items():
        _logger(name).setLevel(logging.NOTSET if level is None else level)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)

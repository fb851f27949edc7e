"""The audit log: a JSON object per line for each decision about access, through the logger ``ottla.audit``.

::

    {"time": "2026-01-31T12:00:00.123Z", "broker": 1, "allowed": false, "principal": "User:alice", "host": "10.0.0.7",
     "listener": "PLAINTEXT", "client_id": "app", "request": "Produce", "operation": "Write", "resource_type": "Topic",
     "resource": "orders", "times": 1, "rule": "no matching rule"}

As with Kafka's ``kafka.authorizer.logger``, refusals have level INFO and permissions level DEBUG; brokers report permissions only with
``ottla.audit.allowed``. ``resource`` is empty if any resource of the type would do. Values that clients choose are JSON strings, so a line
cannot be forged. With ``ottla.audit.log`` the lines go to that file, which is closed to other users, instead of the server's log.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec

from ottla.broker.effects import Audit
from ottla.server.log_file import OUTPUT_BYTES_MAX
from ottla.wire.messages import API

log = logging.getLogger("ottla.audit")
#: Characters of a name that a client chooses: long ones would soon fill the log's files. Names of topics have up to 249.
NAME_MAX = 300


class _PrivateFile(RotatingFileHandler):
    """Rotates to FILE.1; a file that it makes is readable by its owner only."""

    def _open(self) -> Any:
        Path(self.baseFilename).touch(mode=0o600)
        return super()._open()


def open_audit_log(path: str) -> logging.Handler:
    """Sends the audit log to a file. Returns what ``close_audit_log`` needs. Raises: OSError."""
    handler = _PrivateFile(path, maxBytes=OUTPUT_BYTES_MAX, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    return handler


def close_audit_log(handler: logging.Handler) -> None:
    """The server's log has the audit log again."""
    log.removeHandler(handler)
    handler.close()
    if not log.handlers:
        log.setLevel(logging.NOTSET)
        log.propagate = True


def write(effect: Audit, *, broker_id: int, wall_ms: int) -> None:
    """Logs one decision."""
    level = logging.DEBUG if effect.allowed else logging.INFO
    if log.isEnabledFor(level):
        log.log(level, "%s", line_of(effect, broker_id=broker_id, wall_ms=wall_ms))


def line_of(effect: Audit, *, broker_id: int, wall_ms: int) -> str:
    """The line of a decision."""
    call = effect.call
    content = {
        "time": datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "broker": broker_id,
        "allowed": effect.allowed,
        "principal": call.origin.principal,
        "host": call.origin.host,
        "listener": call.origin.listener,
        "client_id": None if call.client_id is None else _shortened(call.client_id),
        "request": API[call.api_key].name,
        "operation": effect.operation.label,
        "resource_type": effect.resource_type.label,
        "resource": _shortened(effect.name),
        "times": effect.times,
        "rule": effect.rule,
    }
    return msgspec.json.encode(content).decode()


def _shortened(name: str) -> str:
    return name if len(name) <= NAME_MAX else f"{name[:NAME_MAX]}… ({len(name)} characters)"

"""Retryable errors: unreachable brokers or object stores, a new leader, a killed Python worker. After a backoff the query restarts from its
checkpoint, as a restart of the pipeline would do. Any other error ends the pipeline.

A query's error comes from a Python process through Java as text. So it is recognized by the names of the classes in the text.
"""

import re
from collections.abc import Iterator
from typing import Any

from ottla.client import errors as client_errors
from ottla.lake.storage import gave_up
from ottla.wire import errors as wire_errors

#: The backoff doubles from the minimum to the maximum. A successful batch resets it.
BACKOFF_MIN_S, BACKOFF_MAX_S = 1.0, 30.0
#: RetryState for so long without one batch ends the pipeline.
RETRY_TIMEOUT_S = 600.0
#: Classes of Python, of `ottla.lake`, of the source, of Java for a Python process that ended, and of Hadoop for a store without answer.
RETRYABLE = {
    "TimeoutError", "ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError",
    "Overtaken", "StoreUnavailable", "CatalogUnavailable", "RegistryBusy", "RegistryUnreachable",
    "CheckpointUnreachable", "TransactionLost", "TransactionAbortable", "TransactionAborted",
    "EOFException", "SocketException", "ClosedChannelException",
    "ConnectException", "NoRouteToHostException", "UnknownHostException", "SocketTimeoutException", "ConnectTimeoutException",
    "AWSStatus500Exception", "AWSServiceThrottledException", "AWSServiceIOException", "AWSClientIOException", "AWSApiCallTimeoutException",
    "RetriableException", "StandbyException",
}  # fmt: skip
#: Messages of Spark about its Python processes, and of Java about a Unix domain socket to one.
RETRYABLE_TEXTS = (
    "Python worker exited unexpectedly", "Python worker failed to connect back",
    # Of a process whose checkpoint at a URL was taken over, just before it ended.
    "CONCURRENT_STREAM_LOG_UPDATE",
    "java.io.IOException: Broken pipe", "java.io.IOException: Connection reset by peer",
)  # fmt: skip
RAISED = re.compile(r"^\s*(?:[\w.]+\.)?([A-Z]\w+)(?:: |$)", re.MULTILINE)


def is_retryable(text: str) -> bool:
    """Whether the full text of a query's error names a temporary problem."""
    names = {match[1] for match in RAISED.finditer(text)}
    return bool(names & (_retriable_classes() | RETRYABLE)) or any(message in text for message in RETRYABLE_TEXTS) or gave_up(text)


def full_text(error: Any) -> str:
    """A query's error as Spark reports it, with Java's cause: Spark may report the cause's message without its class."""
    cause = getattr(error, "_cause", None)
    return "\n".join(filter(None, (str(error), str(cause or ""), getattr(cause, "_stackTrace", None))))


def backoffs_s() -> Iterator[float]:
    """The waits before successive restarts."""
    wait_s = BACKOFF_MIN_S
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, BACKOFF_MAX_S)


def _retriable_classes() -> set[str]:
    kafka = {one.__name__ for one in wire_errors.BY_CODE.values() if one.retriable}
    ours = {name for name, one in vars(client_errors).items() if isinstance(one, type) and getattr(one, "retriable", False)}
    return kafka | ours

"""Clients that a process of Spark keeps until it ends."""

from ottla.spark.sink import task_producer
from ottla.spark.source import log_client


def close_clients() -> None:
    """Closes them, as the end of the process does."""
    while log_client._open:
        log_client._open.popitem()[1].close()
    while task_producer._open:
        task_producer._open.popitem()[1].close(timeout_ms=0)
    while task_producer._idle:
        for producer in task_producer._idle.popitem()[1]:
            producer.close(timeout_ms=0)

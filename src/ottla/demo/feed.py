"""Sends records to a topic in a thread, and counts the acknowledged ones."""

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from ottla import KafkaError, Producer

#: Number of later records before a delivery is checked; by then most are acknowledged.
OUTSTANDING = 20_000


class Feed(threading.Thread):
    """Sends `records`, pairs of key and value, until they end or `stop` is called."""

    def __init__(self, bootstrap: str, topic: str, records: Iterable[tuple[bytes, bytes]]) -> None:
        super().__init__(name="demo-feed", daemon=True)
        self.bootstrap = bootstrap
        self.topic = topic
        self.records = records
        self.sent = 0
        #: Records that all in-sync replicas have acknowledged.
        self.acknowledged = 0
        #: The error that ended the feed early.
        self.failure: KafkaError | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        pending: deque[Any] = deque()
        try:
            with Producer(bootstrap_servers=self.bootstrap, acks="all", compression_type="lz4", linger_ms=20) as producer:
                for key, value in self.records:
                    if self._stopping.is_set():
                        break
                    pending.append(producer.send(self.topic, value, key=key))
                    self.sent += 1
                    if len(pending) > OUTSTANDING:
                        self._await_acknowledgement(pending.popleft())
                producer.flush()
                while pending:
                    self._await_acknowledgement(pending.popleft())
        except KafkaError as error:
            self.failure = error

    def stop(self) -> None:
        """Ends the feed after the current record."""
        self._stopping.set()

    def _await_acknowledgement(self, delivery: Any) -> None:
        delivery.result()
        self.acknowledged += 1

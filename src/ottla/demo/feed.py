"""Records on their way into a topic, in a thread, with a count of those that were acknowledged."""

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from ottla import KafkaError, Producer

#: Deliveries that are looked at only after this many newer ones; by then nearly all are done.
OUTSTANDING = 20_000


class Feed(threading.Thread):
    """Sends `records`, (key, value) each, until they end or `stop` is called."""

    def __init__(self, bootstrap: str, topic: str, records: Iterable[tuple[bytes, bytes]]) -> None:
        super().__init__(name="demo-feed", daemon=True)
        self.bootstrap = bootstrap
        self.topic = topic
        self.records = records
        self.sent = 0
        #: Records that all in-sync replicas have, as far as is known.
        self.acknowledged = 0
        #: What ended the feed before its records did.
        self.failure: KafkaError | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        waiting: deque[Any] = deque()
        try:
            with Producer(bootstrap_servers=self.bootstrap, acks="all", compression_type="lz4", linger_ms=20) as producer:
                for key, value in self.records:
                    if self._stopping.is_set():
                        break
                    waiting.append(producer.send(self.topic, value, key=key))
                    self.sent += 1
                    if len(waiting) > OUTSTANDING:
                        self._settle(waiting.popleft())
                producer.flush()
                while waiting:
                    self._settle(waiting.popleft())
        except KafkaError as error:
            self.failure = error

    def stop(self) -> None:
        """Ends the feed after the record at hand."""
        self._stopping.set()

    def _settle(self, delivery: Any) -> None:
        delivery.result()
        self.acknowledged += 1

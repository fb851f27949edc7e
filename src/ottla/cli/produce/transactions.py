"""Transactions of `ottla produce --transactional-id`: the whole input, or parts of it by number of records or by time.

    no limit                  begin ---------- all records ---------- commit
    --transaction-records N   begin -- N -- commit, begin -- N -- commit, ...
    --transaction-duration T  begin at the first record, commit T later, also while the input pauses

A failure aborts the open transaction. Those before are committed. `lock` is held while records are sent, and by the thread that commits
after a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ottla.cli.produce.input import SendFailed
from ottla.client.sync.producer import Producer
from ottla.wire.errors import KafkaError

#: Timeout of a transaction that is the whole input: the default of the brokers' transaction.max.timeout.ms.
WHOLE_TIMEOUT_MS = 15 * 60_000


class InputTransactions:
    """The transactions of one input."""

    def __init__(self, producer: Producer, *, records_max: int | None, duration_ms: int | None) -> None:
        self._producer = producer
        self._records_max = records_max
        self._duration_ms = duration_ms
        self.lock = threading.RLock()
        #: Waits until the records of the open transaction are acknowledged. Raises: SendFailed.
        self.finish: Callable[[], None] = producer.flush
        #: Records of the open transaction; of committed ones; and their number.
        self._open_records: int | None = None
        self.committed = 0
        self.count = 0
        self._due_s = float("inf")
        self._changed = threading.Condition(self.lock)
        self._failure: Exception | None = None
        self._ended = False
        self._thread: threading.Thread | None = None
        producer.init_transactions()

    @property
    def room(self) -> int:
        """Records that the open transaction may still have, or the next one."""
        if self._records_max is None:
            return 2**31 - 1
        return max(self._records_max - (self._open_records or 0), 1)

    def ensure_open(self) -> None:
        """Begins a transaction unless one is open. Raises: the failure of a commit after a time; KafkaError."""
        if self._failure is not None:
            raise self._failure
        if self._open_records is None:
            self._producer.begin()
            self._open_records = 0
            if self._duration_ms is not None:
                self._due_s = time.monotonic() + self._duration_ms / 1000
                if self._thread is None:
                    self._thread = threading.Thread(target=self._commit_when_due, name="ottla-commit", daemon=True)
                    self._thread.start()
                self._changed.notify()

    def sent(self, records: int) -> None:
        """Counts records, and commits if the transaction is full. Raises: SendFailed, KafkaError."""
        assert self._open_records is not None, "records are sent in a transaction"
        self._open_records += records
        if self._records_max is not None and self._open_records >= self._records_max:
            self.commit()

    def commit(self) -> None:
        """Commits the open transaction, if there is one. Raises: SendFailed, KafkaError."""
        if self._open_records is None:
            return
        self.finish()
        self._producer.commit()
        self.committed += self._open_records
        self.count += 1
        self._open_records, self._due_s = None, float("inf")

    def end(self) -> None:
        """After the input: commits the last transaction. Raises: the failure of a commit after a time; SendFailed, KafkaError."""
        with self.lock:
            self._ended = True
            self._changed.notify()
            if self._failure is not None:
                raise self._failure
            self.commit()

    def abort(self) -> str:
        """Aborts the open transaction, and describes the outcome. A commit without an answer may have succeeded."""
        with self.lock:
            self._ended = True
            self._changed.notify()
            outcome = "the transaction was aborted"
            if self._producer.transactions.is_open:
                try:
                    self._producer.abort()
                except RuntimeError:
                    outcome = "whether the last transaction was committed is not known"
                except KafkaError as error:
                    outcome = f"the transaction will be aborted after its timeout ({error})"
            several = f", in {self.count:,} transaction{'s' * (self.count != 1)} before" if self.count else ""
            return f"{outcome}, and {self.committed:,} records were committed{several}"

    def _commit_when_due(self) -> None:
        with self.lock:
            while not self._ended and self._failure is None:
                left_s = self._due_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(None if left_s == float("inf") else left_s)
                    continue
                try:
                    self.commit()
                except (KafkaError, SendFailed) as error:
                    # Raised in the main thread with the next record, or at the end.
                    self._failure = error

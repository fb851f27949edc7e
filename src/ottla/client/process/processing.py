"""Exactly-once processing of topics: each input record has its effect in the output topics and in the group's offsets once.

    poll -> begin -> function -> send ... -> commit: offsets and outputs in one transaction -> poll ...

    the process dies            its transaction is aborted; the next owner of the partition starts at the committed offset
    the transaction fails       it is aborted, the positions are set back to the committed offsets, and the records are processed again
    partitions are revoked      the transaction is committed before they are released
    partitions are lost         the transaction is aborted: another member has them, and the coordinator would refuse the offsets

A transaction is committed `commit_interval_ms` after its first record, or with `max_batch_records` records. One transactional id per
process is enough: the group coordinator refuses the offsets of a member of an old generation (KIP-447). The id is made of the group and the
`group_instance_id`, so that a restarted process ends the transaction of the one before at once; without an instance id, of the group and a
random number, and an open transaction of a process that died waits for its timeout.

The function is called in the thread of the user: `call` runs the steps of `Work`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from random import Random
from time import monotonic
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.rebalance import RebalanceListener
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import CommitFailed, WokenUp
from ottla.client.interceptors import ProducerRecord
from ottla.client.process.plan import Plan, outputs_of
from ottla.client.producer.producer import Producer
from ottla.client.transport.backoff import Backoff
from ottla.wire.errors import ErrorKind, KafkaError, RequestTimedOut, TransactionAbortable

log = logging.getLogger("ottla.client")
#: Maximum wait for records.
WAIT_MS = 1000.0
#: Steps of some records: yields an argument of the function, and gets the list that the function returned.
Steps = Generator[Any, list[Any], None]
#: Runs steps with the user's function, and returns the exception that it raised.
Call = Callable[[Steps], Awaitable[BaseException | None]]


class FunctionFailed(Exception):
    """The user's function raised this exception; it is raised again in the user's thread, after the transaction was aborted."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Work:
    """The records and outputs of one transaction."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        #: Input records.
        self.count = 0
        #: First offset of each partition.
        self.firsts: dict[TopicPartition, int] = {}
        #: Outputs that were not sent yet.
        self.outputs: list[ProducerRecord] = []

    def steps(self, consumer: Consumer, until_s: float) -> Steps:
        """Calls of the function, until a time or the maximum number of records. Runs in the user's thread."""
        limit, delivery = self._plan.max_batch_records, consumer.delivery
        if self._plan.batch:
            records = delivery.give(limit - self.count)
            for record in records:
                self._add(record)
            self.outputs += outputs_of((yield records), None, self._plan.to)
            return
        for record in delivery.each():
            self._add(record)
            self.outputs += outputs_of((yield record), record, self._plan.to)
            if self.count >= limit or monotonic() >= until_s:
                return

    def _add(self, record: ConsumerRecord) -> None:
        self.count += 1
        self.firsts.setdefault(TopicPartition(record.topic, record.partition), record.offset)


class Processing(RebalanceListener):
    """One run of `process`. Belongs to one event loop; also the listener of the rebalances."""

    def __init__(self, plan: Plan, call: Call) -> None:
        self._plan = plan
        self._call = call
        self._consumer = Consumer(*plan.topics, listener=self, **plan.consumer)
        self._producer = Producer(**plan.producer)
        options = self._producer.options
        self._backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms, Random())
        #: The open transaction.
        self._work: Work | None = None
        self._begun_s = 0.0
        #: Partitions whose records were not committed, and their first offset: to be read again.
        self._rewinding: dict[TopicPartition, int] = {}
        #: Failed transactions since the last commit.
        self._attempts = 0
        self._processed = 0
        self._last_record_s = monotonic()
        self._stopping = False

    def stop(self) -> None:
        """Ends the run after a commit of the processed records. Any thread may call it."""
        self._stopping = True
        self._consumer.wakeup()

    async def run(self) -> int:
        """Processes records until it is stopped, or idle for `timeout_ms`; returns their number.

        Raises: FunctionFailed; errors of the consumer; errors of transactions that cannot pass, or that did not pass in `max_attempts`
        attempts.
        """
        try:
            await self._initialize()
            while not self._stopping:
                await self._rewind()
                await self._poll()
                await self._attempt(self._process)
                if self._idle():
                    break
            # The last transaction; after a failure its records are left to the next run.
            await self._attempt(self._commit)
            return self._processed
        finally:
            await self._close()

    async def _close(self) -> None:
        # Closing the producer aborts an open transaction, and the consumer commits nothing.
        self._work = None
        try:
            await self._producer.close(self._producer.options.request_timeout_ms)
        finally:
            await self._consumer.close()

    async def _initialize(self) -> None:
        while True:
            try:
                await self._producer.init_transactions()
                return
            except RequestTimedOut as error:
                log.warning("group %s: the producer of the transactions is not ready: %s", self._plan.group, error)

    # -- Input.

    async def _poll(self) -> None:
        """Waits for records, or until the open transaction is due. Raises: errors of the consumer."""
        wait_ms = WAIT_MS
        if self._work is not None:
            wait_ms = max(self._due_s() - monotonic(), 0) * 1000
        elif self._plan.timeout_ms is not None:
            wait_ms = min(wait_ms, self._plan.timeout_ms)
        try:
            await self._consumer.turn(self._plan.max_batch_records, wait_ms)
        except WokenUp:
            # Of stop().
            return
        if self._consumer.delivery.pending or not self._consumer.settled:
            self._last_record_s = monotonic()

    def _due_s(self) -> float:
        return self._begun_s + self._plan.commit_interval_ms / 1000

    def _idle(self) -> bool:
        limit_ms = self._plan.timeout_ms
        return limit_ms is not None and self._work is None and (monotonic() - self._last_record_s) * 1000 >= limit_ms

    async def _rewind(self) -> None:
        """Sets positions back to the committed offsets, after a transaction failed."""
        while self._rewinding and not self._stopping:
            assigned = set(self._consumer.assignment())
            wanted = {tp: first for tp, first in self._rewinding.items() if tp in assigned}
            try:
                committed = await self._consumer.committed(wanted) if wanted else {}
            except WokenUp:
                return
            except RequestTimedOut as error:
                # A transaction with these offsets is open elsewhere, or the coordinator is away.
                log.warning("group %s: the committed offsets are not known yet: %s", self._plan.group, error)
                continue
            for tp, first in wanted.items():
                self._consumer.seek(tp, committed[tp] or first)
            self._rewinding.clear()

    # -- Transactions.

    async def _process(self) -> None:
        """Calls the function for records that were received, and commits if it is due."""
        if self._rewinding:
            # The poll ended in a rebalance, and the transaction was aborted.
            return
        if self._consumer.delivery.pending and not self._stopping:
            if self._work is None:
                self._producer.begin()
                self._work, self._begun_s = Work(self._plan), monotonic()
            work = self._work
            failure = await self._call(work.steps(self._consumer, self._due_s()))
            if failure is not None:
                raise FunctionFailed(failure)
            self._last_record_s = monotonic()
            outputs, work.outputs = work.outputs, []
            for record in outputs:
                await self._producer.send(
                    record.topic, record.value, record.key, record.headers or None, record.partition, record.timestamp_ms
                )  # fmt: skip
        if self._work is not None and (self._work.count >= self._plan.max_batch_records or monotonic() >= self._due_s()):
            await self._commit()

    async def _commit(self) -> None:
        """Commits the open transaction with its offsets. Raises: KafkaError."""
        work = self._work
        if work is None:
            return
        group, positions = self._consumer.group_metadata(), self._consumer.positions()
        if group.generation_id < 0 or not work.firsts.keys() <= positions.keys():
            # Without a generation the coordinator would accept the offsets of a member that lost its partitions.
            raise CommitFailed(f"group {self._plan.group}: this member was removed from the group; its records are processed by others")
        await self._producer.send_offsets_to_transaction({tp: positions[tp] for tp in work.firsts}, group)
        while True:
            try:
                await self._producer.commit()
                break
            except RequestTimedOut as error:
                # Only the coordinator knows the outcome.
                log.warning("group %s: %s", self._plan.group, error)
        self._work = None
        self._processed += work.count
        self._attempts = 0
        self._backoff.succeeded()

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        """A step of the transaction. After an error that may pass the transaction is aborted. Raises: other errors."""
        try:
            await step()
        except KafkaError as error:
            self._attempts += 1
            cause = error.__cause__ if isinstance(error, TransactionAbortable) and isinstance(error.__cause__, KafkaError) else error
            if cause.kind is ErrorKind.INVALID_CONFIGURATION or self._attempts >= self._plan.max_attempts:
                raise
            count = 0 if self._work is None else self._work.count
            log.warning("group %s: a transaction of %d records is aborted, and they are read again: %s", self._plan.group, count, error)
            await self._abort()
            await asyncio.sleep(self._backoff.failed() / 1000)
            self._last_record_s = monotonic()

    async def _abort(self) -> None:
        """Aborts the open transaction; its records are read again. A producer that can no longer be used is replaced."""
        if self._work is not None:
            self._rewinding |= self._work.firsts
            self._work = None
        while self._producer.transactions.is_open:
            try:
                await self._producer.abort()
            except RequestTimedOut as error:
                log.warning("group %s: %s", self._plan.group, error)
            except KafkaError as error:
                log.warning("group %s: the producer is replaced: %s", self._plan.group, error)
                break
        if self._producer.transactions.has_failed:
            await self._producer.close(0)
            self._producer = Producer(**self._plan.producer)
            await self._initialize()

    # -- Rebalances, inside of a poll.

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Commits before the partitions are released."""
        await self._attempt(self._commit)

    async def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Aborts: other members have the partitions."""
        if self._work is not None:
            log.warning("group %s: partitions were lost; a transaction of %d records is aborted", self._plan.group, self._work.count)
        await self._abort()

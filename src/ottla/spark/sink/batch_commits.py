"""Commits the transactions of a batch's tasks, all or none, in the driver. Nothing outside the brokers is needed to finish after a crash.

    tasks    write, each in a transaction of its own, and leave it open
    driver   1  InitProducerId of the driver's id: another driver of the application is fenced, its unfinished decision aborted
             2  read the last decision; if its transactions may be open still, commit them, whatever batch it is of
             3  list the open transactions of tasks, and check that those of this batch are among them
             4  decide: one transaction of the driver commits the decision (decision.py)
             5  EndTxn: commit the transactions of the decision, and wait for their markers; abort all others of step 3
             6  note with the decision that step 5 is done

A batch that was decided before, and that Spark runs again after a crash, is not decided again: its new transactions are aborted, and those
of the decision are committed if that was not done. An attempt whose message does not reach the driver takes no part.

Step 3 comes before step 4: when the decision is committed, no other driver has decided since step 1. So the transactions that were listed
belong to this batch or to earlier ones, and all but those of the decision can be aborted.

The decisions of the steps 4 and 6, and one that a batch is written again, are made under one chain of identities: if another driver was
initialized since step 1, they fail, and that driver finishes the batch.

A transaction without two-phase commit may time out between the steps 4 and 5, if the driver dies and does not come back. The batch is then
decided to be written again: rows of its other tasks are in the topic twice, and none is missing.

Source: KIP-98, KIP-447, KIP-939.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Self, TypeVar

from ottla.base.ids import TopicPartition
from ottla.client.admin import groups, topics, transactions
from ottla.client.admin.calls import AdminCalls, good
from ottla.client.admin.results import NewTopic
from ottla.client.admin.transaction_results import TransactionDescription, TransactionState
from ottla.client.errors import BrokerIncompatible
from ottla.client.options import AdminOptions, from_keywords
from ottla.client.producer.transaction_requests import (
    CoordinatorRequests,
    PreparedTransaction,
    adds_implicitly,
    end_transaction,
    error_code,
)
from ottla.client.sync.loop_thread import LoopThread
from ottla.client.transport.backoff import Backoff
from ottla.spark.sink.decision import (
    DECISIONS_PARTITIONS,
    DECISIONS_TOPIC,
    Names,
    Participant,
    SinkDecision,
    decoded,
    encoded,
)
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages import (
    AddOffsetsToTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from ottla.wire.messages.find_coordinator import GROUP, TRANSACTION
from ottla.wire.messages.txn_offset_commit import TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic

log = logging.getLogger("ottla.spark")

#: Timeout of the driver's own transaction.
DECISION_TIMEOUT_MS = 60_000
#: First wait for markers, which are written within milliseconds.
MARKERS_MS = 2
#: EndTxn requests at a time.
ENDS_AT_ONCE = 64
#: InitProducerId: last version without two-phase commit. TxnOffsetCommit: first version that adds the group, last with topic names.
INIT_UNTIL, ADDS_GROUP_SINCE, NAMES_UNTIL = 5, 5, 5
NO_TASKS: Mapping[str, Participant] = {}
#: Errors of EndTxn for a transaction that was aborted before.
GONE = (errors.ProducerFenced, errors.InvalidProducerEpoch, errors.InvalidTxnState, errors.InvalidProducerIdMapping)


class SinkFenced(RuntimeError):
    """A later start of the same query has committed a batch, so this one may not go on."""


class TransactionLost(RuntimeError):
    """The transaction of a task was aborted before its batch was decided. Spark has to run the batch again."""


@dataclass(frozen=True, slots=True)
class BatchToCommit:
    """A batch to commit: its number, the start of the query, and the transactions of its tasks."""

    number: int
    run: str
    tasks: tuple[Participant, ...]
    #: As in `SinkDecision`.
    content: int = 0


T = TypeVar("T")


class BatchCommits:
    """The batches of one application. Belongs to one event loop."""

    def __init__(self, names: Names, settings: Mapping[str, Any], rng: Random) -> None:
        self.names = names
        self._rng = rng
        self._calls = AdminCalls(from_keywords(AdminOptions, settings), rng)
        self._requests = CoordinatorRequests(self._calls.network, TRANSACTION)
        self._groups = CoordinatorRequests(self._calls.network, GROUP)

    async def close(self) -> None:
        await self._calls.close()

    # -- Batches with a number.

    async def commit(self, batch: BatchToCommit) -> bool:
        """Commits the batch, unless it was committed before: then False, and its transactions are aborted.

        Raises: SinkFenced, TransactionLost: the batch is not committed, and its transactions are aborted; KafkaError: the outcome is not
        known; `abort` finds it out.
        """
        own = self._tasks(batch.number, batch.run, batch.tasks)
        driver, before = await self._begin()
        while not before.is_ended and not before.fences(batch.run):
            # Also an earlier batch: a driver that died, and did not run it again.
            await self._finish(before, batch.run, driver, own)
            driver, before = await self._begin()
        if before.fences(batch.run):
            await self._end(own, commit=False)
            raise SinkFenced(
                f"batch {batch.number} of {self.names.application} was not committed: a later start of the query has committed a batch;"
                " stop this one"
            )
        if before.has(batch.number, batch.content):
            await self._end(own, commit=False)
            return False
        if before.batch < 0:
            await self._create_topic()
        open_ones = await self._open(own)
        lost = _lost(own, open_ones)
        if lost:
            await self._end(own, commit=False)
            raise TransactionLost(
                f"batch {batch.number} of {self.names.application} was not committed: the transaction of task {lost[0].partition} was"
                " aborted before: it was open for longer than kafka.transaction.timeout.ms, or an administrator aborted it"
            )
        decision = before.next(batch.number, batch.run, batch.tasks, batch.content)
        driver = await self._decide(driver, decision)
        missing, _ = await asyncio.gather(
            self._end(own, commit=True),
            self._abort_others(open_ones, own),
        )
        if missing:
            await self._undo(decision, batch.run, driver, missing)
            raise TransactionLost(
                f"batch {batch.number} of {self.names.application} is written again: the transaction of task {missing[0].partition} was"
                " aborted while the batch was committed"
            )
        await self._note_end(driver, decision)
        return True

    async def abort(self, batch: BatchToCommit) -> None:
        """Aborts the batch's transactions, or finishes the batch if it was decided. Aborts open transactions of other attempts, too: a
        process that was killed cannot do it, and with two-phase commit they have no timeout.
        """
        _, before = await self._begin()
        decided = {} if before.is_ended else self._tasks(before.batch, before.run, before.tasks)
        if before.batch == batch.number and before.tasks == sorted(batch.tasks):
            await self._end(decided, commit=True)
        else:
            await self._end(self._tasks(batch.number, batch.run, batch.tasks), commit=False)
        if not before.fences(batch.run):
            # Those of a later start are its own matter.
            await self._abort_others(await self._open(), decided)

    async def recover(self, run: str) -> SinkDecision:
        """Finishes the last decided batch, aborts the open transactions of tasks of earlier starts, and returns the decision. For the start
        of a query, before its tasks write. Earlier starts are fenced.
        """
        driver, before = await self._begin()
        if before.fences(run):
            raise SinkFenced(f"a later start of {self.names.application} has committed a batch since; stop this one")
        if before.batch < 0:
            await self._abort_others(await self._open())
            return before
        return await self._finish(before, run, driver)

    async def settle(self) -> None:
        """Finishes the last decided batch, if that was not done. For a write whose tasks may use the ids of the last one again."""
        if (await self.decision()).is_ended:
            return
        driver, before = await self._begin()
        if not before.is_ended:
            await self._finish(before, before.runs[-1], driver)

    # -- Writes without a number.

    async def commit_once(self, run: str, tasks: Sequence[Participant]) -> None:
        """Commits the transactions of a write that has no number, without a decision: a driver that dies meanwhile leaves a part.

        Raises: TransactionLost; nothing was committed if a transaction was aborted before.
        """
        own = self._tasks(None, run, tasks)
        open_ones = await self._open(own)
        lost = _lost(own, open_ones)
        missing = lost or await self._end(own, commit=True)
        await self._abort_others(open_ones, {} if lost else own)
        if missing:
            raise TransactionLost(
                f"the write is not committed{'' if lost else ' completely'}: the transaction of task {missing[0].partition} was aborted"
                " before; transactions may be open for kafka.transaction.timeout.ms"
            )

    async def abort_once(self, run: str, tasks: Sequence[Participant]) -> None:
        """Aborts the transactions of a write that has no number."""
        await self._end(self._tasks(None, run, tasks), commit=False)
        await self._abort_others(await self._open())

    # -- Steps.

    def _tasks(self, batch: int | None, run: str, tasks: Iterable[Participant]) -> dict[str, Participant]:
        """The tasks by transactional id. `batch`: the number, if it has one."""
        return {self.names.task(run, one.partition, one.attempt, batch): one for one in tasks}

    async def decision(self) -> SinkDecision:
        """The last decision."""
        group = self.names.driver
        wanted = {group: [TopicPartition(DECISIONS_TOPIC, part) for part in range(DECISIONS_PARTITIONS)]}
        found = good((await groups.list_consumer_group_offsets(self, wanted, require_stable=True))[group])
        committed = {tp.partition: one for tp, one in found.items() if one is not None and not isinstance(one, KafkaError)}
        return decoded({part: one.metadata for part, one in committed.items()})

    async def _begin(self) -> tuple[PreparedTransaction, SinkDecision]:
        """The identity for the next decision, and the last decision. Fences other drivers."""
        driver = await self._initialize()
        return driver, await self.decision()

    async def _initialize(self) -> PreparedTransaction:
        """The identity for the next decision. Fences other drivers."""
        request = InitProducerIdRequest(transactional_id=self.names.driver, transaction_timeout_ms=DECISION_TIMEOUT_MS)
        response: InitProducerIdResponse = await self._requests.ask(
            self.names.driver,
            InitProducerIdRequest,
            lambda version: request,
            error_code,
            at_most=INIT_UNTIL,
            deadline_ms=self._deadline_ms(),
        )
        return PreparedTransaction(response.producer_id, response.producer_epoch)

    async def _decide(self, driver: PreparedTransaction, decision: SinkDecision) -> PreparedTransaction:
        """Commits a decision in a transaction. Returns the identity for the next one, under which nobody else has decided in between.

        Raises: ProducerFenced if another driver was initialized since.
        """
        name, implicit = self.names.driver, adds_implicitly(self._calls.network)
        if not implicit:
            add = AddOffsetsToTxnRequest(transactional_id=name, producer_id=driver.producer_id, producer_epoch=driver.epoch, group_id=name)
            await self._requests.ask(
                name, AddOffsetsToTxnRequest, lambda version: add, error_code, deadline_ms=self._deadline_ms()
            )  # fmt: skip
        parts = [
            TxnOffsetCommitRequestPartition(partition_index=part, committed_offset=max(decision.batch, 0), committed_metadata=text)
            for part, text in enumerate(encoded(decision))
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=name,
            producer_id=driver.producer_id,
            producer_epoch=driver.epoch,
            generation_id=-1,
            topics=[TxnOffsetCommitRequestTopic(name=DECISIONS_TOPIC, partitions=parts)],
        )
        await self._groups.ask(
            name,
            TxnOffsetCommitRequest,
            lambda version: request,
            _first_error,
            at_least=ADDS_GROUP_SINCE if implicit else 0,
            at_most=NAMES_UNTIL if implicit else ADDS_GROUP_SINCE - 1,
            deadline_ms=self._deadline_ms(),
        )
        return await end_transaction(self._calls.network, name, *driver, commit=True, timeout_ms=self._limit_ms)

    async def _finish(
        self, before: SinkDecision, run: str, driver: PreparedTransaction, kept: Mapping[str, Participant] = NO_TASKS
    ) -> SinkDecision:
        """Commits what was decided, and aborts the other open transactions of tasks but `kept`. Returns the decision that holds then."""
        open_ones = await self._open()
        decided = {} if before.is_ended else self._tasks(before.batch, before.run, before.tasks)
        confirmed = before.under(run)
        # Other starts are fenced from here on, so none of the open transactions will be decided.
        driver = await self._decide(driver, confirmed)
        missing = await self._end(decided, commit=True)
        await self._abort_others(open_ones, {**decided, **kept})
        if missing:
            return await self._undo(before, run, driver, missing)
        return confirmed if before.is_ended else await self._note_end(driver, confirmed)

    async def _note_end(self, driver: PreparedTransaction, decision: SinkDecision) -> SinkDecision:
        """Notes that everything decided is committed. Returns the decision that holds then."""
        try:
            await self._decide(driver, decision.completed())
        except KafkaError as error:
            # The next start, or the driver that has fenced this one, commits the same transactions again, which changes nothing.
            log.info("batch %d of %s is committed; this was not noted: %s", decision.batch, self.names.application, error)
            return decision
        return decision.completed()

    async def _undo(self, decision: SinkDecision, run: str, driver: PreparedTransaction, missing: Sequence[Participant]) -> SinkDecision:
        """Decides that the batch is written again, because transactions of it are gone. Raises: ProducerFenced if another driver was
        initialized since: that one decides.
        """
        log.warning(
            "batch %d of %s is written again: %d of its %d transactions were aborted before they could be committed; the rows of the others"
            " will be in the topic twice",
            decision.batch, self.names.application, len(missing), len(decision.tasks),
        )  # fmt: skip
        undone = decision.undone(run)
        await self._decide(driver, undone)
        return undone

    async def _open(self, names: Iterable[str] = ()) -> dict[str, TransactionDescription]:
        """The transactions of these ids, and the open ones of this application's tasks."""
        pattern, states = self.names.of_tasks(), [TransactionState.ONGOING]
        try:
            listed = await transactions.list_transactions(self, states=states, pattern=pattern)
        except BrokerIncompatible:
            # Brokers before Kafka 4.1.
            listed = await transactions.list_transactions(self, states=states)
        wanted = {one.transactional_id for one in listed if re.fullmatch(pattern, one.transactional_id)}.union(names)
        if not wanted:
            return {}
        found = await transactions.describe_transactions(self, wanted)
        return {name: one for name, one in found.items() if not isinstance(one, KafkaError)}

    async def _abort_others(self, found: Mapping[str, TransactionDescription], kept: Mapping[str, Participant] = NO_TASKS) -> None:
        """Aborts open transactions that take no part, also later ones of the same ids. One that ended meanwhile is left."""
        others = [one for name, one in found.items() if one.state is TransactionState.ONGOING and not _is_open(one, kept.get(name))]
        if adds_implicitly(self._calls.network):
            await self._end_each(
                [(one.transactional_id, PreparedTransaction(one.producer_id, one.producer_epoch)) for one in others], commit=False
            )
            return
        # Before transaction.version 2, EndTxn leaves the producer its epoch. A task that still writes would go on in another transaction of
        # the same identity, without the rows of this one.
        fenced = await transactions.fence_producers(self, [one.transactional_id for one in others]) if others else {}
        for outcome in fenced.values():
            good(outcome)

    async def _end(self, tasks: Mapping[str, Participant], *, commit: bool) -> list[Participant]:
        """Ends the transactions of tasks. Returns those that have the other outcome."""
        ended = await self._end_each(
            [(name, PreparedTransaction(one.producer_id, one.epoch)) for name, one in tasks.items()], commit=commit
        )  # fmt: skip
        return [one for one, done in zip(tasks.values(), ended, strict=True) if not done]

    async def _end_each(self, identities: Sequence[tuple[str, PreparedTransaction]], *, commit: bool) -> list[bool]:
        """Whether each transaction has this outcome now. Raises: KafkaError, after all others were ended."""
        turn = asyncio.Semaphore(ENDS_AT_ONCE)

        async def end(name: str, identity: PreparedTransaction) -> bool:
            async with turn:
                try:
                    await end_transaction(self._calls.network, name, *identity, commit=commit, timeout_ms=self._limit_ms)
                except GONE:
                    return False
                return True

        outcomes = await asyncio.gather(*(end(*one) for one in identities), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        if commit:
            await self._until_visible([name for name, _ in identities])
        return [bool(outcome) for outcome in outcomes]

    async def _until_visible(self, names: Sequence[str]) -> None:
        """Waits for the markers of decided transactions, so that later readers see the rows: EndTxn is answered before them."""
        backoff = Backoff(MARKERS_MS, self._calls.options.retry_backoff_ms, self._rng)
        waiting, deadline_ms = list(names), self._deadline_ms()
        while waiting:
            found = await transactions.describe_transactions(self, waiting)
            waiting = [name for name, one in found.items() if not isinstance(one, KafkaError) and one.state.is_decided]
            if waiting and self._calls.network.clock_ms() > deadline_ms:
                log.warning("rows of %s are committed and not visible yet: a partition of the transaction has no leader", waiting[0])
                return
            if waiting:
                await asyncio.sleep(backoff.failed() / 1000)

    async def _create_topic(self) -> None:
        wanted = NewTopic(DECISIONS_TOPIC, DECISIONS_PARTITIONS)
        outcome = (await topics.create_topics(self, [wanted]))[DECISIONS_TOPIC]
        if isinstance(outcome, errors.TopicAuthorizationFailed):
            # An administrator may have created it for clients that may not.
            found = (await topics.describe_topics(self, [DECISIONS_TOPIC]))[DECISIONS_TOPIC]
            outcome = outcome if isinstance(found, KafkaError) else errors.TopicAlreadyExists()
        if isinstance(outcome, KafkaError) and not isinstance(outcome, errors.TopicAlreadyExists):
            raise outcome

    @property
    def _limit_ms(self) -> float:
        return float(self._calls.options.default_api_timeout_ms)

    def _deadline_ms(self) -> float:
        return self._calls.network.clock_ms() + self._limit_ms


def _lost(tasks: Mapping[str, Participant], found: Mapping[str, TransactionDescription]) -> list[Participant]:
    """Tasks whose transactions are not open."""
    return [one for name, one in tasks.items() if not _is_open(found.get(name), one)]


def _is_open(found: TransactionDescription | None, one: Participant | None) -> bool:
    return (
        found is not None
        and one is not None
        and found.state is TransactionState.ONGOING
        and (found.producer_id, found.producer_epoch) == (one.producer_id, one.epoch)
    )


def _first_error(response: TxnOffsetCommitResponse) -> int:
    return next((one.error_code for topic in response.topics for one in topic.partitions if one.error_code), 0)


class BlockingCommits:
    """`BatchCommits` for code without an event loop."""

    def __init__(self, names: Names, settings: Mapping[str, Any]) -> None:
        self.names = names
        self._thread = LoopThread("ottla-commits")
        self._commits = self._thread.run(lambda: BatchCommits(names, settings, Random()))

    def call(self, work: Callable[[BatchCommits], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, such as ``lambda commits: commits.recover(run)``."""
        return self._thread.call(work(self._commits))

    def close(self) -> None:
        self._thread.call(self._commits.close())
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Transactions of a producer: the calls, and the requests that they lead to.

    init_transactions   InitProducerId: an identity (producer id, epoch), which fences earlier producers of the transactional id
    begin               no request
    send                version 1: AddPartitionsToTxn before the first batch of a partition; version 2: brokers add it with the batch
    send_offsets_...    version 1: AddOffsetsToTxn, TxnOffsetCommit; version 2: TxnOffsetCommit alone
    commit, abort       the remaining batches (commit), the requests in flight (abort), then EndTxn; version 2: with the next epoch

The version is the cluster's finalized `transaction.version`, read at `begin`. After a failed transaction of version 1 the sequence numbers
are in doubt: InitProducerId with the present identity increments the epoch (KIP-360).

`init_transactions`, `commit` and `abort` run in a task. A caller that times out or is cancelled calls again and waits for the same task.

All methods run on the producer's event loop. The blocking producer adds records in other threads, under `lock`; so the state changes under
it, too. Source: KIP-98, KIP-360, KIP-447, KIP-890, KIP-939.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ottla.base.ids import NO_TOPIC_ID, TopicPartition
from ottla.base.options import ConfigError
from ottla.client.errors import AlreadyClosed, BrokerIncompatible, CommitFailed, TransactionAborted
from ottla.client.group.commits import GroupMetadata, OffsetAndMetadata, OffsetsGiven, offsets_given
from ottla.client.options import ProducerOptions
from ottla.client.producer.batches import NOT_NUMBERED, ProducerBatch, wait_for_batches
from ottla.client.producer.sender import Sender
from ottla.client.producer.transaction_requests import (
    EPOCH_PER_TRANSACTION_SINCE,
    CoordinatorRequests,
    PreparedTransaction,
    adds_implicitly,
    error_code,
)
from ottla.client.producer.transaction_state import FATAL_OF_BATCHES, ProducerTransactionState, TransactionMachine, is_fatal
from ottla.wire import errors
from ottla.wire.errors import KafkaError, error_for
from ottla.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from ottla.wire.messages.add_partitions_to_txn import AddPartitionsToTxnTopic
from ottla.wire.messages.find_coordinator import GROUP, TRANSACTION
from ottla.wire.messages.txn_offset_commit import TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic

log = logging.getLogger("ottla.client")
#: InitProducerId: first versions with the present identity (KIP-360), and with two-phase commit (KIP-939).
IDENTITY_SINCE, TWO_PHASE_SINCE = 3, 6
#: AddPartitionsToTxn: last version of clients.
ADD_PARTITIONS_UNTIL = 3
#: TxnOffsetCommit: first versions with the member (KIP-447), and that add the group's partition (KIP-890); last version with topic names,
#: the next one has topic ids (KIP-1319).
MEMBER_SINCE, ADDS_GROUP_SINCE, NAMES_UNTIL = 3, 5, 5
NO_PRODUCER = PreparedTransaction(-1, -1)
#: Errors of a member that the group removed.
NOT_A_MEMBER = (
    errors.UnknownMemberId.code, errors.IllegalGeneration.code, errors.FencedMemberEpoch.code, errors.StaleMemberEpoch.code,
    errors.GroupIdNotFound.code,
)  # fmt: skip
#: Refreshes of metadata to look up topic ids: one that is in flight may have been requested for other topics.
REFRESHES_MAX = 2


class ProducerTransactions:
    """The transactions of one producer."""

    def __init__(self, sender: Sender, options: ProducerOptions) -> None:
        self._sender = sender
        self._network = sender.network
        self._accumulator = sender.accumulator
        self._lock = sender.lock
        self._options = options
        self._id = options.transactional_id
        self.machine = TransactionMachine(options)
        self._coordinator = CoordinatorRequests(sender.network, TRANSACTION)
        self._groups = CoordinatorRequests(sender.network, GROUP)
        #: Whether brokers add partitions themselves.
        self._implicit = False
        #: The coordinator knows, or may know, of the transaction: it has to be ended there.
        self._started = False
        #: A request to add partitions has no response yet, so the coordinator may know of the transaction.
        self._in_doubt = False
        #: A numbered batch was not acknowledged.
        self._sequences_in_doubt = False
        #: The coordinator does not know the producer id any more, so it cannot end the transaction.
        self._id_expired = False
        #: The coordinator can increment the epoch of the present identity.
        self._can_renew = True
        #: Partitions that are not part of the transaction yet, and the task that adds them.
        self._wanted: set[tuple[str, int]] = set()
        self._adding: asyncio.Task[None] | None = None
        #: Held while offsets are sent.
        self._offsets = asyncio.Lock()
        #: The unfinished call, and its task.
        self._pending: tuple[str, asyncio.Task[None]] | None = None
        #: Identity of the prepared transaction.
        self._prepared: PreparedTransaction | None = None
        accumulator = self._accumulator
        accumulator.admit = self.machine.admit
        accumulator.batch_failed = self._batch_failed
        sender.on_sending = self._sending
        sender.add_partitions = self._add_partitions

    # -- Calls.

    async def init_transactions(self, *, keep_prepared: bool = False) -> None:
        """Gets a producer id and epoch. Earlier producers of this transactional id are fenced, and their open transaction is aborted. To be
        called once, before the first transaction; `transaction()` does it too.

        `keep_prepared`: keeps a prepared transaction of the earlier producer open; end it with `complete()`, `commit()` or `abort()`. Needs
        `transaction_two_phase_commit_enable` (KIP-939).

        Raises: RequestTimedOut after `max_block_ms`: call it again; TransactionalIdAuthorizationFailed; InvalidTransactionTimeout;
        BrokerIncompatible.

        Example: `await producer.init_transactions(keep_prepared=True)`.
        """
        if keep_prepared:
            self._needs_two_phase("init_transactions(keep_prepared=True)")
        await self._finish("init_transactions", ProducerTransactionState.INITIALIZING, lambda: self._initialize(keep_prepared))

    def begin(self) -> None:
        """Begins a transaction: records sent from now on belong to it.

        Raises: RuntimeError while a transaction is open, or before `init_transactions()`; TransactionAbortable, ProducerFenced.

        Example: `producer.begin()`.
        """
        self._check("begin")
        self._implicit = adds_implicitly(self._network)
        self._started = self._in_doubt = self._sequences_in_doubt = self._id_expired = False
        self._prepared = None
        with self._lock:
            self._sender.brokers_add_partitions = self._implicit
            self._accumulator.added = None if self._implicit else set()
            self.machine.move(ProducerTransactionState.IN_TRANSACTION)

    async def send_offsets_to_transaction(self, offsets: OffsetsGiven, group_metadata: GroupMetadata) -> None:
        """Commits offsets of a consumer group in the transaction: the next record to read, by partition, as `Consumer.commit` does.

        `group_metadata` is that of the consumer that read the records. The coordinator refuses the offsets if the member has lost its
        partitions meanwhile (KIP-447). Turn the consumer's `enable_auto_commit` off.

        Raises: CommitFailed, GroupAuthorizationFailed and others, also RequestTimedOut after `max_block_ms`: call `abort()`;
        ProducerFenced.

        Example: `await producer.send_offsets_to_transaction({("orders", 0): 1000}, consumer.group_metadata())`.
        """
        self._check("send_offsets_to_transaction")
        given = offsets_given(offsets)
        if not given:
            return
        async with self._offsets:
            self.machine.check("send_offsets_to_transaction")
            deadline_ms = self._network.clock_ms() + self._options.max_block_ms
            try:
                await self._send_offsets(given, group_metadata, deadline_ms)
            except KafkaError as error:
                self._fail(error, fatal=is_fatal(error))
                raise

    async def prepare(self) -> PreparedTransaction:
        """Sends all records and prepares the transaction, the first phase of two-phase commit (KIP-939): it stays open without a
        timeout, also when this process ends, until it is committed or aborted.

        Store the result. After a restart, pass it to `complete()`, after `init_transactions(keep_prepared=True)`. Needs
        `transaction_two_phase_commit_enable`.

        Raises: TransactionAbortable if a record was not written; ConfigError.

        Example: `await producer.prepare()`.
        """
        self._needs_two_phase("prepare()")
        return await self.hand_over()

    async def hand_over(self) -> PreparedTransaction:
        """`prepare` also without two-phase commit: the transaction stays open when the producer closes, until its timeout, and another
        process ends it with `end_transaction`.
        """
        self._check("prepare")
        self._move(ProducerTransactionState.PREPARED)
        await self._flush()
        self._prepared = self.identity
        return self._prepared

    def adopt(self, transactional_id: str) -> None:
        """Takes another transactional id, between transactions or after `hand_over()`. The producer keeps its connections; call
        `init_transactions()` next.

        Raises: as `begin`.
        """
        self._check("adopt")
        with self._lock:
            self._accumulator.producer = None
            self._options.transactional_id = self._id = self._sender.transactional_id = transactional_id
            self._prepared = None
            if self.machine.state is not ProducerTransactionState.UNINITIALIZED:
                self.machine.move(ProducerTransactionState.UNINITIALIZED)

    async def commit(self) -> None:
        """Sends all records of the transaction, and commits it when they are written.

        Raises: TransactionAbortable if a record was not written: call `abort()`; ProducerFenced; RequestTimedOut after `max_block_ms`: call
        `commit()` again, because the outcome is not known.

        Example: `await producer.commit()`.
        """
        await self._finish("commit", ProducerTransactionState.COMMITTING, self._commit)

    async def abort(self) -> None:
        """Aborts the transaction: records that were not sent fail with TransactionAborted, and read_committed consumers skip the others.

        Raises: ProducerFenced; RequestTimedOut after `max_block_ms`: call `abort()` again.

        Example: `await producer.abort()`.
        """
        self._raise_if_fatal()
        await self._finish("abort", ProducerTransactionState.ABORTING, self._abort)

    async def complete(self, prepared: PreparedTransaction) -> None:
        """Commits the prepared transaction if it is this one, and aborts it otherwise; without one, does nothing (KIP-939).

        Raises: errors of `commit` and `abort`; ConfigError without `transaction_two_phase_commit_enable`.

        Example: `await producer.complete(prepared)`.
        """
        self._needs_two_phase("complete()")
        if self._pending is not None and self._pending[0] in ("commit", "abort"):
            await (self.commit() if self._pending[0] == "commit" else self.abort())
            return
        self._check("complete")
        if self.machine.state is ProducerTransactionState.PREPARED:
            await (self.commit() if prepared == self._prepared else self.abort())

    # -- For the producers.

    @property
    def identity(self) -> PreparedTransaction:
        """Producer id and epoch of the present transaction, or of the next one; (-1, -1) before `init_transactions`."""
        producer = self._accumulator.producer
        return NO_PRODUCER if producer is None else PreparedTransaction(*producer)

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction to commit or to abort."""
        return self.machine.state not in (
            ProducerTransactionState.UNINITIALIZED,
            ProducerTransactionState.INITIALIZING,
            ProducerTransactionState.READY,
            ProducerTransactionState.FATAL_ERROR,
        )

    @property
    def has_failed(self) -> bool:
        """Whether the producer can only be closed."""
        return self.machine.state is ProducerTransactionState.FATAL_ERROR

    async def enter(self) -> None:
        """Begins the transaction of a `with` block."""
        if self.machine.state in (ProducerTransactionState.UNINITIALIZED, ProducerTransactionState.INITIALIZING):
            await self.init_transactions()
        self.begin()

    async def leave(self, error: BaseException | None) -> None:
        """Ends the transaction of a `with` block: commits it, or aborts it after an exception. One that the block ended itself, or
        prepared, is left.

        Raises: errors of `commit`; after an exception only a fatal error of `abort`.
        """
        if self.machine.state not in (ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.ABORTABLE_ERROR):
            self._raise_if_fatal()
            return
        if error is None:
            try:
                await self.commit()
            except errors.TransactionAbortable:
                await self.abort()
                raise
            return
        try:
            await self.abort()
        except KafkaError as failed:
            self._raise_if_fatal()
            error.add_note(f"the transaction of {self._id!r} was not aborted: {failed}")

    async def close(self, timeout_ms: float | None) -> None:
        """Ends the open transaction before the producer closes: an unfinished `commit` is awaited, anything else but a prepared transaction
        is aborted. Errors are logged: the coordinator aborts the transaction after its timeout.
        """
        state = self.machine.state
        if state not in (
            ProducerTransactionState.IN_TRANSACTION,
            ProducerTransactionState.ABORTABLE_ERROR,
            ProducerTransactionState.COMMITTING,
            ProducerTransactionState.ABORTING,
        ):
            return
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await (self.commit() if state is ProducerTransactionState.COMMITTING else self.abort())
        except (KafkaError, TimeoutError) as error:
            log.warning("the open transaction of %s was not ended before the producer closed: %s", self._id, error or "no time was left")

    # -- States.

    def _check(self, call: str) -> None:
        """Raises: as `TransactionMachine.check`; RuntimeError if a call that timed out has to be repeated first."""
        if self._pending is not None and self.machine.error is None:
            before = self._pending[0]
            raise RuntimeError(f"{call}() is not allowed: {before}() has not returned; call {before}() again to learn its outcome")
        self.machine.check(call)

    def _needs_two_phase(self, call: str) -> None:
        if not self._options.transaction_two_phase_commit_enable:
            raise ConfigError("transaction_two_phase_commit_enable", f"{call} needs it: transactions have a timeout otherwise")

    def _raise_if_fatal(self) -> None:
        if self.machine.state is ProducerTransactionState.FATAL_ERROR:
            self.machine.raise_error()

    def _move(self, state: ProducerTransactionState) -> None:
        with self._lock:
            self.machine.move(state)

    def _fail(self, error: KafkaError, *, fatal: bool) -> None:
        """The transaction failed, or the producer."""
        with self._lock:
            self._failed(error, fatal=fatal)
        self._sender.wake()

    def _failed(self, error: KafkaError, *, fatal: bool) -> None:
        """With the lock."""
        before = self.machine.state
        self.machine.fail(error, fatal=fatal)
        after = self.machine.state
        if after is not before:
            self._id_expired = error.code == errors.InvalidProducerIdMapping.code
            log.info("transactional_id %s: %s after: %s", self._id, after.value, error)
            self._accumulator.stopped = error if after is ProducerTransactionState.FATAL_ERROR else TransactionAborted(
                f"the record was not sent, because its transaction failed before: {error}"
            )  # fmt: skip

    def _batch_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        """With the lock: the sender gave up a batch."""
        if batch.sequence != NOT_NUMBERED:
            self._sequences_in_doubt = True
        if not isinstance(error, TransactionAborted | AlreadyClosed):
            self._failed(error, fatal=error.code in FATAL_OF_BATCHES)

    async def _finish(self, call: str, state: ProducerTransactionState, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs the call in a task, or waits for the task of the same call that was made before."""
        if self._pending is None or self._pending[0] != call:
            self._check(call)
            if self.machine.state is ProducerTransactionState.ABORTABLE_ERROR:
                # Whatever was unfinished has failed.
                self._pending = None
            self._move(state)
            self._pending = (call, self._network.spawn(work()))
        task = self._pending[1]
        limit_ms = self._options.max_block_ms
        await asyncio.wait([task], timeout=limit_ms / 1000)
        if not task.done():
            last = "" if self._coordinator.last_error is None else f", last error: {self._coordinator.last_error}"
            raise errors.RequestTimedOut(
                f"{call}() has not finished within {limit_ms} ms (max_block_ms){last}; call {call}() again to learn its outcome"
            )
        if self._pending is not None and self._pending[1] is task:
            self._pending = None
        if task.cancelled():
            raise AlreadyClosed("the producer was closed before the transaction ended")
        task.result()

    # -- InitProducerId.

    async def _initialize(self, keep_prepared: bool) -> None:
        try:
            response = await self._init_producer_id(NO_PRODUCER, keep_prepared)
        except KafkaError:
            self._move(ProducerTransactionState.UNINITIALIZED)
            raise
        prepared = PreparedTransaction(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
        if prepared.producer_id >= 0:
            self._prepared, self._started, self._implicit = prepared, True, adds_implicitly(self._network)
            self._move(ProducerTransactionState.PREPARED)
        else:
            self._move(ProducerTransactionState.READY)

    async def _init_producer_id(self, present: PreparedTransaction, keep_prepared: bool = False) -> InitProducerIdResponse:
        """Sets the next identity. Raises: KafkaError."""
        two_phase = self._options.transaction_two_phase_commit_enable

        def build(version: int) -> InitProducerIdRequest:
            self._can_renew = version >= IDENTITY_SINCE
            return InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=self._options.transaction_timeout_ms,
                producer_id=present.producer_id,
                producer_epoch=present.epoch,
                enable2_pc=two_phase,
                keep_prepared_txn=keep_prepared,
            )

        at_least = TWO_PHASE_SINCE if two_phase else 0 if present == NO_PRODUCER else IDENTITY_SINCE
        try:
            response: InitProducerIdResponse = await self._coordinator.ask(
                self._id,
                InitProducerIdRequest,
                build,
                error_code,
                at_least=at_least,
                at_most=1000 if two_phase else TWO_PHASE_SINCE - 1,
            )
        except BrokerIncompatible as error:
            if not two_phase:
                raise
            raise BrokerIncompatible(
                f"two-phase commit needs version {TWO_PHASE_SINCE} of InitProducerId, which brokers serve with"
                f" transaction.two.phase.commit.enable: {error}"
            ) from None
        except errors.InvalidTransactionTimeout as error:
            limit = f"transaction_timeout_ms is {self._options.transaction_timeout_ms}, and the brokers' transaction.max.timeout.ms is less"
            raise errors.InvalidTransactionTimeout(f"{limit}: {error}") from None
        self._renewed(response.producer_id, response.producer_epoch)
        return response

    def _renewed(self, producer_id: int, epoch: int) -> None:
        if producer_id >= 0:
            with self._lock:
                self._accumulator.producer = (producer_id, epoch)

    # -- Partitions.

    def _sending(self) -> None:
        """Called by the sender before it sends batches."""
        self._started = True

    def _add_partitions(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Called by the sender: batches wait for these partitions."""
        self._wanted.update(partitions)
        if self._adding is None:
            self._adding = self._network.spawn(self._add_all())

    def _accepting(self) -> bool:
        """Whether batches may still be sent."""
        return self.machine.state in (
            ProducerTransactionState.IN_TRANSACTION,
            ProducerTransactionState.PREPARED,
            ProducerTransactionState.COMMITTING,
        )

    async def _add_all(self) -> None:
        try:
            while self._wanted and self._accepting():
                await self._add(sorted(self._wanted))
        except KafkaError as error:
            self._fail(error, fatal=is_fatal(error))
        finally:
            self._wanted.clear()
            self._adding = None
            self._sender.wake()

    async def _add(self, partitions: list[tuple[str, int]]) -> None:
        """Adds partitions with AddPartitionsToTxn. Raises: KafkaError."""
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, AddPartitionsToTxnTopic(name=topic, partitions=[])).partitions.append(partition)
        producer_id, epoch = self.identity
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=list(topics.values()),
        )
        self._in_doubt = True
        await self._coordinator.ask(
            self._id,
            AddPartitionsToTxnRequest,
            lambda version: request,
            _worst_of_partitions,
            at_most=ADD_PARTITIONS_UNTIL,
            wanted=self._accepting,
        )
        with self._lock:
            self._started, self._in_doubt = True, False
            if self._accumulator.added is not None:
                self._accumulator.added.update(partitions)
        self._wanted.difference_update(partitions)

    # -- Offsets.

    async def _send_offsets(self, offsets: dict[TopicPartition, OffsetAndMetadata], group: GroupMetadata, deadline_ms: float) -> None:
        producer_id, epoch = self.identity
        topic_ids = await self._look_up({tp.topic for tp in offsets}, deadline_ms) if self._implicit else {}
        if not self._implicit:
            add = AddOffsetsToTxnRequest(
                transactional_id=self._id, producer_id=producer_id, producer_epoch=epoch, group_id=group.group_id
            )  # fmt: skip
            self._in_doubt = True
            await self._coordinator.ask(
                self._id, AddOffsetsToTxnRequest, lambda version: add, error_code, deadline_ms=deadline_ms, wanted=self._accepting
            )
            self._in_doubt = False
        self._started = True
        request = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group.group_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=_topics_of(offsets, topic_ids),
        )
        try:
            await self._commit_offsets(request, topic_ids, deadline_ms)
        except KafkaError as error:
            if error.code in NOT_A_MEMBER:
                raise CommitFailed(
                    f"group {group.group_id}: its offsets are not part of the transaction, because the member has lost its partitions"
                    f" ({error}); call abort() and poll again: the records are read again by their present owner"
                ) from error
            gone = self._gone(topic_ids) if error.retriable else None
            if gone is not None:
                raise CommitFailed(
                    f"group {group.group_id}: its offsets are not part of the transaction, because topic {gone} was deleted, or deleted and"
                    f" created again ({error}); call abort() and poll again"
                ) from error
            raise

    async def _look_up(self, topics: set[str], deadline_ms: float) -> dict[str, bytes]:
        """Ids of topics, none if one of them is not known. Refreshes metadata for topics that this producer does not write to."""
        network, now_ms = self._network, self._network.clock_ms()
        cluster = network.cluster
        for topic in topics:
            cluster.want(topic, now_ms, create=False)
        for _ in range(REFRESHES_MAX):
            if all(cluster.partition_count(topic) is not None for topic in topics):
                break
            # Without the ids, topics are named.
            with suppress(KafkaError, TimeoutError):
                async with asyncio.timeout((deadline_ms - now_ms) / 1000):
                    await network.refresh()
        found = {topic: cluster.topic_id(topic) for topic in sorted(topics)}
        return {} if NO_TOPIC_ID in found.values() else found

    async def _commit_offsets(self, request: TxnOffsetCommitRequest, topic_ids: Mapping[str, bytes], deadline_ms: float) -> None:
        """TxnOffsetCommit, until it succeeds or one of the topics is gone. Raises: KafkaError."""
        is_member = request.generation_id >= 0 or request.member_id

        def code_of(response: TxnOffsetCommitResponse) -> int:
            codes = [each.error_code for topic in response.topics for each in topic.partitions]
            if errors.UnknownTopicId.code in codes:
                self._network.cluster.invalidate()
                self._sender.wake()
            return _worst(codes)

        await self._groups.ask(
            request.group_id,
            TxnOffsetCommitRequest,
            lambda version: request,
            code_of,
            deadline_ms=deadline_ms,
            at_least=ADDS_GROUP_SINCE if self._implicit else MEMBER_SINCE if is_member else 0,
            at_most=ADDS_GROUP_SINCE - 1 if not self._implicit else 1000 if topic_ids else NAMES_UNTIL,
            wanted=lambda: self._accepting() and self._gone(topic_ids) is None,
        )

    def _gone(self, topic_ids: Mapping[str, bytes]) -> str | None:
        """A topic that does not have this id any more. Its offsets do not apply to a topic that was created with its name since."""
        cluster, now_ms = self._network.cluster, self._network.clock_ms()
        for topic, topic_id in topic_ids.items():
            if cluster.topic_id(topic) not in (NO_TOPIC_ID, topic_id) or cluster.deleted(topic, None, now_ms) is not None:
                return topic
        return None

    # -- The end.

    async def _flush(self) -> None:
        """Sends all batches. Raises: TransactionAbortable or the fatal error if one failed."""
        with self._lock:
            waiting = self._accumulator.close_open()
        self._sender.wake()
        await wait_for_batches(waiting, None)
        async with self._offsets:
            if self.machine.error is not None:
                self.machine.raise_error()

    async def _commit(self) -> None:
        await self._flush()
        try:
            await self._end(commit=True)
        except KafkaError as error:
            self._fail(error, fatal=is_fatal(error))
            self.machine.raise_error()
        self._move(ProducerTransactionState.READY)

    async def _abort(self) -> None:
        stopped = TransactionAborted()
        with self._lock:
            self._accumulator.stopped = stopped
        self._sender.wake()
        await self._sender.until_idle()
        if self._adding is not None:
            await asyncio.wait([self._adding])
        async with self._offsets:
            pass
        with self._lock:
            self._accumulator.fail_unsent(stopped)
        self._sender.wake()
        try:
            if not self._id_expired:
                await self._end(commit=False)
            if self._id_expired or (self._sequences_in_doubt and not self._implicit):
                await self._renew()
        except KafkaError as error:
            self._fail(error, fatal=True)
            self.machine.raise_error()
        with self._lock:
            self._accumulator.stopped = None
            self.machine.move(ProducerTransactionState.READY)

    async def _renew(self) -> None:
        """The next epoch of the present identity. Raises: KafkaError."""
        if not self._can_renew:
            raise errors.InvalidTxnState(
                "the sequence numbers of a record that failed are in doubt, and the brokers cannot increment the epoch (before Kafka 2.5)"
            )
        await self._init_producer_id(self.identity)

    async def _end(self, *, commit: bool) -> None:
        """EndTxn, unless the coordinator does not know of the transaction. Raises: KafkaError."""
        if not self._started and not self._in_doubt:
            return
        producer_id, epoch = self.identity
        request = EndTxnRequest(transactional_id=self._id, producer_id=producer_id, producer_epoch=epoch, committed=commit)
        try:
            response: EndTxnResponse = await self._coordinator.ask(
                self._id,
                EndTxnRequest,
                lambda version: request,
                error_code,
                at_least=EPOCH_PER_TRANSACTION_SINCE if self._implicit else 0,
                at_most=1000 if self._implicit else EPOCH_PER_TRANSACTION_SINCE - 1,
            )
        except errors.InvalidTxnState:
            if commit or self._started:
                raise
            # The request that would have begun the transaction was never processed.
            return
        self._renewed(response.producer_id, response.producer_epoch)


def _worst_of_partitions(response: AddPartitionsToTxnResponse) -> int:
    """The code that decides about an AddPartitionsToTxn: one that ends the transaction, else one to retry, else 0."""
    codes = [each.partition_error_code for topic in response.results_by_topic_v3_and_below for each in topic.results_by_partition]
    return _worst(codes)


def _worst(codes: list[int]) -> int:
    wrong = [code for code in codes if code]
    if not wrong:
        return 0

    def rank(code: int) -> tuple[bool, bool]:
        return code == errors.OperationNotAttempted.code, error_for(code).retriable

    return min(wrong, key=rank)


def _topics_of(offsets: dict[TopicPartition, OffsetAndMetadata], topic_ids: Mapping[str, bytes]) -> list[TxnOffsetCommitRequestTopic]:
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for tp, kept in offsets.items():
        topic_id = topic_ids.get(tp.topic, NO_TOPIC_ID)
        topic = topics.setdefault(tp.topic, TxnOffsetCommitRequestTopic(name=tp.topic, topic_id=topic_id, partitions=[]))
        topic.partitions.append(
            TxnOffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=kept.offset,
                committed_leader_epoch=kept.leader_epoch,
                committed_metadata=kept.metadata,
            )
        )
    return list(topics.values())

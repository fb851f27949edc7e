"""The transactional part of a simulated client: what Kafka's producer sends for a transaction, and what it does after each error.

A client has the rules of one ``transaction.version``::

    version  partitions            offsets             EndTxn  next epoch
    1        AddPartitionsToTxn    AddOffsetsToTxn     4       the same; InitProducerId after a batch with unknown outcome (KIP-360)
    2        Produce 12 adds them  TxnOffsetCommit 5,  5       from the response of EndTxn (KIP-890)
                                   or 6 by topic id

A request without a response is sent again, with the same sequence numbers. An error that another attempt cannot change aborts the
transaction; an error that names the identity ends the client, because another one has its place.

As Kafka's Java producer, it sends several batches of a partition without waiting for the first. The first unacknowledged one is never out
of order, whatever happened to it.

Version 1 cannot tell a late request of one transaction from one of the next, so its clients do not run where requests may be late.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from ottla.base.ids import TopicPartition
from ottla.broker.transactions.transactions import TRANSACTIONS_TOPIC
from ottla.client.group.assignor import by_topic
from ottla.records.build import build_batch
from ottla.records.compression import Codec
from ottla.sim.checkers.transactions import ObservedTransaction, Place
from ottla.sim.client_connection import RETRY_MS, Caller
from ottla.sim.client_process import ClientProcess, Program, Wait, all_of
from ottla.sim.group_environment import Callers, GroupBrokers
from ottla.sim.network import Network
from ottla.sim.world import EPOCH_MS, World
from ottla.wire import errors
from ottla.wire import messages as m
from ottla.wire.messages.add_partitions_to_txn import AddPartitionsToTxnTopic
from ottla.wire.messages.find_coordinator import GROUP, TRANSACTION
from ottla.wire.messages.txn_offset_commit import TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic

#: Timeout of a request, until another broker is tried.
TIMEOUT_MS = 1_500
#: Versions of requests by ``transaction.version``.
PRODUCE = {1: 11, 2: 12}
END = {1: 4, 2: 5}
OFFSET_COMMIT = {1: 4, 2: 5}
#: TxnOffsetCommit with topic ids, for every second generation or member epoch of clients of version 2.
OFFSETS_BY_ID = 6
#: Errors after which a coordinator is looked up again.
MOVED = frozenset((errors.CoordinatorNotAvailable.code, errors.NotCoordinator.code))
#: Errors after which the same request is sent again, besides those that the protocol calls retriable.
AGAIN = frozenset((errors.UnknownServerError.code, errors.ConcurrentTransactions.code))
#: Errors of a client whose identity is not the present one.
FENCED = frozenset((errors.ProducerFenced.code, errors.InvalidProducerEpoch.code, errors.InvalidProducerIdMapping.code))


class TransactionListener(Protocol):
    """Receives what transactional clients do."""

    #: Faults are over, and clients finish what they began.
    calm: bool

    def begin(self, transactional_id: str, client: str, name: str) -> ObservedTransaction: ...

    def tick(self) -> int:
        """The number of the present event."""
        ...

    def identified(self, transactional_id: str, name: str, *, asked: int) -> None:
        """A client got an identity that it asked for at this time."""
        ...

    def acknowledged(self, count: int) -> None: ...

    def topic_id(self) -> bytes:
        """The id of the topic whose offsets are committed."""
        ...

    def complaint(self, text: str) -> None: ...


class PendingBatch(NamedTuple):
    """An unacknowledged batch."""

    sequence: int
    records: int
    data: bytearray


class GroupMember(NamedTuple):
    """Who commits offsets."""

    group: str
    member_id: str
    generation: int
    instance_id: str | None


def again(code: int) -> bool:
    """Whether the same request is sent again after this error."""
    return code in AGAIN or errors.error_for(code).retriable


class Settings(NamedTuple):
    """What a client is told. ``version``: of transactions, as in ``transaction.version``."""

    transactional_id: str
    name: str
    version: int
    timeout_ms: int


class TransactionalClient:
    """One client with a transactional id, as part of a process."""

    def __init__(
        self,
        world: World,
        network: Network,
        stage: GroupBrokers,
        history: TransactionListener,
        process: ClientProcess,
        settings: Settings,
        *,
        rng: Random,
    ) -> None:
        self.name = settings.name
        #: Another client has its place.
        self.fenced = False
        self._world = world
        self._stage = stage
        self._history = history
        self._process = process
        self._id, _, self._version, self._timeout_ms = settings
        self._rng = rng
        self._callers = Callers(world, network, stage, settings.name)
        self._producer_id = self._epoch = -1
        self._sequences: dict[Place, int] = {}
        self._count = 0
        self._transaction: ObservedTransaction | None = None
        #: Partitions that were added; version 1.
        self._added: set[Place] = set()
        #: Whether anything was sent for the transaction.
        self._started = False
        #: Whether a batch of the transaction may still arrive, or be missing in the order of sequences.
        self._doubtful = False

    def hang_up(self) -> None:
        self._callers.hang_up()

    # Identity.

    def initialize(self) -> Program:
        """Gets an identity, the first one or the next epoch; False if that is refused."""
        while True:
            request = m.InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
            )
            asked = self._history.tick()
            response = yield self._ask_coordinator(request, 5)
            code = None if response is None else response.error_code
            if code == errors.NONE:
                self._adopt(response.producer_id, response.producer_epoch)
                self._history.identified(self._id, self.name, asked=asked)
                return True
            if code is not None and not again(code):
                self._note(f"error {code} for its identity")
                self.fenced = True
                return False
            yield from self._wait(code, TRANSACTION, self._id)

    def _adopt(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._producer_id, self._epoch = producer_id, epoch
            self._sequences = {}
            self._note(f"is epoch {epoch} of producer {producer_id}")

    # A transaction.

    def begin(self) -> ObservedTransaction:
        """Begins a transaction; nothing is sent yet."""
        self._count += 1
        self._transaction = self._history.begin(self._id, self.name, f"{self.name}#{self._count}")
        self._added = set()
        self._started = self._doubtful = False
        return self._transaction

    def send(self, appends: Mapping[Place, Sequence[Sequence[bytes]]]) -> Program:
        """Writes batches of values to partitions; False if the transaction must be aborted."""
        assert self._transaction is not None, "a transaction was begun"
        pending: dict[Place, deque[PendingBatch]] = {}
        for place, batches in appends.items():
            for values in batches:
                self._transaction.appends.setdefault(place, []).extend(values)
                pending.setdefault(place, deque()).append(self._batch(place, values))
        if self._version == 1 and not (yield from self._add(pending)):
            self._doubtful = True
            return False
        until_ms = self._deadline_ms()
        self._started = True
        while pending:
            refused = yield from self._produce(pending)
            if refused or (pending and self._world.now_ms >= until_ms):
                self._doubtful = True
                return False
            if pending:
                yield self._process.sleep(RETRY_MS)
        return True

    def _batch(self, place: Place, values: Sequence[bytes]) -> PendingBatch:
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(values)
        now = EPOCH_MS + self._world.now_ms
        data = build_batch(
            [(now, b"k", value, ()) for value in values],
            codec=self._rng.choice((Codec.NONE, Codec.NONE, Codec.LZ4)),
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            transactional=True,
        )
        return PendingBatch(sequence, len(values), data)

    def _produce(self, pending: dict[Place, deque[PendingBatch]]) -> Program:
        """Sends all pending batches once, removes those that are acknowledged, and returns whether one was refused for good."""
        by_leader: dict[int, list[Place]] = {}
        for place in pending:
            by_leader.setdefault(self._stage.leader_of(TopicPartition(*place)), []).append(place)
        waits: list[Wait] = []
        sent: list[dict[Place, PendingBatch]] = []
        for leader, places in by_leader.items():
            # The second batches of partitions follow in a request of their own, without waiting for the first.
            for number in range(max(len(pending[place]) for place in places)):
                batches = {place: pending[place][number] for place in places if len(pending[place]) > number}
                sent.append(batches)
                # Only a checksum detects damage, so a request that may be damaged has one batch.
                data = next(iter(batches.values())).data if len(batches) == 1 else b""
                request = _produce_request(self._id, batches)
                caller = self._callers.to(leader)
                waits.append(self._process.ask(caller, request, TIMEOUT_MS, version=PRODUCE[self._version], batch=data))
        responses = yield all_of(waits)
        refused = False
        for batches, response in zip(sent, responses, strict=True):
            answers = _produce_codes(response)
            for place, batch in batches.items():
                refused = self._answered(pending, place, batch, answers.get(place)) or refused
        return refused

    def _answered(self, pending: dict[Place, deque[PendingBatch]], place: Place, batch: PendingBatch, code: int | None) -> bool:
        """Whether a batch was refused for good."""
        first = bool(pending.get(place)) and pending[place][0] is batch
        if code is None:
            return False
        if code == errors.NONE:
            # An earlier one may be in the log too, but not acknowledged.
            pending[place].remove(batch)
            if not pending[place]:
                del pending[place]
            self._history.acknowledged(batch.records)
            return False
        self._note(f"error {code} for {place} from sequence {batch.sequence} on")
        if code == errors.OutOfOrderSequenceNumber.code and not first:
            # It follows one that is sent again.
            return False
        if code == errors.OutOfOrderSequenceNumber.code:
            self._history.complaint(f"{self.name}: the first batch not acknowledged, {batch.sequence} of {place}, is out of order")
        return not again(code)

    def _add(self, places: Mapping[Place, object]) -> Program:
        """AddPartitionsToTxn; False if the transaction must be aborted."""
        new = [place for place in places if place not in self._added]
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=numbers) for topic, numbers in by_topic(new).items()],
        )
        until_ms = self._deadline_ms()
        while new:
            self._started = True
            response = yield self._ask_coordinator(request, 3)
            codes = (
                {each.partition_error_code for topic in response.results_by_topic_v3_and_below for each in topic.results_by_partition}
                if response is not None
                else {errors.NetworkError.code}
            )
            if codes == {errors.NONE}:
                self._added.update(new)
                return True
            code = max(codes)
            if not all(code == errors.NONE or again(code) for code in codes) or self._world.now_ms >= until_ms:
                self._note(f"error {code} for adding {new}")
                return False
            yield from self._wait(code, TRANSACTION, self._id)
        return True

    def send_offsets(self, member: GroupMember, offsets: Mapping[Place, int]) -> Program:
        """Commits offsets of a group in the transaction: 0 if done, else the error; the transaction must then be aborted."""
        until_ms = self._deadline_ms()
        if self._version == 1:
            code = yield from self._until(
                until_ms,
                TRANSACTION,
                lambda: self._ask_coordinator(
                    m.AddOffsetsToTxnRequest(
                        transactional_id=self._id, producer_id=self._producer_id, producer_epoch=self._epoch, group_id=member.group
                    ),
                    3,
                ),
                lambda response: response.error_code,
                self._id,
            )
            if code:
                self._doubtful = True
                return code
        code = yield from self._until(
            until_ms,
            GROUP,
            lambda: self._ask(
                self._callers.to(self._stage.coordinator_of(member.group)),
                self._offsets_request(member, offsets),
                OFFSETS_BY_ID if self._version == 2 and member.generation % 2 else OFFSET_COMMIT[self._version],
            ),
            lambda response: max((each.error_code for topic in response.topics for each in topic.partitions), default=0),
            member.group,
        )
        if code:
            self._note(f"error {code} for its offsets")
            self._doubtful = True
        return code

    def _until(self, until_ms: int, kind: int, ask: Any, code_of: Any, key: str) -> Program:
        """Sends a request until it is answered with an error that stays; its code, 0 for success."""
        while True:
            self._started = True
            response = yield ask()
            code = errors.NetworkError.code if response is None else code_of(response)
            if code == errors.NONE or not again(code) or self._world.now_ms >= until_ms:
                return code
            yield from self._wait(code, kind, key)

    def _offsets_request(self, member: GroupMember, offsets: Mapping[Place, int]) -> m.TxnOffsetCommitRequest:
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for (topic, number), offset in offsets.items():
            empty = TxnOffsetCommitRequestTopic(name=topic, topic_id=self._history.topic_id(), partitions=[])
            entry = topics.setdefault(topic, empty)
            entry.partitions.append(TxnOffsetCommitRequestPartition(partition_index=number, committed_offset=offset))
        return m.TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=member.group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            topics=list(topics.values()),
        )

    # The end of a transaction.

    def end(self, *, commit: bool) -> Program:
        """Ends the transaction; whether it was committed. Sets ``fenced`` if the client cannot go on."""
        transaction, self._transaction = self._transaction, None
        assert transaction is not None, "a transaction was begun"
        if not self._started:
            transaction.outcome, transaction.ended = "aborted", self._history.tick()
            return False
        if commit:
            transaction.commit_sent, transaction.outcome = self._history.tick(), "unknown"
        code, attempts = yield from self._end(commit=commit)
        done = code == errors.NONE or (not commit and code == errors.InvalidTxnState.code and self._version == 1)
        if done:
            transaction.outcome, transaction.ended = "committed" if commit else "aborted", self._history.tick()
        elif commit and attempts == 1:
            # Refused at the first attempt: it was not executed.
            transaction.outcome = "aborted"
        self._note(f"{'commit' if commit else 'abort'} of {transaction.name}: {transaction.outcome}{f', error {code}' if code else ''}")
        if not done:
            self.fenced = True
        elif self._version == 1 and self._doubtful:
            # Batches with an unknown outcome must not arrive in the next transaction.
            yield from self.initialize()
        return done and commit

    def _end(self, *, commit: bool) -> Program:
        """The error that stays, or 0; and the number of attempts."""
        attempts = 0
        while True:
            attempts += 1
            request = m.EndTxnRequest(
                transactional_id=self._id, producer_id=self._producer_id, producer_epoch=self._epoch, committed=commit
            )
            response = yield self._ask_coordinator(request, END[self._version])
            code = None if response is None else response.error_code
            if code == errors.NONE:
                if self._version >= 2:
                    self._adopt(response.producer_id, response.producer_epoch)
                return code, attempts
            if code is not None and not again(code):
                return code, attempts
            yield from self._wait(code, TRANSACTION, self._id)

    # Requests.

    def _deadline_ms(self) -> int:
        """How long it tries: as delivery.timeout.ms."""
        return self._world.now_ms + self._rng.choice((500, 2_000, 5_000)) + (20_000 if self._history.calm else 0)

    def _ask(self, caller: Caller, message: Any, version: int) -> Wait:
        return self._process.ask(caller, message, TIMEOUT_MS, version=version)

    def _ask_coordinator(self, message: Any, version: int) -> Wait:
        return self._ask(self._callers.to(self._stage.coordinator_of(self._id, TRANSACTIONS_TOPIC)), message, version)

    def _wait(self, code: int | None, kind: int, key: str) -> Program:
        """Waits before the next attempt. Looking for a coordinator creates its topic."""
        if code in MOVED:
            yield self._ask(self._callers.to(self._stage.anyone()), m.FindCoordinatorRequest(coordinator_keys=[key], key_type=kind), 4)
        yield self._process.sleep(RETRY_MS + self._rng.randint(0, RETRY_MS))

    def _note(self, text: str) -> None:
        self._world.note(f"{self.name}: {text}")


def _produce_request(transactional_id: str, batches: Mapping[Place, PendingBatch]) -> m.ProduceRequest:
    topics: dict[str, m.TopicProduceData] = {}
    for (topic, number), batch in batches.items():
        entry = topics.setdefault(topic, m.TopicProduceData(name=topic, partition_data=[]))
        entry.partition_data.append(m.PartitionProduceData(index=number, records=batch.data))
    return m.ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1_000, topic_data=list(topics.values()))


def _produce_codes(response: Any) -> dict[Place, int]:
    if response is None:
        return {}
    return {(topic.name, each.index): each.error_code for topic in response.responses for each in topic.partition_responses}

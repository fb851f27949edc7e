"""The base of coordinators: state that is a fold over the records of one partition of an internal topic.

A key (for example a group id) hashes to a partition of the topic, and the partition's leader coordinates the key. Each partition led here
is a ``Shard`` with a state machine made by ``make(shard)``::

                led here                    the whole log applied
    (nothing) ───────────▶ LOADING ─────────────────────────────▶ ACTIVE
                              │  unreadable record                   │
                              ├───────────────▶ FAILED               │  not leader any more, directory failed, broker stops
                              └───────────────┬──────────────────────┘
                                              ▼
                                            GONE   waiting requests get NOT_COORDINATOR, timers do not fire

The machine decides a request. State that must survive a crash is passed to ``Shard.write`` as records, which are appended as one batch and
then applied by ``machine.apply(key, value)``. Loading uses the same function, so the loaded state is equal. A refused append raises and
changes nothing. Other state (waiting requests, deadlines) stays in the machine. Records of a transactional batch are applied by
``apply_transactional``, and count when ``end_transaction`` applies the transaction's marker.

No response shows state that a crash could undo: it waits until the last batch about its key (``of``) is committed. ``Shard.answer`` does
this for a response that is known at once; ``Shard.later`` makes a ``Reply`` for one that follows later.

Loading reads the log in chunks off the event loop, so that each step is short; meanwhile requests get COORDINATOR_LOAD_IN_PROGRESS. The
topic is created when a client first looks for a coordinator.

Source: Kafka's CoordinatorRuntime. Difference: a response waits for its own key's records, not for all records of the shard.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from random import Random
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.base.ids import TopicPartition, partition_for
from ottla.base.log_levels import GROUP
from ottla.base.units import KiB
from ottla.broker.context import BrokerContext
from ottla.broker.controller.controller import Controller
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import PENDING, Deferred, LateRefusal, Refusal, Req, Resp, refused
from ottla.broker.isolation import indivisible
from ottla.broker.metadata.configs import BrokerOptions, Settings
from ottla.broker.metadata.image import Image
from ottla.broker.replica.leader import Leader, Marker
from ottla.broker.replica.replicas import Replicas
from ottla.log.errors import LogError
from ottla.log.verification import VerificationGuard
from ottla.records.batch import BatchHeader, headers
from ottla.records.build import build_batch
from ottla.records.checksum import Buffer
from ottla.records.compression import Codec
from ottla.records.errors import RecordsError
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, control_record
from ottla.records.read import records as records_of
from ottla.wire import errors
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import KafkaError
from ottla.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig

#: Bytes of log applied in one step: some thousand records, a few milliseconds.
LOAD_BYTES = 64 * KiB

#: A record of the machine: key and value as messages; value None is a tombstone.
Record = tuple[Any, Any]


class ShardState(Enum):
    """State of a shard; see the module's diagram."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    GONE = "gone"


class CommitTransaction(NamedTuple):
    """The transaction of records that a client writes through a coordinator (TxnOffsetCommit)."""

    producer_id: int
    producer_epoch: int
    #: Of ``Leader.begin_verification``; None if the transaction is open in the partition.
    guard: VerificationGuard | None = None
    #: Value of transaction.partition.verification.enable.
    verify: bool = True


class ShardStateMachine(Protocol):
    """The state machine of a shard."""

    def encode(self, key: Any, value: Any) -> tuple[bytes, bytes | None]:
        """A record as stored in the log."""

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """A record of the log; None for a record type of a later version. Raises: MalformedMessage."""

    def apply(self, key: Any, value: Any) -> None:
        """Applies one record. Only this changes persistent state."""

    def apply_transactional(self, key: Any, value: Any, *, producer_id: int, record_offset: int) -> None:
        """Applies one record of a transaction, which has this offset in the log."""

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Applies a transaction marker; the producer may have no transaction here."""

    def loaded(self) -> None:
        """The whole log was applied: start to serve."""


M = TypeVar("M", bound=ShardStateMachine)


class Reply:
    """A response that follows later, once. It is dropped with its connection and refused with its shard."""

    __slots__ = ("_call", "_of", "_operation", "_shard")

    def __init__(self, shard: "Shard[Any]", call: RequestArrived[Any], of: str) -> None:
        self._shard = shard
        self._call = call
        self._of = of
        self._operation = DelayedOperation(f"response about {of}", lambda expired: None)

    @property
    def version(self) -> int:
        """Version of the request."""
        return self._call.api_version

    def give(self, message: Any) -> None:
        """Sends the response as soon as all records written about the key so far are committed."""
        if self._leave():
            # This step may belong to another request.
            self._shard.context.isolation.run(self._call, self._give, message)

    def _give(self, message: Any) -> None:
        answer = self._shard.answer(self._call, message, of=self._of)
        if answer is not PENDING:
            self._shard.context.answer(self._call, answer)

    def refuse(self, error: KafkaError) -> None:
        """Sends an error."""
        self.give(refused(self._call, error))

    def gone(self) -> None:
        """The shard moved to another broker."""
        if self._leave():
            self._shard.context.answer(self._call, refused(self._call, not_coordinator(self._of)))

    def _leave(self) -> bool:
        """Whether it was not answered yet."""
        self._shard.replies.pop(self, None)
        if self._operation.done:
            return False
        self._shard.context.delayed.cancel(self._operation)
        return True

    def delay(self) -> None:
        """Starts to wait."""
        self._shard.replies[self] = None
        self._shard.context.delay(self._call, self._operation, None)


class Shard(Generic[M]):
    """One partition of the topic that is led here."""

    def __init__(self, coordinator: "Coordinator[M]", leader: Leader, make: "Callable[[Shard[M]], M]") -> None:
        self._coordinator = coordinator
        self.context = coordinator.context
        self.leader = leader
        self.partition = leader.partition
        self.state = ShardState.LOADING
        #: Responses that wait for something other than a commit.
        self.replies: dict[Reply, None] = {}
        #: Deadlines of the machine, and what it does after a commit.
        self._timers: dict[DelayedOperation, None] = {}
        #: End offset of the last batch about each key that may not be committed; cleared when everything is.
        self._written: dict[str, int] = {}
        self._written_end = 0
        #: Log end when loading began, or after the last marker: no response shows what is below before it is committed.
        self._loaded_end: int = leader.log.end_offset
        self._position: int = leader.log.start_offset
        self.machine = make(self)

    # For machines.

    @property
    def siblings(self) -> "dict[int, Shard[M]]":
        """All shards of the topic on this broker."""
        return self._coordinator.shards

    @property
    def now_ms(self) -> int:
        return self.context.now_ms

    @property
    def wall_ms(self) -> int:
        return self.context.wall_ms

    @property
    def options(self) -> BrokerOptions:
        return self.context.options

    @property
    def image(self) -> Image:
        return self.context.image

    @property
    def rng(self) -> Random:
        return self.context.rng

    def write(
        self,
        of: str,
        records: Sequence[Record],
        *,
        too_large: type[KafkaError] = errors.UnknownServerError,
        transaction: CommitTransaction | None = None,
    ) -> None:
        """Appends records about one key as one batch, and applies them. Does nothing without records.

        With a ``transaction`` they count when its marker follows; see ``end_transaction``.

        Raises: NotCoordinator, CoordinatorNotAvailable, and ``too_large`` if they exceed max.message.bytes of the topic (by default the
        error that Kafka uses). In a transaction also InvalidProducerEpoch and InvalidTxnState. Then nothing has changed.
        """
        if not records:
            return
        if self.state is not ShardState.ACTIVE:
            raise not_coordinator(of)
        machine, wall_ms, leader = self.machine, self.context.wall_ms, self.leader
        fields: dict[str, Any] = {}
        if transaction is not None:
            fields = {"producer_id": transaction.producer_id, "producer_epoch": transaction.producer_epoch, "transactional": True}
        batch = build_batch(
            [(wall_ms, *machine.encode(key, value), ()) for key, value in records], codec=self._coordinator.codec(self.options), **fields
        )
        guard, verify = (transaction.guard, transaction.verify) if transaction is not None else (None, True)
        try:
            end_offset = leader.append_own(memoryview(batch), wall_ms=wall_ms, guard=guard, verify=verify)
        except OSError as error:
            raise errors.CoordinatorNotAvailable(str(self._coordinator.replicas.append_failed(leader, error))) from error
        except errors.NotEnoughReplicas as error:
            raise errors.CoordinatorNotAvailable(str(error)) from error
        except errors.MessageTooLarge as error:
            self.context.log.warn(GROUP, f"the records of {of!r} are too large, see max.message.bytes: {error}")
            raise too_large(str(error)) from error
        self._written_end = self._written[of] = end_offset
        try:
            for offset, (key, value) in enumerate(records, end_offset - len(records)):
                if transaction is None:
                    machine.apply(key, value)
                else:
                    machine.apply_transactional(key, value, producer_id=transaction.producer_id, record_offset=offset)
        finally:
            # The batch is in the log, so it is flushed even if the machine raised an error.
            self._coordinator.replicas.wrote(leader)

    def end_transaction(self, marker: Marker) -> int:
        """Appends a transaction marker and applies it; returns the offset after it, which is committed later.

        For WriteTxnMarkers, which must not append a marker to the topic of a coordinator in another way.

        Raises: NotCoordinator, CoordinatorLoadInProgress, and the errors of ``Leader.append_marker``, with OSError as
        CoordinatorNotAvailable. Then nothing has changed.
        """
        if self.state is ShardState.LOADING:
            raise errors.CoordinatorLoadInProgress(f"{self.partition} is being loaded; try again")
        if self.state is not ShardState.ACTIVE:
            raise not_coordinator(str(self.partition))
        try:
            end_offset = self.leader.append_marker(marker, wall_ms=self.context.wall_ms)
        except OSError as error:
            raise errors.CoordinatorNotAvailable(str(self._coordinator.replicas.append_failed(self.leader, error))) from error
        self._written_end = self._loaded_end = end_offset
        try:
            self.machine.end_transaction(marker.producer_id, commit=marker.commit)
        finally:
            self._coordinator.replicas.wrote(self.leader)
        return end_offset

    def after(self, delay_ms: int, act: Callable[[], None]) -> DelayedOperation:
        """Schedules ``act``, unless it is cancelled or the shard ends."""

        def fire(expired: bool) -> None:
            del self._timers[timer]
            if self.state is not ShardState.GONE:
                self.context.isolation.run_shard(self, act)

        timer = DelayedOperation(f"timer of {self.partition}", fire)
        self._timers[timer] = None
        self.context.delayed.delay(timer, self.context.now_ms + delay_ms)
        return timer

    def once_committed(self, of: str, act: Callable[[], None]) -> None:
        """Runs ``act`` when all records written about a key so far are committed, unless the shard ends before."""
        commit = self.committed(of)
        if commit is None:
            act()
            return
        waits = commit

        def finish(expired: bool) -> None:
            del self._timers[operation]
            if self.state is not ShardState.GONE:
                self.context.isolation.run_shard(self, act)

        operation = DelayedOperation(f"commit about {of}", finish, keys=(self.partition,), ready=lambda: waits.done)
        self._timers[operation] = None
        self.context.delayed.delay(operation, None)

    def cancel(self, timer: DelayedOperation | None) -> None:
        """Cancels ``after``; has no effect on a timer that fired."""
        if timer is not None:
            self._timers.pop(timer, None)
            self.context.delayed.cancel(timer)

    # Responses.

    def answer(self, call: RequestArrived[Req], message: Resp, *, of: str, refuse: Refusal[Req, Resp] = refused) -> Resp | Deferred:
        """The result of a handler: the message if all records about the key are committed, otherwise PENDING until then."""
        return when_committed(call, message, [(self, of)], refuse=refuse)

    def committed(self, of: str) -> "Commit | None":
        """The commit that a response about a key must wait for; None if everything is committed."""
        if self.leader.high_watermark >= self._written_end:
            self._written.clear()
        until = max(self._written.get(of, 0), self._loaded_end)
        return None if self.leader.high_watermark >= until else Commit(self, until)

    def later(self, call: RequestArrived[Any], ask: Callable[[Reply], None], *, of: str) -> Deferred:
        """The result of a handler whose response follows later: ``ask`` gets the ``Reply`` and may answer it at once or raise
        KafkaError."""
        reply = Reply(self, call, of)
        reply.delay()
        try:
            ask(reply)
        except KafkaError as error:
            reply.refuse(error)
        return PENDING

    # Loading and end.

    def load(self) -> None:
        """Reads the next chunk. Called once; then each chunk requests the next."""
        if self.state is not ShardState.LOADING:
            return
        try:
            found = self.leader.log.locate(self._position, max_bytes=LOAD_BYTES, upto=self._loaded_end)
        except LogError as error:
            self._fail(error)
            return
        if found is None:
            self.state = ShardState.ACTIVE
            self.machine.loaded()
        else:
            self.context.read_log(self.leader.directory.root, found, self._chunk_read)

    def _chunk_read(self, data: bytes | None) -> None:
        if self.state is not ShardState.LOADING:
            return
        before = self._position
        try:
            for position, header in headers(data or b""):
                replay(self.machine, data or b"", position, header)
                self._position = header.last_offset + 1
        except (RecordsError, MalformedMessage) as error:
            self._fail(error)
            return
        if self._position == before:
            self._fail(LogError(f"nothing could be read at offset {before}"))
        else:
            self.load()

    def _fail(self, error: Exception) -> None:
        self.state = ShardState.FAILED
        self.context.log.warn(
            GROUP, f"{self.partition} cannot be loaded at offset {self._position}, so its groups have no coordinator: {error}"
        )

    def reload(self) -> None:
        """An exception interrupted this shard: waiting requests are refused, and a new shard loads the log."""
        if self.state is not ShardState.GONE:
            self.drop()
            self._coordinator.partition_changed(self.partition)

    @indivisible
    def drop(self) -> None:
        """The partition is not led here any more."""
        self.state = ShardState.GONE
        for timer in list(self._timers):
            self.cancel(timer)
        for reply in list(self.replies):
            reply.gone()
        self.context.delayed.poke(self.partition)


def replay(machine: ShardStateMachine, data: Buffer, position: int, header: BatchHeader) -> None:
    """Applies one batch of the log, which is at ``position`` of ``data``. Raises: RecordsError, MalformedMessage."""
    if header.is_control:
        control = control_record(data, position)
        if control is not None and control.kind in (ABORT_MARKER, COMMIT_MARKER):
            machine.end_transaction(header.producer_id, commit=control.kind == COMMIT_MARKER)
        return
    transactional = header.is_transactional and header.has_producer
    for offset, _, key, value, _ in records_of(data, position):
        record = machine.decode(key, value) if key is not None else None
        if record is None:
            continue
        if transactional:
            machine.apply_transactional(*record, producer_id=header.producer_id, record_offset=offset)
        else:
            machine.apply(*record)


class Commit(NamedTuple):
    """The commit that a response waits for."""

    shard: Shard[Any]
    #: The required high watermark.
    until: int

    @property
    def done(self) -> bool:
        return self.shard.leader.high_watermark >= self.until


def when_committed(
    call: RequestArrived[Req], message: Resp, about: Iterable[tuple[Shard[Any], str]], *, refuse: LateRefusal[Req, Resp] = refused
) -> Resp | Deferred:
    """The result of a handler: the message if all records about these keys are committed, otherwise PENDING until then.

    After offsets.commit.timeout.ms the response is COORDINATOR_NOT_AVAILABLE, as in Kafka; the records may still be committed later.
    ``refuse`` may return PENDING and answer later.
    """
    waits = [commit for shard, of in about if (commit := shard.committed(of)) is not None]
    if not waits:
        return message
    context = waits[0].shard.context

    timeout_ms = context.options.offsets_commit_timeout_ms

    def settled() -> bool:
        return all(commit.done or commit.shard.state is ShardState.GONE for commit in waits)

    def finish(expired: bool) -> None:
        answer = settled_answer()
        if answer is not PENDING:
            context.answer(call, answer)

    def settled_answer() -> Resp | Deferred:
        if all(commit.done for commit in waits):
            return message
        if settled():
            return refuse(call, not_coordinator("what was asked for"))
        late = errors.CoordinatorNotAvailable(f"not on all in-sync replicas within offsets.commit.timeout.ms ({timeout_ms})")
        return refuse(call, late)

    if settled():
        # The shard ended since the records were written, in an earlier turn of the request.
        return settled_answer()
    operation = DelayedOperation("commit", finish, keys=[commit.shard.partition for commit in waits], ready=settled)
    return context.delay(call, operation, context.now_ms + timeout_ms)


class Coordinator(Generic[M]):
    """The shards of one internal topic on this broker, and the locations of the others."""

    def __init__(
        self,
        context: BrokerContext,
        replicas: Replicas,
        controller: Controller,
        topic: str,
        make: Callable[[Shard[M]], M],
        *,
        partitions: Callable[[BrokerOptions], int],
        replication_factor: Callable[[Settings], int],
        configs: Callable[[BrokerOptions], dict[str, str]],
        codec: Callable[[BrokerOptions], Codec] = lambda options: Codec.NONE,
    ) -> None:
        """``partitions``, ``replication_factor`` and ``configs`` are used to create the topic. Factor -1: the configured one, at most the
        number of brokers at the moment. ``codec`` compresses the batches.
        """
        self.context = context
        self.replicas = replicas
        self._controller = controller
        self.topic = topic
        self._make = make
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._configs = configs
        self.codec = codec
        #: By partition.
        self.shards: dict[int, Shard[M]] = {}

    def start(self) -> None:
        """Loads the partitions that this broker leads, after the store's initial state arrived."""
        for partition in [led for led in self.replicas.leaders if led.topic == self.topic]:
            self.partition_changed(partition)

    def stop(self) -> None:
        """Drops all shards, because the broker stops."""
        for shard in list(self.shards.values()):
            shard.drop()
        self.shards = {}

    def partition_changed(self, partition: TopicPartition) -> None:
        """A partition's leadership or log directory changed."""
        if partition.topic != self.topic:
            return
        leader = self.replicas.leaders.get(partition)
        shard = self.shards.get(partition.partition)
        if shard is not None and (shard.leader is not leader or shard.state is ShardState.GONE):
            del self.shards[partition.partition]
            if shard.state is not ShardState.GONE:
                shard.drop()
            shard = None
        if shard is None and leader is not None and self.context.started and not self.context.stopping:
            shard = self.shards[partition.partition] = Shard(self, leader, self._make)
            shard.load()

    def partition_of(self, key: str) -> int | None:
        """Partition of a key; None while the topic does not exist."""
        topic = self.context.image.topics.get(self.topic)
        return partition_for(key, len(topic.replicas)) if topic is not None and topic.replicas else None

    def shard_for(self, key: str) -> Shard[M] | None:
        """The shard of a key in any state; None if another broker has it."""
        number = self.partition_of(key)
        return self.shards.get(number) if number is not None else None

    def shard_of(self, key: str) -> Shard[M]:
        """The active shard of a key.

        Raises: NotCoordinator, CoordinatorLoadInProgress.
        """
        shard = self.shard_for(key)
        if shard is None or shard.state in (ShardState.FAILED, ShardState.GONE):
            raise not_coordinator(key)
        if shard.state is ShardState.LOADING:
            raise errors.CoordinatorLoadInProgress(f"{shard.partition} is being loaded; try again")
        self.context.isolation.touched.append(shard)
        return shard

    def create(self) -> None:
        """Creates the topic unless that is in progress. Raises: KafkaError if this broker is the controller and refuses."""
        options = self.context.options
        configs = [CreatableTopicConfig(name=name, value=value) for name, value in self._configs(options).items()]
        replicas, brokers = self._replication_factor(self.context.settings), len(self.context.image.brokers)
        if replicas > brokers:
            # The controller would refuse too, but its answer is not seen here.
            raise errors.InvalidReplicationFactor(f"it is to have {replicas} replicas, and {brokers} brokers are alive")
        requested = CreatableTopic(name=self.topic, num_partitions=self._partitions(options), replication_factor=replicas, configs=configs)
        self._controller.create_topic(requested)


def not_coordinator(key: str) -> KafkaError:
    return errors.NotCoordinator(f"this broker does not coordinate {key!r}; look for its coordinator again")

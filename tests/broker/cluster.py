"""Brokers in one test: nodes over memory disks and a memory store, driven step by step in virtual time.

Every request and answer goes through the codec, so that a test sees what a client would see. After ``send`` everything that can happen at
once has happened: store answers, requests between brokers, flushes. ``flushing = False`` holds flushes back until ``flush()``;
``store_speaks = False`` holds back what the store has to say. Time passes only in ``pass_ms``.

Promises of a broker are checked after every step: a high watermark lies between log start and log end and never falls while the same
leader leads, one flush per partition is under way at most, a request is answered once.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from random import Random
from typing import Any, NamedTuple

from ottla.base.ids import ConnectionId, TopicPartition
from ottla.base.listeners import Endpoint
from ottla.base.log_levels import LogLevel
from ottla.base.origin import ANONYMOUS, Origin
from ottla.base.ports import StoreResult
from ottla.base.ssl_options import ListenerSslOptions
from ottla.broker import effects, events
from ottla.broker.apis import HANDLERS
from ottla.broker.context import BrokerContext
from ottla.broker.metadata.configs import Settings
from ottla.broker.node import Node
from ottla.broker.registration.peers import PEER
from ottla.broker.replica.leader import Leader
from ottla.log import scrub
from ottla.log.compactor import CompactionResult, carry_out
from ottla.log.directory import LogDirectory
from ottla.log.errors import CorruptLog
from ottla.log.flush import FlushPlan
from ottla.records.build import build_batch
from ottla.records.read import records as read_records
from ottla.sim.disk import SimDisk
from ottla.store.memory import MemoryStore
from ottla.wire.compile import decode, encode, encode_chunks
from ottla.wire.declare import schema_of
from ottla.wire.messages import API
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.create_topics import CreatableTopicConfig as Config
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

WALL_MS = 1_700_000_000_000


class Sent:
    """A request on its way: what became of it so far."""

    def __init__(self, connection: int) -> None:
        self.connection = ConnectionId(connection)
        self.answer: Any = None
        self.released = False
        #: How long the connection is muted after the answer, in ms.
        self.throttle_ms = 0
        #: Why the broker closed the connection.
        self.closed: str | None = None
        #: Called when the answer comes.
        self.answered: Callable[[Any], None] = lambda answer: None

    @property
    def waits(self) -> bool:
        """Whether it has no answer yet."""
        return self.answer is None


class Held(NamedTuple):
    """A flush of one partition that waits for the test, or for its turn."""

    directory: str
    partition: TopicPartition
    plan: FlushPlan


class Broker:
    """One broker and its shell."""

    def __init__(self, cluster: "Cluster", broker_id: int, texts: Mapping[str, str], disks: list[SimDisk]) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.texts = texts
        self.disks = {disk.root: disk for disk in disks}
        self.session = cluster.store.session()
        self.halted: str | None = None
        #: Lines of the broker's log.
        self.lines: list[effects.Log] = []
        #: Metrics that clients pushed.
        self.telemetry: list[effects.ReceiveTelemetry] = []
        #: Levels of loggers that were set.
        self.log_levels: dict[str, LogLevel | None] = {}
        #: How often changed settings were to be applied.
        self.adopted = 0
        #: Effects that were performed, or wait for the test to do so.
        self.flushes: list[Held] = []
        self.removed: list[str] = []
        self.replaced: list[str] = []
        #: Checked certificates, and the outcome of the next checks.
        self.checked: list[Mapping[str, ListenerSslOptions]] = []
        self.certificates_problem = ""
        #: TurnDue events that are expected; while the cluster's ``turning`` is False they wait for ``turn()``.
        self.turns_due = 0
        #: Reads of logs that wait for ``read_logs()``, while ``reading`` is False.
        self.reads: list[effects.ReadLog] = []
        self.reading = cluster.reading
        #: Ids by subject that the schema registry has, and the look-ups so far; None: a test answers them itself.
        self.schemas: dict[str, set[int]] | None = {}
        self.lookups: list[effects.LookUpSchemas] = []
        #: Compactions that wait for ``clean()``, while ``cleaning`` is False.
        self.cleans: list[effects.Clean] = []
        self.cleaning = True
        #: Changes of logs under way. They wait for ``change_logs()`` while ``changing`` is False.
        self.changes: list[effects.ChangeLogs] = []
        self.changing = cluster.changing
        #: Small files to replace once these are carried out.
        self._after_changes: list[effects.Effect] = []
        self._sent: dict[int, Sent] = {}
        #: The last answered request of each connection.
        self._answered: dict[int, Sent] = {}
        self._marks: dict[Leader, int] = {}
        settings = Settings({"broker.id": str(broker_id), **texts})
        directories = [
            LogDirectory.open(
                disk, broker_id=broker_id, cluster_id="cluster", now_ms=cluster.wall_ms, options_for=lambda topic: settings.topic
            )
            for disk in disks
        ]
        self.node = Node(
            BrokerContext(
                broker_id=broker_id,
                cluster_id="cluster",
                settings=settings,
                directories=directories,
                rng=Random(broker_id + 1000 * cluster.deaths),
                address=(f"host{broker_id}" if cluster.host is None else cluster.host, 9092),
                endpoints=cluster.endpoints(broker_id),
                now_ms=cluster.now_ms,
                wall_ms=cluster.wall_ms,
            ),
            HANDLERS,
        )
        self.session.watch("/", lambda state: self.handle(events.StoreChanged(state=state)))
        self.session.listen(lambda state: self.handle(events.SessionChanged(state=state)))
        self.session.deliver()
        self._perform(self.node.start(cluster.now_ms))

    @property
    def warnings(self) -> list[str]:
        return [line.message for line in self.lines if line.level >= LogLevel.WARNING]

    def logged(self, logger: str, level: LogLevel = LogLevel.INFO) -> list[str]:
        """Messages of a logger, from this level on."""
        return [line.message for line in self.lines if line.logger == logger and line.level >= level]

    # The client's side.

    def send(
        self,
        request: Any,
        version: int,
        *,
        answered: Callable[[Any], None] | None = None,
        client_id: str | None = "test",
        listener: str = "PLAINTEXT",
        principal: str = ANONYMOUS,
        host: str = "client",
        token: bool = False,
        behind: Sent | None = None,
    ) -> Sent:
        """Hand in a request, on a connection of its own or on that of an ended one, and let happen what can happen."""
        sent = Sent(next(self.cluster.numbers) if behind is None else behind.connection)
        sent.answered = answered or sent.answered
        self._sent[sent.connection] = sent
        key = schema_of(type(request)).key
        assert key is not None, f"{type(request).__name__} is a request"
        data = bytearray(encode(request, version))
        self.handle(
            events.RequestArrived(
                connection=sent.connection,
                correlation_id=sent.connection,
                api_key=key,
                api_version=version,
                client_id=client_id,
                body=decode(type(request), data, version),
                origin=Origin(host=host, local=("reached", 1000 + self.broker_id), listener=listener, principal=principal, token=token),
                size=len(data),
            )
        )
        self.cluster.run()
        return sent

    def ask(
        self,
        request: Any,
        version: int,
        *,
        listener: str = "PLAINTEXT",
        principal: str = ANONYMOUS,
        host: str = "client",
        token: bool = False,
    ) -> Any:
        """Hand in a request that is answered at once; its answer."""
        sent = self.send(request, version, listener=listener, principal=principal, host=host, token=token)
        assert sent.closed is None, f"the connection was closed: {sent.closed}"
        assert sent.answer is not None, "the request waits"
        return sent.answer

    def hang_up(self, sent: Sent) -> None:
        self._sent.pop(sent.connection, None)
        self.handle(events.ConnectionClosed(connection=sent.connection))

    # The shell's side.

    def handle(self, event: events.Event) -> None:
        if self.halted is None:
            self._perform(self.node.step(event, self.cluster.now_ms))
            self._check()

    def flush(self) -> None:
        """Carry out the flushes that wait, and those they lead to."""
        self.cluster.run()
        while self.flushes:
            self.flush_one()

    def flush_one(self) -> None:
        """Carry out the oldest flush that waits."""
        self._flush(self.flushes.pop(0))
        self.cluster.run()

    def turn(self) -> None:
        """One turn of a request that is answered in turns."""
        self.turns_due -= 1
        self.handle(events.TurnDue())
        self.cluster.run()

    def leader(self, topic: str, partition: int = 0) -> Leader:
        return self.node.partitions.leader(topic, partition)

    def measured(self, free_bytes: int, total_bytes: int = 1 << 40) -> None:
        """The shell looked how full the disks are."""
        for root in self.disks:
            self.handle(events.SpaceMeasured(directory=root, free_bytes=free_bytes, total_bytes=total_bytes))
        self.cluster.run()

    def _perform(self, asked: list[effects.Effect]) -> None:
        for effect in asked:
            match effect:
                case effects.Respond():
                    self._respond(effect)
                case effects.Release():
                    sent = self._sent.pop(effect.connection)
                    sent.released, sent.throttle_ms = True, effect.throttle_ms
                case effects.Close():
                    # The request may have been answered in the same step.
                    (self._sent.pop(effect.connection, None) or self._answered[effect.connection]).closed = effect.reason
                case effects.ScheduleFlush():
                    self.cluster.later(lambda: self.handle(events.FlushDue()))
                case effects.ScheduleTurn():
                    self.turns_due += 1
                    if self.cluster.turning:
                        self.cluster.later(self.turn)
                case effects.Free():
                    pass
                case effects.Flush():
                    for held in (Held(effect.directory, partition, plan) for partition, plan in effect.plans):
                        assert all(other.partition != held.partition for other in self.flushes), "one flush of a partition at a time"
                        if self.cluster.flushing:
                            self.cluster.later(lambda held=held: self._flush(held))  # type: ignore[misc]
                        else:
                            self.flushes.append(held)
                case effects.StartWriteback():
                    pass
                case effects.CheckCertificates():
                    self.checked.append(effect.listeners)
                    answer = events.CertificatesChecked(ticket=effect.ticket, problem=self.certificates_problem)
                    self.cluster.later(lambda answer=answer: self.handle(answer))  # type: ignore[misc]
                case effects.LookUpSchemas():
                    self.lookups.append(effect)
                    if self.schemas is not None:
                        self.cluster.later(lambda effect=effect: self.looked_up(effect))  # type: ignore[misc]
                case effects.ReadLog():
                    self.cluster.later(lambda effect=effect: self._read_log(effect))  # type: ignore[misc]
                case effects.ChangeLogs():
                    assert all(other.directory != effect.directory for other in self.changes), "one change of a directory's logs at a time"
                    self.changes.append(effect)
                    if self.changing:
                        self.cluster.later(self.change_logs)
                case effects.Remove():
                    for path in effect.paths:
                        self.disks[effect.directory].remove_tree(path)
                        self.removed.append(path)
                case effects.ReplaceFiles():
                    if any(change.directory == effect.directory for change in self.changes):
                        self._after_changes.append(effect)
                        continue
                    for path, data in effect.files:
                        self.disks[effect.directory].replace_file(path, data)
                        self.replaced.append(path)
                case effects.Clean():
                    if self.cleaning:
                        self.cluster.later(lambda effect=effect: self._clean(effect))  # type: ignore[misc]
                    else:
                        self.cleans.append(effect)
                case effects.Scrub():
                    self.cluster.later(lambda effect=effect: self._scrub(effect))  # type: ignore[misc]
                case effects.StoreSubmit():
                    ticket = effect.ticket
                    self.session.submit(effect.ops, lambda result, ticket=ticket: self._store_answered(ticket, result))  # type: ignore[misc]
                case effects.PeerRequest():
                    self.cluster.later(lambda effect=effect: self._ask_peer(effect))  # type: ignore[misc]
                case effects.AdoptOptions():
                    self.adopted += 1
                case effects.Log():
                    self.lines.append(effect)
                case effects.ReceiveTelemetry():
                    self.telemetry.append(effect)
                case effects.SetLogLevels():
                    self.log_levels.update(effect.levels)
                case effects.Audit():
                    self.cluster.audits.append(effect)
                case effects.RequestFailed():
                    if self.cluster.failures is None:
                        raise effect.error
                    self.cluster.failures.append(effect)
                case effects.Halt():
                    self.halted = effect.reason
                case other:
                    raise AssertionError(f"{other} is an effect nobody performs")

    def _store_answered(self, ticket: int, result: StoreResult) -> None:
        self.handle(events.StoreAnswered(ticket=ticket, result=result))

    def _respond(self, effect: effects.Respond) -> None:
        chunks = encode_chunks(effect.message, effect.api_version)
        data = b"".join(chunk.read() if hasattr(chunk, "read") else chunk for chunk in chunks)  # type: ignore[misc]
        sent = self._answered[effect.connection] = self._sent.pop(effect.connection)
        sent.throttle_ms = effect.throttle_ms
        sent.answer = decode(type(effect.message), data, effect.api_version)
        sent.answered(sent.answer)

    def _flush(self, flush: Held) -> None:
        try:
            flush.plan.carry_out(self.disks[flush.directory])
        except OSError as error:
            self.handle(events.DirectoryFailed(directory=flush.directory, reason=str(error)))
        else:
            self.handle(events.Flushed(marks=((flush.partition, flush.plan.upto),)))

    def _scrub(self, effect: effects.Scrub) -> None:
        try:
            *_, result = scrub.carry_out(self.disks[effect.directory], effect.plan)
        except FileNotFoundError:
            result = None
        self.handle(events.Scrubbed(partition=effect.partition, result=result))  # type: ignore[arg-type]

    def _read_log(self, effect: effects.ReadLog) -> None:
        if self.reading:
            self.handle(events.LogRead(ticket=effect.ticket, data=effect.slice.read()))
        else:
            self.reads.append(effect)

    def read_logs(self) -> None:
        """Carry out the reads that wait, and those they lead to."""
        self.reading = True
        for effect in self.reads:
            self._read_log(effect)
        self.reads = []
        self.cluster.run()

    def change_logs(self) -> None:
        """Carry out the changes of logs that wait now."""
        changes, self.changes = self.changes, []
        waiting, self._after_changes = self._after_changes, []
        for effect in changes:
            try:
                refused = effect.changes.carry_out(self.disks[effect.directory])
            except OSError as error:
                self.handle(events.DirectoryFailed(directory=effect.directory, reason=str(error)))
            else:
                self.removed += [move.target for move in effect.changes.moves if not move.stray]
                self.handle(events.LogsChanged(directory=effect.directory, refused=refused))
        self._perform(waiting)

    def clean(self) -> None:
        """Carry out the compactions that wait, and those they lead to."""
        while self.cleans:
            self._clean(self.cleans.pop(0))
            self.cluster.run()

    def _clean(self, effect: effects.Clean) -> None:
        disk = self.disks[effect.directory]
        result: CompactionResult | None = None
        damage = ""
        try:
            for step in carry_out(disk, effect.plan):
                result = step if isinstance(step, CompactionResult) else None
        except CorruptLog as error:
            damage = str(error)
        except FileNotFoundError:
            result = None
        self.handle(events.Cleaned(partition=effect.partition, result=result, damage=damage))

    def looked_up(self, effect: effects.LookUpSchemas, *, lost: Iterable[int] = (), problem: str = "") -> None:
        """The schema registry answers, for all ids but the lost ones."""
        there = (self.schemas or {}).get(effect.subject, set())
        asked = [number for number in effect.ids if number not in set(lost)]
        self.handle(
            events.SchemasLookedUp(
                ticket=effect.ticket,
                subject=effect.subject,
                registered=tuple(number for number in asked if number in there),
                unknown=tuple(number for number in asked if number not in there),
                problem=problem,
            )
        )
        self.cluster.run()

    def _ask_peer(self, effect: effects.PeerRequest) -> None:
        peer = self.cluster.brokers.get(effect.broker)
        link = frozenset((self.broker_id, int(effect.broker)))

        def answered(answer: Any) -> None:
            self.handle(events.PeerAnswered(ticket=effect.ticket, message=None if link in self.cluster.cut else answer))

        if peer is None or link in self.cluster.cut:
            answered(None)
        else:
            peer.send(effect.message, effect.api_version, answered=answered, client_id=PEER, principal=self.cluster.peer_principal)

    def _check(self) -> None:
        marks = {}
        for leader in self.node.partitions.leaders.values():
            log, mark = leader.log, leader.high_watermark
            assert log.start_offset <= mark <= log.end_offset, f"{leader.partition}: {log.start_offset} <= {mark} <= {log.end_offset}"
            assert mark >= self._marks.get(leader, 0), f"the high watermark of {leader.partition} fell to {mark}"
            marks[leader] = mark
        self._marks = marks


class Cluster:
    """Brokers 1 to ``brokers`` over one store; ready to serve when made."""

    def __init__(
        self,
        brokers: int = 1,
        *,
        disks: int = 1,
        settings: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        host: str | None = None,
        listeners: Mapping[int, Sequence[Endpoint]] | None = None,
    ) -> None:
        self.store = MemoryStore()
        #: Advertised listeners by broker; others have a plaintext one.
        self._listeners = listeners or {}
        #: As whom brokers connect to each other.
        self.peer_principal = "User:broker"
        #: Audits of all brokers, in order.
        self.audits: list[effects.Audit] = []
        #: Where every broker listens; None gives each a name of its own.
        self.host = host
        self.now_ms = 0
        self.flushing = True
        self.store_delivers = True
        self.reading = self.turning = True
        self.changing = True
        self.brokers: dict[int, Broker] = {}
        self.numbers = count(1)
        #: Brokers killed so far: the next one has luck of its own.
        self.deaths = 0
        #: Pairs of brokers that do not reach each other; the store they all do.
        self.cut: set[frozenset[int]] = set()
        #: Requests that failed with an unexpected exception, in a test that causes some; None: such an exception fails the test.
        self.failures: list[effects.RequestFailed] | None = None
        self._later: deque[Callable[[], None]] = deque()
        self._running = False
        for broker_id in range(1, brokers + 1):
            # Leaders change when a test requests it, not periodically.
            texts = {"auto.leader.rebalance.enable": "false", **(settings or {})}
            if racks:
                texts["broker.rack"] = racks[broker_id]
            self.start(broker_id, texts, [SimDisk(f"disk{number}", now_ms=lambda: self.wall_ms) for number in range(disks)])
        assert all(broker.node.ready for broker in self.brokers.values()), "a new cluster is ready"

    def endpoints(self, broker_id: int) -> Sequence[Endpoint]:
        return self._listeners.get(broker_id, ())

    def __getitem__(self, broker_id: int) -> Broker:
        return self.brokers[broker_id]

    @property
    def wall_ms(self) -> int:
        return WALL_MS + self.now_ms

    @property
    def controller(self) -> Broker:
        return next(broker for broker in self.brokers.values() if broker.node.controller.active)

    def leading(self, topic: str, partition: int = 0) -> Broker:
        return next(broker for broker in self.brokers.values() if TopicPartition(topic, partition) in broker.node.partitions.leaders)

    def start(self, broker_id: int, texts: Mapping[str, str], disks: list[SimDisk]) -> Broker:
        broker = self.brokers[broker_id] = Broker(self, broker_id, texts, disks)
        self.run()
        return broker

    def kill(self, broker_id: int) -> Broker:
        """kill -9, and the store's session expires."""
        gone = self.brokers.pop(broker_id)
        self.deaths += 1
        gone.session.expire()
        gone.halted = "killed"
        self.run()
        return gone

    def stop(self, broker_id: int) -> Broker:
        """A clean stop, without handing over."""
        gone = self.brokers[broker_id]
        gone._perform(gone.node.stop(self.now_ms))
        self.run()
        del self.brokers[broker_id]
        gone.halted = "stopped"
        gone.session.close()
        for directory in gone.node.context.directories:
            directory.close(gone.node.partitions.high_watermarks(directory), self.wall_ms)
        self.run()
        return gone

    def cut_off(self, broker_id: int) -> None:
        """No other broker reaches this one, nor is reached by it."""
        self.cut |= {frozenset((broker_id, other)) for other in self.brokers if other != broker_id}

    def restart(self, broker_id: int) -> Broker:
        gone = self.kill(broker_id)
        return self.start(broker_id, gone.texts, [disk.restart() for disk in gone.disks.values()])

    def later(self, act: Callable[[], None]) -> None:
        self._later.append(act)

    def run(self) -> None:
        """Everything that can happen without time passing."""
        if self._running:
            return
        self._running = True
        try:
            while True:
                if self._later:
                    self._later.popleft()()
                elif not (self.store_delivers and sum(session.deliver(1) for session in self.store.sessions)):  # type: ignore[misc]
                    break
        finally:
            self._running = False

    def pass_ms(self, duration_ms: int) -> None:
        """Time passes; brokers get a tick at their deadlines, and at the end."""
        end = self.now_ms + duration_ms
        while self.now_ms < end:
            wanted = [due for broker in self.brokers.values() if (due := broker.node.next_deadline_ms()) is not None]
            self.now_ms = min(end, max(self.now_ms + 1, min(wanted, default=end)))
            self.tick()

    def jump_ms(self, duration_ms: int) -> None:
        """Time passes at once: brokers get one tick at the end."""
        self.now_ms += duration_ms
        self.tick()

    def tick(self) -> None:
        for broker in list(self.brokers.values()):
            broker.handle(events.Ticked(wall_ms=self.wall_ms))
        self.run()

    def topic(self, name: str = "t", partitions: int = 1, configs: Mapping[str, str] | None = None, *, replicas: int = 1) -> Broker:
        """Create a topic; the broker that leads its partition 0."""
        requested = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[Config(name=key, value=value) for key, value in (configs or {}).items()],
        )
        answer = self.controller.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7)
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message
        return self.leading(name)


# Requests with defaults.


def batch(*values: bytes, key: bytes | None = None, timestamp_ms: int = WALL_MS, **fields: Any) -> bytes:
    """A batch with a record for each value."""
    return bytes(build_batch([(timestamp_ms, key, value, ()) for value in values], **fields))


def produce_request(
    records: bytes | None, *, topic: str | bytes = "t", partition: int = 0, acks: int = -1, timeout_ms: int = 1000, **fields: Any
) -> ProduceRequest:
    """One batch for one partition; a topic given as bytes is an id."""
    named: dict[str, Any] = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
    data = [TopicProduceData(**named, partition_data=[PartitionProduceData(index=partition, records=records)])]
    return ProduceRequest(**{"transactional_id": None, "acks": acks, "timeout_ms": timeout_ms, "topic_data": data, **fields})


def produce(broker: Broker, records: bytes | None, *, version: int = 12, **fields: Any) -> Any:
    """The answer for the one partition."""
    return broker.ask(produce_request(records, **fields), version).responses[0].partition_responses[0]


def fetch_request(
    offset: int = 0,
    *,
    topic: str | bytes = "t",
    partitions: Iterable[int] = (0,),
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    session_epoch: int = -1,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    **fields: Any,
) -> FetchRequest:
    """A fetch from one topic, sessionless."""
    named: dict[str, Any] = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
    asks = [
        FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=current_leader_epoch,
            last_fetched_epoch=last_fetched_epoch,
        )
        for partition in partitions
    ]
    return FetchRequest(
        topics=[FetchTopic(**named, partitions=asks)],
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_epoch=session_epoch,
        **fields,
    )


def fetch(broker: Broker, offset: int = 0, *, version: int = 12, **fields: Any) -> Any:
    """The answer for the first partition."""
    return broker.ask(fetch_request(offset, **fields), version).responses[0].partitions[0]


def values(records: Any) -> list[bytes | None]:
    """The values in batches as a fetch gives them, in the order of their offsets."""
    return [record[3] for record in unpacked(records)]


def unpacked(records: Any) -> list[tuple[Any, ...]]:
    """(offset, timestamp, key, value, headers) of the records in whole batches."""
    found: list[tuple[Any, ...]] = []
    position = 0
    data = bytes(records)
    while position + 12 <= len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        if position + size > len(data):
            break
        found += read_records(data, position)
        position += size
    return found


def served() -> dict[int, str]:
    """Names of the APIs by key."""
    return {key: api.name for key, api in API.items()}

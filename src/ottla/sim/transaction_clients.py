"""Simulated processes with transactions: producers, processors that consume, process and produce, and readers.

A producer writes transactions to any partitions, commits most and aborts some. A processor is a member of a consumer group: it reads
inputs at read_committed, writes one output for each, commits the offsets as the member that read them, all in one transaction (KIP-447).
After an abort it begins again at the committed offsets. A reader reads all partitions from their start, at one isolation level.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from ottla.base.ids import TopicPartition
from ottla.client.group.commits import OffsetAndMetadata
from ottla.client.group.coordinator_search import COORDINATOR_MOVED
from ottla.client.options import ConsumerOptions
from ottla.records.batch import crc_ok, headers
from ottla.records.errors import RecordsError
from ottla.records.read import ABORT_MARKER, control_record, records
from ottla.sim.checkers.transactions import ObservedRead, Place, value_of
from ottla.sim.client_process import ClientProcess, Program
from ottla.sim.group_environment import Callers, GroupBrokers
from ottla.sim.member_clients import GroupListener, MemberProcess
from ottla.sim.network import Network
from ottla.sim.transactional_client import GroupMember, Settings, TransactionalClient, TransactionListener
from ottla.sim.world import World
from ottla.wire import errors
from ottla.wire.messages import FetchPartition, FetchRequest, FetchTopic

READ_COMMITTED = 1
TIMEOUT_MS = 1_500


class Environment(NamedTuple):
    """Where clients live."""

    world: World
    network: Network
    stage: GroupBrokers


class ReadListener(Protocol):
    """Receives what readers observe."""

    def tick(self) -> int: ...

    def read(self, read: ObservedRead) -> None: ...

    def complaint(self, text: str) -> None: ...


class ProcessorListener(TransactionListener, ReadListener, GroupListener, Protocol):
    """Receives what processors do."""

    @property
    def outputs(self) -> Sequence[Place]:
        """Partitions that outputs are written to."""
        ...


class TransactionalProducer:
    """A process that writes transactions."""

    def __init__(
        self,
        where: Environment,
        history: TransactionListener,
        settings: Settings,
        *,
        quota: list[int],
        places: Sequence[Place],
        ended: Callable[[], None],
    ) -> None:
        """``quota``: one number, the transactions that are left to all processes of this id. ``ended``: another process is needed."""
        self.name = settings.name
        self._world = where.world
        self._rng = where.world.rng(settings.name)
        self._quota = quota
        self._places = places
        self._history = history
        self._process = ClientProcess(where.world, lambda: self._over(ended))
        self._client = TransactionalClient(*where, history, self._process, settings, rng=self._rng)
        self._process.run(self._program())

    @property
    def dead(self) -> bool:
        return self._process.dead

    def kill(self) -> None:
        """Ends the process without notice."""
        if not self.dead:
            self._world.note(f"{self.name} dies")
            self._process.kill()
            self._client.hang_up()

    def pause(self, duration_ms: int) -> None:
        self._world.note(f"{self.name} pauses for {duration_ms}")
        self._process.pause(duration_ms)

    def _over(self, ended: Callable[[], None]) -> None:
        self.kill()
        if self._quota[0] > 0:
            ended()

    def _program(self) -> Program:
        rng, client = self._rng, self._client
        yield self._process.sleep(rng.randint(0, 200))
        if not (yield from client.initialize()):
            return
        while self._quota[0] > 0 and not client.fenced:
            self._quota[0] -= 1
            transaction = client.begin()
            sound = True
            number = 0
            for _ in range(rng.choice((1, 1, 2, 3))):
                appends: dict[Place, list[list[bytes]]] = {}
                for place in rng.sample(list(self._places), rng.randint(1, min(3, len(self._places)))):
                    for _ in range(rng.choice((1, 1, 2))):
                        count = rng.choice((1, 1, 3))
                        padding = rng.choice((0, 10, 300))
                        appends.setdefault(place, []).append([value_of(transaction.name, number + i, padding) for i in range(count)])
                        number += count
                sound = yield from client.send(appends)
                if not sound:
                    break
                yield self._process.sleep(rng.choice((0, 0, 10, 100)))
            yield from client.end(commit=sound and rng.random() < 0.8)
            if not self._history.calm:
                yield self._process.sleep(rng.choice((0, 10, 50, 200)))


class Processor(MemberProcess):
    """A member of a group that processes each input once."""

    def __init__(
        self,
        where: Environment,
        history: ProcessorListener,
        options: ConsumerOptions,
        settings: Settings,
        *,
        rng: Random,
    ) -> None:
        self._txn_history = history
        self._txn_settings = settings
        self._where = where
        self._client: TransactionalClient | None = None
        #: Whether a transaction is open.
        self.busy = False
        super().__init__(*where, history, options, name=settings.name, rng=rng)

    def kill(self) -> None:
        super().kill()
        if self._client is not None:
            self._client.hang_up()

    def _program(self) -> Program:
        machine, rng = self.machine, self._rng
        client = self._client = TransactionalClient(*self._where, self._txn_history, self._process, self._txn_settings, rng=rng)
        yield self._process.sleep(rng.randint(0, 300))
        if not (yield from client.initialize()):
            return
        while not self._leaving and not client.fenced:
            machine.poll_began()
            self._pump()
            yield from self._attend()
            error = machine.error()
            if error is not None:
                self._world.note(f"{self.name} gets {type(error).__name__}")
                return
            # As of the poll, so that a commit is refused if the partitions got another owner since.
            member = GroupMember(self.group, *machine.committing, self.options.group_instance_id or None)
            yield from self._find_positions()
            found = yield from self._fetch()
            machine.poll_ended(self._world.now_ms)
            self._pump()
            if found and member.generation >= 0:
                self.busy = True
                yield from self._transact(client, member, found)
                self.busy = False
            yield self._process.sleep(rng.choice((0, 1, 10, 50)))
        if not client.fenced:
            yield from self._close()

    def _commit(self, *, patient: bool) -> Program:
        """Offsets are committed in transactions only."""
        return
        yield

    def _find_positions(self) -> Program:
        """Starts at the committed offsets, once no transaction with offsets of the partition is open."""
        unknown = [tp for tp in self.machine.owned if tp.partition not in self.positions]
        if not unknown or self.machine.coordinator.place is None:
            return
        found = yield from self._committed_offsets(unknown)
        for tp in unknown if found is not None else ():
            kept = found.get(tp)
            if tp in self.machine.owned and not isinstance(kept, Exception):
                self.positions[tp.partition] = kept.offset if isinstance(kept, OffsetAndMetadata) else 0
                self._history.began(self, tp.partition, self.positions[tp.partition])

    def _fetch(self) -> Program:
        """Inputs by partition: (offset, value)."""
        places = {(self._history.topic, number): at for number, at in self.positions.items()}
        found = yield from fetched(self._where, self._process, self._fetching, self._txn_history, self.name, places, self._rng)
        inputs = []
        for read in found:
            number = read.place[1]
            # The partition may have been lost meanwhile.
            if self.positions.get(number) == read.start:
                self.positions[number] = read.stop
                inputs += [(read.place, offset, value) for offset, value in read.records]
        if not inputs:
            yield self._process.sleep(self._world.unhurried(self._rng.choice((20, 100))))
        return inputs

    def _transact(self, client: TransactionalClient, member: GroupMember, inputs: list[tuple[Place, int, bytes]]) -> Program:
        """Processes inputs in one transaction."""
        rng = self._rng
        transaction = client.begin()
        transaction.group = self.group
        transaction.inputs = [(place, offset) for place, offset, _ in inputs]
        outputs: dict[Place, list[list[bytes]]] = {}
        for number in range(len(inputs)):
            outputs.setdefault(rng.choice(self._txn_history.outputs), [[]])[0].append(value_of(transaction.name, number))
        offsets = {place: offset + 1 for place, offset, _ in inputs}
        code = 0
        first = rng.random() < 0.3
        if first:
            code = yield from client.send_offsets(member, offsets)
        sound = code == 0 and (yield from client.send(outputs))
        if sound and not first:
            code = yield from client.send_offsets(member, offsets)
        if rng.random() < 0.2 and not self._history.calm:
            # The longest may exceed max.poll.interval.ms: another member gets the partitions while the offsets are pending.
            yield self._process.sleep(rng.choice((20, 100, 400, 1_300)))
        committed = yield from client.end(commit=sound and code == 0 and rng.random() < 0.95)
        if not committed:
            if code:
                self.machine.commit_refused(code)
                if code in COORDINATOR_MOVED:
                    self.machine.coordinator.lost(self._world.now_ms)
                self._pump()
            for place in offsets:
                self.positions.pop(place[1], None)


class IsolatedReader:
    """Reads all partitions from their start."""

    def __init__(self, where: Environment, history: ReadListener, places: Sequence[Place], *, name: str, isolation_level: int) -> None:
        self.positions: dict[Place, int] = dict.fromkeys(places, 0)
        self._where = where
        self._history = history
        self._name = name
        self._level = isolation_level
        self._rng = where.world.rng(name)
        self._process = ClientProcess(where.world, lambda: None)
        self._callers = Callers(*where, name)
        self._process.run(self._program())

    def kill(self) -> None:
        self._process.kill()
        self._callers.hang_up()

    def _program(self) -> Program:
        while True:
            found = yield from fetched(
                self._where, self._process, self._callers, self._history, self._name, self.positions, self._rng, isolation_level=self._level
            )
            for read in found:
                self.positions[read.place] = read.stop
            yield self._process.sleep(self._where.world.unhurried(self._rng.choice((0, 20, 100) if found else (50, 200))))


def fetched(
    where: Environment,
    process: ClientProcess,
    callers: Callers,
    history: ReadListener,
    name: str,
    positions: dict[Place, int],
    rng: Random,
    *,
    isolation_level: int = READ_COMMITTED,
) -> Program:
    """Fetches partitions from the leader of one of them; the reads that advance, which are reported."""
    if not positions:
        return []
    stage = where.stage
    leader = stage.leader_of(TopicPartition(*rng.choice(sorted(positions))))
    size = rng.choice((1, 2_000, 1 << 20))
    topics: dict[str, FetchTopic] = {}
    asked: dict[Place, int] = {}
    for (topic, number), at in positions.items():
        if stage.leader_of(TopicPartition(topic, number)) == leader:
            asked[topic, number] = at
            entry = topics.setdefault(topic, FetchTopic(topic=topic, partitions=[]))
            entry.partitions.append(FetchPartition(partition=number, fetch_offset=at, partition_max_bytes=size))
    if not asked:
        return []
    request = FetchRequest(
        max_wait_ms=rng.choice((0, 100, 300, 300)),
        min_bytes=1,
        session_epoch=-1,
        isolation_level=isolation_level,
        topics=list(topics.values()),
    )
    response = yield process.ask(callers.to(leader), request, TIMEOUT_MS)
    reads: list[ObservedRead] = []
    for topic_answer in response.responses if response is not None else ():
        for data in topic_answer.partitions:
            place = (topic_answer.topic, data.partition_index)
            if data.error_code:
                if data.error_code == errors.OffsetOutOfRange.code and stage.leader_of(TopicPartition(*place)) == leader:
                    history.complaint(f"{name}: offset {asked[place]} of {place} is out of range")
                continue
            try:
                records_read, stop = visible(data, asked[place], committed=isolation_level == READ_COMMITTED)
            except RecordsError:
                # Damaged on the broker's disk; reading again shows it.
                continue
            if stop > asked[place]:
                read = ObservedRead(name, place, isolation_level == READ_COMMITTED, asked[place], stop, records_read, history.tick())
                history.read(read)
                reads.append(read)
    return reads


def visible(data: Any, position: int, *, committed: bool) -> tuple[list[tuple[int, bytes]], int]:
    """Records of a fetched partition from a position on, without those of aborted transactions if ``committed``; and the next position.

    Raises: RecordsError for a damaged batch.
    """
    aborted = sorted((entry.first_offset, entry.producer_id) for entry in data.aborted_transactions or ()) if committed else []
    skipped: set[int] = set()
    found: list[tuple[int, bytes]] = []
    batches = data.records or b""
    for place, header in headers(batches):
        if place + header.size > len(batches):
            break
        if not crc_ok(batches, place):
            raise RecordsError("checksum")
        while aborted and aborted[0][0] <= header.last_offset:
            skipped.add(aborted.pop(0)[1])
        if header.is_control:
            control = control_record(batches, place)
            if control is not None and control.kind == ABORT_MARKER:
                skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            found += [(offset, value or b"") for offset, _, _, value, _ in records(batches, place) if offset >= position]
        position = max(position, header.last_offset + 1)
    return found, position

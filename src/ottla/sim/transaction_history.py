"""One simulated history of transactions: producers, processors and readers over brokers that fail.

Phases: two topics are created. Producers write transactions to both; processors of a group read the first and write to the second; readers
read everything at both isolation levels. Faults happen to brokers and clients; former clients of a transactional id go on beside new ones.
Then all faults are undone: producers finish, processors reach the end of their inputs, and every last stable offset the high watermark.
Finally the power fails once more, the logs are read, and ``checkers/transactions.py`` judges what was observed.

Whenever a process ends, its coordinators are compared with a replay of their logs (``shard_replay.py``).
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from ottla.base.ids import TopicPartition
from ottla.broker.metadata.features import TRANSACTION_VERSION
from ottla.broker.node import Node
from ottla.broker.replica.leader import Leader
from ottla.log.errors import LogError
from ottla.log.log import Log
from ottla.records.batch import headers
from ottla.records.errors import RecordsError
from ottla.records.read import COMMIT_MARKER, control_record, records
from ottla.sim.checkers.transactions import NEVER, FinalLog, Observations, ObservedRead, ObservedTransaction, Place, Record, check
from ottla.sim.client_connection import send_once
from ottla.sim.clients import TOPIC, Admin
from ottla.sim.cluster_environment import environment
from ottla.sim.cluster_faults import CLUSTER_FAULT_KINDS
from ottla.sim.faults import FAULT_KINDS
from ottla.sim.group_environment import OneBroker, Scene
from ottla.sim.group_history import FAULTS_UNTIL_MS, MEMBER_FAULTS, PROTOCOLS, coordinator_settings, member_options
from ottla.sim.history import HEALED_BY_MS, READ_BY_MS, Verdict
from ottla.sim.member_clients import MemberProcess
from ottla.sim.network import Network
from ottla.sim.shard_replay import differences
from ottla.sim.transaction_clients import Environment, IsolatedReader, Processor, TransactionalProducer
from ottla.sim.transactional_client import Settings
from ottla.sim.world import World
from ottla.store import layout
from ottla.wire.messages import UpdateFeaturesRequest
from ottla.wire.messages.update_features import FeatureUpdateKey

OUTPUT = "results"
#: After the end of the faults: the longest pause, a session and a transaction timeout, rebalances, and the remaining transactions.
SETTLED_BY_MS = 60_000
#: Interval of checks whether everything has come to rest.
LOOK_MS = 50
LATE = "late requests"
LEVELS = "transaction.version changes"
PRODUCER_FAULTS = ("producer killed", "producer paused", "producer replaced", "producer lost")
CLIENT_FAULTS = (*MEMBER_FAULTS, *PRODUCER_FAULTS, *PRODUCER_FAULTS, LEVELS)
TRANSACTION_FAULT_KINDS = (*FAULT_KINDS, *CLIENT_FAULTS)
CLUSTER_TRANSACTION_KINDS = (*CLUSTER_FAULT_KINDS, *CLIENT_FAULTS)
TIMEOUTS_MS = (600, 1_500, 4_000)
MEMBERS_MAX = 4
WEEK_MS = 604_800_000


def transaction_settings(rng: Random) -> dict[str, str]:
    """Settings of transaction coordinators: short times and small segments; sometimes ids expire soon."""
    return {
        "transaction.state.log.num.partitions": str(rng.randint(1, 2)),
        "transaction.state.log.segment.bytes": str(rng.choice((2_000, 20_000, 1 << 20))),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
        "transactional.id.expiration.ms": str(rng.choice((1_500, WEEK_MS, WEEK_MS, WEEK_MS))),
    }


class Life(Protocol):
    """One process of a client."""

    name: str

    @property
    def dead(self) -> bool: ...

    def kill(self) -> None: ...

    def pause(self, duration_ms: int) -> None: ...


class Seat:
    """A client over its lives, one process after the other. A former process may not know that it was replaced."""

    def __init__(self, make: Callable[["Seat", str], Life], name: str) -> None:
        """``make`` starts a process with this name."""
        self._make = make
        self.name = name
        self.lives: list[Life] = []
        #: It never comes back.
        self.lost = False

    @property
    def living(self) -> list[Any]:
        return [life for life in self.lives if not life.dead]

    def begin(self) -> None:
        """Starts a process, beside the former one if that still runs."""
        if not self.lost:
            self.lives.append(self._make(self, f"{self.name}.{len(self.lives)}"))

    def begin_unless_alive(self) -> None:
        if not self.living:
            self.begin()


class TransactionHistory:
    """One history of transactions. ``kinds`` are the faults to choose from."""

    topic = TOPIC

    def __init__(
        self,
        seed: int,
        *,
        kinds: Sequence[str] = (),
        protocols: Sequence[Sequence[str]] = PROTOCOLS,
        brokers: int | None = None,
        version: int | None = None,
    ) -> None:
        """``brokers``: size of the cluster; None for a single broker. ``kinds``: empty for all. ``version``: of all clients; by default
        each process has its own.
        """
        self.world = World(seed)
        rng = self.world.rng("profile")
        self.calm = False
        self.network = Network(self.world)
        kinds = kinds or (TRANSACTION_FAULT_KINDS if brokers is None else CLUSTER_TRANSACTION_KINDS)
        chosen = rng.sample(kinds, rng.randint(1, len(kinds)))
        self.version = version
        if LATE in chosen:
            # Clients of version 1 do not survive them.
            self.version = 2
        #: Whether a wall clock may jump backwards, so that transactions time out late.
        self._patient = "clock jumps" in chosen
        self.inputs: list[Place] = [(TOPIC, number) for number in range(rng.randint(1, 3))]
        self.outputs: list[Place] = [(OUTPUT, number) for number in range(rng.randint(1, 2))]
        texts = {**coordinator_settings(rng), **transaction_settings(rng)}
        self._alone = brokers is None
        #: Least and most transactions of a producer, and how long faults happen: a cluster's time costs more.
        self._transactions, self._faults_until_ms = ((4, 14), FAULTS_UNTIL_MS) if self._alone else ((3, 8), 4_000)
        self._set_stage(texts, brokers, chosen)
        self.scene = Scene(self.stage)
        self.stage.last_look(self._hold_against_replay)
        self.admins = self._creators()
        self.where = Environment(self.world, self.network, self.stage)
        self.producers: list[Seat] = []
        self.groups: dict[str, list[Seat]] = {}
        self.readers: list[IsolatedReader] = []
        self.quotas: dict[str, list[int]] = {}
        self._seats: dict[str, Seat] = {}
        self._grow: dict[str, Callable[[], None]] = {}
        self.observed = Observations()
        self.complaints: list[str] = []
        self._ticks = 0
        #: Name, time of the request and of the response, of each identity, by transactional id.
        self._identities: dict[str, list[tuple[str, int, int]]] = {}
        self._acknowledged = 0
        self._looked_ms = -LOOK_MS

    def _creators(self) -> list[Admin]:
        """Clients that create the topics."""
        rng, replicas = self.world.rng("profile"), self.stage.replicas
        configs = {"internal.segment.bytes": str(rng.choice((2_000, 10_000, 1 << 20))), "retention.ms": "-1"}
        if replicas > 1:
            configs["min.insync.replicas"] = "2"
        return [
            Admin(self.world, self.network, self.stage.entrance(-1), len(places), configs, topic=topic, replication_factor=replicas)
            for topic, places in ((TOPIC, self.inputs), (OUTPUT, self.outputs))
        ]

    def _set_stage(self, texts: dict[str, str], brokers: int | None, chosen: Sequence[str]) -> None:
        more: dict[str, Callable[[], None]] = {kind: lambda kind=kind: self._befall(kind) for kind in CLIENT_FAULTS}  # type: ignore[misc]
        more[LEVELS] = self._change_level
        self.stage, self.faults = environment(self.world, self.network, texts, brokers, (TOPIC, OUTPUT), chosen, more)

    def run(self) -> Verdict:
        """Runs the whole history."""
        self.stage.start()
        self._run(HEALED_BY_MS, lambda: all(admin.done for admin in self.admins), "the topics were never created")
        self._people()
        self.faults.plan()
        self.world.run(self.world.now_ms + self._faults_until_ms)
        self.faults.heal()
        self.calm = True
        self.world.await_sleepers(self.faults.asleep_until_ms)
        for seat in self._seats.values():
            if self._unfinished(seat):
                seat.begin_unless_alive()
        self._run(SETTLED_BY_MS, self._settled, "transactions did not come to rest after the faults")
        self._finish()
        problems = [*self.complaints, *self.stage.problems(), *check(self.observed)[:6]]
        story = "transactions" if isinstance(self.stage, OneBroker) else "cluster-transactions"
        return Verdict.of(self.world, problems, acknowledged=self._acknowledged, faults=self.faults.count, story=story)

    # Clients.

    def _people(self) -> None:
        rng = self.world.rng("profile")
        for number in range(rng.randint(1, 3 if self._alone else 2)):
            name = f"producer{number}"
            self.quotas[name] = [rng.randint(*self._transactions)]
            seat = self._seats[name] = Seat(self._producer, name)
            self.producers.append(seat)
            seat.begin()
        for number in range(rng.choice((1, 1, 2)) if self._alone else 1):
            self._group(f"group{number}")
        places = [*self.inputs, *self.outputs]
        for level, name in enumerate(("uncommitted", "committed")):
            self.readers.append(IsolatedReader(self.where, self, places, name=name, isolation_level=level))

    def _producer(self, seat: Seat, name: str) -> TransactionalProducer:
        rng = self.world.rng("lives")
        return TransactionalProducer(
            self.where,
            self,
            Settings(seat.name, name, self._version(), rng.choice(TIMEOUTS_MS)),
            quota=self.quotas[seat.name],
            places=[*self.inputs, *self.outputs],
            ended=lambda: self.world.after(rng.choice((100, 1_000)), seat.begin_unless_alive),
        )

    def _group(self, group: str) -> None:
        rng = self.world.rng("profile")
        protocols = rng.choice(PROTOCOLS)
        options = member_options(rng, group)
        static = rng.random() < 0.3
        seats = self.groups[group] = []

        def make(seat: Seat, name: str) -> Processor:
            lives = self.world.rng("lives")
            return Processor(
                self.where,
                self,
                options(lives.choice(protocols), seat.name if static else ""),
                Settings(seat.name, name, self._version(), lives.choice(TIMEOUTS_MS)),
                rng=self.world.rng(name),
            )

        def grow() -> None:
            if len(seats) < MEMBERS_MAX:
                name = f"{group}-{len(seats)}"
                seats.append(Seat(make, name))
                self._seats[name] = seats[-1]
                seats[-1].begin()

        self._grow[group] = grow
        for _ in range(rng.randint(1, 3 if self._alone else 2)):
            grow()

    def _version(self) -> int:
        """The rules of a new client process: those of the finalized level, or older ones."""
        if self.version is not None:
            return self.version
        return 1 if self._level() < 2 or self.world.rng("lives").random() < 0.3 else 2

    def _unfinished(self, seat: Seat) -> bool:
        """Whether a client still has work."""
        return seat.name not in self.quotas or self.quotas[seat.name][0] > 0

    # Faults of clients.

    def _befall(self, kind: str) -> None:
        rng = self.world.rng("member faults")
        who, what = kind.split()
        if who == "producer":
            seat = rng.choice(self.producers)
        else:
            group = rng.choice(sorted(self.groups))
            seat = rng.choice(self.groups[group])
            if what == "joins":
                self._grow[group]()
                return
        if not seat.living:
            if self._unfinished(seat):
                seat.begin()
        elif what == "killed" or (what == "lost" and who == "producer" and self._patient):
            seat.living[-1].kill()
            self.world.after(rng.choice((10, 200, 3_000)), seat.begin_unless_alive)
        elif what == "lost":
            seat.living[-1].kill()
            if who == "producer":
                # Only the timeout ends its transaction.
                seat.lost = True
                self.quotas[seat.name][0] = 0
        elif what == "paused":
            seat.living[-1].pause(rng.choice((300, 2_000, 5_000)))
        elif what == "leaves":
            seat.living[-1].leave()
        elif what == "replaced":
            if rng.random() < 0.5:
                seat.living[-1].pause(rng.choice((300, 2_000, 5_000)))
            seat.begin()

    def _level(self) -> int:
        """The finalized ``transaction.version``."""
        node = self.stage.store.tree.nodes.get(layout.FEATURE)
        return layout.decode_feature(node.data).levels.get(TRANSACTION_VERSION, 0) if node is not None else 0

    def _change_level(self) -> None:
        """Raises or lowers ``transaction.version``, and ignores the result."""
        level, wanted = self._level(), self.world.rng("member faults").choice((0, 1, 2))
        update = FeatureUpdateKey(feature=TRANSACTION_VERSION, max_version_level=wanted, upgrade_type=2 if wanted < level else 1)
        send_once(self.world, self.network, self.stage.entrance(-1), UpdateFeaturesRequest(timeout_ms=1_000, feature_updates=[update]))

    # The end.

    def _run(self, within_ms: int, done: Callable[[], bool], otherwise: str) -> None:
        if not self.world.run(self.world.now_ms + within_ms, done):
            self.complaints.append(otherwise)
            if done == self._settled:
                self.complaints += self._restless()

    def _leaders(self) -> dict[Place, Leader]:
        found: dict[Place, Leader] = {}
        for place in (*self.inputs, *self.outputs):
            partition = TopicPartition(*place)
            node = self.stage.node(self.stage.leader_of(partition))
            leader = node.partitions.leaders.get(partition) if node is not None else None
            if leader is not None:
                found[place] = leader
        return found

    def _settled(self) -> bool:
        if self.world.now_ms - self._looked_ms < LOOK_MS:
            return False
        self._looked_ms = self.world.now_ms
        return not any(seat.living for seat in self.producers) and not self._restless()

    def _restless(self) -> list[str]:
        """What has not come to rest."""
        found = [f"  {life.name} has transactions to write" for seat in self.producers for life in seat.living]
        leaders = self._leaders()
        ends = {place: leader.high_watermark for place, leader in leaders.items()}
        if len(ends) != len(self.inputs) + len(self.outputs):
            return [*found, f"  only {sorted(ends)} have leaders"]
        for place, leader in leaders.items():
            stable = leader.log.last_stable_offset(leader.high_watermark)
            if leader.high_watermark < leader.log.end_offset:
                # A new leader may have a transaction above the high watermark that it knows.
                found.append(f"  the high watermark of {place} is {ends[place]}, its end {leader.log.end_offset}")
            if stable < leader.high_watermark:
                open_since = leader.log.producers.open_transactions
                found.append(f"  the last stable offset of {place} is {stable}, high watermark {ends[place]}; open are {open_since}")
        found += [f"  a reader is at {reader.positions}, the ends are {ends}" for reader in self.readers if reader.positions != ends]
        for group, seats in self.groups.items():
            living = [life for seat in seats for life in seat.living]
            owned = sorted(number for life in living for number in life.owned)
            if owned != [number for _, number in self.inputs]:
                found.append(f"  {group} reads {owned}")
            for life in living:
                behind = {number: life.positions.get(number) for number in life.owned if life.positions.get(number) != ends[TOPIC, number]}
                if behind or life.busy or not life.machine.settled:
                    found.append(f"  {life} owns {life.owned}, is at {life.positions}{', in a transaction' if life.busy else ''}")
        return found

    def _finish(self) -> None:
        for seat in self._seats.values():
            for life in seat.living:
                life.kill()
        for reader in self.readers:
            reader.kill()
        self.stage.power_cut()
        self._run(READ_BY_MS, self.stage.ready, "the broker did not come back at the end")
        wanted = len(self.inputs) + len(self.outputs)

        def known() -> bool:
            leaders = self._leaders()
            return len(leaders) == wanted and all(leader.high_watermark == leader.log.end_offset for leader in leaders.values())

        self._run(READ_BY_MS, known, "not all partitions are led at the end")
        for broker in self.stage.brokers:
            node = self.stage.node(broker)
            if node is not None:
                self._hold_against_replay(node)
        for place, leader in self._leaders().items():
            try:
                self.observed.logs[place] = final_log(leader.log, leader.high_watermark)
            except (RecordsError, LogError) as error:
                self.complaints.append(f"the log of {place} cannot be read back: {error}")
        for transaction in self.observed.transactions:
            if transaction.outcome == "open":
                transaction.outcome = "aborted"
        if not self.complaints:
            self.observed.processed = dict.fromkeys(self.groups, self.inputs)

    def _hold_against_replay(self, node: Node) -> None:
        try:
            for line in differences(node):
                self.complaint(line)
        except (OSError, LogError, RecordsError) as error:
            self.world.note(f"no replay: {error}")

    # TransactionListener and ReadListener.

    def tick(self) -> int:
        self._ticks += 1
        return self._ticks

    def begin(self, transactional_id: str, client: str, name: str) -> ObservedTransaction:
        transaction = ObservedTransaction(name, transactional_id, self.tick())
        since = max((done for each, _, done in self._identities.get(transactional_id, ()) if each == client), default=NEVER)
        for other, asked, done in self._identities.get(transactional_id, ()):
            if other != client and asked > since:
                transaction.fenced = min(transaction.fenced, done)
        self.observed.transactions.append(transaction)
        return transaction

    def identified(self, transactional_id: str, name: str, *, asked: int) -> None:
        now = self.tick()
        self._identities.setdefault(transactional_id, []).append((name, asked, now))
        for transaction in self.observed.transactions:
            if transaction.transactional_id == transactional_id and transaction.began < asked:
                transaction.ended = min(transaction.ended, now)
                if transaction.name.split("#")[0] != name:
                    transaction.fenced = min(transaction.fenced, now)

    def acknowledged(self, count: int) -> None:
        self._acknowledged += count

    def read(self, read: ObservedRead) -> None:
        self.world.note(f"{read.reader} read {read.place[0]}-{read.place[1]}:{read.start} to {read.stop}, {len(read.records)} records")
        self.observed.reads.append(read)

    def complaint(self, text: str) -> None:
        if text not in self.complaints:
            self.complaints.append(text)

    # GroupListener.

    @property
    def partitions(self) -> int:
        return len(self.inputs)

    def topic_id(self) -> bytes:
        topic = self.scene.topic()
        assert topic is not None, "it was created before its members"
        return topic.topic_id

    def assigned(self, who: MemberProcess, partitions: list[int]) -> None:
        self.world.note(f"{who} is given {partitions} in {who.machine.committing[1]}")

    def released(self, who: MemberProcess, partitions: list[int], *, lost: bool) -> None:
        self.world.note(f"{who} {'loses' if lost else 'gives up'} {partitions}")

    def began(self, who: MemberProcess, partition: int, offset: int) -> None:
        self.world.note(f"{who} begins at {partition}:{offset}")

    def delivered(self, who: MemberProcess, partition: int, offset: int, value: bytes) -> None:
        """Reads are reported with ``read``."""

    def commit_sent(self, group: str, who: tuple[str, int] | None, offsets: dict[int, int]) -> Any:
        """Offsets are committed in transactions."""

    def commit_answered(self, ticket: Any, partition: int, outcome: str) -> None: ...

    def fetch_sent(self, group: str) -> Any: ...

    def fetch_answered(self, ticket: Any, offsets: dict[int, int]) -> None: ...

    def synced(self, who: MemberProcess, asked_ms: int, generation: int) -> None: ...

    def died(self, who: MemberProcess) -> None: ...

    def ended(self, who: MemberProcess) -> None:
        """A processor's program ended: start another one."""
        seat = self._seats[who.name.rpartition(".")[0]]
        self.world.after(self.world.rng("member faults").choice((200, 2_000)), seat.begin_unless_alive)


def final_log(log: Log, high_watermark: int) -> FinalLog:
    """All records of a log, and those of committed transactions. Raises: RecordsError, LogError, OSError."""
    found: list[Record] = []
    committed: list[Record] = []
    undecided: dict[int, list[Record]] = {}
    offset = int(log.start_offset)
    while offset < log.end_offset:
        data = log.read(offset, max_bytes=1 << 20, upto=log.end_offset)
        if not data:
            raise RecordsError(f"nothing at offset {offset} of {log.start_offset} to {log.end_offset}")
        for place, header in headers(data):
            offset = header.last_offset + 1
            if header.is_control:
                control = control_record(data, place)
                decided = undecided.pop(header.producer_id, [])
                committed += decided if control is not None and control.kind == COMMIT_MARKER else []
                continue
            read = [(at, value or b"") for at, _, _, value, _ in records(data, place)]
            found += read
            if header.is_transactional:
                undecided.setdefault(header.producer_id, []).extend(read)
            else:
                committed += read
    return FinalLog(found, sorted(committed), log.last_stable_offset(high_watermark), high_watermark)

"""One simulated history of a cluster: three brokers over one store, a topic of three replicas, users that look for its leaders.

Phases as in ``history.py``: the topic is created; producers (acks=all, min.insync.replicas 2) and consumers work while faults happen to the
brokers and to the links between them; all is healed, the producers finish, and the power goes everywhere at once; then the cluster has to
come to rest: every partition led, every replica in sync, and all copies equal.
"""

from collections.abc import Sequence
from typing import Any

from ottla.base.ids import BrokerId, TopicPartition
from ottla.broker.leader import Leader
from ottla.records.errors import RecordsError
from ottla.sim.checkers import Checker
from ottla.sim.checkers.checks import AcknowledgedIsKept, NoDuplicates, OffsetsAreDense, OffsetsAreNeverReused, OrderIsKept
from ottla.sim.cluster_machine import ClusterMachine, Links, wake_all
from ottla.sim.disk import SimDisk
from ottla.sim.history import Verdict, read_log
from ottla.sim.machine import Performer
from ottla.sim.network import Connection, Network
from ottla.sim.users import TOPIC, Admin, Consumer, Producer
from ottla.sim.world import World
from ottla.store import layout
from ottla.store.memory import MemoryStore

BROKERS = 3
FAULTS_UNTIL_MS = 8_000
HEALED_BY_MS = 120_000
AT_REST_BY_MS = 60_000
CHECKERS: tuple[type[Checker], ...] = (AcknowledgedIsKept, NoDuplicates, OffsetsAreDense, OffsetsAreNeverReused, OrderIsKept)
FAULT_KINDS = (
    "kill",
    "power cut",
    "power cut everywhere",
    "stop",
    "pause",
    "cut link",
    "cut off",
    "fsync fails",
    "slow disk",
    "broken connections",
)
#: A follower is out of sync soon, so that histories see it.
SETTINGS = {"ottla.disk.reserve.bytes": "65536", "replica.lag.time.max.ms": "1000", "replica.fetch.wait.max.ms": "200"}


class Roaming:
    """Where users connect: mostly to the broker that the store names as leader of partition 0, often to any. Is a ``Host``."""

    def __init__(self, world: World, machines: dict[BrokerId, ClusterMachine], store: MemoryStore, partition: int) -> None:
        self._rng = world.rng("roaming")
        self._machines = machines
        self._store = store
        self._partition = partition
        self._taken: dict[int, ClusterMachine] = {}

    def accept(self, connection: Connection) -> bool:
        machine = self._rng.choice(list(self._machines.values()))
        node = self._store.tree.nodes.get(layout.partition_state(TOPIC, self._partition))
        if node is not None and self._rng.random() < 0.7:
            machine = self._machines.get(BrokerId(layout.decode_partition_state(node.data).leader), machine)
        self._taken[connection.number] = machine
        return machine.accept(connection)

    def receive(self, connection: Connection, frame: bytearray) -> None:
        self._taken[connection.number].receive(connection, frame)

    def hung_up(self, connection: Connection) -> None:
        self._taken.pop(connection.number).hung_up(connection)


class RoamingConsumer(Consumer):
    """A consumer that looks for another broker after an error."""

    def _answered(self, response: Any) -> None:
        data = response.responses[0].partitions[0] if response.responses else None
        if data is None or data.error_code:
            self._caller.hang_up()
        super()._answered(response)


class Witness:
    """What no user sees: who leads, and what the ISR holds. Looks after every step of every broker."""

    def __init__(self, machines: dict[BrokerId, ClusterMachine]) -> None:
        self.problems: list[str] = []
        self._machines = machines
        self._led: dict[tuple[TopicPartition, int], int] = {}
        self._marks: dict[TopicPartition, tuple[Leader, int]] = {}

    def stepped(self, machine: ClusterMachine) -> None:
        """Check what this broker leads now."""
        assert machine.node is not None, "it has just stepped"
        for partition, leader in machine.node.partitions.leaders.items():
            first = self._led.setdefault((partition, leader.epoch), machine.broker_id)
            if first != machine.broker_id:
                self._complain(f"{partition} is led by {first} and {machine.broker_id} in epoch {leader.epoch}")
            known, mark = self._marks.get(partition, (None, 0))
            if known is leader and leader.high_watermark < mark:
                self._complain(f"the high watermark of {partition} fell from {mark} to {leader.high_watermark}")
            if known is not leader or leader.high_watermark != mark:
                self._marks[partition] = (leader, leader.high_watermark)
                self._check_isr(partition, leader)

    def _check_isr(self, partition: TopicPartition, leader: Leader) -> None:
        """Whoever may be elected has all that is committed, on disk."""
        store = next(iter(self._machines.values())).store
        node = store.tree.nodes.get(layout.partition_state(*partition))
        state = layout.decode_partition_state(node.data) if node is not None else None
        if state is None or state.leader_epoch != leader.epoch:
            return
        for broker in state.isr:
            peer = self._machines[BrokerId(broker)].node
            follower = peer.partitions.followers.get(partition) if peer is not None else None
            if follower is not None and follower.log.recovery_point < leader.high_watermark:
                at = f"{follower.log.recovery_point} of {leader.high_watermark}"
                self._complain(f"broker {broker} is in the ISR of {partition} and has {at} on disk")

    def _complain(self, text: str) -> None:
        if len(self.problems) < 5:
            self.problems.append(text)


class ClusterHistory:
    """See the module's theory; is the ``Listener`` of its users. ``kinds`` are the faults to choose from."""

    def __init__(
        self,
        seed: int,
        *,
        performer: Performer | None = None,
        kinds: Sequence[str] = FAULT_KINDS,
        configs: dict[str, str] | None = None,
    ) -> None:
        self.world = World(seed)
        rng = self.world.rng("profile")
        self.checkers = [kind() for kind in CHECKERS]
        self.complaints: list[str] = []
        self.acknowledged_count = 0
        self.network = Network(self.world)
        self.store = MemoryStore()
        self.links = Links()
        self.witness = Witness(self.links.machines)
        for number in range(1, BROKERS + 1):
            disk = SimDisk(now_ms=lambda: self.world.now_ms)
            stepped = self.witness.stepped
            ClusterMachine(
                self.world,
                self.store,
                disk,
                dict(SETTINGS, **{"broker.id": str(number)}),
                self.links,
                performer,
                broker_id=number,
                stepped=stepped,
            )
        self.machines = self.links.machines
        wake_all(self.store, self.machines)
        self.partitions = rng.randint(1, 3)
        self.kinds = rng.sample(kinds, rng.randint(1, len(kinds)))
        self.faults = 0
        self.healed = False
        self._rng = self.world.rng("faults")
        self.configs = {
            "min.insync.replicas": "2",
            "segment.bytes": str(rng.choice((2_000, 10_000, 1 << 20))),
            "index.interval.bytes": str(rng.choice((0, 100, 4096))),
            "retention.ms": "-1",
            **(configs or {}),
        }
        self.producers: list[Producer] = []

    def run(self) -> Verdict:
        """Live through the whole history."""
        for machine in self.machines.values():
            machine.start()
        self._wait(HEALED_BY_MS, lambda: self._registered() == BROKERS, "the brokers never registered")
        admin = Admin(self.world, self.network, self._host(0), self.partitions, self.configs)  # type: ignore[arg-type]
        admin._request.topics[0].replication_factor = BROKERS
        self._wait(HEALED_BY_MS, lambda: admin.done, "the topic was never created")
        self._people()
        self.world.after(self._rng.randint(50, 900), self._happen)
        self.world.run(self.world.now_ms + FAULTS_UNTIL_MS)
        self._heal()
        self._wait(HEALED_BY_MS, lambda: all(producer.done for producer in self.producers), "producers did not finish after the faults")
        self._finish()
        problems = [*self.complaints, *self.witness.problems, *(text for checker in self.checkers for text in checker.problems[:3])]
        return Verdict(
            seed=self.world.seed,
            problems=problems,
            tail=list(self.world.tail),
            trace_hash=self.world.trace_hash(),
            acknowledged=self.acknowledged_count,
            faults=self.faults,
            virtual_ms=self.world.now_ms,
        )

    def _host(self, partition: int) -> Roaming:
        return Roaming(self.world, self.machines, self.store, partition)

    def _registered(self) -> int:
        return sum(path.startswith("/brokers/ids/") for path in self.store.tree.nodes)

    def _people(self) -> None:
        rng = self.world.rng("profile")
        for number in range(rng.randint(1, 4)):
            partition = number % self.partitions
            producer = Producer(
                self.world,
                self.network,
                self._host(partition),  # type: ignore[arg-type]
                self,
                number=number,
                partition=partition,
                batches=rng.randint(10, 60),
                idempotent=rng.random() < 0.8,
            )
            self.producers.append(producer)
        for partition in range(self.partitions):
            RoamingConsumer(self.world, self.network, self._host(partition), self, number=partition, partition=partition)  # type: ignore[arg-type]

    def _wait(self, within_ms: int, done: Any, otherwise: str) -> None:
        if not self.world.run(self.world.now_ms + within_ms, done):
            self.complaints.append(otherwise)

    # Faults.

    def _happen(self) -> None:
        if self.healed:
            return
        kind, rng = self._rng.choice(self.kinds), self._rng
        machine = rng.choice(list(self.machines.values()))
        self.faults += 1
        self.world.note(f"fault: {kind} of {machine.broker_id}")
        match kind:
            case "kill":
                machine.kill()
                self._restart_later(machine)
            case "power cut":
                machine.power_cut()
                self._restart_later(machine)
            case "power cut everywhere":
                self._power_cut_everywhere()
            case "stop":
                machine.stop()
                self._restart_later(machine)
            case "pause":
                machine.pause(rng.choice((100, 1_000, 3_000, 6_000)))
            case "cut link":
                other = rng.choice([one for one in self.machines if one != machine.broker_id])
                self._cut([frozenset((machine.broker_id, int(other)))])
            case "cut off":
                self._cut([frozenset((machine.broker_id, int(other))) for other in self.machines if other != machine.broker_id])
            case "fsync fails":
                machine.disk.fail("sync")
            case "slow disk":
                machine.slow_disk = True
                self.world.after(rng.randint(500, 3_000), lambda: setattr(machine, "slow_disk", False))
            case "broken connections":
                self.network.loss = rng.choice((0.02, 0.2))
                self.world.after(rng.randint(100, 1_500), lambda: setattr(self.network, "loss", 0.0))
            case _:
                raise AssertionError(f"there is no fault {kind!r}")
        self.world.after(rng.randint(50, 1_500), self._happen)

    def _cut(self, links: list[frozenset[int]]) -> None:
        self.links.cut.update(links)
        self.world.after(self._rng.choice((100, 1_500, 4_000)), lambda: self.links.cut.difference_update(links))

    def _power_cut_everywhere(self) -> None:
        for machine in self.machines.values():
            machine.power_cut()
        for machine in self.machines.values():
            self._restart_later(machine)

    def _restart_later(self, machine: ClusterMachine) -> None:
        self.world.after(self._rng.choice((1, 50, 700, 2_500)), lambda: machine.start() if machine.node is None else None)

    def _heal(self) -> None:
        self.healed = True
        self.network.loss = 0.0
        self.links.cut.clear()
        for machine in self.machines.values():
            machine.disk.fail("sync", times=0)
            machine.slow_disk = False
            if machine.node is None:
                machine.start()
        self.world.note("healed")

    # The end.

    def _at_rest(self) -> bool:
        """Every partition led, every replica in sync, nothing on its way."""
        for number in range(self.partitions):
            node = self.store.tree.nodes[layout.partition_state(TOPIC, number)]
            state = layout.decode_partition_state(node.data)
            if len(state.isr) != BROKERS or state.leader < 0 or len(set(self._ends(number))) != 1:
                return False
        return True

    def _ends(self, number: int) -> list[tuple[int, int]]:
        """Log end and what is on disk of every copy."""
        found = []
        for machine in self.machines.values():
            log = self._log(machine, number)
            found.append((-1, machine.broker_id) if log is None else (log.end_offset, log.recovery_point))
        return found

    def _log(self, machine: ClusterMachine, number: int) -> Any:
        if machine.node is None:
            return None
        partitions, partition = machine.node.partitions, TopicPartition(TOPIC, number)
        replica = partitions.leaders.get(partition) or partitions.followers.get(partition)
        return replica.log if replica is not None else None

    def _finish(self) -> None:
        """Everybody has finished; then the power goes everywhere, and all copies must come to be equal."""
        self._wait(AT_REST_BY_MS, self._at_rest, "the cluster did not come to rest after the faults")
        for machine in self.machines.values():
            machine.power_cut()
        for machine in self.machines.values():
            machine.start()
        self._wait(AT_REST_BY_MS, self._at_rest, "the cluster did not come to rest after the last power cut")
        final: dict[int, list[tuple[int, bytes]]] = {}
        for number in range(self.partitions):
            copies = []
            for machine in self.machines.values():
                try:
                    log = self._log(machine, number)
                    copies.append(read_log(log) if log is not None else [])
                except RecordsError as error:
                    self.complaints.append(f"partition {number} of broker {machine.broker_id} cannot be read back: {error}")
            if any(copy != copies[0] for copy in copies):
                self.complaints.append(f"the copies of partition {number} differ: {[len(copy) for copy in copies]} records")
            final[number] = copies[0] if copies else []
        for checker in self.checkers:
            checker.finish(final)

    # Listener.

    def sent(self, producer: int, partition: int, values: list[bytes], *, idempotent: bool) -> None:
        for checker in self.checkers:
            checker.sent(producer, partition, values, idempotent=idempotent)

    def acknowledged(self, partition: int, base_offset: int, values: list[bytes]) -> None:
        self.acknowledged_count += len(values)
        self.world.note(f"acknowledged {partition}:{base_offset}+{len(values)}")
        for checker in self.checkers:
            checker.acknowledged(partition, base_offset, values)

    def read(self, reader: int, partition: int, offset: int, value: bytes) -> None:
        for checker in self.checkers:
            checker.read(reader, partition, offset, value)

    def watermark(self, reader: int, partition: int, offset: int) -> None:
        """A new leader may know less of it for a moment; ``Witness`` looks at each leader's own."""

    def complaint(self, text: str) -> None:
        if text not in self.complaints:
            self.complaints.append(text)

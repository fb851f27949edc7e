"""One simulated history of a single broker: a seed determines the world, the clients and the faults; the checkers examine the result.

Phases: the topic is created; producers and consumers run while faults of the kinds chosen by the seed (``faults.py``) happen every few
hundred milliseconds; then all faults are undone, the producers finish, and every log is read from its start.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ottla.records.batch import headers
from ottla.records.errors import RecordsError
from ottla.records.read import records
from ottla.sim import schema_registry
from ottla.sim.checkers import COMPACTED, IN_ORDER, Checker
from ottla.sim.clients import Admin, Consumer, Producer, no_frame
from ottla.sim.compacted_topic import value_of
from ottla.sim.disk import SimDisk
from ottla.sim.faults import FAULT_KINDS, Faults
from ottla.sim.machine import Machine
from ottla.sim.network import Network
from ottla.sim.report_fanout import Reports
from ottla.sim.schema_registry import SchemasAreRegistered, SimRegistry, any_frame, valid_frame
from ottla.sim.world import World
from ottla.store.memory import MemoryStore

FAULTS_UNTIL_MS = 6_000
HEALED_BY_MS = 120_000
READ_BY_MS = 10_000
COMPACTED_BY_MS = 2_000
#: Compactions are frequent, run in steps, and need several passes.
CLEANER = {
    "log.cleaner.backoff.ms": "150",
    "log.cleaner.io.buffer.size": "2048",
    "log.cleaner.dedupe.buffer.size": "1024",
    "log.cleaner.threads": "2",
}


@dataclass(slots=True)
class Verdict:
    """The result of one seed."""

    seed: int
    problems: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    trace_hash: str = ""
    acknowledged: int = 0
    faults: int = 0
    virtual_ms: int = 0
    #: Kind of history, see ``sweep.STORIES``.
    story: str = "logs"

    @classmethod
    def of(cls, world: World, problems: list[str], *, acknowledged: int, faults: int, story: str = "logs") -> Self:
        """The result of a history in its world."""
        return cls(world.seed, problems, list(world.tail), world.trace_hash(), acknowledged, faults, world.now_ms, story)


class History:
    """One history. ``kinds`` are the faults to choose from."""

    def __init__(
        self, seed: int, *, kinds: Sequence[str] = FAULT_KINDS, compacted: bool | None = None, validated: bool | None = None
    ) -> None:
        """``compacted``: whether the topic is compacted, with keyed records; by default in one history of four. ``validated``: whether
        the schemas of its values are validated; by default in one of five of the others.
        """
        self.world = World(seed)
        rng = self.world.rng("profile")
        odds = self.world.rng("compaction")
        self.compacted = odds.random() < 0.25 if compacted is None else compacted
        self.checkers: list[Checker] = [kind() for kind in (COMPACTED if self.compacted else IN_ORDER)]
        self.registry = self._schema_registry(validated)
        self.reports = Reports(self.world, self.checkers, watermarks=True)
        self.complaints = self.reports.complaints
        self.network = Network(self.world)
        disk = SimDisk(now_ms=lambda: self.world.now_ms)
        texts = {"ottla.disk.reserve.bytes": "65536", **CLEANER}
        self.machine = Machine(self.world, MemoryStore(), disk, texts if self.registry is None else texts | schema_registry.SETTINGS)
        self.machine.registry = self.registry
        self.partitions = rng.randint(1, 3)
        chosen = rng.sample(kinds, rng.randint(1, len(kinds)))
        more = {} if self.registry is None else self.registry.faults()
        self.faults = Faults(self.world, self.machine, self.network, [*chosen, *more], more)
        configs = {
            "internal.segment.bytes": str(rng.choice((2_000, 10_000, 1 << 20))),
            "index.interval.bytes": str(rng.choice((0, 100, 4096))),
            "retention.ms": "-1",
        }
        if self.compacted:
            configs |= {
                "cleanup.policy": "compact",
                "internal.segment.bytes": str(odds.choice((1_000, 5_000, 20_000))),
                "min.cleanable.dirty.ratio": odds.choice(("0", "0.3")),
                "delete.retention.ms": odds.choice(("0", "500", "86400000")),
                "file.delete.delay.ms": odds.choice(("0", "1000")),
            }
        if self.registry is not None:
            configs |= schema_registry.TOPIC_CONFIGS
        self.admin = Admin(self.world, self.network, self.machine, self.partitions, configs)
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        #: Values of all records in the end.
        self.kept: list[bytes] = []

    def _schema_registry(self, validated: bool | None) -> SimRegistry | None:
        odds = self.world.rng("validation")
        if self.compacted or (odds.random() >= 0.2 if validated is None else not validated):
            return None
        registry = SimRegistry(self.world, late_ms=odds.randint(0, FAULTS_UNTIL_MS))
        self.checkers.append(SchemasAreRegistered(registry))
        return registry

    def run(self) -> Verdict:
        """Runs the whole history."""
        self.machine.start()
        self._run(HEALED_BY_MS, lambda: self.admin.done, "the topic was never created")
        self._people()
        self.faults.plan()
        start = self.world.now_ms
        self.world.run(start + FAULTS_UNTIL_MS)
        self.faults.heal()
        if self.registry is not None:
            self.registry.heal()
        self._run(HEALED_BY_MS, lambda: all(producer.done for producer in self.producers), "producers did not finish after the faults")
        self._finish()
        return self._verdict()

    def _people(self) -> None:
        rng = self.world.rng("profile")
        for number in range(rng.randint(1, 4)):
            producer = Producer(
                self.world,
                self.network,
                self.machine,
                self.reports,
                number=number,
                partition=number % self.partitions,
                batches=rng.randint(10, 60),
                idempotent=rng.random() < 0.8,
                keyed=self.compacted,
                frame=no_frame if self.registry is None else valid_frame,
            )
            self.producers.append(producer)
        if self.registry is not None:
            self.producers.append(self._intruder(len(self.producers)))
        for partition in range(self.partitions):
            self.consumers.append(Consumer(self.world, self.network, self.machine, self.reports, number=partition, partition=partition))

    def _intruder(self, number: int) -> Producer:
        """A producer that also sends what validation refuses."""
        partition = self.world.rng("validation").randrange(self.partitions)
        where = (self.world, self.network, self.machine, self.reports)
        return Producer(*where, number=number, partition=partition, batches=30, idempotent=False, frame=any_frame)

    def _run(self, within_ms: int, done: Callable[[], bool], otherwise: str) -> None:
        if not self.world.run(self.world.now_ms + within_ms, done):
            self.complaints.append(otherwise)

    # The end.

    def _finish(self) -> None:
        """After all clients have finished: crashes once more and reads the logs from disk."""
        if self.compacted:
            self.world.run(self.world.now_ms + COMPACTED_BY_MS)
        node = self.machine.node
        if node is None:
            self.complaints.append("the broker is down at the end")
            return
        self.machine.power_cut()
        self.machine.start()
        self._run(READ_BY_MS, lambda: self.machine.node is not None and self.machine.node.ready, "the broker did not come back at the end")
        node = self.machine.node
        assert node is not None, "the broker runs"
        final: dict[int, list[tuple[int, bytes]]] = {}
        for partition, leader in node.partitions.leaders.items():
            try:
                final[partition.partition] = read_log(leader.log)
            except RecordsError as error:
                self.complaints.append(f"{partition} cannot be read back: {error}")
                final[partition.partition] = []
        if len(final) != self.partitions:
            self.complaints.append(f"{len(final)} of {self.partitions} partitions are led at the end")
        self.kept = [value for log in final.values() for _, value in log]
        for checker in self.checkers:
            checker.finish(final)

    def _verdict(self) -> Verdict:
        problems = [*self.complaints, *self.reports.problems]
        return Verdict.of(self.world, problems, acknowledged=self.reports.acknowledged_count, faults=self.faults.count)


def read_log(log: Any) -> list[tuple[int, bytes]]:
    """All records of a log as (offset, value). Raises: RecordsError, OSError."""
    found: list[tuple[int, bytes]] = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, max_bytes=1 << 20, upto=log.end_offset)
        if not data:
            raise RecordsError(f"nothing at offset {offset} of {log.start_offset} to {log.end_offset}")
        for place, header in headers(data):
            found += [(at, value_of(value, extra)) for at, _, _, value, extra in records(data, place) if at >= offset]
            offset = header.last_offset + 1
    return found

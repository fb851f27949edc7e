"""`python -m chaos.transactions`: consume-process-produce while brokers, workers and the network between them fail.

                          group by-process: 3 x ottla.process         ──► process-a, process-b
    producer ──► input ──┤
                          group by-hand: Ottla, 2 x librdkafka        ──► hand-a, hand-b

Three brokers over ZooKeeper, each topic with four partitions and three replicas. Each worker is a process, see ``transaction_worker``:
it writes each input record to both topics of its group, with the group's offsets, in one transaction, and aborts some on purpose.

    fault          what fails
    leader         kill -9 of the leader of a partition of the input or of an output
    transactions   kill -9 of the transaction coordinator of a worker
    group          kill -9 of the coordinator of a group
    client         kill -9 of a worker, which is restarted
    zombie         SIGSTOP of a worker for longer than its transaction's timeout; half of the time another one takes its name meanwhile
    cut            the network between two brokers, or a worker and a broker, drops packets, in one direction or both
    unplug         a worker's link is down for longer than its transaction's timeout

In the end everything works again and the workers catch up. Readers at read_committed, of both client libraries, then read the outputs:

    lost       an acknowledged input record is not in an output topic; or a unit whose commit was acknowledged is not
    doubled    an input record is in an output topic more than once
    torn       a unit of which a reader saw some records, and not all
    aborted    a record of a unit that was aborted on purpose was seen

A third reader follows the outputs during the whole run, and must have seen the same. No transaction may be open, all last stable offsets
must be at the end of their partition, and the replicas must be equal.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import confluent_kafka

import ottla
from chaos.cluster import REPLICAS, Broker, Cluster, ConditionTimeout, Process, Setup, running, until
from chaos.load import DELIVERY_MS, OF_LIBRDKAFKA, OF_OTTLA
from chaos.namespaces import Location, NotPermitted, enter
from chaos.pipelines import NumberProducer, copies_in
from chaos.transaction_worker import GROUPS, INPUT, OUTPUTS, STACKS, TRANSACTION_TIMEOUT_MS, transactional_id
from ottla import TopicPartition
from ottla.base.ids import partition_for
from ottla.errors import KafkaError

PARTITIONS = 4
#: Partitions of each coordinator's topic.
COORDINATORS = 5
TRANSACTION_LOG, OFFSETS_LOG = "__transaction_state", "__consumer_offsets"
ALL_OUTPUTS = tuple(topic for topics in OUTPUTS.values() for topic in topics)
WORKERS = {"one": "process", "two": "process", "three": "process", "four": "ottla", "five": "librdkafka", "six": "librdkafka"}
#: Relative frequency of each fault.
FAULTS = {"leader": 4, "transactions": 4, "group": 4, "client": 5, "zombie": 2, "cut": 3, "unplug": 1}
ON_NETWORKS = ("cut", "unplug")
#: One fault in so many does not wait until the output goes on.
UNAWAITED_ONE_IN = 4
#: The outputs go on within this time after a fault has ended.
STUCK_S = 120.0
#: Time for the last steps: workers catch up, last stable offsets move to the end.
CATCH_UP_S = 120.0
LOOK_S = 0.05
SETTINGS = (
    ("offsets.topic.num.partitions", str(COORDINATORS)),
    ("transaction.state.log.num.partitions", str(COORDINATORS)),
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "1000"),
    ("group.consumer.session.timeout.ms", "6000"),
    ("group.consumer.min.session.timeout.ms", "6000"),
    ("group.consumer.heartbeat.interval.ms", "1000"),
    ("group.consumer.min.heartbeat.interval.ms", "1000"),
)

#: A record of an output: its unit, the unit's number of records, and the number of the input record.
Copy = tuple[str, int, int]


def copy_of(value: bytes) -> Copy:
    unit, count, number = value.decode().split()
    return unit, int(count), int(number)


@dataclass(slots=True)
class TransactionsResult:
    """The faults and the results."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    #: Time from the end of a fault until both groups have written later records, where the next fault waited for it.
    recovered_s: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0
    acknowledged: int = 0
    units: int = 0
    committed: int = 0
    aborted: int = 0
    #: Records in the outputs, for readers at read_committed and at read_uncommitted.
    visible: int = 0
    written: int = 0
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    aborted_seen: int = 0
    open_transactions: int = 0
    #: How often workers replaced their clients.
    replaced: int = 0
    #: Workers that ended because a call of librdkafka did not return, and were restarted.
    hung: int = 0
    skipped: str = ""
    problems: list[str] = field(default_factory=list)

    def problem(self, count: int, what: str) -> None:
        """Adds a problem unless the count is 0."""
        if count:
            self.problems.append(f"{count} {what}")

    @property
    def kills(self) -> int:
        """Processes that were killed with SIGKILL."""
        return sum(count for fault, count in self.faults.items() if fault in ("leader", "transactions", "group", "client"))

    def summary(self) -> dict[str, Any]:
        """The JSON document."""
        summary = {name: getattr(self, name) for name in self.__slots__}
        took = {
            name: {"median": round(statistics.median(times), 1), "longest": round(max(times), 1)}
            for name, times in sorted(self.recovered_s.items())
        }
        return {**summary, "faults": dict(self.faults), "kills": self.kills, "recovered_s": took, "seconds": round(self.seconds)}


def judge(
    outcome: TransactionsResult, found: dict[str, Counter[Copy]], *, inputs: set[int], committed: set[str], aborted: set[str]
) -> None:
    """Counts lost, doubled and torn records in what readers found: by topic, how often each record was read.

    ``inputs``: numbers of the input records. ``committed``: units whose commit was acknowledged. ``aborted``: units aborted on purpose.
    """
    units: Counter[tuple[str, int]] = Counter()
    for topic, copies in found.items():
        numbers: Counter[int] = Counter()
        for (unit, count, number), times in copies.items():
            numbers[number] += times
            units[unit, count] += times
        lost, doubled = inputs - numbers.keys(), [number for number, times in numbers.items() if times > 1]
        outcome.lost += len(lost)
        outcome.doubled += len(doubled)
        outcome.problem(len(lost), f"input records are not in {topic}, the first: {sorted(lost)[:3]}")
        outcome.problem(len(doubled), f"input records are in {topic} more than once, the first: {sorted(doubled)[:3]}")
        outcome.problem(len(numbers.keys() - inputs), f"records in {topic} have no input record")
    outcome.units = len(units)
    torn = [f"{unit}: {times} of {count}" for (unit, count), times in units.items() if times != count]
    outcome.torn = len(torn)
    outcome.problem(outcome.torn, f"units are torn, the first: {torn[:3]}")
    visible = {unit for unit, _ in units}
    missing, seen = committed - visible, aborted & visible
    outcome.lost += len(missing)
    outcome.problem(len(missing), f"units were committed and are not visible, the first: {sorted(missing)[:3]}")
    outcome.aborted_seen = len(seen)
    outcome.problem(outcome.aborted_seen, f"units were aborted and are visible, the first: {sorted(seen)[:3]}")


class Watcher:
    """A reader at read_committed that follows the outputs, in its own thread."""

    def __init__(self, bootstrap: str) -> None:
        #: By topic: how often each record was read.
        self.seen: dict[str, Counter[Copy]] = {topic: Counter() for topic in ALL_OUTPUTS}
        #: By topic: numbers of the input records that were read.
        self.numbers: dict[str, set[int]] = {topic: set() for topic in ALL_OUTPUTS}
        #: By topic: the highest of them.
        self.highest = dict.fromkeys(ALL_OUTPUTS, -1)
        self.errors: list[str] = []
        self._bootstrap = bootstrap
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watcher", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def has_passed(self, number: int) -> bool:
        """Whether each output has a record at or after an input record."""
        return all(highest >= number for highest in self.highest.values())

    def lacks(self, wanted: set[int]) -> int:
        """How many input records are missing in the output that lacks most."""
        return max(len(wanted.difference(numbers.copy())) for numbers in self.numbers.values())

    def _work(self) -> None:
        places = [TopicPartition(topic, partition) for topic in ALL_OUTPUTS for partition in range(PARTITIONS)]
        settings = {"bootstrap_servers": self._bootstrap, "auto_offset_reset": "none", "isolation_level": "read_committed", **OF_OTTLA}
        with ottla.Consumer(**settings) as consumer:
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            while not self._ending.is_set():
                try:
                    for record in consumer.poll(timeout_ms=100):
                        copy = copy_of(record.value or b"")
                        self.seen[record.topic][copy] += 1
                        self.numbers[record.topic].add(copy[2])
                        self.highest[record.topic] = max(self.highest[record.topic], copy[2])
                except KafkaError as error:
                    self.errors.append(f"{type(error).__name__}: {error}")
                    self._ending.wait(0.5)


class Worker:
    """A worker's processes: one, or two while a zombie and its replacement live."""

    def __init__(self, name: str, kind: str, bootstrap: str, directory: Path, location: Location) -> None:
        self.name, self.kind = name, kind
        self.location = location
        self._outcomes = directory / f"worker-{name}.outcomes"
        self._arguments = [kind, name, bootstrap, str(self._outcomes)]
        self._directory = directory
        self._made = 0
        self.process = self.made()

    def made(self) -> Process:
        """A process with this worker's name, not started."""
        self._made += 1
        output = self._directory / f"worker-{self.name}-{self._made}.output"
        return Process(self.location, self._arguments, output, module="chaos.transaction_worker")

    def outcomes(self, outcome: str) -> set[str]:
        """Units with an outcome."""
        lines = self._outcomes.read_text().splitlines() if self._outcomes.exists() else []
        return {unit for found, _, unit in (line.partition(" ") for line in lines) if found == outcome}

    def output(self) -> str:
        files = self._directory.glob(f"worker-{self.name}-*.output")
        return "".join(path.read_text(errors="replace") for path in sorted(files))


class TransactionsTest:
    """One run of the program."""

    def __init__(self, cluster: Cluster, directory: Path, *, seed: int, rate: int, log: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.outcome = TransactionsResult(seed)
        self.log = log
        self.directory = directory
        self.producer = NumberProducer(
            cluster.bootstrap, rate, topic=INPUT, value=b"%d", delivery_timeout_ms=DELIVERY_MS, linger_ms=2, **OF_OTTLA
        )
        self.watcher = Watcher(cluster.bootstrap)
        network = cluster.network
        self.workers = [
            Worker(name, kind, cluster.bootstrap, directory, network.location(name, 20 + number) if network else Location(name))
            for number, (name, kind) in enumerate(WORKERS.items())
        ]

    def execute(self, faults: int) -> TransactionsResult:
        """Runs everything from the topics' creation to the last check."""
        began_s = time.monotonic()
        try:
            for topic in (INPUT, *ALL_OUTPUTS):
                self.cluster.create(topic, PARTITIONS)
            self.watcher.begin()
            self.producer.begin()
            try:
                for worker in self.workers:
                    worker.process.spawn()
                self.await_output("start")
                kinds = [fault for fault in FAULTS if self.cluster.network is not None or fault not in ON_NETWORKS]
                for fault in self.rng.choices(kinds, [FAULTS[kind] for kind in kinds], k=faults):
                    self.one_fault(fault)
                self.await_output("the last fault")
            finally:
                self.producer.end()
            self.catch_up()
            self.stop_workers()
            self.compare()
        except (ConditionTimeout, KafkaError) as why:
            self.outcome.problems.append(f"{type(why).__name__}: {why}")
        finally:
            self.watcher.end()
            for worker in self.workers:
                with contextlib.suppress(ProcessLookupError):
                    worker.process.kill()
        self.outcome.problems += self.cluster.died()
        self.outcome.seconds = time.monotonic() - began_s
        return self.outcome

    # Faults.

    def one_fault(self, fault: str) -> None:
        """One fault, and usually a wait until the output goes on. Raises: ConditionTimeout."""
        time.sleep(self.rng.uniform(0, 2))
        what = {
            "leader": self.kill_leader,
            "transactions": self.kill_transaction_coordinator,
            "group": self.kill_group_coordinator,
            "client": self.kill_client,
            "zombie": self.make_zombie,
            "cut": self.cut_network,
            "unplug": self.unplug_worker,
        }[fault]()
        self.outcome.faults[fault] += 1
        self.log(f"{self.outcome.faults.total()}: {what}")
        if died := self.cluster.died():
            raise ConditionTimeout("; ".join(died))
        if self.rng.randrange(UNAWAITED_ONE_IN):
            self.await_output(fault)

    def kill_leader(self) -> str:
        topic, partition = self.rng.choice((INPUT, *ALL_OUTPUTS)), self.rng.randrange(PARTITIONS)
        broker = self.cluster.leader(topic, partition)
        return self.kill_broker(broker, f"the leader of {topic}-{partition}")

    def kill_transaction_coordinator(self) -> str:
        worker = self.rng.choice(self.workers)
        partition = partition_for(transactional_id(worker.kind, worker.name), COORDINATORS)
        return self.kill_broker(self.cluster.leader(TRANSACTION_LOG, partition), f"the transaction coordinator of {worker.name}")

    def kill_group_coordinator(self) -> str:
        group = self.rng.choice(list(OUTPUTS))
        partition = partition_for(group, COORDINATORS)
        return self.kill_broker(self.cluster.leader(OFFSETS_LOG, partition), f"the coordinator of group {group}")

    def kill_broker(self, broker: Broker, what: str) -> str:
        """kill -9, and a restart before or after the end of its session. Raises: ConditionTimeout."""
        broker.kill()
        down_s = self.rng.uniform(0, 1.5) * self.cluster.setup.session_timeout_ms / 1000
        time.sleep(down_s)
        broker.spawn()
        broker.await_ready()
        return f"kill -9 of broker {broker.number}, {what}, which was down for {down_s:.1f} s"

    def kill_client(self) -> str:
        worker = self.rng.choice(self.workers)
        worker.process.kill()
        down_s = self.rng.choice((0.0, self.rng.uniform(0, 8)))
        time.sleep(down_s)
        worker.process.spawn()
        return f"kill -9 of worker {worker.name} ({worker.kind}), which was away for {down_s:.1f} s"

    def make_zombie(self) -> str:
        worker = self.rng.choice(self.workers)
        stopped = worker.process
        stopped.freeze()
        away_s = TRANSACTION_TIMEOUT_MS / 1000 + self.rng.uniform(0.5, 4)
        replaced = self.rng.random() < 0.5
        if replaced:
            time.sleep(away_s / 2)
            worker.process = worker.made()
            worker.process.spawn()
            time.sleep(away_s / 2)
        else:
            time.sleep(away_s)
        stopped.freeze(frozen=False)
        if replaced:
            # Both have the same transactional id, and fence each other for some time.
            time.sleep(self.rng.uniform(1, 4))
            stopped.kill()
        other = ", and another one with its name" if replaced else ""
        return f"SIGSTOP of worker {worker.name} ({worker.kind}) for {away_s:.1f} s{other}"

    def cut_network(self) -> str:
        network = self.cluster.network
        assert network is not None, "the fault needs networks"
        broker = self.rng.choice(list(self.cluster.brokers.values()))
        others: list[tuple[str, Location]] = [
            (f"broker {one.number}", one.location) for one in self.cluster.brokers.values() if one is not broker
        ]
        others += [(f"worker {one.name}", one.location) for one in self.rng.sample(self.workers, 2)]
        name, location = self.rng.choice(others)
        one_way = self.rng.random() < 0.5
        ends = (broker.location, location) if self.rng.random() < 0.5 else (location, broker.location)
        network.cut(*ends, one_way=one_way)
        cut_s = self.rng.uniform(1, 10)
        time.sleep(cut_s)
        network.heal()
        return f"broker {broker.number} and {name} were cut off from each other{' in one direction' if one_way else ''} for {cut_s:.1f} s"

    def unplug_worker(self) -> str:
        network = self.cluster.network
        assert network is not None, "the fault needs networks"
        worker = self.rng.choice(self.workers)
        network.unplug(worker.location)
        away_s = TRANSACTION_TIMEOUT_MS / 1000 + self.rng.uniform(0.5, 4)
        time.sleep(away_s)
        network.heal()
        return f"worker {worker.name} ({worker.kind}) was cut off from everything for {away_s:.1f} s"

    # Progress.

    def await_output(self, fault: str) -> None:
        """Wait until both groups have written records that are sent from now on. Raises: ConditionTimeout."""
        began_s, number = time.monotonic(), self.producer.sent
        try:
            until(
                lambda: self.supervised() and self.watcher.has_passed(number),
                f"after {fault}: the outputs have record {number}",
                timeout_s=STUCK_S,
            )
        except ConditionTimeout as why:
            self.explain()
            raise ConditionTimeout(f"{why}; they end at {self.watcher.highest}") from None
        took_s = time.monotonic() - began_s
        self.outcome.recovered_s.setdefault(fault, []).append(took_s)
        self.log(f"   outputs go on after {took_s:.1f} s")

    def supervised(self) -> bool:
        """Restarts workers that librdkafka has hung; True."""
        for worker in self.workers:
            if worker.process.died and worker.kind == "librdkafka" and "Timeout (" in worker.process.output_text():
                self.outcome.hung += 1
                self.log(f"   worker {worker.name} hung in librdkafka, and is restarted")
                worker.process.spawn()
        return True

    def explain(self) -> None:
        """Writes the stacks of workers into their output, and the state of the groups into the log."""
        for worker in self.workers:
            if worker.process.alive:
                os.kill(worker.process.pid, STACKS)
        try:
            with ottla.Admin(bootstrap_servers=self.cluster.bootstrap) as admin:
                for group, found in admin.describe_consumer_groups(list(OUTPUTS)).items():
                    self.log(f"   group {group}: {found}")
        except KafkaError as error:
            self.log(f"   the groups are not described: {error}")

    def catch_up(self) -> None:
        """Wait until each acknowledged record is in each output. Raises: ConditionTimeout."""
        wanted = set(self.producer.acknowledged)
        try:
            until(
                lambda: self.supervised() and not self.watcher.lacks(wanted), "all input records are in the outputs", timeout_s=CATCH_UP_S
            )
        except ConditionTimeout:
            self.explain()
            raise

    def stop_workers(self) -> None:
        """SIGTERM; a worker that does not end in order is a problem. Raises: ConditionTimeout."""
        for worker in self.workers:
            if not worker.process.alive:
                self.outcome.problems.append(f"worker {worker.name} ended by itself: {worker.process.output_text()[-1000:]}")
            else:
                worker.process.stop()

    # Checks.

    def compare(self) -> None:
        """Check the outputs. Raises: ConditionTimeout, KafkaError."""
        outcome, bootstrap = self.outcome, self.cluster.bootstrap
        until(self._stable, f"all last stable offsets are at the end: {self._unstable()}", timeout_s=CATCH_UP_S)
        inputs = copies_in(bootstrap, INPUT, int)
        acknowledged = set(self.producer.acknowledged)
        outcome.acknowledged = len(acknowledged)
        outcome.problem(len(acknowledged - inputs.keys()), "acknowledged records are not in the input topic")
        outcome.problem(sum(times > 1 for times in inputs.values()), "records are in the input topic twice")
        outcome.problem(len(self.producer.failed), f"input records were refused, the first: {self.producer.failed[:1]}")
        found = {topic: ottla_copies(bootstrap, topic) for topic in ALL_OUTPUTS}
        outcome.written = sum(ottla_copies(bootstrap, topic, isolation="read_uncommitted").total() for topic in ALL_OUTPUTS)
        outcome.visible = sum(copies.total() for copies in found.values())
        committed = set[str]().union(*(worker.outcomes("committed") for worker in self.workers))
        aborted = set[str]().union(*(worker.outcomes("aborted") for worker in self.workers))
        outcome.committed, outcome.aborted = len(committed), len(aborted)
        judge(outcome, found, inputs=set(inputs), committed=committed, aborted=aborted)
        until(lambda: self.watcher.seen == found or None, "the reader that followed the outputs has seen all", timeout_s=10)
        if librdkafka_copies(bootstrap, found) != found:
            outcome.problems.append("librdkafka reads other records at read_committed than Ottla")
        with ottla.Admin(bootstrap_servers=bootstrap) as admin:
            listed = admin.list_transactions(states=["Ongoing", "PrepareCommit", "PrepareAbort"])
            places = [TopicPartition(topic, partition) for topic in ALL_OUTPUTS for partition in range(PARTITIONS)]
            places += [TopicPartition(OFFSETS_LOG, partition) for partition in range(COORDINATORS)]
            logged = [
                one for answer in admin.open_transactions(places).values() for one in (answer if isinstance(answer, list) else [answer])
            ]
        outcome.open_transactions = len(listed) + len(logged)
        outcome.problem(outcome.open_transactions, f"transactions are open at the end, the first: {[*listed, *logged][:1]}")
        outcome.replaced = sum(
            worker.output().count("are replaced after") + worker.output().count("starts again") for worker in self.workers
        )
        self._compare_offsets()
        self._compare_replicas()
        for error in dict.fromkeys(self.watcher.errors):
            self.log(f"   the reader that followed the outputs: {error}")

    def _unstable(self) -> list[str]:
        """Partitions whose last stable offset is not at the end."""
        places = [TopicPartition(topic, partition) for topic in (INPUT, *ALL_OUTPUTS) for partition in range(PARTITIONS)]
        places += [TopicPartition(OFFSETS_LOG, partition) for partition in range(COORDINATORS)]
        places += [TopicPartition(TRANSACTION_LOG, partition) for partition in range(COORDINATORS)]
        ends = []
        for isolation in ("read_committed", "read_uncommitted"):
            with ottla.Consumer(bootstrap_servers=self.cluster.bootstrap, isolation_level=isolation) as consumer:
                ends.append(consumer.end_offsets(places))
        stable, high = ends
        return [f"{place.topic}-{place.partition}: {stable[place]} of {high[place]}" for place in places if stable[place] < high[place]]

    def _stable(self) -> bool:
        return not self._unstable()

    def _compare_offsets(self) -> None:
        """The committed offsets of both groups must be at the end of the input."""
        places = [TopicPartition(INPUT, partition) for partition in range(PARTITIONS)]
        for group in sorted(set(GROUPS.values())):
            with ottla.Consumer(bootstrap_servers=self.cluster.bootstrap, group_id=group, isolation_level="read_committed") as consumer:
                ends, committed = consumer.end_offsets(places), consumer.committed(places)
            for place in places:
                offset = committed[place]
                if offset is None or offset.offset != ends[place]:
                    self.outcome.problems.append(f"group {group} has committed {offset} in {place}, which ends at {ends[place]}")

    def _compare_replicas(self) -> None:
        for topic in (INPUT, *ALL_OUTPUTS):
            for partition in range(PARTITIONS):
                try:
                    until(partial(self._equal, topic, partition), "", timeout_s=30)
                except ConditionTimeout:
                    self.outcome.problems.append(f"the replicas of {topic}-{partition} differ")

    def _equal(self, topic: str, partition: int) -> bool:
        copies = self.cluster.copies(topic, partition)
        return len(copies) == REPLICAS and len(set(copies)) == 1


def ottla_copies(bootstrap: str, topic: str, *, isolation: str = "read_committed") -> Counter[Copy]:
    """How often each record is in a topic. The reader ends where records that are not committed end."""
    found: Counter[Copy] = Counter()
    for value in _values(bootstrap, topic, isolation):
        found[copy_of(value)] += 1
    return found


def _values(bootstrap: str, topic: str, isolation: str) -> Iterator[bytes]:
    with ottla.Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level=isolation) as consumer:
        partitions = consumer.partitions_for(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(place) < end for place, end in ends.items()):
            yield from (record.value or b"" for record in consumer.poll(timeout_ms=1000, max_records=10_000))


def librdkafka_copies(bootstrap: str, topics: Iterable[str]) -> dict[str, Counter[Copy]]:
    """The same by librdkafka, up to the end of each partition."""
    found: dict[str, Counter[Copy]] = {topic: Counter() for topic in topics}
    settings = {
        "bootstrap.servers": bootstrap, "group.id": "last", "enable.auto.commit": False, "auto.offset.reset": "earliest",
        "isolation.level": "read_committed", "enable.partition.eof": True, **OF_LIBRDKAFKA,
    }  # fmt: skip
    consumer = confluent_kafka.Consumer(settings)
    left = {(topic, partition) for topic in found for partition in range(PARTITIONS)}
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for topic, partition in left])
    deadline_s = time.monotonic() + CATCH_UP_S
    while left and time.monotonic() < deadline_s:
        for message in consumer.consume(10_000, 0.2):
            error = message.error()
            topic, value = message.topic(), message.value()
            if error is None:
                assert topic is not None and value is not None, "a record has a topic and a value"
                found[topic][copy_of(value)] += 1
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                left.discard((str(topic), message.partition() or 0))
    consumer.close()
    return found


def run_test(home: Path, setup: Setup, *, faults: int, seed: int, rate: int, log: Callable[[str], None]) -> TransactionsResult:
    """One run on a cluster of its own."""
    try:
        with running(setup, home) as cluster:
            return TransactionsTest(cluster, home, seed=seed, rate=rate, log=log).execute(faults)
    except NotPermitted as why:
        return TransactionsResult(seed, skipped=str(why))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--faults", type=click.IntRange(0), default=70, show_default=True, help="How many faults are injected.")
@click.option("--rate", type=click.IntRange(1), default=200, show_default=True, help="Input records a second.")
@click.option("--session-timeout-ms", type=click.IntRange(1000), default=6000, show_default=True, help="zookeeper.session.timeout.ms.")
@click.option("--seed", type=int, help="Seed of the random choices. [default: a new one]")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of the brokers; repeatable.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results to this file as JSON.")
@click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Parent of the data directories.")
@click.option("--keep", is_flag=True, help="Keep data directories and the output of the processes.")
def main(
    faults: int,
    rate: int,
    session_timeout_ms: int,
    seed: int | None,
    settings: tuple[str, ...],
    json_path: Path | None,
    directory: Path | None,
    keep: bool,
) -> None:
    """Inject faults under consume-process-produce, and check that each input record is in the outputs once.

    Exit code 0: nothing is lost, doubled or torn; 1: otherwise.
    """
    confined = enter()
    # As process 1 of its namespace the run would ignore this signal by default.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    click.echo(f"seed {seed}", err=True)
    if confined is not None:
        click.echo(f"no network faults: {confined}", err=True)
    home = Path(tempfile.mkdtemp(prefix="ottla-transactions-", dir=directory))
    extra = (*SETTINGS, *((name, value) for name, _, value in (setting.partition("=") for setting in settings)))
    setup = Setup(session_timeout_ms=session_timeout_ms, zookeepers=1, extra=extra, networked=confined is None)
    outcome = run_test(home, setup, faults=faults, seed=seed, rate=rate, log=lambda line: click.echo(line, err=True))
    text = json.dumps(outcome.summary(), indent=1)
    click.echo(text)
    if json_path is not None:
        json_path.write_text(text + "\n")
    if keep or outcome.problems:
        click.echo(f"data directories and output: {home}", err=True)
    else:
        shutil.rmtree(home, ignore_errors=True)
    sys.exit(1 if outcome.problems or outcome.skipped else 0)


if __name__ == "__main__":
    main()

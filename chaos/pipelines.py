"""`python -m chaos.pipelines`: a pipeline copies a topic into a table and a topic while its processes are killed at random.

    producer ──► topic events ──► ottla pipeline run ──► table           each record exactly once
                    broker        driver, JVM, workers ──► topic copies  each record exactly once, at read_committed

    target     process                                            restarted by
    worker     a Python process of Spark: reads, writes, plans    Spark, or a restart of the pipeline
    broker     `ottla serve`                                      this program, at once; the pipeline must not end
    driver     the process of `ottla pipeline run`                this program, at once, even while the old JVM still works
    jvm        Spark                                              this program, when the driver has ended because of it

With `--standalone`, Spark is a cluster of a master and two workers, and no Python process or JVM of a driver is chosen:

    node       a worker of the cluster with its executors         this program, at once; the pipeline must not end
    executor   a JVM that runs tasks                              the cluster; the pipeline must not end

Every kill is -9, of one process that this program started, by its pid. Usually the pipeline has written something since the last kill;
sometimes it is killed while it still starts. In the end the producer stops, the pipeline catches up and is stopped with SIGTERM, and its
output is compared, record by record, with what the brokers acknowledged and what the topic holds. A pipeline without progress, and a JVM
that outlives its driver, are failures too. The table is one of Delta, or of Iceberg with the catalog of its directory.

With `--join`, the pipeline joins two topics (pipeline_files.py), and its output is compared with a join of what the topics hold, computed
here. With `--store s3`, the table is in an object store; the catalog of an Iceberg table is then a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow

from chaos.cluster import ConditionTimeout
from chaos.object_store import S3Store
from chaos.pipeline_files import ANSWERS, CLOSING, COPIES, COPY, EVENTS, HEAD, JOIN, PARTITIONS, SINKS, answer, event, joined
from chaos.soak import BrokerProcess
from chaos.standalone import WorkerSet
from ottla import Admin, Consumer, NewTopic, Producer
from ottla.demo.verification import read_table
from ottla.lake.storage import Location
from ottla.lake.table.delta import opened

if TYPE_CHECKING:
    from ottla.lake.table.iceberg_catalog import IcebergPlace

#: Relative frequency of each target.
TARGETS = {"worker": 6, "broker": 4, "driver": 2, "jvm": 1}
#: The same with a standalone cluster.
STANDALONE_TARGETS = {"executor": 3, "node": 2, "driver": 2, "broker": 1}
#: One kill in so many does not wait until the pipeline has recovered from the previous one.
UNAWAITED_ONE_IN = 4
#: A running pipeline writes something within this time, including Spark's start.
STUCK_S = 300.0
#: A JVM without its driver ends within this time.
ORPHAN_S = 60.0
LOOK_S = 0.05

STANDALONE = """master = "{master}"
"driver.host" = "127.0.0.1"
"executor.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"executor.memory" = "512m"
"sql.shuffle.partitions" = 2
# Executors find the package at the same path: they run on this machine.
"executorEnv.PYTHONPATH" = "{path}"
"""


# ---------------------------------------------------------------------------------------------------------------- processes


def descendants(pid: int) -> dict[int, str]:
    """The descendants of a process, by pid, with their command lines."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parents.setdefault(int((entry / "stat").read_text().rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    waiting = parents.get(pid, [])
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            found[one] = Path(f"/proc/{one}/cmdline").read_text(errors="replace").replace("\0", " ")
        waiting += parents.get(one, [])
    return found


def is_java(command: str) -> bool:
    return Path(command.partition(" ")[0]).name == "java"


def executors() -> list[int]:
    """The executors of the workers that this program started."""
    return sorted(
        pid for pid, command in descendants(os.getpid()).items() if is_java(command) and "CoarseGrainedExecutorBackend" in command
    )


class PipelineProcess:
    """`ottla pipeline run` with its restarts; each start has its own output file."""

    def __init__(self, file: Path, directory: Path, *, moving: bool = False, environment: Mapping[str, str] | None = None) -> None:
        """`moving`: each start is in another directory, and the one before is removed, as on another machine."""
        self.file = file
        self.directory = directory
        self.moving = moving
        self.environment = environment
        self.lives = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.output = directory

    def start(self) -> None:
        self.lives += 1
        self.output = self.directory / f"run-{self.lives}.out"
        command = [sys.executable, "-m", "ottla", "pipeline", "run", str(self.file), "-o", "json"]
        machine = None
        if self.moving:
            machine = self.directory / f"machine-{self.lives}"
            machine.mkdir()
            shutil.rmtree(self.directory / f"machine-{self.lives - 1}", ignore_errors=True)
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=machine, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self.environment
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """Exit code; None while it runs."""
        assert self._process is not None, "it was started"
        return self._process.poll()

    def batches(self) -> int:
        """Number of batches with rows that this process has reported."""
        return sum('"event": "progress"' in line for line in self.output.read_text(errors="replace").splitlines())

    def jvm(self) -> int | None:
        return next((pid for pid, command in descendants(self.pid).items() if is_java(command)), None)

    def workers(self) -> list[int]:
        """Python processes that Spark started; not the short-lived ones of the JVM, such as chmod, without which Spark fails."""
        jvm = self.jvm()
        return (
            [] if jvm is None else sorted(pid for pid, command in descendants(jvm).items() if "pyspark" in command and not is_java(command))
        )

    def kill(self) -> None:
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.wait()

    def stop(self, *, timeout_s: float = 90.0) -> int:
        """SIGTERM, and the exit code. Raises: ConditionTimeout."""
        assert self._process is not None, "it was started"
        self._process.terminate()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ConditionTimeout(f"the pipeline did not stop within {timeout_s:.0f} s of SIGTERM") from None


# ---------------------------------------------------------------------------------------------------------------- the producer


#: A pattern with a place for a number, or a function of it.
Value = bytes | Callable[[int], bytes]


class NumberProducer:
    """A producer that writes consecutive numbers, in its own thread."""

    def __init__(self, bootstrap: str, rate: int, *, topic: str = EVENTS, value: Value = b'{"n": %d}', **settings: Any) -> None:
        self._rate, self._topic = rate, topic
        self._value = value if callable(value) else value.__mod__
        self._settings = {"bootstrap_servers": bootstrap, "retry_backoff_ms": 20, "reconnect_backoff_max_ms": 200, **settings}
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="producer")

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop sending, and wait for every outcome."""
        self._ending.set()
        self._thread.join()

    def _work(self) -> None:
        began_s = time.monotonic()
        with Producer(**self._settings) as producer:
            while not self._ending.wait(LOOK_S):
                for number in range(self.sent, int((time.monotonic() - began_s) * self._rate)):
                    self.sent = number + 1
                    delivery = producer.send(self._topic, self._value(number), key=b"%d" % number)
                    delivery.add_delivery_callback(partial(self._known, number))
            producer.flush()

    def _known(self, number: int, _: object, error: BaseException | None) -> None:
        if error is None:
            self.acknowledged.add(number)
        else:
            self.failed.append(f"{number}: {error}")


class OtherBrokers:
    """Brokers that this program neither starts nor kills, such as Apache Kafka's."""

    def __init__(self, address: str) -> None:
        self.address = address

    def start(self) -> None: ...

    def end(self, *, by_force: bool) -> None: ...


# ---------------------------------------------------------------------------------------------------------------- the results


@dataclass(slots=True)
class KillTestResult:
    """The faults and the results."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    #: Kills after which the pipeline was restarted, by target.
    restarts: Counter[str] = field(default_factory=Counter)
    #: Time from a kill to the next batch, if the next kill waited for it.
    recovered_s: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0
    acknowledged: int = 0
    in_log: int = 0
    #: Rows that follow from the records in the topics.
    wanted: int = 0
    in_table: int = 0
    table_doubled: int = 0
    table_missing: int = 0
    in_topic: int = 0
    topic_doubled: int = 0
    topic_missing: int = 0
    open_transactions: int = 0
    problems: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """The JSON document."""
        summary = {name: getattr(self, name) for name in self.__slots__}
        took = {
            name: {"median": round(statistics.median(times), 1), "longest": round(max(times), 1)}
            for name, times in sorted(self.recovered_s.items())
        }
        return {**summary, "kills": dict(self.kills), "restarts": dict(self.restarts), "recovered_s": took, "seconds": round(self.seconds)}


def number_of(value: bytes) -> int:
    """The number in a record of this program."""
    return int(json.loads(value)["n"])


def copies_in(bootstrap: str, topic: str, number: Callable[[bytes], int] = number_of, *, isolation: str = "read_committed") -> Counter[int]:
    """How often each number is in a topic, for a reader at an isolation level; `number` parses it from a value."""
    found: Counter[int] = Counter()
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level=isolation) as consumer:
        partitions = consumer.partitions_for(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found.update(number(record.value or b"") for record in consumer.poll(timeout_ms=1000, max_records=10_000))
    return found


def is_iceberg(table: Path) -> bool:
    return (table / "catalog.db").exists()


def numbers_in(table: Path, place: Location | IcebergPlace | None = None) -> list[int]:
    """The numbers in a table; a table that is not there has none. `place`: in an object store, instead of `table`."""
    if isinstance(place, Location):
        found = opened(place)
        return [] if found is None else list(pyarrow.table(found.scan(columns=["n"]).read_all()).column("n").to_pylist())
    if place is None and not is_iceberg(table):
        return list(read_table(table).column("n").to_pylist()) if (table / "_delta_log").exists() else []
    from ottla.lake.table.iceberg_catalog import embedded, opened_table
    from ottla.lake.table.target import TableConflict

    try:
        with opened_table(place or embedded(table)) as iceberg:
            return list(iceberg.scan(selected_fields=("n",)).to_arrow().column("n").to_pylist())
    except TableConflict:
        return []


def compare(outcome: KillTestResult, bootstrap: str, numbers: list[int], producers: Mapping[str, NumberProducer]) -> None:
    """Compare the acknowledged records, the topics and the outputs. `producers`: by their topic; with that of answers, it is a join."""
    logs = {topic: numbers_sent(bootstrap, topic) for topic in producers}
    wanted = joined(logs[EVENTS], logs[ANSWERS]) if ANSWERS in logs else Counter(logs[EVENTS].keys())
    topic, rows = copies_in(bootstrap, COPIES), Counter(numbers)
    outcome.acknowledged = sum(len(producer.acknowledged) for producer in producers.values())
    outcome.in_log, outcome.wanted = sum(log.total() for log in logs.values()), wanted.total()
    outcome.in_table, outcome.in_topic = rows.total(), topic.total()
    outcome.table_doubled, outcome.topic_doubled = (sum(times > 1 for times in found.values()) for found in (rows, topic))
    outcome.table_missing, outcome.topic_missing = (len(wanted.keys() - found.keys()) for found in (rows, topic))
    with Admin(bootstrap_servers=bootstrap) as admin:
        outcome.open_transactions = len(admin.list_transactions(states=["Ongoing"]))
    refused = [problem for producer in producers.values() for problem in producer.failed]
    for count, what in [
        (sum(len(producer.acknowledged - logs[name].keys()) for name, producer in producers.items()), "acknowledged records are lost"),
        (sum(times > 1 for log in logs.values() for times in log.values()), "records are in their topic twice"),
        (outcome.table_missing, "rows are not in the table"),
        (outcome.table_doubled, "rows are in the table more than once"),
        (outcome.topic_missing, "rows are not in the topic of the sink"),
        (outcome.topic_doubled, "rows are in the topic of the sink more than once"),
        (outcome.open_transactions, "transactions are open at the end"),
        (len((rows.keys() | topic.keys()) - wanted.keys()), "rows were written that do not follow from the records"),
        (len(refused), f"records were refused, the first: {refused[:1]}"),
    ]:
        if count:
            outcome.problems.append(f"{count} {what}")


def numbers_sent(bootstrap: str, topic: str) -> Counter[int]:
    """How often each number is in a topic of a producer, without the closing records."""
    field = "m" if topic == ANSWERS else "n"
    found = copies_in(bootstrap, topic, lambda value: int(json.loads(value)[field]))
    return Counter({number: times for number, times in found.items() if number >= 0})


# ---------------------------------------------------------------------------------------------------------------- the kills


class KillTest:
    """One run of the program: broker, producer and pipeline, and the kills."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        rate: int,
        log: Callable[[str], None],
        two_phase: bool = False,
        bootstrap: str = "",
        moving: bool = False,
        store: S3Store | None = None,
        kind: str = "delta",
        workers: WorkerSet | None = None,
        join: bool = False,
        tables: S3Store | None = None,
    ) -> None:
        """``bootstrap``: other brokers, which are not killed. ``moving``: the checkpoint is in a topic. ``store``: or there.

        ``kind``: of the table. ``workers``: of the cluster that runs the pipeline; without them it runs in the driver's JVM.
        ``join``: two topics are joined. ``tables``: the store of the table.
        """
        self.rng = random.Random(seed)
        self.outcome = KillTestResult(seed)
        self.log = log
        self.table = directory / "table"
        self.workers = workers
        targets = STANDALONE_TARGETS if workers is not None else TARGETS
        self.targets = {target: often for target, often in targets.items() if not (bootstrap and target == "broker")}
        settings = {"transaction.two.phase.commit.enable": "true"} if two_phase else {}
        self.broker: BrokerProcess | OtherBrokers = OtherBrokers(bootstrap) if bootstrap else BrokerProcess(directory / "data", settings)
        file = directory / "chaos.toml"
        checkpoint = "ottla:" if moving else store.checkpoint if store else f"{directory}/checkpoint"
        head = HEAD.format(bootstrap=self.broker.address, checkpoint=checkpoint)
        #: Of a table in an object store.
        self.place: Location | IcebergPlace | None = None
        lines = f'path = "{self.table}"'
        if tables is not None:
            self.place, lines = tables.iceberg(directory) if kind == "iceberg" else (tables.table, tables.lines)
        text = head + (JOIN if join else COPY) + SINKS.format(kind=kind, place=lines)
        path = os.pathsep.join(filter(None, sys.path))
        text += STANDALONE.format(master=workers.address, path=path) if workers is not None else ""
        file.write_text(text + (store.settings if store else ""))
        environment = next((one.environment for one in (store, tables) if one), None)
        self.run = PipelineProcess(file, directory, moving=moving or store is not None, environment=environment)
        #: By topic.
        self.producers = {EVENTS: NumberProducer(self.broker.address, rate, value=partial(event, rate=rate))}
        if join:
            self.producers[ANSWERS] = NumberProducer(self.broker.address, rate, topic=ANSWERS, value=partial(answer, rate=rate))
        #: JVMs whose driver was killed, with the time.
        self.orphans: dict[int, float] = {}
        #: Target of the last kill.
        self.last = ""

    def execute(self, kills: int) -> KillTestResult:
        """PipelineProcess everything from start to end."""
        began_s = time.monotonic()
        self.broker.start()
        try:
            with Admin(bootstrap_servers=self.broker.address) as admin:
                for topic in (*self.producers, COPIES):
                    admin.create_topic(NewTopic(topic, PARTITIONS))
            for producer in self.producers.values():
                producer.begin()
            try:
                self.run.start()
                self.await_batch("start", began_s)
                for target in self.rng.choices(list(self.targets), list(self.targets.values()), k=kills):
                    self.one_kill(target)
            finally:
                for producer in self.producers.values():
                    producer.end()
            self.catch_up()
            if self.run.stop() != 0:
                self.outcome.problems.append(f"the pipeline, stopped in order, ended with {self.run.ended}: {self.last_line()}")
            self.await_orphans()
            compare(self.outcome, self.broker.address, numbers_in(self.table, self.place), self.producers)
        except ConditionTimeout as why:
            self.outcome.problems.append(str(why))
        finally:
            self.end()
        self.outcome.seconds = time.monotonic() - began_s
        return self.outcome

    def one_kill(self, target: str) -> None:
        """Kill a process, and usually wait until the pipeline has recovered. Raises: ConditionTimeout."""
        self.supervise_for(self.rng.uniform(0, 3))
        deadline_s = time.monotonic() + STUCK_S
        killed_s = time.monotonic()
        while not self.kill_target(target):
            if killed_s > deadline_s:
                raise ConditionTimeout(f"the pipeline started no {target} within {STUCK_S:.0f} s: {self.last_line()}")
            self.supervise_for(LOOK_S)
            killed_s = time.monotonic()
        self.last = target
        self.outcome.kills[target] += 1
        self.log(f"{self.outcome.kills.total()}: {target}")
        if self.rng.randrange(UNAWAITED_ONE_IN):
            self.await_batch(target, killed_s)
        else:
            self.supervise_for(self.rng.uniform(0, 8))

    def kill_target(self, target: str) -> bool:
        """kill -9; False if there is no such process yet."""
        match target:
            case "broker":
                self.broker.end(by_force=True)
                time.sleep(self.rng.uniform(0, 1))
                self.broker.start()
                return True
            case "driver":
                jvm = self.run.jvm()
                if jvm is not None:
                    self.orphans[jvm] = time.monotonic()
                self.run.kill()
                return True
            case "node":
                assert self.workers is not None, "a node is a target of a standalone cluster"
                number = self.rng.randrange(len(self.workers))
                self.workers.kill(number)
                self.workers.start(number)
                return True
            case "executor":
                found = executors()
                chosen = self.rng.choice(found) if found else None
            case "jvm":
                chosen = self.run.jvm()
            case _:
                workers = self.run.workers()
                chosen = self.rng.choice(workers) if workers else None
        if chosen is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(chosen, signal.SIGKILL)
        return True

    def supervise(self) -> None:
        """Restart the pipeline if it has ended."""
        if self.run.ended is None:
            return
        self.outcome.restarts[self.last] += 1
        self.log(f"   starts again, after {self.last}; it had ended with {self.run.ended}: {self.last_line()}")
        if self.last in ("broker", "worker", "node", "executor"):
            self.outcome.problems.append(f"the pipeline ended when the {self.last} was killed: {self.last_line()}")
        self.run.start()

    def last_line(self) -> str:
        """The last line of the pipeline's output."""
        return (self.run.output.read_text(errors="replace").strip().splitlines() or [""])[-1][:400]

    def supervise_for(self, seconds: float) -> None:
        """Supervise for some time."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            self.supervise()
            time.sleep(LOOK_S)

    def await_batch(self, target: str, since_s: float) -> None:
        """Wait until a batch that began after a kill is written. Raises: ConditionTimeout."""
        life, seen = self.run.lives, self.run.batches()
        # The batch in progress at the kill may complete unaffected.
        needed = 2
        deadline_s = time.monotonic() + STUCK_S
        while True:
            self.supervise()
            if self.run.lives != life:
                life, seen, needed = self.run.lives, 0, 1
                deadline_s = time.monotonic() + STUCK_S
            if self.run.batches() >= seen + needed:
                break
            if time.monotonic() > deadline_s:
                raise ConditionTimeout(
                    f"after {target}: the pipeline neither ends nor writes anything for {STUCK_S:.0f} s; it says: {self.last_line()}"
                )
            time.sleep(LOOK_S)
        took_s = time.monotonic() - since_s
        self.outcome.recovered_s.setdefault(target, []).append(took_s)
        self.log(f"   {target}: batches again after {took_s:.1f} s")

    def catch_up(self) -> None:
        """Wait until the table has as many rows as follow from the records. Raises: ConditionTimeout."""
        wanted, rows = self.close(), -1
        deadline_s = time.monotonic() + STUCK_S
        while rows < wanted:
            self.supervise_for(0.5)
            before, rows = rows, self.rows()
            if rows > before:
                deadline_s = time.monotonic() + STUCK_S
            if time.monotonic() > deadline_s:
                raise ConditionTimeout(
                    f"the table has {rows} rows, and {wanted} follow from the records; the pipeline says: {self.last_line()}"
                )

    def close(self) -> int:
        """Send the last records of a join. Returns the number of rows that follow from the records."""
        if ANSWERS not in self.producers:
            return len(self.producers[EVENTS].acknowledged)
        with Producer(bootstrap_servers=self.broker.address) as producer:
            for topic, value in CLOSING.items():
                producer.send(topic, value).result()
        return joined(*(numbers_sent(self.broker.address, topic) for topic in (EVENTS, ANSWERS))).total()

    def rows(self) -> int:
        if is_iceberg(self.table) or not isinstance(self.place, Location | None):
            return len(numbers_in(self.table, self.place))
        table = opened(self.place or str(self.table))
        return 0 if table is None else sum(read_actions(table))

    def await_orphans(self) -> None:
        """Wait until all JVMs without a driver have ended. Raises: ConditionTimeout."""
        deadline_s = time.monotonic() + ORPHAN_S
        while left := [pid for pid in self.orphans if _is_our_jvm(pid)]:
            if time.monotonic() > deadline_s:
                raise ConditionTimeout(f"{len(left)} JVMs are still there {ORPHAN_S:.0f} s after the last driver ended")
            time.sleep(LOOK_S)

    def end(self) -> None:
        """End all processes."""
        jvm = self.run.jvm() if self.run.lives and self.run.ended is None else None
        if self.run.lives and self.run.ended is None:
            self.run.kill()
        for pid in [*self.orphans, *([jvm] if jvm else [])]:
            if _is_our_jvm(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.broker.end(by_force=False)


def read_actions(table: Any) -> Iterator[int]:
    """Rows of each file of a Delta table, from its log."""
    yield from pyarrow.table(table.get_add_actions(flatten=True)).column("num_records").to_pylist()


def _is_our_jvm(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return is_java(Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " "))
    return False


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kills", type=click.IntRange(1), default=50, show_default=True, help="How many processes are killed.")
@click.option("--rate", type=click.IntRange(1), default=300, show_default=True, help="Records a second.")
@click.option("--seed", type=int, help="Seed of the random choices. [default: a new one]")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results to this file as JSON.")
@click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Parent of the data directories.")
@click.option("--keep", is_flag=True, help="Keep data, tables and the output of the processes.")
@click.option("--table", "kind", type=click.Choice(["delta", "iceberg"]), default="delta", show_default=True, help="Format of the table.")
@click.option("--two-phase", is_flag=True, help="Brokers with transaction.two.phase.commit.enable.")
@click.option("--moving", is_flag=True, help="Keep the checkpoint in a topic; each start of the driver is on another machine, as it were.")
@click.option("--object-store", is_flag=True, help="As --moving, but keep the checkpoint at s3a:// on moto's server.")
@click.option("--join", is_flag=True, help="Join two topics, as streams with state, instead of copying one.")
@click.option("--store", type=click.Choice(["s3"]), help="Keep the table in an object store: at s3:// on moto's server.")
@click.option("--standalone", is_flag=True, help="Run the pipeline on a standalone Spark cluster with two workers, and kill these too.")
@click.option(
    "--bootstrap", default="", metavar="HOST:PORT", help="Use these brokers, without topics of the program, and do not kill them."
)
def main(
    kills: int,
    rate: int,
    seed: int | None,
    json_path: Path | None,
    directory: Path | None,
    keep: bool,
    kind: str,
    two_phase: bool,
    bootstrap: str,
    moving: bool,
    object_store: bool,
    standalone: bool,
    join: bool,
    store: str | None,
) -> None:
    """Kill processes of a running pipeline, and compare its output with what was sent.

    Exit code 0: the table and the topic have each record once; 1: otherwise.
    """
    if moving and object_store:
        raise click.UsageError("--moving and --object-store name two places of the checkpoint; use one of them")
    if standalone and (moving or object_store):
        raise click.UsageError("--standalone keeps the checkpoint in a directory; leave out --moving and --object-store")
    if join and moving:
        raise click.UsageError("a topic keeps no state of a join; use --join without --moving, or with --object-store")
    if join and standalone:
        raise click.UsageError("--standalone is for pipelines without state; leave out --join")
    if store and standalone:
        raise click.UsageError("--store is for a table that one process writes; leave out --standalone")
    # Child processes must not outlive a terminated run.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    home = Path(tempfile.mkdtemp(prefix="ottla-pipelines-", dir=directory))
    click.echo(f"seed {seed}", err=True)

    def log(line: str) -> None:
        click.echo(line, err=True)

    with (
        S3Store(hadoop=object_store) if object_store or store else contextlib.nullcontext() as server,
        WorkerSet(home) if standalone else contextlib.nullcontext() as workers,
    ):
        test = KillTest(
            home, seed=seed, rate=rate, two_phase=two_phase, bootstrap=bootstrap, moving=moving, store=server if object_store else None,
            kind=kind, workers=workers, join=join, tables=server if store else None, log=log,
        )  # fmt: skip
        outcome = test.execute(kills)
    text = json.dumps(outcome.summary(), indent=1)
    click.echo(text)
    if json_path is not None:
        json_path.write_text(text + "\n")
    if keep or outcome.problems:
        click.echo(f"data, tables and output: {home}", err=True)
    else:
        shutil.rmtree(home, ignore_errors=True)
    sys.exit(1 if outcome.problems else 0)


if __name__ == "__main__":
    main()

"""`python -m chaos.soak`: clients work for a long time while their broker is restarted repeatedly; resource use must not grow.

One process holds all clients, so that leaks show: a blocking and an asyncio producer; a blocking and an asyncio consumer
of everything; a group of blocking and asyncio members, which are closed and replaced one after the other; and a short-lived admin client
and producer. The broker is a separate process, stopped every 20 to 30 seconds, alternately with SIGTERM and SIGKILL.

Just before each stop, when all clients have reconnected long ago, a sample is taken: traced memory, resident memory, threads, tasks,
descriptors, objects. After the first fifth, none of them may grow until the end. Each acknowledged record must be
read by each reader of everything once, and by the group at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from ottla import Admin, Consumer, NewTopic, Producer, aio
from ottla.base.units import MiB

TOPIC, PARTITIONS, GROUP = "soak", 4, "soak"
#: Records a second of each producer.
RATE = 100
#: Restarts of the broker, however short the run is.
RESTARTS_MIN = 2
WRITERS = ("blocking", "asyncio")
READY = re.compile(r"^ottla: ready on")
QUICK: dict[str, Any] = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200, "retry_backoff_ms": 20, "retry_backoff_max_ms": 200}
#: A short retention: neither the log nor the recovery time after a kill grows with the duration of a soak.
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
DRAIN_S = 60.0
LOOKS, LOOK_PAUSE_S = 5, 0.07
#: Allowed growth of traced memory after the warm-up: interned strings, caches of code, windows of metrics.
GROWTH_MAX_BYTES = MiB // 2
#: Allowed growth of resident memory, part of which the allocator keeps.
RESIDENT_GROWTH_MAX_BYTES = 12 * MiB


class BrokerProcess:
    """`ottla serve` on one port and directory, with restarts."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = {**SETTINGS, **(settings or {})}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "ottla", "serve", "--data-dir", str(self.directory), "--listen", self.address]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not READY.match(line):
            raise RuntimeError(f"the broker did not start: {line!r}")

    def end(self, *, by_force: bool) -> None:
        assert self._process is not None and self._process.stdout is not None, "it was started"
        self._process.send_signal(signal.SIGKILL if by_force else signal.SIGTERM)
        self._process.wait(60)
        self._process.stdout.close()


@dataclass(slots=True)
class RecordCounts:
    """Acknowledged and read records, by writer and number. Of fixed size, so that it does not grow itself."""

    capacity: int
    sent: dict[str, int] = field(init=False)
    acknowledged: dict[str, bytearray] = field(init=False)
    #: By reader: how often each record was read.
    read: dict[str, dict[str, bytearray]] = field(init=False)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sent = dict.fromkeys(WRITERS, 0)
        self.acknowledged = {writer: bytearray(self.capacity) for writer in WRITERS}
        self.read = {reader: {writer: bytearray(self.capacity) for writer in WRITERS} for reader in (*WRITERS, "group")}

    def next(self, writer: str) -> tuple[int, bytes]:
        number = self.sent[writer]
        self.sent[writer] += 1
        return number, f"{writer}:{number}".encode()

    def delivered(self, writer: str, number: int, error: BaseException | None) -> None:
        if error is None:
            self.acknowledged[writer][number] = 1
        else:
            self.failed.append(f"{writer}:{number}: {error}")

    def saw(self, reader: str, value: bytes) -> None:
        writer, _, number = value.decode().partition(":")
        if writer in WRITERS:
            at = int(number)
            times = self.read[reader][writer]
            times[at] = min(times[at] + 1, 255)

    def waiting(self, upto: dict[str, int]) -> bool:
        """Whether a record up to these numbers is not acknowledged, or not read by all."""
        looks = [self.acknowledged, *self.read.values()]
        return any(0 in look[writer][:count] for look in looks for writer, count in upto.items())

    def lost(self, reader: str) -> int:
        return sum(
            bool(done) and not times
            for writer in WRITERS
            for done, times in zip(self.acknowledged[writer], self.read[reader][writer], strict=True)
        )

    def doubled(self, reader: str) -> int:
        return sum(times > 1 for writer in WRITERS for times in self.read[reader][writer])


@dataclass(slots=True)
class Sample:
    """Resource use at one moment."""

    at_s: float
    traced_bytes: int
    resident_bytes: int
    threads: int
    tasks: int
    descriptors: int
    objects: int

    @classmethod
    def now(cls, began_s: float) -> Sample:
        """The minimum of several samples: a heartbeat is a task too, while it runs."""
        looks = [cls._look(began_s)]
        while len(looks) < LOOKS:
            time.sleep(LOOK_PAUSE_S)
            looks.append(cls._look(began_s))
        return cls(*(min(getattr(look, name) for look in looks) for name in cls.__slots__))

    @classmethod
    def _look(cls, began_s: float) -> Sample:
        gc.collect()
        objects = gc.get_objects()
        tasks = sum(isinstance(one, asyncio.Task) and not one.done() for one in objects)
        count = len(objects)
        del objects
        return cls(
            at_s=round(time.monotonic() - began_s, 1),
            traced_bytes=tracemalloc.get_traced_memory()[0],
            resident_bytes=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            threads=threading.active_count(),
            tasks=tasks,
            descriptors=len(os.listdir("/proc/self/fd")),
            objects=count,
        )


class Workload:
    """All clients, each in its own thread; an exception in one of them ends the soak."""

    def __init__(self, address: str, ledger: RecordCounts) -> None:
        self._settings: dict[str, Any] = {**QUICK, "bootstrap_servers": address}
        self._reading: dict[str, Any] = {**self._settings, "auto_offset_reset": "earliest"}
        self._ledger = ledger
        self._writing_over = threading.Event()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._members: list[tuple[threading.Thread, threading.Event]] = []
        self.errors: list[str] = []

    def begin(self) -> None:
        for work in (self._write, self._write_async, self._read, self._read_async):
            self._threads.append(self._thread(work.__name__, work))
        for _ in range(3):
            self._join_group()

    def _thread(self, name: str, work: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                made = work()
                if asyncio.iscoroutine(made):
                    asyncio.run(made)
            except BaseException as error:
                self.errors.append(f"{name}: {error!r}")
                raise

        thread = threading.Thread(target=run, name=f"soak-{name.strip('_')}", daemon=True)
        thread.start()
        return thread

    # Writers.

    def _write(self) -> None:
        with Producer(**self._settings) as producer:
            while not self._writing_over.wait(1 / RATE):
                number, value = self._ledger.next("blocking")
                delivered = self._delivered("blocking", number)
                producer.send(TOPIC, value, partition=number % PARTITIONS, on_delivery=delivered)

    async def _write_async(self) -> None:
        async with aio.Producer(**self._settings) as producer:
            while not self._writing_over.is_set():
                number, value = self._ledger.next("asyncio")
                await producer.send(TOPIC, value, partition=number % PARTITIONS, on_delivery=self._delivered("asyncio", number))
                await asyncio.sleep(1 / RATE)

    def _delivered(self, writer: str, number: int) -> Callable[[Any, BaseException | None], None]:
        return lambda metadata, error: self._ledger.delivered(writer, number, error)

    # Readers of everything.

    def _read(self) -> None:
        with Consumer(**self._reading) as consumer:
            consumer.assign(consumer.partitions_for(TOPIC))
            while not self._over.is_set():
                for record in consumer.poll(200):
                    self._ledger.saw("blocking", record.value)

    async def _read_async(self) -> None:
        async with aio.Consumer(**self._reading) as consumer:
            consumer.assign(await consumer.partitions_for(TOPIC))
            while not self._over.is_set():
                for record in await consumer.poll(200):
                    self._ledger.saw("asyncio", record.value)

    # Group members.

    def _join_group(self) -> None:
        over = threading.Event()
        # Kafka does not allow both protocols in one group; blocking and asyncio members can mix.
        work = self._member_async if len(self._members) % 3 == 2 else self._member
        self._members.append((self._thread("member", lambda: work(over)), over))

    def _member(self, over: threading.Event) -> None:
        with Consumer(TOPIC, group_id=GROUP, **self._reading) as consumer:
            while not over.is_set():
                for record in consumer.poll(200):
                    self._ledger.saw("group", record.value)

    async def _member_async(self, over: threading.Event) -> None:
        async with aio.Consumer(TOPIC, group_id=GROUP, **self._reading) as consumer:
            while not over.is_set():
                for record in await consumer.poll(200):
                    self._ledger.saw("group", record.value)

    # Periodic work.

    def churn(self) -> None:
        """Replace one member, and run two short-lived clients."""
        thread, over = self._members.pop(0)
        over.set()
        thread.join(DRAIN_S)
        assert not thread.is_alive(), "a member closes in time"
        self._join_group()
        with Admin(**self._settings) as admin:
            admin.describe_topic(TOPIC)
            admin.consumer_group_lag([GROUP])
        with Producer(**self._settings) as producer:
            producer.send(TOPIC, b"passer-by:0").result(timeout_ms=DRAIN_S * 1000)

    def await_all_read(self) -> None:
        """Return when every record sent so far is acknowledged and read by all, so no client is still reconnecting."""
        upto = dict(self._ledger.sent)
        deadline_s = time.monotonic() + DRAIN_S
        while self._ledger.waiting(upto) and time.monotonic() < deadline_s and not self.errors:
            time.sleep(0.2)

    def end(self) -> None:
        """Stop writing, wait until all is read, and stop."""
        self._writing_over.set()
        for thread in self._threads[:2]:
            thread.join(DRAIN_S)
        self.await_all_read()
        self._over.set()
        for _, over in self._members:
            over.set()
        for thread in [*self._threads, *(thread for thread, _ in self._members)]:
            thread.join(DRAIN_S)
            if thread.is_alive():
                self.errors.append(f"{thread.name} does not end")


def grown(samples: list[Sample], of: Callable[[Sample], int]) -> int:
    """Growth of a value from the first third of the samples to the last: the difference of the minima."""
    settled = samples[len(samples) // 5 :]
    third = max(len(settled) // 3, 1)
    return min(map(of, settled[-third:])) - min(map(of, settled[:third]))


def verdict(samples: list[Sample], ledger: RecordCounts, errors: list[str]) -> dict[str, Any]:
    """The results; problems are under ``problems``."""
    growth = {name: grown(samples, lambda sample, name=name: getattr(sample, name)) for name in Sample.__slots__ if name != "at_s"}  # type: ignore[misc]
    allowed = {"traced_bytes": GROWTH_MAX_BYTES, "resident_bytes": RESIDENT_GROWTH_MAX_BYTES, "threads": 0, "tasks": 0, "descriptors": 0}
    problems = [f"{name} grew by {growth[name]}, more than {limit}" for name, limit in allowed.items() if growth[name] > limit]
    lost = {reader: ledger.lost(reader) for reader in ledger.read}
    doubled = {reader: ledger.doubled(reader) for reader in ledger.read}
    problems += [f"{count} records never reached {reader}" for reader, count in lost.items() if count]
    problems += [f"{doubled[reader]} records came twice to {reader}" for reader in WRITERS if doubled[reader]]
    problems += [f"{len(ledger.failed)} records failed, the first: {ledger.failed[0]}"] if ledger.failed else []
    problems += errors
    acknowledged = sum(sum(done) for done in ledger.acknowledged.values())
    return {
        "problems": problems,
        "sent": sum(ledger.sent.values()),
        "acknowledged": acknowledged,
        "lost": lost,
        "doubled": doubled,
        "growth": growth,
    }


def soak(
    directory: Path, *, duration_s: float, every_s: tuple[float, float], rng: random.Random, report: Callable[[str], None]
) -> dict[str, Any]:
    """Run one soak; the result of ``verdict``, with the samples and the places where memory grew."""
    served = BrokerProcess(directory)
    served.start()
    with Admin(bootstrap_servers=served.address) as admin:
        admin.create_topic(NewTopic(TOPIC, PARTITIONS))
    ledger = RecordCounts(int(duration_s * RATE * 2) + 10_000)
    tracemalloc.start(4)
    samples: list[Sample] = []
    work = Workload(served.address, ledger)
    began_s = time.monotonic()
    work.begin()
    before: tracemalloc.Snapshot | None = None
    lives = 0
    while (time.monotonic() - began_s < duration_s or lives < RESTARTS_MIN) and not work.errors:
        time.sleep(rng.uniform(*every_s) / 2)
        work.churn()
        time.sleep(rng.uniform(*every_s) / 2)
        work.await_all_read()
        samples.append(Sample.now(began_s))
        report(json.dumps(asdict(samples[-1])))
        if before is None and time.monotonic() - began_s > duration_s / 5:
            before = tracemalloc.take_snapshot()
        lives += 1
        served.end(by_force=lives % 2 == 0)
        served.start()
    after = tracemalloc.take_snapshot()
    work.end()
    served.end(by_force=False)
    tracemalloc.stop()
    return {**verdict(samples, ledger, work.errors), "restarts": lives, "samples": samples, "where": where(before, after)}


def where(before: tracemalloc.Snapshot | None, after: tracemalloc.Snapshot) -> list[str]:
    """The ten places where traced memory grew most."""
    if before is None:
        return []
    hidden = (tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, "<frozen importlib._bootstrap>"))
    differences = after.filter_traces(hidden).compare_to(before.filter_traces(hidden), "traceback")
    most = sorted(differences, key=lambda one: one.size_diff, reverse=True)[:10]
    return [f"{one.size_diff / 1024:+.1f} KiB ({one.count_diff:+d}) {' < '.join(map(str, reversed(one.traceback)))}" for one in most]


@contextlib.contextmanager
def place(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="ottla-soak-") as made:
        yield Path(made)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Duration in minutes.")
@click.option(
    "--every", type=click.FloatRange(min=1), default=25.0, show_default=True, help="Seconds between restarts, a fifth more or less."
)
@click.option("--seed", type=int, help="Seed of the random choices. [default: a new one]")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results to this file as JSON.")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), help="The broker's data directory.")
def main(minutes: float, every: float, seed: int | None, json_path: Path | None, directory: Path | None) -> None:
    """Run clients while their broker is restarted, and check that nothing leaks and no record is lost."""
    rng = random.Random(seed)
    with place(directory) as data_dir:
        outcome = soak(
            data_dir, duration_s=minutes * 60, every_s=(every * 0.8, every * 1.2), rng=rng, report=lambda line: click.echo(line, err=True)
        )
    text = json.dumps({**outcome, "samples": [asdict(sample) for sample in outcome["samples"]]}, indent=1)
    click.echo(text)
    if json_path is not None:
        json_path.write_text(text)
    sys.exit(1 if outcome["problems"] else 0)


if __name__ == "__main__":
    main()

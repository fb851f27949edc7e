"""`python -m chaos.rot`: damages random places of all files of one broker, and checks that the damage is repaired or reported.

Three brokers over ZooKeeper hold every partition three times, and one broker with an embedded store holds another topic. A round damages
some places in the files of one broker, while it is stopped (cleanly or by force) or while it runs::

    file      any file of the data directory: one kind first, so small files are hit as often as logs, then one file of that kind
    damage    one bit | 512 bytes | 4 KiB at random | the same zeroed | truncated there | emptied
    after     all replicas are in sync | all replicas are equal byte for byte | every acknowledged record is read from the leader

A broker may refuse to start if its last line gives the reason; then the round applies the documented remedy. Unreported damage that is not
repaired, lost records, and a broker that ends with an internal error are defects of Ottla; each is printed with its place. After a defect
the broker gets an empty directory, so the next round starts clean.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

import click

from chaos.cluster import ROOT, Broker, Cluster, ConditionTimeout, Process, Setup, free_port, running, until
from chaos.namespaces import Location
from ottla import Admin, Consumer, KafkaError, NewTopic, Producer
from ottla.server.data_directory import STORE
from ottla.store.embedded.copies import copy_paths
from ottla.store.embedded.file import StoreFileError, read_contents

TOPIC, PARTITIONS = "rot", 2
FIRST_RECORDS, ROUND_RECORDS = 2_000, 20
#: Time limit until all replicas are in sync and equal.
HEALED_S = 60.0
#: The scrub reads each log once in this time.
SCRUB_MS = 4_000
SESSION_MS = 4_000
#: Several segments per log, and many index entries.
SEGMENTS = {"internal.segment.bytes": "30000", "index.interval.bytes": "500"}
#: Share of places in logs, beside those that logs get as one kind of file among others.
LOG_SHARE = 0.3
#: The first records of each partition are deleted, so that start offsets can be damaged.
DELETED = 100
#: Upper bound of their size at the beginning of a log.
DEAD_BYTES = 8_000
#: A batch begins with its base offset, then its length.
HEAD = Struct(">qi")
DAMAGES = ("bit", "bit", "bit", "512", "4096", "zero 512", "zero 4096", "cut", "empty")
#: Log lines that report damage.
REPORTS = re.compile(r"damaged|lacks|lost \d+ records|cannot be|corrupt|missing|refused|is unreadable", re.IGNORECASE)
INTERNAL = re.compile(r"internal error|Traceback \(most recent call last\)")
SKIPPED = (".lock", "ottla-store.sqlite-ballast", "ottla-store.sqlite-shm")


@dataclass(frozen=True, slots=True)
class Damaged:
    """One damaged place and the kind of damage."""

    file: str
    kind: str
    location: int

    def __str__(self) -> str:
        return f"{self.file} at {self.location}: {self.kind}"


@dataclass(slots=True)
class RotResult:
    """The results of a test."""

    places: int = 0
    rounds: int = 0
    healed: int = 0
    #: Rounds in which a start was refused with a reason, and the remedy was applied.
    refused: int = 0
    reported: int = 0
    by_file: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    faults: list[str] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        names = ("places", "rounds", "healed", "refused", "reported", "acknowledged", "faults")
        return {name: getattr(self, name) for name in names} | {"by_file": dict(self.by_file)}


def kind_of(path: Path) -> str:
    """The kind of a file, by its name: `.log`, `recovery-point-offset-checkpoint`."""
    if re.fullmatch(r"\d{20}\..*", path.name):
        return path.suffix
    return re.sub(r"\d{6,}.*", "", path.name)


#: State of the broker during the damage, in turn: cleanly stopped, killed, running.
MODES = ("stopped", "killed", "live")


def damage(directory: Path, count: int, rng: random.Random, *, only: str = "") -> list[Damaged]:
    """Damage ``count`` places; if a file vanishes meanwhile, another one is damaged."""
    done: list[Damaged] = []
    while len(done) < count:
        files: dict[str, list[Path]] = {}
        for path in sorted(directory.rglob("*")):
            if (
                path.is_file()
                and path.name not in SKIPPED
                and "damaged" not in path.name
                and "flight-" not in path.name
                and only in str(path)
            ):
                files.setdefault(kind_of(path), []).append(path)
        kind = ".log" if ".log" in files and rng.random() < LOG_SHARE else rng.choice(sorted(files))
        path, how = rng.choice(files[kind]), rng.choice(DAMAGES)
        with contextlib.suppress(FileNotFoundError):
            size = path.stat().st_size
            # Deleted records are never read, and a replica that was copied again lacks them.
            first = DEAD_BYTES if path.name == f"{0:020}.log" and path.parent.name.startswith(TOPIC) else 0
            place = rng.randrange(min(first, size - 1), size) if size else 0
            _damage(path, how, place, rng)
            done.append(Damaged(str(path.relative_to(directory)), how, place))
    return done


def _damage(path: Path, how: str, place: int, rng: random.Random) -> None:
    """Raises: FileNotFoundError."""
    with path.open("r+b") as file:
        file.seek(place)
        found = file.read(1)
        file.seek(place)
        if how == "empty":
            file.truncate(0)
        elif how == "cut":
            file.truncate(place)
        elif how == "bit":
            file.write(bytes([(found[0] if found else 0) ^ 1 << rng.randrange(8)]))
        else:
            zero, _, length = how.rpartition(" ")
            room = max(min(int(length), path.stat().st_size - place), 1)
            file.write(bytes(room) if zero else rng.randbytes(room))


class Records:
    """Acknowledged records, by partition and offset."""

    def __init__(self, bootstrap: str, partitions: int, replicas: int) -> None:
        self.bootstrap = bootstrap
        self.partitions = partitions
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self._sent = 0
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(NewTopic(TOPIC, partitions, replicas, configs=SEGMENTS), timeout_ms=30_000)

    def write(self, count: int) -> None:
        """Raises: KafkaError."""
        with Producer(bootstrap_servers=self.bootstrap, delivery_timeout_ms=60_000, linger_ms=1) as producer:
            sent = []
            for _ in range(count):
                self._sent += 1
                value = b"%d " % self._sent + bytes([self._sent % 251]) * 40
                sent.append((value, producer.send(TOPIC, value, partition=self._sent % self.partitions)))
                if self._sent % 10 == 0:
                    producer.flush()
            for value, future in sent:
                done = future.result(timeout_ms=60_000)
                self.acknowledged[done.partition, done.offset] = value

    def delete_first(self) -> None:
        """Raises: KafkaError."""
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.delete_records({(TOPIC, partition): DELETED for partition in range(self.partitions)})
        self.acknowledged = {place: value for place, value in self.acknowledged.items() if place[1] >= DELETED}

    def missing(self) -> list[str]:
        """Acknowledged records that the leaders do not return, or return with another value. Raises: KafkaError."""
        left = dict(self.acknowledged)
        wrong: list[str] = []
        with Consumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest", group_id=None) as consumer:
            consumer.assign(consumer.partitions_for(TOPIC))
            deadline_s = time.monotonic() + 30
            while left and time.monotonic() < deadline_s:
                for record in consumer.poll(500):
                    expected = left.pop((record.partition, record.offset), None)
                    if expected is not None and expected != record.value:
                        wrong.append(f"{record.partition} {record.offset} has the value {bytes(record.value)[:30]!r}")
        return wrong + [f"{partition} {offset} is not there" for partition, offset in sorted(left)]


class RotTest:
    """Rounds of damage on a cluster, and on a broker with an embedded store."""

    def __init__(self, outcome: RotResult, rng: random.Random, log: Callable[[str], None], kept: Path | None) -> None:
        #: Directory in which a broker's files are kept after a defect.
        self.kept = kept
        self.outcome = outcome
        self.rng = rng
        self.log = log

    # Three brokers.

    def replicated(self, cluster: Cluster, places: int, group: int) -> None:
        records = Records(cluster.bootstrap, PARTITIONS, 3)
        records.write(FIRST_RECORDS)
        records.delete_first()
        with Consumer(TOPIC, bootstrap_servers=cluster.bootstrap, group_id="rot", auto_offset_reset="earliest") as member:
            # Creates logs of the internal topic.
            until(lambda: member.poll(200), "a group reads", timeout_s=30)
            member.commit()
        while places > 0:
            count = min(group, places)
            places -= count
            broker = self.rng.choice(list(cluster.brokers.values()))
            self._round(cluster, records, broker, MODES[self.outcome.rounds % len(MODES)], count)
        self.outcome.acknowledged += len(records.acknowledged)

    def _round(self, cluster: Cluster, records: Records, broker: Broker, mode: str, count: int) -> None:
        self.outcome.rounds += 1
        began = broker.output.stat().st_size
        if mode == "stopped":
            broker.stop(timeout_s=60)
        elif mode == "killed":
            broker.kill()
        done = damage(broker.data_dir, count, self.rng)
        self._note(done)
        faults: list[str] = []
        if mode != "live":
            faults += self._start(broker, lambda reason: _moved_away(broker.data_dir, reason))
        if not faults:
            faults += self._checked(cluster, records, broker)
        output_text = _since(broker.output, began)
        reports = [line for line in output_text.splitlines() if REPORTS.search(line)]
        self.outcome.reported += bool(reports)
        self.log(f"round {self.outcome.rounds}: broker {broker.number} {mode}, {count} places: {'; '.join(faults) or 'healed'}")
        if not faults:
            self.outcome.healed += 1
            return
        where = ", ".join(map(str, done))
        report = f"; its log: {' | '.join(reports[-3:])}" if reports else "; its log has nothing"
        self.outcome.faults.append(f"round {self.outcome.rounds}, broker {broker.number}, {mode} [{where}]: {'; '.join(faults)}{report}")
        broker.kill()
        if self.kept is not None:
            shutil.copytree(broker.data_dir, self.kept / f"round-{self.outcome.rounds}")
        self.log(self.outcome.faults[-1])
        _wipe(broker.data_dir)
        broker.spawn()
        broker.await_ready()
        with contextlib.suppress(ConditionTimeout):
            until(lambda: cluster.in_sync(TOPIC, PARTITIONS), "all are in sync", timeout_s=HEALED_S)

    def _checked(self, cluster: Cluster, records: Records, broker: Broker) -> list[str]:
        """Problems after a round."""
        faults = []
        try:
            records.write(ROUND_RECORDS)
            until(lambda: cluster.died() or cluster.in_sync(TOPIC, PARTITIONS), "all replicas are in sync", timeout_s=HEALED_S)
            until(lambda: cluster.died() or _differing(cluster) == [], "", timeout_s=HEALED_S)
        except ConditionTimeout as error:
            faults.append(str(error) if _differing(cluster) == [] else f"copies differ: {_differing(cluster)}")
        except KafkaError as error:
            faults.append(f"a record is not acknowledged: {error}")
        faults += cluster.died()
        if not faults:
            try:
                faults += [f"record {one}" for one in records.missing()[:3]]
            except KafkaError as error:
                faults.append(f"a reader fails: {error}")
        return faults

    def _start(self, process: Process, remedy: Callable[[str], None]) -> list[str]:
        """Start a damaged broker. If it refuses with a reason, apply the remedy and start it again. Returns the problems."""
        for attempt in range(2):
            process.spawn()
            try:
                process.await_ready()
            except ConditionTimeout:
                output_text = process.output_text()
                if process.alive:
                    return [f"does not serve within the time: {output_text[-300:]}"]
                if INTERNAL.search(output_text):
                    return [f"ended with an internal error: {output_text[-1500:]}"]
                if attempt:
                    return [f"does not start after the remedy: {output_text.splitlines()[-1][:300]}"]
                self.outcome.refused += 1
                reason = output_text.splitlines()[-1]
                self.log(f"refused: {reason}")
                remedy(reason)
            else:
                return []
        raise AssertionError("both attempts return")

    # One broker with an embedded store.

    def embedded(self, directory: Path, places: int, group: int) -> None:
        port = free_port()
        data_dir = directory / "data"
        arguments = ["serve", "--data-dir", str(data_dir), "--listen", f"127.0.0.1:{port}"]
        broker = Process(Location("here"), arguments, directory / "embedded.output")
        broker.spawn()
        records = Records(broker.await_ready(), 1, 1)
        records.write(100)
        try:
            while places > 0:
                count = min(group, places)
                places -= count
                self._embedded_round(broker, records, data_dir, count)
        finally:
            broker.kill()
        self.outcome.acknowledged += len(records.acknowledged)

    def _embedded_round(self, broker: Process, records: Records, data_dir: Path, count: int) -> None:
        self.outcome.rounds += 1
        copies = data_dir / "meta"
        until(lambda: any(map(_is_good, copy_paths(data_dir / STORE))), "there is a good copy", timeout_s=20)
        if self.rng.random() < 0.5:
            broker.stop(timeout_s=60)
        else:
            broker.kill()
        good = data_dir.with_name("good")
        shutil.rmtree(good, ignore_errors=True)
        shutil.copytree(copies, good)
        # The copies are not damaged in the same round: a store without an intact copy needs a backup.
        done = damage(
            data_dir, count, self.rng, only=self.rng.choice(("ottla-store.sqlite-copy", "ottla-store.sqlite", "ottla-store.sqlite"))
        )
        self._note(done)
        faults = self._start(broker, lambda reason: _restored(data_dir, good))
        if not faults:
            try:
                faults += [f"record {one}" for one in records.missing()[:3]]
                records.write(5)
            except KafkaError as error:
                faults.append(f"a client fails: {error}")
        self.log(f"round {self.outcome.rounds}: store, {', '.join(map(str, done))}: {'; '.join(faults) or 'healed'}")
        if not faults:
            self.outcome.healed += 1
            return
        self.outcome.faults.append(f"round {self.outcome.rounds}, store [{', '.join(map(str, done))}]: {'; '.join(faults)}")
        broker.kill()
        shutil.rmtree(copies)
        shutil.copytree(good, copies)
        broker.spawn()
        broker.await_ready()

    def _note(self, done: Sequence[Damaged]) -> None:
        self.outcome.places += len(done)
        self.outcome.by_file.update(kind_of(Path(one.file)) for one in done)


def _differing(cluster: Cluster) -> list[str]:
    """Partitions whose replicas differ, with the place."""
    found = []
    for partition in range(PARTITIONS):
        holders = [cluster.brokers[number] for number in cluster.replicas(TOPIC, partition)]
        try:
            copies = [_batches(next(one.data_dir.glob(f"*/{TOPIC}-{partition}"))) for one in holders]
        except (FileNotFoundError, StopIteration):
            # A file was replaced while it was listed.
            return [f"{partition} changes"]
        if any(one != copies[0] for one in copies) or not copies[0]:
            places = [_first_difference(one, other) for one, other in itertools.pairwise(copies)]
            numbers = [broker.number for broker in holders]
            found.append(f"{partition} has {[len(one) for one in copies]} batches on brokers {numbers}: {places}")
    return found


def _first_difference(some: list[bytes], others: list[bytes]) -> str:
    for one, other in itertools.zip_longest(some, others, fillvalue=b""):
        if one != other:
            return f"{one[:20].hex()} is not {other[:20].hex()}"
    return "equal"


def _batches(directory: Path) -> list[bytes]:
    """The batches after the deleted records; a replica that was copied again lacks those before, and has other segments."""
    found = []
    for path in sorted(directory.glob("*.log")):
        data, at = path.read_bytes(), 0
        while at + HEAD.size <= len(data):
            base_offset, length = HEAD.unpack_from(data, at)
            if length <= 0:
                # Preallocated space, or damage.
                break
            if base_offset >= DELETED:
                found.append(data[at : at + HEAD.size + length])
            at += HEAD.size + length
    return found


def _is_good(copy: Path) -> bool:
    with contextlib.suppress(StoreFileError):
        return read_contents(copy) is not None
    return False


def _since(output: Path, begun: int) -> str:
    with output.open("rb") as file:
        file.seek(begun)
        return file.read().decode(errors="replace")


def _moved_away(data_dir: Path, reason: str) -> None:
    """Remedy for a damaged meta.properties: move it away. Otherwise all records are copied from the other replicas."""
    if "meta.properties is damaged" not in reason:
        _wipe(data_dir)
    for file in data_dir.glob("*/meta.properties"):
        file.rename(file.with_name("damaged.properties"))


def _wipe(data_dir: Path) -> None:
    """Empty the directory: everything is copied from the other replicas."""
    shutil.rmtree(data_dir)


def _restored(data_dir: Path, good: Path) -> None:
    """Remedy in the message: `ottla store restore`; without an intact copy, the operator's backup."""
    command = [sys.executable, "-m", "ottla", "store", "restore", "--data-dir", str(data_dir), "--yes"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    if done.returncode:
        backup = ["--from", str(good / "ottla-store.sqlite"), "--even-if-good"]
        subprocess.run([*command, *backup], capture_output=True, text=True, env=environment, timeout=60, check=True)


@contextlib.contextmanager
def place(directory: Path | None) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="ottla-rot-", dir=directory))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--places", type=click.IntRange(1), default=1000, show_default=True, help="Places that are damaged.")
@click.option("--group", type=click.IntRange(1), default=5, show_default=True, help="Places that are damaged at once.")
@click.option("--store-share", type=click.FloatRange(0, 1), default=0.1, show_default=True, help="Share of them in the embedded store.")
@click.option("--seed", type=int, help="Seed of the random choices. [default: a new one]")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results to this file as JSON.")
@click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Parent of the data directories.")
@click.option("--keep", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Copy a failed broker's files here.")
def main(
    places: int, group: int, store_share: float, seed: int | None, json_path: Path | None, directory: Path | None, keep: Path | None
) -> None:
    """Damage random places of all files of a minority of the replicas, and check that each damage is repaired or reported.

    Exit code 0: no record was lost and all damage was repaired or reported; 1: otherwise.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    outcome = RotResult()
    began_s = time.monotonic()
    rot_test = RotTest(outcome, random.Random(seed), lambda line: click.echo(line, err=True), keep)
    of_store = round(places * store_share)
    settings = (("ottla.log.scrub.interval.ms", str(SCRUB_MS)), ("log.flush.offset.checkpoint.interval.ms", "1000"))
    setup = Setup(session_timeout_ms=SESSION_MS, zookeepers=1, extra=settings)
    with place(directory) as home:
        if of_store:
            rot_test.embedded(home, of_store, group=2)
        if places > of_store:
            with running(setup, home) as cluster:
                rot_test.replicated(cluster, places - of_store, group)
    text = json.dumps({**outcome.document(), "seed": seed, "seconds": round(time.monotonic() - began_s)}, indent=1)
    click.echo(text)
    if json_path is not None:
        json_path.write_text(text + "\n")
    sys.exit(1 if outcome.faults else 0)


if __name__ == "__main__":
    main()

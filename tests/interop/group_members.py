"""Group members as processes, their output, and the invariants of all output together.

Each member is one of the programs in `members/` (or in `foreign/`). A thread per member appends its lines to one journal. Their order is
that of the members' clock, or of arrival where a program tells no time: on a busy machine these threads may take down a line before an
earlier one of another member. Three invariants hold for a journal after any failure of members, broker or group:

    no record is skipped         every record was read by a member
    no committed record is read  after the acknowledged commit of a position, no member reads a record before it
    commits go forward           the acknowledged positions of a partition never decrease

A record that was read and not committed may be read again, for example after the death of a member. Two members with the same partition
would break the second or third invariant. A member stopped by SIGSTOP does not know that the group has continued without it: it still
reads its buffered records, but the broker must refuse its commits. Its reads count again only after its partitions were revoked or
assigned. It may still receive the acknowledgement of a commit made before the stop: the next owner then started at that position.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import confluent_kafka
from confluent_kafka.admin import AdminClient

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
DEADLINE_S = 40.0
#: The session timeout. It covers several heartbeats on a busy machine.
SESSION_MS = 3_000
HEARTBEAT_MS = 400
SESSION = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}


class Line(NamedTuple):
    """One entry of a member's output."""

    member: Member
    what: str
    content: Any
    #: Written by a stopped member that does not know yet that the group has continued.
    stale: bool
    #: By the system's monotonic clock, in ns.
    at: int


class Member:
    """One process."""

    def __init__(self, journal: Journal, command: Sequence[str], name: str, log: Path) -> None:
        self.name = name
        self.owned: set[int] = set()
        #: Number of assignments received.
        self.assignments = 0
        self.stale = False
        self._journal = journal
        self._log = log
        path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, "PYTHONPATH": path}
            )
        self._reader = threading.Thread(target=self._take_down, name=name, daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        return self.name

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kills the process, like a crash."""
        self._process.kill()
        self._end()

    def freeze(self) -> None:
        """Stops the process with SIGSTOP at any point."""
        self._journal.enter(self, "frozen", None)
        self.owned = set()
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Continues the process, which does not notice the pause."""
        self.stale = True
        os.kill(self._process.pid, signal.SIGCONT)

    def leave(self, *, timeout_s: float = 20.0) -> None:
        """Requests the member to leave its group and exit. Fails if it does not."""
        self._process.terminate()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not leave within {timeout_s} s:\n{self.errors()}") from None
        self._end()
        assert code == 0, f"{self.name} ended with {code}:\n{self.errors()}"

    def errors(self) -> str:
        """The last part of its standard error."""
        return self._log.read_text(errors="replace")[-8000:]

    def _end(self) -> None:
        self._process.wait()
        self._reader.join(5)
        self.owned = set()

    def _take_down(self) -> None:
        assert self._process.stdout is not None, "it was started with a pipe"
        for line in self._process.stdout:
            try:
                output = json.loads(line)
            except ValueError:
                # The last line is incomplete if the member was killed while it wrote.
                continue
            at = output.pop("at", None)
            for what, content in output.items():
                self._journal.enter(self, what, content, at)


class Journal:
    """The output of all members."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._lock = threading.Lock()

    def enter(self, member: Member, what: str, content: Any, at: int | None = None) -> None:
        at = time.monotonic_ns() if at is None else at
        with self._lock:
            if what == "assigned":
                member.stale = False
                member.assignments += 1
                member.owned |= set(content)
            elif what == "revoked":
                member.stale = False
                member.owned -= set(content)
            self.lines.append(Line(member, what, content, member.stale, at))

    def contents(self, what: str, member: Member | None = None) -> list[Any]:
        with self._lock:
            return [line.content for line in self.lines if line.what == what and member in (None, line.member)]

    def about(self, partition: int, end: int) -> str:
        """The last entries about a partition before an entry, one per line."""
        found = []
        for number, line in enumerate(self.lines[: end + 1]):
            match line.what:
                case "read":
                    content = line.content[1] if line.content[0] == partition else None
                case "committed":
                    content = dict(map(tuple, line.content)).get(partition)
                case _:
                    content = line.content
            if content is not None:
                found.append(f"{number} {line.at} {line.member} {line.what} {content}{' (stale)' if line.stale else ''}")
        return "\n".join(found[-60:])

    def check(self, ends: Mapping[int, int]) -> None:
        """Fails unless every record below these ends was read, and no committed record was read again."""
        committed: dict[int, int] = defaultdict(int)
        read: dict[int, set[int]] = defaultdict(set)
        #: First offset of each partition that other members read after a member was stopped.
        taken_over: dict[Member, dict[int, int]] = {}
        self.lines.sort(key=lambda line: line.at)
        for number, line in enumerate(self.lines):
            if line.what == "frozen":
                taken_over[line.member] = {}
            elif line.what == "committed":
                for partition, position in line.content:
                    story = f"line {number}: {line.member} commits {position} of partition {partition}"
                    if line.stale:
                        begun = taken_over[line.member].get(partition, position)
                        assert begun >= position, f"{story} though another has taken over from {begun} on"
                        continue
                    story = f"{story}; committed was {committed[partition]} before"
                    assert position >= committed[partition], f"{story}:\n{self.about(partition, number)}"
                    committed[partition] = position
            elif line.what == "read" and not line.stale:
                partition, offset = line.content
                story = f"line {number}: {line.member} reads offset {offset} of partition {partition}"
                assert offset >= committed[partition], f"{story}; committed is {committed[partition]}:\n{self.about(partition, number)}"
                read[partition].add(offset)
                for stopped, begun in taken_over.items():
                    if stopped is not line.member:
                        begun.setdefault(partition, offset)
        for partition, end in ends.items():
            missing = sorted(set(range(end)) - read[partition])
            assert not missing, f"partition {partition}: {len(missing)} records were never read: {missing[:10]}"

    def repeats(self) -> int:
        """Number of records read more than once, not counting stopped members."""
        seen: dict[tuple[int, int], int] = defaultdict(int)
        for line in self.lines:
            if line.what == "read" and not line.stale:
                seen[line.content[0], line.content[1]] += 1
        return sum(count - 1 for count in seen.values())


class GroupUnderTest:
    """A group of processes on one topic. The context exit ends every process."""

    def __init__(self, bootstrap: str, topic: str, scratch: Path, *, group: str | None = None, partitions: int) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, group or f"group-of-{topic}"
        self.partitions = partitions
        self.journal = Journal()
        self.members: list[Member] = []
        self._scratch = scratch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            for member in self.members:
                error.add_note(f"{member}: alive {member.alive}, assigned {sorted(member.owned)}; it complained: {member.errors()}")
        for member in self.members:
            if member.alive:
                member.kill()

    def start(self, client: str, **settings: object) -> Member:
        """Start another member. Settings have Kafka's names, with `_` for `.`; None removes a default."""
        all_settings = {**SESSION, **{name.replace("_", "."): value for name, value in settings.items()}}
        effective = {name: value for name, value in all_settings.items() if value is not None}
        program = [sys.executable, str(HERE / "members" / f"with_{client}.py")]
        return self.start_program(program, client, effective)

    def start_program(self, program: Sequence[str | Path], client: str, settings: Mapping[str, object]) -> Member:
        name = f"{client}-{len(self.members)}"
        arguments = [self.bootstrap, self.group, self.topic, json.dumps(settings)]
        member = Member(
            self.journal, [*map(str, program), *arguments], name, self._scratch / f"{self.group}-{name}-{time.monotonic_ns()}.errors"
        )
        self.members.append(member)
        return member

    def shared_by(self, members: Iterable[Member]) -> Callable[[], bool]:
        """Whether each of these members has partitions, and together they have every partition once."""
        chosen = list(members)

        def holds() -> bool:
            parts = [set(member.owned) for member in chosen]
            together = sorted(partition for part in parts for partition in part)
            return together == list(range(self.partitions)) and all(parts)

        return holds

    def until_shared_by(self, members: Iterable[Member], *, timeout_s: float = DEADLINE_S) -> float:
        """Waits until these members share all partitions; returns the seconds it took."""
        chosen = list(members)
        return until(self.shared_by(chosen), f"{chosen} share {self.topic}", timeout_s=timeout_s)

    def until_read(self, ends: Mapping[int, int], *, timeout_s: float = DEADLINE_S) -> None:
        """Waits until the group has committed all of it, according to the broker."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

        def all_committed() -> bool:
            return committed(admin, self.group, self.topic) == dict(ends)

        until(all_committed, f"{self.group} has committed {dict(ends)}", every_s=0.2, timeout_s=timeout_s)

    def finish(self, ends: Mapping[int, int]) -> None:
        """Waits until everything is read, lets every member leave, and checks the journal."""
        self.until_read(ends)
        for member in self.members:
            if member.alive:
                member.leave()
        self.journal.check(ends)


def until(holds: Callable[[], bool], what: str, *, timeout_s: float = DEADLINE_S, every_s: float = 0.02) -> float:
    """Waits for a condition; returns the seconds it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(every_s)
    return time.monotonic() - began


def committed(admin: AdminClient, group: str, topic: str) -> dict[int, int]:
    """Committed positions by partition, according to the broker."""
    asked = admin.list_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(10).topic_partitions
    return {each.partition: each.offset for each in found if each.topic == topic and each.offset >= 0}


class Load:
    """A producer that writes a few records to every partition repeatedly until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, rate: float = 600.0) -> None:
        self._topic, self._partitions, self._rate = topic, partitions, rate
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True, "log_level": 0}
        )
        self._ends: dict[int, int] = defaultdict(int)
        self._over = threading.Event()
        self._failed: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(30)

    def stop(self) -> dict[int, int]:
        """Stops writing and returns the end of each partition."""
        self._over.set()
        self._thread.join(30)
        assert not self._thread.is_alive() and not self._failed, self._failed[:3]
        return dict(self._ends)

    def _run(self) -> None:
        number = 0
        while not self._over.wait(self._partitions / self._rate):
            for partition in range(self._partitions):
                self._producer.produce(self._topic, b"%d" % number, partition=partition, on_delivery=self._written)
                number += 1
            self._producer.poll(0)
        if self._producer.flush(25):
            self._failed.append("not everything could be written")

    def _written(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(str(error))
        else:
            partition = message.partition()
            self._ends[partition] = max(self._ends[partition], message.offset() + 1)

"""Members of a group as processes, what they tell, and what must hold of all they told.

Each member is one of the programs in `members/` (or in `foreign/`), whose lines a thread takes down, all members' in one journal in the
order in which they came. Three things must hold of a journal whatever happened to the members, the broker or the group:

    nothing is skipped           every record was read by somebody
    nothing is read again        once a commit beyond a record is acknowledged, nobody is given the record
    commits go forward           the acknowledged positions of a partition never fall

A record that was read and not committed may be read again: that is what a dead member leaves behind. Nothing more: two members that both
had a partition would break the second rule or the third. A member that was stopped (SIGSTOP) does not know, when it goes on, that the
group went on without it: what it has in its buffer it still reads, but no commit of it may be taken. So its reads count again only after
it was told to give up what it had. It may still learn of a commit that was taken before it was stopped: then whoever took over began there.
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
#: A member that is gone is missed after this time. Heartbeats are several in that time, on a machine that is busy.
SESSION_MS = 3_000
HEARTBEAT_MS = 400
SESSION = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}


class Line(NamedTuple):
    """Something that a member told."""

    member: Member
    what: str
    told: Any
    #: Told by a member that was stopped and has not heard yet that the group went on.
    stale: bool


class Member:
    """One process."""

    def __init__(self, journal: Journal, command: Sequence[str], name: str, log: Path) -> None:
        self.name = name
        self.owned: set[int] = set()
        #: How often it was told what to read.
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
        """Ends it as a crash would."""
        self._process.kill()
        self._end()

    def freeze(self) -> None:
        """Stops it in the middle of whatever it does."""
        self._journal.enter(self, "frozen", None)
        self.owned = set()
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it go on, in the belief that nothing has happened."""
        self.stale = True
        os.kill(self._process.pid, signal.SIGCONT)

    def leave(self, *, timeout_s: float = 20.0) -> None:
        """Asks it to leave its group and end. Fails unless it does."""
        self._process.terminate()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not leave within {timeout_s} s:\n{self.errors()}") from None
        self._end()
        assert code == 0, f"{self.name} ended with {code}:\n{self.errors()}"

    def errors(self) -> str:
        """The end of what it complained about."""
        return self._log.read_text(errors="replace")[-3000:]

    def _end(self) -> None:
        self._process.wait()
        self._reader.join(5)
        self.owned = set()

    def _take_down(self) -> None:
        assert self._process.stdout is not None, "it was started with a pipe"
        for line in self._process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                # Its last line, when it was killed in the middle of one.
                continue
            for what, content in told.items():
                self._journal.enter(self, what, content)


class Journal:
    """All that the members told, in order."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._lock = threading.Lock()

    def enter(self, member: Member, what: str, told: Any) -> None:
        with self._lock:
            if what == "assigned":
                member.stale = False
                member.assignments += 1
                member.owned |= set(told)
            elif what == "revoked":
                member.stale = False
                member.owned -= set(told)
            self.lines.append(Line(member, what, told, member.stale))

    def told(self, what: str, member: Member | None = None) -> list[Any]:
        with self._lock:
            return [line.told for line in self.lines if line.what == what and member in (None, line.member)]

    def about(self, partition: int, end: int) -> str:
        """The last that was told of a partition before a line, one in a line."""
        found = []
        for number, line in enumerate(self.lines[: end + 1]):
            match line.what:
                case "read":
                    told = line.told[1] if line.told[0] == partition else None
                case "committed":
                    told = dict(map(tuple, line.told)).get(partition)
                case _:
                    told = line.told
            if told is not None:
                found.append(f"{number} {line.member} {line.what} {told}{' (stale)' if line.stale else ''}")
        return "\n".join(found[-60:])

    def check(self, ends: Mapping[int, int]) -> None:
        """Fails unless everything up to these ends was read, and nothing that was committed was read again."""
        committed: dict[int, int] = defaultdict(int)
        read: dict[int, set[int]] = defaultdict(set)
        #: The first offset of each partition that others read after a member was stopped.
        taken_over: dict[Member, dict[int, int]] = {}
        for number, line in enumerate(self.lines):
            if line.what == "frozen":
                taken_over[line.member] = {}
            elif line.what == "committed":
                for partition, position in line.told:
                    story = f"line {number}: {line.member} commits {position} of partition {partition}"
                    if line.stale:
                        begun = taken_over[line.member].get(partition, position)
                        assert begun >= position, f"{story} though another has taken over from {begun} on"
                        continue
                    assert position >= committed[partition], f"{story}; committed was {committed[partition]} before"
                    committed[partition] = position
            elif line.what == "read" and not line.stale:
                partition, offset = line.told
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
        """How many records were read more than once, but by members that were stopped."""
        seen: dict[tuple[int, int], int] = defaultdict(int)
        for line in self.lines:
            if line.what == "read" and not line.stale:
                seen[line.told[0], line.told[1]] += 1
        return sum(count - 1 for count in seen.values())


class Meeting:
    """A group of processes on one topic. Leaving the context ends every process."""

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
                error.add_note(f"{member}: alive {member.alive}, assigned {sorted(member.owned)}; it complained: {member.errors()[-800:]}")
        for member in self.members:
            if member.alive:
                member.kill()

    def start(self, client: str, **settings: object) -> Member:
        """Another member; settings in Kafka's words, with `_` for `.`, and None for those that it is not to have."""
        given = {**SESSION, **{name.replace("_", "."): value for name, value in settings.items()}}
        wanted = {name: value for name, value in given.items() if value is not None}
        program = [sys.executable, str(HERE / "members" / f"with_{client}.py")]
        return self.start_program(program, client, wanted)

    def start_program(self, program: Sequence[str | Path], client: str, settings: Mapping[str, object]) -> Member:
        name = f"{client}-{len(self.members)}"
        arguments = [self.bootstrap, self.group, self.topic, json.dumps(settings)]
        member = Member(
            self.journal, [*map(str, program), *arguments], name, self._scratch / f"{self.group}-{name}-{time.monotonic_ns()}.errors"
        )
        self.members.append(member)
        return member

    def shared_by(self, members: Iterable[Member]) -> Callable[[], bool]:
        """Whether these members have all partitions between them, each something and nothing twice."""
        chosen = list(members)

        def holds() -> bool:
            parts = [set(member.owned) for member in chosen]
            together = sorted(partition for part in parts for partition in part)
            return together == list(range(self.partitions)) and all(parts)

        return holds

    def until_shared_by(self, members: Iterable[Member], *, timeout_s: float = DEADLINE_S) -> float:
        """Waits until these members have all partitions between them; seconds that took."""
        chosen = list(members)
        return until(self.shared_by(chosen), f"{chosen} share {self.topic}", timeout_s=timeout_s)

    def until_read(self, ends: Mapping[int, int], *, timeout_s: float = DEADLINE_S) -> None:
        """Waits until the broker says that the group has committed all of it."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

        def all_committed() -> bool:
            return committed(admin, self.group, self.topic) == dict(ends)

        until(all_committed, f"{self.group} has committed {dict(ends)}", every_s=0.2, timeout_s=timeout_s)

    def finish(self, ends: Mapping[int, int]) -> None:
        """Everything is read, everybody leaves, and the journal is in order."""
        self.until_read(ends)
        for member in self.members:
            if member.alive:
                member.leave()
        self.journal.check(ends)


def until(holds: Callable[[], bool], what: str, *, timeout_s: float = DEADLINE_S, every_s: float = 0.02) -> float:
    """Waits for something to hold; seconds that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(every_s)
    return time.monotonic() - began


def committed(admin: AdminClient, group: str, topic: str) -> dict[int, int]:
    """Committed positions by partition, as the broker tells them."""
    asked = admin.list_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(10).topic_partitions
    return {each.partition: each.offset for each in found if each.topic == topic and each.offset >= 0}


class Load:
    """A producer that writes a few records to every partition, over and over, until it is told to stop."""

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
        """Writes no more; where each partition ends."""
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

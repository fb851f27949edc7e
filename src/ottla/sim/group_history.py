"""One simulated history of consumer groups: members join, read, commit, pause and die while brokers fail.

Phases: the topic is created; producers write and groups read while faults happen; then all faults are undone. Each group then has
``SETTLED_BY_MS`` to become stable, with every partition read to its end by one member. Finally the power fails once more, and committed
offsets must still be there.

Two clients are not members: an auditor fetches committed offsets all the time, and a bookkeeper commits and deletes offsets. Whenever a
process ends, its coordinator is compared with a replay of its log (``shard_replay.py``).
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from ottla.broker.node import Node
from ottla.client.options import ConsumerOptions, from_keywords
from ottla.log.errors import LogError
from ottla.records.errors import RecordsError
from ottla.sim.checkers import ALL, Checker
from ottla.sim.checkers.client_history import HistoryIsSound
from ottla.sim.checkers.groups import (
    CommittedIsKept,
    GenerationsAreDisjoint,
    GroupChecker,
    NothingIsSkipped,
    OneOwner,
    Write,
    ZombiesAreFenced,
)
from ottla.sim.client_connection import send_once
from ottla.sim.clients import TOPIC, Admin, Producer
from ottla.sim.cluster_environment import environment
from ottla.sim.cluster_faults import CLUSTER_FAULT_KINDS
from ottla.sim.faults import FAULT_KINDS
from ottla.sim.group_auditors import Auditor, Bookkeeper
from ottla.sim.group_environment import OneBroker, Scene
from ottla.sim.history import CLEANER, HEALED_BY_MS, READ_BY_MS, Verdict, read_log
from ottla.sim.member_clients import MemberProcess
from ottla.sim.network import Network
from ottla.sim.report_fanout import Reports
from ottla.sim.shard_replay import differences
from ottla.sim.world import World
from ottla.wire.messages import CreatePartitionsRequest, CreatePartitionsTopic

FAULTS_UNTIL_MS = 6_000
#: After the end of the faults: the longest pause, a session timeout, and rebalances.
SETTLED_BY_MS = 30_000
MEMBER_FAULTS = ("member killed", "member paused", "member leaves", "member lost", "member replaced", "member joins")
GROWTH = "topic grows"
GROUP_FAULT_KINDS = (*FAULT_KINDS, *MEMBER_FAULTS, *MEMBER_FAULTS, GROWTH)
CLUSTER_GROUP_KINDS = (*CLUSTER_FAULT_KINDS, *MEMBER_FAULTS, *MEMBER_FAULTS, GROWTH)
#: Protocols of a group's members: one for all, or each life chooses.
PROTOCOLS = (("classic",), ("classic",), ("consumer",), ("classic", "consumer"))
LEDGER = "ledger"
PARTITIONS_MAX = 6


STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky", "range,cooperative-sticky")
MEMBERS_MAX = 5


def coordinator_settings(rng: Random) -> dict[str, str]:
    """Settings of brokers: short times, small segments, frequent compactions."""
    return {
        "ottla.disk.reserve.bytes": "65536",
        "group.min.session.timeout.ms": "100",
        "group.initial.rebalance.delay.ms": str(rng.choice((0, 100, 500))),
        "offsets.topic.num.partitions": str(rng.randint(1, 3)),
        "offsets.topic.segment.bytes": str(rng.choice((2_000, 20_000, 1 << 20))),
        **CLEANER,
        "log.cleaner.min.cleanable.ratio": "0.1",
        "log.cleaner.delete.retention.ms": str(rng.choice((0, 300))),
        "group.consumer.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "100",
        "group.consumer.heartbeat.interval.ms": "250",
        "group.consumer.min.heartbeat.interval.ms": "10",
        "ottla.group.consumer.unsettled.heartbeat.interval.ms": "50",
        "group.consumer.assignment.interval.ms": str(rng.choice((0, 100))),
    }


def member_options(rng: Random, group: str) -> Callable[[str, str], ConsumerOptions]:
    """Draws the options of a group; the result gives those of a member, by protocol and instance id."""
    strategy = rng.choice(STRATEGIES)
    session_ms = rng.choice((600, 1_000, 2_000))
    rebalance_ms = rng.choice((1_000, 3_000))

    def options(protocol: str, instance: str) -> ConsumerOptions:
        own: dict[str, Any] = {}
        if protocol == "classic":
            own = {
                "session_timeout_ms": session_ms,
                "heartbeat_interval_ms": session_ms // 4,
                "partition_assignment_strategy": strategy,
            }
        return from_keywords(
            ConsumerOptions,
            {
                "group_id": group,
                "group_instance_id": instance,
                "group_protocol": protocol,
                "max_poll_interval_ms": rebalance_ms,
                "request_timeout_ms": 1_500,
                "retry_backoff_ms": 20,
                "retry_backoff_max_ms": 200,
                **own,
            },
        )

    return options


class SimMember:
    """A member over its lives, one process after the other. A former process may not know that it was replaced."""

    def __init__(self, story: "GroupHistory", group: "SimGroup", number: int, *, static: bool) -> None:
        self._story = story
        self._group = group
        self._name = f"{group.name}.{number}"
        self._instance = f"{group.name}-{number}" if static else ""
        self.lives: list[MemberProcess] = []

    @property
    def living(self) -> list[MemberProcess]:
        return [life for life in self.lives if not life.dead]

    def begin(self) -> None:
        """Starts a process, beside the former one if that still runs."""
        story, number = self._story, len(self.lives)
        name = f"{self._name}.{number}"
        rng = story.world.rng(name)
        options = self._group.options(rng.choice(self._group.protocols), self._instance)
        life = MemberProcess(story.world, story.network, story.stage, story, options, name=name, rng=rng)
        story.members[name] = life
        story.seats[name] = self
        self.lives.append(life)

    def begin_unless_alive(self) -> None:
        if not self.living:
            self.begin()


class SimGroup:
    """A group with its members."""

    def __init__(self, story: "GroupHistory", name: str, *, protocols: Sequence[str]) -> None:
        rng = story.world.rng("profile")
        self.name = name
        self.protocols = protocols
        self.options = member_options(rng, name)
        self._story = story
        self.static = rng.random() < 0.4
        self.seats: list[SimMember] = []
        for _ in range(rng.randint(1, 4)):
            self.grow()

    def grow(self) -> None:
        """Adds a member."""
        if len(self.seats) < MEMBERS_MAX:
            self.seats.append(SimMember(self._story, self, len(self.seats), static=self.static))
            self.seats[-1].begin()

    @property
    def living(self) -> list[MemberProcess]:
        return [life for seat in self.seats for life in seat.living]

    def settled(self, ends: dict[int, int]) -> bool:
        """Whether each partition has one reader that has read all of it."""
        living = self.living
        owned = sorted(partition for member in living for partition in member.owned)
        return (
            owned == sorted(ends)
            and all(member.machine.settled for member in living)
            and all(member.positions.get(partition) == ends[partition] for member in living for partition in member.owned)
        )


class GroupHistory:
    """One history of groups. ``kinds`` are the faults to choose from;
    ``protocols`` are those of each group's members.
    """

    topic = TOPIC

    def __init__(
        self,
        seed: int,
        *,
        kinds: Sequence[str] = (),
        protocols: Sequence[Sequence[str]] = PROTOCOLS,
        brokers: int | None = None,
    ) -> None:
        """``brokers``: size of the cluster; None for a single broker without a cluster. ``kinds``: None for all."""
        self.world = World(seed)
        rng = self.world.rng("profile")
        self._protocols = protocols
        self.calm = False
        self.network = Network(self.world)
        texts = coordinator_settings(rng)
        self._partitions = rng.randint(1, 4)
        if brokers is None:
            kinds = kinds or GROUP_FAULT_KINDS
        else:
            kinds = kinds or CLUSTER_GROUP_KINDS
        chosen = rng.sample(kinds, rng.randint(1, len(kinds)))
        #: Whether requests may be executed after their client closed the connection.
        self._late = "late requests" in chosen
        self._set_stage(texts, brokers, chosen)
        self.scene = Scene(self.stage)
        self.stage.last_look(self._hold_against_replay)
        configs = {"internal.segment.bytes": str(rng.choice((10_000, 1 << 20))), "retention.ms": "-1"}
        if self.stage.replicas > 1:
            configs["min.insync.replicas"] = "2"
        self.admin = Admin(
            self.world, self.network, self.stage.entrance(-1), self._partitions, configs, replication_factor=self.stage.replicas
        )
        self.producers: list[Producer] = []
        self.groups: list[SimGroup] = []
        #: All members that ever existed, by name.
        self.members: dict[str, MemberProcess] = {}
        self.seats: dict[str, SimMember] = {}
        self.auditor: Auditor | None = None
        self.bookkeeper: Bookkeeper | None = None
        self._open_writes: list[Write] = []
        # Members start at the committed offset, not at their own last position.
        self.log_checkers: list[Checker] = [kind() for kind in ALL if kind is not HistoryIsSound]
        #: Reports of producers; only members read.
        self.reports = Reports(self.world, self.log_checkers, of=None)
        self.complaints = self.reports.complaints
        self.checkers: list[GroupChecker] = [OneOwner(self._lawful), CommittedIsKept(), ZombiesAreFenced(), NothingIsSkipped()]
        #: Additionally for groups that use the classic protocol alone.
        self._generations = GenerationsAreDisjoint()

    def _set_stage(self, texts: dict[str, str], brokers: int | None, chosen: Sequence[str]) -> None:
        more: dict[str, Callable[[], None]] = {kind: lambda kind=kind: self._befall(kind) for kind in MEMBER_FAULTS}  # type: ignore[misc]
        more[GROWTH] = self._grow
        self.stage, self.faults = environment(self.world, self.network, texts, brokers, (TOPIC,), chosen, more)

    def run(self) -> Verdict:
        """Runs the whole history."""
        self.stage.start()
        self._run(HEALED_BY_MS, lambda: self.admin.done, "the topic was never created")
        self._people()
        self.faults.plan()
        self.world.run(self.world.now_ms + FAULTS_UNTIL_MS)
        self.faults.heal()
        self.calm = True
        self.world.await_sleepers(self.faults.asleep_until_ms)
        for group in self.groups:
            if not group.living:
                group.seats[0].begin()
        self._run(HEALED_BY_MS, lambda: all(producer.done for producer in self.producers), "producers did not finish after the faults")
        self._run(SETTLED_BY_MS, self._settled, "groups did not settle after the faults")
        self._finish()
        problems = [
            *self.complaints,
            *self.stage.problems(),
            *(problem for checker in self._all_checkers() for problem in checker.problems[:3]),
        ]
        story = "groups" if isinstance(self.stage, OneBroker) else "cluster-groups"
        return Verdict.of(self.world, problems, acknowledged=self.reports.acknowledged_count, faults=self.faults.count, story=story)

    def _people(self) -> None:
        rng = self.world.rng("profile")
        for partition in range(self.partitions):
            producer = Producer(
                self.world,
                self.network,
                self.stage.entrance(partition),
                self.reports,
                number=partition,
                partition=partition,
                batches=rng.randint(5, 40),
                idempotent=True,
                pauses_ms=(20, 100, 400),
            )
            self.producers.append(producer)
        for number in range(rng.randint(1, 2)):
            self.groups.append(SimGroup(self, f"group{number}", protocols=rng.choice(self._protocols)))
        self.bookkeeper = Bookkeeper(self.world, self.network, self.stage, self, LEDGER)
        self.auditor = Auditor(self.world, self.network, self.stage, self, [*(group.name for group in self.groups), LEDGER])

    def _run(self, within_ms: int, done: Callable[[], bool], otherwise: str) -> None:
        if not self.world.run(self.world.now_ms + within_ms, done):
            self.complaints.append(otherwise)
            for group in self.groups if done == self._settled else ():
                self.complaints += [f"  {member} reads {member.owned} at {member.positions}" for member in group.living]

    def _befall(self, kind: str) -> None:
        rng = self.world.rng("member faults")
        seat = rng.choice([seat for group in self.groups for seat in group.seats])
        if kind == "member joins":
            rng.choice(self.groups).grow()
        elif not seat.living:
            seat.begin()
        elif kind == "member killed":
            seat.living[-1].kill()
            self.world.after(rng.choice((10, 200, 3_000)), seat.begin_unless_alive)
        elif kind == "member lost":
            seat.living[-1].kill()
        elif kind == "member paused":
            seat.living[-1].pause(rng.choice((300, 2_000, 5_000)))
        elif kind == "member leaves":
            seat.living[-1].leave()
        elif kind == "member replaced":
            seat.living[-1].pause(rng.choice((300, 2_000, 5_000)))
            seat.begin()

    def _grow(self) -> None:
        """Adds a partition and ignores the result.

        Not if a group has a static leader: a leader that restarts meanwhile does not assign anew, so it notices the partition at the next
        rebalance, like Kafka's client.
        """
        count = self.partitions + 1
        if count <= PARTITIONS_MAX and not any(group.static and "classic" in group.protocols for group in self.groups):
            requested = CreatePartitionsTopic(name=TOPIC, count=count, assignments=None)
            request = CreatePartitionsRequest(topics=[requested], timeout_ms=1_000)
            send_once(self.world, self.network, self.stage.entrance(-1), request)

    # The end.

    def _settled(self) -> bool:
        ends = self.scene.ends()
        return len(ends) == self.partitions and all(group.settled(ends) for group in self.groups)

    def _finish(self) -> None:
        assert self.auditor is not None and self.bookkeeper is not None, "people came"
        self.bookkeeper.closed = True
        for group in self.groups:
            for member in group.living:
                member.kill()
        self.stage.power_cut()
        self._run(READ_BY_MS, self.stage.ready, "the broker did not come back at the end")
        auditor, wanted = self.auditor, {group.name for group in self.groups} | {LEDGER}
        auditor.answered_groups.clear()
        self._run(READ_BY_MS, lambda: auditor.answered_groups >= wanted, "committed offsets could not be asked for at the end")
        for broker in self.stage.brokers:
            node = self.stage.node(broker)
            if node is not None:
                self._hold_against_replay(node)
        try:
            final = {partition: read_log(log) for partition, log in self.scene.logs().items()}
        except (RecordsError, LogError) as error:
            self.complaints.append(f"a log cannot be read back: {error}")
            return
        for checker in self.log_checkers:
            checker.finish(final)
        ends = {partition: log[-1][0] + 1 if log else 0 for partition, log in final.items()}
        for group_checker in self.checkers:
            group_checker.finish(ends, [group.name for group in self.groups])

    def _all_checkers(self) -> list[Checker | GroupChecker]:
        return [*self.checkers, self._generations, *self.log_checkers]

    # State of the brokers.

    def _hold_against_replay(self, node: Node) -> None:
        try:
            for line in differences(node):
                self.complaint(line)
        except (OSError, LogError, RecordsError) as error:
            self.world.note(f"no replay: {error}")

    def _lawful(self, name: str) -> bool | None:
        """Whether the coordinator would accept a commit of a member now; None without a coordinator."""
        member = self.members[name]
        return self.scene.takes(member.group, *member.machine.committing)

    def _look_at_topic(self) -> None:
        topic = self.scene.topic()
        if topic is not None:
            self._topic_id: bytes = topic.topic_id
            self._partitions = max(self._partitions, len(topic.replicas))

    def topic_id(self) -> bytes:
        self._look_at_topic()
        return self._topic_id

    @property
    def partitions(self) -> int:
        self._look_at_topic()
        return self._partitions

    # GroupListener.

    def _checkers_of(self, group: str) -> list[GroupChecker]:
        classic = any(each.name == group and list(each.protocols) == ["classic"] for each in self.groups)
        return [*self.checkers, self._generations] if classic else self.checkers

    def assigned(self, who: MemberProcess, partitions: list[int]) -> None:
        epoch, lawful = who.machine.committing[1], self._lawful(who.name)
        self.world.note(f"{who} is given {partitions} in {epoch}{'' if lawful else ', too late'}")
        for checker in self._checkers_of(who.group):
            checker.assigned(who.group, who.name, epoch, partitions, lawful=lawful, now_ms=self.world.now_ms)

    def released(self, who: MemberProcess, partitions: list[int], *, lost: bool) -> None:
        self.world.note(f"{who} {'loses' if lost else 'gives up'} {partitions}")
        for checker in self.checkers:
            checker.released(who.group, who.name, partitions)

    def died(self, who: MemberProcess) -> None:
        for checker in self.checkers:
            checker.released(who.group, who.name, list(range(self.partitions)))
        for write in [write for write in self._open_writes if write.by is not None and write.by[0] == who.name]:
            self._answered(write, "unclear")

    def ended(self, who: MemberProcess) -> None:
        """A member's program ended: start another one."""
        seat = self.seats[who.name]
        self.world.after(self.world.rng("member faults").choice((500, 3_000)), seat.begin_unless_alive)

    def synced(self, who: MemberProcess, asked_ms: int, generation: int) -> None:
        for checker in self._checkers_of(who.group):
            checker.synced(who.group, who.name, generation, asked_ms, self.world.now_ms)

    def began(self, who: MemberProcess, partition: int, offset: int) -> None:
        self.world.note(f"{who} begins at {partition}:{offset}")
        for checker in self.checkers:
            checker.began(who.group, who.name, partition, offset)

    def delivered(self, who: MemberProcess, partition: int, offset: int, value: bytes) -> None:
        self.reports.read(0, partition, offset, value)
        for checker in self.checkers:
            checker.delivered(who.group, who.name, partition, offset)

    def commit_sent(self, group: str, who: tuple[str, int] | None, offsets: dict[int, int]) -> dict[int, Write]:
        writes = {partition: Write(group, partition, offset, who, self.world.now_ms) for partition, offset in offsets.items()}
        for write in writes.values():
            self._open_writes.append(write)
            for checker in self.checkers:
                checker.commit_sent(write)
        return writes

    def commit_answered(self, ticket: dict[int, Write], partition: int, outcome: str) -> None:
        write = ticket[partition]
        self.world.note(f"{write.by[0] if write.by else 'bookkeeper'} commits {partition}:{write.offset}: {outcome}")
        self._answered(write, outcome)

    def _answered(self, write: Write, outcome: str) -> None:
        if write not in self._open_writes:
            return
        self._open_writes.remove(write)
        write.outcome = outcome
        if outcome == "acknowledged":
            write.done_ms = self.world.now_ms
        elif outcome == "unclear" and not self._late:
            write.by_ms = min(write.by_ms, self.world.now_ms)
        for checker in self.checkers:
            checker.commit_answered(write)

    def fetch_sent(self, group: str) -> tuple[str, int]:
        return group, self.world.now_ms

    def fetch_answered(self, ticket: tuple[str, int], offsets: dict[int, int]) -> None:
        group, asked_ms = ticket
        for partition, offset in offsets.items():
            for checker in self.checkers:
                checker.read(group, partition, offset, asked_ms=asked_ms, now_ms=self.world.now_ms)

    def complaint(self, text: str) -> None:
        self.reports.complaint(text)

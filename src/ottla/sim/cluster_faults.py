"""Faults of a cluster: brokers, disks, clocks, links between brokers, to the store and to clients.

Every few hundred milliseconds one of the kinds chosen by the seed, until all faults are undone, as in ``faults.py``. Faults overlap, also
on one broker.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ottla.base.ids import BrokerId
from ottla.base.ports import Op
from ottla.base.units import MINUTE_MS
from ottla.log.checkpoints import read_offsets
from ottla.log.errors import LogError
from ottla.log.filenames import RECOVERY_POINTS
from ottla.sim.cluster_machine import STORE_MS, ClusterMachine
from ottla.sim.links import Links, Way
from ottla.sim.network import Network
from ottla.sim.world import EPOCH_MS, World
from ottla.store import layout
from ottla.store.memory import MemoryStore
from ottla.wire.messages import AlterPartitionRequest

#: Faults of every cluster; a history may add its own.
CLUSTER_FAULT_KINDS = (
    "kill",
    "power cut",
    "power cut of some",
    "power cut everywhere",
    "disk lost",
    "stop",
    "leave",
    "rolling restart",
    "pause",
    "long pause",
    "clock jumps",
    "cut link",
    "one-way link",
    "cut off",
    "silent link",
    "flaky links",
    "damaged links",
    "cut from store",
    "store far from all",
    "session lost",
    "slow store",
    "controller replaced",
    "cut from users",
    "fsync fails",
    "slow disk",
    "full disk",
    "broken connections",
    "late requests",
)
#: Faults in which a process ends.
ENDINGS = frozenset(("kill", "power cut", "power cut of some", "power cut everywhere", "stop", "leave", "rolling restart", "fsync fails"))
#: Length of a long pause. The longest is rare, because simulating the others meanwhile costs most of such a history.
LONG_MS = (10_000, 10_000, 10_000, 20_000, 20_000, 120_000)
#: Largest error of a broker's wall clock: less than producers' timestamps may be ahead.
SKEW_MS = 30 * MINUTE_MS


class ClusterFaults:
    """Injects faults into a cluster."""

    def __init__(
        self,
        world: World,
        machines: Mapping[BrokerId, ClusterMachine],
        store: MemoryStore,
        links: Links,
        network: Network,
        kinds: Sequence[str],
        more: Mapping[str, Callable[[], None]] | None = None,
        *,
        at_rest: Callable[[], bool],
        gentle: bool = False,
    ) -> None:
        """``more`` has additional kinds of a history, each with its action. ``at_rest``: whether the cluster is healthy, so that no broker
        is needed. A disk is lost only then; if ``gentle``, processes end only then.
        """
        self._world = world
        self._rng = world.rng("faults")
        #: For events beside a fault.
        self._still = world.rng("beside faults")
        self._machines = machines
        self._store = store
        self._links = links
        self._network = network
        self._kinds = list(kinds)
        own = self._own_kinds()
        self._acts = {**own, **{kind: lambda machine, act=act: act() for kind, act in (more or {}).items()}}  # type: ignore[misc]
        self._at_rest = at_rest
        self._gentle = gentle
        #: The one broker whose disk rots: the others have all its records.
        self._rotting: ClusterMachine | None = None
        #: Faults injected so far.
        self.count = 0
        self.over = False

    def _own_kinds(self) -> dict[str, Callable[[ClusterMachine], None]]:
        """Action of each kind of fault on a broker."""
        machines = self._machines
        return {
            "kill": self._kill,
            "power cut": self._power_cut,
            "power cut of some": lambda machine: self._power_cut_of(self._rng.randint(1, len(machines) - 1)),
            "power cut everywhere": lambda machine: self._power_cut_of(len(machines)),
            "disk lost": self._lose_disk,
            "stop": self._stop,
            "leave": self._leave,
            "rolling restart": lambda machine: self._roll(list(machines.values())),
            "pause": lambda machine: machine.pause(self._rng.choice((100, 1_000, 3_000, 6_000))),
            "long pause": lambda machine: machine.pause(self._rng.choice(LONG_MS)),
            "clock jumps": lambda machine: setattr(machine, "epoch_ms", EPOCH_MS + self._rng.randint(-SKEW_MS, SKEW_MS)),
            "cut link": lambda machine: self._cut(both(machine.broker_id, self._other(machine))),
            "one-way link": lambda machine: self._cut([self._either_way(machine.broker_id, self._other(machine))]),
            "cut off": lambda machine: self._cut(self._all_ways(machine)),
            "silent link": lambda machine: self._cut(both(machine.broker_id, self._other(machine))[: self._rng.randint(1, 2)], silent=True),
            "flaky links": lambda machine: self._bad_links("flaky", 0.1),
            "damaged links": lambda machine: self._bad_links("damage", 0.2),
            "cut from store": self._cut_from_store,
            "store far from all": lambda machine: self._cut_all_from_store(),
            "session lost": lambda machine: machine.lose_session(),
            "slow store": self._slow_store,
            "controller replaced": lambda machine: self._replace_controller(),
            "controller hard to reach": lambda machine: self._hide_controller(),
            "change in doubt": lambda machine: self._doubt_changes(),
            "cut from users": self._cut_from_users,
            "fsync fails": lambda machine: machine.disk.fail("sync"),
            "slow disk": self._slow_disk,
            "full disk": self._full_disk,
            "bit rot": lambda machine: self._rot(),
            "broken connections": lambda machine: self._bad_network(loss=self._rng.choice((0.02, 0.2))),
            "late requests": lambda machine: self._bad_network(slow=0.3, loss=self._rng.choice((0.02, 0.2)), lateness=1.0),
        }

    def plan(self) -> None:
        """Schedules the next fault."""
        self._world.after(self._rng.randint(50, 1_500), self._happen)

    def _happen(self) -> None:
        if self.over:
            return
        kind, machine = self._rng.choice(self._kinds), self._rng.choice(list(self._machines.values()))
        ends = self._gentle and kind in ENDINGS
        waits = kind in ("disk lost", "bit rot") or ends
        # The next sync of that machine ends it, and its page cache is lost.
        already = ends and any(other.disk.will_fail("sync") for other in self._machines.values())
        if not already and (not waits or self._at_rest()):
            self.count += 1
            self._world.note(f"fault: {kind}, {machine.broker_id}")
            self._acts[kind](machine)
        self.plan()

    def heal(self) -> None:
        """Undoes all faults except pauses, and injects no more."""
        self.over = True
        self._calm(("loss", "slow", "damage", "lateness"))
        self._links.mend()
        self._links.flaky = self._links.damage = 0.0
        self._links.flaky_to.clear()
        for machine in self._machines.values():
            machine.disk.fail("sync", times=0)
            machine.disk.capacity_bytes = 1 << 40
            machine.slow_disk = False
            machine.from_store_ms = machine.to_store_ms = STORE_MS
            machine.open_to_users = True
            self._start(machine)
        self._world.note("healed")

    @property
    def asleep_until_ms(self) -> int:
        """When the last paused broker resumes."""
        return max(machine.paused_until_ms for machine in self._machines.values())

    def _later(self, delays_ms: Sequence[int], act: Callable[[], None]) -> None:
        self._world.after(self._rng.choice(delays_ms), act)

    # Processes.

    def _start(self, machine: ClusterMachine) -> None:
        if machine.node is None:
            machine.start()

    def _restart_later(self, machine: ClusterMachine) -> None:
        self._later((1, 50, 700, 2_500), lambda: self._start(machine))

    def _kill(self, machine: ClusterMachine) -> None:
        machine.kill()
        self._restart_later(machine)

    def _power_cut(self, machine: ClusterMachine) -> None:
        machine.power_cut()
        self._restart_later(machine)

    def _power_cut_of(self, count: int) -> None:
        hit = self._rng.sample(list(self._machines.values()), count)
        for machine in hit:
            machine.power_cut()
        for machine in hit:
            self._restart_later(machine)

    def _lose_disk(self, machine: ClusterMachine) -> None:
        machine.lose_disk()
        self._restart_later(machine)

    def _stop(self, machine: ClusterMachine) -> None:
        machine.stop()
        self._restart_later(machine)

    def _leave(self, machine: ClusterMachine) -> None:
        """Stops a broker with a controlled shutdown, and starts it again."""
        machine.leave()
        self._start_when_gone(machine, machine.incarnation, self._rng.choice((1, 50, 700)))

    def _start_when_gone(self, machine: ClusterMachine, incarnation: int, down_ms: int) -> None:
        if machine.node is None:
            self._world.after(down_ms, lambda: self._start(machine))
        elif machine.incarnation == incarnation:
            self._world.after(100, lambda: self._start_when_gone(machine, incarnation, down_ms))

    def _roll(self, left: list[ClusterMachine]) -> None:
        """Restarts the brokers one after the other, while other faults continue."""
        if not left or self.over:
            return
        self._leave(left[0])
        self._later((600, 1_500), lambda: self._roll(left[1:]))

    # Links.

    def _other(self, machine: ClusterMachine) -> BrokerId:
        return self._rng.choice([broker for broker in self._machines if broker != machine.broker_id])

    def _either_way(self, one: BrokerId, other: BrokerId) -> Way:
        return self._rng.choice(both(one, other))

    def _all_ways(self, machine: ClusterMachine) -> list[Way]:
        return [way for other in self._machines if other != machine.broker_id for way in both(machine.broker_id, other)]

    def _cut(self, ways: Iterable[Way], *, silent: bool = False) -> None:
        number = self._links.cut(ways, silent=silent)
        self._later((100, 1_500, 4_000), lambda: self._links.mend(number))

    def _bad_links(self, rate: str, value: float) -> None:
        setattr(self._links, rate, value)
        self._later((300, 1_500), lambda: setattr(self._links, rate, 0.0))

    def _cut_from_store(self, machine: ClusterMachine) -> None:
        machine.cut_from_store(self._rng.choice((200, 1_200, 3_000, 6_000)))

    def _cut_all_from_store(self) -> None:
        for machine in self._machines.values():
            self._cut_from_store(machine)

    @property
    def _controller(self) -> ClusterMachine | None:
        node = self._store.tree.nodes.get(layout.CONTROLLER)
        return self._machines[layout.decode_controller(node.data)] if node is not None else None

    def _hide_controller(self) -> None:
        """Many requests to the controller arrive late, after their sender gave up and sent them again."""
        holder = self._controller
        if holder is not None:
            number = int(holder.broker_id)
            self._links.flaky_to[number] = 0.5
            self._later((2_000, 4_000), self._links.flaky_to.clear)

    def _doubt_changes(self) -> None:
        """For a while, a leader that requests an ISR change loses its store connection briefly and a follower for longer, and the
        controller's write arrives late.
        """
        hit: set[BrokerId] = set()

        def asks(machine: ClusterMachine, message: Any) -> None:
            holder = self._controller
            if isinstance(message, AlterPartitionRequest) and holder is not None and machine.broker_id not in hit:
                hit.add(machine.broker_id)
                self.slow(holder, from_store_ms=STORE_MS, to_store_ms=1_500, for_ms=(300,))
                self._cut(both(machine.broker_id, self._other(machine)))
                self._world.after(self._still.randint(1, 100), lambda: machine.cut_from_store(200))

        def over() -> None:
            for machine in self._machines.values():
                machine.asks = lambda machine, message: None

        for machine in self._machines.values():
            machine.asks = asks
        self._later((1_500, 4_000), over)

    def _replace_controller(self) -> None:
        """Deletes /controller, as an operator might, so that another broker is elected; the former controller notices late. Sometimes a
        candidate is paused.
        """
        holder = self._controller
        if holder is not None:
            self.slow(holder, from_store_ms=1_500)
            if self._still.random() < 0.5:
                taker = self._machines[self._still.choice([broker for broker in self._machines if broker != holder.broker_id])]
                self._world.after(self._still.randint(1, 8), lambda: taker.pause(1_000))
            operator = self._store.session()
            operator.submit((Op("delete", layout.CONTROLLER),), lambda result: None)
            operator.close()

    def _slow_store(self, machine: ClusterMachine) -> None:
        delays_ms = (30, 300, 1_000)
        if self._rng.random() < 0.5:
            self.slow(machine, from_store_ms=self._rng.choice(delays_ms))
        else:
            self.slow(machine, from_store_ms=self._rng.choice(delays_ms), to_store_ms=self._rng.choice(delays_ms))

    def elect_late(self, leader: ClusterMachine, other: ClusterMachine, elect: Callable[[], None]) -> None:
        """Elects another replica just when it is cut off from the leader. The leader removes it from the ISR, which the controller may
        learn late; or it becomes leader with fewer records, and perhaps its process ends soon.
        """
        rng = self._still
        number = self._links.cut(both(leader.broker_id, other.broker_id), silent=rng.random() < 0.3)
        self._world.after(rng.randint(1_500, 4_000), lambda: self._links.mend(number))
        holder = self._controller
        if holder is not None and rng.random() < 0.7:
            self.slow(holder, from_store_ms=2_000, for_ms=(3_000,))
        at_ms = rng.choice((rng.randint(50, 900), rng.randint(1_000, 2_400)))
        self._world.after(at_ms, elect)

        def end() -> None:
            if not self.over:
                self._kill(other)

        if rng.random() < 0.5 and not self._gentle:
            self._world.after(at_ms + rng.randint(50, 700), end)

    def slow(
        self, machine: ClusterMachine, *, from_store_ms: int, to_store_ms: int = STORE_MS, for_ms: Sequence[int] = (500, 2_000)
    ) -> None:
        """Delays messages between a broker and the store for a while."""
        machine.from_store_ms, machine.to_store_ms = from_store_ms, to_store_ms

        def quick() -> None:
            machine.from_store_ms = machine.to_store_ms = STORE_MS

        self._later(for_ms, quick)

    def _cut_from_users(self, machine: ClusterMachine) -> None:
        machine.cut_from_users()
        self._later((300, 1_500), lambda: setattr(machine, "open_to_users", True))

    def _bad_network(self, **rates: float) -> None:
        for rate, value in rates.items():
            setattr(self._network, rate, value)
        self._world.after(self._rng.randint(100, 1_500), lambda: self._calm(rates))

    def _calm(self, rates: Iterable[str]) -> None:
        for rate in rates:
            setattr(self._network, rate, 0.0)

    # Disks.

    def _slow_disk(self, machine: ClusterMachine) -> None:
        machine.slow_disk = True
        self._later((500, 3_000), lambda: setattr(machine, "slow_disk", False))

    def _full_disk(self, machine: ClusterMachine) -> None:
        machine.disk.capacity_bytes = machine.disk.used_bytes + self._rng.choice((0, 300, 5_000, 100_000))

        def room() -> None:
            machine.disk.capacity_bytes = 1 << 40

        self._later((200, 2_000), room)

    def _rot(self) -> None:
        """Flips a bit of a batch. The leader epoch is excluded: a slightly wrong epoch cannot be detected by a new replica."""
        rng = self._still
        machine = self._rotting = self._rotting or rng.choice(list(self._machines.values()))
        node = machine.node
        logs = [replica.log for replica in node.partitions.replicas() if replica.log.size] if node is not None else []
        if not logs:
            return
        log = rng.choice(logs)
        # Compaction leaves holes, so a base offset may point into one.
        places = [*range(8 if log.options.compacts else 0, 12), *range(16, 70)]
        # Beyond the recorded recovery point a start cannot distinguish rot from a torn tail, and truncates both.
        recorded = read_offsets(machine.disk.read_file(RECOVERY_POINTS)) if machine.disk.exists(RECOVERY_POINTS) else None
        end_offset = log.end_offset if log.options.write_caching else (recorded or {}).get(log.partition, 0)
        if end_offset <= log.start_offset:
            return
        offset = rng.randrange(log.start_offset, end_offset)
        with suppress(LogError):
            found = log.locate(offset, max_bytes=1, upto=log.end_offset)
            at = rng.choice(places)
            if found is not None and at < found.size:
                machine.rotten.add(log.partition)
                machine.disk.flip_bit(found.file.path, found.position + at, rng.randrange(8))
                self._world.note(f"bit rot: {log.partition} of {machine.broker_id}, byte {at} of the batch at {offset}")


def both(one: BrokerId, other: BrokerId) -> list[Way]:
    """Both directions of a link."""
    return [(one, other), (other, one)]

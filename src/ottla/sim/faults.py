"""Fault injection: every few hundred milliseconds one of the kinds chosen by the seed, until all faults are undone.

The seed selects a subset of kinds, so some histories have only crashes, some only a bad disk, some everything. Source: the nemesis
schedules of Jepsen.
"""

from collections.abc import Callable, Mapping

from ottla.sim.machine import Machine
from ottla.sim.network import Network
from ottla.sim.world import World

#: Faults of one broker and its network.
FAULT_KINDS = (
    "kill",
    "power cut",
    "stop",
    "pause",
    "broken connections",
    "slow network",
    "late requests",
    "damaged frames",
    "fsync fails",
    "full disk",
    "slow disk",
)


class Faults:
    """Injects faults. ``more`` has additional kinds of a history, each with its action."""

    def __init__(
        self, world: World, machine: Machine, network: Network, kinds: list[str], more: Mapping[str, Callable[[], None]] | None = None
    ) -> None:
        self._world = world
        self._machine = machine
        self._network = network
        self._kinds = kinds
        self._more = more or {}
        self._rng = world.rng("faults")
        #: Faults injected so far.
        self.count = 0
        self._over = False
        #: This kind of history has no sleeps.
        self.asleep_until_ms = 0

    def plan(self) -> None:
        """Schedules the next fault."""
        self._world.after(self._rng.randint(50, 900), self._happen)

    def _happen(self) -> None:
        if self._over:
            return
        kind = self._rng.choice(self._kinds)
        self.count += 1
        self._world.note(f"fault: {kind}")
        if kind in self._more:
            self._more[kind]()
        else:
            self._broker_fault(kind)
        self.plan()

    def _broker_fault(self, kind: str) -> None:
        machine, rng = self._machine, self._rng
        match kind:
            case "kill":
                machine.kill()
                self._restart_later()
            case "power cut":
                machine.power_cut()
                self._restart_later()
            case "stop":
                machine.stop()
                self._restart_later()
            case "pause":
                machine.pause(rng.choice((100, 1_000, 8_000)))
            case "broken connections":
                self._for_a_while(loss=rng.choice((0.02, 0.2)))
            case "slow network":
                self._for_a_while(slow=0.3)
            case "late requests":
                self._for_a_while(slow=0.3, loss=rng.choice((0.02, 0.2)), lateness=1.0)
            case "damaged frames":
                self._for_a_while(damage=rng.choice((0.01, 0.1)))
            case "fsync fails":
                machine.disk.fail("sync")
            case "slow disk":
                machine.slow_disk = True
                self._world.after(rng.randint(500, 3_000), self._fast_disk)
            case "full disk":
                machine.disk.capacity_bytes = machine.disk.used_bytes + rng.choice((0, 300, 5_000, 100_000))
                self._world.after(rng.randint(200, 2_000), self._room)
            case _:
                raise AssertionError(f"there is no fault {kind!r}")

    def _fast_disk(self) -> None:
        self._machine.slow_disk = False

    def _room(self) -> None:
        self._machine.disk.capacity_bytes = 1 << 40

    def _restart_later(self) -> None:
        def restart() -> None:
            if self._machine.node is None:
                self._machine.start()

        self._world.after(self._rng.choice((1, 50, 700)), restart)

    def _for_a_while(self, **rates: float) -> None:
        for rate, value in rates.items():
            setattr(self._network, rate, value)
        self._world.after(self._rng.randint(100, 1_500), lambda: self._calm(rates))

    def _calm(self, rates: Mapping[str, float]) -> None:
        for rate in rates:
            setattr(self._network, rate, 0.0)

    def heal(self) -> None:
        """Undoes all faults and injects no more."""
        self._over = True
        self._calm(dict.fromkeys(("loss", "slow", "damage", "lateness"), 0.0))
        self._machine.disk.fail("sync", times=0)
        self._room()
        self._fast_disk()
        self._world.note("healed")
        if self._machine.node is None:
            self._machine.start()

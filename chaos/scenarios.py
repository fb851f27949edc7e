"""The fault scenarios. Each one declares its requirements, and the time limit within which clients must be able to write again.

A broker that is dead or stopped keeps its leadership until its session with ZooKeeper ends: the limits are based on that. If
a leader becomes unreachable without closing its connections, clients detect it only by a request timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chaos.cluster import BROKERS, REPLICAS, Broker, Setup, until
from chaos.context import FAILOVER_S, PARTITIONS, REACTION_MS, RECOVERY_S, ScenarioContext
from chaos.load import REQUEST_MS, FirstAcknowledgement
from chaos.rotation import rotate

#: Time limit for writes to every partition after the links to the controller are cut.
CONTROLLER_CUT_MS = 15_000


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of fault."""

    name: str
    about: str
    run: Callable[[ScenarioContext, int], None]
    #: Default number of rounds.
    rounds: int
    networked: bool = False
    small_disk: bool = False
    brokers: int = BROKERS
    #: Time limit of a failover beyond session timeout and reaction time; None: no limit.
    beyond_ms: int | None = 0
    #: The leader leaves the ISR before it loses its leadership: replica.lag.time.max.ms counts instead of the session.
    lags: bool = False
    #: Absolute time limit, if it does not depend on the session timeout.
    at_most_ms: int | None = None
    #: Needs TLS and SASL.
    secured: bool = False

    def bound_ms(self, setup: Setup) -> int:
        if self.at_most_ms is not None:
            return self.at_most_ms
        if self.beyond_ms is None:
            return 0
        return (setup.lag_time_max_ms if self.lags else setup.session_timeout_ms) + REACTION_MS + self.beyond_ms


def kill_leaders(context: ScenarioContext, rounds: int) -> None:
    """Kill the leader of each partition in turn, and restart it after another broker has taken over."""
    for number in range(rounds):
        partition = number % PARTITIONS
        broker = context.leader(partition)
        context.failover(partition, broker.kill, f"kill -9 of broker {broker.number}, which led {partition}", leaves=broker)
        context.restart(broker)


def freeze_leaders(context: ScenarioContext, rounds: int) -> None:
    """Stop a leader (SIGSTOP) for longer than its session, then continue it."""
    for number in range(rounds):
        partition = number % PARTITIONS
        broker = context.leader(partition)
        context.failover(partition, broker.freeze, f"SIGSTOP of broker {broker.number}, which led {partition}", leaves=broker)
        time.sleep(context.random.uniform(0, context.session_s / 2))
        broker.freeze(frozen=False)
        context.await_recovery()


def freeze_shortly(context: ScenarioContext, rounds: int) -> None:
    """Stop leaders (SIGSTOP) for less than their session."""
    for number in range(rounds):
        partition = number % PARTITIONS
        broker = context.leader(partition)
        pause_s = context.session_s * context.random.uniform(0.2, 0.7)

        context.failover(partition, partial(_pause, broker, pause_s), f"SIGSTOP of broker {broker.number} for {pause_s:.1f} s")
        context.await_writes()
    context.await_recovery()


def _pause(broker: Broker, pause_s: float) -> None:
    broker.freeze()
    time.sleep(pause_s)
    broker.freeze(frozen=False)


def kill_controllers(context: ScenarioContext, rounds: int) -> None:
    """Kill the controller; a partition that it led must recover after the next controller's election."""
    for _ in range(rounds):
        broker = context.controller()
        led = context.led_by(broker)
        partition = context.random.choice(led or range(PARTITIONS))
        context.failover(partition, broker.kill, f"kill -9 of the controller, broker {broker.number}", leaves=broker if led else None)
        after = until(partial(_other, context, broker.number), "there is another controller", timeout_s=60)
        context.log(f"controller: now broker {after}")
        context.restart(broker)


def _other(context: ScenarioContext, than: int) -> int | None:
    found = context.cluster.controller()
    return found if found != than else None


def kill_zookeepers(context: ScenarioContext, rounds: int) -> None:
    """Kill one server of the ensemble after the other, its leader first; then all, for longer than the sessions last."""
    ensemble = context.cluster.ensemble
    assert ensemble is not None, "the scenario runs with an ensemble"
    for _ in range(rounds if len(ensemble.servers) > 1 else 0):
        leading = next((one for one in ensemble.servers if one.mode() == "leader"), ensemble.servers[0])
        follower = next(one for one in ensemble.servers if one is not leading)
        for server in (leading, follower):
            ensemble.kill(server)
            context.outcome.faults += 1
            context.await_writes()
            ensemble.spawn(server)
            ensemble.await_ready(server)
            context.await_writes()
    for silent_s in (0.5, context.session_s + 1.5):
        for server in ensemble.servers:
            ensemble.kill(server)
        time.sleep(silent_s)
        for server in ensemble.servers:
            ensemble.spawn(server)
        for server in ensemble.servers:
            ensemble.await_ready(server)
        context.failover(context.random.randrange(PARTITIONS), lambda: None, f"no ZooKeeper for {silent_s:.1f} s and its start")
        context.await_recovery()


def fill_disk(context: ScenarioContext, rounds: int) -> None:
    """Fill a broker's disk for a while: the partitions that it leads refuse writes, the ones that it follows continue without it."""
    broker = context.cluster.brokers[BROKERS]
    disk = broker.data_dir.parent
    for number in range(rounds):
        led = context.led_by(broker)
        follows = next(partition for partition in range(PARTITIONS) if partition not in led)
        filler = _fill(disk)
        try:
            what = f"the disk of broker {broker.number} is full; it leads {led} and follows {follows}"
            context.failover(follows, lambda: None, what)
            time.sleep(context.random.uniform(0.5, context.session_s))
            if number % 2:
                # It must also start without a free byte.
                broker.kill()
                broker.spawn()
                broker.await_ready()
        finally:
            filler.unlink()
        context.await_recovery()


def _fill(disk: Path) -> Path:
    """Fill a file system to the last byte."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    return filler


def cut_from_brokers(context: ScenarioContext, rounds: int) -> None:
    """A broker reaches ZooKeeper and clients, but no other broker; partitions that others lead must continue. A controller
    is fenced, and everything must work once it is reachable again; ``cut_to_controller`` measures that time.
    """
    network = context.cluster.network
    assert network is not None, "the scenario runs in network namespaces"
    for number in range(rounds):
        controller = context.controller()
        broker = controller if number % 2 else next(one for one in context.cluster.brokers.values() if one is not controller)
        led = context.led_by(broker)
        if broker is controller:
            _isolate(context, broker)
            context.outcome.faults += 1
            context.log(
                f"{context.outcome.scenario} {context.outcome.faults}: broker {broker.number}, the controller, is cut off from the others"
            )
        else:
            partition = next(one for one in range(PARTITIONS) if one not in led)
            context.failover(
                partition,
                partial(_isolate, context, broker),
                f"broker {broker.number} is cut off from the others; {partition} is led elsewhere",
            )
        time.sleep(context.session_s * 2)
        network.heal()
        context.await_recovery()


def _isolate(context: ScenarioContext, broker: Broker) -> None:
    """Cut a broker from all other brokers."""
    assert context.cluster.network is not None
    for other in context.cluster.brokers.values():
        if other is not broker:
            context.cluster.network.cut(broker.location, other.location)


def cut_to_controller(context: ScenarioContext, rounds: int) -> None:
    """The network drops all packets from the other brokers to the controller; the controller's own packets arrive. TCP needs
    acknowledgements, so no new request succeeds in either direction. ZooKeeper and clients reach all brokers. Measures the time until
    every partition has acknowledged a record that was sent after the cut, and prints the changes in ZooKeeper meanwhile.
    """
    network = context.cluster.network
    assert network is not None, "the scenario runs in network namespaces"
    for _ in range(rounds):
        controller = context.controller()
        for other in context.cluster.brokers.values():
            if other is not controller:
                network.cut(other.location, controller.location, one_way=True)
        watches = [context.journal.watch(partition) for partition in range(PARTITIONS)]
        context.outcome.faults += 1
        what = f"links to the controller, broker {controller.number}, are cut; it leads {context.led_by(controller)}"
        context.log(f"{context.outcome.scenario} {context.outcome.faults}: {what}")
        _log_changes(context, controller, watches)
        for watch in watches:
            took_ms = (watch.acknowledged_ns - watch.since_ns) / 1e6 if watch.happened.is_set() else FAILOVER_S * 1000
            context.outcome.failovers_ms.append(took_ms)
            context.log(f"{context.outcome.scenario}: partition {watch.partition} acknowledged a record after {took_ms:.0f} ms")
        network.heal()
        context.await_recovery()


def _log_changes(context: ScenarioContext, controller: Broker, watches: list[FirstAcknowledgement]) -> None:
    """Print each change of the controller and of a partition's state until every watch has its record, for FAILOVER_S at most."""
    cluster, topic = context.cluster, context.journal.topic
    began_s = time.monotonic()
    before: dict[object, object] = {}
    while not all(watch.happened.is_set() for watch in watches) and time.monotonic() < began_s + FAILOVER_S:
        seen: dict[object, object] = {"controller": cluster.controller()}
        seen |= {f"partition {number}": cluster.state(topic, number) for number in range(PARTITIONS)}
        took_ms = (time.monotonic() - began_s) * 1000
        for name, value in seen.items():
            # None: no controller is elected, or ZooKeeper did not answer.
            if value is not None and before.setdefault(name, value) != value:
                before[name] = value
                context.log(f"{context.outcome.scenario}: after {took_ms:.0f} ms {name} is {value}")
        if before["controller"] != controller.number and len(context.outcome.elections_ms) < context.outcome.faults:
            context.outcome.elections_ms.append(took_ms)
        time.sleep(0.02)


def cut_from_zookeeper(context: ScenarioContext, rounds: int) -> None:
    """A leader reaches brokers and clients, but not ZooKeeper."""
    network, zookeeper = context.cluster.network, context.cluster.zookeeper_location
    assert network is not None and zookeeper is not None, "the scenario runs in network namespaces"
    for number in range(rounds):
        partition = number % PARTITIONS
        broker = context.leader(partition)
        what = f"broker {broker.number}, which led {partition}, is cut off from ZooKeeper"
        context.failover(partition, partial(network.cut, broker.location, zookeeper), what, leaves=broker, serves_on=True)
        time.sleep(context.random.uniform(0, context.session_s))
        network.heal()
        context.await_recovery()


def unplug(context: ScenarioContext, rounds: int) -> None:
    """A leader loses all its links."""
    network = context.cluster.network
    assert network is not None, "the scenario runs in network namespaces"
    for number in range(rounds):
        partition = number % PARTITIONS
        broker = context.leader(partition)
        what = f"broker {broker.number}, which led {partition}, is unplugged"
        context.failover(partition, partial(network.unplug, broker.location), what, leaves=broker)
        time.sleep(context.random.uniform(0, context.session_s))
        network.heal()
        context.await_recovery()


def move_partitions(context: ScenarioContext, rounds: int) -> None:
    """Reassign a partition, and kill a broker meanwhile: the leader, a target broker, or the controller; or kill the
    leader just before. The reassignment must complete after the restart of that broker.
    """
    cluster, topic = context.cluster, context.journal.topic
    for number in range(rounds):
        partition = number % PARTITIONS
        before = cluster.replicas(topic, partition)
        newcomer = next(broker for broker in cluster.brokers if broker not in before)
        stays = context.random.sample(before, REPLICAS - 1)
        target = [newcomer, *stays] if number % 2 else [*stays, newcomer]
        move = partial(_move, context, partition, target)
        kind = ("leader", "newcomer", "controller", "leader first")[number % 4]
        killed = {"newcomer": cluster.brokers[newcomer], "controller": context.controller()}.get(kind, context.leader(partition))
        led = context.leader(partition) is killed
        what = f"{partition} moves from {before} to {target}, kill -9 of broker {killed.number} ({kind})"
        if kind == "leader first":
            context.failover(partition, killed.kill, what, leaves=killed)
            move()
        else:
            move()
            time.sleep(context.random.uniform(0, 0.3))
            # By now the partition may have moved and have another leader.
            context.failover(partition, killed.kill, what, leaves=killed if led else None)
        killed.spawn()
        killed.await_ready()
        until(partial(_has_moved, context, partition, target, move), f"{partition} has moved to {target}", timeout_s=RECOVERY_S)
        context.await_recovery()


def _move(context: ScenarioContext, partition: int, target: list[int]) -> None:
    context.cluster.request_reassignment(context.journal.topic, partition, target)


def _has_moved(context: ScenarioContext, partition: int, target: list[int], ask: Callable[[], None]) -> bool:
    """Whether the reassignment has completed; repeats a lost request."""
    found = context.cluster.replicas(context.journal.topic, partition)
    if found and not set(target) <= set(found):
        ask()
    return found == target


def restart_one_by_one(context: ScenarioContext, rounds: int) -> None:
    """Stop every broker with SIGTERM and restart it, one after the other."""
    for _ in range(rounds):
        for broker in context.cluster.brokers.values():
            led = context.led_by(broker)
            partition = led[0] if led else 0
            context.failover(partition, broker.stop, f"SIGTERM of broker {broker.number}, which led {led}")
            context.restart(broker)


def kill_all(context: ScenarioContext, rounds: int) -> None:
    """Kill every process at once, including ZooKeeper's servers; they restart in any order."""
    ensemble = context.cluster.ensemble
    assert ensemble is not None, "the scenario runs with an ensemble"
    for _ in range(rounds):
        brokers = list(context.cluster.brokers.values())
        context.random.shuffle(brokers)
        for broker in brokers:
            broker.kill()
        for server in ensemble.servers:
            ensemble.kill(server)
        for server in ensemble.servers:
            ensemble.spawn(server)
        for broker in brokers:
            broker.spawn()
            time.sleep(context.random.choice((0, 0, context.session_s)))
        for broker in brokers:
            broker.await_ready()
        context.failover(
            context.random.randrange(PARTITIONS), lambda: None, f"everything was killed, {[one.number for one in brokers]} came back"
        )
        context.await_recovery()


def storm(context: ScenarioContext, rounds: int) -> None:
    """Inject faults without waiting for recovery; several brokers may be down at once, or all of them, and
    servers of ZooKeeper too. With networks, links are also cut, in one direction or both.
    """
    network, ensemble = context.cluster.network, context.cluster.ensemble
    kinds: tuple[str, ...] = ("kill", "kill", "freeze", "freeze", "stop", "zookeeper")
    if network is not None:
        kinds = ("kill", "freeze", "stop", "cut", "cut", "cut one way", "unplug")
    down: dict[Broker, float] = {}
    for _ in range(rounds):
        time.sleep(context.random.uniform(0.2, 1.5) * context.session_s)
        now_s = time.monotonic()
        for broker in [one for one, due_s in down.items() if due_s < now_s]:
            del down[broker]
            _bring_back(broker)
        for server in ensemble.servers if ensemble is not None else ():
            if not server.alive and ensemble is not None:
                ensemble.spawn(server)
        if network is not None and context.random.random() < 0.3:
            network.heal()
        kind, broker = context.random.choice(kinds), context.random.choice(list(context.cluster.brokers.values()))
        if kind == "zookeeper" and ensemble is not None:
            ensemble.kill(context.random.choice(ensemble.servers))
        elif kind in ("cut", "cut one way", "unplug"):
            _break_network(context, broker, kind)
        elif broker in down:
            continue
        else:
            {"kill": broker.kill, "freeze": broker.freeze, "stop": broker.stop}[kind]()
            down[broker] = now_s + context.random.uniform(0, 2) * context.session_s
        context.outcome.faults += 1
        context.log(f"{context.outcome.scenario} {context.outcome.faults}: {kind}, broker {broker.number}; {len(down)} gone")
    if network is not None:
        network.heal()
    for broker in down:
        _bring_back(broker)


def _bring_back(broker: Broker) -> None:
    if broker.alive:
        broker.freeze(frozen=False)
    elif not broker.died:
        broker.spawn()


def _break_network(context: ScenarioContext, broker: Broker, kind: str) -> None:
    network, zookeeper = context.cluster.network, context.cluster.zookeeper_location
    assert network is not None and zookeeper is not None
    if kind == "unplug":
        network.unplug(broker.location)
        return
    others = [zookeeper, *(one.location for one in context.cluster.brokers.values() if one is not broker)]
    network.cut(broker.location, context.random.choice(others), one_way=kind == "cut one way")


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("kill", "leaders are killed and restarted", kill_leaders, 100),
        Scenario("freeze", "leaders are stopped for longer than their session", freeze_leaders, 3, beyond_ms=REQUEST_MS),
        Scenario("pause", "leaders are stopped for less than their session", freeze_shortly, 5, beyond_ms=None),
        Scenario("controller", "controllers are killed", kill_controllers, 5),
        Scenario("zookeeper", "ZooKeeper's servers are killed, one by one and all at once", kill_zookeepers, 1),
        Scenario("restart", "brokers are stopped in order, one by one", restart_one_by_one, 2),
        Scenario("move", "partitions move while brokers are killed", move_partitions, 12, brokers=REPLICAS + 1),
        Scenario("all", "everything is killed at once", kill_all, 3, beyond_ms=None),
        Scenario("storm", "kills and stops, several at once", storm, 30, beyond_ms=None),
        Scenario("network-storm", "the same, and links are cut", storm, 30, networked=True, beyond_ms=None),
        Scenario("disk", "a disk fills up", fill_disk, 2, small_disk=True, lags=True),
        Scenario("cut-brokers", "a broker is cut off from the others, not from ZooKeeper", cut_from_brokers, 2, networked=True, lags=True),
        Scenario(
            "cut-controller",
            "packets of other brokers do not reach the controller",
            cut_to_controller,
            2,
            networked=True,
            at_most_ms=CONTROLLER_CUT_MS,
        ),
        Scenario("cut-zookeeper", "a leader is cut off from ZooKeeper, not from brokers", cut_from_zookeeper, 2, networked=True),
        Scenario("rotate", "certificates and the password between brokers change", rotate, 2, secured=True),
        Scenario("unplug", "a leader is cut off from everybody", unplug, 2, networked=True, beyond_ms=REQUEST_MS),
    )
}

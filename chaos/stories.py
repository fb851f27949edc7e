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
from chaos.load import REQUEST_MS, Watch
from chaos.scene import FAILOVER_S, PARTITIONS, REACTION_MS, REST_S, Scene

#: Time limit for writes to every partition after the links to the controller are cut.
CONTROLLER_CUT_MS = 15_000


@dataclass(frozen=True, slots=True)
class Story:
    """One kind of fault."""

    name: str
    about: str
    run: Callable[[Scene, int], None]
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

    def bound_ms(self, setup: Setup) -> int:
        if self.at_most_ms is not None:
            return self.at_most_ms
        if self.beyond_ms is None:
            return 0
        return (setup.lag_time_max_ms if self.lags else setup.session_timeout_ms) + REACTION_MS + self.beyond_ms


def kill_leaders(scene: Scene, rounds: int) -> None:
    """Kill the leader of each partition in turn, and restart it after another broker has taken over."""
    for number in range(rounds):
        partition = number % PARTITIONS
        broker = scene.leader(partition)
        scene.failover(partition, broker.kill, f"kill -9 of broker {broker.number}, which led {partition}", leaves=broker)
        scene.revive(broker)


def freeze_leaders(scene: Scene, rounds: int) -> None:
    """Stop a leader (SIGSTOP) for longer than its session, then continue it."""
    for number in range(rounds):
        partition = number % PARTITIONS
        broker = scene.leader(partition)
        scene.failover(partition, broker.freeze, f"SIGSTOP of broker {broker.number}, which led {partition}", leaves=broker)
        time.sleep(scene.random.uniform(0, scene.session_s / 2))
        broker.freeze(frozen=False)
        scene.rest()


def freeze_shortly(scene: Scene, rounds: int) -> None:
    """Stop leaders (SIGSTOP) for less than their session."""
    for number in range(rounds):
        partition = number % PARTITIONS
        broker = scene.leader(partition)
        pause_s = scene.session_s * scene.random.uniform(0.2, 0.7)

        scene.failover(partition, partial(_pause, broker, pause_s), f"SIGSTOP of broker {broker.number} for {pause_s:.1f} s")
        scene.progress()
    scene.rest()


def _pause(broker: Broker, pause_s: float) -> None:
    broker.freeze()
    time.sleep(pause_s)
    broker.freeze(frozen=False)


def kill_controllers(scene: Scene, rounds: int) -> None:
    """Kill the controller; a partition that it led must recover after the next controller's election."""
    for _ in range(rounds):
        broker = scene.controller()
        led = scene.led_by(broker)
        partition = scene.random.choice(led or range(PARTITIONS))
        scene.failover(partition, broker.kill, f"kill -9 of the controller, broker {broker.number}", leaves=broker if led else None)
        after = until(partial(_other, scene, broker.number), "there is another controller", timeout_s=60)
        scene.say(f"controller: now broker {after}")
        scene.revive(broker)


def _other(scene: Scene, than: int) -> int | None:
    found = scene.cluster.controller()
    return found if found != than else None


def kill_zookeepers(scene: Scene, rounds: int) -> None:
    """Kill one server of the ensemble after the other, its leader first; then all, for longer than the sessions last."""
    ensemble = scene.cluster.ensemble
    assert ensemble is not None, "the story is told where there is an ensemble"
    for _ in range(rounds if len(ensemble.servers) > 1 else 0):
        leading = next((one for one in ensemble.servers if one.mode() == "leader"), ensemble.servers[0])
        follower = next(one for one in ensemble.servers if one is not leading)
        for server in (leading, follower):
            ensemble.kill(server)
            scene.outcome.faults += 1
            scene.progress()
            ensemble.spawn(server)
            ensemble.await_ready(server)
            scene.progress()
    for silent_s in (0.5, scene.session_s + 1.5):
        for server in ensemble.servers:
            ensemble.kill(server)
        time.sleep(silent_s)
        for server in ensemble.servers:
            ensemble.spawn(server)
        for server in ensemble.servers:
            ensemble.await_ready(server)
        scene.failover(scene.random.randrange(PARTITIONS), lambda: None, f"no ZooKeeper for {silent_s:.1f} s and its start")
        scene.rest()


def fill_disk(scene: Scene, rounds: int) -> None:
    """Fill a broker's disk for a while: the partitions that it leads refuse writes, the ones that it follows continue without it."""
    broker = scene.cluster.brokers[BROKERS]
    disk = broker.data_dir.parent
    for number in range(rounds):
        led = scene.led_by(broker)
        follows = next(partition for partition in range(PARTITIONS) if partition not in led)
        rest = _take_the_rest(disk)
        try:
            what = f"the disk of broker {broker.number} is full; it leads {led} and follows {follows}"
            scene.failover(follows, lambda: None, what)
            time.sleep(scene.random.uniform(0.5, scene.session_s))
            if number % 2:
                # It must also start without a free byte.
                broker.kill()
                broker.spawn()
                broker.await_ready()
        finally:
            rest.unlink()
        scene.rest()


def _take_the_rest(disk: Path) -> Path:
    """Fill a file system to the last byte."""
    rest = disk / "rest"
    with rest.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    return rest


def cut_from_brokers(scene: Scene, rounds: int) -> None:
    """A broker reaches ZooKeeper and clients, but no other broker; partitions that others lead must continue. A controller
    is fenced, and everything must work once it is reachable again; ``cut_to_controller`` measures that time.
    """
    network = scene.cluster.network
    assert network is not None, "the story is told in networks"
    for number in range(rounds):
        controller = scene.controller()
        broker = controller if number % 2 else next(one for one in scene.cluster.brokers.values() if one is not controller)
        led = scene.led_by(broker)
        if broker is controller:
            _isolate(scene, broker)
            scene.outcome.faults += 1
            scene.say(f"{scene.outcome.story} {scene.outcome.faults}: broker {broker.number}, the controller, is cut off from the others")
        else:
            partition = next(one for one in range(PARTITIONS) if one not in led)
            scene.failover(
                partition,
                partial(_isolate, scene, broker),
                f"broker {broker.number} is cut off from the others; {partition} is led elsewhere",
            )
        time.sleep(scene.session_s * 2)
        network.heal()
        scene.rest()


def _isolate(scene: Scene, broker: Broker) -> None:
    """Cut a broker from all other brokers."""
    assert scene.cluster.network is not None
    for other in scene.cluster.brokers.values():
        if other is not broker:
            scene.cluster.network.cut(broker.place, other.place)


def cut_to_controller(scene: Scene, rounds: int) -> None:
    """The network drops all packets from the other brokers to the controller; the controller's own packets arrive. TCP needs
    acknowledgements, so no new request succeeds in either direction. ZooKeeper and clients reach all brokers. Measures the time until
    every partition has acknowledged a record that was sent after the cut, and prints the changes in ZooKeeper meanwhile.
    """
    network = scene.cluster.network
    assert network is not None, "the story runs in network namespaces"
    for _ in range(rounds):
        controller = scene.controller()
        for other in scene.cluster.brokers.values():
            if other is not controller:
                network.cut(other.place, controller.place, one_way=True)
        watches = [scene.journal.watch(partition) for partition in range(PARTITIONS)]
        scene.outcome.faults += 1
        what = f"links to the controller, broker {controller.number}, are cut; it leads {scene.led_by(controller)}"
        scene.say(f"{scene.outcome.story} {scene.outcome.faults}: {what}")
        _say_changes(scene, controller, watches)
        for watch in watches:
            took_ms = (watch.acknowledged_ns - watch.since_ns) / 1e6 if watch.happened.is_set() else FAILOVER_S * 1000
            scene.outcome.failovers_ms.append(took_ms)
            scene.say(f"{scene.outcome.story}: partition {watch.partition} acknowledged a record after {took_ms:.0f} ms")
        network.heal()
        scene.rest()


def _say_changes(scene: Scene, controller: Broker, watches: list[Watch]) -> None:
    """Print each change of the controller and of a partition's state until every watch has its record, for FAILOVER_S at most."""
    cluster, topic = scene.cluster, scene.journal.topic
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
                scene.say(f"{scene.outcome.story}: after {took_ms:.0f} ms {name} is {value}")
        if before["controller"] != controller.number and len(scene.outcome.elections_ms) < scene.outcome.faults:
            scene.outcome.elections_ms.append(took_ms)
        time.sleep(0.02)


def cut_from_zookeeper(scene: Scene, rounds: int) -> None:
    """A leader reaches brokers and clients, but not ZooKeeper."""
    network, zookeeper = scene.cluster.network, scene.cluster.zookeeper_place
    assert network is not None and zookeeper is not None, "the story is told in networks"
    for number in range(rounds):
        partition = number % PARTITIONS
        broker = scene.leader(partition)
        what = f"broker {broker.number}, which led {partition}, is cut off from ZooKeeper"
        scene.failover(partition, partial(network.cut, broker.place, zookeeper), what, leaves=broker, serves_on=True)
        time.sleep(scene.random.uniform(0, scene.session_s))
        network.heal()
        scene.rest()


def unplug(scene: Scene, rounds: int) -> None:
    """A leader loses all its links."""
    network = scene.cluster.network
    assert network is not None, "the story is told in networks"
    for number in range(rounds):
        partition = number % PARTITIONS
        broker = scene.leader(partition)
        what = f"broker {broker.number}, which led {partition}, is unplugged"
        scene.failover(partition, partial(network.unplug, broker.place), what, leaves=broker)
        time.sleep(scene.random.uniform(0, scene.session_s))
        network.heal()
        scene.rest()


def move_partitions(scene: Scene, rounds: int) -> None:
    """Reassign a partition, and kill a broker meanwhile: the leader, a target broker, or the controller; or kill the
    leader just before. The reassignment must complete after the restart of that broker.
    """
    cluster, topic = scene.cluster, scene.journal.topic
    for number in range(rounds):
        partition = number % PARTITIONS
        before = cluster.replicas(topic, partition)
        newcomer = next(broker for broker in cluster.brokers if broker not in before)
        stays = scene.random.sample(before, REPLICAS - 1)
        target = [newcomer, *stays] if number % 2 else [*stays, newcomer]
        move = partial(_move, scene, partition, target)
        kind = ("leader", "newcomer", "controller", "leader first")[number % 4]
        victim = {"newcomer": cluster.brokers[newcomer], "controller": scene.controller()}.get(kind, scene.leader(partition))
        led = scene.leader(partition) is victim
        what = f"{partition} moves from {before} to {target}, kill -9 of broker {victim.number} ({kind})"
        if kind == "leader first":
            scene.failover(partition, victim.kill, what, leaves=victim)
            move()
        else:
            move()
            time.sleep(scene.random.uniform(0, 0.3))
            # By now the partition may have moved and have another leader.
            scene.failover(partition, victim.kill, what, leaves=victim if led else None)
        victim.spawn()
        victim.await_ready()
        until(partial(_has_moved, scene, partition, target, move), f"{partition} has moved to {target}", timeout_s=REST_S)
        scene.rest()


def _move(scene: Scene, partition: int, target: list[int]) -> None:
    scene.cluster.ask_to_move(scene.journal.topic, partition, target)


def _has_moved(scene: Scene, partition: int, target: list[int], ask: Callable[[], None]) -> bool:
    """Whether the reassignment has completed; repeats a lost request."""
    found = scene.cluster.replicas(scene.journal.topic, partition)
    if found and not set(target) <= set(found):
        ask()
    return found == target


def restart_one_by_one(scene: Scene, rounds: int) -> None:
    """Stop every broker with SIGTERM and restart it, one after the other."""
    for _ in range(rounds):
        for broker in scene.cluster.brokers.values():
            led = scene.led_by(broker)
            partition = led[0] if led else 0
            scene.failover(partition, broker.stop, f"SIGTERM of broker {broker.number}, which led {led}")
            scene.revive(broker)


def kill_all(scene: Scene, rounds: int) -> None:
    """Kill every process at once, including ZooKeeper's servers; they restart in any order."""
    ensemble = scene.cluster.ensemble
    assert ensemble is not None, "the story is told where there is an ensemble"
    for _ in range(rounds):
        brokers = list(scene.cluster.brokers.values())
        scene.random.shuffle(brokers)
        for broker in brokers:
            broker.kill()
        for server in ensemble.servers:
            ensemble.kill(server)
        for server in ensemble.servers:
            ensemble.spawn(server)
        for broker in brokers:
            broker.spawn()
            time.sleep(scene.random.choice((0, 0, scene.session_s)))
        for broker in brokers:
            broker.await_ready()
        scene.failover(
            scene.random.randrange(PARTITIONS), lambda: None, f"everything was killed, {[one.number for one in brokers]} came back"
        )
        scene.rest()


def storm(scene: Scene, rounds: int) -> None:
    """Inject faults without waiting for recovery; several brokers may be down at once, or all of them, and
    servers of ZooKeeper too. With networks, links are also cut, in one direction or both.
    """
    network, ensemble = scene.cluster.network, scene.cluster.ensemble
    kinds: tuple[str, ...] = ("kill", "kill", "freeze", "freeze", "stop", "zookeeper")
    if network is not None:
        kinds = ("kill", "freeze", "stop", "cut", "cut", "cut one way", "unplug")
    down: dict[Broker, float] = {}
    for _ in range(rounds):
        time.sleep(scene.random.uniform(0.2, 1.5) * scene.session_s)
        now_s = time.monotonic()
        for broker in [one for one, due_s in down.items() if due_s < now_s]:
            del down[broker]
            _bring_back(broker)
        for server in ensemble.servers if ensemble is not None else ():
            if not server.alive and ensemble is not None:
                ensemble.spawn(server)
        if network is not None and scene.random.random() < 0.3:
            network.heal()
        kind, broker = scene.random.choice(kinds), scene.random.choice(list(scene.cluster.brokers.values()))
        if kind == "zookeeper" and ensemble is not None:
            ensemble.kill(scene.random.choice(ensemble.servers))
        elif kind in ("cut", "cut one way", "unplug"):
            _break_network(scene, broker, kind)
        elif broker in down:
            continue
        else:
            {"kill": broker.kill, "freeze": broker.freeze, "stop": broker.stop}[kind]()
            down[broker] = now_s + scene.random.uniform(0, 2) * scene.session_s
        scene.outcome.faults += 1
        scene.say(f"{scene.outcome.story} {scene.outcome.faults}: {kind}, broker {broker.number}; {len(down)} gone")
    if network is not None:
        network.heal()
    for broker in down:
        _bring_back(broker)


def _bring_back(broker: Broker) -> None:
    if broker.alive:
        broker.freeze(frozen=False)
    elif not broker.died:
        broker.spawn()


def _break_network(scene: Scene, broker: Broker, kind: str) -> None:
    network, zookeeper = scene.cluster.network, scene.cluster.zookeeper_place
    assert network is not None and zookeeper is not None
    if kind == "unplug":
        network.unplug(broker.place)
        return
    others = [zookeeper, *(one.place for one in scene.cluster.brokers.values() if one is not broker)]
    network.cut(broker.place, scene.random.choice(others), one_way=kind == "cut one way")


STORIES = {
    story.name: story
    for story in (
        Story("kill", "leaders are killed and come back", kill_leaders, 100),
        Story("freeze", "leaders stand still for longer than their session", freeze_leaders, 3, beyond_ms=REQUEST_MS),
        Story("pause", "leaders stand still for less than their session", freeze_shortly, 5, beyond_ms=None),
        Story("controller", "controllers are killed", kill_controllers, 5),
        Story("zookeeper", "ZooKeeper's servers are killed, one by one and all at once", kill_zookeepers, 1),
        Story("restart", "brokers are stopped in order, one by one", restart_one_by_one, 2),
        Story("move", "partitions move while brokers are killed", move_partitions, 12, brokers=REPLICAS + 1),
        Story("all", "everything is killed at once", kill_all, 3, beyond_ms=None),
        Story("storm", "kills and stops, several at once", storm, 30, beyond_ms=None),
        Story("network-storm", "the same, and links are cut", storm, 30, networked=True, beyond_ms=None),
        Story("disk", "a disk fills up", fill_disk, 2, small_disk=True, lags=True),
        Story("cut-brokers", "a broker is cut off from the others, not from ZooKeeper", cut_from_brokers, 2, networked=True, lags=True),
        Story(
            "cut-controller",
            "packets of other brokers do not reach the controller",
            cut_to_controller,
            2,
            networked=True,
            at_most_ms=CONTROLLER_CUT_MS,
        ),
        Story("cut-zookeeper", "a leader is cut off from ZooKeeper, not from brokers", cut_from_zookeeper, 2, networked=True),
        Story("unplug", "a leader is cut off from everybody", unplug, 2, networked=True, beyond_ms=REQUEST_MS),
    )
}

"""The cluster under test: brokers and a ZooKeeper ensemble, each a process, and the state in ZooKeeper."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

import ottla
from chaos.namespaces import Location, Network, small_disk
from chaos.security import ADMIN, BrokerSecurity, ClusterSecurity, Connection
from ottla.server.zookeeper_ensemble import Ensemble
from ottla.spark.java import java_home

ROOT = Path(__file__).resolve().parent.parent
BROKERS = 3
#: Replicas of each partition.
REPLICAS = 3
#: The cluster's path in ZooKeeper.
CHROOT = "/chaos"
READY = re.compile(r"^ottla: (?:zookeeper )?ready on (\S+)$", re.MULTILINE)
READY_S = 40.0
#: ZooKeeper's port with TLS, in a network namespace.
SECURE_PORT = 2281
#: Space for a run's records and the index files of its topics; a scenario fills the rest.
DISK_BYTES = 96 << 20
RESERVE_BYTES = 8 << 20
T = TypeVar("T")


class ConditionTimeout(AssertionError):
    """A condition did not become true in time."""


def until(true: Callable[[], T | None], what: str, *, timeout_s: float) -> T:
    """Wait until a function returns a true value, and return it. Raises: ConditionTimeout."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := true()):
        if time.monotonic() > deadline_s:
            raise ConditionTimeout(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.02)
    return found


class Process:
    """A program in a network location. Restarts append to the same output file. Signals go to its own pid only."""

    def __init__(self, location: Location, arguments: list[str], output: Path, *, module: str = "ottla") -> None:
        self.location = location
        self.output = output
        self._command = [*location.prefix, sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = 0
        #: Whether it was asked to end.
        self._ended = True

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def died(self) -> bool:
        """Whether it ended without a request."""
        return not self._ended and not self.alive

    def spawn(self) -> None:
        """Start the process without waiting."""
        assert not self.alive, "one life at a time"
        self._ended = False
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
        self._begun = self.output.stat().st_size if self.output.exists() else 0
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": path}
            )

    def output_text(self) -> str:
        """Output since the last start."""
        with self.output.open("rb") as output:
            output.seek(self._begun)
            return output.read().decode(errors="replace")

    def await_ready(self) -> str:
        """Return the address of the ready line. Raises: ConditionTimeout."""

        def ready() -> str | None:
            found = READY.search(self.output_text())
            return found[1] if found is not None else "" if self.died else None

        deadline_s = time.monotonic() + READY_S
        while (where := ready()) is None and time.monotonic() < deadline_s:
            time.sleep(0.02)
        if not where:
            raise ConditionTimeout(f"not ready within {READY_S:.0f} s; {self.output} ends with: {self.output_text()[-1000:]}")
        return where

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._ended = self._ended or self.alive
            self._process.kill()
            self._process.wait()

    def freeze(self, *, frozen: bool = True) -> None:
        os.kill(self.pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def stop(self, *, timeout_s: float = 30.0) -> None:
        """SIGTERM. Raises: ConditionTimeout."""
        assert self._process is not None, "it was started"
        self._ended = self._ended or self.alive
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ConditionTimeout(f"not ended within {timeout_s:.0f} s of SIGTERM: {self.output}") from None


class Broker(Process):
    """`ottla serve`, at the same address after each restart."""

    def __init__(
        self,
        number: int,
        location: Location,
        data_dir: Path,
        connect: str,
        port: int,
        settings: Mapping[str, str],
        security: ClusterSecurity | None = None,
    ) -> None:
        self.number = number
        self.data_dir = data_dir
        self.address = f"{location.address}:{port}"
        arguments = ["serve", "--data-dir", str(data_dir), "--zookeeper", connect, "--broker-id", str(number)]
        #: None: one listener with plaintext.
        self.security: BrokerSecurity | None = None
        if security is None:
            arguments += ["--listen", self.address]
        else:
            brokers = f"{location.address}:{port + 1 if location.prefix else free_port()}"
            self.security = BrokerSecurity(security, number, self.address, brokers)
            arguments += self.security.arguments()
        for name, value in settings.items():
            arguments += ["--set", f"{name}={value}"]
        super().__init__(location, arguments, data_dir.parent / f"broker-{number}.output")

    def spawn(self) -> None:
        """Start the process without waiting."""
        if self.security is not None:
            self.security.write()
        super().spawn()


@dataclass(frozen=True, slots=True)
class Setup:
    """Configuration of a cluster."""

    session_timeout_ms: int = 6_000
    zookeepers: int = 3
    #: One more than a partition has replicas, where partitions are moved.
    brokers: int = BROKERS
    #: Additional settings of the brokers; they override the defaults of a run.
    extra: tuple[tuple[str, str], ...] = ()
    #: Records that each producer sends to each partition at a time.
    burst: int = 1
    #: Between two bursts of a producer.
    pause_ms: int = 10
    #: Each broker, and ZooKeeper, in its own network namespace.
    networked: bool = False
    #: The last broker's data directory is a small file system.
    small_disk: bool = False
    #: TLS and SASL on all connections, and access rules.
    secured: bool = False

    @property
    def lag_time_max_ms(self) -> int:
        """A follower that is behind for this long leaves the ISR."""
        return self.session_timeout_ms + 1_000

    def settings(self) -> dict[str, str]:
        return {
            "zookeeper.session.timeout.ms": str(self.session_timeout_ms),
            "zookeeper.connection.timeout.ms": "30000",
            "replica.lag.time.max.ms": str(self.lag_time_max_ms),
            "default.replication.factor": str(REPLICAS),
            "min.insync.replicas": "2",
            "offsets.topic.num.partitions": "3",
            "group.initial.rebalance.delay.ms": "0",
            "ottla.disk.reserve.bytes": str(RESERVE_BYTES),
            "auto.create.topics.enable": "false",
            # Otherwise the broker with the full disk could become leader of partitions that others must continue to lead.
            "auto.leader.rebalance.enable": str(not self.small_disk).lower(),
            **dict(self.extra),
        }


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The partition's state in ZooKeeper."""

    leader: int
    epoch: int
    isr: frozenset[int]


class Cluster:
    """Brokers and an ensemble; created by ``running``."""

    def __init__(
        self,
        setup: Setup,
        brokers: list[Broker],
        connect: str,
        ensemble: Ensemble | None,
        network: Network | None,
        security: ClusterSecurity | None,
    ) -> None:
        self.setup = setup
        self.security = security
        self.brokers = {broker.number: broker for broker in brokers}
        #: None where ZooKeeper is in its own network namespace and is never killed.
        self.ensemble = ensemble
        self.network = network
        self.zookeeper_location: Location | None = None
        self.bootstrap = ",".join(broker.address for broker in brokers)
        #: How clients connect, and how administrators do.
        self.clients = Connection(self.bootstrap) if security is None else security.connection(self.bootstrap)
        self.administrators = Connection(self.bootstrap) if security is None else security.connection(self.bootstrap, ADMIN)
        self._store = KazooClient(hosts=connect, timeout=10.0, logger=_silent())

    def start(self) -> None:
        self._store.start(timeout=30)
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(Broker.spawn, self.brokers.values()))
        for broker in self.brokers.values():
            broker.await_ready()
        if self.security is not None:
            with self.admin() as admin:
                self.security.add_rules(admin)

    def admin(self) -> ottla.Admin:
        return ottla.Admin(**self.administrators.ottla())

    def stop(self) -> None:
        for broker in self.brokers.values():
            if broker.alive:
                broker.freeze(frozen=False)
                broker.kill()
        with contextlib.suppress(KazooException, KazooTimeoutError):
            self._store.stop()
            self._store.close()

    def died(self) -> list[str]:
        """Last output of brokers that ended without a request."""
        return [f"broker {one.number} ended by itself: {one.output_text()[-1000:].strip()}" for one in self.brokers.values() if one.died]

    # Cluster state.

    def state(self, topic: str, partition: int) -> PartitionState | None:
        found = self._read(f"/brokers/topics/{topic}/partitions/{partition}/state")
        return PartitionState(found["leader"], found["leader_epoch"], frozenset(found["isr"])) if found else None

    def controller(self) -> int | None:
        found = self._read("/controller")
        return found["brokerid"] if found else None

    def leader(self, topic: str, partition: int) -> Broker:
        """Wait for a leader that runs, and return it. Raises: ConditionTimeout."""

        def led() -> Broker | None:
            state = self.state(topic, partition)
            broker = self.brokers.get(state.leader) if state is not None else None
            return broker if broker is not None and broker.alive else None

        return until(led, f"{topic}-{partition} has a leader", timeout_s=60)

    def in_sync(self, topic: str, partitions: int) -> bool:
        """Whether all replicas of all partitions are in sync."""
        states = [self.state(topic, partition) for partition in range(partitions)]
        return all(state is not None and len(state.isr) == REPLICAS and state.leader in state.isr for state in states)

    def create(self, topic: str, partitions: int, **configs: str) -> None:
        with self.admin() as admin:
            admin.create_topic(ottla.NewTopic(topic, partitions, REPLICAS, configs={**configs}), timeout_ms=30_000)
        until(lambda: self.in_sync(topic, partitions), f"{topic} is led and in sync", timeout_s=30)

    def copies(self, topic: str, partition: int) -> list[bytes]:
        """Content of each replica's log files without preallocated space. A broker that was down when a partition
        moved away keeps its old copy, which is not included.
        """
        holders = [self.brokers[number] for number in self.replicas(topic, partition)]
        directories = [broker.data_dir.glob(f"**/{topic}-{partition}") for broker in holders]
        return [
            b"".join(path.read_bytes().rstrip(b"\0") for directory in found for path in sorted(directory.glob("*.log")))
            for found in directories
        ]

    def replicas(self, topic: str, partition: int) -> list[int]:
        """The assignment; during a reassignment it includes the added and removed replicas."""
        found = self._read(f"/brokers/topics/{topic}")
        return [int(broker) for broker in found["partitions"][str(partition)]] if found else []

    def request_reassignment(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Request a reassignment. The request may be lost; ``replicas`` shows its effect."""
        with contextlib.suppress(ottla.KafkaError), self.admin() as admin:
            admin.alter_partition_reassignments({(topic, partition): list(replicas)}, timeout_ms=5_000)

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            return json.loads(self._store.get_async(CHROOT + path).get(timeout=2.0)[0])  # type: ignore[no-any-return]
        except (KazooException, KazooTimeoutError):
            return None


@contextlib.contextmanager
def running(setup: Setup, directory: Path) -> Iterator[Cluster]:
    """Start a cluster, and end all its processes at exit. Raises: NotPermitted, CannotStart, NoJava, ConditionTimeout."""
    with contextlib.ExitStack() as ends:
        network = Network() if setup.networked else None
        if network is not None:
            ends.callback(network.close)
        security = ClusterSecurity(directory / "security") if setup.secured else None
        here = network.location("zookeeper", 9) if network is not None else Location("here")
        zookeeper = _zookeeper(setup, directory / "zookeeper", here, security, ends)
        brokers = []
        for number in range(1, setup.brokers + 1):
            location = network.location(f"broker {number}", number) if network is not None else Location(f"broker {number}")
            home = directory / f"broker-{number}"
            if setup.small_disk and number == BROKERS:
                home = ends.enter_context(small_disk(home, DISK_BYTES))
            port = 9092 if network is not None else free_port()
            brokers.append(Broker(number, location, home / "data", zookeeper.brokers + CHROOT, port, setup.settings(), security))
            brokers[-1].output = directory / f"broker-{number}.output"
        cluster = Cluster(setup, brokers, zookeeper.run, zookeeper.ensemble, network, security)
        cluster.zookeeper_location = here
        ends.callback(cluster.stop)
        cluster.start()
        yield cluster


@dataclass(frozen=True, slots=True)
class ZooKeeper:
    """The addresses of ZooKeeper, for brokers and for the run itself. ``ensemble``: None where it is in its own network namespace."""

    brokers: str
    run: str
    ensemble: Ensemble | None = None


def _zookeeper(setup: Setup, directory: Path, here: Location, security: ClusterSecurity | None, ends: contextlib.ExitStack) -> ZooKeeper:
    """Start ZooKeeper. Raises: CannotStart, NoJava, ConditionTimeout."""
    if not setup.networked:
        ports = {number: free_port() for number in range(1, setup.zookeepers + 1)} if security is not None else {}

        def settings_of(number: int) -> dict[str, str]:
            return security.zookeeper_settings(ports[number], ensemble=len(ports) > 1) if security is not None else {}

        ensemble = Ensemble(directory, java_home(needed_by="ZooKeeper"), nodes=setup.zookeepers, settings_of=settings_of)
        ends.callback(ensemble.stop)
        ensemble.start()
        secure = ",".join(f"127.0.0.1:{port}" for port in ports.values())
        return ZooKeeper(secure or ensemble.connect, ensemble.connect, ensemble)
    address, module = f"{here.address}:2181", "ottla"
    arguments = ["zookeeper", "--listen", address, "--data-dir", str(directory)]
    if security is not None:
        module = "chaos.secure_zookeeper"
        arguments = [address, str(directory), json.dumps(security.zookeeper_settings(SECURE_PORT, ensemble=False))]
    server = Process(here, arguments, directory.with_name("zookeeper.output"), module=module)
    server.spawn()
    ends.callback(server.stop)
    connect = server.await_ready()
    return ZooKeeper(f"{here.address}:{SECURE_PORT}" if security is not None else connect, connect)


def free_port() -> int:
    """Return an unused loopback port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _silent() -> Any:
    log = logging.getLogger("chaos.zookeeper")
    log.setLevel(logging.CRITICAL)
    return log

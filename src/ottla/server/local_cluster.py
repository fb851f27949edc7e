"""A cluster of several processes on one machine: starts, finds and stops ZooKeeper and brokers.

::

    DIR/.lock                     held by a command while it starts or stops a process
    DIR/cluster.json              addresses and settings of the cluster
    DIR/zookeeper/                data of the ZooKeeper servers
    DIR/broker-N/                 data of broker N
    DIR/NAME.pid, DIR/NAME.log    of each process (``daemon.py``)
"""

import errno
import os
import random
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec

from ottla.base.options import ConfigError
from ottla.broker.metadata.configs import Settings
from ottla.server.addresses import Address, address_text, parse_address
from ottla.server.daemon import Daemon
from ottla.server.data_directory import LOCK, CannotStart
from ottla.server.listeners import ANYWHERE
from ottla.server.server_properties import accepted_settings

SPEC = "cluster.json"
PROFILE = "local"
#: Path of the cluster's nodes in ZooKeeper.
CHROOT = "/ottla"
#: How long a process may take to start: a broker that recovers logs takes longest.
READY_S = 120.0
#: How long a broker may take for its controlled shutdown and clean stop; then it is killed.
STOP_S = 90.0
#: Settings that are set for each broker.
PER_BROKER = ("broker.id", "node.id", "listeners", "advertised.listeners", "log.dir", "log.dirs", "zookeeper.connect")
#: Range of ports to search for consecutive free ones, and number of attempts.
PORTS = (20_000, 32_000)
ATTEMPTS_MAX = 50


class ClusterSpec(msgspec.Struct):
    """Content of cluster.json. Addresses are ``HOST:PORT``; the ZooKeeper servers use consecutive ports from ``zookeeper`` on."""

    zookeeper: str
    zookeeper_nodes: int
    #: By broker id.
    brokers: dict[int, str]
    settings: dict[str, str] = {}
    #: Name of the profile that `ottla cluster up` adds.
    profile: str = PROFILE


class ClusterRequest(msgspec.Struct):
    """Requested changes of a cluster. None keeps the present value, or takes the default of a new cluster."""

    brokers: int | None = None
    zookeeper_nodes: int | None = None
    listen: str | None = None
    zookeeper_listen: str | None = None
    settings: Mapping[str, str] = {}
    profile: str | None = None


class LocalCluster:
    """The cluster of one directory."""

    def __init__(self, directory: Path, spec: ClusterSpec) -> None:
        self.directory = directory
        self.spec = spec
        connect = ",".join(address_text(address) for address in consecutive(spec.zookeeper, spec.zookeeper_nodes))
        self.zookeeper = Daemon(
            "zookeeper",
            directory / "zookeeper",
            ["zookeeper", "--nodes", str(spec.zookeeper_nodes), "--listen", spec.zookeeper, "--data-dir", str(directory / "zookeeper")],
            ready="ottla: zookeeper ready on ",
        )
        settings = [text for pair in spec.settings.items() for text in ("--set", "=".join(pair))]
        self.brokers = {
            number: Daemon(
                f"broker {number}",
                directory / f"broker-{number}",
                ["serve", "--zookeeper", connect + CHROOT, "--broker-id", str(number), "--listen", listen,
                 "--data-dir", str(directory / f"broker-{number}"), "--log-file", str(directory / f"broker-{number}.log"), *settings],
                ready="ottla: ready on ",
            )
            for number, listen in sorted(spec.brokers.items())
        }  # fmt: skip

    @classmethod
    def load(cls, directory: Path) -> Self:
        """The cluster of a directory. Raises: CannotStart when there is none."""
        directory = directory.absolute()
        path = directory / SPEC
        try:
            return cls(directory, msgspec.json.decode(path.read_bytes(), type=ClusterSpec))
        except FileNotFoundError:
            raise CannotStart(f"no cluster was started in {directory}: start one with ottla cluster up, or set --data-dir") from None
        except (OSError, msgspec.DecodeError) as error:
            raise CannotStart(f"cannot read {path}: {error}") from None

    @classmethod
    def create_or_change(cls, directory: Path, request: ClusterRequest) -> Self:
        """Creates the cluster of a directory or changes its cluster.json. Starts nothing. Raises: ConfigError, CannotStart."""
        directory = directory.absolute()
        for name in request.settings:
            if name in PER_BROKER:
                raise ConfigError("--set", f"{name} is set for each broker automatically; leave it out")
        exists = (directory / SPEC).exists()
        if not exists and directory.is_dir() and (others := {path.name for path in directory.iterdir()} - {LOCK}):
            raise CannotStart(f"{directory} holds other files ({min(others)}); choose another --data-dir")
        spec = _changed(cls.load(directory).spec, request, directory) if exists else _created(request)
        # Refuses settings that no broker accepts before they are written.
        Settings(accepted_settings(spec.settings, typed=spec.settings).texts)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            temporary = directory / f"{SPEC}.new"
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n")
            os.replace(temporary, directory / SPEC)
        except OSError as error:
            raise CannotStart(f"cannot write to {directory}: {error.strerror}") from None
        return cls(directory, spec)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.spec.brokers.values())

    def zookeeper_addresses(self) -> list[Address]:
        return consecutive(self.spec.zookeeper, self.spec.zookeeper_nodes)

    def start(self) -> list[Daemon]:
        """Starts the processes that do not run, ZooKeeper first; returns them when all serve. Raises: CannotStart."""
        started: list[Daemon] = []
        deadline_s = time.monotonic() + READY_S
        for processes in ([self.zookeeper], list(self.brokers.values())):
            missing = [process for process in processes if process.pid is None]
            for process in missing:
                process.spawn()
                started.append(process)
            for process in missing:
                process.await_ready(deadline_s)
        return started


def consecutive(first: str, count: int) -> list[Address]:
    """Addresses on consecutive ports."""
    host, port = parse_address(first, name="--listen")
    return [(host, port + number) for number in range(count)]


def _created(request: ClusterRequest) -> ClusterSpec:
    """A new cluster. Raises: ConfigError, CannotStart."""
    brokers, nodes = request.brokers or 3, request.zookeeper_nodes or 1
    host, port = parse_address(request.listen or "127.0.0.1:9092", name="--listen")
    near = _zookeeper_port(port, brokers, nodes)
    inner, inner_port = parse_address(request.zookeeper_listen or f"127.0.0.1:{near}", name="--zookeeper-listen")
    if host in ANYWHERE or inner in ANYWHERE:
        raise ConfigError("--listen", "expected the address of this machine at which clients and brokers reach it")
    if max(port + brokers, inner_port + nodes) > 65536:
        raise ConfigError("--listen", f"{brokers} brokers from port {port} on need ports above 65535")
    first = port or free_ports(host, brokers)
    return ClusterSpec(
        zookeeper=address_text((inner, inner_port or free_ports(inner, nodes))),
        zookeeper_nodes=nodes,
        brokers={number: address_text((host, first + number - 1)) for number in range(1, brokers + 1)},
        settings=dict(request.settings),
        profile=request.profile or PROFILE,
    )


def _zookeeper_port(port: int, brokers: int, nodes: int) -> int:
    """As far from ZooKeeper's usual port as the brokers are from theirs, so that two clusters do not meet; 0 for a free port."""
    near = 2181 + port - 9092
    taken = port <= near + nodes - 1 and near <= port + brokers - 1
    return near if port and near >= 1024 and near + nodes <= 65536 and not taken else 0


def _changed(spec: ClusterSpec, request: ClusterRequest, directory: Path) -> ClusterSpec:
    """The existing cluster with the requested brokers and settings. Raises: ConfigError, CannotStart."""
    first = next(iter(spec.brokers.values()))
    for option, requested, present in (
        ("--zookeeper-nodes", request.zookeeper_nodes, spec.zookeeper_nodes),
        ("--listen", request.listen, first),
        ("--zookeeper-listen", request.zookeeper_listen, spec.zookeeper),
        ("--profile-name", request.profile, spec.profile),
    ):
        if requested is not None and requested != present and not str(requested).endswith(":0"):
            raise CannotStart(f"{directory} holds a cluster with {option} {present}; leave the option out, or choose another --data-dir")
    brokers = dict(spec.brokers)
    if request.brokers is not None and request.brokers < len(brokers):
        raise CannotStart(f"{directory} holds a cluster of {len(brokers)} brokers; brokers cannot be removed")
    host, port = parse_address(brokers[max(brokers)], name="--listen")
    added = range(len(brokers) + 1, (request.brokers or 0) + 1)
    if added and (request.listen or "").endswith(":0"):
        port = free_ports(host, len(added)) - 1
    for number in added:
        port += 1
        brokers[number] = address_text((host, port))
    return ClusterSpec(spec.zookeeper, spec.zookeeper_nodes, brokers, {**spec.settings, **request.settings}, spec.profile)


def free_ports(host: str, count: int) -> int:
    """The first of ``count`` consecutive free ports. They are below the ephemeral ports, which a client's connection could take meanwhile.

    Raises: CannotStart.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(ATTEMPTS_MAX):
        first = random.randrange(*PORTS)
        sockets: list[socket.socket] = []
        try:
            for number in range(count):
                sockets.append(socket.socket(family))
                sockets[-1].bind((host, first + number))
            return first
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise CannotStart(f"cannot listen on {host}: {error.strerror}; choose another --listen HOST:PORT") from None
        finally:
            for one in sockets:
                one.close()
    raise CannotStart(f"no {count} consecutive ports are free on {host}; choose another --listen HOST:PORT")

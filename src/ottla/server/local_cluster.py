"""A cluster of several processes on one machine: ZooKeeper and brokers, started, found again and stopped.

::

    DIR/.lock                     held by a command while it starts or stops something
    DIR/cluster.json              what the cluster is: addresses, settings
    DIR/zookeeper/                data of ZooKeeper's servers
    DIR/broker-N/                 data of broker N
    DIR/NAME.pid, DIR/NAME.log    of each process (``detached.py``)
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
from ottla.server.daemon import Detached
from ottla.server.data_directory import LOCK, CannotStart, HeldDirectory
from ottla.server.server_properties import adopted
from ottla.server.store_factory import ANYWHERE

SPEC = "cluster.json"
#: Path of the cluster's nodes in ZooKeeper.
CHROOT = "/ottla"
#: How long a process may take until it serves: a broker with much to recover takes longest.
READY_S = 120.0
#: How long a broker may take to hand over and to leave its logs in order; then it is killed.
STOP_S = 90.0
#: Settings that each broker has of its own.
OWN = ("broker.id", "node.id", "listeners", "advertised.listeners", "log.dir", "log.dirs", "zookeeper.connect")
#: Where rows of free ports are looked for, and how often.
ROWS = (20_000, 32_000)
ROWS_MAX = 50


class Spec(msgspec.Struct):
    """What a cluster is. Addresses as ``HOST:PORT``; ZooKeeper's servers take ports in a row from that one on."""

    zookeeper: str
    zookeeper_nodes: int
    #: By broker id.
    brokers: dict[int, str]
    settings: dict[str, str] = {}


class Wish(msgspec.Struct):
    """What somebody asked for; None where he leaves it as it is, or as is usual."""

    brokers: int | None = None
    zookeeper_nodes: int | None = None
    listen: str | None = None
    zookeeper_listen: str | None = None
    settings: Mapping[str, str] = {}


class LocalCluster:
    """The cluster of one directory."""

    def __init__(self, directory: Path, spec: Spec) -> None:
        self.directory = directory
        self.spec = spec
        connect = ",".join(address_text(address) for address in in_row(spec.zookeeper, spec.zookeeper_nodes))
        self.zookeeper = Detached(
            "zookeeper",
            directory / "zookeeper",
            ["zookeeper", "--nodes", str(spec.zookeeper_nodes), "--listen", spec.zookeeper, "--data-dir", str(directory / "zookeeper")],
            ready="ottla: zookeeper ready on ",
        )
        settings = [text for pair in spec.settings.items() for text in ("--set", "=".join(pair))]
        self.brokers = {
            number: Detached(
                f"broker {number}",
                directory / f"broker-{number}",
                ["serve", "--zookeeper", connect + CHROOT, "--broker-id", str(number), "--listen", listen,
                 "--data-dir", str(directory / f"broker-{number}"), "--log-file", str(directory / f"broker-{number}.log"), *settings],
                ready="ottla: ready on ",
            )
            for number, listen in sorted(spec.brokers.items())
        }  # fmt: skip

    @classmethod
    def found(cls, directory: Path) -> Self:
        """The cluster that was started in this directory. Raises: CannotStart when there is none."""
        directory = directory.absolute()
        path = directory / SPEC
        try:
            return cls(directory, msgspec.json.decode(path.read_bytes(), type=Spec))
        except FileNotFoundError:
            raise CannotStart(f"no cluster was started in {directory}: start one with ottla cluster up, or see --data-dir") from None
        except (OSError, msgspec.DecodeError) as error:
            raise CannotStart(f"cannot read {path}: {error}") from None

    @classmethod
    def wished(cls, directory: Path, wish: Wish) -> Self:
        """The cluster of this directory as it is wished for, from now on kept there. Raises: ConfigError, CannotStart."""
        directory = directory.absolute()
        for name in wish.settings:
            if name in OWN:
                raise ConfigError("--set", f"{name} is made for each broker by itself; leave it out")
        there = (directory / SPEC).exists()
        if not there and directory.is_dir() and (others := {path.name for path in directory.iterdir()} - {LOCK}):
            raise CannotStart(f"{directory} holds something else ({min(others)}); choose another --data-dir")
        spec = _changed(cls.found(directory).spec, wish, directory) if there else _made(wish)
        # What no broker takes is said here, once, and not kept.
        Settings(adopted(spec.settings)[0])
        try:
            directory.mkdir(parents=True, exist_ok=True)
            beside = directory / f"{SPEC}.new"
            beside.write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n")
            os.replace(beside, directory / SPEC)
        except OSError as error:
            raise CannotStart(f"cannot write to {directory}: {error.strerror}") from None
        return cls(directory, spec)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.spec.brokers.values())

    def zookeeper_addresses(self) -> list[Address]:
        return in_row(self.spec.zookeeper, self.spec.zookeeper_nodes)

    def start(self) -> list[Detached]:
        """Starts what does not run, ZooKeeper first, and returns when all serve; what was started. Raises: CannotStart."""
        began: list[Detached] = []
        deadline_s = time.monotonic() + READY_S
        for processes in ([self.zookeeper], list(self.brokers.values())):
            missing = [process for process in processes if process.pid is None]
            for process in missing:
                process.spawn()
                began.append(process)
            for process in missing:
                process.await_ready(deadline_s)
        return began


def held(directory: Path) -> HeldDirectory:
    """The directory, for a command that starts or stops something in it. Raises: CannotStart."""
    return HeldDirectory(directory)


def in_row(first: str, count: int) -> list[Address]:
    """Addresses on ports that follow one another."""
    host, port = parse_address(first, name="--listen")
    return [(host, port + number) for number in range(count)]


def _made(wish: Wish) -> Spec:
    """A new cluster. Raises: ConfigError, CannotStart."""
    brokers, nodes = wish.brokers or 3, wish.zookeeper_nodes or 1
    host, port = parse_address(wish.listen or "127.0.0.1:9092", name="--listen")
    inner, inner_port = parse_address(wish.zookeeper_listen or f"127.0.0.1:{2181 if port else 0}", name="--zookeeper-listen")
    if host in ANYWHERE or inner in ANYWHERE:
        raise ConfigError("--listen", "expected the address of this machine at which clients and brokers reach it")
    if max(port + brokers, inner_port + nodes) > 65536:
        raise ConfigError("--listen", f"{brokers} brokers from port {port} on need ports above 65535")
    first = port or free_row(host, brokers)
    return Spec(
        zookeeper=address_text((inner, inner_port or free_row(inner, nodes))),
        zookeeper_nodes=nodes,
        brokers={number: address_text((host, first + number - 1)) for number in range(1, brokers + 1)},
        settings=dict(wish.settings),
    )


def _changed(spec: Spec, wish: Wish, directory: Path) -> Spec:
    """The cluster that is there, with more brokers and other settings where that is wished. Raises: ConfigError, CannotStart."""
    first = next(iter(spec.brokers.values()))
    for option, wished, there in (
        ("--zookeeper-nodes", wish.zookeeper_nodes, spec.zookeeper_nodes),
        ("--listen", wish.listen, first),
        ("--zookeeper-listen", wish.zookeeper_listen, spec.zookeeper),
    ):
        if wished is not None and wished != there and not str(wished).endswith(":0"):
            raise CannotStart(f"{directory} holds a cluster with {option} {there}; leave the option out, or choose another --data-dir")
    brokers = dict(spec.brokers)
    if wish.brokers is not None and wish.brokers < len(brokers):
        raise CannotStart(f"{directory} holds a cluster of {len(brokers)} brokers, and none of them can be left out")
    host, port = parse_address(brokers[max(brokers)], name="--listen")
    added = range(len(brokers) + 1, (wish.brokers or 0) + 1)
    if added and (wish.listen or "").endswith(":0"):
        port = free_row(host, len(added)) - 1
    for number in added:
        port += 1
        brokers[number] = address_text((host, port))
    return Spec(spec.zookeeper, spec.zookeeper_nodes, brokers, {**spec.settings, **wish.settings})


def free_row(host: str, count: int) -> int:
    """The first of as many ports in a row that nobody has at the moment, below those that systems give to clients' connections, which might
    have taken one before it is listened on. Raises: CannotStart."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(ROWS_MAX):
        first = random.randrange(*ROWS)
        taken: list[socket.socket] = []
        try:
            for number in range(count):
                taken.append(socket.socket(family))
                taken[-1].bind((host, first + number))
            return first
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise CannotStart(f"cannot listen on {host}: {error.strerror}; choose another --listen HOST:PORT") from None
        finally:
            for one in taken:
                one.close()
    raise CannotStart(f"no {count} ports in a row are free on {host}; choose another --listen HOST:PORT")

"""``ottla zookeeper``: runs a real ZooKeeper, one server or three, until it is told to stop.

For those who have none. Exit code 0: stopped as asked; 1: cannot start, or no server is left; 2: an option cannot be used.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import click

from ottla.server.directory import CannotStart, default_data_directory

DEFAULT_LISTEN = "127.0.0.1:2181"


@click.command(name="zookeeper")
@click.option("--nodes", type=click.Choice(["1", "3"]), default="1", show_default=True, help="Servers, each a process of its own.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=DEFAULT_LISTEN,
    show_default=True,
    help="Where clients connect; further servers take the ports after it, or free ones for port 0.",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help=f"Where everything is kept. [default: {default_data_directory() / 'zookeeper'}]",
)
def command(nodes: str, listen: str, data_dir: Path | None) -> None:
    """Run a ZooKeeper ensemble on this machine until SIGTERM or Ctrl-C.

    Needs Java 17, and ZooKeeper's jars: those of ZOOKEEPER_HOME, or of the package pyspark. Prints "ottla: zookeeper ready on
    HOST:PORT[,HOST:PORT...]", which is what `ottla serve --zookeeper` takes.
    """
    from ottla.base.options import ConfigError
    from ottla.server.addresses import parse_address
    from ottla.server.ensemble import Ensemble
    from ottla.spark.java import NoJava, java_home

    try:
        address = parse_address(listen, name="--listen")
    except ConfigError as error:
        _give_up(str(error), 2)
    if address[1] and address[1] + int(nodes) > 65536:
        _give_up(f"--listen: {nodes} servers from port {address[1]} on need ports above 65535", 2)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: asked.append(number))
    try:
        java = java_home(wanted_by="ZooKeeper")
        ensemble = Ensemble((data_dir or default_data_directory() / "zookeeper").absolute(), java, nodes=int(nodes), listen=address)
        ensemble.start()
    except (CannotStart, NoJava) as error:
        _give_up(str(error), 1)
    print(f"ottla: zookeeper ready on {ensemble.connect}", flush=True)
    gone: set[int] = set()
    while not asked and len(gone) < len(ensemble.servers):
        for server in ensemble.servers:
            if server.number not in gone and not server.alive:
                gone.add(server.number)
                _say(f"server {server.number} ended: {server.last_words()}; see {server.output}")
        time.sleep(0.2)
    ensemble.stop()
    sys.exit(0 if asked else 1)


def _say(line: str) -> None:
    print(f"ottla: {line}", file=sys.stderr, flush=True)


def _give_up(reason: str, code: int) -> NoReturn:
    _say(reason)
    sys.exit(code)

"""``ottla zookeeper``: runs a real ZooKeeper, one server or three, or one of several machines', until it is told to stop.

For those who have none. Exit code 0: stopped as asked; 1: cannot start; 2: an option cannot be used.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import NoReturn

import click

from ottla.cli.common.paths import LocalPath
from ottla.server.data_directory import CannotStart, default_data_directory

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 2181


@click.command(name="zookeeper")
@click.option("--nodes", type=click.Choice(["1", "3"]), default="1", show_default=True, help="Servers, each a process of its own.")
@click.option(
    "--ensemble",
    metavar="HOST,HOST,HOST",
    help="All machines of an ensemble, of which this runs the server of one; the same on each. Servers talk on ports 2888 and 3888, or as "
    "HOST:PORT:PORT says.",
)
@click.option("--member", metavar="N", type=click.IntRange(1), help="Which machine of --ensemble this is, from 1 on.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where clients connect; further servers take the ports after it, or free ones for port 0. "
    f"[default: {DEFAULT_HOST}:{DEFAULT_PORT}, or that port of this machine in --ensemble]",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    type=LocalPath(path_type=Path),
    help=f"Where everything is kept. [default: {default_data_directory() / 'zookeeper'}]",
)
def command(nodes: str, ensemble: str | None, member: int | None, listen: str | None, data_dir: Path | None) -> None:
    """Run ZooKeeper on this machine until SIGTERM or Ctrl-C; a server that ends meanwhile is started again.

    Needs Java 17, and ZooKeeper's jars: those of ZOOKEEPER_HOME, or of the package pyspark. Prints "ottla: zookeeper ready on
    HOST:PORT[,HOST:PORT...]", which is what `ottla serve --zookeeper` takes; with --ensemble once most of the machines run it.
    """
    from ottla.base.options import ConfigError
    from ottla.server.addresses import parse_address
    from ottla.server.zookeeper_ensemble import READY_S, Ensemble
    from ottla.spark.java import NoJava, java_home

    members = ensemble.split(",") if ensemble else []
    if bool(members) != (member is not None) or (member or 0) > len(members):
        _give_up("--ensemble names all machines, and --member says which of them this is, from 1 on", 2)
    host = members[member - 1].split(":")[0] if member else DEFAULT_HOST
    count = 1 if members else int(nodes)
    try:
        address = parse_address(listen or f"{host}:{DEFAULT_PORT}", name="--listen")
    except ConfigError as error:
        _give_up(str(error), 2)
    if address[1] and address[1] + count > 65536:
        _give_up(f"--listen: {count} servers from port {address[1]} on need ports above 65535", 2)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    directory = (data_dir or default_data_directory() / "zookeeper").absolute()
    running: Ensemble | None = None
    try:
        java = java_home(needed_by="ZooKeeper")
        running = Ensemble(directory, java, nodes=member or count, listen=address, members=members)
        # A member serves when most of the others do, and who starts them may take his time.
        running.start(timeout_s=None if members else READY_S)
        print(f"ottla: zookeeper ready on {running.connect}", flush=True)
        running.keep_up(_say)
    except (CannotStart, NoJava) as error:
        _give_up(str(error), 1)
    except KeyboardInterrupt:
        if running is not None:
            running.stop()


def _interrupt(number: int, frame: object) -> NoReturn:
    """The second time, at once."""
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt


def _say(line: str) -> None:
    print(f"ottla: {line}", file=sys.stderr, flush=True)


def _give_up(reason: str, code: int) -> NoReturn:
    _say(reason)
    sys.exit(code)

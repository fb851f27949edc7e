"""``ottla zookeeper``: runs ZooKeeper itself: one server, three servers, or one member of an ensemble of several machines.

Exit code 0: stopped by a signal; 1: cannot start; 2: usage error.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NoReturn

import click

from ottla.base.options import ConfigError
from ottla.cli.common.errors import give_up, say
from ottla.cli.common.paths import LocalPath
from ottla.server.addresses import parse_address
from ottla.server.data_directory import CannotStart, default_data_directory

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 2181


@click.command(name="zookeeper")
@click.option("--nodes", type=click.Choice(["1", "3"]), default="1", show_default=True, help="Number of servers; each is a process.")
@click.option(
    "--ensemble",
    metavar="HOST,HOST,HOST",
    help="All machines of an ensemble, the same list on each. Servers use ports 2888 and 3888 between them, or HOST:PORT:PORT.",
)
@click.option("--member", metavar="N", type=click.IntRange(1), help="Position of this machine in --ensemble, from 1.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address for clients; further servers use the following ports, or free ports if it is 0. "
    f"[default: {DEFAULT_HOST}:{DEFAULT_PORT}, with --ensemble port {DEFAULT_PORT} of this machine]",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    type=LocalPath(path_type=Path),
    help=f"Data directory. [default: {default_data_directory() / 'zookeeper'}]",
)
def command(nodes: str, ensemble: str | None, member: int | None, listen: str | None, data_dir: Path | None) -> None:
    """Run ZooKeeper on this machine until SIGTERM or Ctrl-C. Servers that exit are restarted.

    Needs Java 17 and ZooKeeper's jars, from ZOOKEEPER_HOME or the package pyspark. Prints "ottla: zookeeper ready on
    HOST:PORT[,HOST:PORT...]", the value for `ottla serve --zookeeper`; with --ensemble once a majority of the machines runs it.
    """
    from ottla.server.zookeeper_ensemble import READY_S, Ensemble
    from ottla.spark.java import NoJava, java_home

    members = ensemble.split(",") if ensemble else []
    if bool(members) != (member is not None) or (member or 0) > len(members):
        give_up("--ensemble and --member are used together: --member is the position of this machine in the list, from 1", 2)
    host = members[member - 1].split(":")[0] if member else DEFAULT_HOST
    count = 1 if members else int(nodes)
    try:
        address = parse_address(listen or f"{host}:{DEFAULT_PORT}", name="--listen")
    except ConfigError as error:
        give_up(str(error), 2)
    if address[1] and address[1] + count > 65536:
        give_up(f"--listen: {count} servers from port {address[1]} would need ports above 65535; use a lower port", 2)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    directory = (data_dir or default_data_directory() / "zookeeper").absolute()
    running: Ensemble | None = None
    try:
        java = java_home(needed_by="ZooKeeper")
        running = Ensemble(directory, java, nodes=member or count, listen=address, members=members)
        # A member serves once a majority runs, and the other machines may start much later: no timeout.
        running.start(timeout_s=None if members else READY_S)
        print(f"ottla: zookeeper ready on {running.connect}", flush=True)
        running.keep_up(say)
    except (CannotStart, NoJava) as error:
        give_up(str(error), 1)
    except KeyboardInterrupt:
        if running is not None:
            running.stop()


def _interrupt(number: int, frame: object) -> NoReturn:
    """The first signal stops the servers; a second one ends the process at once."""
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt

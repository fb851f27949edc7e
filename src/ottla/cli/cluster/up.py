"""``ottla cluster up``: starts a cluster on this machine, or what of it does not run."""

from __future__ import annotations

from pathlib import Path

import click

from ottla.cli.cluster.local import data_dir_option, failing
from ottla.cli.common.errors import assignments

#: How long brokers that serve may take to know of each other.
KNOWN_S = 30.0


@click.command(name="up")
@click.option(
    "--brokers", metavar="N", type=click.IntRange(1, 100), help="Brokers, each a process; more than there were adds some. [default: 3]"
)
@click.option("--zookeeper-nodes", type=click.Choice(["1", "3"]), help="Servers of ZooKeeper. [default: 1]")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where broker 1 listens; the others take the ports after it. 0: free ones. [default: 127.0.0.1:9092]",
)
@click.option(
    "--zookeeper-listen",
    metavar="HOST:PORT",
    help="Where ZooKeeper listens; further servers take the ports after it. [default: 127.0.0.1:2181; free ones with port 0 in --listen]",
)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of every broker, by Kafka's name; may be repeated.")
@data_dir_option
def command(
    brokers: int | None,
    zookeeper_nodes: str | None,
    listen: str | None,
    zookeeper_listen: str | None,
    settings: tuple[str, ...],
    data_dir: Path,
) -> None:
    """Start a cluster on this machine: ZooKeeper, and brokers, each a process of its own. They stay when this command ends.

    Prints "ottla: cluster ready on HOST:PORT,HOST:PORT,..." once all of them serve. Called again, it starts what does not run, with the
    options of the first time; a setting that changes holds for brokers that start from then on.
    """
    from ottla.cli.cluster.health import await_health
    from ottla.server.data_directory import LockedDirectory
    from ottla.server.local_cluster import ClusterRequest, LocalCluster

    given = assignments(settings, "--set")
    with failing():
        holds = LockedDirectory(data_dir)
        try:
            nodes = int(zookeeper_nodes) if zookeeper_nodes else None
            cluster = LocalCluster.create_or_change(data_dir, ClusterRequest(brokers, nodes, listen, zookeeper_listen, given))
            running = [process.name for process in cluster.brokers.values() if process.pid is not None]
            for process in cluster.start():
                click.echo(f"ottla: {process.name} started, process {process.pid}", err=True)
            if given and running:
                click.echo(f"ottla: {', '.join(running)} run on with their settings; see ottla cluster restart", err=True)
            wrong = await_health(
                cluster.spec.brokers.values(),
                lambda seen: seen.controller >= 0 and {node.id for node in seen.brokers} == set(cluster.brokers),
                timeout_s=KNOWN_S,
            )
        finally:
            holds.release()
    if wrong is not None:
        missing = sorted(set(cluster.brokers) - {node.id for node in wrong.brokers})
        raise click.ClickException(
            f"the brokers serve, but not as one cluster: {missing or 'a controller'} missing; see the logs in {data_dir}"
        )
    click.echo(f"ottla: cluster ready on {cluster.bootstrap}")

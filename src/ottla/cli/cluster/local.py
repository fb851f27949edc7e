"""``ottla cluster up``, ``down`` and ``restart``: start, stop and restart the cluster of this machine, each broker a process.

``up`` starts missing processes. ``down`` stops brokers with a controlled shutdown. ``restart`` restarts brokers one by one, each only while
all replicas are in sync.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

import click

from ottla.cli.common.arguments import duration_ms
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.errors import assignments, reporting_errors
from ottla.cli.common.output_formats import OutputFormat, fields, output_option
from ottla.cli.common.paths import LocalPath
from ottla.client.profiles import DEFAULT_BOOTSTRAP
from ottla.server.data_directory import CannotStart, LockedDirectory, default_data_directory
from ottla.server.local_cluster import LocalCluster

DEFAULT = default_data_directory() / "cluster"

#: `--data-dir`, the directory of a cluster.
data_dir_option = click.option(
    "--data-dir",
    metavar="DIR",
    envvar="OTTLA_CLUSTER",
    type=LocalPath(path_type=Path),
    default=DEFAULT,
    show_default=True,
    help="Directory of the cluster; also OTTLA_CLUSTER.",
)


@contextmanager
def reporting_start_errors() -> Iterator[None]:
    """`reporting_errors`, and the same for CannotStart."""
    with reporting_errors():
        try:
            yield
        except CannotStart as error:
            raise click.ClickException(str(error)) from None


@contextmanager
def locked_cluster(directory: Path) -> Iterator[LocalCluster]:
    """The cluster of a directory, locked against other commands. Raises: CannotStart."""
    LocalCluster.load(directory)
    lock = LockedDirectory(directory)
    try:
        yield LocalCluster.load(directory)
    finally:
        lock.release()


#: Timeout for the started brokers to form one cluster.
FORMED_S = 30.0


PROCESSES = {"processes[].name": "broker N or zookeeper", "processes[].pid": "process id; null: it does not run"}


def _processes(cluster: LocalCluster) -> list[dict[str, object]]:
    return [{"name": process.name, "pid": process.pid} for process in [cluster.zookeeper, *cluster.brokers.values()]]


@fields(PROCESSES, bootstrap_servers="addresses of the brokers", profile="profile of the cluster", started="processes that were started")
@click.command(name="up")
@click.option(
    "--brokers", metavar="N", type=click.IntRange(1, 100), help="Number of brokers, each a process; it can grow later. [default: 3]"
)
@click.option("--zookeeper-nodes", type=click.Choice(["1", "3"]), help="Number of ZooKeeper servers. [default: 1]")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address of broker 1; others use the following ports, or free ports if it is 0. [default: 127.0.0.1:9092]",
)
@click.option(
    "--zookeeper-listen",
    metavar="HOST:PORT",
    help="Address of ZooKeeper; further servers use the following ports. [default: 127.0.0.1:2181; moves with the port of --listen]",
)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Setting of all brokers, by Kafka's name; repeatable.")
@output_option
@click.option("--profile-name", "profile", metavar="NAME", help="Name of the cluster's profile; down removes it. [default: local]")
@data_dir_option
def up(
    brokers: int | None,
    zookeeper_nodes: str | None,
    listen: str | None,
    zookeeper_listen: str | None,
    settings: tuple[str, ...],
    profile: str | None,
    output: OutputFormat,
    data_dir: Path,
) -> None:
    """Start a cluster on this machine: ZooKeeper and brokers, each a process that keeps running when this command ends.

    Prints "ottla: cluster ready on HOST:PORT,HOST:PORT,..." once all serve. A later call starts missing processes with the options of the
    first call; changed settings apply to brokers that start from then on. Adds a profile, so that --profile local selects the cluster.
    """
    from ottla.cli.cluster.health import await_health
    from ottla.cli.cluster.profile import add_profile
    from ottla.server.local_cluster import ClusterRequest, LocalCluster

    broker_settings = assignments(settings, "--set")
    with reporting_start_errors():
        lock = LockedDirectory(data_dir)
        try:
            nodes = int(zookeeper_nodes) if zookeeper_nodes else None
            request = ClusterRequest(brokers, nodes, listen, zookeeper_listen, broker_settings, profile)
            cluster = LocalCluster.create_or_change(data_dir, request)
            running = [process.name for process in cluster.brokers.values() if process.pid is not None]
            started = cluster.start()
            for process in started:
                click.echo(f"ottla: {process.name} started, process {process.pid}", err=True)
            if broker_settings and running:
                click.echo(f"ottla: {', '.join(running)} keep their old settings; apply new ones with ottla cluster restart", err=True)
            incomplete = await_health(
                cluster.spec.brokers.values(),
                lambda report: report.controller >= 0 and {node.id for node in report.brokers} == set(cluster.brokers),
                timeout_s=FORMED_S,
            )
        finally:
            lock.release()
    if incomplete is not None:
        missing = sorted(set(cluster.brokers) - {node.id for node in incomplete.brokers})
        raise click.ClickException(
            f"the brokers started, but do not form one cluster: {missing or 'a controller'} missing; see the logs in {data_dir}"
        )
    if output.is_structured:
        document = {"bootstrap_servers": cluster.bootstrap, "profile": cluster.spec.profile}
        output.document({**document, "started": [one.name for one in started], "processes": _processes(cluster)})
    else:
        click.echo(f"ottla: cluster ready on {cluster.bootstrap}")
    if line := add_profile(cluster.spec.profile, list(cluster.spec.brokers.values())):
        click.echo(f"ottla: {line}", err=True)
    if len(started) > len(cluster.brokers) and not output.is_structured:
        _print_next_commands(cluster, data_dir)


def _print_next_commands(cluster: LocalCluster, data_dir: Path) -> None:
    first = next(iter(cluster.spec.brokers.values()))
    where = "" if first == DEFAULT_BOOTSTRAP else f" -b {first}"
    place = "" if data_dir == DEFAULT else f" --data-dir {quote(str(data_dir))}"
    for line, does in (
        (f"ottla topic create orders -p 6 -r {min(3, len(cluster.brokers))}{where}", "create a topic"),
        (f"ottla profile use {cluster.spec.profile}", "make the cluster the default of commands and clients"),
        (f"ottla cluster status{place}", "show its processes and its health"),
        (f"ottla cluster down{place}", "stop it; the data stays"),
    ):
        click.echo(f"  {line:<70}  {does}", err=True)


@fields(PROCESSES, stopped="processes that were stopped")
@click.command(name="down")
@output_option
@data_dir_option
def down(output: OutputFormat, data_dir: Path) -> None:
    """Stop the brokers one by one with a controlled shutdown, then ZooKeeper. The data stays; `up` starts them again.

    Removes the profile that `up` added, if it is unchanged.
    """
    from ottla.cli.cluster.profile import remove_profile
    from ottla.server.local_cluster import STOP_S

    stopped, killed = [], []
    with reporting_start_errors(), locked_cluster(data_dir) as cluster:
        # The broker that started first is usually the controller. It stops last, so that the controller changes only once.
        for process in [*reversed(cluster.brokers.values()), cluster.zookeeper]:
            if process.pid is not None:
                if not process.stop(timeout_s=STOP_S):
                    killed.append(process.name)
                stopped.append(process.name)
                click.echo(f"ottla: {process.name} {'killed' if process.name in killed else 'stopped'}", err=True)
        if line := remove_profile(cluster.spec.profile, list(cluster.spec.brokers.values())):
            click.echo(f"ottla: {line}", err=True)
        if output.is_structured:
            output.document({"stopped": stopped, "processes": _processes(cluster)})
    if killed:
        raise click.ClickException(f"{', '.join(killed)} did not stop within {STOP_S:.0f} s and was killed; see the logs in {data_dir}")


@fields(PROCESSES, restarted="brokers that were restarted, in this order")
@click.command(name="restart")
@click.option("--broker", "chosen", metavar="N", type=int, multiple=True, help="Only this broker; repeatable.")
@click.option(
    "--patience", metavar="DURATION", default="10m", show_default=True, help="Time to wait for in-sync replicas before each step."
)
@output_option
@data_dir_option
def restart(chosen: tuple[int, ...], patience: str, output: OutputFormat, data_dir: Path) -> None:
    """Restart brokers one by one without downtime, each only while all replicas are in sync; then elect preferred leaders.

    Fails, without further restarts, if replicas do not get in sync in time.
    """
    from ottla.cli.cluster.health import await_health, health
    from ottla.server.local_cluster import READY_S, STOP_S

    patience_s = duration_ms(patience, "--patience") / 1000
    with reporting_start_errors(), locked_cluster(data_dir) as cluster:
        if unknown := sorted(set(chosen) - set(cluster.brokers)):
            raise click.UsageError(f"--broker: broker {unknown[0]} does not exist")
        if down := [process.name for process in cluster.brokers.values() if process.pid is None]:
            raise click.ClickException(f"{', '.join(down)} down: start missing brokers with ottla cluster up")

        def await_in_sync() -> None:
            unhealthy = await_health(
                cluster.spec.brokers.values(),
                lambda report: not report.offline and not report.under_replicated and len(report.brokers) == len(cluster.brokers),
                timeout_s=patience_s,
            )
            if unhealthy is not None:
                some = [f"{topic}-{number}" for topic, number in [*unhealthy.offline, *unhealthy.under_replicated]][:5]
                raise click.ClickException(
                    f"not all replicas are in sync: {', '.join(some) or 'brokers are missing'}; no further broker was stopped"
                )

        # The controller restarts last, so that the controller changes only once.
        controller = health(cluster.bootstrap).controller
        order = sorted(set(chosen) or cluster.brokers, key=lambda number: (number == controller, number))
        for number in order:
            await_in_sync()
            process = cluster.brokers[number]
            process.stop(timeout_s=STOP_S)
            process.spawn()
            process.await_ready(time.monotonic() + READY_S)
            click.echo(f"ottla: {process.name} restarted, process {process.pid}", err=True)
        await_in_sync()
        # Each broker transferred its leadership when it stopped.
        with connected(cluster.bootstrap) as admin:
            admin.elect_leaders()
        if output.is_structured:
            output.document({"restarted": [cluster.brokers[number].name for number in order], "processes": _processes(cluster)})

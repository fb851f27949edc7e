"""``ottla cluster status``: the processes and the health of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.cluster.health import PARTITION_FIELDS
from ottla.cli.cluster.local import data_dir_option, reporting_start_errors
from ottla.cli.common import tables
from ottla.cli.common.connection import configured_bootstrap, remote_option
from ottla.cli.common.output_formats import OutputFormat, fields, output_option
from ottla.cli.common.tables import Column
from ottla.cli.topic import lookup
from ottla.cli.topic.lookup import leader_cell, state_colour
from ottla.server.addresses import address_text
from ottla.server.data_directory import CannotStart
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.cli.cluster.health import Health


PROCESSES = (
    Column("PROCESS", "name"),
    Column("PID", "pid", number=True),
    Column("ADDRESS", "address"),
    Column("STATE", lambda row: "up" if row["up"] else "down", colour=lambda row: "green" if row["up"] else "red"),
    Column("ROLE", lambda row: "controller" if row["controller"] else ""),
)
PARTITIONS = (
    Column("PARTITION", lambda row: f"{row['topic']}-{row['partition']}"),
    Column("LEADER", leader_cell, number=True, colour=state_colour),
    Column("REPLICAS", "replicas"),
    Column("ISR", "isr", colour=state_colour),
)
PARTITION = {name: lookup.PARTITION[name] for name in PARTITION_FIELDS}
DAMAGED = (
    Column("PARTITION", lambda row: f"{row['topic']}-{row['partition']}"),
    Column("BROKER", "broker", number=True),
    Column("DAMAGE", "damage"),
)
DAMAGE = {
    "topic": "topic",
    "partition": "partition",
    "broker": "broker id of the damaged replica",
    "damage": "file, offsets and bytes of the damage, its kind, and what the broker does",
}


@fields(
    {
        "processes[].name": "broker N or zookeeper N",
        "processes[].broker": "broker id; null for a ZooKeeper server",
        "processes[].pid": "process id on this machine; null: not running, or another machine",
        "processes[].address": "address for clients",
        "processes[].up": "whether it runs",
        "processes[].controller": "whether it is the controller",
    },
    {f"under_replicated[].{name}": help for name, help in PARTITION.items()},
    {f"offline[].{name}": help for name, help in PARTITION.items()},
    {f"damaged[].{name}": help for name, help in DAMAGE.items()},
    cluster_id="cluster id; null: no broker answers",
    controller="broker id of the controller; null: none",
    partitions="number of partitions; null: no broker answers",
)
@click.command(name="status")
@output_option
@remote_option
@data_dir_option
def command(bootstrap: str | None, output: OutputFormat, data_dir: Path) -> None:
    """Show the processes, the controller, and the offline, under-replicated and damaged partitions of a cluster.

    Without -b or --profile, shows the cluster of ottla cluster up on this machine, if there is one.

    Exit code 1 if something is down, offline, under-replicated or damaged.
    """
    from ottla.cli.cluster.health import health

    rows: list[dict[str, Any]] = []
    report: Health | None = None
    with reporting_start_errors():
        if bootstrap is None:
            rows, bootstrap = _processes_or_elsewhere(data_dir)
        if bootstrap is None:
            up = ",".join(row["address"] for row in rows if row["up"] and row["broker"] is not None)
            try:
                report = health(up) if up else None
            except KafkaError as error:
                click.echo(f"Error: no broker answers: {error}", err=True)
        else:
            report = health(bootstrap)
            rows = [_row(f"broker {node.id}", node.id, None, f"{node.host}:{node.port}", True) for node in report.brokers]
            rows += [_row(f"broker {number}", number, None, None, False) for number in report.absent]
    for row in rows:
        row["controller"] = row["broker"] is not None and report is not None and row["broker"] == report.controller
    if output.is_structured:
        unknown = {"cluster_id": None, "controller": None, "partitions": None, "under_replicated": None, "offline": None, "damaged": None}
        output.document({"processes": rows, **(unknown if report is None else report.as_json())})
    else:
        _print(rows, report, output)
    is_healthy = report is not None and report.controller >= 0 and not (report.offline or report.under_replicated or report.damaged)
    if not is_healthy or not all(row["up"] for row in rows):
        raise SystemExit(1)


def _processes_or_elsewhere(data_dir: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The processes of this machine's cluster, or the address of another, configured one. Raises: CannotStart."""
    try:
        return _processes(data_dir), None
    except CannotStart:
        elsewhere = configured_bootstrap()
        if elsewhere is None:
            raise
        return [], elsewhere


def _processes(data_dir: Path) -> list[dict[str, Any]]:
    """Raises: CannotStart."""
    from ottla.server.local_cluster import LocalCluster
    from ottla.server.zookeeper_ensemble import mode

    cluster = LocalCluster.load(data_dir)
    pid = cluster.zookeeper.pid
    rows = [
        _row(f"zookeeper {number}", None, pid, address_text(address), pid is not None and mode(address) is not None)
        for number, address in enumerate(cluster.zookeeper_addresses(), 1)
    ]
    for number, process in cluster.brokers.items():
        pid = process.pid
        rows.append(_row(process.name, number, pid, cluster.spec.brokers[number], pid is not None))
    return rows


def _row(name: str, broker: int | None, pid: int | None, address: str | None, up: bool) -> dict[str, Any]:
    return {"name": name, "broker": broker, "pid": pid, "address": address, "up": up}


def _print(rows: list[dict[str, Any]], report: Health | None, output: OutputFormat) -> None:
    output.table(rows, PROCESSES)
    if report is None:
        return
    document = report.as_json()
    for name in ("under_replicated", "offline"):
        partitions = document[name]
        shown = name.replace("_", "-")
        between = " " * (18 - len(shown)) if tables.is_terminal() else "\t"
        click.echo(f"{shown}{between}{len(partitions)} of {report.partitions} partitions")
        if partitions:
            output.table(partitions, PARTITIONS)
    if document["damaged"]:
        output.table(document["damaged"], DAMAGED, title="damaged logs")

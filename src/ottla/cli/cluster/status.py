"""``ottla cluster status``: which processes run, and whether the cluster they make is well."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.cluster.local import data_dir_option, failing
from ottla.cli.common import tables
from ottla.cli.common.connection import named_elsewhere, remote_option
from ottla.cli.common.output_formats import Form, fields, output_option
from ottla.cli.common.tables import Column
from ottla.cli.topic.lookup import leader, state_colour

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
    Column("LEADER", leader, number=True, colour=state_colour),
    Column("REPLICAS", "replicas"),
    Column("ISR", "isr", colour=state_colour),
)
PARTITION = {
    "topic": "its topic",
    "partition": "its number",
    "leader": "the broker that leads it; null: none",
    "replicas": "the brokers that have a replica",
    "isr": "those in sync",
}


DAMAGED = (
    Column("PARTITION", lambda row: f"{row['topic']}-{row['partition']}"),
    Column("BROKER", "broker", number=True),
    Column("DAMAGE", "damage"),
)
DAMAGE = {
    "topic": "its topic",
    "partition": "its number",
    "broker": "the broker whose replica is damaged",
    "damage": "which offsets and bytes of which file, what is wrong, and what the broker does",
}


@fields(
    {
        "processes[].name": "broker N or zookeeper N",
        "processes[].broker": "a broker's number; null for a server of ZooKeeper",
        "processes[].pid": "of a process on this machine",
        "processes[].address": "where it listens",
        "processes[].up": "whether it runs",
        "processes[].controller": "whether it is the controller",
    },
    {f"under_replicated[].{name}": says for name, says in PARTITION.items()},
    {f"offline[].{name}": says for name, says in PARTITION.items()},
    {f"damaged[].{name}": says for name, says in DAMAGE.items()},
    cluster_id="the cluster's id; null: no broker answers",
    controller="the broker that is the controller; null: none",
    partitions="how many there are in all; null: no broker answers",
)
@click.command(name="status")
@output_option
@remote_option
@data_dir_option
def command(bootstrap: str | None, output: Form, data_dir: Path) -> None:
    """Show the processes of a cluster, its controller, and partitions without a leader, lacking replicas, or with damaged logs.

    Without -b or --profile it is the cluster that ottla cluster up started here, if there is one.

    Exit code 1 when something is down, offline, under-replicated or damaged.
    """
    from ottla.cli.cluster.health import health
    from ottla.wire.errors import KafkaError

    rows: list[dict[str, Any]] = []
    seen: Health | None = None
    with failing():
        if bootstrap is None:
            rows, bootstrap = _processes_or_elsewhere(data_dir)
        if bootstrap is None:
            up = ",".join(row["address"] for row in rows if row["up"] and row["broker"] is not None)
            try:
                seen = health(up) if up else None
            except KafkaError as error:
                click.echo(f"Error: no broker answers: {error}", err=True)
        else:
            seen = health(bootstrap)
            rows = [_row(f"broker {node.id}", node.id, None, f"{node.host}:{node.port}", True) for node in seen.brokers]
            rows += [_row(f"broker {number}", number, None, None, False) for number in seen.absent]
    for row in rows:
        row["controller"] = row["broker"] is not None and seen is not None and row["broker"] == seen.controller
    if output.for_programs:
        told = {"cluster_id": None, "controller": None, "partitions": None, "under_replicated": None, "offline": None, "damaged": None}
        output.document({"processes": rows, **(told if seen is None else seen.as_json())})
    else:
        _print(rows, seen, output)
    well = seen is not None and seen.controller >= 0 and not (seen.offline or seen.under_replicated or seen.damaged)
    if not well or not all(row["up"] for row in rows):
        raise SystemExit(1)


def _processes_or_elsewhere(data_dir: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The cluster of this machine, or else the address of the one that is named. Raises: CannotStart."""
    from ottla.server.data_directory import CannotStart

    try:
        return _processes(data_dir), None
    except CannotStart:
        elsewhere = named_elsewhere()
        if elsewhere is None:
            raise
        return [], elsewhere


def _processes(data_dir: Path) -> list[dict[str, Any]]:
    """Raises: CannotStart."""
    from ottla.server.addresses import address_text
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


def _print(rows: list[dict[str, Any]], seen: Health | None, output: Form) -> None:
    output.table(rows, PROCESSES)
    if seen is None:
        return
    told = seen.as_json()
    for name in ("under_replicated", "offline"):
        partitions = told[name]
        shown = name.replace("_", "-")
        between = " " * (18 - len(shown)) if tables.is_terminal() else "\t"
        click.echo(f"{shown}{between}{len(partitions)} of {seen.partitions} partitions")
        if partitions:
            output.table(partitions, PARTITIONS)
    if told["damaged"]:
        output.table(told["damaged"], DAMAGED, title="damaged logs")

"""``ottla cluster status``: which processes run, and whether the cluster they make is well."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.cluster_local import data_dir_option, failing
from ottla.cli.render import output_option, print_json, table

if TYPE_CHECKING:
    from ottla.cli.cluster_health import Health


@click.command(name="status")
@click.option(
    "-b", "--bootstrap-server", "bootstrap", metavar="HOST:PORT[,...]", help="Ask this cluster, wherever it is, and not that of --data-dir."
)
@output_option
@data_dir_option
def command(bootstrap: str | None, output: str, data_dir: Path) -> None:
    """Show the processes of a cluster, its controller, and the partitions without a leader or without all of their replicas.

    Exit code 1 when something is down, offline or under-replicated.
    """
    from ottla.cli.cluster_health import health
    from ottla.wire.errors import KafkaError

    rows: list[dict[str, Any]] = []
    seen: Health | None = None
    with failing():
        if bootstrap is None:
            rows = _processes(data_dir)
            up = ",".join(row["address"] for row in rows if row["up"] and row["broker"] is not None)
            try:
                seen = health(up) if up else None
            except KafkaError as error:
                click.echo(f"Error: no broker answers: {error}", err=True)
        else:
            seen = health(bootstrap)
            rows = [_row(f"broker {node.id}", node.id, None, f"{node.host}:{node.port}", True) for node in seen.brokers]
            rows += [_row(f"broker {number}", number, None, None, False) for number in seen.absent]
    if output == "json":
        told = {"cluster_id": None, "controller": None, "partitions": None, "under_replicated": None, "offline": None}
        print_json({"processes": rows, **(told if seen is None else seen.as_json())})
    else:
        _print(rows, seen)
    if seen is None or seen.controller < 0 or seen.offline or seen.under_replicated or not all(row["up"] for row in rows):
        raise SystemExit(1)


def _processes(data_dir: Path) -> list[dict[str, Any]]:
    """Raises: CannotStart."""
    from ottla.server.addresses import address_text
    from ottla.server.ensemble import mode
    from ottla.server.local import LocalCluster

    cluster = LocalCluster.found(data_dir)
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


def _print(rows: list[dict[str, Any]], seen: Health | None) -> None:
    controller = None if seen is None else seen.controller
    table(
        ("PROCESS", "PID", "ADDRESS", "STATE", "ROLE"),
        [
            (
                row["name"],
                row["pid"],
                row["address"],
                "up" if row["up"] else "down",
                "controller" if row["broker"] is not None and row["broker"] == controller else "",
            )
            for row in rows
        ],
        right=("PID",),
    )
    if seen is None:
        return
    for name, partitions in (("under-replicated", seen.under_replicated), ("offline", seen.offline)):
        click.echo(f"{name}\t{len(partitions)} of {seen.partitions} partitions")
        if partitions:
            table(
                ("PARTITION", "LEADER", "REPLICAS", "ISR"),
                [
                    (f"{topic}-{number}", "none" if one.leader < 0 else one.leader, one.replicas, one.isr)
                    for (topic, number), one in partitions.items()
                ],
            )

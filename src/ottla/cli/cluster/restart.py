"""``ottla cluster restart``: restarts brokers one after another, each only while nothing else is missing."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ottla.cli.cluster.local import data_dir_option, failing, held_cluster
from ottla.cli.common.arguments import duration_ms
from ottla.cli.common.connection import admin as connected


@click.command(name="restart")
@click.option("--broker", "chosen", metavar="N", type=int, multiple=True, help="Only this broker; may be repeated.")
@click.option("--patience", metavar="DURATION", default="10m", show_default=True, help="How long to wait for replicas before each step.")
@data_dir_option
def command(chosen: tuple[int, ...], patience: str, data_dir: Path) -> None:
    """Restart brokers one after another, while clients go on: each is stopped only when every replica of every partition is in sync. At the
    end partitions are led by their preferred replicas.

    It ends with an error, and leaves what is left as it is, when replicas do not come in sync in time.
    """
    from ottla.cli.cluster.health import await_health, health
    from ottla.server.local_cluster import READY_S, STOP_S

    patience_s = duration_ms(patience, "--patience") / 1000
    with failing(), held_cluster(data_dir) as cluster:
        if unknown := sorted(set(chosen) - set(cluster.brokers)):
            raise click.UsageError(f"--broker: there is no broker {unknown[0]}")
        if down := [process.name for process in cluster.brokers.values() if process.pid is None]:
            raise click.ClickException(f"{', '.join(down)} down: ottla cluster up starts what is missing")

        def settled() -> None:
            wrong = await_health(
                cluster.spec.brokers.values(),
                lambda seen: not seen.offline and not seen.under_replicated and len(seen.brokers) == len(cluster.brokers),
                timeout_s=patience_s,
            )
            if wrong is not None:
                some = [f"{topic}-{number}" for topic, number in [*wrong.offline, *wrong.under_replicated]][:5]
                raise click.ClickException(
                    f"not all replicas are in sync: {', '.join(some) or 'brokers are missing'}; nothing more was stopped"
                )

        # The controller last, so that its duties move once.
        controller = health(cluster.bootstrap).controller
        for number in sorted(set(chosen) or cluster.brokers, key=lambda number: (number == controller, number)):
            settled()
            process = cluster.brokers[number]
            process.stop(timeout_s=STOP_S)
            process.spawn()
            process.await_ready(time.monotonic() + READY_S)
            click.echo(f"ottla: {process.name} restarted, process {process.pid}", err=True)
        settled()
        # Each broker handed over what it led.
        with connected(cluster.bootstrap) as admin:
            admin.elect_leaders()

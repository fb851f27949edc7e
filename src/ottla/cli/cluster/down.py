"""``ottla cluster down``: stops the cluster of this machine in order."""

from __future__ import annotations

from pathlib import Path

import click

from ottla.cli.cluster.local import data_dir_option, failing, held_cluster


@click.command(name="down")
@data_dir_option
def command(data_dir: Path) -> None:
    """Stop the brokers one after another, each in order, and then ZooKeeper. What they hold stays; `up` starts them again."""
    from ottla.server.local_cluster import STOP_S

    late = []
    with failing(), held_cluster(data_dir) as cluster:
        # The first broker to start is most often the controller, and the last to go has nothing to hand over.
        for process in [*reversed(cluster.brokers.values()), cluster.zookeeper]:
            if process.pid is not None:
                if not process.stop(timeout_s=STOP_S):
                    late.append(process.name)
                click.echo(f"ottla: {process.name} {'killed' if process.name in late else 'stopped'}", err=True)
    if late:
        raise click.ClickException(f"{', '.join(late)} did not stop within {STOP_S:.0f} s")

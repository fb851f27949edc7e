"""``ottla cluster``: the table of commands for a cluster as a whole; each is imported when it is called."""

import click

from ottla.cli.common.lazy import Entry, Lazy

COMMANDS = {
    "up": Entry("cluster.up", "Start a cluster on this machine, each broker a process of its own."),
    "status": Entry("cluster.status", "Show what runs, who is controller, and which partitions lack replicas."),
    "describe": Entry("cluster.describe:describe", "Show id, controller and brokers, and how much is in it."),
    "apis": Entry("cluster.describe:apis", "List the requests that brokers take, in which versions."),
    "features": Entry("cluster.describe:features", "Show feature levels."),
    "quorum": Entry("cluster.describe:quorum", "Show who keeps the metadata of a KRaft cluster."),
    "restart": Entry("cluster.restart", "Restart brokers one after another, while clients go on."),
    "down": Entry("cluster.down", "Stop a cluster on this machine in order."),
    "reassign": Entry("cluster.reassign", "Move replicas between brokers."),
    "elect": Entry("cluster.elect", "Have partitions led by their preferred replica again."),
}


@click.command(name="cluster", cls=Lazy, table=COMMANDS)
def command() -> None:
    """Start, stop and look at clusters; move replicas and leaders."""

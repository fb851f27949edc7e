"""`ottla perf`: the table of commands that measure a cluster; each is imported when it is called."""

import click

from ottla.cli.common.lazy import Entry, Lazy

COMMANDS = {
    "produce": Entry("perf.produce", "Measure how fast records are written, and how long each takes."),
    "consume": Entry("perf.consume", "Measure how fast records are read."),
    "latency": Entry("perf.latency", "Measure how long a record takes from a producer to a consumer."),
}


@click.command(name="perf", cls=Lazy, table=COMMANDS)
def command() -> None:
    """Measure a cluster: Ottla or any Kafka."""

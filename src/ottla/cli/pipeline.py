"""``ottla pipeline``: the table of commands for pipelines; each is imported when it is called."""

import click

from ottla.cli.lazy import Entry, Lazy

COMMANDS = {
    "run": Entry("pipeline_run:run", "Run a pipeline file until Ctrl-C; a restart goes on where it stopped."),
    "export": Entry("pipeline_export", "Export a topic to Delta or Parquet; run again, it adds what is new."),
    "validate": Entry("pipeline_run:validate", "Check a pipeline file without running it."),
}


@click.command(name="pipeline", cls=Lazy, table=COMMANDS)
def command() -> None:
    """Run pipelines: topics, decoded, through SQL on Spark, into tables and topics."""

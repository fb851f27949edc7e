"""``ottla pipeline``: the table of commands for pipelines; each is imported when it is called."""

import click

from ottla.cli.common.lazy import Entry, Lazy

COMMANDS = {
    "run": Entry("pipeline.run:run", "Run a pipeline file until Ctrl-C; a restart goes on where it stopped."),
    "validate": Entry("pipeline.plan:validate", "Check a pipeline file without running it."),
    "plan": Entry("pipeline.plan:plan", "Show what a pipeline file would do: views, columns, state, sinks."),
    "status": Entry("pipeline.state:status", "Show batches, offsets, lag and dead letters of a pipeline, without Spark."),
    "reset": Entry("pipeline.state:reset", "Forget what a pipeline has read, so that it starts over."),
    "load": Entry("pipeline.load:load", "Load files into a topic: csv, JSON lines, Parquet, Arrow, text."),
    "export": Entry("pipeline.export", "Export a topic to Delta or Parquet; run again, it adds what is new."),
}


@click.command(name="pipeline", cls=Lazy, table=COMMANDS)
def command() -> None:
    """Run pipelines: topics, decoded, through SQL on Spark, into tables and topics."""

"""What `ottla table TOPIC --to DIR` does: a Delta table in step with a topic. Its options and its help are the group's (`table`)."""

from __future__ import annotations

from typing import Any

import click

from ottla.cli.common.complete import topic_names
from ottla.cli.table.options import asked_of, bytes_of, keep, table_options


@click.command(name="table")
@click.argument("topic", metavar="TOPIC[/PARTITIONS]", shell_complete=topic_names)
@table_options
@click.option("--mode", type=click.Choice(["append", "upsert"]), help="[default: upsert for compacted topics, append for others]")
@click.option("--once", is_flag=True, help="End when the table has what the topic has now.")
@click.option("--commit-interval", metavar="TIME", default="5s", help="Time between two commits, once it is in step.  [default: 5s]")
@click.option("-g", "--group", metavar="GROUP", help="Tell this consumer group how far the table is, so that every tool sees its lag.")
@click.option(
    "--compact-every",
    type=click.IntRange(min=0),
    default=60,
    metavar="N",
    help="Join small files after N commits; 0: never.  [default: 60]",
)
@click.option("--vacuum-hours", type=click.IntRange(min=0), default=168, metavar="N",
              help="After joining, remove files that no version of the last N hours has; 0: never.  [default: 168]")  # fmt: skip
def keep_command(topic: str, **given: Any) -> None:
    """Keep a Delta table in step with TOPIC: from its beginning on, then as records come, until Ctrl-C.

    A restart goes on where it stopped.
    """
    from ottla.cli.common.arguments import duration_ms

    if "@" in topic:
        raise click.UsageError("a table holds a topic from its beginning on; a range of one is exported: ottla pipeline export TOPIC@RANGE")
    from ottla.cli.common.errors import told
    from ottla.lake.table.sync import SyncOptions
    from ottla.lake.table.target import DeltaTarget

    with told():
        plan = SyncOptions(
            once=given["once"],
            commit_interval_s=duration_ms(given["commit_interval"], "--commit-interval") / 1000,
            commit_bytes=bytes_of(given["commit_bytes"], "--commit-bytes"),
            fails_on_loss=given["on_loss"] == "fail",
            group=given["group"],
            compact_commits=given["compact_every"],
            vacuum_hours=given["vacuum_hours"],
        )
        asked = asked_of(given, mode=given["mode"])
        try:
            target = DeltaTarget(given["directory"])
        except ImportError as error:
            raise click.ClickException(str(error)) from None
    keep(topic, given, plan, asked, target)

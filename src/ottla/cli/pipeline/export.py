"""`ottla pipeline export TOPIC --to DIR`: records of a topic as Delta or Parquet; a rerun adds what is new."""

from __future__ import annotations

from typing import Any

import click

from ottla.cli.common.complete import topic_names
from ottla.cli.table.options import asked_of, bytes_of, keep, table_options

EPILOG = """\b
Ranges: orders@-1h:end   orders/0,2@100:200   orders@2026-01-01:2026-02-01; see ottla consume --help.
Offsets are kept with the rows: killed and run again, it goes on, and each record is there once."""


@click.command(name="export", epilog=EPILOG)
@click.argument("part", metavar="TOPIC[/PARTITIONS][@FROM:TO]", shell_complete=topic_names)
@table_options
@click.option("--format", "form", type=click.Choice(["delta", "parquet"]), default="delta", help="[default: delta]")
def command(part: str, **given: Any) -> None:
    """Export TOPIC, or a range of it, to files in a directory. Run again, it adds the records that are new."""
    import time

    from ottla.cli.common.errors import told
    from ottla.client.fetch.ranges import END, parse_part
    from ottla.lake.table.parquet_target import ParquetTarget
    from ottla.lake.table.sync import SyncOptions
    from ottla.lake.table.target import DeltaTarget

    with told():
        range = parse_part(part, int(time.time() * 1000)).range
        plan = SyncOptions(
            range=range if range.last is not None else range._replace(last=END),
            once=True,
            commit_bytes=bytes_of(given["commit_bytes"], "--commit-bytes"),
            fails_on_loss=given["on_loss"] == "fail",
            compact_commits=0,
        )
        asked = asked_of(given, mode="append")
        try:
            target = DeltaTarget(given["directory"]) if given["form"] == "delta" else ParquetTarget(given["directory"])
        except ImportError as error:
            raise click.ClickException(str(error)) from None
    keep(part, given, plan, asked, target)

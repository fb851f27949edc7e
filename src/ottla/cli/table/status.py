"""`ottla table status DIR` and `ottla table compact DIR`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.arguments import size_text
from ottla.cli.common.connection import profile_option
from ottla.cli.common.errors import bootstrap_option, reporting_errors
from ottla.cli.common.paths import LocationPath
from ottla.cli.table.places import existing_place, place_options
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.lake.table.status import TableStatus

directory_argument = click.argument("directory", metavar="DIR|URL|NAME", type=LocationPath())


@click.command("status")
@directory_argument
@click.option("--offline", is_flag=True, help="Do not query the topic's log end offsets.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@place_options
@bootstrap_option
def status(directory: Path | str, offline: bool, output: str, bootstrap: str, **place: Any) -> None:
    """Show version, rows, files, columns, offsets and lag of the table in DIR, or of NAMESPACE.TABLE in a catalog."""
    with reporting_errors():
        from ottla.lake.table.status import status as status_of

        found = status_of(existing_place(directory, place))
        ends, story = ({}, "not queried") if offline else _ends(found, bootstrap)
    lag = {partition: max(0, end - found.offsets.get(partition, 0)) for partition, end in ends.items()}
    if output == "json":
        click.echo(json.dumps(_object(found, ends, lag, story), ensure_ascii=False))
        return
    _show(directory, found, ends, lag, story)


def _ends(found: TableStatus, bootstrap: str) -> tuple[Mapping[int, int], str]:
    """The topic's log end offsets, and "" or why they are unknown."""
    from ottla.lake.table.target import TableConflict, TableOrigin, check_origin
    from ottla.lake.table.topic import Topic

    try:
        with Topic(found.topic, bootstrap_servers=bootstrap, client_id="ottla-cli", default_api_timeout_ms=5_000) as topic:
            check_origin(TableOrigin(topic.name, topic.topic_id), found.topic, found.topic_id, "DIR")
            return topic.ends(), ""
    except (KafkaError, TableConflict, OSError, TimeoutError) as error:
        return {}, " ".join(str(error).split())


def _object(found: TableStatus, ends: Mapping[int, int], lag: Mapping[int, int], story: str) -> dict[str, Any]:
    return {
        "format": found.kind, "topic": found.topic, "topic_id": found.topic_id, "value": found.form.value, "mode": found.form.mode,
        "version": found.version, "rows": found.rows, "files": found.files, "bytes": found.bytes, "columns": dict(found.columns),
        "offsets": {str(partition): offset for partition, offset in found.offsets.items()},
        "ends": {str(partition): end for partition, end in ends.items()},
        "lag": sum(lag.values()) if ends else None, "problem": story or None,
    }  # fmt: skip


def _show(directory: Path | str, found: TableStatus, ends: Mapping[int, int], lag: Mapping[int, int], story: str) -> None:
    click.echo(f"{directory}: {found.kind} table of topic {found.topic}, {found.form.mode}, values {found.form.value}")
    click.echo(f"version {found.version}  rows {found.rows:,}  files {found.files:,}  {size_text(found.bytes)}")
    click.echo("columns " + ", ".join(f"{name} {kind}" for name, kind in found.columns))
    for partition in sorted({*found.offsets, *ends}):
        behind = f"  end {ends[partition]:,}  lag {lag[partition]:,}" if partition in ends else ""
        click.echo(f"{found.topic}-{partition}  next offset {found.offsets.get(partition, 0):,}{behind}")
    click.echo(f"lag {sum(lag.values()):,}" if ends else f"lag unknown: {story}")


@click.command("compact")
@directory_argument
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@click.option("--vacuum-hours", type=click.IntRange(min=0), metavar="N",
              help="Remove files that no version of the last N hours uses; below 168, readers of older versions fail.")  # fmt: skip
@place_options
@profile_option("Use the options of object stores of a profile; see ottla profile.")
def compact_command(directory: Path | str, vacuum_hours: int | None, output: str, **place: Any) -> None:
    """Merge small files of the table in DIR, or of NAMESPACE.TABLE in a catalog. Writers and readers are not disturbed."""
    with reporting_errors():
        from ottla.lake.table.compaction import compacted

        done, vacuumed = compacted(existing_place(directory, place), vacuum_hours)
    if output == "json":
        click.echo(json.dumps({"merged_files": done.removed, "new_files": done.added, "vacuumed_files": vacuumed}))
        return
    click.echo(f"{done.removed} files were merged into {done.added}")
    if vacuumed is not None:
        click.echo(f"{vacuumed} old files removed")

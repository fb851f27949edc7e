"""``ottla pipeline diff``: what a restart with a changed pipeline file would do. Needs no broker, no checkpoint and no Java."""

from __future__ import annotations

from pathlib import Path

import click

from ottla.cli.common.output_formats import OutputFormat, fields, output_option
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.tables import Column
from ottla.cli.pipeline.commands import EXIT_FAILED, load_pipeline, variables_option
from ottla.cli.pipeline.plan import exiting

CHANGES = (Column("EFFECT", "effect"), Column("OF", "what"), Column("CHANGE", "sentence"))


@fields(
    effect="refused, unsure (Spark decides), recomputed, new records, stopped or none",
    what="view, sink or key of the file",
    sentence="the change, and what to do",
)
@click.command("diff")
@click.argument("old", type=LocalPath(path_type=Path))
@click.argument("new", type=LocalPath(path_type=Path))
@variables_option
@output_option
def diff(old: Path, new: Path, variables: tuple[str, ...], output: OutputFormat) -> None:
    """Show what a restart with the pipeline file NEW in place of OLD would refuse, recompute, or apply to new records only.

    Needs no broker, no checkpoint and no Java. Exits with 1 if the restart would be refused.
    """
    from dataclasses import replace

    before, after = load_pipeline(old, variables), load_pipeline(new, variables)
    # Two files beside each other have other default names; NEW takes the place of OLD.
    named = f".ottla/{new.stem}" if after.checkpoint_topic is None else f".ottla/{after.checkpoint_topic}/{new.stem}"
    if (
        (before.name, after.name) == (old.stem, new.stem)
        and (after.checkpoint == named or after.checkpoint_url is not None)
        and (before.checkpoint_topic, before.checkpoint_url) == (after.checkpoint_topic, after.checkpoint_url)
    ):
        after = replace(after, name=before.name, checkpoint=before.checkpoint)
    with exiting():
        from ottla.spark.pipeline.file_differences import file_differences

        found = [{"effect": one.effect, "what": one.what, "sentence": one.sentence} for one in file_differences(before, after)]
    if found or output.is_structured:
        output.show(found, CHANGES)
    else:
        click.echo("no difference")
    if any(one["effect"] == "refused" for one in found):
        raise SystemExit(EXIT_FAILED)

"""`ottla backup` and `ottla restore`.

    ottla backup cluster.json
    ottla restore cluster.json -b other:9092 --dry-run

A restore adds and changes, and deletes nothing. It can be repeated: what is there already is not changed.
"""

from __future__ import annotations

import time
from typing import Any, assert_never

import click

import ottla
from ottla.cli.backup import content
from ottla.cli.backup.apply import apply
from ottla.cli.backup.collect import NEVER_SAVED, Collector
from ottla.cli.backup.content import PARTS, Backup
from ottla.cli.backup.plan import (
    AddAcl,
    AddPartitions,
    Change,
    Choices,
    CommitOffset,
    CreateTopic,
    Plan,
    Ranges,
    SetQuota,
    SetSetting,
    plan,
    wanted_partitions,
)
from ottla.cli.common import tables
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.output_formats import OutputFormat, fields, note
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.tables import Column
from ottla.wire.errors import KafkaError

SAVED = (Column("PART", "part"), Column("NUMBER", "number", number=True))
CHANGED = (Column("PART", "part"), Column("NAME", "name"), Column("CHANGE", "change"), Column("OUTCOME", "outcome"))


@fields(
    {
        "parts[].part": "topics, settings, acls, quotas, users or groups",
        "parts[].number": "how many of them are in the file; null: the part was left out",
    },
    file="name of the file",
    cluster_id="id of the cluster",
    left_out="what is not in the file, and why",
)
@click.command(name="backup")
@click.argument("file", metavar="FILE", type=LocalPath(dir_okay=False, allow_dash=True))
@click.option("--without", multiple=True, type=click.Choice(PARTS), metavar="PART", help=f"Leave out {', '.join(PARTS)}; repeatable.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@admin_options
def backup(file: str, without: tuple[str, ...], overwrite: bool, output: OutputFormat, bootstrap: str) -> None:
    """Write metadata and configuration of a cluster to FILE: topics, settings, access rules, quotas, users, group offsets.

    FILE is JSON, readable only by you; - is standard output. Records, passwords, tokens and transactional ids are not in it.
    """
    with admin_client(bootstrap) as admin:
        saved = Collector(admin, without).backup(int(time.time() * 1000))
        content.write(saved, file, overwrite=overwrite)
    for reason in saved.left_out:
        note(f"Left out: {reason}")
    if file != content.STREAM:
        parts = [{"part": part, "number": None if (found := getattr(saved, part)) is None else len(found)} for part in PARTS]
        if output.is_structured:
            output.document({"file": file, "cluster_id": saved.cluster_id, "parts": parts, "left_out": saved.left_out})
        else:
            output.table(parts, SAVED, title=f"{file}: cluster {saved.cluster_id}")
    note(f"Never in a backup: {NEVER_SAVED}.")


@fields(
    {
        "changes[].part": "topics, settings, acls, quotas or groups",
        "changes[].name": "what changes",
        "changes[].change": "how it changes",
        "changes[].outcome": "done, would be done, or null: failed",
        "changes[].error": "null, or {code, message}: the protocol's error code and a message",
    },
    cluster_id="id of the cluster that is changed",
    executed="whether --dry-run was not set",
    remarks="what is not restored, and why",
)
@click.command(name="restore")
@click.argument("file", metavar="FILE", type=LocalPath(exists=True, dir_okay=False, allow_dash=True))
@click.option("--only", multiple=True, type=click.Choice(PARTS), metavar="PART", help=f"Only {', '.join(PARTS)}; repeatable.")
@click.option("--replicas", type=click.IntRange(1, 32767), metavar="N", help="Replicas of topics that are created. [default: as before]")
@click.option("--same-brokers", is_flag=True, help="Place replicas of new topics on the same brokers as before.")
@click.option("--reset-offsets", is_flag=True, help="Replace committed offsets that differ, also newer ones.")
@dry_run_option
@yes_option
@admin_options
def restore(
    file: str, only: tuple[str, ...], replicas: int | None, same_brokers: bool, reset_offsets: bool, dry_run: bool, yes: bool,
    output: OutputFormat, bootstrap: str,
) -> None:  # fmt: skip
    """Add and change what is in a file of ottla backup, and delete nothing; a repeated restore changes nothing.

    With --dry-run the brokers check the new topics, settings and quotas. Exit code 1 if a change fails.
    """
    if replicas is not None and same_brokers:
        raise click.UsageError("--replicas and --same-brokers exclude each other")
    with admin_client(bootstrap) as admin:
        saved = _chosen(content.read(file), only)
        present = Collector(admin, [part for part in PARTS if getattr(saved, part) is None]).backup(0)
        choices = Choices(replicas=replicas, same_brokers=same_brokers, reset_offsets=reset_offsets)
        made = plan(saved, present, _ranges(admin, saved, present), choices)
        if made.changes and not dry_run:
            question = f"Make {len(made.changes)} changes in cluster {present.cluster_id}."
            confirm(question, (f"{part} {name}: {change}" for part, name, change in map(described, made.changes)), yes=yes)
        outcomes = list(apply(admin, made, validate_only=dry_run))
    _show(present, made, [(change, error) for change, error in outcomes if error is not None], dry_run, output)


def _chosen(saved: Backup, only: tuple[str, ...]) -> Backup:
    if only:
        for part in PARTS:
            if part not in only:
                setattr(saved, part, None)
    return saved


def _ranges(admin: ottla.Admin, saved: Backup, present: Backup) -> Ranges:
    """Log ranges of the saved partitions that exist."""
    from ottla.client.fetch.offsets import EARLIEST, LATEST

    partitions = wanted_partitions(saved)
    starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST)) if partitions else {}
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST)) if partitions else {}
    return {
        tp: (start.offset, end.offset)
        for tp, start in starts.items()
        if not isinstance(start, KafkaError) and not isinstance(end := ends[tp], KafkaError)
    }


def described(change: Change) -> tuple[str, str, str]:
    """Part, name and change as text."""
    match change:
        case AddAcl(acl):
            return "acls", acl.principal, f"add {acl}"
        case SetQuota(entity, key, before, after):
            return "quotas", str(entity), f"{key}: {'none' if before is None else f'{before:g}'} -> {after:g}"
        case CreateTopic(name, partitions, factor, _, settings):
            pairs = "".join(f", {key}={value}" for key, value in settings.items())
            return "topics", name, f"create: {partitions} partitions, {factor} replicas{pairs}"
        case AddPartitions(name, before, after):
            return "topics", name, f"partitions: {before} -> {after}"
        case SetSetting(resource, key, before, after):
            return "settings", str(resource), f"{key}: {'default' if before is None else before} -> {after}"
        case CommitOffset(group, tp, before, offset):
            return "groups", group, f"offset of {tp}: {'none' if before is None else before} -> {offset.offset}"
        case _:
            assert_never(change)


def _show(present: Backup, made: Plan, failed: list[tuple[Change, KafkaError]], dry_run: bool, output: OutputFormat) -> None:
    errors = {id(change): error for change, error in failed}
    rows: list[dict[str, Any]] = []
    for change in made.changes:
        error = errors.get(id(change))
        part, name, text = described(change)
        outcome = None if error is not None else "would be done" if dry_run else "done"
        told = None if error is None else {"code": error.code, "message": " ".join(str(error).split())}
        rows.append({"part": part, "name": name, "change": text, "outcome": outcome, "error": told})
    if output.is_structured:
        output.document({"cluster_id": present.cluster_id, "executed": not dry_run, "changes": rows, "remarks": made.remarks})
    else:
        output.table(rows, CHANGED, title=f"cluster {present.cluster_id}")
        for row in rows:
            if row["error"] is not None:
                note(f"Error: {row['part']} {row['name']}: {row['error']['message']}")
        for remark in made.remarks:
            note(f"Not restored: {remark}")
    if not rows and tables.is_terminal() and not output.is_structured:
        click.echo("Nothing to change: the cluster has everything that is in the file.")
    if dry_run:
        note(NOTHING_CHANGED)
    if failed:
        raise SystemExit(1)

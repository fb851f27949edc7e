"""`ottla topic delete` and `ottla topic records-delete`. Both need a confirmation; see `ottla.cli.common.confirmation`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TextIO

import click

import ottla
from ottla.base.ids import TopicPartition
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import duration_ms, time_ms
from ottla.cli.common.complete import topic_names
from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.output_formats import OUTCOME, OutputFormat, fields, note
from ottla.cli.common.paths import LocalFile
from ottla.cli.common.tables import PLACE, Column
from ottla.cli.topic.lookup import log_offsets, record_count, select_partitions, with_suggestion
from ottla.client.admin.results import PartitionDescription
from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

DELETIONS = (
    Column("NAME", "name"),
    Column("OUTCOME", "outcome"),
    Column("PARTITIONS", "partitions", number=True),
    Column("RECORDS", "records", number=True),
)


@fields(
    OUTCOME,
    partitions="with --dry-run: number of its partitions; null: it does not exist",
    records="with --dry-run: number of offsets in its logs; null: unknown",
)
@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=topic_names)
@click.option("--match", is_flag=True, help="Names are patterns, such as 'test-*'; internal topics are excluded.")
@click.option("--if-exists", is_flag=True, help="Succeed if the topic does not exist.")
@dry_run_option
@yes_option
@admin_options
def delete(names: tuple[str, ...], match: bool, if_exists: bool, dry_run: bool, yes: bool, output: OutputFormat, bootstrap: str) -> None:
    """Delete topics with all their records."""
    with admin_client(bootstrap) as admin:
        if match:
            names = _matching(admin, names)
        names = tuple(dict.fromkeys(names))
        if dry_run:
            _would_delete(admin, names, if_exists, output)
            return
        if not yes:
            confirm(_question(len(names)), _described(admin, names), yes=False)
        outcomes = admin.delete_topics(names)
        missing = {name: "not there" for name, outcome in outcomes.items() if isinstance(outcome, UnknownTopicOrPartition)}
        failed = {
            name: with_suggestion(admin, name, outcome)
            for name, outcome in outcomes.items()
            if isinstance(outcome, KafkaError) and not (if_exists and name in missing)
        }
    output.report(names, failed, "deleted", missing)


def _question(count: int) -> str:
    return f"{count} topic{'s' if count > 1 else ''} would be deleted with all records."


def _matching(admin: ottla.Admin, patterns: Sequence[str]) -> tuple[str, ...]:
    existing = sorted(topic.name for topic in admin.list_topics())
    matches = {pattern: [name for name in existing if fnmatchcase(name, pattern)] for pattern in patterns}
    if unmatched := [pattern for pattern, names in matches.items() if not names]:
        raise click.ClickException(f"no topic matches {unmatched[0]}")
    return tuple(name for names in matches.values() for name in names)


def _sizes(admin: ottla.Admin, names: Sequence[str]) -> dict[str, tuple[int, int | None] | Exception]:
    """(partitions, records) of topics, or the error."""
    topics = admin.describe_topics(names)
    partitions = {
        TopicPartition(name, one.partition): one
        for name, topic in topics.items()
        if not isinstance(topic, KafkaError)
        for one in topic.partitions
    }
    logs = log_offsets(admin, partitions)
    return {
        name: topic
        if isinstance(topic, KafkaError)
        else (len(topic.partitions), record_count(logs[TopicPartition(name, one.partition)] for one in topic.partitions))
        for name, topic in topics.items()
    }


def _described(admin: ottla.Admin, names: Sequence[str]) -> list[str]:
    return [
        f"{name}: {size}" if isinstance(size, Exception) else f"{name}: {size[0]} partitions, {'?' if size[1] is None else size[1]} records"
        for name, size in _sizes(admin, names).items()
    ]


def _would_delete(admin: ottla.Admin, names: Sequence[str], if_exists: bool, output: OutputFormat) -> None:
    sizes = _sizes(admin, names)
    documents: list[dict[str, Any]] = []
    failed = False
    for name in names:
        size = sizes[name]
        row: dict[str, Any] = {"name": name, "outcome": "would be deleted", "error": None, "partitions": None, "records": None}
        if isinstance(size, KafkaError):
            absent = isinstance(size, UnknownTopicOrPartition)
            row["outcome"] = "not there" if absent and if_exists else None
            if row["outcome"] is None:
                error = with_suggestion(admin, name, size)
                row["error"] = {"code": size.code, "message": str(error)}
                failed = True
                note(f"Error: {name}: {error}")
        else:
            assert not isinstance(size, Exception), "errors of topics are KafkaErrors"
            row["partitions"], row["records"] = size
        documents.append(row)
    output.show(documents if output.is_structured else [row for row in documents if row["outcome"]], DELETIONS)
    note(NOTHING_CHANGED)
    if failed:
        raise SystemExit(1)


RECORDS = (
    *PLACE,
    Column("LOG-START-OFFSET", "start_offset", number=True),
    Column("LOG-END-OFFSET", "end_offset", number=True),
    Column("NEW-START-OFFSET", "before_offset", number=True),
    Column("RECORDS", "records", number=True),
    Column("OUTCOME", lambda row: row["outcome"] or "failed"),
)


@fields(
    topic="topic",
    partition="partition",
    start_offset="log start offset before",
    end_offset="log end offset",
    before_offset="new log start offset: records with smaller offsets are deleted",
    records="number of deleted offsets; there are fewer records after compaction and with transactions",
    outcome="deleted, would be deleted, or nothing to delete; null: failed",
    error="null, or {code, message}",
)
@click.command(name="records-delete")
@click.argument("topics", nargs=-1, metavar="TOPIC[:0,2-5]...", shell_complete=topic_names)
@click.option("--before-offset", type=click.IntRange(min=0), metavar="N", help="Delete records with smaller offsets.")
@click.option("--before-time", metavar="TIME", help="Delete records before a time: 2026-01-31T12:00:00 (local), or ms since 1970.")
@click.option("--older-than", metavar="DURATION", help="Delete records that are older, such as 1h30m or 7d.")
@click.option("--all-records", is_flag=True, help="Delete all records.")
@click.option(
    "--file", "listed", type=LocalFile("r"), metavar="FILE",
    help='File of kafka-delete-records.sh: {"partitions":[{"topic":"t","partition":0,"offset":3}]}; -1 is the log end.',
)  # fmt: skip
@dry_run_option
@yes_option
@admin_options
def records_delete(
    topics: tuple[str, ...], listed: TextIO | None, dry_run: bool, yes: bool, output: OutputFormat, bootstrap: str, **where: Any
) -> None:
    """Delete the oldest records of partitions: their log start offset moves up. Committed offsets of groups do not change."""
    limits = {option: value for option, value in where.items() if value is not None and value is not False}
    if listed is not None and (limits or topics):
        raise click.UsageError("--file cannot be combined with topics or other limits")
    if listed is None and (len(limits) != 1 or not topics):
        raise click.UsageError("expected topics and one of --before-offset, --before-time, --older-than, --all-records")
    with admin_client(bootstrap) as admin:
        if listed is not None:
            targets = _read(listed)
            partitions = _with_leaders(select_partitions(admin, [f"{tp.topic}:{tp.partition}" for tp in targets], "--file"))
        else:
            partitions = _with_leaders(select_partitions(admin, topics, "TOPIC"))
            targets = _targets(admin, partitions, *next(iter(limits.items())))
        documents = _plan(log_offsets(admin, partitions), targets)
        deletions = [row for row in documents if row["records"]]
        if not dry_run and deletions:
            confirm(
                f"{sum(row['records'] for row in deletions)} records of {len(deletions)} partitions would be deleted.",
                (f"{row['topic']}-{row['partition']}: {row['records']} records before offset {row['before_offset']}" for row in deletions),
                yes=yes,
            )
            _delete(admin, deletions)
    output.show(documents, RECORDS)
    failed = [row for row in documents if row["error"]]
    for row in failed:
        note(f"Error: {row['topic']}-{row['partition']}: {row['error']['message']}")
    if dry_run:
        note(NOTHING_CHANGED)
    if failed:
        raise SystemExit(1)


def _read(listed: TextIO) -> dict[TopicPartition, int]:
    """Raises: ClickException."""
    import msgspec

    try:
        partitions = msgspec.json.decode(listed.read())["partitions"]
        return {TopicPartition(str(one["topic"]), int(one["partition"])): int(one["offset"]) for one in partitions}
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        form = '{"partitions":[{"topic":"t","partition":0,"offset":3}]}'
        raise click.ClickException(f"{listed.name}: expected {form} ({type(error).__name__}: {error})") from None


def _with_leaders(partitions: dict[TopicPartition, PartitionDescription]) -> dict[TopicPartition, PartitionDescription]:
    """The same partitions. Raises: ClickException, if one has no leader, which is needed to delete records."""
    if leaderless := [tp for tp, one in partitions.items() if one.leader < 0]:
        raise click.ClickException(f"{leaderless[0]} has no leader; see ottla cluster status")
    return partitions


def _targets(admin: ottla.Admin, partitions: Iterable[TopicPartition], option: str, value: Any) -> dict[TopicPartition, int]:
    """The new log start offset of each partition, -1 for the log end. Raises: UsageError, KafkaError."""
    if option in ("all_records", "before_offset"):
        return dict.fromkeys(sorted(partitions), -1 if option == "all_records" else int(value))
    if option == "before_time":
        when_ms = time_ms(value, "--before-time")
    else:
        when_ms = int(time.time() * 1000) - duration_ms(value, "--older-than")
    targets = {}
    for tp, outcome in admin.list_offsets(dict.fromkeys(sorted(partitions), max(when_ms, 0))).items():
        if isinstance(outcome, KafkaError):
            raise type(outcome)(f"{tp}: {outcome}")
        targets[tp] = outcome.offset
    return targets


def _plan(logs: Mapping[TopicPartition, tuple[int | None, int | None]], targets: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    documents = []
    for tp, (start, end) in sorted(logs.items()):
        if start is None or end is None:
            raise click.ClickException(f"{tp}: log start and end offsets are unknown, because its leader did not answer")
        target = targets[tp]
        if target > end:
            raise click.ClickException(f"{tp}: offset {target} is beyond the log end offset {end}")
        before = end if target < 0 else max(target, start)
        documents.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "start_offset": start,
                "end_offset": end,
                "before_offset": before,
                "records": before - start,
                "outcome": "would be deleted" if before > start else "nothing to delete",
                "error": None,
            }
        )
    return documents


def _delete(admin: ottla.Admin, deletions: Sequence[dict[str, Any]]) -> None:
    """Deletes records, and sets the outcome in the documents."""
    outcomes = admin.delete_records({(row["topic"], row["partition"]): row["before_offset"] for row in deletions})
    for row in deletions:
        outcome = outcomes[TopicPartition(row["topic"], row["partition"])]
        if isinstance(outcome, KafkaError):
            row["outcome"], row["error"] = None, {"code": outcome.code, "message": str(outcome)}
        else:
            row["outcome"] = "deleted"

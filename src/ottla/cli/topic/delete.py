"""`ottla topic delete` and `ottla topic records-delete`: what destroys records. Both ask first; see `ottla.cli.common.confirmation`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TextIO

import click

from ottla.cli.common.arguments import duration_ms, time_ms
from ottla.cli.common.complete import topic_names
from ottla.cli.common.confirmation import DRY, agreed, dry_run_option, yes_option
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import told
from ottla.cli.common.output_formats import OUTCOME, Form, fields, note, output_option
from ottla.cli.common.paths import LocalFile
from ottla.cli.common.tables import Column
from ottla.cli.topic.lookup import chosen, ends, records, with_meant

if TYPE_CHECKING:
    from ottla.base.ids import TopicPartition
    from ottla.client.admin.results import PartitionDescription
    from ottla.client.sync.admin import Admin

DELETIONS = (
    Column("NAME", "name"),
    Column("OUTCOME", "outcome"),
    Column("PARTITIONS", "partitions", number=True),
    Column("RECORDS", "records", number=True),
)


@fields(
    OUTCOME,
    partitions="with --dry-run: how many it has; null: it is not there",
    records="with --dry-run: offsets in its logs in all; null: not known",
)
@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=topic_names)
@click.option("--match", is_flag=True, help="Names are patterns: 'test-*' means every topic that begins so, but none of the cluster's own.")
@click.option("--if-exists", is_flag=True, help="Be content with a topic that is not there.")
@dry_run_option
@yes_option
@output_option
@bootstrap_option
def delete(names: tuple[str, ...], match: bool, if_exists: bool, dry_run: bool, yes: bool, output: Form, bootstrap: str) -> None:
    """Delete topics with all their records."""
    from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

    with told(), connected(bootstrap) as admin:
        if match:
            names = _matching(admin, names)
        names = tuple(dict.fromkeys(names))
        if dry_run:
            _would_delete(admin, names, if_exists, output)
            return
        if not yes:
            agreed(_question(len(names)), _described(admin, names), yes=False)
        outcomes = admin.delete_topics(names)
        missing = {name: "not there" for name, outcome in outcomes.items() if isinstance(outcome, UnknownTopicOrPartition)}
        failed = {
            name: with_meant(admin, name, outcome)
            for name, outcome in outcomes.items()
            if isinstance(outcome, KafkaError) and not (if_exists and name in missing)
        }
    output.report(names, failed, "deleted", missing)


def _question(count: int) -> str:
    return f"{count} topic{'s' if count > 1 else ''} would be deleted with all records."


def _matching(admin: Admin, patterns: Sequence[str]) -> tuple[str, ...]:
    there = sorted(topic.name for topic in admin.list_topics())
    found = {pattern: [name for name in there if fnmatchcase(name, pattern)] for pattern in patterns}
    if idle := [pattern for pattern, names in found.items() if not names]:
        raise click.ClickException(f"no topic is like {idle[0]}")
    return tuple(name for names in found.values() for name in names)


def _sizes(admin: Admin, names: Sequence[str]) -> dict[str, tuple[int, int | None] | Exception]:
    """(partitions, records) of topics, or why they cannot be told."""
    from ottla.base.ids import TopicPartition
    from ottla.wire.errors import KafkaError

    topics = admin.describe_topics(names)
    there = {
        TopicPartition(name, one.partition): one
        for name, topic in topics.items()
        if not isinstance(topic, KafkaError)
        for one in topic.partitions
    }
    logs = ends(admin, there)
    return {
        name: topic
        if isinstance(topic, KafkaError)
        else (len(topic.partitions), records(logs[TopicPartition(name, one.partition)] for one in topic.partitions))
        for name, topic in topics.items()
    }


def _described(admin: Admin, names: Sequence[str]) -> list[str]:
    said = []
    for name, size in _sizes(admin, names).items():
        if isinstance(size, Exception):
            said.append(f"{name}: {size}")
        else:
            said.append(f"{name}: {size[0]} partitions, {'?' if size[1] is None else size[1]} records")
    return said


def _would_delete(admin: Admin, names: Sequence[str], if_exists: bool, output: Form) -> None:
    from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

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
                error = with_meant(admin, name, size)
                row["error"] = {"code": size.code, "message": str(error)}
                failed = True
                note(f"Error: {name}: {error}")
        else:
            assert not isinstance(size, Exception), "only the protocol's errors are answers"
            row["partitions"], row["records"] = size
        documents.append(row)
    output.show(documents if output.for_programs else [row for row in documents if row["outcome"]], DELETIONS)
    note(DRY)
    if failed:
        raise SystemExit(1)


# -- records

RECORDS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", number=True),
    Column("START", "start_offset", number=True),
    Column("END", "end_offset", number=True),
    Column("NEW START", "before_offset", number=True),
    Column("RECORDS", "records", number=True),
    Column("OUTCOME", lambda row: row["outcome"] or "failed"),
)


@fields(
    topic="its name",
    partition="its number",
    start_offset="where the log began",
    end_offset="where it ends",
    before_offset="where it begins then: records before this offset go",
    records="offsets that go; compaction and transactions leave fewer records than that",
    outcome="deleted, would be deleted, or nothing to delete; null: it failed",
    error="null, or {code, message}",
)
@click.command(name="records-delete")
@click.argument("topics", nargs=-1, metavar="TOPIC[:0,2-5]...", shell_complete=topic_names)
@click.option("--before-offset", type=click.IntRange(min=0), metavar="N", help="Records with smaller offsets.")
@click.option(
    "--before-time", metavar="TIME", help="Records before the first one from 2026-01-31T12:00:00 on (local time), or ms since 1970."
)
@click.option("--older-than", metavar="DURATION", help="Records before the first one that is not older than 1h30m, 7d.")
@click.option("--all-records", is_flag=True, help="Every record there is now.")
@click.option(
    "--file", "listed", type=LocalFile("r"), metavar="FILE",
    help='What Kafka\'s tool reads: {"partitions":[{"topic":"t","partition":0,"offset":3}]}; -1 is the end.',
)  # fmt: skip
@dry_run_option
@yes_option
@output_option
@bootstrap_option
def records_delete(
    topics: tuple[str, ...], listed: TextIO | None, dry_run: bool, yes: bool, output: Form, bootstrap: str, **where: Any
) -> None:
    """Delete the oldest records of partitions: they begin at a later offset then. What is committed by groups stays as it is."""
    given = {option: value for option, value in where.items() if value is not None and value is not False}
    if listed is not None and (given or topics):
        raise click.UsageError("--file says both which partitions and which records")
    if listed is None and (len(given) != 1 or not topics):
        raise click.UsageError("say of which partitions, and with one of --before-offset, --before-time, --older-than, --all-records what")
    with told(), connected(bootstrap) as admin:
        if listed is not None:
            targets = _read(listed)
            there = _led(chosen(admin, [f"{tp.topic}:{tp.partition}" for tp in targets], "--file"))
        else:
            there = _led(chosen(admin, topics, "TOPIC"))
            targets = _targets(admin, there, *next(iter(given.items())))
        documents = _planned(ends(admin, there), targets)
        going = [row for row in documents if row["records"]]
        if not dry_run and going:
            agreed(
                f"{sum(row['records'] for row in going)} records of {len(going)} partitions would be deleted.",
                (f"{row['topic']}-{row['partition']}: {row['records']} records before offset {row['before_offset']}" for row in going),
                yes=yes,
            )
            _delete(admin, going)
    output.show(documents, RECORDS)
    failed = [row for row in documents if row["error"]]
    for row in failed:
        note(f"Error: {row['topic']}-{row['partition']}: {row['error']['message']}")
    if dry_run:
        note(DRY)
    if failed:
        raise SystemExit(1)


def _read(listed: TextIO) -> dict[TopicPartition, int]:
    """Raises: ClickException."""
    import msgspec

    from ottla.base.ids import TopicPartition

    try:
        partitions = msgspec.json.decode(listed.read())["partitions"]
        return {TopicPartition(str(one["topic"]), int(one["partition"])): int(one["offset"]) for one in partitions}
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        form = '{"partitions":[{"topic":"t","partition":0,"offset":3}]}'
        raise click.ClickException(f"{listed.name}: expected {form} ({type(error).__name__}: {error})") from None


def _led(partitions: dict[TopicPartition, PartitionDescription]) -> dict[TopicPartition, PartitionDescription]:
    """The same, which must have leaders: nobody else deletes records. Raises: ClickException."""
    if headless := [tp for tp, one in partitions.items() if one.leader < 0]:
        raise click.ClickException(f"{headless[0]} has no leader; see ottla cluster status")
    return partitions


def _targets(admin: Admin, partitions: Iterable[TopicPartition], option: str, value: Any) -> dict[TopicPartition, int]:
    """Where each log is to begin, -1 for its end. Raises: UsageError, KafkaError."""
    from ottla.wire.errors import KafkaError

    if option in ("all_records", "before_offset"):
        return dict.fromkeys(sorted(partitions), -1 if option == "all_records" else int(value))
    if option == "before_time":
        when_ms = time_ms(value, "--before-time")
    else:
        when_ms = int(time.time() * 1000) - duration_ms(value, "--older-than")
    found = {}
    for tp, outcome in admin.list_offsets(dict.fromkeys(sorted(partitions), max(when_ms, 0))).items():
        if isinstance(outcome, KafkaError):
            raise type(outcome)(f"{tp}: {outcome}")
        found[tp] = outcome.offset
    return found


def _planned(logs: Mapping[TopicPartition, tuple[int | None, int | None]], targets: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    documents = []
    for tp, (start, end) in sorted(logs.items()):
        if start is None or end is None:
            raise click.ClickException(f"{tp}: nobody can tell where its log begins and ends")
        wanted = targets[tp]
        if wanted > end:
            raise click.ClickException(f"{tp}: its log ends at {end}, before offset {wanted}")
        before = end if wanted < 0 else max(wanted, start)
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


def _delete(admin: Admin, going: Sequence[dict[str, Any]]) -> None:
    """Do it, and say so in the documents."""
    from ottla.base.ids import TopicPartition
    from ottla.wire.errors import KafkaError

    outcomes = admin.delete_records({(row["topic"], row["partition"]): row["before_offset"] for row in going})
    for row in going:
        outcome = outcomes[TopicPartition(row["topic"], row["partition"])]
        if isinstance(outcome, KafkaError):
            row["outcome"], row["error"] = None, {"code": outcome.code, "message": str(outcome)}
        else:
            row["outcome"] = "deleted"

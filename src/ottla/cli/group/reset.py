"""`ottla group reset`: resets the offsets of a group without members. It is a dry run unless `--execute` is set.

One option selects the target offsets, others the partitions; a file or another group determines both. `--export` prints the targets as CSV
for `--from-file`: with `--to-current` that is a backup of the group's offsets.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TextIO

import click

import ottla
from ottla.base.ids import TopicPartition
from ottla.cli.common import tables
from ottla.cli.common.admin import admin_client, admin_options, partitions_option
from ottla.cli.common.arguments import duration_ms, time_ms
from ottla.cli.common.complete import group_names
from ottla.cli.common.output_formats import OutputFormat, fields, note
from ottla.cli.common.paths import LocalFile
from ottla.cli.common.tables import PLACE, Column
from ottla.cli.group.errors import group_error, has_members_remedy, with_remedy
from ottla.cli.topic import lookup
from ottla.client.admin.calls import good
from ottla.client.admin.group_results import GroupState
from ottla.client.admin.offset_resets import Move, PartitionOffsets, Policy, moves, read_offsets, write_csv
from ottla.wire.errors import GroupIdNotFound, KafkaError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


#: Options that select the target offsets.
TARGETS = (
    "--to-earliest", "--to-latest", "--to-current", "--to-offset", "--to-datetime", "--by-duration", "--shift-by", "--from-group",
    "--from-file",
)  # fmt: skip


COLUMNS = (
    *PLACE,
    Column("FROM", "from", number=True),
    Column("TO", "to", number=True),
    Column("NOTE", "note"),
)


@fields(
    {
        "partitions[].topic": "topic",
        "partitions[].partition": "partition",
        "partitions[].from": "committed offset before; null: none",
        "partitions[].to": "new committed offset; null: unchanged",
        "partitions[].note": "remark; null: none",
        "partitions[].error": "why it failed; null: no error",
    },
    group="group id",
    state="state of the group; null: the group is created",
    executed="whether --execute was set",
)
@click.command()
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option("--to-earliest", is_flag=True, help="Reset to the log start offset.")
@click.option("--to-latest", is_flag=True, help="Reset to the log end offset.")
@click.option("--to-current", is_flag=True, help="Keep committed offsets, moved into the log's range; the log end if there is none.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="Reset to the same offset in each partition.")
@click.option("--to-datetime", metavar="TIME", help="Reset to the first record at a time: 2026-01-31T12:00:00 (local), or ms since 1970.")
@click.option("--by-duration", metavar="DURATION", help="Reset to the first record that is not older, such as 1h30m, 2d or PT1H.")
@click.option("--shift-by", type=int, metavar="N", help="Move forward by N records; backward if N is negative.")
@click.option("--from-group", metavar="GROUP", shell_complete=group_names, help="Copy the offsets of another group.")
@click.option(
    "--from-file",
    type=LocalFile("r"),
    metavar="FILE",
    help="Read offsets from a file of --export or of ottla group lag -o json; - is stdin.",
)
@partitions_option
@click.option("--all-topics", is_flag=True, help="All partitions for which the group has offsets.")
@click.option("--execute/--dry-run", help="Commit the offsets, or only show them. [default: dry-run]")
@click.option("--export", is_flag=True, help="Print the target offsets as CSV.")
@admin_options
def reset(
    name: str, topics: tuple[str, ...], all_topics: bool, execute: bool, export: bool, output: OutputFormat, bootstrap: str, **targets: Any
) -> None:
    """Reset the offsets of a group without members; a dry run unless --execute is set."""
    selected = {option: value for option, value in targets.items() if value is not None and value is not False}
    if len(selected) != 1:
        raise click.UsageError(f"expected one of {', '.join(TARGETS)}")
    option, value = next(iter(selected.items()))
    if topics and all_topics:
        raise click.UsageError("--topic and --all-topics exclude each other")
    if not topics and not all_topics and option not in ("from_group", "from_file"):
        raise click.UsageError("missing the partitions: use --topic TOPIC[:0,1] or --all-topics")
    with admin_client(bootstrap) as admin:
        state = _state(admin, name)
        planned = _planned(admin, name, option, value, topics)
        if execute and state is not None and state.has_members:
            raise click.ClickException(
                f"cannot reset offsets of group {name}: it has members (state {state.value}). {has_members_remedy(name)}"
            )
        outcomes = _commit(admin, name, planned) if execute else {}
    _show(name, state, planned, outcomes, executed=execute, export=export, output=output)


def _state(admin: ottla.Admin, name: str) -> GroupState | None:
    """The state of the group; None if it does not exist: the commit creates it."""
    described = admin.describe_consumer_groups([name])[name]
    if isinstance(described, GroupIdNotFound):
        return None
    return good(described).state


def _planned(admin: ottla.Admin, name: str, option: str, value: Any, topics: Sequence[str]) -> list[Move]:
    committed = _committed(admin, name)
    source = _source_offsets(admin, name, option, value)
    chosen = list(lookup.select_partitions(admin, topics, "--topic")) if topics else sorted(source or committed)
    if not chosen:
        raise click.ClickException(f"group {name} has no offsets; select topics with --topic TOPIC")
    partition_offsets = _partition_offsets(admin, chosen, committed)
    return moves(partition_offsets, _policy(admin, option, value, partition_offsets, source))


def _committed(admin: ottla.Admin, name: str) -> dict[TopicPartition, int]:
    offsets = good(admin.list_consumer_group_offsets([name])[name])
    return {tp: one.offset for tp, one in offsets.items() if one is not None and not isinstance(one, KafkaError)}


def _source_offsets(admin: ottla.Admin, name: str, option: str, value: Any) -> dict[TopicPartition, int] | None:
    """The offsets of another group or of a file; None for other options."""
    if option == "from_group":
        described = admin.describe_consumer_groups([value])[value]
        if isinstance(described, KafkaError):
            raise group_error(admin, value, described)
        offsets = _committed(admin, value)
        if not offsets:
            raise click.ClickException(f"group {value} has no offsets")
        return offsets
    if option == "from_file":
        file: TextIO = value
        try:
            return read_offsets(file.read(), name)
        except ValueError as error:
            raise click.ClickException(f"{file.name}: {error}") from None
    return None


def _partition_offsets(
    admin: ottla.Admin, chosen: Iterable[TopicPartition], committed: Mapping[TopicPartition, int]
) -> dict[TopicPartition, PartitionOffsets]:
    """Committed offsets and log ranges. Partitions that do not exist are left out with a remark."""
    from ottla.client.fetch.offsets import EARLIEST, LATEST

    starts = admin.list_offsets(dict.fromkeys(chosen, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(chosen, LATEST))
    found = {}
    for tp in chosen:
        start, end = starts[tp], ends[tp]
        if isinstance(start, UnknownTopicOrPartition):
            click.echo(f"{tp}: left out, because it does not exist", err=True)
        else:
            found[tp] = PartitionOffsets(committed.get(tp), good(start).offset, good(end).offset)
    return found


def _policy(
    admin: ottla.Admin,
    option: str,
    value: Any,
    partition_offsets: Mapping[TopicPartition, PartitionOffsets],
    source: Mapping[TopicPartition, int] | None,
) -> Policy:
    from ottla.client.admin import offset_resets as policies

    match option:
        case "to_earliest":
            return policies.to_earliest
        case "to_latest":
            return policies.to_latest
        case "to_current":
            return policies.to_current
        case "to_offset":
            return policies.to_offset(value)
        case "shift_by":
            return policies.shift_by(value)
        case "to_datetime":
            return policies.to_time(_at(admin, partition_offsets, time_ms(value, "--to-datetime")))
        case "by_duration":
            return policies.to_time(_at(admin, partition_offsets, int(time.time() * 1000) - duration_ms(value, "--by-duration")))
        case _:
            assert source is not None, "offsets come from a file or a group"
            return policies.to_given(source, f"group {value}" if option == "from_group" else "the file")


def _at(admin: ottla.Admin, partition_offsets: Iterable[TopicPartition], when_ms: int) -> dict[TopicPartition, int]:
    return {tp: good(found).offset for tp, found in admin.list_offsets(dict.fromkeys(partition_offsets, max(when_ms, 0))).items()}


def _commit(admin: ottla.Admin, name: str, planned: list[Move]) -> dict[TopicPartition, KafkaError | None]:
    outcomes = admin.alter_consumer_group_offsets(name, {move.partition: move.target for move in planned if move.target is not None})
    return {tp: with_remedy(admin, name, error) if error is not None else None for tp, error in outcomes.items()}


def _document(
    name: str, state: GroupState | None, planned: list[Move], failed: Mapping[TopicPartition, KafkaError], *, executed: bool
) -> dict[str, Any]:
    rows = [
        {
            "topic": move.partition.topic,
            "partition": move.partition.partition,
            "from": move.committed,
            "to": move.target,
            "note": move.note or None,
            "error": str(failed[move.partition]) if move.partition in failed else None,
        }
        for move in planned
    ]
    return {"group": name, "state": state and state.value, "executed": executed, "partitions": rows}


def _show(
    name: str, state: GroupState | None, planned: list[Move], outcomes: Mapping[TopicPartition, KafkaError | None], *,
    executed: bool, export: bool, output: OutputFormat,
) -> None:  # fmt: skip
    failed = {tp: error for tp, error in outcomes.items() if error is not None}
    if export:
        click.echo(write_csv(planned), nl=False)
    else:
        document = _document(name, state, planned, failed, executed=executed)
        if output.is_structured:
            output.document(document)
        else:
            output.table(document["partitions"], COLUMNS, title=f"{name}  {state.value if state else 'new'}", prefix=("GROUP", name))
    for tp, error in failed.items():
        click.echo(f"Error: {tp}: {' '.join(str(error).split())}", err=True)
    if executed and tables.is_terminal() and not export and not output.is_structured:
        click.echo(f"Committed for {len(outcomes) - len(failed)} partitions.")
    if not executed and not export:
        note("Nothing was changed; commit the offsets with --execute.")
        if state is None:
            click.echo(f"Group {name} does not exist; --execute would create it.", err=True)
        elif state.has_members:
            click.echo(f"--execute would fail, because the group has members. {has_members_remedy(name)}", err=True)
    if failed:
        raise SystemExit(1)

"""`ottla group reset`: move the offsets of a group that has no members. Shows what it would do; `--execute` does it.

Exactly one option says where to, others which partitions; a file and another group say that themselves. `--export` prints where to as
CSV instead, which `--from-file` takes: with `--to-current`, a copy of a group's offsets to come back to.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TextIO

import click

from ottla.cli.common import tables
from ottla.cli.common.arguments import duration_ms, time_ms
from ottla.cli.common.complete import group_names, topic_names
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import told
from ottla.cli.common.output_formats import Form, fields, note, output_option
from ottla.cli.common.paths import LocalFile
from ottla.cli.common.tables import Column
from ottla.cli.group.errors import in_use, no_group, with_advice
from ottla.cli.topic import lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ottla.base.ids import TopicPartition
    from ottla.client.admin.group_results import GroupState
    from ottla.client.admin.offset_resets import Move, Policy, Standing
    from ottla.client.sync.admin import Admin
    from ottla.wire.errors import KafkaError

#: Options that say where to.
WHERE = (
    "--to-earliest", "--to-latest", "--to-current", "--to-offset", "--to-datetime", "--by-duration", "--shift-by", "--from-group",
    "--from-file",
)  # fmt: skip


COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", number=True),
    Column("FROM", "from", number=True),
    Column("TO", "to", number=True),
    Column("NOTE", "note"),
)


@fields(
    {
        "partitions[].topic": "a topic",
        "partitions[].partition": "a number",
        "partitions[].from": "the offset that was committed; null: none",
        "partitions[].to": "where it goes; null: it stays",
        "partitions[].note": "what was to be said of it",
        "partitions[].error": "why it was not done; null: it was, or was not tried",
    },
    group="its id",
    state="its state; null: it is not there, and is made",
    executed="whether --execute was given",
)
@click.command()
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option("--to-earliest", is_flag=True, help="To the start of the log: read everything again.")
@click.option("--to-latest", is_flag=True, help="To the end of the log: skip what is there.")
@click.option("--to-current", is_flag=True, help="To where it is, but inside of the log; to the end where nothing is committed.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To the same offset in each partition.")
@click.option("--to-datetime", metavar="TIME", help="To the first record from 2026-01-31T12:00:00 on (local time), or ms since 1970.")
@click.option("--by-duration", metavar="DURATION", help="To the first record that is not older than 1h30m, 2d, PT1H.")
@click.option("--shift-by", type=int, metavar="N", help="So many records on; back if negative.")
@click.option("--from-group", metavar="GROUP", shell_complete=group_names, help="To where another group is.")
@click.option(
    "--from-file", type=LocalFile("r"), metavar="FILE", help="To what a file says: --export's, or JSON of ottla group lag; - is stdin."
)
@click.option(
    "-t", "--topic", "topics", multiple=True, metavar="TOPIC[:0,2-5]", shell_complete=topic_names, help="These partitions; may be repeated."
)
@click.option("--all-topics", is_flag=True, help="All partitions that the group has offsets for.")
@click.option("--execute/--dry-run", help="Do it, or only show what would be done. [default: dry-run]")
@click.option("--export", is_flag=True, help="Print where to as CSV.")
@output_option
@bootstrap_option
def reset(
    name: str, topics: tuple[str, ...], all_topics: bool, execute: bool, export: bool, output: Form, bootstrap: str, **where: Any
) -> None:
    """Move the offsets of a group that has no members; without --execute, only show it."""
    given = {option: value for option, value in where.items() if value is not None and value is not False}
    if len(given) != 1:
        raise click.UsageError(f"say where to, with one of {', '.join(WHERE)}")
    option, value = next(iter(given.items()))
    if topics and all_topics:
        raise click.UsageError("either --topic or --all-topics")
    if not topics and not all_topics and option not in ("from_group", "from_file"):
        raise click.UsageError("say which partitions: --topic TOPIC[:0,1], or --all-topics")
    with told(), connected(bootstrap) as admin:
        state = _state(admin, name)
        planned = _planned(admin, name, option, value, topics)
        if execute and state is not None and state.has_members:
            raise click.ClickException(f"group {name} has members (its state is {state.value}), whose offsets are theirs. {in_use(name)}")
        outcomes = _executed(admin, name, planned) if execute else {}
    _show(name, state, planned, outcomes, executed=execute, export=export, output=output)


def _state(admin: Admin, name: str) -> GroupState | None:
    """The state of the group; None if it is not there, which is no error: it is made when offsets are committed."""
    from ottla.wire.errors import GroupIdNotFound, KafkaError

    described = admin.describe_consumer_groups([name])[name]
    if isinstance(described, GroupIdNotFound):
        return None
    if isinstance(described, KafkaError):
        raise described
    return described.state


def _planned(admin: Admin, name: str, option: str, value: Any, topics: Sequence[str]) -> list[Move]:
    from ottla.client.admin.offset_resets import moves

    committed = _committed(admin, name)
    given = _given(admin, name, option, value)
    if topics:
        chosen = list(lookup.chosen(admin, topics, "--topic"))
    else:
        chosen = sorted(committed if given is None or not given else given)
    if not chosen:
        raise click.ClickException(f"group {name} has no offsets; name the topics: --topic TOPIC")
    standings = _standings(admin, chosen, committed)
    return moves(standings, _policy(admin, option, value, standings, given))


def _committed(admin: Admin, name: str) -> dict[TopicPartition, int]:
    from ottla.wire.errors import KafkaError

    found = admin.list_consumer_group_offsets([name])[name]
    if isinstance(found, KafkaError):
        raise found
    return {tp: one.offset for tp, one in found.items() if one is not None and not isinstance(one, KafkaError)}


def _given(admin: Admin, name: str, option: str, value: Any) -> dict[TopicPartition, int] | None:
    """Offsets that somebody else says: another group, or a file."""
    from ottla.client.admin.offset_resets import read_offsets
    from ottla.wire.errors import KafkaError

    if option == "from_group":
        described = admin.describe_consumer_groups([value])[value]
        if isinstance(described, KafkaError):
            raise no_group(admin, value, described)
        given = _committed(admin, value)
        if not given:
            raise click.ClickException(f"group {value} has no offsets")
        return given
    if option == "from_file":
        file: TextIO = value
        try:
            return read_offsets(file.read(), name)
        except ValueError as error:
            raise click.ClickException(f"{file.name}: {error}") from None
    return None


def _standings(admin: Admin, chosen: Iterable[TopicPartition], committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, Standing]:
    """Where the group and the logs are. A topic that is gone is left out, with a word."""
    from ottla.client.admin.offset_resets import Standing
    from ottla.client.fetch.offsets import EARLIEST, LATEST
    from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

    starts = admin.list_offsets(dict.fromkeys(chosen, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(chosen, LATEST))
    found = {}
    for tp in chosen:
        start, end = starts[tp], ends[tp]
        if isinstance(start, UnknownTopicOrPartition):
            click.echo(f"{tp}: left out, as it does not exist", err=True)
        elif isinstance(start, KafkaError):
            raise start
        elif isinstance(end, KafkaError):
            raise end
        else:
            found[tp] = Standing(committed.get(tp), start.offset, end.offset)
    return found


def _policy(
    admin: Admin, option: str, value: Any, standings: Mapping[TopicPartition, Standing], given: Mapping[TopicPartition, int] | None
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
            return policies.to_time(_at(admin, standings, time_ms(value, "--to-datetime")))
        case "by_duration":
            return policies.to_time(_at(admin, standings, int(time.time() * 1000) - duration_ms(value, "--by-duration")))
        case _:
            assert given is not None, "a file or a group was read"
            return policies.to_given(given, f"group {value}" if option == "from_group" else "the file")


def _at(admin: Admin, standings: Iterable[TopicPartition], when_ms: int) -> dict[TopicPartition, int]:
    from ottla.wire.errors import KafkaError

    found = {}
    for tp, outcome in admin.list_offsets(dict.fromkeys(standings, max(when_ms, 0))).items():
        if isinstance(outcome, KafkaError):
            raise outcome
        found[tp] = outcome.offset
    return found


def _executed(admin: Admin, name: str, planned: list[Move]) -> dict[TopicPartition, KafkaError | None]:
    outcomes = admin.alter_consumer_group_offsets(name, {move.partition: move.target for move in planned if move.target is not None})
    return {tp: with_advice(admin, name, error) if error is not None else None for tp, error in outcomes.items()}


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
    executed: bool, export: bool, output: Form,
) -> None:  # fmt: skip
    from ottla.client.admin.offset_resets import write_csv

    failed = {tp: error for tp, error in outcomes.items() if error is not None}
    if export:
        click.echo(write_csv(planned), nl=False)
    else:
        document = _document(name, state, planned, failed, executed=executed)
        if output.for_programs:
            output.document(document)
        else:
            output.table(document["partitions"], COLUMNS, title=f"{name}  {state.value if state else 'new'}", prefix=("GROUP", name))
    for tp, error in failed.items():
        click.echo(f"Error: {tp}: {' '.join(str(error).split())}", err=True)
    if executed and tables.is_terminal() and not export and not output.for_programs:
        click.echo(f"Committed for {len(outcomes) - len(failed)} partitions.")
    if not executed and not export:
        note("Nothing was changed: this is what --execute would do.")
        if state is None:
            click.echo(f"There is no group {name} yet; it would be made.", err=True)
        elif state.has_members:
            click.echo(f"But not now, while the group has members. {in_use(name)}", err=True)
    if failed:
        raise SystemExit(1)

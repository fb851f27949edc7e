"""`ottla cluster reassign`: moves replicas between brokers, with plans in the format of kafka-reassign-partitions.sh.

    ottla cluster reassign plan -t orders --brokers 1,2,4 -o json > plan.json
    ottla cluster reassign execute plan.json --throttle 50000000 --yes
    ottla cluster reassign verify plan.json

Commands that move data are dry runs without `--yes`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TextIO

import click

import ottla
from ottla.base.ids import TopicPartition
from ottla.cli.cluster.reassign_throttle import throttle_moves, unthrottle
from ottla.cli.common.admin import admin_client, admin_options, partitions_option
from ottla.cli.common.arguments import partition_selection, size_text
from ottla.cli.common.lazy import CommandGroup
from ottla.cli.common.output_formats import OUTCOME, OutputFormat, fields, note
from ottla.cli.common.paths import LocalFile
from ottla.cli.common.tables import Column
from ottla.client.admin.calls import good
from ottla.client.admin.reassignment_plan import Plan, plan_json, planned, read_plan, read_topics
from ottla.client.admin.results import PartitionReassignment
from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


PARTITION = Column("PARTITION", lambda row: f"{row['topic']}-{row['partition']}")
NOW = Column("REPLICAS", "replicas")
CURRENT = (PARTITION, NOW)
PLANNED = (
    PARTITION,
    NOW,
    Column("PLANNED", "planned"),
    Column("TO-COPY", lambda row: [broker for broker in row["planned"] if broker not in row["replicas"]]),
)
MOVES = (PARTITION, NOW, Column("ADDING", "adding"), Column("REMOVING", "removing"))
STATES = (PARTITION, NOW, Column("STATE", "state", colour=lambda row: {"done": "green", "moving": "yellow"}.get(row["state"], "red")))
PLAN = {
    "version": "1, the format of kafka-reassign-partitions.sh",
    "partitions[].topic": "topic",
    "partitions[].partition": "partition",
    "partitions[].replicas": "broker ids of the target replicas, the preferred leader first",
}
#: Interval of verify --wait.
POLL_S = 1.0
yes_option = click.option("-y", "--yes/--dry-run", help="Make the change, or only show it. [default: dry-run]")
keep_option = click.option("--keep-throttles", is_flag=True, help="Do not remove throttles.")
plan_argument = click.argument("plan", type=LocalFile("r"), metavar="PLAN")


@click.group(name="reassign", cls=CommandGroup)
def command() -> None:
    """Move replicas between brokers."""


@fields(PLAN)
@command.command()
@partitions_option
@click.option("--topics-file", type=LocalFile("r"), metavar="FILE", help='Topics as JSON: {"topics":[{"topic":"orders"}]}; - is stdin.')
@click.option("--all-topics", is_flag=True, help="All partitions, including internal topics.")
@click.option("--brokers", metavar="1,2,...", help="Brokers to use. [default: all live brokers]")
@click.option("-r", "--replicas", type=click.IntRange(min=1), help="Replication factor. [default: unchanged]")
@click.option("--current", is_flag=True, help="Print the current replicas instead.")
@admin_options
def plan(
    topics: tuple[str, ...],
    topics_file: TextIO | None,
    all_topics: bool,
    brokers: str | None,
    replicas: int | None,
    current: bool,
    output: OutputFormat,
    bootstrap: str,
) -> None:
    """Plan an even distribution of partitions with few moves. Brokers and racks count. -o json prints the plan for execute."""
    if sum((bool(topics), topics_file is not None, all_topics)) != 1:
        raise click.UsageError("expected one of --topic TOPIC[:0,1], --topics-file FILE, --all-topics")
    chosen = _broker_ids(brokers)
    with admin_client(bootstrap) as admin:
        if topics_file is not None:
            topics = tuple(read_topics(topics_file.read()))
        present = _replicas(admin, None if all_topics else partition_selection(topics, "--topic"))
        racks = {node.id: node.rack for node in admin.describe_cluster().nodes if not node.is_fenced}
        missing = sorted(set(chosen or ()) - set(racks))
        if missing:
            raise click.ClickException(f"broker {missing[0]} is not alive; live brokers are {', '.join(map(str, sorted(racks)))}")
        if chosen is not None:
            racks = {broker: racks[broker] for broker in chosen}
        made = {tp: tuple(ids) for tp, ids in present.items()} if current else planned(present, racks, factor=replicas)
    if output.is_structured:
        output.document(plan_json(made))
    elif current:
        output.table([_row(tp, replicas=ids) for tp, ids in sorted(made.items())], CURRENT)
    elif made:
        _show(made, present, output)
        click.echo("Print the plan for ottla cluster reassign execute with -o json.", err=True)
    else:
        click.echo("No replica needs to move.", err=True)


@fields(
    OUTCOME,
    topic="in a dry run: topic",
    partition="in a dry run: partition",
    replicas="in a dry run: broker ids of the current replicas",
    planned="in a dry run: broker ids of the target replicas",
)
@command.command()
@plan_argument
@click.option("--throttle", type=click.IntRange(min=1), metavar="BYTES", help="Limit of copying per broker, in bytes per second.")
@click.option("--keep-factor", is_flag=True, help="Refuse moves that change the replication factor.")
@click.option("--rollback", type=LocalFile("w"), metavar="FILE", help="Write a plan that restores the current replicas.")
@yes_option
@admin_options
def execute(
    plan: TextIO, throttle: int | None, keep_factor: bool, rollback: TextIO | None, yes: bool, output: OutputFormat, bootstrap: str
) -> None:
    """Start the moves of a plan; a dry run without --yes."""
    with admin_client(bootstrap) as admin:
        planned_replicas = _read(plan)
        present = _current_replicas(admin, planned_replicas)
        if not yes:
            _show_plan(planned_replicas, present, output)
            if throttle is not None:
                note(f"Each broker would copy at most {size_text(throttle)} per second.")
            return
        if rollback is not None:
            import msgspec

            rollback.write(msgspec.json.encode(plan_json(present)).decode() + "\n")
            rollback.close()
        if throttle is not None:
            throttle_moves(admin, present, planned_replicas, throttle)
        moves: dict[tuple[str, int], Sequence[int] | None] = dict(planned_replicas.items())
        outcomes = admin.alter_partition_reassignments(moves, allow_replication_factor_change=not keep_factor)
    _report(outcomes, "begun", output)
    if not output.is_structured:
        click.echo("Show the progress with ottla cluster reassign verify.", err=True)


@fields(
    {
        "partitions[].topic": "topic",
        "partitions[].partition": "partition",
        "partitions[].replicas": "broker ids of the planned replicas",
        "partitions[].state": "done, moving, or the different replicas that it has or moves to",
        "throttles_removed": "topics and brokers whose throttles were removed",
    }
)
@command.command()
@plan_argument
@click.option("--wait", is_flag=True, help="Wait until all moves are done.")
@keep_option
@admin_options
def verify(plan: TextIO, wait: bool, keep_throttles: bool, output: OutputFormat, bootstrap: str) -> None:
    """Show the state of a plan's moves. Throttles are removed once all are done. Exit code 1 if one is not done."""
    with admin_client(bootstrap) as admin:
        planned_replicas = _read(plan)
        while True:
            states = _states(admin, planned_replicas)
            if not wait or "moving" not in states.values():
                break
            time.sleep(POLL_S)
        moves = any(state == "moving" for state in states.values())
        removed = [] if moves or keep_throttles else unthrottle(admin, {tp.topic for tp in planned_replicas})
    if output.is_structured:
        output.document(
            {
                "partitions": [
                    {"topic": tp.topic, "partition": tp.partition, "replicas": list(planned_replicas[tp]), "state": state}
                    for tp, state in states.items()
                ],
                "throttles_removed": removed,
            }
        )
    else:
        output.table([_row(tp, replicas=planned_replicas[tp], state=state) for tp, state in states.items()], STATES)
        if removed:
            click.echo(f"Throttles were removed: {', '.join(removed)}.", err=True)
    if any(state != "done" for state in states.values()):
        raise SystemExit(1)


MOVE = {
    "topic": "topic",
    "partition": "partition",
    "replicas": "broker ids of all replicas, those of the target first",
    "adding": "broker ids of the replicas to add",
    "removing": "broker ids of the replicas to remove",
}


@fields(OUTCOME, {**MOVE, "topic": "in a dry run: topic"})
@command.command()
@click.argument("plan", type=LocalFile("r"), metavar="[PLAN]", required=False)
@click.option("--all", "everything", is_flag=True, help="Cancel all moves in the cluster.")
@keep_option
@yes_option
@admin_options
def cancel(plan: TextIO | None, everything: bool, keep_throttles: bool, yes: bool, output: OutputFormat, bootstrap: str) -> None:
    """Cancel unfinished moves; a dry run without --yes."""
    if (plan is None) is not everything:
        raise click.UsageError("expected either a plan or --all")
    with admin_client(bootstrap) as admin:
        planned_replicas = None if plan is None else _read(plan)
        moves = admin.list_partition_reassignments(planned_replicas)
        if not moves:
            note("No reassignment is in progress.")
            output.show([], MOVES)
            return
        if not yes:
            _show_moves(moves, output)
            click.echo("Nothing was cancelled; cancel with --yes.", err=True)
            return
        outcomes = admin.alter_partition_reassignments(dict.fromkeys(moves, None))
        if not keep_throttles:
            unthrottle(admin, {tp.topic for tp in moves})
    _report(outcomes, "cancelled", output)


@fields(MOVE)
@command.command(name="list")
@admin_options
def list_(output: OutputFormat, bootstrap: str) -> None:
    """List the reassignments in progress."""
    with admin_client(bootstrap) as admin:
        moves = admin.list_partition_reassignments()
    _show_moves(moves, output)


def _read(plan: TextIO) -> Plan:
    """Raises: ValueError."""
    try:
        return read_plan(plan.read())
    except ValueError as error:
        raise ValueError(f"{plan.name}: {error}") from None


def _broker_ids(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise click.UsageError(f"--brokers expects broker ids separated by commas, not {text!r}") from None


def _replicas(admin: ottla.Admin, selection: Mapping[str, set[int] | None] | None) -> dict[TopicPartition, list[int]]:
    """Replicas of partitions; of a partition that moves, its target replicas. Raises: KafkaError."""
    names = [topic.name for topic in admin.list_topics(internal=True)] if selection is None else list(selection)
    replicas: dict[TopicPartition, list[int]] = {}
    for name, topic in admin.describe_topics(names).items():
        numbers = None if selection is None else selection[name]
        existing = {one.partition: one.replicas for one in good(topic).partitions}
        if missing := sorted((numbers or set()) - set(existing)):
            raise UnknownTopicOrPartition(f"partition {name}-{missing[0]} does not exist")
        replicas.update({TopicPartition(name, number): ids for number, ids in existing.items() if numbers is None or number in numbers})
    for tp, move in admin.list_partition_reassignments(replicas).items():
        replicas[tp] = move.target
    return replicas


def _current_replicas(admin: ottla.Admin, planned_replicas: Plan) -> dict[TopicPartition, list[int]]:
    """Raises: KafkaError, if a partition of the plan does not exist."""
    selection: dict[str, set[int] | None] = {}
    for tp in planned_replicas:
        numbers = selection.setdefault(tp.topic, set())
        assert numbers is not None, "a plan lists single partitions"
        numbers.add(tp.partition)
    return _replicas(admin, selection)


def _states(admin: ottla.Admin, planned_replicas: Plan) -> dict[TopicPartition, str]:
    moves = admin.list_partition_reassignments(planned_replicas)
    present = _current_replicas(admin, planned_replicas)
    states = {}
    for tp, replicas in sorted(planned_replicas.items()):
        if tp in moves:
            states[tp] = "moving" if moves[tp].target == list(replicas) else f"moving to {','.join(map(str, moves[tp].target))}"
        else:
            states[tp] = "done" if present[tp] == list(replicas) else f"is on {','.join(map(str, present[tp]))}"
    return states


def _row(tp: TopicPartition, **rest: object) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition, **rest}


def _planned_rows(
    planned_replicas: Mapping[TopicPartition, Sequence[int]], present: Mapping[TopicPartition, Sequence[int]]
) -> list[dict[str, Any]]:
    return [_row(tp, replicas=list(present[tp]), planned=list(planned_replicas[tp])) for tp in sorted(planned_replicas)]


def _show(
    planned_replicas: Mapping[TopicPartition, Sequence[int]], present: Mapping[TopicPartition, Sequence[int]], output: OutputFormat
) -> None:
    output.table(_planned_rows(planned_replicas, present), PLANNED)


def _show_plan(planned_replicas: Plan, present: Mapping[TopicPartition, Sequence[int]], output: OutputFormat) -> None:
    output.show(_planned_rows(planned_replicas, present), PLANNED)
    note("Nothing was moved; start the moves with --yes.")


def _show_moves(moves: Mapping[TopicPartition, PartitionReassignment], output: OutputFormat) -> None:
    rows = [_row(tp, replicas=move.replicas, adding=move.adding, removing=move.removing) for tp, move in sorted(moves.items())]
    output.show(rows, MOVES)


def _report(outcomes: Mapping[TopicPartition, Any], done: str, output: OutputFormat) -> None:
    failed = {str(tp): outcome for tp, outcome in outcomes.items() if isinstance(outcome, KafkaError)}
    output.report([str(tp) for tp in sorted(outcomes)], failed, done)

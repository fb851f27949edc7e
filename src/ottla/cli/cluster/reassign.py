"""`ottla cluster reassign`: move replicas between brokers, by plans as kafka-reassign-partitions.sh reads and writes them.

    ottla cluster reassign plan -t orders --brokers 1,2,4 -o json > plan.json
    ottla cluster reassign execute plan.json --throttle 50000000 --yes
    ottla cluster reassign verify plan.json

What moves data only shows what it would do until it is given `--yes`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TextIO

import click

from ottla.cli.common.arguments import scope, size_text
from ottla.cli.common.complete import topic_names
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import told
from ottla.cli.common.lazy import Commands
from ottla.cli.common.output_formats import OUTCOME, Form, fields, note, output_option
from ottla.cli.common.paths import LocalFile
from ottla.cli.common.tables import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.base.ids import TopicPartition
    from ottla.client.admin.reassignment_plan import Plan
    from ottla.client.admin.results import PartitionReassignment
    from ottla.client.sync.admin import Admin

PARTITION = Column("PARTITION", lambda row: f"{row['topic']}-{row['partition']}")
NOW = Column("REPLICAS", "replicas")
CURRENT = (PARTITION, NOW)
PLANNED = (
    PARTITION,
    NOW,
    Column("PLANNED", "planned"),
    Column("TO COPY", lambda row: [broker for broker in row["planned"] if broker not in row["replicas"]]),
)
MOVES = (PARTITION, NOW, Column("ADDING", "adding"), Column("REMOVING", "removing"))
STATES = (PARTITION, NOW, Column("STATE", "state", colour=lambda row: {"done": "green", "moving": "yellow"}.get(row["state"], "red")))
PLAN = {
    "version": "1: the form is that of kafka-reassign-partitions.sh",
    "partitions[].topic": "a topic",
    "partitions[].partition": "a number",
    "partitions[].replicas": "the brokers that shall have a replica, the preferred leader first",
}
#: Between two looks of verify --wait.
LOOK_S = 1.0
yes_option = click.option("-y", "--yes/--dry-run", help="Do it, or only show what would be done. [default: dry-run]")
keep_option = click.option("--keep-throttles", is_flag=True, help="Leave throttles as they are.")
plan_argument = click.argument("plan", type=LocalFile("r"), metavar="PLAN")


@click.group(name="reassign", cls=Commands)
def command() -> None:
    """Move replicas between brokers."""


@fields(PLAN)
@command.command()
@click.option(
    "-t", "--topic", "topics", multiple=True, metavar="TOPIC[:0,2-5]", shell_complete=topic_names, help="These partitions; may be repeated."
)
@click.option("--topics-file", type=LocalFile("r"), metavar="FILE", help='Topics as JSON: {"topics":[{"topic":"orders"}]}; - is stdin.')
@click.option("--all-topics", is_flag=True, help="All partitions, the cluster's own topics too.")
@click.option("--brokers", metavar="1,2,...", help="Brokers to use; all that are alive if not given.")
@click.option("-r", "--replicas", type=click.IntRange(min=1), help="Replicas of each partition; as many as it has if not given.")
@click.option("--current", is_flag=True, help="Show where these partitions are, instead.")
@output_option
@bootstrap_option
def plan(
    topics: tuple[str, ...],
    topics_file: TextIO | None,
    all_topics: bool,
    brokers: str | None,
    replicas: int | None,
    current: bool,
    output: Form,
    bootstrap: str,
) -> None:
    """Spread partitions evenly over brokers and their racks, moving as little as possible; with -o json, print the plan to execute."""
    from ottla.client.admin.reassignment_plan import plan_json, planned, read_topics

    if sum((bool(topics), topics_file is not None, all_topics)) != 1:
        raise click.UsageError("say which partitions: --topic TOPIC[:0,1], --topics-file FILE or --all-topics")
    chosen = _broker_ids(brokers)
    with told(), connected(bootstrap) as admin:
        if topics_file is not None:
            topics = tuple(read_topics(topics_file.read()))
        present = _replicas(admin, None if all_topics else scope(topics, "--topic"))
        racks = {node.id: node.rack for node in admin.describe_cluster().nodes if not node.is_fenced}
        missing = sorted(set(chosen or ()) - set(racks))
        if missing:
            raise click.ClickException(f"broker {missing[0]} is not alive; there are {', '.join(map(str, sorted(racks)))}")
        if chosen is not None:
            racks = {broker: racks[broker] for broker in chosen}
        made = {tp: tuple(ids) for tp, ids in present.items()} if current else planned(present, racks, factor=replicas)
    if output.for_programs:
        output.document(plan_json(made))
    elif current:
        output.table([_row(tp, replicas=ids) for tp, ids in sorted(made.items())], CURRENT)
    elif made:
        _show(made, present, output)
        click.echo("With -o json this is a plan, for ottla cluster reassign execute.", err=True)
    else:
        click.echo("There is nothing to move.", err=True)


@fields(
    OUTCOME,
    topic="in a dry run: a topic",
    partition="a number",
    replicas="where it is",
    planned="where it goes",
)
@command.command()
@plan_argument
@click.option("--throttle", type=click.IntRange(min=1), metavar="BYTES", help="Copy so many bytes per second at most, on each broker.")
@click.option("--keep-factor", is_flag=True, help="Refuse partitions that would get another number of replicas.")
@click.option("--rollback", type=LocalFile("w"), metavar="FILE", help="Write a plan that leads back to where the partitions are now.")
@yes_option
@output_option
@bootstrap_option
def execute(
    plan: TextIO, throttle: int | None, keep_factor: bool, rollback: TextIO | None, yes: bool, output: Form, bootstrap: str
) -> None:
    """Begin to move partitions as a plan says. Without --yes, only show it."""
    from ottla.cli.cluster.reassign_throttle import throttle_moves
    from ottla.client.admin.reassignment_plan import plan_json

    with told(), connected(bootstrap) as admin:
        wished = _read(plan)
        present = _present(admin, wished)
        if not yes:
            _told_plan(wished, present, output)
            if throttle is not None:
                note(f"Each broker would copy {size_text(throttle)} per second at most.")
            return
        if rollback is not None:
            import msgspec

            rollback.write(msgspec.json.encode(plan_json(present)).decode() + "\n")
            rollback.close()
        if throttle is not None:
            throttle_moves(admin, present, wished, throttle)
        moves: dict[tuple[str, int], Sequence[int] | None] = dict(wished.items())
        outcomes = admin.alter_partition_reassignments(moves, allow_replication_factor_change=not keep_factor)
    _report(outcomes, "begun", output)
    if not output.for_programs:
        click.echo("See how far it is with ottla cluster reassign verify.", err=True)


@fields(
    {
        "partitions[].topic": "a topic",
        "partitions[].partition": "a number",
        "partitions[].replicas": "where the plan wants it",
        "partitions[].state": "done, moving, or where it is or moves instead",
        "throttles_removed": "what had a throttle that was taken away",
    }
)
@command.command()
@plan_argument
@click.option("--wait", is_flag=True, help="Wait until all is done.")
@keep_option
@output_option
@bootstrap_option
def verify(plan: TextIO, wait: bool, keep_throttles: bool, output: Form, bootstrap: str) -> None:
    """Show how far the moves of a plan are; when all are done, take their throttles away. Exit code 1 while something is not as planned."""
    from ottla.cli.cluster.reassign_throttle import unthrottle

    with told(), connected(bootstrap) as admin:
        wished = _read(plan)
        while True:
            states = _states(admin, wished)
            if not wait or "moving" not in states.values():
                break
            time.sleep(LOOK_S)
        moves = any(state == "moving" for state in states.values())
        freed = [] if moves or keep_throttles else unthrottle(admin, {tp.topic for tp in wished})
    if output.for_programs:
        output.document(
            {
                "partitions": [
                    {"topic": tp.topic, "partition": tp.partition, "replicas": list(wished[tp]), "state": state}
                    for tp, state in states.items()
                ],
                "throttles_removed": freed,
            }
        )
    else:
        output.table([_row(tp, replicas=wished[tp], state=state) for tp, state in states.items()], STATES)
        if freed:
            click.echo(f"Throttles were taken away: {', '.join(freed)}.", err=True)
    if any(state != "done" for state in states.values()):
        raise SystemExit(1)


MOVE = {
    "topic": "a topic",
    "partition": "a number",
    "replicas": "all replicas, those of the target first",
    "adding": "those that come",
    "removing": "those that go",
}


@fields(OUTCOME, {**MOVE, "topic": "in a dry run: a topic"})
@command.command()
@click.argument("plan", type=LocalFile("r"), metavar="[PLAN]", required=False)
@click.option("--all", "everything", is_flag=True, help="Cancel every move in the cluster.")
@keep_option
@yes_option
@output_option
@bootstrap_option
def cancel(plan: TextIO | None, everything: bool, keep_throttles: bool, yes: bool, output: Form, bootstrap: str) -> None:
    """Go back to the replicas before the moves of a plan, those that are still under way. Without --yes, only show them."""
    from ottla.cli.cluster.reassign_throttle import unthrottle

    if (plan is None) is not everything:
        raise click.UsageError("either a plan, or --all")
    with told(), connected(bootstrap) as admin:
        wished = None if plan is None else _read(plan)
        moves = admin.list_partition_reassignments(wished)
        if not moves:
            note("Nothing moves.")
            output.show([], MOVES)
            return
        if not yes:
            _told_moves(moves, output)
            click.echo("Nothing was cancelled; add --yes to do it.", err=True)
            return
        outcomes = admin.alter_partition_reassignments(dict.fromkeys(moves, None))
        if not keep_throttles:
            unthrottle(admin, {tp.topic for tp in moves})
    _report(outcomes, "cancelled", output)


@fields(MOVE)
@command.command(name="list")
@output_option
@bootstrap_option
def list_(output: Form, bootstrap: str) -> None:
    """List the partitions that move."""
    with told(), connected(bootstrap) as admin:
        moves = admin.list_partition_reassignments()
    _told_moves(moves, output)


# What is asked.


def _read(plan: TextIO) -> Plan:
    """Raises: ValueError."""
    from ottla.client.admin.reassignment_plan import read_plan

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
        raise click.UsageError(f"--brokers expects numbers with commas, not {text!r}") from None


def _replicas(admin: Admin, wanted: Mapping[str, set[int] | None] | None) -> dict[TopicPartition, list[int]]:
    """Replicas of partitions, those that they will have where they move. Raises: KafkaError."""
    from ottla.base.ids import TopicPartition
    from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

    names = [topic.name for topic in admin.list_topics(internal=True)] if wanted is None else list(wanted)
    found: dict[TopicPartition, list[int]] = {}
    for name, topic in admin.describe_topics(names).items():
        if isinstance(topic, KafkaError):
            raise topic
        numbers = None if wanted is None else wanted[name]
        there = {one.partition: one.replicas for one in topic.partitions}
        lost = sorted((numbers or set()) - set(there))
        if lost:
            raise UnknownTopicOrPartition(f"there is no partition {name}-{lost[0]}")
        found.update({TopicPartition(name, number): ids for number, ids in there.items() if numbers is None or number in numbers})
    for tp, move in admin.list_partition_reassignments(found).items():
        found[tp] = move.target
    return found


def _present(admin: Admin, wished: Plan) -> dict[TopicPartition, list[int]]:
    """Raises: KafkaError, when a partition of the plan does not exist."""
    wanted: dict[str, set[int] | None] = {}
    for tp in wished:
        numbers = wanted.setdefault(tp.topic, set())
        assert numbers is not None, "partitions are named one by one"
        numbers.add(tp.partition)
    return _replicas(admin, wanted)


def _states(admin: Admin, wished: Plan) -> dict[TopicPartition, str]:
    moves = admin.list_partition_reassignments(wished)
    present = _present(admin, wished)
    states = {}
    for tp, replicas in sorted(wished.items()):
        if tp in moves:
            states[tp] = "moving" if moves[tp].target == list(replicas) else f"moving to {','.join(map(str, moves[tp].target))}"
        else:
            states[tp] = "done" if present[tp] == list(replicas) else f"is on {','.join(map(str, present[tp]))}"
    return states


# What is said.


def _row(tp: TopicPartition, **rest: object) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition, **rest}


def _planned_rows(wished: Mapping[TopicPartition, Sequence[int]], present: Mapping[TopicPartition, Sequence[int]]) -> list[dict[str, Any]]:
    return [_row(tp, replicas=list(present[tp]), planned=list(wished[tp])) for tp in sorted(wished)]


def _show(wished: Mapping[TopicPartition, Sequence[int]], present: Mapping[TopicPartition, Sequence[int]], output: Form) -> None:
    output.table(_planned_rows(wished, present), PLANNED)


def _told_plan(wished: Plan, present: Mapping[TopicPartition, Sequence[int]], output: Form) -> None:
    output.show(_planned_rows(wished, present), PLANNED)
    note("Nothing was moved; add --yes to do it.")


def _told_moves(moves: Mapping[TopicPartition, PartitionReassignment], output: Form) -> None:
    rows = [_row(tp, replicas=move.replicas, adding=move.adding, removing=move.removing) for tp, move in sorted(moves.items())]
    output.show(rows, MOVES)


def _report(outcomes: Mapping[TopicPartition, Any], done: str, output: Form) -> None:
    from ottla.wire.errors import KafkaError

    failed = {str(tp): outcome for tp, outcome in outcomes.items() if isinstance(outcome, KafkaError)}
    output.report([str(tp) for tp in sorted(outcomes)], failed, done)

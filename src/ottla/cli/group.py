"""`ottla group`: list, describe, lag, reset, delete, delete-offsets. The two long ones are in `group_lag` and `group_reset`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.group_lag import lag
from ottla.cli.group_reset import reset
from ottla.cli.group_words import no_group, with_advice
from ottla.cli.render import admin as connected
from ottla.cli.render import bootstrap_option, is_terminal, output_option, print_json, report, table, told
from ottla.cli.words import covers, partitions_text, scope

if TYPE_CHECKING:
    from ottla.base.ids import TopicPartition
    from ottla.client.group_results import GroupDescription, GroupMember

#: Kafka's names of states and types.
STATES = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "Empty", "Dead")
TYPES = ("classic", "consumer", "share", "streams")


@click.group(name="group")
def command() -> None:
    """Look at consumer groups, reset their offsets, delete them."""


command.add_command(lag)
command.add_command(reset)


@command.command(name="list")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False), help="Only groups in this state.")
@click.option("--type", "types", multiple=True, type=click.Choice(TYPES, case_sensitive=False), help="Only groups of this type.")
@output_option
@bootstrap_option
def list_(states: tuple[str, ...], types: tuple[str, ...], output: str, bootstrap: str) -> None:
    """List groups with their states and types; options may be repeated."""
    with told(), connected(bootstrap) as admin:
        groups = admin.list_groups(states=states, types=types)
    if output == "json":
        print_json(
            [
                {"group": one.group_id, "state": one.state, "type": one.type.lower(), "protocol_type": one.protocol_type or None}
                for one in groups
            ]
        )
        return
    rows = [(one.group_id, one.state, one.type.lower(), one.protocol_type) for one in groups]
    table(("GROUP", "STATE", "TYPE", "PROTOCOL"), rows)


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@output_option
@bootstrap_option
def describe(names: tuple[str, ...], output: str, bootstrap: str) -> None:
    """Show state, coordinator, assignor, members and assignments of groups. Offsets and lag: ottla group lag."""
    from ottla.wire.errors import KafkaError

    found: list[GroupDescription] = []
    with told(), connected(bootstrap) as admin:
        for name, outcome in admin.describe_consumer_groups(names).items():
            if isinstance(outcome, KafkaError):
                raise no_group(admin, name, outcome)
            found.append(outcome)
    if output == "json":
        print_json([_document(one) for one in found])
        return
    for one in found:
        _print(one)


def _document(group: GroupDescription) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state,
        "type": group.type.lower(),
        "protocol_type": group.protocol_type or None,
        "assignor": group.assignor or None,
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "coordinator": {"id": group.coordinator.id, "host": group.coordinator.host, "port": group.coordinator.port},
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": _host(member),
                "rack": member.rack,
                "epoch": member.epoch,
                "topics": member.topics,
                "topic_pattern": member.topic_pattern,
                "assignment": _listed(member.assignment),
                "target_assignment": None if member.target_assignment is None else _listed(member.target_assignment),
            }
            for member in group.members
        ],
    }


def _listed(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def _host(member: GroupMember) -> str:
    # Kafka puts Java's slash before an address without a name.
    return member.host.removeprefix("/")


def _print(group: GroupDescription) -> None:
    # A table has its title; a line in a pipe stands for itself.
    name = () if is_terminal() else (group.group_id,)
    moving = any(one.target_assignment not in (None, one.assignment) for one in group.members)
    columns: tuple[str, ...] = ("MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS")
    if moving and is_terminal():
        columns = (*columns, "WILL READ")
    rows = [
        (*name, one.member_id, one.instance_id, one.client_id, _host(one), partitions_text(one.assignment),
         *((partitions_text(one.target_assignment or ()),) if len(columns) > 5 else ()))
        for one in sorted(group.members, key=lambda one: (one.client_id, one.member_id))
    ]  # fmt: skip
    where = group.coordinator
    said = [group.group_id, group.type.lower(), group.state.value, group.assignor, f"coordinator {where.id} ({where.host}:{where.port})"]
    if group.epoch is not None:
        said.append(f"epoch {group.epoch}")
    if not rows and is_terminal():
        click.echo("  ".join(filter(None, [*said, "no members"])))
        return
    table(columns, rows, title="  ".join(filter(None, said)))


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@click.option("--if-exists", is_flag=True, help="Be content with a group that is not there.")
@output_option
@bootstrap_option
def delete(names: tuple[str, ...], if_exists: bool, output: str, bootstrap: str) -> None:
    """Delete groups without members, with all their offsets."""
    from ottla.wire.errors import GroupIdNotFound, KafkaError

    with told(), connected(bootstrap) as admin:
        outcomes = admin.delete_consumer_groups(names)
        missing = {name: "not there" for name, outcome in outcomes.items() if isinstance(outcome, GroupIdNotFound)}
        failed = {
            name: with_advice(admin, name, outcome)
            for name, outcome in outcomes.items()
            if isinstance(outcome, KafkaError) and not (if_exists and name in missing)
        }
    report(names, failed, "deleted", missing, output)


@command.command(name="delete-offsets")
@click.argument("name", metavar="GROUP")
@click.option(
    "-t", "--topic", "topics", multiple=True, required=True, metavar="TOPIC[:0,2-5]", help="Of these partitions; may be repeated."
)
@output_option
@bootstrap_option
def delete_offsets(name: str, topics: tuple[str, ...], output: str, bootstrap: str) -> None:
    """Forget how far a group has read in topics that it does not read any more."""
    from ottla.wire.errors import KafkaError

    wanted = scope(topics, "--topic")
    with told(), connected(bootstrap) as admin:
        described = admin.describe_consumer_groups([name])[name]
        if isinstance(described, KafkaError):
            raise no_group(admin, name, described)
        committed = admin.list_consumer_group_offsets([name])[name]
        if isinstance(committed, KafkaError):
            raise committed
        chosen = sorted(tp for tp in committed if covers(wanted, tp))
        idle = [topic for topic in wanted if not any(tp.topic == topic for tp in chosen)]
        if idle:
            raise click.ClickException(f"group {name} has no offsets there: {', '.join(idle)}")
        outcomes = admin.delete_consumer_group_offsets(name, chosen)
        failed = {str(tp): with_advice(admin, name, error) for tp, error in outcomes.items() if error is not None}
    report([str(tp) for tp in chosen], failed, "deleted", {}, output)

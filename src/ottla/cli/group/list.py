"""`ottla group list` and `ottla group describe`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import click

from ottla.base.ids import TopicPartition
from ottla.cli.common import tables
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import numbers_by_topic, partitions_text
from ottla.cli.common.complete import group_names
from ottla.cli.common.output_formats import OutputFormat, fields, note
from ottla.cli.common.tables import Column
from ottla.cli.group.errors import group_error
from ottla.client.admin.group_results import GroupDescription, GroupMember
from ottla.wire.errors import KafkaError

#: Kafka's states and types.
STATES = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "Empty", "Dead")
TYPES = ("classic", "consumer", "share", "streams")
NO_GROUPS = "There are no groups: a group exists once a consumer with a group id has joined or committed."
GROUP = {
    "group": "group id",
    "state": "Stable, Empty, PreparingRebalance, CompletingRebalance, Assigning, Reconciling, Dead",
    "type": "its protocol: classic, or consumer (KIP-848)",
    "protocol_type": "consumer, connect, ...; null: the group has only committed offsets",
}


def _colour(row: Any) -> str | None:
    return {"Stable": "green", "Empty": None, "Dead": "red"}.get(row["state"], "yellow")


LISTED = (
    Column("GROUP", "group"),
    Column("STATE", "state", colour=_colour),
    Column("TYPE", "type"),
    Column("PROTOCOL-TYPE", "protocol_type"),
)
MEMBERS = (
    Column("CONSUMER-ID", "member_id"),
    Column("GROUP-INSTANCE-ID", "instance_id"),
    Column("CLIENT-ID", "client_id"),
    Column("HOST", "host"),
    Column("ASSIGNMENT", lambda row: _assignment_text(row["assignment"])),
    Column("RACK", "rack", wide=True),
    Column("EPOCH", "epoch", number=True, wide=True),
    Column("SUBSCRIPTION", lambda row: row["topic_pattern"] or row["topics"], wide=True),
)
TARGET = Column("TARGET-ASSIGNMENT", lambda row: None if row["target_assignment"] is None else _assignment_text(row["target_assignment"]))


def _assignment_text(assignment: dict[str, list[int]]) -> str:
    return partitions_text(TopicPartition(topic, number) for topic, numbers in assignment.items() for number in numbers)


@fields(GROUP)
@click.command(name="list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN...]", shell_complete=group_names)
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False), help="Only groups in this state; repeatable."
)
@click.option(
    "--type", "types", multiple=True, type=click.Choice(TYPES, case_sensitive=False), help="Only groups of this type; repeatable."
)
@admin_options
def list_(patterns: tuple[str, ...], states: tuple[str, ...], types: tuple[str, ...], output: OutputFormat, bootstrap: str) -> None:
    """List groups whose ids match one of the patterns. [default: all]"""
    with admin_client(bootstrap) as admin:
        groups = admin.list_groups(states=states, types=types)
    documents = [
        {"group": one.group_id, "state": one.state, "type": one.type.lower(), "protocol_type": one.protocol_type or None}
        for one in sorted(groups, key=lambda one: one.group_id)
        if not patterns or any(fnmatchcase(one.group_id, pattern) for pattern in patterns)
    ]
    if not documents and not output.is_structured:
        note(
            "No group matches."
            if groups
            else "There are no groups: a group exists once a consumer with a group id has joined or committed."
        )
    output.show(documents, LISTED)


@fields(
    GROUP,
    {
        "assignor": "assignor; null: none yet",
        "epoch": "group epoch; null in the classic protocol",
        "assignment_epoch": "epoch of the target assignment; null in the classic protocol",
        "coordinator.id": "broker id of the coordinator",
        "coordinator.host": "host of the coordinator",
        "coordinator.port": "port of the coordinator",
        "members[].member_id": "member id",
        "members[].instance_id": "group.instance.id of a static member; null: dynamic",
        "members[].client_id": "client.id",
        "members[].host": "host of the client",
        "members[].rack": "rack; null: not set",
        "members[].epoch": "member epoch; null in the classic protocol",
        "members[].topics": "subscribed topics",
        "members[].topic_pattern": "subscribed pattern of topics",
        "members[].assignment.*": "assigned partitions, by topic",
        "members[].target_assignment.*": "partitions of its target assignment, by topic; null in the classic protocol",
    },
)
@click.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@admin_options
def describe(names: tuple[str, ...], output: OutputFormat, bootstrap: str) -> None:
    """Show state, coordinator, assignor, members and assignments of groups. For lag see ottla group lag."""
    groups: list[GroupDescription] = []
    with admin_client(bootstrap) as admin:
        for name, outcome in admin.describe_consumer_groups(names).items():
            if isinstance(outcome, KafkaError):
                raise group_error(admin, name, outcome)
            groups.append(outcome)
    output.each([_document(one) for one in groups], _print)


def _document(group: GroupDescription) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state.value,
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
                "topics": sorted(member.topics),
                "topic_pattern": member.topic_pattern,
                "assignment": numbers_by_topic(member.assignment),
                "target_assignment": None if member.target_assignment is None else numbers_by_topic(member.target_assignment),
            }
            for member in sorted(group.members, key=lambda one: (one.client_id, one.member_id))
        ],
    }


def _host(member: GroupMember) -> str:
    # Kafka prints a slash before an address without a host name, as Java does.
    return member.host.removeprefix("/")


def _print(group: dict[str, Any], output: OutputFormat) -> None:
    moving = any(one["target_assignment"] not in (None, one["assignment"]) for one in group["members"])
    columns = (*MEMBERS[:5], TARGET, *MEMBERS[5:]) if moving and tables.is_terminal() else MEMBERS
    coordinator = group["coordinator"]
    title = [
        group["group"],
        group["type"],
        group["state"],
        group["assignor"],
        f"coordinator {coordinator['id']} ({coordinator['host']}:{coordinator['port']})",
    ]
    if group["epoch"] is not None:
        title.append(f"epoch {group['epoch']}")
    if not group["members"] and tables.is_terminal():
        click.echo("  ".join(filter(None, [*title, "no members"])))
        return
    output.table(group["members"], columns, title="  ".join(filter(None, title)), prefix=("GROUP", group["group"]))

"""`ottla group list` and `ottla group describe`."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from ottla.base.ids import TopicPartition
from ottla.cli.common import tables
from ottla.cli.common.arguments import partitions_text
from ottla.cli.common.complete import group_names
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import told
from ottla.cli.common.output_formats import Form, fields, output_option
from ottla.cli.common.tables import Column
from ottla.cli.group.errors import no_group

if TYPE_CHECKING:
    from ottla.client.admin.group_results import GroupDescription, GroupMember

#: Kafka's names of states and types.
STATES = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "Empty", "Dead")
TYPES = ("classic", "consumer", "share", "streams")
GROUP = {
    "group": "its id",
    "state": "Stable, Empty, PreparingRebalance, CompletingRebalance, Assigning, Reconciling, Dead",
    "type": "the protocol it follows: classic, or consumer (KIP-848)",
    "protocol_type": "what its members are: consumer, connect; null: only offsets were ever committed",
}


def _colour(row: Any) -> str | None:
    return {"Stable": "green", "Empty": None, "Dead": "red"}.get(row["state"], "yellow")


LISTED = (
    Column("GROUP", "group"),
    Column("STATE", "state", colour=_colour),
    Column("TYPE", "type"),
    Column("PROTOCOL", "protocol_type"),
)
MEMBERS = (
    Column("MEMBER", "member_id"),
    Column("INSTANCE", "instance_id"),
    Column("CLIENT", "client_id"),
    Column("HOST", "host"),
    Column("PARTITIONS", lambda row: _shown(row["assignment"])),
    Column("RACK", "rack", wide=True),
    Column("EPOCH", "epoch", number=True, wide=True),
    Column("SUBSCRIBED TO", lambda row: row["topic_pattern"] or row["topics"], wide=True),
)
TARGET = Column("WILL READ", lambda row: None if row["target_assignment"] is None else _shown(row["target_assignment"]))


def _shown(assignment: dict[str, list[int]]) -> str:
    return partitions_text(TopicPartition(topic, number) for topic, numbers in assignment.items() for number in numbers)


@fields(GROUP)
@click.command(name="list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN...]", shell_complete=group_names)
@click.option("--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False), help="Only groups in this state.")
@click.option("--type", "types", multiple=True, type=click.Choice(TYPES, case_sensitive=False), help="Only groups of this type.")
@output_option
@bootstrap_option
def list_(patterns: tuple[str, ...], states: tuple[str, ...], types: tuple[str, ...], output: Form, bootstrap: str) -> None:
    """List groups with their states and types; those only whose names are like one of the patterns. Options may be repeated."""
    with told(), connected(bootstrap) as admin:
        groups = admin.list_groups(states=states, types=types)
    documents = [
        {"group": one.group_id, "state": one.state, "type": one.type.lower(), "protocol_type": one.protocol_type or None}
        for one in sorted(groups, key=lambda one: one.group_id)
        if not patterns or any(fnmatchcase(one.group_id, pattern) for pattern in patterns)
    ]
    output.show(documents, LISTED)


@fields(
    GROUP,
    {
        "assignor": "how partitions are dealt out; null: not chosen",
        "epoch": "of the group, in the new protocol; null in the classic one",
        "assignment_epoch": "of the target assignment, likewise",
        "coordinator.id": "the broker that coordinates it",
        "coordinator.host": "its host",
        "coordinator.port": "its port",
        "members[].member_id": "the member",
        "members[].instance_id": "its static name (group.instance.id); null: none",
        "members[].client_id": "its client.id",
        "members[].host": "from where it is connected",
        "members[].rack": "its rack; null: not said",
        "members[].epoch": "its epoch, in the new protocol",
        "members[].topics": "topics it subscribed to",
        "members[].topic_pattern": "or the pattern of their names",
        "members[].assignment.*": "numbers of the partitions it reads, by topic",
        "members[].target_assignment.*": "those it shall read, in the new protocol",
    },
)
@click.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@output_option
@bootstrap_option
def describe(names: tuple[str, ...], output: Form, bootstrap: str) -> None:
    """Show state, coordinator, assignor, members and assignments of groups. Offsets and lag: ottla group lag."""
    from ottla.wire.errors import KafkaError

    found: list[GroupDescription] = []
    with told(), connected(bootstrap) as admin:
        for name, outcome in admin.describe_consumer_groups(names).items():
            if isinstance(outcome, KafkaError):
                raise no_group(admin, name, outcome)
            found.append(outcome)
    documents = [_document(one) for one in found]
    output.each(documents, _print)


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
                "assignment": _listed(member.assignment),
                "target_assignment": None if member.target_assignment is None else _listed(member.target_assignment),
            }
            for member in sorted(group.members, key=lambda one: (one.client_id, one.member_id))
        ],
    }


def _listed(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def _host(member: GroupMember) -> str:
    # Kafka puts Java's slash before an address without a name.
    return member.host.removeprefix("/")


def _print(group: dict[str, Any], output: Form) -> None:
    moving = any(one["target_assignment"] not in (None, one["assignment"]) for one in group["members"])
    columns = (*MEMBERS[:5], TARGET, *MEMBERS[5:]) if moving and tables.is_terminal() else MEMBERS
    where = group["coordinator"]
    said = [
        group["group"],
        group["type"],
        group["state"],
        group["assignor"],
        f"coordinator {where['id']} ({where['host']}:{where['port']})",
    ]
    if group["epoch"] is not None:
        said.append(f"epoch {group['epoch']}")
    if not group["members"] and tables.is_terminal():
        click.echo("  ".join(filter(None, [*said, "no members"])))
        return
    output.table(group["members"], columns, title="  ".join(filter(None, said)), prefix=("GROUP", group["group"]))

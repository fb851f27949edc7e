"""`ottla group delete`, `delete-offsets` and `remove-members`. All three ask first; see `ottla.cli.common.confirmation`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.base.options import suggestion
from ottla.cli.common.arguments import covers, scope
from ottla.cli.common.complete import group_names, topic_names
from ottla.cli.common.confirmation import DRY, agreed, dry_run_option, yes_option
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import told
from ottla.cli.common.output_formats import OUTCOME, Form, fields, note, output_option
from ottla.cli.group.errors import no_group, with_advice

if TYPE_CHECKING:
    from ottla.base.ids import TopicPartition
    from ottla.client.admin.group_results import GroupDescription
    from ottla.client.sync.admin import Admin
    from ottla.wire.errors import KafkaError


@fields(OUTCOME)
@click.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@click.option("--if-exists", is_flag=True, help="Be content with a group that is not there.")
@dry_run_option
@yes_option
@output_option
@bootstrap_option
def delete(names: tuple[str, ...], if_exists: bool, dry_run: bool, yes: bool, output: Form, bootstrap: str) -> None:
    """Delete groups without members, with all their offsets."""
    from ottla.wire.errors import GroupIdNotFound, KafkaError

    names = tuple(dict.fromkeys(names))
    with told(), connected(bootstrap) as admin:
        if dry_run:
            outcomes = _deletable(admin, names)
        else:
            if not yes:
                groups = f"{len(names)} group{'s' if len(names) > 1 else ''}"
                agreed(f"{groups} would be deleted with all offsets.", _described(admin, names), yes=False)
            outcomes = admin.delete_consumer_groups(names)
        missing = {name: "not there" for name, outcome in outcomes.items() if isinstance(outcome, GroupIdNotFound)}
        failed = {
            name: with_advice(admin, name, outcome)
            for name, outcome in outcomes.items()
            if isinstance(outcome, KafkaError) and not (if_exists and name in missing)
        }
    if dry_run:
        note(DRY)
    output.report(names, failed, "would be deleted" if dry_run else "deleted", missing)


def _deletable(admin: Admin, names: tuple[str, ...]) -> dict[str, KafkaError | None]:
    """What a coordinator would answer to deleting groups."""
    from ottla.wire.errors import KafkaError, NonEmptyGroup

    return {
        name: outcome
        if isinstance(outcome, KafkaError)
        else NonEmptyGroup(f"its state is {outcome.state.value}.")
        if outcome.state.has_members
        else None
        for name, outcome in admin.describe_consumer_groups(names).items()
    }


def _described(admin: Admin, names: tuple[str, ...]) -> list[str]:
    said = []
    for name, offsets in admin.list_consumer_group_offsets(names).items():
        said.append(f"{name}: {offsets}" if isinstance(offsets, Exception) else f"{name}: offsets of {len(offsets)} partitions")
    return said


@fields(OUTCOME)
@click.command(name="delete-offsets")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option(
    "-t", "--topic", "topics", multiple=True, required=True, metavar="TOPIC[:0,2-5]", shell_complete=topic_names,
    help="Of these partitions; may be repeated.",
)  # fmt: skip
@dry_run_option
@yes_option
@output_option
@bootstrap_option
def delete_offsets(name: str, topics: tuple[str, ...], dry_run: bool, yes: bool, output: Form, bootstrap: str) -> None:
    """Forget how far a group has read in topics that it does not read any more."""
    wanted = scope(topics, "--topic")
    with told(), connected(bootstrap) as admin:
        group = _group(admin, name)
        committed = _committed(admin, name)
        chosen = sorted(tp for tp in committed if covers(wanted, tp))
        idle = [topic for topic in wanted if not any(tp.topic == topic for tp in chosen)]
        if idle:
            raise click.ClickException(f"group {name} has no offsets there: {', '.join(idle)}")
        failed: dict[str, Exception] = {}
        if dry_run:
            failed = {str(tp): with_advice(admin, name, error) for tp, error in _in_the_way(group, chosen).items()}
            note(DRY)
        else:
            lines = (f"{tp}: offset {committed[tp]}" for tp in chosen)
            agreed(f"{len(chosen)} offsets of group {name} would be deleted.", lines, yes=yes)
            outcomes = admin.delete_consumer_group_offsets(name, chosen)
            failed = {str(tp): with_advice(admin, name, error) for tp, error in outcomes.items() if error is not None}
    output.report([str(tp) for tp in chosen], failed, "would be deleted" if dry_run else "deleted")


def _group(admin: Admin, name: str) -> GroupDescription:
    """Raises: ClickException, KafkaError."""
    from ottla.wire.errors import KafkaError

    found = admin.describe_consumer_groups([name])[name]
    if isinstance(found, KafkaError):
        raise no_group(admin, name, found)
    return found


def _committed(admin: Admin, name: str) -> dict[TopicPartition, int | None]:
    from ottla.wire.errors import KafkaError

    found = admin.list_consumer_group_offsets([name])[name]
    if isinstance(found, KafkaError):
        raise found
    return {tp: None if one is None or isinstance(one, KafkaError) else one.offset for tp, one in found.items()}


def _in_the_way(group: GroupDescription, chosen: list[TopicPartition]) -> dict[TopicPartition, KafkaError]:
    """Partitions of topics that members subscribed to keep their offsets."""
    from ottla.wire.errors import GroupSubscribedToTopic

    read = {topic for member in group.members for topic in [*member.topics, *(tp.topic for tp in member.assignment)]}
    return {tp: GroupSubscribedToTopic("The group reads it.") for tp in chosen if tp.topic in read}


@fields(OUTCOME)
@click.command(name="remove-members")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option("--instance", "instances", multiple=True, metavar="ID", help="The member of this group.instance.id; may be repeated.")
@click.option("--all", "everyone", is_flag=True, help="Every member.")
@click.option("--reason", metavar="TEXT", default="removed by an administrator", show_default=True, help="For the coordinator's log.")
@dry_run_option
@yes_option
@output_option
@bootstrap_option
def remove_members(
    name: str, instances: tuple[str, ...], everyone: bool, reason: str, dry_run: bool, yes: bool, output: Form, bootstrap: str
) -> None:
    """Have members of a classic group leave it, so that others read their partitions at once. A consumer that still runs joins again."""
    from ottla.wire.errors import KafkaError

    if bool(instances) is everyone:
        raise click.UsageError("say who is to leave: --instance ID, or --all")
    with told(), connected(bootstrap) as admin:
        group = _group(admin, name)
        there = {one.member_id if everyone else one.instance_id or "" for one in group.members if everyone or one.instance_id}
        if missing := [one for one in instances if one not in there]:
            raise click.ClickException(f"group {name} has no member of instance id {missing[0]}{suggestion(missing[0], there)}")
        leaving = sorted(there) if everyone else list(dict.fromkeys(instances))
        if dry_run:
            note(DRY)
            output.report(leaving, {}, "would be removed")
            return
        if not leaving:
            raise click.ClickException(f"group {name} has no members")
        agreed(f"{len(leaving)} members of group {name} would have to leave.", leaving, yes=yes)
        outcomes = admin.remove_members_from_consumer_group(name, None if everyone else leaving, reason=reason)
    failed = {who: outcome for who, outcome in outcomes.items() if isinstance(outcome, KafkaError)}
    output.report(sorted(outcomes), failed, "removed")

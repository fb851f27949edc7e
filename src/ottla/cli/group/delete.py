"""`ottla group delete`, `delete-offsets` and `remove-members`. All need a confirmation; see `ottla.cli.common.confirmation`."""

from __future__ import annotations

import click

import ottla
from ottla.base.ids import TopicPartition
from ottla.base.options import suggestion
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import is_selected, partition_selection
from ottla.cli.common.complete import group_names, topic_names
from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.output_formats import OUTCOME, OutputFormat, fields, note
from ottla.cli.group.errors import group_error, with_remedy
from ottla.client.admin.calls import good
from ottla.client.admin.group_results import GroupDescription
from ottla.wire.errors import GroupIdNotFound, GroupSubscribedToTopic, KafkaError, NonEmptyGroup


@fields(OUTCOME)
@click.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@click.option("--if-exists", is_flag=True, help="Succeed if the group does not exist.")
@dry_run_option
@yes_option
@admin_options
def delete(names: tuple[str, ...], if_exists: bool, dry_run: bool, yes: bool, output: OutputFormat, bootstrap: str) -> None:
    """Delete groups without members, with all their offsets."""
    names = tuple(dict.fromkeys(names))
    with admin_client(bootstrap) as admin:
        if dry_run:
            outcomes = _dry_run_outcomes(admin, names)
        else:
            if not yes:
                groups = f"{len(names)} group{'s' if len(names) > 1 else ''}"
                confirm(f"{groups} would be deleted with all offsets.", _described(admin, names), yes=False)
            outcomes = admin.delete_consumer_groups(names)
        missing = {name: "not there" for name, outcome in outcomes.items() if isinstance(outcome, GroupIdNotFound)}
        failed = {
            name: with_remedy(admin, name, outcome)
            for name, outcome in outcomes.items()
            if isinstance(outcome, KafkaError) and not (if_exists and name in missing)
        }
    if dry_run:
        note(NOTHING_CHANGED)
    output.report(names, failed, "would be deleted" if dry_run else "deleted", missing)


def _dry_run_outcomes(admin: ottla.Admin, names: tuple[str, ...]) -> dict[str, KafkaError | None]:
    """The result that deleting the groups would have."""
    return {
        name: outcome
        if isinstance(outcome, KafkaError)
        else NonEmptyGroup(f"its state is {outcome.state.value}.")
        if outcome.state.has_members
        else None
        for name, outcome in admin.describe_consumer_groups(names).items()
    }


def _described(admin: ottla.Admin, names: tuple[str, ...]) -> list[str]:
    return [
        f"{name}: {offsets}" if isinstance(offsets, Exception) else f"{name}: offsets of {len(offsets)} partitions"
        for name, offsets in admin.list_consumer_group_offsets(names).items()
    ]


@fields(OUTCOME)
@click.command(name="delete-offsets")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option(
    "-t", "--topic", "topics", multiple=True, required=True, metavar="TOPIC[:0,2-5]", shell_complete=topic_names,
    help="Only these partitions; repeatable.",
)  # fmt: skip
@dry_run_option
@yes_option
@admin_options
def delete_offsets(name: str, topics: tuple[str, ...], dry_run: bool, yes: bool, output: OutputFormat, bootstrap: str) -> None:
    """Delete committed offsets of a group in topics that it does not subscribe to."""
    selection = partition_selection(topics, "--topic")
    with admin_client(bootstrap) as admin:
        group = _group(admin, name)
        committed = _committed(admin, name)
        chosen = sorted(tp for tp in committed if is_selected(selection, tp))
        unmatched = [topic for topic in selection if not any(tp.topic == topic for tp in chosen)]
        if unmatched:
            raise click.ClickException(f"group {name} has no offsets in {', '.join(unmatched)}")
        failed: dict[str, Exception] = {}
        if dry_run:
            failed = {str(tp): with_remedy(admin, name, error) for tp, error in _subscribed_partitions(group, chosen).items()}
            note(NOTHING_CHANGED)
        else:
            lines = (f"{tp}: offset {committed[tp]}" for tp in chosen)
            confirm(f"{len(chosen)} offsets of group {name} would be deleted.", lines, yes=yes)
            outcomes = admin.delete_consumer_group_offsets(name, chosen)
            failed = {str(tp): with_remedy(admin, name, error) for tp, error in outcomes.items() if error is not None}
    output.report([str(tp) for tp in chosen], failed, "would be deleted" if dry_run else "deleted")


def _group(admin: ottla.Admin, name: str) -> GroupDescription:
    """Raises: ClickException, KafkaError."""
    group = admin.describe_consumer_groups([name])[name]
    if isinstance(group, KafkaError):
        raise group_error(admin, name, group)
    return group


def _committed(admin: ottla.Admin, name: str) -> dict[TopicPartition, int | None]:
    offsets = good(admin.list_consumer_group_offsets([name])[name])
    return {tp: None if one is None or isinstance(one, KafkaError) else one.offset for tp, one in offsets.items()}


def _subscribed_partitions(group: GroupDescription, chosen: list[TopicPartition]) -> dict[TopicPartition, KafkaError]:
    """Partitions of subscribed topics, whose offsets cannot be deleted."""
    read = {topic for member in group.members for topic in [*member.topics, *(tp.topic for tp in member.assignment)]}
    return {tp: GroupSubscribedToTopic("The group is subscribed to the topic.") for tp in chosen if tp.topic in read}


@fields(OUTCOME)
@click.command(name="remove-members")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option("--instance", "instances", multiple=True, metavar="ID", help="Member with this group.instance.id; repeatable.")
@click.option("--all", "everyone", is_flag=True, help="All members.")
@click.option("--reason", metavar="TEXT", default="removed by an administrator", show_default=True, help="Reason in the coordinator's log.")
@dry_run_option
@yes_option
@admin_options
def remove_members(
    name: str, instances: tuple[str, ...], everyone: bool, reason: str, dry_run: bool, yes: bool, output: OutputFormat, bootstrap: str
) -> None:
    """Remove members from a classic group: it rebalances at once. A running consumer rejoins."""
    if bool(instances) is everyone:
        raise click.UsageError("expected either --instance ID or --all")
    with admin_client(bootstrap) as admin:
        group = _group(admin, name)
        members = {one.member_id if everyone else one.instance_id or "" for one in group.members if everyone or one.instance_id}
        if missing := [one for one in instances if one not in members]:
            raise click.ClickException(f"group {name} has no member with instance id {missing[0]}{suggestion(missing[0], members)}")
        leaving = sorted(members) if everyone else list(dict.fromkeys(instances))
        if dry_run:
            note(NOTHING_CHANGED)
            output.report(leaving, {}, "would be removed")
            return
        if not leaving:
            raise click.ClickException(f"group {name} has no members")
        confirm(f"{len(leaving)} members of group {name} would be removed.", leaving, yes=yes)
        outcomes = admin.remove_members_from_consumer_group(name, None if everyone else leaving, reason=reason)
    failed = {member: outcome for member, outcome in outcomes.items() if isinstance(outcome, KafkaError)}
    output.report(sorted(outcomes), failed, "removed")

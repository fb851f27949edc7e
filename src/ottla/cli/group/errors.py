"""Errors of the commands about groups, with the name of a similar group or what to do."""

from __future__ import annotations

import click

import ottla
from ottla.base.options import suggestion
from ottla.wire.errors import GroupIdNotFound, GroupSubscribedToTopic, KafkaError, NonEmptyGroup, UnknownMemberId


def group_error(admin: ottla.Admin, name: str, error: KafkaError) -> Exception:
    """The error for a group that cannot be described. For an unknown group it suggests a similar name."""
    if not isinstance(error, GroupIdNotFound):
        return type(error)(f"group {name}: {error}")
    return click.ClickException(f"group {name} does not exist" + _suggested_group(admin, name))


def with_remedy(admin: ottla.Admin, name: str, error: KafkaError) -> KafkaError:
    """The error with what to do."""
    match error:
        case GroupIdNotFound():
            return GroupIdNotFound(f"the group does not exist{_suggested_group(admin, name)}")
        case NonEmptyGroup() | UnknownMemberId():
            return type(error)(f"{error} {has_members_remedy(name)}")
        case GroupSubscribedToTopic():
            return GroupSubscribedToTopic(f"{error} Stop the consumers that read it, or wait until they unsubscribe.")
    return error


def has_members_remedy(name: str) -> str:
    """What to do about a group that has members."""
    return (
        f"Stop its consumers first (see ottla group describe {name}). A killed consumer stays a member until its session timeout expires."
    )


def _suggested_group(admin: ottla.Admin, name: str) -> str:
    try:
        return suggestion(name, [one.group_id for one in admin.list_groups()])
    except KafkaError:
        return ""

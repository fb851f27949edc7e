"""What commands about groups say when it does not work: which group was meant, and what to do first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.base.options import suggestion

if TYPE_CHECKING:
    from ottla.client.sync.admin import Admin
    from ottla.wire.errors import KafkaError


def no_group(admin: Admin, name: str, error: KafkaError) -> Exception:
    """The error to end with when a group cannot be described: for one that is not there, it names the one that was meant."""
    from ottla.wire.errors import GroupIdNotFound

    if not isinstance(error, GroupIdNotFound):
        return type(error)(f"group {name}: {error}")
    return click.ClickException(f"there is no group {name}" + _meant(admin, name))


def with_advice(admin: Admin, name: str, error: KafkaError) -> KafkaError:
    """The same error, saying what to do."""
    from ottla.wire.errors import GroupIdNotFound, GroupSubscribedToTopic, NonEmptyGroup, UnknownMemberId

    match error:
        case GroupIdNotFound():
            return GroupIdNotFound(f"there is no such group{_meant(admin, name)}")
        case NonEmptyGroup() | UnknownMemberId():
            return type(error)(f"{error} {in_use(name)}")
        case GroupSubscribedToTopic():
            return GroupSubscribedToTopic(f"{error} Stop the consumers that read it, or wait until they unsubscribe.")
    return error


def in_use(name: str) -> str:
    """What to do about a group that has members."""
    return (
        f"Stop its consumers first (who they are: ottla group describe {name}); one that was killed counts as a member until its session"
        " timeout is over."
    )


def _meant(admin: Admin, name: str) -> str:
    from ottla.wire.errors import KafkaError

    try:
        return suggestion(name, [one.group_id for one in admin.list_groups()])
    except KafkaError:
        return ""

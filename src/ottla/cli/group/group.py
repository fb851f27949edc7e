"""``ottla group``: the table of commands for consumer groups; each is imported when it is called."""

import click

from ottla.cli.common.lazy import Entry, Lazy

COMMANDS = {
    "list": Entry("group.list:list_", "List groups with their states and types."),
    "describe": Entry("group.list:describe", "Show state, coordinator, assignor, members and assignments."),
    "lag": Entry("group.lag:lag", "Show how far behind the end of the log groups are, once or again and again."),
    "reset": Entry("group.reset:reset", "Move the offsets of a group without members."),
    "delete": Entry("group.delete:delete", "Delete groups without members, with all their offsets."),
    "delete-offsets": Entry("group.delete:delete_offsets", "Forget how far a group has read in some topics."),
    "remove-members": Entry("group.delete:remove_members", "Have members leave a group, which static ones do not do by themselves."),
}


@click.command(name="group", cls=Lazy, table=COMMANDS)
def command() -> None:
    """Look at consumer groups, reset their offsets, delete them."""

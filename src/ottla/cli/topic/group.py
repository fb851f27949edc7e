"""``ottla topic``: the table of commands for topics; each is imported when it is called."""

import click

from ottla.cli.common.lazy import Entry, Lazy

COMMANDS = {
    "list": Entry("topic.list:list_", "List topics with their numbers of partitions and replicas."),
    "describe": Entry("topic.list:describe", "Show partitions, leaders, replicas, offsets and settings."),
    "create": Entry("topic.change:create", "Create topics."),
    "alter": Entry("topic.change:alter", "Add partitions, or change settings."),
    "delete": Entry("topic.delete:delete", "Delete topics with all their records."),
    "partitions": Entry("topic.partitions:partitions", "List partitions, all or those that lack something."),
    "offsets": Entry("topic.partitions:offsets", "Show where logs begin and end, or which offset a time has."),
    "producers": Entry("topic.partitions:producers", "Show idempotent and transactional producers of partitions."),
    "records-delete": Entry("topic.delete:records_delete", "Delete the oldest records of partitions."),
}


@click.command(name="topic", cls=Lazy, table=COMMANDS)
def command() -> None:
    """Create, look at, change and delete topics."""

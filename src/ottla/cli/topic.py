"""``ottla topic``: the table of commands for topics; each is imported when it is called."""

import click

from ottla.cli.lazy import Entry, Lazy

COMMANDS = {
    "list": Entry("topic_list:list_", "List topics with their numbers of partitions and replicas."),
    "describe": Entry("topic_list:describe", "Show partitions, leaders, replicas, offsets and settings."),
    "create": Entry("topic_change:create", "Create topics."),
    "alter": Entry("topic_change:alter", "Add partitions, or change settings."),
    "delete": Entry("topic_delete:delete", "Delete topics with all their records."),
    "partitions": Entry("topic_partitions:partitions", "List partitions, all or those that lack something."),
    "offsets": Entry("topic_partitions:offsets", "Show where logs begin and end, or which offset a time has."),
    "producers": Entry("topic_partitions:producers", "Show idempotent and transactional producers of partitions."),
    "records-delete": Entry("topic_delete:records_delete", "Delete the oldest records of partitions."),
}


@click.command(name="topic", cls=Lazy, table=COMMANDS)
def command() -> None:
    """Create, look at, change and delete topics."""

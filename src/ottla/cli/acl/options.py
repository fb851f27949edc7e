"""Options and columns of the commands about access rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from ottla.base.acls import CLUSTER_NAME, Operation, PatternType, ResourceType
from ottla.cli.common.complete import group_names, topic_names, transactional_ids
from ottla.cli.common.connection import combined
from ottla.cli.common.tables import Column, Row
from ottla.client.admin.acl_results import Acl

ACL = {
    "principal": "principal, such as User:alice; User:*: every user",
    "permission": "Allow or Deny",
    "operation": "operation, such as Read; All: every operation",
    "resource_type": "Topic, Group, Cluster, TransactionalId, DelegationToken or User",
    "pattern_type": "Literal or Prefixed",
    "name": "name or prefix; *: every resource of the type",
    "host": "address of the client; *: every host",
}


def _colour(row: Row) -> str | None:
    return "red" if row["permission"] == "Deny" else None


ACL_COLUMNS = (
    Column("PRINCIPAL", "principal"),
    Column("PERMISSION", "permission", colour=_colour),
    Column("OPERATION", "operation"),
    Column("RESOURCE", "resource_type"),
    Column("PATTERN", "pattern_type"),
    Column("NAME", "name"),
    Column("HOST", "host"),
)
OPERATIONS = [operation.label for operation in Operation if operation is not Operation.ANY]

#: One resource of a type; the command receives `topic`, `group`, `transactional_id`, `token`, `user` and `cluster`.
resource_options = combined(
    click.option("-t", "--topic", metavar="NAME", shell_complete=topic_names, help="A topic; *: all topics."),
    click.option("-g", "--group", metavar="NAME", shell_complete=group_names, help="A group; *: all groups."),
    click.option("--transactional-id", metavar="ID", shell_complete=transactional_ids, help="A transactional id; *: all of them."),
    click.option("--delegation-token", metavar="ID", help="A delegation token; *: all of them."),
    click.option("--user", metavar="PRINCIPAL", help="A user whose tokens are meant, such as User:alice; *: all users."),
    click.option("--cluster", is_flag=True, help="The cluster."),
)


def resource_of(options: dict[str, Any], *, required: bool) -> tuple[ResourceType, str] | None:
    """The resource that was named. Raises: UsageError if there are several, or none although it is required."""
    named = [
        (kind, str(options[option]))
        for option, kind in (
            ("topic", ResourceType.TOPIC),
            ("group", ResourceType.GROUP),
            ("transactional_id", ResourceType.TRANSACTIONAL_ID),
            ("delegation_token", ResourceType.DELEGATION_TOKEN),
            ("user", ResourceType.USER),
        )
        if options[option] is not None
    ]
    named += [(ResourceType.CLUSTER, CLUSTER_NAME)] if options["cluster"] else []
    if len(named) > 1 or (required and not named):
        raise click.UsageError("expected one of --topic, --group, --transactional-id, --delegation-token, --user and --cluster")
    return named[0] if named else None


def operations_of(texts: Iterable[str]) -> list[Operation]:
    """Operations in Kafka's spelling, in any case. Raises: UsageError."""
    found = []
    for text in (part for one in texts for part in one.split(",") if part.strip()):
        operation = Operation.labelled(text.strip())
        if operation is None or operation is Operation.ANY:
            raise click.UsageError(f"--operation {text.strip()} does not exist; expected one of {', '.join(OPERATIONS)}")
        found.append(operation)
    return list(dict.fromkeys(found))


def principal_of(text: str) -> str:
    """Raises: UsageError."""
    kind, separator, name = text.partition(":")
    if not (kind and separator and name):
        raise click.UsageError(f"--principal {text} has no type; write User:{text}")
    return text


def document_of(acl: Acl) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "permission": acl.permission.label,
        "operation": acl.operation.label,
        "resource_type": acl.resource_type.label,
        "pattern_type": acl.pattern_type.label,
        "name": acl.name,
        "host": acl.host,
    }


def in_order(acls: Iterable[Acl]) -> list[Acl]:
    """By resource, then by principal."""
    return sorted(
        acls, key=lambda one: (one.resource_type, one.name, one.pattern_type, one.principal, one.permission, one.operation, one.host)
    )


def pattern_type(prefix: bool) -> PatternType:
    return PatternType.PREFIXED if prefix else PatternType.LITERAL

"""`ottla acl test`: decides as the brokers do, from their rules and settings."""

from __future__ import annotations

from typing import Any

import click

import ottla
from ottla.base.acls import OPERATIONS, Entry, Operation, Pattern, ResourceType, deciding_rule
from ottla.cli.acl.options import operations_of, principal_of, resource_of, resource_options
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.output_formats import OutputFormat, fields
from ottla.cli.common.tables import Column, Row
from ottla.client.admin.acl_results import Acl
from ottla.client.admin.results import Resource
from ottla.wire.errors import KafkaError

DECISION = {
    "principal": "principal",
    "host": "address of the client",
    "operation": "operation",
    "resource_type": "type of the resource",
    "name": "name of the resource",
    "allowed": "whether the operation is allowed",
    "rule": "the rule that decides, or the reason",
}


def _colour(row: Row) -> str | None:
    return "green" if row["allowed"] else "red"


def _answer(row: Row) -> str:
    return "yes" if row["allowed"] else "no"


COLUMNS = (
    Column("OPERATION", "operation"),
    Column("ALLOWED", _answer, colour=_colour),
    Column("RULE", "rule"),
)


@fields(DECISION)
@click.command(name="test")
@click.option("--principal", required=True, metavar="PRINCIPAL", help="Principal, such as User:alice.")
@click.option("--operation", "operations", multiple=True, metavar="NAME[,NAME]", help="Only these operations. [default: all]")
@resource_options
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address of the client.")
@admin_options
def test(principal: str, operations: tuple[str, ...], host: str, output: OutputFormat, bootstrap: str, **resource: Any) -> None:
    """Show what a principal may do on a resource, and by which rule. Exits with 1 if a requested operation is denied."""
    named = resource_of(resource, required=True)
    assert named is not None, "a resource is required"
    kind, name = named
    chosen = operations_of(operations)
    with admin_client(bootstrap) as admin:
        rules = [_rule(one) for one in admin.describe_acls()]
        super_users, is_open = _settings(admin)
    who = principal_of(principal)
    documents = [
        {"principal": who, "host": host, "operation": one.label, "resource_type": kind.label, "name": name}
        | _decided(rules, who, host, one, kind, name, super_users, is_open=is_open)
        for one in chosen or OPERATIONS[kind]
    ]
    if output.is_structured:
        output.document(documents)
    else:
        output.table(documents, COLUMNS)
    if chosen and not all(one["allowed"] for one in documents):
        raise SystemExit(1)


def _rule(acl: Acl) -> tuple[Pattern, Entry]:
    return Pattern(acl.resource_type, acl.pattern_type, acl.name), Entry(acl.principal, acl.host, acl.operation, acl.permission)


def _settings(admin: ottla.Admin) -> tuple[list[str], bool]:
    """The super users, and whether everyone may use what no rule is about: settings of the first broker that tells them."""
    resources = [Resource.broker(node.id) for node in admin.describe_cluster().nodes]
    for outcome in admin.describe_configs(resources, names=["super.users", "allow.everyone.if.no.acl.found"]).values():
        if not isinstance(outcome, KafkaError):
            values = {name: entry.value or "" for name, entry in outcome.items()}
            users = [part.strip() for part in values.get("super.users", "").split(";")]
            return users, values.get("allow.everyone.if.no.acl.found") == "true"
    return [], False


def _decided(
    rules: list[tuple[Pattern, Entry]],
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    super_users: list[str],
    *,
    is_open: bool,
) -> dict[str, Any]:
    if principal in super_users:
        return {"allowed": True, "rule": "super user"}
    allowed, rule = deciding_rule(rules, principal, host, operation, kind, name)
    if rule is not None:
        return {"allowed": allowed, "rule": f"{rule[1]} on {rule[0]}"}
    if allowed is None:
        return {"allowed": is_open, "rule": "no rules for the resource"}
    return {"allowed": False, "rule": "no matching rule"}

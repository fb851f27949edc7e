"""`ottla acl add` and `ottla acl remove`."""

from __future__ import annotations

from typing import Any

import click

from ottla.base.acls import OPERATIONS, WILDCARD, Operation, PatternType, Permission, ResourceType
from ottla.cli.acl.options import in_order, operations_of, pattern_type, principal_of, resource_of, resource_options
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.output_formats import OUTCOME, OutputFormat, fields, note
from ottla.client.admin.acl_results import Acl, AclFilter
from ottla.client.admin.calls import good
from ottla.wire.errors import KafkaError

principal_option = click.option(
    "--principal", "principals", multiple=True, required=True, metavar="PRINCIPAL", help="Principal, such as User:alice; repeatable."
)


@fields(OUTCOME)
@click.command()
@principal_option
@click.option(
    "--operation",
    "operations",
    multiple=True,
    required=True,
    metavar="NAME[,NAME]",
    help="Operation, such as read,describe; all: every one.",
)
@resource_options
@click.option("--prefix", is_flag=True, help="The name is the beginning of names.")
@click.option("--host", "hosts", multiple=True, default=(WILDCARD,), show_default=True, metavar="ADDRESS", help="Client; repeatable.")
@click.option("--deny", is_flag=True, help="Deny the operations instead of allowing them.")
@dry_run_option
@admin_options
def add(
    principals: tuple[str, ...],
    operations: tuple[str, ...],
    prefix: bool,
    hosts: tuple[str, ...],
    deny: bool,
    dry_run: bool,
    output: OutputFormat,
    bootstrap: str,
    **resource: Any,
) -> None:
    """Add access rules: principals may carry out operations on a resource."""
    named = resource_of(resource, required=True)
    assert named is not None, "a resource is required"
    kind, name = named
    chosen = operations_of(operations)
    if wrong := [one.label for one in chosen if one not in (*OPERATIONS[kind], Operation.ALL)]:
        raise click.UsageError(
            f"--operation {wrong[0]} has no meaning for {kind.label}; use {', '.join(one.label for one in OPERATIONS[kind])}"
        )
    acls = [
        Acl(
            principal=principal_of(principal),
            operation=operation,
            resource_type=kind,
            name=name,
            pattern_type=pattern_type(prefix),
            host=host,
            permission=Permission.DENY if deny else Permission.ALLOW,
        )
        for principal in principals
        for operation in chosen
        for host in hosts
    ]
    with admin_client(bootstrap) as admin:
        outcomes = {} if dry_run else admin.create_acls(acls)
    if dry_run:
        note(NOTHING_CHANGED)
    failed = {str(one): outcome for one, outcome in outcomes.items() if isinstance(outcome, KafkaError)}
    output.report([str(one) for one in acls], failed, "would be added" if dry_run else "added")


@fields(OUTCOME)
@click.command()
@click.option("--principal", metavar="PRINCIPAL", help="Only rules of this principal, such as User:alice.")
@click.option("--operation", "operations", multiple=True, metavar="NAME[,NAME]", help="Only rules with these operations.")
@resource_options
@click.option("--prefix", is_flag=True, help="The name is the beginning of names.")
@click.option("--host", metavar="ADDRESS", help="Only rules with this host.")
@click.option("--permission", type=click.Choice(["allow", "deny"]), help="Only rules that allow, or deny.")
@click.option("--all", "everything", is_flag=True, help="All rules, if no other option selects some.")
@dry_run_option
@yes_option
@admin_options
def remove(
    principal: str | None,
    operations: tuple[str, ...],
    prefix: bool,
    host: str | None,
    permission: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    output: OutputFormat,
    bootstrap: str,
    **resource: Any,
) -> None:
    """Remove the access rules that match all options."""
    named = resource_of(resource, required=False)
    if not everything and named is None and principal is None and host is None and permission is None and not operations:
        raise click.UsageError("expected options that select rules, or --all")
    filters = [
        AclFilter(
            principal=None if principal is None else principal_of(principal),
            operation=operation,
            resource_type=ResourceType.ANY if named is None else named[0],
            name=None if named is None else named[1],
            pattern_type=PatternType.ANY if named is None else pattern_type(prefix),
            host=host,
            permission=Permission.ANY if permission is None else Permission[permission.upper()],
        )
        for operation in operations_of(operations) or [Operation.ANY]
    ]
    failed: dict[str, Exception] = {}
    with admin_client(bootstrap) as admin:
        found = in_order(dict.fromkeys(one for wanted in filters for one in admin.describe_acls(wanted)))
        if not found:
            note("No rule matches.")
        elif not dry_run:
            confirm(f"{len(found)} access rule{'s' if len(found) > 1 else ''} would be removed.", map(str, found), yes=yes)
            for outcome in admin.delete_acls(filters).values():
                failed |= {str(one): error for one, error in good(outcome).items() if error is not None}
    if dry_run:
        note(NOTHING_CHANGED)
    output.report([str(one) for one in found], failed, "would be removed" if dry_run else "removed")

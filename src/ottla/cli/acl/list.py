"""`ottla acl list`."""

from __future__ import annotations

from typing import Any

import click

from ottla.base.acls import PatternType, ResourceType
from ottla.cli.acl.options import ACL, ACL_COLUMNS, document_of, in_order, principal_of, resource_of, resource_options
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.output_formats import OutputFormat, fields
from ottla.client.admin.acl_results import AclFilter


@fields(ACL)
@click.command(name="list")
@click.option("--principal", metavar="PRINCIPAL", help="Only rules of this principal, such as User:alice.")
@resource_options
@click.option("--exact", is_flag=True, help="Only rules of the name itself, not those of prefixes and * that cover it.")
@admin_options
def list_(principal: str | None, exact: bool, output: OutputFormat, bootstrap: str, **resource: Any) -> None:
    """List access rules; for a resource, all that apply to it. [default: all]"""
    named = resource_of(resource, required=False)
    wanted = AclFilter(
        principal=None if principal is None else principal_of(principal),
        resource_type=ResourceType.ANY if named is None else named[0],
        name=None if named is None else named[1],
        pattern_type=PatternType.ANY if exact else PatternType.MATCH,
    )
    with admin_client(bootstrap) as admin:
        found = in_order(admin.describe_acls(wanted))
    documents = [document_of(one) for one in found]
    if output.is_structured:
        output.document(documents)
    else:
        output.table(documents, ACL_COLUMNS)

"""Access rules, users and quotas, where the brokers have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ottla.base.acls import CLUSTER_NAME, OPERATIONS, PATTERN_TYPES, RESOURCE_TYPES, Operation, PatternType, Permission, ResourceType
from ottla.base.scram import ScramMechanism
from ottla.client.admin.acl_results import Acl, AclFilter
from ottla.client.admin.calls import good
from ottla.client.admin.quotas import QuotaEntity
from ottla.client.errors import BrokerIncompatible
from ottla.console.pages.listing import Listing, listed, matching, text
from ottla.console.watch.measure import succeeded
from ottla.console.web.changes import change, field, noted, then
from ottla.console.web.errors import invalid
from ottla.console.web.page import page
from ottla.console.web.roles import Role
from ottla.wire.errors import SecurityDisabled

QUOTAS = {
    "producer_byte_rate": "bytes/s of Produce",
    "consumer_byte_rate": "bytes/s of Fetch",
    "request_percentage": "% of a request thread",
    "controller_mutation_rate": "partitions/s created and deleted",
    "connection_creation_rate": "connections/s",
}
ACL_SORTS = {
    "principal": lambda one: (one.principal, one.resource_type, one.name),
    "resource": lambda one: (one.resource_type, one.name, one.principal),
}


async def rules(request: Request) -> Response:
    """The access rules."""
    acls: list[Acl] = []
    missing = ""
    try:
        acls = await request.app.state.admin.describe_acls()
    except (SecurityDisabled, BrokerIncompatible) as error:
        missing = str(error)
    wanted = text(request, "q")
    found = matching(
        acls, wanted, lambda one: f"{one.principal} {one.resource_type.label} {one.name} {one.operation.label} {one.permission.label}"
    )
    listing: Listing[Acl] = listed(request, found, ACL_SORTS, default="principal")
    operations = sorted({one for each in OPERATIONS.values() for one in each} | {Operation.ALL})
    return page(
        request, "acls.html", title="Access", tab="acls", listing=listing, q=wanted, all=len(acls), missing=missing,
        resource_types=_labels(RESOURCE_TYPES), pattern_types=_labels(PATTERN_TYPES), operations=_labels(operations),
        permissions=_labels((Permission.ALLOW, Permission.DENY)),
    )  # fmt: skip


def _labels(members: Iterable[ResourceType | PatternType | Operation | Permission]) -> list[tuple[str, str]]:
    return [(one.label, one.label) for one in members]


def _acl(request: Request) -> Acl:
    """The rule of a form. Raises: Refused."""
    principal, name = field(request, "principal"), field(request, "name")
    if ":" not in principal or principal.endswith(":"):
        raise invalid(f"A principal is TYPE:NAME, such as User:alice, not {principal!r}.")
    parts: dict[str, Any] = {}
    for key, kind in (("resource_type", ResourceType), ("pattern_type", PatternType), ("operation", Operation), ("permission", Permission)):
        parts[key] = kind.labelled(field(request, key))
        if parts[key] is None:
            raise invalid(f"{key} is not valid.")
    if parts["resource_type"] is not ResourceType.CLUSTER and not name:
        raise invalid("The name of the resource is missing.")
    return Acl(principal=principal, name=name or CLUSTER_NAME, host=field(request, "host") or "*", **parts)


@change("acl.add", Role.ADMIN)
async def add_rule(request: Request) -> Response:
    """Adds an access rule."""
    acl = _acl(request)
    noted(request, acl=str(acl))
    good((await request.app.state.admin.create_acls([acl]))[acl])
    return then(request, "/access", f"The rule was added: {acl}.")


@change("acl.remove", Role.ADMIN)
async def remove_rule(request: Request) -> Response:
    """Removes an access rule."""
    acl = _acl(request)
    noted(request, acl=str(acl))
    exact = AclFilter(
        principal=acl.principal, operation=acl.operation, resource_type=acl.resource_type, name=acl.name, pattern_type=acl.pattern_type,
        host=acl.host, permission=acl.permission,
    )  # fmt: skip
    outcome = good((await request.app.state.admin.delete_acls([exact]))[exact])
    for error in outcome.values():
        good(error)
    return then(request, "/access", f"{len(outcome)} rules were removed." if len(outcome) != 1 else f"The rule was removed: {acl}.")


async def users(request: Request) -> Response:
    """Users with SCRAM credentials."""
    found, missing = {}, ""
    try:
        found = succeeded(await request.app.state.admin.describe_scram_credentials())
    except BrokerIncompatible as error:
        missing = str(error)
    wanted = text(request, "q")
    rows = [(name, found[name]) for name in matching(sorted(found), wanted, lambda one: one)]
    return page(
        request, "users.html", title="Access", tab="users", rows=rows, q=wanted, all=len(found), missing=missing,
        mechanisms=[(one.mechanism, one.mechanism) for one in ScramMechanism],
    )  # fmt: skip


def _mechanism(request: Request) -> ScramMechanism:
    given = field(request, "mechanism")
    found = next((one for one in ScramMechanism if one.mechanism == given), None)
    if found is None:
        raise invalid(f"The mechanism {given!r} does not exist.")
    return found


@change("user.set-password", Role.ADMIN)
async def set_user(request: Request) -> Response:
    """Sets a user's password."""
    name, password, mechanism = field(request, "name"), request.state.form.get("password"), _mechanism(request)
    noted(request, name=name, mechanism=mechanism.mechanism)
    if not name or not isinstance(password, str) or not password:
        raise invalid("A user needs a name and a password.")
    await request.app.state.admin.set_scram_credential(name, mechanism, password)
    return then(request, "/access/users", f"The password of {name} for {mechanism.mechanism} was set.")


@change("user.remove", Role.ADMIN)
async def remove_user(request: Request) -> Response:
    """Removes a user's credential of a mechanism."""
    name, mechanism = field(request, "name"), _mechanism(request)
    noted(request, name=name, mechanism=mechanism.mechanism)
    await request.app.state.admin.delete_scram_credential(name, mechanism)
    return then(request, "/access/users", f"The credential of {name} for {mechanism.mechanism} was removed.")


async def quotas(request: Request) -> Response:
    """Client quotas."""
    found: dict[QuotaEntity, dict[str, float]] = {}
    missing = ""
    try:
        found = await request.app.state.admin.describe_client_quotas()
    except BrokerIncompatible as error:
        missing = str(error)
    wanted = text(request, "q")
    rows = [(entity, name, value) for entity, values in sorted(found.items()) for name, value in sorted(values.items())]
    rows = matching(rows, wanted, lambda one: f"{one[0]} {one[1]}")
    return page(
        request, "quotas.html", title="Access", tab="quotas", rows=rows, q=wanted, all=len(found), missing=missing, units=QUOTAS,
        quotas=[(name, f"{name} ({unit})") for name, unit in QUOTAS.items()],
    )  # fmt: skip


def _entity(request: Request) -> QuotaEntity:
    """The entity of a form: a field is a name, `(default)`, or empty. Raises: Refused."""
    names = {kind: field(request, kind) for kind in ("user", "client_id", "ip")}
    given = {kind: "" if name == "(default)" else name for kind, name in names.items() if name}
    if not given or ("ip" in given and len(given) > 1):
        raise invalid("A quota has a user, a client id, both, or an address.")
    return QuotaEntity(**given)


@change("quota.set", Role.ADMIN)
async def set_quota(request: Request) -> Response:
    """Sets a quota, or removes it if the value is empty."""
    entity, name, value = _entity(request), field(request, "quota"), field(request, "value")
    noted(request, entity=str(entity), quota=name, value=value or None)
    if name not in QUOTAS:
        raise invalid(f"The quota {name!r} does not exist.")
    try:
        wanted = float(value) if value else None
    except ValueError:
        raise invalid(f"A quota is a number, not {value!r}.") from None
    good((await request.app.state.admin.alter_client_quotas({entity: {name: wanted}}))[entity])
    said = f"{name} of {entity} was removed." if wanted is None else f"{name} of {entity} is {value}."
    return then(request, "/access/quotas", said)


routes = [
    Route("/access", rules, methods=["GET"]),
    Route("/access/acls/add", add_rule, methods=["POST"]),
    Route("/access/acls/remove", remove_rule, methods=["POST"]),
    Route("/access/users", users, methods=["GET"]),
    Route("/access/users", set_user, methods=["POST"]),
    Route("/access/users/remove", remove_user, methods=["POST"]),
    Route("/access/quotas", quotas, methods=["GET"]),
    Route("/access/quotas", set_quota, methods=["POST"]),
]

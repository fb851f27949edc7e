"""Timelines: rebalances per member, elections and ISR changes per broker, transactions from begin to marker, the controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ottla.console.pages.listing import Listing, listed, text
from ottla.console.timelines.reader import Kind, TimelineEntry, Timelines, listeners, read_timelines
from ottla.console.timelines.rebalances import rebalances
from ottla.console.timelines.transactions import producers_of, transactions
from ottla.console.web.page import page

ITEMS = 20
CHANGES = 200
#: Entries of each broker that a page reads.
READ_MAX = 5_000
SORTS: dict[str, Callable[[Any], Any]] = {"time": lambda one: one.began_ms}
CHANGE_SORTS: dict[str, Callable[[TimelineEntry], Any]] = {"time": lambda one: (one.wall_ms, one.broker, one.number)}
TABS = (
    ("groups", "/timelines/groups", "Rebalances"),
    ("partitions", "/timelines/partitions", "Elections and ISR"),
    ("transactions", "/timelines/transactions", "Transactions"),
    ("controller", "/timelines/controller", "Controller"),
)


async def listener_addresses(request: Request) -> list[str]:
    """The HTTP listeners of the brokers."""
    state = request.app.state
    addresses = state.options.http
    hosts: list[str] = []
    if any(one.startswith(":") for one in addresses):
        hosts = [broker.host for broker in (await state.admin.describe_cluster()).brokers]
    return listeners(addresses, hosts)


async def _read(request: Request, kind: Kind, names: Sequence[str] = ()) -> Timelines:
    return await read_timelines(await listener_addresses(request), kind=kind, names=names, limit=READ_MAX)


def _page(request: Request, tab: str, found: Timelines, **values: Any) -> Response:
    return page(
        request, "timelines.html", title="Timelines", tab=tab, tabs=TABS, brokers=found.brokers, problems=found.problems,
        has_listeners=bool(request.app.state.options.http), **values,
    )  # fmt: skip


async def begin(request: Request) -> Response:
    """The first tab."""
    return RedirectResponse("/timelines/groups")


async def of_groups(request: Request) -> Response:
    """Rebalances of all groups, or of one."""
    name = text(request, "name")
    found = await _read(request, "group", [name] if name else [])
    listing: Listing[Any] = listed(request, rebalances(found.changes), SORTS, default="-time", items=ITEMS)
    return _page(request, "groups", found, listing=listing, name=name)


async def of_transactions(request: Request) -> Response:
    """Transactions of all ids, or of one."""
    name = text(request, "name")
    found = await _read(request, "transaction", [name] if name else [])
    changes = found.changes
    if name and (producers := producers_of(changes)):
        markers = await _read(request, "transaction", producers)
        changes = sorted([*changes, *markers.changes], key=CHANGE_SORTS["time"])
    listing: Listing[Any] = listed(request, transactions(changes), SORTS, default="-time", items=ITEMS)
    return _page(request, "transactions", found, listing=listing, name=name)


async def of_partitions(request: Request) -> Response:
    """Elections and ISR changes; `name` is a partition, or a topic."""
    name, broker = text(request, "name"), text(request, "broker")
    found = await _read(request, "partition")
    kept = [
        change
        for change in found.changes
        if (not name or name in (change.name, change.name.rpartition("-")[0])) and (not broker or str(change.broker) == broker)
    ]
    return _changes(request, "partitions", found, kept, name=name, broker=broker)


async def of_controller(request: Request) -> Response:
    """Elections of the controller, registrations and sessions."""
    broker = text(request, "broker")
    found = await _read(request, "controller")
    kept = [change for change in found.changes if not broker or str(change.broker) == broker]
    return _changes(request, "controller", found, kept, name="", broker=broker)


def _changes(request: Request, tab: str, found: Timelines, kept: list[TimelineEntry], *, name: str, broker: str) -> Response:
    listing: Listing[TimelineEntry] = listed(request, kept, CHANGE_SORTS, default="-time", items=CHANGES)
    return _page(request, tab, found, listing=listing, name=name, broker=broker, detail=detail)


def detail(change: TimelineEntry) -> str:
    """The fields of a change of a partition or of the controller, as a text."""
    fields = change.fields
    parts = []
    if change.what == "leader elected":
        parts.append(f"broker {fields.get('leader')} instead of {_broker(fields.get('before'))}")
    elif "replica" in fields:
        parts.append(f"broker {fields['replica']}")
    elif "leader" in fields:
        parts.append(f"leader {_broker(fields['leader'])}")
    if fields.get("unclean"):
        parts.append("unclean: acknowledged records may be lost")
    if "isr" in fields:
        parts.append(f"ISR {', '.join(map(str, fields['isr'])) or 'empty'}")
    parts += [
        f"{label} {fields[name]}"
        for name, label in (("epoch", "epoch"), ("broker_epoch", "epoch"), ("offset", "at offset"))
        if name in fields
    ]
    return ", ".join(parts)


def _broker(number: object) -> str:
    return "none" if number == -1 else str(number)


routes = [
    Route("/timelines", begin, methods=["GET"]),
    Route("/timelines/groups", of_groups, methods=["GET"]),
    Route("/timelines/partitions", of_partitions, methods=["GET"]),
    Route("/timelines/transactions", of_transactions, methods=["GET"]),
    Route("/timelines/controller", of_controller, methods=["GET"]),
]

"""Transactions: all transactional ids, what blocks readers of committed records, and the abort of one."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ottla.client.admin.admin import Admin
from ottla.client.admin.transaction_results import BlockedPartition, TransactionDescription, TransactionListing, TransactionState
from ottla.console.pages.cluster import available
from ottla.console.pages.listing import Listing, listed, matching, text
from ottla.console.web.changes import change, field, noted, then
from ottla.console.web.errors import invalid
from ottla.console.web.page import page, query
from ottla.console.web.roles import Role
from ottla.wire.errors import KafkaError

ITEMS = 50
#: Age of a transaction from which it is listed as blocking.
BLOCKING_MS = 10_000
#: Longest search for what blocks.
BLOCKED_S = 4.0
SORTS = {
    "id": lambda one: one.transactional_id,
    "state": lambda one: one.state.value,
    "coordinator": lambda one: one.coordinator,
}


class TransactionRow(msgspec.Struct, frozen=True):
    """A transactional id; its description is None if it cannot be described."""

    listing: TransactionListing
    described: TransactionDescription | None


async def show(request: Request) -> Response:
    """The list, and what blocks."""
    admin = request.app.state.admin
    (found, problem), (blocked, no_blocked) = await asyncio.gather(available(admin.list_transactions()), _blocked(admin))
    wanted, state = text(request, "q"), text(request, "state")
    every = found or []
    chosen = [one for one in matching(every, wanted, lambda one: one.transactional_id) if not state or one.state.value == state]
    listing: Listing[TransactionListing] = listed(request, chosen, SORTS, default="id", items=ITEMS)
    outcomes: dict[str, Any] = {}
    if listing.items:
        told, _ = await available(admin.describe_transactions([one.transactional_id for one in listing.items]))
        outcomes = told or {}
    rows = [TransactionRow(one, _described(outcomes.get(one.transactional_id))) for one in listing.items]
    blocking: list[BlockedPartition] = [one for one in (blocked or {}).values() if not isinstance(one, KafkaError)]
    return page(
        request, "transactions.html", title="Transactions", listing=listing, rows=rows, q=wanted, state=state, all=len(every),
        states=sorted({one.state.value for one in every}), problem=problem, blocking=blocking, no_blocked=no_blocked,
        ongoing=TransactionState.ONGOING,
    )  # fmt: skip


async def _blocked(admin: Admin) -> tuple[dict[Any, Any] | None, str]:
    """What blocks; the search asks about every partition, which takes seconds in a cluster of thousands."""
    try:
        async with asyncio.timeout(BLOCKED_S):
            found, problem = await available(admin.find_blocked_partitions(longer_than_ms=BLOCKING_MS))
            return (None if found is None else dict(found)), problem
    except TimeoutError:
        return (
            None,
            f"The search did not end in {BLOCKED_S:.0f} s, because there are many partitions. ottla transaction find-hanging searches on.",
        )


def _described(outcome: Any) -> TransactionDescription | None:
    return outcome if isinstance(outcome, TransactionDescription) else None


@change("transaction.abort", Role.ADMIN)
async def abort(request: Request) -> Response:
    """Aborts the transaction of an id, and fences its producer."""
    name = field(request, "id")
    noted(request, transactional_id=name)
    if not name or field(request, "confirm") != name:
        raise invalid(f"The confirmation is not the transactional id, {name}.")
    await request.app.state.admin.force_terminate_transaction(name)
    return then(request, f"/transactions{query(q=name)}", f"The transaction of {name} was aborted, and its producer fenced.")


routes = [Route("/transactions", show, methods=["GET"]), Route("/transactions/abort", abort, methods=["POST"])]

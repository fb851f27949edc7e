"""Groups with their members and lag."""

from __future__ import annotations

import msgspec

from ottla.client.admin.admin import Admin
from ottla.client.admin.group_results import GroupListing, GroupState
from ottla.wire.errors import KafkaError


class GroupRow(msgspec.Struct, kw_only=True):
    """A group in the list. None: unknown."""

    id: str
    state: GroupState
    type: str
    members: int | None = None
    topics: int | None = None
    lag: int | None = None
    time_lag_ms: int | None = None
    problem: str = ""


async def measured(admin: Admin, groups: list[GroupListing]) -> list[GroupRow]:
    """Rows with members and lag."""
    rows = {one.group_id: GroupRow(id=one.group_id, state=one.state, type=one.type.value) for one in groups}
    if not rows:
        return []
    described = await admin.describe_consumer_groups(rows)
    lags = await admin.consumer_group_lag([name for name, one in described.items() if not isinstance(one, KafkaError)])
    for name, row in rows.items():
        group, lag = described[name], lags.get(name)
        if isinstance(group, KafkaError):
            row.problem = str(group)
            continue
        row.state, row.members = group.state, len(group.members)
        if isinstance(lag, KafkaError):
            row.problem = str(lag)
        elif lag is not None:
            row.lag, row.time_lag_ms, row.topics = lag.lag, lag.time_lag_ms, len(lag.by_topic())
    return list(rows.values())

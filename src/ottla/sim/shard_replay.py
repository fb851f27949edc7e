"""Compares each coordinator shard with a replay of its log: a coordinator that loads the log must have the same state.

Compared is everything that records contain: committed offsets, groups with their members and assignments, transactional ids. A classic
group during a rebalance is ahead of its records and is skipped.
"""

from typing import Any

import msgspec

from ottla.base.ids import Offset
from ottla.broker.coordinator import Shard, ShardState, replay
from ottla.broker.groups.classic.group import ClassicGroup
from ottla.broker.groups.classic.states import GroupState
from ottla.broker.groups.consumer.service import ConsumerGroupService
from ottla.broker.groups.groups import Groups
from ottla.broker.node import Node
from ottla.broker.transactions.transaction import Transaction
from ottla.broker.transactions.transactions import Transactions
from ottla.records.batch import headers

#: State of a consumer group that is not in its records.
SOFT = frozenset(("topics_version", "matched_ms", "assigned_ms", "changed_ms", "matched"))
#: Defaults of the tagged fields of a transactional id's record.
UNTAGGED = {"previous_producer_id": -1, "next_producer_id": -1, "next_epoch": -1, "client_version": 0, "last_epoch": -1}


def differences(node: Node) -> list[str]:
    """Differences to a replay, one line each. Raises: OSError, LogError, RecordsError if the log cannot be read."""
    groups = [(number, shard) for number, shard in sorted(node.groups.shards.items()) if shard.state is ShardState.ACTIVE]
    transactions = [(number, shard) for number, shard in sorted(node.transactions.shards.items()) if shard.state is ShardState.ACTIVE]
    return [
        *(line for number, shard in groups for line in _of_groups(node, number, shard)),
        *(line for number, of_ids in transactions for line in _of_transactions(node, number, of_ids)),
    ]


def _of_transactions(node: Node, number: int, shard: Shard[Transactions]) -> list[str]:
    again = Shard(node.transactions, shard.leader, lambda shard: Transactions(shard, node.producer_ids))
    _replay(again)
    there, read = shard.machine, again.machine
    found = [
        f"transaction shard {number}: {name} is {_short(there.by_id.get(name))}, a replay has {_short(read.by_id.get(name))}"
        for name in sorted({*there.by_id, *read.by_id})
        if read.by_id.get(name) not in (there.by_id.get(name), _without_tags(there.by_id.get(name)))
    ]
    if (sorted(there.ongoing), there.bytes) != (sorted(read.ongoing), read.bytes):
        found.append(f"transaction shard {number}: open are {list(there.ongoing)}, a replay has {list(read.ongoing)}, or other bytes")
    return found


def _without_tags(transaction: Transaction | None) -> Transaction | None:
    """What a record without tagged fields has, which is written at ``transaction.version`` 0."""
    return None if transaction is None else msgspec.structs.replace(transaction, **UNTAGGED)


def _of_groups(node: Node, number: int, shard: Shard[Groups]) -> list[str]:
    replayed = Shard(node.groups, shard.leader, Groups)
    _replay(replayed)
    there, again = shard.machine, replayed.machine
    found = []
    if there.offsets.by_group != again.offsets.by_group:
        found.append(
            f"shard {number}: committed offsets are {_short(there.offsets.by_group)}, a replay has {_short(again.offsets.by_group)}"
        )
    if there.offsets.pending.sorted_places() != again.offsets.pending.sorted_places():
        found.append(f"shard {number}: offsets of open transactions are not those of a replay")
    if there.offsets.bytes != again.offsets.bytes:
        found.append(f"shard {number}: its offsets count {there.offsets.bytes} bytes, those of a replay {again.offsets.bytes}")
    for group_id in sorted({*there.by_id, *again.by_id}):
        mine, read = there.by_id.get(group_id), again.by_id.get(group_id)
        if isinstance(mine, ClassicGroup) and mine.state is not GroupState.STABLE:
            continue
        if mine is None and isinstance(read, ClassicGroup) and read.unused and not again.offsets.holds(group_id):
            # Never persisted, or its last offset expired: there is no record.
            continue
        if durable(mine) != durable(read):
            found.append(f"shard {number}: group {group_id} is {_short(durable(mine))}, a replay has {_short(durable(read))}")
    return found


def _replay(again: Shard[Any]) -> None:
    """Applies the log of a new shard."""
    log = again.leader.log
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, max_bytes=1 << 20, upto=log.end_offset)
        if not data:
            break
        for place, header in headers(data):
            replay(again.machine, data, place, header)
            offset = Offset(header.last_offset + 1)


def durable(group: Any) -> Any:
    """The persisted state of a group, in a form that can be compared."""
    if isinstance(group, ClassicGroup):
        members = {
            member.member_id: (member.instance_id, member.metadata(group.protocol), member.assignment, member.session_timeout_ms)
            for member in group.members
        }
        return ("classic", group.generation, group.protocol_type, group.protocol, group.leader, members)
    if isinstance(group, ConsumerGroupService):
        # The rest of the shard is not compared, so only the group's own bytes of the footprint are.
        told = {name: value for name, value in vars(group.group).items() if name not in SOFT} | {"footprint": group.footprint.bytes}
        return ("consumer", _plain(told))
    return None


def _plain(value: Any) -> Any:
    """Takes objects apart, so that equal contents compare equal."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return {repr(_plain(each)) for each in value}
    if isinstance(value, msgspec.Struct):
        return value
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    if slots:
        return {name: _plain(getattr(value, name)) for name in slots if hasattr(value, name)}
    if hasattr(value, "__dict__"):
        return {name: _plain(each) for name, each in vars(value).items()}
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 400 else text[:400] + "..."

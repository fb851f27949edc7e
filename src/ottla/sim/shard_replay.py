"""Compares each coordinator shard with a replay of its log: a coordinator that loads the log must have the same state.

Compared is everything that records contain: committed offsets, groups with their members and assignments. A classic group during a
rebalance is ahead of its records and is skipped.
"""

from typing import Any

import msgspec

from ottla.base.ids import Offset
from ottla.broker.coordinator import Shard, State, replay
from ottla.broker.groups.classic.group import ClassicGroup
from ottla.broker.groups.classic.states import GroupState
from ottla.broker.groups.consumer.service import ConsumerGroupService
from ottla.broker.groups.groups import Groups
from ottla.broker.node import Node
from ottla.records.batch import headers

#: State of a consumer group that is not in its records.
SOFT = frozenset(("topics_version", "matched_ms", "assigned_ms", "changed_ms", "matched"))


def differences(node: Node) -> list[str]:
    """Differences to a replay, one line each. Raises: OSError, LogError, RecordsError if the log cannot be read."""
    return [
        line
        for number, shard in sorted(node.groups.shards.items())
        if shard.state is State.ACTIVE
        for line in _of_shard(node, number, shard)
    ]


def _of_shard(node: Node, number: int, shard: Shard[Groups]) -> list[str]:
    there, again = shard.machine, _replay(node, shard).machine
    found = []
    if there.offsets.by_group != again.offsets.by_group:
        found.append(
            f"shard {number}: committed offsets are {_short(there.offsets.by_group)}, a replay has {_short(again.offsets.by_group)}"
        )
    if sorted(there.offsets.pending.places()) != sorted(again.offsets.pending.places()):
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


def _replay(node: Node, shard: Shard[Groups]) -> Shard[Groups]:
    log = shard.leader.log
    again = Shard(node.groups, shard.leader, Groups)
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, max_bytes=1 << 20, upto=log.end_offset)
        if not data:
            break
        for place, header in headers(data):
            replay(again.machine, data, place, header)
            offset = Offset(header.last_offset + 1)
    return again


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

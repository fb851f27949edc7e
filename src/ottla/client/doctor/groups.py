"""Checks of consumer groups: offsets outside of the log, no progress, no members, rebalances that do not end.

A lag alone is no problem: a large lag of seconds is fine, ten records for an hour are not. A group is suspicious if its first unread record
is old. A second measurement some seconds later tells:

    stuck            nothing was committed between the measurements
    falls behind     offsets were committed, but the lag grew
    catches up       offsets were committed and the lag shrank: no finding

The time between is longer than the default commit interval of consumers (auto.commit.interval.ms, 5 s).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from shlex import quote

from ottla.base.readable import duration_text
from ottla.client.admin.group_lag import GroupLag, PartitionLag
from ottla.client.admin.group_results import GroupDescription, GroupState
from ottla.client.doctor.facts import Facts, Finding

#: A group with an older first unread record is suspicious.
TIME_LAG_MS = 300_000
REBALANCES = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE, GroupState.ASSIGNING, GroupState.RECONCILING)


def suspicious_groups(facts: Facts) -> list[str]:
    """Groups to measure again: in a rebalance, or with old unread records."""
    rebalancing = {name for name, group in facts.groups.items() if isinstance(group, GroupDescription) and group.state in REBALANCES}
    behind = {name for name, lag in facts.lags.items() if isinstance(lag, GroupLag) and any(map(_is_behind, lag.partitions))}
    return sorted(rebalancing | behind)


def _is_behind(one: PartitionLag) -> bool:
    return bool(one.lag) and one.time_lag_ms is not None and one.time_lag_ms >= TIME_LAG_MS


def offsets(facts: Facts) -> Iterator[Finding]:
    """Committed offsets outside of the log."""
    for name, lag in sorted(facts.lags.items()):
        if isinstance(lag, str):
            yield Finding(
                severity="warning", what="The offsets of a group cannot be read", evidence=lag,
                remedy="Check whether the partitions of __consumer_offsets have leaders.", group=name,
                command="ottla topic partitions --offline",
            )  # fmt: skip
            continue
        for topic, several in lag.by_topic().items():
            lost = [one for one in several if one.lost]
            beyond = [
                one for one in several
                if one.committed_offset is not None and one.end_offset is not None and one.committed_offset > one.end_offset
            ]  # fmt: skip
            if lost:
                yield Finding(
                    severity="problem", what="Records were deleted before the group read them",
                    evidence=f"{_where(lost)}, the log starts at {lost[0].start_offset}; {sum(one.lost for one in lost)} offsets in total",
                    remedy="At its next start it continues as auto.offset.reset sets. Increase the topic's retention or the number of"
                    " members, then reset the offsets into the log.", group=name, topic=topic, partitions=[one.partition for one in lost],
                    command=f"ottla group reset {quote(name)} --topic {topic} --to-current",
                )  # fmt: skip
            if beyond:
                yield Finding(
                    severity="problem", what="A committed offset is beyond the log end",
                    evidence=f"{_where(beyond)}, the log ends at {beyond[0].end_offset}",
                    remedy="The topic was recreated, or lost records. Reset the offsets into the log; otherwise the group reads nothing, or"
                    " continues as auto.offset.reset sets.", group=name, topic=topic, partitions=[one.partition for one in beyond],
                    command=f"ottla group reset {quote(name)} --topic {topic} --to-current",
                )  # fmt: skip


def _where(several: list[PartitionLag]) -> str:
    return f"the committed offset of {several[0].topic}-{several[0].partition} is {several[0].committed_offset}"


def groups(facts: Facts) -> Iterator[Finding]:
    """Groups without progress or members, or with a rebalance that does not end."""
    for name, group in sorted(facts.groups.items()):
        if isinstance(group, str):
            yield Finding(
                severity="problem", what="A group cannot be described; its members cannot join or commit either", evidence=group,
                remedy="Check whether the partitions of __consumer_offsets have leaders, and the log of the group's coordinator.",
                group=name, command="ottla topic partitions --offline",
            )  # fmt: skip
            continue
        yield from _rebalancing(facts, group)
        if group.state is GroupState.STABLE:
            yield from _assignment(facts, group)
        yield from _progress(facts, group)


def _rebalancing(facts: Facts, group: GroupDescription) -> Iterator[Finding]:
    again = facts.groups_again.get(group.group_id)
    if group.state not in REBALANCES or not isinstance(again, GroupDescription) or again.state not in REBALANCES:
        return
    yield Finding(
        severity="warning", what="A rebalance of a group does not end; partitions are not read",
        evidence=f"{group.state.value}, and {again.state.value} {duration_text(facts.between_ms)} later; {len(again.members)} members",
        remedy="A member does not call poll in time, or restarts repeatedly: check the members' logs, max.poll.interval.ms and the time"
        " between two polls.", group=group.group_id, command=f"ottla group describe {quote(group.group_id)}",
    )  # fmt: skip


def _assignment(facts: Facts, group: GroupDescription) -> Iterator[Finding]:
    if group.protocol_type != "consumer":
        return
    name = group.group_id
    idle = [member for member in group.members if not member.assignment]
    if idle:
        yield Finding(
            severity="note", what="Members of a group have no partitions",
            evidence=f"{len(idle)} of {len(group.members)} members, for example {idle[0].client_id or idle[0].member_id}",
            remedy="There are more members than partitions. Keep them as a reserve, stop some, or add partitions.", group=name,
            command=f"ottla group describe {quote(name)}",
        )  # fmt: skip
    if not facts.topics:
        return
    read = {tp for member in group.members for tp in member.assignment}
    for topic in sorted({topic for member in group.members for topic in member.topics}):
        described = facts.topics.get(topic)
        if described is None:
            if topic not in facts.undescribed:
                yield Finding(
                    severity="warning", what="A group subscribes to a topic that does not exist", evidence=f"topic {topic} does not exist",
                    remedy="Create it, or correct the name in the consumers.", group=name, topic=topic,
                    command=f"ottla topic create {topic} --dry-run",
                )  # fmt: skip
            continue
        unread = [one.partition for one in described if (topic, one.partition) not in read]
        if unread:
            yield Finding(
                severity="warning", what="Partitions of a subscribed topic are not assigned",
                evidence=f"{len(unread)} of {len(described)} partitions are assigned to no member",
                remedy="After a change of the topic this is normal until members refresh metadata (metadata.max.age.ms). If it lasts, check"
                " the group's assignor, or restart its members.", group=name, topic=topic, partitions=unread,
                command=f"ottla group describe {quote(name)}",
            )  # fmt: skip


def _progress(facts: Facts, group: GroupDescription) -> Iterator[Finding]:
    """Old unread records in both measurements."""
    first, second = facts.lags.get(group.group_id), facts.lags_again.get(group.group_id)
    if not isinstance(first, GroupLag) or not isinstance(second, GroupLag):
        return
    later = {(one.topic, one.partition): one for one in second.partitions}
    stuck: dict[str, list[PartitionLag]] = defaultdict(list)
    slower: dict[str, list[PartitionLag]] = defaultdict(list)
    for before in first.partitions:
        after = later.get((before.topic, before.partition))
        if after is None or not _is_behind(before) or not _is_behind(after):
            continue
        if after.committed_offset == before.committed_offset:
            stuck[before.topic].append(after)
        elif (after.lag or 0) > (before.lag or 0):
            slower[before.topic].append(after)
    for topic, several in stuck.items():
        if group.state.has_members:
            what, remedy = (
                "A group makes no progress",
                "Check its members' logs: they fail at a record, wait for something, or do not commit.",
            )
        else:
            what = "A group has unread records and no members"
            remedy = "Start its consumers, or delete the group if it is not needed."
        yield _lag_finding(group, topic, several, what, remedy, facts.between_ms)
    for topic, several in slower.items():
        remedy = "Records are written faster than they are read: add members, up to the number of partitions, or speed up their processing."
        yield _lag_finding(group, topic, several, "The lag of a group grows", remedy, facts.between_ms)


def _lag_finding(group: GroupDescription, topic: str, several: list[PartitionLag], what: str, remedy: str, between_ms: int) -> Finding:
    oldest_ms = max(one.time_lag_ms or 0 for one in several)
    lag = sum(one.lag or 0 for one in several)
    return Finding(
        severity="warning", what=what,
        evidence=f"{lag} unread records, the first for {duration_text(oldest_ms)}; measured twice within {duration_text(between_ms)}",
        remedy=remedy, group=group.group_id, topic=topic, partitions=[one.partition for one in several],
        command=f"ottla group lag {quote(group.group_id)}",
    )  # fmt: skip

"""What is wrong with consumer groups: offsets outside of the log, groups that do not get on, that nobody reads for, that never settle.

How far a group is behind says little by itself: seconds behind at a high rate is well, ten records behind for an hour is not. So it is the
age of the first unread record that makes a group suspect, and a second look some seconds later that tells

    stuck            nothing was committed between the looks
    falls behind     something was, and the lag grew nevertheless
    catches up       something was, and the lag shrank: nothing to say

The looks are further apart than consumers commit by default (auto.commit.interval.ms, 5 s).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from shlex import quote

from ottla.cli.common.arguments import duration_text
from ottla.cli.doctor.facts import Facts, Finding
from ottla.client.admin.group_lag import GroupLag, PartitionLag
from ottla.client.admin.group_results import GroupDescription, GroupState

#: A first unread record of this age makes a group suspect.
BEHIND_MS = 300_000
REBALANCES = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE, GroupState.ASSIGNING, GroupState.RECONCILING)


def suspects(facts: Facts) -> list[str]:
    """Groups that deserve a second look: in a rebalance, or with records that have been waiting for long."""
    rebalancing = {name for name, group in facts.groups.items() if isinstance(group, GroupDescription) and group.state in REBALANCES}
    behind = {name for name, lag in facts.lags.items() if isinstance(lag, GroupLag) and any(map(_waits, lag.partitions))}
    return sorted(rebalancing | behind)


def _waits(one: PartitionLag) -> bool:
    return bool(one.lag) and one.time_lag_ms is not None and one.time_lag_ms >= BEHIND_MS


def offsets(facts: Facts) -> Iterator[Finding]:
    """Committed offsets that are not in the log."""
    for name, lag in sorted(facts.lags.items()):
        if isinstance(lag, str):
            yield Finding(
                severity="warning", what="The offsets of a group cannot be read", evidence=lag,
                remedy="Look whether __consumer_offsets has leaders.", group=name, command="ottla topic partitions --offline",
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
                    evidence=f"{_where(lost)}, the log begins at {lost[0].start_offset}; {sum(one.lost for one in lost)} offsets in all",
                    remedy="It goes on where auto.offset.reset says when it starts. Give the topic a longer retention, or the group more"
                    " members; then move it into the log.", group=name, topic=topic, partitions=[one.partition for one in lost],
                    command=f"ottla group reset {quote(name)} --topic {topic} --to-current",
                )  # fmt: skip
            if beyond:
                yield Finding(
                    severity="problem", what="A group is beyond the end of the log",
                    evidence=f"{_where(beyond)}, the log ends at {beyond[0].end_offset}",
                    remedy="The topic was made anew, or lost records. Move the group into the log, else it reads nothing or starts where"
                    " auto.offset.reset says.", group=name, topic=topic, partitions=[one.partition for one in beyond],
                    command=f"ottla group reset {quote(name)} --topic {topic} --to-current",
                )  # fmt: skip


def _where(several: list[PartitionLag]) -> str:
    return f"in {several[0].topic}-{several[0].partition} it is at {several[0].committed_offset}"


def groups(facts: Facts) -> Iterator[Finding]:
    """Groups that do not get on, do not settle, or have nobody."""
    for name, group in sorted(facts.groups.items()):
        if isinstance(group, str):
            yield Finding(
                severity="problem", what="A group cannot be described: its members cannot join or commit either", evidence=group,
                remedy="Look whether the partitions of __consumer_offsets have leaders, and at the log of the group's coordinator.",
                group=name, command="ottla topic partitions --offline",
            )  # fmt: skip
            continue
        yield from _unsettled(facts, group)
        if group.state is GroupState.STABLE:
            yield from _assignment(facts, group)
        yield from _progress(facts, group)


def _unsettled(facts: Facts, group: GroupDescription) -> Iterator[Finding]:
    again = facts.groups_again.get(group.group_id)
    if group.state not in REBALANCES or not isinstance(again, GroupDescription) or again.state not in REBALANCES:
        return
    yield Finding(
        severity="warning", what="A group does not come out of its rebalance: some of it is not read",
        evidence=f"{group.state.value}, and {again.state.value} {duration_text(facts.between_ms)} later; {len(again.members)} members",
        remedy="A member does not call poll in time, or comes and goes again and again: look at the members' logs, at max.poll.interval.ms"
        " and at what they do between two polls.", group=group.group_id, command=f"ottla group describe {quote(group.group_id)}",
    )  # fmt: skip


def _assignment(facts: Facts, group: GroupDescription) -> Iterator[Finding]:
    if group.protocol_type != "consumer":
        return
    name = group.group_id
    idle = [member for member in group.members if not member.assignment]
    if idle:
        yield Finding(
            severity="note", what="Members of a group have nothing to read",
            evidence=f"{len(idle)} of {len(group.members)} members, say {idle[0].client_id or idle[0].member_id}",
            remedy="There are more members than partitions: that is well as a reserve, else stop some or add partitions.", group=name,
            command=f"ottla group describe {quote(name)}",
        )  # fmt: skip
    if not facts.topics:
        return
    read = {tp for member in group.members for tp in member.assignment}
    for topic in sorted({topic for member in group.members for topic in member.topics}):
        there = facts.topics.get(topic)
        if there is None:
            if topic not in facts.untold:
                yield Finding(
                    severity="warning", what="A group subscribes to a topic that is not there", evidence=f"there is no topic {topic}",
                    remedy="Create it, or correct the name in the consumers.", group=name, topic=topic,
                    command=f"ottla topic create {topic} --dry-run",
                )  # fmt: skip
            continue
        unread = [one.partition for one in there if (topic, one.partition) not in read]
        if unread:
            yield Finding(
                severity="warning", what="Nobody reads some partitions that a group subscribes to",
                evidence=f"{len(unread)} of {len(there)} partitions are assigned to no member",
                remedy="After a change of the topic it passes when the members see it (metadata.max.age.ms). If it stays, look at the"
                " assignor of the group, or restart its members.", group=name, topic=topic, partitions=unread,
                command=f"ottla group describe {quote(name)}",
            )  # fmt: skip


def _progress(facts: Facts, group: GroupDescription) -> Iterator[Finding]:
    """Records that wait for long: what the second look says of them."""
    first, second = facts.lags.get(group.group_id), facts.lags_again.get(group.group_id)
    if not isinstance(first, GroupLag) or not isinstance(second, GroupLag):
        return
    later = {(one.topic, one.partition): one for one in second.partitions}
    stuck: dict[str, list[PartitionLag]] = defaultdict(list)
    slower: dict[str, list[PartitionLag]] = defaultdict(list)
    for before in first.partitions:
        after = later.get((before.topic, before.partition))
        if after is None or not _waits(before) or not _waits(after):
            continue
        if after.committed_offset == before.committed_offset:
            stuck[before.topic].append(after)
        elif (after.lag or 0) > (before.lag or 0):
            slower[before.topic].append(after)
    for topic, several in stuck.items():
        if group.state.has_members:
            what, remedy = (
                "A group does not get on",
                "Look at its members' logs: they fail at a record, wait for something, or do not commit.",
            )
        else:
            what = "A group has records to read, and no members"
            remedy = "Start its consumers; if it is not needed any more, delete it."
        yield _waiting(group, topic, several, what, remedy, facts.between_ms)
    for topic, several in slower.items():
        remedy = "Records come faster than they are read: add members, up to the number of partitions, or make their work shorter."
        yield _waiting(group, topic, several, "A group falls behind further and further", remedy, facts.between_ms)


def _waiting(group: GroupDescription, topic: str, several: list[PartitionLag], what: str, remedy: str, between_ms: int) -> Finding:
    oldest_ms = max(one.time_lag_ms or 0 for one in several)
    lag = sum(one.lag or 0 for one in several)
    return Finding(
        severity="warning", what=what,
        evidence=f"{lag} records wait, the first for {duration_text(oldest_ms)}; seen twice, {duration_text(between_ms)} apart",
        remedy=remedy, group=group.group_id, topic=topic, partitions=[one.partition for one in several],
        command=f"ottla group lag {quote(group.group_id)}",
    )  # fmt: skip

"""Answers to all members of a group, a few at a time, so that a large group's rebalance is not felt by others.

Members that are answered together come back together: with SyncGroup, and with every heartbeat from then on. Five hundred requests at one
moment keep the loop busy for some fifty milliseconds, in which nobody else is answered. So the answers that end a join or a sync phase
leave at a rate that the broker does not notice, the leader's first, and the members' later requests keep that distance::

    all at once   ▉▉▉▉▉▉▉▉▉▉                     ▉▉▉▉▉▉▉▉▉▉
    in portions   ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂           ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂

A group of the size that groups usually have is answered at once. What is decided is decided: a later portion holds what was true when the
phase ended, and a member that is overtaken by another rebalance learns of it when it asks.

Difference from Kafka, which answers all at once.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.coordinator import Reply, Shard
from ottla.broker.groups.classic.responses import given, joined

if TYPE_CHECKING:
    from ottla.broker.groups.classic.group import ClassicGroup

#: A portion and what it brings back are one or two milliseconds of work. One leaves at each tick of the purgatory: 1,000 answers a second.
PORTION = 10


def tell_joined(group: "ClassicGroup", shard: Shard[Any]) -> None:
    """Answer every JoinGroup that waits: this is the generation."""
    answers: list[tuple[Reply, Any]] = []
    for member in group.members:
        if member.joining is not None:
            answers.insert(0 if member.member_id == group.leader else len(answers), (member.joining, joined(group, member)))
            group.members.await_join(member, None)
    tell(shard, answers)


def tell_given(group: "ClassicGroup", shard: Shard[Any]) -> None:
    """Answer every SyncGroup that waits: this is the assignment."""
    answers: list[tuple[Reply, Any]] = []
    for member in group.members:
        if member.syncing is not None:
            answers.append((member.syncing, given(group, member)))
            member.syncing = None
            group.sessions.alive(member)
    tell(shard, answers)


def tell(shard: Shard[Any], answers: Sequence[tuple[Reply, Any]]) -> None:
    """Give these answers, the first portion at once. Those that are left when the shard goes are refused with it."""
    for reply, message in answers[:PORTION]:
        reply.give(message)
    if rest := answers[PORTION:]:
        shard.after(1, lambda: tell(shard, rest))

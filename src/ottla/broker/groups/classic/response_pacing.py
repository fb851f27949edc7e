"""Response pacing: responses to all members of a large group are sent a few at a time, so that other clients are not delayed.

Members that get their responses together send their next requests together: SyncGroup, and then every heartbeat. Five hundred requests at
once keep the event loop busy for some fifty milliseconds. So the responses at the end of a join or sync phase are sent at a low rate, the
leader's first, and the members' later requests keep that distance::

    all at once   ▉▉▉▉▉▉▉▉▉▉                     ▉▉▉▉▉▉▉▉▉▉
    paced         ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂           ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂

Groups of usual size are answered at once. A later response has the state of the end of the phase; a member that is overtaken by another
rebalance learns of it with its next request.

Difference from Kafka, which answers all at once.
"""

from collections.abc import Sequence
from typing import Any

from ottla.broker.coordinator import Reply, Shard
from ottla.broker.groups.classic.responses import Generation, given, joined
from ottla.broker.groups.classic.sessions import Sessions

#: These responses and the requests that follow take one or two milliseconds. They are sent at each tick of delayed operations: 1,000 a
#: second.
PORTION = 10


def answer_joins(group: Generation, shard: Shard[Any]) -> None:
    """Answers every waiting JoinGroup with the new generation."""
    answers: list[tuple[Reply, Any]] = []
    for member in group.members:
        if member.joining is not None:
            answers.insert(0 if member.member_id == group.leader else len(answers), (member.joining, joined(group, member)))
            group.members.await_join(member, None)
    answer_paced(shard, answers)


def answer_syncs(group: Generation, sessions: Sessions, shard: Shard[Any]) -> None:
    """Answers every waiting SyncGroup with its assignment."""
    answers: list[tuple[Reply, Any]] = []
    for member in group.members:
        if member.syncing is not None:
            answers.append((member.syncing, given(group, member)))
            member.syncing = None
            sessions.alive(member)
    answer_paced(shard, answers)


def answer_paced(shard: Shard[Any], answers: Sequence[tuple[Reply, Any]]) -> None:
    """Sends these responses, the first ones at once. Those left when the shard ends are refused with it."""
    for reply, message in answers[:PORTION]:
        reply.give(message)
    if rest := answers[PORTION:]:
        shard.after(1, lambda: answer_paced(shard, rest))

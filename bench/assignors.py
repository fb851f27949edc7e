"""Time of the client's assignors for 10,000 partitions and 500 members: first assignment, after half of the members leave, and after they
rejoin.

`python -m bench.assignors`; the assignors are pure functions, so no broker is needed.
"""

from __future__ import annotations

import time
from random import Random

from ottla.client.group.assignor import Assignment, Assignor, Member
from ottla.client.group.assignors import Range, RoundRobin
from ottla.client.group.sticky_assignor import CooperativeSticky, Sticky, encode_claims

TOPICS = {f"t{index}": 100 for index in range(100)}
MEMBERS = 500
ASSIGNORS: list[type[Assignor]] = [Range, RoundRobin, Sticky, CooperativeSticky]


def members(topics_max: int | None) -> dict[str, Member]:
    """Members that read all topics, or at most ``topics_max`` random ones each."""
    rng = Random(1)
    names = sorted(TOPICS)
    return {
        f"m{index}": Member(frozenset(TOPICS if topics_max is None else rng.sample(names, rng.randint(1, topics_max))))
        for index in range(MEMBERS)
    }


def having(all_members: dict[str, Member], made: Assignment, generation: int) -> dict[str, Member]:
    """The members with their previous assignment, as they rejoin."""
    return {
        name: member._replace(
            owned=tuple(made.get(name, ())), generation=generation, user_data=encode_claims(made.get(name, ()), generation)
        )
        for name, member in all_members.items()
    }


def timed(assignor: type[Assignor], group: dict[str, Member]) -> tuple[float, Assignment]:
    """Milliseconds, and the assignment."""
    began = time.perf_counter()
    made = assignor().assign(TOPICS, group)
    return (time.perf_counter() - began) * 1000, made


def main() -> None:
    print(f"{sum(TOPICS.values())} partitions of {len(TOPICS)} topics, {MEMBERS} members; milliseconds")
    print(f"{'members read':<16}{'assignor':<20}{'at first':>10}{'half go':>10}{'and come':>10}")
    for name, topics_max in (("the same", None), ("1 to 100 topics", 100), ("1 to 4 topics", 4)):
        group = members(topics_max)
        for assignor in ASSIGNORS:
            first_ms, made = timed(assignor, group)
            half = dict(list(having(group, made, 1).items())[::2])
            go_ms, made = timed(assignor, half)
            come_ms, _ = timed(assignor, having(group, made, 2))
            print(f"{name:<16}{assignor.name:<20}{first_ms:>10.1f}{go_ms:>10.1f}{come_ms:>10.1f}")


if __name__ == "__main__":
    main()

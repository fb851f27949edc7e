"""Which brokers hold the replicas of a new partition. Pure; the randomness is an argument.

Three promises, the first before the others:

- The replicas of a partition lie in as many racks as possible.
- Every broker leads, and holds, as many partitions as any other, as far as the first promise allows: a small rack gets more than its share.
- Of the partitions that a broker leads, the other replicas spread over all other brokers, so that these share its load when it fails.

Brokers stand in a circle in which neighbours lie in different racks. The first replica walks round it from a random start; the others are
the next ones behind it, at a shift that grows each time round, whose rack has no replica yet while there is such a rack::

    racks a a b b c c      circle 1a 3b 5c 2a 4b 6c      partition 0   1 3 5      partition 6 (shifted)   1 4 6
    brokers 1 2 3 4 5 6                                  partition 1   3 5 2

Where racks have not equally many brokers, those behind a gap in the circle would be met more often than others, so there the one that
holds least is taken. Brokers that name no rack are together in one of their own, if any broker names one.

Source: Kafka's AdminUtils (the circle and its shift), StripedReplicaPlacer (brokers without a rack); KIP-36.
"""

from collections import Counter
from collections.abc import Mapping
from random import Random

from ottla.base.ids import BrokerId


def place(
    racks: Mapping[BrokerId, str | None], *, partitions: int, replication_factor: int, rng: Random, first_partition: int = 0
) -> list[tuple[BrokerId, ...]]:
    """Replicas, preferred leader first, of ``partitions`` new partitions numbered from ``first_partition``.

    ``replication_factor`` is at most the number of brokers in ``racks``, those to choose from.
    """
    circle = _alternating(racks)
    count = len(circle)
    assert 0 < replication_factor <= count, f"{replication_factor} replicas fit on {count} brokers"
    if any(racks.values()):
        rack_of: dict[BrokerId, object] = {broker: racks[broker] or "" for broker in circle}
    else:
        rack_of = {broker: broker for broker in circle}
    sizes = Counter(rack_of.values())
    uneven = len(set(sizes.values())) > 1
    stride = len(sizes) if len(sizes) < count else 1
    start, shift = rng.randrange(count), rng.randrange(count)
    held: Counter[BrokerId] = Counter()
    placed = []
    for number in range(first_partition, first_partition + partitions):
        if number and number % count == 0:
            shift += 1
        first = (number + start) % count
        chosen, met = [circle[first]], {rack_of[circle[first]]}
        while len(chosen) < replication_factor:
            walk = (circle[(first + 1 + (shift * stride + step) % (count - 1)) % count] for step in range(count - 1))
            free = (broker for broker in walk if broker not in chosen and (rack_of[broker] not in met or len(met) == len(sizes)))
            taken = min(free, key=held.__getitem__) if uneven else next(free)
            held[taken] += 1
            chosen.append(taken)
            met.add(rack_of[taken])
        placed.append(tuple(chosen))
    return placed


def _alternating(racks: Mapping[BrokerId, str | None]) -> list[BrokerId]:
    by_rack: dict[str, list[BrokerId]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker] or "", []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]

"""Placement of the replicas of new partitions. Pure; randomness is an argument.

Three goals, in order of priority:

- The replicas of a partition are in as many racks as possible.
- Every broker leads and stores equally many partitions, as far as the first goal allows: brokers of a small rack get more.
- For the partitions led by one broker, the other replicas are spread over all other brokers, which share its load if it fails.

Brokers are arranged in a circle in which neighbours are in different racks. The first replica walks round it from a random start; the
others follow it, with a shift that grows each round, on brokers whose rack has no replica yet, while there is such a rack::

    racks a a b b c c      circle 1a 3b 5c 2a 4b 6c      partition 0   1 3 5      partition 6 (shifted)   1 4 6
    brokers 1 2 3 4 5 6                                  partition 1   3 5 2

If racks have different numbers of brokers, those after a gap in the circle would be chosen more often; there the broker with the fewest
replicas is chosen. Brokers without a rack form a rack of their own if any broker has one.

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

    ``replication_factor`` is at most the number of brokers in ``racks``.
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

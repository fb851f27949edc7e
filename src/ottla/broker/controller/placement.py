"""Which brokers hold the replicas of a new partition. Pure; the randomness is an argument.

Kafka's way: the first replica walks round the brokers from a random start, the others follow at a shift that grows by one each time
round, so that the partitions of one broker spread over all the others when it fails. Brokers are ordered so that neighbours lie in
different racks.
"""

from collections.abc import Mapping
from random import Random

from ottla.base.ids import BrokerId


def place(
    racks: Mapping[BrokerId, str | None], *, partitions: int, replication_factor: int, rng: Random, first_partition: int = 0
) -> list[tuple[BrokerId, ...]]:
    """Replicas, preferred leader first, of ``partitions`` new partitions numbered from ``first_partition``.

    ``replication_factor`` is at most the number of brokers in ``racks``, the live ones.
    """
    brokers = _alternating(racks)
    count = len(brokers)
    assert 0 < replication_factor <= count, f"{replication_factor} replicas fit on {count} brokers"
    start, shift = rng.randrange(count), rng.randrange(count)
    placed = []
    for number in range(first_partition, first_partition + partitions):
        if number and number % count == 0:
            shift += 1
        first = (number + start) % count
        others = [(first + 1 + (shift + step) % (count - 1)) % count for step in range(replication_factor - 1)]
        placed.append(tuple(brokers[place] for place in (first, *others)))
    return placed


def _alternating(racks: Mapping[BrokerId, str | None]) -> list[BrokerId]:
    by_rack: dict[str, list[BrokerId]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker] or "", []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]

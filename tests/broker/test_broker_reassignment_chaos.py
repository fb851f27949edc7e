"""Random, overlapping reassignments while brokers fail, return and lose their links: no acknowledged record is lost."""

from random import Random

import pytest
from cluster import Sent, batch, produce_request, unpacked
from test_broker_reassignment import T0, a_cluster, holders, moving, requested, stop_copying

from ottla.base.units import SECOND_MS
from ottla.broker.replica.leader import Leader
from ottla.sim.disk import SimDisk
from ottla.wire import errors

pytestmark = pytest.mark.slow

BROKERS = 5
STEPS = 40
#: What is answered so was not written.
REFUSED = (errors.NotEnoughReplicas.code,)


class Story:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.cluster = a_cluster((1, 2, 3), brokers=BROKERS, configs={"min.insync.replicas": "2"})
        #: Settings and disks, by broker.
        self.dead: dict[int, tuple[dict[str, str], list[SimDisk]]] = {}
        self.sent: list[tuple[bytes, Sent]] = []

    def step(self) -> None:
        acts = (self.move, self.move, self.produce, self.produce, self.cancel, self.kill, self.kill, self.start, self.part, self.wait)
        self.rng.choice(acts)()

    def move(self) -> None:
        alive = list(self.cluster.brokers)
        target = self.rng.sample(alive, min(len(alive), self.rng.choice((2, 3, 3, 3, 4))))
        self.cluster[self.rng.choice(alive)].send(requested(target), 1)

    def cancel(self) -> None:
        self.cluster[self.rng.choice(list(self.cluster.brokers))].send(requested(None), 1)

    def produce(self) -> None:
        for broker in list(self.cluster.brokers.values()):
            if T0 in broker.node.partitions.leaders:
                value = b"%d" % len(self.sent)
                self.sent.append((value, broker.send(produce_request(batch(value), timeout_ms=20_000), 12)))

    def kill(self) -> None:
        """A process dies, or loses its power."""
        if len(self.dead) < 3:
            gone = self.cluster.kill(self.rng.choice(list(self.cluster.brokers)))
            disks = [disk.crash(self.rng) if self.rng.random() < 0.5 else disk.restart() for disk in gone.disks.values()]
            self.dead[gone.broker_id] = (dict(gone.texts), disks)

    def start(self) -> None:
        if self.dead:
            number = self.rng.choice(list(self.dead))
            texts, disks = self.dead.pop(number)
            self.cluster.start(number, texts, disks)

    def part(self) -> None:
        self.cluster.cut.clear()
        if self.rng.random() < 0.6:
            stop_copying(self.cluster, self.rng.choice(list(self.cluster.brokers)))

    def wait(self) -> None:
        self.cluster.pass_ms(self.rng.choice((30, 300, 3000, 40_000)))

    def settle(self) -> None:
        self.cluster.cut.clear()
        while self.dead:
            self.start()
        self.cluster.pass_ms(90 * SECOND_MS)

    def leader(self) -> Leader:
        return self.cluster.leading("t").leader("t")


def values_of(log: bytes) -> dict[int, bytes]:
    return {record[0]: record[3] for record in unpacked(log)}


@pytest.mark.parametrize("seed", range(40))
def test_no_acknowledged_record_is_lost_whatever_happens(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
        story.cluster.pass_ms(story.rng.choice((0, 10, 100, 700)))
    story.settle()
    cluster = story.cluster
    found = values_of(story.leader().log.read(0))
    assert list(found) == list(range(len(found)))
    for value, sent in story.sent:
        answer = sent.answer.responses[0].partition_responses[0] if sent.answer is not None else None
        if answer is not None and answer.error_code == 0:
            assert found.get(answer.base_offset) == value, f"{value!r} was acknowledged at {answer.base_offset}"
        elif answer is not None and answer.error_code in REFUSED:
            assert value not in found.values()
    replicas = list(cluster.controller.node.context.image.topics["t"].replicas[0])
    assert moving(cluster) == [], "everything settles"
    assert sorted(holders(cluster)) == sorted(replicas)
    for number in replicas:
        replica = cluster[number].node.partitions.replica(T0)
        assert replica is not None and values_of(replica.log.read(0)) == found

"""Random requests of every API and version, half of them nearly valid: each is answered, refused, or its connection closed."""

from random import Random
from typing import Any

import msgspec
import pytest
from cluster import Cluster, batch

from ottla.broker.apis import HANDLERS
from ottla.wire.declare import fields_of
from ottla.wire.messages import API
from random_messages import random_message

NAMES = ("t", "t", "t", "u", "", "1", "a.b", "a_b", "__consumer_offsets", "cleanup.policy", "retention.ms", "log.retention.ms", "new")


def plausible(value: Any, version: int, rng: Random, topic_id: bytes, field: str = "") -> Any:
    """The same message with most of its values taken from this cluster's life."""
    if isinstance(value, msgspec.Struct):
        known = [declared.name for declared in fields_of(type(value)) if declared.present(version)]
        return type(value)(**{name: plausible(getattr(value, name), version, rng, topic_id, name) for name in known})
    if isinstance(value, list):
        return [plausible(part, version, rng, topic_id, field) for part in value]
    if isinstance(value, bool) or value is None or rng.random() < 0.2:
        return value
    if isinstance(value, str):
        return rng.choice(NAMES)
    if isinstance(value, (int, float)):
        return rng.choice((0, 0, 1, 2, 3, 4, -1))
    if field == "records":
        return some_records(rng)
    return topic_id if len(value) == 16 and any(value) else value


def some_records(rng: Random) -> bytes:
    records = bytearray(
        batch(
            b"a", b"b", key=rng.choice((None, b"k")), producer_id=rng.choice((-1, 3)), producer_epoch=0, base_sequence=rng.choice((0, 2, 4))
        )
    )
    if rng.random() < 0.3:
        records[rng.randrange(len(records))] ^= 1 << rng.randrange(8)
    return bytes(records)


@pytest.mark.parametrize("seed", range(24))
def test_no_request_brings_a_broker_down(seed: int) -> None:
    """Answers go through the codec, so that what a version cannot say is found too."""
    rng = Random(seed)
    cluster = Cluster(brokers=2, disks=2, settings={"ottla.partitions.per.request.max": "20", "ottla.client.metrics.enable": "true"})
    cluster.topic("t", partitions=3)
    topic_id = cluster[1].node.context.image.topics["t"].topic_id
    for _ in range(50):
        key = rng.choice(sorted(HANDLERS))
        served = HANDLERS[key]
        version = rng.randrange(3 if key == 0 else served.versions[0], served.versions[1] + 1)
        request = random_message(API[key].request, version, rng)
        if rng.random() < 0.8:
            request = plausible(request, version, rng, topic_id)
        sent = cluster[rng.choice((1, 2))].send(request, version)
        if sent.waits and sent.closed is None and not sent.released:
            cluster.pass_ms(rng.choice((10, 500, 3000)))
        if rng.random() < 0.03:
            cluster.restart(rng.choice((1, 2)))
    assert all(broker.halted is None for broker in cluster.brokers.values())

"""Brokers in this process are sent requests with hostile structure: each is answered, nothing is left behind, other clients never fail.

A test is a few chunks of 1,000 frames, each from its seed and for brokers of its own; ``python -m chaos.fuzz`` sends more of them, and
shortens what fails.
"""

from random import Random

import pytest
from chaos.fuzz.chunk import FRAMES, Chunk, perform
from chaos.fuzz.oracle import internal_error
from chaos.fuzz.requests import Requests
from chaos.fuzz.vocabulary import Topic, Vocabulary

from ottla.broker.apis import HANDLERS
from ottla.wire.compile import decode, encode
from ottla.wire.declare import FieldNotInVersion
from ottla.wire.messages import API
from ottla.wire.messages.metadata import MetadataResponse, MetadataResponseTopic

#: Seeds of a test.
CHUNKS = 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("brokers", "first"), [(1, first) for first in range(0, 100, CHUNKS)] + [(3, first) for first in range(0, 40, CHUNKS)]
)
def test_no_request_stops_a_broker_or_costs_another_client_anything(brokers: int, first: int) -> None:
    for seed in range(first, first + CHUNKS):
        outcome = Chunk(seed, brokers=brokers).run()
        assert outcome.finding is None, f"python -m chaos.fuzz --brokers {brokers} --seed {seed}\n{outcome.finding}"
        assert outcome.frames >= FRAMES and outcome.answers > FRAMES // 2


def test_a_chunk_is_the_same_each_time_and_its_steps_can_be_performed_without_its_seed() -> None:
    first, second = Chunk(7, brokers=1, frames=200).run(), Chunk(7, brokers=1, frames=200).run()
    assert [step[2] for step in first.steps if step[0] == "frame"] == [step[2] for step in second.steps if step[0] == "frame"]
    assert first.answers == second.answers
    assert perform(first.steps, brokers=1, seed=7) is None


def test_requests_of_every_api_and_version_are_valid_and_have_hostile_structure() -> None:
    random = Random(1)
    made = Requests(random, Vocabulary(random, topics=[Topic("t", bytes(16), 3)], brokers=3), wall_ms=lambda: 0)
    twice = empty = 0
    for key, served in HANDLERS.items():
        for version in range(max(served.versions[0], served.declared_since), served.versions[1] + 1):
            for _ in range(20):
                request = made.request_of(key, version)
                try:
                    again = decode(API[key].request, encode(request, version), version)
                except FieldNotInVersion:
                    assert made.flexible, "only compact strings can be longer than Kafka allows"
                    continue
                lists = [value for name in again.__struct_fields__ if isinstance(value := getattr(again, name), list)]
                twice += any(part in values[place + 1 :] for values in lists for place, part in enumerate(values[:20]))
                empty += any(values == [] for values in lists)
    assert twice > 100 and empty > 100


def test_internal_error_is_found_at_any_depth_of_a_response() -> None:
    seen = internal_error(MetadataResponse)
    assert seen(MetadataResponse(topics=[MetadataResponseTopic(), MetadataResponseTopic(error_code=-1)]))
    assert not seen(MetadataResponse(topics=[MetadataResponseTopic(error_code=3)]))

"""Requests with strings of the maximum length get a response that a client can decode."""

from random import Random
from typing import Any

import pytest
from cluster import Cluster
from groups import cluster_of_groups, commit_request, coordinating
from plain_messages import plain, request
from sample_requests import REQUESTS

from ottla.base.units import INT64_MAX
from ottla.broker.apis import HANDLERS
from ottla.wire.codegen import STRING_BYTES_MAX
from ottla.wire.compile import decode, encode
from ottla.wire.declare import Array, Blob, MalformedMessage, fields_of, schema_of
from ottla.wire.errors import KafkaError, UnknownServerError
from ottla.wire.messages import API

pytestmark = pytest.mark.slow

#: One byte, and three bytes, for each character.
LETTERS = {"ascii": "x", "japanese": "日"}
CASES = [
    (key, version)
    for key, served in sorted(HANDLERS.items())
    for version in range(max(served.versions[0], served.declared_since), served.versions[1] + 1)
]


def longest(letter: str) -> str:
    return letter * (STRING_BYTES_MAX // len(letter.encode()))


def filled(cls: Any, version: int, text: str, numbers: Random) -> Any:
    """A message whose lists have one element, and whose strings are all this text."""
    return cls(**{field.name: _value(field.type, version, text, numbers) for field in fields_of(cls) if field.present(version)})


def _value(kind: Any, version: int, text: str, numbers: Random) -> Any:
    if isinstance(kind, Array):
        return [_value(kind.element, version, text, numbers)]
    if isinstance(kind, Blob):
        return {"string": text, "bytes": text.encode(), "records": b""}[kind.name]
    if hasattr(kind, "code"):
        return b"\1" * 16 if kind.name == "uuid" else numbers.choice((0, 1))
    return filled(kind, version, text, numbers)


@pytest.fixture(scope="module")
def clusters() -> dict[int, Cluster]:
    made = {brokers: cluster_of_groups(brokers) for brokers in (1, 2)}
    made[2].topic("u", replicas=2)
    return made


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{API[case[0]].name}-{case[1]}")
def test_an_answer_to_the_longest_strings_can_be_decoded(clusters: dict[int, Cluster], case: tuple[int, int], letter: str) -> None:
    key, version = case
    text = longest(LETTERS[letter])
    for seed in range(4):
        asked = filled(API[key].request, version, text, Random(seed))
        for cluster in clusters.values():
            # With two brokers, one of them asks the controller.
            for broker in cluster.brokers.values():
                # A test of the encoder: what cannot be encoded raises in ``_respond``.
                sent = broker.send(asked, version, client_id=text)
                cluster.pass_ms(100)
                if sent.waits and sent.closed is None and not sent.released:
                    cluster.pass_ms(70_000)
                assert sent.answer is not None or sent.closed is not None or sent.released


def with_long(value: Any, text: str) -> list[Any]:
    """Copies of a request, each with another one of its strings replaced."""
    if isinstance(value, str):
        return [text]
    if isinstance(value, dict):
        return [{**value, name: other} for name, part in value.items() for other in with_long(part, text)]
    if isinstance(value, list):
        return [[*value[:place], other, *value[place + 1 :]] for place, part in enumerate(value) for other in with_long(part, text)]
    return []


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("api", sorted(REQUESTS))
def test_a_request_that_succeeds_but_for_one_long_string_is_answered(api: str, letter: str) -> None:
    cluster, text = cluster_of_groups(group_initial_rebalance_delay_ms="0"), longest(LETTERS[letter])
    version, fields = REQUESTS[api]
    usual = fields(cluster, 1)
    for asked, client_id in [*((other, "test") for other in with_long(usual, text)), (usual, text)]:
        sent = cluster[1].send(request(api, asked), version, client_id=client_id)
        cluster.pass_ms(20_000)
        assert sent.answer is not None or sent.closed is not None


@pytest.mark.parametrize("api", ["DescribeGroups", "CreateTopics", "DescribeConfigs"])
def test_a_compact_string_above_the_limit_is_malformed_as_in_kafka(api: str) -> None:
    cls = request(api, {}).__class__
    version = schema_of(cls).until
    data = encode(filled(cls, version, "x" * 200, Random(1)), version)
    place = data.index(b"x" * 200)
    # The length of a compact string is one more than its bytes: 201 takes two bytes, 40,001 three.
    longer = (
        data[: place - 2] + bytes((0x80 | 40_001 & 0x7F, 0x80 | 40_001 >> 7 & 0x7F, 40_001 >> 14)) + b"x" * 40_000 + data[place + 200 :]
    )
    with pytest.raises(MalformedMessage):
        decode(cls, longer, version)


def test_the_message_of_an_error_is_bounded_and_keeps_its_beginning_and_its_end() -> None:
    error = KafkaError("there is no topic " + "日" * 40_000 + "; create it first")
    text = str(error)
    assert text.startswith("there is no topic 日") and text.endswith("; create it first")
    assert len(text.encode()) < STRING_BYTES_MAX and "characters left out" in text


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("retention_ms", [INT64_MAX, INT64_MAX - 1, -(2**63), -2, 0, 1])
def test_an_offset_is_kept_whatever_retention_time_its_client_sends(version: int, retention_ms: int) -> None:
    broker = coordinating(cluster_of_groups())
    asked = commit_request("g", "t", 0, 7, retention_time_ms=retention_ms)
    assert broker.ask(asked, version).topics[0].partitions[0].error_code == 0


def test_a_setting_grows_to_what_an_answer_can_carry_and_no_further() -> None:
    cluster = Cluster()
    broker = cluster.topic("t")
    codes = []
    for number in range(40):
        config = {
            "name": "leader.replication.throttled.replicas",
            "config_operation": 2,
            "value": ",".join(f"{number * 200 + n}:1" for n in range(200)),
        }
        answer = broker.ask(
            request("IncrementalAlterConfigs", {"resources": [{"resource_type": 2, "resource_name": "t", "configs": [config]}]}), 1
        )
        codes.append(answer.responses[0].error_code)
    assert codes[0] == 0 and codes[-1] == 40
    described = broker.ask(
        request("DescribeConfigs", {"resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}]}), 1
    )
    assert plain(described)["results"][0]["error_code"] == 0
    assert UnknownServerError.code not in codes

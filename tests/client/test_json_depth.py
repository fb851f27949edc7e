"""JSON that is nested so deeply that parsers end the process or the consumer is unreadable alone."""

import json
import random

import pytest

from ottla.client.serializers import Json, SerializationFailed
from ottla.client.values.json_depth import DEPTH_MAX, TOO_DEEP, is_deep
from ottla.client.values.json_path import decoder

DEEP = [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b'{"a":' + b"[" * 2_000]


@pytest.mark.parametrize("text", DEEP, ids=["lists", "objects", "cut"])
def test_a_deep_text_is_unreadable_alone(text: bytes) -> None:
    pa = pytest.importorskip("pyarrow")
    from ottla.client.arrow.json import json_values

    found = json_values(pa.array([b'{"b":1}', text, b'{"b":2}'], pa.binary()))
    assert (found.bad.to_pylist(), found.why) == ([False, True, False], TOO_DEEP)
    assert found.array.to_pylist() == [{"b": 1}, None, {"b": 2}]


@pytest.mark.parametrize("text", DEEP, ids=["lists", "objects", "cut"])
def test_a_deep_text_fails_as_other_texts_that_are_not_json(text: bytes) -> None:
    with pytest.raises(SerializationFailed, match="cannot be read as JSON"):
        Json().deserialize("t", [], text)
    assert decoder()(text) is None


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        (b"[" * DEPTH_MAX + b"]" * DEPTH_MAX, False),
        (b'["' + b"[" * 1_000 + b'"]', False),
        (b'["' + b'\\"[' * 1_000 + b'"]', False),
        (b"[" + b"[{}]," * 1_000 + b"1]", False),
        (b'["' + b"]" * 1_000 + b'",' + b"[" * 200 + b"]" * 200 + b"]", True),
        (b'{"a":' * 250 + b"1" + b"}" * 250, True),
        (b"[" * 1_000_000, True),
        (b'"' * 1_000_000 + b"[" * 101, True),
    ],
)
def test_brackets_in_strings_are_no_levels(text: bytes, deep: bool) -> None:
    assert is_deep(text) is deep


def test_the_depth_is_bounded_as_that_of_the_parsed_value() -> None:
    def depth(value: object) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    rng = random.Random(11)
    for _ in range(200):
        value: object = 1
        for _ in range(rng.choice((20, 95, 250))):
            beside: object = rng.choice(([], "]" * 3, '"{[', {"x": []}, 7))
            value = rng.choice(([beside, value], {"a": value, "[": beside}, [value]))
        text = json.dumps(value).encode()
        assert is_deep(text) or depth(value) <= 2 * DEPTH_MAX
        assert not is_deep(text) or depth(value) > DEPTH_MAX

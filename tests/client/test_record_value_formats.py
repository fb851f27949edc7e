"""Key and value formats: decoding of bytes, and encoding."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.common.record_options import parse_value_format
from ottla.client.values.value_formats import VALUE_FORMATS


@pytest.mark.parametrize(
    ("name", "data", "shown"),
    [
        ("text", b"a\xff", b"a\xff"),
        ("json", b'{"a": [1, 2.50]}', b'{"a":[1,2.50]}'),
        ("pretty", b'{"a":[1]}', b'{\n  "a": [\n    1\n  ]\n}'),
        ("hex", b"\x00\xff", b"00ff"),
        ("base64", b"\x00\xff", b"AP8="),
        ("int", (-5).to_bytes(8, "big", signed=True), b"-5"),
        ("int", (70000).to_bytes(4, "big"), b"70000"),
        ("int", b"\x01\x00", b"256"),
        ("int", b"\xff", b"-1"),
        ("int32", (7).to_bytes(4, "big"), b"7"),
        ("float", struct.pack(">d", 1.5), b"1.5"),
        ("float32", struct.pack(">f", 0.25), b"0.25"),
        ("uuid", uuid.UUID(int=1).bytes, b"00000000-0000-0000-0000-000000000001"),
        ("pack:>iq", struct.pack(">iq", 3, -4), b"3 -4"),
        ("pack:>2sB", b"ab\x07", b"ab 7"),
    ],
)
def test_bytes_are_decoded_and_encoded_again(name: str, data: bytes, shown: bytes) -> None:
    made = parse_value_format(name, "--value-format")
    assert made.show(data) == shown
    if name not in ("json", "pretty", "int") or (name == "int" and len(data) == 8):
        assert made.read(shown) == data
        assert made.read(msgspec.json.decode(msgspec.json.encode(made.value(data)))) == data


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("json", b"{broken", "not JSON"),
        ("int", b"123", "3 bytes are not a whole number: expected 8 or 4 or 2 or 1"),
        ("int16", b"1234", "4 bytes are not a whole number: expected 2"),
        ("float", b"1", "not a floating point number"),
        ("uuid", b"123", "3 bytes are not a UUID"),
        ("pack:>i", b"1", "1 bytes are not >i: expected 4"),
    ],
)
def test_bytes_in_another_format_are_refused(name: str, data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_value_format(name, "--value-format").show(data)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("json", b"{broken"),
        ("int", b"many"),
        ("int", 1.5),
        ("int", True),
        ("int8", 300),
        ("int", [1]),
        ("float", b"x"),
        ("hex", b"0g"),
        ("hex", 7),
        ("base64", b"!"),
        ("uuid", b"1-2"),
        ("pack:>i", b"1 2"),
        ("pack:>i", {"a": 1}),
    ],
)
def test_an_invalid_value_is_refused(name: str, given: Any) -> None:
    with pytest.raises(ValueError):
        parse_value_format(name, "--value-format").read(given)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("jsn", "unknown format 'jsn'; did you mean json"),
        ("pack:", "unknown format"),
        ("pack:!!", "not a format of Python's struct module"),
        ("avro", "avro needs a schema"),
        ("protobuf:x", "expects protobuf:FILE:NAME"),
        ("hex:1", "unknown format"),
    ],
)
def test_an_unknown_format_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_value_format(text, "--value-format")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.just("base64"), inner, max_size=3),
    max_leaves=6,
)


@given(JSON)
def test_json_within_json_round_trips_as_the_same_text(value: Any) -> None:
    """Also null, strings and text that looks like marked bytes, which have another meaning in the surrounding line."""
    from ottla.cli.produce.input import InputFormat, JsonLines

    data = msgspec.json.encode(value)
    line = msgspec.json.encode({"value": VALUE_FORMATS["json"].value(data)})
    given = JsonLines(InputFormat("json", value=VALUE_FORMATS["json"])).record(line)
    assert given is not None
    assert given[0] == data


def test_text_has_the_alias_of_the_clients() -> None:
    assert VALUE_FORMATS["str"] is VALUE_FORMATS["text"]

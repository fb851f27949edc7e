"""JSON paths and `--filter`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.consumer.record import ConsumerRecord
from ottla.client.values.json_path import decoder, parse_path
from ottla.client.values.record_filter import FilterError, parse_filter, parse_filters

ORDER = (
    b'{"id": 7, "customer": {"id": "c-4", "name": "Ann"}, "items": [{"sku": "A1", "n": 2}, {"sku": "B2", "n": 5}], "paid": true,'
    b' "note": null}'
)


def a_record(value: bytes | None = ORDER, key: bytes | None = b"K-17", **changes: Any) -> ConsumerRecord:
    settings: dict[str, Any] = {
        "topic": "orders", "partition": 3, "offset": 100, "timestamp": 1_700_000_000_000, "timestamp_type": 0, "key": key, "value": value,
        "headers": (("trace", b"t1"), ("level", b"info"), ("trace", b"t2"), ("none", None)),
    }  # fmt: skip
    return ConsumerRecord(**(settings | changes))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (".id", [7]),
        (".customer.id", ["c-4"]),
        (".items[0].sku", ["A1"]),
        (".items[-1].sku", ["B2"]),
        (".items[*].sku", ["A1", "B2"]),
        (".items[2].sku", []),
        ('["customer"]["name"]', ["Ann"]),
        (".customer[*]", ["c-4", "Ann"]),
        (".note", [None]),
        (".nothing.there", []),
        (".id.deeper", []),
        (".paid[0]", []),
    ],
)
def test_a_path_finds_a_value(text: str, found: list[Any]) -> None:
    assert parse_path(text).all(decoder()(ORDER)) == found


def test_a_path_without_a_star_finds_one_value_and_one_with_a_star_a_list() -> None:
    order = decoder()(ORDER)
    assert parse_path(".id").one(order) == 7
    assert parse_path(".none").one(order) is None
    assert parse_path(".items[*].n").one(order) == [2, 5]


@pytest.mark.parametrize("text", ["", "id", ".", ".a.", ".a[", ".a[x]", ".a b"])
def test_an_invalid_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        parse_path(text)


def test_a_value_that_is_not_json_has_no_members() -> None:
    decoded = decoder()
    assert parse_path(".a").all(decoded(b"{broken")) == []
    assert parse_path(".a").all(decoded(None)) == []
    assert parse_path(".a").all(decoded(b"\xff")) == []


@pytest.mark.parametrize(
    "text",
    [
        "key = K-17",
        "key=K-17",
        'key = "K-17"',
        "key != K-18",
        "key ~ ^K",
        "key !~ x$",
        "value ~ customer",
        "partition = 3",
        "offset >= 100 and offset < 101",
        "topic ~ ^ord",
        "timestamp >= 2023-11-14T22:13:20Z",
        "timestamp < 1700000000001",
        "header.level = info",
        "header.trace = t1",
        "header.trace = t2",
        'header["level"] != debug',
        "header.absent != x",
        "header.none = null",
        "header.level",
        ".id = 7",
        ".id = 7.0",
        ".id >= 6.5",
        ".id < 10",
        ".customer.id = c-4",
        "value.customer.name ~ ^A",
        ".items[*].n > 4",
        ".items[*].sku = B2",
        ".paid = true",
        ".note = null",
        "not .note",
        ".paid and .id",
        "not (.id = 8 or key = x)",
        ".id = 8 or .id = 7",
        ".id = 8 or (.id = 7 and partition = 3)",
        '.customer.name = "Ann"',
        "not not .paid",
    ],
)
def test_a_filter_passes_matching_records(text: str) -> None:
    assert parse_filter(text)(a_record())
    assert not parse_filter(f"not ({text})")(a_record())


@pytest.mark.parametrize(
    "text",
    [
        "key = K-1",
        "key = null",
        "value ~ nothing",
        "partition != 3",
        "offset > 100",
        "header.none",
        "header.absent",
        "header.level = debug",
        '.id = "7"',
        ".id = true",
        ".paid = 1",
        ".customer = c-4",
        ".absent != null and .absent",
        ".customer.id > 3",
        ".note = 0",
        "key.id = 1",
    ],
)
def test_a_filter_drops_other_records(text: str) -> None:
    assert not parse_filter(text)(a_record())


def test_a_json_key_supports_paths() -> None:
    assert parse_filter('key.id = 5 and key["a b"] = c')(a_record(key=b'{"id": 5, "a b": "c"}'))


def test_null_and_empty_are_distinguished() -> None:
    assert parse_filter("value = null")(a_record(None))
    assert not parse_filter("value = null")(a_record(b""))
    assert parse_filter('value = ""')(a_record(b""))
    assert not parse_filter("value ~ .*")(a_record(None))
    assert parse_filter("value ~ .*")(a_record(b""))


def test_text_that_parses_as_a_number_is_compared_as_one() -> None:
    keep = parse_filter("key > 9")
    assert keep(a_record(key=b"10"))
    assert not keep(a_record(key=b"8"))
    assert not keep(a_record(key=b"nine"))
    assert parse_filter("key > b")(a_record(key=b"c"))


def test_binary_bytes_can_be_searched_and_have_no_order() -> None:
    assert parse_filter(r"value ~ \xff")(a_record(b"a\xffb"))
    assert not parse_filter("value > 1")(a_record(b"\xff"))


def test_several_filters_must_all_match_and_no_filter_passes_all() -> None:
    assert parse_filters([]) is None
    keep = parse_filters([".id = 7", "partition = 4"])
    assert keep is not None
    assert not keep(a_record())
    assert keep(a_record(partition=4))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a field"),
        ("colour = red", "unknown field 'colour'"),
        ("key =", "missing value after ="),
        ("key ~ (", "missing value after|regular expression"),
        ('key ~ "("', "not a regular expression"),
        ("(key = a", "missing closing parenthesis"),
        ("key = a)", "unexpected '\\)'"),
        (") = a", "unexpected closing parenthesis"),
        ("key = a b", "unexpected 'b'"),
        ("timestamp > soon", "expected a timestamp in milliseconds or a date"),
        (".a > null", "> cannot compare with null"),
        ('key = "open', "cannot parse"),
        ("and key", "unknown field 'and'"),
    ],
)
def test_an_invalid_filter_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(FilterError, match=why):
        parse_filter(text)


@given(st.text(max_size=30))
def test_any_text_is_a_filter_or_is_refused(text: str) -> None:
    try:
        keep = parse_filter(text)
    except FilterError:
        return
    keep(a_record())

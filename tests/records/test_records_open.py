"""Open batches: adding a record, compiled and in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records import _pure, partition_for_key
from ottla.records.build import BatchBuilder
from ottla.records.codec import NATIVE, OpenBatches
from ottla.records.read import records

TWINS = [_pure.OpenBatches, OpenBatches] if NATIVE else [_pure.OpenBatches]
NOW_NS = 1_700_000_000_123_456_789


def opened(twin: Any, *, limit: int = 1 << 20, size_max: int = 1 << 20, count: int = 3, **more: Any) -> tuple[Any, list[BatchBuilder]]:
    """Open batches of a topic t, each owned by the number of its partition; keyless records go to partition 1."""
    made = twin(limit, lambda owner, index, time: (owner, index, time), lambda: NOW_NS, **more)
    made.resize("t", count)
    builders = [BatchBuilder(size_max=size_max) for _ in range(count)]
    for partition, builder in enumerate(builders):
        made.open("t", partition, builder, partition)
    made.stick("t", 1, 10_000, -10_000)
    return made, builders


@pytest.mark.parametrize("twin", TWINS)
def test_a_record_goes_to_its_partition_that_of_its_key_or_the_keyless_one(twin: Any) -> None:
    made, builders = opened(twin)
    assert made.put("t", b"a", None, None, 2, 5) == (2, 0, 5)
    assert made.put("t", b"b", b"key", None, None, 6) == (partition_for_key(b"key", 3), made.put("t", b"c", b"key")[1] - 1, 6)
    assert made.put("t", b"d") == (1, builders[1].count - 1, 1_700_000_000_123)
    assert made.put("t", None, None, [("h", b"x"), ("n", None)], 0, 7)[0] == 0
    found = records(builders[0].finish())
    assert [(value, list(headers)) for _, _, _, value, headers in found][-1] == (None, [("h", b"x"), ("n", None)])
    assert made.used == sum(builder.size - 61 for builder in builders[1:]) + found_size(found)


def found_size(found: list[Any]) -> int:
    """Bytes of these records, encoded."""
    builder = BatchBuilder()
    for _, time, key, value, headers in found:
        builder.append(time, key, value, tuple(headers))
    return builder.size - 61


@pytest.mark.parametrize("twin", TWINS)
def test_what_is_not_plain_or_has_no_place_is_left_to_the_caller(twin: Any) -> None:
    made, builders = opened(twin)
    made.shut("t", 2)
    for record in (
        ("other", b"v"),
        ("t", bytearray(b"v")),
        ("t", "v"),
        ("t", b"v", memoryview(b"k")),
        ("t", b"v", None, [("h", bytearray(b"x"))]),
        ("t", b"v", None, [["h", b"x"]]),
        ("t", b"v", None, [(b"h", b"x")]),
        ("t", b"v", None, [("h", b"x", b"y")]),
        ("t", b"v", None, {"h": b"x"}),
        ("t", b"v", None, None, 2),
        ("t", b"v", None, None, 3),
        ("t", b"v", None, None, -1),
        (7, b"v"),
    ):
        assert made.put(*record) is None, record
    assert (made.used, [builder.count for builder in builders]) == (0, [0, 0, 0])


@pytest.mark.parametrize("twin", TWINS)
def test_a_full_batch_and_a_full_account_take_nothing(twin: Any) -> None:
    made, builders = opened(twin, size_max=200)
    assert made.put("t", b"x" * 100, None, None, 0) is not None
    assert made.put("t", b"x" * 100, None, None, 0) is None
    made, builders = opened(twin, limit=100)
    assert made.put("t", b"x" * 200) is not None
    assert made.put("t", b"x") is None
    made.charge(-150)
    assert made.put("t", b"x") is not None
    assert made.used == builders[1].size - 61 - 150


@pytest.mark.parametrize("twin", TWINS)
def test_records_without_a_key_stay_until_their_bytes_are_spent(twin: Any) -> None:
    made, builders = opened(twin)
    made.stick("t", 0, 150, -50)
    assert [made.put("t", b"x" * 91) is not None for _ in range(4)] == [True, True, False, False]
    assert made.stuck("t") == (0, 150 - (builders[0].size - 61))
    made.stick("t", -1, 0, 0)
    assert made.put("t", b"x") is None
    assert made.stuck("other") == (-1, 0)


@pytest.mark.parametrize("twin", TWINS)
def test_a_topic_that_grows_keeps_its_batches_and_one_that_shrinks_loses_those_beyond(twin: Any) -> None:
    made, _ = opened(twin)
    made.resize("t", 5)
    assert made.put("t", b"v", b"key", None, None, 1) is None or partition_for_key(b"key", 5) < 3
    assert made.put("t", b"v", None, None, 2) is not None
    made.resize("t", 1)
    assert made.put("t", b"v", None, None, 2) is None
    assert made.put("t", b"v") is None
    assert made.put("t", b"v", b"any")[0] == 0
    made.forget("t")
    assert made.put("t", b"v", b"any") is None


@pytest.mark.parametrize("twin", TWINS)
def test_keys_may_be_ignored(twin: Any) -> None:
    made, _ = opened(twin, ignore_keys=True)
    assert {made.put("t", b"v", b"%d" % number)[0] for number in range(20)} == {1}


@pytest.mark.parametrize("twin", TWINS)
def test_a_record_that_cannot_be_written_changes_nothing(twin: Any) -> None:
    made, builders = opened(twin)
    made.put("t", b"v", None, None, 0, -(1 << 62))
    before = (made.used, builders[0].size)
    with pytest.raises(ValueError):
        made.put("t", b"v", None, None, 0, (1 << 63) - 1)
    with pytest.raises(OverflowError):
        made.put("t", b"v", None, None, 0, 1 << 63)
    with pytest.raises(UnicodeEncodeError):
        made.put("t", b"v", None, [("\ud800", b"x")], 0, 0)
    assert (made.used, builders[0].size) == before


@pytest.mark.skipif(not NATIVE, reason="there is one twin only")
@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=80),
            st.none() | st.binary(max_size=10),
            st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
            st.none() | st.integers(-1, 3),
            st.none() | st.integers(-(1 << 40), 1 << 40),
        ),
        max_size=30,
    )
)
def test_the_twins_agree(given_records: list[Any]) -> None:
    twins = [opened(twin, limit=1500, size_max=400) for twin in TWINS]
    for value, key, headers, partition, time in given_records:
        headers = None if headers is None or any("\ud800" <= sign <= "\udfff" for name, _ in headers for sign in name) else headers
        one, other = (made.put("t", value, key, headers, partition, time) for made, _ in twins)
        assert one == other
    (one, left), (other, right) = twins
    assert (one.used, one.stuck("t")) == (other.used, other.stuck("t"))
    assert [builder.size for builder in left] == [builder.size for builder in right]

"""The compiled codec and the Python one have equal results."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import T0, damaged_payloads, headers, maybe_bytes, outcome, record_lists, timestamps

from ottla.records import _pure as pure
from ottla.records.batch import HEADER_SIZE
from ottla.records.build import build_batch

native = pytest.importorskip("ottla.records._native", reason="built without a C compiler")

INT64 = st.one_of(st.sampled_from([0, 5, T0, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1))
APPENDS = st.lists(st.tuples(timestamps, maybe_bytes, maybe_bytes, headers), min_size=1, max_size=12)


def twins(name: str, *arguments: Any) -> None:
    assert outcome(getattr(native, name), *arguments) == outcome(getattr(pure, name), *arguments)


@given(st.binary(max_size=70))
def test_twins_hash_alike(data: bytes) -> None:
    twins("murmur2", data)
    twins("murmur2", memoryview(data))


@pytest.mark.slow
@settings(max_examples=400)
@given(damaged_payloads(), INT64, INT64, st.one_of(st.none(), INT64), INT64, st.sampled_from([2**63 - 1, 8, T0]))
def test_twins_read_sound_and_damaged_payloads_alike(
    payload: tuple[bytes, int], base_offset: int, base_timestamp: int, append_timestamp: int | None, start: int, end: int
) -> None:
    data, count = payload
    whole = (0, len(data), count)
    twins("check_records", data, *whole, base_timestamp)
    twins("keyless_records", data, *whole, 3)
    twins("records_outside", data, *whole, base_timestamp, T0, T0 + 50, 3)
    twins("schema_frames", data, *whole, True, True, 3)
    source = (*whole, base_offset, base_timestamp, append_timestamp)
    twins("decode_records", data, *source, start, end)
    for microseconds in (False, True):
        for with_headers in (False, True):
            twins("decode_columns", [(data, *source), (data, *source)], start, end, microseconds, with_headers)


FRAMED = st.one_of(
    st.none(), st.binary(max_size=7), st.builds(lambda number: bytes((0, 0, 0, number >> 8, number & 255)), st.integers(0, 600))
)


@given(st.lists(st.tuples(st.just(T0), FRAMED, FRAMED, headers), min_size=1, max_size=20), st.booleans(), st.booleans(), st.integers(0, 5))
def test_twins_find_the_same_schemas(records: list[Any], keys: bool, values: bool, limit: int) -> None:
    data = bytes(build_batch(records))
    twins("schema_frames", data, HEADER_SIZE, len(data), len(records), keys, values, limit)


@given(record_lists, st.integers(0, 4), st.integers(0, 4))
def test_twins_read_a_payload_inside_other_bytes_alike(records: list[Any], before: int, after: int) -> None:
    data = bytearray(b"\x02" * before + build_batch(records)[HEADER_SIZE:] + b"\x02" * after)
    where = (before, len(data) - after, len(records))
    twins("check_records", data, *where, T0)
    twins("decode_records", memoryview(data), *where, 0, T0, None, 0, 100)
    assert outcome(native.check_records, data, *where, T0)[0] == "gives"


@pytest.mark.parametrize(("position", "end"), [(-1, 5), (0, 21), (6, 5), (21, 21)])
def test_twins_refuse_a_span_outside_of_the_buffer_alike(position: int, end: int) -> None:
    twins("check_records", bytes(20), position, end, 0, 0)
    assert outcome(native.check_records, bytes(20), position, end, 0, 0)[1] is IndexError


@pytest.mark.slow
@settings(max_examples=200)
@given(APPENDS, st.sampled_from([2**31 - 1, 61, 150, 400]))
def test_twins_build_alike(appends: list[Any], size_max: int) -> None:
    builders = native.Builder(size_max), pure.Builder(size_max)
    for record in appends:
        said = [outcome(builder.append, *record) for builder in builders]
        assert said[0] == said[1]
        for attribute in ("size", "count", "base_timestamp", "max_timestamp"):
            assert getattr(builders[0], attribute) == getattr(builders[1], attribute)
    assert builders[0].take() == builders[1].take()
    for call in (lambda b: b.take(), lambda b: b.append(0, None, None), lambda b: b.extend(0, None, [])):
        assert outcome(call, builders[0]) == outcome(call, builders[1])
        assert outcome(call, builders[0])[1] is ValueError


@given(st.lists(maybe_bytes, max_size=8), st.booleans(), st.booleans(), st.integers(-1, 9), st.sampled_from([61, 200, 5000]))
def test_twins_extend_alike(values: list[Any], with_keys: bool, many_times: bool, first: int, size_max: int) -> None:
    builders = native.Builder(size_max), pure.Builder(size_max)
    times = [T0 + i for i in range(len(values))] if many_times else T0
    said = [outcome(builder.extend, times, values[::-1] if with_keys else None, values, first) for builder in builders]
    assert said[0][:2] == said[1][:2]
    assert builders[0].take() == builders[1].take()


@pytest.mark.parametrize(
    "record",
    [
        (T0, "text", None),
        (T0, None, 5),
        (T0, None, None, [(b"name", b"x")]),
        (T0, None, None, [("\ud800", b"x")]),
        (2**63, None, None),
        ("soon", None, None),
    ],
)
def test_twins_refuse_what_is_no_record_alike(record: tuple[Any, ...]) -> None:
    classes = {outcome(builder.append, *record)[:2] for builder in (native.Builder(), pure.Builder())}
    assert len(classes) == 1
    assert classes.pop()[0] == "raises"


def binary_column(pieces: list[bytes | None], wide: bool) -> tuple[Any, ...]:
    ends = array("q" if wide else "i", [0])
    for piece in pieces:
        ends.append(ends[-1] + len(piece or b""))
    valid = bytearray(len(pieces) // 8 + 1)
    for row, piece in enumerate(pieces):
        valid[row >> 3] |= (piece is not None) << (row & 7)
    return ends.tobytes(), b"".join(piece or b"" for piece in pieces), bytes(valid) if None in pieces else None, wide


PIECES = st.lists(st.one_of(st.none(), st.binary(max_size=90)), min_size=1, max_size=10)


def encoded(module: Any, arguments: tuple[Any, ...], size_max: int) -> list[Any]:
    encoder = module.ColumnEncoder(*arguments)
    batches = []
    while (builder := encoder.encode(size_max)) is not None:
        batches.append((builder.count, builder.base_timestamp, builder.max_timestamp, bytes(builder.take())))
    return batches


@settings(max_examples=200)
@given(PIECES, st.booleans(), st.data())
def test_twins_encode_columns_alike(pieces: list[bytes | None], wide: bool, data: st.DataObject) -> None:
    rows = len(pieces)
    value = binary_column(pieces, wide)
    key = data.draw(st.sampled_from([None, binary_column(pieces[::-1], not wide)]))
    headers = None
    if data.draw(st.booleans()):
        ends = array("i", sorted(data.draw(st.lists(st.integers(0, 4), min_size=rows + 1, max_size=rows + 1))))
        headers = (
            (ends.tobytes(), None, None, False),
            binary_column([b"a", b"b", b"", b"d"], True),
            binary_column([None, b"2", b"", b"4"], False),
        )
    times = data.draw(st.sampled_from([T0, array("q", [T0 + i * 999 - 1500 for i in range(rows)]).tobytes()]))
    chosen = data.draw(st.sampled_from([None, array("q", [rows - 1, 0, 0]).tobytes(), array("q", [rows, -1]).tobytes()]))
    first, last = data.draw(st.integers(-1, 2)), data.draw(st.integers(0, rows + 1))
    arguments = (value, key, headers, times, data.draw(st.booleans()), chosen, first, last)
    size_max = data.draw(st.sampled_from([61, 200, 10_000]))
    assert outcome(encoded, native, arguments, size_max) == outcome(encoded, pure, arguments, size_max)
    if key is not None:
        twins("partition_column", key, first, last, 7)


@given(st.lists(st.integers(-3, 12), min_size=1, max_size=5), st.integers(0, 9), st.booleans())
def test_twins_refuse_columns_that_point_outside_of_their_data_alike(ends: list[int], size: int, wide: bool) -> None:
    column = (array("q" if wide else "i", ends).tobytes(), bytes(size), None, wide)
    arguments = (column, None, None, T0, False, None, 0, len(ends) - 1)
    assert outcome(encoded, native, arguments, 10_000) == outcome(encoded, pure, arguments, 10_000)
    twins("partition_column", column, 0, len(ends) - 1, 7)


@given(st.lists(st.integers(-2, 4), max_size=20), st.integers(0, 4))
def test_twins_group_rows_alike(numbers: list[int], count: int) -> None:
    twins("group_rows", array("i", numbers).tobytes(), count)

"""Arrow columns from batches and batches from Arrow columns, compared with pyarrow."""

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from record_samples import T0, a_batch, as_read, resealed, some_records, with_payload

from arrow_batches import build_columns
from ottla.records import partition_for_key
from ottla.records.batch import parse_header
from ottla.records.build import BinaryColumn, HeadersColumn, build_batch, partitions_of_keys, rows_by_partition
from ottla.records.columns import AbortedTransactions, BinaryBuffers, Columns, columns
from ottla.records.compression import Codec
from ottla.records.errors import InvalidBatch, UnsupportedMagic
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, marker, records


def buffer(data: bytes | None) -> pa.Buffer | None:
    return None if data is None else pa.py_buffer(data)


def binary(column: BinaryBuffers, rows: int, kind: Any = None) -> pa.Array:
    parts = [buffer(column.validity), buffer(column.offsets), buffer(column.data)]
    array = pa.Array.from_buffers(kind or pa.binary(), rows, parts, column.null_count)
    array.validate(full=True)
    return array


def rows_of(found: Columns) -> list[Any]:
    """The columns as tuples like ``read.records`` gives, by way of pyarrow; timestamp types behind."""
    n = found.rows
    numbers = [
        pa.Array.from_buffers(kind, n, [None, buffer(data)]).to_pylist()
        for kind, data in ((pa.int64(), found.offsets), (pa.int64(), found.timestamps), (pa.int32(), found.timestamp_types))
    ]
    keys, values = binary(found.key, n).to_pylist(), binary(found.value, n).to_pylist()
    headers: list[Any] = [()] * n
    if found.headers is not None:
        ends = pa.Array.from_buffers(pa.int32(), n + 1, [None, buffer(found.headers.offsets)]).to_pylist()
        names = binary(found.headers.names, ends[-1], pa.string()).to_pylist()
        contents = binary(found.headers.values, ends[-1]).to_pylist()
        headers = [tuple(zip(names[a:b], contents[a:b], strict=True)) for a, b in pairwise(ends)]
    return list(zip(numbers[0], numbers[1], keys, values, headers, numbers[2], strict=True))


def expected(batch: bytes | bytearray, position: int = 0) -> list[Any]:
    kind = parse_header(batch, position).timestamp_type
    return [(*record, kind) for record in records(batch, position)]


@pytest.mark.parametrize("codec", list(Codec))
def test_columns_of_many_batches_hold_what_their_records_hold(codec: Codec) -> None:
    batches = [
        a_batch(20, codec=codec, base_offset=100),
        a_batch(1, base_offset=120, timestamp_type=1),
        a_batch(70, codec=codec, base_offset=300),
    ]
    found = columns(b"".join(batches), headers=True)
    assert rows_of(found) == [row for batch in batches for row in expected(batch)]
    assert (found.next_position, found.next_offset) == (sum(map(len, batches)), 370)
    assert columns(b"".join(batches)).headers is None


def test_columns_wrap_without_a_copy() -> None:
    found = columns(a_batch(9))
    assert binary(found.value, 9).buffers()[2].address == pa.py_buffer(found.value.data).address


def test_columns_without_nulls_have_no_validity() -> None:
    found = columns(build_batch([(T0, b"k", b"v", ())] * 3))
    assert (found.key.validity, found.key.null_count) == (None, 0)
    keyless = columns(build_batch([(T0, None, b"v", ())] * 11))
    assert (keyless.key.validity, keyless.key.null_count, keyless.key.data) == (b"\0\0", 11, b"")


def test_long_keys_make_room_for_themselves() -> None:
    batch = build_batch([(T0 + i, b"%d" % i * 3000, b"v", ()) for i in range(50)], base_offset=4)
    assert rows_of(columns(batch)) == expected(batch)


def test_columns_begin_and_end_at_the_wanted_offsets() -> None:
    response = a_batch(20, base_offset=100) + a_batch(20, base_offset=120) + a_batch(20, base_offset=140)
    found = columns(response, 110, 125)
    assert [row[0] for row in rows_of(found)] == list(range(110, 125))
    assert found.next_offset == 140
    assert columns(response, 500, 600).rows == 0
    assert columns(response, 100, 100).next_position == 0


def test_a_last_batch_cut_short_is_left_for_another_fetch() -> None:
    whole, cut = a_batch(5), a_batch(5, base_offset=5)
    for size in range(len(cut)):
        found = columns(whole + cut[:size], 2)
        assert (found.rows, found.next_position, found.next_offset) == (3, len(whole), 5)
    nothing = columns(whole[:-1], 2)
    assert (nothing.rows, nothing.next_position, nothing.next_offset) == (0, 0, 2)


def test_columns_stop_before_they_grow_too_large_and_go_on_from_there() -> None:
    batches = [a_batch(10, base_offset=10 * i, codec=Codec.LZ4 if i % 2 else Codec.NONE) for i in range(6)]
    response = b"".join(batches)
    seen: list[Any] = []
    position = offset = calls = 0
    while position < len(response):
        found = columns(response, offset, position=position, bytes_max=2 * len(batches[0]), headers=True)
        seen += rows_of(found)
        position, offset = found.next_position, found.next_offset
        calls += 1
    assert seen == [row for batch in batches for row in expected(batch)]
    assert calls == 3
    assert columns(response, bytes_max=0).rows == 10


def test_timestamps_come_in_microseconds_held_to_64_bits() -> None:
    times = [T0, -(2**63), -1, 2**63 - 1 - 2**62]
    whole = rows_of(columns(build_batch([(time, None, None, ()) for time in times[2:]]), timestamps_us=True))
    assert [row[1] for row in whole] == [-1000, 2**63 - 1]
    earliest = rows_of(columns(build_batch([(time, None, None, ()) for time in times[1:2]]), timestamps_us=True))
    assert earliest[0][1] == -(2**63)


def test_header_names_that_are_no_text_are_mended_like_in_tuples() -> None:
    names = ["é", "ab", "中"]
    batch = build_batch([(T0, None, None, [(name, b"x") for name in names]), (T0, None, None, [])])
    assert rows_of(columns(batch, headers=True)) == expected(batch)
    # A name cut in the middle of a character joins to sound text with the one behind it, and still is none.
    batch[batch.index("é".encode()) + 1] = 0xFF
    assert rows_of(columns(resealed(batch), headers=True)) == expected(batch)
    assert expected(batch)[0][4][0][0] == "\ufffd\ufffd"


def test_compacted_batches_keep_the_offsets_of_what_is_left() -> None:
    payload = b""
    for delta in (3, 7):
        body = b"\0\0" + bytes([delta * 2]) + b"\x01\x02x\0"
        payload += bytes([len(body) * 2]) + body
    batch = with_payload(payload, count=2)
    batch[:8] = (1000).to_bytes(8, "big")
    batch[23:27] = (9).to_bytes(4, "big")
    assert [record[0] for record in records(batch)] == [1003, 1007]
    found = columns(batch)
    assert [row[0] for row in rows_of(found)] == [1003, 1007]
    assert found.next_offset == 1010
    emptied = with_payload(b"", count=0)
    emptied[:8] = (1010).to_bytes(8, "big")
    emptied[23:27] = (4).to_bytes(4, "big")
    assert records(emptied) == []
    assert columns(batch + emptied).next_offset == 1015


def test_a_delete_horizon_moves_no_timestamp() -> None:
    batch = a_batch(3)
    batch[22] |= 0x40
    assert records(batch) == as_read(some_records(3))


def control(kind: int, producer_id: int, offset: int) -> bytearray:
    return build_batch(
        [(T0, *marker(kind, 0), ())], control=True, transactional=True, producer_id=producer_id, producer_epoch=0, base_offset=offset
    )


def test_control_batches_are_passed_over() -> None:
    found = columns(a_batch(2) + control(COMMIT_MARKER, 5, 2))
    assert (found.rows, found.next_offset) == (2, 3)


def test_aborted_transactions_are_hidden_and_later_ones_of_the_same_producer_are_not() -> None:
    def data(producer_id: int, offset: int, transactional: bool = True) -> bytearray:
        return a_batch(2, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=transactional, base_offset=offset)

    response = b"".join(
        [
            data(1, 0),
            data(2, 2),
            data(3, 4, transactional=False),
            control(ABORT_MARKER, 1, 6),
            control(COMMIT_MARKER, 2, 7),
            data(1, 8),
            control(COMMIT_MARKER, 1, 10),
            data(2, 11),
            control(ABORT_MARKER, 2, 13),
        ]
    )
    lists = [(2, 11), (1, 0)]
    found = columns(response, aborted=AbortedTransactions(lists))
    assert [row[0] for row in rows_of(found)] == [2, 3, 4, 5, 8, 9]
    assert found.next_offset == 14
    assert columns(response).rows == 10
    piecewise: list[int] = []
    state = AbortedTransactions(lists)
    position = 0
    while position < len(response):
        part = columns(response, position=position, aborted=state, bytes_max=1)
        piecewise += [row[0] for row in rows_of(part)]
        position = part.next_position
    assert piecewise == [2, 3, 4, 5, 8, 9]


def test_damage_in_any_batch_is_an_error() -> None:
    batch = a_batch(3)
    damaged = bytearray(batch)
    damaged[61] ^= 1
    with pytest.raises(InvalidBatch):
        columns(batch + damaged)
    damaged[16] = 1
    with pytest.raises(UnsupportedMagic):
        columns(batch + damaged)


def arrow_column(array: pa.Array) -> BinaryColumn:
    validity, offsets, data = array.buffers()
    return BinaryColumn(offsets, data or b"", validity, pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_arrow_columns_become_batches(codec: Codec, kind: Any) -> None:
    sent = some_records(500)
    value = pa.array([record[2] for record in sent], kind)
    key = pa.array([record[1] for record in sent], pa.binary())
    times = pa.array([record[0] for record in sent], pa.int64())
    built = list(
        build_columns(
            arrow_column(value),
            key=arrow_column(key),
            timestamps=times.buffers()[1],
            first=0,
            last=500,
            size_max=4000,
            codec=codec,
            leader_epoch=3,
        )
    )
    assert len(built) > 5
    assert max(map(len, built)) <= 4000
    got = [record[1:4] for batch in built for record in records(batch)]
    assert got == [record[:3] for record in sent]
    assert {parse_header(batch).codec for batch in built} == {codec}
    assert {parse_header(batch).leader_epoch for batch in built} == {3}


def test_a_slice_of_an_array_is_named_by_its_rows() -> None:
    value = pa.array([b"a", None, b"c", b"d", b"e"])[1:4]
    (batch,) = build_columns(arrow_column(value), timestamps=T0, first=value.offset, last=value.offset + len(value))
    assert [record[3] for record in records(batch)] == [None, b"c", b"d"]


def test_chosen_rows_are_sent_in_their_order() -> None:
    value = arrow_column(pa.array([b"a", b"b", b"c", b"d"]))
    rows = pa.array([3, 0, 3], pa.int64()).buffers()[1]
    (batch,) = build_columns(value, timestamps=T0, rows=rows, first=0, last=3)
    assert [record[3] for record in records(batch)] == [b"d", b"a", b"d"]
    with pytest.raises(InvalidBatch):
        list(build_columns(value, timestamps=T0, rows=pa.array([4], pa.int64()).buffers()[1], first=0, last=1))
    with pytest.raises(InvalidBatch):
        list(build_columns(value, timestamps=T0, first=0, last=5))


def test_microseconds_become_milliseconds_downwards() -> None:
    value = arrow_column(pa.array([b"a", b"b", b"c"]))
    times = pa.array([T0 * 1000 + 999, -1, -1000], pa.timestamp("us")).buffers()[1]
    (batch,) = build_columns(value, timestamps=times, timestamps_us=True, first=0, last=3)
    assert [record[1] for record in records(batch)] == [T0, -1, -1]


def test_headers_of_arrow_become_headers() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    lists = pa.array([[("a", b"1"), ("b", None)], None, [], [("é", b"")]], kind)
    names, contents = lists.values.field("key"), lists.values.field("value")
    validity, offsets = lists.buffers()[:2]
    headers = HeadersColumn(offsets, arrow_column(names), arrow_column(contents), validity)
    value = arrow_column(pa.array([b"x"] * 4))
    (batch,) = build_columns(value, headers=headers, timestamps=T0, first=0, last=4)
    assert [record[4] for record in records(batch)] == [(("a", b"1"), ("b", None)), (), (), (("é", b""),)]
    found = columns(batch, headers=True)
    assert rows_of(found) == expected(batch)


def test_a_row_larger_than_a_batch_travels_alone() -> None:
    value = arrow_column(pa.array([b"a", b"b" * 500, b"c"]))
    built = list(build_columns(value, timestamps=T0, first=0, last=3, size_max=200))
    assert [parse_header(batch).count for batch in built] == [1, 1, 1]
    assert [len(batch) > 200 for batch in built] == [False, True, False]


def test_a_batch_that_compression_makes_too_large_is_left_plain() -> None:
    value = arrow_column(pa.array([bytes(range(100)), b""]))
    (batch, _) = build_columns(value, timestamps=T0, first=0, last=2, size_max=172, codec=Codec.GZIP)
    assert len(batch) <= 172
    assert parse_header(batch).codec is Codec.NONE


def test_partitions_of_a_column_are_those_of_its_keys() -> None:
    keys = [b"k%d" % i for i in range(50)] + [b""]
    column = arrow_column(pa.array([*keys, None]))
    found = pa.Array.from_buffers(pa.int32(), 52, [None, pa.py_buffer(partitions_of_keys(column, 7, first=0, last=52))])
    assert found.to_pylist() == [*(partition_for_key(key, 7) for key in keys), -1]


def test_rows_come_together_by_partition_and_stay_in_order() -> None:
    rows, ends = rows_by_partition(pa.array([2, 0, -1, 2, 0, -1], pa.int32()).buffers()[1], 3)
    assert pa.Array.from_buffers(pa.int64(), 6, [None, pa.py_buffer(rows)]).to_pylist() == [2, 5, 1, 4, 0, 3]
    assert ends == [2, 4, 4, 6]
    with pytest.raises(IndexError, match="row 1 is for partition 3, and there are 3"):
        rows_by_partition(pa.array([2, 3], pa.int32()).buffers()[1], 3)

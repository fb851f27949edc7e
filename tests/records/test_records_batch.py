"""Batch headers, and the fields that brokers write."""

import pytest
from record_samples import T0, a_batch, as_read, some_records

from ottla.records import varint
from ottla.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    crc_ok,
    headers,
    parse_header,
    patch,
    stamp_append_time,
    stamp_max_timestamp,
)
from ottla.records.build import BatchBuilder, build_batch
from ottla.records.compression import Codec
from ottla.records.errors import FAULT_TRUNCATED, FAULT_VARINT, CorruptBatch, UnsupportedCodec, UnsupportedMagic
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, control_record, marker, records


def test_header_has_every_field_that_was_given() -> None:
    batch = a_batch(
        3,
        codec=Codec.ZSTD,
        base_offset=2**40,
        leader_epoch=7,
        producer_id=2**50,
        producer_epoch=3,
        base_sequence=9,
        transactional=True,
        control=True,
        timestamp_type=1,
    )
    header = parse_header(batch)
    assert header[:5] == (2**40, len(batch) - 12, 7, 2, int.from_bytes(batch[17:21], "big"))
    assert header[5:] == (0x38 | 4, 2, T0, T0 + 74, 2**50, 3, 9, 3)
    assert (header.size, header.last_offset, header.last_sequence, header.codec) == (len(batch), 2**40 + 2, 11, Codec.ZSTD)
    assert header.is_transactional and header.is_control and header.has_producer and header.timestamp_type == 1
    plain = parse_header(a_batch(3))
    assert not (plain.is_transactional or plain.is_control or plain.has_producer or plain.timestamp_type)
    assert plain.last_sequence == -1
    assert plain.codec is Codec.NONE


def test_sequences_wrap_to_zero() -> None:
    assert parse_header(a_batch(3, base_sequence=2**31 - 2)).last_sequence == 0


def test_delete_horizon_is_the_base_timestamp_under_its_bit() -> None:
    header = parse_header(a_batch(2))
    assert header.delete_horizon_ms is None
    assert header._replace(attributes=0x40).delete_horizon_ms == T0


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_without_a_meaning_are_refused(codec: int) -> None:
    with pytest.raises(UnsupportedCodec):
        _ = BatchHeader(*parse_header(a_batch(1)))._replace(attributes=codec).codec


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_formats_are_refused_even_when_they_are_short(magic: int) -> None:
    batch = a_batch(1)
    batch[16] = magic
    for size in (len(batch), 60, 17):
        with pytest.raises(UnsupportedMagic) as caught:
            parse_header(batch[:size])
        assert caught.value.magic == (magic if magic < 128 else magic - 256)


@pytest.mark.parametrize("length", [48, 0, -1, -(2**31)])
def test_impossible_lengths_are_corrupt(length: int) -> None:
    batch = a_batch(1)
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatch):
        parse_header(batch)
    assert not crc_ok(batch)


def test_headers_walks_whole_batches_and_stops_at_a_torn_tail() -> None:
    first, second = a_batch(2), a_batch(5, codec=Codec.GZIP)
    whole = b"???" + first + second
    for cut in range(len(second)):
        found = [position for position, _ in headers(whole[: 3 + len(first) + cut], 3)]
        assert found == [3]
    assert [position for position, _ in headers(whole, 3)] == [3, 3 + len(first)]
    assert list(headers(b"")) == []


def test_checksum_notices_every_changed_byte_it_covers_and_no_other() -> None:
    batch = a_batch(2)
    assert crc_ok(batch) and crc_ok(b"12" + batch, 2) and crc_ok(memoryview(batch))
    for at in range(len(batch)):
        changed = bytearray(batch)
        changed[at] ^= 0x10
        outside = at < 8 or 12 <= at < 17
        assert crc_ok(changed) is outside
    for size in range(len(batch)):
        assert not crc_ok(batch[:size])


def test_a_leader_assigns_offset_and_epoch_without_touching_the_checksum() -> None:
    buffer = bytearray(b"123") + a_batch(2)
    patch(buffer, 3, base_offset=2**41, leader_epoch=12)
    header = parse_header(buffer, 3)
    assert (header.base_offset, header.leader_epoch) == (2**41, 12)
    assert crc_ok(buffer, 3)
    assert records(buffer, 3) == as_read(some_records(2), 2**41)


@pytest.mark.parametrize("codec", list(Codec))
def test_append_time_becomes_the_timestamp_of_every_record(codec: Codec) -> None:
    buffer = bytearray(b"123") + a_batch(4, codec=codec)
    stamp_append_time(buffer, 3, T0 + 99)
    assert parse_header(buffer, 3).timestamp_type == 1
    assert crc_ok(buffer, 3)
    assert {record[1] for record in records(buffer, 3)} == {T0 + 99}


def test_a_wrong_maximum_timestamp_can_be_put_right() -> None:
    batch = a_batch(4)
    stamp_max_timestamp(batch, 0, T0 + 5)
    assert (parse_header(batch).max_timestamp, parse_header(batch).timestamp_type) == (T0 + 5, 0)
    assert crc_ok(batch)
    with pytest.raises(CorruptBatch):
        stamp_max_timestamp(batch[:-1], 0, 0)


@pytest.mark.parametrize("kind", [ABORT_MARKER, COMMIT_MARKER])
def test_control_batch_has_a_marker_and_no_records(kind: int) -> None:
    batch = b"12" + build_batch([(T0, *marker(kind, 17), ())], control=True, transactional=True, producer_id=4, producer_epoch=0)
    assert records(batch, 2) == []
    assert control_record(batch, 2) == (0, kind, 17)
    assert marker(kind, 17)[0] == bytes([0, 0, 0, kind])


def test_an_unknown_control_record_is_named_by_its_number() -> None:
    assert control_record(build_batch([(T0, b"\0\0\0\x05", b"", ())], control=True)) == (0, 5, -1)


def test_control_batch_emptied_by_compaction_has_no_marker() -> None:
    batch = build_batch([(T0, *marker(COMMIT_MARKER, 1), ())], control=True)[:HEADER_SIZE]
    batch[8:12] = (49).to_bytes(4, "big")
    batch[57:61] = bytes(4)
    assert control_record(batch) is None


def test_a_builder_takes_records_until_it_is_full() -> None:
    builder = BatchBuilder(size_max=200)
    placed = []
    while (place := builder.append(T0, None, b"x" * 50)) is not None:
        placed.append(place)
    assert placed == list(range(builder.count)) == [0, 1]
    assert builder.size <= 200
    assert builder.append(T0, None, b"") == 2
    batch = builder.finish(base_sequence=4)
    assert [len(value or b"") for _, _, _, value, _ in records(batch)] == [50, 50, 0]
    assert parse_header(batch).base_sequence == 4
    with pytest.raises(ValueError, match="finished"):
        builder.finish()


def test_a_first_record_is_taken_whatever_its_size() -> None:
    builder = BatchBuilder(size_max=100)
    assert builder.append(T0, None, b"x" * 1000) == 0
    assert builder.append(T0, None, b"") is None


def test_a_batch_of_nothing_is_not_built() -> None:
    with pytest.raises(ValueError, match="one record"):
        build_batch([])


@pytest.mark.parametrize("number", [0, -1, 1, 63, 64, -64, -65, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
def test_numbers_survive_their_variable_length_form(number: int) -> None:
    encoded = varint.encode(number)
    assert varint.scan(b"?" + encoded, 1, 1 + len(encoded), 64) == (number, 1 + len(encoded))
    for size in range(len(encoded)):
        assert varint.scan(encoded, 0, size, 64) == (0, -FAULT_TRUNCATED)


def test_numbers_of_too_many_bits_are_refused() -> None:
    too_long = [varint.encode(number) for number in (2**31, -(2**31) - 1)]
    for text in (*too_long, b"\xff" * 4 + b"\x10", b"\x80" * 5 + b"\0"):
        assert varint.scan(text, 0, len(text), 32) == (0, -FAULT_VARINT)
    assert varint.scan(b"\x80\x80\x00", 0, 3, 32) == (0, 3)

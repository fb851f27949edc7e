"""Validation of a client's batches."""

from typing import Any

import lz4.frame
import pytest
from record_samples import T0, a_batch, resealed, some_records, with_payload

from ottla.records import read
from ottla.records.batch import parse_header
from ottla.records.build import build_batch
from ottla.records.compression import Codec, compress
from ottla.records.errors import CorruptBatch, InvalidBatch, RecordsError, UnsupportedCodec, UnsupportedMagic
from ottla.records.validation import RECORD_ERRORS_MAX, examine_batch, timestamps_outside

MAX = 1 << 20


def refused(batch: bytes | bytearray, kind: type[RecordsError], **options: Any) -> Any:
    with pytest.raises(kind) as caught:
        examine_batch(batch, max_decompressed=MAX, **options)
    assert caught.type is kind
    return caught.value


def changed(at: int, value: int, width: int, **fields: Any) -> bytearray:
    batch = a_batch(4, **fields)
    batch[at : at + width] = value.to_bytes(width, "big", signed=value < 0)
    return resealed(batch)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_sound_batch_passes_from_any_buffer(codec: Codec, kind: Any) -> None:
    batch = a_batch(30, codec=codec, producer_id=4, producer_epoch=0, base_sequence=0, transactional=True)
    assert examine_batch(kind(batch), max_decompressed=MAX).header == parse_header(batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_cut_short_anywhere_is_refused(codec: Codec) -> None:
    batch = a_batch(3, codec=codec)
    for size in range(len(batch)):
        with pytest.raises(RecordsError):
            examine_batch(batch[:size], max_decompressed=MAX)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_damaged_anywhere_is_refused(codec: Codec) -> None:
    batch = a_batch(3, codec=codec)
    for at in (*range(8, 12), *range(16, len(batch))):
        damaged = bytearray(batch)
        damaged[at] ^= 0x41
        with pytest.raises((CorruptBatch, UnsupportedMagic, InvalidBatch)):
            examine_batch(damaged, max_decompressed=MAX)


@pytest.mark.parametrize("codec", list(Codec))
def test_records_damaged_under_a_right_checksum_are_refused_or_are_other_records(codec: Codec) -> None:
    batch = a_batch(3, codec=codec)
    for at in range(61, len(batch)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            damaged = bytearray(batch)
            damaged[at] = value
            try:
                header = examine_batch(resealed(damaged), max_decompressed=MAX).header
            except InvalidBatch:
                continue
            assert header.count == 3


def test_a_wrong_checksum_is_corrupt() -> None:
    batch = a_batch(3)
    batch[17] ^= 1
    refused(batch, CorruptBatch)


def test_two_batches_are_not_one() -> None:
    refused(a_batch(3) + a_batch(3), InvalidBatch)
    refused(a_batch(3) + b"\0", InvalidBatch)


@pytest.mark.parametrize(
    ("at", "value", "width"),
    [
        (57, 0, 4),
        (57, -1, 4),
        (57, 3, 4),
        (57, 5, 4),
        (57, 2**31 - 1, 4),
        (23, 2, 4),
        (23, 4, 4),
        (23, -1, 4),
        (21, 0x20, 2),
        (21, 0x40, 2),
        (21, 0x80, 2),
        (21, 0x100, 2),
        (21, 0x8000, 2),
        (43, 5, 8),
    ],
)
def test_a_header_that_a_client_may_not_write_is_invalid(at: int, value: int, width: int) -> None:
    refused(changed(at, value, width), InvalidBatch)


def test_count_and_offset_delta_that_agree_with_each_other_must_agree_with_the_records() -> None:
    for count in (3, 5, 1_000_000, 2**31 - 1):
        for codec in Codec:
            batch = changed(23, count - 1, 4, codec=codec)
            batch[57:61] = count.to_bytes(4, "big")
            refused(resealed(batch), InvalidBatch)


def test_codecs_without_a_meaning_are_refused() -> None:
    assert refused(changed(21, 6, 2), UnsupportedCodec).codec == 6


def test_an_older_format_is_refused_by_name() -> None:
    batch = a_batch(1)
    batch[16] = 1
    assert refused(batch, UnsupportedMagic).magic == 1


def test_a_producer_needs_a_sequence() -> None:
    refused(a_batch(2, producer_id=7, producer_epoch=0), InvalidBatch)
    examine_batch(a_batch(2, producer_id=7, producer_epoch=0, base_sequence=0), max_decompressed=MAX)


@pytest.mark.parametrize("codec", list(Codec))
def test_compacted_topics_refuse_records_without_key_and_name_each(codec: Codec) -> None:
    batch = a_batch(7, codec=codec)
    examine_batch(batch, max_decompressed=MAX)
    error = refused(batch, InvalidBatch, require_keys=True)
    assert [index for index, _ in error.record_errors] == [0, 3, 6]
    keyed = build_batch([(T0, b"", None, ())], codec=codec)
    examine_batch(keyed, max_decompressed=MAX, require_keys=True)


def test_a_million_faulty_records_are_not_all_listed() -> None:
    batch = build_batch([(T0, None, None, ())] * (RECORD_ERRORS_MAX + 5))
    assert len(refused(batch, InvalidBatch, require_keys=True).record_errors) == RECORD_ERRORS_MAX


@pytest.mark.parametrize("codec", list(Codec))
def test_examined_batch_has_the_timestamps_of_its_records(codec: Codec) -> None:
    times = [T0, T0 + 9, -1, T0 - 5, T0 + 9]
    batch = build_batch([(time, None, b"x", ()) for time in times], codec=codec)
    found = examine_batch(batch, max_decompressed=MAX)
    assert found[1:] == (T0 + 9, 1, T0 - 5)
    outside = timestamps_outside(batch, low_ms=T0, high_ms=T0 + 8, max_decompressed=MAX)
    assert outside == [(1, T0 + 9), (3, T0 - 5), (4, T0 + 9)]
    assert timestamps_outside(batch, low_ms=T0 - 5, high_ms=T0 + 9, max_decompressed=MAX) == []


def test_records_without_timestamps_have_no_greatest() -> None:
    assert examine_batch(build_batch([(-1, None, b"x", ())] * 2), max_decompressed=MAX)[1:] == (-1, -1, -1)


def test_a_declared_maximum_timestamp_is_the_callers_to_compare() -> None:
    batch = changed(35, T0 + 12345, 8)
    found = examine_batch(batch, max_decompressed=MAX)
    assert found.header.max_timestamp == T0 + 12345
    assert found.max_timestamp == T0 + 111


def test_a_batch_with_log_append_time_from_a_client_is_recognised_by_its_header() -> None:
    assert examine_batch(a_batch(2, timestamp_type=1), max_decompressed=MAX).header.timestamp_type == 1


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_payload_larger_than_allowed_is_refused(codec: Codec) -> None:
    batch = build_batch([(T0, None, bytes(5000), ())], codec=codec)
    examine_batch(batch, max_decompressed=5020)
    with pytest.raises(InvalidBatch):
        examine_batch(batch, max_decompressed=5000)


def test_a_batch_compressed_twice_is_no_record() -> None:
    inner = bytes(build_batch(some_records(3), codec=Codec.GZIP))
    refused(with_payload(compress(Codec.GZIP, inner), codec=Codec.GZIP), InvalidBatch)


def test_lz4_blocks_that_java_cannot_read_are_refused() -> None:
    # More than one block: a single one refers to nothing, and liblz4 marks it so.
    records = [(T0, None, b"%d" % i * 30_000, ()) for i in range(8)]
    payload = bytes(build_batch(records)[61:])
    linked = with_payload(lz4.frame.compress(payload, block_linked=True), codec=Codec.LZ4, count=8)
    assert "Java" in refused(linked, InvalidBatch).reason
    assert len(read.records(linked)) == 8
    examine_batch(with_payload(lz4.frame.compress(payload, block_linked=False), codec=Codec.LZ4, count=8), max_decompressed=MAX)


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        ("", "too short"),
        ("0c 00 00 00 01 01", "too short"),
        ("0e 00 00 00 01 01 00", "longer than the bytes"),
        ("0a 00 00 00 01 01 00", "ends before"),
        ("01 00 00 00 01 01 00", "negative"),
        ("80 80 80 80 80 00 00", "too many bytes"),
        ("80 80 80 80 80 80 80", "too many bytes"),
        ("0c 00 00 00 03 01 00", "negative"),
        ("0c 00 00 00 01 03 00", "negative"),
        ("0c 00 00 00 01 01 01", "headers"),
        ("0c 00 00 00 01 01 02", "headers"),
        ("10 00 00 00 01 01 02 01 01", "without a key"),
        ("10 00 00 00 01 01 02 00 02", "longer than the bytes"),
        ("0e 00 00 00 01 01 00 00", "longer than its fields"),
        ("0c 00 00 00 7e 01 00", "longer than the bytes"),
        ("0c 00 00 02 01 01 00", "not its place"),
        ("0c 00 00 00 01 01 00 00", "left over"),
        ("1e 00 ff ff ff ff ff ff ff ff ff 01 00 01 01 00", "64 bits"),
        ("20 00 ff ff ff ff ff ff ff ff ff ff 01 00 01 01 00", "too many bytes"),
        ("1c 00 00 ff ff ff ff 1f 01 01 00 00 00 00 00", "too many bytes"),
    ],
)
def test_a_record_of_the_wrong_structure_is_refused_by_name(payload: str, sentence: str) -> None:
    batch = with_payload(bytes.fromhex(payload))
    batch[27:35] = (-(2**63) + 5).to_bytes(8, "big", signed=True)
    assert sentence in refused(resealed(batch), InvalidBatch).reason

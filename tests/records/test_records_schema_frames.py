"""The schemas that records name in the frame of a schema registry."""

from typing import Any

import pytest
from record_samples import T0, resealed, with_payload

from ottla.records.build import build_batch
from ottla.records.compression import Codec
from ottla.records.errors import CorruptBatch, InvalidBatch, PayloadTooLarge
from ottla.records.validation import SchemaFrames, frames_of_batch


def framed(number: int, content: bytes = b"x") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + content


def found(
    *records: tuple[bytes | None, bytes | None], keys: bool = True, values: bool = True, limit: int = 100, **fields: Any
) -> SchemaFrames:
    batch = build_batch([(T0, key, value, ()) for key, value in records], **fields)
    return frames_of_batch(batch, keys=keys, values=values, limit=limit, max_decompressed=1 << 20)


def test_each_schema_comes_with_the_first_record_that_names_it() -> None:
    records = [(framed(1), framed(7)), (framed(1), framed(7)), (framed(2), framed(1 << 31)), (framed(1), framed(7))]
    assert found(*records) == ({1: 0, 2: 2}, {7: 0, 1 << 31: 2}, -1, -1)
    assert found(*records, keys=False) == ({}, {7: 0, 1 << 31: 2}, -1, -1)
    assert found(*records, values=False) == ({1: 0, 2: 2}, {}, -1, -1)


def test_null_keys_and_values_need_no_frame() -> None:
    assert found((None, None), (None, framed(3, b"")), (framed(4), None)) == ({4: 2}, {3: 1}, -1, -1)


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b"\1\0\0\0\1x", b'{"json": 1}'])
def test_the_first_record_without_a_frame_is_named(content: bytes) -> None:
    assert found((framed(1), framed(1)), (framed(1), content), (content, content)) == ({1: 0}, {1: 0}, 2, 1)


def test_at_most_one_schema_above_the_limit_is_returned() -> None:
    assert found(*((None, framed(number)) for number in range(1, 50)), limit=3).of_values == {1: 0, 2: 1, 3: 2, 4: 3}


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_records_are_read_within_the_limit(codec: Codec) -> None:
    records = [(None, framed(number % 3 + 1, b"x" * 100)) for number in range(50)]
    assert found(*records, codec=codec).of_values == {1: 0, 2: 1, 3: 2}
    if codec is not Codec.NONE:
        with pytest.raises(PayloadTooLarge):
            frames_of_batch(
                build_batch([(T0, None, b"x" * 10_000, ())], codec=codec), keys=True, values=True, limit=9, max_decompressed=1000
            )


def test_damaged_batches_are_refused() -> None:
    batch = build_batch([(T0, None, framed(1), ())])
    for wrong, error in (
        (batch[:-1], CorruptBatch),
        (batch[:-1] + b"?", CorruptBatch),
        (batch + b"?", InvalidBatch),
        (with_payload(b"\xff" * 9), InvalidBatch),
        (resealed(batch[:57] + b"\0\0\0\0" + batch[61:]), InvalidBatch),
    ):
        with pytest.raises(error):
            frames_of_batch(wrong, keys=True, values=True, limit=9, max_decompressed=1000)

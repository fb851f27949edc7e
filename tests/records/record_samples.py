"""Sample records and batches, and a comparison of two functions."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from ottla.records.batch import ATTRIBUTES_AT, CRC_AT, HEADER_SIZE
from ottla.records.build import build_batch
from ottla.records.checksum import crc32c
from ottla.records.compression import Codec

T0 = 1_700_000_000_000


def some_records(count: int = 20) -> list[Any]:
    """Records with and without keys, values and headers, with numbers of one and more bytes, and time running back once."""
    return [
        (
            T0 + (i * 37 if i % 5 else -i),
            None if i % 3 == 0 else b"key-%d" % i,
            None if i % 7 == 6 else b"v" * (i * 11 % 150),
            [(f"h{j}", None if j % 2 else b"x" * j) for j in range(i % 4)],
        )
        for i in range(count)
    ]


def a_batch(count: int = 20, **fields: Any) -> bytearray:
    return build_batch(some_records(count), **fields)


def as_read(records: list[Any], base_offset: int = 0) -> list[Any]:
    """What ``read.records`` makes of the records a batch was built from."""
    return [(base_offset + i, t, k, v, tuple(h)) for i, (t, k, v, h) in enumerate(records)]


def resealed(batch: bytearray) -> bytearray:
    """The batch with its checksum made right again, so that what was changed in it is looked at."""
    batch[CRC_AT:ATTRIBUTES_AT] = crc32c(batch, ATTRIBUTES_AT).to_bytes(4, "big")
    return batch


def with_payload(payload: bytes, *, codec: Codec = Codec.NONE, count: int = 1) -> bytearray:
    """A batch around a payload that no builder would write."""
    batch = build_batch([(T0, None, b"x", ())])
    batch[HEADER_SIZE:] = payload
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[21:23] = int(codec).to_bytes(2, "big")
    batch[23:27] = (count - 1).to_bytes(4, "big", signed=True)
    batch[57:61] = count.to_bytes(4, "big")
    return resealed(batch)


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """The result, or the class and sentence of the error."""
    try:
        return ("gives", call(*arguments))
    except Exception as error:
        return ("raises", type(error), str(error))


timestamps = st.one_of(
    st.integers(T0 - 10_000, T0 + 10_000), st.integers(-(2**63), 2**63 - 1), st.sampled_from([-1, 0, 2**63 - 1, -(2**63)])
)
maybe_bytes = st.one_of(st.none(), st.binary(max_size=200), st.binary(min_size=60, max_size=70).map(bytearray))
headers = st.lists(st.tuples(st.text("aé中😀\0", max_size=5), maybe_bytes), max_size=3)
near_timestamps = st.integers(T0 - 100_000, T0 + 100_000)
records = st.tuples(near_timestamps, maybe_bytes, maybe_bytes, headers)
record_lists = st.lists(records, min_size=1, max_size=12)


@st.composite
def damaged_payloads(draw: st.DrawFn) -> tuple[bytes, int]:
    """(bytes, count) of a well-formed payload in which a few bytes were changed, cut out or put in; or of no payload at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=60)), draw(st.integers(-1, 8))
    built = draw(record_lists)
    data = bytearray(build_batch(built)[HEADER_SIZE:])
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.integers(0, 2))
        if kind == 0 and at < len(data):
            data[at] = draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])))
        elif kind == 1:
            del data[at : at + draw(st.integers(1, 3))]
        else:
            data[at:at] = draw(st.binary(min_size=1, max_size=3))
    return bytes(data), max(0, len(built) + draw(st.sampled_from([0, 0, 0, 0, -1, 1])))

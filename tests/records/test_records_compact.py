"""Compaction of single batches: kept records and headers; the compiled loops against the Python ones."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import T0, damaged_payloads, outcome, record_lists

from ottla.records import _pure as pure
from ottla.records import varint
from ottla.records.batch import HEADER, HEADER_SIZE, crc_ok, parse_header
from ottla.records.build import build_batch
from ottla.records.checksum import crc32c
from ottla.records.codec import OffsetMap
from ottla.records.compact import emptied, map_batch, retain, with_horizon
from ottla.records.compression import Codec
from ottla.records.errors import InvalidBatch
from ottla.records.read import records
from ottla.records.validation import examine_batch

SECRET = bytes(range(16))
INT64 = st.one_of(st.sampled_from([0, 5, T0, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1))


def keyed(*pairs: tuple[bytes | None, bytes | None], **fields: Any) -> bytes:
    """A batch of (key, value), one millisecond apart."""
    return bytes(build_batch([(T0 + place, key, value, [("h", b"x")]) for place, (key, value) in enumerate(pairs)], **fields))


def mapped(*batches: bytes, slots: int = 64, entries_max: int = 60, start: int = 0) -> OffsetMap:
    offset_map = OffsetMap(slots, entries_max, SECRET)
    for batch in batches:
        map_batch(offset_map, batch, parse_header(batch), start)
    return offset_map


def kept(batch: bytes, offset_map: OffsetMap, *, upto: int = 1 << 40, now_ms: int = T0, delete_retention_ms: int = 1000) -> Any:
    return retain(batch, parse_header(batch), offset_map, upto=upto, now_ms=now_ms, delete_retention_ms=delete_retention_ms)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_newest_record_of_each_key_stays_where_it_was(codec: Codec) -> None:
    batch = keyed(
        (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"b", b"5"),
        codec=codec, base_offset=100, leader_epoch=7, producer_id=9, producer_epoch=3, base_sequence=41,
    )  # fmt: skip
    made = kept(batch, mapped(batch))
    before, after = parse_header(batch), parse_header(made)
    assert [(offset, time, key, value) for offset, time, key, value, _ in records(made)] == [
        (102, T0 + 2, b"a", b"3"),
        (103, T0 + 3, b"c", b"4"),
        (104, T0 + 4, b"b", b"5"),
    ]
    assert crc_ok(made) and after.codec is codec and after.count == 3
    same = ("base_offset", "last_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence", "last_sequence")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]


def test_a_batch_that_loses_nothing_is_the_same_bytes() -> None:
    batch = keyed((b"a", b"1"), (b"b", b"2"))
    assert kept(batch, mapped(batch)) is batch


def test_a_delete_retention_as_large_as_a_timestamp_keeps_a_tombstone_for_ever() -> None:
    batch = keyed((b"a", None))
    made = kept(batch, mapped(batch), delete_retention_ms=2**63 - 1)
    assert parse_header(made).delete_horizon_ms == 1 << 62 and crc_ok(made)
    assert [(time, key, value) for _, time, key, value, _ in records(made)] == [(T0, b"a", None)]
    assert kept(made, mapped(batch), now_ms=T0 * 1000) is made


@pytest.mark.parametrize(("base", "delta"), [(1000 - 2**63, 2**63 - 1), (-(2**63), 0)])
def test_a_tombstone_too_far_in_the_past_for_a_horizon_is_kept_without_one(base: int, delta: int) -> None:
    body = b"\0" + varint.encode(delta) + varint.encode(0) + varint.encode(1) + b"a" + varint.encode(-1) + varint.encode(0)
    made = bytearray(HEADER_SIZE) + varint.encode(len(body)) + body
    header = parse_header(keyed((b"a", None)))._replace(base_timestamp=base, max_timestamp=base + delta, batch_length=len(made) - 12)
    HEADER.pack_into(made, 0, *header)
    made[17:21] = crc32c(made, 21).to_bytes(4, "big")
    batch = bytes(made)
    assert examine_batch(batch, max_decompressed=1000, require_keys=True).header.base_timestamp == base, "a broker accepts it"
    after = kept(batch, mapped(batch))
    assert parse_header(after).delete_horizon_ms is None and crc_ok(after) and list(records(after)) == list(records(batch))


def test_records_without_a_key_go_and_records_the_map_does_not_speak_of_stay() -> None:
    batch = keyed((None, b"1"), (b"a", b"2"), (None, b"3"), (b"a", b"4"))
    made = kept(batch, mapped(batch), upto=2)
    assert [offset for offset, *_ in records(made)] == [2, 3]


def test_a_batch_without_remaining_records_is_none_or_a_header_with_its_last_sequence() -> None:
    old = keyed((b"a", b"1"), (b"b", b"2"), producer_id=5, producer_epoch=0, base_sequence=10, codec=Codec.ZSTD)
    new = keyed((b"a", b"3"), (b"b", b"4"), base_offset=2)
    assert kept(old, mapped(new)) is None
    header = parse_header(emptied(parse_header(old)))
    assert crc_ok(emptied(parse_header(old)))
    assert (header.size, header.count, header.last_offset, header.last_sequence, header.codec) == (HEADER_SIZE, 0, 1, 11, Codec.NONE)


def test_the_largest_timestamp_is_that_of_what_stays_unless_the_broker_gave_it() -> None:
    times = [(T0 + 50, b"a", b"1", ()), (T0, b"b", b"2", ()), (T0 + 10, b"a", b"3", ())]
    for kind, expected in ((0, T0 + 10), (1, T0 + 50)):
        batch = bytes(build_batch(times, timestamp_type=kind))
        assert parse_header(kept(batch, mapped(batch))).max_timestamp == expected


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_tombstone_gets_a_horizon_first_and_goes_after_it(codec: Codec) -> None:
    batch = keyed((b"a", b"1"), (b"a", None), (b"b", b"2"), codec=codec)
    offset_map = mapped(batch)
    first = bytes(kept(batch, offset_map, now_ms=T0 + 500, delete_retention_ms=1000))
    assert parse_header(first).delete_horizon_ms == T0 + 1500 and crc_ok(first)
    assert [record[:4] for record in records(first)] == [(1, T0 + 1, b"a", None), (2, T0 + 2, b"b", b"2")]
    assert records(first)[0][4] == (("h", b"x"),)
    assert kept(first, offset_map, now_ms=T0 + 1499) is first
    second = kept(first, offset_map, now_ms=T0 + 1500)
    assert [record[:4] for record in records(second)] == [(2, T0 + 2, b"b", b"2")]
    assert parse_header(second).delete_horizon_ms == T0 + 1500


def test_a_marker_is_given_a_horizon_without_losing_its_record() -> None:
    batch = keyed((b"\0\0\0\1", b"\0\0\0\0\0\0"), control=True, transactional=True, producer_id=4, producer_epoch=0)
    made = with_horizon(batch, parse_header(batch), T0 + 99)
    header = parse_header(made)
    assert (header.delete_horizon_ms, header.is_control, header.count, crc_ok(made)) == (T0 + 99, True, 1, True)


def test_full_map_returns_the_first_offset_that_it_does_not_cover() -> None:
    batch = keyed((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"a", b"5"), base_offset=10)
    offset_map = OffsetMap(8, 2, SECRET)
    assert map_batch(offset_map, batch, parse_header(batch), 0) == 13
    assert [offset_map.latest(key) for key in (b"a", b"b", b"c")] == [12, 11, -1]
    gaps = kept(batch, mapped(keyed((b"b", b"9"), base_offset=50)))
    assert map_batch(OffsetMap(8, 1, SECRET), gaps, parse_header(gaps), 0) == 13


def test_records_below_the_start_are_not_mapped() -> None:
    batch = keyed((b"a", b"1"), (b"b", b"2"))
    offset_map = mapped(batch, start=1)
    assert (offset_map.latest(b"a"), offset_map.latest(b"b")) == (-1, 1)


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 2**63 - 1)), max_size=60), st.integers(1, 30), st.integers(1, 9))
def test_the_map_is_a_bounded_dictionary(puts: list[tuple[bytes, int]], entries_max: int, spare: int) -> None:
    for kind in (OffsetMap, pure.OffsetMap):
        offset_map = kind(entries_max + spare, entries_max, SECRET)
        expected: dict[bytes, int] = {}
        for key, offset in puts:
            room = key in expected or len(expected) < entries_max
            assert offset_map.put(key, offset) is room
            if room:
                expected[key] = offset
        assert len(offset_map) == len(expected)
        assert all(offset_map.latest(key) == expected.get(key, -1) for key, _ in puts)


def test_a_map_refuses_sizes_and_keys_that_make_no_sense() -> None:
    for kind in (OffsetMap, pure.OffsetMap):
        for slots, entries_max, key in ((1, 1, SECRET), (5, 0, SECRET), (5, 5, SECRET), (5, 4, b"short")):
            with pytest.raises(ValueError):
                kind(slots, entries_max, key)
        with pytest.raises(ValueError):
            kind(5, 4, SECRET).put(b"a", -1)


def test_a_damaged_batch_is_named_not_kept() -> None:
    batch = bytearray(keyed((b"a", b"1"), (b"b", b"2")))
    batch[HEADER_SIZE] = 120
    with pytest.raises(InvalidBatch):
        kept(bytes(batch), mapped())


native = pytest.importorskip("ottla.records._native", reason="built without a C compiler")


def test_the_compiled_hash_is_siphash_with_128_bits() -> None:
    """Values of the reference implementation's vectors_sip128."""
    offset_map = native.OffsetMap(8, 4, SECRET)
    assert offset_map.digest(b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert offset_map.digest(b"\0").hex() == "da87c1d86b99af44347659119b22fc45"


@pytest.mark.slow
@settings(max_examples=300)
@given(damaged_payloads(), INT64, INT64, st.integers(0, 12), st.booleans(), st.integers(1, 6), INT64)
def test_twins_compact_sound_and_damaged_payloads_alike(
    payload: tuple[bytes, int], base_offset: int, base_timestamp: int, upto: int, keep_tombstones: bool, room: int, shift: int
) -> None:
    data, count = payload
    span = (data, 0, len(data), count)
    maps = [kind(8, room, SECRET) for kind in (native.OffsetMap, pure.OffsetMap)]
    results = []
    for module, offset_map in zip((native, pure), maps, strict=True):
        results.append(
            [
                outcome(module.map_records, offset_map, *span, base_offset, base_offset + 1 if base_offset < 9 else 0),
                outcome(
                    module.keep_records, offset_map, min(base_offset + upto, 2**63 - 1), keep_tombstones, *span, base_offset, base_timestamp
                ),
                outcome(module.shift_timestamps, *span, shift),
                len(offset_map),
            ]
        )
    assert results[0] == results[1]


@given(record_lists, st.integers(-(10**6), 10**6))
def test_shifted_timestamps_against_a_shifted_base_are_the_same_times(built: list[Any], shift: int) -> None:
    data = build_batch(built)
    for module in (native, pure):
        shifted = module.shift_timestamps(data, HEADER_SIZE, len(data), len(built), shift)
        base = parse_header(data).base_timestamp
        where = (0, len(shifted), len(built), 0)
        assert module.decode_records(shifted, *where, base - shift, None, 0, 99) == records(data)

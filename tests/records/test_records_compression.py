"""Codecs: output of other implementations is readable, and a decompressed payload never exceeds its limit."""

import gzip
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import cramjam
import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ottla.records.compression import RATIO_FREE_BYTES, Codec, compress, decompress
from ottla.records.decompressed_size import lz4_blocks_are_linked, lz4_bound, zstd_bound
from ottla.records.errors import CorruptPayload, InvalidBatch, PayloadTooLarge

MiB = 1 << 20
PACKED = [codec for codec in Codec if codec]
TEXT = b"".join(b'{"user": %d, "page": "/index.html"}' % (i * i) for i in range(6000))


def xerial(*blocks: bytes) -> bytes:
    return b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01" + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def run_length_zstd(blocks: int) -> bytes:
    """A frame without declared size, of blocks that repeat one byte 128 KiB long: 4 bytes each."""
    block = (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    last = (1 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * blocks + last


@given(st.sampled_from(list(Codec)), st.binary(max_size=500).flatmap(lambda piece: st.integers(0, 300).map(lambda n: piece * n)))
def test_what_was_compressed_comes_back(codec: Codec, data: bytes) -> None:
    packed = compress(codec, data)
    assert decompress(codec, packed, limit_bytes=len(data)) == data
    assert decompress(codec, memoryview(bytearray(packed)), limit_bytes=len(data) + 9) == data


@pytest.mark.parametrize(("codec", "levels"), [(Codec.GZIP, [-1, 1, 9]), (Codec.LZ4, [1, 9, 17]), (Codec.ZSTD, [-5, -1, 12])])
def test_levels_of_kafka_are_taken(codec: Codec, levels: list[int]) -> None:
    sizes = [len(compress(codec, TEXT, level)) for level in levels]
    assert sizes[-1] < len(TEXT) / 3
    assert sizes[-1] <= sizes[1]
    for level in levels:
        assert decompress(codec, compress(codec, TEXT, level), limit_bytes=len(TEXT)) == TEXT


def test_codecs_have_kafkas_names() -> None:
    assert [codec.wire_name for codec in Codec] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert Codec.of("lz4") is Codec.LZ4
    with pytest.raises(ValueError, match="'brotli'"):
        Codec.of("brotli")


def test_what_we_write_is_what_others_read() -> None:
    assert gzip.decompress(compress(Codec.GZIP, TEXT)) == TEXT
    assert lz4.frame.decompress(compress(Codec.LZ4, TEXT)) == TEXT
    assert zstandard.ZstdDecompressor().decompress(compress(Codec.ZSTD, TEXT)) == TEXT
    packed = compress(Codec.SNAPPY, TEXT)
    assert packed[:16] == xerial()
    plain, at = b"", 16
    while at < len(packed):
        size = int.from_bytes(packed[at : at + 4], "big")
        plain += snappy.decompress(packed[at + 4 : at + 4 + size])
        at += 4 + size
    assert plain == TEXT


def test_level_9_of_lz4_is_the_fast_compressor_as_in_kafka() -> None:
    text = b"".join(b'{"id":%d,"of":"user-%d"}' % (n, n * n % 977) for n in range(500))
    assert compress(Codec.LZ4, text, 9) == compress(Codec.LZ4, text) != compress(Codec.LZ4, text, 10)


def test_lz4_is_written_as_java_reads_it() -> None:
    packed = compress(Codec.LZ4, TEXT)
    info = lz4.frame.get_frame_info(packed)
    assert len(TEXT) > info["block_size"] and not info["block_linked"]
    assert not lz4_blocks_are_linked(packed)


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (Codec.GZIP, gzip.compress(TEXT, 9)),
        (Codec.GZIP, gzip.compress(TEXT[:1000]) + gzip.compress(b"") + gzip.compress(TEXT[1000:])),
        (Codec.SNAPPY, snappy.compress(TEXT)),
        (Codec.SNAPPY, xerial(snappy.compress(TEXT[:5]), snappy.compress(b""), snappy.compress(TEXT[5:]))),
        (Codec.SNAPPY, xerial(snappy.compress(TEXT[:99])) + xerial(snappy.compress(TEXT[99:]))),
        (Codec.LZ4, lz4.frame.compress(TEXT, block_linked=False, content_checksum=True, block_checksum=True)),
        (Codec.LZ4, lz4.frame.compress(TEXT, block_linked=True, store_size=False)),
        (Codec.LZ4, lz4.frame.compress(TEXT, block_size=lz4.frame.BLOCKSIZE_MAX4MB, compression_level=16)),
        (Codec.ZSTD, zstandard.ZstdCompressor(level=19, write_checksum=True).compress(TEXT)),
        (Codec.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)),
        (Codec.ZSTD, zstandard.compress(TEXT[:1000]) + b"\x50\x2a\x4d\x18\x03\0\0\0abc" + zstandard.compress(TEXT[1000:])),
    ],
    ids=range(11),  # The time stands in a gzip header: without numbers for names, each worker would see other tests.
)
def test_every_framing_that_java_reads_is_read(codec: Codec, packed: bytes) -> None:
    assert decompress(codec, packed, limit_bytes=len(TEXT)) == TEXT
    with pytest.raises(PayloadTooLarge):
        decompress(codec, packed, limit_bytes=len(TEXT) - 1)


@pytest.mark.parametrize("codec", PACKED)
def test_a_payload_cut_short_anywhere_is_corrupt(codec: Codec) -> None:
    packed = compress(codec, TEXT[:300])
    for size in range(len(packed)):
        if codec is Codec.SNAPPY and size == 16:
            continue  # Just the header: a stream of nothing.
        with pytest.raises(InvalidBatch):
            decompress(codec, packed[:size], limit_bytes=1000)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_bytes_behind_the_end_are_corrupt(codec: Codec) -> None:
    with pytest.raises(CorruptPayload):
        decompress(codec, compress(codec, TEXT) + b"tail", limit_bytes=MiB)


@given(st.sampled_from(PACKED), st.integers(0, 2**31), st.integers(0, 255), st.binary(max_size=30))
def test_a_damaged_payload_raises_nothing_unforeseen(codec: Codec, at: int, value: int, noise: bytes) -> None:
    packed = bytearray(compress(codec, TEXT[:500]))
    packed[at % len(packed)] = value
    for data in (packed, noise, bytes(packed[:16]) + noise):
        with suppress(InvalidBatch):
            assert len(decompress(codec, data, limit_bytes=2000)) <= 2000


def lz4_bomb() -> bytes:
    stream = cramjam.lz4.Compressor(1, block_linked=False)
    stream.compress(bytes(64 * MiB))
    return bytes(stream.finish())


def gzip_bomb() -> bytes:
    stream = zlib.compressobj(9, wbits=31)
    return b"".join([*(stream.compress(bytes(MiB)) for _ in range(64)), stream.flush()])


FOUR_GB = (4 << 30) - 1
BOMBS = {
    "gzip of 64 MiB": (Codec.GZIP, gzip_bomb),
    "gzip of many members": (Codec.GZIP, lambda: gzip.compress(b"") * 50_000),
    "lz4 of 64 MiB": (Codec.LZ4, lz4_bomb),
    "lz4 that declares 4 GB": (Codec.LZ4, lambda: b"\x04\x22\x4d\x18\x68\x70" + FOUR_GB.to_bytes(8, "little") + b"\0" * 9),
    "zstd of 64 MiB": (Codec.ZSTD, lambda: bytes(cramjam.zstd.compress(bytes(64 * MiB), 1))),
    "zstd that declares 4 GB": (Codec.ZSTD, lambda: b"\x28\xb5\x2f\xfd\xe0" + FOUR_GB.to_bytes(8, "little") + b"\x01\0\0"),
    "zstd of repeated bytes": (Codec.ZSTD, lambda: run_length_zstd(200_000)),
    "zstd with a window of 3 TB": (Codec.ZSTD, lambda: b"\x28\xb5\x2f\xfd\x00\xff" + b"\x0d\0\0x" * 9),
    "raw snappy that declares 4 GB": (Codec.SNAPPY, lambda: varint(FOUR_GB) + b"\xfe" * 100),
    "xerial snappy that declares 4 GB": (Codec.SNAPPY, lambda: xerial(varint(FOUR_GB) + b"\xfe" * 100)),
    "xerial snappy of blocks that declare 60 MiB together": (Codec.SNAPPY, lambda: xerial(*[snappy.compress(bytes(MiB))] * 60)),
    "xerial snappy with a block length of 2 GB": (Codec.SNAPPY, lambda: xerial()[:16] + b"\x7f\xff\xff\xff" + b"x" * 9),
}


#: In a process of its own: one that has done other things may have memory to spare, which a bomb would take without a trace.
TAKEN = """
import sys, tracemalloc
from pathlib import Path
import cramjam
from ottla.records.compression import Codec, decompress
from ottla.records.errors import InvalidBatch

status = Path("/proc/self/status")

def peak():
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))

codec, bomb = Codec(int(sys.argv[1])), Path(sys.argv[2]).read_bytes()
tracemalloc.start()
if status.exists():
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
try:
    cramjam.zstd.decompress(bomb) if len(sys.argv) > 3 else decompress(codec, bomb, limit_bytes=2 << 20)
    outcome = "taken"
except InvalidBatch:
    outcome = "refused"
print(outcome, tracemalloc.get_traced_memory()[1], peak() - before if status.exists() else 0)
"""


def memory_of(codec: Codec, bomb: bytes, directory: Path, *more: str) -> tuple[str, int, int]:
    """Whether a payload is refused, and what memory that takes: Python's, and the process', 0 where the system does not tell."""
    (directory / "bomb").write_bytes(bomb)
    command = [sys.executable, "-c", TAKEN, str(int(codec)), str(directory / "bomb"), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    outcome, *figures = done.stdout.split()
    traced, taken = map(int, figures)
    return outcome, traced, taken


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_takes_memory(name: str, tmp_path: Path) -> None:
    codec, make = BOMBS[name]
    bomb = make()
    outcome, traced, taken = memory_of(codec, bomb, tmp_path)
    assert outcome == "refused"
    assert traced < 6 * MiB + len(bomb)
    # cramjam's own memory is not traced, so the process is asked too.
    assert taken < 16 * MiB


def test_the_memory_of_a_bomb_would_be_noticed(tmp_path: Path) -> None:
    outcome, _, taken = memory_of(Codec.ZSTD, bytes(cramjam.zstd.compress(bytes(64 * MiB), 1)), tmp_path, "unbounded")
    assert outcome == "taken"
    assert taken > 60 * MiB or not Path("/proc/self/status").exists()


@pytest.mark.parametrize("codec", PACKED)
def test_the_ratio_is_bounded_above_a_free_allowance(codec: Codec) -> None:
    free, large = compress(codec, bytes(RATIO_FREE_BYTES)), compress(codec, bytes(RATIO_FREE_BYTES + 1))
    assert len(decompress(codec, free, limit_bytes=MiB * 32, ratio_max=2)) == RATIO_FREE_BYTES
    with pytest.raises(PayloadTooLarge):
        decompress(codec, large, limit_bytes=MiB * 32, ratio_max=2)
    assert len(decompress(codec, large, limit_bytes=MiB * 32, ratio_max=50_000)) == RATIO_FREE_BYTES + 1


def test_bounds_are_close_to_the_truth() -> None:
    assert lz4_bound(compress(Codec.LZ4, TEXT), MiB) - len(TEXT) < 64 * 1024
    assert zstd_bound(compress(Codec.ZSTD, TEXT), MiB) == len(TEXT)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    assert zstd_bound(unsized, MiB) - len(TEXT) < 128 * 1024

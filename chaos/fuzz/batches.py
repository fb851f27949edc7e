"""Record sets of Produce requests, valid and invalid.

Batches are built once; their producer, sequence and checksum are patched, since a chunk needs hundreds of them.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from random import Random

from chaos.fuzz.vocabulary import Producer
from ottla.records.batch import ATTRIBUTES_AT, CRC_AT, HEADER_SIZE
from ottla.records.build import RecordInput, build_batch
from ottla.records.checksum import crc32c
from ottla.records.compression import Codec

#: Position and format of the fields of a batch header.
FIELDS = (
    (0, "q"), (8, "i"), (12, "i"), (16, "b"), (21, "h"), (23, "i"), (27, "q"), (35, "q"), (43, "q"), (51, "h"), (53, "i"), (57, "i"),
)  # fmt: skip
PRODUCER_AT = 43
PRODUCER = struct.Struct(">qhi")
SEQUENCES = 1 << 31


@lru_cache(maxsize=4)
def _built(wall_ms: int) -> tuple[tuple[bytes, int], ...]:
    """Batches with their number of records: of every codec, with and without keys, headers and timestamps out of range."""
    plain: list[RecordInput] = [(wall_ms + i, (b"k%d" % (i % 3)) if i % 2 else None, b"value %d" % i, ()) for i in range(5)]
    odd: list[RecordInput] = [(wall_ms, b"", None, (("h", b"v"), ("", None))), (wall_ms - 86_400_000, b"k", b"", ())]
    sets: list[tuple[list[RecordInput], Codec]] = [
        ([(at, key, value, ()) for at, key, value, _ in plain[:count]], Codec.NONE) for count in (1, 2, 5)
    ]
    sets += [([(at, key, value, ()) for at, key, value, _ in plain], codec) for codec in Codec]
    sets += [(odd, Codec.NONE), ([(-1, b"k", b"v", ())], Codec.NONE), ([(2**62, b"k", b"v", ())], Codec.NONE)]
    sets += [([(wall_ms, b"big", bytes(20_000), ())], Codec.NONE)]
    return tuple((bytes(build_batch(records, codec=codec)), len(records)) for records, codec in sets)


def _sealed(batch: bytearray) -> bytes:
    batch[CRC_AT:ATTRIBUTES_AT] = crc32c(batch, ATTRIBUTES_AT).to_bytes(4, "big")
    return bytes(batch)


def record_set(random: Random, producer: Producer, place: tuple[str, int], *, hostility: float, wall_ms: int) -> bytes | None:
    """The records of one partition. The sequence continues after the producer's last batch to this partition, or is an old one."""
    choices = _built(wall_ms)
    data, count = choices[int(random.random() * len(choices))]
    batch = bytearray(data)
    if producer.producer_id >= 0 or random.random() < hostility:
        sequence = producer.sequences.get(place, 0)
        draw = random.random()
        if draw < 0.15:
            sequence -= count
        elif draw < 0.15 + hostility:
            sequence = random.choice((0, -1, sequence + 1, SEQUENCES - 1, -SEQUENCES))
        else:
            producer.sequences[place] = (sequence + count) % SEQUENCES
        epoch = producer.epoch if random.random() >= hostility else random.choice((producer.epoch + 1, -1, 0, 32_767))
        PRODUCER.pack_into(batch, PRODUCER_AT, producer.producer_id, min(epoch, 32_767), max(min(sequence, SEQUENCES - 1), -SEQUENCES))
    if random.random() >= hostility:
        return _sealed(batch)
    return _hostile(batch, random)


def _hostile(batch: bytearray, random: Random) -> bytes | None:
    draw = int(random.random() * 8)
    if draw == 0:
        return None
    if draw == 1:
        return b""
    if draw == 2:
        return _sealed(batch) * random.choice((2, 3))
    if draw == 3:
        return _sealed(batch)[: int(random.random() * len(batch))]
    if draw == 4:
        return _sealed(batch) + random.randbytes(random.choice((1, 11, 61)))
    if draw == 5:
        sealed = bytearray(_sealed(batch))
        sealed[int(random.random() * len(sealed))] ^= 1 << int(random.random() * 8)
        return bytes(sealed)
    position, code = random.choice(FIELDS)
    most = 2 ** (struct.calcsize(code) * 8 - 1)
    struct.pack_into(">" + code, batch, position, random.choice((0, -1, 1, 2, 4, most // 4, most - 1, -most)))
    if draw == 7 and len(batch) > HEADER_SIZE:
        batch[HEADER_SIZE + int(random.random() * (len(batch) - HEADER_SIZE))] ^= 1 << int(random.random() * 8)
    return _sealed(batch)

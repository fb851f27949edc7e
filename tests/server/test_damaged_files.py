"""A killed or stopped server finds damaged files at its start and still serves every record.

Each damage is done to a topic of its own, all in one directory, which is then started once. Indexes, snapshots and epoch checkpoints
can be made again from the log; what stands behind the last whole batch of a log after a crash is cut off.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from plain_kafka import (
    BATCH,
    answer,
    batch_of,
    create_topics,
    fetch,
    fetch_all,
    offset_at,
    produce,
    produce_request,
    produced,
)
from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("damaged_files")]

BATCHES, RECORDS = 60, 4
BASE_MS = time.time_ns() // 1_000_000 - 1_000_000
PRODUCER = {"producer_id": 4_000, "producer_epoch": 0}
#: A few batches to a segment, an index entry every other batch.
TOPIC = {"internal.segment.bytes": "5000", "index.interval.bytes": "600"}
Damage = Callable[[Path], None]
Servers = Callable[[str], Serving]


def at_ms(offset: int) -> int:
    return BASE_MS + 10 * offset


def value(offset: int) -> bytes:
    return b"value %d " % offset + bytes([offset % 251]) * 60


def sent(number: int) -> bytes:
    """Batch `number` of the idempotent producer."""
    first = number * RECORDS
    records = [(at_ms(offset), b"key", value(offset)) for offset in range(first, first + RECORDS)]
    return batch_of(records, base_sequence=first, **PRODUCER)  # type: ignore[arg-type]


def newest(directory: Path, suffix: str) -> Path:
    return max(directory.glob(f"*{suffix}"))


def each(suffix: str, change: Callable[[Path], object]) -> Damage:
    """A change to every file of one kind."""

    def damage(directory: Path) -> None:
        files = sorted(directory.glob(f"*{suffix}"))
        assert files, f"there are files to damage: {suffix}"
        for file in files:
            change(file)

    return damage


def cut(share: float, ragged: int = 0) -> Callable[[Path], object]:
    def change(file: Path) -> None:
        data = file.read_bytes()
        file.write_bytes(data[: max(0, int(len(data) * share) - ragged)])

    return change


def scramble(file: Path) -> None:
    file.write_bytes(Random(file.name).randbytes(file.stat().st_size or 24))


def one_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


def zeros(size: int) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(file.read_bytes() + bytes(size))


def tail(make: Callable[[bytes], bytes]) -> Damage:
    """Bytes behind the last batch of the newest log file; `make` is given a whole batch that would fit there."""

    def damage(directory: Path) -> None:
        file = newest(directory, ".log")
        good = bytearray(batch_of([(at_ms(0), None, b"never acknowledged" * 10)]))
        BATCH.pack_into(good, 0, BATCHES * RECORDS, *BATCH.unpack_from(good)[1:])
        file.write_bytes(file.read_bytes() + make(bytes(good)))

    return damage


def flipped(batch: bytes) -> bytes:
    data = bytearray(batch)
    data[-3] ^= 1
    return bytes(data)


RECOVERABLE: dict[str, Damage] = {
    "nothing": lambda directory: None,
    "index-gone": each(".index", Path.unlink),
    "index-empty": each(".index", cut(0)),
    "index-halved": each(".index", cut(0.5)),
    "index-ragged": each(".index", cut(1, ragged=3)),
    "index-scrambled": each(".index", scramble),
    "index-bit": each(".index", one_bit),
    "index-preallocated": each(".index", zeros(10_000)),
    "index-all-zeros": each(".index", lambda file: file.write_bytes(bytes(1_000))),
    "timeindex-gone": each(".timeindex", Path.unlink),
    "timeindex-halved": each(".timeindex", cut(0.5)),
    "timeindex-ragged": each(".timeindex", cut(1, ragged=5)),
    "timeindex-scrambled": each(".timeindex", scramble),
    "timeindex-bit": each(".timeindex", one_bit),
    "timeindex-preallocated": each(".timeindex", zeros(9_996)),
    "snapshot-gone": each(".snapshot", Path.unlink),
    "snapshot-cut": each(".snapshot", cut(0.7)),
    "snapshot-scrambled": each(".snapshot", scramble),
    "all-but-logs-gone": lambda directory: [file.unlink() for file in directory.iterdir() if file.suffix not in (".log", ".metadata")][:0],  # type: ignore[dict-item, func-returns-value]
    "epochs-gone": each("leader-epoch-checkpoint", Path.unlink),
    "epochs-scrambled": each("leader-epoch-checkpoint", scramble),
    "epochs-empty": each("leader-epoch-checkpoint", cut(0)),
    "stray-files": lambda directory: [(directory / name).write_bytes(b"?") for name in ("x.tmp", "00.index.deleted", "notes.txt")][:0],  # type: ignore[dict-item]
}  # fmt: skip
TAILS: dict[str, Damage] = {
    "tail-header-only": tail(lambda batch: batch[:40]),
    "tail-four-bytes": tail(lambda batch: batch[:4]),
    "tail-all-but-one-byte": tail(lambda batch: batch[:-1]),
    "tail-bit-flipped": tail(flipped),
    "tail-zeros": tail(lambda batch: bytes(4_096)),
    "tail-garbage": tail(lambda batch: Random(9).randbytes(3_000)),
    "tail-batch-then-garbage": tail(lambda batch: flipped(batch) + batch),
    "tail-lengths-lie": tail(lambda batch: batch[:8] + b"\x7f\xff\xff\xff" + batch[12:]),
    "tail-length-negative": tail(lambda batch: batch[:8] + b"\xff\xff\xff\xf0" + batch[12:]),
}
CHECKPOINTS = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint")
#: How the server ended, and what was done to the checkpoints of the directory.
ENDS = ("killed", "stopped", "killed, checkpoints gone", "killed, checkpoints scrambled", "stopped, checkpoints gone")


def cases() -> list[tuple[str, str]]:
    """Every damage after a kill and after a stop, a few after both with the checkpoints damaged too; a clean stop leaves no tails."""
    few = ("nothing", "index-scrambled", "snapshot-gone", "all-but-logs-gone")
    found = [("killed", name) for name in (*RECOVERABLE, *TAILS)] + [("stopped", name) for name in RECOVERABLE]
    return found + [(end, name) for end in ENDS[2:] for name in few]


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directory of a server that was killed, and of the same one after a stop; every topic has the same records."""
    root = tmp_path_factory.mktemp("left")
    topics = [*RECOVERABLE, *TAILS]
    with Serving(root / "killed") as server:
        create_topics(server.address, dict.fromkeys(topics, 1), TOPIC)
        with socket.create_connection(server.address, timeout=20) as sock:
            for number in range(BATCHES):
                batch = sent(number)
                for topic in topics:
                    sock.sendall(produce_request(topic, 0, batch, acks=-1 if number == BATCHES - 1 else 1))
                for _ in topics:
                    assert produced(answer(sock)[4:]) == (0, number * RECORDS)
        server.kill()
        shutil.copytree(server.data_dir, root / "stopped")
    with Serving(root / "stopped"):
        pass
    for end in ("killed", "stopped"):
        files = [file for file in (root / end / "broker-1" / "nothing-0").iterdir() if file.stat().st_size]
        for suffix in (".log", ".snapshot", ".index", ".timeindex"):
            assert any(file.suffix == suffix for file in files), f"there is something to damage after it was {end}: {suffix}"
        assert sum(file.suffix == ".log" for file in files) > 3
    return {"killed": root / "killed", "stopped": root / "stopped"}


def damaged(end: str, left_behind: dict[str, Path], data: Path) -> Path:
    """A copy of what was left behind, damaged."""
    how, _, checkpoints = end.partition(", ")
    shutil.copytree(left_behind[how], data)
    for when, name in cases():
        if when == end:
            {**RECOVERABLE, **TAILS}[name](data / "broker-1" / f"{name}-0")
    for name in CHECKPOINTS:
        file = data / "broker-1" / name
        if checkpoints.endswith("gone"):
            file.unlink(missing_ok=True)
        elif checkpoints.endswith("scrambled") and file.exists():
            scramble(file)
    return data


@pytest.fixture(scope="module")
def servers(left_behind: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A server for each end, started when it is first asked for."""
    running: dict[str, Serving] = {}

    def server(end: str) -> Serving:
        if end not in running:
            running[end] = Serving(damaged(end, left_behind, tmp_path_factory.mktemp("damaged") / "data")).start()
        return running[end]

    yield server
    for served in running.values():
        served.kill()


@pytest.mark.parametrize(("end", "name"), cases())
def test_records_are_found_whatever_was_damaged(servers: Servers, end: str, name: str) -> None:
    address = servers(end).address
    found = [record for batch in fetch_all(address, name) for record in batch.records]
    assert [(r.offset, r.timestamp_ms, r.value) for r in found] == [(o, at_ms(o), value(o)) for o in range(BATCHES * RECORDS)]
    for offset in range(1, BATCHES * RECORDS, 37):
        error, high_watermark, data = fetch(address, name, 0, offset, bytes_max=1_000)
        assert (error, high_watermark) == (0, BATCHES * RECORDS)
        base = int.from_bytes(data[:8], "big")
        assert base <= offset < base + RECORDS, f"a fetch at {offset} begins with the batch that holds it, not with {base}"
        assert offset_at(address, name, 0, at_ms(offset)) == (0, offset)
        assert offset_at(address, name, 0, at_ms(offset) - 1) == (0, offset)
    assert offset_at(address, name, 0, at_ms(BATCHES * RECORDS)) == (0, -1)
    assert offset_at(address, name, 0, -2) == (0, 0) and offset_at(address, name, 0, -1) == (0, BATCHES * RECORDS)


@pytest.mark.parametrize(("end", "name"), cases())
def test_writing_goes_on_and_repeats_are_known_whatever_was_damaged(servers: Servers, end: str, name: str) -> None:
    address, last = servers(end).address, BATCHES - 1
    assert produce(address, name, 0, sent(last)) == (0, last * RECORDS), "a repeat gets the offset it had"
    out_of_order_sequence = 45
    assert produce(address, name, 0, sent(BATCHES + 5))[0] == out_of_order_sequence
    produce(address, name, 0, sent(BATCHES))
    assert produce(address, name, 0, sent(BATCHES)) == (0, BATCHES * RECORDS)
    assert [batch.base_offset for batch in fetch_all(address, name, 0, last * RECORDS)] == [last * RECORDS, BATCHES * RECORDS]


@pytest.mark.parametrize("end", ENDS)
def test_it_stops_cleanly_and_a_next_life_has_it_all(servers: Servers, end: str) -> None:
    server = servers(end)
    topics = [name for when, name in cases() if when == end]
    ends = {name: offset_at(server.address, name, 0, -1) for name in topics}
    server.stop()
    server.start()
    assert {name: offset_at(server.address, name, 0, -1) for name in topics} == ends
    for name in topics[:5]:
        assert sum(len(batch.records) for batch in fetch_all(server.address, name)) == ends[name][1]

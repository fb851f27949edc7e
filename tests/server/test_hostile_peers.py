"""Malicious or broken clients: each loses its connection or gets an error, and other clients are not affected.

After every test the same process answers others at once, has not grown by more than the limits allow, and wrote no traceback.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path

import cramjam
import pytest
import zstandard

from plain_kafka import Cursor, answer, api_versions, ask, batch_of, crc32c, create_topics, fetch_all, frame, produce, string
from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("hostile_peers")]

MIB = 1 << 20
NOW_MS = time.time_ns() // 1_000_000
READ_TIMEOUT_MS, WRITE_TIMEOUT_MS = 1_500, 1_500
FIRST_FRAME_MAX, FRAME_MAX = 2 * MIB, 100 * MIB
#: A frame in memory and what is made of it; far below what a believed length or a decompressed bomb would take.
GROWTH_BYTES_MAX = 160 * MIB
INVALID_TOPIC, INVALID_PARTITIONS, CORRUPT_MESSAGE, INVALID_RECORD = 17, 37, 2, 87
METADATA_ALL = frame(3, 1, struct.pack(">i", -1))
Address = tuple[str, int]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    settings = {
        "ottla.request.read.timeout.ms": str(READ_TIMEOUT_MS),
        "ottla.connection.write.timeout.ms": str(WRITE_TIMEOUT_MS),
        "ottla.partitions.max": "1000",
    }
    with Serving(tmp_path_factory.mktemp("hostile") / "data", settings=settings) as served:
        create_topics(served.address, {"victim": 1, "wide": 100})
        for number in range(100):
            produce(served.address, "victim", 0, batch_of([(NOW_MS, b"%d" % number, bytes(50_000))]), acks=1)
        yield served


@pytest.fixture(autouse=True)
def unharmed(server: Serving) -> Iterator[None]:
    """What must hold after every test."""
    pid, before = server.pid, server.resident_bytes()
    written = len(server.logs())
    yield
    assert api_versions(server.address, timeout_s=5), "others are answered at once"
    assert server.alive and server.pid == pid
    growth = server.resident_bytes() - before
    assert growth < GROWTH_BYTES_MAX, f"it grew by {growth >> 20} MiB"
    assert "Traceback" not in server.logs()[written:], server.logs()[written:][-3000:]


def connected(address: Address, *, trusted: bool = False) -> socket.socket:
    """A connection; a trusted one has made a valid request before."""
    sock = socket.create_connection(address, timeout=10)
    if trusted:
        sock.sendall(frame(18, 0, b""))
        answer(sock)
    return sock


def closed_within(sock: socket.socket, timeout_s: float) -> bool:
    """Whether the other side closes in time; what it sends before is read and dropped."""
    deadline = time.monotonic() + timeout_s
    try:
        while (left := deadline - time.monotonic()) > 0:
            sock.settimeout(left)
            if not sock.recv(MIB):
                return True
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return False


# Frames.


@pytest.mark.parametrize("trusted", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("size", [-1, -(2**31), 0, 1, 3, 2**31 - 1, FRAME_MAX + 1])
def test_a_frame_of_impossible_size_is_closed_at_once(server: Serving, size: int, trusted: bool) -> None:
    with connected(server.address, trusted=trusted) as sock:
        sock.sendall(struct.pack(">i", size) + b"\0" * max(0, min(size, 100)))
        assert closed_within(sock, 1)


def test_the_first_frame_of_a_connection_must_be_small(server: Serving) -> None:
    with connected(server.address) as sock:
        sock.sendall(struct.pack(">i", FIRST_FRAME_MAX + 1))
        assert closed_within(sock, 1)


@pytest.mark.parametrize(
    ("trusted", "size"), [(False, 100), (False, FIRST_FRAME_MAX), (True, 100), (True, FIRST_FRAME_MAX), (True, 60 * MIB)]
)
def test_a_size_and_then_silence_is_cut_off(server: Serving, size: int, trusted: bool) -> None:
    socks = [connected(server.address, trusted=trusted) for _ in range(10)]
    try:
        for sock in socks:
            sock.sendall(struct.pack(">i", size) + b"\0\x03")
        begun = time.monotonic()
        assert all(closed_within(sock, READ_TIMEOUT_MS / 1000 + 4) for sock in socks)
        assert time.monotonic() - begun > READ_TIMEOUT_MS / 1000 * 0.5, "not before its time"
    finally:
        for sock in socks:
            sock.close()


@pytest.mark.parametrize("trusted", [False, True], ids=["first", "later"])
def test_bytes_that_drip_do_not_buy_time(server: Serving, trusted: bool) -> None:
    with connected(server.address, trusted=trusted) as sock:
        request = frame(3, 1, struct.pack(">i", -1), client_id="x" * 60)
        begun = time.monotonic()
        try:
            for byte in request:
                sock.sendall(bytes([byte]))
                time.sleep(0.1)
        except OSError:
            pass
        assert READ_TIMEOUT_MS / 1000 * 0.5 < time.monotonic() - begun < READ_TIMEOUT_MS / 1000 + 4
        assert closed_within(sock, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
        b"\x80\x2e\x01\x03\x01" + bytes(60),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x05\x01\x00",
        os.urandom(300),
    ],
    ids=["http", "http2", "tls", "sslv2", "ssh", "socks", "noise"],
)
def test_another_protocols_greeting_is_closed(server: Serving, data: bytes) -> None:
    with connected(server.address) as sock:
        sock.sendall(data)
        assert closed_within(sock, READ_TIMEOUT_MS / 1000 + 4)


@pytest.mark.parametrize("cut", [2, 4, 10, 5_000])
def test_connections_reset_in_the_middle_of_a_frame_leave_nothing(server: Serving, cut: int) -> None:
    request = frame(0, 3, bytes(100_000))
    for _ in range(100):
        sock = connected(server.address)
        sock.sendall(request[:cut])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


# Headers and bodies that lie.


def test_tags_without_end_in_a_header_are_refused(server: Serving) -> None:
    for tags in (b"\xff\xff\xff\x7f" + b"\x01\0" * 500_000, b"\xff\xff\xff\xff\x07", b"\x80\x89\x7a" + b"\0\0" * 900_000):
        payload = struct.pack(">hhih", 18, 3, 1, -1) + tags
        with connected(server.address) as sock:
            before = cpu_s(server)
            sock.sendall(struct.pack(">i", len(payload)) + payload)
            assert closed_within(sock, 10) and cpu_s(server) - before < 1


@pytest.mark.parametrize("version", [0, 1, 2])
def test_versions_of_produce_that_are_advertised_only_are_closed(server: Serving, version: int) -> None:
    assert api_versions(server.address)[0][0] == 0
    with connected(server.address) as sock:
        sock.sendall(frame(0, version, struct.pack(">hii", 1, 1000, 0)))
        assert closed_within(sock, 1)


@pytest.mark.parametrize("key", [34, 4, 71, 999, -1, 32_767])
def test_an_api_that_is_not_served_is_closed(server: Serving, key: int) -> None:
    with connected(server.address, trusted=True) as sock:
        sock.sendall(frame(key, 0, string("PLAIN")))
        assert closed_within(sock, 1)


# Records.


def bomb(codec: int, payload: bytes, records: int = 1) -> bytes:
    """A batch that says it holds so many records, with this compressed payload."""
    checked = struct.pack(">hiqqqhii", codec, records - 1, NOW_MS, NOW_MS, -1, -1, -1, records) + payload
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked)) + checked


def zeros(megabytes: int) -> Iterator[bytes]:
    return (bytes(MIB) for _ in range(megabytes))


def zstd_bomb(megabytes: int) -> bytes:
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join(packer.compress(part) for part in zeros(megabytes)) + packer.flush()


@cache
def packed_zeros() -> bytes:
    return gzip.compress(bytes(300 * MIB), 6)


#: Made when their test runs: they cost seconds.
BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: bomb(1, packed_zeros()),
    "gzip-in-gzip": lambda: bomb(1, gzip.compress(packed_zeros())),
    "zstd": lambda: bomb(4, zstd_bomb(500)),
    "zstd-declares-4-gib": lambda: bomb(4, bytes.fromhex("28b52ffde0") + struct.pack("<Q", 4 << 30) + bytes(100)),
    "zstd-window-of-2-gib": lambda: bomb(4, bytes.fromhex("28b52ffd00a8") + bytes.fromhex("030000") + b"\0"),
    "lz4": lambda: bomb(3, bytes(cramjam.lz4.compress(bytes(200 * MIB)))),
    "lz4-declares-4-gib": lambda: bomb(3, bytes.fromhex("04224d186c70") + struct.pack("<Q", 4 << 30) + b"\x73" + bytes(100)),
    "snappy": lambda: bomb(2, bytes(cramjam.snappy.compress_raw(bytes(18 * MIB)))),
    "snappy-declares-4-gib": lambda: bomb(2, b"\xff\xff\xff\xff\x0f" + bytes(100)),
    "snappy-chunk-of-2-gib": lambda: bomb(2, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1\x7f\xff\xff\xff" + bytes(100)),
    "snappy-chunk-negative": lambda: bomb(2, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1\xff\xff\xff\xff" + bytes(100)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_goes_off(server: Serving, name: str) -> None:
    sent = BOMBS[name]()
    assert len(sent) < MIB, "it passes for a batch"
    before = peak_bytes(server)
    worked_s = cpu_s(server)
    error, _ = produce(server.address, "victim", 0, sent, version=7)
    assert error in (CORRUPT_MESSAGE, INVALID_RECORD)
    assert cpu_s(server) - worked_s < 3
    assert peak_bytes(server) - before < GROWTH_BYTES_MAX


def peak_bytes(server: Serving) -> int:
    """The most memory the process ever had."""
    (line,) = [line for line in Path(f"/proc/{server.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def patched(data: bytes, position: int, code: str, value: int, *, checksum: bool = True) -> bytes:
    made = bytearray(data)
    struct.pack_into(">" + code, made, position, value)
    if checksum:
        struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


GOOD = batch_of([(NOW_MS, None, b"a"), (NOW_MS, None, b"b")])
BROKEN = {
    "checksum": (patched(GOOD, 17, "I", 1, checksum=False), CORRUPT_MESSAGE),
    "count-too-high": (patched(GOOD, 57, "i", 3), INVALID_RECORD),
    "count-negative": (patched(GOOD, 57, "i", -1), INVALID_RECORD),
    "count-huge": (patched(patched(GOOD, 57, "i", 2**31 - 1), 23, "i", 2**31 - 2), INVALID_RECORD),
    "no-records": (patched(GOOD, 57, "i", 0), INVALID_RECORD),
    "last-offset-delta": (patched(GOOD, 23, "i", 7), INVALID_RECORD),
    "control": (patched(GOOD, 21, "h", 0x20), INVALID_RECORD),
    "two-batches": (GOOD + GOOD, INVALID_RECORD),
    "length-short": (patched(GOOD, 8, "i", len(GOOD) - 13, checksum=False), None),
    "length-long": (patched(GOOD, 8, "i", len(GOOD) + 100, checksum=False), None),
    "length-negative": (patched(GOOD, 8, "i", -1, checksum=False), None),
    "magic-0": (patched(GOOD, 16, "b", 0, checksum=False), None),
    "magic-9": (patched(GOOD, 16, "b", 9, checksum=False), None),
    "codec-7": (patched(GOOD, 21, "h", 7), None),
    "empty": (b"", None),
    "one-byte": (b"x", None),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_batch_is_refused_and_nothing_of_it_written(server: Serving, name: str) -> None:
    batch, code = BROKEN[name]
    create_topics(server.address, {f"broken-{name}": 1})
    error, _ = produce(server.address, f"broken-{name}", 0, batch)
    assert error != 0 and code in (None, error)
    assert produce(server.address, f"broken-{name}", 0, GOOD) == (0, 0)
    assert [r.value for b in fetch_all(server.address, f"broken-{name}") for r in b.records] == [b"a", b"b"]


# Names.


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../../../tmp/x", "a\0b", "x" * 250, "größe", "a b", "a\nb", "\u202egpj", "c:\\x", "*", "~"]
)
def test_a_name_that_is_no_topics_is_refused_wherever_it_is_given(server: Serving, name: str) -> None:
    body = struct.pack(">i", 1) + string(name) + struct.pack(">ihii", 1, 1, 0, 0) + struct.pack(">ib", 1_000, 0)
    response = Cursor(ask(server.address, frame(19, 2, body)))
    response.take(8)
    response.string()
    assert response.unpack("h") == INVALID_TOPIC
    response = Cursor(ask(server.address, frame(3, 4, struct.pack(">i", 1) + string(name) + b"\1")))
    response.take(4)
    for _ in range(response.unpack("i")):
        response.take(4)
        response.string()
        response.take(4)
        response.string()
    response.string()
    response.take(8)
    assert response.unpack("h") == INVALID_TOPIC
    directories = {path.name for path in (server.data_dir / "broker-1").iterdir() if path.is_dir()}
    assert all(directory.rpartition("-")[0] in ("victim", "wide") or directory.startswith(("broken", "a.")) for directory in directories)


def test_names_that_would_share_a_metric_are_not_both_topics(server: Serving) -> None:
    create_topics(server.address, {"a.b_c": 1})
    with pytest.raises(AssertionError, match="refused with 17"):
        create_topics(server.address, {"a_b.c": 1})


# More than was meant.


def test_metadata_of_a_hundred_thousand_unknown_topics_creates_few_and_delays_no_other_client(server: Serving) -> None:
    names = b"".join(string(f"unknown-{number}") for number in range(100_000))
    with connected(server.address, trusted=True) as sock:
        sock.sendall(frame(3, 4, struct.pack(">i", 100_000) + names + b"\1"))
        begun = time.monotonic()
        while time.monotonic() - begun < 2:
            assert api_versions(server.address, timeout_s=5), "others wait for one request at most"
            time.sleep(0.05)
    made = [path for path in (server.data_dir / "broker-1").iterdir() if path.name.startswith("unknown-")]
    assert len(made) <= 200


def test_a_topic_of_a_million_partitions_is_refused(server: Serving) -> None:
    with pytest.raises(AssertionError, match="is made, not refused with"):
        create_topics(server.address, {"million": 1_000_000})
    with pytest.raises(AssertionError, match="is made, not refused with"):
        create_topics(server.address, dict.fromkeys((f"many-{number}" for number in range(5_000)), 1_000))


def fetch_body(partitions: list[int], *, topic: str = "wide", wait_ms: int = 2**31 - 1, min_bytes: int = 2**31 - 1) -> bytes:
    where = b"".join(struct.pack(">iqi", partition, 0, MIB) for partition in partitions)
    return (
        struct.pack(">iiiib", -1, wait_ms, min_bytes, 2**31 - 1, 0)
        + struct.pack(">i", 1) + string(topic) + struct.pack(">i", len(partitions)) + where
    )  # fmt: skip


def test_fetches_without_a_deadline_block_no_other_client_and_end_with_their_connection(server: Serving) -> None:
    socks = [connected(server.address, trusted=True) for _ in range(100)]
    for sock in socks:
        sock.sendall(frame(1, 4, fetch_body(list(range(100)))))
    time.sleep(0.5)
    # Without waiting for the disk, which is not the matter here.
    before = cpu_s(server)
    for _ in range(3):
        assert produce(server.address, "wide", 0, GOOD, acks=1)[0] == 0
    assert cpu_s(server) - before < 3, "a write that wakes a hundred fetches is still a write"
    for sock in socks:
        sock.close()


def test_a_fetch_of_a_hundred_thousand_partitions_is_answered_or_refused(server: Serving) -> None:
    with connected(server.address, trusted=True) as sock:
        sock.sendall(frame(1, 4, fetch_body([number % 100_000 for number in range(100_000)], wait_ms=0, min_bytes=0)))
        sock.settimeout(10)
        with contextlib.suppress(EOFError):
            assert len(answer(sock)) > 100_000


def test_one_partition_named_many_times_does_not_multiply_an_answer(server: Serving) -> None:
    with connected(server.address, trusted=True) as sock:
        sock.sendall(frame(1, 4, fetch_body([0] * 10_000, topic="victim", wait_ms=0, min_bytes=0)))
        (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
        assert size < 60 * MIB, "fetch.max.bytes holds for the answer as a whole"


def test_producer_ids_fetch_sessions_and_client_names_do_not_pile_up(server: Serving) -> None:
    numbers = count()
    with connected(server.address, trusted=True) as sock:
        for _ in range(30):
            burst = b"".join(frame(22, 0, string(None) + struct.pack(">i", 1000), client_id=f"c{next(numbers)}") for _ in range(200))
            sock.sendall(burst)
            for _ in range(200):
                answer(sock)
        sessions = struct.pack(">iiiibii", -1, 0, 0, MIB, 0, 0, 0) + struct.pack(">i", 1) + string("wide") + struct.pack(">i", 100)
        sessions += b"".join(struct.pack(">iqqi", partition, 0, -1, MIB) for partition in range(100)) + struct.pack(">i", 0)
        for _ in range(3_000):
            sock.sendall(frame(1, 8, sessions))
            answer(sock)


# Reading, or not.


def test_client_that_sends_requests_and_reads_no_responses_is_disconnected(server: Serving) -> None:
    with connected(server.address, trusted=True) as sock:
        sock.settimeout(0.5)
        sent, begun = 0, time.monotonic()
        ended = False
        while time.monotonic() - begun < WRITE_TIMEOUT_MS / 1000 + 6:
            try:
                sent += sock.send(METADATA_ALL * 1_000)
            except TimeoutError:
                continue
            except OSError:
                ended = True
                break
        assert ended, f"still open after {sent >> 20} MiB of requests"


def test_a_consumer_that_stops_reading_a_large_answer_is_cut_off(server: Serving) -> None:
    socks = [connected(server.address, trusted=True) for _ in range(10)]
    for sock in socks:
        sock.sendall(frame(1, 4, fetch_body([0], topic="victim", wait_ms=0, min_bytes=0)) * 40)
    time.sleep(WRITE_TIMEOUT_MS / 1000 + 2.5)
    for sock in socks:
        assert closed_within(sock, 3)
        sock.close()


def many_names(count: int, *, last: bytes = b"") -> bytes:
    """Metadata of version 1 about topics that do not exist, or one of them with a name that is not valid."""
    names = [string(f"unknown-{number}") for number in range(count - 1)] + [struct.pack(">h", 4) + (last or b"last")]
    return frame(3, 1, struct.pack(">i", count) + b"".join(names))


@pytest.mark.parametrize("count", [1_000, 3_000, 20_000])
def test_a_request_about_many_topics_is_answered_whole_and_the_next_after_it(server: Serving, count: int) -> None:
    with connected(server.address, trusted=True) as sock:
        sock.sendall(many_names(count) + frame(18, 0, b"", correlation_id=9))
        response = answer(sock)
        assert response.count(b"unknown-") == count - 1 and b"last" in response
        assert struct.unpack_from(">i", answer(sock))[0] == 9


def test_a_large_request_that_is_malformed_at_its_end_closes_the_connection(server: Serving) -> None:
    with connected(server.address, trusted=True) as sock:
        sock.sendall(many_names(20_000, last=b"\xff\xff\xff\xff"))
        assert closed_within(sock, 5)


def test_peers_that_leave_while_their_large_requests_are_decoded_are_forgotten(server: Serving) -> None:
    large = many_names(20_000)
    for _ in range(20):
        sock = connected(server.address, trusted=True)
        sock.sendall(large)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


def test_requests_pipelined_by_the_thousand_are_answered_in_order(server: Serving) -> None:
    with connected(server.address, trusted=True) as sock:
        for start in range(0, 5_000, 500):
            sock.sendall(b"".join(frame(18, 0, b"", correlation_id=number) for number in range(start, start + 500)))
            for number in range(start, start + 500):
                assert struct.unpack_from(">i", answer(sock))[0] == number


def test_one_correlation_id_for_all_requests_is_the_clients_own_affair(server: Serving) -> None:
    with connected(server.address, trusted=True) as sock:
        sock.sendall(frame(18, 0, b"", correlation_id=5) * 10)
        assert [struct.unpack_from(">i", answer(sock))[0] for _ in range(10)] == [5] * 10


def test_peers_that_leave_while_answers_are_on_their_way_are_forgotten(server: Serving) -> None:
    descriptors = len(os.listdir(f"/proc/{server.pid}/fd"))
    for number in range(100):
        sock = connected(server.address)
        sock.sendall(frame(1, 4, fetch_body([0], topic="victim", wait_ms=0, min_bytes=0)) * 3)
        if number % 2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    deadline = time.monotonic() + 5
    while len(os.listdir(f"/proc/{server.pid}/fd")) > descriptors + 5:
        assert time.monotonic() < deadline, "descriptors come back"
        time.sleep(0.05)


def test_without_descriptors_it_waits_quietly_and_serves_again_when_there_are_some(tmp_path: Path) -> None:
    # A server of its own: logs of topics of earlier tests may still be created, and need descriptors. Checkpoints are due meanwhile.
    with Serving(tmp_path / "data", settings={"log.flush.offset.checkpoint.interval.ms": "200"}) as other:
        flooded(other)


def flooded(server: Serving) -> None:
    used = len(os.listdir(f"/proc/{server.pid}/fd"))
    former = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + 10, former[1]))
    socks: list[socket.socket] = []
    try:
        for _ in range(60):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(server.address)
            socks.append(sock)
        time.sleep(0.5)
        before, begun = cpu_s(server), time.monotonic()
        time.sleep(1)
        assert cpu_s(server) - before < 0.5 * (time.monotonic() - begun), "it does not spin"
    finally:
        for sock in socks:
            sock.close()
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, former)
    deadline = time.monotonic() + 5
    while True:
        try:
            assert api_versions(server.address, timeout_s=2)
            return
        except (OSError, EOFError):
            assert time.monotonic() < deadline, "it serves again"


def cpu_s(server: Serving) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

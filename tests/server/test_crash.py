"""Kills and stops of the server under the load of real clients, with restarts on the same directory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from live_load import ConfluentWriter, OttlaWriter, Reader, Writer, check, running

from serving import Serving

pytestmark = pytest.mark.server

KILLS = 4
#: Small segments, so that a crash meets rolls, snapshots and checkpoints as often as plain appends.
SMALL = {"internal.segment.bytes": "65536", "log.flush.offset.checkpoint.interval.ms": "200"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path / "data", settings=SMALL) as served:
        yield served


def participants(server: Serving) -> tuple[list[Writer], list[Reader]]:
    """Three idempotent writers and one that is not, each on its partition, and readers of two."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic("crash", 4, 1)])["crash"].result(10)
    bootstrap = server.bootstrap
    writers: list[Writer] = [
        ConfluentWriter("first", bootstrap, "crash", 0, idempotent=True),
        ConfluentWriter("second", bootstrap, "crash", 1, idempotent=True),
        ConfluentWriter("plain", bootstrap, "crash", 2, idempotent=False),
        OttlaWriter("ottla", bootstrap, "crash", 3),
    ]
    return writers, [Reader(bootstrap, "crash", partition) for partition in (0, 2)]


def progress(writers: list[Writer], timeout_s: float = 20.0) -> None:
    """Waits until every writer has had 200 more records acknowledged."""
    goals = [(writer, len(writer.acknowledged) + 200) for writer in writers]
    deadline = time.monotonic() + timeout_s
    while behind := [writer.name for writer, goal in goals if len(writer.acknowledged) < goal]:
        assert time.monotonic() < deadline, f"the writers get on again; not so: {behind}"
        time.sleep(0.02)


def test_nothing_acknowledged_is_lost_or_doubled_by_kills_under_load(server: Serving) -> None:
    writers, readers = participants(server)
    with running(*writers, *readers):
        for life in range(KILLS):
            progress(writers)
            time.sleep(0.1 + 0.17 * life)
            server.kill()
            server.start()
        progress(writers)
    assert check(server.address, writers, readers) > 200 * KILLS * len(writers)
    assert all(reader.seen for reader in readers)


def test_a_stop_under_load_is_clean_and_loses_nothing(server: Serving) -> None:
    writers, readers = participants(server)
    with running(*writers, *readers):
        for _ in range(2):
            progress(writers)
            begun = time.monotonic()
            server.stop()
            assert time.monotonic() - begun < 10, "clients that go on sending do not hold up the stop"
            assert (server.data_dir / "broker-1" / ".kafka_cleanshutdown").exists()
            server.start()
        progress(writers)
    check(server.address, writers, readers)


def test_a_kill_right_after_the_ready_line_and_one_before_it_do_no_harm(server: Serving) -> None:
    writers, readers = participants(server)
    with running(*writers, *readers):
        progress(writers)
    for delay_s in (0.0, 0.15, 0.3, 0.45):
        server.kill()
        server.start()
        server.kill()
        server.spawn()
        time.sleep(delay_s)
    server.kill()
    server.start()
    check(server.address, writers, readers)


def test_a_second_process_on_the_directory_is_refused_and_harms_nothing(server: Serving, tmp_path: Path) -> None:
    writers, readers = participants(server)
    with running(*writers, *readers):
        progress(writers)
        said = Serving(server.data_dir).fails_to_start()
        assert "in use" in said and str(server.data_dir) in said and "Traceback" not in said
        progress(writers)
    check(server.address, writers, readers)


def test_three_brokers_of_one_process_come_back_with_all_their_partitions(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", brokers=3, settings=SMALL) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic("crash", 3, 1)])["crash"].result(10)
        writers: list[Writer] = [ConfluentWriter(f"w{p}", server.bootstrap, "crash", p, idempotent=True) for p in range(3)]
        with running(*writers):
            progress(writers)
        for end in (server.kill, server.stop):
            end()
            server.start()
            metadata = AdminClient({"bootstrap.servers": server.bootstrap}).list_topics("crash", timeout=10)
            for writer in writers:
                leader = metadata.topics["crash"].partitions[writer.partition].leader
                check((metadata.brokers[leader].host, metadata.brokers[leader].port), [writer], [])

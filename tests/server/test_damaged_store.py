"""A damaged embedded store: the server refuses to start, names the remedy, and serves every record after it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ottla.server.data_directory import STORE
from plain_kafka import batch_of, create_topics, fetch_all, produce
from serving import Serving

pytestmark = pytest.mark.server
MEMBER = b'"version":3'


def flip_in_a_topic(store: Path) -> None:
    data = bytearray(store.read_bytes())
    data[data.index(MEMBER) + len(MEMBER) - 1] ^= 1
    store.write_bytes(data)


def test_a_damaged_store_is_refused_with_the_command_that_restores_it(tmp_path: Path) -> None:
    server = Serving(tmp_path / "data")
    with server:
        create_topics(server.address, {"t": 1})
        for number in range(5):
            assert produce(server.address, "t", 0, batch_of([(1_000 + number, None, b"value %d" % number)])) == (0, number)
    with server:
        # The second start makes a copy of what the first one left.
        copies = tmp_path / "data" / "meta"
        deadline_s = time.monotonic() + 20
        while not list(copies.glob("*-copy-*[0-9]")):
            assert time.monotonic() < deadline_s, "a copy is made soon after a start"
            time.sleep(0.02)
    flip_in_a_topic(tmp_path / "data" / STORE)
    lives = len(server.logs())
    refused = subprocess.run(server.command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and refused.stdout == ""
    last = refused.stderr.splitlines()[-1]
    assert "is damaged: the checksum of node /brokers/topics/t" in last and f"ottla store restore --data-dir {tmp_path / 'data'}" in last
    assert "Traceback" not in refused.stderr and "internal error" not in refused.stderr
    command = [sys.executable, "-m", "ottla", "store", "restore", "--data-dir", str(tmp_path / "data"), "--yes"]
    restored = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert restored.returncode == 0, restored.stderr
    with server:
        assert [record.value for batch in fetch_all(server.address, "t") for record in batch.records] == [b"value %d" % n for n in range(5)]
        assert produce(server.address, "t", 0, batch_of([(2_000, None, b"more")])) == (0, 5)
    assert "Traceback" not in server.logs()[lives:]

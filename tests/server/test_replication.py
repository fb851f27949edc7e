"""Replication between three real brokers in one process, byte for byte."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import ottla
from ottla import NewTopic
from serving import Serving

pytestmark = pytest.mark.server

PARTITIONS = 3
RECORDS = 300


def copies(data_dir: Path) -> list[list[bytes]]:
    """By partition, the log of each broker that has one, without the zeroes of unused space."""
    return [
        [
            b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
            for directory in sorted(data_dir.glob(f"broker-*/t-{number}"))
        ]
        for number in range(PARTITIONS)
    ]


def test_followers_hold_the_same_bytes_and_every_broker_leads_some(tmp_path: Path) -> None:
    settings = {"default.replication.factor": "3", "min.insync.replicas": "2"}
    with Serving(tmp_path / "data", brokers=3, settings=settings) as server, ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topic(NewTopic("t", PARTITIONS))
        with ottla.Producer(bootstrap_servers=server.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send("t", b"%d " % number * 20, partition=number % PARTITIONS)
        described = admin.describe_topics(["t"])["t"]
        assert not isinstance(described, Exception)
        assert {partition.leader for partition in described.partitions} == {1, 2, 3}
        assert all(len(partition.isr) == 3 for partition in described.partitions)
        deadline_s = time.monotonic() + 5
        while any(len(set(logs)) != 1 for logs in copies(server.data_dir)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert all(len(logs) == 3 and len(set(logs)) == 1 and len(logs[0]) > 2000 for logs in copies(server.data_dir))
        server.kill()
        server.start()
        with ottla.Consumer("t", bootstrap_servers=server.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
            found: list[bytes | None] = []
            deadline_s = time.monotonic() + 20
            while len(found) < RECORDS and time.monotonic() < deadline_s:
                found += [record.value for record in consumer.poll(0.5)]
        assert sorted(value or b"" for value in found) == sorted(b"%d " % number * 20 for number in range(RECORDS))

"""Administration of groups over the network: on several brokers, and across a crash."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ottla
from ottla import KafkaError, NewTopic, TopicPartition
from ottla.client.admin.group_lag import GroupLag
from serving import Serving

pytestmark = pytest.mark.server

#: So many that each of two brokers coordinates some.
GROUPS = [f"group-{number}" for number in range(12)]


def test_groups_of_all_brokers_are_listed_measured_and_deleted(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", brokers=2) as server, ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topic(NewTopic("t", 4))
        with ottla.Producer(bootstrap_servers=server.bootstrap) as producer:
            for number in range(40):
                producer.send("t", b"x" * 10_000, partition=number % 4, timestamp_ms=1_700_000_000_000 + number)
        for number, group in enumerate(GROUPS):
            outcomes = admin.alter_consumer_group_offsets(group, {("t", partition): number % 10 for partition in range(4)})
            assert set(outcomes.values()) == {None}
        described = admin.describe_consumer_groups(GROUPS)
        assert {one.coordinator.id for one in described.values() if not isinstance(one, KafkaError)} == {1, 2}
        assert [one.group_id for one in admin.list_groups(states=["Empty"])] == sorted(GROUPS)
        for group, lag in admin.consumer_group_lag(GROUPS).items():
            offset = int(group.removeprefix("group-")) % 10
            assert isinstance(lag, GroupLag)
            assert [(one.lag, one.first_unread_ms) for one in lag.partitions] == [
                (10 - offset, 1_700_000_000_000 + 4 * offset + partition) for partition in range(4)
            ]
        assert set(admin.delete_consumer_groups(GROUPS).values()) == {None}
        assert admin.list_groups() == []


def test_offsets_survive_a_kill_and_lag_watch_continues(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as server:
        with ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topic(NewTopic("t", 1))
            assert admin.alter_consumer_group_offsets("g", {("t", 0): 0}) == {TopicPartition("t", 0): None}
        command = [sys.executable, "-m", "ottla", "group", "lag", "g", "-w", "300ms", "-n", "200", "-o", "json", "-b", server.bootstrap]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watch:
            assert watch.stdout is not None
            try:
                assert json.loads(watch.stdout.readline())["lag"] == 0
                server.kill()
                time.sleep(0.5)
                server.start()
                with ottla.Producer(bootstrap_servers=server.bootstrap) as producer:
                    producer.send("t", b"x").result()
                for line in watch.stdout:
                    reported = json.loads(line)
                    if reported["lag"] == 1:
                        break
            finally:
                watch.kill()
        assert reported["partitions"][0]["committed_offset"] == 0

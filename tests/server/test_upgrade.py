"""Upgrades from Ottla 0.1.0, of data directories and of brokers one by one; and back, until ottla.version is raised.

The package of 0.1.0 comes from this repository's history.
"""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from live_load import ConfluentWriter, OttlaWriter, Reader, Writer, running
from test_cluster import Processes, processes, progress, until

import ottla
from ottla.server.zookeeper_ensemble import Ensemble
from serving import SOURCE, Serving

pytestmark = pytest.mark.server

#: 0.1.0 as released: its embedded store has no checksums (format 1). The version number in pyproject.toml is no guide: 26dcc45b, a later
#: commit, calls itself 0.1.0 too, and its store has format 2.
COMMIT = "b145a316"


@pytest.fixture(scope="module")
def of_0_1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source directory of 0.1.0."""
    archive = subprocess.run(["git", "archive", COMMIT, "src"], cwd=SOURCE.parent, capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip(f"this checkout lacks commit {COMMIT}, with the package of 0.1.0")
    directory = tmp_path_factory.mktemp("0.1.0")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory / "src"


def write(server: Serving, *values: bytes) -> None:
    with ottla.Producer(bootstrap_servers=server.bootstrap) as producer:
        for future in [producer.send("t", key=b"k", value=value) for value in values]:
            future.result(20)


def read(server: Serving) -> list[bytes | None]:
    """All records."""
    with ottla.Consumer(bootstrap_servers=server.bootstrap, auto_offset_reset="earliest") as consumer:
        found: list[bytes | None] = []
        partitions = consumer.partitions_for("t")
        consumer.assign(partitions)
        end = sum(consumer.end_offsets(partitions).values())
        while len(found) < end:
            found += [record.value for record in consumer.poll(timeout_ms=1_000)]
        return found


def group_reads(server: Serving, count: int) -> list[bytes | None]:
    """The next records of a group that commits what it read."""
    with ottla.Consumer("t", group_id="g", bootstrap_servers=server.bootstrap, auto_offset_reset="earliest") as consumer:
        found: list[bytes | None] = []
        while len(found) < count:
            found += [record.value for record in consumer.poll(timeout_ms=1_000)]
        return found


def life(server: Serving, source: Path) -> Serving:
    server.source = source
    return server


def test_a_data_directory_of_0_1_is_upgraded_and_goes_back_until_the_level_is_raised(tmp_path: Path, of_0_1: Path) -> None:
    server = Serving(tmp_path / "data", settings={"group.initial.rebalance.delay.ms": "0"})
    with life(server, of_0_1):
        with ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topic(ottla.NewTopic("t", 1, configs={"retention.ms": "-1"}))
        write(server, b"a", b"b")
        assert group_reads(server, 2) == [b"a", b"b"]
    with life(server, SOURCE):
        assert read(server) == [b"a", b"b"]
        write(server, b"c")
        assert group_reads(server, 1) == [b"c"]
        with ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
            assert admin.describe_features().finalized["ottla.version"] == (1, 1)
    with life(server, of_0_1):
        assert read(server) == [b"a", b"b", b"c"]
        write(server, b"d")
        assert group_reads(server, 1) == [b"d"]
    with life(server, SOURCE):
        assert read(server) == [b"a", b"b", b"c", b"d"]
        with ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.update_features({"ottla.version": 2})
    assert "has format 2; this version reads format 1" in life(server, of_0_1).fails_to_start()
    with life(server, SOURCE):
        assert read(server) == [b"a", b"b", b"c", b"d"]
        with ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
            assert admin.describe_features().finalized["ottla.version"] == (2, 2)


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: Ensemble, of_0_1: Path) -> Iterator[Processes]:
    """Three brokers of 0.1.0."""
    with processes(tmp_path, zookeeper, source=of_0_1) as made:
        yield made


def test_three_brokers_of_0_1_are_upgraded_one_by_one_under_load(cluster: Processes) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("t", 3, 3, config={"min.insync.replicas": "2"})])["t"].result(20)
    until(lambda: all(leader != -1 for leader, _ in cluster.leaders("t").values()))
    bootstrap = cluster.bootstrap
    writers: list[Writer] = [ConfluentWriter("first", bootstrap, "t", 0, idempotent=True), OttlaWriter("ottla", bootstrap, "t", 2)]
    readers = [Reader(cluster.bootstrap, "t", 0)]
    with running(*writers, *readers):
        for broker in cluster.brokers.values():
            progress(writers)
            broker.stop()
            life(broker, SOURCE).start()
            progress(writers)
    assert cluster.check(writers, readers) > 0
    with ottla.Admin(bootstrap_servers=cluster.bootstrap) as found:
        assert found.describe_features().finalized["ottla.version"] == (1, 1)
        found.update_features({"ottla.version": 2})
        assert found.describe_features().finalized["ottla.version"] == (2, 2)

"""Log files are exchanged: Apache Kafka's tools read files of Ottla, and each broker continues a partition written by the other.

Kafka comes from Maven, as in the benchmarks; without it these tests are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench import kafka as apache
from client_adapters import ADAPTERS, Sent
from kafka_tools import tools_command
from test_clients import expected, sample

from plain_kafka import CODECS, Record, batch_of, create_topics, fetch_all, offset_at, produce
from serving import Serving

pytestmark = [
    pytest.mark.interop,
    pytest.mark.server,
    pytest.mark.timeout(420),
    pytest.mark.xdist_group("kafka_files"),
    pytest.mark.usefixtures("own_server_only"),
]

NOW_MS = time.time_ns() // 1_000_000
#: Small segments, and indexes with entries.
SETTINGS = {"segment.bytes": "1048576", "index.interval.bytes": "2000"}
PRODUCER = {"producer_id": 4_242, "producer_epoch": 1}


@dataclass
class Left:
    """A partition of a stopped broker: its files and its records."""

    directory: Path
    records: list[Record]


def write(bootstrap: str, topic: str) -> list[Record]:
    """Records in every codec by every client, and ten batches of one idempotent producer of this test."""
    host, _, port = bootstrap.rpartition(":")
    address = (host, int(port))
    create_topics(address, {topic: 1}, SETTINGS)
    records: list[Record] = []
    for adapter in ADAPTERS:
        for codec in CODECS:
            sent = sample(adapter) + [Sent(None, os.urandom(60_000), (), NOW_MS)]
            adapter.produce(bootstrap, topic, sent, codec=codec, idempotent=codec == "zstd")
            records += expected(sent, len(records))
    for number in range(10):
        some = [Record(len(records) + i, NOW_MS + number, None, b"own %d" % number) for i in range(3)]
        assert produce(address, topic, 0, own(number)) == (0, len(records))
        records += some
    return records


def own(number: int) -> bytes:
    return batch_of([(NOW_MS + number, None, b"own %d" % number)] * 3, base_sequence=3 * number, **PRODUCER)


def adopt(left: Left, directory: Path) -> None:
    """Copies the files of a partition over another's; only the topic id stays."""
    for file in directory.iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    for file in left.directory.iterdir():
        if file.name != "partition.metadata":
            shutil.copy2(file, directory / file.name)


def continues(bootstrap: str, topic: str, left: Left) -> None:
    """A broker with the copied partition has every record, finds it by time, knows its producer and accepts more."""
    host, _, port = bootstrap.rpartition(":")
    address = (host, int(port))
    end = len(left.records)
    deadline = time.monotonic() + 20
    while offset_at(address, topic, 0, -1) != (0, end):
        assert time.monotonic() < deadline, offset_at(address, topic, 0, -1)
        time.sleep(0.1)
    assert [record for batch in fetch_all(address, topic, check_crc=False) for record in batch.records] == left.records
    assert offset_at(address, topic, 0, 0) == (0, 0)
    first_now = next(record.offset for record in left.records if record.timestamp_ms >= NOW_MS + 5)
    assert offset_at(address, topic, 0, NOW_MS + 5) == (0, first_now)
    for adapter in ADAPTERS:
        assert adapter.consume(bootstrap, topic, 50, offset=end - 50) == left.records[-50:]
    assert produce(address, topic, 0, own(9)) == (0, end - 3), "a retried batch is recognized from the snapshot or from the log"
    assert produce(address, topic, 0, own(10)) == (0, end)
    assert ADAPTERS[0].produce(bootstrap, topic, [Sent(None, b"more")], codec="zstd") == [end + 3]
    assert [record.value for record in ADAPTERS[1].consume(bootstrap, topic, 1, offset=end + 3)] == [b"more"]


@pytest.fixture(scope="module")
def of_ottla(tmp_path_factory: pytest.TempPathFactory) -> Left:
    with Serving(tmp_path_factory.mktemp("ottla") / "data") as server:
        records = write(server.bootstrap, "made")
        server.stop()
    return Left(server.data_dir / "broker-1" / "made-0", records)


def dump(found: apache.Distribution, files: list[Path], *options: str) -> str:
    """Output of Kafka's DumpLogSegments."""
    command = [*tools_command(found), "org.apache.kafka.tools.DumpLogSegments"]
    done = subprocess.run([*command, "--files", ",".join(map(str, files)), *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_kafkas_tool_reads_every_record_and_finds_no_invalid_index(apache_kafka: apache.Distribution, of_ottla: Left) -> None:
    logs = sorted(of_ottla.directory.glob("*.log"))
    assert len(logs) > 1
    output = dump(apache_kafka, logs, "--deep-iteration", "--print-data-log")
    assert len(re.findall(r"^\| offset: ", output, re.MULTILINE)) == len(of_ottla.records)
    valid = re.findall(r"isvalid: (\w+)", output)
    assert valid and set(valid) == {"true"}
    for codec in CODECS:
        assert f"compresscodec: {codec}" in output
    indexes = [file for file in of_ottla.directory.iterdir() if file.suffix in (".index", ".timeindex")]
    checked = dump(apache_kafka, sorted(indexes), "--deep-iteration")
    complaints = [
        line for line in checked.splitlines() if re.search(r"mismatch|out of order|not found|corrupt|invalid|Exception", line, re.I)
    ]
    assert not complaints
    assert checked.count("offset: ") > 20
    snapshots = sorted(of_ottla.directory.glob("*.snapshot"))
    assert f"producerId: {PRODUCER['producer_id']} producerEpoch: 1" in dump(apache_kafka, snapshots[-1:])


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """A partition compacted by Ottla: batches with gaps, and batch headers without records."""
    topic = {"cleanup.policy": "compact", "internal.segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.1"}
    with Serving(tmp_path_factory.mktemp("compacted") / "data", settings={"log.cleaner.backoff.ms": "100"}) as server:
        create_topics(server.address, {"made": 1}, topic)
        # The only batch of its producer; compaction removes all its records.
        sole = batch_of([(NOW_MS, b"key-%d" % i, b"first") for i in range(3)], base_sequence=0, producer_id=7, producer_epoch=0)
        assert produce(server.address, "made", 0, sole) == (0, 0)
        for number in range(200):
            batch = batch_of([(NOW_MS, b"key-%d" % ((number + i) % 7), b"x" * 200) for i in range(3)], base_sequence=3 * number, **PRODUCER)
            assert produce(server.address, "made", 0, batch) == (0, 3 + 3 * number)
        directory = server.data_dir / "broker-1" / "made-0"
        deadline = time.monotonic() + 20
        while sum(file.stat().st_size for file in directory.glob("*.log")) > 60_000 or list(directory.glob("*.cleaned")):
            assert time.monotonic() < deadline, "the topic is compacted"
            time.sleep(0.05)
    # The files must not change while they are read.
    with Serving(server.data_dir, settings={"log.cleaner.enable": "false"}) as still:
        records = [record for batch in fetch_all(still.address, "made") for record in batch.records]
    return Left(directory, records)


def test_kafkas_tool_reads_compacted_files(apache_kafka: apache.Distribution, compacted: Left) -> None:
    assert (compacted.directory / "holes-checkpoint").exists() and len(compacted.records) < 300
    output = dump(apache_kafka, sorted(compacted.directory.glob("*.log")), "--deep-iteration", "--print-data-log")
    assert len(re.findall(r"^\| offset: ", output, re.MULTILINE)) == len(compacted.records)
    valid = re.findall(r"isvalid: (\w+)", output)
    assert valid and set(valid) == {"true"} and " count: 0 " in output


def test_kafka_continues_a_partition_compacted_by_ottla(apache_kafka: apache.Distribution, compacted: Left, tmp_path: Path) -> None:
    def address(bootstrap: str) -> tuple[str, int]:
        host, _, port = bootstrap.rpartition(":")
        return host, int(port)

    with apache.running(apache_kafka, tmp_path) as (bootstrap, _):
        create_topics(address(bootstrap), {"adopted": 1}, {"cleanup.policy": "compact"})
    adopt(compacted, tmp_path / "logs" / "adopted-0")
    with apache.running(apache_kafka, tmp_path) as (bootstrap, _):
        found = [record for batch in fetch_all(address(bootstrap), "adopted", check_crc=False) for record in batch.records]
        assert found == compacted.records
        again = batch_of([(NOW_MS, b"key-1", b"repeat")] * 3, base_sequence=3 * 199, **PRODUCER)
        assert produce(address(bootstrap), "adopted", 0, again) == (0, 3 + 3 * 199), "a retried batch is recognized"
        following = batch_of([(NOW_MS, b"key-1", b"more")] * 3, base_sequence=600, **PRODUCER)
        assert produce(address(bootstrap), "adopted", 0, following) == (0, 603)


@pytest.fixture(scope="module")
def of_kafka(apache_kafka: apache.Distribution, of_ottla: Left, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Left, str]]:
    """Kafka writes a partition and stops. Then it gets Ottla's partition, starts again, and is killed at the end."""
    root = tmp_path_factory.mktemp("kafka")
    with apache.running(apache_kafka, root) as (bootstrap, _):
        host, _, port = bootstrap.rpartition(":")
        create_topics((host, int(port)), {"adopted": 1}, SETTINGS)
        records = write(bootstrap, "made")
    stopped = Left(root / "made-0-stopped", records)
    shutil.copytree(root / "logs" / "made-0", stopped.directory)
    adopt(of_ottla, root / "logs" / "adopted-0")
    with apache.running(apache_kafka, root) as (bootstrap, process):
        yield stopped, bootstrap
        os.kill(process.pid, signal.SIGKILL)


def test_kafka_continues_a_partition_of_ottla(of_kafka: tuple[Left, str], of_ottla: Left) -> None:
    continues(of_kafka[1], "adopted", of_ottla)


@pytest.mark.parametrize("ended", ["stopped", "running"])
def test_ottla_continues_a_partition_of_kafka(of_kafka: tuple[Left, str], tmp_path: Path, ended: str) -> None:
    """Of a stopped Kafka, and of a running one, whose preallocated indexes end in zeros."""
    left, bootstrap = of_kafka
    if ended == "running":
        own_topic = "preallocated"
        records = write(bootstrap, own_topic)
        running = left.directory.parent / "logs" / f"{own_topic}-0"
        left = Left(running, records)
        assert max(running.glob("*.index")).stat().st_size > 1_000_000, "Kafka preallocates the newest index"
    with Serving(tmp_path / "data") as server:
        create_topics(server.address, {"adopted": 1}, SETTINGS)
        server.stop()
        if ended == "running":
            (server.data_dir / "broker-1" / ".kafka_cleanshutdown").unlink()
        adopt(left, server.data_dir / "broker-1" / "adopted-0")
        server.start()
        continues(server.bootstrap, "adopted", left)
        server.stop()
        server.start()
        assert offset_at(server.address, "adopted", 0, -1) == (0, len(left.records) + 4)

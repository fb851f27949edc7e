"""Tables against a real `ottla serve`: every codec, compaction gaps, and a broker killed during a transfer."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ottla
from ottla import Admin, Consumer, NewTopic, Producer
from ottla.records import partition_for_key
from serving import Serving

pytestmark = pytest.mark.server


def create(server: Serving, partitions: int, **configs: str) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topic(NewTopic(name, partitions, configs={key.replace("_", "."): value for key, value in configs.items()}))
    return name


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_sent_tables_are_read_by_poll_table_and_read_table(ottla_server: Serving, codec: str) -> None:
    topic = create(ottla_server, 3)
    rows = 50_000
    table = pa.table({"k": [f"k{n % 1000}" for n in range(rows)], "n": range(rows), "v": [f"value {n} of a table" for n in range(rows)]})
    with Producer(bootstrap_servers=ottla_server.bootstrap, compression_type=codec) as producer:
        metadata = producer.send_table(topic, table, key="k", value="v").result(timeout_ms=60_000)
    assert metadata.rows == rows == sum(end - start for start, end in metadata.offsets.values())
    whole = ottla.read_table(topic, key_format="str", value_format="str", bootstrap_servers=ottla_server.bootstrap)
    found: list[Any] = []
    with Consumer(bootstrap_servers=ottla_server.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions_for(topic))
        while sum(part.num_rows for part in found) < rows:
            found.append(consumer.poll_table(20_000, key_format="str", value_format="str"))
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert pa.concat_tables(found).sort_by(order).equals(whole.combine_chunks())
    assert whole.column("offset").to_pylist() == [n for start, end in metadata.offsets.values() for n in range(start, end)]
    assert sorted(whole.column("value").to_pylist()) == sorted(table.column("v").to_pylist())
    homes = {key: partition_for_key(key.encode(), 3) for key in pc.unique(whole.column("key")).to_pylist()}
    assert all(homes[row["key"]] == row["partition"] for row in whole.select(["key", "partition"]).to_pylist())


def test_killing_a_broker_neither_loses_nor_duplicates_rows(tmp_path: Path) -> None:
    rows, value = 400_000, "x" * 60
    table = pa.table({"n": [str(n) for n in range(rows)], "v": pa.repeat(value, rows)})
    with Serving(tmp_path / "data") as server:
        topic = create(server, 2)
        with Producer(bootstrap_servers=server.bootstrap, buffer_memory=2_000_000, request_timeout_ms=5000) as producer:
            killed = threading.Event()

            def kill() -> None:
                server.kill()
                server.start()
                killed.set()

            first = producer.send_table(topic, table.slice(0, 100_000), key="n", value="v")
            threading.Thread(target=kill).start()
            second = producer.send_table(topic, table.slice(100_000), key="n", value="v")
            assert first.result(timeout_ms=100_000).rows + second.result(timeout_ms=100_000).rows == rows
            assert killed.wait(60)
        found = ottla.read_table(topic, columns=["key", "partition"], key_format="str", bootstrap_servers=server.bootstrap)
        for partition in (0, 1):
            numbers = found.filter(pc.equal(found.column("partition"), partition)).column("key").cast(pa.int64())
            assert numbers.to_pylist() == sorted(numbers.to_pylist())
        assert pc.count_distinct(found.column("key")).as_py() == found.num_rows == rows

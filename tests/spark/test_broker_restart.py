"""A running stream continues after its broker is killed and restarted: same workers, each record read once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, NewTopic, Producer
from serving import Serving

from .test_stream import RecordedBatches, numbers, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    """A broker that keeps its port over restarts."""
    with Serving(tmp_path / "data") as running:
        yield running


def add(server: Serving, values: list[bytes]) -> None:
    """Writes records to both partitions alternately, and waits until they are acknowledged."""
    with Producer(bootstrap_servers=server.bootstrap) as producer:
        for delivery in [producer.send("t", value, partition=number % 2) for number, value in enumerate(values)]:
            delivery.result()


def test_a_stream_survives_broker_restarts_and_reads_each_record_once(spark: Any, server: Serving, checkpoint: str) -> None:
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topic(NewTopic("t", 2))
    add(server, numbers(0, 10))
    seen = RecordedBatches()
    reader = spark.readStream.format("ottla").option("bootstrap.servers", server.bootstrap)
    frame = reader.options(subscribe="t", startingOffsets="earliest").load()
    query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", checkpoint).start()
    try:
        wait_until(lambda: len(seen.values) == 10, query)
        # Once after a clean stop, which closes connections, and once after a crash, with records that no batch has read.
        server.stop()
        server.start()
        add(server, numbers(10, 20))
        wait_until(lambda: len(seen.values) >= 20, query)
        add(server, numbers(20, 30))
        server.kill()
        server.start()
        add(server, numbers(30, 40))
        wait_until(lambda: len(seen.values) >= 40, query)
        assert query.isActive, "it did not end in between"
        # Duplicates would come before this record.
        add(server, [b"last", b"last too"])
        wait_until(lambda: {b"last", b"last too"} <= set(seen.values), query)
    finally:
        query.stop()
    assert sorted(seen.values) == sorted([*numbers(0, 40), b"last", b"last too"])

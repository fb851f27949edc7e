"""Topic ranges as tables: their records, their order, and errors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from memory_cluster import MemoryCluster

import ottla
from ottla.client.fetch.ranges import BadRange
from ottla.client.serializers import SerializationFailed
from ottla.records.build import build_batch
from ottla.records.compression import Codec
from ottla.records.errors import CorruptBatch
from ottla.wire.errors import UnknownTopicOrPartition
from ottla.wire.messages.fetch import AbortedTransaction

T0 = 1_790_000_000_000


@pytest.fixture
def filled(cluster: MemoryCluster) -> MemoryCluster:
    """`many` with 30 records in each of three partitions, a second apart."""
    for partition in range(3):
        for first in range(0, 30, 10):
            rows = [(T0 + n * 1000, b"k", b'{"n":%d}' % (100 * partition + n), (("h", b"1"),)) for n in range(first, first + 10)]
            codec = Codec.ZSTD if first else Codec.NONE
            cluster.logs["many"][partition].append(bytes(build_batch(rows, codec=codec)))
    return cluster


def numbers(table: Any) -> list[int]:
    return [row["n"] for row in table.column("value").to_pylist()]


def read(quick: dict[str, Any], *topics: str, **form: Any) -> list[int]:
    return numbers(ottla.read_table(*topics, value_format="json", **form, **quick))


def test_a_topic_is_read_completely_by_partition_and_offset(filled: MemoryCluster, quick: dict[str, Any]) -> None:
    assert read(quick, "many") == [100 * partition + n for partition in range(3) for n in range(30)]


def test_a_table_has_the_columns_of_poll_table(filled: MemoryCluster, quick: dict[str, Any]) -> None:
    table = ottla.read_table("many/1@:1", **quick)
    assert table.column_names == ["key", "value", "headers", "partition", "offset", "timestamp"]
    (row,) = table.drop_columns(["timestamp"]).to_pylist()
    assert row == {"key": b"k", "value": b'{"n":100}', "headers": [{"key": "h", "value": b"1"}], "partition": 1, "offset": 0}
    chosen = ottla.read_table("many/0,2@-1:", columns=["offset", "partition"], **quick)
    assert chosen.to_pylist() == [{"offset": 29, "partition": 0}, {"offset": 29, "partition": 2}]


@pytest.mark.parametrize(
    ("part", "offsets"),
    [
        ("many/0@5:8", [5, 6, 7]),
        ("many/0@28", [28, 29]),
        ("many/0@-2:", [28, 29]),
        ("many/0@+1:+2", [1, 2]),
        ("many/0@end:", []),
        ("many/0@12:12", []),
        (f"many/0@@{T0 + 5000}:@{T0 + 7000}", [5, 6]),
        (f"many/0@@{T0 + 27_500}:end", [28, 29]),
        (f"many/0@@{T0 + 99_000}:", []),
        ("many/0@1990-01-01:+1h", []),
    ],
)
def test_a_range_selects_its_records(filled: MemoryCluster, quick: dict[str, Any], part: str, offsets: list[int]) -> None:
    assert read(quick, part) == offsets


def test_several_ranges_are_read_in_order(filled: MemoryCluster, quick: dict[str, Any]) -> None:
    filled.logs["t"][0].append(bytes(build_batch([(T0, None, b'{"n":-1}', ())])))
    table = ottla.read_table("t", "many/2@:2", "many/0@:1", value_format="json", **quick)
    assert numbers(table) == [-1, 200, 201, 0]
    assert table.column("topic").to_pylist() == ["t", "many", "many", "many"]


def test_an_empty_topic_is_a_table_without_rows(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    table = ottla.read_table("t", value_format="json", schema=pa.schema([("n", pa.int64())]), **quick)
    assert table.num_rows == 0
    assert table.schema.field("value").type == pa.struct([("n", pa.int64())])


async def test_the_asyncio_event_loop_runs_during_the_read(filled: MemoryCluster, quick: dict[str, Any]) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    table = await ottla.aio.read_table("many", **quick)
    counting.cancel()
    assert table.num_rows == 90 and turns > 1


def test_small_fetches_and_compaction_gaps_change_nothing(filled: MemoryCluster, quick: dict[str, Any]) -> None:
    log = filled.logs["many"][0]
    del log.batches[1]
    assert read(quick, "many/0@5:25", max_partition_fetch_bytes=1) == [5, 6, 7, 8, 9, 20, 21, 22, 23, 24]


def test_a_range_can_end_in_compacted_offsets(filled: MemoryCluster, quick: dict[str, Any]) -> None:
    del filled.logs["many"][0].batches[1]
    assert read(quick, "many/0@5:15") == [5, 6, 7, 8, 9]


def test_read_committed_omits_aborted_records(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    for producer_id, number in ((1, 0), (2, 1)):
        batch = build_batch(
            [(T0, None, b'{"n":%d}' % number, ())], transactional=True, producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        cluster.logs["t"][0].append(bytes(batch))
    cluster.aborted["t", 0] = [AbortedTransaction(producer_id=1, first_offset=0)]
    assert read(quick, "t", isolation_level="read_committed") == [1]
    cluster.aborted.clear()
    assert read(quick, "t") == [0, 1]


def test_damage_is_an_error_with_partition_and_offset(filled: MemoryCluster, quick: dict[str, Any]) -> None:
    log = filled.logs["many"][1]
    log.batches[2] = log.batches[2][:-3] + bytes([log.batches[2][-3] ^ 1]) + log.batches[2][-2:]
    with pytest.raises(CorruptBatch, match="many-1: the batch at offset 20 is damaged"):
        ottla.read_table("many", **quick)


def test_an_unreadable_value_raises_with_its_offset_or_is_kept(filled: MemoryCluster, quick: dict[str, Any]) -> None:
    filled.logs["many"][2].append(bytes(build_batch([(T0, None, b"{", ())])))
    with pytest.raises(SerializationFailed, match="many-2 at offset 30: its value cannot be read as json"):
        read(quick, "many")
    table = ottla.read_table("many/2@-2:", value_format="json", on_corrupt="keep", **quick)
    assert table.column("_corrupt").to_pylist() == [None, b"{"]


def test_an_invalid_range_is_refused_at_once(filled: MemoryCluster, quick: dict[str, Any]) -> None:
    with pytest.raises(BadRange, match="did you mean end"):
        ottla.read_table("many@:ende", **quick)
    with pytest.raises(UnknownTopicOrPartition, match="topic many has 3 partitions, no partition 7"):
        ottla.read_table("many/0,7", **quick)
    with pytest.raises(ValueError, match="needs a topic"):
        ottla.read_table(**quick)
    with pytest.raises(ottla.ConfigError, match="did you mean client_id"):
        ottla.read_table("many", clientid="x", **quick)  # type: ignore[call-arg]
    with pytest.raises(ottla.KafkaError, match="nowhere"):
        ottla.read_table("nowhere", default_api_timeout_ms=50, **quick)


@pytest.mark.parametrize(
    "call", ["ottla.read_table('t')", "ottla.Consumer().poll_table(0)", "ottla.Producer().send_table('t', {'v': ['a']})"]
)
def test_without_pyarrow_the_error_says_what_to_install(call: str) -> None:
    program = f"import sys\nsys.modules['pyarrow'] = None\nimport ottla, ottla.aio\n{call}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.splitlines()[-1] == "ImportError: Arrow tables need pyarrow: pip install 'ottla[arrow]'", done.stderr

"""`ottla produce -i parquet` and `-i arrow`: files of records round-trip, other tables become JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from click.testing import CliRunner, Result
from memory_cluster import MemoryCluster

from ottla.cli.main import main
from ottla.records.read import records


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, [*arguments, "-b", "boot:1"], input=stdin)


def stored(cluster: MemoryCluster, topic: str) -> list[list[tuple[Any, ...]]]:
    return [[record[1:] for batch in log.batches for record in records(batch)] for log in cluster.logs[topic]]


def test_parquet_written_by_consume_round_trips(cluster: MemoryCluster, tmp_path: Path) -> None:
    lines = (
        b'{"key":{"base64":"/w=="},"value":null,"headers":[["a",null],["b","1"]],"timestamp":5,"partition":1}\n'
        b'{"key":null,"value":"","timestamp":6,"partition":2}\n{"key":"k","value":"v","timestamp":7,"partition":1}\n'
    )
    assert run("produce", "many", "-i", "json", stdin=lines).exit_code == 0
    file = str(tmp_path / "a.parquet")
    assert run("consume", "many@0:end", "--parquet", file).exit_code == 0
    cluster.create("copy", 3)
    assert run("produce", "copy", "-i", "parquet", file).exit_code == 0
    assert stored(cluster, "copy") == stored(cluster, "many")
    assert run("produce", "t", "-i", "parquet", "--ignore", "partition,key", file).exit_code == 0
    assert [record[1] for record in stored(cluster, "t")[0]] == [None, None, None]


def test_other_tables_become_json_with_a_chosen_key(cluster: MemoryCluster, tmp_path: Path) -> None:
    file = str(tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pa.table({"id": [1, 2], "tags": [["a"], None]}), file)
    assert run("produce", "t", "-i", "parquet", "--key-column", "id", "--timestamp", "5", file).exit_code == 0
    assert stored(cluster, "t")[0] == [(5, b"1", b'{"id":1,"tags":["a"]}', ()), (5, b"2", b'{"id":2,"tags":null}', ())]
    refused = run("produce", "t", "-i", "parquet", "--key-column", "idd", file)
    assert refused.exit_code == 1 and "no column 'idd'; did you mean id?" in refused.stderr


def test_standard_input_can_be_an_arrow_stream_but_not_parquet(cluster: MemoryCluster) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"value": ["a", "b"], "timestamp": ["7", "soon"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream = sink.getvalue().to_pybytes()
    result = run("produce", "t", "-i", "arrow", "--keep-going", stdin=stream)
    assert result.exit_code == 1 and "record 2: column timestamp: 'soon' is not a time" in result.stderr
    assert stored(cluster, "t")[0] == [(7, None, b"a", ())]
    assert "cannot be read from its end" in run("produce", "t", "-i", "parquet", stdin=stream).stderr

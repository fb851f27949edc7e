"""`ottla produce` against an in-memory cluster: records written, errors reported, and invalid options."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from memory_cluster import MemoryCluster

from commands import documents
from ottla.cli.main import main
from ottla.records.batch import parse_header
from ottla.records.read import records


def produce(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, ["produce", *arguments, "-b", "boot:1"], input=stdin)


def consume(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["consume", *arguments, "-b", "boot:1"])


def arrived(cluster: MemoryCluster, topic: str = "t", partition: int = 0) -> list[tuple[bytes | None, bytes | None]]:
    return [(key, value) for batch in cluster.logs[topic][partition].batches for _, _, key, value, _ in records(batch)]


def test_lines_arrive_in_order(cluster: MemoryCluster) -> None:
    result = produce("t", "-K", ":", stdin=b"a:1\n2\n:3\n")
    assert (result.exit_code, result.output) == (0, ""), result.output
    assert arrived(cluster) == [(b"a", b"1"), (None, b"2"), (b"", b"3")]


def test_options_apply_to_records_without_their_own_values(cluster: MemoryCluster) -> None:
    lines = b'{"value":"1"}\n{"value":"2","key":"own","partition":1,"timestamp":7,"headers":[["b","2"]]}\n'
    result = produce("many", "-i", "json", "-k", "k", "-p", "2", "--timestamp", "5", "-H", "a=1", "-H", "n", stdin=lines)
    assert result.exit_code == 0, result.output
    ((first,), (second,)) = (records(cluster.logs["many"][partition].batches[0]) for partition in (2, 1))
    assert first[1:] == (5, b"k", b"1", (("a", b"1"), ("n", None)))
    assert second[1:] == (7, b"own", b"2", (("a", b"1"), ("n", None), ("b", b"2")))


def test_tombstones_are_empty_values_or_a_marker_text(cluster: MemoryCluster) -> None:
    assert produce("t", "-K", ":", "-Z", stdin=b"a:\n:b\n").exit_code == 0
    assert produce("t", "-K", ":", "--null", "NIL", stdin=b"a:NIL\nb:\n").exit_code == 0
    assert arrived(cluster) == [(b"a", None), (None, b"b"), (b"a", None), (b"b", b"")]


def test_whole_files_and_files_of_lines(cluster: MemoryCluster, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3")
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert produce("t", "--file", a, "--file", b, "-k", "file").exit_code == 0
    assert produce("t", a, b).exit_code == 0
    assert arrived(cluster) == [(b"file", b"1\n2\n"), (b"file", b"3"), (None, b"1"), (None, b"2"), (None, b"3")]


def test_each_record_can_be_sent_several_times(cluster: MemoryCluster) -> None:
    assert produce("t", "-n", "3", stdin=b"a\nb\n").exit_code == 0
    assert [value for _, value in arrived(cluster)] == [b"a", b"b"] * 3


def test_values_are_encoded_in_their_format(cluster: MemoryCluster) -> None:
    assert produce("t", "-K", "=", "--key-format", "int32", "--value-format", "hex", stdin=b"5=00ff\n").exit_code == 0
    assert arrived(cluster) == [(b"\0\0\0\5", b"\0\xff")]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_produce_accepts_what_consume_printed(cluster: MemoryCluster, form: str) -> None:
    lines = (
        b'{"key":{"base64":"/w=="},"value":null,"headers":[["a",null],["a","1"]],"timestamp":5}\n{"key":null,"value":"","timestamp":6}\n'
    )
    assert produce("many", "-i", "json", "-p", "1", stdin=lines).exit_code == 0
    printed = consume("many@0:end", "-o", form).stdout_bytes
    assert produce("t", "-i", form, "--ignore", "partition", stdin=printed).exit_code == 0
    assert produce("many", "-i", form, stdin=printed).exit_code == 0
    assert consume("t@0:end", "-o", "json", "--show", "key,value,headers,timestamp").stdout_bytes.replace(b" ", b"") == (
        b'{"key":{"base64":"/w=="},"value":null,"headers":[["a",null],["a","1"]],"timestamp":5}\n'
        b'{"key":null,"value":"","headers":[],"timestamp":6}\n'
    )
    assert arrived(cluster, "many", 1) == arrived(cluster, "t") * 2


def test_a_bad_line_ends_the_command_after_the_records_before_it(cluster: MemoryCluster) -> None:
    result = produce("t", "-i", "json", stdin=b'{"value":"a"}\n{"value":"b"}\nnope\n{"value":"d"}\n')
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: line 3: not JSON")
    assert result.stderr.endswith("; 2 records before it were written\n")
    assert [value for _, value in arrived(cluster)] == [b"a", b"b"]


def test_with_continue_every_bad_line_is_reported_and_the_command_fails(cluster: MemoryCluster) -> None:
    result = produce("t", "--keep-going", "--value-format", "int8", stdin=b"1\nx\n3\ny\n")
    assert result.exit_code == 1
    errors = result.stderr.splitlines()
    assert [line.partition(": value")[0] for line in errors[:2]] == ["Error: line 2", "Error: line 4"]
    assert errors[2] == "Error: 2 records were not written, 2 were"
    assert [value for _, value in arrived(cluster)] == [b"\1", b"\3"]


def test_a_record_that_is_too_large_is_reported_by_its_line(cluster: MemoryCluster) -> None:
    lines = b"small\n" + b"x" * 990 + b"\nlast\n"
    result = produce("t", "-X", "max.request.size=1000", stdin=lines)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: line 2:")
    assert [value for _, value in arrived(cluster)] == [b"small"]
    assert produce("t", "--keep-going", "-X", "max.request.size=1000", stdin=lines).exit_code == 1
    assert [value for _, value in arrived(cluster)] == [b"small", b"small", b"last"]


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_record_refused_by_the_broker_is_reported_by_its_line_and_counted(cluster: MemoryCluster, keep_going: bool) -> None:
    cluster.batch_faults.append(lambda topic, partition, header: 87)
    result = produce("t", "-D", ";", *(["--keep-going"] if keep_going else []), stdin=b"a;b")
    assert result.exit_code == 1
    assert "Error: record 1: " in result.stderr
    ends = "Error: 2 records were not written, 0 were\n" if keep_going else "; 0 records before it were written\n"
    assert result.stderr.endswith(ends)
    assert arrived(cluster) == []


def test_a_missing_partition_is_reported_at_once(cluster: MemoryCluster) -> None:
    result = produce("t", "-p", "1", stdin=b"a\n")
    assert (result.exit_code, result.stderr) == (
        1, "Error: line 1: topic t has 1 partitions; partition 1 does not exist; 0 records before it were written\n",
    )  # fmt: skip


def test_a_dry_run_prints_the_records_and_sends_nothing(cluster: MemoryCluster) -> None:
    result = produce("t", "-K", ":", "-Z", "-H", "a=1", "--timestamp", "5", "--dry-run", stdin=b"k:v\nx:\n")
    assert result.exit_code == 0
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"key": "k", "value": "v", "headers": [["a", "1"]], "timestamp": 5},
        {"key": "x", "value": None, "headers": [["a", "1"]], "timestamp": 5},
    ]
    assert result.stderr == "Nothing was sent: 2 records, 1 of them tombstones, would be sent to t\n"
    assert arrived(cluster) == []
    assert produce("t", "-i", "json", "--dry-run", stdin=b'{"value":1}\nx\n').exit_code == 1
    wrong = produce("t", "-p", "3", "--dry-run", stdin=b"a\n")
    assert (wrong.exit_code, wrong.stderr) == (1, "Error: line 1: topic t has 1 partitions; partition 3 does not exist\n")


def test_codecs_have_levels(cluster: MemoryCluster) -> None:
    assert produce("t", "-z", "zstd:7", stdin=b"a\n").exit_code == 0
    assert produce("t", "-z", "snappy", stdin=b"b\n").exit_code == 0
    assert [value for _, value in arrived(cluster)] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("t", "-z", "brotli"), "-z expects one of none, gzip"),
        (("t", "-z", "snappy:3"), "-z expects one of"),
        (("t", "-H", "=x"), "-H expects NAME=VALUE"),
        (("t", "-D", ""), "a delimiter needs at least one byte"),
        (("t", "--key-column", "id"), "options for columns need -i csv"),
        (("t", "--ignore", "partition"), "--ignore needs -i json or -i csv"),
        (("t", "-i", "json", "--ignore", "offset"), "unknown field 'offset'"),
        (("t", "-i", "csv", "-K", ":"), "-K and -Z need -i text"),
        (("t", "--rate", "fast"), "--rate expects records per second"),
        (("t", "--value-format", "jsom"), "did you mean json"),
        (("t", "--value-format", "avro"), "avro needs a schema"),
        (("t", "--timestamp", "soon"), "--timestamp expects"),
        (("t", "-X", "lingerms=5"), "unknown setting"),
    ],
)
def test_invalid_options_exit_with_code_2(cluster: MemoryCluster, arguments: tuple[str, ...], why: str) -> None:
    result = produce(*arguments, stdin=b"a\n")
    assert result.exit_code == 2, result.output
    assert why in result.stderr
    assert arrived(cluster) == []


def test_ctrl_c_waits_for_sent_records_and_reports_the_written_count(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.cli.produce import sending

    real = sending.RecordSender._send_chunk

    def then_interrupt(self: Any, chunk: Any) -> None:
        real(self, chunk)
        raise KeyboardInterrupt

    monkeypatch.setattr(sending.RecordSender, "_send_chunk", then_interrupt)
    result = produce("t", stdin=b"a\nb\n")
    assert (result.exit_code, result.stderr) == (130, "Interrupted: 2 records were written to t\n")
    assert [value for _, value in arrived(cluster)] == [b"a", b"b"]


# -- transactions


def markers(cluster: MemoryCluster) -> int:
    return sum(parse_header(batch).is_control for batch in cluster.logs["t"][0].batches)


def committed() -> list[str]:
    result = consume("t", "--from-beginning", "-e", "--read-committed")
    assert result.exit_code == 0, result.output
    return result.output.split()


def test_the_whole_input_is_one_transaction(cluster: MemoryCluster) -> None:
    lines = b"".join(b"%d\n" % number for number in range(25_000))
    result = produce("t", "--transactional-id", "x", stdin=lines)
    assert (result.exit_code, result.output) == (0, ""), result.output
    assert markers(cluster) == 1
    assert committed() == lines.decode().split()


def test_a_transaction_has_a_number_of_records(cluster: MemoryCluster) -> None:
    result = produce("t", "--transactional-id", "x", "--transaction-records", "10", stdin=b"a\n" * 25)
    assert result.exit_code == 0, result.output
    assert markers(cluster) == 3
    assert len(committed()) == 25


def test_a_transaction_lasts_a_time_also_while_the_input_pauses(
    cluster: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = threading.Event()
    cluster.transactions.changed = lambda: done.set() if markers(cluster) == 1 else None

    def write() -> None:
        with (tmp_path / "pipe").open("wb", buffering=0) as pipe:
            pipe.write(b"a\nb\n")
            seen.append(done.wait(20))
            pipe.write(b"c\n")

    seen: list[bool] = []
    thread = threading.Thread(target=write)
    thread.start()
    result = produce("t", str(tmp_path / "pipe"), "--transactional-id", "x", "--transaction-duration", "30ms")
    thread.join()
    assert result.exit_code == 0, result.output
    assert seen == [True]
    assert committed() == ["a", "b", "c"]


def test_a_failure_aborts_the_transaction_and_says_what_was_committed(cluster: MemoryCluster) -> None:
    result = produce("t", "-i", "json", "--transactional-id", "x", stdin=b'{"value":"1"}\nbad\n')
    assert result.exit_code == 1
    assert "line 2" in result.output
    assert "the transaction was aborted, and 0 records were committed" in result.output
    cluster.batch_faults.append(lambda topic, partition, header: 87)
    result = produce("t", "--transactional-id", "x", stdin=b"a\n")
    assert result.exit_code == 1
    assert "the transaction was aborted" in result.output
    cluster.batch_faults += [lambda topic, partition, header: 87 if header.producer_epoch else None]
    result = produce("t", "--transactional-id", "y", "--transaction-records", "2", stdin=b"a\nb\nc\nd\n")
    assert result.exit_code == 1
    assert "2 records were committed, in 1 transaction before" in result.output
    assert committed() == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--transaction-records", "5"], "needs --transactional-id"),
        (["--transaction-duration", "5ms"], "needs --transactional-id"),
        (["--transactional-id", "x", "--acks", "1"], "needs --acks all"),
    ],
)
def test_options_of_transactions_are_checked(cluster: MemoryCluster, arguments: list[str], message: str) -> None:
    result = produce("t", *arguments, stdin=b"a\n")
    assert result.exit_code == 2
    assert message in result.output


def test_a_mistyped_topic_is_reported_before_the_cluster_creates_it(cluster: MemoryCluster) -> None:
    result = produce("manny", "-X", "max.block.ms=50", stdin=b"a\n")
    assert "Warning: topic manny does not exist; did you mean many? The cluster creates it" in result.stderr
    assert "Warning" not in produce("nothing.like.it", "-X", "max.block.ms=50", stdin=b"a\n").stderr


def test_consume_refuses_a_mistyped_topic_with_the_name_that_is_meant(cluster: MemoryCluster) -> None:
    for more in ([], ["-g", "readers"]):
        result = consume("manny", "-e", *more)
        assert (result.exit_code, result.stderr) == (1, "Error: topic manny does not exist; did you mean many?\n")


def test_the_result_is_also_json(cluster: MemoryCluster) -> None:
    report = documents(produce("t", "-o", "json", stdin=b"a\nb\n"), "produce")
    assert (report["topic"], report["records"], report["bytes"]) == ("t", 2, 4)

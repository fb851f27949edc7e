"""`ottla perf` against a real broker, and refused options."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from commands import Ottla, documents, good, refused, rows, without_headings
from ottla.cli.perf.options import properties
from serving import Serving


@pytest.fixture
def at(ottla_server: Serving, ottla: Ottla) -> Ottla:
    return lambda *arguments, **more: ottla(*arguments, "-b", ottla_server.bootstrap, **more)


def read(at: Ottla, *words: str) -> Any:
    """JSON output of a measurement."""
    return documents(at("perf", *words, "-o", "json"), "perf", words[0])


def names(at: Ottla) -> set[str]:
    """The existing topics."""
    return {line.split("\t")[0] for line in good(at("topic", "list")).splitlines()}


def is_deleted(at: Ottla, topic: str) -> bool:
    """Whether a topic is deleted in time."""
    deadline = time.monotonic() + 30
    while topic in names(at):
        if time.monotonic() > deadline:
            return False
    return True


@pytest.mark.server
@pytest.mark.parametrize("way", [[], ["--arrow"]])
def test_produce_is_measured_and_its_topic_deleted(at: Ottla, way: list[str]) -> None:
    words = ["--create", "-n", "3000", "--record-size", "50", "--warmup-records", "1000", "--print-metrics", "-X", "linger.ms=1"]
    found = read(at, "produce", *words, *way)
    assert (found["records"], found["bytes"], found["failed"], found["interrupted"]) == (3000, 150_000, 0, False)
    assert found["steady"]["records"] == 2000
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["p99"] <= found["latency_ms"]["max"]
    assert found["metrics"]["producer-metrics"]["record-send-total"] >= 3000
    assert is_deleted(at, found["topic"])


@pytest.mark.server
def test_transactions_are_measured_and_read_when_they_are_committed(at: Ottla) -> None:
    words = ["perf.transactions", "--create", "--keep", "-n", "1500", "--throughput", "5k", "-X", "linger.ms=1"]
    found = read(at, "produce", *words, "--transactional-id", "perf.id", "--transaction-duration-ms", "60")
    assert (found["records"], found["failed"], found["transactions"]["duration_ms"]) == (1500, 0, 60)
    # 300 ms, in transactions of 60 ms and a commit each.
    assert 2 <= found["transactions"]["committed"] <= 6
    assert 0 < found["transactions"]["commit_ms"]["p50"] <= found["transactions"]["commit_ms"]["max"]
    assert "perf.id" in good(at("transaction", "list"))
    words = ["--messages", "1500", "-X", "group.protocol=consumer", "--timeout", "60s"]
    assert read(at, "consume", "perf.transactions", "--read-committed", *words)["records"] == 1500
    assert read(at, "produce", "perf.transactions", "-n", "10")["transactions"] is None


@pytest.mark.server
def test_produce_at_a_rate_into_an_existing_topic(at: Ottla, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    good(at("topic", "create", "perf.rate"))
    result = at("perf", "produce", "perf.rate", "--throughput", "500", "-n", "100", "--payload-file", str(lines))
    part, records, *numbers = rows(result).rstrip("\n").split("\t")
    assert (part, records) == ("total", "100")
    assert 0 < float(numbers[0]) < 520
    assert len(numbers) == 8
    assert "100" in good(at("topic", "offsets", "perf.rate"))


@pytest.mark.server
def test_ctrl_c_prints_the_figures_so_far_and_deletes_the_topic(ottla_server: Serving, at: Ottla) -> None:
    words = ["perf", "produce", "perf.stopped", "--create", "--duration", "10m", "--throughput", "100", "--reporting-interval", "100ms"]
    command = [sys.executable, "-m", "ottla", *words, "-b", ottla_server.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy()) as process:
        assert process.stderr is not None
        # Intervals are printed while the command runs.
        assert "records" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert without_headings(out).startswith("total\t")
    assert "figures cover" in err
    assert is_deleted(at, "perf.stopped")


@pytest.mark.server
@pytest.mark.parametrize("way", [[], ["--arrow"]])
def test_consume_is_measured_and_its_group_deleted(at: Ottla, way: list[str]) -> None:
    topic = "perf.read" + "".join(way)
    read(at, "produce", topic, "--create", "--keep", "-n", "2500", "--record-size", "40")
    # The consumer protocol has no initial rebalance delay.
    quick = ["-X", "group.protocol=consumer", "--timeout", "60s"]
    found = read(at, "consume", topic, "--messages", "2000", "--print-metrics", "--show-detailed-stats", *quick, *way)
    assert (found["records"], found["bytes"], found["timed_out"], found["interrupted"]) == (2000, 80_000, False, False)
    assert found["start_ms"] <= found["end_ms"]
    assert 0 <= found["rebalance_ms"] + found["fetch_ms"] <= found["end_ms"] - found["start_ms"]
    assert sum(one["records"] for one in found["intervals"]) == 2000
    assert found["metrics"]["consumer-fetch-manager-metrics"]["fetch-total"] >= 1
    assert found["group"] not in good(at("group", "list"))


@pytest.mark.server
def test_consume_ends_without_records(at: Ottla) -> None:
    words = ["--create", "--messages", "10", "--timeout", "200", "-X", "group.protocol=consumer"]
    result = at("perf", "consume", *words, "-o", "json")
    found = documents(result, "perf", "consume")
    assert (found["records"], found["timed_out"], found["records_per_s"]) == (0, True, 0.0)
    assert "0 of 10 records arrived" in result.stderr


@pytest.mark.server
def test_end_to_end_latency_is_measured(at: Ottla) -> None:
    words = ["--create", "--partitions", "2", "-n", "50", "--record-key-size", "3", "--num-headers", "2", "--record-header-size", "4"]
    found = read(at, "latency", *words, "--throughput", "1000", "--print-metrics", "-X", "fetch.max.wait.ms=100")
    assert (found["records"], found["bytes"], found["error"], found["interrupted"]) == (50, 50 * 103, None, False)
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["max"]
    assert found["acknowledged_ms"]["max"] > 0
    assert {"producer-metrics", "consumer-fetch-manager-metrics"} <= set(found["metrics"])
    assert is_deleted(at, found["topic"])


@pytest.mark.server
def test_an_existing_topic_is_neither_created_nor_deleted(at: Ottla) -> None:
    good(at("topic", "create", "perf.mine"))
    assert "already exists" in refused(at("perf", "produce", "perf.mine", "--create", "-n", "1"))
    assert "perf.mine" in names(at)
    assert "topic perf.nowhere does not exist" in refused(at("perf", "produce", "perf.nowhere", "-n", "1"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["produce", "t"], "missing a limit"),
        (["produce", "-n", "1"], "missing the topic"),
        (["produce", "t", "-n", "1", "--keep"], "need --create"),
        (["produce", "t", "-n", "1", "--record-size", "1", "--payload-monotonic"], "exclude each other"),
        (["produce", "t", "-n", "1", "--throughput", "fast"], "--throughput expects"),
        (["produce", "t", "--topic", "u", "-n", "1"], "name different topics"),
        (["produce", "t", "-n", "1", "-X", "linger=3"], "linger"),
        (["latency", "t", "-n", "1", "-X", "linger=3"], "linger"),
        (["consume", "t"], "missing a limit"),
        (["consume", "t", "--messages", "1", "--timeout", "0"], "a duration above 0"),
    ],
)
def test_invalid_options_are_refused(ottla: Ottla, words: list[str], message: str) -> None:
    assert message in refused(ottla("perf", *words, "-b", "127.0.0.1:1"), 2)


def test_settings_are_read_from_java_property_files() -> None:
    text = "# a comment\n\nlinger.ms = 5\nclient.id: bench=1\n! another\n"
    assert properties(text, "f") == {"linger_ms": "5", "client_id": "bench=1"}

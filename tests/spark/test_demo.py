"""The demo from start to end, and its parts that need no server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.demo.scenario import weblog
from ottla.demo.telemetry import telemetry
from ottla.demo.verification import RecordCounts

LINES = [
    '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 100 "-" "agent"',
    '1.2.3.4 - bob [17/May/2015:10:05:43 +0000] "GET /b HTTP/1.1" 404 - "http://x/" "ag\\"ent"',
    '::1 - - [17/May/2015:10:06:00 +0200] "-" 500 7',
    "this is no request",
    "",
]


def test_telemetry_is_keyed_json_with_a_time() -> None:
    records = list(telemetry(0.6))
    assert {json.loads(value)["kind"] for _, value in records} >= {"cpu", "memory", "process"}
    for key, value in records:
        record = json.loads(value)
        assert set(record) == {"at", "kind", "name", "metric", "value"}
        assert key.decode() == f"{record['kind']}/{record['name']}"


def test_a_web_log_yields_every_line_keyed_by_its_client(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    file.write_text("\n".join(LINES) + "\n")
    found = list(weblog(file, 0))
    assert [value.decode() for _, value in found] == LINES
    assert [key for key, _ in found] == [b"1.2.3.4", b"1.2.3.4", b"::1", b"this", b""]


@pytest.mark.parametrize("counts", [(3, 3, 3, 2), (3, 3, 4, 3), (3, 2, 3, 3), (0, 0, 0, 0)])
def test_different_counts_are_a_failure(counts: tuple[int, int, int, int]) -> None:
    assert not RecordCounts(*counts).agree


@pytest.mark.spark
@pytest.mark.xdist_group("spark_processes")
@pytest.mark.timeout(300)
def test_the_demo_counts_every_line_of_a_log_once(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    file.write_text("\n".join(LINES * 40) + "\n")
    command = [sys.executable, "-m", "ottla.demo", "--input", str(file), "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every one of 200 records was counted exactly once" in done.stdout
    assert {
        line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if line.startswith(("2xx", "4xx", "5xx", "unreadable"))
    } == {
        "2xx": "40",
        "4xx": "40",
        "5xx": "40",
        "unreadable": "80",
    }

"""`ottla log verify` finds damage in the files of a data directory, also while a broker runs there, and changes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import Result

from commands import Ottla, good
from plain_kafka import batch_of, create_topics, produce
from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("log_verify")]
RECORDS = 30


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a stopped server, with a topic of several segments. It was verified while the server ran."""
    data = tmp_path_factory.mktemp("verify") / "data"
    with Serving(data) as server:
        create_topics(server.address, {"t": 1}, {"internal.segment.bytes": "1000", "index.interval.bytes": "200"})
        for number in range(RECORDS):
            assert produce(server.address, "t", 0, batch_of([(1_700_000_000_000, b"k", b"%d" % number * 30)]))[0] == 0
        shutil.copytree(data, data.parent / "live", ignore=shutil.ignore_patterns("*-new"))
    return data


def report(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def logs(data: Path) -> list[Path]:
    return sorted((data / "broker-1" / "t-0").glob("*.log"))


@pytest.mark.parametrize("which", ["data", "live"])
def test_an_undamaged_directory_has_no_damage(ottla: Ottla, stopped: Path, which: str) -> None:
    rows = report(ottla("log", "verify", "--live", str(stopped.parent / which), "-o", "json"))
    found = [row for row in rows if row["topic"] == "t"]
    assert len(found) == len(logs(stopped)) > 3 and not any("damage" in row for row in rows)
    assert "no damage" in ottla("log", "verify", str(stopped / "broker-1")).stderr


def test_the_logs_of_a_running_broker_are_verified_without_its_lock(ottla: Ottla, tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as server:
        create_topics(server.address, {"t": 1}, {"internal.segment.bytes": "1000"})
        for number in range(RECORDS):
            produce(server.address, "t", 0, batch_of([(1_700_000_000_000, b"k", b"%d" % number * 30)]))
            if number % 10 == 0:
                good(ottla("log", "verify", "--live", str(tmp_path / "data")))


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_reported_with_file_offsets_and_position(ottla: Ottla, stopped: Path, tmp_path: Path, seed: int) -> None:
    shutil.copytree(stopped, tmp_path / "data")
    rng = Random(seed)
    file = rng.choice(logs(tmp_path / "data")[:-1])
    data = bytearray(file.read_bytes())
    position = rng.randrange(len(data))
    data[position] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    before = file.read_bytes()
    rows = report(ottla("log", "verify", str(tmp_path / "data"), "-o", "json"))
    (row,) = [row for row in rows if "damage" in row]
    assert row["file"] == str(file) and row["position"] <= position < row["position"] + row["damaged_bytes"]
    assert 0 <= row["first_offset"] == row["last_offset"] < RECORDS and file.read_bytes() == before
    result = ottla("log", "verify", str(tmp_path / "data"))
    assert result.exit_code == 1 and "1 damage" in result.stderr and str(file) in result.stdout

"""`ottla pipeline load` as a process against a real `ottla serve`: killed, interrupted, and run again."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner

import ottla
from ottla import Consumer
from ottla.cli.main import main
from serving import Serving

pytestmark = pytest.mark.server
ROWS = 40_000
PAGE = Path(__file__).parents[2] / "docs" / "load.md"


def command(server: Serving, topic: str, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "ottla",
        "pipeline",
        "load",
        *arguments,
        "--to",
        topic,
        "--create",
        "--partitions",
        "3",
        "-b",
        server.bootstrap,
    ]


def loaded(where: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(arguments, cwd=where, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def wait_for_records(server: Serving, topic: str, count: int) -> None:
    deadline = time.monotonic() + 60
    with Consumer(bootstrap_servers=server.bootstrap) as consumer:
        while topic not in consumer.list_topics() or sum(consumer.end_offsets(consumer.partitions_for(topic)).values()) < count:
            assert time.monotonic() < deadline, f"there are no {count} records in time"
            time.sleep(0.02)


@pytest.mark.parametrize(("name", "kills"), [("rows.csv", (5000, 15_000)), ("rows.parquet", (9000,))])
def test_a_killed_load_writes_each_row_once(ottla_server: Serving, tmp_path: Path, name: str, kills: tuple[int, ...]) -> None:
    topic = f"load-{uuid.uuid4().hex[:8]}"
    table = pa.table({"id": range(ROWS), "v": ["x" * 50] * ROWS})
    if name.endswith("parquet"):
        pyarrow.parquet.write_table(table, tmp_path / name, row_group_size=7000)
    else:
        (tmp_path / name).write_text("id,v\n" + "".join(f"{n},{'x' * 50}\n" for n in range(ROWS)))
    keyed = ["--key", "id"] if name.endswith("csv") else []
    for many in kills:
        slowly = command(ottla_server, topic, name, *keyed, "--rate", "10k")
        with subprocess.Popen(slowly, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            wait_for_records(ottla_server, topic, many)
            process.kill()
    summary = loaded(tmp_path, *command(ottla_server, topic, name, *keyed))
    assert summary["records"] < ROWS
    values = ottla.read_table(topic, columns=["value"], bootstrap_servers=ottla_server.bootstrap).column("value").to_pylist()
    assert sorted(json.loads(value)["id"] for value in values) == list(range(ROWS))


def test_an_interrupted_load_reports_its_progress_and_continues(ottla_server: Serving, tmp_path: Path) -> None:
    topic = f"load-{uuid.uuid4().hex[:8]}"
    (tmp_path / "a.txt").write_text("".join(f"{n}\n" for n in range(ROWS)))
    slowly = command(ottla_server, topic, "a.txt", "--rate", "4k")
    with subprocess.Popen(slowly, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_records(ottla_server, topic, 1000)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=60)
    assert process.returncode == 130, message
    assert "records were written to" in message and "continues there" in message
    summary = loaded(tmp_path, *command(ottla_server, topic, "a.txt"))
    assert (summary["found"], 0 < summary["records"] < ROWS) == (0, True)
    values = ottla.read_table(topic, columns=["value"], bootstrap_servers=ottla_server.bootstrap).column("value").to_pylist()
    assert sorted(map(int, values)) == list(range(ROWS))


def test_the_examples_of_the_page_print_the_documented_output(
    ottla_server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = f"people-{uuid.uuid4().hex[:8]}"
    commands = 0
    for block in re.findall(r"^```\n(\$ .*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for command, _, printed in (one.partition("\n") for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]):
            if not command.startswith("ottla"):
                subprocess.run(command, shell=True, check=True)
                continue
            words = [word.replace("people", topic) if word in ("people", "people@:end") else word for word in shlex.split(command)]
            done = CliRunner().invoke(main, [*words[1:], "-b", ottla_server.bootstrap])
            assert without_times(done.stderr if printed.startswith("Error") else done.stdout) == without_times(printed), command
            commands += 1
    assert commands == 3


def without_times(text: str) -> list[str]:
    """The lines without durations and dates."""
    lines = [line for line in text.splitlines() if '"event": "progress"' not in line]
    return [re.sub(r'("seconds"|"records_per_second"): [0-9.]+', r"\1: 0", line) for line in lines]

"""The quick start of the README runs literally, line by line, against the broker that its first lines start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from serving import SOURCE, Serving

pytestmark = pytest.mark.server
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
START = "ottla serve --data-dir data &"


def block(name: str, language: str = "") -> str:
    found = re.search(rf"<!-- example: {name} -->\n```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None, f"the README has the example {name}"
    return found[1]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which `ottla` is the command of this tree and without profiles."""
    home = tmp_path_factory.mktemp("quick-start")
    command = home / "bin" / "ottla"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ottla "$@"\n')
    command.chmod(0o755)
    paths = {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(SOURCE), "OTTLA_CONFIG": str(home / "config.toml")}
    return {**os.environ, **paths}


def only_disks(printed: str) -> bool:
    """Whether `ottla doctor` found nothing but that the disk of this machine is nearly full."""
    header, *rows = [line.split("\t") for line in printed.splitlines() if "\t" in line] or [[]]
    return header[:2] == ["SEVERITY", "CHECK"] and {row[1] for row in rows} == {"disks"}


def test_every_line_of_the_quick_start_works(tmp_path: Path, environment: dict[str, str]) -> None:
    assert f"$ {START}" in README
    with Serving(tmp_path / "data") as server:
        here = {**environment, "OTTLA_BOOTSTRAP_SERVERS": server.bootstrap}
        lines = block("quick start").splitlines()
        assert len(lines) >= 5 and all(line.startswith("$ ") for line in lines)
        printed = {}
        for line in lines:
            done = subprocess.run(line[2:], shell=True, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 or only_disks(done.stdout), f"{line}\n{done.stdout}{done.stderr}"
            printed[line[2:]] = done.stdout
        consumed = next(text for line, text in printed.items() if line.startswith("ottla consume orders --from-beginning"))
        assert sorted(line.split()[-1] for line in consumed.splitlines()) == ["apple", "pear", "plum"]
        assert "billing" in printed["ottla group lag billing"] or "orders" in printed["ottla group lag billing"]
        done = subprocess.run(
            [sys.executable, "-c", block("five lines", "python")], env=here, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 4


def test_the_first_lines_start_a_broker_at_the_default_address(tmp_path: Path, environment: dict[str, str]) -> None:
    """In a network of its own, so that the port is free."""
    script = f"ip link set lo up && exec {START.removesuffix(' &')}"
    command = ["unshare", "--net", "--map-root-user", "sh", "-c", script]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        process.terminate()
        problem = "" if line else process.stderr.read()
        if problem.startswith(("unshare:", "RTNETLINK", "Cannot")):
            pytest.skip(f"no network namespace can be made here: {problem.strip()[-200:]}")
        assert line == "ottla: ready on 127.0.0.1:9092\n"

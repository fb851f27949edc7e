"""Three brokers over a real ZooKeeper, each a process of its own, while leaders, controllers, servers, disks and networks fail.

Each test is a run of ``python -m chaos``, short enough for every change; ``make chaos`` runs all scenarios, and longer. One run at a time:
what they measure is time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.server.data_directory import CannotStart
from ottla.server.zookeeper_ensemble import class_path
from ottla.spark.java import NoJava, java_home

ROOT = Path(__file__).resolve().parents[2]
SESSION_MS = 2_000
#: Other tests need the processors too.
PAUSE_MS = 75
#: A loaded machine may be late once in ten times.
LATE_ONE_IN = 10
RUN_S = 400

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("chaos"), pytest.mark.timeout(RUN_S + 30)]


def run_scenarios(directory: Path, *scenarios: str, rounds: int = 1, zookeepers: int = 1) -> dict[str, dict[str, Any]]:
    """The results of the scenarios, by name. Skips where this machine does not allow any of them."""
    try:
        java_home(needed_by="ZooKeeper")
        class_path()
    except (CannotStart, NoJava) as error:
        pytest.skip(f"no ZooKeeper can be run here: {error}")
    outcome = directory / "outcome.json"
    command = [sys.executable, "-m", "chaos", *scenarios, "--rounds", str(rounds), "--zookeepers", str(zookeepers), "--json", str(outcome)]
    command += ["--pause-ms", str(PAUSE_MS), "--session-timeout-ms", str(SESSION_MS)]
    command += ["--late-max", str(max(1, rounds // LATE_ONE_IN)), "--directory", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, f"{done.stderr[-6000:]}\n{done.stdout}"
    found = {one["story"]: one for one in json.loads(outcome.read_text())}
    assert set(found) == set(scenarios)
    skipped = {one["skipped"] for one in found.values()}
    if all(skipped):
        pytest.skip("; ".join(skipped))
    for one in found.values():
        assert one["acknowledged"] > 100 * one["faults"], "clients had something to lose"
        assert (one["lost"], one["duplicates"], one["given_up"], one["problems"]) == (0, 0, 0, [])
    return found


def test_nothing_acknowledged_is_lost_or_doubled_while_each_partitions_leader_is_killed(tmp_path: Path) -> None:
    kills = run_scenarios(tmp_path, "kill", rounds=3)["kill"]
    assert kills["faults"] == len(kills["failover_ms"]) == 3, "one kill for each partition"
    assert kills["failover_median_ms"] <= SESSION_MS + 2_000


@pytest.mark.long
def test_no_record_is_lost_while_a_leader_is_paused_and_controllers_and_zookeepers_are_killed(tmp_path: Path) -> None:
    found = run_scenarios(tmp_path, "freeze", "controller", "zookeeper", zookeepers=3)
    assert found["zookeeper"]["faults"] == 4, "the ensemble's leader, a follower, and all of them twice"


def test_no_record_is_lost_while_a_disk_is_full(tmp_path: Path) -> None:
    assert run_scenarios(tmp_path, "disk", rounds=2)["disk"]["faults"] == 2


def test_no_record_is_lost_while_brokers_are_cut_off_from_each_other_or_from_zookeeper(tmp_path: Path) -> None:
    run_scenarios(tmp_path, "cut-brokers", "cut-controller", "cut-zookeeper", "unplug")


@pytest.mark.long
def test_certificates_and_the_password_between_brokers_change_without_an_error_to_clients(tmp_path: Path) -> None:
    assert run_scenarios(tmp_path, "rotate")["rotate"]["faults"] == 18, "six certificates, nine restarts, three kills"

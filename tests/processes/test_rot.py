"""Forty random places of all files are damaged, in one replica of three and in an embedded store; ``python -m chaos.rot`` damages 1,000."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.server.data_directory import CannotStart
from ottla.server.zookeeper_ensemble import class_path
from ottla.spark.java import NoJava, java_home

ROOT = Path(__file__).resolve().parents[2]
RUN_S = 240
PLACES, GROUP = 40, 12

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("chaos"), pytest.mark.timeout(RUN_S + 30)]


def test_damage_at_random_places_is_healed_or_reported_and_no_record_is_lost(tmp_path: Path) -> None:
    try:
        java_home(needed_by="ZooKeeper")
        class_path()
    except (CannotStart, NoJava) as error:
        pytest.skip(f"no ZooKeeper can be run here: {error}")
    outcome = tmp_path / "outcome.json"
    command = [sys.executable, "-m", "chaos.rot", "--places", str(PLACES), "--group", str(GROUP), "--seed", "13", "--json", str(outcome)]
    done = subprocess.run([*command, "--directory", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert outcome.exists(), done.stderr[-6000:]
    found = json.loads(outcome.read_text())
    assert found["faults"] == [], done.stderr[-6000:]
    assert (found["places"], found["healed"]) == (PLACES, found["rounds"]) and found["acknowledged"] > 1_900

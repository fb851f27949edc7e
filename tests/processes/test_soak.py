"""A soak of some seconds: nothing is lost over a few restarts. What leaks slowly, ``make soak`` finds in ten minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN_S = 240
pytestmark = [pytest.mark.server, pytest.mark.timeout(RUN_S + 30)]


@pytest.mark.long
def test_clients_lose_nothing_and_leave_nothing_behind_over_restarts(tmp_path: Path) -> None:
    outcome = tmp_path / "outcome.json"
    command = [sys.executable, "-m", "chaos.soak", "--minutes", "0.25", "--every", "4", "--seed", "1", "--json", str(outcome)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert outcome.exists(), done.stderr[-4000:]
    reported = json.loads(outcome.read_text())
    assert reported["restarts"] >= 2
    assert reported["acknowledged"] == reported["sent"] > 50
    assert set(reported["lost"].values()) == {0}
    # The group may read a record again after a restart; who reads everything has each once.
    assert (reported["doubled"]["blocking"], reported["doubled"]["asyncio"]) == (0, 0)
    growth = reported["growth"]
    assert growth["threads"] <= 0, reported
    # So few samples are not quite at rest: a client may have a connection to find its broker by, besides the one it works with.
    assert growth["tasks"] <= 3 and growth["descriptors"] <= 6, reported

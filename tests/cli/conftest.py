"""Commands against a fake cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_admin import FakeAdmin

from commands import Ottla
from ottla.cli.main import main


@pytest.fixture(autouse=True)
def isolated_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No environment variables and no profiles but the test's own. Returns the directory of the profiles."""
    for name in ("OTTLA_BOOTSTRAP", "OTTLA_BOOTSTRAP_SERVERS", "OTTLA_PROFILE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config.toml"
    monkeypatch.setenv("OTTLA_CONFIG", str(path))
    return path


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """Topics `orders` (3 partitions of 10 records) and `payments` (1), and an internal topic."""
    made = FakeAdmin()
    made.topic("payments")
    made.topic("orders", 3)
    made.topic("__consumer_offsets", 2)
    monkeypatch.setattr("ottla.client.sync.admin.Admin", made)
    return made


@pytest.fixture
def ottla() -> Ottla:
    return lambda *arguments, **more: CliRunner().invoke(main, list(arguments), prog_name="ottla", **more)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output goes to a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("ottla.cli.common.tables.is_terminal", lambda: True)

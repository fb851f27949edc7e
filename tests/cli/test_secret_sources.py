"""Secrets of profiles: where they may be, and that arguments do not have them."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli.main import main
from ottla.client.profiles import secret_from, setting_problem


def test_a_secret_of_a_profile_is_in_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text("s3cret\nmore")
    monkeypatch.setenv("P", "from-variable")
    assert secret_from("sasl_password", f"file:{path}") == "s3cret"
    assert secret_from("sasl_password", "env:P") == "from-variable"
    assert secret_from("sasl_password", "itself") == "itself"
    assert setting_problem("sasl_jaas_config", f"file:{path}") is None
    assert setting_problem("sasl_jaas_config", "x") == "sasl_jaas_config: invalid value"


def test_a_profile_takes_no_secret_from_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_CONFIG", str(tmp_path / "config.toml"))
    refused = CliRunner().invoke(main, ["profile", "add", "p", "h:1", "-X", "sasl_password=SECRET"])
    assert refused.exit_code == 2
    assert "write sasl_password=file:FILE, env:VARIABLE or prompt:" in refused.output
    assert "SECRET" not in refused.output
    assert CliRunner().invoke(main, ["profile", "add", "p", "h:1", "-X", "sasl_password=env:P"]).exit_code == 0
    assert "(hidden)" in CliRunner().invoke(main, ["profile", "show", "p"]).output

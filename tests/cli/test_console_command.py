"""`ottla console`: options, refusals, and a start and stop of the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.base.passwords import hashed, is_correct
from ottla.cli.console import command as module
from ottla.cli.main import main
from ottla.console.options import ConsoleOptions
from serving import SOURCE, Elsewhere, Serving


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[ConsoleOptions]:
    """The options of consoles that would be served."""
    served: list[ConsoleOptions] = []
    monkeypatch.setattr("ottla.console.serve.serve", lambda options, ready: served.append(options))
    return served


def run(*arguments: str, input: str = "") -> tuple[int, str]:
    result = CliRunner().invoke(main, ["console", *arguments], input=input)
    return result.exit_code, result.output


def test_options_reach_the_console(given: list[ConsoleOptions], tmp_path: Path) -> None:
    code, output = run("-b", "a:1", "--listen", "[::1]:0", "--read-only", "-X", "request.timeout.ms=1234", "--host", "c.example")
    assert code == 0, output
    (options,) = given
    assert (options.bootstrap, options.host, options.port, options.is_read_only) == ("a:1", "::1", 0, True)
    assert options.settings == {"request_timeout_ms": "1234"}
    assert (options.hosts, options.command_flags) == (("c.example",), " -b a:1")


def test_an_address_that_others_reach_needs_a_login(given: list[ConsoleOptions], tmp_path: Path) -> None:
    code, output = run("-b", "a:1", "--listen", "0.0.0.0:8080")
    assert code == 2 and "there is no login" in output and not given
    assert run("-b", "a:1", "--listen", "0.0.0.0:8080", "--no-login")[0] == 0
    file = tmp_path / "login.toml"
    file.write_text(f'[users.alice]\nrole = "admin"\npassword = "{hashed("x", b"salt")}"\n')
    assert run("-b", "a:1", "--listen", "0.0.0.0:8080", "--login", str(file))[0] == 0
    assert given[-1].login is not None and set(given[-1].login.users) == {"alice"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--listen", "8080"], "expected HOST:PORT"),
        (["--listen", "127.0.0.1:x"], "expected HOST:PORT"),
        (["--login", "missing.toml"], "cannot read"),
        (["--value-format", "orders=nonsense"], "unknown format"),
        (["--value-format", "orders"], "NAME=VALUE"),
        (["-X", "nonsense=1"], "unknown setting"),
    ],
)
def test_an_invalid_option_is_refused_with_exit_code_2(given: list[ConsoleOptions], arguments: list[str], problem: str) -> None:
    code, output = run("-b", "a:1", *arguments)
    assert code == 2 and problem in output and not given


def test_formats_of_topics_are_checked_at_the_start(given: list[ConsoleOptions]) -> None:
    assert run("-b", "a:1", "--value-format", "orders=int64", "--key-format", "orders=hex")[0] == 0
    assert given[0].formats == {"orders": ("hex", "int64")}


def test_a_password_is_hashed_and_not_printed() -> None:
    code, output = run("--hash-password", input="open sesame\nopen sesame\n")
    assert code == 0 and "sesame" not in output
    assert is_correct("open sesame", output.splitlines()[-1])


def test_without_the_extra_the_command_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ottla.console.serve", None)
    code, output = run("-b", "a:1")
    assert code == 1 and "pip install 'ottla[console]'" in output
    assert module.command.name == "console"


@pytest.mark.server
def test_the_console_starts_answers_and_ends_with_sigterm(ottla_server: Serving | Elsewhere, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ottla", "console", "-b", ottla_server.bootstrap, "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        try:
            assert line.startswith("ottla: console at http://127.0.0.1:"), line
            with urllib.request.urlopen(line.split()[-1] + "/healthz", timeout=20) as answer:
                assert json.load(answer) == {"status": "ok"}
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.server
def test_an_address_in_use_is_one_line(ottla_server: Serving | Elsewhere) -> None:
    code, output = run("-b", ottla_server.bootstrap, "--listen", ottla_server.bootstrap)
    assert code == 1 and "cannot start at" in output and "Traceback" not in output

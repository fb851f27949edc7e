"""`ottla service`: the unit, the steps of an installation, and what is refused."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from commands import Ottla, documents, good, refused
from ottla.cli.service import commands, steps
from ottla.cli.service.unit import MARK

ROOT = Path(__file__).parents[2]
PROGRAM = "/opt/ottla/bin/ottla"
systemd_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed: apt install systemd")


def test_the_unit_in_deploy_is_the_one_that_is_installed(ottla: Ottla) -> None:
    printed = good(ottla("service", "install", "--print", "--program", PROGRAM))
    path = ROOT / "deploy" / "systemd" / "ottla.service"
    assert path.read_text() == printed, f"run: ottla service install --print --program {PROGRAM} > {path.relative_to(ROOT)}"


@systemd_analyze
@pytest.mark.parametrize("name", ["ottla", "ottla-console", "ottla-zookeeper"])
def test_systemd_accepts_the_units_and_finds_them_hardened(name: str, tmp_path: Path) -> None:
    unit = tmp_path / f"{name}.service"
    # The program must exist for systemd-analyze.
    unit.write_text((ROOT / "deploy" / "systemd" / unit.name).read_text().replace(PROGRAM, "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    analysed = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)], capture_output=True, text=True, check=False
    )
    assert analysed.returncode == 0, analysed.stdout[-300:]


def test_an_image_gets_the_files_and_a_repeated_installation_keeps_the_settings(ottla: Ottla, tmp_path: Path) -> None:
    install = ("service", "install", "--root", str(tmp_path), "--listen", "127.0.0.1:19092", "--program", PROGRAM)
    assert good(ottla(*install)).splitlines()[-1] == "run systemctl enable --now ottla.service"
    settings, unit = tmp_path / "etc/ottla/server.properties", tmp_path / "etc/systemd/system/ottla.service"
    assert "\nlisteners=PLAINTEXT://127.0.0.1:19092\n" in settings.read_text()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (settings, unit, settings.parent, tmp_path / "var/lib/ottla")}
    assert list(modes.values()) == [0o640, 0o644, 0o750, 0o750]
    settings.write_text("mine")
    good(ottla(*install, "--http", "127.0.0.1:1"))
    assert settings.read_text() == "mine" and "--http 127.0.0.1:1\n" in unit.read_text()


def test_the_first_settings_are_ones_that_a_broker_accepts(ottla: Ottla, tmp_path: Path) -> None:
    from ottla.server.process_plan import ProcessPlan
    from ottla.server.server_properties import accepted_settings, parse_properties

    good(ottla("service", "install", "--root", str(tmp_path)))
    text = (tmp_path / "etc/ottla/server.properties").read_text()
    for given in (text, re.sub(r"\n#(?! )", "\n", text)):
        accepted = accepted_settings(parse_properties(given))
        assert not accepted.warnings and not accepted.plugins
        ProcessPlan(data_dir=tmp_path, texts=accepted.texts).listeners()


def test_a_unit_of_somebody_else_is_not_replaced(ottla: Ottla, tmp_path: Path) -> None:
    unit = tmp_path / "etc/systemd/system/ottla.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    assert "was not written by ottla service install" in refused(ottla("service", "install", "--root", str(tmp_path)))
    assert unit.read_text() == "[Unit]\n"


def test_a_dry_run_shows_every_step_and_takes_none(ottla: Ottla, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "carry_out", lambda *step: pytest.fail(f"{step} was carried out"))
    shown = good(ottla("service", "install", "--dry-run", "--no-start", "--user", "broker", "--data-dir", "/srv/ottla"))
    assert shown.splitlines() == [
        "add the system user broker, unless it exists",
        "make /srv/ottla, mode 0750, owner broker:broker",
        "make /etc/ottla, mode 0750, owner root:broker",
        "write /etc/ottla/server.properties, mode 0640, unless it exists",
        "write /etc/systemd/system/ottla.service, mode 0644",
        "run systemctl daemon-reload",
        "run systemctl enable ottla.service",
    ]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--user", "root"), "a broker does not run as root"),
        (("--name", "a b"), "--name: use lower-case letters"),
        (("--data-dir", "data"), "--data-dir: use an absolute path"),
        (("--data-dir", "/srv/x y"), "--data-dir: use an absolute path"),
        (("--data-dir", "/srv/100%"), "--data-dir: use an absolute path"),
        (("--config-dir", "/home/me"), "cannot see home directories"),
        (("--http", "9644"), "--http: expected HOST:PORT"),
        (("--listen", "a b:1"), "--listen: expected HOST:PORT"),
    ],
)
def test_what_a_unit_cannot_hold_is_refused(ottla: Ottla, options: tuple[str, ...], problem: str) -> None:
    assert problem in refused(ottla("service", "install", "--print", *options), 2)


def test_a_machine_without_systemd_is_told_so(ottla: Ottla, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "BOOTED", tmp_path / "none")
    assert "this machine does not run systemd; --print shows the unit" in refused(ottla("service", "install"))


def test_a_program_that_the_user_cannot_reach_is_refused(ottla: Ottla, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "BOOTED", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(commands, "this_program", lambda: str(tmp_path / "closed" / "ottla"))
    (tmp_path / "closed").mkdir(mode=0o700)
    assert "install Ottla elsewhere: python3 -m venv /opt/ottla" in refused(ottla("service", "install"))


def test_uninstalling_removes_the_unit_and_nothing_else(ottla: Ottla, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good(ottla("service", "install", "--root", str(tmp_path)))
    monkeypatch.setattr(commands, "UNITS", tmp_path / "etc/systemd/system")
    monkeypatch.setattr(commands, "BOOTED", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(steps, "_run", lambda *command: called.append(command))
    done = ottla("service", "uninstall")
    assert good(done) and "Kept: /var/lib/ottla, /etc/ottla/server.properties" in done.stderr
    assert called == [("systemctl", "disable", "--now", "ottla.service"), ("systemctl", "daemon-reload")]
    assert not (tmp_path / "etc/systemd/system/ottla.service").exists() and (tmp_path / "etc/ottla/server.properties").exists()
    assert "there is no " in refused(ottla("service", "uninstall"))


class Probe(http.server.BaseHTTPRequestHandler):
    """A broker that is not ready."""

    def do_GET(self) -> None:
        self.send_response(503)
        self.end_headers()
        self.wfile.write(b'{"status": "not ready", "reasons": ["broker 1: starting"]}')

    def log_message(self, format: str, *args: object) -> None: ...


def test_the_status_joins_what_systemd_and_the_broker_say(ottla: Ottla, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), Probe)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    (tmp_path / "ottla.service").write_text(f"{MARK}\nExecStart=x --http 127.0.0.1:{server.server_port}\n")
    monkeypatch.setattr(commands, "UNITS", tmp_path)
    shown = (
        "LoadState=loaded\nUnitFileState=enabled\nActiveState=active\nSubState=running\nMainPID=42\nNRestarts=1\nStatusText=ready on x\n"
    )
    monkeypatch.setattr(commands, "_properties", lambda unit: dict(line.split("=", 1) for line in shown.splitlines()))
    found = documents(ottla("service", "status", "-o", "json"), "service", "status", code=1)
    server.shutdown()
    server.server_close()
    assert (found["pid"], found["restarts"], found["ready"], found["reasons"]) == (42, 1, False, ["broker 1: starting"])

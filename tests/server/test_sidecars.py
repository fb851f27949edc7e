"""`ottla serve --console --registry`: processes beside the broker that end with it."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli.serve.command import command
from ottla.server.sidecars import console_plan
from serving import Serving

pytestmark = pytest.mark.server
WAIT_S = 30.0
SASL_ONLY = tuple(
    word
    for setting in (
        "security.inter.broker.protocol=SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-256",
    )
    for word in ("--set", setting)
)


def url_of(server: Serving, name: str = "console") -> str:
    """The address that a sidecar printed."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if found := re.search(rf"ottla: {name} at (\S+)", server.logs()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(server.logs())


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def ends(url: str) -> bool:
    """Whether nothing answers any more, within some seconds."""
    deadline = time.monotonic() + WAIT_S
    while answers(url):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_console_runs_beside_the_broker_and_stops_with_it(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", arguments=["--console", "127.0.0.1:0", "--http", "127.0.0.1:0"]) as server:
        url = url_of(server)
        assert answers(url)
        with urllib.request.urlopen(f"{url}/timelines/controller", timeout=20) as page:
            assert "was elected as controller" in page.read().decode()
        assert "started the console as process" in server.logs()
    assert ends(url)
    assert "the console ended with code" not in server.logs()


def test_a_registry_runs_beside_the_broker_and_stops_with_it(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", arguments=["--registry", "127.0.0.1:0"]) as server:
        url = url_of(server, "registry")
        schema = urllib.request.Request(
            f"{url}/subjects/orders-value/versions", b'{"schema": "\\"long\\""}', {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        )
        with urllib.request.urlopen(schema, timeout=30) as answer:
            assert json.load(answer)["id"] == 1
        assert answers(url)
    assert ends(url)
    assert "the schema registry ended with code" not in server.logs()


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:8081"), ("0.0.0.0", "http://127.0.0.1:8081")])
def test_the_console_beside_a_registry_uses_it(tmp_path: Path, host: str, url: str) -> None:
    words = console_plan(("127.0.0.1", 8080), None, tmp_path, (host, 8081)).command
    assert words[words.index("--registry") + 1] == url
    assert "--registry" not in console_plan(("127.0.0.1", 8080), None, tmp_path, None).command


def test_a_console_ends_with_a_broker_that_is_killed(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", arguments=["--console", "127.0.0.1:0"]) as server:
        url = url_of(server)
        assert answers(url)
        server.kill()
        assert ends(url)


def test_a_port_in_use_refuses_the_start(tmp_path: Path, changed_logging: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(command, ["--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--console", where])
    assert result.exit_code == 1 and f"the console cannot listen on {where}: Address already in use" in result.output, result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--console", "0.0.0.0:8080"], "others reach 0.0.0.0:8080, and there is no login; use --console-login FILE"),
        (["--console", "192.0.2.7:8080"], "others reach 192.0.2.7:8080"),
        (["--console", "here"], "expected HOST:PORT"),
        (["--registry", "0.0.0.0:8081"], "others reach 0.0.0.0:8081, and there is no login; run ottla registry serve with --auth FILE"),
        (["--console-login", __file__], "it needs --console HOST:PORT"),
        (["--console", "127.0.0.1:0", "--set", "listeners=SASL_PLAINTEXT://127.0.0.1:0", *SASL_ONLY], "no listener is PLAINTEXT"),
    ],
)
def test_a_sidecar_that_could_not_work_refuses_the_start(changed_logging: None, tmp_path: Path, arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(command, ["--data-dir", str(tmp_path / "data"), *arguments])
    assert result.exit_code == 2 and told in result.output, result.output
    assert not (tmp_path / "data").exists()

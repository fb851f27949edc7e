"""The examples of docs/produce-consume.md, run unchanged in their order against a broker; and output on a terminal."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli.main import main
from serving import SOURCE, Serving

PAGE = Path(__file__).parents[2] / "docs" / "produce-consume.md"
TOPICS = ("orders", "people", "load", "sales", "bytes", "copy")
pytestmark = pytest.mark.server


def examples() -> list[tuple[str, str]]:
    """(command, printed output), in their order."""
    found = []
    for block in re.findall(r"^```\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = one.partition("\n")
            found.append((command, printed))
    return found


def run(command: str, bootstrap: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a shell pipeline; `ottla` runs in this process, all other commands in their own."""
    stages: list[list[str]] = [[]]
    for word in shlex.split(command):
        if word == "|":
            stages.append([])
        else:
            stages[-1].append(word)
    data, code, errors = b"", 0, ""
    for stage in stages:
        if stage[0] == "ottla":
            done = CliRunner().invoke(main, [*stage[1:], "-b", bootstrap], input=data)
            data, code, errors = done.stdout_bytes, done.exit_code, done.stderr
        else:
            data = subprocess.run(stage, input=data, capture_output=True, check=True, timeout=30).stdout
    return code, data.decode(), errors


def test_the_examples_of_the_page_print_the_documented_output(ottla_server: Serving) -> None:
    names = {topic: f"{topic}-{uuid.uuid4().hex[:8]}" for topic in TOPICS}
    for topic in names.values():
        assert CliRunner().invoke(main, ["topic", "create", topic, "-p", "1", "-b", ottla_server.bootstrap]).exit_code == 0
    for command, printed in examples():
        ours = re.sub(rf"(produce|consume) ({'|'.join(TOPICS)})\b", lambda found: f"{found[1]} {names[found[2]]}", command)
        code, output, errors = run(ours, ottla_server.bootstrap)
        if printed.startswith("Error: "):
            assert (code, errors) == (1, printed), command
        else:
            assert (code, output) == (0, printed), f"{command}: {errors}"


def in_a_terminal(*arguments: str, bootstrap: str, wait_for: str, stdin: bytes = b"", environment: dict[str, str] | None = None) -> str:
    """The terminal output of the command, once it contains `wait_for`."""
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR",)}
    env |= {"PYTHONPATH": str(SOURCE), "TERM": "xterm", "COLUMNS": "120"} | (environment or {})
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", *arguments, "-b", bootstrap], stdin=subprocess.PIPE, stdout=child, stderr=child, env=env
    )
    os.close(child)
    assert process.stdin is not None, "it is a pipe"
    process.stdin.write(stdin)
    process.stdin.close()
    seen, deadline = b"", time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            try:
                piece = os.read(parent, 65536)
            except OSError:
                # On Linux a closed pseudo-terminal raises OSError.
                break
            if not piece:
                break
            seen += piece
        assert process.wait(30) == 0, seen
    finally:
        process.kill()
        process.wait()
        os.close(parent)
    assert wait_for in seen.decode(), seen
    return seen.decode()


def test_a_terminal_gets_colours_and_a_summary_without_cursor_movement(ottla_server: Serving) -> None:
    topic, bootstrap = f"terminal-{uuid.uuid4().hex[:8]}", ottla_server.bootstrap
    assert CliRunner().invoke(main, ["topic", "create", topic, "-p", "1", "-b", bootstrap]).exit_code == 0
    written = in_a_terminal("produce", topic, "-K", ":", bootstrap=bootstrap, wait_for="2 records", stdin=b"k:v\nx:\x1b[2J\n")
    assert f"written to {topic}" in written
    coloured = in_a_terminal("consume", f"{topic}@:end", "--show", "key,value", bootstrap=bootstrap, wait_for="\x1b[36mk\x1b[0m\tv")
    assert "\\x1b[2J" in coloured
    assert "\x1b[2J" not in coloured
    plain = in_a_terminal(
        "consume", f"{topic}@:end", "-o", "json", bootstrap=bootstrap, wait_for='"key":"k"', environment={"NO_COLOR": "1"}
    )  # fmt: skip
    assert "\x1b[" not in plain

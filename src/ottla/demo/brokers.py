"""Runs a three-broker server as a child process during a block."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

READY = re.compile(r"^ottla: ready on (\S+)$", re.MULTILINE)
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
POLL_INTERVAL_S = 0.02


class ServerFailed(RuntimeError):
    """The server did not start. The message has the end of its output."""


@contextmanager
def serving(data_dir: Path, log_file: Path, *, brokers: int = 3, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Runs `ottla serve` on free ports. Yields the addresses, separated by commas. Raises: ServerFailed."""
    command = [sys.executable, "-m", "ottla", "serve", "--brokers", str(brokers), "--data-dir", str(data_dir), "--listen", "127.0.0.1:0"]
    for name, value in (settings or {}).items():
        command += ["--set", f"{name}={value}"]
    path = os.pathsep.join(filter(None, sys.path))
    with log_file.open("wb") as log:
        # Its own session, so that Ctrl-C does not stop the server before the pipeline.
        child = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path}, start_new_session=True)
    try:
        yield _addresses(child, log_file)
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _addresses(child: "subprocess.Popen[bytes]", log_file: Path) -> str:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        output = log_file.read_text(errors="replace")
        ready = READY.search(output)
        if ready:
            return ready[1]
        if child.poll() is not None:
            raise ServerFailed(f"the server ended with code {child.returncode}:\n{output[-2000:]}")
        time.sleep(POLL_INTERVAL_S)
    raise ServerFailed(f"the server was not ready within {READY_TIMEOUT_S:.0f} s:\n{log_file.read_text(errors='replace')[-2000:]}")

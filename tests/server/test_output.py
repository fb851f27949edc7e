"""Log files of processes."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.server.log_file import rotate

pytestmark = pytest.mark.server

#: Writes to the given stream until it is killed.
TALKS = """
import os, sys, time
from pathlib import Path
from ottla.base.log_levels import LogLevel
from ottla.server.broker_log import set_up
from ottla.server.log_file import LogFile
import logging
set_up("text", LogLevel.INFO, LogFile(Path(sys.argv[1]), bytes_max=1000))
for number in range(10**9):
    print("said", number, flush=True)
    os.write(2, b"also said\\n")
    logging.getLogger("ottla.server").info("logged")
    time.sleep(0.002)
"""


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.01)


def test_a_file_that_has_grown_is_put_aside_and_replaced_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "broker-1.log"
    assert not rotate(path, bytes_max=3)
    path.write_text("abc")
    assert not rotate(path, bytes_max=3)
    for text in ("first", "second"):
        path.write_text(text)
        assert rotate(path, bytes_max=3)
        assert (tmp_path / "broker-1.log.1").read_text() == text and not path.exists()


def test_output_of_a_process_is_rotated(tmp_path: Path) -> None:
    path, former = tmp_path / "n.log", tmp_path / "n.log.1"
    process = subprocess.Popen([sys.executable, "-c", TALKS, str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(former.exists)
        until(lambda: path.exists() and path.stat().st_size)
        path.rename(tmp_path / "taken by logrotate")
        until(lambda: path.exists() and path.stat().st_size)
    finally:
        process.kill()
        process.wait()
    said = former.read_text().splitlines()
    assert any(line.startswith("said ") for line in said) and "also said" in said
    assert any(line.endswith("INFO ottla.server: logged") for line in said)
    kept = {"n.log", "n.log.1", "n.log.2", "n.log.3", "n.log.4"}
    # It may have been killed before there was a new file.
    assert {each.name for each in tmp_path.iterdir()} <= kept | {"taken by logrotate"}

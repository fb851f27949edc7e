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
from ottla.server.log_file import redirect_output
redirect_output(Path(sys.argv[1]), bytes_max=1000, look_s=0.01)
for number in range(10**9):
    print("said", number, flush=True)
    os.write(2, b"also said\\n")
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
    # It may have been killed before there was a new file.
    assert {each.name for each in tmp_path.iterdir()} | {"n.log"} == {"n.log", "n.log.1", "taken by logrotate"}

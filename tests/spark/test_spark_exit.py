"""Reports about the end of Spark's process, and the routing of its output."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.spark.pipeline import spark_exit as module
from ottla.spark.pipeline.spark_exit import log_traceback, spark_exit, spark_output_to

OOM = "Exception in thread x java.lang.OutOfMemoryError: Java heap space\n"


@pytest.mark.parametrize(
    ("script", "log", "expected", "message"),
    [
        ("kill -9 $$", "", ("signal", None, "SIGKILL"), "was killed by signal SIGKILL, which the kernel also sends"),
        ("kill -15 $$", "", ("signal", None, "SIGTERM"), "was killed by signal SIGTERM. Its log"),
        ("exit 137", "", ("signal", None, "SIGKILL"), "SIGKILL"),
        ("exit 52", "", ("out_of_memory", 52, None), 'ran out of memory (exit code 52); give it more with "driver.memory"'),
        ("exit 3", OOM, ("out_of_memory", 3, None), "ran out of memory (exit code 3)"),
        ("kill -6 $$", OOM, ("out_of_memory", None, "SIGABRT"), "ran out of memory (signal SIGABRT)"),
        ("exit 1", "", ("exit", 1, None), "ended with exit code 1"),
    ],
)
def test_the_end_of_sparks_process_is_reported_with_its_cause(
    tmp_path: Path, script: str, log: str, expected: tuple[str, int | None, str | None], message: str
) -> None:
    file = tmp_path / "spark.log"
    # Log lines of an earlier run do not explain the end of this one.
    file.write_text(OOM)
    before = file.stat().st_size
    file.open("a").write("WARN something\n" + log)
    found = spark_exit(subprocess.Popen(["sh", "-c", script]), file, log_from=before)
    assert found is not None
    assert (found.cause, found.exit_code, found.signal) == expected
    assert found.sentence().startswith("Spark died: its Java process ") and message in found.sentence() and str(file) in found.sentence()


def test_a_running_process_has_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXIT_WAIT_S", 0.01)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as living:
        assert spark_exit(living, tmp_path / "spark.log") is None


def test_output_of_spark_libraries_goes_to_the_log_and_our_warnings_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "spark.log"
    with spark_output_to(log):
        for path in ("/x/py4j/java_gateway.py", "/x/ottla/spark/source/data_loss.py"):
            logging.getLogger().handle(logging.LogRecord("root", logging.ERROR, path, 1, f"said in {path}", None, None))
        print("Exception occurred during processing of request", file=sys.stderr)
    assert "py4j" not in capsys.readouterr().err
    assert log.read_text().splitlines() == ["said in /x/py4j/java_gateway.py", "Exception occurred during processing of request"]
    try:
        raise ValueError("whole")
    except ValueError as error:
        log_traceback(log, error)
    assert "Traceback (most recent call last)" in log.read_text()

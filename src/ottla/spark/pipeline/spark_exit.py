"""Reports how Spark's Java process ended during a run.

    exit code of the process    log has OutOfMemoryError    cause            message
    -N (signal N)               no                          signal           killed by SIGKILL; the kernel sends it when memory is short
    52, 3, or any               yes                         out_of_memory    ran out of memory; "driver.memory" of [spark]
    52 (Spark's own)            no                          out_of_memory
    any other                   no                          exit             ended with exit code N

The output of Spark's Python libraries when the connection breaks (tracebacks of several threads) goes to Spark's log, not to the terminal.
"""

import logging
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

#: The connection breaks some ms before the exit code is available.
EXIT_WAIT_S = 5.0
#: Spark's exit code for an OutOfMemoryError that nothing caught (SparkExitCode.OOM).
SPARK_OOM = 52
OUT_OF_MEMORY = b"java.lang.OutOfMemoryError"
#: How much of the log's end is searched for the cause.
READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class SparkExit:
    """The end of Spark's process."""

    cause: Literal["signal", "out_of_memory", "exit"]
    #: None if a signal ended the process.
    exit_code: int | None
    #: The signal's name, such as SIGKILL.
    signal: str | None
    log: str

    def sentence(self) -> str:
        """What happened and where the log is."""
        match self.cause:
            case "out_of_memory":
                code = f"signal {self.signal}" if self.signal else f"exit code {self.exit_code}"
                how = f'ran out of memory ({code}); give it more with "driver.memory" of [spark]'
            case "signal":
                kernel = ", which the kernel also sends when the machine is short of memory" if self.signal == "SIGKILL" else ""
                how = f"was killed by signal {self.signal}{kernel}"
            case "exit":
                how = f"ended with exit code {self.exit_code}"
        return f"Spark died: its Java process {how}. Its log is {self.log}"


def spark_exit(process: Any, log_file: Path, *, log_from: int = 0) -> SparkExit | None:
    """How `process` (a Popen) ended; None if it still runs. `log_from` is the byte at which the log of this run begins."""
    try:
        code = process.wait(EXIT_WAIT_S)
    except subprocess.TimeoutExpired:
        return None
    # A shell in front of the process reports a signal as 128 + its number.
    number = -code if code < 0 else code - 128 if code > 128 else 0
    name = signal.Signals(number).name if number in set(signal.Signals) else f"{number}" if number else None
    no_memory = code == SPARK_OOM or (name != "SIGKILL" and OUT_OF_MEMORY in _log_tail(log_file, log_from))
    cause: Literal["signal", "out_of_memory", "exit"] = "out_of_memory" if no_memory else "signal" if name else "exit"
    return SparkExit(cause, None if name else code, name, str(log_file))


def _log_tail(log_file: Path, log_from: int) -> bytes:
    try:
        with log_file.open("rb") as log:
            log.seek(max(log_from, log.seek(0, 2) - READ_BYTES))
            return log.read()
    except OSError:
        return b""


def log_traceback(log_file: Path, error: BaseException) -> None:
    """Appends the full traceback to Spark's log, if it is writable."""
    try:
        with log_file.open("a", encoding="utf-8", errors="backslashreplace") as log:
            log.write("".join(traceback.format_exception(error)))
    except OSError:
        return


def _of_spark(record: logging.LogRecord) -> bool:
    return "/py4j/" in record.pathname or "/pyspark/" in record.pathname


@contextmanager
def spark_output_to(log_file: Path) -> Iterator[None]:
    """Redirects the output of py4j and pyspark in this process to Spark's log. Our warnings stay on standard error."""
    terminal, root = sys.stderr, logging.getLogger()
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("a", buffering=1, encoding="utf-8", errors="backslashreplace") as log:
        theirs, ours = logging.StreamHandler(log), logging.StreamHandler(terminal)
        theirs.addFilter(_of_spark)
        ours.addFilter(lambda record: not _of_spark(record))
        added: list[logging.Handler] = [theirs] if root.handlers else [theirs, ours]
        for handler in added:
            root.addHandler(handler)
        sys.stderr = log
        try:
            yield
        finally:
            sys.stderr = terminal
            for handler in added:
                root.removeHandler(handler)

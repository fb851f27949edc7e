"""A standalone Spark cluster on this machine: a master and workers, each a process, on loopback addresses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ottla.spark.java import java_home

PATIENCE_S = 120.0


@contextmanager
def cluster(directory: Path, hosts: Sequence[str] = ("127.0.0.1",), *, cores: int = 2) -> Iterator[str]:
    """Run a cluster with a worker of `cores` cores on each of `hosts`; yields its address (spark://...).

    Raises: RuntimeError when a process does not start.
    """
    package = "org.apache.spark.deploy"
    with ExitStack() as ending:
        leader = (f"{package}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        address = ending.enter_context(_running(directory / "master.log", r"Starting Spark master at (spark://\S+)", "127.0.0.1", *leader))
        for host in hosts:
            ending.enter_context(worker(directory, address, host, cores=cores))
        yield address


@contextmanager
def worker(directory: Path, master: str, host: str, *, cores: int, name: str = "") -> Iterator[None]:
    """Run a worker of the cluster at `master`; at the end it and its executors are killed (-9), as with their machine.

    `name` of its log and directory: the host's by default. Raises: RuntimeError when it does not start.
    """
    name = name or host
    follower = ("org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", str(cores), "--memory", "1g", "--webui-port", "0")
    work = ("--work-dir", str(directory / f"work-{name}"), master)
    with _running(directory / f"worker-{name}.log", r"Successfully registered with master (\S+)", host, *follower, *work):
        yield


class WorkerSet:
    """Workers of one core on loopback that can be killed and started again, with their master."""

    def __init__(self, directory: Path, count: int = 2) -> None:
        self._directory = directory
        self._ending = ExitStack()
        self.address = ""
        self._workers: list[ExitStack] = [ExitStack() for _ in range(count)]

    def __enter__(self) -> WorkerSet:
        with ExitStack() as begun:
            begun.callback(self.close)
            self.address = self._ending.enter_context(cluster(self._directory, ()))
            for number in range(len(self._workers)):
                self.start(number)
            begun.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._workers)

    def start(self, number: int) -> None:
        """Start a worker that is not running. Raises: RuntimeError when it does not start."""
        self._workers[number].enter_context(worker(self._directory, self.address, "127.0.0.1", cores=1, name=str(number)))

    def kill(self, number: int) -> None:
        """kill -9 of a worker and its executors."""
        self._workers[number].close()

    def close(self) -> None:
        for one in self._workers:
            one.close()
        self._ending.close()


@contextmanager
def _running(log: Path, pattern: str, host: str, *arguments: str) -> Iterator[str]:
    """Run a Spark process; yields the first group of `pattern` in its output when it is ready."""
    import pyspark

    home = Path(pyspark.__file__).parent
    # The cluster must not inherit this process's modules: the driver sends them to the executors.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON"))}
    environment |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": host, "JAVA_HOME": str(java_home())}
    with log.open("wb") as said:
        child = subprocess.Popen(
            [home / "bin" / "spark-class", *arguments], stdout=said, stderr=said, env=environment, start_new_session=True
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{arguments[0]} does not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield found[1]
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()

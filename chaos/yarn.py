"""A Hadoop cluster on this machine: HDFS and YARN, each daemon a process on loopback.

    NameNode, DataNode       the default file system: what Spark ships with an application, checkpoints
    ResourceManager          gives containers
    NodeManager, several     run containers as processes, which end with their NodeManager

The daemons are Hadoop's own, run from a directory of jars, which Maven fills:

    <dependency>             org.apache.hadoop:hadoop-minicluster, in the version of `pyspark/jars/hadoop-client-api-*.jar`
    mvn dependency:copy-dependencies -DoutputDirectory=DIR
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.spark.java import java_home

PATIENCE_S = 120.0
HOST = "127.0.0.1"
#: The directory of Hadoop's jars.
JARS = "OTTLA_TEST_HADOOP"
OPENED = ("java.lang", "java.net", "java.util", "java.io", "java.nio", "java.util.concurrent", "sun.nio.ch")
#: The default one needs a file of queues.
FIFO = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
LOG4J = """log4j.rootLogger=INFO,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c: %m%n
"""


@dataclass(frozen=True)
class YarnCluster:
    """A running cluster."""

    #: For HADOOP_CONF_DIR and YARN_CONF_DIR.
    configuration: Path
    #: The ResourceManager's REST API.
    api: str
    #: Launch scripts and logs of containers are below; they stay until the cluster ends.
    nodes: Path
    jars: Path

    def metrics(self) -> dict[str, Any]:
        """Counts of nodes, applications and containers. Raises: OSError."""
        with urllib.request.urlopen(f"{self.api}/ws/v1/cluster/metrics", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)["clusterMetrics"]
            return found

    def applications(self) -> list[dict[str, Any]]:
        """Raises: OSError."""
        with urllib.request.urlopen(f"{self.api}/ws/v1/cluster/apps", timeout=10) as answer:
            return list((json.load(answer)["apps"] or {"app": []})["app"])

    def put(self, file: Path, name: str) -> None:
        """Copies a local file into HDFS. Raises: subprocess.CalledProcessError."""
        command = [*_java(self.configuration, self.jars), "org.apache.hadoop.fs.FsShell", "-put", "-f", str(file), name]
        subprocess.run(command, check=True, capture_output=True, env=_environment())


@contextmanager
def cluster(directory: Path, jars: Path, *, nodes: int = 2, memory_mb: int = 4096) -> Iterator[YarnCluster]:
    """Run a cluster with `nodes` NodeManagers of `memory_mb` each. Raises: RuntimeError when it does not start."""
    names = ("namenode", "scheduler", "tracker", "admin", "web", "address")
    ports = {name: _free_port() for name in names}
    configuration = directory / "conf"
    _configure(configuration, directory, ports, memory_mb)
    with ExitStack() as ending:
        hdfs, servers = "org.apache.hadoop.hdfs.server", "org.apache.hadoop.yarn.server"
        command = [*_java(configuration, jars), f"{hdfs}.namenode.NameNode", "-format", "-nonInteractive"]
        subprocess.run(command, check=True, capture_output=True, env=_environment())
        ending.enter_context(_daemon(directory, "namenode", configuration, jars, f"{hdfs}.namenode.NameNode"))
        ending.enter_context(_daemon(directory, "datanode", configuration, jars, f"{hdfs}.datanode.DataNode"))
        manager = f"{servers}.resourcemanager.ResourceManager"
        ending.enter_context(_daemon(directory, "resourcemanager", configuration, jars, manager))
        for number in range(nodes):
            name, own = f"node-{number}", directory / f"conf-{number}"
            places = {f"yarn.nodemanager.{kind}-dirs": str(directory / "nodes" / name / kind) for kind in ("local", "log")}
            _configure(own, directory, ports, memory_mb, places)
            ending.enter_context(_daemon(directory, name, own, jars, f"{servers}.nodemanager.NodeManager"))
        started = YarnCluster(configuration, f"http://{HOST}:{ports['web']}", directory / "nodes", jars)
        _wait_ready(started, nodes, directory)
        yield started


def _configure(place: Path, directory: Path, ports: Mapping[str, int], memory_mb: int, more: Mapping[str, str] | None = None) -> None:
    """Write the files of a configuration directory."""
    at = {name: f"{HOST}:{port}" for name, port in ports.items()}
    free, manager, node = f"{HOST}:0", "yarn.resourcemanager", "yarn.nodemanager"
    core = {"fs.defaultFS": f"hdfs://{at['namenode']}", "hadoop.tmp.dir": str(directory / "tmp")}
    hdfs = {
        "dfs.replication": "1", "dfs.namenode.http-address": free, "dfs.namenode.name.dir": f"file://{directory}/name",
        "dfs.datanode.address": free, "dfs.datanode.http.address": free, "dfs.datanode.ipc.address": free,
        "dfs.datanode.data.dir": f"file://{directory}/data",
    }  # fmt: skip
    yarn = {
        f"{manager}.hostname": HOST, f"{manager}.address": at["address"], f"{manager}.scheduler.address": at["scheduler"],
        f"{manager}.resource-tracker.address": at["tracker"], f"{manager}.admin.address": at["admin"],
        f"{manager}.webapp.address": at["web"], f"{manager}.scheduler.class": FIFO,
        "yarn.scheduler.minimum-allocation-mb": "256", f"{node}.hostname": HOST, f"{node}.resource.memory-mb": str(memory_mb),
        f"{node}.resource.cpu-vcores": "4", f"{node}.vmem-check-enabled": "false", f"{node}.address": free,
        f"{node}.localizer.address": free, f"{node}.collector-service.address": free, f"{node}.webapp.address": free,
        f"{node}.delete.debug-delay-sec": "3600", f"{node}.env-whitelist": "JAVA_HOME,PATH,LANG,SPARK_LOCAL_IP",
        f"{node}.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.0",
    }  # fmt: skip
    place.mkdir()
    for name, values in (("core", core), ("hdfs", hdfs), ("yarn", yarn | dict(more or {}))):
        lines = (f"<property><name>{key}</name><value>{value}</value></property>" for key, value in values.items())
        (place / f"{name}-site.xml").write_text("\n".join(["<configuration>", *lines, "</configuration>\n"]))
    (place / "log4j.properties").write_text(LOG4J)


def _java(configuration: Path, jars: Path) -> list[str]:
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    return [str(java_home() / "bin" / "java"), "-Xmx512m", "-XX:TieredStopAtLevel=1", *opened, "-cp", f"{configuration}:{jars}/*"]


def _environment() -> dict[str, str]:
    """Without this process's modules, which containers must not inherit."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON", "SPARK", "HADOOP"))}
    return kept | {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": HOST}


@contextmanager
def _daemon(directory: Path, name: str, configuration: Path, jars: Path, program: str) -> Iterator[None]:
    with (directory / f"{name}.log").open("wb") as said:
        child = subprocess.Popen(
            [*_java(configuration, jars), program], stdout=said, stderr=said, env=_environment(), cwd=directory, start_new_session=True
        )
    try:
        yield
    finally:
        # A NodeManager kills its containers.
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(PATIENCE_S / 4)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def _wait_ready(cluster: YarnCluster, nodes: int, directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError):
            if cluster.metrics()["activeNodes"] == nodes:
                return
        if time.monotonic() > deadline:
            text = (directory / "resourcemanager.log").read_text(errors="replace")
            raise RuntimeError(f"YARN does not start: {text[-2000:]}")
        time.sleep(0.1)

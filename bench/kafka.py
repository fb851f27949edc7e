"""A stock Apache Kafka 4.x for comparison: fetched with Maven, one KRaft node or several, with the settings of its own distribution.

`python -m bench.kafka --port 0` runs one by hand; it prints `kafka: ready on 127.0.0.1:PORT` and stops on SIGTERM or Ctrl-C.

Stock means: heap of 1 GiB, the G1 settings and the GC and server logs of `kafka-server-start.sh`, the thread counts and socket
buffers of `server.properties`. Only the addresses and the data directory differ. Source: the 4.x distribution's own files.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import maven
from bench.maven import Java, PeerUnavailable
from bench.process import ServerProcess

#: The distribution has a log4j binding; the Maven artifact does not name one.
LOG_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:{core}"
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

PROPERTIES = """process.roles=broker,controller
node.id={node}
controller.quorum.bootstrap.servers={controllers}
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
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={min_isr}
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={min_isr}
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


@dataclass(frozen=True, slots=True)
class Distribution:
    """Apache Kafka on disk, and its Java."""

    version: str
    lib: Path
    java: Java
    #: Options of the JVMs of a node, beside those of the distribution's scripts.
    options: tuple[str, ...] = ()


def distribution() -> Distribution:
    """The cached release, or the newest complete 4.x that Maven can fetch. Raises PeerUnavailable."""
    java = maven.java()
    version, lib = maven.newest("kafka", "org.apache.kafka", "kafka_2.13", pattern=r"4\.\d+\.\d+", also=LOG_BINDING)
    return Distribution(version, lib, java)


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Addresses and data directory of one node."""

    data_dir: Path
    port: int
    controller_port: int
    node: int = 1
    #: HOST:PORT of every node's controller, by node.
    controllers: tuple[str, ...] = ()


@contextlib.contextmanager
def running(
    found: Distribution, data_dir: Path, *, port: int = 0, settings: dict[str, str] | None = None
) -> Iterator[tuple[str, ServerProcess]]:
    """Format `data_dir` if it is new, start Kafka on it, and yield the bootstrap address and the process."""
    place = NodeAddress(data_dir, port or _free_port(), _free_port())
    fresh = not (data_dir / "logs" / "meta.properties").exists()
    command = prepared(found, place, settings or {})
    if fresh:
        # 4.x requires --standalone when no voters are listed, as in the shipped settings.
        _format(found, place, cluster_id=_new_id(), voters=["--standalone"])
    with ServerProcess(command, log_path=data_dir / "server.log", ready=READY, port=place.port) as process:
        yield f"127.0.0.1:{place.port}", process


def places(data_dir: Path, nodes: int) -> list[NodeAddress]:
    """Nodes that are broker and controller each, as in the distribution's quick start, each with a directory below `data_dir`."""
    controllers = [_free_port() for _ in range(nodes)]
    addresses = tuple(f"127.0.0.1:{port}" for port in controllers)
    return [
        NodeAddress(data_dir / f"node-{node}", _free_port(), controller, node, addresses)
        for node, controller in enumerate(controllers, start=1)
    ]


def formatted(found: Distribution, cluster: Sequence[NodeAddress], settings: dict[str, str]) -> list[list[str]]:
    """Format new nodes as one cluster; returns the command of each. Raises PeerUnavailable."""
    cluster_id = _new_id()
    voters = ",".join(f"{place.node}@127.0.0.1:{place.controller_port}:{_new_id()}" for place in cluster)
    commands = [prepared(found, place, settings) for place in cluster]
    for place in cluster:
        _format(found, place, cluster_id=cluster_id, voters=["--initial-controllers", voters])
    return commands


def prepared(found: Distribution, place: NodeAddress, settings: dict[str, str]) -> list[str]:
    """Write a node's settings; returns its start command."""
    nodes = len(place.controllers) or 1
    text = PROPERTIES.format(
        node=place.node,
        port=place.port,
        controller_port=place.controller_port,
        controllers=",".join(place.controllers) or f"127.0.0.1:{place.controller_port}",
        data_dir=place.data_dir / "logs",
        replicas=min(nodes, 3),
        min_isr=min(nodes, 2),
    )
    place.data_dir.mkdir(parents=True, exist_ok=True)
    (place.data_dir / "server.properties").write_text(text + "".join(f"{key}={value}\n" for key, value in settings.items()))
    logging = place.data_dir / "log4j2.properties"
    logging.write_text(LOGGING)
    gc_log = f"-Xlog:gc*:file={place.data_dir}/gc.log:time,tags:filecount=10,filesize=100M"
    java = [*HEAP, *PERFORMANCE, *JMX, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{found.lib}/*"]
    return [found.java.path, gc_log, *found.options, *java, "kafka.Kafka", str(place.data_dir / "server.properties")]


def _new_id() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def _format(found: Distribution, place: NodeAddress, *, cluster_id: str, voters: list[str]) -> None:
    config = str(place.data_dir / "server.properties")
    arguments = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", config, *voters]
    # A node's JVM writes an archive of its classes, this one does not.
    options = [option for option in found.options if not option.startswith("-XX:ArchiveClassesAtExit")]
    command = [found.java.path, "-Xmx256M", *options, "-cp", f"{found.lib}/*", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise PeerUnavailable(f"Apache Kafka {found.version} could not format its storage:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


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
        print(f"kafka: Apache Kafka {found.version} on Java {found.java.version}", flush=True)
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

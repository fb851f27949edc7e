"""CPU instructions of the server per request, counted by valgrind, so that other work on the machine does not change the figures.

    python -m bench.instructions build/before build/after

Each argument is a directory with an installed package (`pip install --target`). The difference of two runs of one server, the second
with more requests, leaves out the start and the stop. Requests: Produce of one batch of 1 KiB with acks=1, Fetch of one such batch,
Metadata of one topic; one connection, one request in flight.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import frames, probe
from bench.process import ServerProcess
from bench.servers import OTTLA_READY, ROOT

TOPIC = "counted"
REQUESTS = ("produce", "fetch", "metadata")
COLLECTED = re.compile(r"Collected : (\d+)")
WARM_UP = 200
#: The server starts about fifty times slower than alone.
START_TIMEOUT_S = 600
ADMIN_TIMEOUT_S = 300


def frame_of(request: str) -> bytearray:
    match request:
        case "produce":
            return frames.produce_frame(TOPIC, [0], frames.batch_of(100, 1024).data, acks=1)
        case "fetch":
            return frames.fetch_frame(TOPIC, {0: 0}, partition_bytes_max=1024)
        case _:
            return frames.metadata_frame(TOPIC)


def asked(sock: socket.socket, frame: bytearray, number: int) -> memoryview:
    frames.stamp(frame, number)
    sock.sendall(frame)
    reply = probe.receive(sock)
    if struct.unpack_from(">i", reply) != (number,):
        raise frames.RequestFailed(f"a response has another correlation id than {number}")
    return memoryview(reply)


def send(address: tuple[str, int], request: str, count: int) -> None:
    """A topic with one batch, then `count` requests; each response is checked."""
    admin = AdminClient({"bootstrap.servers": f"{address[0]}:{address[1]}", "socket.timeout.ms": ADMIN_TIMEOUT_S * 1000})
    admin.create_topics([NewTopic(TOPIC, 1, 1)], request_timeout=ADMIN_TIMEOUT_S)[TOPIC].result(ADMIN_TIMEOUT_S)
    with socket.create_connection(address, timeout=START_TIMEOUT_S) as sock:
        # On disk, so that every Fetch is answered at once.
        written = frames.produce_frame(TOPIC, [0], frames.batch_of(100, 1024).data, acks=-1)
        frames.check_produced(asked(sock, written, 1), TOPIC, 1)
        frame = frame_of(request)
        for number in range(2, 2 + count):
            reply = asked(sock, frame, number)
            match request:
                case "produce":
                    frames.check_produced(reply, TOPIC, 1)
                case "fetch":
                    if frames.fetched(reply, {0: 0})[0].records == 0:
                        raise frames.RequestFailed("Fetch was answered without records")
                case _:
                    frames.check_metadata(reply)


def instructions(package: Path, request: str, count: int) -> int:
    """Instructions of one server from its start to its end."""
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as scratch:
        log = Path(scratch) / "valgrind.log"
        valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--log-file={log}"]
        serve = [sys.executable, "-m", "ottla", "serve", "--data-dir", f"{scratch}/data", "--listen", "127.0.0.1:0"]
        env = {**os.environ, "PYTHONPATH": str(package.resolve()), "PYTHONHASHSEED": "0"}
        with ServerProcess(
            valgrind + serve, log_path=Path(scratch) / "server.log", ready=OTTLA_READY, env=env, timeout_s=START_TIMEOUT_S
        ) as process:
            host, _, port = process.ready_match.group(1).rpartition(":")
            send((host, int(port)), request, count)
            process.stop(timeout_s=START_TIMEOUT_S)
        return int(COLLECTED.findall(log.read_text())[-1])


def compiled(package: Path) -> bool:
    found = subprocess.run(
        [sys.executable, "-c", "import ottla.broker.node as node; print(node.__file__)"],
        env={**os.environ, "PYTHONPATH": str(package.resolve())},
        cwd=package,
        capture_output=True,
        text=True,
        check=True,
    )
    return not found.stdout.strip().endswith(".py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", type=Path, default=[ROOT / "build" / "installed"])
    parser.add_argument("--requests", default=",".join(REQUESTS), help="some of produce,fetch,metadata")
    parser.add_argument("--count", type=int, default=2_000)
    options = parser.parse_args()
    for request in options.requests.split(","):
        if request not in REQUESTS:
            parser.error(f"--requests has {request}; give some of {','.join(REQUESTS)}")
        found = []
        for package in options.packages:
            few, many = (instructions(package, request, count) for count in (WARM_UP, WARM_UP + options.count))
            found.append((many - few) / options.count)
            kind = "" if compiled(package) else " (not compiled)"
            print(
                f"{request}: {found[-1]:,.0f} instructions per request in {package}{kind}, {found[-1] / found[0]:.3f} of the first",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""A load runs in its own process, so its CPU is never counted as the server's.

`run(kind, **arguments)` starts `python -m bench.load '{"kind": ...}'` and returns the JSON object that it prints. The load itself reads the
server's CPU clock at both ends of its measured window, without connecting, warm-up and shutdown.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 300
#: kind -> module and function. Imported on demand, so each load process imports only what it uses.
KINDS = {
    "raw_produce": "bench.loads.raw:produce",
    "raw_fetch": "bench.loads.raw:fetch",
    "librdkafka_produce": "bench.loads.librdkafka:produce",
    "librdkafka_consume": "bench.loads.librdkafka:consume",
    "client_consume": "bench.loads.client_consume:consume",
    "client_idle": "bench.loads.client_latency:idle",
    "client_latency": "bench.loads.client_latency:latency",
    "client_produce": "bench.loads.clients:produce",
    "table_send": "bench.loads.arrow:send",
    "table_read": "bench.loads.arrow:read",
    "round_trips": "bench.loads.requests:round_trips",
    "steady": "bench.loads.requests:steady",
    "failover": "bench.loads.failover:failover",
    "rebalance": "bench.loads.groups:rebalance",
    "transactional_produce": "bench.loads.transactions:produce",
    "transaction_commits": "bench.loads.transactions:commit_latency",
    "transactional_ids": "bench.loads.transactions:many_ids",
    "consume_process_produce": "bench.loads.transactions:process",
    "spark_read": "bench.loads.spark:read",
    "spark_stream": "bench.loads.spark:stream",
    "spark_batches": "bench.loads.spark:batches",
    "spark_write": "bench.loads.spark:write",
}


class LoadFailed(RuntimeError):
    """A load process ended with an error; the message is its last output line."""


class Window:
    """The measured part of a load: wall time, the CPU seconds of the server, or of all servers of a cluster, and the load's own."""

    def __init__(self, server_pid: int | Sequence[int]) -> None:
        pids = [server_pid] if isinstance(server_pid, int) else server_pid
        self._servers = [psutil.Process(pid) for pid in pids]
        self._began = self._server_cpu = self._own_cpu = 0.0

    def open(self) -> float:
        """Start the window; returns the time of `time.perf_counter()`."""
        self._server_cpu, self._own_cpu = self._cpu_s(), time.process_time()
        self._began = time.perf_counter()
        return self._began

    def close(self) -> dict[str, float]:
        seconds = time.perf_counter() - self._began
        return {
            "seconds": seconds,
            "server_cpu_s": self._cpu_s() - self._server_cpu,
            "load_cpu_s": time.process_time() - self._own_cpu,
        }

    def _cpu_s(self) -> float:
        return sum(map(_cpu_s, self._servers))


def run(kind: str, **arguments: Any) -> dict[str, Any]:
    """Run one load. Raises LoadFailed."""
    command = [sys.executable, "-m", "bench.load", json.dumps({"kind": kind, **arguments})]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"{kind} did not finish within {TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise LoadFailed(f"{kind}: {lines[-1][:300] if lines else f'ended with code {done.returncode}'}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _cpu_s(process: psutil.Process) -> float:
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        times = member.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def main() -> int:
    arguments = json.loads(sys.argv[1])
    module, _, function = KINDS[arguments.pop("kind")].partition(":")
    print(json.dumps(getattr(importlib.import_module(module), function)(**arguments)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Live telemetry of the machine: one record per measurement, keyed by the measured object.

key    process/1234        value  {"at": "...", "kind": "process", "name": "python[1234]", "metric": "cpu_percent", "value": 12.5}
"""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psutil

#: Gives ten samples in each window of five seconds.
SAMPLE_S = 0.5
MIB = 1024 * 1024

Measurement = tuple[str, str, str, float]


def telemetry(seconds: float) -> Iterator[tuple[bytes, bytes]]:
    """Measures for about `seconds` and yields each record."""
    began = time.monotonic()
    sampler = Sampler()
    sample = 0
    while (now := time.monotonic()) < began + seconds:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        for kind, name, metric, value in sampler.measurements(now):
            record = {"at": at, "kind": kind, "name": name, "metric": metric, "value": round(value, 3)}
            yield f"{kind}/{name}".encode(), json.dumps(record).encode()
        sample += 1
        time.sleep(max(0.0, began + sample * SAMPLE_S - time.monotonic()))


class Sampler:
    """Keeps the previous sample, from which it computes rates of disk and network counters."""

    def __init__(self) -> None:
        self.before: dict[tuple[str, str, str], float] = {}
        self.before_s = 0.0

    def measurements(self, now_s: float) -> Iterator[Measurement]:
        """All measurements of one sample: (kind, name, metric, value)."""
        for number, percent in enumerate(psutil.cpu_percent(percpu=True)):
            yield "cpu", f"cpu{number}", "busy_percent", percent
        memory = psutil.virtual_memory()
        yield "memory", "ram", "used_percent", memory.percent
        yield "memory", "ram", "available_mib", memory.available / MIB
        yield from self._rates(now_s)
        for process in psutil.process_iter(["pid", "name", "cpu_percent", "memory_info"]):
            info = process.info
            name = f"{info['name']}[{info['pid']}]"
            if info["cpu_percent"] is not None:
                yield "process", name, "cpu_percent", info["cpu_percent"]
            if info["memory_info"] is not None:
                yield "process", name, "rss_mib", info["memory_info"].rss / MIB

    def _rates(self, now_s: float) -> Iterator[Measurement]:
        elapsed, self.before_s = now_s - self.before_s, now_s
        for found in _counters():
            *names, value = found
            key: Any = tuple(names)
            before = self.before.get(key)
            self.before[key] = value
            if before is not None and value >= before:
                yield (*key, (value - before) / elapsed / 1024)


def _counters() -> Iterator[Measurement]:
    for name, disk in (psutil.disk_io_counters(perdisk=True) or {}).items():
        if name.startswith(("loop", "ram")):
            continue
        yield "disk", name, "read_kib_per_s", disk.read_bytes
        yield "disk", name, "write_kib_per_s", disk.write_bytes
    for name, net in psutil.net_io_counters(pernic=True).items():
        yield "network", name, "received_kib_per_s", net.bytes_recv
        yield "network", name, "sent_kib_per_s", net.bytes_sent

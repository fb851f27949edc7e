"""Python clients compared on one server: a loop around `send()`, a loop over records, the latency of records at
a steady rate, the CPU of an idle consumer, and the import time of a client.

These cases measure the client: compare its own CPU, which does not depend on the server and other load.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from bench.cases import Case, CaseContext, Figure, Measurement, Scale
from bench.loads.client_consume import CLIENTS as READERS
from bench.loads.client_latency import CLIENTS as BOTH
from bench.loads.client_latency import IDLE
from bench.loads.clients import CLIENTS

RATES = (Figure("rate", "k records/s", True, 0), Figure("client CPU", "µs/record", False), Figure("server CPU", "µs/record", False))
LATENCIES = (Figure("p50", "ms", False), Figure("p99", "ms", False), Figure("client CPU", "% of a core", False, 1))
IDLE_CPU = (Figure("client CPU", "% of a core", False, 2),)
IMPORT = (Figure("import", "ms", False, 0),)
PARTITIONS = 3
#: Records a second of the latency cases, their duration, and the duration of the idle case.
RATE, LATENCY_S, IDLE_S = 1000, 10.0, 10.0
QUICK_S = 3.0
MODULES = {
    "ottla": "import ottla",
    "confluent-kafka": "import confluent_kafka",
    "aiokafka": "import aiokafka",
    "kafka-python": "import kafka",
}
#: acks=all is not the subject, so one server of each kind is used, without fsync.
SERVERS = frozenset({"ottla cached", "kafka"})


def cases(scale: Scale) -> list[Case]:
    sizes = (100, 1024)
    return [
        *(_produce(client, value_size) for value_size in sizes for client in CLIENTS),
        *(_consume(client, value_size) for value_size in sizes for client in READERS),
        *(_latency(client) for client in BOTH),
        *(_idle(client) for client in IDLE),
        *(_import(client) for client in MODULES),
    ]


def _produce(client: str, value_size: int) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic = context.create_topic(PARTITIONS)
        os.sync()
        try:
            return _figures(
                context.load(
                    "client_produce", topic, client=client, value_size=value_size, seconds=scale.seconds, bytes_max=scale.bytes_max
                )
            )
        finally:
            context.delete_topic(topic)

    return Case("produce, client", f"{_size(value_size)}, {client}", RATES, run, SERVERS)


def _consume(client: str, value_size: int) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic, records = context.filled_topic(value_size, PARTITIONS, scale.fill_bytes)
        shape = {"partitions": PARTITIONS, "records": records}
        return _figures(context.load("client_consume", topic, client=client, **shape, seconds=scale.seconds))

    return Case("consume, client", f"{_size(value_size)}, {client}", RATES, run, SERVERS)


def _latency(client: str) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic = context.create_topic(1)
        seconds = QUICK_S if scale.name == "quick" else LATENCY_S
        try:
            detail = context.load("client_latency", topic, client=client, value_size=100, rate=RATE, seconds=seconds)
        finally:
            context.delete_topic(topic)
        return Measurement(
            {"p50": detail["p50"], "p99": detail["p99"], "client CPU": detail["load_cpu_s"] / detail["seconds"] * 100}, detail
        )

    return Case("latency, client", f"1,000 records/s of 100 B, {client}", LATENCIES, run, SERVERS)


def _idle(client: str) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic = context.create_topic(1)
        try:
            detail = context.load("client_idle", topic, client=client, seconds=QUICK_S if scale.name == "quick" else IDLE_S)
        finally:
            context.delete_topic(topic)
        return Measurement({"client CPU": detail["load_cpu_s"] / detail["seconds"] * 100}, detail)

    return Case("idle, client", f"a connected consumer, {client}", IDLE_CPU, run, SERVERS)


def _import(client: str) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        bare, whole = (min(_until_exit_s(code) for _ in range(5)) for code in ("pass", MODULES[client]))
        return Measurement({"import": (whole - bare) * 1e3}, {"bare_s": bare, "whole_s": whole})

    return Case("import, client", client, IMPORT, run, frozenset({"ottla cached"}))


def _until_exit_s(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def _figures(detail: dict[str, Any]) -> Measurement:
    figures = {
        "rate": detail["records"] / detail["seconds"] / 1e3,
        "client CPU": detail["load_cpu_s"] / detail["records"] * 1e6,
        "server CPU": detail["server_cpu_s"] / detail["records"] * 1e6,
    }
    return Measurement(figures, detail)


def _size(value_size: int) -> str:
    return f"{value_size} B" if value_size < 1024 else f"{value_size // 1024} KiB"

"""Python clients side by side on one server: a loop around `send()`, and one over records.

The client's own CPU is the figure to compare: it is the client that is measured, whatever the server and the machine do meanwhile.
"""

from __future__ import annotations

import os
from typing import Any

from bench.cases import Case, Figure, Measured, Scale, Stage
from bench.loads.client_consume import CLIENTS as READERS
from bench.loads.clients import CLIENTS

RATES = (Figure("rate", "k records/s", True, 0), Figure("client CPU", "µs/record", False), Figure("server CPU", "µs/record", False))
PARTITIONS = 3
#: One server of each make: what it promises to acks=all is not the subject, so the one that is not held up by a disk.
SERVERS = frozenset({"ottla cached", "kafka"})


def cases(scale: Scale) -> list[Case]:
    sizes = (100, 1024)
    return [
        *(_produce(client, value_size) for value_size in sizes for client in CLIENTS),
        *(_consume(client, value_size) for value_size in sizes for client in READERS),
    ]


def _produce(client: str, value_size: int) -> Case:
    def run(stage: Stage, scale: Scale) -> Measured:
        topic = stage.create_topic(PARTITIONS)
        os.sync()
        try:
            return _figures(
                stage.load("client_produce", topic, client=client, value_size=value_size, seconds=scale.seconds, bytes_max=scale.bytes_max)
            )
        finally:
            stage.delete_topic(topic)

    return Case("produce, client", f"{_size(value_size)}, {client}", RATES, run, SERVERS)


def _consume(client: str, value_size: int) -> Case:
    def run(stage: Stage, scale: Scale) -> Measured:
        topic, records = stage.filled_topic(value_size, PARTITIONS, scale.fill_bytes)
        shape = {"partitions": PARTITIONS, "records": records}
        return _figures(stage.load("client_consume", topic, client=client, **shape, seconds=scale.seconds))

    return Case("consume, client", f"{_size(value_size)}, {client}", RATES, run, SERVERS)


def _figures(detail: dict[str, Any]) -> Measured:
    figures = {
        "rate": detail["records"] / detail["seconds"] / 1e3,
        "client CPU": detail["load_cpu_s"] / detail["records"] * 1e6,
        "server CPU": detail["server_cpu_s"] / detail["records"] * 1e6,
    }
    return Measured(figures, detail)


def _size(value_size: int) -> str:
    return f"{value_size} B" if value_size < 1024 else f"{value_size // 1024} KiB"

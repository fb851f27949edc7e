"""Producing record by record with each Python client, with defaults except for acks=all: the cost of a loop around `send()`.

One call per record, as in applications, without lists. The clock stops when the last record is acknowledged. The
process's own CPU is the figure that other load does not distort: it includes the client's threads, and those of librdkafka.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

from bench.load import Window

#: Records between two checks of the clock.
STRIDE = 1000
FLUSH_TIMEOUT_S = 60


def produce(host: str, port: int, pid: int, topic: str, *, client: str, value_size: int, seconds: float, bytes_max: int) -> dict[str, Any]:
    """Produce with `client`, a name of `CLIENTS`, for some seconds."""
    value = random.Random(7).randbytes(value_size)
    measured = CLIENTS[client](f"{host}:{port}", topic, value, ClientRun(pid, seconds, max(STRIDE, bytes_max // value_size)))
    return {**measured, "bytes": measured["records"] * value_size}


class ClientRun:
    """One client's run: a short warm-up, the measured window, and the end of each."""

    def __init__(self, pid: int, seconds: float, records_max: int) -> None:
        self._window = Window(pid)
        self._seconds = seconds
        self._records_max = records_max
        self._until = time.perf_counter() + 0.5
        self.records = 0

    def more(self) -> bool:
        """Whether another stride follows; counts it."""
        if time.perf_counter() >= self._until or self.records >= self._records_max:
            return False
        self.records += STRIDE
        return True

    def begin(self) -> None:
        """Called after the warm-up, when everything is acknowledged."""
        self.records = 0
        self._until = self._window.open() + self._seconds

    def over(self) -> dict[str, Any]:
        """Called when everything is acknowledged."""
        return {**self._window.close(), "records": self.records}


def ottla_blocking(bootstrap: str, topic: str, value: bytes, turn: ClientRun) -> dict[str, Any]:
    from ottla import Producer

    with Producer(bootstrap_servers=bootstrap) as producer:
        return _blocking(turn, lambda: producer.send(topic, value), producer.flush)


def ottla_asyncio(bootstrap: str, topic: str, value: bytes, turn: ClientRun) -> dict[str, Any]:
    from ottla.aio import Producer

    async def main() -> dict[str, Any]:
        async with Producer(bootstrap_servers=bootstrap) as producer:
            return await _asyncio(turn, lambda: producer.send(topic, value), producer.flush)

    return asyncio.run(main())


def confluent(bootstrap: str, topic: str, value: bytes, turn: ClientRun) -> dict[str, Any]:
    from confluent_kafka import Producer

    failures: list[str] = []
    # Reports of success would cost a Python call per record; they are not used.
    settings = {"bootstrap.servers": bootstrap, "acks": "all", "delivery.report.only.error": True}
    producer = Producer({**settings, "on_delivery": lambda error, _: failures.append(str(error)) if error else None})

    def send() -> None:
        while True:
            try:
                producer.produce(topic, value)
                return
            except BufferError:
                producer.poll(0.005)

    found = _blocking(turn, send, lambda: producer.flush(FLUSH_TIMEOUT_S), lambda: producer.poll(0))
    if failures:
        raise RuntimeError(f"{len(failures)} messages failed: {failures[0]}")
    return found


def kafka_python(bootstrap: str, topic: str, value: bytes, turn: ClientRun) -> dict[str, Any]:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    try:
        return _blocking(turn, lambda: producer.send(topic, value), producer.flush)
    finally:
        producer.close()


def aiokafka(bootstrap: str, topic: str, value: bytes, turn: ClientRun) -> dict[str, Any]:
    from aiokafka import AIOKafkaProducer

    async def main() -> dict[str, Any]:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
        await producer.start()
        try:
            return await _asyncio(turn, lambda: producer.send(topic, value), producer.flush)
        finally:
            await producer.stop()

    return asyncio.run(main())


def _blocking(
    turn: ClientRun, send: Callable[[], Any], flush: Callable[[], Any], between: Callable[[], Any] = lambda: None
) -> dict[str, Any]:
    for measured in (False, True):
        if measured:
            turn.begin()
        while turn.more():
            for _ in range(STRIDE):
                send()
            between()
        flush()
    return turn.over()


async def _asyncio(turn: ClientRun, send: Callable[[], Any], flush: Callable[[], Any]) -> dict[str, Any]:
    for measured in (False, True):
        if measured:
            turn.begin()
        while turn.more():
            for _ in range(STRIDE):
                await send()
        await flush()
    return turn.over()


CLIENTS: dict[str, Callable[[str, str, bytes, ClientRun], dict[str, Any]]] = {
    "ottla": ottla_blocking,
    "ottla.aio": ottla_asyncio,
    "confluent-kafka": confluent,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
}

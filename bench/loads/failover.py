"""Kills the leader during a producer's writes, and measures the time until a later write is acknowledged.

confluent-kafka with its defaults except for a shorter retry backoff: idempotent, acks=all, a record every two milliseconds.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from confluent_kafka import Producer

EVERY_S = 0.002
TIMEOUT_S = 60.0
#: Duration of the writes before the kill, so that the producer knows the cluster.
BEFORE_S = 1.0


def failover(bootstrap: str, topic: str, *, pids: dict[str, int], after_s: float = 1.0) -> dict[str, Any]:
    """Seconds from `kill -9` of the leader of partition 0 to the first acknowledgement; `pids` are those of the brokers by id.

    Raises RuntimeError when a record is given up, or nothing is acknowledged in time.
    """
    failures: list[str] = []
    acknowledged: list[tuple[int, float]] = []
    number = 0

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.append((int(message.value()), time.perf_counter()))
        else:
            failures.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 100,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 1_000,
            "log_level": 0,
            "on_delivery": delivered,
        }
    )

    def write(until_s: float) -> None:
        nonlocal number
        producer.produce(topic, b"%d" % number, partition=0)
        number += 1
        producer.poll(min(EVERY_S, max(until_s - time.perf_counter(), 0)))

    begun = time.perf_counter()
    while not acknowledged or time.perf_counter() < begun + BEFORE_S:
        write(begun + TIMEOUT_S)
    leader = producer.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
    killed = time.perf_counter()
    os.kill(pids[str(leader)], signal.SIGKILL)
    first_after = number
    while not (answered := [moment for value, moment in acknowledged if value >= first_after]):
        if time.perf_counter() > killed + TIMEOUT_S or failures:
            raise RuntimeError(f"nothing was acknowledged within {TIMEOUT_S:.0f} s of the kill: {failures[:1]}")
        write(killed + TIMEOUT_S)
    while time.perf_counter() < answered[0] + after_s:
        write(answered[0] + after_s)
    left = producer.flush(TIMEOUT_S)
    if failures or left:
        raise RuntimeError(f"{len(failures)} records failed and {left} are left: {failures[:1]}")
    return {"leader": leader, "seconds": answered[0] - killed, "records": number}

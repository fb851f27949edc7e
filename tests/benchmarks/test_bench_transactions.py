"""The transactional producer with which transactions are measured."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from bench.loads import transactions

from ottla import Admin, Consumer
from ottla.results import TransactionState
from plain_kafka import create_topics
from serving import Serving

SECONDS = 0.3
SHAPE: dict[str, Any] = {"partitions": 2, "value_size": 100, "batch_size": 4096, "seconds": SECONDS, "warm_s": 0.0}


def new_topic(server: Serving, partitions: int = 2) -> str:
    name = f"measured-{uuid.uuid4().hex[:8]}"
    create_topics(server.address, {name: partitions}, {})
    return name


def readable(server: Serving, topic: str) -> int:
    """Number of committed records."""
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        assert admin.find_blocked_partitions([(topic, 0), (topic, 1)]) == {}, "no transaction is left open"
    read = 0
    with Consumer(bootstrap_servers=server.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        while batch := consumer.poll(1000):
            read += len(batch)
    return read


def test_percentiles_of_commits_are_in_milliseconds() -> None:
    found = transactions.latencies([number / 1000 for number in range(1, 101)])
    assert (found["commits"], found["commit_p50_ms"], found["commit_p99_ms"]) == (100, 51.0, 100.0)
    assert transactions.latencies([]) == {"commits": 0}


@pytest.mark.server
def test_what_a_load_counts_is_what_is_committed(ottla_server: Serving) -> None:
    (host, port), pid = ottla_server.address, ottla_server.pid
    topic = new_topic(ottla_server)
    done = transactions.produce(host, port, pid, topic, commit_ms=20.0, **SHAPE)
    assert done["commits"] >= 1 and done["records"] > 0
    assert readable(ottla_server, topic) == done["records"]
    output = new_topic(ottla_server)
    copied = transactions.process(
        host, port, pid, topic, output=output, partitions=2, value_size=100, commit_ms=20.0, seconds=SECONDS, warm_s=0.0
    )
    assert copied["records"] > 0
    assert readable(ottla_server, output) == copied["records"]
    idempotent = new_topic(ottla_server)
    done = transactions.produce(host, port, pid, idempotent, commit_ms=None, **SHAPE)
    assert readable(ottla_server, idempotent) == done["records"] > 0


@pytest.mark.server
def test_commits_and_ids_are_measured(ottla_server: Serving) -> None:
    (host, port), pid = ottla_server.address, ottla_server.pid
    topic = new_topic(ottla_server)
    done = transactions.commit_latency(host, port, pid, topic, partitions=2, value_size=100, seconds=SECONDS, warm_s=0.0)
    assert 0 < done["commit_p50_ms"] <= done["cycle_p50_ms"]
    found = transactions.many_ids(host, port, pid, topic, ids=30)
    assert found["ids"] == 30 and found["seconds"] > 0
    with Admin(bootstrap_servers=ottla_server.bootstrap) as admin:
        listed = admin.list_transactions(states=[TransactionState.EMPTY])
    assert len([one for one in listed if one.transactional_id.startswith(f"{topic}-")]) == 30

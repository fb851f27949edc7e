"""Clients of an in-memory cluster."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from memory_cluster import MemoryCluster

#: Short timeouts in milliseconds, so that tests of failures are fast.
QUICK: dict[str, Any] = {
    "bootstrap_servers": "boot:1",
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """One node; a topic `t` with one partition, a topic `many` with three."""
    made = MemoryCluster()
    made.create("t")
    made.create("many", 3)
    monkeypatch.setattr("ottla.client.transport.network.open_connection", made.connect)
    return made


@pytest.fixture
def quick() -> dict[str, Any]:
    """Settings for a client of `cluster`."""
    return {**QUICK, "rng": Random(7)}

"""InitProducerId before the first batch is sent."""

from __future__ import annotations

from typing import Any

import pytest
from memory_cluster import MemoryCluster

import ottla
from ottla.records.batch import parse_header
from ottla.wire.errors import ClusterAuthorizationFailed, CoordinatorNotAvailable, RequestTimedOut
from ottla.wire.messages import InitProducerIdResponse


def refused(code: int) -> Any:
    """A fault: the response has this error code."""
    return lambda node, request: InitProducerIdResponse(error_code=code)


def test_batches_carry_the_producer_id_requested_before(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.faults["InitProducerId"].extend([refused(CoordinatorNotAvailable.code)] * 3)
    with ottla.Producer(**quick) as producer:
        number = producer.numbered()
        assert not cluster.logs["t"][0].batches
        producer.send("t", b"v").result(timeout_ms=20_000)
        assert producer.numbered() == number
    header = parse_header(cluster.logs["t"][0].batches[0])
    assert (header.producer_id, header.producer_epoch) == number


def test_a_failed_producer_id_request_is_an_error(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    with ottla.Producer(**quick, enable_idempotence=False) as producer, pytest.raises(ValueError, match="enable_idempotence is off"):
        producer.numbered()
    cluster.faults["InitProducerId"].append(refused(ClusterAuthorizationFailed.code))
    with ottla.Producer(**quick) as producer, pytest.raises(ClusterAuthorizationFailed):
        producer.numbered()
    cluster.faults["InitProducerId"].extend([refused(CoordinatorNotAvailable.code)] * 10_000)
    with ottla.Producer(**quick, max_block_ms=50) as producer, pytest.raises(RequestTimedOut, match="within 50 ms"):
        producer.numbered()

"""Microseconds to decode and to encode important messages, compared with kio and kafka-python: `python bench/wire_codec.py`.

Ottla decodes from a bytearray, as received from a socket; kio takes bytes only. "Bytes" is the size of the message without its header.
"""

from __future__ import annotations

import os
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "wire"))

from oracles import kafka_python_class, kio_class, kio_read, kio_write, to_kafka_python, to_kio

from ottla.wire.compile import decode, encode, encode_chunks
from ottla.wire.messages import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

RECORDS = os.urandom(16 * 1024)
TOPIC_ID = b"0123456789abcdef"


def metadata(topics: int, partitions: int) -> MetadataResponse:
    """A cluster of three brokers, everything replicated three times."""
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host=f"broker-{n}.example.org", port=9092) for n in range(3)],
        cluster_id="GHDVnk5zQxGfTW5rJ5t0Qw",
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name=f"topic-{t:03}",
                topic_id=TOPIC_ID,
                partitions=[
                    MetadataResponsePartition(
                        partition_index=p, leader_id=p % 3, leader_epoch=5, replica_nodes=[0, 1, 2], isr_nodes=[0, 1, 2]
                    )
                    for p in range(partitions)
                ],
            )
            for t in range(topics)
        ],
    )


def produce_request() -> ProduceRequest:
    """One batch of 16 KiB."""
    data = [TopicProduceData(name="my-topic", partition_data=[PartitionProduceData(index=3, records=RECORDS)])]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)


def produce_response() -> ProduceResponse:
    """The response for one batch."""
    answer = PartitionProduceResponse(index=3, base_offset=12_345, log_start_offset=0)
    return ProduceResponse(responses=[TopicProduceResponse(name="my-topic", partition_responses=[answer])])


def fetch_request() -> FetchRequest:
    """Ten partitions of one topic."""
    partitions = [FetchPartition(partition=p, fetch_offset=1000, partition_max_bytes=2**20) for p in range(10)]
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic="my-topic", topic_id=TOPIC_ID, partitions=partitions)])


def fetch_response(partitions: int) -> FetchResponse:
    """16 KiB from each partition."""
    data = [
        PartitionData(
            partition_index=p, high_watermark=100, last_stable_offset=100, log_start_offset=0, aborted_transactions=None, records=RECORDS
        )
        for p in range(partitions)
    ]
    return FetchResponse(responses=[FetchableTopicResponse(topic="my-topic", topic_id=TOPIC_ID, partitions=data)])


CASES: list[tuple[str, msgspec.Struct, int]] = [
    ("Metadata response, 1 topic × 3", metadata(1, 3), 12),
    ("Metadata response, 100 topics × 12", metadata(100, 12), 12),
    ("Produce request, 16 KiB", produce_request(), 9),
    ("Produce response", produce_response(), 9),
    ("Fetch request, 10 partitions", fetch_request(), 12),
    ("Fetch request, 10 partitions", fetch_request(), 16),
    ("Fetch response, 1 × 16 KiB", fetch_response(1), 12),
    ("Fetch response, 1 × 16 KiB", fetch_response(1), 16),
    ("Fetch response, 10 × 16 KiB", fetch_response(10), 16),
]


def best_us(work: Callable[[], Any]) -> float:
    """The fastest of several rounds, in microseconds: the cost without other load."""
    timer = timeit.Timer(work)
    number, _ = timer.autorange(lambda number, taken: None)
    number = max(1, number // 10)
    return min(timer.repeat(repeat=15, number=number)) / number * 1e6


def measure(message: msgspec.Struct, version: int) -> tuple[int, list[tuple[float, float]]]:
    """Size of a message, then decode and encode for each codec."""
    cls = type(message)
    data = encode(message, version)
    buffer = bytearray(data)
    kio, kafka_python = kio_class(cls, version), kafka_python_class(cls, version)
    assert kio is not None and kafka_python is not None, f"both know {cls.__name__} v{version}"
    in_kio, in_kafka_python = to_kio(message, kio, version), to_kafka_python(message, kafka_python, version)
    assert kio_write(in_kio) == in_kafka_python.encode(version=version) == data
    return len(data), [
        (best_us(lambda: decode(cls, buffer, version)), best_us(lambda: encode_chunks(message, version))),
        (best_us(lambda: kio_read(kio, data)), best_us(lambda: kio_write(in_kio))),
        (best_us(lambda: kafka_python.decode(data, version=version)), best_us(lambda: in_kafka_python.encode(version=version))),
    ]


def main() -> None:
    """Print the table."""
    table = Table("µs, decode / encode", "version", "bytes", "ottla", "kio", "kafka-python")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, message, version in CASES:
        size, figures = measure(message, version)
        table.add_row(name, str(version), f"{size:,}", *(f"{read:,.1f} / {write:,.1f}" for read, write in figures))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

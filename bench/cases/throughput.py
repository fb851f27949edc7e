"""Produce and consume, through librdkafka and as a raw replay.

The raw load shows the difference between servers: its client costs almost nothing. The librdkafka load is typical for users.
"""

from __future__ import annotations

import os

from bench.cases import RATES, Case, CaseContext, Measurement, Scale, rates

#: The batch size of Java's producer under load.
BATCH_SIZE = 16 << 10
#: Maximum batch size of librdkafka.
LARGE_BATCH_SIZE = 1_000_000
ACKS = {"all": -1, "1": 1}
READERS = frozenset({"ottla", "kafka"})  # Reading does not depend on write.caching.


def cases(scale: Scale) -> list[Case]:
    shapes = [(value_size, partitions) for value_size in (100, 1024) for partitions in (1, 6)]
    found = [_raw_produce(value_size, partitions, "all", BATCH_SIZE) for value_size, partitions in shapes]
    found.append(_raw_produce(1024, 1, "1", BATCH_SIZE))
    found.append(_raw_produce(1024, 1, "all", LARGE_BATCH_SIZE))
    if scale.name == "full":
        found += [
            _raw_produce(100, 1, "1", BATCH_SIZE),
            _raw_produce(100, 6, "1", BATCH_SIZE),
            _raw_produce(100, 1, "all", LARGE_BATCH_SIZE),
        ]
    found += [_librdkafka_produce(value_size, partitions, "all") for value_size, partitions in shapes]
    found.append(_librdkafka_produce(1024, 1, "1"))
    found += [_raw_fetch(value_size, partitions) for value_size, partitions in shapes]
    found += [_librdkafka_consume(value_size, partitions) for value_size, partitions in shapes]
    return found


def _shape(value_size: int, partitions: int) -> tuple[str, str]:
    return f"{value_size} B" if value_size < 1024 else f"{value_size // 1024} KiB", f"{partitions} partition{'s' if partitions > 1 else ''}"


def _raw_produce(value_size: int, partitions: int, acks: str, batch_size: int) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic = context.create_topic(partitions)
        # Dirty pages of the previous run must not be written during this one.
        os.sync()
        try:
            return rates(
                context.load(
                    "raw_produce",
                    topic,
                    partitions=partitions,
                    value_size=value_size,
                    batch_size=batch_size,
                    acks=ACKS[acks],
                    seconds=scale.seconds,
                    bytes_max=scale.bytes_max,
                    warm_s=0.3,
                )
            )
        finally:
            context.delete_topic(topic)

    size, spread = _shape(value_size, partitions)
    batches = "16 KiB batches" if batch_size == BATCH_SIZE else "1 MB batches"
    return Case("produce, raw", f"{size}, {spread}, acks={acks}, {batches}", RATES, run)


def _librdkafka_produce(value_size: int, partitions: int, acks: str) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic = context.create_topic(partitions)
        os.sync()
        try:
            return rates(
                context.load(
                    "librdkafka_produce",
                    topic,
                    value_size=value_size,
                    acks=ACKS[acks],
                    seconds=scale.seconds,
                    bytes_max=scale.bytes_max,
                )
            )
        finally:
            context.delete_topic(topic)

    size, spread = _shape(value_size, partitions)
    return Case("produce, librdkafka", f"{size}, {spread}, acks={acks}", RATES, run)


def _raw_fetch(value_size: int, partitions: int) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic, _ = context.filled_topic(value_size, partitions, scale.fill_bytes)
        return rates(context.load("raw_fetch", topic, partitions=partitions, value_size=value_size, seconds=scale.seconds))

    return Case("consume, raw", ", ".join(_shape(value_size, partitions)), RATES, run, READERS)


def _librdkafka_consume(value_size: int, partitions: int) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic, records = context.filled_topic(value_size, partitions, scale.fill_bytes)
        shape = {"partitions": partitions, "value_size": value_size, "records": records}
        return rates(context.load("librdkafka_consume", topic, **shape, seconds=scale.seconds))

    return Case("consume, librdkafka", ", ".join(_shape(value_size, partitions)), RATES, run, READERS)

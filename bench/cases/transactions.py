"""Transactions: produce with commits at an interval, commits of 1 to 100 partitions, many transactional ids, consume-process-produce."""

from __future__ import annotations

import os

from bench.cases import GB, MB, Case, CaseContext, Figure, Measurement, Scale

PARTITIONS, VALUE_SIZE, BATCH_SIZE = 6, 1024, 16 << 10
INTERVALS_MS = (100, 10)
COMMITTED_PARTITIONS = (1, 10, 100)
IDS = {"quick": 1_000}
ALL_IDS = 10_000
#: Bytes of the topic that consume-process-produce reads repeatedly.
FILL_BYTES = 50_000_000

COMMITS = (Figure("commit p50", "ms", False), Figure("commit p99", "ms", False))
PRODUCED = (
    Figure("throughput", "MB/s", True, 0),
    Figure("of idempotent", "x", True),
    Figure("server CPU", "s/GB", False),
    Figure("idempotent, server CPU", "s/GB", False),
    *COMMITS,
)
ENDED = (
    *COMMITS,
    Figure("transaction p50", "ms", False),
    Figure("CPU per transaction", "ms", False, 3),
)
INITIALIZED = (Figure("initialized", "ids/s", True, 0), Figure("CPU per id", "ms", False, 3), Figure("memory per id", "kB", False))
COPIED = (Figure("throughput", "MB/s", True, 0), Figure("server CPU", "s/GB", False), *COMMITS)


def cases(scale: Scale) -> list[Case]:
    return [
        *(_produce(interval_ms) for interval_ms in INTERVALS_MS),
        *(_commits(partitions) for partitions in COMMITTED_PARTITIONS),
        _ids(IDS.get(scale.name, ALL_IDS)),
        *(_process(interval_ms) for interval_ms in INTERVALS_MS),
    ]


def _produce(interval_ms: int) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic = context.create_topic(PARTITIONS)
        shape = {"partitions": PARTITIONS, "value_size": VALUE_SIZE, "batch_size": BATCH_SIZE, "seconds": scale.seconds}
        try:
            # The idempotent producer runs before and after, so that a machine that gets slower or faster favours neither.
            runs = []
            for commit_ms in (None, interval_ms, None):
                os.sync()
                runs.append(context.load("transactional_produce", topic, commit_ms=commit_ms, **shape))
        finally:
            context.delete_topic(topic)
        before, committed, after = runs
        idempotent = {name: before[name] + after[name] for name in ("bytes", "seconds", "server_cpu_s")}
        throughput = committed["bytes"] / committed["seconds"]
        figures = {
            "throughput": throughput / MB,
            "of idempotent": throughput / (idempotent["bytes"] / idempotent["seconds"]),
            "server CPU": committed["server_cpu_s"] / (committed["bytes"] / GB),
            "idempotent, server CPU": idempotent["server_cpu_s"] / (idempotent["bytes"] / GB),
            "commit p50": committed["commit_p50_ms"],
            "commit p99": committed["commit_p99_ms"],
        }
        return Measurement(figures, {**committed, "idempotent": [before, after]})

    return Case("transactions", f"produce, commit every {interval_ms} ms", PRODUCED, run)


def _commits(partitions: int) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic = context.create_topic(partitions)
        try:
            detail = context.load("transaction_commits", topic, partitions=partitions, value_size=100, seconds=scale.seconds)
        finally:
            context.delete_topic(topic)
        figures = {
            "commit p50": detail["commit_p50_ms"],
            "commit p99": detail["commit_p99_ms"],
            "transaction p50": detail["cycle_p50_ms"],
            "CPU per transaction": detail["server_cpu_s"] / detail["commits"] * 1000,
        }
        return Measurement(figures, detail)

    return Case("transactions", f"commit of {partitions} partition{'s' if partitions > 1 else ''}", ENDED, run)


def _ids(ids: int) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic = context.create_topic(1)
        try:
            detail = context.load("transactional_ids", topic, ids=ids)
        finally:
            context.delete_topic(topic)
        figures = {
            "initialized": ids / detail["seconds"],
            "CPU per id": detail["server_cpu_s"] / ids * 1000,
            "memory per id": detail["memory_bytes"] / ids / 1000,
        }
        return Measurement(figures, detail)

    return Case("transactions", f"{ids:,} transactional ids", INITIALIZED, run, rounds=1)


def _process(interval_ms: int) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic, _ = context.filled_topic(VALUE_SIZE, PARTITIONS, FILL_BYTES)
        output = context.create_topic(PARTITIONS)
        os.sync()
        shape = {"output": output, "partitions": PARTITIONS, "value_size": VALUE_SIZE, "commit_ms": interval_ms}
        try:
            detail = context.load("consume_process_produce", topic, **shape, seconds=scale.seconds)
        finally:
            context.delete_topic(output)
        figures = {
            "throughput": detail["bytes"] / MB / detail["seconds"],
            "server CPU": detail["server_cpu_s"] / (detail["bytes"] / GB),
            "commit p50": detail["commit_p50_ms"],
            "commit p99": detail["commit_p99_ms"],
        }
        return Measurement(figures, detail)

    return Case("transactions", f"consume-process-produce, commit every {interval_ms} ms", COPIED, run)

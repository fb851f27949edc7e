"""Measures the schema registry: the time of a start with many schemas, and the latency of look-ups.

    python -m bench.registry [--schemas 50000] [--lookups 5000]

Brokers, registry and client are processes of their own. The schemas are written to the topic directly, 10 versions per subject.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from random import Random
from typing import Any

import httpx

import ottla
from ottla.registry.records import SchemaRecord, schema_record

VERSIONS = 10


def started(*arguments: str, line: str) -> tuple[subprocess.Popen[str], str, float]:
    """A command that prints a line with its address: the process, the address, and the seconds until then."""
    begun = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "ottla", *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert child.stdout is not None, "it was opened as a pipe"
    for said in child.stdout:
        if found := re.search(line, said):
            return child, found[1], time.perf_counter() - begun
        print(said, end="", file=sys.stderr)
    raise SystemExit(f"ottla {' '.join(arguments)} ended with code {child.wait()}")


def schema(number: int) -> str:
    """A record of about 500 bytes."""
    fields = ",".join(f'{{"name":"field_{index}","type":["null","string"],"default":null}}' for index in range(number % 10 + 3))
    return f'{{"type":"record","name":"Event{number}","namespace":"bench","fields":[{fields}]}}'


def write(bootstrap: str, count: int) -> None:
    """Writes the schemas to the topic."""
    from ottla.client.admin.results import NewTopic

    with ottla.Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic("_schemas", 1, 1, {"cleanup.policy": "compact"}))
    with ottla.Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(count):
            made = SchemaRecord(f"subject-{number // VERSIONS}-value", number % VERSIONS + 1, number + 1, schema(number))
            key, value = schema_record(made)
            producer.send("_schemas", value, key, partition=0)
        producer.flush()


def latencies_ms(url: str, paths: list[str]) -> list[float]:
    """Of one client on one connection."""
    found = []
    with httpx.Client(base_url=url) as client:
        for path in paths:
            begun = time.perf_counter()
            client.get(path).raise_for_status()
            found.append((time.perf_counter() - begun) * 1000)
    return found


def shown(name: str, values: list[float]) -> None:
    cuts = statistics.quantiles(values, n=100)
    print(f"{name}: p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=50_000)
    parser.add_argument("--lookups", type=int, default=5_000)
    asked = parser.parse_args()
    rng = Random(1)
    children: list[subprocess.Popen[Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            broker, bootstrap, _ = started("serve", "--data-dir", directory, "--listen", "127.0.0.1:0", "--log-level", "error",
                                           line=r"ready on (\S+)")  # fmt: skip
            children.append(broker)
            write(bootstrap, asked.schemas)
            registry, url, seconds = started("registry", "serve", "-b", bootstrap, "--listen", "127.0.0.1:0", line=r"registry at (\S+)")
            children.append(registry)
            print(f"start with {asked.schemas} schemas: {seconds:.2f} s")
            ids = [f"/schemas/ids/{rng.randint(1, asked.schemas)}" for _ in range(asked.lookups)]
            latest = [f"/subjects/subject-{rng.randrange(asked.schemas // VERSIONS)}-value/versions/latest" for _ in range(asked.lookups)]
            shown("schema by id", latencies_ms(url, ids))
            shown("latest version", latencies_ms(url, latest))
        finally:
            for child in reversed(children):
                child.terminate()
                child.wait()


if __name__ == "__main__":
    main()

"""Runs the tests of the client, and of Spark's source and sink, against an Apache Kafka 4.x: they ask for nothing that it does not do.

    python tools/test_kafka.py [pytest's arguments]

Kafka comes by way of Maven, once (see `bench/maven.py`). Where it cannot be had, this says why and is content. Tests that need a server of
Ottla's own, one that they may kill for instance, are skipped, and say so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import kafka  # noqa: E402
from bench.maven import PeerUnavailable  # noqa: E402

#: Tests write records of 1970, which Kafka would delete while they look; and its groups would wait for members that never come.
SETTINGS = {"log.retention.check.interval.ms": "86400000", "group.initial.rebalance.delay.ms": "0"}
SPARK = [f"tests/spark/test_{name}.py" for name in ("source", "source_options", "sink")]
#: Each in a run of its own.
TESTS = (["tests/client", "-m", "server"], [*SPARK, "-n", "1"])


def main(arguments: list[str]) -> int:
    try:
        found = kafka.distribution()
    except PeerUnavailable as why:
        print(f"test_kafka: not run: {why}")
        return 0
    print(f"test_kafka: Apache Kafka {found.version} on Java {found.java.version}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="ottla-test-kafka-") as directory,
        kafka.running(found, Path(directory), settings=SETTINGS) as (bootstrap, _),
    ):
        environment = {**os.environ, "OTTLA_TEST_BOOTSTRAP": bootstrap}
        runs = [arguments] if arguments else TESTS
        return max(
            subprocess.run([sys.executable, "-m", "pytest", *run], cwd=ROOT, env=environment, check=False).returncode for run in runs
        )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

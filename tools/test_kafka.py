"""Runs the tests of the client, the console, and Spark's source and sink, against an Apache Kafka 4.x, which has all features they need.

    python tools/test_kafka.py [pytest's arguments]

Maven fetches Kafka once (see `bench/maven.py`). If it is not available, the program prints the reason and exits with 0. Tests that need
Ottla's own server, for example to kill it, are skipped with a message.
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

#: Tests write records of 1970, which Kafka would delete during a test; and its groups would wait for members that never join.
SETTINGS = {"log.retention.check.interval.ms": "86400000", "group.initial.rebalance.delay.ms": "0"}
SPARK = [f"tests/spark/test_{name}.py" for name in ("source", "source_options", "sink")]
#: Each list is a separate run.
TESTS = (["tests/client", "tests/console", "-m", "server"], [*SPARK, "-n", "1"])


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

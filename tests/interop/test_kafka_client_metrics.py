"""Kafka's `kafka-client-metrics.sh` subscribes to metrics of clients, a Java producer and librdkafka push them; `kafka-configs.sh` sets
levels of loggers.
"""

from __future__ import annotations

import re
import socket
import time
import urllib.request
from pathlib import Path

import confluent_kafka
import pytest
from kafka_tools import Run

from serving import Serving

pytestmark = [pytest.mark.interop, pytest.mark.server, pytest.mark.timeout(240), pytest.mark.usefixtures("own_server_only")]

CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
CONFIGS = "org.apache.kafka.tools.ConfigCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"


def test_a_java_producer_and_librdkafka_push_the_metrics_that_kafkas_tool_subscribes_to(tmp_path: Path, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {"ottla.client.metrics.enable": "true", "auto.create.topics.enable": "true"}
    with Serving(tmp_path / "data", settings=settings, arguments=["--http", http]) as server:
        at = ("--bootstrap-server", server.bootstrap)
        run(CLIENT_METRICS, *at, "--alter", "--name", "all", "--metrics", "org.apache.kafka.", "--interval", "1000")
        assert "interval.ms=1000" in run(CLIENT_METRICS, *at, "--describe", "--name", "all")
        # It runs for 3 s, so it pushes at least once before it closes.
        load = ("--topic", "orders", "--num-records", "600", "--record-size", "100", "--throughput", "200")
        assert "600 records sent" in run(PERFORMANCE, *load, *at, "--command-property", "client.id=java")
        producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap, "client.id": "librdkafka"})

        def pushing() -> set[str]:
            producer.produce("orders", b"value")
            producer.flush(10)
            with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as response:
                return set(re.findall(r'client_id="(java|librdkafka)",', response.read().decode()))

        deadline_s = time.monotonic() + 30
        while (found := pushing()) != {"java", "librdkafka"}:
            assert time.monotonic() < deadline_s, f"pushed by {found} only"
            time.sleep(0.2)


def test_kafka_configs_sets_and_resets_levels_of_loggers(tmp_path: Path, run: Run) -> None:
    with Serving(tmp_path / "data") as server:
        loggers = ("--bootstrap-server", server.bootstrap, "--entity-type", "broker-loggers", "--entity-name", "1")
        assert "ottla.server=INFO" in run(CONFIGS, *loggers, "--describe")
        run(CONFIGS, *loggers, "--alter", "--add-config", "ottla.server=DEBUG")
        assert "ottla.server=DEBUG" in run(CONFIGS, *loggers, "--describe")
        run(CONFIGS, *loggers, "--alter", "--delete-config", "ottla.server")
        assert "ottla.server=INFO" in run(CONFIGS, *loggers, "--describe")

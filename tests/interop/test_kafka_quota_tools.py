"""Apache Kafka's `kafka-configs.sh` sets, shows and removes quotas of Ottla; a throttled Java producer is held to its quota."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from kafka_tools import Run

from ottla import Admin, NewTopic
from ottla.results import QuotaEntity
from serving import Serving

pytestmark = [pytest.mark.interop, pytest.mark.server, pytest.mark.timeout(240), pytest.mark.usefixtures("own_server_only")]

CONFIGS = "org.apache.kafka.tools.ConfigCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"


def test_kafka_configs_sets_and_shows_quotas(tmp_path: Path, run: Run) -> None:
    with Serving(tmp_path / "data") as server, Admin(bootstrap_servers=server.bootstrap) as admin:
        at = ("--bootstrap-server", server.bootstrap)
        entities = {
            QuotaEntity(user="alice"): ("--entity-type", "users", "--entity-name", "alice"),
            QuotaEntity(client_id="etl"): ("--entity-type", "clients", "--entity-name", "etl"),
            QuotaEntity(user="bob", client_id="etl"): (
                *("--entity-type", "users", "--entity-name", "bob"),
                *("--entity-type", "clients", "--entity-name", "etl"),
            ),
            QuotaEntity(user=""): ("--entity-type", "users", "--entity-default"),
        }
        for entity, words in entities.items():
            run(CONFIGS, *at, "--alter", "--add-config", "producer_byte_rate=1048576,request_percentage=12.5", *words)
            assert admin.describe_client_quotas()[entity] == {"producer_byte_rate": 1048576, "request_percentage": 12.5}
            shown = run(CONFIGS, *at, "--describe", *words)
            assert "producer_byte_rate=1048576.0" in shown and "request_percentage=12.5" in shown
        address = ("--entity-type", "ips", "--entity-name", "10.1.2.3")
        run(CONFIGS, *at, "--alter", "--add-config", "connection_creation_rate=7", *address)
        assert admin.describe_client_quotas(ip="10.1.2.3") == {QuotaEntity(ip="10.1.2.3"): {"connection_creation_rate": 7}}
        assert "connection_creation_rate=7.0" in run(CONFIGS, *at, "--describe", *address)
        run(CONFIGS, *at, "--alter", "--delete-config", "producer_byte_rate", *entities[QuotaEntity(user="alice")])
        assert admin.describe_client_quotas(user="alice") == {QuotaEntity(user="alice"): {"request_percentage": 12.5}}


def test_a_java_producer_is_held_to_its_quota(tmp_path: Path, run: Run) -> None:
    with Serving(tmp_path / "data") as server, Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topics([NewTopic("orders", 1)])
        # The window holds 10 s of the quota; the rest takes its time.
        admin.alter_client_quotas({QuotaEntity(client_id="loud"): {"producer_byte_rate": 200_000}})
        load = ("--topic", "orders", "--num-records", "3000", "--record-size", "1000", "--throughput", "-1")
        began_s = time.monotonic()
        measured = run(PERFORMANCE, *load, "--bootstrap-server", server.bootstrap, "--command-property", "client.id=loud")
        took_s = time.monotonic() - began_s
        assert re.search(r"3000 records sent", measured)
        # 3 MB, of which 2 MB at once.
        assert took_s >= 4

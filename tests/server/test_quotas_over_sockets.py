"""Quotas of a whole server: request time, connections of an address, and their life across a restart."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from bench import probe

from ottla import Admin, NewTopic, Producer
from ottla.results import QuotaEntity
from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]


def set_quota(admin: Admin, entity: QuotaEntity, **quotas: float | None) -> None:
    assert admin.alter_client_quotas({entity: quotas})[entity] is None


def is_served(address: tuple[str, int]) -> bool:
    """Whether a new connection is answered; one above the quota is closed."""
    with socket.create_connection(address) as sock:
        sock.settimeout(10)
        try:
            return probe.answers(sock)
        except ConnectionError:
            return False


def throttled_ms(admin: Admin) -> float:
    return admin.metrics()["admin-client-metrics"]["throttle-time-total"]


def test_the_time_of_requests_is_measured_and_throttled(tmp_path: Path) -> None:
    with (
        Serving(tmp_path / "data") as server,
        Admin(bootstrap_servers=server.bootstrap, client_id="operator") as operator,
        Admin(bootstrap_servers=server.bootstrap, client_id="busy") as busy,
    ):
        busy.list_topics()
        set_quota(operator, QuotaEntity(client_id="busy"), request_percentage=0.001)
        deadline = time.monotonic() + 30
        while not throttled_ms(busy):
            assert time.monotonic() < deadline, "0.1 ms of CPU time in 10 s are used up soon"
            busy.list_topics()
        operator.list_topics()
        assert not throttled_ms(operator)


def test_connections_of_an_address_are_limited(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as server, Admin(bootstrap_servers=server.bootstrap) as admin:
        assert is_served(server.address)
        set_quota(admin, QuotaEntity(ip="localhost"), connection_creation_rate=1)
        # Resolved in the background.
        deadline = time.monotonic() + 30
        while is_served(server.address):
            assert time.monotonic() < deadline, "ten connections in ten seconds are the quota of the window"
        # The connection of the admin client stays.
        set_quota(admin, QuotaEntity(ip="localhost"), connection_creation_rate=None)
        while not is_served(server.address):
            assert time.monotonic() < deadline


def test_quotas_outlive_a_crash_and_hold_for_every_broker(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", brokers=3) as server:
        quotas = {QuotaEntity(user="alice", client_id=""): {"producer_byte_rate": 5.0}, QuotaEntity(user=""): {"consumer_byte_rate": 7.0}}
        with Admin(bootstrap_servers=server.bootstrap) as admin:
            for entity, values in quotas.items():
                set_quota(admin, entity, **values)
        server.kill()
        server.start()
        for address in server.bootstrap.split(","):
            with Admin(bootstrap_servers=address) as admin:
                assert admin.describe_client_quotas() == quotas


def test_a_producer_above_its_quota_waits_and_loses_nothing(tmp_path: Path) -> None:
    with (
        Serving(tmp_path / "data", arguments=["--http", "127.0.0.1:0"]) as server,
        Admin(bootstrap_servers=server.bootstrap) as admin,
    ):
        admin.create_topics([NewTopic("orders", 1)])
        # The window holds 0.5 MB.
        set_quota(admin, QuotaEntity(client_id="loud"), producer_byte_rate=50_000)
        began = time.monotonic()
        with Producer(bootstrap_servers=server.bootstrap, client_id="loud", linger_ms=0) as producer:
            sent = [producer.send("orders", bytes(10_000)) for _ in range(70)]
            assert [delivery.result(60).offset for delivery in sent] == list(range(70))
            # A request may overdraw the quota, and the next one waits: 0.2 MB are 4 s.
            assert producer.send("orders", b"after").result(60).offset == 70
            assert time.monotonic() - began >= 3
            metrics: Any = producer.metrics()["producer-metrics"]
            assert metrics["produce-throttle-time-max"] > 0
        line = next(line for line in server.logs().splitlines() if "/health/ready on http://" in line)
        with urlopen(f"http://{line.rpartition('http://')[2].split()[0]}/metrics") as answer:
            found = re.search(
                r'^kafka_network_requestmetrics_throttletimems_count\{.*request="Produce"\} (\S+)', answer.read().decode(), re.M
            )
        assert found is not None and float(found[1]) > 0

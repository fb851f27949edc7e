"""The `ottla doctor` command: output, exit codes, and findings on a real broker."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import Ottla, documents, good, refused, rows, without_headings
from ottla.client.admin.results import Resource
from ottla.client.doctor.checks import CHECKS
from ottla.client.sync.admin import Admin
from ottla.client.sync.producer import Producer
from plain_kafka import hanging_transaction
from serving import Serving

#: Checks that do not depend on what other tests did to the shared server.
OWN = ("bootstrap", "listeners", "controller", "brokers", "versions", "leaders", "internal-topics")


def chosen(*names: str) -> list[str]:
    return [word for name in names for word in ("--check", name)]


@pytest.fixture
def closed_address() -> Iterator[str]:
    """An address where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_checks_are_listed_and_selected_by_name(ottla: Ottla) -> None:
    listed = rows(ottla("doctor", "--list")).splitlines()
    assert [line.split("\t")[0] for line in listed] == list(CHECKS)
    assert "did you mean listeners?" in refused(ottla("doctor", "--check", "listener"), code=2)
    assert "--data-dir" in refused(ottla("doctor", "--check", "data-dir"), code=2)
    assert "above 0" in refused(ottla("doctor", "--timeout", "0s"), code=2)


def test_local_checks_contact_no_cluster(ottla: Ottla, tmp_path: Path) -> None:
    report = documents(ottla("doctor", *chosen("data-dir"), "--data-dir", str(tmp_path / "none"), "-o", "json"), "doctor", code=1)
    assert (report["reachable"], report["problems"], report["checks"]) == (None, 1, ["data-dir"])
    assert "No problems (1 check)." in ottla("doctor", *chosen("profiles")).stderr


@pytest.mark.server
def test_an_unreachable_cluster_is_a_problem_with_a_remedy(ottla: Ottla, closed_address: str) -> None:
    result = ottla("doctor", "-b", closed_address, "--check", "bootstrap")
    assert result.exit_code == 1
    severity, check, where, *_ = without_headings(result.stdout).split("\t")
    assert (severity, check, where) == ("problem", "bootstrap", closed_address)
    assert "connection refused" in result.stdout and "No broker is reachable" in result.stderr
    report = documents(ottla("doctor", "-b", closed_address, "-o", "json", "--check", "bootstrap"), "doctor", code=1)
    assert (report["reachable"], report["problems"], report["brokers"]) == (False, 1, 0)


@pytest.mark.server
def test_a_terminal_gets_a_block_per_finding(ottla: Ottla, closed_address: str, terminal: None) -> None:
    result = ottla("doctor", "-b", closed_address, "--check", "bootstrap")
    assert result.stdout.splitlines()[0] == f"problem: No broker answers at this address [{closed_address}]"
    assert [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ") and line[2] != " "] == ["shows", "fix"]


@pytest.mark.server
def test_a_healthy_server_has_no_findings(ottla_server: Serving, ottla: Ottla) -> None:
    at = ("doctor", "-b", ottla_server.bootstrap, "--timeout", "60s", *chosen(*OWN))
    report = documents(ottla(*at, "-o", "json"), "doctor")
    assert (report["reachable"], report["findings"], report["checks"], report["brokers"]) == (True, [], list(OWN), 1)
    result = ottla(*at)
    assert good(result) == "" and "No problems (7 checks, 1 broker)." in result.stderr


@pytest.mark.server
def test_an_injected_problem_is_found_and_fixed_by_its_remedy(ottla_server: Serving, ottla: Ottla) -> None:
    server = ("-b", ottla_server.bootstrap)
    good(ottla("topic", "create", "doctor.ill", "-r", "1", "-c", "min.insync.replicas=2", *server))
    ill = ottla("doctor", *server, "--timeout", "60s", *chosen("replication"), "-o", "json")
    (finding,) = [one for one in documents(ill, "doctor", code=1)["findings"] if one["topic"] == "doctor.ill"]
    assert (finding["severity"], finding["check"]) == ("problem", "replication")
    program, *words = finding["command"].split()
    assert program == "ottla" and words[-2:] == list(server)
    good(ottla(*words))
    cured = ottla("doctor", *server, "--timeout", "60s", *chosen("replication"), "-o", "json")
    assert "doctor.ill" not in {one["topic"] for one in documents(cured, "doctor", code=cured.exit_code)["findings"]}
    good(ottla("topic", "delete", "doctor.ill", "-y", *server))


@pytest.mark.server
def test_a_transaction_that_hangs_is_found_with_its_group_and_ended_by_the_remedy(ottla_server: Serving, ottla: Ottla) -> None:
    server, topic = ("-b", ottla_server.bootstrap), "doctor.hangs"
    verification = Resource.broker(None), "transaction.partition.verification.enable"
    good(ottla("topic", "create", topic, *server))
    with Admin(bootstrap_servers=ottla_server.bootstrap) as admin:
        admin.alter_consumer_group_offsets("doctor.waits", {(topic, 0): 0})
        admin.incremental_alter_config(verification[0], {verification[1]: False})
        try:
            hanging_transaction(ottla_server.address, "doctor.zombie", topic, timestamp_ms=int(time.time() * 1000) - 3_600_000)
        finally:
            admin.incremental_alter_config(verification[0], {verification[1]: None})

    def look() -> list[dict[str, Any]]:
        result = ottla("doctor", *server, "--timeout", "60s", *chosen("transactions"), "-o", "json")
        return [one for one in documents(result, "doctor", code=result.exit_code)["findings"] if one["topic"] == topic]

    (finding,) = look()
    assert (finding["severity"], finding["partitions"]) == ("problem", [0])
    assert "transactional id doctor.zombie" in finding["evidence"] and "doctor.waits" in finding["evidence"]
    good(ottla(*finding["command"].split()[1:], "--yes"))
    assert look() == []
    good(ottla("group", "delete", "doctor.waits", "-y", *server))
    good(ottla("topic", "delete", topic, "-y", *server))


@pytest.mark.server
def test_lost_records_of_a_group_are_found_and_the_remedy_resets_its_offsets(ottla_server: Serving, ottla: Ottla) -> None:
    server, topic = ("-b", ottla_server.bootstrap), "doctor.lost"
    good(ottla("topic", "create", topic, *server))
    with Admin(bootstrap_servers=ottla_server.bootstrap) as admin, Producer(bootstrap_servers=ottla_server.bootstrap) as producer:
        for _ in range(5):
            producer.send(topic, b"v")
        producer.flush()
        admin.alter_consumer_group_offsets("doctor.late", {(topic, 0): 2})
        admin.delete_records({(topic, 0): 4})

    def look() -> list[dict[str, Any]]:
        result = ottla("doctor", *server, "--timeout", "60s", "--between", "0s", *chosen("offsets"), "-o", "json")
        return [one for one in documents(result, "doctor", code=result.exit_code)["findings"] if one["group"] == "doctor.late"]

    (finding,) = look()
    assert (finding["severity"], finding["topic"], finding["partitions"]) == ("problem", topic, [0])
    good(ottla(*finding["command"].split()[1:], "--execute"))
    assert look() == []
    good(ottla("group", "delete", "doctor.late", "-y", *server))
    good(ottla("topic", "delete", topic, "-y", *server))


@pytest.mark.server
def test_a_wrong_advertised_address_is_found(tmp_path: Path, ottla: Ottla, closed_address: str) -> None:
    with Serving(tmp_path / "data", settings={"advertised.listeners": f"PLAINTEXT://{closed_address}"}) as server:
        result = ottla("doctor", "-b", server.bootstrap, *chosen("bootstrap", "listeners"), "--timeout", "60s", "-o", "json")
    (finding,) = documents(result, "doctor", code=1)["findings"]
    assert (finding["check"], finding["broker"], finding["address"], finding["severity"]) == ("listeners", 1, closed_address, "problem")
    assert "connection refused" in finding["evidence"]


@pytest.mark.server
def test_a_silent_listener_is_not_waited_for(ottla: Ottla) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        result = ottla("doctor", "-b", f"127.0.0.1:{deaf.getsockname()[1]}", "--timeout", "300ms", "-o", "json")
    (finding, *_) = documents(result, "doctor", code=1)["findings"]
    assert (finding["check"], finding["severity"]) == ("bootstrap", "problem")

"""The cluster, transactions, access rules, users and quotas."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Browser, browsing, measured, seen

from ottla.aio import Admin, Producer
from ottla.base.ids import TopicPartition
from ottla.client.admin.results import LogDir, NewTopic, PartitionReassignment, ReplicaLog
from ottla.console.watch.moves import move_rows
from ottla.console.watch.snapshot import Measured, Snapshot
from serving import Elsewhere, Serving


def test_a_reassignment_has_the_progress_of_the_logs_that_are_copied() -> None:
    tp = TopicPartition("t", 0)
    directories = {broker: [LogDir("/d", None, 1, 1, [ReplicaLog("t", 0, size, 0, False)])] for broker, size in ((1, 1000), (3, 250))}
    measured = Measured(at_ms=0, directories=directories)
    snapshot = Snapshot(measured=measured, topics={}, brokers=[], rates={}, sizes={tp: 1000}, unpreferred=0)
    (row,) = move_rows({tp: PartitionReassignment([3, 4, 1], [3, 4], [1])}, snapshot)
    assert (row.target, row.copied, row.wanted) == ([3, 4], 250, 2000)
    (unknown,) = move_rows({tp: PartitionReassignment([3, 1], [3], [1])}, None)
    assert unknown.copied is None and unknown.wanted is None


@pytest.mark.server
def test_the_cluster_shows_brokers_directories_and_settings(browser: Browser) -> None:
    asyncio.run(measured(browser))
    text = browser.text("/cluster")
    assert "Cluster id" in text and "Log directories" in text and "No partition is being moved" in text
    settings = browser.text("/cluster/brokers/1?q=log.retention.ms")
    assert "log.retention.ms" in settings and "num.io.threads" not in settings
    assert browser.get("/cluster/brokers/77").status_code == 404


@pytest.mark.server
def test_what_the_brokers_do_not_have_is_said_and_has_no_form(browser: Browser) -> None:
    text = browser.text("/access")
    assert "The brokers do not have this" in text and "Add a rule" not in text


@pytest.mark.server
def test_an_open_transaction_is_shown_and_aborted(browser: Browser, ottla_server: Serving | Elsewhere) -> None:
    name = f"console-tx-{uuid.uuid4().hex[:8]}"

    async def run() -> tuple[str, str, str]:
        async with Admin(bootstrap_servers=ottla_server.bootstrap) as admin:
            await admin.create_topic(NewTopic(name, 1, 1))
        async with Producer(bootstrap_servers=ottla_server.bootstrap, transactional_id=name) as producer:
            await producer.init_transactions()
            producer.begin()
            await (await producer.send(name, b"x"))
            loop = asyncio.get_running_loop()
            shown = await loop.run_in_executor(None, browser.text, f"/transactions?q={name}")
            form = {"id": name, "confirm": name}
            answer = await loop.run_in_executor(None, lambda: browser.post("/transactions/abort", form).text)
            after = await loop.run_in_executor(None, browser.text, f"/transactions?q={name}")
            return shown, seen(answer), after

    shown, answer, after = asyncio.run(run())
    assert re.search(rf"{name} .*Ongoing", shown) and f"{name}-0" in shown
    assert "was aborted, and its producer fenced" in answer
    assert "Ongoing" not in after.partition("Transactional ids")[2].partition(name)[2]


# With an authorizer


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with Serving(tmp_path_factory.mktemp("guarded") / "data", settings=settings) as server:
        yield server


@pytest.mark.server
def test_access_rules_are_added_and_removed(guarded: Serving, tmp_path: Path) -> None:
    form = {
        "principal": "User:alice", "permission": "Allow", "operation": "Read", "resource_type": "Topic", "pattern_type": "Prefixed",
        "name": "orders-", "host": "*",
    }  # fmt: skip
    with browsing(guarded.bootstrap, audit=tmp_path / "audit") as browser:
        assert "The rule was added: Allow User:alice from * Read on Topic orders-*" in seen(browser.post("/access/acls/add", form).text)
        assert re.search(r"User:alice Allow Read Topic orders-\S* \*", browser.text("/access"))
        assert "No rule matches" in browser.text("/access?q=bob")
        assert browser.post("/access/acls/add", {**form, "principal": "alice"}).status_code == 400
        assert "The rule was removed" in seen(browser.post("/access/acls/remove", form).text)
        assert "There are no access rules" in browser.text("/access")
    actions = [json.loads(line)["action"] for line in (tmp_path / "audit").read_text().splitlines()]
    assert actions == ["acl.add", "acl.add", "acl.remove"]


@pytest.mark.server
def test_users_and_quotas_are_set_and_removed(guarded: Serving, tmp_path: Path) -> None:
    with browsing(guarded.bootstrap, audit=tmp_path / "audit") as browser:
        user = {"name": "alice", "mechanism": "SCRAM-SHA-256"}
        assert "was set" in seen(browser.post("/access/users", {**user, "password": "open sesame"}).text)
        assert "alice SCRAM-SHA-256 4,096" in browser.text("/access/users")
        assert "was removed" in seen(browser.post("/access/users/remove", user).text)
        quota = {"user": "alice", "client_id": "", "ip": "", "quota": "producer_byte_rate", "value": "1048576"}
        browser.post("/access/quotas", quota)
        assert "user alice producer_byte_rate bytes/s of Produce 1,048,576" in browser.text("/access/quotas")
        assert browser.post("/access/quotas", {**quota, "user": ""}).status_code == 400
        browser.post("/access/quotas", {**quota, "value": ""})
        assert "There are no quotas" in browser.text("/access/quotas")
    assert "sesame" not in (tmp_path / "audit").read_text()

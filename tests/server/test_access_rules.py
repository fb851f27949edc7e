"""Access rules of a real server: the command line, the admin client, the audit log, the forwarding between brokers of a process."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from commands import Ottla, documents, good, refused, rows
from ottla import Admin, NewTopic, Producer, Resource
from ottla.base.acls import Operation, ResourceType
from ottla.base.origin import Origin
from ottla.broker.effects import Audit
from ottla.broker.events import RequestArrived
from ottla.cli.main import main
from ottla.errors import InvalidRequest, KafkaError, TopicAuthorizationFailed
from ottla.results import Acl, AclFilter, AclOperation, AclPatternType, AclPermission, AclResourceType
from ottla.server import audit
from serving import Serving

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root",
    # Clients do not authenticate, so that they are all User:ANONYMOUS.
    "allow.everyone.if.no.acl.found": "true",
}
ANONYMOUS = "User:ANONYMOUS"

pytestmark = pytest.mark.server


@pytest.fixture
def ottla() -> Ottla:
    return lambda *arguments, **more: CliRunner().invoke(main, list(arguments), prog_name="ottla", **more)


def event(**fields: Any) -> Audit:
    call: Any = RequestArrived(
        connection=1, correlation_id=1, api_key=0, api_version=9, client_id='a"\nb', body=None,  # type: ignore[arg-type]
        origin=Origin(host="10.0.0.7", principal="User:alice"),
    )  # fmt: skip
    given = {"allowed": False, "operation": Operation.WRITE, "resource_type": ResourceType.TOPIC, "name": "t", "rule": "r", "times": 2}
    return Audit(call=call, **{**given, **fields})


def test_a_line_of_the_audit_log_is_one_json_object_whatever_a_client_sends() -> None:
    line = audit.line_of(event(name="x\ny"), broker_id=1, wall_ms=1_700_000_000_123)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.123Z", "broker": 1, "allowed": False, "principal": "User:alice", "host": "10.0.0.7",
        "listener": "PLAINTEXT", "client_id": 'a"\nb', "request": "Produce", "operation": "Write", "resource_type": "Topic",
        "resource": "x\ny", "times": 2, "rule": "r",
    }  # fmt: skip


def test_refusals_have_level_info_and_permissions_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "ottla.audit"):
        audit.write(event(), broker_id=1, wall_ms=0)
        audit.write(event(allowed=True), broker_id=1, wall_ms=0)
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.DEBUG]


def test_a_line_of_the_audit_log_has_the_beginning_of_a_long_name() -> None:
    line = audit.line_of(event(name="g" * 30_000), broker_id=1, wall_ms=0)
    assert len(line) < 1_000
    assert json.loads(line)["resource"] == "g" * 300 + "… (30000 characters)"


def test_the_audit_log_is_closed_to_other_users(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    handler = audit.open_audit_log(str(path))
    try:
        audit.write(event(), broker_id=1, wall_ms=0)
    finally:
        audit.close_audit_log(handler)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(path.read_text().splitlines()) == 1
    assert logging.getLogger("ottla.audit").propagate


def test_rules_are_added_tested_listed_and_removed_by_the_command_line(tmp_path: Path, ottla: Ottla) -> None:
    log = tmp_path / "audit.jsonl"
    with Serving(tmp_path / "data", brokers=2, settings={**AUTHORIZER, "ottla.audit.log": str(log)}) as server:

        def at(*words: str, **more: Any) -> Any:
            return ottla("acl", *words, "-b", server.bootstrap, **more)

        def read(*words: str) -> Any:
            return documents(at(*words, "-o", "json"), "acl", words[0])

        with Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topics([NewTopic("secret", 2), NewTopic("open", 2)])
            assert good(at("add", "--principal", ANONYMOUS, "--operation", "read,describe", "-t", "open", "--prefix")) == (
                f"Allow {ANONYMOUS} from * Read on Topic open*\tadded\nAllow {ANONYMOUS} from * Describe on Topic open*\tadded\n"
            )
            good(at("add", "--principal", "User:alice", "--operation", "all", "-t", "secret"))
            assert [(one["operation"], one["allowed"]) for one in read("test", "--principal", ANONYMOUS, "-t", "open")][:2] == [
                ("Read", True), ("Write", False),
            ]  # fmt: skip
            denied = at("test", "--principal", ANONYMOUS, "-t", "secret", "--operation", "write")
            assert denied.exit_code == 1 and "no matching rule" in denied.stdout
            assert rows(at("test", "--principal", "User:root", "-t", "secret", "--operation", "write")).startswith("Write\tyes\tsuper user")
            assert "no meaning for Topic" in refused(at("add", "--principal", ANONYMOUS, "--operation", "ClusterAction", "-t", "x"), code=2)
            assert "write User:alice" in refused(at("add", "--principal", "alice", "--operation", "read", "-t", "x"), code=2)

            with Producer(bootstrap_servers=server.bootstrap, enable_idempotence=False) as producer, pytest.raises(KafkaError):
                producer.send("secret", b"v").result()
            [first, *_] = [json.loads(line) for line in log.read_text().splitlines()]
            assert (first["principal"], first["host"], first["resource"], first["allowed"]) == (ANONYMOUS, "127.0.0.1", "secret", False)
            counted = [one for one in admin.describe_denied_accesses().values() if isinstance(one, dict)]
            assert sum(sum(one.values()) for one in counted) >= 1

            assert [one["principal"] for one in read("list", "-t", "secret")] == ["User:alice"]
            assert len(read("list", "-t", "open-1")) == 2 and read("list", "-t", "open-1", "--exact") == []
            assert len(read("remove", "--principal", ANONYMOUS, "--dry-run")) == 2
            good(at("remove", "--principal", ANONYMOUS, "-y"))
            assert [one["principal"] for one in read("list")] == ["User:alice"]
        doctor = ottla("doctor", "-b", server.bootstrap, "--check", "access", "-o", "json")
        evidence = {one["what"]: one["evidence"] for one in json.loads(doctor.stdout)["findings"]}
        assert ANONYMOUS in evidence["Principals without an access rule were refused"]


def test_the_admin_client_describes_creates_and_deletes_rules(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", settings=AUTHORIZER) as server, Admin(bootstrap_servers=server.bootstrap) as admin:
        mine = Acl(principal="User:alice", operation=AclOperation.READ, resource_type=AclResourceType.TOPIC, name="t")
        denied = Acl(
            principal="User:bob", operation=AclOperation.ALL, resource_type=AclResourceType.GROUP, name="g", host="10.0.0.7",
            pattern_type=AclPatternType.PREFIXED, permission=AclPermission.DENY,
        )  # fmt: skip
        wrong = Acl(principal="alice", operation=AclOperation.READ, resource_type=AclResourceType.TOPIC, name="t")
        outcomes = admin.create_acls([mine, denied, wrong])
        assert outcomes[mine] is None and outcomes[denied] is None and isinstance(outcomes[wrong], InvalidRequest)
        assert set(admin.describe_acls()) == {mine, denied}
        by_name = AclFilter(resource_type=AclResourceType.GROUP, name="g-1", pattern_type=AclPatternType.MATCH)
        assert admin.describe_acls(by_name) == [denied]
        nobody, all_of_them = AclFilter(principal="User:carol"), AclFilter()
        assert admin.delete_acls([nobody, all_of_them]) == {nobody: {}, all_of_them: {mine: None, denied: None}}
        assert admin.describe_acls() == []


def test_clients_name_the_principal_that_was_refused(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", settings=AUTHORIZER) as server, Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topics([NewTopic("t", 1)])
        admin.create_acls([Acl(principal="User:alice", operation=AclOperation.ALL, resource_type=AclResourceType.TOPIC, name="t")])
        with pytest.raises(TopicAuthorizationFailed, match=r"User:ANONYMOUS may not DescribeConfigs Topic t from 127.0.0.1"):
            admin.describe_config(Resource.topic("t"))

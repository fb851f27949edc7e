"""Apache Kafka's kafka-acls.sh on Ottla: it adds, lists and removes access rules, as Ottla's own admin client sees them."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_tools import Run

from ottla import Admin
from ottla.results import AclFilter, AclOperation, AclPatternType, AclPermission, AclResourceType
from serving import Serving

pytestmark = [pytest.mark.interop, pytest.mark.server, pytest.mark.timeout(240), pytest.mark.usefixtures("own_server_only")]
ACLS = "org.apache.kafka.tools.AclCommand"
SETTINGS = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}


def test_kafkas_tool_manages_the_rules_of_ottla(tmp_path: Path, run: Run) -> None:
    with Serving(tmp_path / "data", settings=SETTINGS) as server, Admin(bootstrap_servers=server.bootstrap) as admin:
        at = ("--bootstrap-server", server.bootstrap)
        run(ACLS, *at, "--add", "--allow-principal", "User:alice", "--producer", "--topic", "orders", "--transactional-id", "billing")
        run(
            ACLS,
            *at,
            "--add",
            "--allow-principal",
            "User:alice",
            "--consumer",
            "--topic",
            "orders",
            "--group",
            "g-",
            "--resource-pattern-type",
            "prefixed",
        )
        run(ACLS, *at, "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.7", "--operation", "All", "--cluster")
        mine = admin.describe_acls(AclFilter(principal="User:alice"))
        assert {(one.resource_type, one.name, one.pattern_type, one.operation) for one in mine} == {
            (AclResourceType.TOPIC, "orders", AclPatternType.LITERAL, AclOperation.WRITE),
            (AclResourceType.TOPIC, "orders", AclPatternType.LITERAL, AclOperation.DESCRIBE),
            (AclResourceType.TOPIC, "orders", AclPatternType.LITERAL, AclOperation.CREATE),
            (AclResourceType.TRANSACTIONAL_ID, "billing", AclPatternType.LITERAL, AclOperation.WRITE),
            (AclResourceType.TRANSACTIONAL_ID, "billing", AclPatternType.LITERAL, AclOperation.DESCRIBE),
            (AclResourceType.TOPIC, "orders", AclPatternType.PREFIXED, AclOperation.READ),
            (AclResourceType.TOPIC, "orders", AclPatternType.PREFIXED, AclOperation.DESCRIBE),
            (AclResourceType.GROUP, "g-", AclPatternType.PREFIXED, AclOperation.READ),
        }  # fmt: skip
        [other] = admin.describe_acls(AclFilter(principal="User:bob"))
        assert (other.permission, other.host, other.resource_type) == (AclPermission.DENY, "10.0.0.7", AclResourceType.CLUSTER)

        listed = run(ACLS, *at, "--list", "--topic", "orders-1", "--resource-pattern-type", "match")
        assert "name=orders, patternType=PREFIXED" in listed and "patternType=LITERAL" not in listed
        assert "permissionType=DENY" in run(ACLS, *at, "--list", "--principal", "User:bob")
        run(ACLS, *at, "--remove", "--force", "--topic", "orders")
        assert {one.resource_type for one in admin.describe_acls(AclFilter(pattern_type=AclPatternType.LITERAL))} == {
            AclResourceType.TRANSACTIONAL_ID, AclResourceType.CLUSTER,
        }  # fmt: skip
        run(ACLS, *at, "--remove", "--force", "--topic", "*", "--resource-pattern-type", "any")


def test_kafkas_tool_says_that_there_is_no_authorizer(tmp_path: Path, run: Run) -> None:
    with Serving(tmp_path / "data") as server:
        said = run(ACLS, "--bootstrap-server", server.bootstrap, "--list", code=1)
        assert "No Authorizer" in said or "authorizer.class.name" in said or "SecurityDisabled" in said

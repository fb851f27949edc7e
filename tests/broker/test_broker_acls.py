"""DescribeAcls, CreateAcls and DeleteAcls."""

from typing import Any

import pytest
from access_rules import ALICE, CLUSTER, GROUP, ROOT, TOPIC, grant, guarded, revoke, rule
from cluster import Broker, Cluster, batch, produce_request

from ottla.base.acls import Operation, PatternType, Permission
from ottla.base.ports import NodeState, Op
from ottla.broker.controller.access_rules import NOTIFICATIONS_MAX
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.errors import InvalidRequest, SecurityDisabled, TopicAuthorizationFailed
from ottla.wire.messages.create_acls import CreateAclsRequest
from ottla.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.wire.messages.describe_acls import DescribeAclsRequest

READ, WRITE, ALL = Operation.READ, Operation.WRITE, Operation.ALL
EVERYTHING: dict[str, Any] = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None, "host_filter": None,
    "operation": 1, "permission_type": 1,
}  # fmt: skip


def described(broker: Broker, principal: str = ROOT, **fields: Any) -> list[tuple[int, str, int, str, int]]:
    answer = broker.ask(DescribeAclsRequest(**{**EVERYTHING, **fields}), 3, principal=principal)
    assert answer.error_code == 0, answer
    return [
        (resource.pattern_type, resource.resource_name, acl.operation, acl.principal, acl.permission_type)
        for resource in answer.resources
        for acl in resource.acls
    ]


def nodes(cluster: Cluster, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}

    def noted(state: NodeState) -> None:
        if state.data:
            found[state.path] = state.data

    session = cluster.store.session()
    session.watch(prefix, noted)
    session.deliver()
    session.close()
    return found


@pytest.mark.parametrize("brokers", [1, 3])
def test_rules_reach_every_broker_through_any_broker(brokers: int) -> None:
    cluster = guarded(brokers)
    for number, broker in enumerate(cluster.brokers.values()):
        wanted = [rule(READ, name=f"t{number}"), rule(READ, GROUP, f"g{number}", prefixed=True)]
        answer = broker.ask(CreateAclsRequest(creations=wanted), 3, principal=ROOT)
        assert [result.error_code for result in answer.results] == [0, 0]
    for broker in cluster.brokers.values():
        assert len(described(broker)) == 2 * brokers
    assert len(revoke(cluster, resource_type_filter=GROUP)) == brokers
    for broker in cluster.brokers.values():
        assert [name for _, name, *_ in described(broker)] == [f"t{number}" for number in range(brokers)]


def test_rules_are_in_the_store_as_kafka_writes_them() -> None:
    cluster = guarded()
    grant(cluster, rule(READ), rule(WRITE, deny=True), rule(ALL, name="p-", prefixed=True))
    [literal] = nodes(cluster, "/kafka-acl/Topic").items()
    assert literal[0] == "/kafka-acl/Topic/t"
    assert layout.decode_acls(literal[1]) == (
        (ALICE, "*", READ, Permission.ALLOW),
        (ALICE, "*", WRITE, Permission.DENY),
    )
    assert list(nodes(cluster, "/kafka-acl-extended/prefixed/Topic")) == ["/kafka-acl-extended/prefixed/Topic/p-"]
    assert nodes(cluster, "/kafka-acl-changes") == {"/kafka-acl-changes/acl_changes_0000000000": b"TOPIC:t"}
    assert len(nodes(cluster, "/kafka-acl-extended-changes")) == 1
    revoke(cluster)
    assert nodes(cluster, "/kafka-acl/Topic") == {}


def test_rules_that_kafka_wrote_count() -> None:
    cluster = guarded()
    content = b'{"version":1,"acls":[{"host":"*","permissionType":"Allow","operation":"Write","principal":"User:alice"}]}'
    cluster[1].session.submit((Op("create", "/kafka-acl/Topic/t", content),), lambda result: None)
    cluster.run()
    answer = cluster[1].ask(produce_request(batch(b"v")), 12, principal=ALICE)
    assert answer.responses[0].partition_responses[0].error_code == 0
    grant(cluster, rule(READ))
    assert len(described(cluster[1])) == 2


def test_rules_survive_a_restart() -> None:
    cluster = guarded()
    grant(cluster, rule(WRITE))
    broker = cluster.restart(1)
    assert len(described(broker)) == 1
    assert broker.ask(produce_request(batch(b"v")), 12, principal=ALICE).responses[0].partition_responses[0].error_code == 0


def test_a_rule_is_added_once() -> None:
    cluster = guarded()
    grant(cluster, rule(READ), rule(READ))
    grant(cluster, rule(READ))
    assert len(described(cluster[1])) == 1
    assert len(nodes(cluster, "/kafka-acl-changes")) == 1, "nothing changed the second time"


def test_a_filter_selects_by_each_of_its_conditions() -> None:
    cluster = guarded()
    grant(
        cluster,
        rule(READ, name="orders"),
        rule(WRITE, name="orders", principal="User:bob", deny=True, host="10.0.0.7"),
        rule(READ, name="ord", prefixed=True),
        rule(READ, name="*"),
        rule(READ, GROUP, "orders"),
    )
    broker, literal, prefixed = cluster[1], PatternType.LITERAL, PatternType.PREFIXED
    by_name: dict[str, Any] = {"resource_type_filter": TOPIC, "resource_name_filter": "orders"}
    assert len(described(broker)) == 5
    assert {(kind, name) for kind, name, *_ in described(broker, **by_name)} == {(literal, "orders")}
    assert {(kind, name) for kind, name, *_ in described(broker, **by_name, pattern_type_filter=2)} == {
        (literal, "orders"),
        (literal, "*"),
        (prefixed, "ord"),
    }
    assert len(described(broker, principal_filter="User:bob")) == 1
    assert len(described(broker, host_filter="10.0.0.7")) == len(described(broker, permission_type=Permission.DENY)) == 1
    assert len(described(broker, operation=READ)) == 4
    assert len(revoke(cluster, **by_name, pattern_type_filter=2, operation=READ)) == 3
    assert len(described(broker)) == 2


def test_a_filter_that_matches_nothing_succeeds_and_one_that_is_wrong_fails_alone() -> None:
    cluster = guarded()
    grant(cluster, rule(READ))
    each: list[dict[str, Any]] = [{"resource_name_filter": "u"}, {"operation": 0}, {}, {}]
    filters = [DeleteAclsFilter(**{**EVERYTHING, **fields}) for fields in each]
    answer = cluster[1].ask(DeleteAclsRequest(filters=filters), 3, principal=ROOT)
    assert [(result.error_code, len(result.matching_acls)) for result in answer.filter_results] == [
        (0, 0),
        (InvalidRequest.code, 0),
        (0, 1),
        (0, 1),
    ]
    assert cluster[1].ask(DescribeAclsRequest(**{**EVERYTHING, "permission_type": 0}), 3, principal=ROOT).error_code == InvalidRequest.code


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"resource_type": 0}, "unknown value"),
        ({"resource_type": 1}, "resources of one type"),
        ({"resource_type": 9}, "unknown value"),
        ({"resource_pattern_type": 2}, "LITERAL or PREFIXED"),
        ({"operation": 1}, "one operation or ALL"),
        ({"operation": 99}, "unknown value"),
        ({"permission_type": 1}, "allows or denies"),
        ({"resource_name": ""}, "names a resource"),
        ({"resource_type": 4, "resource_name": "mine"}, "kafka-cluster"),
        ({"principal": "alice"}, "User:NAME"),
        ({"principal": "User:"}, "User:NAME"),
        ({"host": ""}, "a host or \\*"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_and_the_others_are_added(fields: dict[str, Any], problem: str) -> None:
    cluster = guarded()
    wrong = rule(READ)
    for name, value in fields.items():
        setattr(wrong, name, value)
    answer = cluster[1].ask(CreateAclsRequest(creations=[wrong, rule(WRITE)]), 3, principal=ROOT)
    refused, added = answer.results
    assert (refused.error_code, added.error_code) == (InvalidRequest.code, 0)
    assert problem.replace("\\", "") in refused.error_message
    assert len(described(cluster[1])) == 1


def test_rules_of_many_patterns_are_written_in_one_request() -> None:
    cluster = guarded()
    grant(cluster, *(rule(READ, name=f"topic-{number}") for number in range(3 * NOTIFICATIONS_MAX)))
    assert len(described(cluster[1])) == 3 * NOTIFICATIONS_MAX
    assert len(revoke(cluster)) == 3 * NOTIFICATIONS_MAX and described(cluster[1]) == []


def test_old_notifications_are_deleted_and_numbers_go_on() -> None:
    cluster = guarded()
    for part in range(0, 3 * NOTIFICATIONS_MAX, NOTIFICATIONS_MAX):
        grant(cluster, *(rule(READ, name=f"topic-{number}") for number in range(part, part + NOTIFICATIONS_MAX)))
    grant(cluster, rule(READ, name="last"))
    cluster.pass_ms(3000)
    kept = nodes(cluster, "/kafka-acl-changes")
    assert len(kept) == NOTIFICATIONS_MAX and max(kept).endswith(f"{3 * NOTIFICATIONS_MAX:010d}")


def test_a_change_that_was_faster_is_kept() -> None:
    cluster = guarded()
    grant(cluster, rule(READ))
    cluster.store_delivers = False
    sent = [cluster[1].send(CreateAclsRequest(creations=[rule(operation)]), 3, principal=ROOT) for operation in (WRITE, Operation.DELETE)]
    cluster.store_delivers = True
    cluster.run()
    assert [each.answer.results[0].error_code for each in sent] == [0, 0]
    assert {operation for _, _, operation, *_ in described(cluster[1])} == {READ, WRITE, Operation.DELETE}


def test_a_broker_without_an_authorizer_has_no_rules() -> None:
    broker = Cluster()[1]
    assert broker.ask(DescribeAclsRequest(**EVERYTHING), 3).error_code == SecurityDisabled.code
    created = broker.ask(CreateAclsRequest(creations=[rule(READ), rule(WRITE)]), 3)
    assert [result.error_code for result in created.results] == [SecurityDisabled.code] * 2
    deleted = broker.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**EVERYTHING)]), 3)
    assert [result.error_code for result in deleted.filter_results] == [SecurityDisabled.code]


def test_a_removed_right_counts_when_the_answer_is_there() -> None:
    """Line 83."""
    cluster = guarded(3, partitions=3)
    grant(cluster, rule(WRITE))
    revoke(cluster, principal_filter=ALICE)
    for partition in range(3):
        leader = cluster.leading("t", partition)
        answer = leader.ask(produce_request(batch(b"v"), partition=partition), 12, principal=ALICE)
        assert answer.responses[0].partition_responses[0].error_code == TopicAuthorizationFailed.code


def test_who_may_alter_the_cluster_may_give_rights() -> None:
    cluster = guarded()
    grant(cluster, rule(Operation.ALTER, CLUSTER))
    answer = cluster[1].ask(CreateAclsRequest(creations=[rule(WRITE)]), 3, principal=ALICE)
    assert answer.results[0].error_code == 0
    assert len(described(cluster[1], principal=ALICE)) == 2
    assert cluster[1].ask(CreateAclsRequest(creations=[rule(WRITE)]), 3, principal="User:bob").results[0].error_code == (
        errors.ClusterAuthorizationFailed.code
    )

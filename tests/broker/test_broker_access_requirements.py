"""Every API refuses a client without rights as Kafka does, and serves it with exactly the rules that Kafka requires."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from access_rules import ALICE, AUTHORIZER, CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID, grant, revoke, rule
from cluster import Cluster, batch, produce
from groups import cluster_of_groups, commit, coordinating
from plain_messages import request
from sample_requests import REQUESTS

from ottla.base.acls import OPERATIONS, Operation, ResourceType
from ottla.broker import handlers
from ottla.broker.apis import HANDLERS
from ottla.broker.security.requirements import ERRORS, REQUIREMENTS
from ottla.wire.messages import API
from ottla.wire.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from ottla.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from ottla.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from ottla.wire.messages.renew_delegation_token import RenewDelegationTokenRequest

REFUSALS = {error.code for error in ERRORS.values()}
ILLEGAL_SASL_STATE, OWNER_MISMATCH = 34, 63
OF_BOB = {"owner_principal_type": "User", "owner_principal_name": "bob"}
READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, ACT = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
ALTER_CONFIGS, DESCRIBE_CONFIGS = Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS


@dataclass
class Row:
    """Rules that a client needs in this order, with the error that it gets without each."""

    steps: list[tuple[int, AclCreation]]
    #: Other errors of the request once it is allowed.
    other: set[int] = field(default_factory=set)
    #: Fields of the request besides those of the sample.
    fields: dict[str, Any] = field(default_factory=dict)


def below(operation: Operation, kind: Any, prefix: str) -> AclCreation:
    return rule(operation, kind, prefix, prefixed=True)


#: By API: the sample request needs this.
NEEDS = {
    "Produce": Row([(29, rule(WRITE))]),
    "Fetch": Row([(29, rule(READ))]),
    "ListOffsets": Row([(29, rule(DESCRIBE))]),
    "Metadata": Row([(29, rule(READ)), (29, below(DESCRIBE, TOPIC, "auto")), (29, below(CREATE, TOPIC, "auto"))], {3}),
    "OffsetCommit": Row([(30, rule(READ, GROUP, "o")), (29, rule(READ))]),
    "OffsetFetch": Row([(30, rule(DESCRIBE, GROUP, "o"))]),
    "FindCoordinator": Row([(30, rule(READ, GROUP, "g")), (30, rule(DELETE, GROUP, "h"))]),
    "JoinGroup": Row([(30, below(READ, GROUP, "join"))]),
    "SyncGroup": Row([(30, below(READ, GROUP, "sync"))]),
    "Heartbeat": Row([(30, below(READ, GROUP, "beat"))]),
    "LeaveGroup": Row([(30, below(READ, GROUP, "leave"))]),
    "DescribeGroups": Row([(30, below(DESCRIBE, GROUP, "described"))]),
    "ListGroups": Row([]),
    "ApiVersions": Row([]),
    "CreateTopics": Row([(29, below(CREATE, TOPIC, "new")), (29, below(DESCRIBE_CONFIGS, TOPIC, "new"))]),
    "DeleteTopics": Row([(29, below(DELETE, TOPIC, "gone"))]),
    "DeleteRecords": Row([(29, rule(DELETE))]),
    "InitProducerId": Row([(31, rule(Operation.IDEMPOTENT_WRITE, CLUSTER))]),
    "AddPartitionsToTxn": Row([(53, below(WRITE, TRANSACTIONAL_ID, "add")), (29, rule(WRITE))]),
    "AddOffsetsToTxn": Row([(53, below(WRITE, TRANSACTIONAL_ID, "offsets")), (30, rule(READ, GROUP, "o"))]),
    "EndTxn": Row([(53, below(WRITE, TRANSACTIONAL_ID, "end"))]),
    "WriteTxnMarkers": Row([(31, rule(ACT, CLUSTER))]),
    "TxnOffsetCommit": Row([(53, below(WRITE, TRANSACTIONAL_ID, "txn")), (30, rule(READ, GROUP, "o")), (29, rule(READ))]),
    "DescribeTransactions": Row([(53, rule(DESCRIBE, TRANSACTIONAL_ID, "known"))]),
    "ListTransactions": Row([]),
    "OffsetForLeaderEpoch": Row([(29, rule(DESCRIBE))]),
    "DescribeConfigs": Row([(29, rule(DESCRIBE_CONFIGS))]),
    "AlterConfigs": Row([(29, rule(ALTER_CONFIGS))]),
    "IncrementalAlterConfigs": Row([(29, rule(ALTER_CONFIGS))]),
    "DescribeClientQuotas": Row([(31, rule(DESCRIBE_CONFIGS, CLUSTER))]),
    "AlterClientQuotas": Row([(31, rule(ALTER_CONFIGS, CLUSTER))]),
    "UpdateFeatures": Row([(31, rule(ALTER, CLUSTER))]),
    "DescribeLogDirs": Row([(31, rule(DESCRIBE, CLUSTER))]),
    "CreatePartitions": Row([(29, below(ALTER, TOPIC, "grown"))]),
    "DeleteGroups": Row([(30, below(DELETE, GROUP, "left"))]),
    "ElectLeaders": Row([(31, rule(ALTER, CLUSTER))]),
    "AlterPartitionReassignments": Row([(31, rule(ALTER, CLUSTER))]),
    "ListPartitionReassignments": Row([(31, rule(DESCRIBE, CLUSTER))]),
    "OffsetDelete": Row([(30, below(DELETE, GROUP, "less")), (29, rule(READ))]),
    "DescribeAcls": Row([(31, rule(DESCRIBE, CLUSTER))]),
    "CreateAcls": Row([(31, rule(ALTER, CLUSTER))]),
    "DeleteAcls": Row([(31, rule(ALTER, CLUSTER))]),
    "DescribeQuorum": Row([(31, rule(ALTER, CLUSTER))], {35}),
    "AlterPartition": Row([(31, rule(ACT, CLUSTER))]),
    "Envelope": Row([(31, rule(ACT, CLUSTER))]),
    "DescribeCluster": Row([]),
    "DescribeProducers": Row([(29, rule(READ))]),
    "UnregisterBroker": Row([(31, rule(ALTER, CLUSTER))], {35}),
    "ConsumerGroupHeartbeat": Row([(30, below(READ, GROUP, "next")), (29, rule(DESCRIBE))]),
    "ConsumerGroupDescribe": Row([(30, rule(DESCRIBE, GROUP, "n"))], {69}),
    "GetTelemetrySubscriptions": Row([]),
    "PushTelemetry": Row([], {117}),
    "ListConfigResources": Row([(31, rule(DESCRIBE_CONFIGS, CLUSTER))]),
    "DescribeTopicPartitions": Row([(29, rule(DESCRIBE))]),
    # Behind authentication both are out of place, whatever the rules are.
    "SaslHandshake": Row([], {ILLEGAL_SASL_STATE}),
    "SaslAuthenticate": Row([], {ILLEGAL_SASL_STATE}),
    "DescribeUserScramCredentials": Row([(31, rule(DESCRIBE, CLUSTER))]),
    "AlterUserScramCredentials": Row([(31, rule(ALTER, CLUSTER))]),
    "CreateDelegationToken": Row([(65, rule(Operation.CREATE_TOKENS, ResourceType.USER, "User:bob"))], fields=OF_BOB),
    # Tokens of the client itself need no rule; those of others: the test below.
    "RenewDelegationToken": Row([]),
    "ExpireDelegationToken": Row([]),
    "DescribeDelegationToken": Row([]),
}


def codes(message: object) -> set[int]:
    """Every error code in a message, however deep."""
    found: set[int] = set()
    for name in getattr(message, "__struct_fields__", ()):
        value = getattr(message, name)
        if name.endswith("error_code"):
            found.add(value)
        for part in value if isinstance(value, list) else [value]:
            found |= codes(part)
    return found


def cluster_with_everything() -> Cluster:
    """Helpers of tests send without a name, so that is a super user here; alice has no rights."""
    settings: dict[str, Any] = {
        **AUTHORIZER, "super.users": "User:ANONYMOUS;User:root;User:broker", "delegation_token_secret_key": "key",
        "ottla_client_metrics_enable": "true",
    }  # fmt: skip
    cluster = cluster_of_groups(group_initial_rebalance_delay_ms="0", **settings)
    broker = coordinating(cluster)
    assert produce(broker, batch(b"a")).error_code == 0
    assert commit(broker, "o", "t", 0, 1) == 0
    return cluster


def ask(cluster: Cluster, api: str, n: int) -> Any:
    version, fields = REQUESTS[api]
    sent = cluster[1].send(request(api, {**fields(cluster, n), **NEEDS[api].fields}), version, principal=ALICE)
    cluster.pass_ms(1000)
    return sent.answer


@pytest.mark.parametrize("api", sorted(NEEDS))
def test_an_api_requires_what_kafka_requires(api: str) -> None:
    cluster, row = cluster_with_everything(), NEEDS[api]
    # Multiples of 6, for which the sample requests do not wait.
    for number, (error, needed) in enumerate(row.steps, start=1):
        assert codes(ask(cluster, api, 6 * number)) & REFUSALS == {error}, f"without {needed}"
        granted = cluster[1].ask(CreateAclsRequest(creations=[needed]), 3)
        assert codes(granted) == {0}, granted
    assert codes(ask(cluster, api, 6 * len(row.steps) + 6)) <= {0} | row.other


def test_tokens_of_others_are_left_alone_and_seen_with_either_rule() -> None:
    cluster = cluster_with_everything()
    made = cluster[1].ask(CreateDelegationTokenRequest(max_lifetime_ms=-1), 3, principal="User:bob")
    for hidden in (RenewDelegationTokenRequest(hmac=made.hmac), ExpireDelegationTokenRequest(hmac=made.hmac)):
        assert cluster[1].ask(hidden, 2, principal=ALICE).error_code == OWNER_MISMATCH

    def seen() -> int:
        return len(cluster[1].ask(DescribeDelegationTokenRequest(owners=None), 3, principal=ALICE).tokens)

    assert seen() == 0
    for needed in (
        rule(DESCRIBE, ResourceType.DELEGATION_TOKEN, made.token_id),
        rule(Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:bob"),
    ):
        grant(cluster, needed)
        assert seen() == 1, needed
        revoke(cluster)
        assert seen() == 0, needed


def test_every_api_is_in_the_table_and_tried() -> None:
    assert {API[key].name for key in HANDLERS} == set(NEEDS)
    for key in HANDLERS:
        assert REQUIREMENTS[key].name == API[key].name


def test_an_api_without_a_row_cannot_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(handlers.HANDLERS, 26)
    monkeypatch.delitem(REQUIREMENTS, 26)
    with pytest.raises(AssertionError, match="EndTxnRequest has a row"):
        handlers.handles(EndTxnRequest, (0, 5), refuse=handlers.whole_error(EndTxnResponse))(lambda node, call: EndTxnResponse())


def test_required_operations_exist_on_their_resources() -> None:
    for row in REQUIREMENTS.values():
        for required in (*row.request, *row.parts.values()):
            for each in (required, *required.alternatives):
                assert each.operation in (*OPERATIONS[each.resource_type], Operation.DELETE), row.name

"""What each API requires: one row per API. The checks and docs/reference/authorization.md are made from this table.

A row has requirements of the whole request, which are checked before the handler runs, and requirements of its parts, which the handler
checks for each resource, because a refusal of one does not fail the others. An API without a row cannot be registered.

Source: Kafka's KafkaApis, ControllerApis and AclApis, release 4.4.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.base.acls import CLUSTER_NAME, Operation, ResourceType
from ottla.wire import errors
from ottla.wire.errors import KafkaError

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

#: The error that refuses access to a resource of each type.
ERRORS: dict[ResourceType, type[KafkaError]] = {
    TOPIC: errors.TopicAuthorizationFailed,
    GROUP: errors.GroupAuthorizationFailed,
    CLUSTER: errors.ClusterAuthorizationFailed,
    TRANSACTIONAL_ID: errors.TransactionalIdAuthorizationFailed,
    ResourceType.DELEGATION_TOKEN: errors.DelegationTokenAuthorizationFailed,
    ResourceType.USER: errors.ClusterAuthorizationFailed,
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """An operation on a resource."""

    operation: Operation
    resource_type: ResourceType
    #: What a refusal answers, if it is not simply the error of the resource type.
    refusal: str = ""
    #: Of a request: the name of the resource in its body.
    name: Callable[[Any], str] | None = None
    #: Of a request: first version for which it applies.
    since: int = 0
    #: One of these is enough instead.
    alternatives: tuple["Requirement", ...] = ()
    #: Any resource of the type is enough.
    any_resource: bool = False
    #: False: a refusal selects or leaves out what is answered, so it is not in the audit log.
    audits_denied: bool = True

    @property
    def error(self) -> type[KafkaError]:
        """The error of a refusal."""
        return ERRORS[self.resource_type]


@dataclass(frozen=True, slots=True)
class Row:
    """The requirements of one API."""

    name: str
    #: Checked before the handler runs.
    request: tuple[Requirement, ...] = ()
    #: Checked by the handler, by part of the request or response.
    parts: Mapping[str, Requirement] = field(default_factory=dict)
    #: What the requirements do not say.
    note: str = ""


def _cluster(operation: Operation, **fields: Any) -> Requirement:
    return Requirement(operation, CLUSTER, name=lambda body: CLUSTER_NAME, **fields)


def _group(operation: Operation) -> Requirement:
    return Requirement(operation, GROUP, name=lambda body: str(body.group_id))


def _transactional_id(operation: Operation) -> Requirement:
    return Requirement(operation, TRANSACTIONAL_ID, name=lambda body: str(body.transactional_id))


_READ_TOPIC = Requirement(Operation.READ, TOPIC)
_DESCRIBE_TOPIC = Requirement(Operation.DESCRIBE, TOPIC)
_WRITE_TOPIC = Requirement(Operation.WRITE, TOPIC)
_FILTERED_CLUSTER_DESCRIBE = Requirement(Operation.DESCRIBE, CLUSTER, audits_denied=False)
_OPERATIONS = Requirement(Operation.DESCRIBE, CLUSTER, "authorized operations 0")
_ALTER_CONFIGS = {
    "topics": Requirement(Operation.ALTER_CONFIGS, TOPIC),
    "brokers": Requirement(Operation.ALTER_CONFIGS, CLUSTER),
    "groups": Requirement(Operation.ALTER_CONFIGS, GROUP),
}

#: By API key. Rows of APIs that this version does not have are here so that their handlers cannot be added without checks.
REQUIREMENTS: dict[int, Row] = {
    0: Row(
        "Produce",
        parts={"transactional id": Requirement(Operation.WRITE, TRANSACTIONAL_ID, "the error for every partition"), "topics": _WRITE_TOPIC},
        note="acks=0: an error closes the connection.",
    ),
    1: Row(
        "Fetch",
        parts={
            "topics": _READ_TOPIC,
            "follower": Requirement(Operation.CLUSTER_ACTION, CLUSTER, "TOPIC_AUTHORIZATION_FAILED for every partition"),
        },
        note="A follower needs no permission on topics. A waiting fetch is checked again before its response.",
    ),
    2: Row("ListOffsets", parts={"topics": _DESCRIBE_TOPIC}),
    3: Row(
        "Metadata",
        parts={
            "topics": Requirement(Operation.DESCRIBE, TOPIC, "the error without topic id; the error without name if requested by id"),
            "all topics": Requirement(Operation.DESCRIBE, TOPIC, "the topic is left out", audits_denied=False),
            "created topics": Requirement(
                Operation.CREATE,
                CLUSTER,
                audits_denied=False,
                alternatives=(Requirement(Operation.CREATE, TOPIC),),
                refusal="TOPIC_AUTHORIZATION_FAILED",
            ),
            "cluster operations": _OPERATIONS,
        },
    ),
    8: Row("OffsetCommit", (_group(Operation.READ),), {"topics": _READ_TOPIC}),
    9: Row(
        "OffsetFetch",
        parts={
            "groups": Requirement(Operation.DESCRIBE, GROUP),
            "topics": _DESCRIBE_TOPIC,
            "all topics": Requirement(Operation.DESCRIBE, TOPIC, "the topic is left out"),
        },
    ),
    10: Row(
        "FindCoordinator",
        parts={
            "groups": Requirement(Operation.DESCRIBE, GROUP),
            "transactional ids": Requirement(Operation.DESCRIBE, TRANSACTIONAL_ID),
        },
    ),
    11: Row("JoinGroup", (_group(Operation.READ),)),
    12: Row("Heartbeat", (_group(Operation.READ),)),
    13: Row("LeaveGroup", (_group(Operation.READ),)),
    14: Row("SyncGroup", (_group(Operation.READ),)),
    15: Row("DescribeGroups", parts={"groups": Requirement(Operation.DESCRIBE, GROUP)}),
    16: Row(
        "ListGroups",
        parts={
            "cluster": _FILTERED_CLUSTER_DESCRIBE,
            "groups": Requirement(Operation.DESCRIBE, GROUP, "the group is left out", audits_denied=False),
        },
        note="Either is enough.",
    ),
    17: Row("SaslHandshake", note="Part of authentication."),
    18: Row("ApiVersions", note="Every client may send it."),
    19: Row(
        "CreateTopics",
        parts={
            "topics": Requirement(
                Operation.CREATE,
                CLUSTER,
                audits_denied=False,
                alternatives=(Requirement(Operation.CREATE, TOPIC),),
                refusal="TOPIC_AUTHORIZATION_FAILED",
            ),
            "settings": Requirement(
                Operation.DESCRIBE_CONFIGS,
                TOPIC,
                "the topic's result has no settings, and TOPIC_AUTHORIZATION_FAILED for them",
                audits_denied=False,
            ),
        },
    ),
    20: Row(
        "DeleteTopics",
        parts={
            "cluster": Requirement(Operation.DELETE, CLUSTER, "the permissions on topics decide", audits_denied=False),
            "topics": Requirement(Operation.DELETE, TOPIC),
            "names": Requirement(Operation.DESCRIBE, TOPIC, "a topic named by id is answered without its name"),
        },
    ),
    21: Row("DeleteRecords", parts={"topics": Requirement(Operation.DELETE, TOPIC)}),
    22: Row(
        "InitProducerId",
        parts={
            "transactional id": Requirement(Operation.WRITE, TRANSACTIONAL_ID),
            "two-phase commit": Requirement(Operation.TWO_PHASE_COMMIT, TRANSACTIONAL_ID),
            "idempotent producer": Requirement(
                Operation.IDEMPOTENT_WRITE,
                CLUSTER,
                audits_denied=False,
                alternatives=(Requirement(Operation.WRITE, TOPIC, any_resource=True),),
            ),
        },
    ),
    23: Row(
        "OffsetForLeaderEpoch",
        parts={
            "topics": Requirement(
                Operation.CLUSTER_ACTION,
                CLUSTER,
                audits_denied=False,
                alternatives=(_DESCRIBE_TOPIC,),
                refusal="TOPIC_AUTHORIZATION_FAILED",
            )
        },
    ),
    24: Row(
        "AddPartitionsToTxn",
        (_cluster(Operation.CLUSTER_ACTION, since=4),),
        {
            "transactional id": Requirement(Operation.WRITE, TRANSACTIONAL_ID, "the error for every partition"),
            "topics": Requirement(Operation.WRITE, TOPIC, "the error, and OPERATION_NOT_ATTEMPTED for the other partitions"),
        },
        note="Clients send versions below 4, with the permissions of the parts; brokers send later ones.",
    ),
    25: Row("AddOffsetsToTxn", (_transactional_id(Operation.WRITE), _group(Operation.READ))),
    26: Row("EndTxn", (_transactional_id(Operation.WRITE),)),
    27: Row(
        "WriteTxnMarkers",
        (_cluster(Operation.ALTER, audits_denied=False, alternatives=(Requirement(Operation.CLUSTER_ACTION, CLUSTER),)),),
    ),
    28: Row("TxnOffsetCommit", (_transactional_id(Operation.WRITE), _group(Operation.READ)), {"topics": _READ_TOPIC}),
    29: Row("DescribeAcls", (_cluster(Operation.DESCRIBE),)),
    30: Row("CreateAcls", (_cluster(Operation.ALTER),)),
    31: Row("DeleteAcls", (_cluster(Operation.ALTER),)),
    32: Row(
        "DescribeConfigs",
        parts={
            "topics": Requirement(Operation.DESCRIBE_CONFIGS, TOPIC),
            "brokers": Requirement(Operation.DESCRIBE_CONFIGS, CLUSTER),
            "groups": Requirement(Operation.DESCRIBE_CONFIGS, GROUP),
        },
    ),
    33: Row("AlterConfigs", parts=_ALTER_CONFIGS),
    35: Row("DescribeLogDirs", (_cluster(Operation.DESCRIBE),)),
    36: Row("SaslAuthenticate", note="Part of authentication."),
    37: Row("CreatePartitions", parts={"topics": Requirement(Operation.ALTER, TOPIC)}),
    38: Row(
        "CreateDelegationToken",
        parts={"owner": Requirement(Operation.CREATE_TOKENS, ResourceType.USER, "DELEGATION_TOKEN_AUTHORIZATION_FAILED")},
        note="A token for another user needs the permission.",
    ),
    39: Row("RenewDelegationToken", note="The owner and the renewers of a token may renew it."),
    40: Row("ExpireDelegationToken", note="The owner and the renewers of a token may expire it."),
    41: Row(
        "DescribeDelegationToken",
        parts={
            "tokens": Requirement(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "the token is left out"),
            "owners": Requirement(Operation.DESCRIBE_TOKENS, ResourceType.USER, "the token is left out"),
        },
        note="Owners and renewers need no permission.",
    ),
    42: Row("DeleteGroups", parts={"groups": Requirement(Operation.DELETE, GROUP)}),
    43: Row("ElectLeaders", (_cluster(Operation.ALTER),)),
    44: Row("IncrementalAlterConfigs", parts=_ALTER_CONFIGS),
    45: Row("AlterPartitionReassignments", (_cluster(Operation.ALTER),)),
    46: Row("ListPartitionReassignments", (_cluster(Operation.DESCRIBE),)),
    47: Row("OffsetDelete", (_group(Operation.DELETE),), {"topics": _READ_TOPIC}),
    48: Row("DescribeClientQuotas", (_cluster(Operation.DESCRIBE_CONFIGS),)),
    49: Row("AlterClientQuotas", (_cluster(Operation.ALTER_CONFIGS),)),
    50: Row("DescribeUserScramCredentials", (_cluster(Operation.DESCRIBE),)),
    51: Row("AlterUserScramCredentials", (_cluster(Operation.ALTER),)),
    55: Row("DescribeQuorum", (_cluster(Operation.DESCRIBE),)),
    56: Row("AlterPartition", (_cluster(Operation.CLUSTER_ACTION),)),
    57: Row("UpdateFeatures", (_cluster(Operation.ALTER),)),
    58: Row(
        "Envelope",
        (_cluster(Operation.CLUSTER_ACTION),),
        note="The request in it is checked for the principal of the client that sent it to the first broker.",
    ),
    60: Row("DescribeCluster", parts={"cluster operations": _OPERATIONS}, note="Every client may send it."),
    61: Row("DescribeProducers", parts={"topics": _READ_TOPIC}),
    64: Row("UnregisterBroker", (_cluster(Operation.ALTER),)),
    65: Row(
        "DescribeTransactions",
        parts={
            "transactional ids": Requirement(Operation.DESCRIBE, TRANSACTIONAL_ID),
            "topics": Requirement(Operation.DESCRIBE, TOPIC, "the topic is left out"),
        },
    ),
    66: Row(
        "ListTransactions",
        parts={"transactional ids": Requirement(Operation.DESCRIBE, TRANSACTIONAL_ID, "the transactional id is left out")},
    ),
    68: Row(
        "ConsumerGroupHeartbeat",
        (_group(Operation.READ),),
        {
            "topics": Requirement(Operation.DESCRIBE, TOPIC, "the error for the request"),
            "matching topics": Requirement(Operation.DESCRIBE, TOPIC, "a regular expression does not match the topic", audits_denied=False),
        },
    ),
    69: Row(
        "ConsumerGroupDescribe",
        parts={
            "groups": Requirement(Operation.DESCRIBE, GROUP),
            "topics": Requirement(Operation.DESCRIBE, TOPIC, "the error for the group whose assignments contain the topic"),
        },
    ),
    71: Row("GetTelemetrySubscriptions", note="Every client may send it."),
    72: Row("PushTelemetry", note="Every client may send it."),
    74: Row("ListConfigResources", (_cluster(Operation.DESCRIBE_CONFIGS),)),
    75: Row(
        "DescribeTopicPartitions",
        parts={
            "topics": Requirement(Operation.DESCRIBE, TOPIC, "the error without topic id; left out if all topics are requested"),
        },
    ),
}

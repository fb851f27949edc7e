"""One request of each API that succeeds, for a cluster with topic t that coordinates groups."""

from collections.abc import Callable
from typing import Any

from cluster import Cluster, batch
from groups import commit, join, sync
from transactional import coordinator, init_request

from ottla.base.ids import NO_TOPIC_ID
from ottla.base.origin import Origin
from ottla.broker.security.envelope import enveloped
from ottla.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

#: Who sends requests about delegation tokens.
USER = "User:alice"


def id_of(cluster: Cluster, topic: str = "t") -> bytes:
    return cluster[1].node.context.image.topics[topic].topic_id


def made(cluster: Cluster, topic: str) -> str:
    cluster.topic(topic, partitions=2)
    return topic


def token(cluster: Cluster) -> bytes:
    """The HMAC of a new delegation token of ``USER``."""
    made: bytes = cluster[1].ask(CreateDelegationTokenRequest(max_lifetime_ms=-1), 3, principal=USER).hmac
    return made


def member(cluster: Cluster, group: str) -> Any:
    """A member of a stable group of the classic protocol."""
    sent = join(cluster[1], group)
    cluster.pass_ms(4000)
    sync(cluster[1], sent.answer, group, given={sent.answer.member_id: b"all"})
    return sent.answer


def next_member(group: str, **fields: Any) -> dict[str, Any]:
    named = {"group_id": group, "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"]}
    return {**named, "topic_partitions": [], "server_assignor": None, **fields}


def written(group: str, cluster: Cluster) -> str:
    assert commit(cluster[1], group, "t", 0, 1) == 0
    return group


def classic(cluster: Cluster, group: str, **fields: Any) -> dict[str, Any]:
    found = member(cluster, group)
    return {"group_id": group, "member_id": found.member_id, "generation_id": found.generation_id, **fields}


def begun(cluster: Cluster, transactional_id: str) -> dict[str, Any]:
    """The identity of a transactional producer."""
    coordinator(cluster, transactional_id)
    found = cluster[1].ask(init_request(transactional_id), 5)
    assert not found.error_code, found
    return {"producer_id": found.producer_id, "producer_epoch": found.producer_epoch}


def envelope_of(n: int) -> dict[str, Any]:
    """A forwarded CreateTopics."""
    topic = CreatableTopic(name=f"enveloped{n}", num_partitions=1, replication_factor=1)
    found = enveloped(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7, Origin(host="client"), "test")
    return {name: getattr(found, name) for name in found.__struct_fields__}


T = [{"name": "t", "partitions": [{"partition_index": 0}]}]
#: By API: the version, and the fields of a request that succeeds; ``n`` makes names that are new.
REQUESTS: dict[str, tuple[int, Callable[[Cluster, int], dict[str, Any]]]] = {
    "Produce": (
        12,
        lambda c, n: {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": 1000,
            "topic_data": [
                {"name": "t", "partition_data": [{"index": 0, "records": batch(b"%d" % n)}, {"index": 1, "records": batch(b"%d" % n)}]}
            ],
        },
    ),
    "Fetch": (
        12,
        lambda c, n: {
            "session_epoch": n % 2 - 1,
            "max_wait_ms": 500,
            "min_bytes": 1 << 20 if n % 3 else 1,
            "topics": [{"topic": "t", "partitions": [{"partition": part, "partition_max_bytes": 1 << 20} for part in (0, 1)]}],
        },
    ),
    "ListOffsets": (7, lambda c, n: {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1 if n % 2 else 5}]}]}),
    "Metadata": (12, lambda c, n: {"topics": [{"name": "t"}, {"name": f"auto{n}"}]}),
    "OffsetCommit": (9, lambda c, n: {"group_id": "o", "topics": T}),
    "OffsetFetch": (9, lambda c, n: {"groups": [{"group_id": "o", "topics": None}]}),
    "FindCoordinator": (4, lambda c, n: {"coordinator_keys": ["g", "h"]}),
    "JoinGroup": (
        3,
        lambda c, n: {
            "group_id": f"join{n}",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"all"}],
        },
    ),
    "SyncGroup": (4, lambda c, n: classic(c, f"sync{n}", assignments=[])),
    "Heartbeat": (4, lambda c, n: classic(c, f"beat{n}")),
    "LeaveGroup": (5, lambda c, n: {"group_id": f"leave{n}", "members": [{"member_id": member(c, f"leave{n}").member_id}]}),
    "DescribeGroups": (5, lambda c, n: {"groups": [classic(c, f"described{n}")["group_id"]]}),
    "ListGroups": (5, lambda c, n: {}),
    "ApiVersions": (4, lambda c, n: {"client_software_name": "test", "client_software_version": "1"}),
    "CreateTopics": (7, lambda c, n: {"topics": [{"name": f"new{n}", "num_partitions": 2, "replication_factor": 1}], "timeout_ms": 1000}),
    "DeleteTopics": (6, lambda c, n: {"topics": [{"name": made(c, f"gone{n}"), "topic_id": NO_TOPIC_ID}], "timeout_ms": 1000}),
    "DeleteRecords": (2, lambda c, n: {"topics": [{"name": "t", "partitions": [{"partition_index": 1, "offset": -1}]}]}),
    "InitProducerId": (4, lambda c, n: {"transactional_id": None}),
    "AddPartitionsToTxn": (
        3,
        lambda c, n: {
            "v3_and_below_transactional_id": f"add{n}",
            **{f"v3_and_below_{name}": value for name, value in begun(c, f"add{n}").items()},
            "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
        },
    ),
    "AddOffsetsToTxn": (4, lambda c, n: {"transactional_id": f"offsets{n}", **begun(c, f"offsets{n}"), "group_id": "o"}),
    "EndTxn": (5, lambda c, n: {"transactional_id": f"end{n}", **begun(c, f"end{n}"), "committed": False}),
    "WriteTxnMarkers": (
        2,
        lambda c, n: {"markers": [{"producer_id": 10_000 + n, "topics": [{"name": "t", "partition_indexes": [0]}]}]},
    ),
    "TxnOffsetCommit": (
        5,
        lambda c, n: {"transactional_id": f"txn{n}", **begun(c, f"txn{n}"), "group_id": "o", "topics": T},
    ),
    "DescribeTransactions": (0, lambda c, n: {"transactional_ids": ["known"] if begun(c, "known") else []}),
    "ListTransactions": (2, lambda c, n: {}),
    "OffsetForLeaderEpoch": (4, lambda c, n: {"topics": [{"topic": "t", "partitions": [{"partition": 0, "leader_epoch": 0}]}]}),
    "DescribeConfigs": (4, lambda c, n: {"resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}]}),
    "AlterConfigs": (
        2,
        lambda c, n: {
            "resources": [{"resource_type": 2, "resource_name": "t", "configs": [{"name": "retention.ms", "value": str(10**9 + n)}]}]
        },
    ),
    "UpdateFeatures": (
        2,
        lambda c, n: {"feature_updates": [{"feature": "metadata.version", "max_version_level": 33 - n, "upgrade_type": 2}]},
    ),
    "DescribeLogDirs": (4, lambda c, n: {"topics": None}),
    "CreatePartitions": (
        3,
        lambda c, n: {"topics": [{"name": made(c, f"grown{n}"), "count": 4, "assignments": None}], "timeout_ms": 1000},
    ),
    "DeleteGroups": (2, lambda c, n: {"groups_names": [written(f"left{n}", c)]}),
    "ElectLeaders": (2, lambda c, n: {"topic_partitions": None, "timeout_ms": 1000}),
    "IncrementalAlterConfigs": (
        1,
        lambda c, n: {
            "resources": [{"resource_type": 2, "resource_name": "t", "configs": [{"name": "retention.ms", "value": str(10**9 + n)}]}]
        },
    ),
    "SaslHandshake": (1, lambda c, n: {"mechanism": "PLAIN"}),
    "SaslAuthenticate": (2, lambda c, n: {"auth_bytes": b"x"}),
    "CreateDelegationToken": (3, lambda c, n: {"max_lifetime_ms": -1}),
    "RenewDelegationToken": (2, lambda c, n: {"hmac": token(c), "renew_period_ms": 1000}),
    "ExpireDelegationToken": (2, lambda c, n: {"hmac": token(c), "expiry_time_period_ms": 1000}),
    "DescribeDelegationToken": (3, lambda c, n: {"owners": None}),
    "DescribeUserScramCredentials": (0, lambda c, n: {"users": None}),
    "AlterUserScramCredentials": (
        0,
        lambda c, n: {
            "upsertions": [{"name": f"u{n}", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": bytes(32)}],
        },
    ),
    "DescribeClientQuotas": (1, lambda c, n: {"components": [{"entity_type": "user", "match_type": 2, "match": None}]}),
    "AlterClientQuotas": (
        1,
        lambda c, n: {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": f"u{n}"}],
                    "ops": [{"key": "producer_byte_rate", "value": 10.0**9 + n}],
                }
            ]
        },
    ),
    "AlterPartitionReassignments": (1, lambda c, n: {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [1]}]}]}),
    "ListPartitionReassignments": (0, lambda c, n: {"topics": None}),
    "OffsetDelete": (0, lambda c, n: {"group_id": written(f"less{n}", c), "topics": T}),
    "DescribeAcls": (3, lambda c, n: {"resource_type_filter": 1, "resource_name_filter": None, "operation": 1, "permission_type": 1}),
    "CreateAcls": (
        3,
        lambda c, n: {
            "creations": [
                {"resource_type": 2, "resource_name": f"t{n}", "principal": "User:a", "host": "*", "operation": 3, "permission_type": 3}
            ]
        },
    ),
    "DeleteAcls": (
        3,
        lambda c, n: {"filters": [{"resource_type_filter": 1, "resource_name_filter": None, "operation": 1, "permission_type": 1}]},
    ),
    "Envelope": (0, lambda c, n: envelope_of(n)),
    "DescribeQuorum": (2, lambda c, n: {}),
    "AlterPartition": (
        3,
        lambda c, n: {"broker_id": 1, "broker_epoch": c[1].node.context.epoch, "topics": [{"topic_id": id_of(c), "partitions": []}]},
    ),
    "DescribeCluster": (2, lambda c, n: {}),
    "DescribeProducers": (0, lambda c, n: {"topics": [{"name": "t", "partition_indexes": [0]}]}),
    "UnregisterBroker": (0, lambda c, n: {}),
    "ConsumerGroupHeartbeat": (1, lambda c, n: next_member(f"next{n}")),
    "ConsumerGroupDescribe": (1, lambda c, n: {"group_ids": ["n"]}),
    "GetTelemetrySubscriptions": (0, lambda c, n: {}),
    "PushTelemetry": (0, lambda c, n: {"client_instance_id": bytes([7]) * 16, "subscription_id": n}),
    "ListConfigResources": (1, lambda c, n: {}),
    "DescribeTopicPartitions": (0, lambda c, n: {"topics": [{"name": "t"}], "cursor": None}),
}

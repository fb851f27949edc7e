"""A request that names the same partition, topic, group or resource twice is answered as Kafka answers it; one row per API.

Kafka does one of four things: the last entry counts and is answered once, each entry is answered, each distinct entry is answered once, or
the entries of the key are refused with INVALID_REQUEST. Source: Kafka's KafkaApis, ControllerApis, ReplicationControlManager.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from cluster import Cluster, batch, produce
from groups import cluster_of_groups, commit, coordinating
from plain_messages import plain, request

from ottla.base.ids import NO_TOPIC_ID
from ottla.broker.apis import HANDLERS
from ottla.broker.delayed import DelayedOperation, DelayedOperations
from ottla.wire.errors import InvalidRequest, UnknownMemberId
from ottla.wire.messages import API

INVALID, UNKNOWN_MEMBER = InvalidRequest.code, UnknownMemberId.code
#: Stands for the id of topic t.
T_ID = b"id of topic t..."
RECORDS = (batch(b"first"), batch(b"second", b"third"))


@dataclass
class Row:
    """What one API makes of a duplicate."""

    api: str
    version: int
    request: dict[str, Any]
    #: What matters of the answer, and its value.
    seen: Callable[[Any], Any]
    expected: Any

    def __str__(self) -> str:
        return f"{self.api}-{self.version}"


def two(**entry: Any) -> list[dict[str, Any]]:
    return [entry, entry]


def in_topics(answer: Any, topics: str, partitions: str, number: str, *fields: str) -> list[tuple[Any, ...]]:
    """(partition, fields) for each partition of each topic."""
    return [tuple(part[field] for field in (number, *fields)) for topic in answer[topics] for part in topic[partitions]]


def codes(answers: str) -> Callable[[Any], Any]:
    return lambda answer: [each["error_code"] for each in answer[answers]]


T_TWICE = two(name="t", partitions=[{"partition_index": 0}])
RESOURCES = two(resource_type=2, resource_name="t", configs=[{"name": "retention.ms", "value": "1"}])
ROWS = [
    Row("DescribeUserScramCredentials", 0, {"users": two(name="u")}, codes("results"), [92]),
    Row(
        "AlterUserScramCredentials",
        0,
        {"upsertions": two(name="u", mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32)), "deletions": []},
        codes("results"),
        [92],
    ),
    # Each is described; nobody coordinates it here.
    Row("DescribeTransactions", 0, {"transactional_ids": ["x", "x"]}, codes("transaction_states"), [16, 16]),
    # The last entry counts, and the partition is answered once.
    Row(
        "Produce",
        12,
        {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": 1000,
            "topic_data": [{"name": "t", "partition_data": [{"index": 1, "records": records}]} for records in RECORDS],
        },
        lambda answer: in_topics(answer, "responses", "partition_responses", "index", "error_code", "base_offset"),
        [(1, 0, 0)],
    ),
    Row(
        "Produce",
        9,
        {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": 1000,
            "topic_data": [{"name": "t", "partition_data": [{"index": 1, "records": records} for records in RECORDS]}],
        },
        lambda answer: in_topics(answer, "responses", "partition_responses", "index", "error_code", "base_offset"),
        [(1, 0, 0)],
    ),
    Row(
        "Fetch",
        12,
        {"session_epoch": -1, "topics": two(topic="t", partitions=two(partition=0, fetch_offset=0, partition_max_bytes=1 << 20))},
        lambda answer: in_topics(answer, "responses", "partitions", "partition_index", "error_code"),
        [(0, 0)],
    ),
    Row(
        "Fetch",
        12,
        {"session_epoch": 0, "topics": two(topic="t", partitions=two(partition=0, fetch_offset=0, partition_max_bytes=1 << 20))},
        lambda answer: in_topics(answer, "responses", "partitions", "partition_index", "error_code"),
        [(0, 0)],
    ),
    Row(
        "DeleteRecords",
        2,
        {
            "topics": [
                {"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]},
                {"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]},
            ]
        },
        lambda answer: in_topics(answer, "topics", "partitions", "partition_index", "error_code", "low_watermark"),
        [(0, 0, 2)],
    ),
    # Refused, and answered once.
    Row(
        "ListOffsets",
        7,
        {"topics": two(name="t", partitions=two(partition_index=0, timestamp=-1))},
        lambda answer: in_topics(answer, "topics", "partitions", "partition_index", "error_code"),
        [(0, INVALID)],
    ),
    Row("CreateTopics", 7, {"topics": two(name="new", num_partitions=1, replication_factor=1)}, codes("topics"), [INVALID]),
    Row("CreatePartitions", 3, {"topics": two(name="t", count=9, assignments=None)}, codes("results"), [INVALID]),
    Row("DeleteTopics", 5, {"topic_names": ["t", "t"]}, codes("responses"), [INVALID]),
    Row("DeleteTopics", 6, {"topics": two(name="t", topic_id=NO_TOPIC_ID)}, codes("responses"), [INVALID]),
    Row("DeleteTopics", 6, {"topics": two(name=None, topic_id=T_ID)}, codes("responses"), [INVALID]),
    Row(
        "DeleteTopics",
        6,
        {"topics": [{"name": "t", "topic_id": NO_TOPIC_ID}, {"name": None, "topic_id": T_ID}]},
        lambda answer: [(each["name"], each["error_code"]) for each in answer["responses"]],
        [("t", INVALID)],
    ),
    Row(
        "UpdateFeatures",
        1,
        {"feature_updates": two(feature="metadata.version", max_version_level=32, upgrade_type=2)},
        codes("results"),
        [0, 0],
    ),
    # Refused, and each entry answered.
    Row("AlterConfigs", 2, {"resources": RESOURCES}, codes("responses"), [INVALID, INVALID]),
    Row("IncrementalAlterConfigs", 1, {"resources": RESOURCES}, codes("responses"), [INVALID, INVALID]),
    Row(
        "AlterConfigs",
        2,
        {"resources": [{"resource_type": 2, "resource_name": "t", "configs": two(name="retention.ms", value="1")}]},
        codes("responses"),
        [INVALID],
    ),
    Row(
        "AlterPartitionReassignments",
        1,
        {"topics": two(name="t", partitions=[{"partition_index": 0, "replicas": [1]}])},
        lambda answer: in_topics(answer, "responses", "partitions", "partition_index", "error_code"),
        [(0, INVALID), (0, INVALID)],
    ),
    # Each distinct entry is answered once.
    Row("DeleteGroups", 2, {"groups_names": ["g", "g"]}, codes("results"), [0]),
    Row("Metadata", 12, {"topics": two(name="t", topic_id=NO_TOPIC_ID)}, lambda answer: [each["name"] for each in answer["topics"]], ["t"]),
    Row(
        "DescribeTopicPartitions",
        0,
        {"topics": two(name="t"), "cursor": None},
        lambda answer: [each["name"] for each in answer["topics"]],
        ["t"],
    ),
    Row(
        "DescribeLogDirs",
        4,
        {"topics": two(topic="t", partitions=[0, 0])},
        lambda answer: in_topics(
            {"topics": [topic for found in answer["results"] for topic in found["topics"]]}, "topics", "partitions", "partition_index"
        ),
        [(0,)],
    ),
    # Each entry is answered.
    Row("DescribeConfigs", 4, {"resources": two(resource_type=2, resource_name="t", configuration_keys=None)}, codes("results"), [0, 0]),
    Row("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": ["g", "g"]}, codes("coordinators"), [0, 0]),
    Row("DescribeGroups", 5, {"groups": ["g", "g"]}, codes("groups"), [0, 0]),
    Row("ConsumerGroupDescribe", 1, {"group_ids": ["g", "g"]}, codes("groups"), [69, 69]),
    Row(
        "LeaveGroup",
        5,
        {"group_id": "g", "members": two(member_id="nobody", group_instance_id=None)},
        codes("members"),
        [UNKNOWN_MEMBER] * 2,
    ),
    Row(
        "OffsetForLeaderEpoch",
        4,
        {"topics": two(topic="t", partitions=two(partition=0, leader_epoch=0))},
        lambda answer: in_topics(answer, "topics", "partitions", "partition", "error_code"),
        [(0, 0)] * 4,
    ),
    Row(
        "DescribeProducers",
        0,
        {"topics": two(name="t", partition_indexes=[0, 0])},
        lambda answer: in_topics(answer, "topics", "partitions", "partition_index", "error_code"),
        [(0, 0)] * 4,
    ),
    Row(
        "OffsetCommit",
        9,
        {"group_id": "g", "topics": T_TWICE},
        lambda answer: in_topics(answer, "topics", "partitions", "partition_index", "error_code"),
        [(0, 0)] * 2,
    ),
    Row(
        "OffsetFetch",
        9,
        {"groups": two(group_id="g", topics=two(name="t", partition_indexes=[0, 0]))},
        lambda answer: [in_topics(group, "topics", "partitions", "partition_index", "error_code") for group in answer["groups"]],
        [[(0, 0)] * 4] * 2,
    ),
    Row(
        "OffsetDelete",
        0,
        {"group_id": "g", "topics": T_TWICE},
        lambda answer: in_topics(answer, "topics", "partitions", "partition_index", "error_code"),
        [(0, 0)] * 2,
    ),
    Row(
        "ElectLeaders",
        2,
        {"topic_partitions": two(topic="t", partitions=[0, 0])},
        lambda answer: in_topics(answer, "replica_election_results", "partition_result", "partition_id", "error_code"),
        [(0, 84)] * 4,
    ),
    Row(
        "ListPartitionReassignments",
        0,
        {"topics": two(name="t", partition_indexes=[0, 0])},
        lambda answer: answer["topics"],
        [],
    ),
]
#: APIs whose requests have no list of things that a response or a change could have twice, with the reason.
NOTHING_TO_NAME_TWICE = {
    "ApiVersions": "no list",
    "AlterPartition": "sent by brokers only; the second write of a partition fails its compare-and-set",
    "ConsumerGroupHeartbeat": "subscriptions and owned partitions are sets",
    "DescribeCluster": "no list",
    "SaslHandshake": "no list",
    "SaslAuthenticate": "no list",
    "CreateDelegationToken": "renewers are kept as sent",
    "RenewDelegationToken": "no list",
    "ExpireDelegationToken": "no list",
    "DescribeDelegationToken": "owners are a set",
    "CreateAcls": "rules are a set",
    "AlterClientQuotas": "test_broker_quotas.py: what is named twice is refused",
    "DescribeClientQuotas": "a repeated type is refused",
    "DeleteAcls": "each filter is answered; rules are deleted once",
    "DescribeAcls": "no list",
    "DescribeQuorum": "always refused",
    "Envelope": "one request",
    "AddOffsetsToTxn": "no list",
    "AddPartitionsToTxn": "partitions of a transaction are a set",
    "EndTxn": "no list",
    "Heartbeat": "no list",
    "InitProducerId": "no list",
    "JoinGroup": "protocols are kept as sent",
    "GetTelemetrySubscriptions": "no list",
    "PushTelemetry": "no list",
    "ListConfigResources": "types are a set",
    "ListGroups": "filters are sets",
    "ListTransactions": "filters are sets",
    "SyncGroup": "assignments are kept by member",
    "TxnOffsetCommit": "as OffsetCommit",
    "UnregisterBroker": "always refused",
    "WriteTxnMarkers": "coordinators name each partition once",
}


def with_id(value: Any, topic_id: bytes) -> Any:
    """The request with the topic's id in place of its stand-in."""
    if isinstance(value, dict):
        return {name: with_id(part, topic_id) for name, part in value.items()}
    if isinstance(value, list):
        return [with_id(part, topic_id) for part in value]
    return topic_id if value == T_ID else value


def cluster_with_data() -> Cluster:
    """Topic t of four partitions with three records in its partition 0, and group g with an offset."""
    cluster = cluster_of_groups()
    for value in (b"a", b"b", b"c"):
        assert produce(cluster[1], batch(value)).error_code == 0
    assert commit(coordinating(cluster), "g", "t", 0, 1) == 0
    return cluster


@pytest.mark.parametrize("flushed", [True, False], ids=["at rest", "while a flush is under way"])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_duplicate_is_answered_as_kafka_answers_it(row: Row, flushed: bool) -> None:
    cluster = cluster_with_data()
    broker = cluster[1]
    if not flushed:
        cluster.flushing = False
        assert produce(broker, batch(b"d"), acks=1).error_code == 0
    fields = with_id(row.request, broker.node.context.image.topics["t"].topic_id)
    sent = broker.send(request(row.api, fields), row.version)
    broker.flush()
    cluster.pass_ms(2000)
    assert sent.closed is None
    assert row.seen(plain(sent.answer)) == row.expected
    cluster.flushing = True
    assert not broker.node.context._delayed_of, "no request waits"
    assert produce(broker, batch(b"e"), partition=2).error_code == 0


def test_every_api_has_a_row_or_a_reason() -> None:
    assert {row.api for row in ROWS}.isdisjoint(NOTHING_TO_NAME_TWICE)
    assert {row.api for row in ROWS} | set(NOTHING_TO_NAME_TWICE) == {API[key].name for key in HANDLERS}


def test_a_duplicate_topic_in_delete_topics_is_kept() -> None:
    cluster = cluster_with_data()
    assert cluster[1].ask(request("DeleteTopics", {"topic_names": ["t", "t"]}), 5).responses[0].error_code == INVALID
    assert "t" in cluster[1].node.context.image.topics


def test_delayed_operations_take_a_key_that_is_given_twice() -> None:
    delayed, finished, answers = DelayedOperations(), [], []  # type: ignore[var-annotated]
    for end in (
        lambda parked: delayed.poke("k"),
        lambda parked: delayed.expire_all(),
        lambda parked: delayed.release("k"),
        delayed.cancel,
    ):
        parked = DelayedOperation("test", finished.append, keys=["k", "other", "k"], ready=lambda: True)
        delayed.delay(parked, 100)
        end(parked)
        answers.append((parked.done, delayed.count, delayed._waiting))
    assert finished == [False, True, False]
    assert answers == [(True, 0, {})] * 4

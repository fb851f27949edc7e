"""ApiVersions, and versions of all APIs. Lines are those of docs/semantics.md."""

from typing import Any

import pytest
from cluster import Cluster, batch, fetch_request, produce_request
from groups import commit, coordinating, stable_member
from transactional import Producer

from ottla.base.origin import ANONYMOUS, NOWHERE
from ottla.broker.apis import HANDLERS
from ottla.wire import errors
from ottla.wire.compile import decode, encode
from ottla.wire.messages import API, ElectLeadersRequest
from ottla.wire.messages import add_partitions_to_txn as adding
from ottla.wire.messages import alter_client_quotas as quotas
from ottla.wire.messages import alter_configs as legacy
from ottla.wire.messages import describe_producers as producers
from ottla.wire.messages import describe_topic_partitions as pages
from ottla.wire.messages import incremental_alter_configs as incremental
from ottla.wire.messages import offset_commit as commits
from ottla.wire.messages import offset_fetch as fetches
from ottla.wire.messages import txn_offset_commit as txn_commits
from ottla.wire.messages import write_txn_markers as markers
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_acls import DescribeAclsRequest
from ottla.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from ottla.wire.messages.describe_cluster import DescribeClusterRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.wire.messages.describe_transactions import DescribeTransactionsRequest
from ottla.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from ottla.wire.messages.end_txn import EndTxnRequest
from ottla.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.messages.list_config_resources import ListConfigResourcesRequest
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.wire.messages.list_transactions import ListTransactionsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from ottla.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic
from ottla.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest
from ottla.wire.messages.sync_group import SyncGroupRequest
from ottla.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

#: What a broker of Kafka 4.4 puts in ApiVersions, for every API served here.
KAFKA_4_4 = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5),
    15: (0, 6), 16: (0, 5), 18: (0, 5), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5),
    27: (1, 2), 28: (0, 6), 29: (1, 3), 30: (1, 3), 31: (1, 3), 32: (1, 4), 33: (0, 2), 35: (1, 5), 37: (0, 3), 42: (0, 3), 43: (0, 2),
    44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 57: (0, 2), 60: (0, 2), 61: (0, 0), 65: (0, 0), 66: (0, 2), 68: (0, 1), 69: (0, 1),
    74: (0, 1), 75: (0, 0), 17: (0, 1), 36: (0, 2), 38: (1, 3), 39: (1, 2), 40: (1, 2), 41: (1, 3), 48: (0, 1), 49: (0, 1), 50: (0, 0),
    51: (0, 0),
}  # fmt: skip


#: Those that need a coordinator.
GROUP_APIS = (8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69)
#: Those that the connection handles; the broker refuses them.
CONNECTION_APIS = (17, 36)
#: Those that need a user, and a key of delegation tokens.
TOKEN_APIS = (38, 39, 40, 41)
#: Those that need an authorizer.
ACCESS_APIS = (29, 30, 31)
OPEN_TO_TESTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:broker",
}
ALICE = "User:alice"
TRANSACTION_APIS = (24, 25, 26, 28, 65, 66)


def two_groups(cluster: Cluster) -> str:
    """Group g keeps an offset, n has a member of the new protocol, h has one of the classic one, whose id this gives."""
    broker = coordinating(cluster)
    commit(broker, "g", "t", 0, 1)
    broker.ask(a_request(68, 1), 1)
    return stable_member(cluster, "h")


def begin_transaction(cluster: Cluster) -> None:
    """Transactional id x has an open transaction, of producer id 0, with the partition of group g's offsets."""
    coordinating(cluster)
    producer = Producer(cluster, version=1)
    assert producer.producer_id == 0
    assert producer.add_offsets() == 0


def a_request(key: int, version: int, member_of_h: str = "") -> object:
    """One that succeeds, of topic t, group g with an offset, group h with one member."""
    name: str | bytes = "t"
    match key:
        case 0:
            return produce_request(batch(b"v"), topic=name, acks=1)
        case 1:
            return fetch_request(topic=name)
        case 2:
            return ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(timestamp=-1), ListOffsetsPartition(partition_index=1)])
                ],
            )
        case 3:
            return MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        case 8:
            place = commits.OffsetCommitRequestPartition(committed_offset=1)
            return commits.OffsetCommitRequest(group_id="g", topics=[commits.OffsetCommitRequestTopic(name="t", partitions=[place])])
        case 9:
            asked = [fetches.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
            groups = [fetches.OffsetFetchRequestGroup(group_id="g", topics=None)]
            return fetches.OffsetFetchRequest(groups=groups) if version >= 8 else fetches.OffsetFetchRequest(group_id="g", topics=asked)
        case 10:
            return FindCoordinatorRequest(coordinator_keys=["g"]) if version >= 4 else FindCoordinatorRequest(key="g")
        case 11:
            ways = [JoinGroupRequestProtocol(name="range")]
            member = {"group_instance_id": "static"} if version >= 5 else {}
            return JoinGroupRequest(
                group_id="new", session_timeout_ms=6000, rebalance_timeout_ms=6000, protocol_type="consumer", protocols=ways, **member
            )
        case 12:
            return HeartbeatRequest(group_id="h", generation_id=1, member_id=member_of_h)
        case 13:
            who = {"members": [MemberIdentity(member_id=member_of_h)]} if version >= 3 else {"member_id": member_of_h}
            return LeaveGroupRequest(group_id="h", **who)
        case 14:
            return SyncGroupRequest(group_id="h", generation_id=1, member_id=member_of_h)
        case 15:
            return DescribeGroupsRequest(groups=["g", "h"])
        case 16:
            return ListGroupsRequest()
        case 42:
            return DeleteGroupsRequest(groups_names=["g"])
        case 47:
            gone = OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition()])
            return OffsetDeleteRequest(group_id="g", topics=[gone])
        case 18:
            return ApiVersionsRequest(client_software_name="test", client_software_version="1")
        case 19:
            return CreateTopicsRequest(topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)])
        case 20:
            return DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]) if version >= 6 else DeleteTopicsRequest(topic_names=["t"])
        case 21:
            return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(offset=-1)])])
        case 22:
            return InitProducerIdRequest(transactional_id=None)
        case 24 if version >= 4:
            added = adding.AddPartitionsToTxnTransaction(
                transactional_id="x", topics=[adding.AddPartitionsToTxnTopic(name="t", partitions=[0, 1])]
            )
            return adding.AddPartitionsToTxnRequest(transactions=[added])
        case 24:
            topics = [adding.AddPartitionsToTxnTopic(name="t", partitions=[0, 1])]
            return adding.AddPartitionsToTxnRequest(v3_and_below_transactional_id="x", v3_and_below_topics=topics)
        case 25:
            return AddOffsetsToTxnRequest(transactional_id="x", group_id="g")
        case 26:
            return EndTxnRequest(transactional_id="x", committed=True)
        case 27:
            partitions = [markers.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 1])]
            return markers.WriteTxnMarkersRequest(markers=[markers.WritableTxnMarker(producer_id=1, topics=partitions)])
        case 28:
            offset = txn_commits.TxnOffsetCommitRequestPartition(committed_offset=1)
            stored = [txn_commits.TxnOffsetCommitRequestTopic(name="t", partitions=[offset])]
            return txn_commits.TxnOffsetCommitRequest(transactional_id="x", group_id="g", topics=stored)
        case 65:
            return DescribeTransactionsRequest(transactional_ids=["x"])
        case 66:
            return ListTransactionsRequest()
        case 23:
            return OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition()])])
        case 32:
            return DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(resource_type=2, resource_name="t"),
                    DescribeConfigsResource(resource_type=4, resource_name="1"),
                ],
                include_synonyms=True,
            )
        case 33:
            return legacy.AlterConfigsRequest(
                resources=[
                    legacy.AlterConfigsResource(
                        resource_type=2, resource_name="t", configs=[legacy.AlterableConfig(name="retention.ms", value="1")]
                    )
                ]
            )
        case 35:
            return DescribeLogDirsRequest(topics=None)
        case 37:
            return CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=3, assignments=None)], timeout_ms=1000)
        case 43:
            return ElectLeadersRequest(topic_partitions=None)
        case 44:
            return incremental.IncrementalAlterConfigsRequest(
                resources=[
                    incremental.AlterConfigsResource(
                        resource_type=2, resource_name="t", configs=[incremental.AlterableConfig(name="retention.ms", value="1")]
                    )
                ]
            )
        case 45:
            requested = ReassignablePartition(partition_index=0, replicas=[1])
            return AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[requested])])
        case 46:
            return ListPartitionReassignmentsRequest()
        case 29 | 31:
            wanted: dict[str, Any] = {"resource_type_filter": 2, "resource_name_filter": "t", "operation": 1, "permission_type": 1}
            return DescribeAclsRequest(**wanted) if key == 29 else DeleteAclsRequest(filters=[DeleteAclsFilter(**wanted)])
        case 30:
            rule = AclCreation(resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3)
            return CreateAclsRequest(creations=[rule])
        case 48:
            return DescribeClientQuotasRequest()
        case 49:
            entity = [quotas.EntityData(entity_type="user", entity_name="u")]
            entry = quotas.EntryData(entity=entity, ops=[quotas.OpData(key="producer_byte_rate", value=1)])
            return quotas.AlterClientQuotasRequest(entries=[entry])
        case 17:
            return SaslHandshakeRequest(mechanism="PLAIN")
        case 36:
            return SaslAuthenticateRequest(auth_bytes=b"x")
        case 38:
            return CreateDelegationTokenRequest(max_lifetime_ms=-1)
        case 39:
            return RenewDelegationTokenRequest(renew_period_ms=1000)
        case 40:
            return ExpireDelegationTokenRequest(expiry_time_period_ms=1000)
        case 41:
            return DescribeDelegationTokenRequest(owners=None)
        case 50:
            return DescribeUserScramCredentialsRequest(users=None)
        case 51:
            keys = ScramCredentialUpsertion(name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32))
            return AlterUserScramCredentialsRequest(upsertions=[keys])
        case 57:
            return UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature="ottla.version", max_version_level=2)])
        case 60:
            return DescribeClusterRequest()
        case 61:
            return producers.DescribeProducersRequest(topics=[producers.TopicRequest(name="t", partition_indexes=[0])])
        case 68:
            return ConsumerGroupHeartbeatRequest(
                group_id="n", member_id="m", rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
            )
        case 69:
            return ConsumerGroupDescribeRequest(group_ids=["n"])
        case 74:
            return ListConfigResourcesRequest()
        case 75:
            return pages.DescribeTopicPartitionsRequest(topics=[pages.TopicRequest(name="t")])
    raise AssertionError(f"no request of API {key}")


def error_codes(message: object) -> list[int]:
    """Every error code in a message, however deep."""
    found = []
    for field in getattr(message, "__struct_fields__", ()):
        value = getattr(message, field)
        if field.endswith("error_code"):
            found.append(value)
        for part in value if isinstance(value, list) else [value]:
            found += error_codes(part)
    return found


def test_every_served_api_is_advertised_exactly_as_kafka_4_4_advertises_it() -> None:
    answer = Cluster()[1].ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 4)
    assert answer.error_code == 0
    assert {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys} == KAFKA_4_4


def test_every_advertised_version_is_declared_on_the_wire() -> None:
    """But for Produce 0 to 2, which Kafka advertises too without serving them."""
    for key, (least, most) in KAFKA_4_4.items():
        first, last = API[key].versions
        assert last >= most and first <= max(least, 3 if key == 0 else 0), API[key].name


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, version) for key, (least, most) in KAFKA_4_4.items() for version in range(3 if key == 0 else least, most + 1)],
)
def test_every_version_of_every_api_does_its_work(key: int, version: int) -> None:
    cluster = Cluster(settings=OPEN_TO_TESTS if key in ACCESS_APIS else {"delegation.token.secret.key": "key"})
    broker = cluster.topic(partitions=2)
    member_of_h = two_groups(cluster) if key in GROUP_APIS else ""
    if key in TRANSACTION_APIS:
        begin_transaction(cluster)
    request = a_request(key, version, member_of_h)
    if (key, version) in ((8, 10), (28, 6)):
        request.topics[0].topic_id = broker.node.context.image.topics["t"].topic_id  # type: ignore[attr-defined]
    if (key == 0 and version >= 13) or (key == 1 and version >= 13):
        topic_id = broker.node.context.image.topics["t"].topic_id
        request = produce_request(batch(b"v"), topic=topic_id, acks=1) if key == 0 else fetch_request(topic=topic_id)
    if key in (39, 40):
        request.hmac = broker.ask(a_request(38, 3), 3, principal=ALICE).hmac  # type: ignore[attr-defined]
    sent = broker.send(request, version, principal=ALICE if key in TOKEN_APIS else ANONYMOUS)
    if key == 11:
        cluster.pass_ms(3000)
        #: Before static members, a new member is first given its id.
        assert sent.answer.error_code == (errors.MemberIdRequired.code if version == 4 else 0)
    elif key in CONNECTION_APIS:
        assert set(error_codes(sent.answer)) == {errors.IllegalSaslState.code}
    else:
        assert not any(error_codes(sent.answer)), sent.answer


@pytest.mark.parametrize("key", KAFKA_4_4)
def test_every_api_can_refuse_a_whole_request_in_every_version(key: int) -> None:
    cluster = Cluster()
    cluster.topic(partitions=2)
    least, most = KAFKA_4_4[key]
    for version in range(3 if key == 0 else least, most + 1):
        request: Any = a_request(key, version)
        body = decode(type(request), encode(request, version), version)
        call: Any = type("Call", (), {"body": body, "api_version": version, "origin": NOWHERE})()
        refusal = HANDLERS[key].refuse(call, errors.NotController("no"))
        codes = error_codes(decode(type(refusal), encode(refusal, version), version))
        #: Before these versions, the answers of DescribeLogDirs and ElectLeaders have no place for an error of the whole.
        assert errors.NotController.code in codes or version < {35: 3, 43: 1}.get(key, 0), (key, version)


def test_a_client_whose_name_is_no_name_is_refused() -> None:
    """Line 3."""
    broker = Cluster()[1]
    for name in ("", "-x", "a b", "x-"):
        answer = broker.ask(ApiVersionsRequest(client_software_name=name, client_software_version="1"), 3)
        assert answer.error_code == errors.InvalidRequest.code
    for name in ("a", "apache-kafka-java", "lib.rd-1"):
        assert broker.ask(ApiVersionsRequest(client_software_name=name, client_software_version="1.0"), 3).error_code == 0


def test_a_client_that_reached_another_cluster_or_broker_asks_its_bootstrap_servers_again() -> None:
    broker = Cluster()[1]
    cluster_id = broker.node.context.cluster_id

    def code(named: str | None, node_id: int) -> int:
        request = ApiVersionsRequest(client_software_name="c", client_software_version="1", cluster_id=named, node_id=node_id)
        return int(broker.ask(request, 5).error_code)

    assert code(cluster_id, 1) == code(None, -1) == 0
    assert code("another", 1) == code(cluster_id, 2) == errors.RebootstrapRequired.code
    assert code(cluster_id, -1) == code(None, 1) == errors.InvalidRequest.code, "both or neither"


def test_an_api_or_version_that_is_not_served_closes_the_connection() -> None:
    """Line 4; among them Produce 0 to 2, whose range says otherwise for librdkafka's sake."""
    broker = Cluster()[1]
    assert broker.send(fetch_request(), 4).answer is not None
    sent = broker.send(InitProducerIdRequest(transactional_id=None), 6)
    assert sent.closed is not None and sent.waits


def test_closing_a_connection_drops_its_waiting_request() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    sent = broker.send(fetch_request(max_wait_ms=1000), 12)
    assert sent.waits and broker.node.context.delayed.count == 1
    broker.hang_up(sent)
    assert broker.node.context.delayed.count == 0
    cluster.pass_ms(2000)
    assert sent.waits


def test_a_topic_may_have_any_name_while_brokers_and_controllers_come_and_go() -> None:
    """What changes in the cluster has names as well, and is never taken for a partition of a topic of that name."""
    cluster = Cluster(brokers=3)
    waiting = []
    for name in ("broker", "controller", "controller_epoch", "topic", "partition", "appended", "led"):
        for partition in range(4):
            leading = cluster.topic(name, 4) if partition == 0 else cluster.leading(name, partition)
            waiting.append(leading.send(fetch_request(topic=name, partitions=[partition], max_wait_ms=5_000), 12))
    assert all(sent.waits for sent in waiting)
    cluster.restart(1)
    cluster.topic("another")
    assert cluster[2].node.context.delayed.count and cluster[3].node.context.delayed.count

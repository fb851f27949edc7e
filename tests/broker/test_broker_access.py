"""What a client without rights sees and changes: nothing that Kafka would not show it."""

from typing import Any

import msgspec
import pytest
from access_rules import ALICE, AUTHORIZER, CLUSTER, GROUP, ROOT, TOPIC, TRANSACTIONAL_ID, create, grant, guarded, revoke, rule
from cluster import Broker, Cluster, batch, fetch_request, produce_request
from transactional import Producer, cluster_of_transactions

from ottla.base.acls import OPERATIONS, Operation, ResourceType
from ottla.base.ids import NO_TOPIC_ID, ConnectionId
from ottla.base.origin import ANONYMOUS, SAME_PROCESS, Origin
from ottla.base.ports import Op
from ottla.broker import events
from ottla.broker.registration.peers import PEER
from ottla.broker.security.access import bits
from ottla.broker.security.envelope import enveloped
from ottla.wire import errors
from ottla.wire.errors import ClusterAuthorizationFailed, GroupAuthorizationFailed, TopicAuthorizationFailed
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_cluster import DescribeClusterRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.fetch import ReplicaState
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.metadata import NOT_REQUESTED, MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

NO_TOPIC, NO_GROUP, NO_CLUSTER = TopicAuthorizationFailed.code, GroupAuthorizationFailed.code, ClusterAuthorizationFailed.code
READ, WRITE, DESCRIBE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE, Operation.DELETE


def metadata(broker: Broker, *topics: str | bytes, everything: bool = False, principal: str = ALICE, **fields: Any) -> Any:
    named = [MetadataRequestTopic(name=one) if isinstance(one, str) else MetadataRequestTopic(name=None, topic_id=one) for one in topics]
    return broker.ask(MetadataRequest(topics=None if everything else named, **fields), 12, principal=principal)


def id_of(cluster: Cluster, topic: str = "t") -> bytes:
    return cluster[1].node.context.image.topics[topic].topic_id


# Metadata.


def test_a_topic_that_a_client_may_not_describe_looks_like_one_that_does_not_exist() -> None:
    """Line 79."""
    cluster = guarded()
    there, missing = metadata(cluster[1], "t", "no-such", allow_auto_topic_creation=False).topics
    for found in (there, missing):
        assert (found.error_code, found.topic_id, found.partitions) == (NO_TOPIC, NO_TOPIC_ID, [])
    [by_id] = metadata(cluster[1], id_of(cluster)).topics
    assert (by_id.error_code, by_id.name, by_id.topic_id) == (NO_TOPIC, None, id_of(cluster))


def test_all_topics_are_those_that_a_client_may_describe() -> None:
    cluster = guarded(topics=("t", "u", "v-1"))
    assert metadata(cluster[1], everything=True).topics == []
    grant(cluster, rule(WRITE, name="u"), rule(READ, name="v", prefixed=True))
    assert [topic.name for topic in metadata(cluster[1], everything=True).topics] == ["u", "v-1"]
    assert cluster.audits == [], "what is left out is no denied access"


def test_a_client_creates_topics_on_demand_with_create() -> None:
    cluster = guarded(3)
    grant(cluster, rule(WRITE, name="new", prefixed=True))
    [refused] = metadata(cluster[2], "new-1").topics
    assert refused.error_code == NO_TOPIC
    grant(cluster, rule(CREATE, name="new", prefixed=True))
    for broker_id in (1, 2, 3):
        [created] = metadata(cluster[broker_id], f"new-{broker_id}").topics
        assert created.error_code == errors.UnknownTopicOrPartition.code
        assert metadata(cluster[broker_id], f"new-{broker_id}").topics[0].error_code == 0


def test_authorized_operations_are_those_of_the_client() -> None:
    cluster = guarded()
    grant(cluster, rule(READ), rule(WRITE, deny=True), rule(Operation.ALTER_CONFIGS))
    [found] = metadata(cluster[1], "t", include_topic_authorized_operations=True).topics
    assert found.topic_authorized_operations == bits((READ, DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS))
    [hidden] = metadata(cluster[1], "u", include_topic_authorized_operations=True).topics
    assert hidden.topic_authorized_operations == NOT_REQUESTED
    [all_of_them] = metadata(cluster[1], "t", include_topic_authorized_operations=True, principal=ROOT).topics
    assert all_of_them.topic_authorized_operations == bits(OPERATIONS[TOPIC])
    asked = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert cluster[1].ask(asked, 1, principal=ALICE).cluster_authorized_operations == 0
    grant(cluster, rule(Operation.ALTER, CLUSTER))
    assert cluster[1].ask(asked, 1, principal=ALICE).cluster_authorized_operations == bits((Operation.ALTER, DESCRIBE))


# Produce and fetch.


def test_topics_of_a_produce_request_are_refused_one_by_one() -> None:
    """Line 80."""
    cluster = guarded(topics=("t", "u"))
    grant(cluster, rule(WRITE, name="u"))
    both = produce_request(batch(b"v"))
    both.topic_data += produce_request(batch(b"v"), topic="u").topic_data
    answer = cluster[1].ask(both, 12, principal=ALICE)
    assert {one.name: one.partition_responses[0].error_code for one in answer.responses} == {"t": NO_TOPIC, "u": 0}
    assert (cluster[1].leader("t").log.end_offset, cluster[1].leader("u").log.end_offset) == (0, 1)
    sent = cluster[1].send(produce_request(batch(b"v"), acks=0), 12, principal=ALICE)
    assert sent.closed is not None and cluster[1].leader("t").log.end_offset == 0


def test_a_transactional_id_needs_a_right_of_its_own() -> None:
    cluster = guarded()
    grant(cluster, rule(WRITE))
    asked = produce_request(batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True), transactional_id="x")
    answer = cluster[1].ask(asked, 12, principal=ALICE)
    assert answer.responses[0].partition_responses[0].error_code == errors.TransactionalIdAuthorizationFailed.code
    init = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    assert cluster[1].ask(init, 5, principal=ALICE).error_code == errors.TransactionalIdAuthorizationFailed.code


def test_an_idempotent_producer_needs_write_on_any_topic() -> None:
    cluster = guarded()
    asked = InitProducerIdRequest(transactional_id=None)
    assert cluster[1].ask(asked, 5, principal=ALICE).error_code == NO_CLUSTER
    grant(cluster, rule(WRITE, name="later"))
    assert cluster[1].ask(asked, 5, principal=ALICE).error_code == 0


def test_a_rule_binds_to_a_host() -> None:
    cluster = guarded()
    grant(cluster, rule(WRITE, host="10.0.0.7"))
    codes = [
        cluster[1].ask(produce_request(batch(b"v")), 12, principal=ALICE, host=host).responses[0].partition_responses[0].error_code
        for host in ("10.0.0.7", "10.0.0.8")
    ]
    assert codes == [0, NO_TOPIC]


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_a_waiting_fetch_ends_when_its_right_is_removed(session_epoch: int) -> None:
    """Line 81."""
    cluster = guarded()
    grant(cluster, rule(READ))
    asked = fetch_request(max_wait_ms=30_000, session_epoch=session_epoch)
    if session_epoch == 0:
        first = cluster[1].ask(fetch_request(session_epoch=0), 12, principal=ALICE)
        asked = fetch_request(max_wait_ms=30_000, session_epoch=1, session_id=first.session_id)
        asked.topics = []
    waiting = cluster[1].send(asked, 12, principal=ALICE)
    assert waiting.waits
    assert len(revoke(cluster, principal_filter=ALICE)) == 1
    assert waiting.answer.responses[0].partitions[0].error_code == NO_TOPIC
    assert cluster.audits[-1].name == "t" and not cluster.audits[-1].allowed


def test_a_sleeping_partition_of_a_session_wakes_when_its_right_is_removed() -> None:
    cluster = guarded()
    grant(cluster, rule(READ))
    first = cluster[1].ask(fetch_request(session_epoch=0), 12, principal=ALICE)
    again = fetch_request(session_epoch=1, session_id=first.session_id)
    again.topics = []
    assert cluster[1].ask(again, 12, principal=ALICE).responses == []
    revoke(cluster, principal_filter=ALICE)
    again.session_epoch = 2
    assert cluster[1].ask(again, 12, principal=ALICE).responses[0].partitions[0].error_code == NO_TOPIC


def test_a_follower_needs_cluster_action_and_no_right_on_topics() -> None:
    cluster = guarded(2, replicas=2)
    leader = cluster.leading("t")
    other = next(number for number in cluster.brokers if number != leader.broker_id)
    by_id = fetch_request(topic=id_of(cluster), replica_state=ReplicaState(replica_id=other, replica_epoch=-1))
    assert leader.ask(by_id, 15, principal=ALICE).responses[0].partitions[0].error_code == NO_TOPIC
    grant(cluster, rule(READ))
    assert leader.ask(by_id, 15, principal=ALICE).responses[0].partitions[0].error_code == NO_TOPIC
    grant(cluster, rule(Operation.CLUSTER_ACTION, CLUSTER))
    assert leader.ask(by_id, 15, principal=ALICE).responses[0].partitions[0].error_code == 0


def lenient_cluster_of_transactions() -> Cluster:
    """Everybody may use what has no rules."""
    settings: dict[str, Any] = {**AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    return cluster_of_transactions(**{name.replace(".", "_"): text for name, text in settings.items()})


@pytest.mark.parametrize(
    ("resource", "name", "error"),
    [(TOPIC, "t", TopicAuthorizationFailed), (TRANSACTIONAL_ID, "x", errors.TransactionalIdAuthorizationFailed)],
)
def test_a_batch_that_waits_for_its_transaction_is_not_written_after_its_right_is_removed(
    resource: ResourceType, name: str, error: type[errors.KafkaError]
) -> None:
    cluster = lenient_cluster_of_transactions()
    producer = Producer(cluster)
    # The coordinator answers when its record is on disk.
    cluster.flushing = False
    waiting = producer.start("a")
    assert waiting.waits
    grant(cluster, rule(WRITE, resource, name, principal=ANONYMOUS, deny=True))
    cluster.flushing = True
    cluster[1].flush()
    assert waiting.answer.responses[0].partition_responses[0].error_code == error.code
    assert cluster.leading("t").leader("t").log.end_offset == 0


@pytest.mark.parametrize(
    ("operation", "resource", "name", "error"),
    [
        (READ, TOPIC, "t", TopicAuthorizationFailed),
        (READ, GROUP, "g", GroupAuthorizationFailed),
        (WRITE, TRANSACTIONAL_ID, "x", errors.TransactionalIdAuthorizationFailed),
    ],
)
def test_offsets_that_wait_for_their_transaction_are_not_committed_after_a_right_is_removed(
    operation: Operation, resource: ResourceType, name: str, error: type[errors.KafkaError]
) -> None:
    cluster = lenient_cluster_of_transactions()
    producer = Producer(cluster)
    cluster.flushing = False
    waiting = producer.start_offsets(5)
    assert waiting.waits
    grant(cluster, rule(operation, resource, name, principal=ANONYMOUS, deny=True))
    cluster.flushing = True
    cluster[1].flush()
    assert waiting.answer.topics[0].partitions[0].error_code == error.code


# Between brokers.


def created(broker: Broker, name: str, *, principal: str = ALICE, **fields: Any) -> int:
    wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    sent = broker.send(CreateTopicsRequest(topics=[wanted], timeout_ms=1000), 7, principal=principal, **fields)
    return int(sent.answer.topics[0].error_code)


def followers(cluster: Cluster) -> list[Broker]:
    return [broker for broker in cluster.brokers.values() if broker is not cluster.controller]


def test_the_controller_checks_a_forwarded_request_for_its_client() -> None:
    """Line 82."""
    cluster = guarded(3)
    broker = followers(cluster)[0]
    assert created(broker, "new") == NO_TOPIC
    grant(cluster, rule(CREATE, name="new", host="10.0.0.7"))
    assert created(broker, "new", host="10.0.0.8") == NO_TOPIC
    assert created(broker, "new", host="10.0.0.7") == 0
    assert {(audit.call.origin.principal, audit.call.origin.host) for audit in cluster.audits} == {(ALICE, "client"), (ALICE, "10.0.0.8")}


def test_the_client_id_of_brokers_gains_nothing() -> None:
    cluster = guarded(3)
    assert created(cluster.controller, "new", client_id=PEER) == NO_TOPIC
    assert created(followers(cluster)[0], "new", client_id=PEER) == errors.NotController.code
    assert "new" not in cluster[1].node.context.image.topics


@pytest.mark.parametrize("at_controller", [True, False])
def test_a_client_cannot_wrap_a_request_in_an_envelope(at_controller: bool) -> None:
    cluster = guarded(3)
    wanted = CreateTopicsRequest(topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)], timeout_ms=1000)
    broker = cluster.controller if at_controller else followers(cluster)[0]
    for pretended in (ROOT, "User:broker", SAME_PROCESS.principal):
        envelope = enveloped(wanted, 7, Origin(host="", principal=pretended), PEER)
        assert broker.ask(envelope, 0, principal=ALICE).error_code == NO_CLUSTER
    assert "new" not in cluster[1].node.context.image.topics


def test_an_envelope_holds_only_what_brokers_forward() -> None:
    cluster = guarded()
    produce = enveloped(produce_request(batch(b"v")), 12, Origin(principal=ROOT), None)
    assert cluster[1].ask(produce, 0, principal="User:broker").error_code == errors.InvalidRequest.code
    nested = enveloped(produce, 0, Origin(principal=ROOT), None)
    assert cluster[1].ask(nested, 0, principal="User:broker").error_code == errors.InvalidRequest.code
    torn = msgspec.structs.replace(produce, request_data=produce.request_data[:9])
    assert cluster[1].ask(torn, 0, principal="User:broker").error_code == errors.InvalidRequest.code


def test_a_broker_without_cluster_action_is_no_broker() -> None:
    cluster = guarded(2)
    cluster.peer_principal = "User:stranger"
    assert created(followers(cluster)[0], "new", principal=ROOT) == errors.NotController.code
    grant(cluster, rule(Operation.CLUSTER_ACTION, CLUSTER, principal="User:stranger"))
    assert created(followers(cluster)[0], "new", principal=ROOT) == 0


def test_brokers_of_one_process_trust_each_other_and_no_client_can_pass_for_one() -> None:
    cluster = guarded()
    broker = cluster[1]
    asked = CreateTopicsRequest(topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)], timeout_ms=1000)

    def arrives(origin: Origin) -> list[int]:
        call = events.RequestArrived(
            connection=ConnectionId(-1),
            correlation_id=0,
            api_key=19,
            api_version=7,
            client_id=PEER,
            body=asked,
            origin=origin,
        )
        answers: list[Any] = []
        sent = broker._sent[-1] = type("Sent", (), {"answered": answers.append, "answer": None})()
        assert sent is not None
        broker.handle(call)
        cluster.run()
        return [answer.topics[0].error_code for answer in answers]

    assert arrives(Origin(host="10.0.0.7", local=("10.0.0.1", 9092), principal=SAME_PROCESS.principal)) == [NO_TOPIC]
    assert arrives(SAME_PROCESS) == [0]


def test_replicas_and_forwarding_work_in_a_cluster_of_guarded_brokers() -> None:
    cluster = guarded(3, replicas=3)
    leader = cluster.leading("t")
    sent = leader.send(produce_request(batch(b"v")), 12, principal=ROOT)
    cluster.pass_ms(1000)
    assert sent.answer.responses[0].partition_responses[0].error_code == 0
    assert all(broker.node.context.image.acls == {} for broker in cluster.brokers.values())


# Groups.


def commits(broker: Broker, group: str, *topics: str, principal: str) -> list[int]:
    place = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=name, partitions=place) for name in topics])
    return [topic.partitions[0].error_code for topic in broker.ask(request, 9, principal=principal).topics]


def with_offsets() -> Cluster:
    """Groups g and h have offsets of topics t and u."""
    cluster = guarded(topics=("t", "u"), offsets_topic_num_partitions="2")
    for _ in range(3):
        cluster[1].ask(FindCoordinatorRequest(key="g"), 2, principal=ROOT)
    for group in ("g", "h"):
        assert commits(cluster[1], group, "t", "u", principal=ROOT) == [0, 0]
    return cluster


def test_offsets_are_committed_and_fetched_for_topics_that_a_client_may_use() -> None:
    cluster = with_offsets()
    assert commits(cluster[1], "g", "t", "u", principal=ALICE) == [NO_GROUP, NO_GROUP]
    grant(cluster, rule(READ, GROUP, "g"), rule(READ, name="u"))
    assert commits(cluster[1], "g", "t", "u", principal=ALICE) == [NO_TOPIC, 0]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in ("g", "h")])
    mine, other = cluster[1].ask(request, 9, principal=ALICE).groups
    assert ([topic.name for topic in mine.topics], other.error_code) == (["u"], NO_GROUP)


def test_groups_are_listed_to_those_who_may_describe_them_or_the_cluster() -> None:
    cluster = with_offsets()

    def listed() -> list[str]:
        return [group.group_id for group in cluster[1].ask(ListGroupsRequest(), 4, principal=ALICE).groups]

    assert listed() == []
    grant(cluster, rule(DELETE, GROUP, "g"))
    assert listed() == ["g"]
    grant(cluster, rule(DESCRIBE, CLUSTER))
    assert sorted(listed()) == ["g", "h"]
    assert cluster.audits == []


def heartbeat(cluster: Cluster, member: str = "m", **fields: Any) -> Any:
    return cluster[1].ask(ConsumerGroupHeartbeatRequest(group_id="n", member_id=member, server_assignor=None, **fields), 1, principal=ALICE)


def joined(cluster: Cluster, **fields: Any) -> Any:
    return heartbeat(cluster, rebalance_timeout_ms=60_000, topic_partitions=[], **fields)


def test_a_regular_expression_matches_topics_that_its_client_may_describe() -> None:
    cluster = with_offsets()
    grant(cluster, rule(READ, GROUP, "n"), rule(READ, name="u"))
    answer = joined(cluster, subscribed_topic_regex=".*", subscribed_topic_names=None)
    assert [each.topic_id for each in answer.assignment.topic_partitions] == [id_of(cluster, "u")]
    grant(cluster, rule(DESCRIBE, name="t"))
    cluster.pass_ms(2000)
    answer = heartbeat(cluster, member_epoch=answer.member_epoch)
    assert {each.topic_id for each in answer.assignment.topic_partitions} == {id_of(cluster, "t"), id_of(cluster, "u")}


def test_a_group_with_a_hidden_topic_is_not_described() -> None:
    cluster = with_offsets()
    grant(cluster, rule(READ, GROUP, "n"), rule(READ), rule(READ, name="u"))
    assert joined(cluster, subscribed_topic_names=["t", "u"]).error_code == 0
    request = ConsumerGroupDescribeRequest(group_ids=["n"])
    assert cluster[1].ask(request, 1, principal=ALICE).groups[0].error_code == 0
    revoke(cluster, resource_type_filter=TOPIC, resource_name_filter="t")
    [hidden] = cluster[1].ask(request, 1, principal=ALICE).groups
    assert (hidden.error_code, hidden.members) == (NO_TOPIC, [])


# Topics and settings.


def test_the_settings_of_a_new_topic_are_shown_to_those_who_may_describe_them() -> None:
    cluster = guarded()
    grant(cluster, rule(CREATE, CLUSTER))
    wanted = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    [made] = cluster[1].ask(CreateTopicsRequest(topics=[wanted], timeout_ms=1000), 7, principal=ALICE).topics
    assert (made.error_code, made.topic_config_error_code, made.num_partitions, made.configs) == (0, NO_TOPIC, -1, [])
    assert made.topic_id == id_of(cluster, "new")


def deleted(cluster: Cluster, *topics: str | bytes) -> list[tuple[str | None, int]]:
    states = [DeleteTopicState(name=one) if isinstance(one, str) else DeleteTopicState(name=None, topic_id=one) for one in topics]
    answer = cluster[1].ask(DeleteTopicsRequest(topics=states, timeout_ms=1000), 6, principal=ALICE)
    return [(result.name, result.error_code) for result in answer.responses]


def test_a_topic_id_does_not_reveal_a_name() -> None:
    cluster = guarded(topics=("t", "u"))
    assert deleted(cluster, id_of(cluster), "u", "no-such") == [(None, NO_TOPIC), ("u", NO_TOPIC), ("no-such", NO_TOPIC)]
    grant(cluster, rule(DESCRIBE))
    assert deleted(cluster, id_of(cluster)) == [("t", NO_TOPIC)]
    grant(cluster, rule(DELETE))
    assert deleted(cluster, id_of(cluster)) == [("t", 0)]
    grant(cluster, rule(DELETE, CLUSTER))
    assert deleted(cluster, "u") == [("u", 0)]


@pytest.mark.parametrize(
    ("kind", "name", "code", "needed"),
    [
        (2, "t", NO_TOPIC, rule(Operation.DESCRIBE_CONFIGS)),
        (4, "1", NO_CLUSTER, rule(Operation.ALTER_CONFIGS, CLUSTER)),
        (32, "g", NO_GROUP, rule(Operation.DESCRIBE_CONFIGS, GROUP, "g")),
    ],
)
def test_settings_belong_to_their_resource(kind: int, name: str, code: int, needed: Any) -> None:
    cluster = guarded()
    request = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)])
    [refused] = cluster[1].ask(request, 4, principal=ALICE).results
    assert (refused.error_code, refused.configs) == (code, [])
    grant(cluster, needed)
    [shown] = cluster[1].ask(request, 4, principal=ALICE).results
    assert shown.error_code == 0 and shown.configs


# Audit, and rules that cannot be read.


def test_a_denied_access_is_audited_with_its_rule() -> None:
    cluster = guarded()
    grant(cluster, rule(WRITE, name="t", deny=True, principal="User:*", host="10.0.0.7"))
    cluster[1].ask(produce_request(batch(b"v")), 12, principal=ALICE, host="10.0.0.7")
    [audit] = cluster.audits
    assert (audit.allowed, audit.operation, audit.resource_type, audit.name, audit.times) == (False, WRITE, TOPIC, "t", 1)
    assert audit.rule == "Deny User:* from 10.0.0.7 Write on Topic:LITERAL:t"
    assert (audit.call.origin.principal, audit.call.api_key) == (ALICE, 0)


def test_allowed_accesses_are_audited_if_requested() -> None:
    quiet, loud = guarded(), guarded(ottla_audit_allowed="true")
    for cluster in (quiet, loud):
        cluster.audits.clear()
        cluster[1].ask(produce_request(batch(b"v")), 12, principal=ROOT)
    assert quiet.audits == []
    [audit] = loud.audits
    assert (audit.allowed, audit.rule) == (True, "super user")


def test_rules_that_cannot_be_read_close_their_resource() -> None:
    cluster = guarded(topics=("t", "u"))
    grant(cluster, rule(WRITE), rule(WRITE, name="u"))
    results: list[Any] = []
    cluster[1].session.submit((Op("set", "/kafka-acl/Topic/t", b"not rules"),), results.append)
    cluster.run()
    both = produce_request(batch(b"v"))
    both.topic_data += produce_request(batch(b"v"), topic="u").topic_data
    answer = cluster[1].ask(both, 12, principal=ALICE)
    assert {one.name: one.partition_responses[0].error_code for one in answer.responses} == {"t": NO_TOPIC, "u": 0}
    assert any("the access rules of Topic:LITERAL:t cannot be read" in warning for warning in cluster[1].warnings)
    assert cluster[1].ask(produce_request(batch(b"v")), 12, principal=ROOT).responses[0].partition_responses[0].error_code == 0
    revoke(cluster, resource_name_filter="t")
    grant(cluster, rule(WRITE))
    assert cluster[1].ask(produce_request(batch(b"v")), 12, principal=ALICE).responses[0].partition_responses[0].error_code == 0


def test_everyone_may_use_what_no_rule_is_about_if_so_configured() -> None:
    cluster = Cluster(settings={**AUTHORIZER, "allow.everyone.if.no.acl.found": "true"})
    create(cluster, "t")
    asked = produce_request(batch(b"v"))
    assert cluster[1].ask(asked, 12, principal=ALICE).responses[0].partition_responses[0].error_code == 0
    grant(cluster, rule(WRITE, principal="User:bob"))
    assert cluster[1].ask(asked, 12, principal=ALICE).responses[0].partition_responses[0].error_code == NO_TOPIC


def test_a_broker_without_an_authorizer_has_no_checks() -> None:
    assert Cluster()[1].node.context.access is None

"""Metadata and DescribeCluster. Lines are those of docs/semantics.md."""

from typing import Any

import pytest
from cluster import Broker, Cluster

from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.describe_cluster import DescribeClusterRequest
from ottla.wire.messages.metadata import NOT_REQUESTED, MetadataRequest, MetadataRequestTopic


def metadata(broker: Broker, *names: str | None, version: int = 12, ids: tuple[bytes, ...] = (), **fields: Any) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names] + [MetadataRequestTopic(name=None, topic_id=one) for one in ids]
    return broker.ask(MetadataRequest(topics=topics, **fields), version)


def test_version_0_means_all_topics_by_an_empty_list() -> None:
    """Line 12."""
    cluster = Cluster()
    broker = cluster.topic("a")
    cluster.topic("b")
    assert [topic.name for topic in metadata(broker, version=0).topics] == ["a", "b"]


def test_later_versions_mean_all_topics_by_null_and_none_by_an_empty_list() -> None:
    """Line 12."""
    cluster = Cluster()
    broker = cluster.topic("a")
    for version in (1, 4, 9, 12, 13):
        assert metadata(broker, version=version).topics == []
        assert [topic.name for topic in broker.ask(MetadataRequest(topics=None), version).topics] == ["a"]


def test_a_topic_requested_by_name_is_created_and_returned_the_next_time() -> None:
    """Line 13."""
    cluster = Cluster()
    first = metadata(cluster[1], "new").topics[0]
    assert (first.error_code, first.partitions) == (errors.UnknownTopicOrPartition.code, [])
    second = metadata(cluster[1], "new").topics[0]
    assert second.error_code == 0 and [part.leader_id for part in second.partitions] == [1]


def test_a_topic_is_created_on_demand_through_a_broker_that_is_not_the_controller() -> None:
    """Lines 13 and 15."""
    cluster = Cluster(brokers=3)
    other = next(broker for broker in cluster.brokers.values() if broker is not cluster.controller)
    assert metadata(other, "new").topics[0].error_code == errors.UnknownTopicOrPartition.code
    assert metadata(other, "new").topics[0].error_code == 0


def test_topics_are_created_with_the_brokers_default_partitions() -> None:
    cluster = Cluster(settings={"num.partitions": "3"})
    metadata(cluster[1], "new")
    assert len(metadata(cluster[1], "new").topics[0].partitions) == 3


@pytest.mark.parametrize("case", ["the client forbids it", "the broker forbids it", "it is internal", "too many are under way"])
def test_no_topic_is_created_where(case: str) -> None:
    """Line 13; and what a flood of unknown names can cause is bounded."""
    settings = {
        "the broker forbids it": {"auto.create.topics.enable": "false"},
        "too many are under way": {"ottla.auto.create.topics.max": "2"},
    }.get(case, {})
    cluster = Cluster(settings=settings)
    name = "__consumer_offsets" if case == "it is internal" else "new"
    before = ("x", "y") if case == "too many are under way" else ()
    answer = metadata(cluster[1], *before, name, allow_auto_topic_creation=case != "the client forbids it").topics[-1]
    assert answer.error_code == errors.UnknownTopicOrPartition.code
    assert sorted(cluster[1].node.context.image.topics) == sorted(before)


def test_a_name_that_no_topic_can_have_is_refused() -> None:
    """Line 13."""
    broker = Cluster()[1]
    for name in (".", "..", "a/b", "ü", "x" * 250, ""):
        assert metadata(broker, name).topics[0].error_code == errors.InvalidTopic.code, name
    assert broker.node.context.image.topics == {}


def test_a_partition_whose_broker_is_gone_has_no_leader() -> None:
    """Line 14."""
    cluster = Cluster(brokers=2)
    cluster.topic("t", partitions=2)
    gone = cluster.leading("t", 1)
    broker = next(broker for broker in cluster.brokers.values() if broker is not gone)
    cluster.kill(gone.broker_id)
    for version in (0, 5, 6, 12):
        lost = next(part for part in metadata(broker, "t", version=version).topics[0].partitions if part.partition_index == 1)
        assert (lost.error_code, lost.leader_id) == (errors.LeaderNotAvailable.code, -1)
        assert lost.replica_nodes == lost.isr_nodes == [gone.broker_id]
        assert lost.offline_replicas == ([gone.broker_id] if version >= 5 else [])


def test_topics_are_found_by_their_id() -> None:
    """Line 14."""
    cluster = Cluster()
    broker = cluster.topic("t")
    topic_id = broker.node.context.image.topics["t"].topic_id
    assert metadata(broker, ids=(topic_id,)).topics[0].name == "t"
    unknown = metadata(broker, ids=(b"\1" * 16,)).topics[0]
    assert (unknown.error_code, unknown.name, unknown.topic_id) == (errors.UnknownTopicId.code, None, b"\1" * 16)


def test_topics_by_id_need_version_12() -> None:
    """Line 14; versions 10 and 11 can say it, but do not know what it means."""
    cluster = Cluster()
    broker = cluster.topic("t")
    topic_id = broker.node.context.image.topics["t"].topic_id
    for version in (10, 11):
        assert metadata(broker, ids=(topic_id,), version=version).topics[0].error_code == errors.InvalidRequest.code


def test_the_controller_is_a_live_broker_and_every_broker_names_the_same_one() -> None:
    """Line 15."""
    cluster = Cluster(brokers=3)
    named = {metadata(broker).controller_id for broker in cluster.brokers.values()}
    assert named == {cluster.controller.broker_id}


def test_admin_requests_are_answered_by_every_broker() -> None:
    """Line 15."""
    cluster = Cluster(brokers=3)
    for number, broker in cluster.brokers.items():
        requested = CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1)
        assert broker.ask(CreateTopicsRequest(topics=[requested]), 7).topics[0].error_code == 0
    assert sorted(cluster[1].node.context.image.topics) == ["t1", "t2", "t3"]


def test_authorized_operations_are_returned_only_on_request() -> None:
    """Line 16."""
    cluster = Cluster()
    broker = cluster.topic("t")
    plain = metadata(broker, "t", version=10)
    assert plain.topics[0].topic_authorized_operations == plain.cluster_authorized_operations == NOT_REQUESTED == -(2**31)
    asked = metadata(broker, "t", version=10, include_topic_authorized_operations=True, include_cluster_authorized_operations=True)
    assert asked.topics[0].topic_authorized_operations == 0b1101_1111_1000
    assert asked.cluster_authorized_operations == 0b1_1111_1010_0000
    missing = metadata(broker, "no", version=10, include_topic_authorized_operations=True, allow_auto_topic_creation=False).topics[0]
    assert (missing.error_code, missing.topic_authorized_operations) == (errors.UnknownTopicOrPartition.code, 0b1101_1111_1000)


def test_every_broker_returns_the_same_address_of_each_broker() -> None:
    cluster = Cluster(brokers=3)
    for asked in cluster.brokers.values():
        reported = {broker.node_id: (broker.host, broker.port) for broker in metadata(asked).brokers}
        assert reported == {1: ("host1", 9092), 2: ("host2", 9092), 3: ("host3", 9092)}


@pytest.mark.parametrize("anywhere", ["0.0.0.0", "::", ""])
def test_brokers_that_listen_on_all_addresses_are_advertised_by_the_host_the_client_used(anywhere: str) -> None:
    cluster = Cluster(brokers=2, host=anywhere)
    assert [(broker.host, broker.port) for broker in metadata(cluster[1]).brokers] == [("reached", 9092), ("reached", 9092)]
    advertising = Cluster(settings={"advertised.listeners": "PLAINTEXT://public:1"}, host="public")
    assert [broker.host for broker in metadata(advertising[1]).brokers] == ["public"]


def test_internal_topics_are_marked() -> None:
    cluster = Cluster()
    broker = cluster.topic("__consumer_offsets")
    cluster.topic("t")
    assert [topic.is_internal for topic in metadata(broker, "__consumer_offsets", "t").topics] == [True, False]


def test_metadata_has_racks() -> None:
    cluster = Cluster(brokers=2, racks={1: "a", 2: "b"})
    assert [broker.rack for broker in metadata(cluster[1]).brokers] == ["a", "b"]


# DescribeCluster.


def test_describe_cluster_lists_the_live_brokers_and_the_controller() -> None:
    cluster = Cluster(brokers=3)
    cluster.kill(3)
    answer = cluster[2].ask(DescribeClusterRequest(include_cluster_authorized_operations=True, include_fenced_brokers=True), 2)
    assert [(broker.broker_id, broker.is_fenced) for broker in answer.brokers] == [(1, False), (2, False)]
    assert (answer.cluster_id, answer.controller_id, answer.endpoint_type) == ("cluster", cluster.controller.broker_id, 1)
    assert answer.cluster_authorized_operations == 0b1_1111_1010_0000


def test_describe_cluster_knows_no_controllers_beside_brokers() -> None:
    broker = Cluster()[1]
    assert broker.ask(DescribeClusterRequest(endpoint_type=2), 1).error_code == errors.MismatchedEndpointType.code
    assert broker.ask(DescribeClusterRequest(endpoint_type=7), 2).error_code == errors.UnsupportedEndpointType.code

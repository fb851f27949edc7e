"""Finalized levels of features: what ApiVersions returns, and how UpdateFeatures changes them."""

from typing import Any

import pytest
from cluster import Broker, Cluster
from groups import cluster_of_groups, coordinating

from ottla.base.ports import Op
from ottla.broker.metadata import features
from ottla.broker.metadata.features import NEWEST, SUPPORTED
from ottla.store import layout
from ottla.store.memory import MemorySession
from ottla.wire import errors
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

UPGRADE, SAFE, UNSAFE = 1, 2, 3


def update(broker: Broker, *changes: tuple[str, int, int], validate_only: bool = False, version: int = 2) -> Any:
    updates = [FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind) for name, level, kind in changes]
    return broker.ask(UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only), version)


def shown(broker: Broker, version: int = 5) -> Any:
    return broker.ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"), version)


def finalized(broker: Broker) -> dict[str, int]:
    return {one.name: one.max_version_level for one in shown(broker).finalized_features}


def of_new_cluster(brokers: int = 1) -> Cluster:
    cluster = Cluster(brokers)
    store(cluster, layout.encode_feature(layout.Features(levels=NEWEST)))
    return cluster


def store(cluster: Cluster, feature: bytes) -> None:
    cluster.store.session().submit((Op("create", layout.FEATURE, feature),), lambda result: None)
    cluster.run()


def test_a_cluster_of_0_1_has_the_levels_of_0_1() -> None:
    cluster = Cluster()
    assert finalized(cluster[1]) == {**NEWEST, layout.OTTLA_VERSION: 1}
    assert shown(cluster[1]).finalized_features_epoch == -1
    store(cluster, layout.encode_feature(layout.Features()))
    assert finalized(cluster[1]) == {**NEWEST, layout.OTTLA_VERSION: 1}
    assert shown(cluster[1]).finalized_features_epoch == 0


def test_supported_levels_from_0_on_are_shown_from_version_4_on() -> None:
    broker = Cluster()[1]
    supported = {one.name: (one.min_version, one.max_version) for one in shown(broker).supported_features}
    assert supported == {name: levels.range for name, levels in SUPPORTED.items()}
    assert {one.name for one in shown(broker, 3).supported_features} == SUPPORTED.keys() - {"group.version", "transaction.version"}


def test_a_raised_level_is_in_the_store_and_at_every_broker() -> None:
    cluster = Cluster(3)
    assert update(cluster[2], (layout.OTTLA_VERSION, 2, UPGRADE)).error_code == 0
    assert [finalized(broker)[layout.OTTLA_VERSION] for broker in cluster.brokers.values()] == [2, 2, 2]
    assert layout.decode_feature(cluster.store.tree.nodes[layout.FEATURE].data).levels == NEWEST
    assert update(cluster[1], (layout.OTTLA_VERSION, 2, UPGRADE)).error_code == 0, "the present level again"
    assert shown(cluster[1]).finalized_features_epoch == 0, "which changes nothing"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ([("no.such", 1, UPGRADE)], "feature no.such: this feature is unknown"),
        ([("metadata.version", 34, UPGRADE)], "the controller supports levels 7 to 33"),
        ([("metadata.version", 6, SAFE)], "the controller supports levels 7 to 33"),
        ([("metadata.version", 32, UPGRADE)], "the finalized level is 33; to lower it, ask for a downgrade"),
        ([("ottla.version", 1, SAFE)], "feature ottla.version cannot be lowered from 2 to 1"),
        ([("ottla.version", 1, UNSAFE)], "feature ottla.version cannot be lowered from 2 to 1"),
        ([("metadata.version", 32, 9)], "there is no upgrade type 9"),
        ([("metadata.version", 33, 0)], "there is no upgrade type 0"),
        ([("", 1, UPGRADE)], "this feature is unknown"),
        ([("kraft.version", 1, UPGRADE)], "this feature is unknown"),
    ],
)
def test_a_level_that_cannot_be_is_refused(changes: list[tuple[str, int, int]], problem: str) -> None:
    broker = of_new_cluster()[1]
    answer = update(broker, *changes)
    assert answer.error_code == errors.InvalidUpdateVersion.code and problem in answer.error_message
    answer = update(broker, *changes, version=1)
    assert (answer.error_code, answer.results) == (errors.InvalidUpdateVersion.code, []), "results follow only if the update succeeds"
    assert finalized(broker) == NEWEST


def test_last_entry_of_a_feature_counts() -> None:
    broker = of_new_cluster()[1]
    answer = update(broker, ("metadata.version", 99, SAFE), ("metadata.version", 31, SAFE), version=1)
    assert (answer.error_code, len(answer.results)) == (0, 2)
    assert finalized(broker)["metadata.version"] == 31


def test_request_without_features_succeeds() -> None:
    cluster = of_new_cluster()
    assert update(cluster[1]).error_code == 0
    assert finalized(cluster[1]) == NEWEST and shown(cluster[1]).finalized_features_epoch == 0


def test_success_has_a_result_for_each_feature_before_version_2() -> None:
    broker = of_new_cluster()[1]
    answer = update(broker, ("metadata.version", 30, SAFE), ("group.version", 1, UPGRADE), version=1)
    assert [(result.feature, result.error_code) for result in answer.results] == [("metadata.version", 0), ("group.version", 0)]


def test_all_changes_are_made_or_none_and_a_check_changes_nothing() -> None:
    broker = of_new_cluster()[1]
    assert update(broker, ("metadata.version", 30, SAFE), ("no.such", 1, UPGRADE)).error_code == errors.InvalidUpdateVersion.code
    assert update(broker, ("metadata.version", 30, SAFE), validate_only=True).error_code == 0
    assert finalized(broker) == NEWEST
    assert update(broker, ("metadata.version", 30, SAFE)).error_code == 0
    assert finalized(broker) == {**NEWEST, "metadata.version": 30}
    answer = update(broker, ("metadata.version", 31, SAFE))
    assert answer.error_code == errors.InvalidUpdateVersion.code and "not a downgrade" in answer.error_message


def broker_of_0_1(cluster: Cluster) -> MemorySession:
    """Registers broker 7; returns its session."""
    of_0_1 = b'{"version":5,"host":"h","port":9092,"jmx_port":-1,"timestamp":"17","endpoints":["PLAINTEXT://h:9092"],"features":{}}'
    old = cluster.store.session()
    old.submit((Op("create", "/brokers/ids/7", of_0_1, ephemeral=True),), lambda result: None)
    cluster.run()
    return old


def test_a_level_is_not_raised_before_every_broker_supports_it() -> None:
    cluster = Cluster()
    old = broker_of_0_1(cluster)
    answer = update(cluster[1], (layout.OTTLA_VERSION, 2, UPGRADE))
    assert answer.error_code == errors.InvalidUpdateVersion.code and "broker 7 supports 1 to 1; upgrade it first" in answer.error_message
    old.expire()
    cluster.run()
    assert update(cluster[1], (layout.OTTLA_VERSION, 2, UPGRADE)).error_code == 0


def warnings_of(broker: Broker) -> list[str]:
    return [warning for warning in broker.warnings if "does not support ottla.version 2" in warning]


def created(cluster: Cluster, name: str, *replicas: int) -> layout.PartitionState:
    """The state of a new topic with these replicas; without any, the controller chooses them."""
    assignments = [CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))] if replicas else []
    number, factor = (-1, -1) if replicas else (1, 2)
    topic = CreatableTopic(name=name, num_partitions=number, replication_factor=factor, assignments=assignments)
    [result] = cluster.controller.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1_000), 7).topics
    assert result.error_code == 0, result.error_message
    return layout.decode_partition_state(cluster.store.tree.nodes[layout.partition_state(name, 0)].data)


def test_a_broker_of_0_1_that_joins_after_the_level_was_raised_leads_nothing_and_is_reported_once() -> None:
    """0.1 does not look at the level. docs/decisions/0038."""
    cluster = of_new_cluster(2)
    broker_of_0_1(cluster)
    assert [len(warnings_of(broker)) for broker in cluster.brokers.values()] == [1, 1]
    assert "broker 7 at h:9092" in warnings_of(cluster[1])[0]
    assert created(cluster, "named", 7, 1, 2).isr == (1, 2)
    assert set(created(cluster, "placed").isr) == {1, 2}
    cluster.pass_ms(3_000)
    assert [len(warnings_of(broker)) for broker in cluster.brokers.values()] == [1, 1]


def test_a_broker_of_0_1_that_registers_while_the_level_is_raised_is_reported_then() -> None:
    cluster = Cluster(2)
    broker_of_0_1(cluster)
    assert created(cluster, "t", 7, 1, 2).leader == 7 and not warnings_of(cluster[1])
    store(cluster, layout.encode_feature(layout.Features(levels=NEWEST)))
    assert len(warnings_of(cluster[1])) == 1
    state = layout.decode_partition_state(cluster.store.tree.nodes[layout.partition_state("t", 0)].data)
    assert (state.leader, state.isr) == (1, (1, 2))


def test_group_version_0_leaves_the_classic_protocol_only() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert update(broker, ("group.version", 0, SAFE)).error_code == 0
    assert "group.version" not in finalized(broker)
    assert broker.ask(request, 1).error_code == errors.UnsupportedVersion.code
    assert update(broker, ("group.version", 1, UPGRADE)).error_code == 0
    assert broker.ask(request, 1).error_code == 0


def test_a_version_does_not_work_in_a_cluster_beyond_its_levels() -> None:
    assert features.why_not_supported(NEWEST) == ""
    assert "supports levels 1 to 2. Start the version that raised it" in features.why_not_supported({"ottla.version": 3})
    assert "which this version does not know" in features.why_not_supported({"share.version": 1})

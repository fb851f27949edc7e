"""Finalized levels of features: what ApiVersions returns, and how UpdateFeatures changes them."""

from typing import Any

import pytest
from cluster import Broker, Cluster
from groups import cluster_of_groups, coordinating

from ottla.base.ports import Op
from ottla.broker.metadata import features
from ottla.broker.metadata.features import NEWEST, SUPPORTED
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
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
    ],
)
def test_a_level_that_cannot_be_is_refused(changes: list[tuple[str, int, int]], problem: str) -> None:
    broker = of_new_cluster()[1]
    answer = update(broker, *changes)
    assert answer.error_code == errors.InvalidUpdateVersion.code and problem in answer.error_message
    [result] = update(broker, *changes, version=1).results
    assert (result.feature, result.error_code) == (changes[0][0], errors.InvalidUpdateVersion.code)
    assert finalized(broker) == NEWEST


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ([], "names no feature"),
        ([("metadata.version", 32, SAFE), ("metadata.version", 31, SAFE)], "named more than once"),
        ([("metadata.version", 32, 9)], "there is no upgrade type 9"),
        ([("", 32, SAFE)], "a feature has a name"),
    ],
)
def test_an_update_that_makes_no_sense_is_refused(changes: list[tuple[str, int, int]], problem: str) -> None:
    answer = update(of_new_cluster()[1], *changes)
    assert answer.error_code == errors.InvalidRequest.code and problem in answer.error_message


def test_all_changes_are_made_or_none_and_a_check_changes_nothing() -> None:
    broker = of_new_cluster()[1]
    assert update(broker, ("metadata.version", 30, SAFE), ("no.such", 1, UPGRADE)).error_code == errors.InvalidUpdateVersion.code
    assert update(broker, ("metadata.version", 30, SAFE), validate_only=True).error_code == 0
    assert finalized(broker) == NEWEST
    assert update(broker, ("metadata.version", 30, SAFE)).error_code == 0
    assert finalized(broker) == {**NEWEST, "metadata.version": 30}
    answer = update(broker, ("metadata.version", 31, SAFE))
    assert answer.error_code == errors.InvalidUpdateVersion.code and "not a downgrade" in answer.error_message


def test_a_level_is_not_raised_before_every_broker_supports_it() -> None:
    cluster = Cluster()
    of_0_1 = b'{"version":5,"host":"h","port":9092,"jmx_port":-1,"timestamp":"17","endpoints":["PLAINTEXT://h:9092"],"features":{}}'
    old = cluster.store.session()
    old.submit((Op("create", "/brokers/ids/7", of_0_1, ephemeral=True),), lambda result: None)
    cluster.run()
    answer = update(cluster[1], (layout.OTTLA_VERSION, 2, UPGRADE))
    assert answer.error_code == errors.InvalidUpdateVersion.code and "broker 7 supports 1 to 1; upgrade it first" in answer.error_message
    old.expire()
    cluster.run()
    assert update(cluster[1], (layout.OTTLA_VERSION, 2, UPGRADE)).error_code == 0


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

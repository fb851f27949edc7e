"""Metrics of clients: subscriptions, and pushes (KIP-714)."""

from typing import Any

import pytest
from cluster import Broker, Cluster, Sent

from ottla.broker.telemetry import INSTANCES_MAX, NAME_MAX, subscription_id
from ottla.wire import errors
from ottla.wire.declare import ZERO_UUID
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest
from ottla.wire.messages.list_config_resources import ListConfigResourcesRequest
from ottla.wire.messages.push_telemetry import PushTelemetryRequest

CLIENT_METRICS = 16
ON = {"ottla.client.metrics.enable": "true"}
INTERVAL_MS = 10_000
SET, DELETE = 0, 1


def cluster_with(**settings: str) -> Cluster:
    """A cluster with a subscription s; settings with ``_`` for ``.``."""
    cluster = Cluster(settings=ON)
    assert change(cluster[1], "s", **settings) == 0
    return cluster


def change(broker: Broker, name: str, **settings: str) -> int:
    configs = [AlterableConfig(name=key.replace("_", "."), config_operation=SET, value=value) for key, value in settings.items()]
    resource = AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name=name, configs=configs)
    return int(broker.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code)


def subscription(broker: Broker, client_instance_id: bytes = ZERO_UUID, **sender: Any) -> Any:
    return broker.ask(GetTelemetrySubscriptionsRequest(client_instance_id=client_instance_id), 0, **sender)


def push(broker: Broker, found: Any, *, data: bytes = b"metrics", **fields: Any) -> int:
    named = {"client_instance_id": found.client_instance_id, "subscription_id": found.subscription_id, "metrics": data, **fields}
    return int(broker.ask(PushTelemetryRequest(**named), 0).error_code)


def test_a_client_gets_an_id_and_what_matching_subscriptions_ask_for() -> None:
    cluster = cluster_with(metrics="org.apache.kafka.producer.,org.apache.kafka.consumer.", interval_ms="10000")
    change(cluster[1], "others", metrics="none", match="client_id=other.*")
    change(
        cluster[1], "mine", metrics="org.apache.kafka.consumer.", interval_ms="5000", match="client_id=te.t,client_source_address=client"
    )
    found = subscription(cluster[1])
    assert found.error_code == 0 and found.client_instance_id != ZERO_UUID
    assert found.requested_metrics == ["org.apache.kafka.consumer.", "org.apache.kafka.producer."]
    assert (found.push_interval_ms, found.telemetry_max_bytes, found.delta_temporality) == (5_000, 1 << 20, False)
    assert found.accepted_compression_types == [4, 3, 1, 2]


def test_without_a_subscription_no_metrics_are_asked_for() -> None:
    found = subscription(Cluster(settings=ON)[1])
    assert (found.requested_metrics, found.push_interval_ms) == ([], 300_000)


def test_all_metrics_stand_for_the_others() -> None:
    assert subscription(cluster_with(metrics="a,*")[1]).requested_metrics == ["*"]


def test_a_push_becomes_an_effect_with_the_client_s_attributes() -> None:
    cluster = cluster_with(metrics="*", interval_ms=str(INTERVAL_MS))
    broker = cluster[1]
    found = subscription(broker)
    assert push(broker, found, compression_type=4) == 0
    (effect,) = broker.telemetry
    assert (effect.client_instance_id, effect.metrics, effect.compression) == (found.client_instance_id, b"metrics", 4)
    assert (effect.attributes["client_id"], effect.kept_ms) == ("test", 60_000)


def test_names_of_clients_are_known_by_connection() -> None:
    cluster = cluster_with(metrics="m", match="client_software_name=apache-kafka-java,client_software_version=4\\..*")
    broker = cluster[1]
    sent: Sent = broker.send(ApiVersionsRequest(client_software_name="apache-kafka-java", client_software_version="4.4.0"), 4)
    assert broker.node.context.client_software == {sent.connection: ("apache-kafka-java", "4.4.0")}
    assert subscription(broker).requested_metrics == [], "it is another connection"
    broker.hang_up(sent)
    assert broker.node.context.client_software == {}


def test_a_client_pushes_once_per_interval_and_its_last_push_at_any_time() -> None:
    cluster = cluster_with(metrics="*", interval_ms=str(INTERVAL_MS))
    broker = cluster[1]
    found = subscription(broker)
    assert push(broker, found) == 0
    assert push(broker, found) == errors.ThrottlingQuotaExceeded.code
    assert subscription(broker, found.client_instance_id).error_code == errors.ThrottlingQuotaExceeded.code
    cluster.pass_ms(INTERVAL_MS)
    assert push(broker, found) == 0
    assert push(broker, found, terminating=True) == 0
    assert push(broker, found) == errors.InvalidRequest.code
    assert len(broker.telemetry) == 3


def test_after_a_change_of_the_subscription_a_client_asks_again() -> None:
    cluster = cluster_with(metrics="a", interval_ms=str(INTERVAL_MS))
    broker = cluster[1]
    before = subscription(broker)
    change(broker, "s", metrics="b")
    assert push(broker, before) == errors.UnknownSubscriptionId.code
    after = subscription(broker, before.client_instance_id)
    assert (after.error_code, after.requested_metrics) == (0, ["b"])
    assert after.subscription_id != before.subscription_id
    assert push(broker, after) == 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"client_instance_id": ZERO_UUID}, errors.InvalidRequest),
        ({"subscription_id": 1}, errors.UnknownSubscriptionId),
        ({"compression_type": 9}, errors.UnsupportedCompressionType),
        ({"data": bytes((1 << 20) + 1)}, errors.TelemetryTooLarge),
    ],
)
def test_pushes_that_make_no_sense_are_refused(fields: dict[str, Any], error: type[errors.KafkaError]) -> None:
    broker = cluster_with(metrics="*")[1]
    assert push(broker, subscription(broker), **fields) == error.code
    assert broker.telemetry == []


def test_instances_are_limited_in_number_and_time() -> None:
    cluster = Cluster(settings=ON)
    broker = cluster[1]
    telemetry = broker.node.telemetry
    first = subscription(broker).client_instance_id
    for number in range(INSTANCES_MAX):
        telemetry._keep(telemetry._made(number.to_bytes(16, "big"), {}))
    assert len(telemetry.instances) == INSTANCES_MAX and first not in telemetry.instances
    cluster.jump_ms(16 * 60_000)
    assert telemetry.instances == {}


def test_without_the_setting_the_apis_are_neither_advertised_nor_served() -> None:
    broker = Cluster()[1]
    versions = broker.ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 4)
    assert not {71, 72} & {api.api_key for api in versions.api_keys}
    assert broker.send(GetTelemetrySubscriptionsRequest(), 0).closed is not None
    assert broker.node.context.client_software == {}
    on = Cluster(settings=ON)[1].ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 4)
    assert {71, 72} <= {api.api_key for api in on.api_keys}


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"interval_ms": "99"}, errors.InvalidRequest),
        ({"interval_ms": "3600001"}, errors.InvalidRequest),
        ({"interval": "1000"}, errors.InvalidRequest),
        ({"match": "client_id"}, errors.InvalidConfig),
        ({"match": "colour=red"}, errors.InvalidConfig),
        ({"match": "client_id=("}, errors.InvalidConfig),
    ],
)
def test_settings_are_validated(settings: dict[str, str], error: type[errors.KafkaError]) -> None:
    assert change(Cluster()[1], "s", **settings) == error.code


def test_subscriptions_are_described_and_listed() -> None:
    cluster = cluster_with(metrics="a,b", match="client_id=x")
    broker = cluster[1]
    resource = DescribeConfigsResource(resource_type=CLIENT_METRICS, resource_name="s", configuration_keys=None)
    (result,) = broker.ask(DescribeConfigsRequest(resources=[resource]), 4).results
    assert {config.name: (config.value, config.config_source) for config in result.configs} == {
        "interval.ms": ("300000", 5), "match": ("client_id=x", 7), "metrics": ("a,b", 7),
    }  # fmt: skip
    listed = broker.ask(ListConfigResourcesRequest(), 0).config_resources
    assert [one.resource_name for one in listed] == ["s"]
    delete = AlterConfigsResource(
        resource_type=CLIENT_METRICS,
        resource_name="s",
        configs=[AlterableConfig(name=name, config_operation=DELETE, value=None) for name in ("metrics", "match")],
    )
    assert not broker.ask(IncrementalAlterConfigsRequest(resources=[delete]), 1).responses[0].error_code
    assert broker.ask(ListConfigResourcesRequest(), 0).config_resources == []
    assert subscription(broker).requested_metrics == []


def test_a_subscription_id_depends_on_the_client_and_its_metrics() -> None:
    ids = {subscription_id(client, metrics, ms) for client in (b"a", b"b") for metrics in (("x",), ("y",)) for ms in (1, 2)}
    assert len(ids) == 8 and all(-(1 << 31) <= one < 1 << 31 for one in ids)


def test_an_instance_keeps_the_beginning_of_long_names_only() -> None:
    """There are 16,384 instances, and a client may send names of 32,767 characters without any right."""
    broker = Cluster(settings=ON)[1]
    broker.send(GetTelemetrySubscriptionsRequest(client_instance_id=b"i" * 16), 0, client_id="c" * 32_000)
    assert broker.node.telemetry.instances[b"i" * 16].attributes["client_id"] == "c" * NAME_MAX
    broker.ask(ApiVersionsRequest(client_software_name="n" * 32_000, client_software_version="v" * 32_000), 4)
    assert list(broker.node.context.client_software.values()) == [("n" * NAME_MAX, "v" * NAME_MAX)]

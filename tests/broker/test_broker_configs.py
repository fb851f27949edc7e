"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs. Lines are those of docs/semantics.md."""

import json
from typing import Any

import pytest
from cluster import Broker, Cluster, batch, produce, produce_request

from ottla.base.ports import Op
from ottla.broker.apis.k32_describe_configs import REPEATED_MAX
from ottla.broker.metadata.config_entries import INTERNAL
from ottla.broker.metadata.configs import SPECS_BY_NAME
from ottla.broker.metadata.kafka_settings import kafka_settings
from ottla.log.options import TopicOptions
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages import alter_configs as legacy
from ottla.wire.messages import incremental_alter_configs as incremental
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.list_config_resources import ListConfigResourcesRequest

TOPIC, BROKER = 2, 4
OF_TOPICS = {name for name in TopicOptions.SPECS if not name.startswith(INTERNAL)}
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(broker: Broker, name: str = "t", kind: int = TOPIC, *, keys: list[str] | None = None, version: int = 4, **fields: Any) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    return broker.ask(DescribeConfigsRequest(resources=[resource], **fields), version).results[0]


def described(broker: Broker, key: str, name: str = "t", kind: int = TOPIC, **fields: Any) -> Any:
    (config,) = describe(broker, name, kind, keys=[key], **fields).configs
    return config


def change(broker: Broker, *configs: tuple[str, int, str | None], name: str = "t", kind: int = TOPIC, validate_only: bool = False) -> Any:
    changes = [incremental.AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in configs]
    resource = incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    return broker.ask(incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only), 1).responses[0]


def replace(broker: Broker, *configs: tuple[str, str | None], name: str = "t", kind: int = TOPIC, validate_only: bool = False) -> Any:
    requested_moves = [legacy.AlterableConfig(name=key, value=value) for key, value in configs]
    resource = legacy.AlterConfigsResource(resource_type=kind, resource_name=name, configs=requested_moves)
    return broker.ask(legacy.AlterConfigsRequest(resources=[resource], validate_only=validate_only), 2).responses[0]


def overrides(broker: Broker, kind: str = "topics", name: str = "t") -> dict[str, str]:
    return broker.node.context.image.overrides(kind, name)


# Describing.


def test_every_topic_setting_is_described_with_its_source() -> None:
    """Line 20: topic 1, dynamic broker 2, dynamic default 3, static 4, default 5."""
    cluster = Cluster(settings={"log.segment.bytes": "2000000"})
    broker = cluster.topic(configs={"retention.ms": "5"})
    change(broker, ("log.retention.bytes", SET, "7"), name="1", kind=BROKER)
    change(broker, ("log.index.interval.bytes", SET, "8"), name="", kind=BROKER)
    found = {config.name: (config.value, config.config_source) for config in describe(broker).configs}
    assert set(found) == OF_TOPICS
    assert found["retention.ms"] == ("5", 1)
    assert found["retention.bytes"] == ("7", 2)
    assert found["index.interval.bytes"] == ("8", 3)
    assert found["segment.bytes"] == ("2000000", 4)
    assert found["cleanup.policy"] == ("delete", 5)


def test_described_settings_are_those_in_effect() -> None:
    cluster = Cluster(settings={"log.retention.hours": "2", "log.segment.bytes": "2000000"})
    broker = cluster.topic(configs={"cleanup.policy": "compact,delete"})
    holds = broker.node.context.topic_options("t")
    for config in describe(broker).configs:
        spec = TopicOptions.SPECS[config.name]
        assert spec.parse(config.value) == getattr(holds, spec.attribute), config.name
    assert described(broker, "retention.ms").value == str(2 * 3_600_000)


def test_synonyms_are_listed_on_request_in_order_of_precedence() -> None:
    cluster = Cluster(settings={"log.retention.hours": "2"})
    broker = cluster.topic(configs={"retention.ms": "5"})
    assert described(broker, "retention.ms").synonyms == []
    found = described(broker, "retention.ms", include_synonyms=True).synonyms
    assert [(one.name, one.value, one.source) for one in found] == [
        ("retention.ms", "5", 1),
        ("log.retention.hours", "7200000", 4),
        ("log.retention.ms", "604800000", 5),
    ]


def test_types_and_documentation_are_described_since_version_3() -> None:
    broker = Cluster().topic()
    plain = described(broker, "retention.ms")
    assert (plain.config_type, plain.documentation) == (5, None)
    assert described(broker, "cleanup.policy", include_documentation=True).documentation.startswith("What happens to old segments")
    old = described(broker, "retention.ms", version=2)
    assert (old.config_type, old.value) == (0, "604800000")


def test_all_settings_of_a_broker_are_described_and_most_are_read_only() -> None:
    broker = Cluster(settings={"num.partitions": "3"})[1]
    found = {config.name: config for config in describe(broker, "1", BROKER).configs}
    assert set(found) == {name for name in SPECS_BY_NAME if not name.startswith(INTERNAL)}
    assert (found["num.partitions"].value, found["num.partitions"].config_source, found["num.partitions"].read_only) == ("3", 4, False)
    assert found["listeners"].read_only
    assert not found["log.retention.ms"].read_only and not found["ottla.disk.reserve.bytes"].read_only


@pytest.mark.parametrize("key", ["broker.rack", "log.retention.minutes", "advertised.listeners"])
def test_a_setting_of_a_broker_that_has_no_value_is_null(key: str) -> None:
    config = described(Cluster().topic(), key, "1", BROKER, include_synonyms=True)
    assert (config.value, config.config_source, config.synonyms) == (None, 5, [])


def test_the_settings_of_all_brokers_are_those_changed_while_they_run() -> None:
    broker = Cluster(settings={"num.partitions": "3"})[1]
    assert describe(broker, "", BROKER).configs == []
    change(broker, ("log.retention.ms", SET, "9"), name="", kind=BROKER)
    assert [(config.name, config.value, config.config_source) for config in describe(broker, "", BROKER).configs] == [
        ("log.retention.ms", "9", 3)
    ]


def test_only_the_requested_keys_are_described_and_null_means_all() -> None:
    broker = Cluster().topic()
    assert [config.name for config in describe(broker, keys=["segment.ms", "no.such"]).configs] == ["segment.ms"]
    assert len(describe(broker, keys=[]).configs) == len(describe(broker, keys=None).configs) == len(OF_TOPICS)


def test_a_request_that_names_a_resource_again_and_again_is_refused() -> None:
    """Otherwise a request of 15 KB has a response of 100 MB."""
    broker = Cluster().topic()
    resources = [DescribeConfigsResource(resource_type=BROKER, resource_name="1")] * 100
    results = broker.ask(DescribeConfigsRequest(resources=resources), 4).results
    served = [len(result.configs) for result in results if not result.error_code]
    assert len(set(served)) == 1 and REPEATED_MAX <= sum(served[1:]) < REPEATED_MAX + served[0]
    assert {result.error_code for result in results[len(served) :]} == {errors.InvalidRequest.code}


def test_many_resources_are_described_in_turns_as_a_few_are() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=name) for name in ("t", *(f"u-{each}" for each in range(1_000)))
    ]
    request = DescribeConfigsRequest(resources=resources)
    cluster.turning = False
    sent = broker.send(request, 4)
    assert sent.waits
    while sent.waits:
        broker.turn()
    few = [broker.ask(DescribeConfigsRequest(resources=[each]), 4).results[0] for each in resources]
    assert sent.answer.results == few


@pytest.mark.parametrize("name", ["1", ""])
def test_unknown_broker_setting_is_kept_and_its_value_is_hidden(name: str) -> None:
    cluster = Cluster()
    assert change(cluster[1], ("plugin.secret", SET, "x"), name=name, kind=BROKER).error_code == 0
    assert replace(cluster[1], ("log.retention.ms", "7"), ("plugin.other", "y"), name=name, kind=BROKER).error_code == 0
    broker = cluster.restart(1)
    assert broker.node.context.image.overrides("brokers", name or layout.DEFAULT_ENTITY) == {"log.retention.ms": "7", "plugin.other": "y"}
    for asked in {"1", name}:
        reported = {config.name: config for config in describe(broker, name=asked, kind=BROKER).configs}
        assert "plugin.secret" not in reported
        assert (reported["plugin.other"].value, reported["plugin.other"].is_sensitive, reported["plugin.other"].config_type) == (
            None,
            True,
            0,
        )
        assert reported["log.retention.ms"].value == "7"
    assert change(broker, ("plugin.other", APPEND, "z"), name=name, kind=BROKER).error_code == errors.InvalidConfig.code
    assert change(broker, ("plugin.other", DELETE, None), name=name, kind=BROKER).error_code == 0


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "nowhere", errors.UnknownTopicOrPartition),
        (TOPIC, "a/b", errors.InvalidTopic),
        (TOPIC, "", errors.InvalidTopic),
        (BROKER, "2", errors.InvalidRequest),
        (BROKER, "one", errors.InvalidRequest),
        (8, "2", errors.InvalidRequest),
        (16, "", errors.InvalidRequest),
        (0, "x", errors.InvalidRequest),
    ],
)
def test_resources_without_settings_cannot_be_described(kind: int, name: str, error: type[errors.KafkaError]) -> None:
    result = describe(Cluster()[1], name, kind)
    assert (result.error_code, result.configs) == (error.code, [])
    assert result.error_message


# Changing.


def test_altering_replaces_the_whole_set() -> None:
    """Line 21."""
    broker = Cluster().topic(configs={"retention.ms": "5", "segment.ms": "6"})
    assert replace(broker, ("retention.ms", "7"), ("segment.bytes", "2000000")).error_code == 0
    assert overrides(broker) == {"retention.ms": "7", "segment.bytes": "2000000"}
    assert replace(broker).error_code == 0
    assert overrides(broker) == {} and "/config/topics/t" not in broker.cluster.store.tree.nodes


def test_altering_incrementally_leaves_the_rest_alone() -> None:
    """Line 21."""
    broker = Cluster().topic(configs={"retention.ms": "5", "segment.ms": "6"})
    assert change(broker, ("retention.ms", SET, "7"), ("segment.ms", DELETE, None), ("segment.jitter.ms", DELETE, None)).error_code == 0
    assert overrides(broker) == {"retention.ms": "7"}


def test_lists_are_appended_to_and_subtracted_from() -> None:
    """Line 21; without an override a list begins with its default."""
    broker = Cluster().topic()
    assert change(broker, ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert overrides(broker) == {"cleanup.policy": "delete,compact"}
    assert change(broker, ("cleanup.policy", APPEND, "compact,delete")).error_code == 0
    assert overrides(broker) == {"cleanup.policy": "delete,compact"}
    assert change(broker, ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
    assert overrides(broker) == {"cleanup.policy": "compact"}
    assert broker.leader("t").options.cleanup_policy == ("compact",)


@pytest.mark.parametrize(
    ("configs", "error"),
    [
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], errors.InvalidRequest),
        ([("retention.ms", SET, None)], errors.InvalidRequest),
        ([("cleanup.policy", APPEND, None)], errors.InvalidRequest),
        ([("retention.ms", 4, "1")], errors.InvalidRequest),
        ([("retention.ms", APPEND, "1")], errors.InvalidConfig),
        ([("retention.ms", SUBTRACT, "1")], errors.InvalidConfig),
        ([("retention.ms", SET, "soon")], errors.InvalidConfig),
        ([("retention.ms", SET, "-2")], errors.InvalidConfig),
        ([("cleanup.policy", APPEND, "burn")], errors.InvalidConfig),
        ([("no.such", SET, "1")], errors.InvalidConfig),
        ([("no.such", APPEND, "1")], errors.InvalidConfig),
    ],
)
def test_invalid_change_is_refused_without_effect(configs: Any, error: type[errors.KafkaError]) -> None:
    """Line 21."""
    broker = Cluster().topic(configs={"segment.ms": "6"})
    answer = change(broker, ("segment.ms", SET, "7"), *configs)
    assert answer.error_code == error.code and answer.error_message
    assert overrides(broker) == {"segment.ms": "6"}


def test_a_setting_of_kafkas_that_would_have_no_effect_here_takes_its_default_only() -> None:
    broker = Cluster().topic()
    answer = change(broker, ("preallocate", SET, "true"))
    assert answer.error_code == errors.InvalidConfig.code
    assert answer.error_message == "preallocate: true cannot be honoured: segments are never preallocated; leave it at false"
    defaults = (("preallocate", SET, "false"), ("remote.storage.enable", SET, "false"), ("local.retention.ms", SET, "-2"))
    assert change(broker, *defaults).error_code == 0
    assert change(broker, ("message.format.version", SET, "3.0-IV1")).error_message == "message.format.version: there is one record format"
    assert not set(TopicOptions.ABSENT) & set(TopicOptions.SPECS)


def test_all_topic_settings_of_kafka_are_described() -> None:
    missing = {name for name, setting in kafka_settings("topic").items() if setting.origin == "public"} - OF_TOPICS
    assert missing == set()


def test_segments_have_kafkas_minimum_and_a_smaller_size_is_internal() -> None:
    broker = Cluster().topic()
    assert change(broker, ("segment.bytes", SET, "1048575")).error_code == errors.InvalidConfig.code
    assert change(broker, ("segment.bytes", SET, "1048576")).error_code == 0
    assert change(broker, ("internal.segment.bytes", SET, "500")).error_code == 0
    assert broker.leader("t").options.segment_bytes_max == 500
    assert described(broker, "internal.segment.bytes").value == "500"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "cannot change while a broker runs"),
        ("super.users", "User:admin", "cannot change while a broker runs"),
        ("ssl.keystore.location", "/etc/kafka/ks.p12", "set listener.name.NAME.ssl.keystore.location"),
        ("ssl.engine.factory.class", "org.example.Factory", "Java classes cannot be loaded"),
        ("listener.name.plaintext.ssl.client.auth", "perhaps", "'perhaps' is not one of none, requested, required"),
        ("sasl.jaas.config", "x", "login module x is not one of"),
        ("config.providers", "env", "not resolved"),
        ("ssl.client.auth", "required", "set listener.name.NAME.ssl.client.auth"),
        ("node.id", "7", "cannot change while a broker runs"),
        ("process.roles", "broker", "cannot change while a broker runs"),
        ("log.cleaner.threads", "many", "whole number"),
        ("background.threads", "many", "whole number"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused_while_a_broker_runs(name: str, value: str, problem: str) -> None:
    broker = Cluster()[1]
    answer = change(broker, (name, SET, value), name="1", kind=BROKER)
    assert answer.error_code == errors.InvalidRequest.code and problem in answer.error_message
    assert "secret" not in answer.error_message
    assert replace(broker, (name, value), name="1", kind=BROKER).error_code == errors.InvalidRequest.code
    assert broker.node.context.image.configs == {}


def test_a_setting_of_one_broker_in_kafka_cannot_be_set_for_all() -> None:
    answer = change(Cluster()[1], ("ssl.client.auth", SET, "none"), name="", kind=BROKER)
    assert (answer.error_code, answer.error_message) == (42, "ssl.client.auth: it is a setting of a single broker; name the broker")


def test_values_that_ask_for_nothing_and_settings_without_meaning_are_accepted_while_a_broker_runs() -> None:
    broker = Cluster()[1]
    for name, value in (("ssl.provider", ""), ("num.network.threads", "5"), ("background.threads", "20")):
        assert change(broker, (name, SET, value), name="1", kind=BROKER).error_code == 0, name


def test_what_kafka_changes_while_running_changes_here() -> None:
    cluster = Cluster()
    broker = cluster[1]
    adopted = broker.adopted
    changed = {
        "num.io.threads": "3", "num.replica.fetchers": "2", "max.connections": "10", "max.connections.per.ip": "5",
        "max.connections.per.ip.overrides": "127.0.0.1:7", "max.connection.creation.rate": "4", "num.partitions": "6",
        "group.consumer.assignment.interval.ms": "20", "log.retention.hours": "2", "num.recovery.threads.per.data.dir": "1",
    }  # fmt: skip
    for name, value in changed.items():
        assert change(broker, (name, SET, value), name="", kind=BROKER).error_code == 0, name
        assert broker.adopted == (adopted := adopted + 1)
    options = broker.node.context.options
    assert {name: SPECS_BY_NAME[name].render(getattr(options, SPECS_BY_NAME[name].attribute)) for name in changed} == changed
    assert cluster.topic("late").leader("late").options.retention_ms == 2 * 3_600_000
    created = CreateTopicsRequest(topics=[CreatableTopic(name="many", num_partitions=-1, replication_factor=-1)], timeout_ms=1000)
    assert broker.ask(created, 5).topics[0].num_partitions == 6
    change(broker, ("log.retention.minutes", SET, "3"), name="", kind=BROKER)
    assert broker.leader("late").options.retention_ms == 3 * 60_000


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("share.auto.offset.reset", "this version has no share groups"),
        ("streams.num.standby.replicas", "this version has no streams groups"),
        ("consumer.no.such", "unknown setting"),
    ],
)
def test_settings_of_other_kinds_of_groups_are_told_apart_from_unknown_ones(name: str, problem: str) -> None:
    answer = change(Cluster()[1], (name, SET, "1"), name="g", kind=32)
    assert answer.error_code == errors.InvalidConfig.code and problem in answer.error_message


def test_a_whole_set_that_makes_no_sense_changes_nothing() -> None:
    broker = Cluster().topic(configs={"segment.ms": "6"})
    for configs, error in (
        ((("retention.ms", "1"), ("retention.ms", "2")), errors.InvalidRequest),
        ((("retention.ms", None),), errors.InvalidRequest),
        ((("no.such", "1"),), errors.InvalidConfig),
    ):
        assert replace(broker, *configs).error_code == error.code
    assert overrides(broker) == {"segment.ms": "6"}


def test_resource_repeated_in_a_request_is_not_changed() -> None:
    """Line 21."""
    broker = Cluster().topic()
    resources = [
        incremental.AlterConfigsResource(
            resource_type=TOPIC, resource_name="t", configs=[incremental.AlterableConfig(name="retention.ms", value=value)]
        )
        for value in ("1", "2")
    ]
    answer = broker.ask(incremental.IncrementalAlterConfigsRequest(resources=resources), 1)
    assert [one.error_code for one in answer.responses] == [errors.InvalidRequest.code] * 2
    assert overrides(broker) == {}


def test_each_resource_succeeds_or_fails_by_itself() -> None:
    broker = Cluster().topic()
    resources = [
        legacy.AlterConfigsResource(
            resource_type=TOPIC, resource_name=name, configs=[legacy.AlterableConfig(name="retention.ms", value="1")]
        )
        for name in ("nowhere", "t")
    ]
    answer = broker.ask(legacy.AlterConfigsRequest(resources=resources), 2)
    assert [one.error_code for one in answer.responses] == [errors.UnknownTopicOrPartition.code, 0]
    assert overrides(broker) == {"retention.ms": "1"}


def test_validate_only_checks_and_changes_nothing() -> None:
    broker = Cluster().topic()
    assert change(broker, ("retention.ms", SET, "1"), validate_only=True).error_code == 0
    assert replace(broker, ("retention.ms", "1"), validate_only=True).error_code == 0
    assert change(broker, ("retention.ms", SET, "x"), validate_only=True).error_code == errors.InvalidConfig.code
    assert overrides(broker) == {}


def test_a_topics_changed_settings_hold_at_once_on_the_broker_that_leads_it() -> None:
    cluster = Cluster(brokers=3)
    leader = cluster.topic()
    other = next(broker for broker in cluster.brokers.values() if broker is not leader)
    assert change(other, ("max.message.bytes", SET, "100")).error_code == 0
    assert produce(leader, batch(b"x" * 200)).error_code == errors.MessageTooLarge.code


def test_a_setting_of_all_brokers_is_the_default_of_their_topics() -> None:
    cluster = Cluster(brokers=2)
    leader = cluster.topic()
    assert change(cluster[1], ("message.max.bytes", SET, "100"), name="", kind=BROKER).error_code == 0
    assert produce(leader, batch(b"x" * 200)).error_code == errors.MessageTooLarge.code
    assert change(cluster[1], ("max.message.bytes", SET, "1000")).error_code == 0
    assert produce(leader, batch(b"x" * 200)).error_code == 0


def test_a_dynamic_setting_of_a_broker_holds_there_alone() -> None:
    cluster = Cluster(brokers=2)
    assert change(cluster[1], ("ottla.disk.reserve.bytes", SET, "77"), name="2", kind=BROKER).error_code == 0
    assert [cluster[number].node.context.options.disk_reserve_bytes for number in (1, 2)] == [256 << 20, 77]
    assert change(cluster[1], ("ottla.disk.reserve.bytes", DELETE, None), name="2", kind=BROKER).error_code == 0
    assert cluster[2].node.context.options.disk_reserve_bytes == 256 << 20


def test_dynamic_settings_survive_a_restart() -> None:
    cluster = Cluster()
    change(cluster[1], ("ottla.disk.reserve.bytes", SET, "77"), name="1", kind=BROKER)
    assert cluster.restart(1).node.context.options.disk_reserve_bytes == 77


@pytest.mark.parametrize(
    ("setting", "value", "name"),
    [
        ("broker.rack", "b", "1"),
        ("broker.rack", "b", ""),
        ("ottla.disk.reserve.bytes", "1", ""),
        ("log.retention.ms", "soon", "1"),
        ("log.retention.ms", "1", "9"),
        ("log.retention.ms", "1", "one"),
    ],
)
def test_changing_a_read_only_setting_is_an_invalid_request(setting: str, value: str, name: str) -> None:
    broker = Cluster()[1]
    assert change(broker, (setting, SET, value), name=name, kind=BROKER).error_code == errors.InvalidRequest.code
    assert replace(broker, (setting, value), name=name, kind=BROKER).error_code == errors.InvalidRequest.code
    assert broker.node.context.image.configs == {}


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "nowhere", errors.UnknownTopicOrPartition),
        (TOPIC, "", errors.InvalidRequest),
        (TOPIC, "a/b", errors.InvalidTopic),
        (8, "2", errors.InvalidRequest),
        (32, "", errors.InvalidRequest),
    ],
)
def test_resources_without_settings_cannot_be_changed(kind: int, name: str, error: type[errors.KafkaError]) -> None:
    broker = Cluster()[1]
    assert change(broker, ("retention.ms", SET, "1"), name=name, kind=kind).error_code == error.code
    assert replace(broker, ("retention.ms", "1"), name=name, kind=kind).error_code == error.code


def test_two_changes_at_the_same_moment_both_hold() -> None:
    """The second one finds another version in the store and is made again on what the first one wrote."""
    cluster = Cluster()
    broker = cluster.topic(configs={"segment.ms": "1"})
    cluster.store_delivers = False
    sent = []
    for key in ("retention.ms", "segment.index.bytes"):
        configs = [incremental.AlterableConfig(name=key, value="1000")]
        resource = incremental.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=configs)
        sent.append(broker.send(incremental.IncrementalAlterConfigsRequest(resources=[resource]), 1))
    cluster.store_delivers = True
    cluster.run()
    assert [one.answer.responses[0].error_code for one in sent] == [0, 0]
    assert overrides(broker) == {"segment.ms": "1", "retention.ms": "1000", "segment.index.bytes": "1000"}


def test_a_change_to_a_topic_that_is_deleted_meanwhile_leaves_no_settings_behind() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    cluster.store_delivers = False
    store = cluster.store.session()
    names = ["/brokers/topics/t/partitions/0/state", "/brokers/topics/t/partitions/0", "/brokers/topics/t/partitions", "/brokers/topics/t"]
    store.submit([Op("delete", name) for name in names], lambda result: None)
    resource = legacy.AlterConfigsResource(
        resource_type=TOPIC, resource_name="t", configs=[legacy.AlterableConfig(name="retention.ms", value="1")]
    )
    sent = broker.send(legacy.AlterConfigsRequest(resources=[resource]), 2)
    cluster.store_delivers = True
    cluster.run()
    assert sent.answer.responses[0].error_code == errors.UnknownTopicOrPartition.code
    assert "/config/topics/t" not in cluster.store.tree.nodes


def test_settings_are_kept_in_the_store_as_kafka_keeps_them() -> None:
    broker = Cluster().topic()
    change(broker, ("retention.ms", SET, "1"))
    change(broker, ("log.retention.ms", SET, "2"), name="", kind=BROKER)
    change(broker, ("log.retention.ms", SET, "3"), name="1", kind=BROKER)
    nodes = broker.cluster.store.tree.nodes
    assert json.loads(nodes["/config/topics/t"].data) == {"version": 1, "config": {"retention.ms": "1"}}
    assert json.loads(nodes["/config/brokers/<default>"].data)["config"] == {"log.retention.ms": "2"}
    assert json.loads(nodes["/config/brokers/1"].data)["config"] == {"log.retention.ms": "3"}


# Listing.


def test_version_0_lists_client_metrics_of_which_there_are_none() -> None:
    answer = Cluster().topic().ask(ListConfigResourcesRequest(), 0)
    assert (answer.error_code, answer.config_resources) == (0, [])


def test_version_1_lists_the_requested_types_and_all_by_default() -> None:
    cluster = Cluster(brokers=2)
    broker = cluster.topic("b")
    cluster.topic("a")

    def listed(*types: int) -> list[tuple[int, str]]:
        answer = broker.ask(ListConfigResourcesRequest(resource_types=list(types)), 1)
        return [(one.resource_type, one.resource_name) for one in answer.config_resources]

    assert listed() == [(2, "a"), (2, "b"), (4, "1"), (4, "2"), (8, "1"), (8, "2")]
    assert listed(TOPIC) == [(2, "a"), (2, "b")]
    assert listed(BROKER, 8, 16, 32) == [(4, "1"), (4, "2"), (8, "1"), (8, "2")]


def test_unknown_resource_type_is_an_unsupported_version() -> None:
    assert Cluster()[1].ask(ListConfigResourcesRequest(resource_types=[2, 3]), 1).error_code == errors.UnsupportedVersion.code


def test_requests_that_wait_for_the_disk_are_answered_when_write_caching_is_enabled() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    waiting = broker.send(produce_request(batch(b"a")), 9)
    assert waiting.waits
    assert change(broker, ("write.caching", SET, "true")).error_code == 0
    assert waiting.answer is not None and waiting.answer.responses[0].partition_responses[0].error_code == 0


def test_an_unknown_setting_of_a_topic_is_refused_in_the_words_that_tools_look_for() -> None:
    refused = change(Cluster().topic(), ("retention.m", SET, "1"))
    assert refused.error_code == errors.InvalidConfig.code
    assert refused.error_message == "retention.m: Unknown topic config name; did you mean retention.ms?"


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "t"), (BROKER, "1"), (BROKER, "")])
def test_level_0_of_gzip_which_compresses_nothing_is_refused_as_in_kafka(kind: int, name: str) -> None:
    broker = Cluster().topic()
    refused = errors.InvalidConfig if kind == TOPIC else errors.InvalidRequest
    assert change(broker, ("compression.gzip.level", SET, "0"), name=name, kind=kind).error_code == refused.code
    assert change(broker, ("compression.gzip.level", SET, "9"), name=name, kind=kind).error_code == 0
    assert described(broker, "compression.gzip.level").value == "9"


@pytest.mark.parametrize(("kind", "name"), [("topics", "t"), ("brokers", "1"), ("brokers", "<default>")])
def test_unreadable_settings_in_the_store_are_ignored_with_a_warning(kind: str, name: str) -> None:
    """Every broker would stop, and stop again when it is started, for one bad word in the store."""
    cluster = Cluster()
    broker = cluster.topic()
    bad = {"retention.ms": "soon", "log.retention.ms": "later", "leader.replication.throttled.rate": "much", "compression.type": "gzip"}
    ops = (Op("create", layout.config(kind, name), layout.encode_config(bad)),)
    cluster.store.session().submit(ops, lambda result: None)
    cluster.run()
    assert any("is ignored" in warning for warning in broker.warnings)
    assert produce(broker, batch(b"a")).error_code == 0
    options = broker.leader("t").options
    assert (options.retention_ms, options.compression_type) == (TopicOptions().retention_ms, "gzip")
    assert described(broker, "compression.type").value == "gzip"
    gone = cluster.kill(1)
    again = cluster.start(1, gone.texts, [disk.restart() for disk in gone.disks.values()])
    assert again.node.ready

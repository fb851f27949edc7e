"""Levels of loggers as settings of the resource type BROKER_LOGGER (KIP-412)."""

import pytest
from cluster import Broker, Cluster

from ottla.base.log_levels import GROUP, LOGGERS, ROOT, LogLevel
from ottla.broker import events
from ottla.wire import errors
from ottla.wire.messages.alter_configs import AlterConfigsRequest
from ottla.wire.messages.alter_configs import AlterConfigsResource as Replaced
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest

BROKER, LOGGER = 4, 8
SET, DELETE, APPEND = 0, 1, 2


def levels(broker: Broker, name: str | None = None) -> dict[str, str | None]:
    resource = DescribeConfigsResource(resource_type=LOGGER, resource_name=name or str(broker.broker_id), configuration_keys=None)
    (result,) = broker.ask(DescribeConfigsRequest(resources=[resource]), 4).results
    assert not result.error_code, result.error_message
    assert {config.config_source for config in result.configs} == {6} and not any(config.read_only for config in result.configs)
    return {config.name: config.value for config in result.configs}


def change(broker: Broker, *changes: tuple[str, int, str | None], name: str | None = None, only_check: bool = False) -> int:
    configs = [AlterableConfig(name=logger, config_operation=operation, value=value) for logger, operation, value in changes]
    resource = AlterConfigsResource(resource_type=LOGGER, resource_name=name or str(broker.broker_id), configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=only_check)
    return int(broker.ask(request, 1).responses[0].error_code)


def test_all_loggers_are_described_with_the_level_in_effect() -> None:
    broker = Cluster()[1]
    assert levels(broker) == dict.fromkeys(LOGGERS, "INFO")
    broker.node.context.log_levels.update({"ottla": LogLevel.WARNING, GROUP: LogLevel.DEBUG})
    assert (levels(broker)[GROUP], levels(broker)["ottla.net"], levels(broker)[ROOT]) == ("DEBUG", "WARN", "INFO")


def test_a_level_is_set_and_deleted_by_the_broker_that_is_asked() -> None:
    """It need not be the controller, and nothing is stored."""
    cluster = Cluster(brokers=2)
    broker = next(broker for broker in cluster.brokers.values() if not broker.node.controller.active)
    assert change(broker, (GROUP, SET, "DEBUG")) == 0
    assert (levels(broker)[GROUP], broker.log_levels) == ("DEBUG", {GROUP: LogLevel.DEBUG})
    assert levels(cluster.controller)[GROUP] == "INFO"
    assert change(broker, (GROUP, DELETE, None)) == 0
    assert (levels(broker)[GROUP], broker.log_levels) == ("INFO", {GROUP: None})
    assert "levels of loggers were changed" in broker.logged("ottla.session")


def test_a_change_is_only_checked_on_request() -> None:
    broker = Cluster()[1]
    assert change(broker, (GROUP, SET, "DEBUG"), only_check=True) == 0
    assert change(broker, (GROUP, SET, "LOUD"), only_check=True) == errors.InvalidConfig.code
    assert (levels(broker)[GROUP], broker.log_levels) == ("INFO", {})


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        (("kafka.server", SET, "DEBUG"), errors.InvalidConfig),
        ((GROUP, SET, "debug"), errors.InvalidConfig),
        ((GROUP, SET, "LOUD"), errors.InvalidConfig),
        ((GROUP, APPEND, "DEBUG"), errors.InvalidRequest),
        ((ROOT, DELETE, None), errors.InvalidRequest),
        (("kafka.server", DELETE, None), errors.InvalidConfig),
    ],
)
def test_changes_that_make_no_sense_are_refused_as_a_whole(changed: tuple[str, int, str | None], error: type[errors.KafkaError]) -> None:
    """Source: Kafka's ConfigAdminManager."""
    broker = Cluster()[1]
    assert change(broker, ("ottla.net", SET, "DEBUG"), changed) == error.code
    assert broker.log_levels == {}


def test_loggers_of_another_broker_are_refused() -> None:
    cluster = Cluster(brokers=2)
    assert change(cluster[1], (GROUP, SET, "DEBUG"), name="2") == errors.InvalidRequest.code
    resource = DescribeConfigsResource(resource_type=LOGGER, resource_name="2", configuration_keys=None)
    assert cluster[1].ask(DescribeConfigsRequest(resources=[resource]), 4).results[0].error_code == errors.InvalidRequest.code


def test_loggers_are_not_changed_by_alter_configs() -> None:
    """It would have to name every logger. Source: Kafka's ConfigAdminManager."""
    broker = Cluster()[1]
    request = AlterConfigsRequest(resources=[Replaced(resource_type=LOGGER, resource_name="1", configs=[])])
    assert broker.ask(request, 2).responses[0].error_code == errors.InvalidRequest.code


def test_brokers_of_one_process_share_their_levels() -> None:
    broker = Cluster()[1]
    broker.handle(events.LogLevelsChanged(levels={ROOT: LogLevel.ERROR}))
    assert levels(broker) == dict.fromkeys(LOGGERS, "ERROR")

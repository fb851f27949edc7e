"""Settings of Spark's own Kafka connector."""

import logging

import pytest

from ottla.spark.connector_settings import no_effect, warn_of


def test_settings_of_sparks_kafka_connector_are_named_once_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    names = ["spark.kafka.producer.cache.timeout", "spark.kafka.clusters.main.security.protocol", "spark.sql.shuffle.partitions"]
    with caplog.at_level(logging.WARNING, "ottla.spark"):
        warn_of(names)
        warn_of(names)
    assert [record.getMessage().partition(" has no effect")[0] for record in caplog.records] == sorted(names[:2])
    assert "kafka.sasl.*" in caplog.records[0].getMessage()


@pytest.mark.parametrize("name", ["spark.kafka.consumer.cache.jmx.enable", "spark.security.credentials.kafka.enabled", "spark.kafka.new"])
def test_every_setting_of_the_connector_has_a_reason(name: str) -> None:
    assert no_effect(name) and no_effect("spark.executor.memory") is None

"""Session settings of Spark's own Kafka connector, `spark.kafka.*`. ``format("ottla")`` does not use them, and names those that are set.

They are settings of the JVM: of its pools of consumers and producers, and of delegation tokens. Sources in Python do not get them. In a
pipeline file they are refused, since nothing else could use them. In other sessions Spark's connector may be used too, so a warning names
them.
"""

import functools
import logging
from collections.abc import Iterable

log = logging.getLogger("ottla.spark")

#: What holds instead, by the beginning of the name.
INSTEAD = {
    "spark.kafka.consumer.cache.": "a Python process keeps its connections until it ends, and needs no pool of consumers",
    "spark.kafka.consumer.fetchedData.cache.": "a task reads its offsets once and keeps nothing for the next one",
    "spark.kafka.producer.cache.": "a Python process keeps its producers until it ends",
    "spark.kafka.clusters.": "delegation tokens are not fetched; set the login of each source and sink by kafka.security.protocol and"
    " kafka.sasl.*, or by [kafka] of a pipeline",
    "spark.kafka.": "it is a setting of Spark's own Kafka connector",
    "spark.security.credentials.kafka.enabled": "delegation tokens are not fetched",
}


def no_effect(name: str) -> str | None:
    """Why a setting has no effect on ``format("ottla")``; None for a setting that is not of Spark's Kafka connector."""
    return next((reason for beginning, reason in INSTEAD.items() if name.startswith(beginning)), None)


def warn_of(settings: Iterable[str]) -> None:
    """Logs the settings that have no effect, once per process."""
    for name in sorted(settings):
        if no_effect(name) is not None:
            _warn(name)


@functools.cache
def _warn(name: str) -> None:
    log.warning('%s has no effect on format("ottla"): %s', name, no_effect(name))

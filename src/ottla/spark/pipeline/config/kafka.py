"""Reads and checks ``[kafka]`` of a pipeline file: settings of the clients of its brokers, for every source and sink of topics.

    [kafka]
    security.protocol = "SASL_SSL"
    sasl.mechanism = "SCRAM-SHA-512"
    sasl.username = "visits"
    sasl.password = "${VISITS_PASSWORD}"
    ssl.truststore.location = "/etc/ottla/tls/ca.pem"

Names are Kafka's; a dotted name may also be in quotes. Errors do not repeat values, which may be secrets.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ottla.base.options import ConfigError, suggestion
from ottla.client.options import AdminOptions, ConsumerOptions, ProducerOptions, from_keywords
from ottla.spark.pipeline.config.toml_table import Table
from ottla.spark.source.options import FORBIDDEN, JAVAS_OWN

PREFIX = "kafka."
#: Settings that have keys of their own.
OWN = {
    "bootstrap.servers": "set bootstrap, at the top of the file",
    "auto.offset.reset": "set start, or startingOffsets in the options of a source",
    "transactional.id": "the sinks choose it; set delivery",
}
TABLES = (ConsumerOptions, ProducerOptions, AdminOptions)


def read_kafka(table: Table) -> dict[str, str]:
    """The settings as options of ``format("ottla")``. Raises: PipelineError."""
    known = {name for each in TABLES for name in each.SPECS}
    found: dict[str, str] = {}
    for name, value in _flat(table.values):
        if name in OWN or f"{PREFIX}{name}" in FORBIDDEN:
            raise table.fail(name, f"may not be set here; {OWN.get(name) or FORBIDDEN[f'{PREFIX}{name}']}")
        if name not in known and name not in JAVAS_OWN:
            raise table.fail(name, f"is not a setting of a client{suggestion(name, known)}")
        if not isinstance(value, str | int | float | bool):
            raise table.fail(name, "expected a text, a number, true or false")
        found[name] = str(value).lower() if isinstance(value, bool) else str(table.substituted(name, value))
    table.read_keys += table.values
    # What belongs together is checked for the client that has most of it.
    settings = {name.replace(".", "_"): value for name, value in found.items() if name in AdminOptions.SPECS}
    try:
        from_keywords(AdminOptions, settings)
    except ConfigError as error:
        raise table.fail(error.name.replace("_", "."), error.problem) from None
    return {f"{PREFIX}{name}": value for name, value in found.items()}


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values by dotted name: a name without quotes is a table in a table."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value

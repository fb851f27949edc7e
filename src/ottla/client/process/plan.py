"""Arguments of `process`, checked; and the output records of one call of the user's function. Pure.

The function returns

    None                    no output
    a value                 a record of topic `to`, with the key and the timestamp of the input record
    a ProducerRecord        as it is; an empty topic is `to`
    a list or a generator   several of these

With `batch=True` the function gets a list of records, so a value has no key and gets the present time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from ottla.base.options import ConfigError, suggestion
from ottla.client.argument_validation import milliseconds, topic_name, whole_number
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.interceptors import ProducerRecord
from ottla.client.options import ConsumerOptions, ProducerOptions
from ottla.client.profiles import PYTHON_SETTINGS
from ottla.client.settings import ConsumerSettings, ProducerSettings

#: Readers at read_committed and the next owner of a partition wait as long for the transaction of a process that died.
TRANSACTION_TIMEOUT_MS = 10_000
#: Keyword arguments of the clients that are not settings, or settings of both.
CONSUMER_ARGUMENTS = ("key_deserializer", "value_deserializer", *PYTHON_SETTINGS)
PRODUCER_ARGUMENTS = ("key_serializer", "value_serializer", "partitioner", *PYTHON_SETTINGS)
#: Settings that `process` decides, and why.
OWN = {
    "group_id": "is given as group=",
    "enable_auto_commit": "is off: offsets are committed in the transactions",
    "enable_idempotence": "is on: transactions need it",
}

#: Called with the record, or with the list of records, and the exception of the function.
OnError = Callable[[Any, Exception], Any]


class ProcessArguments(ProducerSettings, ConsumerSettings, total=False):
    """Settings of both clients, and how they read and write values."""

    key_deserializer: Any
    value_deserializer: Any
    key_serializer: Any
    value_serializer: Any
    partitioner: Any


@dataclass(frozen=True, slots=True)
class Plan:
    """The checked arguments."""

    topics: tuple[str, ...]
    group: str
    to: str | None
    batch: bool
    max_batch_records: int
    commit_interval_ms: float
    timeout_ms: float | None
    max_attempts: int
    on_error: OnError | None
    #: Keyword arguments of the clients.
    consumer: Mapping[str, Any]
    producer: Mapping[str, Any]


def planned(
    topics: Sequence[str],
    *,
    group: str,
    to: str | None,
    batch: bool,
    max_batch_records: int,
    commit_interval_ms: float,
    timeout_ms: float | None,
    max_attempts: int,
    on_error: OnError | None,
    settings: Mapping[str, Any],
) -> Plan:
    """Raises: ConfigError, TypeError, ValueError."""
    if not topics:
        raise ValueError("process() needs a topic, such as process('orders', group='billing')")
    for topic in topics:
        topic_name(topic)
    if not isinstance(group, str) or not group:
        raise ConfigError("group", "process() commits offsets, so it needs the name of a group")
    if to is not None:
        topic_name(to)
    if on_error is not None and not callable(on_error):
        raise TypeError(f"on_error is a function of (record, error), not {on_error!r}")
    whole_number("max_batch_records", max_batch_records, at_least=1)
    whole_number("max_attempts", max_attempts, at_least=1)
    milliseconds("commit_interval_ms", commit_interval_ms)
    if timeout_ms is not None:
        milliseconds("timeout_ms", timeout_ms)
    consumer, producer = _split(settings)
    if commit_interval_ms >= (limit_ms := producer["transaction_timeout_ms"]):
        raise ConfigError("transaction_timeout_ms", f"{limit_ms} is not above commit_interval_ms, {commit_interval_ms}; raise it")
    consumer["group_id"] = group
    producer.setdefault("transactional_id", f"{group}-{consumer.get('group_instance_id') or uuid4().hex}")
    return Plan(
        tuple(topics), group, to, batch, max_batch_records, commit_interval_ms, timeout_ms, max_attempts, on_error, consumer, producer
    )


def _split(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of each client. Raises: ConfigError for an unknown one."""
    of_consumers = {spec.attribute for spec in ConsumerOptions.SPECS.values()} | set(CONSUMER_ARGUMENTS)
    of_producers = {spec.attribute for spec in ProducerOptions.SPECS.values()} | set(PRODUCER_ARGUMENTS)
    for name in settings:
        if name in OWN:
            raise ConfigError(name, OWN[name])
        if name not in of_consumers | of_producers:
            raise ConfigError(name, "unknown setting" + suggestion(name, of_consumers | of_producers))
    consumer = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    producer = {"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}
    consumer |= {name: value for name, value in settings.items() if name in of_consumers}
    producer |= {name: value for name, value in settings.items() if name in of_producers}
    return consumer, producer


def several(returned: Any) -> list[Any]:
    """What a function returned, as a list. Runs a generator, so it may raise errors of the function."""
    if returned is None:
        return []
    if isinstance(returned, list):
        return returned
    return list(returned) if isinstance(returned, Iterator) else [returned]


def outputs_of(returned: Iterable[Any], source: ConsumerRecord | None, to: str | None) -> Iterator[ProducerRecord]:
    """Records to send for what the function returned about a record, or about several. Raises: TypeError without a topic."""
    for one in returned:
        if isinstance(one, ProducerRecord):
            record = one
            if not record.topic:
                record = ProducerRecord(to or "", one.value, one.key, one.headers, one.partition, one.timestamp_ms)
        elif one is None:
            continue
        elif source is None:
            record = ProducerRecord(to or "", one)
        else:
            record = ProducerRecord(to or "", one, source.key, timestamp_ms=source.timestamp if source.timestamp >= 0 else None)
        if not record.topic:
            raise TypeError(f"there is no topic for {one!r}: give process() a topic with to=, or return a ProducerRecord that has one")
        yield record

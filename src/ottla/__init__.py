"""Ottla: a partitioned commit log that speaks the Kafka protocol.

    ottla.Producer  ottla.Consumer  ottla.Admin        clients that block
    ottla.aio.Producer  .Consumer  .Admin              the same for asyncio
    ottla.consume                                      a loop over records in one line, also in ottla.aio
    ottla.read_table                                   parts of topics as an Arrow table, also in ottla.aio
    ottla.KafkaError                                   the family of everything that can go wrong; its members are in `ottla.errors`
    ottla.results                                      what the admin clients answer
    ottla.serializers                                  formats for keys and values
    ottla.TopicPartition  ottla.NewTopic  ...          words the clients take and give

Nothing of it is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.base.ids import TopicPartition
    from ottla.base.options import ConfigError
    from ottla.client.admin_calls import unwrap
    from ottla.client.assignors import Assignor
    from ottla.client.batches import RecordMetadata
    from ottla.client.commits import GroupMetadata, OffsetAndMetadata
    from ottla.client.group_results import GroupState, GroupType
    from ottla.client.interceptors import ProducerRecord
    from ottla.client.rebalance import RebalanceListener
    from ottla.client.record import ConsumerRecord
    from ottla.client.results import ConfigChange, ConfigOperation, NewPartitions, NewTopic, Resource, ResourceType
    from ottla.client.sync import Producer
    from ottla.client.sync_admin import Admin
    from ottla.client.sync_consume import Records, consume
    from ottla.client.sync_consumer import Consumer
    from ottla.client.tables import read_table
    from ottla.wire.errors import KafkaError

_HOME = {
    "Admin": "ottla.client.sync_admin",
    "Assignor": "ottla.client.assignors",
    "ConfigChange": "ottla.client.results",
    "ConfigError": "ottla.base.options",
    "ConfigOperation": "ottla.client.results",
    "Consumer": "ottla.client.sync_consumer",
    "ConsumerRecord": "ottla.client.record",
    "GroupMetadata": "ottla.client.commits",
    "GroupState": "ottla.client.group_results",
    "GroupType": "ottla.client.group_results",
    "KafkaError": "ottla.wire.errors",
    "NewPartitions": "ottla.client.results",
    "NewTopic": "ottla.client.results",
    "OffsetAndMetadata": "ottla.client.commits",
    "Producer": "ottla.client.sync",
    "ProducerRecord": "ottla.client.interceptors",
    "RebalanceListener": "ottla.client.rebalance",
    "RecordMetadata": "ottla.client.batches",
    "Records": "ottla.client.sync_consume",
    "Resource": "ottla.client.results",
    "ResourceType": "ottla.client.results",
    "TopicPartition": "ottla.base.ids",
    "consume": "ottla.client.sync_consume",
    "read_table": "ottla.client.tables",
    "unwrap": "ottla.client.admin_calls",
}
_MODULES = ("aio", "errors", "results", "serializers", "testing")

__all__ = [
    "Admin",
    "Assignor",
    "ConfigChange",
    "ConfigError",
    "ConfigOperation",
    "Consumer",
    "ConsumerRecord",
    "GroupMetadata",
    "GroupState",
    "GroupType",
    "KafkaError",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "Producer",
    "ProducerRecord",
    "RebalanceListener",
    "RecordMetadata",
    "Records",
    "Resource",
    "ResourceType",
    "TopicPartition",
    "consume",
    "read_table",
    "unwrap",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"ottla.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'ottla' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})

"""Ottla: a partitioned commit log that speaks the Kafka protocol.

    ottla.Producer  ottla.Consumer  ottla.Admin        clients that block
    ottla.aio.Producer  .Consumer  .Admin              the same for asyncio
    ottla.consume                                      a loop over records in one line, also in ottla.aio
    ottla.process                                      exactly-once processing in one call, also in ottla.aio
    ottla.read_table                                   parts of topics as an Arrow table, also in ottla.aio
    ottla.KafkaError                                   the family of everything that can go wrong; its members are in `ottla.errors`
    ottla.results                                      what the admin clients answer
    ottla.serializers                                  formats for keys and values
    ottla.TopicPartition  ottla.NewTopic  ...          words the clients take and give
    ottla.__version__                                  such as "0.2.0"

Nothing of it is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.base.ids import TopicPartition
    from ottla.base.options import ConfigError
    from ottla.client.admin.calls import unwrap
    from ottla.client.admin.group_results import GroupState, GroupType
    from ottla.client.admin.results import ConfigChange, ConfigOperation, NewPartitions, NewTopic, Resource, ResourceType
    from ottla.client.arrow.tables import read_table
    from ottla.client.consumer.rebalance import RebalanceListener
    from ottla.client.consumer.record import ConsumerRecord
    from ottla.client.group.assignor import Assignor
    from ottla.client.group.commits import GroupMetadata, OffsetAndMetadata
    from ottla.client.interceptors import ProducerRecord
    from ottla.client.producer.batches import RecordMetadata
    from ottla.client.producer.transaction_requests import PreparedTransaction
    from ottla.client.sync.admin import Admin
    from ottla.client.sync.consume import Records, consume
    from ottla.client.sync.consumer import Consumer
    from ottla.client.sync.process import Processor, process
    from ottla.client.sync.producer import Producer
    from ottla.wire.errors import ErrorKind, KafkaError

    __version__: str

_HOME = {
    "Admin": "ottla.client.sync.admin",
    "Assignor": "ottla.client.group.assignor",
    "ConfigChange": "ottla.client.admin.results",
    "ConfigError": "ottla.base.options",
    "ConfigOperation": "ottla.client.admin.results",
    "Consumer": "ottla.client.sync.consumer",
    "ConsumerRecord": "ottla.client.consumer.record",
    "ErrorKind": "ottla.wire.errors",
    "GroupMetadata": "ottla.client.group.commits",
    "GroupState": "ottla.client.admin.group_results",
    "GroupType": "ottla.client.admin.group_results",
    "KafkaError": "ottla.wire.errors",
    "NewPartitions": "ottla.client.admin.results",
    "NewTopic": "ottla.client.admin.results",
    "OffsetAndMetadata": "ottla.client.group.commits",
    "PreparedTransaction": "ottla.client.producer.transaction_requests",
    "Processor": "ottla.client.sync.process",
    "Producer": "ottla.client.sync.producer",
    "ProducerRecord": "ottla.client.interceptors",
    "RebalanceListener": "ottla.client.consumer.rebalance",
    "RecordMetadata": "ottla.client.producer.batches",
    "Records": "ottla.client.sync.consume",
    "Resource": "ottla.client.admin.results",
    "ResourceType": "ottla.client.admin.results",
    "TopicPartition": "ottla.base.ids",
    "consume": "ottla.client.sync.consume",
    "process": "ottla.client.sync.process",
    "read_table": "ottla.client.arrow.tables",
    "unwrap": "ottla.client.admin.calls",
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
    "ErrorKind",
    "GroupMetadata",
    "GroupState",
    "GroupType",
    "KafkaError",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "PreparedTransaction",
    "Processor",
    "Producer",
    "ProducerRecord",
    "RebalanceListener",
    "RecordMetadata",
    "Records",
    "Resource",
    "ResourceType",
    "TopicPartition",
    "consume",
    "process",
    "read_table",
    "unwrap",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "__version__":
        from ottla.base.version import VERSION

        return VERSION
    if name in _MODULES:
        return import_module(f"ottla.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'ottla' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "__version__"})

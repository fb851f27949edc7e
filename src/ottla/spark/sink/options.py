"""Options of a write to ``format("ottla")``, named as in Spark's own Kafka sink. Pure: no Spark, no network.

All options are checked on the driver before any task starts, the producer's settings too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.base.options import ConfigError
from ottla.base.units import MiB
from ottla.client.options import ConsumerOptions, ProducerOptions, from_keywords
from ottla.spark.source.options import OptionError, RawOptions

OPTIONS = ("topic", "bootstrap.servers", "kafka.bootstrap.servers", "includeHeaders", "compression", "partitioner", "reportTo")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONERS = ("default", "uniform", "round_robin", "random")
#: Java's classes that `kafka.partitioner.class` may name, without their packages.
PARTITIONER_CLASSES = {"DefaultPartitioner": "default", "UniformStickyPartitioner": "uniform", "RoundRobinPartitioner": "round_robin"}
#: Unacknowledged bytes at which a sink process waits.
SEND_BYTES = 64 * MiB
#: Largest record batch: below the brokers' default of message.max.bytes (1,048,588).
BATCH_BYTES = 1_000_000
#: Settings that only consumers have.
CONSUMERS_OWN = frozenset(ConsumerOptions.SPECS) - frozenset(ProducerOptions.SPECS)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a batch or streaming write, parsed."""

    bootstrap: str
    #: Takes precedence over the column of the same name.
    topic: str | None = None
    #: A codec's wire name.
    compression: str = "none"
    #: Partitions rows without a partition of their own (`ottla.spark.sink.task_producer`).
    partitioner: str = "default"
    #: A file to which the driver writes the number of records of a batch write.
    report_to: str | None = None
    #: Properties for the client, in Kafka's dotted names.
    client: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Raises: OptionError for the first invalid option."""
        raw = RawOptions(options, OPTIONS, what="write")
        # Checked for jobs that set it. Headers are always written.
        raw.boolean("includeHeaders", False)
        client = raw.client_properties()
        parsed = cls(
            bootstrap=raw.bootstrap(),
            topic=raw.text("topic"),
            compression=_compression(raw, client.pop("compression.type", None)),
            partitioner=_partitioner(raw, client),
            report_to=raw.path("reportTo"),
            client=client,
        )
        try:
            from_keywords(ProducerOptions, parsed.producer_settings())
        except ConfigError as error:
            raise OptionError(f"kafka.{error.name.replace('_', '.')}", error.problem) from None
        return parsed

    def producer_settings(self) -> dict[str, Any]:
        """The producer's keyword arguments. Consumer settings are left out: the same options may serve a source."""
        settings = {name.replace(".", "_"): value for name, value in self.client.items() if name not in CONSUMERS_OWN}
        defaults: dict[str, Any] = {"buffer_memory": SEND_BYTES, "compression_type": self.compression}
        if "batch_size" not in settings:
            defaults["batch_size_backlog"] = BATCH_BYTES
        return {**defaults, **settings}


def _compression(raw: RawOptions, clients: str | None) -> str:
    if clients is None:
        return str(raw.choice("compression", CODECS))
    if raw.text("compression") not in (None, clients):
        raise OptionError("compression", "differs from kafka.compression.type; give only one of them")
    return str(raw.choice("kafka.compression.type", CODECS))


def _partitioner(raw: RawOptions, client: dict[str, str]) -> str:
    """The partitioner, from our option or from Java's. Removes Java's from the client's properties."""
    java, ignores_keys = client.pop("partitioner.class", None), client.pop("partitioner.ignore.keys", "false").strip().lower()
    if java is not None:
        named = PARTITIONER_CLASSES.get(java.strip().rpartition(".")[2])
        if named is None:
            raise OptionError(
                "kafka.partitioner.class", f"{java} cannot run here; use partitioner ({', '.join(PARTITIONERS)}) or a column partition"
            )
        if raw.text("partitioner") not in (None, named):
            raise OptionError("partitioner", "differs from kafka.partitioner.class; give only one of them")
        return named
    chosen = str(raw.choice("partitioner", PARTITIONERS))
    return "uniform" if ignores_keys == "true" and chosen == "default" else chosen

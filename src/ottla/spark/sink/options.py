"""What a user may ask of a write to ``format("ottla")``, in the words of Spark's own Kafka sink. Pure: no Spark, no network.

Everything is looked at on the driver, before any task starts: a setting of the producer that cannot be, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.base.options import ConfigError
from ottla.base.units import MiB
from ottla.client.options import ConsumerOptions, ProducerOptions, from_keywords
from ottla.spark.source.options import OptionError, _Given

OPTIONS = ("topic", "bootstrap.servers", "kafka.bootstrap.servers", "includeHeaders", "compression", "partitioner", "reportTo")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONERS = ("default", "uniform", "round_robin", "random")
#: Java's classes that `kafka.partitioner.class` may name, without their packages.
PARTITIONER_CLASSES = {"DefaultPartitioner": "default", "UniformStickyPartitioner": "uniform", "RoundRobinPartitioner": "round_robin"}
#: Bytes of rows that a process of the sink has on their way before it waits for acknowledgements.
SEND_BYTES = 64 * MiB
#: Most bytes of a batch of rows: under the brokers' default of message.max.bytes (1,048,588).
BATCH_BYTES = 1_000_000
#: Settings that a consumer has and a producer has not.
CONSUMERS_OWN = frozenset(ConsumerOptions.SPECS) - frozenset(ProducerOptions.SPECS)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a batch or streaming write, parsed."""

    bootstrap: str
    #: Beats the column of the same name.
    topic: str | None = None
    #: A codec's wire name.
    compression: str = "none"
    #: Where rows go that name no partition (`ottla.spark.sink.task_producer`).
    partitioner: str = "default"
    #: A file in which the driver leaves the number of records that a batch write wrote.
    report_to: str | None = None
    #: Properties for the client, in Kafka's dotted names.
    client: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Raises: OptionError for the first option that cannot be used."""
        given = _Given(options, OPTIONS, what="write")
        # Jobs set it; headers are written where there are some.
        given.boolean("includeHeaders", False)
        client = given.client_properties()
        parsed = cls(
            bootstrap=given.bootstrap(),
            topic=given.text("topic"),
            compression=_compression(given, client.pop("compression.type", None)),
            partitioner=_partitioner(given, client),
            report_to=given.path("reportTo"),
            client=client,
        )
        try:
            from_keywords(ProducerOptions, parsed.producer_settings())
        except ConfigError as error:
            raise OptionError(f"kafka.{error.name.replace('_', '.')}", error.problem) from None
        return parsed

    def producer_settings(self) -> dict[str, Any]:
        """The producer's settings, as its keyword arguments. What only a consumer has is left out: the same options may serve a source."""
        given = {name.replace(".", "_"): value for name, value in self.client.items() if name not in CONSUMERS_OWN}
        roomy: dict[str, Any] = {"buffer_memory": SEND_BYTES, "compression_type": self.compression}
        if "batch_size" not in given:
            roomy["batch_size_backlog"] = BATCH_BYTES
        return {**roomy, **given}


def _compression(given: _Given, clients: str | None) -> str:
    if clients is None:
        return str(given.choice("compression", CODECS))
    if given.text("compression") not in (None, clients):
        raise OptionError("compression", "differs from kafka.compression.type; give only one of them")
    return str(given.choice("kafka.compression.type", CODECS))


def _partitioner(given: _Given, client: dict[str, str]) -> str:
    """The partitioner, by its name or by Java's; takes Java's ways of saying it out of the client's properties."""
    java, ignores_keys = client.pop("partitioner.class", None), client.pop("partitioner.ignore.keys", "false").strip().lower()
    if java is not None:
        named = PARTITIONER_CLASSES.get(java.strip().rpartition(".")[2])
        if named is None:
            raise OptionError(
                "kafka.partitioner.class", f"{java} cannot run here; use partitioner ({', '.join(PARTITIONERS)}) or a column partition"
            )
        if given.text("partitioner") not in (None, named):
            raise OptionError("partitioner", "differs from kafka.partitioner.class; give only one of them")
        return named
    chosen = str(given.choice("partitioner", PARTITIONERS))
    return "uniform" if ignores_keys == "true" and chosen == "default" else chosen

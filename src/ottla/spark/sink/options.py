"""Options of a write to ``format("ottla")``, named as in Spark's own Kafka sink. Pure: no Spark, no network.

All options are checked on the driver before any task starts, the producer's settings too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.base.options import ConfigError
from ottla.base.units import MINUTE_MS, MiB
from ottla.client.options import AdminOptions, ConsumerOptions, ProducerOptions, from_keywords
from ottla.spark.sink.decision import PREFIX
from ottla.spark.source.options import OptionError, RawOptions

OPTIONS = (
    "topic", "bootstrap.servers", "kafka.bootstrap.servers", "profile", "includeHeaders", "compression", "partitioner", "reportTo",
    "delivery", "txnAppId", "txnVersion", "commitBy", "keyFormat", "valueFormat", "schema.registry.url",
)  # fmt: skip
DELIVERIES = ("exactly_once", "at_least_once")
#: Settings of transactions, which only exactly_once has.
OF_TRANSACTIONS = ("transactional.id", "transaction.timeout.ms", "transaction.two.phase.commit.enable")
#: Timeout of a task's transaction: the brokers' default of transaction.max.timeout.ms.
TRANSACTION_TIMEOUT_MS = 15 * MINUTE_MS
SCHEMA_FORMATS = ("avro", "protobuf", "json-schema")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONERS = ("default", "uniform", "round_robin", "random")
#: Java's classes that `kafka.partitioner.class` may name, without their packages.
PARTITIONER_CLASSES = {"DefaultPartitioner": "default", "UniformStickyPartitioner": "uniform", "RoundRobinPartitioner": "round_robin"}
#: Unacknowledged bytes at which a sink process waits.
SEND_BYTES = 64 * MiB
#: Largest record batch: below the brokers' default of message.max.bytes (1,048,588).
BATCH_BYTES = 1_000_000
#: Values of settings with which a producer is not idempotent.
NOT_IDEMPOTENT = {"acks": ("0", "1"), "enable.idempotence": ("false",), "retries": ("0",)}
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
    #: A file to which the driver writes the result of a batch write.
    report_to: str | None = None
    #: Whether rows are written in transactions.
    transactional: bool = False
    #: Whether brokers without transactions are an error; otherwise the write is at least once there.
    required: bool = False
    #: Identifies a batch write: a write with the same application id and version is done once. Named as in Delta Lake.
    application: str | None = None
    version: int | None = None
    #: The caller commits the transactions in the report.
    committed_by_caller: bool = False
    #: Prefix of transactional ids.
    prefix: str = PREFIX
    #: None: two-phase commit where the brokers allow it.
    two_phase: bool | None = None
    timeout_ms: int = TRANSACTION_TIMEOUT_MS
    #: Formats with schemas, by column: key, value (`ottla.spark.sink.registered_values`); and the registry's address.
    formats: Mapping[str, str] = field(default_factory=dict)
    registry_url: str = field(default="", repr=False)
    #: Properties for the client, in Kafka's dotted names.
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Raises: OptionError for the first invalid option."""
        raw = RawOptions(options, OPTIONS, what="write")
        # Checked for jobs that set it. Headers are always written.
        raw.boolean("includeHeaders", False)
        client = raw.client_properties()
        transactional = _transactional(raw, client)
        parsed = cls(
            bootstrap=raw.bootstrap(),
            topic=raw.text("topic"),
            compression=_compression(raw, client.pop("compression.type", None)),
            partitioner=_partitioner(raw, client),
            report_to=raw.path("reportTo"),
            transactional=transactional,
            required=raw.text("delivery") is not None,
            committed_by_caller=raw.choice("commitBy", ("job", "caller")) == "caller",
            **_application(raw, transactional=transactional),
            **_of_transactions(raw, client, transactional=transactional),
            **_of_schemas(raw),
            client=client,
        )
        try:
            from_keywords(ProducerOptions, parsed.producer_settings())
        except ConfigError as error:
            raise OptionError(f"kafka.{error.name.replace('_', '.')}", error.problem) from None
        return parsed

    def admin_settings(self) -> dict[str, Any]:
        """The keyword arguments of the driver's client."""
        known = {spec.attribute for spec in AdminOptions.SPECS.values()}
        settings = {name.replace(".", "_"): value for name, value in self.client.items()}
        return {"bootstrap_servers": self.bootstrap, **{name: value for name, value in settings.items() if name in known}}

    def producer_settings(self) -> dict[str, Any]:
        """The producer's keyword arguments. Consumer settings are left out: the same options may serve a source."""
        settings = {name.replace(".", "_"): value for name, value in self.client.items() if name not in CONSUMERS_OWN}
        defaults: dict[str, Any] = {"buffer_memory": SEND_BYTES, "compression_type": self.compression}
        if "batch_size" not in settings:
            defaults["batch_size_backlog"] = BATCH_BYTES
        return {**defaults, **settings}


def _transactional(raw: RawOptions, client: Mapping[str, str]) -> bool:
    """Whether rows are written in transactions: by default, unless the producer is not idempotent."""
    weak = next((name for name, value in NOT_IDEMPOTENT.items() if client.get(name, "").strip().lower() in value), None)
    chosen = raw.text("delivery")
    if chosen is None:
        return weak is None
    transactional: bool = raw.choice("delivery", DELIVERIES) == "exactly_once"
    if transactional and weak is not None:
        raise OptionError(
            "delivery", f"exactly_once needs acks=all and idempotence; leave out kafka.{weak}, or set delivery to at_least_once"
        )
    return transactional


def _of_schemas(raw: RawOptions) -> dict[str, Any]:
    """Formats with schemas, and the registry that they need."""
    given = {column: text for column in ("key", "value") if (text := raw.text(f"{column}Format")) is not None}
    registry = raw.text("schema.registry.url")
    for column, text in given.items():
        if text.partition(":")[0] not in SCHEMA_FORMATS:
            raise OptionError(
                f"{column}Format", f"expected {', '.join(SCHEMA_FORMATS)}, with a file or message after a colon, not {text!r}"
            )
        if registry is None:
            raise OptionError("schema.registry.url", f"is missing: {column}Format needs it")
    return {"formats": given, "registry_url": registry or ""}


def _application(raw: RawOptions, *, transactional: bool) -> dict[str, Any]:
    """txnAppId and txnVersion, which belong together."""
    application, version = raw.text("txnAppId"), raw.number("txnVersion", least=0, default=-1)
    if (application is None) != (version < 0):
        missing, given = ("txnVersion", "txnAppId") if application else ("txnAppId", "txnVersion")
        raise OptionError(missing, f"is missing: {given} needs it")
    if application is not None and not transactional:
        raise OptionError("txnAppId", "needs delivery exactly_once")
    return {} if application is None else {"application": application, "version": version}


def _of_transactions(raw: RawOptions, client: dict[str, str], *, transactional: bool) -> dict[str, Any]:
    """The settings of transactions. Removes them from the client's properties."""
    given = {name: value.strip() for name in OF_TRANSACTIONS if (value := client.pop(name, None)) is not None}
    if given and not transactional:
        raise OptionError(f"kafka.{next(iter(given))}", "needs delivery exactly_once, which needs acks=all and idempotence; leave it out")
    found: dict[str, Any] = {}
    if "transactional.id" in given:
        found["prefix"] = raw.text("kafka.transactional.id")
    if "transaction.two.phase.commit.enable" in given:
        found["two_phase"] = raw.boolean("kafka.transaction.two.phase.commit.enable", False)
    if "transaction.timeout.ms" in given:
        if found.get("two_phase"):
            raise OptionError("kafka.transaction.timeout.ms", "has no effect with two-phase commit: these transactions have no timeout")
        # A timeout that was asked for is kept.
        found |= {"timeout_ms": raw.number("kafka.transaction.timeout.ms", least=1, default=1), "two_phase": False}
    return found


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

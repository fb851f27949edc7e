"""Every setting of Apache Kafka, and what Ottla makes of those that it does not have.

``kafka_settings.txt`` lists the settings that Kafka's own definitions declare, with type, default and the way in which a broker setting can
change; ``tools/KafkaSettings.java`` prints it. A setting of a broker is one of:

=========== ====================================================================================================
in force    declared in ``ottla.broker.metadata.configs``, with Kafka's meaning
meaningless accepted without effect: what it regulates does not exist here
refused     ignoring it would weaken or change what the operator configured; Kafka's default value is accepted
unknown     not Kafka's: kept for plugins and tools, and told
=========== ====================================================================================================

The start of a broker and IncrementalAlterConfigs decide by the same tables.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from importlib import resources

from ottla.base.options import ConfigError, ConfigType, OptionSpec, Scope, suggestion
from ottla.broker.metadata.configs import LISTENER_PREFIX, SPECS_BY_NAME, GroupOptions, broker_spec
from ottla.log.options import TopicOptions
from ottla.store.layout import DEFAULT_ENTITY

#: Other spellings of our options.
ALIASES = {"node.id": "broker.id", "log.dir": "log.dirs"}

_EVENT_LOOP = "one event loop serves all connections"
_KRAFT = "every broker can be the controller; metadata is in ZooKeeper or the embedded store"
_JMX = "it concerns Java's metrics"
_TIERED = "this version has no tiered storage"
_SHARE = "this version has no share groups"
_STREAMS = "this version has no streams groups"
_COORDINATOR = "groups are coordinated on the broker's event loop"
_PURGATORY = "delayed operations are removed when they complete"
_ONE_FORMAT = "there is one record format, version 2"
_ZOOKEEPER_COPY = "values in ZooKeeper are not encrypted: secrets are not stored there"
_IDS = "broker.id sets the id"
_KERBEROS = "the Kerberos library reads the keytab, so there are no tickets to renew"
_LISTENER = "all listeners start together, when the broker serves"

#: Accepted names without effect, or prefixes of names that end in a dot, with the reason.
MEANINGLESS = {
    "add.partitions.to.txn.retry.backoff.ms": "the coordinator waits for the last transaction's markers, so leaders need not ask again",
    "alter.config.policy.kraft.compatibility.enable": _KRAFT,
    "alter.log.dirs.replication.quota.": "replicas stay in the log directory in which they were created",
    "auto.include.jmx.reporter": _JMX,
    "background.threads": "deletions and checkpoints use the threads of num.io.threads",
    "broker.heartbeat.interval.ms": _KRAFT,
    "broker.id.generation.enable": _IDS,
    "broker.session.timeout.ms": "zookeeper.session.timeout.ms is the time after which a broker counts as dead",
    "confluent.": "it is a setting of Confluent Platform",
    "controller.": _KRAFT,
    "delete.records.purgatory.purge.interval.requests": _PURGATORY,
    "early.start.listeners": _LISTENER,
    "eligible.leader.replicas.enable": "eligible leader replicas are always tracked",
    "errors.deadletterqueue.": _SHARE,
    "fetch.purgatory.purge.interval.requests": _PURGATORY,
    "follower.fetch.last.tiered.offset.enable": _TIERED,
    "group.consumer.assignor.offload.enable": _COORDINATOR,
    "group.consumer.regex.refresh.interval.ms": "regular expressions of subscriptions are matched again with every change of the topics",
    "group.coordinator.": _COORDINATOR,
    "group.share.": _SHARE,
    "group.streams.": _STREAMS,
    "initial.broker.registration.timeout.ms": "zookeeper.connection.timeout.ms is the time that a start waits for the store",
    "inter.broker.protocol.version": "brokers agree on versions by ApiVersions",
    "internal.metadata.": _KRAFT,
    "kafka.metrics.": _JMX,
    "log.flush.start.offset.checkpoint.interval.ms": "all checkpoints are written together: log.flush.offset.checkpoint.interval.ms",
    "log.initial.task.delay.ms": "periodic tasks begin when the broker serves",
    "log.local.": _TIERED,
    "log.message.downconversion.enable": _ONE_FORMAT,
    "log.message.format.version": _ONE_FORMAT,
    "log.message.timestamp.difference.max.ms": "log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms replace it",
    "log.preallocate": "segments are never preallocated",
    "log.remote.": _TIERED,
    "metadata.": _KRAFT,
    "metric.": _JMX,
    "metrics.": _JMX,
    "num.network.threads": _EVENT_LOOP,
    "num.replica.alter.log.dirs.threads": "replicas stay in the log directory in which they were created",
    "offsets.commit.required.acks": "offsets are committed with acks=all",
    "offsets.load.buffer.size": "offsets are loaded in the batches in which they were written",
    "password.encoder.": _ZOOKEEPER_COPY,
    "process.roles": _KRAFT,
    "producer.id.expiration.check.interval.ms": "idle producers are looked for every 10 s",
    "producer.purgatory.purge.interval.requests": _PURGATORY,
    "queued.max.requests": "queued.max.request.bytes limits the memory of queued requests",
    "remote.": _TIERED,
    "replica.high.watermark.checkpoint.interval.ms": "all checkpoints are written together: log.flush.offset.checkpoint.interval.ms",
    "replica.socket.": "followers fetch with the settings of socket.receive.buffer.bytes and request.timeout.ms",
    "replication.quota.": "the rate of throttled replicas is measured without windows",
    "reserved.broker.max.id": _IDS,
    "sasl.kerberos.kinit.cmd": _KERBEROS,
    "sasl.kerberos.min.time.before.relogin": _KERBEROS,
    "sasl.kerberos.ticket.renew.": _KERBEROS,
    "sasl.login.connect.timeout.ms": "sasl.login.read.timeout.ms is the timeout of connecting and reading",
    "sasl.login.refresh.": "brokers get a new token for each session with another broker",
    "sasl.login.retry.": "brokers retry with each connection to another broker",
    "sasl.mechanism.controller.protocol": _KRAFT,
    "server.max.startup.time.ms": "a start has no time limit: the logs decide how long recovery takes",
    "share.": _SHARE,
    "socket.connection.setup.": "brokers connect to each other with fixed timeouts",
    "socket.listen.backlog.size": "as many new connections wait as the kernel allows, up to 1024",
    "transaction.state.log.load.buffer.size": "transactions are loaded in the batches in which they were written",
    "unclean.leader.election.interval.ms": "the controller elects as soon as a change allows it",
    "unstable.": "unstable versions of APIs and features are not served",
    "zookeeper.max.in.flight.requests": "requests to the store are not limited",
    "zookeeper.metadata.migration.": "there is no KRaft to migrate to",
}

_NO_JAVA = "Java classes cannot be loaded here; leave the setting out"
_LITERAL = "values are not resolved; write them literally"

#: Names, or prefixes, whose loss would weaken or change what was configured. Kafka's default value and an empty one are accepted.
REFUSED = {
    "alter.config.policy.class.name": _NO_JAVA,
    "config.providers": _LITERAL,
    "control.plane.listener.name": "requests of the controller use the listener between brokers; leave the setting out",
    "config.providers.": _LITERAL,
    "client.quota.callback.class": _NO_JAVA,
    "cordoned.log.dirs": "new partitions go to all of log.dirs; leave the setting out",
    "create.topic.policy.class.name": _NO_JAVA,
    "principal.builder.class": _NO_JAVA,
    "remote.log.storage.system.enable": "this version has no tiered storage; leave the setting out",
    "sasl.": "this version does not have it; leave the setting out",
    "sasl.client.callback.handler.class": _NO_JAVA,
    "sasl.login.class": _NO_JAVA,
    "security.providers": _NO_JAVA,
    "ssl.": "it concerns Java's TLS; leave the setting out",
    "ssl.engine.factory.class": _NO_JAVA,
    "zookeeper.clientCnxnSocket": _NO_JAVA,
    "zookeeper.ssl.": "revocation is not checked; leave the setting out",
}

#: Values that Kafka's definitions do not give as a default, and that ask for nothing: ZooKeeper's client needs it for TLS.
HARMLESS = {"zookeeper.clientCnxnSocket": ("org.apache.zookeeper.ClientCnxnSocketNetty",)}

#: Settings in force whose default is not Kafka's, with the reason.
OTHER_DEFAULTS = {
    "broker.id": "ids are not generated",
    "listeners": "a new broker is reachable from its own machine only",
    "log.cleaner.io.max.bytes.per.second": "compaction of a large log must not slow the clients down",
    "max.connections": "a broker must not run out of file descriptors",
    "max.connections.per.ip": "one client must not use up the connections of all",
    "socket.receive.buffer.bytes": "the kernel adapts the size to each connection",
    "socket.send.buffer.bytes": "the kernel adapts the size to each connection",
    "zookeeper.ssl.protocol": "ZooKeeper 3.9 offers TLS 1.3 alone by default, which Kafka's default excludes",
}

#: Settings of groups of other types, by prefix, with the answer to them.
OTHER_GROUPS = {"share.": _SHARE, "streams.": _STREAMS, "errors.deadletterqueue.": _SHARE, "consumer.assignor.": _COORDINATOR}


class Treatment(Enum):
    """What Ottla makes of a broker setting."""

    IN_FORCE = "in force"
    MEANINGLESS = "accepted without meaning"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KafkaSetting:
    """A setting as Kafka defines it."""

    #: ``broker``, ``topic`` or ``group``.
    resource: str
    name: str
    #: Kafka's type, in lower case: ``int``, ``list`` ...
    type: str
    #: None if there is none.
    default: str | None
    #: How a broker setting can change in Kafka.
    scope: Scope
    #: ``public``, ``internal``, or ``3.9`` for a setting that Kafka 4 no longer has.
    origin: str

    def is_default(self, text: str) -> bool:
        """Whether the text asks for nothing but the default; an empty one does."""
        given = text.strip()
        if not given or given in HARMLESS.get(self.name, ()):
            return True
        default = self.default or ""
        if self.type == "boolean":
            return given.lower() == default
        if self.type == "list":
            return _parts(given) == _parts(default)
        return given == default

    def parse(self, text: str) -> None:
        """Raises: ConfigError if the text has not the type of the setting."""
        kind = _KINDS.get(self.type, ConfigType.STRING)
        OptionSpec(self.name, kind, None, "").parse(text)


_KINDS = {
    "boolean": ConfigType.BOOLEAN,
    "int": ConfigType.INT,
    "short": ConfigType.INT,
    "long": ConfigType.LONG,
    "double": ConfigType.DOUBLE,
    "list": ConfigType.LIST,
}


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@cache
def kafka_settings(resource: str) -> Mapping[str, KafkaSetting]:
    """Kafka's settings of a ``broker``, a ``topic`` or a ``group``, by name."""
    found: dict[str, KafkaSetting] = {}
    for line in resources.files(__package__).joinpath("kafka_settings.txt").read_text(encoding="ascii").splitlines():
        owner, name, kind, default, scope, origin = line.split("\t")
        if owner == resource:
            changed: Scope = scope if scope in ("per-broker", "cluster-wide") else "read-only"  # type: ignore[assignment]
            found[name] = KafkaSetting(owner, name, kind, None if default == "-" else default, changed, origin)
    return found


def treatment(name: str) -> tuple[Treatment, str]:
    """What Ottla makes of a broker setting whose value is not Kafka's default, and why; no reason for one in force."""
    name = ALIASES.get(name, name)
    if broker_spec(name) is not None:
        return Treatment.IN_FORCE, ""
    if name.startswith(LISTENER_PREFIX):
        return _of_a_listener(name)
    for table, verdict in ((REFUSED, Treatment.REFUSED), (MEANINGLESS, Treatment.MEANINGLESS)):
        reason = _reason(name, table)
        if verdict is Treatment.REFUSED and reason is REFUSED["sasl."] and _reason(name, MEANINGLESS) is not None:
            continue
        if reason is not None and (verdict is Treatment.REFUSED or name in kafka_settings("broker") or name.startswith("confluent.")):
            return verdict, reason
    return Treatment.UNKNOWN, ""


def _of_a_listener(name: str) -> tuple[Treatment, str]:
    """A setting with the prefix of a listener that has no effect there: treated as the one without."""
    parts = name.removeprefix(LISTENER_PREFIX).split(".")
    for at in range(1, len(parts)):
        plain = ".".join(parts[at:])
        if plain in SPECS_BY_NAME:
            return Treatment.REFUSED, f"{plain} is a setting of the whole broker; set it without the prefix {LISTENER_PREFIX}"
        found = treatment(plain)
        if found[0] is not Treatment.UNKNOWN:
            return found
    return Treatment.REFUSED, "it is no setting of a listener; leave it out"


def asks_for_nothing(name: str, text: str) -> bool:
    """Whether the value of a setting that Ottla lacks is empty or Kafka's default."""
    setting = kafka_settings("broker").get(name)
    if setting is not None:
        return setting.is_default(text)
    return not text.strip() or text.strip() in HARMLESS.get(name, ())


def guess(name: str) -> str:
    """``; did you mean NAME?`` for a name that looks like a mistyped one; else empty. Names below the same prefix come first."""
    known = [*SPECS_BY_NAME, *kafka_settings("broker"), *ALIASES]
    parts = name.split(".")
    for count in range(len(parts) - 1, 1, -1):
        prefix = ".".join(parts[:count]) + "."
        if near := get_close_matches(name, [other for other in known if other.startswith(prefix)], n=1, cutoff=0):
            return f"; did you mean {near[0]}?"
    return suggestion(name, known)


def check_at_run_time(entity: str, name: str, text: str, *, in_zookeeper: bool = False) -> None:
    """Checks a change of a broker setting while brokers run; ``entity`` is a broker's id, or DEFAULT_ENTITY for all; ``in_zookeeper``:
    where the change is stored.

    A name that neither Ottla nor Kafka has is accepted, as in Kafka, where it may belong to a plugin.

    Raises: ConfigError for a setting that cannot change, one that cannot be honoured, and an invalid value.
    """
    spec = broker_spec(name)
    known = kafka_settings("broker").get(name)
    scope = spec.scope if spec is not None else known.scope if known is not None else "per-broker"
    verdict, reason = treatment(name)
    if name in ALIASES or scope == "read-only":
        raise ConfigError(name, "it cannot change while a broker runs; start the broker with another value")
    if (spec or known) is not None and scope == "per-broker" and entity == DEFAULT_ENTITY:
        raise ConfigError(name, "it is a setting of a single broker; name the broker")
    if spec is not None and spec.per_listener and name.startswith("ssl."):
        raise ConfigError(name, f"it can change for one listener at a time: set {LISTENER_PREFIX}NAME.{name}")
    if spec is not None and spec.kind is ConfigType.PASSWORD and in_zookeeper:
        raise ConfigError(name, f"{_ZOOKEEPER_COPY}; exchange the file, which the broker reads again, or start the broker with the value")
    if spec is not None:
        spec.parse(text)
    elif verdict is Treatment.REFUSED and not asks_for_nothing(name, text):
        raise ConfigError(name, reason)
    elif known is not None and text.strip():
        known.parse(text)


def group_spec(name: str) -> OptionSpec:
    """The declaration of a group setting. Raises: ConfigError, which says of settings of other group types what they are."""
    if name in kafka_settings("group") and name not in GroupOptions.SPECS:
        raise ConfigError(name, _reason(name, OTHER_GROUPS) or "this version does not have it")
    return GroupOptions.spec(name)


def documented(resource: str) -> Iterable[tuple[KafkaSetting, Treatment, str]]:
    """Kafka's settings of a resource with what Ottla makes of them, for the reference."""
    for setting in kafka_settings(resource).values():
        if resource == "broker":
            yield setting, *treatment(setting.name)
            continue
        spec = (TopicOptions if resource == "topic" else GroupOptions).SPECS.get(setting.name)
        if spec is None:
            absent = TopicOptions.ABSENT if resource == "topic" else {}
            yield setting, Treatment.REFUSED, absent.get(setting.name) or _reason(setting.name, OTHER_GROUPS) or ""
        else:
            yield setting, Treatment.MEANINGLESS if spec.fixed else Treatment.IN_FORCE, spec.fixed


def _reason(name: str, table: Mapping[str, str]) -> str | None:
    """Looks up the whole name, then its longest prefix in the table."""
    if name in table:
        return table[name]
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        found = table.get(".".join(parts[:count]) + ".")
        if found is not None:
            return found
    return None

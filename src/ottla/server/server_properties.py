"""``server.properties`` files, and Kafka settings that Ottla does not have.

A file that starts Kafka also starts Ottla. Settings without a meaning in Ottla are ignored with a warning that gives the reason. Settings
that must not be ignored silently, such as encryption or access control, are refused. Settings that Ottla declares are accepted first.
"""

from collections.abc import Mapping

from ottla.base.options import ConfigError
from ottla.broker.metadata.configs import SPECS_BY_NAME

#: Other spellings of our options.
ALIASES = {"node.id": "broker.id", "log.dir": "log.dirs"}

_ASYNC = "there are no network threads: one event loop serves all connections"
_KRAFT = "the controller is part of every broker"
_TRANSACTIONS = "this version has no transactions"
_REPLICATION = "this version does not have it"
_QUOTAS = "this version has no quotas"
_JVM = "it concerns Java's metrics"
_KERNEL = "the kernel sizes socket buffers itself"
_TIERED = "this version has no tiered storage"
_ASSIGNED = "group.consumer.assignment.interval.ms is every group's"
_SHARE = "this version has no share groups"

#: Ignored names, or prefixes of names that end in a dot, with the reason.
MEANINGLESS = {
    "zookeeper.max.in.flight.requests": "requests to the store are not limited",
    "zookeeper.metadata.migration.enable": "the store is ZooKeeper, or embedded",
    "num.network.threads": _ASYNC,
    "background.threads": _ASYNC,
    "queued.max.requests": _ASYNC,
    "socket.send.buffer.bytes": _KERNEL,
    "socket.receive.buffer.bytes": _KERNEL,
    "socket.listen.backlog.size": "as many new connections wait as the kernel allows, up to 1024",
    "socket.connection.setup.": "brokers connect to each other's listener with fixed timeouts",
    "early.start.listeners": "brokers have one listener each, for clients and brokers",
    "process.roles": _KRAFT,
    "controller.": _KRAFT,
    "metadata.": _KRAFT,
    "inter.broker.listener.name": "brokers have one listener each, for clients and brokers",
    "inter.broker.protocol.version": "there is one version",
    "log.message.format.version": "there is one record format",
    "log.message.downconversion.enable": "there is one record format",
    "log.flush.scheduler.interval.ms": "flushes are not polled for",
    "log.flush.start.offset.checkpoint.interval.ms": "all checkpoints are written together: log.flush.offset.checkpoint.interval.ms",
    "log.preallocate": "segments are never preallocated",
    "num.replica.alter.log.dirs.threads": "replicas stay in the directory that they were created in",
    "replication.quota.": "the rate of throttled replicas is measured without windows",
    "replica.": _REPLICATION,
    "follower.": _REPLICATION,
    "leader.": _REPLICATION,
    "unclean.leader.election.interval.ms": _REPLICATION,
    "broker.heartbeat.interval.ms": _KRAFT,
    "broker.session.timeout.ms": _KRAFT,
    "broker.id.generation.enable": "broker.id sets the id",
    "reserved.broker.max.id": "broker.id sets the id",
    "initial.broker.registration.timeout.ms": _KRAFT,
    "offsets.": "offsets are committed like all records, at once and on every in-sync replica",
    "group.consumer.min.assignment.interval.ms": _ASSIGNED,
    "group.consumer.max.assignment.interval.ms": _ASSIGNED,
    "group.coordinator.": "groups of both protocols are coordinated on the broker's one event loop",
    "group.share.": _SHARE,
    "share.": _SHARE,
    "group.streams.": "this version has no streams groups",
    "add.partitions.to.txn.": _TRANSACTIONS,
    "transaction.": _TRANSACTIONS,
    "transactional.": _TRANSACTIONS,
    "quota.": _QUOTAS,
    "client.quota.": _QUOTAS,
    "alter.": _QUOTAS,
    "metric.": _JVM,
    "metrics.": _JVM,
    "kafka.metrics.": _JVM,
    "auto.include.jmx.reporter": _JVM,
    "telemetry.": _JVM,
    "confluent.": "it is a setting of Confluent Platform",
    "remote.": _TIERED,
    "log.local.": _TIERED,
    "request.timeout.ms": "a request to another broker times out after 30 s",
    "connection.failed.authentication.delay.ms": "this version has no authentication",
    "controlled.shutdown.": "every stop is a controlled shutdown",
    "fetch.purgatory.purge.interval.requests": "delayed operations are removed when they complete",
    "producer.purgatory.purge.interval.requests": "delayed operations are removed when they complete",
    "delete.records.purgatory.purge.interval.requests": "delayed operations are removed when they complete",
    "eligible.leader.replicas.enable": _REPLICATION,
    "unstable.": "there are no unstable features",
}

#: Refused names: ignoring them would weaken what the operator configured.
REFUSED = {
    "zookeeper.ssl.": "this version speaks to ZooKeeper without TLS; leave the setting out",
    "zookeeper.clientCnxnSocket": "Java classes cannot be loaded here; leave the setting out",
    "zookeeper.set.acl": "this version creates nodes that are open to all; leave the setting out",
    "ssl.": "this version has no TLS; put it behind a TLS proxy or leave the setting out",
    "sasl.": "this version has no authentication; leave the setting out",
    "listener.name.": "this version has plaintext listeners only; leave the setting out",
    "security.": "this version has no TLS or authentication; leave the setting out",
    "principal.builder.class": "this version has no authentication; leave the setting out",
    "authorizer.class.name": "this version has no access control; leave the setting out",
    "super.users": "this version has no access control; leave the setting out",
    "allow.everyone.if.no.acl.found": "this version has no access control; leave the setting out",
    "delegation.token.": "this version has no authentication; leave the setting out",
    "connections.max.reauth.ms": "this version has no authentication; leave the setting out",
    "create.topic.policy.class.name": "Java classes cannot be loaded here; leave the setting out",
    "alter.config.policy.class.name": "Java classes cannot be loaded here; leave the setting out",
    "config.providers": "values are not resolved; write them literally",
    "config.providers.": "values are not resolved; write them literally",
    "cordoned.log.dirs": "new partitions go to all of log.dirs; leave the setting out",
    "max.connections.per.ip.overrides": "there is one limit for all addresses, max.connections.per.ip",
    "max.connection.creation.rate": "the rate of new connections is not limited here; leave the setting out",
}


def parse_properties(text: str) -> dict[str, str]:
    """Names and values of a file in Java's properties format; the last of equal names wins. Raises: ConfigError."""
    import javaproperties

    try:
        return javaproperties.loads(text)
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError("the properties file", f"{error.escape} is no escape; write \\uXXXX with four digits") from None


def accepted_settings(texts: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The settings that Ottla has, and a warning about each ignored one. Raises: ConfigError for a refused one."""
    kept: dict[str, str] = {}
    warnings: list[str] = []
    controller_names = {name.strip() for name in texts.get("controller.listener.names", "").split(",") if name.strip()}
    for written, value in texts.items():
        name = ALIASES.get(written, written)
        if name in SPECS_BY_NAME:
            kept[name] = value
        elif name == "listener.security.protocol.map":
            _refuse_protocols(value, controller_names)
        elif (reason := _reason(name, REFUSED)) is not None:
            raise ConfigError(name, reason)
        elif (reason := _reason(name, MEANINGLESS)) is not None:
            warnings.append(f"ignoring {name}: {reason}")
        else:
            kept[name] = value
    for name in ("listeners", "advertised.listeners"):
        if name in kept and controller_names:
            addresses = [part.strip() for part in kept[name].split(",")]
            kept[name] = ",".join(address for address in addresses if address.partition("://")[0] not in controller_names)
    return kept, warnings


def _refuse_protocols(mapping: str, controller_names: set[str]) -> None:
    for pair in filter(None, (part.strip() for part in mapping.split(","))):
        listener, _, protocol = pair.partition(":")
        # A map entry like SSL:SSL, as in Kafka's sample file, is harmless: no listener uses it.
        if protocol != "PLAINTEXT" and listener != protocol and listener not in controller_names:
            raise ConfigError("listener.security.protocol.map", f"listener {listener} asks for {protocol}; this version has PLAINTEXT only")


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

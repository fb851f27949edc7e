"""Facts about a cluster, and findings of `ottla doctor`.

    doctor.gather, doctor.local  ->  Facts  ->  doctor.checks  ->  findings

Facts are observations without judgement. A fact that is not available is None, or in `unavailable` with the reason. Times are in
milliseconds since 1970.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from ottla.base.ids import TopicPartition
from ottla.base.readable import partitions_text
from ottla.client.admin.acl_results import Acl
from ottla.client.admin.cluster_results import Quorum
from ottla.client.admin.group_lag import GroupLag
from ottla.client.admin.group_results import GroupDescription
from ottla.client.admin.results import LogDir, Node, PartitionDescription
from ottla.client.admin.transaction_results import BlockedPartition

#: problem: something does not work, or records are at risk. warning: one more failure stops something, or the configuration is not met.
#: note: nothing is wrong.
Severity: TypeAlias = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")
Address: TypeAlias = tuple[str, int]


class Finding(msgspec.Struct, kw_only=True):
    """A problem, and how to fix it."""

    severity: Severity
    #: The problem, as a sentence.
    what: str
    #: The observation that shows it.
    evidence: str
    #: How to fix it, as a sentence; and a command that fixes it or shows more.
    remedy: str
    command: str | None = None
    #: Location.
    address: str | None = None
    broker: int | None = None
    topic: str | None = None
    partitions: list[int] = []
    group: str | None = None
    #: The check that found it.
    check: str = ""

    @property
    def place(self) -> str | None:
        """The location in short."""
        parts = []
        if self.group is not None:
            parts.append(f"group {self.group}")
        if self.broker is not None:
            parts.append(f"broker {self.broker}")
        if self.address is not None:
            parts.append(self.address)
        if self.topic is not None:
            tps = [TopicPartition(self.topic, number) for number in self.partitions]
            parts.append(partitions_text(tps) if tps else self.topic)
        return " ".join(parts) or None

    def document(self) -> dict[str, Any]:
        names = ("what", "evidence", "remedy", "command", "address", "broker", "topic", "partitions", "group")
        return {"severity": self.severity, "check": self.check, "where": self.place, **{name: getattr(self, name) for name in names}}


class Probe(msgspec.Struct, kw_only=True):
    """The result of connecting to an address and querying versions and brokers."""

    address: Address
    #: IP addresses of its host.
    hosts: list[str] = []
    #: Why no broker answered; None: one did.
    error: str | None = None
    #: Days until the certificate of its listener expires; None without TLS.
    certificate_days: float | None = None
    #: Duration of the probe.
    took_ms: float = 0.0
    #: By API key: first and last version.
    versions: dict[int, tuple[int, int]] = {}
    cluster_id: str | None = None
    #: -1: it knows none.
    controller: int = -1
    #: Brokers that it knows, with their addresses.
    brokers: dict[int, Address] = {}


class MachineFacts(msgspec.Struct, kw_only=True):
    """This machine."""

    #: Limit of open files of a process; None: unlimited or unknown.
    files_max: int | None = None
    #: (what, evidence, remedy) of each problem of the profiles.
    profile_problems: list[tuple[str, str, str]] = []


class DataDir(msgspec.Struct, kw_only=True):
    """A broker's data directory on this machine."""

    path: str
    #: Why it cannot be read; None: it can.
    error: str | None = None
    free_bytes: int = 0
    total_bytes: int = 0
    #: Free inodes; None: the file system has no limit.
    free_files: int | None = None
    #: Owner of the directory, and files in it with other owners.
    owner: str = ""
    foreign_files: list[str] = []
    is_read_only: bool = False
    #: Whether it has a lock file, and the process that holds it.
    has_lock: bool = False
    holder: int | None = None
    #: Open files of that process, and its limit.
    holder_files: int | None = None
    holder_files_max: int | None = None
    #: Damage of the embedded store, why it may lack its last changes, and (path, problem) of unreadable metadata files. Only checked while
    #: no process holds the directory.
    store_problem: str | None = None
    store_doubt: str | None = None
    metadata_problems: list[tuple[str, str]] = []


class Facts(msgspec.Struct, kw_only=True):
    """All facts. Collections are empty if they were not queried."""

    now_ms: int
    #: Timeout of each query; an answer that took half of it is slow.
    timeout_ms: float
    #: Probes of the bootstrap servers.
    bootstrap: list[Probe] = []
    #: Probes of the advertised addresses, by broker.
    listeners: dict[int, Probe] = {}
    nodes: list[Node] = []
    #: -1: none.
    controller: int = -1
    #: The metadata quorum of a KRaft cluster.
    quorum: Quorum | None = None
    #: Local time of the quorum query, and its duration.
    quorum_at_ms: int = 0
    quorum_took_ms: float = 0.0
    topics: dict[str, list[PartitionDescription]] = {}
    internal: set[str] = set()
    #: Topics that could not be described, and why.
    undescribed: dict[str, str] = {}
    #: Replicas that a reassignment is adding.
    adding: dict[TopicPartition, list[int]] = {}
    topic_settings: dict[str, dict[str, str | None]] = {}
    broker_settings: dict[int, dict[str, str | None]] = {}
    #: By broker; the error message if the query failed, also for groups and lags.
    directories: dict[int, list[LogDir] | str] = {}
    groups: dict[str, GroupDescription | str] = {}
    lags: dict[str, GroupLag | str] = {}
    #: Second measurement of suspicious groups.
    groups_again: dict[str, GroupDescription | str] = {}
    lags_again: dict[str, GroupLag | str] = {}
    #: Time between the two measurements.
    between_ms: int = 0
    #: Partitions whose last stable offset is held back for longer than a minute.
    blocked: dict[TopicPartition, BlockedPartition] = {}
    #: Access rules; None: the cluster has none (no authorizer). Empty if not queried.
    acls: list[Acl] | None = []
    #: Users with SCRAM credentials. Empty without access rules.
    scram_users: set[str] = set()
    #: Accesses that were refused in the last hour, by broker and principal.
    denied: dict[int, dict[str, int]] = {}
    #: The largest timestamp of each partition that has one.
    newest_ms: dict[TopicPartition, int] = {}
    machine: MachineFacts | None = None
    data_dir: DataDir | None = None
    #: Kinds of facts that are not available, and why.
    unavailable: dict[str, str] = {}

    @property
    def probes(self) -> list[Probe]:
        """All probes."""
        return [*self.bootstrap, *self.listeners.values()]

    @property
    def is_reachable(self) -> bool:
        """Whether a broker answered."""
        return any(probe.error is None for probe in self.probes)

    @property
    def has_quorum(self) -> bool:
        """Whether the cluster is KRaft. Its brokers report any broker as the controller."""
        return any(DESCRIBE_QUORUM in probe.versions for probe in self.probes)

    @property
    def alive(self) -> list[int]:
        """Brokers that are registered and not fenced."""
        return [node.id for node in self.nodes if not node.is_fenced]

    def broker_setting(self, name: str) -> str | None:
        """A setting's value at the first broker that reports it."""
        return next((settings[name] for settings in self.broker_settings.values() if settings.get(name) is not None), None)


DESCRIBE_QUORUM = 55

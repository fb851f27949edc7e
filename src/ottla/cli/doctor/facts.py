"""What `ottla doctor` knows of a cluster, and what it finds: plain structures between the modules that ask and those that judge.

    doctor_gather, doctor_local  ->  Facts  ->  doctor_checks  ->  findings

Facts say what was seen and judge nothing; what could not be seen is None, or stands in `unseen` with the reason. Times are milliseconds
since 1970.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from ottla.base.ids import TopicPartition
from ottla.client.admin.cluster_results import Quorum
from ottla.client.admin.group_lag import GroupLag
from ottla.client.admin.group_results import GroupDescription
from ottla.client.admin.results import LogDir, Node, PartitionDescription

#: problem: something does not work, or records are in danger. warning: something will not work when one more thing happens, or is not as it
#: was wished. note: good to know; nothing is wrong.
Severity: TypeAlias = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")
Address: TypeAlias = tuple[str, int]


class Finding(msgspec.Struct, kw_only=True):
    """One thing that is wrong, and what to do."""

    severity: Severity
    #: What is wrong, as a sentence.
    what: str
    #: What was seen that shows it.
    evidence: str
    #: What to do, as a sentence; and a command that does it or shows more, if there is one.
    remedy: str
    command: str | None = None
    #: Where it is.
    address: str | None = None
    broker: int | None = None
    topic: str | None = None
    partitions: list[int] = []
    group: str | None = None
    #: The check that found it.
    check: str = ""

    @property
    def place(self) -> str | None:
        """Where it is, in few words."""
        said = []
        if self.group is not None:
            said.append(f"group {self.group}")
        if self.broker is not None:
            said.append(f"broker {self.broker}")
        if self.address is not None:
            said.append(self.address)
        if self.topic is not None:
            from ottla.cli.common.arguments import partitions_text

            tps = [TopicPartition(self.topic, number) for number in self.partitions]
            said.append(partitions_text(tps) if tps else self.topic)
        return " ".join(said) or None

    def document(self) -> dict[str, Any]:
        """As programs get it."""
        return {
            "severity": self.severity,
            "check": self.check,
            "where": self.place,
            "what": self.what,
            "evidence": self.evidence,
            "remedy": self.remedy,
            "command": self.command,
            "address": self.address,
            "broker": self.broker,
            "topic": self.topic,
            "partitions": self.partitions,
            "group": self.group,
        }


class Visit(msgspec.Struct, kw_only=True):
    """What came of connecting to an address and asking who is there."""

    address: Address
    #: What its host's name stands for.
    hosts: list[str] = []
    #: Why nobody answered as a broker does; None: one did.
    error: str | None = None
    #: How long the answer took.
    took_ms: float = 0.0
    #: By API key: the first and the last version.
    versions: dict[int, tuple[int, int]] = {}
    cluster_id: str | None = None
    #: -1: none is known there.
    controller: int = -1
    #: The brokers that it knows, and where they are.
    brokers: dict[int, Address] = {}


class Machine(msgspec.Struct, kw_only=True):
    """Where the doctor runs, for clients there."""

    #: Files that a process may have open; None: no limit, or none that is known.
    files_max: int | None = None
    #: What is wrong with the profiles, (what, evidence, remedy) each.
    profile_troubles: list[tuple[str, str, str]] = []


class DataDir(msgspec.Struct, kw_only=True):
    """A broker's data directory on this machine."""

    path: str
    #: Why it cannot be looked into; None: it can.
    error: str | None = None
    free_bytes: int = 0
    total_bytes: int = 0
    #: Files that the disk has room for; None: it does not count them.
    free_files: int | None = None
    #: Who owns the directory, and files in it that belong to others.
    owner: str = ""
    of_others: list[str] = []
    is_read_only: bool = False
    #: Whether it has a lock file, and the process that holds it.
    has_lock: bool = False
    holder: int | None = None
    #: Of that process: files that it has open and may have.
    holder_files: int | None = None
    holder_files_max: int | None = None
    #: Why the embedded store cannot be used, why it may lack its last changes, and small files of the logs that cannot be read: (path, what
    #: is wrong). Only looked at while no process holds the directory.
    store_trouble: str | None = None
    store_doubt: str | None = None
    metadata_troubles: list[tuple[str, str]] = []


class Facts(msgspec.Struct, kw_only=True):
    """All that was seen. Maps are empty and lists too where nobody asked."""

    now_ms: int
    #: How long each answer was waited for; one that took half of it is slow.
    patience_ms: float
    #: One per address that the user gave.
    bootstrap: list[Visit] = []
    #: By broker: its advertised address.
    listeners: dict[int, Visit] = {}
    nodes: list[Node] = []
    #: -1: none.
    controller: int = -1
    #: Of a cluster that keeps its metadata in one.
    quorum: Quorum | None = None
    #: The clock here when the quorum was asked, and how long that took.
    quorum_at_ms: int = 0
    quorum_took_ms: float = 0.0
    topics: dict[str, list[PartitionDescription]] = {}
    internal: set[str] = set()
    #: Topics that cannot be described, and why.
    untold: dict[str, str] = {}
    #: Replicas that a reassignment is adding.
    coming: dict[TopicPartition, list[int]] = {}
    topic_settings: dict[str, dict[str, str | None]] = {}
    broker_settings: dict[int, dict[str, str | None]] = {}
    #: By broker; a sentence where it could not be asked.
    directories: dict[int, list[LogDir] | str] = {}
    groups: dict[str, GroupDescription | str] = {}
    lags: dict[str, GroupLag | str] = {}
    #: A second look at those groups that looked stuck.
    groups_again: dict[str, GroupDescription | str] = {}
    lags_again: dict[str, GroupLag | str] = {}
    #: From the first look to the second.
    between_ms: int = 0
    #: The largest timestamp of each partition that has one.
    newest_ms: dict[TopicPartition, int] = {}
    machine: Machine | None = None
    data_dir: DataDir | None = None
    #: What could not be looked at, and why.
    unseen: dict[str, str] = {}

    @property
    def visits(self) -> list[Visit]:
        """All that was visited."""
        return [*self.bootstrap, *self.listeners.values()]

    @property
    def is_reachable(self) -> bool:
        """Whether somebody answered."""
        return any(visit.error is None for visit in self.visits)

    @property
    def has_quorum(self) -> bool:
        """Whether the cluster keeps its metadata in a quorum (KRaft), whose brokers name any of them as the controller."""
        return any(DESCRIBE_QUORUM in visit.versions for visit in self.visits)

    @property
    def alive(self) -> list[int]:
        """Brokers that are in the cluster and not fenced."""
        return [node.id for node in self.nodes if not node.is_fenced]

    def broker_setting(self, name: str) -> str | None:
        """A setting's value at the first broker that tells."""
        return next((found[name] for found in self.broker_settings.values() if found.get(name) is not None), None)


DESCRIBE_QUORUM = 55


def address_text(address: Address) -> str:
    """HOST:PORT."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

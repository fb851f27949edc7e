"""Checks of log directories that brokers report, of this machine, and of a data directory on it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ottla.base.readable import size_text
from ottla.client.admin.results import LogDir
from ottla.client.doctor.facts import DataDir, Facts, Finding

#: Free share of a disk. A broker whose disk is full stops; retention frees only whole segments, and late.
FREE_WARNING, FREE_PROBLEM = 0.10, 0.03


def disks(facts: Facts) -> Iterator[Finding]:
    """Log directories that are offline or nearly full."""
    for broker, directories in sorted(facts.directories.items()):
        if isinstance(directories, str):
            yield Finding(
                severity="warning", what="A broker does not report its log directories", evidence=directories,
                remedy="Check whether it is up.", broker=broker, command=f"ottla broker log-dirs {broker}",
            )  # fmt: skip
            continue
        for one in directories:
            if one.error is not None:
                yield Finding(
                    severity="problem", what="A log directory is offline, with its replicas", evidence=f"{one.path}: {one.error}",
                    remedy="Check the disk (dmesg, smartctl) and the broker's log; repair or replace it, then restart the broker.",
                    broker=broker, command=f"ottla broker log-dirs {broker} --replicas",
                )  # fmt: skip
            elif one.total_bytes > 0 and one.usable_bytes >= 0:
                yield from _filling(one.path, one.usable_bytes, one.total_bytes, broker=broker)
            yield from _damaged(broker, one)
            if one.is_cordoned:
                yield Finding(
                    severity="note", what="A log directory gets no new replicas", evidence=f"{one.path} is cordoned",
                    remedy="Remove it from cordoned.log.dirs to allow new replicas.", broker=broker,
                )  # fmt: skip


HEALING_REMEDY = (
    "The broker heals the log from another replica. If this finding stays, check the broker's log and the disk (smartctl, dmesg)."
)
UNHEALED_REMEDY = (
    "Check the disk (smartctl, dmesg). If another broker has a replica, start it: the log heals from there. Otherwise stop the broker and "
    "restore the file from a copy, or give up the records: seek readers past these offsets, or delete the records up to there (ottla topic "
    "records-delete). With more replicas, damage heals automatically."
)


def _damaged(broker: int, directory: LogDir) -> Iterator[Finding]:
    """Replicas whose logs are damaged."""
    for log in directory.replicas:
        if not log.damage:
            continue
        heals = "another replica" in log.damage
        remedy = HEALING_REMEDY if heals else UNHEALED_REMEDY
        yield Finding(
            severity="warning" if heals else "problem", what="A log is damaged", evidence=f"{directory.path}: {log.damage}", remedy=remedy,
            broker=broker, topic=log.topic, partitions=[log.partition], command="ottla cluster status",
        )  # fmt: skip


def _filling(path: str, free_bytes: int, total_bytes: int, *, broker: int | None) -> Iterator[Finding]:
    share = free_bytes / total_bytes
    if share >= FREE_WARNING:
        return
    largest = f"ottla broker log-dirs {broker} --replicas" if broker is not None else None
    yield Finding(
        severity="problem" if share < FREE_PROBLEM else "warning", what="A disk is nearly full",
        evidence=f"{path}: {size_text(free_bytes)} of {size_text(total_bytes)} free ({100 * share:.1f} %)",
        remedy="Lower retention.ms or retention.bytes of the largest topics, move replicas to other brokers, or enlarge the disk. Do not"
        " delete files by hand.", broker=broker, command=largest,
    )  # fmt: skip


#: Open files of a Python program besides its connections, with a margin.
FILES_BESIDES = 100
#: Minimum limit of open files of a broker, which has a few for each segment.
BROKER_FILES_MIN = 4096
#: ottla.disk.reserve.bytes: a broker with less free space rejects records.
RESERVE_BYTES = 256 * 2**20
FREE_FILES_MIN = 10_000
LISTED_MAX = 3


def client(facts: Facts) -> Iterator[Finding]:
    """Whether clients on this machine can open enough files."""
    here = facts.machine
    needed = FILES_BESIDES + 3 * len(facts.nodes)
    if here is not None and here.files_max is not None and here.files_max < needed:
        yield Finding(
            severity="warning", what="The limit of open files is too low for clients",
            evidence=f"the limit is {here.files_max}; connections to {len(facts.nodes)} brokers and other files need about {needed}",
            remedy=f"Raise it: ulimit -n {max(needed, 1024)}, or nofile in /etc/security/limits.conf.",
        )  # fmt: skip


def profiles(facts: Facts) -> Iterator[Finding]:
    """Problems of the user's profiles."""
    for what, evidence, remedy in () if facts.machine is None else facts.machine.profile_problems:
        yield Finding(severity="warning", what=what, evidence=evidence, remedy=remedy, command="ottla profile list")


def data_dir(facts: Facts) -> Iterator[Finding]:
    """Problems of a data directory on this machine: its disk, owners, files, and process."""
    here = facts.data_dir
    if here is None:
        return
    if here.error is not None:
        yield Finding(
            severity="problem", what="The data directory cannot be used", evidence=f"{here.path}: {here.error}",
            remedy="Check whether its disk is mounted, and its owner and mode.",
        )  # fmt: skip
        return
    if here.is_read_only:
        yield Finding(
            severity="problem", what="The data directory is on a read-only disk", evidence=f"{here.path} is mounted read-only",
            remedy="Linux remounts failing disks read-only: check dmesg, repair the disk, mount it again.",
        )  # fmt: skip
    if here.free_bytes < RESERVE_BYTES:
        yield Finding(
            severity="problem", what="The disk is full: a broker on it rejects records",
            evidence=f"{here.path}: {size_text(here.free_bytes)} free, the reserve is {size_text(RESERVE_BYTES)}",
            remedy="Delete topics or records, or lower retention, which still works. Do not delete files by hand.",
        )  # fmt: skip
    else:
        yield from _filling(here.path, here.free_bytes, here.total_bytes, broker=None)
    if here.free_files is not None and here.free_files < FREE_FILES_MIN:
        yield Finding(
            severity="problem" if here.free_files < FREE_FILES_MIN // 10 else "warning", what="The disk has few inodes left",
            evidence=f"{here.path}: {here.free_files} more files are possible",
            remedy="Lower the number of partitions, raise segment.bytes, or recreate the file system with more inodes.",
        )  # fmt: skip
    if here.foreign_files:
        more = f" and {len(here.foreign_files) - LISTED_MAX} more" if len(here.foreign_files) > LISTED_MAX else ""
        yield Finding(
            severity="problem", what="Files in the data directory belong to other users than the directory",
            evidence=f"{here.path} belongs to {here.owner}; {', '.join(here.foreign_files[:LISTED_MAX])}{more}",
            remedy=f"Change the owner to the broker's user: chown -R {here.owner} {here.path}",
        )  # fmt: skip
    yield from _files(here)
    yield from _process(here)


def _files(here: DataDir) -> Iterator[Finding]:
    if here.store_problem is not None:
        yield Finding(
            severity="problem", what="The embedded store is damaged: no broker starts with it", evidence=here.store_problem,
            remedy="List its good copies and what is lost with each, then restore one with ottla store restore.",
            command=f"ottla store check --data-dir {shlex.quote(here.path)}",
        )  # fmt: skip
    elif here.store_doubt is not None:
        yield Finding(
            severity="warning", what="The embedded store may lack its last changes", evidence=here.store_doubt,
            remedy="Check the disk (dmesg, smartctl). Start the broker, and check its topics and settings.",
        )  # fmt: skip
    for path, wrong in here.metadata_problems[:LISTED_MAX]:
        refused = path.endswith("meta.properties")
        yield Finding(
            severity="problem" if refused else "warning", what="A metadata file of a log directory is damaged", evidence=f"{path}: {wrong}",
            remedy="Check the disk (dmesg, smartctl)." + " Then move the file away, and start the broker." * refused,
        )  # fmt: skip


def _process(here: DataDir) -> Iterator[Finding]:
    if here.holder is None:
        yield Finding(
            severity="note", what="No broker runs in the data directory",
            evidence=f"{here.path}: {'its lock is free' if here.has_lock else 'it has no lock file, so no Ottla broker used it'}",
            remedy="Start a broker there, if one should run.",
        )  # fmt: skip
        return
    limit, used = here.holder_files_max, here.holder_files
    if limit is None or used is None:
        return
    if used > 0.8 * limit or limit < BROKER_FILES_MIN:
        yield Finding(
            severity="warning" if used > 0.8 * limit else "note",
            what="The broker is near its limit of open files" if used > 0.8 * limit else "The broker's limit of open files is low",
            evidence=f"process {here.holder} has {used} open, its limit is {limit}",
            remedy="Raise the limit where the broker is started: ulimit -n 100000, or LimitNOFILE=100000 in its systemd unit; restart it.",
        )  # fmt: skip

"""What is wrong with disks and processes: log directories as brokers tell of them, this machine as clients find it, and a data directory
here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ottla.cli.common.arguments import size_text
from ottla.cli.doctor.facts import DataDir, Facts, Finding
from ottla.client.admin.results import LogDir

#: Shares of a disk that are free. A broker whose disk is full stops; retention frees whole segments only, and late.
FREE_WARNING, FREE_PROBLEM = 0.10, 0.03


def disks(facts: Facts) -> Iterator[Finding]:
    """Log directories that are offline or nearly full, as their brokers tell."""
    for broker, told in sorted(facts.directories.items()):
        if isinstance(told, str):
            yield Finding(
                severity="warning", what="A broker does not tell of its log directories", evidence=told,
                remedy="Look whether it is up.", broker=broker, command=f"ottla broker log-dirs {broker}",
            )  # fmt: skip
            continue
        for one in told:
            if one.error is not None:
                yield Finding(
                    severity="problem", what="A log directory is offline: its replicas are not there", evidence=f"{one.path}: {one.error}",
                    remedy="Look at the disk (dmesg, smartctl) and at the broker's log; repair or replace it, then restart the broker.",
                    broker=broker, command=f"ottla broker log-dirs {broker} --replicas",
                )  # fmt: skip
            elif one.total_bytes > 0 and one.usable_bytes >= 0:
                yield from _filling(one.path, one.usable_bytes, one.total_bytes, broker=broker)
            yield from _damaged(broker, one)
            if one.is_cordoned:
                yield Finding(
                    severity="note", what="A log directory gets no new replicas", evidence=f"{one.path} is cordoned",
                    remedy="Take it back from cordoned.log.dirs when it shall have some again.", broker=broker,
                )  # fmt: skip


HEALING = (
    "The broker heals the log from another replica. If this finding stays, look at the broker's log and at the disk (smartctl, dmesg)."
)
UNHEALED = (
    "Look at the disk: smartctl, dmesg. If another broker has a replica, start it: the log heals from there. Else stop the broker and "
    "restore the file from a copy, or give up the records: seek readers behind these offsets, or delete all up to there (ottla topic "
    "records-delete). Add replicas, so that the next damage heals by itself."
)


def _damaged(broker: int, directory: LogDir) -> Iterator[Finding]:
    """Replicas whose logs are damaged."""
    for log in directory.replicas:
        if not log.damage:
            continue
        heals = "another replica" in log.damage
        remedy = HEALING if heals else UNHEALED
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


# -- this machine

#: What a Python program has open besides its connections, with room to spare.
FILES_BESIDES = 100
#: A broker has a few open files for each segment of its logs.
BROKER_FILES_MIN = 4096
#: ottla.disk.reserve.bytes: with less than that free a broker takes no more records.
RESERVE_BYTES = 256 * 2**20
FREE_FILES_MIN = 10_000
SHOWN_MAX = 3


def client(facts: Facts) -> Iterator[Finding]:
    """Whether clients on this machine may open as many connections as they need."""
    here = facts.machine
    needed = FILES_BESIDES + 3 * len(facts.nodes)
    if here is not None and here.files_max is not None and here.files_max < needed:
        yield Finding(
            severity="warning", what="Clients here may not open enough files",
            evidence=f"the limit is {here.files_max}; connections to {len(facts.nodes)} brokers and what a program has open besides need"
            f" about {needed}",
            remedy=f"Raise it: ulimit -n {max(needed, 1024)}, or nofile in /etc/security/limits.conf.",
        )  # fmt: skip


def profiles(facts: Facts) -> Iterator[Finding]:
    """What is wrong with the user's profiles."""
    for what, evidence, remedy in () if facts.machine is None else facts.machine.profile_troubles:
        yield Finding(severity="warning", what=what, evidence=evidence, remedy=remedy, command="ottla profile list")


def data_dir(facts: Facts) -> Iterator[Finding]:
    """A broker's data directory on this machine: its disk, its owner, and who holds it."""
    here = facts.data_dir
    if here is None:
        return
    if here.error is not None:
        yield Finding(
            severity="problem", what="The data directory cannot be used", evidence=f"{here.path}: {here.error}",
            remedy="Look whether its disk is mounted, and at its owner and mode.",
        )  # fmt: skip
        return
    if here.is_read_only:
        yield Finding(
            severity="problem", what="The data directory is on a disk that cannot be written", evidence=f"{here.path} is mounted read-only",
            remedy="Disks that fail are mounted so: look at dmesg, repair it, mount it again.",
        )  # fmt: skip
    if here.free_bytes < RESERVE_BYTES:
        yield Finding(
            severity="problem", what="The disk is full: a broker on it takes no more records",
            evidence=f"{here.path}: {size_text(here.free_bytes)} free, the reserve is {size_text(RESERVE_BYTES)}",
            remedy="Delete topics or records, or lower retention: that still works. Do not delete files by hand.",
        )  # fmt: skip
    else:
        yield from _filling(here.path, here.free_bytes, here.total_bytes, broker=None)
    if here.free_files is not None and here.free_files < FREE_FILES_MIN:
        yield Finding(
            severity="problem" if here.free_files < FREE_FILES_MIN // 10 else "warning", what="The disk has hardly any inodes left",
            evidence=f"{here.path}: room for {here.free_files} more files",
            remedy="Lower the number of partitions or raise segment.bytes; else the file system must be made anew with more inodes.",
        )  # fmt: skip
    if here.of_others:
        more = f" and {len(here.of_others) - SHOWN_MAX} more" if len(here.of_others) > SHOWN_MAX else ""
        yield Finding(
            severity="problem", what="Files in the data directory belong to other users than the directory",
            evidence=f"{here.path} is {here.owner}'s; {', '.join(here.of_others[:SHOWN_MAX])}{more}",
            remedy=f"Give them to whoever runs the broker: chown -R {here.owner} {here.path}",
        )  # fmt: skip
    yield from _files(here)
    yield from _process(here)


def _files(here: DataDir) -> Iterator[Finding]:
    if here.store_trouble is not None:
        yield Finding(
            severity="problem", what="The embedded store cannot be used: no broker starts with it", evidence=here.store_trouble,
            remedy="See which good states of it there are, and what is lost with each; then restore one with ottla store restore.",
            command=f"ottla store check --data-dir {shlex.quote(here.path)}",
        )  # fmt: skip
    elif here.store_doubt is not None:
        yield Finding(
            severity="warning", what="The embedded store may lack its last changes", evidence=here.store_doubt,
            remedy="Look at the disk (dmesg, smartctl). Start the broker, and check that its topics and settings are as they should be.",
        )  # fmt: skip
    for path, wrong in here.metadata_troubles[:SHOWN_MAX]:
        refused = path.endswith("meta.properties")
        yield Finding(
            severity="problem" if refused else "warning", what="A small file of a log directory is damaged", evidence=f"{path}: {wrong}",
            remedy="Look at the disk (dmesg, smartctl)." + " Then move the file away, and start the broker." * refused,
        )  # fmt: skip


def _process(here: DataDir) -> Iterator[Finding]:
    if here.holder is None:
        yield Finding(
            severity="note", what="No broker holds the data directory",
            evidence=f"{here.path}: {'nobody has its lock' if here.has_lock else 'it has no lock file, so no broker of Ottla used it'}",
            remedy="Start a broker there, if one should run.",
        )  # fmt: skip
        return
    limit, used = here.holder_files_max, here.holder_files
    if limit is None or used is None:
        return
    if used > 0.8 * limit or limit < BROKER_FILES_MIN:
        yield Finding(
            severity="warning" if used > 0.8 * limit else "note",
            what="The broker has nearly as many files open as it may" if used > 0.8 * limit else "The broker may not open many files",
            evidence=f"process {here.holder} has {used} open, its limit is {limit}",
            remedy="Raise it where the broker is started: ulimit -n 100000, or LimitNOFILE=100000 in its systemd unit; restart it.",
        )  # fmt: skip

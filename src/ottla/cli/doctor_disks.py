"""What is wrong with disks and processes: log directories as brokers tell of them, this machine as clients find it, and a data directory
here.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.cli.doctor_facts import Facts, Finding
from ottla.cli.words import size_text

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
            if one.is_cordoned:
                yield Finding(
                    severity="note", what="A log directory gets no new replicas", evidence=f"{one.path} is cordoned",
                    remedy="Take it back from cordoned.log.dirs when it shall have some again.", broker=broker,
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

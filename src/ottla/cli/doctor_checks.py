"""The checks of `ottla doctor`, by name: each is a pure function from what was seen to what is wrong.

A check names the kinds of facts that it needs, so that nobody asks for more. What could not be seen is a finding of its own, so that
"nothing is wrong" is never said of what nobody could look at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from ottla.cli import doctor_cluster as cluster
from ottla.cli import doctor_disks as disks
from ottla.cli import doctor_groups as groups
from ottla.cli import doctor_partitions as partitions
from ottla.cli.doctor_facts import SEVERITIES, Facts, Finding


class Check(NamedTuple):
    """A check: what it looks for, the facts that it needs, and how."""

    says: str
    needs: frozenset[str]
    run: Callable[[Facts], Iterator[Finding]]


def _check(says: str, run: Callable[[Facts], Iterator[Finding]], *needs: str) -> Check:
    return Check(says, frozenset(needs), run)


#: In the order of the report: what is found first often explains the rest.
CHECKS = {
    "bootstrap": _check("The addresses to begin with: their names, whether a broker answers, all of one cluster.", cluster.bootstrap),
    "listeners": _check("The address of each broker that the cluster names: whether it can be reached from here.", cluster.listeners),
    "controller": _check("Whether there is a controller, and the brokers agree on it.", cluster.controller, "quorum"),
    "brokers": _check("Brokers that have replicas and are not there, or that others do not know.", cluster.brokers, "topics"),
    "versions": _check("Brokers of different versions.", cluster.versions),
    "partitions": _check(
        "Partitions without a leader, with too few replicas in sync to write, or with some that are not.",
        partitions.partitions, "topics", "topic settings",
    ),
    "leaders": _check("Brokers that do not lead the partitions that they should.", partitions.leaders, "topics", "broker settings"),
    "internal-topics": _check(
        "Topics of the cluster's own with fewer copies than wished.", partitions.internal_topics, "topics", "broker settings"
    ),
    "replication": _check(
        "Topics with a single copy, or that one broker less makes unwritable.", partitions.replication, "topics", "topic settings"
    ),
    "disks": _check("Log directories that are offline or nearly full.", disks.disks, "log directories"),
    "groups": _check(
        "Groups that do not get on, fall behind, never settle, or have nobody.", groups.groups, "groups", "group lags", "topics"
    ),
    "offsets": _check("Committed offsets that are not in the log: records that groups lost.", groups.offsets, "groups", "group lags"),
    "clocks": _check(
        "Clocks, as far as times in answers and records tell.", cluster.clocks, "topics", "topic settings", "newest records", "quorum"
    ),
}  # fmt: skip
#: Those that need no cluster.
ALONE = frozenset({"bootstrap", "client", "profiles", "data-dir"})


def needed(names: Iterable[str]) -> set[str]:
    """The kinds of facts that some checks need."""
    return {need for name in names for need in CHECKS[name].needs}


def examine(facts: Facts, names: Collection[str]) -> list[Finding]:
    """What these checks find, the worst first, else in the order of the checks."""
    found = []
    for name, check in CHECKS.items():
        if name not in names or not (facts.is_reachable or name in ALONE):
            continue
        for finding in check.run(facts):
            finding.check = name
            found.append(finding)
        unseen = sorted(check.needs & set(facts.unseen))
        if unseen:
            found.append(
                Finding(
                    severity="warning",
                    check=name,
                    what="This could not be looked at in full",
                    evidence="; ".join(f"{one}: {facts.unseen[one]}" for one in unseen),
                    remedy="Ask again with more patience (--timeout), or for this alone.",
                    command=f"ottla doctor --check {name} --timeout 30s",
                )
            )
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))

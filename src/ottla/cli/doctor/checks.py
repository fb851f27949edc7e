"""The checks of `ottla doctor`, by name: each is a pure function from what was seen to what is wrong.

A check names the kinds of facts that it needs, so that nobody asks for more. What could not be seen is a finding of its own, so that
"nothing is wrong" is never said of what nobody could look at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from ottla.cli.doctor import cluster, disks, groups, partitions
from ottla.cli.doctor.facts import SEVERITIES, Facts, Finding


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
    "client": _check("Whether clients on this machine may open as many connections as they need.", disks.client),
    "profiles": _check("The profiles of this user, and what the environment says of clusters.", disks.profiles),
    "data-dir": _check("A broker's data directory on this machine (--data-dir): room, owners, who holds it.", disks.data_dir),
}  # fmt: skip
#: Those that ask no cluster.
LOCAL = frozenset({"client", "profiles", "data-dir"})


def needed(names: Iterable[str]) -> set[str]:
    """The kinds of facts that some checks need."""
    return {need for name in names for need in CHECKS[name].needs}


def examine(facts: Facts, names: Collection[str]) -> list[Finding]:
    """What these checks find, the worst first, else in the order of the checks. Where nobody answers, it is that which is found."""
    found = []
    made = set(names) if facts.is_reachable else LOCAL.intersection(names) | {"bootstrap"}
    for name, check in CHECKS.items():
        if name not in made:
            continue
        for finding in check.run(facts):
            finding.check = name
            found.append(finding)
    return sorted([*found, *_unseen(facts, [name for name in CHECKS if name in made])], key=lambda one: SEVERITIES.index(one.severity))


def _unseen(facts: Facts, names: list[str]) -> Iterator[Finding]:
    """What could not be looked at, once for all the checks that needed it."""
    away = [number for number, visit in sorted(facts.listeners.items()) if visit.error is not None]
    for kind, why in sorted(facts.unseen.items()):
        hit = [name for name in names if kind in CHECKS[name].needs]
        if not hit:
            continue
        first = f"First make broker {away[0]} reachable; then ask again." if away else "Ask again with more patience."
        yield Finding(
            severity="warning", check=hit[0], what=f"Some of the cluster could not be looked at: {kind}",
            evidence=f"{why}; that is what {', '.join(hit)} would tell of", remedy=first,
            command=f"ottla doctor {' '.join(f'--check {name}' for name in hit)} --timeout 30s",
        )  # fmt: skip

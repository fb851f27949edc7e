"""The checks of `ottla doctor`, by name: each is a pure function from facts to findings.

A check declares the kinds of facts that it needs, and only those are queried. Facts that are not available are a finding of their own, so
that a report without findings means that everything was checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from ottla.client.doctor import access, cluster, disks, groups, partitions, transactions
from ottla.client.doctor.facts import SEVERITIES, Facts, Finding


class Check(NamedTuple):
    """A check: its help, the kinds of facts that it needs, and its function."""

    help: str
    needs: frozenset[str]
    run: Callable[[Facts], Iterator[Finding]]


def _check(help: str, run: Callable[[Facts], Iterator[Finding]], *needs: str) -> Check:
    return Check(help, frozenset(needs), run)


#: In the order of the report: earlier findings often explain later ones.
CHECKS = {
    "bootstrap": _check("Bootstrap servers: a broker answers at each, and all belong to one cluster.", cluster.bootstrap),
    "listeners": _check("Advertised listeners: each broker is reachable from this machine.", cluster.listeners),
    "controller": _check("Controller: there is one, and all brokers know it.", cluster.controller, "quorum"),
    "brokers": _check("Brokers: all that have replicas are alive, and know each other.", cluster.brokers, "topics"),
    "versions": _check("Versions: all brokers run the same one.", cluster.versions),
    "partitions": _check(
        "Partitions: each has a leader, and all replicas are in sync.", partitions.partitions, "topics", "topic settings",
    ),
    "leaders": _check("Leaders: brokers lead their preferred partitions.", partitions.leaders, "topics", "broker settings"),
    "internal-topics": _check(
        "Internal topics: they have the configured replication factor.", partitions.internal_topics, "topics", "broker settings"
    ),
    "replication": _check(
        "Replication: topics survive the failure of one broker, and stay writable.", partitions.replication, "topics", "topic settings"
    ),
    "disks": _check("Log directories: they are online and not nearly full.", disks.disks, "log directories"),
    "groups": _check(
        "Groups: they have members, make progress and finish rebalances.", groups.groups, "groups", "group lags", "topics"
    ),
    "offsets": _check("Committed offsets: they are within the log.", groups.offsets, "groups", "group lags"),
    "transactions": _check(
        "Transactions: none blocks read_committed consumers for long.", transactions.transactions, "transactions"
    ),
    "clocks": _check(
        "Clocks: they agree, as far as timestamps show.", cluster.clocks, "topics", "topic settings", "newest records", "quorum"
    ),
    "access": _check(
        "Access rules: listeners are not open to everyone; users, and clients that were refused, have rules.", access.access,
        "access rules", "broker settings",
    ),
    "client": _check("Open files: clients on this machine can open enough connections.", disks.client),
    "profiles": _check("Profiles: the file and the environment are valid.", disks.profiles),
    "data-dir": _check("A data directory on this machine (--data-dir): space, owners, lock.", disks.data_dir),
}  # fmt: skip
#: Checks that need no cluster.
LOCAL = frozenset({"client", "profiles", "data-dir"})


def required_facts(names: Iterable[str]) -> set[str]:
    """The kinds of facts that these checks need."""
    return {need for name in names for need in CHECKS[name].needs}


def run_checks(facts: Facts, names: Collection[str]) -> list[Finding]:
    """The findings of these checks, by severity, then in the order of the checks. Without a reachable broker, only local checks run."""
    findings = []
    selected = set(names) if facts.is_reachable else LOCAL.intersection(names) | {"bootstrap"}
    for name, check in CHECKS.items():
        if name not in selected:
            continue
        for finding in check.run(facts):
            finding.check = name
            findings.append(finding)
    return sorted(
        [*findings, *_unavailable(facts, [name for name in CHECKS if name in selected])], key=lambda one: SEVERITIES.index(one.severity)
    )


def _unavailable(facts: Facts, names: list[str]) -> Iterator[Finding]:
    """A finding for each kind of facts that is not available."""
    unreachable = [number for number, probe in sorted(facts.listeners.items()) if probe.error is not None]
    for kind, why in sorted(facts.unavailable.items()):
        hit = [name for name in names if kind in CHECKS[name].needs]
        if not hit:
            continue
        remedy = f"Make broker {unreachable[0]} reachable, then repeat." if unreachable else "Repeat with a longer timeout."
        yield Finding(
            severity="warning", check=hit[0], what=f"Part of the cluster could not be checked: {kind}",
            evidence=f"{why}; affected checks: {', '.join(hit)}", remedy=remedy,
            command=f"ottla doctor {' '.join(f'--check {name}' for name in hit)} --timeout 30s",
        )  # fmt: skip

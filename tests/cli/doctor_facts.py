"""Facts about clusters for tests of `ottla doctor`: a healthy cluster, to which each test adds a fault."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

import click

from ottla.cli.main import main
from ottla.client.admin.results import Node, PartitionDescription
from ottla.client.doctor.checks import CHECKS, run_checks
from ottla.client.doctor.facts import Address, Facts, Finding, Probe

NOW_MS = 1_800_000_000_000


def place(broker: int) -> Address:
    return (f"10.0.0.{broker}", 9092)


def a_probe(address: Address, *, brokers: Iterable[int] = (1, 2, 3), error: str | None = None, controller: int = 1) -> Probe:
    seen = Probe(address=address, hosts=[address[0]], error=error)
    if error is None:
        seen.cluster_id, seen.controller, seen.versions = "ours", controller, {0: (3, 11), 1: (4, 17)}
        seen.brokers = {broker: place(broker) for broker in brokers}
    return seen


def a_partition(
    number: int = 0, leader: int = 1, replicas: Iterable[int] = (1, 2, 3), isr: Iterable[int] | None = None
) -> PartitionDescription:
    there = list(replicas)
    return PartitionDescription(number, leader, 0, there, there if isr is None else list(isr), [])


def a_healthy_cluster() -> Facts:
    """Three brokers and a topic with three replicas; each broker is the preferred leader of one partition."""
    return Facts(
        now_ms=NOW_MS,
        timeout_ms=5000,
        bootstrap=[a_probe(place(1))],
        listeners={broker: a_probe(place(broker)) for broker in (1, 2, 3)},
        nodes=[Node(broker, *place(broker)) for broker in (1, 2, 3)],
        controller=1,
        topics={"orders": [a_partition(0, 1, (1, 2, 3)), a_partition(1, 2, (2, 3, 1)), a_partition(2, 3, (3, 1, 2))]},
        topic_settings={"orders": {"min.insync.replicas": "2", "message.timestamp.type": "CreateTime"}},
        broker_settings={broker: {"offsets.topic.replication.factor": "3"} for broker in (1, 2, 3)},
    )


def found(facts: Facts, *names: str) -> list[Finding]:
    """Findings of the checks (of all if none is named). Each suggested command is parsed."""
    findings = run_checks(facts, names or list(CHECKS))
    for finding in findings:
        assert finding.what and finding.evidence and finding.remedy, finding
        if finding.command is not None:
            typed(finding.command)
    return findings


def only(facts: Facts, *names: str) -> Finding:
    """The only finding."""
    findings = found(facts, *names)
    assert len(findings) == 1, findings
    return findings[0]


def typed(line: str) -> None:
    """Parse a command line with the real commands and options. Raises: UsageError."""
    program, *rest = shlex.split(line)
    assert program == "ottla", line
    command: click.Command = main
    while isinstance(command, click.Group):
        below = command.get_command(click.Context(command), rest[0])
        assert below is not None, line
        command, rest = below, rest[1:]
    command.make_parser(click.Context(command)).parse_args(rest)

"""Checks of transactions: those that hold back the last stable offset of partitions, so that read_committed consumers wait.

Transactions block readers for short times while producers work. A transaction is reported if nobody will end it (hanging), if its
coordinator should have ended it (overdue), if its markers are not written (completing), or if it is open for longer than `OPEN_MS`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from shlex import quote
from typing import NamedTuple

from ottla.base.readable import duration_text, partitions_text
from ottla.client.admin.transaction_results import BlockedPartition, BlockingTransaction, TransactionStatus
from ottla.client.doctor.facts import Facts, Finding

#: Partitions blocked for a shorter time are not queried: a coordinator aborts a transaction up to 10 s after its timeout, and a leader
#: election delays its markers by some seconds.
BLOCKED_MS = 60_000
#: A producer that commits less often makes its readers wait for minutes.
OPEN_MS = 5 * 60_000
#: Groups named in a finding.
GROUPS_MAX = 5


class Blocks(NamedTuple):
    """A transaction and a partition that it blocks."""

    partition: BlockedPartition
    transaction: BlockingTransaction


def transactions(facts: Facts) -> Iterator[Finding]:
    """A finding for each transaction and topic."""
    found: dict[tuple[TransactionStatus, str, int, str], list[Blocks]] = defaultdict(list)
    for blocked in facts.blocked.values():
        for number, one in enumerate(blocked.transactions):
            # A younger transaction holds nothing back yet, but one that hangs will.
            if _is_reported(facts, one) and (number == 0 or one.status is TransactionStatus.HANGING):
                name = one.transaction.transactional_id or ""
                found[one.status, name, one.transaction.producer_id, blocked.topic].append(Blocks(blocked, one))
    for (status, name, producer_id, _), several in found.items():
        yield _finding(facts, status, f"transactional id {name}" if name else f"producer id {producer_id}", name, several)


def _is_reported(facts: Facts, one: BlockingTransaction) -> bool:
    age_ms = facts.now_ms - one.since_ms if one.since_ms is not None else BLOCKED_MS
    if one.status in (TransactionStatus.ONGOING, TransactionStatus.PREPARED):
        return age_ms >= OPEN_MS
    if one.status is TransactionStatus.OVERDUE and one.description is not None:
        return age_ms >= one.description.timeout_ms + BLOCKED_MS
    return age_ms >= BLOCKED_MS


def _finding(facts: Facts, status: TransactionStatus, who: str, name: str, several: list[Blocks]) -> Finding:
    first = several[0]
    topic = first.partition.topic
    what, remedy, command = _advice(status, name, several)
    return Finding(
        severity="warning" if status in (TransactionStatus.ONGOING, TransactionStatus.PREPARED) else "problem",
        what=what,
        evidence=f"{who}{_client(first.transaction)}, {_age(facts, several)}; {_held_back(several)}{_waiting(several)}",
        remedy=remedy,
        topic=topic,
        partitions=[one.partition.partition for one in several],
        command=command,
    )


def _advice(status: TransactionStatus, name: str, several: list[Blocks]) -> tuple[str, str, str]:
    """The problem, its remedy and a command."""
    describe = f"ottla transaction describe {quote(name)}"
    abort = f"ottla transaction abort {quote(name)}"
    match status:
        case TransactionStatus.HANGING:
            if len(several) == 1:
                one = several[0].transaction.transaction
                command = f"ottla transaction abort -t {quote(f'{one.topic}:{one.partition}')} --start-offset {one.start_offset}"
            else:
                command = f"ottla transaction abort --hanging -t {quote(several[0].partition.topic)}"
            return (
                "A transaction hangs: no coordinator will end it, and read_committed consumers do not read further",
                "Abort it. Its records were never committed, and become invisible to read_committed.",
                command,
            )
        case TransactionStatus.OVERDUE:
            return (
                "A transaction is open after its timeout: its coordinator does not abort it",
                "Check that the partitions of __transaction_state have leaders and enough in-sync replicas; then abort the transaction.",
                abort,
            )
        case TransactionStatus.COMPLETING:
            return (
                "The outcome of a transaction is decided, but its marker is not written",
                "Check that the leader of the partition is reachable from the other brokers and has enough in-sync replicas.",
                describe,
            )
        case TransactionStatus.PREPARED:
            return (
                "A prepared transaction of two-phase commit waits for its producer",
                "Start its producer, which completes it. If it never returns, abort the transaction, unless another participant"
                " committed it.",
                describe,
            )
        case TransactionStatus.ONGOING:
            return (
                "A transaction is open for a long time, and read_committed consumers wait for it",
                f"Check why its producer does not end it; it may commit more often. To end it now: {abort}",
                describe,
            )


def _client(one: BlockingTransaction) -> str:
    known = one.description
    if known is None or not (known.client_id or known.client_host):
        return ""
    return f", client {known.client_id or ''}{f' at {known.client_host}' if known.client_host else ''}"


def _age(facts: Facts, several: list[Blocks]) -> str:
    since_ms = min((one.transaction.since_ms for one in several if one.transaction.since_ms is not None), default=None)
    return "open for an unknown time" if since_ms is None else f"open for {duration_text(max(facts.now_ms - since_ms, 0))}"


def _held_back(several: list[Blocks]) -> str:
    offsets = sum(one.partition.held_back for one in several)
    where = f"from offset {several[0].partition.last_stable_offset} on" if len(several) == 1 else f"in {len(several)} partitions"
    return f"{offsets} offsets are held back {where}"


def _waiting(several: list[Blocks]) -> str:
    groups = sorted({group.group_id for one in several for group in one.partition.groups})
    pending = sorted({tp for one in several for group in one.partition.groups for tp in group.pending})
    named = ", ".join(groups[:GROUPS_MAX]) + (f" and {len(groups) - GROUPS_MAX} more" if len(groups) > GROUPS_MAX else "")
    if pending:
        return f"; pending offsets of {partitions_text(pending)} in groups {named}"
    return f"; groups at or before it: {named}" if groups else ""

"""`ottla doctor` on transactions that hold back last stable offsets."""

from __future__ import annotations

import pytest
from doctor_facts import NOW_MS, a_healthy_cluster, found, only

from ottla.base.ids import TopicPartition
from ottla.client.admin.results import Node
from ottla.client.admin.transaction_results import (
    NO_TIMEOUT_MS,
    BlockedGroup,
    BlockedPartition,
    BlockingTransaction,
    OpenTransaction,
    TransactionDescription,
    TransactionState,
    TransactionStatus,
)
from ottla.client.doctor.facts import Facts
from ottla.client.doctor.transactions import BLOCKED_MS, GROUPS_MAX, OPEN_MS

TIMEOUT_MS = 60_000
S = TransactionStatus


def blocking(
    status: TransactionStatus, age_ms: int, *, partition: int = 0, topic: str = "orders", start: int = 7, name: str | None = "billing-1"
) -> BlockingTransaction:
    since_ms = NOW_MS - age_ms
    description = TransactionDescription(
        name or "",
        Node(1, "10.0.0.1", 9092),
        TransactionState.PREPARE_COMMIT if status is S.COMPLETING else TransactionState.ONGOING,
        3,
        0,
        NO_TIMEOUT_MS if status is S.PREPARED else TIMEOUT_MS,
        since_ms,
        [TopicPartition(topic, partition)],
        "biller",
        "10.0.0.9",
    )
    opened = OpenTransaction(topic, partition, start, 3, 0, -1, since_ms, name)
    return BlockingTransaction(opened, status, since_ms, description if name else None)


def blocked(*transactions: BlockingTransaction, groups: list[BlockedGroup] | None = None) -> Facts:
    """A healthy cluster with a blocked partition, which ends at 17."""
    facts = a_healthy_cluster()
    for one in transactions:
        place = one.transaction.place
        others = facts.blocked[place].transactions if place in facts.blocked else []
        facts.blocked[place] = BlockedPartition(*place, min(7, one.transaction.start_offset), 17, [*others, one], groups or [])
    return facts


@pytest.mark.parametrize(
    ("status", "at_ms", "severity"),
    [
        (S.HANGING, BLOCKED_MS, "problem"),
        (S.COMPLETING, BLOCKED_MS, "problem"),
        (S.OVERDUE, TIMEOUT_MS + BLOCKED_MS, "problem"),
        (S.ONGOING, OPEN_MS, "warning"),
        (S.PREPARED, OPEN_MS, "warning"),
    ],
)
def test_a_transaction_is_reported_after_the_time_that_its_status_allows(status: TransactionStatus, at_ms: int, severity: str) -> None:
    assert found(blocked(blocking(status, at_ms - 1))) == []
    finding = only(blocked(blocking(status, at_ms)))
    assert (finding.severity, finding.check, finding.topic, finding.partitions) == (severity, "transactions", "orders", [0])
    assert finding.command is not None and "transaction" in finding.command


def test_the_finding_names_id_client_age_offsets_and_groups() -> None:
    groups = [BlockedGroup(f"g{number}", 7) for number in range(GROUPS_MAX + 2)]
    assert only(blocked(blocking(S.ONGOING, OPEN_MS), groups=groups)).evidence == (
        "transactional id billing-1, client biller at 10.0.0.9, open for 5m; 10 offsets are held back from offset 7 on; "
        "groups at or before it: g0, g1, g2, g3, g4 and 2 more"
    )


def test_pending_offsets_are_named_with_their_groups() -> None:
    pending = [BlockedGroup("copies", None, [TopicPartition("orders", 0), TopicPartition("orders", 2)])]
    finding = only(blocked(blocking(S.OVERDUE, OPEN_MS, topic="__consumer_offsets"), groups=pending))
    assert "; pending offsets of orders:0,2 in groups copies" in finding.evidence


def test_a_hanging_transaction_is_aborted_by_its_offset_and_several_at_once() -> None:
    one = blocking(S.HANGING, OPEN_MS, name=None)
    finding = only(blocked(one))
    assert finding.command == "ottla transaction abort -t orders:0 --start-offset 7"
    assert finding.evidence.startswith("producer id 3, open for")
    finding = only(blocked(one, blocking(S.HANGING, OPEN_MS, partition=1, name=None)))
    assert (finding.command, finding.partitions) == ("ottla transaction abort --hanging -t orders", [0, 1])


def test_only_the_oldest_transaction_of_a_partition_blocks_it_but_each_that_hangs_is_reported() -> None:
    oldest = blocking(S.ONGOING, OPEN_MS, name="old")
    assert "id old" in only(blocked(oldest, blocking(S.ONGOING, OPEN_MS, start=9, name="young"))).evidence
    several = found(blocked(oldest, blocking(S.HANGING, OPEN_MS, start=9, name="gone")))
    assert [one.severity for one in several] == ["problem", "warning"]


def test_without_facts_about_transactions_the_check_is_reported_as_not_done() -> None:
    facts = a_healthy_cluster()
    facts.unavailable = {"transactions": "no answer within 10 s"}
    assert "could not be checked: transactions" in only(facts).what

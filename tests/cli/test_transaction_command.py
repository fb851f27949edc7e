"""`ottla transaction`: output, filters, confirmations and refusals."""

from __future__ import annotations

import time

import pytest
from fake_admin import FakeAdmin

from commands import Ottla, documents, good, refused, rows, without_headings
from ottla.base.ids import TopicPartition
from ottla.client.admin.results import Node
from ottla.client.admin.transaction_results import NO_TIMEOUT_MS, OpenTransaction, TransactionDescription, TransactionState

WRITTEN_MS = 1_700_000_000_000
PLACE = TopicPartition("orders", 1)


def a_transaction(name: str, state: TransactionState = TransactionState.ONGOING, **fields: object) -> TransactionDescription:
    given = {"producer_id": 7, "timeout_ms": 60_000, "partitions": [PLACE], "client_id": "biller", "client_host": "10.0.0.9", **fields}
    started_ms = int(time.time() * 1000) - 90_000
    return TransactionDescription(name, Node(2, "two", 9092), state, producer_epoch=3, start_ms=started_ms, **given)  # type: ignore[arg-type]


@pytest.fixture
def transactions(cluster: FakeAdmin) -> FakeAdmin:
    """An open transaction of `billing-1` in orders-1, an idle id, and one that hangs in payments-0."""
    cluster.transactions["billing-1"] = a_transaction("billing-1")
    cluster.transactions["audit"] = a_transaction("audit", TransactionState.EMPTY, producer_id=8, partitions=[])
    cluster.open = [
        OpenTransaction("orders", 1, 4, 7, 3, 5, WRITTEN_MS, "billing-1"),
        OpenTransaction("payments", 0, 6, 9, 0, -1, WRITTEN_MS),
    ]
    return cluster


# -- listing and describing


def test_ids_are_listed_by_pattern_state_and_producer(transactions: FakeAdmin, ottla: Ottla) -> None:
    assert rows(ottla("transaction", "list")) == "audit\t2\t8\tEmpty\nbilling-1\t2\t7\tOngoing\n"
    for arguments in (["b*"], ["--state", "ongoing"], ["--producer-id", "7"]):
        assert rows(ottla("transaction", "list", *arguments)) == "billing-1\t2\t7\tOngoing\n"
    assert rows(ottla("transaction", "list", "--longer-than", "2m")) == ""
    assert documents(ottla("transaction", "list", "b*", "-o", "json"), "transaction", "list") == [
        {"transactional_id": "billing-1", "coordinator": 2, "producer_id": 7, "state": "Ongoing"}
    ]


def test_an_id_is_described_with_client_and_offsets(transactions: FakeAdmin, ottla: Ottla) -> None:
    [one] = documents(ottla("transaction", "describe", "billing-1", "-o", "json"), "transaction", "describe")
    assert (one["client_id"], one["client_host"], one["timeout_ms"]) == ("biller", "10.0.0.9", 60_000)
    assert 90_000 <= one["duration_ms"] < 120_000
    expected = {"topic": "orders", "partition": 1, "start_offset": 4, "last_stable_offset": 4, "end_offset": 10}
    assert one["partitions"] == [{**expected, "last_write_ms": WRITTEN_MS, "holds": True}]
    assert rows(ottla("transaction", "describe", "audit")) == "audit\tEmpty\t8\t3\t\t\t\t\t\t\n"


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_a_title_per_id(transactions: FakeAdmin, ottla: Ottla) -> None:
    transactions.transactions["audit"] = a_transaction(
        "audit", TransactionState.EMPTY, timeout_ms=NO_TIMEOUT_MS, partitions=[], client_id=None
    )
    output = " ".join(good(ottla("transaction", "describe", "billing-1", "audit")).split())
    assert output.startswith("billing-1 Ongoing for 1m 30s timeout 1m producer 7 epoch 3 coordinator 2 (two:9092) client biller@10.0.0.9")
    assert "timeout none producer 7 epoch 3 coordinator 2 (two:9092) client @10.0.0.9" in output


def test_a_missing_id_suggests_a_similar_one(transactions: FakeAdmin, ottla: Ottla) -> None:
    for command in ("describe", "abort"):
        assert "transactional id biling-1 does not exist; did you mean billing-1?" in refused(ottla("transaction", command, "biling-1"))


# -- finding


def test_what_blocks_readers_has_client_and_groups(transactions: FakeAdmin, ottla: Ottla) -> None:
    held, hanging = documents(ottla("transaction", "blocking", "-o", "json"), "transaction", "blocking")
    assert (held["topic"], held["partition"], held["last_stable_offset"], held["held_back"]) == ("orders", 1, 4, 6)
    assert (held["status"], held["holds"], held["transactional_id"], held["client_id"]) == ("ongoing", True, "billing-1", "biller")
    assert held["groups"] == [{"group": "billing", "committed_offset": 4, "pending": {}}]
    assert (hanging["status"], hanging["state"], hanging["coordinator_epoch"], hanging["open_ms"]) == ("hanging", None, None, None)
    line = rows(ottla("transaction", "blocking")).splitlines()[0].split("\t")
    assert line[:4] + line[5:] == ["orders", "1", "4", "6", "ongoing", "billing-1", "7", "biller@10.0.0.9", "billing"]
    assert documents(ottla("transaction", "blocking", "--no-groups", "-o", "json"), "transaction", "blocking")[0]["groups"] == []


def test_only_the_oldest_transaction_of_a_partition_is_shown_unless_all_are_asked_for(transactions: FakeAdmin, ottla: Ottla) -> None:
    younger = OpenTransaction("orders", 1, 8, 11, 0, -1, WRITTEN_MS)
    transactions.open.append(younger)
    shown = documents(ottla("transaction", "blocking", "-o", "json"), "transaction", "blocking")
    assert [(one["topic"], one["start_offset"], one["holds"]) for one in shown] == [("orders", 4, True), ("payments", 6, True)]
    shown = documents(ottla("transaction", "blocking", "--all", "-o", "json"), "transaction", "blocking")
    assert [(one["topic"], one["start_offset"], one["holds"]) for one in shown][:2] == [("orders", 4, True), ("orders", 8, False)]


def test_hanging_transactions_are_a_problem_with_the_command_that_ends_them(transactions: FakeAdmin, ottla: Ottla) -> None:
    result = ottla("transaction", "find-hanging")
    assert "ottla transaction abort -t payments:0 --start-offset 6" in refused(result)
    assert without_headings(result.stdout).startswith("payments\t0\t9\t0\t\t6\t")
    assert rows(ottla("transaction", "find-hanging", "orders")) == ""


# -- aborting


def test_an_open_transaction_is_aborted_and_an_idle_id_is_left_alone(transactions: FakeAdmin, ottla: Ottla) -> None:
    assert (
        good(ottla("transaction", "abort", "billing-1", "audit", "--dry-run"))
        == "billing-1\twould be aborted\naudit\tno open transaction\n"
    )
    assert "Confirm with --yes" in refused(ottla("transaction", "abort", "billing-1"), 2)
    assert transactions.transactions["billing-1"].state is TransactionState.ONGOING
    assert good(ottla("transaction", "abort", "billing-1", "audit", "--yes")) == "billing-1\taborted\naudit\tno open transaction\n"
    assert [one.state for one in transactions.transactions.values()] == [TransactionState.COMPLETE_ABORT, TransactionState.EMPTY]


def test_a_decided_transaction_is_not_aborted(transactions: FakeAdmin, ottla: Ottla) -> None:
    transactions.transactions["billing-1"] = a_transaction("billing-1", TransactionState.PREPARE_COMMIT)
    assert "its outcome is decided (PrepareCommit)" in refused(ottla("transaction", "abort", "billing-1", "-y"))
    assert transactions.transactions["billing-1"].state is TransactionState.PREPARE_COMMIT


def test_a_hanging_transaction_is_ended_by_its_offset(transactions: FakeAdmin, ottla: Ottla) -> None:
    arguments = ("transaction", "abort", "-t", "payments:0", "--start-offset", "6")
    assert "would be aborted" in good(ottla(*arguments, "--dry-run"))
    assert transactions.calls == []
    assert good(ottla(*arguments, "-y")) == "payments-0: producer 9 epoch 0 from offset 6\taborted\n"
    assert transactions.calls == ["abort payments-0 9 0 -1"]
    assert "it has no open transaction" in refused(ottla(*arguments, "-y"))


def test_all_hanging_transactions_are_ended_at_once(transactions: FakeAdmin, ottla: Ottla) -> None:
    assert good(ottla("transaction", "abort", "--hanging", "-y")) == "payments-0: producer 9 epoch 0 from offset 6\taborted\n"
    result = ottla("transaction", "abort", "--hanging", "-y")
    assert (good(result), result.stderr) == ("", "No transaction hangs.\n")


def test_a_marker_that_would_tear_a_transaction_needs_force(transactions: FakeAdmin, ottla: Ottla) -> None:
    arguments = ("transaction", "abort", "-t", "orders:1", "--start-offset", "4", "-y")
    assert "it belongs to transactional id billing-1, which is Ongoing" in refused(ottla(*arguments))
    assert transactions.calls == []
    good(ottla(*arguments, "--force"))
    assert transactions.calls == ["abort orders-1 7 3 5"]


def test_old_brokers_get_the_identity_from_the_command_line(transactions: FakeAdmin, ottla: Ottla) -> None:
    identity = ["--producer-id", "9", "--producer-epoch", "0", "--coordinator-epoch", "-1"]
    good(ottla("transaction", "abort", "-t", "payments:0", *identity, "-y"))
    assert transactions.calls == ["abort payments-0 9 0 -1"]
    identity[3] = "-1"
    assert "the epoch is too old" in refused(ottla("transaction", "abort", "-t", "payments:0", *identity, "-y"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "expected TRANSACTIONAL-ID, --start-offset, --hanging or --producer-id"),
        (["billing-1", "--hanging"], "expected TRANSACTIONAL-ID"),
        (["billing-1", "-t", "orders:1"], "use it without -t"),
        (["--start-offset", "4"], "expected one partition"),
        (["--start-offset", "4", "-t", "orders"], "expected one partition"),
        (["--producer-id", "4", "-t", "orders:1"], "--producer-id needs --producer-epoch"),
    ],
)
def test_a_transaction_is_named_in_one_way(transactions: FakeAdmin, ottla: Ottla, arguments: list[str], reason: str) -> None:
    assert reason in refused(ottla("transaction", "abort", *arguments), 2)

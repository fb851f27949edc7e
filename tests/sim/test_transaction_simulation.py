"""Transactions in the simulator with the real broker: every invariant holds, on one broker and on three."""

from collections import Counter

import pytest

from ottla.sim.checkers.transactions import NEVER
from ottla.sim.sweep import STORIES, TURNS, report, run_seed
from ottla.sim.transaction_history import CLUSTER_TRANSACTION_KINDS, TRANSACTION_FAULT_KINDS, TransactionHistory

pytestmark = pytest.mark.slow


def test_transactions_are_whole_and_come_to_rest_whatever_happens() -> None:
    for seed in range(4):
        verdict = run_seed(seed, "transactions")
        assert not verdict.problems, report(verdict)
        assert verdict.acknowledged > 0, f"seed {seed} tested nothing"


def test_transactions_are_whole_in_a_cluster() -> None:
    for seed in range(2):
        verdict = run_seed(seed, "cluster-transactions")
        assert not verdict.problems, report(verdict)


@pytest.mark.parametrize("kind", sorted(set(TRANSACTION_FAULT_KINDS)))
def test_transactions_survive_each_kind_of_fault_alone(kind: str) -> None:
    verdict = TransactionHistory(1, kinds=(kind,)).run()
    assert not verdict.problems, report(verdict)
    assert verdict.faults > 0


@pytest.mark.parametrize("version", [1, 2])
def test_transactions_of_all_kinds_have_all_outcomes(version: int) -> None:
    outcomes: Counter[tuple[bool, str]] = Counter()
    for seed in range(4):
        history = TransactionHistory(seed, version=version, kinds=("kill", "producer killed", "producer replaced", "member paused"))
        assert not history.run().problems
        outcomes += Counter((bool(transaction.group), transaction.outcome) for transaction in history.observed.transactions)
    for processed in (False, True):
        assert min(outcomes[processed, outcome] for outcome in ("committed", "aborted")) > 0, outcomes


def test_clients_of_an_id_are_replaced_while_they_run() -> None:
    history = TransactionHistory(2, kinds=("producer replaced", "member replaced"))
    assert not history.run().problems
    assert any(transaction.fenced < NEVER for transaction in history.observed.transactions)


def test_one_of_four_seeds_has_a_history_of_transactions() -> None:
    assert set(TURNS) == set(STORIES)
    assert len(TURNS) == 4 * sum("transactions" in story for story in TURNS)


def test_faults_of_transactions_in_a_cluster_are_those_of_both() -> None:
    assert {"kill", "silent link", "member paused", "producer replaced"} <= set(CLUSTER_TRANSACTION_KINDS)

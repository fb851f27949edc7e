"""Each safeguard of transactions, switched off alone: the simulator finds a violation.

Each test names the faults that bring it out, and the seed that shows it; should that seed have another history one day, others are tried.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import pytest
from source_changes import change

from ottla.base.ids import TopicPartition
from ottla.broker import coordinator
from ottla.broker.apis import k00_produce, k27_write_txn_markers
from ottla.broker.coordinator import Shard
from ottla.broker.groups import offsets
from ottla.broker.groups.groups import Groups
from ottla.broker.groups.offsets import Offsets
from ottla.broker.groups.pending_offsets import PendingOffsets
from ottla.broker.replica.reads import Readable
from ottla.broker.transactions import transaction, transactions
from ottla.broker.transactions.marker_order import MarkerOrder
from ottla.broker.transactions.markers import Markers
from ottla.broker.transactions.states import IllegalTransition
from ottla.broker.transactions.transactions import Transactions
from ottla.broker.transactions.verification import Verifications
from ottla.log.log import Log
from ottla.log.producer_state import Producers
from ottla.log.segment import Segment
from ottla.sim.transaction_history import TransactionHistory

pytestmark = pytest.mark.slow

#: Histories that a fault may hide in before the test gives up.
SEEDS = 60
#: Client processes that end, pause or have a successor while they run.
REPLACED = ("producer killed", "producer replaced", "producer paused", "member replaced")
ENDED = ("kill", "power cut", "slow disk")


def harm(expected: str, kinds: Sequence[str], *, first: int = 0, version: int | None = None, brokers: int | None = None) -> bool:
    """Whether a history has a violation that matches ``expected``; others do not count."""
    for seed in chain((first,), range(SEEDS)):
        history = TransactionHistory(seed, kinds=kinds, version=version, brokers=brokers)
        try:
            problems = history.run().problems
        except (AssertionError, IllegalTransition) as error:
            problems = [f"{type(error).__name__}: {error}"]
        finally:
            history.world.end()
        if any(re.search(expected, problem) for problem in problems):
            return True
    return False


# Producers and their epochs.


def test_not_checking_the_epoch_of_who_adds_partitions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, transactions, "check_identity", "transaction.epoch != identity.epoch or transaction.recovered", "False")
    assert harm("G0|torn|fenced|G1|lost|doubled|internal|rest", REPLACED, first=8)


def test_letting_a_former_producer_end_the_transaction_of_the_next_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, transaction, "end", "identity.epoch != before.held.epoch", "False")
    assert harm("fenced|torn", REPLACED, version=1, first=2)


def test_not_aborting_the_open_transaction_of_the_producer_before_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, transaction, "initialize", "before.state is S.ONGOING", "False")
    change(monkeypatch, transaction, "check_transition", "(before, after) not in TRANSITIONS", "False")
    assert harm("stuck|stable offset|torn|IllegalTransition", REPLACED, first=2)


def test_fencing_without_a_higher_epoch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, transaction, "fence", "epoch=before.epoch + 1, last_epoch", "last_epoch")
    assert harm("torn|stable offset", ("producer paused", "producer lost"), version=2, first=9)


def test_never_aborting_a_transaction_after_its_timeout_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction.Transaction, "timed_out", lambda self, wall_ms: False)
    assert harm("stable offset", ("producer lost", "producer killed"), first=11)


def without_asking(
    self: Verifications,
    coordinators: Any,
    transactional_id: str,
    identity: Any,
    partitions: Iterable[TopicPartition],
    *,
    add: bool,
    done: Callable[[Mapping[TopicPartition, int]], None],
) -> None:
    done(dict.fromkeys(partitions, 0))


# Verification.


def test_appending_without_asking_the_coordinator_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Verifications, "ask", without_asking)
    assert harm("stable offset|torn", ("producer killed",), version=2, first=3)


def test_appending_what_was_sent_behind_a_damaged_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, k00_produce, "_append", "isinstance(error, errors.CorruptMessage) and _is_idempotent(call, data)", "False")
    assert harm("is out of order", (), first=102_848)


# The decision and its markers.


def test_answering_a_commit_before_it_is_on_disk_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "committed", lambda self, of: None)
    assert harm("lost|fenced|torn|doubled", ENDED, first=1)


def test_completing_a_transaction_before_all_markers_are_written_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, Markers, "_check", "self.missing.get(transactional_id, True) == set()", "transactional_id in self.missing")
    assert harm("stable offset|torn|IllegalTransition|rest", ENDED, first=3)


def test_counting_markers_that_are_not_on_disk_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k27_write_txn_markers, "_wait", lambda node, call, response, written: response)
    assert harm("stable offset|torn", ("power cut", "slow disk", "fsync fails"), first=0)


def test_forgetting_decided_transactions_when_the_log_is_loaded_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, Transactions, "loaded", "self.go_on_with(transaction)", "pass")
    assert harm("stable offset|rest", ENDED, first=3)


def test_beginning_a_transaction_while_the_last_one_is_completed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "check_undecided", lambda transaction: None)
    change(monkeypatch, transaction, "check_transition", "(before, after) not in TRANSITIONS", "False")
    assert harm("stable offset|torn|rest|lost", ENDED, first=0)


def test_writing_markers_that_arrive_after_the_next_transaction_has_begun_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MarkerOrder, "arrived", lambda self, sequence, epoch: True)
    monkeypatch.setattr(MarkerOrder, "overtaken", lambda self, sequence, epoch: False)
    assert harm("G1b|torn", (), first=100_478, brokers=3)


# Readers.


def test_reading_beyond_the_last_stable_offset_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Readable, "readable_end", lambda self, isolation_level: self.high_watermark)
    assert harm("G1a|G1b", ("producer killed",), first=7)


def test_not_naming_aborted_transactions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "aborted_in", lambda self, first, found, upto: [])
    assert harm("G1a", ("producer killed",), first=4)


def test_forgetting_open_transactions_at_a_restart_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, Producers, "restore", "if p.transaction_from != NO_OFFSET", "if False")
    assert harm("G1a|G1b|torn", ("stop", "kill", "producer paused"), first=7)


def test_trusting_a_transaction_index_in_the_page_cache_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, Segment, "store_aborted", "former != content or (durable and exists)", "former != content")
    assert harm("G1a", (), first=102_196)


# Offsets of transactions.


def test_counting_offsets_before_their_transaction_is_committed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Groups, "apply_transactional", lambda self, key, value, *, producer_id, record_offset: self.apply(key, value))
    assert harm("lost", ("member killed",), first=1)


def test_counting_offsets_of_aborted_transactions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Offsets.end_transaction
    monkeypatch.setattr(Offsets, "end_transaction", lambda self, producer_id, *, commit: end(self, producer_id, commit=True))
    assert harm("lost", ("member killed",), first=2)


def test_dropping_offsets_of_committed_transactions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Offsets.end_transaction
    monkeypatch.setattr(Offsets, "end_transaction", lambda self, producer_id, *, commit: end(self, producer_id, commit=False))
    assert harm("doubled", ("member killed",), first=7)


def test_showing_offsets_while_a_transaction_may_replace_them_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingOffsets, "unstable", lambda self, group_id, topic, partition: False)
    assert harm("doubled", ("member joins", "member paused"), first=1)


def test_taking_offsets_of_an_old_generation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "_check_sender", lambda groups, request, version: None)
    assert harm("doubled", ("member paused", "member joins"), first=5)


def test_forgetting_markers_when_offsets_are_loaded_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, coordinator, "replay", "control.kind in (ABORT_MARKER, COMMIT_MARKER)", "False")
    assert harm("a replay has|not those of a replay|doubled", ENDED, first=5)

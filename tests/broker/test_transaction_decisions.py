"""Decisions about one transactional id: states, epochs, identities, without a broker."""

from collections.abc import Callable
from typing import Any

import pytest

from ottla.base.ids import TopicPartition
from ottla.broker.transactions.partitions import NONE, PART_MAX, Addition, TransactionPartitions
from ottla.broker.transactions.records import PartitionsSchema, TransactionLogKey, TransactionLogValue, decode_record, encode_record
from ottla.broker.transactions.states import STATES, TRANSITIONS, IllegalTransition, TransactionState
from ottla.broker.transactions.transaction import (
    LAST_EPOCH,
    NO_TIMEOUT_MS,
    Initialization,
    ProducerIdentity,
    Transaction,
    add_partitions,
    check_identity,
    complete,
    encode_state,
    end,
    fence,
    initialize,
    transaction_of,
)
from ottla.wire import errors
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import KafkaError

S = TransactionState
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
NOW_MS = 1_000_000


def a_transaction(state: TransactionState = S.EMPTY, **fields: Any) -> Transaction:
    """Producer id 7 with epoch 3; with partition 0 of t if there is a transaction."""
    begun = {"partitions": TransactionPartitions.of([T0]), "start_ms": NOW_MS - 10} if state is S.ONGOING or state.decided else {}
    return Transaction("x", 7, **{"epoch": 3, "timeout_ms": 60_000, "state": state, **begun, **fields})


def never() -> int:
    raise AssertionError("no new producer id is needed")


def init(before: Transaction, expected: tuple[int, int] | None = None, *, new: Callable[[], int] = never, **fields: Any) -> Transaction:
    asked = Initialization(60_000, None if expected is None else ProducerIdentity(*expected), **fields)
    return initialize(before, asked, new_producer_id=new, wall_ms=NOW_MS)


def ended(
    before: Transaction, producer_id: int = 7, epoch: int = 3, *, commit: bool = True, version: int = 2, new: Callable[[], int] = never
) -> Transaction:
    return end(before, ProducerIdentity(producer_id, epoch), commit=commit, version=version, new_producer_id=new, wall_ms=NOW_MS)


def completed(before: Transaction) -> Transaction:
    return complete(before, wall_ms=NOW_MS)


def refused(error: type[KafkaError], act: Callable[[], object]) -> None:
    with pytest.raises(error):
        act()


# InitProducerId.


def test_a_new_transactional_id_begins_with_epoch_0() -> None:
    found = init(Transaction("x", 7))
    assert (found.identity, found.state, found.timeout_ms) == ((7, 0), S.EMPTY, 60_000)


def test_initializing_again_increases_the_epoch_and_fences_the_producer_before() -> None:
    found = init(a_transaction())
    assert found.identity == (7, 4)
    refused(errors.ProducerFenced, lambda: check_identity(found, ProducerIdentity(7, 3), "x"))


@pytest.mark.parametrize("state", [S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_initializing_after_a_transaction_forgets_its_start(state: TransactionState) -> None:
    found = init(a_transaction(state, start_ms=5))
    assert (found.state, found.start_ms) == (S.EMPTY, -1)


def test_an_open_transaction_is_aborted_with_an_epoch_that_nobody_has() -> None:
    found = init(a_transaction(S.ONGOING))
    assert (found.state, found.identity, set(found.partitions)) == (S.PREPARE_ABORT, (7, 4), {T0})
    assert init(completed(found)).identity == (7, 5)


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_initializing_waits_for_the_markers(state: TransactionState) -> None:
    refused(errors.ConcurrentTransactions, lambda: init(a_transaction(state)))


def test_the_last_epoch_is_followed_by_a_new_producer_id() -> None:
    found = init(a_transaction(epoch=LAST_EPOCH), new=lambda: 8)
    assert (found.identity, found.previous_producer_id) == ((8, 0), 7)


def test_a_producer_with_the_last_epoch_can_still_be_fenced() -> None:
    fenced = fence(a_transaction(S.ONGOING, epoch=LAST_EPOCH), wall_ms=NOW_MS)
    assert fenced.epoch == 2**15 - 1
    assert init(completed(fenced), new=lambda: 8).identity == (8, 0)


def test_a_producer_that_names_its_identity_continues_with_the_next_epoch() -> None:
    found = init(a_transaction(), (7, 3))
    assert (found.identity, found.last_epoch) == ((7, 4), 3)


def test_a_producer_that_repeats_this_gets_the_same_epoch() -> None:
    once = init(a_transaction(), (7, 3))
    assert init(once, (7, 3)).identity == once.identity


def test_it_is_fenced_if_another_producer_initialized_in_between() -> None:
    between = init(init(a_transaction(), (7, 3)))
    refused(errors.ProducerFenced, lambda: init(between, (7, 3)))
    refused(errors.ProducerFenced, lambda: init(between, (6, 5)))


def test_a_repeated_change_of_the_producer_id_gets_the_same_identity() -> None:
    once = init(a_transaction(epoch=LAST_EPOCH), (7, LAST_EPOCH), new=lambda: 8)
    assert once.identity == (8, 0)
    assert init(once, (7, LAST_EPOCH)).identity == (8, 0)
    refused(errors.ProducerFenced, lambda: init(once, (7, LAST_EPOCH - 1)))


# Partitions.


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_the_first_partition_begins_the_transaction(state: TransactionState) -> None:
    found = add_partitions(a_transaction(state), [T0], wall_ms=NOW_MS)
    assert (found.state, set(found.partitions), found.start_ms) == (S.ONGOING, {T0}, NOW_MS)


def test_further_partitions_do_not_change_the_start() -> None:
    before = a_transaction(S.ONGOING)
    found = add_partitions(before, [T1], wall_ms=NOW_MS)
    assert (set(found.partitions), found.start_ms) == ({T0, T1}, before.start_ms)


def test_known_partitions_change_nothing() -> None:
    before = a_transaction(S.ONGOING)
    assert add_partitions(before, [T0], wall_ms=NOW_MS) is before


def test_nothing_is_added_while_markers_are_written() -> None:
    refused(errors.ConcurrentTransactions, lambda: add_partitions(a_transaction(S.PREPARE_COMMIT), [T0], wall_ms=NOW_MS))


def test_only_the_present_identity_is_accepted() -> None:
    refused(errors.InvalidProducerIdMapping, lambda: check_identity(None, ProducerIdentity(7, 3), "x"))
    refused(errors.InvalidProducerIdMapping, lambda: check_identity(a_transaction(), ProducerIdentity(8, 3), "x"))
    refused(errors.ProducerFenced, lambda: check_identity(a_transaction(), ProducerIdentity(7, 2), "x"))
    refused(errors.ProducerFenced, lambda: check_identity(a_transaction(), ProducerIdentity(7, 4), "x"))


# EndTxn, version 1.


@pytest.mark.parametrize(("commit", "state"), [(True, S.PREPARE_COMMIT), (False, S.PREPARE_ABORT)])
def test_version_1_ends_a_transaction_without_a_new_epoch(commit: bool, state: TransactionState) -> None:
    found = ended(a_transaction(S.ONGOING), commit=commit, version=0)
    assert (found.state, found.identity) == (state, (7, 3))
    assert completed(found).identity == (7, 3)


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_of_version_1_succeeds_when_the_first_is_complete(commit: bool) -> None:
    prepared = ended(a_transaction(S.ONGOING), commit=commit, version=0)
    refused(errors.ConcurrentTransactions, lambda: ended(prepared, commit=commit, version=0))
    refused(errors.InvalidTxnState, lambda: ended(prepared, commit=not commit, version=0))
    done = completed(prepared)
    assert ended(done, commit=commit, version=0) is done
    refused(errors.InvalidTxnState, lambda: ended(done, commit=not commit, version=0))


def test_version_1_does_not_end_what_did_not_begin() -> None:
    refused(errors.InvalidTxnState, lambda: ended(a_transaction(), commit=False, version=0))
    refused(errors.InvalidProducerIdMapping, lambda: ended(a_transaction(S.ONGOING), 8, version=0))
    refused(errors.ProducerFenced, lambda: ended(a_transaction(S.ONGOING), epoch=2, version=0))


# EndTxn, version 2.


@pytest.mark.parametrize("commit", [True, False])
def test_version_2_gives_each_transaction_its_own_epoch(commit: bool) -> None:
    prepared = ended(a_transaction(S.ONGOING), commit=commit)
    assert (prepared.identity, prepared.held, prepared.last_epoch) == ((7, 4), (7, 4), 3)
    done = completed(prepared)
    assert done.identity == (7, 4)
    refused(errors.ProducerFenced, lambda: check_identity(done, ProducerIdentity(7, 3), "x"))


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_of_version_2_is_recognised_by_the_epoch_before(commit: bool) -> None:
    prepared = ended(a_transaction(S.ONGOING), commit=commit)
    refused(errors.ConcurrentTransactions, lambda: ended(prepared, commit=commit))
    refused(errors.InvalidTxnState, lambda: ended(prepared, commit=not commit))
    done = completed(prepared)
    assert ended(done, commit=commit) is done
    refused(errors.InvalidTxnState, lambda: ended(done, commit=not commit))


def test_the_next_transaction_makes_an_end_of_the_one_before_a_zombies() -> None:
    done = completed(ended(a_transaction(S.ONGOING)))
    refused(errors.ProducerFenced, lambda: ended(add_partitions(done, [T0], wall_ms=NOW_MS)))


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("epoch", [3, LAST_EPOCH])
def test_the_next_transaction_of_version_2_is_aborted_only_when_the_one_before_is_complete(commit: bool, epoch: int) -> None:
    """The producer that began it is not fenced by its own EndTxn before (KAFKA-18464)."""
    prepared = ended(a_transaction(S.ONGOING, epoch=epoch), epoch=epoch, commit=commit, new=lambda: 8)
    for next_commit in (True, False):
        refused(errors.ConcurrentTransactions, lambda: ended(prepared, *prepared.held, commit=next_commit))  # noqa: B023
    done = completed(prepared)
    assert ended(done, *done.held, commit=False).state is S.PREPARE_ABORT


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_version_2_aborts_a_transaction_that_has_no_partitions_yet(state: TransactionState) -> None:
    found = ended(a_transaction(state), commit=False)
    assert (found.state, found.identity, set(found.partitions)) == (S.PREPARE_ABORT, (7, 4), set())
    refused(errors.InvalidTxnState, lambda: ended(a_transaction(state), commit=True))


def test_the_markers_of_the_last_epoch_have_the_old_producer_id_and_the_next_transaction_a_new_one() -> None:
    prepared = ended(a_transaction(S.ONGOING, epoch=LAST_EPOCH), epoch=LAST_EPOCH, new=lambda: 8)
    assert (prepared.identity, prepared.held) == ((7, LAST_EPOCH + 1), (8, 0))
    refused(errors.ConcurrentTransactions, lambda: ended(prepared, epoch=LAST_EPOCH))
    done = completed(prepared)
    assert (done.identity, done.previous_producer_id) == ((8, 0), 7)
    assert ended(done, epoch=LAST_EPOCH) is done
    refused(errors.InvalidTxnState, lambda: ended(done, epoch=LAST_EPOCH, commit=False))


@pytest.mark.parametrize("version", [0, 2])
def test_a_producer_whose_transaction_timed_out_is_fenced(version: int) -> None:
    fenced = fence(a_transaction(S.ONGOING), wall_ms=NOW_MS)
    for found in (fenced, completed(fenced)):
        refused(errors.ProducerFenced, lambda found=found: ended(found, commit=False, version=version))  # type: ignore[misc]


def test_a_client_may_change_from_version_1_to_version_2() -> None:
    done = completed(ended(a_transaction(S.ONGOING), version=0))
    again = ended(add_partitions(done, [T0], wall_ms=NOW_MS), version=2)
    assert again.identity == (7, 4)


# Two-phase commit.


def test_a_transaction_of_two_phase_commit_has_no_timeout() -> None:
    found = add_partitions(init(a_transaction(), two_phase=True), [T0], wall_ms=NOW_MS)
    assert found.timeout_ms == NO_TIMEOUT_MS
    assert not found.timed_out(NOW_MS + 10**12)
    assert a_transaction(S.ONGOING).timed_out(NOW_MS + 60_000)


def test_a_producer_comes_back_to_its_prepared_transaction_with_a_second_identity() -> None:
    found = init(a_transaction(S.ONGOING), keep_prepared=True)
    assert (found.state, found.identity, found.held) == (S.ONGOING, (7, 3), (7, 4))
    again = init(found, keep_prepared=True)
    assert (again.identity, again.held) == ((7, 3), (7, 5))


@pytest.mark.parametrize("commit", [True, False])
def test_only_the_second_identity_ends_the_prepared_transaction(commit: bool) -> None:
    found = init(a_transaction(S.ONGOING), keep_prepared=True)
    refused(errors.ProducerFenced, lambda: ended(found, epoch=3, commit=commit))
    prepared = ended(found, epoch=4, commit=commit)
    assert (prepared.identity, prepared.held) == ((7, 4), (7, 5)), "markers fence the first identity"
    refused(errors.ConcurrentTransactions, lambda: ended(prepared, epoch=4, commit=commit))
    done = completed(prepared)
    assert done.identity == (7, 5)
    assert ended(done, epoch=4, commit=commit) is done


def test_nothing_is_added_to_a_prepared_transaction_whose_producer_came_back() -> None:
    found = init(a_transaction(S.ONGOING), keep_prepared=True)
    for epoch in (3, 4):
        refused(errors.ProducerFenced, lambda epoch=epoch: check_identity(found, ProducerIdentity(7, epoch), "x"))  # type: ignore[misc]


def test_the_second_identity_gets_a_new_producer_id_after_the_last_epoch() -> None:
    found = init(a_transaction(S.ONGOING, epoch=LAST_EPOCH), keep_prepared=True, new=lambda: 8)
    assert (found.identity, found.held) == ((7, LAST_EPOCH), (8, 0))
    done = completed(ended(found, 8, 0))
    assert done.identity == (8, 1)


def test_a_prepared_transaction_is_aborted_by_a_producer_that_does_not_keep_it() -> None:
    kept = init(a_transaction(S.ONGOING), keep_prepared=True)
    done = completed(init(kept))
    refused(errors.ProducerFenced, lambda: ended(done, epoch=4, commit=False))
    assert init(done).epoch > kept.held.epoch


# Records and transitions.


@pytest.mark.parametrize("state", [state for state in STATES if state not in (S.DEAD, S.PREPARE_EPOCH_FENCE)])
def test_a_record_holds_the_whole_state(state: TransactionState) -> None:
    partitions = TransactionPartitions.of([T0, T1, TopicPartition("u", 5)]) if state is S.ONGOING or state.decided else NONE
    before = a_transaction(
        state,
        partitions=partitions,
        last_epoch=2,
        previous_producer_id=6,
        next_producer_id=9,
        next_epoch=1,
        start_ms=1,
        last_update_ms=2,
        client_version=2,
    )
    assert read_again(before, 1) == before


def read_again(transaction: Transaction, version: int) -> Transaction:
    read = decode_record(*encode_state(TransactionLogKey(transactional_id=transaction.transactional_id), transaction, version))
    assert read is not None and read[1] is not None
    return transaction_of(read[0], read[1])


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("count", [1, 127, 128, PART_MAX, PART_MAX + 1, 3 * PART_MAX])
def test_a_record_of_any_size_holds_all_partitions(count: int, version: int) -> None:
    """Many topics need a longer number of entries, and many partitions are in several parts."""
    for partitions in (
        TransactionPartitions.of(TopicPartition("t", number) for number in range(count)),
        TransactionPartitions.of(TopicPartition(f"t-{number}", 3) for number in range(count)),
    ):
        before = a_transaction(S.ONGOING, partitions=partitions)
        after = read_again(before, version)
        assert set(after.partitions) == set(partitions) and len(after.partitions) == count
        assert (after.start_ms, after.last_update_ms, after.state) == (before.start_ms, before.last_update_ms, S.ONGOING)


def test_a_record_of_few_partitions_has_the_bytes_of_the_message() -> None:
    transaction = a_transaction(S.ONGOING, partitions=TransactionPartitions.of([TopicPartition("u", 5), T1, T0]), last_update_ms=9)
    for version in (0, 1):
        listed = [PartitionsSchema(topic="t", partition_ids=[0, 1]), PartitionsSchema(topic="u", partition_ids=[5])]
        value = TransactionLogValue(
            producer_id=7,
            producer_epoch=3,
            transaction_timeout_ms=60_000,
            transaction_status=S.ONGOING.code,
            transaction_partitions=listed,
            transaction_start_timestamp_ms=NOW_MS - 10,
            transaction_last_update_timestamp_ms=9,
        )
        key = TransactionLogKey(transactional_id="x")
        assert encode_state(key, transaction, version) == encode_record(key, value, version)


def test_partitions_are_added_once_whatever_the_steps() -> None:
    everything = [TopicPartition(f"t-{number % 3}", number) for number in range(2 * PART_MAX + 50)]
    found, model = NONE, set[TopicPartition]()
    for step in (1, 7, PART_MAX - 1, PART_MAX, 2 * PART_MAX + 3):
        for first in range(0, len(everything), step):
            some = everything[first : first + step]
            model |= set(some)
            found = found.union([*some, *everything[:1]])
            assert len(found) == len(model) and all(partition in found for partition in some)
        assert found.union(everything) is found
        assert sorted(found) == sorted(model) and TopicPartition("u", 0) not in found
        assert max(len(part.partitions) for part in found.parts) <= PART_MAX
        found, model = NONE, set()


def test_an_addition_made_in_turns_is_used_only_if_nothing_was_added_meanwhile() -> None:
    def added(base: TransactionPartitions, *partitions: TopicPartition) -> Addition:
        work = base.union_in_turns(partitions)
        while True:
            try:
                next(work)
            except StopIteration as ended:
                assert isinstance(ended.value, Addition)
                return ended.value

    base = TransactionPartitions.of([T0])
    addition = added(base, T1)
    assert base.union(addition) is addition.result
    other = base.union([TopicPartition("u", 5)])
    assert set(other.union(addition)) == {T0, T1, TopicPartition("u", 5)}


def test_a_record_of_kafka_is_read() -> None:
    """Bytes of version 0, and of version 1 with the tagged fields 1 and 2."""
    key = b"\0\0\0\1x"
    head = (7).to_bytes(8) + (3).to_bytes(2) + (60_000).to_bytes(4) + b"\1"
    times = (2).to_bytes(8) + (1).to_bytes(8)
    old = decode_record(key, b"\0\0" + head + (1).to_bytes(4) + b"\0\1t" + (1).to_bytes(4) + (0).to_bytes(4) + times)
    assert old is not None and old[1] is not None
    assert transaction_of(old[0], old[1]) == a_transaction(S.ONGOING, start_ms=1, last_update_ms=2)
    tagged = b"\2\1\x08" + (9).to_bytes(8) + b"\2\2\0\2"
    new = decode_record(key, b"\0\1" + head + b"\2\2t\2" + (0).to_bytes(4) + b"\0" + times + tagged)
    assert new is not None and new[1] is not None
    found = transaction_of(new[0], new[1])
    assert (found.held, found.client_version, set(found.partitions)) == ((9, 0), 2, {T0})


def test_keys_of_later_versions_are_skipped_and_values_refused() -> None:
    assert decode_record(b"\0\1rest", b"\0\0") is None
    with pytest.raises(MalformedMessage):
        decode_record(b"\0\0\0\1x", b"\0\2rest")
    with pytest.raises(MalformedMessage):
        decode_record(b"\0", None)
    for code in (6, 7, 8, -1):
        with pytest.raises(MalformedMessage):
            transaction_of(TransactionLogKey(transactional_id="x"), TransactionLogValue(transaction_status=code))


def test_an_unknown_transition_names_the_transactional_id() -> None:
    with pytest.raises(IllegalTransition, match="'x': no way leads from Empty to PrepareCommit"):
        a_transaction().moved(S.PREPARE_COMMIT)


def test_every_state_is_reached_and_dead_is_final() -> None:
    assert {after for _, after in TRANSITIONS} == set(STATES)
    assert not [before for before, _ in TRANSITIONS if before is S.DEAD]

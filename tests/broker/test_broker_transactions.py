"""Transactions from InitProducerId to the markers, in clusters of one broker and of several."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, batch, fetch, produce, unpacked
from groups import stable
from transactional import (
    TIMEOUT_MS,
    Producer,
    cluster_of_transactions,
    committed,
    coordinator,
    init_request,
    last_stable_offset,
    open_in,
    state_of,
)

from ottla.broker import effects
from ottla.broker.transactions.records import decode_record, encode_record
from ottla.broker.transactions.states import TransactionState as S
from ottla.broker.transactions.transaction import transaction_of
from ottla.wire import errors
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_transactions import DescribeTransactionsRequest
from ottla.wire.messages.find_coordinator import GROUP
from ottla.wire.messages.list_transactions import ListTransactionsRequest
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.wire.messages.write_txn_markers import MarkerSequence, WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest

VERSIONS = (1, 2)


@pytest.fixture(params=VERSIONS, ids=lambda version: f"transaction.version {version}")
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


# A whole transaction.


def test_a_committed_transaction_is_read_and_an_aborted_one_is_not(version: int) -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster, version=version)
    for commit, value in ((True, "a"), (False, "b"), (True, "c")):
        assert producer.send(value) == 0
        assert producer.send(value, partition=1) == 0
        assert producer.end(commit=commit) == 0
        assert state_of(cluster).state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
    assert committed(cluster) == committed(cluster, 1) == [b"a", b"c"]


def test_records_of_an_open_transaction_are_not_read(version: int) -> None:
    """Line 43."""
    cluster = cluster_of_transactions()
    producer = Producer(cluster, version=version)
    assert producer.send("a", "b") == 0
    assert producer.send("c") == 0
    assert (committed(cluster), last_stable_offset(cluster)) == ([], 0)
    assert producer.end() == 0
    assert (committed(cluster), last_stable_offset(cluster)) == ([b"a", b"b", b"c"], 4)


def test_leaders_on_several_brokers_get_their_markers(version: int) -> None:
    cluster = cluster_of_transactions(3, partitions=6)
    producer = Producer(cluster, version=version)
    for partition in range(6):
        assert producer.send("a", partition=partition) == 0
    assert producer.end() == 0
    cluster.pass_ms(1000)
    assert state_of(cluster).state is S.COMPLETE_COMMIT
    assert [committed(cluster, partition) for partition in range(6)] == [[b"a"]] * 6


def test_each_transaction_of_version_2_has_its_own_epoch_and_those_of_version_1_share_one() -> None:
    cluster = cluster_of_transactions()
    new, old = Producer(cluster, "new"), Producer(cluster, "old", version=1)
    for epoch in (0, 1, 2):
        assert (new.epoch, old.epoch) == (epoch, 0)
        for producer in (new, old):
            assert producer.send("a") == 0
            assert producer.end() == 0


# Fencing.


def test_a_second_producer_fences_the_first(version: int) -> None:
    """Line 38."""
    cluster = cluster_of_transactions()
    first = Producer(cluster, version=version)
    assert first.send("a") == 0
    second = Producer(cluster, version=version)
    assert second.epoch > first.epoch
    assert not open_in(cluster)
    # Its batch meets the marker's epoch in the log, or its coordinator.
    assert first.send("b") in (errors.InvalidProducerEpoch.code, errors.ProducerFenced.code)
    assert first.end() == errors.ProducerFenced.code
    assert second.send("c") == 0
    assert second.end() == 0
    assert committed(cluster) == [b"c"]


def test_old_requests_get_invalid_producer_epoch_for_a_fenced_producer() -> None:
    cluster = cluster_of_transactions()
    first = Producer(cluster, version=1)
    Producer(cluster, version=1)
    broker, fenced = coordinator(cluster), errors.InvalidProducerEpoch.code
    assert broker.ask(first.end_request(), 1).error_code == fenced
    assert first.add(0, version=1) == [fenced]
    asked = init_request(producer_id=first.producer_id, producer_epoch=first.epoch)
    assert broker.ask(asked, 3).error_code == fenced
    assert broker.ask(asked, 4).error_code == errors.ProducerFenced.code


def test_a_zombie_cannot_end_or_extend_the_transaction_of_its_successor() -> None:
    cluster = cluster_of_transactions()
    zombie = Producer(cluster, version=1)
    successor = Producer(cluster, version=1)
    assert successor.send("a") == 0
    assert zombie.add(1) == [errors.ProducerFenced.code]
    assert zombie.end(commit=False) == errors.ProducerFenced.code
    assert zombie.add_offsets() == errors.ProducerFenced.code
    assert successor.end() == 0
    assert committed(cluster) == [b"a"]


# Verification.


def test_a_batch_of_a_partition_that_was_not_added_is_refused() -> None:
    """Line 42."""
    cluster = cluster_of_transactions()
    producer = Producer(cluster, version=1)
    assert producer.add(1) == [0]
    for version, error in ((10, errors.InvalidTxnState), (11, errors.TransactionAbortable)):
        sent = producer.start("a", version=version)
        assert sent.answer.responses[0].partition_responses[0].error_code == error.code
    assert not open_in(cluster)


def test_without_verification_it_is_accepted() -> None:
    cluster = cluster_of_transactions(transaction_partition_verification_enable="false")
    producer = Producer(cluster, version=1)
    assert producer.start("a", version=10).answer.responses[0].partition_responses[0].error_code == 0
    assert open_in(cluster)


def test_a_batch_that_arrives_after_its_transactions_marker_is_refused(version: int) -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster, version=version)
    assert producer.send("a") == 0
    late = producer.produce_request("late", sequence=1)
    assert producer.end() == 0
    answer = cluster.leading("t").ask(late, 12 if version == 2 else 10).responses[0].partition_responses[0]
    assert answer.error_code == (errors.InvalidProducerEpoch if version == 2 else errors.InvalidTxnState).code
    assert not open_in(cluster)


def test_a_repeated_batch_of_an_open_transaction_gets_the_first_offset(version: int) -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster, version=version)
    assert producer.send("a") == 0
    again = producer.start("a", sequence=0).answer.responses[0].partition_responses[0]
    assert (again.error_code, again.base_offset) == (0, 0)


def test_a_transactional_batch_needs_the_transactional_id_in_its_request() -> None:
    cluster = cluster_of_transactions()
    data = batch(b"a", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    assert produce(cluster[1], data).error_code == errors.TransactionalIdAuthorizationFailed.code


def test_a_request_has_batches_of_one_producer() -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster)
    request, other = producer.produce_request("a"), producer.produce_request("a", partition=1, producer_id=77)
    request.topic_data += other.topic_data
    answer = cluster[1].ask(request, 12)
    codes = {each.error_code for topic in answer.responses for each in topic.partition_responses}
    assert codes == {errors.InvalidProducerIdMapping.code}


def test_batches_of_one_producer_keep_their_order_while_the_first_is_verified() -> None:
    cluster = cluster_of_transactions(2, replicas=1)
    producer = Producer(cluster)
    # The coordinator answers when its record is on disk.
    cluster.flushing = False
    sent = [producer.start(value, sequence=number) for number, value in enumerate("abc")]
    assert [each.waits for each in sent] == [True] * 3
    for _ in range(5):
        for broker in cluster.brokers.values():
            broker.flush()
        cluster.pass_ms(100)
    answers = [each.answer.responses[0].partition_responses[0] for each in sent]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0), (0, 1), (0, 2)]


def test_batches_keep_their_order_while_the_first_waits_for_the_markers_of_the_last_transaction() -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster)
    broker = cluster[1]
    assert producer.send("a") == 0
    cluster.flushing = False
    ending = broker.send(producer.end_request(), 5)
    broker.flush_one()
    producer.adopt(ending.answer)
    assert state_of(cluster).state is S.PREPARE_COMMIT
    first = producer.start("b", partition=1, sequence=0)
    assert first.waits
    broker.flush_one()
    second = producer.start("c", partition=1, sequence=1)
    cluster.flushing = True
    broker.flush()
    cluster.pass_ms(1000)
    answers = [each.answer.responses[0].partition_responses[0] for each in (first, second)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0), (0, 1)]


def test_the_next_transaction_waits_for_the_markers_of_the_last_one(version: int) -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster, version=version)
    broker = cluster[1]
    assert producer.send("a") == 0
    cluster.flushing = False
    ending = broker.send(producer.end_request(), 5 if version == 2 else 3)
    broker.flush_one()
    if version == 2:
        producer.adopt(ending.answer)
    began_ms = cluster.now_ms
    asked = [broker.send(producer.add_request(1), 3), broker.send(AddOffsetsToTxnRequest(**producer.fields, group_id="g"), 3)]
    assert [each.waits for each in asked] == [True, True]
    broker.flush()
    assert asked[0].answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    assert asked[1].answer.error_code == 0
    assert cluster.now_ms == began_ms


def test_a_transaction_whose_markers_are_late_is_in_the_way_of_the_next(version: int) -> None:
    cluster = cluster_of_transactions(3, replicas=1, transaction_state_log_replication_factor="1")
    producer = Producer(cluster, version=version)
    home = coordinator(cluster).broker_id
    far = next(number for number in (0, 1) if cluster.leading("t", number).broker_id != home)
    assert producer.send("a", partition=far) == 0
    cluster.cut_off(cluster.leading("t", far).broker_id)
    assert producer.end() == 0
    asked = cluster[home].send(producer.add_request(1 - far), 3)
    assert asked.waits
    cluster.pass_ms(110)
    [result] = asked.answer.results_by_topic_v3_and_below[0].results_by_partition
    assert result.partition_error_code == errors.ConcurrentTransactions.code


def test_a_batch_does_not_overtake_one_that_waits_for_another_partition_of_its_request() -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster)
    assert producer.send("a") == 0
    cluster.flushing = False
    both = producer.produce_request("b", sequence=1)
    both.topic_data += producer.produce_request("b", partition=1).topic_data
    broker = cluster[1]
    # Partition 1 is not in the transaction yet, and the record that adds it is not on disk.
    sent = [broker.send(both, 12), producer.start("c", sequence=2)]
    for _ in range(3):
        broker.flush()
        cluster.pass_ms(100)
    codes = [each.error_code for one in sent for topic in one.answer.responses for each in topic.partition_responses]
    assert codes == [0, 0, 0]


def test_a_damaged_batch_does_not_disturb_the_verification_of_the_next() -> None:
    """Its sequence was taken for that of an earlier batch, which the next one must not overtake."""
    cluster = cluster_of_transactions()
    producer = Producer(cluster)
    assert producer.send("a") == 0
    assert producer.end() == 0
    producer.sequences[0] = 0
    damaged = producer.produce_request("b")
    data = bytearray(damaged.topic_data[0].partition_data[0].records)
    # The sign bit of the base sequence.
    data[53] ^= 0x80
    damaged.topic_data[0].partition_data[0].records = bytes(data)
    answer = cluster.leading("t").send(damaged, 12).answer.responses[0].partition_responses[0]
    assert answer.error_code == errors.CorruptMessage.code
    assert producer.send("b") == 0


def damaged(request: Any) -> Any:
    """The request with a changed bit in its last record."""
    data = bytearray(request.topic_data[0].partition_data[0].records)
    data[-1] ^= 1
    request.topic_data[0].partition_data[0].records = bytes(data)
    return request


@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_that_was_sent_behind_a_damaged_first_one_does_not_take_its_place(version: int) -> None:
    """A partition takes any sequence of a producer that it does not know, below transaction version 2."""
    cluster = cluster_of_transactions()
    producer = Producer(cluster, version=version)
    if version == 1:
        assert producer.add(0) == [0]
    broker, api_version = cluster.leading("t"), 12 if version == 2 else 10
    sent = broker.send(damaged(producer.produce_request("a")), api_version)
    assert sent.answer.responses[0].partition_responses[0].error_code == errors.CorruptMessage.code
    assert sent.closed is not None
    behind = broker.send(producer.produce_request("b", sequence=1), api_version, behind=sent)
    cluster.pass_ms(1000)
    assert behind.waits
    assert (producer.send("a"), producer.send("b")) == (0, 0)


def decided_and_next(cluster: Cluster, producer: Producer) -> None:
    """Commits, with the decision not on disk yet; the producer continues as after the response."""
    cluster.flushing = False
    coordinator(cluster).send(producer.end_request(), 5)
    producer.epoch, producer.sequences = producer.epoch + 1, {}


def test_the_marker_of_the_last_transaction_does_not_disturb_the_verification_of_the_next() -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster)
    assert producer.send("a") == 0
    decided_and_next(cluster, producer)
    sent = producer.start("b")
    cluster.flushing = True
    cluster[1].flush()
    cluster.pass_ms(100)
    assert sent.answer.responses[0].partition_responses[0].error_code == 0
    assert producer.end() == 0
    assert committed(cluster) == [b"a", b"b"]


def test_a_client_that_hangs_up_while_its_batch_is_verified_leaves_nothing_behind() -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster)
    cluster.flushing = False
    broker = cluster.leading("t")
    broker.hang_up(producer.start("a"))
    cluster.flushing = True
    broker.flush()
    assert broker.leader("t").log.end_offset == 0
    assert producer.send("a") == 0
    assert producer.end() == 0
    assert committed(cluster) == [b"a"]


def test_a_batch_whose_transaction_ends_while_it_is_verified_is_refused() -> None:
    cluster = cluster_of_transactions(transaction_state_log_num_partitions="1")
    producer = Producer(cluster, version=1)
    assert producer.add(0) == [0]
    cluster.flushing = False
    # Not committed: the answer to the verification waits for this record.
    adding = coordinator(cluster).send(producer.add_request(1), 3)
    late = producer.start("late")
    assert adding.waits
    assert late.waits
    leader = cluster.leading("t").leader("t")
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
    )
    cluster[1].send(WriteTxnMarkersRequest(markers=[marker]), 2)
    assert leader.log.end_offset == 1
    cluster[1].flush()
    cluster.pass_ms(1000)
    assert late.answer.responses[0].partition_responses[0].error_code == errors.InvalidTxnState.code
    assert not open_in(cluster)


def test_markers_that_arrive_after_later_ones_of_their_coordinator_do_not_end_the_next_transaction() -> None:
    cluster = cluster_of_transactions(transaction_state_log_num_partitions="1")
    producer = Producer(cluster, version=1)
    broker = cluster.leading("t")
    epoch = broker.leader("t").epoch

    def write_markers(number: int, leader_epoch: int = epoch) -> int:
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transaction_result=True,
            topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0], leader_epochs=[leader_epoch])],
        )
        request = WriteTxnMarkersRequest(markers=[marker], sequence=MarkerSequence(partition=0, broker_epoch=1 << 40, number=number))
        sent = broker.send(request, 2)
        cluster.pass_ms(1000)
        return int(sent.answer.markers[0].topics[0].partitions[0].error_code)

    assert producer.send("a") == 0
    assert write_markers(8) == 0
    assert producer.send("b") == 0
    assert open_in(cluster)
    assert write_markers(7) == write_markers(8) == errors.RequestTimedOut.code
    assert write_markers(9, epoch - 1) == errors.FencedLeaderEpoch.code
    assert write_markers(10, epoch + 1) == errors.UnknownLeaderEpoch.code
    assert open_in(cluster)
    assert write_markers(11) == 0
    assert not open_in(cluster)


def test_a_batch_outside_of_its_producers_open_transaction_is_refused(version: int) -> None:
    """Line 36."""
    cluster = cluster_of_transactions()
    producer = Producer(cluster, version=version)
    assert producer.send("a") == 0
    outside = batch(b"b", producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=1)
    assert produce(cluster.leading("t"), outside).error_code == errors.InvalidTxnState.code


# Requests that are refused.


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transactional_id": ""}, errors.InvalidRequest),
        ({"transaction_timeout_ms": 0}, errors.InvalidTransactionTimeout),
        ({"transaction_timeout_ms": 900_001}, errors.InvalidTransactionTimeout),
        ({"producer_id": 5}, errors.InvalidRequest),
    ],
)
def test_init_producer_id_refuses(fields: dict[str, Any], error: type[errors.KafkaError]) -> None:
    assert coordinator(cluster_of_transactions()).ask(init_request(**fields), 5).error_code == error.code


def test_one_unknown_partition_refuses_all_of_the_request() -> None:
    """Line 39."""
    producer = Producer(cluster_of_transactions(), version=1)
    assert producer.add(0, 7) == [errors.OperationNotAttempted.code, errors.UnknownTopicOrPartition.code]
    assert state_of(producer.cluster).state is S.EMPTY


def test_requests_about_an_unknown_transactional_id_are_refused() -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster, version=1)
    producer.transactional_id = "nobody"
    assert producer.add(0) == [errors.InvalidProducerIdMapping.code]
    assert producer.add_offsets() == errors.InvalidProducerIdMapping.code
    assert producer.end() == errors.InvalidProducerIdMapping.code


def test_another_broker_is_not_the_coordinator() -> None:
    cluster = cluster_of_transactions(3)
    other = next(broker for broker in cluster.brokers.values() if broker is not coordinator(cluster))
    assert other.ask(init_request(), 5).error_code == errors.NotCoordinator.code


def test_new_transactional_ids_are_refused_above_the_memory_limit() -> None:
    cluster = cluster_of_transactions(ottla_transactions_max_bytes="4096")
    codes = [coordinator(cluster, f"x{number}").ask(init_request(f"x{number}"), 5).error_code for number in range(10)]
    assert codes == [0] * 4 + [errors.PolicyViolation.code] * 6
    assert Producer(cluster, "x0").epoch == 1


# Time.


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(version: int) -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster, version=version)
    assert producer.send("a") == 0
    cluster.pass_ms(TIMEOUT_MS - 1000)
    assert open_in(cluster)
    cluster.pass_ms(12_000)
    assert not open_in(cluster)
    assert state_of(cluster).state is S.COMPLETE_ABORT
    assert producer.end() == errors.ProducerFenced.code
    assert producer.initialize() == 0
    assert producer.send("b") == 0
    assert producer.end() == 0
    assert committed(cluster) == [b"b"]


def test_idle_transactional_ids_expire_and_open_ones_do_not() -> None:
    cluster = cluster_of_transactions(
        transactional_id_expiration_ms="1000", transaction_remove_expired_transaction_cleanup_interval_ms="500"
    )
    idle, busy = Producer(cluster, "idle"), Producer(cluster, "busy")
    assert busy.send("a") == 0
    cluster.pass_ms(3000)
    assert idle.end(commit=False) == errors.InvalidProducerIdMapping.code
    assert busy.end() == 0
    shards = coordinator(cluster, "idle").node.transactions.shards.values()
    assert "idle" not in {name for shard in shards for name in shard.machine.by_id}
    assert Producer(cluster, "idle").epoch == 0


# Groups.


def offsets(cluster: Cluster, *, stable_only: bool = False, group: str = "g") -> list[tuple[int, int]]:
    """(offset, error code) of t-0."""
    wanted = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)], require_stable=stable_only)
    [answer] = coordinator(cluster, group, GROUP).ask(request, 9).groups
    return [(place.committed_offset, place.error_code) for topic in answer.topics for place in topic.partitions]


def test_offsets_of_a_transaction_count_when_it_is_committed(version: int) -> None:
    """Line 46."""
    cluster = cluster_of_transactions()
    producer = Producer(cluster, version=version)
    for commit, offset, seen in ((True, 5, 5), (False, 9, 5)):
        before = offsets(cluster)
        assert producer.commit_offset(offset) == 0
        assert offsets(cluster) == before
        assert offsets(cluster, stable_only=True) == [(-1, errors.UnstableOffsetCommit.code)]
        assert producer.end(commit=commit) == 0
        assert offsets(cluster) == offsets(cluster, stable_only=True) == [(seen, 0)]


def test_offsets_are_refused_if_the_group_was_not_added() -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster, version=1)
    producer.version = 2  # Does not send AddOffsetsToTxn.
    assert producer.commit_offset(5, version=3) == errors.InvalidTxnState.code
    assert producer.commit_offset(5, version=4) == errors.TransactionAbortable.code


def test_a_former_member_cannot_commit_offsets_in_a_transaction() -> None:
    cluster = cluster_of_transactions()
    [member] = stable(cluster, 1)
    producer = Producer(cluster)
    named = {"member_id": member.member_id, "generation_id": member.generation_id}
    assert producer.commit_offset(5, **named) == 0
    assert producer.commit_offset(5, **{**named, "generation_id": 0}) == errors.IllegalGeneration.code
    assert producer.commit_offset(5, **{**named, "member_id": "nobody"}) == errors.UnknownMemberId.code
    assert producer.commit_offset(6) == 0, "a client that names no member is not checked"
    assert producer.commit_offset(5, "other", **named) == errors.IllegalGeneration.code
    assert producer.commit_offset(5, "other", version=6, **named) == errors.GroupIdNotFound.code


def test_offsets_of_partitions_that_do_not_exist_are_refused_alone() -> None:
    producer = Producer(cluster_of_transactions())
    assert producer.commit_offset(5, partition=7) == errors.UnknownTopicOrPartition.code


def test_the_example_of_the_page_on_formats_is_what_is_written() -> None:
    page = (Path(__file__).parents[2] / "docs/formats/transactions.md").read_text().partition("## An example")[2]
    key, value = (
        bytes.fromhex("".join(re.match(r"(?:[0-9a-f]{2} )+", line)[0] for line in block.strip().splitlines()))  # type: ignore[index]
        for block in page.split("```")[1:4:2]
    )
    decoded = decode_record(key, value)
    assert decoded is not None and encode_record(*decoded, 1) == (key, value)
    transaction = transaction_of(*decoded)  # type: ignore[arg-type]
    assert (transaction.transactional_id, transaction.producer_id, transaction.epoch, transaction.last_epoch) == ("billing-1", 7, 3, 2)
    assert (transaction.state, transaction.timeout_ms, transaction.client_version) == (S.ONGOING, 60_000, 2)
    assert transaction.partitions == {("orders", 0), ("orders", 2)}


# Administration.


def test_transactions_are_described_with_their_partitions() -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster)
    assert producer.send("a", partition=1) == 0
    answer = coordinator(cluster).ask(DescribeTransactionsRequest(transactional_ids=["x", "y", ""]), 0)
    found, missing, empty = answer.transaction_states
    assert (found.transaction_state, found.producer_id, found.producer_epoch) == ("Ongoing", producer.producer_id, 0)
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("t", [1])]
    assert (missing.error_code, empty.error_code) == (errors.TransactionalIdNotFound.code, errors.InvalidRequest.code)


def test_the_client_that_used_an_id_last_is_described() -> None:
    cluster = cluster_of_transactions(3)

    def client() -> tuple[str, str]:
        [found] = coordinator(cluster).ask(DescribeTransactionsRequest(transactional_ids=["x"]), 0).transaction_states
        return found.client_id, found.client_host

    producer = Producer(cluster, version=1)
    assert client() == ("test", "client")
    # A request that is refused does not change it.
    coordinator(cluster).send(producer.end_request(producer_epoch=7), 3, client_id="zombie")
    assert client() == ("test", "client")
    coordinator(cluster).send(producer.add_request(0), 3, client_id="moved")
    assert client() == ("moved", "client")
    # The next coordinator does not know it until the client's next request.
    cluster.kill(coordinator(cluster).broker_id)
    cluster.pass_ms(30_000)
    assert client() == ("", "")
    assert producer.end() == 0
    assert client() == ("test", "client")


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["done-1", "open-1", "open-2"]),
        ({"state_filters": ["Ongoing"]}, ["open-1", "open-2"]),
        ({"duration_filter": 5_000}, ["done-1", "open-1"]),
        ({"transactional_id_pattern": ".*-1"}, ["done-1", "open-1"]),
        ({"transactional_id_pattern": "open"}, []),
        ({"producer_id_filters": [12345]}, []),
    ],
)
def test_transactions_are_listed_by_filters(fields: dict[str, Any], names: list[str]) -> None:
    cluster = cluster_of_transactions()
    done = Producer(cluster, "done-1")
    assert done.send("a") == 0
    assert done.end() == 0
    assert Producer(cluster, "open-1").send("a") == 0
    cluster.pass_ms(10_000)
    assert Producer(cluster, "open-2").send("a", partition=1) == 0
    answer = cluster[1].ask(ListTransactionsRequest(**fields), 2)
    assert answer.error_code == 0
    assert sorted(each.transactional_id for each in answer.transaction_states) == names


def test_unknown_states_and_invalid_patterns_of_a_list_are_named() -> None:
    cluster = cluster_of_transactions()
    assert cluster[1].ask(ListTransactionsRequest(state_filters=["Open"]), 2).unknown_state_filters == ["Open"]
    answer = cluster[1].ask(ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert answer.error_code == errors.InvalidRegularExpression.code


# Two-phase commit.


def two_phase(cluster: Cluster, **fields: Any) -> Any:
    sent = coordinator(cluster).send(init_request(enable2_pc=True, **fields), 6)
    if sent.waits:
        cluster.pass_ms(6000)
    return sent.answer


def test_two_phase_commit_is_not_served_unless_it_is_enabled() -> None:
    for enabled, last in (("false", 5), ("true", 6)):
        cluster = cluster_of_transactions(transaction_two_phase_commit_enable=enabled)
        ranges = cluster[1].ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 4).api_keys
        assert [api.max_version for api in ranges if api.api_key == 22] == [last]
        assert (cluster[1].send(init_request(), 6).closed is None) is (enabled == "true")


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_waits_for_its_producer_and_survives_failovers(commit: bool) -> None:
    cluster = cluster_of_transactions(3, transaction_two_phase_commit_enable="true")
    producer = Producer(cluster)
    producer.adopt(two_phase(cluster, transaction_timeout_ms=0))
    assert producer.send("prepared") == 0
    first = (producer.producer_id, producer.epoch)
    cluster.pass_ms(20 * TIMEOUT_MS)
    cluster.restart(coordinator(cluster).broker_id)
    cluster.pass_ms(2000)
    answer = two_phase(cluster, keep_prepared_txn=True)
    assert (answer.error_code, answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (0, *first)
    assert producer.end(commit=commit) == errors.ProducerFenced.code, "the identity before"
    producer.adopt(answer)
    cluster.restart(coordinator(cluster).broker_id)
    cluster.pass_ms(2000)
    assert until_accepted(lambda: producer.end(commit=commit), cluster) == 0
    cluster.pass_ms(2000)
    assert committed(cluster) == ([b"prepared"] if commit else [])
    assert until_accepted(lambda: producer.send("next"), cluster) == 0
    assert until_accepted(producer.end, cluster) == 0
    cluster.pass_ms(2000)
    assert committed(cluster) == ([b"prepared", b"next"] if commit else [b"next"])


def test_there_is_no_ongoing_transaction_to_keep_after_the_last_one_ended() -> None:
    cluster = cluster_of_transactions(transaction_two_phase_commit_enable="true")
    answer = two_phase(cluster, keep_prepared_txn=True)
    assert (answer.error_code, answer.producer_epoch, answer.ongoing_txn_producer_id) == (0, 0, -1)


# Failover.

Step = Callable[[Producer], object]


def until_accepted(act: Callable[[], int], cluster: Cluster) -> int:
    """Retries what a client retries."""
    for _ in range(40):
        code = act()
        if code not in (3, 6, 13, 14, 15, 16, 19, 20, 51):
            return code
        cluster.pass_ms(500)
    return code


STEPS = 5


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("commit", [True, False])
def test_the_coordinator_may_die_between_any_two_steps(version: int, step: int, commit: bool) -> None:
    cluster = cluster_of_transactions(3, unclean_leader_election_enable="false")
    producer = Producer(cluster, version=version)

    def fail(number: int) -> None:
        if number == step:
            cluster.restart(coordinator(cluster).broker_id)
            cluster.pass_ms(2000)

    fail(0)
    assert until_accepted(lambda: producer.send("a"), cluster) == 0
    fail(1)
    assert until_accepted(lambda: producer.send("b", partition=1), cluster) == 0
    fail(2)
    assert until_accepted(lambda: producer.commit_offset(5), cluster) == 0
    fail(3)
    assert until_accepted(lambda: producer.end(commit=commit), cluster) == 0
    fail(4)
    cluster.pass_ms(5000)
    assert state_of(cluster).state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
    assert not open_in(cluster)
    assert not open_in(cluster, 1)
    assert (committed(cluster), committed(cluster, 1)) == (([b"a"], [b"b"]) if commit else ([], []))
    assert offsets(cluster) == [(5 if commit else -1, 0)]
    assert until_accepted(lambda: producer.send("next"), cluster) == 0
    assert until_accepted(lambda: producer.end(), cluster) == 0
    cluster.pass_ms(2000)
    assert committed(cluster) == ([b"a", b"next"] if commit else [b"next"])


def test_a_decision_that_is_not_committed_yet_writes_no_marker() -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster)
    assert producer.send("a") == 0
    cluster.flushing = False
    sent = coordinator(cluster).send(producer.end_request(), 5)
    assert sent.waits
    assert open_in(cluster)
    cluster[1].flush()
    assert sent.answer.error_code == 0
    cluster.flushing = True
    cluster[1].flush()
    cluster.pass_ms(6000)
    assert committed(cluster) == [b"a"]


def test_the_next_coordinator_goes_on_with_the_markers(version: int) -> None:
    """Line 41."""
    cluster = cluster_of_transactions(3, replicas=1, transaction_state_log_replication_factor="1")
    producer = Producer(cluster, version=version)
    home = coordinator(cluster).broker_id
    far = next(number for number in (0, 1) if cluster.leading("t", number).broker_id != home)
    assert producer.send("a", partition=far) == 0
    cluster.cut_off(home)
    assert producer.end() == 0
    cluster.pass_ms(100)
    assert open_in(cluster, far)
    assert state_of(cluster).state is S.PREPARE_COMMIT
    cluster.cut.clear()
    cluster.restart(home)
    cluster.pass_ms(5000)
    assert state_of(cluster).state is S.COMPLETE_COMMIT
    assert committed(cluster, far) == [b"a"]


def test_markers_follow_a_leader_that_moves(version: int) -> None:
    cluster = cluster_of_transactions(3)
    producer = Producer(cluster, version=version)
    home = coordinator(cluster).broker_id
    far = next(number for number in (0, 1) if cluster.leading("t", number).broker_id != home)
    assert producer.send("a", partition=far) == 0
    cluster.kill(cluster.leading("t", far).broker_id)
    assert until_accepted(producer.end, cluster) == 0
    cluster.pass_ms(40_000)
    assert state_of(cluster).state is S.COMPLETE_COMMIT
    assert committed(cluster, far) == [b"a"]


def test_a_deleted_topic_does_not_hold_a_transaction_up(version: int) -> None:
    cluster = cluster_of_transactions()
    cluster.topic("u")
    producer = Producer(cluster, version=version)
    assert producer.send("a") == 0
    if version == 1:
        assert producer.add(0, topic="u") == [0]
    assert cluster[1].ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="u")], timeout_ms=1000), 6).responses[0].error_code == 0
    assert producer.end() == 0
    cluster.pass_ms(1000)
    assert state_of(cluster).state is S.COMPLETE_COMMIT


def test_a_repeated_end_is_answered_like_the_first_also_after_a_failover(version: int) -> None:
    """Line 40."""
    cluster = cluster_of_transactions(3)
    producer = Producer(cluster, version=version)
    assert producer.send("a") == 0
    request = producer.end_request()
    assert producer.end() == 0
    cluster.pass_ms(1000)
    cluster.restart(coordinator(cluster).broker_id)
    cluster.pass_ms(2000)
    answer = coordinator(cluster).ask(request, 5 if version == 2 else 3)
    assert answer.error_code == 0
    if version == 2:
        assert (answer.producer_id, answer.producer_epoch) == (producer.producer_id, producer.epoch)


def test_an_end_that_arrives_late_ends_the_next_transaction_of_version_1_alone() -> None:
    """Line 40. A client repeats an EndTxn over a new connection, and the first one arrives in its next transaction. Without an epoch for
    each transaction neither Kafka nor Ottla can tell that (KIP-890).
    """
    for version, error, visible in ((1, 0, [b"a", b"b"]), (2, errors.ProducerFenced.code, [b"a"])):
        cluster = cluster_of_transactions()
        producer = Producer(cluster, version=version)
        assert producer.send("a") == 0
        late = producer.end_request()
        assert producer.end() == 0
        assert producer.send("b") == 0
        assert coordinator(cluster).ask(late, 5 if version == 2 else 3).error_code == error
        assert committed(cluster) == visible


def test_a_loaded_coordinator_has_the_state_of_the_one_before() -> None:
    cluster = cluster_of_transactions(3)
    producers = [Producer(cluster, f"x{number}") for number in range(6)]
    for number, producer in enumerate(producers):
        if number % 2:
            assert producer.send("a", partition=number % 2) == 0
        if number == 1:
            assert producer.end() == 0
    cluster.pass_ms(1000)
    before = {producer.transactional_id: state_of(cluster, producer.transactional_id) for producer in producers}
    for broker_id in (1, 2, 3):
        cluster.restart(broker_id)
        cluster.pass_ms(3000)
    assert {name: state_of(cluster, name) for name in before} == before


def test_epochs_that_run_out_continue_with_a_new_producer_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.transactions.transaction.LAST_EPOCH", 3)
    cluster = cluster_of_transactions()
    producer = Producer(cluster)
    first = producer.producer_id
    for number in range(8):
        assert producer.send(str(number)) == 0
        assert producer.end() == 0
    assert producer.producer_id != first
    assert committed(cluster) == [b"%d" % number for number in range(8)]


def test_the_records_of_transaction_state_are_those_of_kafka() -> None:
    cluster = cluster_of_transactions(transaction_state_log_num_partitions="1")
    producer = Producer(cluster)
    assert producer.send("a") == 0
    assert producer.end() == 0
    answer = fetch(cluster[1], topic="__transaction_state")
    found = [(key[:2], key[2:], value[:2], value[16]) for _, _, key, value, _ in unpacked(answer.records)]
    assert found == [(b"\0\0", b"\0\1x", b"\0\1", state) for state in (0, 1, 2, 4)]


def test_the_response_to_end_txn_does_not_wait_until_markers_are_prepared() -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster)
    assert producer.send("a") == 0
    done: list[str] = []
    broker = coordinator(cluster)
    perform = broker._perform

    def recorded(found: list[effects.Effect]) -> None:
        done.extend(type(one.message).__name__ for one in found if isinstance(one, effects.Respond | effects.PeerRequest))
        perform(found)

    broker._perform = recorded  # type: ignore[method-assign, assignment]
    assert producer.end() == 0
    assert done.index("EndTxnResponse") < done.index("WriteTxnMarkersRequest")

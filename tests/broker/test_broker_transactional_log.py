"""Transactions in a partition: the leader's interface for the transaction coordinator, and reads at read_committed.

No coordinator is there: the tests take its part, through ``Leader.begin_verification``, ``append`` and ``append_marker``.
"""

from collections.abc import Callable
from typing import Any

import pytest
from cluster import Broker, Cluster, batch, fetch, fetch_request, produce, values

from ottla.broker.replica.leader import Leader, Marker
from ottla.records.batch import LOG_APPEND_TIME, headers
from ottla.wire import errors
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

READ_COMMITTED = 1


def transactional(*contents: bytes, producer: int = 1, epoch: int = 0, sequence: int = 0) -> memoryview:
    return memoryview(bytearray(batch(*contents, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True)))


def write(broker: Broker, *contents: bytes, producer: int = 1, epoch: int = 0, sequence: int = 0) -> Any:
    """A verified batch of a transaction."""
    leader = broker.leader("t")
    guard = leader.begin_verification(producer, epoch, sequence, raises_epoch=False, wall_ms=broker.cluster.wall_ms)
    records = transactional(*contents, producer=producer, epoch=epoch, sequence=sequence)
    return wrote(broker, leader, lambda: leader.append(records, acks=-1, wall_ms=broker.cluster.wall_ms, guard=guard))


def end(broker: Broker, *, commit: bool, producer: int = 1, epoch: int = 0, coordinator_epoch: int = 0, version: int = 0) -> int:
    leader = broker.leader("t")
    marker = Marker(producer, epoch, commit, coordinator_epoch, version)
    return int(wrote(broker, leader, lambda: leader.append_marker(marker, wall_ms=broker.cluster.wall_ms)))


def wrote(broker: Broker, leader: Leader, append: Callable[[], Any]) -> Any:
    """The result of an append in a step of the broker, as a handler makes it; raises what it raises."""
    results: list[Any] = []

    def act() -> None:
        try:
            results.append(append())
        except errors.KafkaError as error:
            results.append(error)
        broker.node.partitions.wrote(leader)

    broker.node.context.delayed.timer("test", act, broker.cluster.now_ms + 1)
    broker.cluster.pass_ms(20)
    [done] = results
    if isinstance(done, errors.KafkaError):
        raise done
    return done


def read(broker: Broker, offset: int = 0, **fields: Any) -> tuple[list[bytes | None], list[tuple[int, int]] | None, int]:
    """Values, aborted transactions and last stable offset of a fetch."""
    found = fetch(broker, offset, isolation_level=fields.pop("isolation_level", READ_COMMITTED), **fields)
    assert found.error_code == 0
    aborted = found.aborted_transactions
    listed = None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted]
    return values(found.records), listed, found.last_stable_offset


def latest(broker: Broker, isolation_level: int) -> int:
    asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    answer = broker.ask(ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[asked]), 7)
    return int(answer.topics[0].partitions[0].offset)


def test_records_of_an_open_transaction_and_all_after_it_wait_for_its_marker() -> None:
    """Line 44."""
    broker = Cluster().topic()
    produce(broker, batch(b"before"))
    write(broker, b"a", b"b")
    produce(broker, batch(b"after"))
    assert read(broker) == ([b"before"], [], 1)
    assert read(broker, isolation_level=0) == ([b"before", b"a", b"b", b"after"], None, 1)
    assert (latest(broker, READ_COMMITTED), latest(broker, 0)) == (1, 4)
    end(broker, commit=True)
    assert read(broker) == ([b"before", b"a", b"b", b"after"], [], 5)
    assert latest(broker, READ_COMMITTED) == 5


def test_an_aborted_transaction_is_listed_with_the_records_that_hold_it() -> None:
    """Line 45."""
    broker = Cluster().topic()
    write(broker, b"gone")
    end(broker, commit=False)
    produce(broker, batch(b"kept"))
    assert read(broker) == ([b"gone", b"kept"], [(1, 0)], 3)
    assert read(broker, 2) == ([b"kept"], [], 3)


def test_a_waiting_fetch_at_read_committed_is_answered_by_the_marker() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    write(broker, b"a")
    found: list[Any] = []
    broker.send(fetch_request(max_wait_ms=10_000, isolation_level=READ_COMMITTED), 12, answered=found.append)
    produce(broker, batch(b"b"))
    cluster.pass_ms(100)
    assert not found
    end(broker, commit=True)
    assert values(found[0].responses[0].partitions[0].records) == [b"a", b"b"]


def test_a_transactional_batch_without_a_verified_transaction_is_refused() -> None:
    """KIP-890: it would open a transaction that no marker ends."""
    broker = Cluster().topic()
    leader, wall_ms = broker.leader("t"), broker.cluster.wall_ms
    assert produce(broker, bytes(transactional(b"a"))).error_code == errors.TransactionalIdAuthorizationFailed.code
    with pytest.raises(errors.InvalidTxnState):
        leader.append(transactional(b"a"), acks=-1, wall_ms=wall_ms)
    leader.append(transactional(b"a"), acks=-1, wall_ms=wall_ms, verify=False)
    assert produce(broker, bytes(transactional(b"b", sequence=1)), transactional_id="x").error_code == 0, "the transaction is open"
    assert produce(broker, batch(b"x", transactional=True), transactional_id="x").error_code == errors.InvalidRecord.code, "no producer id"


def test_a_batch_outside_of_the_open_transaction_of_its_producer_is_refused() -> None:
    """Line 36."""
    broker = Cluster().topic()
    write(broker, b"a")
    outside = batch(b"b", producer_id=1, producer_epoch=0, base_sequence=1)
    assert produce(broker, outside).error_code == errors.InvalidTxnState.code
    end(broker, commit=True)
    assert produce(broker, outside).error_code == 0


def test_a_late_batch_whose_verification_a_marker_overtook_is_refused() -> None:
    broker = Cluster().topic()
    leader, wall_ms = broker.leader("t"), broker.cluster.wall_ms
    guard = leader.begin_verification(1, 0, 0, raises_epoch=False, wall_ms=wall_ms)
    end(broker, commit=False)
    with pytest.raises(errors.InvalidTxnState):
        leader.append(transactional(b"late"), acks=-1, wall_ms=wall_ms, guard=guard)
    assert read(broker)[2] == 1


def test_coordinators_and_producers_that_were_replaced_write_no_marker() -> None:
    broker = Cluster().topic()
    write(broker, b"a", epoch=4)
    end(broker, commit=True, epoch=5, coordinator_epoch=7)
    with pytest.raises(errors.TransactionCoordinatorFenced):
        end(broker, commit=True, epoch=5, coordinator_epoch=6)
    with pytest.raises(errors.InvalidProducerEpoch):
        end(broker, commit=True, epoch=4, coordinator_epoch=8)
    with pytest.raises(errors.InvalidProducerEpoch):
        broker.leader("t").begin_verification(1, 4, 1, raises_epoch=False, wall_ms=broker.cluster.wall_ms)
    assert read(broker, isolation_level=0)[2] == 2, "what was refused is not in the log"


def test_a_marker_of_the_transaction_before_does_not_end_the_next_one_that_raised_the_epoch() -> None:
    """Transaction version 2."""
    broker = Cluster().topic()
    write(broker, b"a", epoch=0)
    end(broker, commit=True, epoch=1, version=2)
    end(broker, commit=True, epoch=1, version=2)
    write(broker, b"b", epoch=1)
    with pytest.raises(errors.InvalidProducerEpoch):
        end(broker, commit=True, epoch=1, version=2)
    assert read(broker)[2] == 3
    end(broker, commit=False, epoch=2, version=2)
    assert read(broker) == ([b"a", b"b"], [(1, 3)], 5)


def test_markers_need_enough_replicas_and_have_the_topics_kind_of_timestamp() -> None:
    cluster = Cluster(brokers=2)
    broker = cluster.topic(replicas=2, configs={"min.insync.replicas": "2", "message.timestamp.type": "LogAppendTime"})
    cluster.pass_ms(1500)
    write(broker, b"a")
    end(broker, commit=True)
    cluster.pass_ms(1500)
    [_, (_, marker)] = headers(broker.leader("t").log.read(0))
    assert marker.is_control and marker.timestamp_type == LOG_APPEND_TIME
    [other] = {1, 2} - {broker.broker_id}
    cluster.kill(other)
    cluster.pass_ms(60_000)
    with pytest.raises(errors.NotEnoughReplicas):
        end(cluster.leading("t"), commit=True)


def test_producers_are_described_with_their_open_transaction() -> None:
    broker = Cluster().topic()
    write(broker, b"a", b"b", producer=8, epoch=3)
    end(broker, commit=False, producer=9, epoch=2, coordinator_epoch=5)
    answer = broker.ask(DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])]), 0)
    [eight, nine] = answer.topics[0].partitions[0].active_producers
    assert (eight.producer_id, eight.producer_epoch, eight.last_sequence, eight.coordinator_epoch) == (8, 3, 1, -1)
    assert eight.current_txn_start_offset == 0
    assert (nine.producer_id, nine.producer_epoch, nine.last_sequence, nine.coordinator_epoch) == (9, 2, -1, 5)
    assert nine.current_txn_start_offset == -1


def test_the_next_leader_continues_open_transactions_and_knows_aborted_ones() -> None:
    cluster = Cluster(brokers=3)
    first = cluster.topic(replicas=3)
    cluster.pass_ms(1500)
    write(first, b"aborted", producer=1)
    end(first, commit=False, producer=1, coordinator_epoch=3)
    write(first, b"open", producer=2)
    cluster.pass_ms(1500)
    cluster.kill(first.broker_id)
    second = cluster.leading("t")
    cluster.pass_ms(1500)
    assert read(second) == ([b"aborted"], [(1, 0)], 2)
    with pytest.raises(errors.TransactionCoordinatorFenced):
        end(second, commit=True, producer=1, coordinator_epoch=2)
    assert produce(second, bytes(transactional(b"more", producer=2, sequence=1)), transactional_id="x").error_code == 0, (
        "it is open here too"
    )
    end(second, commit=True, producer=2)
    cluster.pass_ms(1500)
    assert read(second) == ([b"aborted", b"open", b"more"], [(1, 0)], 5)


def test_a_guard_of_one_leader_is_void_at_the_next() -> None:
    cluster = Cluster(brokers=2)
    first = cluster.topic(replicas=2)
    cluster.pass_ms(1500)
    guard = first.leader("t").begin_verification(1, 0, 0, raises_epoch=False, wall_ms=cluster.wall_ms)
    cluster.kill(first.broker_id)
    second = cluster.leading("t").leader("t")
    with pytest.raises(errors.InvalidTxnState):
        second.append(transactional(b"a"), acks=-1, wall_ms=cluster.wall_ms, guard=guard)


@pytest.mark.parametrize("clean", [True, False])
def test_transactions_are_as_before_after_a_stop_and_a_crash(clean: bool) -> None:
    cluster = Cluster()
    broker = cluster.topic()
    write(broker, b"aborted", producer=1)
    end(broker, commit=False, producer=1)
    write(broker, b"committed", producer=1, sequence=1)
    end(broker, commit=True, producer=1)
    write(broker, b"open", producer=2)
    gone = cluster.stop(1) if clean else cluster.kill(1)
    broker = cluster.start(1, gone.texts, [disk.restart() for disk in gone.disks.values()])
    assert read(broker) == ([b"aborted", b"committed"], [(1, 0)], 4)
    end(broker, commit=False, producer=2)
    assert read(broker) == ([b"aborted", b"committed", b"open"], [(1, 0), (2, 4)], 6)


def test_deleted_records_of_an_open_transaction_leave_the_rest_of_the_log_readable() -> None:
    broker = Cluster().topic()
    write(broker, b"a")
    produce(broker, batch(b"b", b"c"))
    asked = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)])
    assert broker.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=1000), 2).topics[0].partitions[0].error_code == 0
    assert read(broker, 2) == ([], [], 2) and latest(broker, READ_COMMITTED) == 2
    end(broker, commit=False)
    assert read(broker, 2) == ([b"b", b"c"], [(1, 0)], 4), "the batch that holds offset 2"

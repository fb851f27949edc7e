"""A transaction of very many partitions takes turns with other requests."""

from cluster import Broker, Sent
from transactional import Producer, cluster_of_transactions, coordinator, state_of

from ottla.base.ids import TopicPartition
from ottla.broker.transactions.partitions import PART_MAX
from ottla.broker.transactions.states import TransactionState
from ottla.wire import errors
from ottla.wire.messages.end_txn import EndTxnRequest
from ottla.wire.messages.write_txn_markers import MarkerSequence, WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest


def test_a_transaction_of_many_partitions_commits_in_turns() -> None:
    count = 3 * PART_MAX + 20
    cluster = cluster_of_transactions(partitions=count)
    producer = Producer(cluster, version=1)
    cluster.turning = False
    broker = coordinator(cluster)
    sent = broker.send(producer.add_request(*range(count)), 3)
    assert sent.waits
    turned = turn_until_quiet(broker)
    assert turned >= 3 and {each.partition_error_code for each in sent.answer.results_by_topic_v3_and_below[0].results_by_partition} == {0}
    assert len(state_of(cluster).partitions) == count
    ended = broker.send(EndTxnRequest(**producer.fields, committed=True), 3)
    assert ended.answer.error_code == 0 and state_of(cluster).state is TransactionState.PREPARE_COMMIT
    largest = turn_until_quiet(broker)
    assert largest > 10, "markers are written a few at a time"
    assert state_of(cluster).state is TransactionState.COMPLETE_COMMIT
    assert all(broker.leader("t", number).log.end_offset == 1 for number in range(count))


def turn_until_quiet(broker: Broker) -> int:
    """The number of turns."""
    turned = 0
    while broker.turns_due:
        broker.turn()
        turned += 1
    return turned


def test_partitions_that_another_request_adds_between_turns_are_not_lost() -> None:
    cluster = cluster_of_transactions(partitions=2 * PART_MAX + 1)
    producer = Producer(cluster, version=1)
    cluster.turning = False
    broker = coordinator(cluster)
    large = broker.send(producer.add_request(*range(1, 2 * PART_MAX + 1)), 3)
    broker.turn()
    assert large.waits
    small = broker.ask(producer.add_request(0), 3)
    assert small.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    assert len(state_of(cluster).partitions) == 1
    turn_until_quiet(broker)
    assert large.answer and len(state_of(cluster).partitions) == 2 * PART_MAX + 1


def test_a_transaction_that_ends_between_the_turns_of_an_addition_keeps_its_partitions() -> None:
    cluster = cluster_of_transactions(partitions=2 * PART_MAX + 1)
    producer = Producer(cluster, version=1)
    producer.add(0)
    cluster.turning = False
    broker = coordinator(cluster)
    large = broker.send(producer.add_request(*range(1, 2 * PART_MAX + 1)), 3)
    broker.turn()
    assert broker.ask(EndTxnRequest(**producer.fields, committed=True), 3).error_code == 0
    turn_until_quiet(broker)
    codes = {each.partition_error_code for each in large.answer.results_by_topic_v3_and_below[0].results_by_partition}
    # Either the decision was in the way, or its markers were written and the partitions are those of the next transaction.
    if codes == {errors.ConcurrentTransactions.code}:
        assert state_of(cluster).state is TransactionState.COMPLETE_COMMIT
    else:
        assert codes == {0} and set(state_of(cluster).partitions) == {TopicPartition("t", number) for number in range(1, 2 * PART_MAX + 1)}


def test_a_later_request_for_markers_ends_an_earlier_one_that_has_turns_left() -> None:
    count = 40
    cluster = cluster_of_transactions(partitions=count, transaction_state_log_num_partitions="1")
    producer = Producer(cluster, version=1)
    broker = cluster.leading("t")
    cluster.turning = False

    def markers(number: int) -> Sent:
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transaction_result=True,
            topics=[WritableTxnMarkerTopic(name="t", partition_indexes=list(range(count)))],
        )
        sequence = MarkerSequence(partition=0, broker_epoch=1 << 40, number=number)
        return broker.send(WriteTxnMarkersRequest(markers=[marker], sequence=sequence), 2)

    earlier = markers(7)
    later = markers(8)
    assert earlier.waits and later.waits
    turn_until_quiet(broker)
    codes = [each.error_code for each in earlier.answer.markers[0].topics[0].partitions]
    written = codes.index(errors.RequestTimedOut.code)
    assert 0 < written < count and set(codes[:written]) == {0} and set(codes[written:]) == {errors.RequestTimedOut.code}
    assert {each.error_code for each in later.answer.markers[0].topics[0].partitions} == {0}
    ends = [broker.leader("t", number).log.end_offset for number in range(count)]
    assert ends == [2] * written + [1] * (count - written)

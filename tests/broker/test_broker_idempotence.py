"""Idempotent producers and their ids. Lines are those of docs/semantics.md."""

from typing import Any

import pytest
from cluster import WALL_MS, Broker, Cluster, batch, fetch, produce, produce_request, values

from ottla.base.ports import Op
from ottla.base.units import DAY_MS
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest


def numbered(sequence: int, *contents: bytes, epoch: int = 0, producer_id: int = 7) -> bytes:
    """A batch of an idempotent producer."""
    return batch(*(contents or (b"v",)), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def init(broker: Broker, *, version: int = 5, **fields: Any) -> Any:
    return broker.ask(InitProducerIdRequest(**{"transactional_id": None, **fields}), version)


# De-duplication.


def test_an_exact_repeat_is_answered_with_its_first_offset_and_not_appended() -> None:
    """Line 33."""
    broker = Cluster().topic()
    produce(broker, batch(b"other"))
    first = produce(broker, numbered(0, b"a", b"b"))
    again = produce(broker, numbered(0, b"a", b"b"))
    assert (again.error_code, again.base_offset) == (0, first.base_offset) == (0, 1)
    assert values(fetch(broker).records) == [b"other", b"a", b"b"]


def test_the_last_five_batches_are_remembered_and_an_older_repeat_is_out_of_order() -> None:
    """Line 33."""
    broker = Cluster().topic()
    for sequence in range(6):
        produce(broker, numbered(sequence))
    for sequence in range(1, 6):
        assert produce(broker, numbered(sequence)).base_offset == sequence
    assert produce(broker, numbered(0)).error_code == errors.OutOfOrderSequenceNumber.code
    assert broker.leader("t").log.end_offset == 6


def test_a_repeat_waits_like_the_first_until_the_batch_is_on_disk() -> None:
    """Line 33: a repeat must not be acknowledged earlier than what it repeats."""
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    broker.send(produce_request(numbered(0)), 12)
    again = broker.send(produce_request(numbered(0)), 12)
    assert again.waits
    broker.flush()
    assert again.answer.responses[0].partition_responses[0].base_offset == 0


def test_duplicate_batch_is_answered_with_its_first_append_time() -> None:
    cluster = Cluster()
    broker = cluster.topic(configs={"message.timestamp.type": "LogAppendTime"})
    first = produce(broker, numbered(0))
    cluster.pass_ms(1000)
    assert produce(broker, numbered(0)).log_append_time_ms == first.log_append_time_ms == WALL_MS


def test_the_next_sequence_follows_the_last_one() -> None:
    """Line 34."""
    broker = Cluster().topic()
    produce(broker, numbered(0, b"a", b"b", b"c"))
    for wrong in (1, 2, 4):
        assert produce(broker, numbered(wrong)).error_code == errors.OutOfOrderSequenceNumber.code
    assert produce(broker, numbered(3)).base_offset == 3


def test_sequences_wrap_from_the_greatest_number_to_0() -> None:
    """Line 34."""
    broker = Cluster().topic()
    assert produce(broker, numbered(2**31 - 2, b"a", b"b")).error_code == 0
    assert produce(broker, numbered(1)).error_code == errors.OutOfOrderSequenceNumber.code
    assert produce(broker, numbered(0)).base_offset == 2


def test_a_batch_may_wrap_within() -> None:
    """Line 34."""
    broker = Cluster().topic()
    assert produce(broker, numbered(2**31 - 1, b"a", b"b", b"c")).error_code == 0
    assert produce(broker, numbered(2**31 - 1, b"a", b"b", b"c")).base_offset == 0
    assert produce(broker, numbered(2)).base_offset == 3


def test_a_new_epoch_begins_at_0() -> None:
    """Line 34."""
    broker = Cluster().topic()
    produce(broker, numbered(0))
    assert produce(broker, numbered(1, epoch=1)).error_code == errors.OutOfOrderSequenceNumber.code
    assert produce(broker, numbered(0, epoch=1)).base_offset == 1


def test_a_producer_that_is_not_known_may_begin_anywhere() -> None:
    """Line 34."""
    broker = Cluster().topic()
    assert produce(broker, numbered(41)).error_code == 0
    assert produce(broker, numbered(42)).error_code == 0


def test_an_older_epoch_is_refused() -> None:
    """Line 35."""
    broker = Cluster().topic()
    produce(broker, numbered(0, epoch=2))
    assert produce(broker, numbered(1, epoch=1)).error_code == errors.InvalidProducerEpoch.code
    assert broker.leader("t").log.end_offset == 1


def test_producers_and_partitions_have_sequences_of_their_own() -> None:
    broker = Cluster().topic(partitions=2)
    assert produce(broker, numbered(0)).error_code == 0
    assert produce(broker, numbered(0, producer_id=8)).error_code == 0
    assert produce(broker, numbered(0), partition=1).base_offset == 0


def test_producer_state_survives_a_restart() -> None:
    """Line 37."""
    cluster = Cluster()
    broker = cluster.topic()
    for sequence in range(3):
        produce(broker, numbered(sequence))
    broker = cluster.restart(1)
    assert produce(broker, numbered(2)).base_offset == 2
    assert produce(broker, numbered(5)).error_code == errors.OutOfOrderSequenceNumber.code
    assert produce(broker, numbered(3)).base_offset == 3


def test_producer_state_expires_after_a_day_without_writes() -> None:
    """Line 37."""
    cluster = Cluster()
    broker = cluster.topic(configs={"retention.ms": "-1"})
    produce(broker, numbered(0))
    cluster.jump_ms(DAY_MS - 60_000)
    assert 7 in broker.leader("t").log.producers.by_id
    cluster.pass_ms(120_000)
    assert 7 not in broker.leader("t").log.producers.by_id


def test_how_long_a_silent_producer_is_known_may_change_while_the_broker_runs() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, numbered(0))
    sooner = AlterableConfig(name="producer.id.expiration.ms", config_operation=0, value="1000")
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[sooner])
    assert broker.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code == 0
    cluster.pass_ms(20_000)
    assert 7 not in broker.leader("t").log.producers.by_id


def test_a_refused_batch_leaves_no_trace_of_its_producer() -> None:
    broker = Cluster().topic(configs={"max.message.bytes": "200"})
    assert produce(broker, numbered(0, b"x" * 300)).error_code == errors.MessageTooLarge.code
    assert produce(broker, numbered(0)).base_offset == 0


# Ids.


def test_every_request_gets_a_new_id_at_epoch_0() -> None:
    """Line 38."""
    broker = Cluster()[1]
    answers = [init(broker, version=version) for version in range(6)]
    assert [(one.error_code, one.producer_epoch) for one in answers] == [(0, 0)] * 6
    assert len({one.producer_id for one in answers}) == 6


def test_ids_are_unique_in_the_cluster_and_over_restarts() -> None:
    cluster = Cluster(brokers=3)
    ids = [init(cluster[number]).producer_id for number in (1, 2, 3, 1, 2, 3)]
    ids.append(init(cluster.restart(1)).producer_id)
    assert len(set(ids)) == 7


def test_more_ids_than_a_block_holds_take_another_block() -> None:
    broker = Cluster()[1]
    ids = [init(broker).producer_id for _ in range(1500)]
    assert len(set(ids)) == 1500 and broker.node.context.image.producer_block == layout.ProducerIdBlock(1, 1000, 1999)  # type: ignore[arg-type]


def test_a_request_waits_while_the_store_hands_out_a_block() -> None:
    cluster = Cluster()
    cluster.store_delivers = False
    sent = [cluster[1].send(InitProducerIdRequest(transactional_id=None), 5) for _ in range(3)]
    assert [one.answer for one in sent] == [None] * 3
    cluster.store_delivers = True
    cluster.run()
    assert [one.answer.producer_id for one in sent] == [0, 1, 2]


def test_a_block_that_another_broker_took_first_is_not_used() -> None:
    cluster = Cluster()
    cluster.store_delivers = False
    sent = cluster[1].send(InitProducerIdRequest(transactional_id=None), 5)
    data = layout.encode_producer_id_block(layout.ProducerIdBlock(9, 5000, 5999))  # type: ignore[arg-type]
    path = layout.PRODUCER_ID_BLOCK
    version = cluster.store.tree.nodes[path].version
    cluster.store_delivers = True
    cluster.run()
    assert sent.answer.producer_id == 0
    cluster.store.session().submit((Op("set", path, data, version=version),), lambda result: None)
    ids = [init(cluster[1]).producer_id for _ in range(1000)]
    assert ids[:999] == list(range(1, 1000)) and ids[999] == 6000


def test_a_store_that_stays_silent_is_a_retriable_error() -> None:
    cluster = Cluster()
    cluster.store_delivers = False
    sent = cluster[1].send(InitProducerIdRequest(transactional_id=None), 5)
    cluster.pass_ms(11_000)
    assert sent.answer.error_code == errors.CoordinatorLoadInProgress.code and errors.CoordinatorLoadInProgress.retriable


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transactional_id": ""}, errors.InvalidRequest),
        ({"transactional_id": "x", "transaction_timeout_ms": 1000}, errors.NotCoordinator),
        ({"producer_id": 5}, errors.InvalidRequest),
        ({"producer_epoch": 5}, errors.InvalidRequest),
    ],
)
def test_an_invalid_request_for_a_producer_id_is_refused(fields: dict[str, Any], error: type[errors.KafkaError]) -> None:
    """Line 38."""
    answer = init(Cluster()[1], **fields)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (error.code, -1, -1)


def test_an_id_and_epoch_without_a_transactional_id_are_not_looked_at() -> None:
    """As in Kafka: a producer without a transactional id gets a new id."""
    answer = init(Cluster()[1], producer_id=77, producer_epoch=3)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 0, 0)


# Describing.


def test_the_producers_of_a_partition_are_described() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, numbered(0, b"a", b"b", epoch=0))
    produce(broker, numbered(9, producer_id=8))
    produce(broker, batch(b"anonymous"))
    answer = broker.ask(DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0, 5])]), 0)
    described, missing = answer.topics[0].partitions
    assert [(one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp) for one in described.active_producers] == [
        (7, 0, 1, WALL_MS),
        (8, 0, 9, WALL_MS),
    ]
    assert {one.current_txn_start_offset for one in described.active_producers} == {-1}
    assert missing.error_code == errors.UnknownTopicOrPartition.code and missing.error_message


def test_only_the_leader_describes_producers() -> None:
    cluster = Cluster(brokers=2)
    leader = cluster.topic()
    other = next(broker for broker in cluster.brokers.values() if broker is not leader)
    topics = [TopicRequest(name=name, partition_indexes=[0]) for name in ("t", "no", "a/b")]
    answer = other.ask(DescribeProducersRequest(topics=topics), 0)
    assert [topic.partitions[0].error_code for topic in answer.topics] == [
        errors.NotLeaderOrFollower.code,
        errors.UnknownTopicOrPartition.code,
        errors.InvalidTopic.code,
    ]

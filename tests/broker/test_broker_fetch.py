"""Fetch, as clients see it. Lines are those of docs/semantics.md."""

from typing import Any

import pytest
from cluster import Broker, Cluster, Sent, batch, fetch, fetch_request, produce, produce_request, values

from ottla.broker.replica.leader import Leader
from ottla.wire import errors
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic


def part(sent: Sent) -> Any:
    return sent.answer.responses[0].partitions[0]


# When the answer comes.


@pytest.mark.parametrize(
    "fields",
    [
        {"max_wait_ms": 0, "min_bytes": 1000},
        {"max_wait_ms": -1},
        {"min_bytes": 0},
        {"partitions": ()},
        {"partitions": (0, 9)},
        {"offset": 5},
        {"current_leader_epoch": 3},
    ],
)
def test_a_fetch_that_need_not_or_must_not_wait_is_answered_at_once(fields: dict[str, Any]) -> None:
    """Line 47: no wait, no partitions, bytes enough, or any partition's error."""
    broker = Cluster().topic()
    offset = fields.pop("offset", 0)
    sent = broker.send(fetch_request(offset, **{"max_wait_ms": 10_000, **fields}), 12)
    assert sent.answer is not None


def test_a_fetch_waits_for_a_record_to_be_committed() -> None:
    """Line 47."""
    cluster = Cluster()
    broker = cluster.topic()
    sent = broker.send(fetch_request(max_wait_ms=10_000), 12)
    assert sent.waits
    cluster.flushing = False
    broker.send(produce_request(batch(b"a"), acks=1), 12)
    assert sent.waits, "what is not on disk yet is not read"
    broker.flush()
    assert values(part(sent).records) == [b"a"]


def test_a_fetch_waits_for_no_more_of_a_segment_that_no_longer_grows() -> None:
    """Line 47; kafka-go takes an answer that comes after its own max_wait for none, and never gets past such a place."""
    broker = Cluster().topic(configs={"internal.segment.bytes": "200"})
    one, two, three = (batch(value * 100) for value in (b"1", b"2", b"3"))
    for sent in (one, two):
        assert produce(broker, sent).error_code == 0
    assert len(broker.leader("t").log.segments) == 2
    assert values(part(broker.send(fetch_request(max_wait_ms=10_000, min_bytes=5_000), 12)).records) == [b"1" * 100]
    waiting = broker.send(fetch_request(1, max_wait_ms=10_000, min_bytes=5_000), 12)
    assert waiting.waits, "the last segment grows"
    assert produce(broker, three).error_code == 0
    assert values(part(waiting).records) == [b"2" * 100]


def test_fetch_waits_for_at_most_max_wait_ms() -> None:
    """Line 47."""
    cluster = Cluster()
    broker = cluster.topic()
    sent = broker.send(fetch_request(max_wait_ms=500), 12)
    cluster.pass_ms(490)
    assert sent.waits
    cluster.pass_ms(20)
    assert part(sent).error_code == 0 and bytes(part(sent).records) == b""


def test_fetch_waits_for_min_bytes() -> None:
    """Line 47."""
    cluster = Cluster()
    broker = cluster.topic(partitions=2)
    one = batch(b"x" * 100)
    sent = broker.send(fetch_request(max_wait_ms=10_000, min_bytes=2 * len(one), partitions=(0, 1)), 12)
    produce(broker, one)
    assert sent.waits
    produce(broker, one, partition=1)
    assert [values(data.records) for data in sent.answer.responses[0].partitions] == [[b"x" * 100]] * 2


def test_a_waiting_fetch_checks_only_the_partition_that_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Cluster().topic(partitions=50)
    one = batch(b"x" * 100)
    sent = broker.send(fetch_request(max_wait_ms=10_000, min_bytes=3 * len(one), partitions=range(50)), 12)
    looks: list[int] = []
    read = Leader.read

    def counted(leader: Leader, *args: Any, **named: Any) -> Any:
        looks.append(leader.partition.partition)
        return read(leader, *args, **named)

    monkeypatch.setattr(Leader, "read", counted)
    produce(broker, one, partition=7)
    produce(broker, one, partition=9)
    assert sent.waits and looks == [7, 9]
    produce(broker, one, partition=7)
    assert {data.partition_index for data in sent.answer.responses[0].partitions if data.records} == {7, 9}


def test_a_fetch_that_wants_more_bytes_than_an_answer_can_have_gets_what_fits() -> None:
    cluster = Cluster(settings={"fetch.max.bytes": "1024"})
    broker = cluster.topic()
    produce(broker, batch(b"x" * 2000))
    sent = broker.send(fetch_request(max_wait_ms=10_000, min_bytes=2**31 - 1), 12)
    assert values(part(sent).records) == [b"x" * 2000]


def test_a_fetch_that_waits_is_answered_when_its_partition_is_deleted() -> None:
    """Line 47."""
    broker = Cluster().topic()
    sent = broker.send(fetch_request(max_wait_ms=10_000), 12)
    broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6)
    assert part(sent).error_code in (errors.UnknownTopicOrPartition.code, errors.NotLeaderOrFollower.code)


# What is in the answer.


def test_the_first_partition_with_records_returns_one_whole_batch_despite_the_limits() -> None:
    """Line 48."""
    broker = Cluster().topic(partitions=3)
    for partition in (1, 2):
        produce(broker, batch(b"x" * 500), partition=partition)
    request = fetch_request(partitions=(0, 1, 2), partition_max_bytes=1, max_bytes=1)
    found = broker.ask(request, 12).responses[0].partitions
    assert [len(values(data.records)) for data in found] == [0, 1, 0]
    assert all(data.error_code == 0 for data in found)


def test_partitions_are_served_in_the_order_of_the_request() -> None:
    """Line 48."""
    broker = Cluster().topic(partitions=2)
    for partition in (0, 1):
        produce(broker, batch(b"%d" % partition), partition=partition)
    found = broker.ask(fetch_request(partitions=(1, 0), max_bytes=1), 12).responses[0].partitions
    assert [(data.partition_index, values(data.records)) for data in found] == [(1, [b"1"]), (0, [])]


def test_later_batches_may_be_cut() -> None:
    """Line 48."""
    broker = Cluster().topic()
    one = batch(b"x" * 100)
    for _ in range(3):
        produce(broker, one)
    found = fetch(broker, partition_max_bytes=len(one) * 2 + 10)
    assert len(bytes(found.records)) == len(one) * 2 + 10 and len(values(found.records)) == 2


def test_the_batch_that_contains_the_offset_is_given_whole() -> None:
    """Line 49."""
    broker = Cluster().topic()
    produce(broker, batch(b"a", b"b", b"c"))
    produce(broker, batch(b"d"))
    assert values(fetch(broker, 1).records) == [b"a", b"b", b"c", b"d"]
    assert values(fetch(broker, 3).records) == [b"d"]


def test_a_fetch_at_the_end_is_empty_and_beyond_it_out_of_range() -> None:
    """Line 49."""
    broker = Cluster().topic()
    for _ in range(3):
        produce(broker, batch(b"v"))
    at_end = fetch(broker, 3)
    assert (at_end.error_code, bytes(at_end.records), at_end.high_watermark, at_end.log_start_offset) == (0, b"", 3, 0)
    assert fetch(broker, 4).error_code == errors.OffsetOutOfRange.code
    assert fetch(broker, -1).error_code == errors.OffsetOutOfRange.code
    broker.ask(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(offset=2)])]), 2)
    assert fetch(broker, 1).error_code == errors.OffsetOutOfRange.code
    assert values(fetch(broker, 2).records) == [b"v"]


def test_between_high_watermark_and_log_end_there_is_nothing_to_read_and_no_error() -> None:
    """Line 49."""
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    produce(broker, batch(b"a"), acks=1)
    for offset in (0, 1):
        sent = broker.send(fetch_request(offset, max_wait_ms=100), 12)
        cluster.pass_ms(110)
        [found] = sent.answer.responses[0].partitions
        assert (found.error_code, bytes(found.records), found.high_watermark) == (0, b"", 0)


def test_fetch_without_a_wait_sees_what_was_acknowledged_with_acks_1() -> None:
    """Line 47."""
    cluster = Cluster()
    broker = cluster.topic(partitions=2)
    cluster.flushing = False
    produce(broker, batch(b"a"), acks=1)
    sent = broker.send(fetch_request(partitions=(0, 1)), 12)
    assert sent.waits
    assert not fetch(broker, 1).records, "at the log end nothing is missed"
    assert not fetch(broker, partitions=(1,)).records, "another partition"
    broker.flush()
    assert values(sent.answer.responses[0].partitions[0].records) == [b"a"]


def test_fetch_without_a_wait_waits_for_a_sleeping_partition_of_its_session() -> None:
    """Line 47."""
    cluster = Cluster()
    broker = cluster.topic(partitions=2)
    session = begin(broker, 0, 1)
    assert reported(go_on(broker, session, 1)) == []
    cluster.flushing = False
    produce(broker, batch(b"a"), acks=1)
    sent = broker.send(fetch_request(partitions=(), session_id=session, session_epoch=2), 12)
    assert sent.waits
    broker.flush()
    assert values(sent.answer.responses[0].partitions[0].records) == [b"a"]


def test_fetch_without_a_wait_does_not_wait_for_a_dead_disk() -> None:
    """Line 47."""
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    produce(broker, batch(b"a"), acks=1)
    sent = broker.send(fetch_request(), 12)
    cluster.pass_ms(5_010)
    assert not sent.answer.responses[0].partitions[0].records


def test_fetch_without_a_wait_does_not_wait_for_followers() -> None:
    """Line 47; Kafka's high watermark is late too."""
    cluster = Cluster(brokers=2)
    leader = cluster.topic(replicas=2)
    cluster.flushing = False
    produce(leader, batch(b"a"), acks=1)
    assert not fetch(leader).records


def test_aborted_transactions_are_listed_for_read_committed_and_null_otherwise() -> None:
    """Line 45."""
    broker = Cluster().topic()
    produce(broker, batch(b"a"))
    assert fetch(broker, isolation_level=1).aborted_transactions == []
    assert fetch(broker, isolation_level=0).aborted_transactions is None
    assert fetch(broker, isolation_level=1).last_stable_offset == 1


@pytest.mark.parametrize("version", range(4, 19))
def test_records_are_the_same_in_every_version(version: int) -> None:
    broker = Cluster().topic()
    produce(broker, batch(b"a", b"b"))
    topic = broker.node.context.image.topics["t"].topic_id if version >= 13 else "t"
    assert values(fetch(broker, version=version, topic=topic).records) == [b"a", b"b"]


# Leaders and epochs.


def test_a_reader_with_another_epoch_of_the_leader_is_refused() -> None:
    """Line 51."""
    cluster = Cluster()
    cluster.topic()
    cluster.restart(1)
    broker = cluster.restart(1)
    epoch = broker.leader("t").epoch
    assert epoch == 2
    assert fetch(broker, current_leader_epoch=epoch - 1).error_code == errors.FencedLeaderEpoch.code
    assert fetch(broker, current_leader_epoch=epoch + 1).error_code == errors.UnknownLeaderEpoch.code
    assert fetch(broker, current_leader_epoch=epoch).error_code == fetch(broker, current_leader_epoch=-1).error_code == 0


def test_diverging_reader_gets_the_diverging_epoch_and_offset() -> None:
    """Line 52."""
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, batch(b"a", b"b"))
    cluster.restart(1)
    broker = cluster.restart(1)
    produce(broker, batch(b"c"))
    assert broker.leader("t").log.epochs.entries == [(0, 0), (2, 2)]
    parted = fetch(broker, 3, last_fetched_epoch=1, max_wait_ms=1000)
    assert (parted.diverging_epoch.epoch, parted.diverging_epoch.end_offset, bytes(parted.records)) == (0, 2, b"")
    longer = fetch(broker, 3, last_fetched_epoch=0)
    assert (longer.diverging_epoch.epoch, longer.diverging_epoch.end_offset) == (0, 2)
    agreed = fetch(broker, 2, last_fetched_epoch=0)
    assert agreed.diverging_epoch.epoch == -1 and values(agreed.records) == [b"c"]


def test_a_session_in_an_older_version_gets_no_diverging_epoch() -> None:
    """Found by the fuzzer: the epoch of the first request made the answer to the second one impossible to encode."""
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, batch(b"a", b"b"))
    cluster.restart(1)
    broker = cluster.restart(1)
    produce(broker, batch(b"c"))
    opened = broker.ask(fetch_request(3, last_fetched_epoch=1, session_epoch=0), 12)
    assert opened.responses[0].partitions[0].diverging_epoch.epoch == 0
    continues = fetch_request(3, session_epoch=1, session_id=opened.session_id, partitions=())
    continues.topics = []
    assert broker.ask(continues, 11).error_code == 0


def test_error_of_the_wrong_broker_names_the_leader() -> None:
    cluster = Cluster(brokers=2)
    leader = cluster.topic()
    other = next(broker for broker in cluster.brokers.values() if broker is not leader)
    topic_id = leader.node.context.image.topics["t"].topic_id
    answer = other.ask(fetch_request(topic=topic_id), 16)
    data = answer.responses[0].partitions[0]
    assert (data.error_code, data.current_leader.leader_id) == (errors.NotLeaderOrFollower.code, leader.broker_id)
    assert [node.node_id for node in answer.node_endpoints] == [leader.broker_id]
    assert other.ask(fetch_request(), 12).node_endpoints == []


def test_an_unknown_topic_id_is_its_own_error() -> None:
    """Line 57."""
    broker = Cluster().topic()
    for unknown in (b"\7" * 16, bytes(16)):
        assert fetch(broker, topic=unknown, version=13).error_code == errors.UnknownTopicId.code
    assert fetch(broker, topic="nowhere", version=12).error_code == errors.UnknownTopicOrPartition.code


def test_a_broker_without_a_replica_cannot_fetch_as_a_follower() -> None:
    broker = Cluster().topic()
    assert fetch(broker, replica_id=1).error_code == errors.NotLeaderOrFollower.code


# Sessions.


def begin(broker: Broker, *partitions: int) -> int:
    """A new session; its number."""
    answer = broker.ask(fetch_request(partitions=partitions, session_epoch=0), 12)
    assert [data.partition_index for data in answer.responses[0].partitions] == list(partitions)
    return int(answer.session_id)


def go_on(broker: Broker, session: int, epoch: int, *, version: int = 12, **fields: Any) -> Any:
    return broker.ask(fetch_request(partitions=(), session_id=session, session_epoch=epoch, **fields), version)


def reported(answer: Any) -> list[int]:
    return [data.partition_index for topic in answer.responses for data in topic.partitions]


def test_fetch_session_returns_only_changed_partitions() -> None:
    """Line 50."""
    broker = Cluster().topic(partitions=3)
    session = begin(broker, 0, 1, 2)
    assert session != 0
    quiet = go_on(broker, session, 1)
    assert (quiet.session_id, reported(quiet)) == (session, [])
    produce(broker, batch(b"a"), partition=1)
    changes = go_on(broker, session, 2)
    assert reported(changes) == [1] and values(changes.responses[0].partitions[0].records) == [b"a"]


def test_partitions_join_move_on_and_leave_a_session() -> None:
    """Line 50."""
    broker = Cluster().topic(partitions=3)
    for partition in range(3):
        produce(broker, batch(b"v"), partition=partition)
    session = begin(broker, 0)
    moved = fetch_request(1, partitions=(0,), session_id=session, session_epoch=1)
    moved.topics[0].partitions.append(FetchPartition(partition=2, fetch_offset=0, partition_max_bytes=100))
    assert reported(broker.ask(moved, 12)) == [2]
    left = fetch_request(partitions=(), session_id=session, session_epoch=2)
    left.forgotten_topics_data = [ForgottenTopic(topic="t", partitions=[2])]
    assert reported(broker.ask(left, 12)) == []


def test_a_wrong_session_or_epoch_is_refused_as_a_whole() -> None:
    """Line 50."""
    broker = Cluster().topic()
    session = begin(broker, 0)
    assert go_on(broker, session + 1, 1).error_code == errors.FetchSessionIdNotFound.code
    assert go_on(broker, session, 2).error_code == errors.InvalidFetchSessionEpoch.code
    assert go_on(broker, session, 1).error_code == 0


def test_a_session_names_its_topics_by_name_or_by_id_but_not_both() -> None:
    """Line 50."""
    broker = Cluster().topic()
    session = begin(broker, 0)
    assert go_on(broker, session, 1, version=13).error_code == errors.FetchSessionTopicIdError.code


def test_a_session_is_closed_by_epoch_minus_one() -> None:
    """Line 50."""
    broker = Cluster().topic()
    session = begin(broker, 0)
    closed = broker.ask(fetch_request(session_id=session, session_epoch=-1), 12)
    assert (closed.session_id, reported(closed)) == (0, [0])
    assert go_on(broker, session, 1).error_code == errors.FetchSessionIdNotFound.code


def test_with_all_slots_taken_a_client_is_served_without_a_session() -> None:
    """Line 50."""
    cluster = Cluster(settings={"max.incremental.fetch.session.cache.slots": "2"})
    broker = cluster.topic()
    first, _ = begin(broker, 0), begin(broker, 0)
    answer = broker.ask(fetch_request(session_epoch=0), 12)
    assert (answer.session_id, reported(answer)) == (0, [0])
    cluster.pass_ms(121_000)
    assert begin(broker, 0) != 0
    assert go_on(broker, first, 1).error_code == errors.FetchSessionIdNotFound.code


def test_a_session_remembers_a_bounded_number_of_partitions() -> None:
    cluster = Cluster(settings={"ottla.fetch.session.partitions.max": "2"})
    broker = cluster.topic(partitions=3)
    assert broker.ask(fetch_request(partitions=(0, 1, 2), session_epoch=0), 12).session_id == 0
    session = begin(broker, 0, 1)
    more = fetch_request(partitions=(2,), session_id=session, session_epoch=1)
    assert broker.ask(more, 12).error_code == errors.FetchSessionIdNotFound.code
    assert len(broker.node.sessions) == 0


def test_partitions_that_gave_records_make_room_for_the_others() -> None:
    broker = Cluster().topic(partitions=2)
    for partition in (0, 1):
        for _ in range(2):
            produce(broker, batch(b"x" * 100), partition=partition)
    answer = broker.ask(fetch_request(partitions=(0, 1), session_epoch=0, max_bytes=1), 12)
    assert [len(values(data.records)) for data in answer.responses[0].partitions] == [1, 0]
    request = fetch_request(1, partitions=(0,), session_id=answer.session_id, session_epoch=1, max_bytes=1)
    later = broker.ask(request, 12).responses[0].partitions
    assert {data.partition_index: len(values(data.records)) for data in later if data.records}[1] == 1


def test_an_error_in_a_session_is_repeated_in_each_response() -> None:
    """Line 50."""
    broker = Cluster().topic()
    request = fetch_request(partitions=(0, 7), session_epoch=0)
    session = broker.ask(request, 12).session_id
    assert [reported(go_on(broker, session, epoch)) for epoch in (1, 2)] == [[7], [7]]


def test_fetching_many_topics_keeps_them_apart() -> None:
    cluster = Cluster()
    broker = cluster.topic("a")
    cluster.topic("b")
    produce(broker, batch(b"1"), topic="a")
    produce(broker, batch(b"2"), topic="b")
    request = fetch_request(topic="a")
    request.topics.append(FetchTopic(topic="b", partitions=[FetchPartition(partition=0, partition_max_bytes=1000)]))
    answer = broker.ask(request, 12)
    assert [(topic.topic, values(topic.partitions[0].records)) for topic in answer.responses] == [("a", [b"1"]), ("b", [b"2"])]

"""Consumers in groups against an in-memory cluster: both APIs, both protocols, commits, listeners and errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from memory_cluster import CUT, CUT_AFTER, MemoryCluster

import ottla
from ottla.aio import Consumer
from ottla.base.ids import TopicPartition
from ottla.base.options import ConfigError
from ottla.client.consumer.rebalance import RebalanceListener
from ottla.client.errors import CommitFailed, NoOffsetToStart
from ottla.client.group.commits import OffsetAndMetadata
from ottla.records.build import build_batch
from ottla.wire import messages as m
from ottla.wire.errors import (
    GroupAuthorizationFailed,
    InvalidGroupId,
    InvalidRequest,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownTopicOrPartition,
)

T = TopicPartition("t", 0)
MANY = [TopicPartition("many", index) for index in range(3)]
BOTH = pytest.mark.parametrize("how", [{}, {"group_protocol": "consumer"}], ids=["classic", "next"])


@pytest.fixture
def quick(quick: dict[str, Any]) -> dict[str, Any]:
    """Settings of a group member."""
    return {**quick, "group_id": "g", "auto_offset_reset": "earliest", "heartbeat_interval_ms": 20, "session_timeout_ms": 5000}


def settings(quick: dict[str, Any], how: dict[str, Any], **more: Any) -> dict[str, Any]:
    made = {**quick, **how, **more}
    if how:
        del made["heartbeat_interval_ms"], made["session_timeout_ms"]
    return made


def fill(cluster: MemoryCluster, topic: str = "t", count: int = 10, partition: int = 0) -> None:
    """Append records whose values are their offsets. Node 1 leads."""
    log = cluster.logs[topic][partition]
    values = range(log.end, log.end + count)
    log.append(bytes(build_batch([(0, None, b"%d" % value, ()) for value in values])))
    for node in cluster.nodes.values():
        node.look_again()


def offset(cluster: MemoryCluster, topic: str = "t", partition: int = 0) -> int | None:
    kept = cluster.groups.offsets.get((topic, partition))
    return None if kept is None else kept[0]


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class RecordingListener(RebalanceListener):
    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("revoked", partitions))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("lost", partitions))


# -- reading as a group


@BOTH
async def test_a_member_starts_at_the_committed_offset(cluster: MemoryCluster, quick: dict[str, Any], how: dict[str, Any]) -> None:
    fill(cluster)
    async with Consumer("t", **settings(quick, how)) as consumer:
        assert [record.offset for record in await consumer.poll(5000, 4)] == [0, 1, 2, 3]
    assert offset(cluster) == 4, "closing commits"
    async with Consumer("t", **settings(quick, how)) as consumer:
        assert [record.offset for record in await consumer.poll(5000)] == [4, 5, 6, 7, 8, 9]


@BOTH
async def test_two_members_share_partitions_and_one_takes_over(cluster: MemoryCluster, quick: dict[str, Any], how: dict[str, Any]) -> None:
    listener = RecordingListener()
    async with Consumer("many", listener=listener, **settings(quick, how)) as one:
        await poll_until(one, lambda: len(one.assignment()) == 3)
        two = Consumer("many", **settings(quick, how))
        async with asyncio.TaskGroup() as group:
            group.create_task(poll_until(one, lambda: len(one.assignment()) + len(two.assignment()) == 3 and two.assignment()))
            group.create_task(poll_until(two, lambda: len(one.assignment()) + len(two.assignment()) == 3 and two.assignment()))
        assert sorted(one.assignment() + two.assignment()) == MANY
        await two.close()
        await poll_until(one, lambda: len(one.assignment()) == 3)
    assert listener.calls[0] == ("assigned", MANY)
    assert listener.calls[-1] == ("revoked", sorted(MANY)) or sorted(listener.calls[-1][1]) == MANY


async def poll_until(consumer: Consumer, holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await consumer.poll(20)


async def test_a_pattern_subscribes_to_each_topic_that_matches_completely(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.create("xyz")
    cluster.create("ma__internal")
    cluster.internal.add("ma__internal")
    async with Consumer(**quick) as consumer:
        consumer.subscribe(pattern="ma.*|x")
        await poll_until(consumer, lambda: consumer.assignment() == MANY)
        consumer.subscribe(re.compile("t"))
        await poll_until(consumer, lambda: consumer.assignment() == [T])
        assert consumer.subscription() == {"t"}


async def test_unsubscribing_leaves_the_group(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    async with Consumer("t", **quick) as consumer:
        await consumer.poll(5000)
        await consumer.unsubscribe()
        assert consumer.assignment() == [] and consumer.subscription() == frozenset()
        assert not cluster.groups.classic.members
        assert offset(cluster) == 10
        consumer.assign([T])
        consumer.seek(T, 8)
        assert [record.offset for record in await consumer.poll(5000)] == [8, 9]


async def test_assigned_partitions_start_at_the_committed_offset_without_joining(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    cluster.groups.offsets["t", 0] = (6, 0, "")
    async with Consumer(**quick) as consumer:
        consumer.assign([T])
        assert [record.offset for record in await consumer.poll(5000)] == [6, 7, 8, 9]
        await consumer.commit()
    assert offset(cluster) == 10
    assert not cluster.sent(m.JoinGroupRequest)


async def test_a_partition_without_a_leader_does_not_block_others(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.leaders["many", 1] = 9
    fill(cluster, "many", 2)
    async with Consumer("many", **quick) as consumer:
        assert [record.partition for record in await consumer.poll(5_000)] == [0, 0]
        fill(cluster, "many", 2, partition=1)
        cluster.leaders["many", 1] = 1
        assert [record.partition for record in await consumer.poll(5_000)] == [1, 1]


async def test_an_unauthorized_offset_fetch_is_raised(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    group = m.offset_fetch.OffsetFetchResponseGroup(group_id="g", error_code=30)
    cluster.faults["OffsetFetch"].append(lambda node, request: m.OffsetFetchResponse(groups=[group]))
    async with Consumer("t", **quick) as consumer:
        with pytest.raises(GroupAuthorizationFailed, match="may not Read Group g"):
            await consumer.poll(5_000)


async def test_without_an_offset_and_a_reset_policy_an_error_is_raised(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Consumer("t", **{**quick, "auto_offset_reset": "none"}) as consumer:
        with pytest.raises(NoOffsetToStart, match="group g has no offset for t-0"):
            await consumer.poll(5000)


async def test_a_reset_policy_can_be_a_duration(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    async with Consumer("t", **{**quick, "auto_offset_reset": "by_duration:PT1H"}) as consumer:
        await poll_until(consumer, lambda: bool(consumer.assignment()))
        await consumer.position(T)
    asked = cluster.sent(m.ListOffsetsRequest)
    assert asked[0].topics[0].partitions[0].timestamp > 1_000_000_000_000


# -- commits


async def test_auto_commit_commits_the_records_of_earlier_polls(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    async with Consumer("t", auto_commit_interval_ms=0, **quick) as consumer:
        await consumer.poll(5000, 3)
        assert not offset(cluster), "the user may still process these"
        await consumer.poll(5000, 3)
        await until(lambda: offset(cluster) == 3)


async def test_a_commit_contains_partition_offset_epoch_and_metadata(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    async with Consumer("t", enable_auto_commit=False, **quick) as consumer:
        await consumer.poll(5000)
        await consumer.commit({("t", 0): 5})
        assert await consumer.committed([T]) == {T: OffsetAndMetadata(5)}
        await consumer.commit({T: OffsetAndMetadata(6, "so far", 3)})
        assert await consumer.committed([T]) == {T: OffsetAndMetadata(6, "so far", 3)}
        await consumer.commit()
        assert cluster.groups.offsets["t", 0] == (10, 0, "")
        assert await consumer.committed([("many", 0)]) == {MANY[0]: None}
        with pytest.raises(ValueError, match="0 or more"):
            await consumer.commit({T: -1})


async def test_an_asynchronous_commit_reports_its_result_in_the_next_poll(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    results: list[Any] = []
    async with Consumer("t", enable_auto_commit=False, **quick) as consumer:
        await consumer.poll(5000)
        consumer.commit_async({T: 4}, lambda offsets, error: results.append((offsets, error)))
        await until(lambda: offset(cluster) == 4)
        assert results == []
        await poll_until(consumer, lambda: results)
    assert results == [({T: OffsetAndMetadata(4)}, None)]


async def test_a_commit_that_cannot_be_encoded_is_refused_and_the_offsets_kept(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    results: list[Any] = []
    long = {T: OffsetAndMetadata(1, "x" * 40_000)}
    async with Consumer("t", enable_auto_commit=False, **quick) as consumer:
        await consumer.poll(100)
        with pytest.raises(InvalidRequest, match="OffsetCommit cannot be sent: a string of 40000 bytes"):
            await consumer.commit(long)
        consumer.commit_async(long, lambda offsets, error: results.append(error))
        await poll_until(consumer, lambda: results)
    assert isinstance(results[0], InvalidRequest)


async def test_an_internal_error_of_the_client_is_logged_once(
    cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ottla.client.group.coordinator_client.Membership.answered", lambda *_: 1 / 0)
    async with Consumer("t", **quick) as consumer:
        await consumer.poll(50)
        consumer.enforce_rebalance()
        await consumer.poll(50)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "an internal error of the client, which may not continue: ZeroDivisionError('division by zero')"
    ]


@pytest.mark.parametrize("fault", [CUT, CUT_AFTER, 14, 15, 16, 7])
async def test_a_commit_is_retried_on_retriable_errors(cluster: MemoryCluster, quick: dict[str, Any], fault: Any) -> None:
    fill(cluster)

    def refuse(node: Any, request: Any) -> Any:
        return fault if isinstance(fault, str) else refused(request, fault)

    async with Consumer("t", enable_auto_commit=False, **quick) as consumer:
        await consumer.poll(5000)
        cluster.faults["OffsetCommit"].append(refuse)
        await consumer.commit()
    assert offset(cluster) == 10


async def test_a_commit_with_a_stale_epoch_is_repeated_with_the_current_one(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    async with Consumer("t", **settings(quick, {"group_protocol": "consumer"}, enable_auto_commit=False)) as consumer:
        await consumer.poll(5000)
        cluster.faults["OffsetCommit"].append(lambda node, request: refused(request, 113))
        await consumer.commit()
    assert offset(cluster) == 10


@BOTH
async def test_an_offset_fetch_names_the_member_and_requires_stable_offsets(
    cluster: MemoryCluster, quick: dict[str, Any], how: dict[str, Any]
) -> None:
    fill(cluster)
    async with Consumer("t", **settings(quick, how)) as consumer:
        await consumer.poll(5000)
        me = consumer.group_metadata()
    asked = cluster.sent(m.OffsetFetchRequest)[0]
    (group,) = asked.groups
    assert asked.require_stable
    assert (group.member_id, group.member_epoch) == ((me.member_id, me.generation_id) if how else (None, -1))


@pytest.mark.parametrize("kind", ["OffsetCommit", "OffsetFetch"])
async def test_an_offset_fetch_response_is_matched_by_topic_id(cluster: MemoryCluster, quick: dict[str, Any], kind: str) -> None:
    """The metadata may no longer contain the topic when the error arrives. The error must not count as success."""
    fill(cluster)
    async with Consumer("t", enable_auto_commit=False, **quick) as consumer:
        await consumer.poll(5000)
        network = consumer._network

        def forget(node: Any, request: Any) -> Any:
            network.cluster.names = {}
            return refused(request, 3) if kind == "OffsetCommit" else None

        assert network.cluster.names
        cluster.faults[kind].append(forget)
        if kind == "OffsetCommit":
            await consumer.commit()
            assert offset(cluster) == 10, "the commit was repeated"
        else:
            assert await consumer.committed([T]) == {T: None}


async def test_a_commit_for_a_deleted_topic_fails_soon_and_says_why(
    cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.client.transport.cluster.GONE_MS", 20)
    fill(cluster)
    async with Consumer("t", enable_auto_commit=False, **quick) as consumer:
        await consumer.poll(5000)
        cluster.delete("t")
        cluster.faults["OffsetCommit"] += [lambda node, request: refused(request, 3)] * 10_000
        with pytest.raises(UnknownTopicOrPartition, match="t was deleted"):
            await asyncio.wait_for(consumer.commit({T: 10}), 5)


def refused(request: Any, code: int) -> Any:
    topic = request.topics[0]
    partition = m.offset_commit.OffsetCommitResponsePartition(partition_index=0, error_code=code)
    answer = m.offset_commit.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[partition])
    return m.OffsetCommitResponse(topics=[answer])


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (22, CommitFailed, "max_poll_interval_ms"),
        (25, CommitFailed, "max_poll_records"),
        (27, RebalanceInProgress, "poll, and commit again"),
        (12, OffsetMetadataTooLarge, "committing t-0"),
    ],
)
async def test_a_fatal_commit_error_says_what_to_do(
    cluster: MemoryCluster, quick: dict[str, Any], code: int, error: type[Exception], message: str
) -> None:
    fill(cluster)
    async with Consumer("t", enable_auto_commit=False, **quick) as consumer:
        await consumer.poll(5000)
        cluster.faults["OffsetCommit"].append(lambda node, request: refused(request, code))
        with pytest.raises(error, match=message):
            await consumer.commit()


async def test_a_member_that_closes_during_a_rebalance_commits_when_the_rebalance_is_done(
    cluster: MemoryCluster, quick: dict[str, Any]
) -> None:
    fill(cluster)
    async with Consumer("t", **quick) as consumer:
        await consumer.poll(5000)
        cluster.faults["OffsetCommit"].extend([lambda node, request: refused(request, RebalanceInProgress.code)] * 3)
    assert not cluster.faults["OffsetCommit"], "all of them were met"
    assert offset(cluster) == 10


async def test_a_member_removed_from_the_group_does_not_commit_as_a_non_member(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    async with Consumer("t", enable_auto_commit=False, **quick) as consumer:
        await consumer.poll(5000)
        cluster.faults["OffsetCommit"].append(lambda node, request: refused(request, 25))
        with pytest.raises(CommitFailed):
            await consumer.commit()
        with pytest.raises(CommitFailed, match="not a member at the moment"):
            await consumer.commit()
        assert offset(cluster) is None


async def test_offsets_are_fetched_again_when_the_coordinator_moved(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    cluster.groups.offsets["t", 0] = (7, 0, "")
    for code in (16, 14):
        group = m.offset_fetch.OffsetFetchResponseGroup(group_id="g", error_code=code)
        cluster.faults["OffsetFetch"].append(lambda node, request, group=group: m.OffsetFetchResponse(groups=[group]))  # type: ignore[misc]
    async with Consumer("t", **quick) as consumer:
        assert [record.offset for record in await consumer.poll(5000)] == [7, 8, 9]


async def test_old_brokers_get_the_old_request_versions(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    cluster.versions |= {8: (2, 6), 9: (1, 5), 10: (0, 2), 11: (0, 5), 12: (0, 3), 14: (0, 3)}
    async with Consumer("t", **quick) as consumer:
        assert len(await consumer.poll(5000)) == 10
        await consumer.commit()
        assert await consumer.committed([T]) == {T: OffsetAndMetadata(10, "", 0)}


# -- unprocessed records are not committed


async def test_a_loop_that_raises_commits_the_records_before_the_failed_one(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    with pytest.raises(ZeroDivisionError):
        async with Consumer("t", **quick) as consumer:
            async for record in consumer:
                if record.offset == 6:
                    raise ZeroDivisionError
    assert offset(cluster) == 6


async def test_a_finished_loop_commits_its_last_record_and_another_loop_continues(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    async with Consumer("t", **quick) as consumer:
        async for record in consumer:
            if record.offset == 6:
                break
        assert await consumer.position(T) == 7
        assert [record.offset for record in await consumer.poll(5000)] == [7, 8, 9]
        consumer.seek(T, 5)
        async for record in consumer:
            assert record.offset == 5
            break
    assert offset(cluster) == 6


async def test_a_batch_is_not_committed_if_the_user_code_raises(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    with pytest.raises(ZeroDivisionError):
        async with Consumer("t", **quick) as consumer:
            await consumer.poll(5000, 3)
            await consumer.poll(5000, 3)
            raise ZeroDivisionError
    assert offset(cluster) == 3


async def test_an_undeserializable_record_stops_its_partition_until_a_seek_past_it(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)

    def picky(value: bytes | None) -> int:
        if value == b"2":
            raise ValueError("not this")
        return int(value or b"")

    async with Consumer("t", value_deserializer=picky, enable_auto_commit=False, **quick) as consumer:
        assert [record.value for record in await consumer.poll(5000)] == [0, 1]
        for _ in range(2):
            with pytest.raises(ValueError, match="not this"):
                await consumer.poll(5000)
        await consumer.commit()
        assert offset(cluster) == 2
        consumer.seek(T, 3)
        assert (await consumer.poll(5000))[0].value == 3


# -- listeners


async def test_a_listener_can_seek_and_commit(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)

    class SeekingListener(RebalanceListener):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            for tp in partitions:
                consumer.seek(tp, 8)

        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            await consumer.commit(dict.fromkeys(partitions, 3))

    async with Consumer("t", listener=SeekingListener(), enable_auto_commit=False, **quick) as consumer:
        assert [record.offset for record in await consumer.poll(5000)] == [8, 9]
    assert offset(cluster) == 3


async def test_an_exception_of_a_listener_is_raised_by_poll_and_the_group_continues(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)

    class FailingListener(RebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            raise ZeroDivisionError

    async with Consumer("t", listener=FailingListener(), **quick) as consumer:
        with pytest.raises(ZeroDivisionError):
            await consumer.poll(5000)
        assert len(await consumer.poll(5000)) == 10


async def test_an_expelled_member_reports_lost_partitions_and_rejoins(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    listener = RecordingListener()
    async with Consumer("t", listener=listener, **quick) as consumer:
        await poll_until(consumer, lambda: listener.calls)
        cluster.groups.classic.remove(consumer.group_metadata().member_id)
        await poll_until(consumer, lambda: len(listener.calls) == 3)
    assert listener.calls == [("assigned", [T]), ("lost", [T]), ("assigned", [T]), ("revoked", [T])]


async def test_an_expelled_member_that_closes_reports_lost_partitions_and_commits_nothing(
    cluster: MemoryCluster, quick: dict[str, Any]
) -> None:
    fill(cluster)
    listener = RecordingListener()
    async with Consumer("t", listener=listener, **quick) as consumer:
        await poll_until(consumer, lambda: listener.calls)
        cluster.groups.classic.remove(consumer.group_metadata().member_id)
        await until(lambda: consumer.group_metadata().generation_id < 0)
        asked = len(cluster.sent(m.OffsetCommitRequest))
    assert listener.calls == [("assigned", [T]), ("lost", [T])]
    assert len(cluster.sent(m.OffsetCommitRequest)) == asked


async def test_a_consumer_that_does_not_poll_leaves_the_group_until_the_next_poll(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    listener = RecordingListener()
    async with Consumer("t", listener=listener, max_poll_interval_ms=50, **quick) as consumer:
        await poll_until(consumer, lambda: listener.calls)
        await until(lambda: not cluster.groups.classic.members)
        left = cluster.sent(m.LeaveGroupRequest)[-1]
        assert "max.poll.interval.ms" in left.members[0].reason
        await poll_until(consumer, lambda: len(listener.calls) == 3)
    assert [kind for kind, _ in listener.calls] == ["assigned", "lost", "assigned", "revoked"]


# -- the blocking API


@BOTH
def test_two_lines_are_enough(blocking: Any, how: dict[str, Any], quick: dict[str, Any]) -> None:
    found = []
    with ottla.Consumer("t", **settings(quick, how)) as consumer:
        for record in consumer:
            found.append(record.offset)
            if len(found) == 4:
                break
    assert found == [0, 1, 2, 3]
    assert offset(blocking) == 4


def test_listeners_and_callbacks_run_in_the_polling_thread_and_can_use_the_consumer(blocking: Any, quick: dict[str, Any]) -> None:
    import threading

    threads: list[threading.Thread] = []
    results: list[Any] = []

    class SeekingListener(RebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            threads.append(threading.current_thread())
            consumer.seek(T, 7)
            with pytest.raises(RuntimeError, match="cannot poll"):
                consumer.poll(0)

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            threads.append(threading.current_thread())
            consumer.commit({T: consumer.position(T)})

    with ottla.Consumer("t", listener=SeekingListener(), enable_auto_commit=False, **quick) as consumer:
        assert [record.offset for record in consumer.poll(5000)] == [7, 8, 9]
        consumer.commit_async({T: 8}, lambda offsets, error: results.append((threading.current_thread(), error)))
        while not results:
            consumer.poll(10)
    assert results == [(threading.current_thread(), None)]
    assert threads == [threading.current_thread()] * 2
    assert offset(blocking) == 10


def test_a_blocking_loop_that_raises_commits_the_records_before_the_failed_one(blocking: Any, quick: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError), ottla.Consumer("t", **quick) as consumer:
        for record in consumer:
            if record.offset == 6:
                raise ZeroDivisionError
    assert offset(blocking) == 6


@pytest.fixture
def blocking(cluster: MemoryCluster) -> MemoryCluster:
    """A cluster with records, for consumers whose event loop runs in a thread."""
    cluster.logs["t"][0].append(bytes(build_batch([(0, None, b"%d" % value, ()) for value in range(10)])))
    return cluster


# -- invalid use


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heartbeat_interval_ms": 9000, "session_timeout_ms": 9000}, "below session_timeout_ms"),
        ({"group_protocol": "consumer", "session_timeout_ms": 9000}, "the coordinator decides"),
        ({"group_remote_assignor": "uniform"}, 'group_protocol="consumer"'),
        ({"auto_offset_reset": "by_duration:1h"}, "by_duration:PT1H"),
        ({"auto_offset_reset": "begin"}, "earliest, latest, none"),
        ({"partition_assignment_strategy": "stikky"}, "did you mean sticky"),
    ],
)
def test_invalid_settings_are_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Consumer(group_id="g", **wrong)


@pytest.mark.parametrize("name", ["group_id", "group_instance_id", "client_id", "client_rack"])
def test_names_too_long_for_the_protocol_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*at most 32767 bytes"):
        Consumer(**{"group_id": "g", name: "\u00fc" * 16_384})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"group_instance_id": "a"}, {"enable_auto_commit": True}])
def test_group_settings_require_a_group(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs a group_id"):
        Consumer(**wrong)


def test_a_listener_requires_a_group() -> None:
    with pytest.raises(ConfigError, match="give a group_id"):
        Consumer("t", listener=RebalanceListener())


async def test_calls_in_the_wrong_state_say_what_to_do(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Consumer(**quick) as consumer:
        with pytest.raises(ValueError, match="subscribe\\(\\) to topics or assign"):
            await consumer.poll(0)
        with pytest.raises(ValueError, match="names or to a pattern"):
            consumer.subscribe([])
        consumer.subscribe("t")
        with pytest.raises(ValueError, match="unsubscribe"):
            consumer.assign([T])
    del quick["group_id"], quick["heartbeat_interval_ms"], quick["session_timeout_ms"]
    async with Consumer(**quick) as alone:
        with pytest.raises(InvalidGroupId, match="group_id"):
            await alone.commit()
        alone.assign([T])
        await alone.start()

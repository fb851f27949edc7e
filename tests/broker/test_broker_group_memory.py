"""Memory limits of groups (``groups/memory_limits.py``), and that the counted sizes are correct."""

from typing import Any

import pytest
from cluster import Broker, Cluster
from groups import (
    INITIAL_DELAY_MS,
    SESSION_MS,
    cluster_of_groups,
    commit,
    coordinating,
    heartbeat,
    join,
    join_request,
    leave,
    stable,
    sync,
)

from ottla.broker.groups.classic.group import ClassicGroup
from ottla.broker.groups.consumer import changes
from ottla.broker.groups.consumer.group import assignment_bytes, member_bytes
from ottla.broker.groups.consumer.service import ConsumerGroupService
from ottla.broker.groups.groups import Groups
from ottla.broker.groups.memory_limits import GROUP_BYTES, MATCH_BYTES, OFFSET_BYTES, PENDING_BYTES, text_bytes
from ottla.wire import errors
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest

KIB = 1024
GROUP_FULL, INVALID = errors.GroupMaxSizeReached.code, errors.InvalidRequest.code


def machine(cluster: Cluster, group: str = "g") -> Groups:
    return coordinating(cluster).node.groups.shard_of(group).machine


def recounted(groups: Groups) -> int:
    """What the footprint must be, counted from what is there."""
    total = 0
    for group in groups.by_id.values():
        if isinstance(group, ClassicGroup):
            total += sum(PENDING_BYTES + text_bytes(member_id) for member_id in group.pending)
            total += sum(member.size_bytes for member in group.members)
            total += (GROUP_BYTES + text_bytes(group.group_id)) if group.footprint.bytes else 0
        else:
            assert isinstance(group, ConsumerGroupService)
            reported = group.group
            total += GROUP_BYTES + text_bytes(reported.group_id) + sum(map(member_bytes, reported.members.values()))
            total += sum(map(assignment_bytes, reported.targets.values()))
            total += sum(MATCH_BYTES * len(each.topics) for each in reported.resolved.values())
    return total


def recounted_offsets(groups: Groups) -> int:
    return sum(
        GROUP_BYTES + text_bytes(group_id) + sum(OFFSET_BYTES + text_bytes(each.metadata) for _, _, each in groups.offsets.all_of(group_id))
        for group_id in groups.offsets.by_group
    )


def check_counts(cluster: Cluster) -> None:
    for shard in coordinating(cluster).node.groups.shards.values():
        assert shard.machine.footprint.bytes == recounted(shard.machine)
        assert shard.machine.offsets.bytes == recounted_offsets(shard.machine)


def beat(broker: Broker, group: str = "g", **fields: Any) -> Any:
    whole = {"rebalance_timeout_ms": 20_000, "topic_partitions": []} if not fields.get("member_epoch") else {}
    return broker.ask(ConsumerGroupHeartbeatRequest(**{"group_id": group, "member_epoch": 0, **whole, **fields}), 1)


# The classic protocol.


def test_a_member_with_too_much_metadata_is_refused_and_nothing_of_it_kept() -> None:
    cluster = cluster_of_groups(ottla_group_member_max_bytes="8192")
    broker = coordinating(cluster)
    for version in range(10):
        answer = broker.ask(join_request("g", protocols=(("range", bytes(8192)),)), version)
        assert answer.error_code == INVALID, version
    assert not machine(cluster).by_id and machine(cluster).footprint.bytes == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"protocols": tuple((f"protocol-{number}", b"") for number in range(100))},
        {"protocols": (("x" * 9000, b""),)},
        {"group_instance_id": "x" * 9000},
    ],
    ids=["many protocols", "a long protocol name", "a long instance id"],
)
def test_everything_that_a_member_sends_counts(fields: dict[str, Any]) -> None:
    broker = coordinating(cluster_of_groups(ottla_group_member_max_bytes="8192"))
    assert broker.ask(join_request("g", **fields), 9).error_code == INVALID


def test_the_metadata_of_a_groups_members_and_its_leaders_response_are_bounded() -> None:
    """As was found: 300 members of 900 KB took 692 MB and a 270 MB answer."""
    cluster = cluster_of_groups(ottla_group_max_bytes=str(64 * KIB))
    broker = coordinating(cluster)
    sent = [join(broker, version=3, protocols=(("range", bytes(9 * KIB)),)) for _ in range(30)]
    cluster.pass_ms(INITIAL_DELAY_MS)
    cluster.pass_ms(INITIAL_DELAY_MS)
    refused = [each.answer for each in sent if each.answer is not None and each.answer.error_code]
    (leader,) = [each.answer for each in sent if each.answer is not None and each.answer.members]
    assert {answer.error_code for answer in refused} == {GROUP_FULL} and 0 < len(leader.members) < 30
    assert sum(len(member.metadata) for member in leader.members) < 64 * KIB
    check_counts(cluster)


def test_all_groups_together_take_no_members_beyond_their_bytes_and_those_there_go_on() -> None:
    cluster = cluster_of_groups(ottla_groups_max_bytes=str(64 * KIB))
    broker = coordinating(cluster)
    (member,) = stable(cluster, 1, "mine")
    answers = [join(broker, f"g{number}", version=3, protocols=(("range", bytes(9 * KIB)),)).answer for number in range(30)]
    refused = [answer for answer in answers if answer is not None]
    assert {answer.error_code for answer in refused} == {GROUP_FULL} and 20 < len(refused) < 30
    assert heartbeat(broker, member, "mine") == 0
    rejoined = join(broker, "mine", member.member_id).answer
    assert rejoined is None or rejoined.error_code == 0, "a member that grows by nothing passes"
    check_counts(cluster)


def test_groups_that_are_gone_hold_nothing() -> None:
    cluster = cluster_of_groups(ottla_groups_max_bytes=str(64 * KIB))
    broker = coordinating(cluster)
    for _ in range(5):
        joined = stable(cluster, 3, "g", protocols=(("range", bytes(9 * KIB)),))
        assert leave(broker, *(each.member_id for each in joined)) == [0, 0, 0, 0]
        check_counts(cluster)
        assert not broker.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code
    assert machine(cluster).footprint.bytes == 0


def test_member_that_rejoins_with_too_much_metadata_is_refused_and_unchanged() -> None:
    cluster = cluster_of_groups(ottla_group_max_bytes=str(16 * KIB))
    broker = coordinating(cluster)
    (member,) = stable(cluster, 1)
    assert join(broker, member=member.member_id, protocols=(("range", bytes(20 * KIB)),)).answer.error_code == GROUP_FULL
    assert heartbeat(broker, member) == 0
    check_counts(cluster)


def test_a_static_member_that_rejoins_replaces_its_former_process() -> None:
    cluster = cluster_of_groups(ottla_group_max_bytes=str(16 * KIB))
    broker = coordinating(cluster)
    for _ in range(5):
        sent = join(broker, instance="i", protocols=(("range", bytes(9 * KIB)),))
        cluster.pass_ms(INITIAL_DELAY_MS)
        assert sent.answer.error_code == 0
        sync(broker, sent.answer)
        check_counts(cluster)


def test_an_assignment_beyond_the_bounds_is_refused() -> None:
    cluster = cluster_of_groups(ottla_group_max_bytes=str(32 * KIB), ottla_group_member_max_bytes=str(16 * KIB))
    broker = coordinating(cluster)
    for size, error in ((20 * KIB, INVALID), (13 * KIB, GROUP_FULL), (1 * KIB, 0)):
        sent = [join(broker, version=3) for _ in range(3)]
        for _ in range(4):
            cluster.pass_ms(INITIAL_DELAY_MS)
        joined = sorted((each.answer for each in sent), key=lambda answer: answer.member_id != answer.leader)
        given = {answer.member_id: bytes(size) for answer in joined}
        synced = sync(broker, joined[0], given=given)
        assert synced.answer.error_code == error, size
        check_counts(cluster)
        leave(broker, *(each.member_id for each in joined))


def test_a_sync_that_waits_keeps_nothing_of_what_it_brought() -> None:
    """Followers bring no assignments; one that does gets no memory by that."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker, version=3) for _ in range(2)]
    cluster.pass_ms(INITIAL_DELAY_MS)
    cluster.pass_ms(INITIAL_DELAY_MS)
    (follower,) = [each.answer for each in sent if each.answer.member_id != each.answer.leader]
    waiting = sync(broker, follower, given={f"m{number}": bytes(10_000) for number in range(100)})
    assert waiting.waits
    (reply,) = machine(cluster).shard.replies
    assert not reply._call.body.assignments


def test_the_oldest_unused_member_id_is_removed_first() -> None:
    cluster = cluster_of_groups(ottla_group_pending_members_max="3")
    broker = coordinating(cluster)
    ids = [broker.ask(join_request("g"), 9).member_id for _ in range(5)]
    group = machine(cluster).by_id["g"]
    assert isinstance(group, ClassicGroup) and list(group.pending) == ids[2:]
    check_counts(cluster)
    assert join(broker, member=ids[0]).answer.error_code == errors.UnknownMemberId.code, "its client rejoins"
    join(broker, member=ids[4])
    check_counts(cluster)
    cluster.pass_ms(2 * SESSION_MS)
    check_counts(cluster)


def test_member_ids_of_many_groups_are_bounded_together() -> None:
    cluster = cluster_of_groups(ottla_groups_max_bytes=str(64 * KIB))
    broker = coordinating(cluster)
    codes = [broker.ask(join_request(f"g{number}"), 9).error_code for number in range(100)]
    assert set(codes) == {errors.MemberIdRequired.code, GROUP_FULL}
    cluster.pass_ms(2 * SESSION_MS)
    assert machine(cluster).footprint.bytes == 0 and not machine(cluster).by_id


def test_a_refusal_is_logged_once_a_minute() -> None:
    cluster = cluster_of_groups(ottla_group_member_max_bytes="8192")
    broker = coordinating(cluster)
    for _ in range(2):
        for _ in range(10):
            broker.ask(join_request("g", protocols=(("range", bytes(8192)),)), 9)
        cluster.pass_ms(61_000)
    warned = [text for text in broker.warnings if "ottla.group.member.max.bytes" in text]
    assert len(warned) == 2 and "group 'g'" in warned[0]


# The new protocol.


def test_a_subscription_beyond_the_bounds_is_refused_with_the_reason() -> None:
    cluster = cluster_of_groups(ottla_group_member_max_bytes=str(16 * KIB), ottla_group_max_bytes=str(40 * KIB))
    broker = coordinating(cluster)
    topics = [f"topic-{number}" for number in range(200)]
    answer = beat(broker, member_id="a", subscribed_topic_names=topics)
    assert answer.error_code == INVALID and "ottla.group.member.max.bytes is 16384" in answer.error_message
    for field in ("instance_id", "rack_id", "member_id"):
        answer = beat(broker, **{"member_id": "a", "subscribed_topic_names": ["t"], field: "x" * 17_000})  # type: ignore[arg-type]
        assert answer.error_code == INVALID, field
    assert not machine(cluster).by_id
    answers = [beat(broker, member_id=f"m{number}", subscribed_topic_names=topics[:40]) for number in range(10)]
    assert 0 < sum(answer.error_code == 0 for answer in answers) < 10
    assert answers[-1].error_code == GROUP_FULL and "ottla.group.max.bytes is 40960" in answers[-1].error_message
    assert beat(broker, member_id="m0", member_epoch=answers[0].member_epoch).error_code == 0
    check_counts(cluster)


def test_a_group_has_few_regular_expressions() -> None:
    cluster = cluster_of_groups(ottla_group_consumer_patterns_max="2")
    broker = coordinating(cluster)
    answers = [beat(broker, member_id=f"m{number}", subscribed_topic_regex=f"t|x{number}") for number in range(3)]
    assert [answer.error_code for answer in answers] == [0, 0, GROUP_FULL]
    assert "ottla.group.consumer.patterns.max is 2" in answers[2].error_message
    assert beat(broker, member_id="m3", subscribed_topic_regex="t|x0").error_code == 0, "one that is there already"
    changed = beat(broker, member_id="m1", member_epoch=answers[1].member_epoch, subscribed_topic_regex="t|y")
    assert changed.error_code == 0, "in place of its own"
    check_counts(cluster)
    for number, answer in enumerate(answers[:2]):
        assert beat(broker, member_id=f"m{number}", member_epoch=-1).error_code == 0, answer
    beat(broker, member_id="m3", member_epoch=-1)
    check_counts(cluster)


def test_a_regular_expression_is_matched_with_new_topics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a topic that comes does not grow with those that are there."""
    looked_at: list[set[str]] = []
    matching = changes.matching  # type: ignore[attr-defined]
    monkeypatch.setattr(changes, "matching", lambda pattern, names: looked_at.append(set(names)) or matching(pattern, names))  # type: ignore[func-returns-value]
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    epoch = beat(broker, member_id="m", subscribed_topic_regex="t.*").member_epoch
    cluster.pass_ms(2_000)
    cluster.topic("t2")
    epoch = beat(broker, member_id="m", member_epoch=epoch).member_epoch
    cluster.pass_ms(2_000)
    beat(broker, member_id="m", member_epoch=epoch)
    assert looked_at == [{"t", "__consumer_offsets"}, {"t2"}]
    group = machine(cluster).by_id["g"]
    assert isinstance(group, ConsumerGroupService) and group.group.resolved["t.*"].topics == {"t", "t2"}
    check_counts(cluster)


# Offsets.


def test_offsets_beyond_their_bytes_are_refused_and_those_there_go_on() -> None:
    cluster = cluster_of_groups(ottla_group_offsets_max_bytes=str(64 * KIB))
    broker = coordinating(cluster)
    codes = [commit(broker, f"g{number}", "t", 0, 5) for number in range(60)]
    assert set(codes) == {0, errors.InvalidCommitOffsetSize.code} and codes[0] == 0
    assert commit(broker, "g0", "t", 0, 6) == 0
    more = [commit(broker, f"g{number}", "t", partition, 6) for number in range(10) for partition in (1, 2, 3)]
    assert more[-1] == errors.InvalidCommitOffsetSize.code
    check_counts(cluster)
    assert not broker.ask(DeleteGroupsRequest(groups_names=["g1"]), 2).results[0].error_code
    check_counts(cluster)
    assert commit(broker, "g9", "t", 3, 6) == 0


def test_a_restart_counts_what_it_loads() -> None:
    cluster = cluster_of_groups()
    stable(cluster, 3)
    broker = coordinating(cluster)
    beat(broker, "h", member_id="m", subscribed_topic_regex="t.*")
    commit(broker, "k", "t", 0, 5, committed_metadata="here")
    before = [(each.machine.footprint.bytes, each.machine.offsets.bytes) for _, each in sorted(broker.node.groups.shards.items())]
    cluster.restart(broker.broker_id)
    check_counts(cluster)
    shards = sorted(coordinating(cluster).node.groups.shards.items())
    assert [(each.machine.footprint.bytes, each.machine.offsets.bytes) for _, each in shards] == before


# Descriptions.


def test_a_group_that_is_named_again_and_again_is_described_only_so_often() -> None:
    cluster = cluster_of_groups(ottla_groups_max_bytes=str(64 * KIB))
    broker = coordinating(cluster)
    stable(cluster, 1, protocols=(("range", bytes(9 * KIB)),))
    beat(broker, "h", member_id="m", subscribed_topic_names=["t"])
    assert broker.ask(DescribeGroupsRequest(groups=["g"]), 6).groups[0].error_code == 0
    described = broker.ask(DescribeGroupsRequest(groups=["g"] * 100), 6).groups
    assert described[0].error_code == 0 and described[99].error_code == INVALID and "name fewer groups" in described[99].error_message
    assert sum(len(member.member_metadata) for group in described for member in group.members) < 64 * KIB
    reported = broker.ask(ConsumerGroupDescribeRequest(group_ids=["h"] * 100), 0).groups
    assert reported[0].error_code == 0 and reported[99].error_code == INVALID

"""Classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup. Lines are those of docs/semantics.md."""

from errno import ENOSPC
from typing import Any

import pytest
from cluster import Cluster
from groups import (
    INITIAL_DELAY_MS,
    REBALANCE_MS,
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

from ottla.base.ids import partition_for
from ottla.base.units import MINUTE_MS
from ottla.broker import events
from ottla.wire import errors
from ottla.wire.messages import ConsumerGroupHeartbeatRequest, DescribeGroupsRequest
from ottla.wire.messages.consumer_protocol import ConsumerProtocolSubscription, encode_embedded
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity

# Finding the coordinator.


def test_first_find_coordinator_creates_the_offsets_topic() -> None:
    """Line 58."""
    cluster = Cluster()
    cluster.store_delivers = False
    answer = cluster[1].ask(FindCoordinatorRequest(key="g"), 2)
    assert (answer.error_code, answer.node_id) == (errors.CoordinatorNotAvailable.code, -1)
    assert cluster[1].ask(FindCoordinatorRequest(key="g"), 2).error_code == errors.CoordinatorNotAvailable.code
    cluster.store_delivers = True
    cluster.run()
    assert cluster[1].ask(FindCoordinatorRequest(key="g"), 2).node_id == 1
    topic = cluster[1].node.context.image.topics["__consumer_offsets"]
    assert len(topic.replicas) == 50
    options = cluster[1].node.context.topic_options("__consumer_offsets")
    assert (options.cleanup_policy, options.segment_bytes, options.compression_type) == (("compact",), 104_857_600, "producer")


def test_a_broker_names_itself_once_it_has_opened_the_log_of_the_partition() -> None:
    """A former defect: a client that asked in between got NOT_COORDINATOR from the coordinator that it was sent to."""
    cluster = Cluster()
    broker = cluster[1]
    broker.changing = False
    broker.ask(FindCoordinatorRequest(key="g"), 2)
    cluster.run()
    assert "__consumer_offsets" in broker.node.context.image.topics and broker.changes
    answer = broker.ask(FindCoordinatorRequest(key="g"), 2)
    assert (answer.error_code, answer.node_id) == (errors.CoordinatorNotAvailable.code, -1)
    while broker.changes:
        broker.change_logs()
        cluster.run()
    assert broker.ask(FindCoordinatorRequest(key="g"), 2).node_id == 1


def test_a_new_controller_does_not_ask_itself_to_create_the_offsets_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A former defect: the image names the controller before the store's answer arrives (seed 328 of groups)."""
    cluster = Cluster()
    broker, asked = cluster[1], list[Any]()
    monkeypatch.setattr(broker, "_ask_peer", asked.append)
    broker.node.controller.step_down()
    assert broker.node.context.image.controller == 1
    assert broker.ask(FindCoordinatorRequest(key="g"), 2).error_code == errors.CoordinatorNotAvailable.code
    assert not asked, "it would ask itself"
    assert not broker.node.context.creating, "nothing is under way, so the next one who looks has it created"
    broker.node.controller.writes.retry = True
    cluster.pass_ms(2_000)
    broker.ask(FindCoordinatorRequest(key="g"), 2)
    assert broker.ask(FindCoordinatorRequest(key="g"), 2).node_id == 1


def test_coordinators_are_found_several_at_a_time_each_with_its_error() -> None:
    """Line 58."""
    cluster = cluster_of_groups(brokers=2)
    answer = cluster[1].ask(FindCoordinatorRequest(coordinator_keys=["g", "h", ""]), 4)
    assert [found.key for found in answer.coordinators] == ["g", "h", ""] and not any(found.error_code for found in answer.coordinators)
    leaders = {found.node_id for found in answer.coordinators}
    assert leaders <= {1, 2}
    number = cluster[1].node.groups.partition_of("g")
    assert number == 103 % 2, "Java's hash of one letter is its code"
    assert answer.coordinators[0].node_id == cluster.leading("__consumer_offsets", number).broker_id


@pytest.mark.parametrize(
    ("group", "number"), [("g", 3), ("billing", 9), ("a group", 16), ("grüße \U0001f600", 34), ("polygenelubricants", 0)]
)
def test_a_group_belongs_to_the_partition_that_kafka_would_give_it(group: str, number: int) -> None:
    """Line 58. Java's hash of the string, made positive as Utils.abs does: also where it is negative, and where it has no opposite."""
    assert partition_for(group, 50) == number


def test_there_is_no_coordinator_while_its_partition_has_no_leader() -> None:
    """Line 58."""
    cluster = cluster_of_groups(brokers=2, offsets_topic_replication_factor="1")
    gone = coordinating(cluster).broker_id
    cluster.kill(gone)
    [found] = cluster[3 - gone].ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators
    assert (found.error_code, found.node_id) == (errors.CoordinatorNotAvailable.code, -1)


def test_no_broker_coordinates_share_groups() -> None:
    """Line 58."""
    [found] = Cluster()[1].ask(FindCoordinatorRequest(key_type=2, coordinator_keys=["x"]), 6).coordinators
    assert (found.error_code, found.node_id) == (errors.InvalidRequest.code, -1)


def test_broker_that_is_not_the_group_coordinator_answers_not_coordinator() -> None:
    """Line 73."""
    cluster = cluster_of_groups(brokers=2)
    other = next(broker for broker in cluster.brokers.values() if broker is not coordinating(cluster))
    assert other.ask(join_request("g"), 9).error_code == errors.NotCoordinator.code
    assert Cluster()[1].ask(join_request("g"), 9).error_code == errors.NotCoordinator.code


# Joining.


@pytest.mark.parametrize("version", [4, 5, 6, 7, 8, 9])
def test_a_dynamic_member_is_given_its_id_first(version: int) -> None:
    """Line 59."""
    broker = coordinating(cluster_of_groups())
    first = broker.ask(join_request("g"), version)
    assert first.error_code == errors.MemberIdRequired.code and first.member_id.startswith("test-")
    assert broker.send(join_request("g", first.member_id), version).answer is None, "with its id it waits for the others"


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_old_versions_never_get_member_id_required(version: int) -> None:
    """Line 59."""
    cluster = cluster_of_groups()
    sent = join(coordinating(cluster), version=version)
    assert sent.waits
    cluster.pass_ms(INITIAL_DELAY_MS)
    assert sent.answer.error_code == 0 and sent.answer.member_id == sent.answer.leader != ""


def test_a_static_member_needs_no_id() -> None:
    """Line 59."""
    cluster = cluster_of_groups()
    sent = join(coordinating(cluster), instance="one")
    cluster.pass_ms(INITIAL_DELAY_MS)
    assert sent.answer.error_code == 0 and sent.answer.member_id.startswith("one-")


def test_join_response_lists_members_for_the_leader_only() -> None:
    """Line 60."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker, protocols=(("range", b"of %d" % number),)) for number in range(3)]
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    leader, *others = sorted((each.answer for each in sent), key=lambda answer: answer.member_id != answer.leader)
    assert {member.metadata for member in leader.members} == {b"of 0", b"of 1", b"of 2"}
    assert [answer.members for answer in others] == [[], []]
    assert {answer.generation_id for answer in (leader, *others)} == {1}


def test_the_protocol_is_voted_for_among_those_that_all_know() -> None:
    """Line 60."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    likes = ("sticky", "range", "old"), ("range", "sticky"), ("range", "sticky", "new")
    sent = [join(broker, protocols=tuple((name, b"") for name in names)) for names in likes]
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    assert {each.answer.protocol_name for each in sent} == {"range"}


def test_a_member_without_a_common_protocol_is_refused() -> None:
    """Line 60."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    join(broker)
    join(broker, protocols=(("range", b""), ("known to one", b"")))
    for fields in (
        {"protocols": (("other", b""),)},
        {"protocols": (("known to one", b""),)},
        {"protocol_type": "connect"},
        {"protocols": ()},
    ):
        assert broker.ask(join_request("g", **fields), 9).error_code == errors.InconsistentGroupProtocol.code
    assert broker.ask(join_request("new", protocol_type=""), 9).error_code == errors.InconsistentGroupProtocol.code
    assert "new" not in broker.node.groups.shard_of("new").machine.by_id, "a group without members is not kept"


def test_session_timeouts_and_group_ids_have_limits() -> None:
    """Line 60."""
    broker = coordinating(cluster_of_groups())
    for timeout_ms in (5_999, 1_800_001):
        assert broker.ask(join_request("g", session_timeout_ms=timeout_ms), 9).error_code == errors.InvalidSessionTimeout.code
    assert broker.ask(join_request(""), 9).error_code == errors.InvalidGroupId.code


def test_full_group_refuses_new_members() -> None:
    """Line 60."""
    cluster = cluster_of_groups(group_max_size="2")
    stable(cluster, 2)
    answer = coordinating(cluster).ask(join_request("g"), 9)
    assert (answer.error_code, answer.member_id) == (errors.GroupMaxSizeReached.code, "")


def test_group_loaded_above_its_size_limit_rebalances_without_the_last_members() -> None:
    """Line 60."""
    cluster = cluster_of_groups()
    members = stable(cluster, 3)
    gone = cluster.kill(1)
    broker = cluster.start(1, {**gone.texts, "group.max.size": "2"}, [disk.restart() for disk in gone.disks.values()])
    assert [heartbeat(broker, member) for member in members] == [errors.RebalanceInProgress.code] * 3
    sent = [join(broker, member=member.member_id) for member in members]
    cluster.pass_ms(REBALANCE_MS)
    assert sorted(each.answer.error_code for each in sent) == [0, 0, errors.GroupMaxSizeReached.code]


# The join phase.


def test_the_first_members_wait_for_one_another() -> None:
    """Line 61."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    first = join(broker)
    cluster.pass_ms(INITIAL_DELAY_MS - 10)
    second = join(broker)
    cluster.pass_ms(20)
    assert first.waits, "a member joined, so more may follow"
    cluster.pass_ms(INITIAL_DELAY_MS)
    assert first.answer.generation_id == second.answer.generation_id == 1


def test_the_first_wait_ends_with_the_rebalance_timeout_however_many_come() -> None:
    """Line 61."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = []
    for _ in range(4):
        sent.append(join(broker, rebalance_timeout_ms=8_000))
        cluster.pass_ms(1_975)
    assert sent[0].waits, "7.9 seconds"
    cluster.pass_ms(150)
    assert {each.answer.generation_id for each in sent} == {1}


def test_the_first_wait_can_be_switched_off() -> None:
    """Line 61."""
    cluster = cluster_of_groups(group_initial_rebalance_delay_ms="0")
    sent = join(coordinating(cluster))
    cluster.pass_ms(10)
    assert sent.answer.generation_id == 1


def test_a_rebalance_waits_for_the_longest_rebalance_timeout() -> None:
    """Line 62."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker, rebalance_timeout_ms=timeout_ms, session_timeout_ms=30_000) for timeout_ms in (5_000, 20_000)]
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    silent, other = (each.answer for each in sent)
    newcomer = join(broker)
    cluster.pass_ms(15_000)
    heartbeat(broker, other)
    assert newcomer.waits
    join(broker, member=other.member_id)
    cluster.pass_ms(REBALANCE_MS - 15_000)
    assert newcomer.answer.generation_id == 2
    assert heartbeat(broker, silent) == errors.UnknownMemberId.code


def test_a_rebalance_ends_when_everybody_has_joined() -> None:
    """Line 62."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    [old] = stable(cluster, 1)
    newcomer = join(broker)
    assert newcomer.waits
    again = join(broker, member=old.member_id)
    assert newcomer.answer.generation_id == again.answer.generation_id == 2


def test_a_silent_member_is_removed_when_its_session_ends() -> None:
    """Line 62."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    alive, silent = stable(cluster, 2)
    cluster.pass_ms(SESSION_MS - 1_000)
    assert heartbeat(broker, alive) == 0
    cluster.pass_ms(1_010)
    assert heartbeat(broker, alive) == errors.RebalanceInProgress.code
    assert heartbeat(broker, silent) == errors.UnknownMemberId.code


def test_a_commit_is_a_sign_of_life() -> None:
    """Line 62."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    [member] = stable(cluster, 1)
    for offset in range(4):
        cluster.pass_ms(SESSION_MS - 1_000)
        assert commit(broker, "g", "t", 0, offset, joined=member) == 0


def test_an_unused_member_id_does_not_delay_a_rebalance_for_long() -> None:
    """Line 62."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    [old] = stable(cluster, 1)
    assert broker.ask(join_request("g"), 9).error_code == errors.MemberIdRequired.code
    again = join(broker, member=old.member_id)
    assert again.waits, "the owner of the id may be about to join"
    cluster.pass_ms(SESSION_MS)
    assert again.answer.generation_id == 2


def test_member_pending_in_its_first_join_for_five_minutes_is_removed() -> None:
    """Line 62. It cannot send heartbeats, because it does not know its id yet, and its loss would not be noticed. Source: KAFKA-7610."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    [old] = stable(cluster, 1, rebalance_timeout_ms=20 * MINUTE_MS)
    newcomer = join(broker, version=3)
    for _ in range(59):
        cluster.pass_ms(5_000)
        heartbeat(broker, old)
    assert newcomer.waits, "the other one does not join again, but lives"
    cluster.pass_ms(5_100)
    assert newcomer.answer.error_code == errors.UnknownMemberId.code


def test_group_with_only_unused_member_ids_is_removed() -> None:
    """Line 62."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    groups = broker.node.groups.shard_of("g").machine
    broker.ask(join_request("g"), 9)
    assert "g" in groups.by_id
    cluster.pass_ms(SESSION_MS)
    assert "g" not in groups.by_id


def test_a_connection_that_breaks_in_a_join_leaves_a_member_that_can_ask_again() -> None:
    """Line 62."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    member = broker.ask(join_request("g"), 9).member_id
    broken = join(broker, member=member)
    broker.hang_up(broken)
    again = join(broker, member=member)
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    assert broken.waits and again.answer.generation_id == 1


# Heartbeats.


def test_heartbeat_returns_the_state_of_the_group() -> None:
    """Line 63."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    first = join(broker)
    cluster.pass_ms(INITIAL_DELAY_MS)
    member = first.answer
    assert heartbeat(broker, member) == 0, "CompletingRebalance"
    sync(broker, member)
    assert heartbeat(broker, member) == 0, "Stable"
    join(broker)
    assert heartbeat(broker, member) == errors.RebalanceInProgress.code, "PreparingRebalance"
    for generation in (0, 7):
        assert heartbeat(broker, member, generation_id=generation) == errors.IllegalGeneration.code
    assert heartbeat(broker, member, member_id="nobody") == errors.UnknownMemberId.code
    assert heartbeat(broker, member, "no group") == errors.UnknownMemberId.code
    assert leave(broker, member.member_id) == [0, 0]
    assert heartbeat(broker, member) == errors.UnknownMemberId.code


# The sync phase.


def test_each_member_gets_the_assignment_of_the_leader_or_an_empty_one() -> None:
    """Line 64."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker) for _ in range(3)]
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    leader, second, third = sorted((each.answer for each in sent), key=lambda answer: answer.member_id != answer.leader)
    waiting = sync(broker, second, given={second.member_id: b"what it would like"})
    assert waiting.waits, "followers wait for the leader"
    assert sync(broker, leader, given={leader.member_id: b"mine", second.member_id: b"yours"}).answer.assignment == b"mine"
    assert waiting.answer.assignment == b"yours"
    assert sync(broker, third).answer.assignment == b""
    assert sync(broker, second).answer.assignment == b"yours", "a stable group returns it again"


def test_member_without_an_assignment_gets_the_reason() -> None:
    """Line 64."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    [member] = stable(cluster, 1)
    assert sync(broker, member, generation_id=9).answer.error_code == errors.IllegalGeneration.code
    assert sync(broker, member, protocol_name="other").answer.error_code == errors.InconsistentGroupProtocol.code
    assert sync(broker, member, protocol_type="connect").answer.error_code == errors.InconsistentGroupProtocol.code
    assert sync(broker, member, member_id="x").answer.error_code == errors.UnknownMemberId.code
    assert sync(broker, member, "no group").answer.error_code == errors.UnknownMemberId.code
    join(broker)
    assert sync(broker, member).answer.error_code == errors.RebalanceInProgress.code


def test_join_during_the_sync_phase_starts_another_rebalance() -> None:
    """Line 64."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker) for _ in range(2)]
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    follower = next(each.answer for each in sent if each.answer.member_id != each.answer.leader)
    waiting = sync(broker, follower)
    join(broker)
    assert waiting.answer.error_code == errors.RebalanceInProgress.code


def test_members_that_never_ask_for_their_assignment_are_left_behind() -> None:
    """Line 64."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker, rebalance_timeout_ms=20_000, session_timeout_ms=60_000) for _ in range(2)]
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    leader, silent = sorted((each.answer for each in sent), key=lambda answer: answer.member_id != answer.leader)
    sync(broker, leader)
    cluster.pass_ms(20_000)
    assert heartbeat(broker, leader) == errors.RebalanceInProgress.code
    assert heartbeat(broker, silent) == errors.UnknownMemberId.code


def test_an_assignment_that_cannot_be_written_sends_all_back_to_join() -> None:
    """Line 64."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker) for _ in range(2)]
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    leader, follower = sorted((each.answer for each in sent), key=lambda answer: answer.member_id != answer.leader)
    waiting = sync(broker, follower)
    broker.disks["disk0"].fail("append", ".log", errno=ENOSPC)
    answer = sync(broker, leader, given={follower.member_id: b"too much"}).answer
    assert answer.error_code == waiting.answer.error_code == errors.CoordinatorNotAvailable.code
    assert heartbeat(broker, leader) == errors.RebalanceInProgress.code


def test_an_assignment_above_max_message_bytes_is_an_unknown_error_and_all_members_rejoin() -> None:
    """Line 64. The code is Kafka's; how large it may be is the topic's max.message.bytes."""
    cluster = cluster_of_groups(message_max_bytes="2000")
    broker = coordinating(cluster)
    member = join(broker)
    cluster.pass_ms(INITIAL_DELAY_MS)
    joined = member.answer
    assert sync(broker, joined, given={joined.member_id: b"x" * 3000}).answer.error_code == errors.UnknownServerError.code
    assert heartbeat(broker, joined) == errors.RebalanceInProgress.code
    assert "max.message.bytes" in broker.warnings[-1]


# Static members.


def test_static_member_rejoins_without_a_rebalance_and_its_old_member_id_is_fenced() -> None:
    """Line 65."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker, instance=name) for name in ("one", "two")]
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    one, two = (each.answer for each in sent)
    for answer in (one, two):
        sync(broker, answer, given={one.member_id: b"1", two.member_id: b"2"})
    back = join(broker, instance="two").answer
    assert (back.error_code, back.generation_id, back.leader) == (0, 1, one.member_id) and back.member_id != two.member_id
    assert sync(broker, back).answer.assignment == b"2"
    assert heartbeat(broker, one, group_instance_id="one") == 0, "the others go on"
    assert heartbeat(broker, two, group_instance_id="two") == errors.FencedInstanceId.code
    assert sync(broker, two, group_instance_id="two").answer.error_code == errors.FencedInstanceId.code
    assert join(broker, member=two.member_id, instance="two").answer.error_code == errors.FencedInstanceId.code
    assert heartbeat(broker, two) == errors.UnknownMemberId.code
    assert heartbeat(cluster.restart(1), back) == 0, "the new id was written"


def test_static_leader_that_rejoins_skips_the_assignment() -> None:
    """Line 65."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = join(broker, instance="one")
    cluster.pass_ms(INITIAL_DELAY_MS)
    sync(broker, sent.answer, given={sent.answer.member_id: b"all"})
    back = join(broker, instance="one").answer
    assert back.skip_assignment and back.leader == back.member_id and [member.member_id for member in back.members] == [back.member_id]
    old = join(broker, instance="one", version=8).answer
    assert old.leader == back.member_id != old.member_id and not old.members, "an old client would assign if it were named as leader"


def test_a_static_member_that_rejoins_with_another_protocol_starts_a_rebalance() -> None:
    """Line 65."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    both = (("range", b""), ("sticky", b""))
    sent = [join(broker, instance=name, protocols=both) for name in ("one", "two")]
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    for each in sent:
        sync(broker, each.answer)
    assert join(broker, instance="two", protocols=(("sticky", b""),)).answer is None
    assert heartbeat(broker, sent[0].answer) == errors.RebalanceInProgress.code


def test_a_static_member_that_rejoins_with_other_topics_only_starts_no_rebalance() -> None:
    """Line 65. Only another choice of protocol does; a client that is given what it does not read asks for a rebalance itself."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker, instance=name) for name in ("one", "two")]
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    for each in sent:
        sync(broker, each.answer)
    assert join(broker, instance="two", protocols=(("range", b"others"),)).answer.generation_id == 1
    assert heartbeat(broker, sent[0].answer) == 0


def test_a_static_member_that_rejoins_fences_its_former_process_in_sync_group() -> None:
    """Line 65. And all meet again, since the leader may be about to give the old one its share."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker, instance=name) for name in ("one", "two")]
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    one, two = (each.answer for each in sent)
    assert one.leader == one.member_id
    waiting = sync(broker, two)
    assert join(broker, instance="two").answer is None
    assert waiting.answer.error_code == errors.FencedInstanceId.code
    assert heartbeat(broker, one) == errors.RebalanceInProgress.code


def test_a_static_member_that_rejoins_during_a_rebalance_replaces_its_former_process() -> None:
    """Line 65."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    first = join(broker, instance="one")
    second = join(broker, instance="one")
    assert first.answer.error_code == errors.FencedInstanceId.code
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    assert second.answer.generation_id == 1 and len(second.answer.members) == 1


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends() -> None:
    """Line 65."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker, instance=name, session_timeout_ms=100_000) for name in ("one", "two")]
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    for each in sent:
        sync(broker, each.answer)
    one = sent[0].answer
    newcomer = join(broker)
    again = join(broker, member=one.member_id, instance="one", session_timeout_ms=100_000)
    cluster.pass_ms(REBALANCE_MS)
    assert newcomer.answer.generation_id == again.answer.generation_id == 2
    leader = next(each.answer for each in (newcomer, again) if each.answer.members)
    assert {member.group_instance_id for member in leader.members} == {"one", "two", None}


@pytest.mark.parametrize("wait_ms", [0, -1, -(2**31)])
def test_a_join_phase_of_absent_static_members_that_wait_for_no_time_does_not_stop_the_broker(wait_ms: int) -> None:
    """Found by the fuzzer: the join phase began again within the step in which it ended, for ever."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    protocols = (("range", encode_embedded(ConsumerProtocolSubscription(topics=["t"]))),)
    member = join(broker, instance="one", rebalance_timeout_ms=wait_ms, session_timeout_ms=MINUTE_MS, protocols=protocols)
    # A member of the next protocol takes the group over, and leaves it to the static member when its session ends.
    reported = ConsumerGroupHeartbeatRequest(group_id="g", rebalance_timeout_ms=1_000, subscribed_topic_names=["t"], topic_partitions=[])
    assert broker.ask(reported, 0).error_code == 0
    cluster.pass_ms(2 * MINUTE_MS)
    assert member.answer is not None
    assert broker.ask(DescribeGroupsRequest(groups=["g"]), 5).groups[0].members == []


@pytest.mark.parametrize("instance", [None, "i" * 32_767], ids=["dynamic", "static"])
def test_a_member_id_fits_a_string_for_every_client_id(instance: str | None) -> None:
    """Found by the fuzzer: the answer could not be encoded."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    answer = broker.send(join_request("g", instance=instance), 9, client_id="c" * 32_767)
    cluster.pass_ms(2 * INITIAL_DELAY_MS)
    assert answer.answer.member_id.startswith("c" if instance is None else "i")


# Leaving.


def test_members_leave_several_at_a_time_each_with_its_answer() -> None:
    """Line 66."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    stays, goes = stable(cluster, 2)
    assert leave(broker, goes.member_id, "unknown") == [0, 0, errors.UnknownMemberId.code]
    assert heartbeat(broker, stays) == errors.RebalanceInProgress.code
    assert leave(broker, "x", group="no group") == [0, errors.UnknownMemberId.code]


def test_old_clients_leave_one_at_a_time() -> None:
    """Line 66."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    [member] = stable(cluster, 1)
    assert broker.ask(LeaveGroupRequest(group_id="g", member_id="nobody"), 2).error_code == errors.UnknownMemberId.code
    assert broker.ask(LeaveGroupRequest(group_id="g", member_id=member.member_id), 2).error_code == 0


@pytest.mark.parametrize("version", [3, 4, 5])
def test_member_that_only_got_an_id_may_leave(version: int) -> None:
    """Line 66. Then the rebalance does not wait for it."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    [old] = stable(cluster, 1)
    pending = broker.ask(join_request("g"), 9).member_id
    identities = [MemberIdentity(member_id=pending), MemberIdentity(member_id="nobody")]
    answer = broker.ask(LeaveGroupRequest(group_id="g", members=identities), version)
    assert [member.error_code for member in answer.members] == [0, errors.UnknownMemberId.code]
    assert join(broker, member=old.member_id).answer.generation_id == 2


def test_an_operator_removes_a_static_member_by_its_name_alone() -> None:
    """Line 66."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    join(broker, instance="one")
    cluster.pass_ms(INITIAL_DELAY_MS)
    members = [MemberIdentity(group_instance_id="one"), MemberIdentity(group_instance_id="two"), MemberIdentity("x", "one")]
    answer = broker.ask(LeaveGroupRequest(group_id="g", members=members), 5)
    assert [member.error_code for member in answer.members] == [0, errors.UnknownMemberId.code, errors.UnknownMemberId.code]


def test_pending_join_of_a_removed_member_is_answered() -> None:
    """Line 66."""
    broker = coordinating(cluster_of_groups())
    sent = join(broker, instance="one")
    broker.ask(LeaveGroupRequest(group_id="g", members=[MemberIdentity(group_instance_id="one")]), 5)
    assert (sent.answer.error_code, sent.answer.member_id) == (errors.UnknownMemberId.code, "")


# A coordinator that comes and goes.


def test_loaded_group_has_the_last_subscriptions_of_its_members() -> None:
    cluster = cluster_of_groups()
    [member] = stable(cluster, 1, protocols=(("range", b"old"),))
    both = (("sticky", b"new"), ("range", b"new"))
    again = join(coordinating(cluster), member=member.member_id, protocols=both).answer
    sync(coordinating(cluster), again, given={member.member_id: b"all"})
    cluster.restart(1)
    [described] = coordinating(cluster).ask(DescribeGroupsRequest(groups=["g"]), 5).groups
    assert (described.protocol_data, described.members[0].member_metadata) == ("sticky", b"new")
    newcomer = join(coordinating(cluster), protocols=(("sticky", b"another"),))
    cluster.pass_ms(REBALANCE_MS)
    assert newcomer.answer.error_code == 0, "the protocols that members know are those they named last"


def test_a_group_outlives_its_coordinators_crash() -> None:
    """Line 73."""
    cluster = cluster_of_groups()
    members = stable(cluster, 2)
    broker = cluster.restart(1)
    assert [heartbeat(broker, member) for member in members] == [0, 0]
    assert [sync(broker, member).answer.assignment for member in members] == [b"part 0", b"part 1"]
    cluster.pass_ms(SESSION_MS)
    assert [heartbeat(broker, member) for member in members] == [errors.UnknownMemberId.code] * 2, "they are expected as before"


def test_requests_wait_while_groups_are_loaded_but_heartbeats_are_well() -> None:
    """Line 73."""
    cluster = cluster_of_groups()
    [member] = stable(cluster, 1)
    cluster.reading = False
    broker = cluster.restart(1)
    for request in (join_request("g", member.member_id), *(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member.member_id)]),)):
        assert broker.ask(request, 5).error_code == errors.CoordinatorLoadInProgress.code
    assert heartbeat(broker, member, generation_id=99) == 0
    broker.read_logs()
    assert heartbeat(broker, member, generation_id=99) == errors.IllegalGeneration.code
    assert heartbeat(broker, member) == 0


def test_pending_requests_are_answered_when_the_coordinator_resigns() -> None:
    """Line 73."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = join(broker)
    [directory] = broker.disks
    broker.handle(events.DirectoryFailed(directory=directory, reason="broken"))
    assert sent.answer.error_code == errors.NotCoordinator.code
    assert broker.node.context.delayed.count == 0, "no deadline of a group is left"


def test_a_stopping_coordinator_redirects_its_members_and_removes_none() -> None:
    """Line 73."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    stable(cluster, 1)
    sent = join(broker)
    before = broker.leader("__consumer_offsets", 1).log.end_offset
    broker._perform(broker.node.stop(cluster.now_ms))
    assert sent.answer.error_code == errors.NotCoordinator.code
    assert broker.node.groups.shards == {} and before > 0


def test_group_responses_wait_for_the_flush() -> None:
    """Line 73: what a crash could take back was not shown."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = join(broker)
    cluster.pass_ms(INITIAL_DELAY_MS)
    cluster.flushing = False
    waiting = sync(broker, sent.answer, given={sent.answer.member_id: b"all"})
    assert waiting.waits
    broker.flush()
    assert waiting.answer.assignment == b"all"

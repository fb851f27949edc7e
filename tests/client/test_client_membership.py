"""Group members in virtual time, under both protocols: assignments while members join, leave, hang and die."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from group_simulation import GroupSimulation, SimulatedMember

from ottla.client.group.classic_membership import Membership
from ottla.wire import messages as m
from ottla.wire.errors import FencedInstanceId, GroupAuthorizationFailed, GroupMaxSizeReached, InconsistentGroupProtocol, KafkaError
from ottla.wire.messages.consumer_group_heartbeat import Assignment, TopicPartitions
from ottla.wire.messages.consumer_protocol import ConsumerProtocolSubscription, decode_embedded

EAGER: dict[str, Any] = {}
COOPERATIVE: dict[str, Any] = {"partition_assignment_strategy": "cooperative-sticky"}
NEXT: dict[str, Any] = {"group_protocol": "consumer"}
ALL = pytest.mark.parametrize("how", [EAGER, COOPERATIVE, NEXT], ids=["eager", "cooperative", "next"])
CLASSIC = pytest.mark.parametrize("how", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])


def once(kind: type[Any], answer: Any) -> Any:
    """A fault for one request of this kind."""
    return lambda player, request: answer if isinstance(request, kind) else None


def heartbeat_response(player: SimulatedMember, interval_ms: int, given: TopicPartitions | None) -> Any:
    """A heartbeat response: epoch 1, and the assignment if it changed."""
    return m.ConsumerGroupHeartbeatResponse(
        member_id=player.machine.member_id,
        member_epoch=1,
        heartbeat_interval_ms=interval_ms,
        assignment=None if given is None else Assignment(topic_partitions=[given]),
    )


def sizes(*members: SimulatedMember) -> list[int]:
    return sorted(len(player.owned) for player in members)


# -- joining and leaving


@ALL
def test_a_single_member_reads_all(how: dict[str, Any]) -> None:
    simulation = GroupSimulation(t=3)
    player = simulation.member(**how)
    simulation.until(simulation.settled)
    assert player.notifications == [("assigned", ["t-0", "t-1", "t-2"])]


@ALL
def test_assignments_change_as_members_join_and_leave(how: dict[str, Any]) -> None:
    simulation = GroupSimulation(t=6)
    a = simulation.member(**how)
    simulation.until(simulation.settled)
    b = simulation.member(**how)
    simulation.until(lambda: simulation.settled() and sizes(a, b) == [3, 3])
    c = simulation.member(**how)
    simulation.until(lambda: simulation.settled() and sizes(a, b, c) == [2, 2, 2])
    b.leave()
    simulation.until(lambda: simulation.settled() and sizes(a, c) == [3, 3])
    assert not any(player.times_notified("lost") for player in (a, b, c))


@pytest.mark.parametrize("how", [COOPERATIVE, NEXT], ids=["cooperative", "next"])
def test_cooperative_members_revoke_only_partitions_that_move(how: dict[str, Any]) -> None:
    simulation = GroupSimulation(t=4)
    a = simulation.member(**how)
    simulation.until(simulation.settled)
    b = simulation.member(**how)
    simulation.until(lambda: simulation.settled() and sizes(a, b) == [2, 2])
    revoked = [partitions for kind, partitions in a.notifications if kind == "revoked"]
    assert revoked == [b.owned]


def test_a_revoked_partition_gets_an_owner_even_if_its_member_does_not_rejoin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A static member that restarts in between does this: the leader remembers the withheld partition."""
    simulation = GroupSimulation(t=4)
    a = simulation.member(**COOPERATIVE, max_poll_interval_ms=5_000)
    simulation.until(simulation.settled)
    rejoin = a.machine.rejoin
    monkeypatch.setattr(a.machine, "rejoin", lambda reason: rejoin(reason) if "gave up" not in reason else None)
    b = simulation.member(**COOPERATIVE, max_poll_interval_ms=5_000)
    simulation.until(lambda: sizes(a, b) == [0, 2])
    took_ms = simulation.until(lambda: simulation.settled() and sizes(a, b) == [2, 2])
    assert took_ms > 4_000, "others have max.poll.interval.ms to revoke their partitions"


def test_an_eager_member_revokes_everything_before_it_rejoins() -> None:
    simulation = GroupSimulation(t=4)
    a = simulation.member()
    simulation.until(simulation.settled)
    simulation.member()
    simulation.until(simulation.settled)
    assert [kind for kind, _ in a.notifications] == ["assigned", "revoked", "assigned"]
    assert a.notifications[1][1] == ["t-0", "t-1", "t-2", "t-3"]


@ALL
def test_a_changed_subscription_changes_the_assignment(how: dict[str, Any]) -> None:
    simulation = GroupSimulation(t=2, u=2)
    a = simulation.member("t", **how)
    simulation.until(lambda: a.owned == ["t-0", "t-1"])
    a.machine.subscribe(["u"])
    simulation.until(lambda: a.owned == ["u-0", "u-1"])
    a.machine.subscribe(["t", "u"])
    simulation.until(simulation.settled)


def test_new_partitions_are_assigned() -> None:
    simulation = GroupSimulation(t=2)
    a, b = simulation.member(), simulation.member()
    simulation.until(simulation.settled)
    simulation.topics["t"] = 4
    simulation.until(simulation.settled)
    assert sizes(a, b) == [2, 2]


def test_missing_topics_do_not_block_the_group() -> None:
    simulation = GroupSimulation(t=2)
    a = simulation.member("t", "later")
    simulation.until(lambda: a.owned == ["t-0", "t-1"])
    simulation.topics["later"] = 1
    simulation.until(lambda: "later-0" in a.owned)


def test_a_consumer_joins_only_when_the_user_polls() -> None:
    simulation = GroupSimulation(t=2)
    a = simulation.member()
    a.polls = False
    simulation.run(10_000)
    assert a.sent == []


def test_an_enforced_rebalance_happens() -> None:
    simulation = GroupSimulation(t=2)
    a, b = simulation.member(), simulation.member()
    simulation.until(simulation.settled)
    generation = simulation.classic.generation
    b.machine.rejoin("asked for")
    simulation.until(lambda: simulation.settled() and simulation.classic.generation > generation)
    joins = [one for one in b.sent if isinstance(one, m.JoinGroupRequest)]
    assert joins[-1].reason == "asked for"
    assert a.owned != b.owned


# -- users that hang, processes that die


@ALL
def test_heartbeats_continue_while_user_code_runs(how: dict[str, Any]) -> None:
    simulation = GroupSimulation(t=2)
    a = simulation.member(**how)
    simulation.until(simulation.settled)
    a.polls = False
    simulation.run(200_000)
    assert a.owned == ["t-0", "t-1"] and a.machine.committing[1] > 0


@ALL
def test_a_member_that_stops_polling_leaves_and_rejoins_at_the_next_poll(how: dict[str, Any]) -> None:
    simulation = GroupSimulation(t=4)
    a, b = simulation.member(max_poll_interval_ms=10_000, **how), simulation.member(max_poll_interval_ms=10_000, **how)
    simulation.until(lambda: simulation.settled() and sizes(a, b) == [2, 2])
    a.polls = False
    took_ms = simulation.until(lambda: len(b.owned) == 4)
    assert 9_000 < took_ms < 25_000
    a.polls = True
    simulation.until(lambda: simulation.settled() and sizes(a, b) == [2, 2])
    assert [kind for kind, some in a.notifications if some][-2:] == ["lost", "assigned"]


@ALL
def test_another_member_takes_over_the_partitions_of_a_dead_one(how: dict[str, Any]) -> None:
    simulation = GroupSimulation(t=4)
    a, b = simulation.member(**how), simulation.member(**how)
    simulation.until(simulation.settled)
    a.alive = False
    took_ms = simulation.until(lambda: len(b.owned) == 4)
    assert 40_000 < took_ms < 60_000


@ALL
def test_a_disconnected_member_loses_its_partitions_and_rejoins(how: dict[str, Any]) -> None:
    simulation = GroupSimulation(t=4)
    a, b = simulation.member(**how), simulation.member(**how)
    simulation.until(simulation.settled)
    a.connected = False
    simulation.until(lambda: len(b.owned) == 4)
    a.connected = True
    simulation.until(lambda: simulation.settled() and sizes(a, b) == [2, 2])
    assert a.times_notified("lost") == 1


def test_a_static_member_rejoins_with_the_same_partitions_without_a_rebalance() -> None:
    simulation = GroupSimulation(t=4)
    a, b = simulation.member(group_instance_id="a"), simulation.member(group_instance_id="b")
    simulation.until(simulation.settled)
    had, generation = a.owned, simulation.classic.generation
    a.leave()
    assert not any(isinstance(one, m.LeaveGroupRequest) for one in a.sent)
    simulation.run(10_000)
    assert len(b.owned) == 2 and simulation.classic.generation == generation
    again = simulation.member(group_instance_id="a")
    simulation.until(lambda: simulation.settled() and again.owned == had)


def test_a_second_consumer_with_the_same_instance_id_fences_the_first() -> None:
    simulation = GroupSimulation(t=2)
    a = simulation.member(group_instance_id="a")
    simulation.until(simulation.settled)
    simulation.member(group_instance_id="a")
    simulation.until(lambda: bool(a.errors))
    simulation.run(1000)
    assert all(isinstance(error, FencedInstanceId) and "give each its own" in str(error) for error in a.errors)
    assert len(a.errors) > 1


# -- responses of the coordinator


@CLASSIC
@pytest.mark.parametrize("code", [14, 15, 16, 27, 7, "cut"])
def test_a_join_with_a_retriable_error_is_retried(how: dict[str, Any], code: Any) -> None:
    simulation = GroupSimulation(t=2)
    simulation.faults.append(once(m.JoinGroupRequest, "cut" if code == "cut" else m.JoinGroupResponse(error_code=code)))
    a = simulation.member(**how)
    simulation.until(simulation.settled)
    assert not a.errors


@CLASSIC
@pytest.mark.parametrize("code", [14, 15, 16, 22, 25, 27, "cut"])
def test_a_failed_sync_leads_to_another_join(how: dict[str, Any], code: Any) -> None:
    simulation = GroupSimulation(t=2)
    simulation.faults.append(once(m.SyncGroupRequest, "cut" if code == "cut" else m.SyncGroupResponse(error_code=code)))
    a = simulation.member(**how)
    simulation.until(simulation.settled)
    assert not a.errors


@CLASSIC
@pytest.mark.parametrize(("code", "lost"), [(14, 0), (15, 0), (16, 0), (27, 0), ("cut", 0), (22, 1), (25, 1)])
def test_partitions_are_lost_only_on_a_fencing_heartbeat_error(how: dict[str, Any], code: Any, lost: int) -> None:
    simulation = GroupSimulation(t=2)
    a = simulation.member(**how)
    simulation.until(simulation.settled)
    member_id = a.machine.member_id
    if code == 25:
        simulation.classic.remove(member_id)
    simulation.faults.append(once(m.HeartbeatRequest, "cut" if code == "cut" else m.HeartbeatResponse(error_code=code)))
    simulation.run(20_000)
    assert simulation.settled() and a.times_notified("lost") == lost and not a.errors
    assert (a.machine.member_id == member_id) == (code != 25)


def test_a_coordinator_silent_for_a_session_timeout_is_looked_up_again() -> None:
    simulation = GroupSimulation(t=2)
    a = simulation.member(session_timeout_ms=10_000)
    simulation.until(simulation.settled)
    simulation.faults += [once(m.HeartbeatRequest, m.HeartbeatResponse(error_code=14))] * 4
    simulation.run(13_000)
    assert sum(isinstance(one, m.FindCoordinatorRequest) for one in a.sent) == 2
    assert simulation.settled() and not a.times_notified("lost")


def test_a_commit_refused_for_a_rebalance_makes_the_member_rejoin_at_once() -> None:
    simulation = GroupSimulation(t=2)
    a = simulation.member()
    simulation.until(simulation.settled)
    a.machine.commit_refused(27)
    assert simulation.until(lambda: simulation.classic.generation == 2) < 300, "and not with the next heartbeat"


def test_a_restarted_static_leader_assigns_nothing_and_later_notices_new_partitions() -> None:
    """Source: KIP-814."""
    simulation = GroupSimulation(t=2)
    a = simulation.member(group_instance_id="a")
    simulation.until(simulation.settled)
    metadata = next(one for one in a.sent if isinstance(one, m.JoinGroupRequest)).protocols[0].metadata
    a.leave()
    leader = m.JoinGroupResponseMember(member_id="a-1", group_instance_id="a", metadata=metadata)
    joined = m.JoinGroupResponse(
        generation_id=1, protocol_name="range", leader="a-1", member_id="a-1", members=[leader], skip_assignment=True
    )
    simulation.faults.append(once(m.JoinGroupRequest, joined))
    again = simulation.member(group_instance_id="a")
    simulation.until(lambda: again.owned == ["t-0", "t-1"])
    (sync,) = [one for one in again.sent if isinstance(one, m.SyncGroupRequest)]
    assert sync.assignments == []
    simulation.topics["t"] = 3
    simulation.until(lambda: again.owned == ["t-0", "t-1", "t-2"])


def test_an_assignment_for_another_subscription_is_discarded_and_computed_again() -> None:
    """A static member can receive the assignment for its previous subscription."""
    simulation = GroupSimulation(t=2, u=2)
    a = simulation.member("t", group_instance_id="a")
    simulation.until(lambda: a.owned == ["t-0", "t-1"])
    a.leave()
    former = m.JoinGroupResponse(generation_id=1, protocol_name="range", leader="b", member_id="a-1")
    simulation.faults.append(once(m.JoinGroupRequest, former))
    again = simulation.member("u", group_instance_id="a")
    simulation.until(lambda: again.owned == ["u-0", "u-1"])
    assert not any("t-0" in partitions for _, partitions in again.notifications)


@CLASSIC
@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (81, GroupMaxSizeReached, "group.max.size"),
        (30, GroupAuthorizationFailed, "may not Read Group g"),
        (23, InconsistentGroupProtocol, "partition_assignment_strategy"),
        (26, KafkaError, "group.min.session.timeout.ms"),
        (24, KafkaError, "no valid name"),
        (82, FencedInstanceId, "group_instance_id"),
    ],
)
def test_a_fatal_error_is_raised_with_advice(how: dict[str, Any], code: int, error: type[Exception], message: str) -> None:
    simulation = GroupSimulation(t=2)
    simulation.faults.append(once(m.JoinGroupRequest, m.JoinGroupResponse(error_code=code)))
    a = simulation.member(**how)
    simulation.run(90)
    simulation.until(lambda: bool(a.errors), 1000)
    assert isinstance(a.errors[0], error) and message in str(a.errors[0])
    if error is not FencedInstanceId:
        simulation.until(simulation.settled)


@ALL
def test_the_coordinator_lookup_is_retried_until_it_succeeds(how: dict[str, Any]) -> None:
    simulation = GroupSimulation(t=2)
    for code in (15, 15, 14):
        coordinator = m.find_coordinator.Coordinator(key="g", node_id=-1, error_code=code)
        simulation.faults.append(once(m.FindCoordinatorRequest, m.FindCoordinatorResponse(coordinators=[coordinator])))
    simulation.faults.append(once(m.FindCoordinatorRequest, "cut"))
    a = simulation.member(**how)
    simulation.until(simulation.settled)
    assert sum(isinstance(one, m.FindCoordinatorRequest) for one in a.sent) == 5


@pytest.mark.parametrize(("code", "lost"), [(14, 0), (15, 0), (16, 0), ("cut", 0), (25, 1), (110, 1)])
def test_partitions_are_lost_only_on_a_fencing_response_under_the_consumer_protocol(code: Any, lost: int) -> None:
    simulation = GroupSimulation(t=2)
    a = simulation.member(**NEXT)
    simulation.until(simulation.settled)
    if code in (25, 110):
        del simulation.consumer.members[a.machine.member_id]
    member_id = a.machine.member_id
    answer = "cut" if code == "cut" else m.ConsumerGroupHeartbeatResponse(error_code=code)
    simulation.faults.append(once(m.ConsumerGroupHeartbeatRequest, answer))
    simulation.run(30_000)
    assert simulation.settled() and a.times_notified("lost") == lost and not a.errors
    assert a.machine.member_id == member_id, "the id lasts as long as the consumer (KIP-1082)"


@pytest.mark.parametrize(
    ("code", "message"),
    [(81, "group.max.size"), (30, "may not Read Group g"), (112, "group.consumer.assignors"), (111, "wait"), (35, "classic"), (128, "RE2")],
)
def test_a_fatal_error_is_raised_under_the_consumer_protocol_too(code: int, message: str) -> None:
    simulation = GroupSimulation(t=2)
    simulation.faults.append(once(m.ConsumerGroupHeartbeatRequest, m.ConsumerGroupHeartbeatResponse(error_code=code)))
    a = simulation.member(**NEXT)
    simulation.until(lambda: bool(a.errors), 1000)
    assert message in str(a.errors[0])
    simulation.until(simulation.settled)


def test_revoked_partitions_are_acknowledged_before_new_ones_are_read() -> None:
    simulation = GroupSimulation(t=4)
    a, b = simulation.member(**NEXT), simulation.member(**NEXT)
    simulation.until(lambda: simulation.settled() and sizes(a, b) == [2, 2])
    beats = [one for one in a.sent if isinstance(one, m.ConsumerGroupHeartbeatRequest) and one.topic_partitions is not None]
    assert [len(simulation.by_name(one.topic_partitions or [])) for one in beats] == [0, 4, 2]


def test_the_first_heartbeat_is_complete_and_later_ones_contain_changes() -> None:
    simulation = GroupSimulation(t=2)
    a = simulation.member(group_instance_id="i", client_rack="r", group_remote_assignor="uniform", **NEXT)
    simulation.until(simulation.settled)
    simulation.run(20_000)
    beats = [one for one in a.sent if isinstance(one, m.ConsumerGroupHeartbeatRequest)]
    first, last = beats[0], beats[-1]
    assert (first.member_epoch, first.instance_id, first.rack_id, first.server_assignor) == (0, "i", "r", "uniform")
    assert (first.subscribed_topic_names, first.topic_partitions, first.rebalance_timeout_ms) == (["t"], [], 300_000)
    assert (last.subscribed_topic_names, last.topic_partitions, last.rebalance_timeout_ms) == (None, None, -1)
    simulation.faults.append(once(m.ConsumerGroupHeartbeatRequest, "cut"))
    simulation.run(10_000)
    again = [one for one in a.sent if isinstance(one, m.ConsumerGroupHeartbeatRequest)][len(beats) + 1]
    assert again.subscribed_topic_names == ["t"] and again.topic_partitions
    a.leave()
    assert a.sent[-1].member_epoch == -2, "a static member leaves temporarily"


def test_a_pattern_is_sent_to_the_broker_and_withdrawn() -> None:
    simulation = GroupSimulation(t=2)
    a = simulation.member(**NEXT)
    a.machine.subscribe([], "t.*")  # type: ignore[call-arg]
    simulation.run(1000)
    beats = [one for one in a.sent if isinstance(one, m.ConsumerGroupHeartbeatRequest)]
    assert beats[0].subscribed_topic_regex == "t.*"
    a.machine.subscribe(["t"])
    simulation.run(1000)
    changed = [one for one in a.sent if isinstance(one, m.ConsumerGroupHeartbeatRequest) and one.subscribed_topic_regex == ""]
    assert changed[0].subscribed_topic_names == ["t"]


def test_new_partitions_are_not_read_before_the_coordinator_knows_the_revoked_ones() -> None:
    """Even if one response contains both. The member sends the acknowledgement at once, not with the next scheduled heartbeat."""
    simulation = GroupSimulation(t=4)
    a = simulation.member(**NEXT)
    a.machine.subscribe(["t"])
    assignments = [TopicPartitions(topic_id=simulation.topic_id("t"), partitions=some) for some in ([0, 1], [2, 3])]
    simulation.faults += [
        once(m.ConsumerGroupHeartbeatRequest, heartbeat_response(a, 5_000, assignments[0])),
        once(m.ConsumerGroupHeartbeatRequest, heartbeat_response(a, 5_000, None)),
    ]
    simulation.until(lambda: a.owned == ["t-0", "t-1"])
    simulation.faults.append(once(m.ConsumerGroupHeartbeatRequest, heartbeat_response(a, 5_000, assignments[1])))
    simulation.until(lambda: a.times_notified("revoked") == 1)
    assert a.owned == [], "not in the same poll"
    simulation.faults.append(once(m.ConsumerGroupHeartbeatRequest, heartbeat_response(a, 5_000, None)))
    assert simulation.until(lambda: a.owned == ["t-2", "t-3"]) <= 200
    beats = [one.topic_partitions for one in a.sent if isinstance(one, m.ConsumerGroupHeartbeatRequest)]
    assert [] in beats[1:], "as in an earlier heartbeat"


def test_a_member_sends_the_next_heartbeat_at_the_interval_of_the_coordinator() -> None:
    simulation = GroupSimulation(t=2)
    simulation.consumer.heartbeat_interval_ms = 700
    a = simulation.member(**NEXT)
    simulation.until(simulation.settled)
    before = len(a.sent)
    simulation.run(7_100)
    assert len(a.sent) - before == 10


# -- contents of requests


def test_a_join_contains_owned_partitions_generation_and_rack() -> None:
    simulation = GroupSimulation(t=2)
    a = simulation.member(client_rack="r1", **COOPERATIVE)
    simulation.until(simulation.settled)
    a.machine.rejoin("look")
    simulation.until(lambda: simulation.classic.generation == 2)
    join = [one for one in a.sent if isinstance(one, m.JoinGroupRequest)][-1]
    (protocol,) = join.protocols
    subscription = decode_embedded(ConsumerProtocolSubscription, protocol.metadata)
    assert (subscription.topics, subscription.generation_id, subscription.rack_id) == (["t"], 1, "r1")
    assert [(one.topic, one.partitions) for one in subscription.owned_partitions] == [("t", [0, 1])]
    assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (45_000, 300_000)


def test_an_assignor_receives_its_assignment_and_adds_user_data_to_the_next_join() -> None:
    simulation = GroupSimulation(t=2)
    a = simulation.member(partition_assignment_strategy="sticky")
    simulation.until(simulation.settled)
    a.machine.rejoin("look")
    simulation.until(lambda: simulation.classic.generation == 2)
    first, *_, last = [one.protocols[0].metadata for one in a.sent if isinstance(one, m.JoinGroupRequest)]
    user_data = [decode_embedded(ConsumerProtocolSubscription, metadata).user_data for metadata in (first, last)]
    assert not user_data[0] and user_data[1] and b"\x00\x01t" in bytes(user_data[1])


def test_an_unreadable_member_does_not_stop_the_leader() -> None:
    simulation = GroupSimulation(t=2)
    a, b = simulation.member(), simulation.member()

    def garble(player: SimulatedMember, request: Any) -> None:
        if player is b and isinstance(request, m.JoinGroupRequest):
            for protocol in request.protocols:
                protocol.metadata = b"\x00"

    simulation.faults.append(garble)
    simulation.run(20_000)
    assert (a.owned, b.owned) in ((["t-0", "t-1"], []), ([], []))
    assert not a.errors


# -- random histories


@ALL
@pytest.mark.parametrize("seed", range(12))
def test_a_group_becomes_stable_after_any_history(how: dict[str, Any], seed: int) -> None:
    """Members join, leave, hang, die and lose connections; requests are lost and refused. After the faults end, the group must become
    stable."""
    rng = Random(seed)
    simulation = GroupSimulation(t=5, u=3)
    codes: list[Any] = ["cut", 14, 15, 16]

    def fault(player: SimulatedMember, request: Any) -> Any:
        if rng.random() < 0.9 or not simulation.faults:
            return None
        code = rng.choice(codes)
        if code == "cut":
            return code
        response = m.API[{api.request: key for key, api in m.API.items()}[type(request)]].response
        return None if response is m.FindCoordinatorResponse else response(error_code=code)

    for _ in range(25):
        simulation.faults = [fault] * 3
        members = [player for player in simulation.members if player.alive]
        what = rng.choice(["come", "come", "leave", "hang", "wake", "die", "cut", "mend"])
        if what == "come" and len(members) < 6:
            simulation.member(*rng.choice([("t",), ("t", "u"), ("u",)]), max_poll_interval_ms=20_000, **how)
        elif members:
            player = rng.choice(members)
            match what:
                case "leave":
                    player.leave()
                case "hang":
                    player.polls = False
                case "wake":
                    player.polls = True
                case "die":
                    player.alive = False
                case "cut":
                    player.connected = False
                case "mend":
                    player.connected = True
        simulation.run(rng.choice([50, 500, 5000, 30_000]))
    simulation.faults.clear()
    for player in simulation.members:
        player.polls = player.connected = True
    simulation.member("t", "u", max_poll_interval_ms=20_000, **how)
    simulation.until(simulation.settled, 200_000)
    assert isinstance(simulation.members[-1].machine, Membership) == ("group_protocol" not in how)

"""Members of groups in virtual time, under both protocols: who reads what when others come, go, hang and die."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from group_world import Player, World

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
    """An accident of one request."""
    return lambda player, request: answer if isinstance(request, kind) else None


def beaten(player: Player, interval_ms: int, given: TopicPartitions | None) -> Any:
    """The answer to a heartbeat: epoch 1, and what to read if that changed."""
    return m.ConsumerGroupHeartbeatResponse(
        member_id=player.machine.member_id,
        member_epoch=1,
        heartbeat_interval_ms=interval_ms,
        assignment=None if given is None else Assignment(topic_partitions=[given]),
    )


def sizes(*players: Player) -> list[int]:
    return sorted(len(player.owned) for player in players)


# -- coming and going


@ALL
def test_one_member_reads_all(how: dict[str, Any]) -> None:
    world = World(t=3)
    player = world.member(**how)
    world.until(world.settled)
    assert player.told == [("assigned", ["t-0", "t-1", "t-2"])]


@ALL
def test_members_share_and_shares_change_as_they_come_and_go(how: dict[str, Any]) -> None:
    world = World(t=6)
    a = world.member(**how)
    world.until(world.settled)
    b = world.member(**how)
    world.until(lambda: world.settled() and sizes(a, b) == [3, 3])
    c = world.member(**how)
    world.until(lambda: world.settled() and sizes(a, b, c) == [2, 2, 2])
    b.leave()
    world.until(lambda: world.settled() and sizes(a, c) == [3, 3])
    assert not any(player.times("lost") for player in (a, b, c))


@pytest.mark.parametrize("how", [COOPERATIVE, NEXT], ids=["cooperative", "next"])
def test_only_what_moves_is_given_up(how: dict[str, Any]) -> None:
    world = World(t=4)
    a = world.member(**how)
    world.until(world.settled)
    b = world.member(**how)
    world.until(lambda: world.settled() and sizes(a, b) == [2, 2])
    revoked = [partitions for kind, partitions in a.told if kind == "revoked"]
    assert revoked == [b.owned]


def test_what_a_member_gave_up_finds_an_owner_though_it_forgot_to_join_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a static member does that is restarted in between: the leader remembers what it withheld."""
    world = World(t=4)
    a = world.member(**COOPERATIVE, max_poll_interval_ms=5_000)
    world.until(world.settled)
    rejoin = a.machine.rejoin
    monkeypatch.setattr(a.machine, "rejoin", lambda reason: rejoin(reason) if "gave up" not in reason else None)
    b = world.member(**COOPERATIVE, max_poll_interval_ms=5_000)
    world.until(lambda: sizes(a, b) == [0, 2])
    took_ms = world.until(lambda: world.settled() and sizes(a, b) == [2, 2])
    assert took_ms > 4_000, "others have max.poll.interval.ms to give up what they have"


def test_an_eager_member_gives_up_everything_before_it_joins_again() -> None:
    world = World(t=4)
    a = world.member()
    world.until(world.settled)
    world.member()
    world.until(world.settled)
    assert [kind for kind, _ in a.told] == ["assigned", "revoked", "assigned"]
    assert a.told[1][1] == ["t-0", "t-1", "t-2", "t-3"]


@ALL
def test_a_changed_subscription_changes_what_is_read(how: dict[str, Any]) -> None:
    world = World(t=2, u=2)
    a = world.member("t", **how)
    world.until(lambda: a.owned == ["t-0", "t-1"])
    a.machine.subscribe(["u"])
    world.until(lambda: a.owned == ["u-0", "u-1"])
    a.machine.subscribe(["t", "u"])
    world.until(world.settled)


def test_new_partitions_are_assigned() -> None:
    world = World(t=2)
    a, b = world.member(), world.member()
    world.until(world.settled)
    world.topics["t"] = 4
    world.until(world.settled)
    assert sizes(a, b) == [2, 2]


def test_topics_that_nobody_has_yet_do_not_stop_the_group() -> None:
    world = World(t=2)
    a = world.member("t", "later")
    world.until(lambda: a.owned == ["t-0", "t-1"])
    world.topics["later"] = 1
    world.until(lambda: "later-0" in a.owned)


def test_nobody_joins_before_the_user_polls() -> None:
    world = World(t=2)
    a = world.member()
    a.polls = False
    world.run(10_000)
    assert a.sent == []


def test_a_rebalance_that_is_asked_for_happens() -> None:
    world = World(t=2)
    a, b = world.member(), world.member()
    world.until(world.settled)
    generation = world.classic.generation
    b.machine.rejoin("asked for")
    world.until(lambda: world.settled() and world.classic.generation > generation)
    joins = [one for one in b.sent if isinstance(one, m.JoinGroupRequest)]
    assert joins[-1].reason == "asked for"
    assert a.owned != b.owned


# -- users that hang, processes that die


@ALL
def test_heartbeats_go_on_while_the_user_works(how: dict[str, Any]) -> None:
    world = World(t=2)
    a = world.member(**how)
    world.until(world.settled)
    a.polls = False
    world.run(200_000)
    assert a.owned == ["t-0", "t-1"] and a.machine.committing[1] > 0


@ALL
def test_a_member_whose_user_hangs_leaves_and_comes_back_when_it_polls(how: dict[str, Any]) -> None:
    world = World(t=4)
    a, b = world.member(max_poll_interval_ms=10_000, **how), world.member(max_poll_interval_ms=10_000, **how)
    world.until(lambda: world.settled() and sizes(a, b) == [2, 2])
    a.polls = False
    took_ms = world.until(lambda: len(b.owned) == 4)
    assert 9_000 < took_ms < 25_000
    a.polls = True
    world.until(lambda: world.settled() and sizes(a, b) == [2, 2])
    assert [kind for kind, some in a.told if some][-2:] == ["lost", "assigned"]


@ALL
def test_the_partitions_of_a_dead_member_are_taken_over(how: dict[str, Any]) -> None:
    world = World(t=4)
    a, b = world.member(**how), world.member(**how)
    world.until(world.settled)
    a.alive = False
    took_ms = world.until(lambda: len(b.owned) == 4)
    assert 40_000 < took_ms < 60_000


@ALL
def test_a_member_that_was_cut_off_loses_its_partitions_and_starts_again(how: dict[str, Any]) -> None:
    world = World(t=4)
    a, b = world.member(**how), world.member(**how)
    world.until(world.settled)
    a.connected = False
    world.until(lambda: len(b.owned) == 4)
    a.connected = True
    world.until(lambda: world.settled() and sizes(a, b) == [2, 2])
    assert a.times("lost") == 1


def test_a_static_member_comes_back_to_the_same_without_a_rebalance() -> None:
    world = World(t=4)
    a, b = world.member(group_instance_id="a"), world.member(group_instance_id="b")
    world.until(world.settled)
    had, generation = a.owned, world.classic.generation
    a.leave()
    assert not any(isinstance(one, m.LeaveGroupRequest) for one in a.sent)
    world.run(10_000)
    assert len(b.owned) == 2 and world.classic.generation == generation
    again = world.member(group_instance_id="a")
    world.until(lambda: world.settled() and again.owned == had)


def test_a_second_consumer_with_the_same_instance_id_fences_the_first_for_good() -> None:
    world = World(t=2)
    a = world.member(group_instance_id="a")
    world.until(world.settled)
    world.member(group_instance_id="a")
    world.until(lambda: bool(a.errors))
    world.run(1000)
    assert all(isinstance(error, FencedInstanceId) and "give each its own" in str(error) for error in a.errors)
    assert len(a.errors) > 1


# -- the coordinator's answers


@CLASSIC
@pytest.mark.parametrize("code", [14, 15, 16, 27, 7, "cut"])
def test_a_join_that_fails_for_a_time_is_tried_again(how: dict[str, Any], code: Any) -> None:
    world = World(t=2)
    world.accidents.append(once(m.JoinGroupRequest, "cut" if code == "cut" else m.JoinGroupResponse(error_code=code)))
    a = world.member(**how)
    world.until(world.settled)
    assert not a.errors


@CLASSIC
@pytest.mark.parametrize("code", [14, 15, 16, 22, 25, 27, "cut"])
def test_a_sync_that_fails_leads_to_another_join(how: dict[str, Any], code: Any) -> None:
    world = World(t=2)
    world.accidents.append(once(m.SyncGroupRequest, "cut" if code == "cut" else m.SyncGroupResponse(error_code=code)))
    a = world.member(**how)
    world.until(world.settled)
    assert not a.errors


@CLASSIC
@pytest.mark.parametrize(("code", "lost"), [(14, 0), (15, 0), (16, 0), (27, 0), ("cut", 0), (22, 1), (25, 1)])
def test_only_a_heartbeat_that_says_so_costs_the_partitions(how: dict[str, Any], code: Any, lost: int) -> None:
    world = World(t=2)
    a = world.member(**how)
    world.until(world.settled)
    member_id = a.machine.member_id
    if code == 25:
        world.classic.remove(member_id)
    world.accidents.append(once(m.HeartbeatRequest, "cut" if code == "cut" else m.HeartbeatResponse(error_code=code)))
    world.run(20_000)
    assert world.settled() and a.times("lost") == lost and not a.errors
    assert (a.machine.member_id == member_id) == (code != 25)


def test_a_coordinator_that_says_nothing_for_a_session_is_looked_for_anew() -> None:
    world = World(t=2)
    a = world.member(session_timeout_ms=10_000)
    world.until(world.settled)
    world.accidents += [once(m.HeartbeatRequest, m.HeartbeatResponse(error_code=14))] * 4
    world.run(13_000)
    assert sum(isinstance(one, m.FindCoordinatorRequest) for one in a.sent) == 2
    assert world.settled() and not a.times("lost")


def test_a_commit_that_is_refused_for_a_rebalance_brings_the_member_to_it_at_once() -> None:
    world = World(t=2)
    a = world.member()
    world.until(world.settled)
    a.machine.commit_refused(27)
    assert world.until(lambda: world.classic.generation == 2) < 300, "and not with the next heartbeat"


def test_a_static_leader_that_comes_back_assigns_nothing_and_notices_later_that_a_topic_grew() -> None:
    """Source: KIP-814."""
    world = World(t=2)
    a = world.member(group_instance_id="a")
    world.until(world.settled)
    metadata = next(one for one in a.sent if isinstance(one, m.JoinGroupRequest)).protocols[0].metadata
    a.leave()
    leader = m.JoinGroupResponseMember(member_id="a-1", group_instance_id="a", metadata=metadata)
    joined = m.JoinGroupResponse(
        generation_id=1, protocol_name="range", leader="a-1", member_id="a-1", members=[leader], skip_assignment=True
    )
    world.accidents.append(once(m.JoinGroupRequest, joined))
    again = world.member(group_instance_id="a")
    world.until(lambda: again.owned == ["t-0", "t-1"])
    (sync,) = [one for one in again.sent if isinstance(one, m.SyncGroupRequest)]
    assert sync.assignments == []
    world.topics["t"] = 3
    world.until(lambda: again.owned == ["t-0", "t-1", "t-2"])


def test_what_was_made_for_another_subscription_is_not_read_and_made_anew() -> None:
    """A static member is given what its former self subscribed to."""
    world = World(t=2, u=2)
    a = world.member("t", group_instance_id="a")
    world.until(lambda: a.owned == ["t-0", "t-1"])
    a.leave()
    former = m.JoinGroupResponse(generation_id=1, protocol_name="range", leader="b", member_id="a-1")
    world.accidents.append(once(m.JoinGroupRequest, former))
    again = world.member("u", group_instance_id="a")
    world.until(lambda: again.owned == ["u-0", "u-1"])
    assert not any("t-0" in partitions for _, partitions in again.told)


@CLASSIC
@pytest.mark.parametrize(
    ("code", "error", "told"),
    [
        (81, GroupMaxSizeReached, "group.max.size"),
        (30, GroupAuthorizationFailed, "READ"),
        (23, InconsistentGroupProtocol, "partition_assignment_strategy"),
        (26, KafkaError, "group.min.session.timeout.ms"),
        (24, KafkaError, "no valid name"),
        (82, FencedInstanceId, "group_instance_id"),
    ],
)
def test_what_will_not_pass_is_told_to_the_user_with_advice(how: dict[str, Any], code: int, error: type[Exception], told: str) -> None:
    world = World(t=2)
    world.accidents.append(once(m.JoinGroupRequest, m.JoinGroupResponse(error_code=code)))
    a = world.member(**how)
    world.run(90)
    world.until(lambda: bool(a.errors), 1000)
    assert isinstance(a.errors[0], error) and told in str(a.errors[0])
    if error is not FencedInstanceId:
        world.until(world.settled)


@ALL
def test_the_coordinator_is_looked_for_until_it_is_found(how: dict[str, Any]) -> None:
    world = World(t=2)
    for code in (15, 15, 14):
        coordinator = m.find_coordinator.Coordinator(key="g", node_id=-1, error_code=code)
        world.accidents.append(once(m.FindCoordinatorRequest, m.FindCoordinatorResponse(coordinators=[coordinator])))
    world.accidents.append(once(m.FindCoordinatorRequest, "cut"))
    a = world.member(**how)
    world.until(world.settled)
    assert sum(isinstance(one, m.FindCoordinatorRequest) for one in a.sent) == 5


@pytest.mark.parametrize(("code", "lost"), [(14, 0), (15, 0), (16, 0), ("cut", 0), (25, 1), (110, 1)])
def test_only_an_answer_that_says_so_costs_the_partitions_under_the_next_protocol(code: Any, lost: int) -> None:
    world = World(t=2)
    a = world.member(**NEXT)
    world.until(world.settled)
    if code in (25, 110):
        del world.next.members[a.machine.member_id]
    member_id = a.machine.member_id
    answer = "cut" if code == "cut" else m.ConsumerGroupHeartbeatResponse(error_code=code)
    world.accidents.append(once(m.ConsumerGroupHeartbeatRequest, answer))
    world.run(30_000)
    assert world.settled() and a.times("lost") == lost and not a.errors
    assert a.machine.member_id == member_id, "the id lasts as long as the consumer (KIP-1082)"


@pytest.mark.parametrize(
    ("code", "told"),
    [(81, "group.max.size"), (30, "READ"), (112, "group.consumer.assignors"), (111, "wait"), (35, "classic"), (128, "RE2")],
)
def test_what_will_not_pass_is_told_under_the_next_protocol_too(code: int, told: str) -> None:
    world = World(t=2)
    world.accidents.append(once(m.ConsumerGroupHeartbeatRequest, m.ConsumerGroupHeartbeatResponse(error_code=code)))
    a = world.member(**NEXT)
    world.until(lambda: bool(a.errors), 1000)
    assert told in str(a.errors[0])
    world.until(world.settled)


def test_what_is_given_up_is_acknowledged_before_anything_is_taken() -> None:
    world = World(t=4)
    a, b = world.member(**NEXT), world.member(**NEXT)
    world.until(lambda: world.settled() and sizes(a, b) == [2, 2])
    beats = [one for one in a.sent if isinstance(one, m.ConsumerGroupHeartbeatRequest) and one.topic_partitions is not None]
    assert [len(world.by_name(one.topic_partitions or [])) for one in beats] == [0, 4, 2]


def test_a_heartbeat_tells_all_first_and_then_only_news() -> None:
    world = World(t=2)
    a = world.member(group_instance_id="i", client_rack="r", group_remote_assignor="uniform", **NEXT)
    world.until(world.settled)
    world.run(20_000)
    beats = [one for one in a.sent if isinstance(one, m.ConsumerGroupHeartbeatRequest)]
    first, last = beats[0], beats[-1]
    assert (first.member_epoch, first.instance_id, first.rack_id, first.server_assignor) == (0, "i", "r", "uniform")
    assert (first.subscribed_topic_names, first.topic_partitions, first.rebalance_timeout_ms) == (["t"], [], 300_000)
    assert (last.subscribed_topic_names, last.topic_partitions, last.rebalance_timeout_ms) == (None, None, -1)
    world.accidents.append(once(m.ConsumerGroupHeartbeatRequest, "cut"))
    world.run(10_000)
    again = [one for one in a.sent if isinstance(one, m.ConsumerGroupHeartbeatRequest)][len(beats) + 1]
    assert again.subscribed_topic_names == ["t"] and again.topic_partitions
    a.leave()
    assert a.sent[-1].member_epoch == -2, "a static member leaves for a while"


def test_a_pattern_goes_to_the_brokers_and_is_taken_back() -> None:
    world = World(t=2)
    a = world.member(**NEXT)
    a.machine.subscribe([], "t.*")  # type: ignore[call-arg]
    world.run(1000)
    beats = [one for one in a.sent if isinstance(one, m.ConsumerGroupHeartbeatRequest)]
    assert beats[0].subscribed_topic_regex == "t.*"
    a.machine.subscribe(["t"])
    world.run(1000)
    changed = [one for one in a.sent if isinstance(one, m.ConsumerGroupHeartbeatRequest) and one.subscribed_topic_regex == ""]
    assert changed[0].subscribed_topic_names == ["t"]


def test_what_it_shall_read_is_not_taken_before_the_coordinator_knows_what_it_gave_up() -> None:
    """Even if both are told at once; and it is told at once, not with the next heartbeat that is due."""
    world = World(t=4)
    a = world.member(**NEXT)
    a.machine.subscribe(["t"])
    told = [TopicPartitions(topic_id=world.topic_id("t"), partitions=some) for some in ([0, 1], [2, 3])]
    world.accidents += [
        once(m.ConsumerGroupHeartbeatRequest, beaten(a, 5_000, told[0])),
        once(m.ConsumerGroupHeartbeatRequest, beaten(a, 5_000, None)),
    ]
    world.until(lambda: a.owned == ["t-0", "t-1"])
    world.accidents.append(once(m.ConsumerGroupHeartbeatRequest, beaten(a, 5_000, told[1])))
    world.until(lambda: a.times("revoked") == 1)
    assert a.owned == [], "not in the same poll"
    world.accidents.append(once(m.ConsumerGroupHeartbeatRequest, beaten(a, 5_000, None)))
    assert world.until(lambda: a.owned == ["t-2", "t-3"]) <= 200
    beats = [one.topic_partitions for one in a.sent if isinstance(one, m.ConsumerGroupHeartbeatRequest)]
    assert [] in beats[1:], "which was said before"


def test_a_member_comes_again_when_the_coordinator_said() -> None:
    world = World(t=2)
    world.next.heartbeat_interval_ms = 700
    a = world.member(**NEXT)
    world.until(world.settled)
    before = len(a.sent)
    world.run(7_100)
    assert len(a.sent) - before == 10


# -- what is said


def test_a_member_tells_what_it_owns_since_when_and_where_it_is() -> None:
    world = World(t=2)
    a = world.member(client_rack="r1", **COOPERATIVE)
    world.until(world.settled)
    a.machine.rejoin("look")
    world.until(lambda: world.classic.generation == 2)
    join = [one for one in a.sent if isinstance(one, m.JoinGroupRequest)][-1]
    (protocol,) = join.protocols
    told = decode_embedded(ConsumerProtocolSubscription, protocol.metadata)
    assert (told.topics, told.generation_id, told.rack_id) == (["t"], 1, "r1")
    assert [(one.topic, one.partitions) for one in told.owned_partitions] == [("t", [0, 1])]
    assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (45_000, 300_000)


def test_an_assignor_hears_what_its_member_was_given_and_says_so_in_the_next_join() -> None:
    world = World(t=2)
    a = world.member(partition_assignment_strategy="sticky")
    world.until(world.settled)
    a.machine.rejoin("look")
    world.until(lambda: world.classic.generation == 2)
    first, *_, last = [one.protocols[0].metadata for one in a.sent if isinstance(one, m.JoinGroupRequest)]
    said = [decode_embedded(ConsumerProtocolSubscription, metadata).user_data for metadata in (first, last)]
    assert not said[0] and said[1] and b"\x00\x01t" in bytes(said[1])


def test_a_member_that_cannot_be_read_does_not_stop_the_leader() -> None:
    world = World(t=2)
    a, b = world.member(), world.member()

    def garble(player: Player, request: Any) -> None:
        if player is b and isinstance(request, m.JoinGroupRequest):
            for protocol in request.protocols:
                protocol.metadata = b"\x00"

    world.accidents.append(garble)
    world.run(20_000)
    assert (a.owned, b.owned) in ((["t-0", "t-1"], []), ([], []))
    assert not a.errors


# -- all at once


@ALL
@pytest.mark.parametrize("seed", range(12))
def test_a_group_settles_whatever_happened(how: dict[str, Any], seed: int) -> None:
    """Members come, go, hang, die and are cut off; requests are lost and refused. Then peace, and the group must come to rest."""
    rng = Random(seed)
    world = World(t=5, u=3)
    codes: list[Any] = ["cut", 14, 15, 16]

    def accident(player: Player, request: Any) -> Any:
        if rng.random() < 0.9 or not world.accidents:
            return None
        code = rng.choice(codes)
        if code == "cut":
            return code
        response = m.API[{api.request: key for key, api in m.API.items()}[type(request)]].response
        return None if response is m.FindCoordinatorResponse else response(error_code=code)

    for _ in range(25):
        world.accidents = [accident] * 3
        players = [player for player in world.players if player.alive]
        what = rng.choice(["come", "come", "leave", "hang", "wake", "die", "cut", "mend"])
        if what == "come" and len(players) < 6:
            world.member(*rng.choice([("t",), ("t", "u"), ("u",)]), max_poll_interval_ms=20_000, **how)
        elif players:
            player = rng.choice(players)
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
        world.run(rng.choice([50, 500, 5000, 30_000]))
    world.accidents.clear()
    for player in world.players:
        player.polls = player.connected = True
    world.member("t", "u", max_poll_interval_ms=20_000, **how)
    world.until(world.settled, 200_000)
    assert isinstance(world.players[-1].machine, Membership) == ("group_protocol" not in how)

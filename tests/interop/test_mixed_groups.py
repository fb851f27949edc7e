"""Groups whose members are different clients: they share a topic under load, and survive each other's failures and the broker's."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewTopic
from group_members import HEARTBEAT_MS, SESSION_MS, Load, Meeting, Member, until

from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.interop, pytest.mark.usefixtures("own_server_only")]

PARTITIONS = 8
#: Nobody is waited for where that does not matter, and members that are gone are missed soon.
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000", "offsets.topic.num.partitions": "4"}
#: The new protocol has its sessions and heartbeats from the broker.
NEW_SETTINGS = {
    **SETTINGS,
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
}
NEW_PROTOCOL = {"group_protocol": "consumer", "session_timeout_ms": None, "heartbeat_interval_ms": None}
CLIENTS = ("ottla", "confluent", "kafka_python", "aiokafka")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("groups") / "data", settings=SETTINGS) as serving:
        yield serving


@pytest.fixture(scope="module")
def new_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("new-groups") / "data", settings=NEW_SETTINGS) as serving:
        yield serving


def made(bootstrap: str, partitions: int = PARTITIONS) -> str:
    """A topic that no other test knows."""
    name = f"shared-{uuid.uuid4().hex[:10]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
    return name


@pytest.mark.parametrize("turn", range(len(CLIENTS)), ids=lambda turn: f"{CLIENTS[turn]} is killed")
def test_members_of_several_clients_share_a_topic_and_take_over_from_those_that_fail(server: Serving, tmp_path: Path, turn: int) -> None:
    """One is killed, one stopped for longer than its session and let go on, one leaves: each client in each part."""
    topic = made(server.bootstrap)
    with Load(server.bootstrap, topic, PARTITIONS) as load, Meeting(server.bootstrap, topic, tmp_path, partitions=PARTITIONS) as meeting:
        clients = CLIENTS[turn:] + CLIENTS[:turn]
        killed, stopped, leaver, stays = members = [meeting.start(client) for client in clients]
        meeting.until_shared_by(members)
        killed.kill()
        assert meeting.until_shared_by([stopped, leaver, stays]) < 10 + SESSION_MS / 1000
        back = meeting.start(clients[0])
        meeting.until_shared_by([stopped, leaver, stays, back])
        stopped.freeze()
        meeting.until_shared_by([leaver, stays, back])
        stopped.thaw()
        until(lambda: not stopped.stale, f"{stopped} hears that the group went on")
        meeting.until_shared_by([stopped, leaver, stays, back])
        leaver.leave()
        assert meeting.until_shared_by([stopped, stays, back]) < 10, "nobody waits for a member that has said goodbye"
        meeting.finish(load.stop())


def test_a_static_member_comes_back_to_its_partitions_and_nobody_else_notices(server: Serving, tmp_path: Path) -> None:
    """KIP-345: killed and started again within its session, under each client."""
    topic = made(server.bootstrap)
    settings = {"session_timeout_ms": 20_000}
    with Load(server.bootstrap, topic, PARTITIONS) as load, Meeting(server.bootstrap, topic, tmp_path, partitions=PARTITIONS) as meeting:
        members = {client: meeting.start(client, group_instance_id=f"seat-of-{client}", **settings) for client in CLIENTS}
        meeting.until_shared_by(members.values())
        for client in CLIENTS:
            before, others = set(members[client].owned), [member for name, member in members.items() if name != client]
            told = [member.assignments for member in others]
            members[client].kill()
            members[client] = meeting.start(client, group_instance_id=f"seat-of-{client}", **settings)
            meeting.until_shared_by(members.values(), timeout_s=15)
            assert members[client].owned == before
            time.sleep(3 * HEARTBEAT_MS / 1000)
            assert [member.assignments for member in others] == told, "no rebalance took place"
        meeting.finish(load.stop())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_all_members_go_on_after_the_broker_was_killed(tmp_path: Path, protocol: str) -> None:
    """Twice: the second start reads what the first one wrote behind what it had found."""
    with Serving(tmp_path / "data", settings={**NEW_SETTINGS, "group.consumer.session.timeout.ms": "6000"}) as broker:
        topic = made(broker.bootstrap)
        with (
            Load(broker.bootstrap, topic, PARTITIONS) as load,
            Meeting(broker.bootstrap, topic, tmp_path, partitions=PARTITIONS) as meeting,
        ):
            classic = [meeting.start(client, session_timeout_ms=6_000) for client in CLIENTS if protocol == "classic"]
            members = classic or consumers(meeting, 3)
            meeting.until_shared_by(members)
            for _ in range(2):
                broker.kill()
                broker.start()
                seen = [len(meeting.journal.told("committed", member)) for member in members]

                def all_commit(seen: list[int] = seen) -> bool:
                    return all(len(meeting.journal.told("committed", member)) > count for member, count in zip(members, seen, strict=True))

                until(all_commit, "every member commits again")
            meeting.until_shared_by(members)
            meeting.finish(load.stop())


def test_two_groups_on_a_topic_each_read_everything(server: Serving, tmp_path: Path) -> None:
    """Publish and subscribe between the groups, point to point within one."""
    topic = made(server.bootstrap)
    with Load(server.bootstrap, topic, PARTITIONS) as load, contextlib.ExitStack() as both:
        groups = [
            both.enter_context(Meeting(server.bootstrap, topic, tmp_path, group=f"{name}-of-{topic}", partitions=PARTITIONS))
            for name in ("first", "second")
        ]
        for group, clients in zip(groups, (("confluent", "aiokafka"), ("kafka_python", "ottla")), strict=True):
            group.until_shared_by([group.start(client) for client in clients])
        ends = load.stop()
        for group in groups:
            group.finish(ends)
            assert len(group.journal.told("read")) - group.journal.repeats() == sum(ends.values())


# The protocol of KIP-848, where the coordinator assigns.


def consumers(meeting: Meeting, count: int) -> list[Member]:
    """Members of the new protocol, whose session the broker decides upon: of either client that speaks it, in turn."""
    return [meeting.start(("ottla", "confluent")[len(meeting.members) % 2], **NEW_PROTOCOL) for _ in range(count)]


def test_members_of_the_new_protocol_share_a_topic_and_take_over_from_those_that_fail(new_server: Serving, tmp_path: Path) -> None:
    topic = made(new_server.bootstrap)
    bootstrap = new_server.bootstrap
    with Load(bootstrap, topic, PARTITIONS) as load, Meeting(bootstrap, topic, tmp_path, partitions=PARTITIONS) as meeting:
        killed, stopped, leaver = consumers(meeting, 3)
        meeting.until_shared_by([killed, stopped, leaver])
        killed.kill()
        meeting.until_shared_by([stopped, leaver])
        (back,) = consumers(meeting, 1)
        meeting.until_shared_by([stopped, leaver, back])
        stopped.freeze()
        meeting.until_shared_by([leaver, back])
        stopped.thaw()
        until(lambda: not stopped.stale, f"{stopped} hears that the group went on")
        meeting.until_shared_by([stopped, leaver, back])
        leaver.leave()
        assert meeting.until_shared_by([stopped, back]) < 10
        meeting.finish(load.stop())


def test_a_group_moves_to_the_new_protocol_and_back_member_by_member(new_server: Serving, tmp_path: Path) -> None:
    """Online upgrade and downgrade (group.consumer.migration.policy=bidirectional), under load."""
    topic = made(new_server.bootstrap)
    bootstrap = new_server.bootstrap
    with Load(bootstrap, topic, PARTITIONS) as load, Meeting(bootstrap, topic, tmp_path, partitions=PARTITIONS) as meeting:
        old = [meeting.start(client) for client in CLIENTS]
        meeting.until_shared_by(old)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        assert kind(admin, meeting.group) == ConsumerGroupType.CLASSIC
        new: list[Member] = []
        for leaving in list(old):
            new += consumers(meeting, 1)
            meeting.until_shared_by(old + new)
            assert kind(admin, meeting.group) == ConsumerGroupType.CONSUMER
            old.remove(leaving)
            leaving.leave()
            meeting.until_shared_by(old + new)
        for leaving in list(new):
            old.append(meeting.start(CLIENTS[len(old)]))
            meeting.until_shared_by(old + new)
            new.remove(leaving)
            leaving.leave()
            meeting.until_shared_by(old + new)
        until(lambda: kind(admin, meeting.group) == ConsumerGroupType.CLASSIC, "the group is classic again")
        meeting.finish(load.stop())


def kind(admin: AdminClient, group: str) -> ConsumerGroupType:
    """Of which protocol the broker says the group is."""
    return next(each.type for each in admin.list_consumer_groups().result(10).valid if each.group_id == group)

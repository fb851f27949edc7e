"""Groups of different clients: they share a topic under load, and survive failures of members and of the broker."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewTopic
from group_members import HEARTBEAT_MS, SESSION_MS, GroupUnderTest, Load, Member, until

from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.interop, pytest.mark.usefixtures("own_server_only")]

PARTITIONS = 8
#: No initial rebalance delay, and short sessions.
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000", "offsets.topic.num.partitions": "4"}
#: In the consumer protocol the broker sets session timeout and heartbeat interval.
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
    """A topic with a unique name."""
    name = f"shared-{uuid.uuid4().hex[:10]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
    return name


@pytest.mark.parametrize("turn", range(len(CLIENTS)), ids=lambda turn: f"{CLIENTS[turn]} is killed")
def test_members_of_several_clients_share_a_topic_and_take_over_from_those_that_fail(server: Serving, tmp_path: Path, turn: int) -> None:
    """One member is killed, one stopped for longer than its session and continued, one leaves. Each client takes each part."""
    topic = made(server.bootstrap)
    with (
        Load(server.bootstrap, topic, PARTITIONS) as load,
        GroupUnderTest(server.bootstrap, topic, tmp_path, partitions=PARTITIONS) as group,
    ):
        clients = CLIENTS[turn:] + CLIENTS[:turn]
        killed, stopped, leaver, stays = members = [group.start(client) for client in clients]
        group.until_shared_by(members)
        killed.kill()
        assert group.until_shared_by([stopped, leaver, stays]) < 10 + SESSION_MS / 1000
        back = group.start(clients[0])
        group.until_shared_by([stopped, leaver, stays, back])
        stopped.freeze()
        group.until_shared_by([leaver, stays, back])
        stopped.thaw()
        until(lambda: not stopped.stale, f"{stopped} knows that the group has continued")
        group.until_shared_by([stopped, leaver, stays, back])
        leaver.leave()
        assert group.until_shared_by([stopped, stays, back]) < 10, "no member waits for one that has left"
        group.finish(load.stop())


def test_a_static_member_rejoins_with_its_partitions_without_a_rebalance(server: Serving, tmp_path: Path) -> None:
    """KIP-345: killed and restarted within its session, with each client."""
    topic = made(server.bootstrap)
    settings = {"session_timeout_ms": 20_000}
    with (
        Load(server.bootstrap, topic, PARTITIONS) as load,
        GroupUnderTest(server.bootstrap, topic, tmp_path, partitions=PARTITIONS) as group,
    ):
        members = {client: group.start(client, group_instance_id=f"seat-of-{client}", **settings) for client in CLIENTS}
        group.until_shared_by(members.values())
        for client in CLIENTS:
            before, others = set(members[client].owned), [member for name, member in members.items() if name != client]
            assignments = [member.assignments for member in others]
            members[client].kill()
            members[client] = group.start(client, group_instance_id=f"seat-of-{client}", **settings)
            group.until_shared_by(members.values(), timeout_s=15)
            assert members[client].owned == before
            time.sleep(3 * HEARTBEAT_MS / 1000)
            assert [member.assignments for member in others] == assignments, "no rebalance took place"
        group.finish(load.stop())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_all_members_continue_after_the_broker_was_killed(tmp_path: Path, protocol: str) -> None:
    """Twice: the second start reads what the first one appended to the recovered log."""
    with Serving(tmp_path / "data", settings={**NEW_SETTINGS, "group.consumer.session.timeout.ms": "6000"}) as broker:
        topic = made(broker.bootstrap)
        with (
            Load(broker.bootstrap, topic, PARTITIONS) as load,
            GroupUnderTest(broker.bootstrap, topic, tmp_path, partitions=PARTITIONS) as group,
        ):
            classic = [group.start(client, session_timeout_ms=6_000) for client in CLIENTS if protocol == "classic"]
            members = classic or consumers(group, 3)
            group.until_shared_by(members)
            for _ in range(2):
                broker.kill()
                broker.start()
                seen = [len(group.journal.contents("committed", member)) for member in members]

                def all_commit(seen: list[int] = seen) -> bool:
                    return all(
                        len(group.journal.contents("committed", member)) > count for member, count in zip(members, seen, strict=True)
                    )

                until(all_commit, "every member commits again")
            group.until_shared_by(members)
            group.finish(load.stop())


def test_two_groups_on_a_topic_each_read_everything(server: Serving, tmp_path: Path) -> None:
    """Publish and subscribe between groups, queue within one."""
    topic = made(server.bootstrap)
    with Load(server.bootstrap, topic, PARTITIONS) as load, contextlib.ExitStack() as both:
        groups = [
            both.enter_context(GroupUnderTest(server.bootstrap, topic, tmp_path, group=f"{name}-of-{topic}", partitions=PARTITIONS))
            for name in ("first", "second")
        ]
        for group, clients in zip(groups, (("confluent", "aiokafka"), ("kafka_python", "ottla")), strict=True):
            group.until_shared_by([group.start(client) for client in clients])
        ends = load.stop()
        for group in groups:
            group.finish(ends)
            assert len(group.journal.contents("read")) - group.journal.repeats() == sum(ends.values())


# The consumer protocol (KIP-848), where the coordinator computes the assignment.


def consumers(group: GroupUnderTest, count: int) -> list[Member]:
    """Members with the consumer protocol, of the two clients that support it, alternating."""
    return [group.start(("ottla", "confluent")[len(group.members) % 2], **NEW_PROTOCOL) for _ in range(count)]


def test_members_with_the_consumer_protocol_share_a_topic_and_take_over_from_those_that_fail(new_server: Serving, tmp_path: Path) -> None:
    topic = made(new_server.bootstrap)
    bootstrap = new_server.bootstrap
    with Load(bootstrap, topic, PARTITIONS) as load, GroupUnderTest(bootstrap, topic, tmp_path, partitions=PARTITIONS) as group:
        killed, stopped, leaver = consumers(group, 3)
        group.until_shared_by([killed, stopped, leaver])
        killed.kill()
        group.until_shared_by([stopped, leaver])
        (back,) = consumers(group, 1)
        group.until_shared_by([stopped, leaver, back])
        stopped.freeze()
        group.until_shared_by([leaver, back])
        stopped.thaw()
        until(lambda: not stopped.stale, f"{stopped} knows that the group has continued")
        group.until_shared_by([stopped, leaver, back])
        leaver.leave()
        assert group.until_shared_by([stopped, back]) < 10
        group.finish(load.stop())


def test_a_group_migrates_to_the_consumer_protocol_and_back_member_by_member(new_server: Serving, tmp_path: Path) -> None:
    """Online upgrade and downgrade (group.consumer.migration.policy=bidirectional), under load."""
    topic = made(new_server.bootstrap)
    bootstrap = new_server.bootstrap
    with Load(bootstrap, topic, PARTITIONS) as load, GroupUnderTest(bootstrap, topic, tmp_path, partitions=PARTITIONS) as group:
        old = [group.start(client) for client in CLIENTS]
        group.until_shared_by(old)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        assert kind(admin, group.group) == ConsumerGroupType.CLASSIC
        new: list[Member] = []
        for leaving in list(old):
            new += consumers(group, 1)
            group.until_shared_by(old + new)
            assert kind(admin, group.group) == ConsumerGroupType.CONSUMER
            old.remove(leaving)
            leaving.leave()
            group.until_shared_by(old + new)
        for leaving in list(new):
            old.append(group.start(CLIENTS[len(old)]))
            group.until_shared_by(old + new)
            new.remove(leaving)
            leaving.leave()
            group.until_shared_by(old + new)
        until(lambda: kind(admin, group.group) == ConsumerGroupType.CLASSIC, "the group is a classic group again")
        group.finish(load.stop())


def kind(admin: AdminClient, group: str) -> ConsumerGroupType:
    """The group's type according to the broker."""
    return next(each.type for each in admin.list_consumer_groups().result(10).valid if each.group_id == group)

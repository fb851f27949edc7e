"""The members with which rebalances are measured."""

from __future__ import annotations

import pytest
from bench.loads.group_members import Group, Member, shares
from bench.loads.groups import Members

from ottla.wire.messages.consumer_protocol import ConsumerProtocolAssignment, decode_embedded
from plain_kafka import create_topics
from serving import Serving


def test_the_leader_gives_every_partition_to_one_member() -> None:
    given = shares(["b", "a", "c"], "t", 8)
    parts = {each.member_id: decode_embedded(ConsumerProtocolAssignment, each.assignment).assigned_partitions[0] for each in given}
    assert {member: part.partitions for member, part in parts.items()} == {"a": [0, 1, 2], "b": [3, 4, 5], "c": [6, 7]}


def test_a_group_has_settled_when_all_members_are_in_one_generation_after_the_last() -> None:
    group = Group("", 0, "t", 8)
    group.members = members = [Member(group) for _ in range(2)]
    group.at[-1] = 2
    group.moved(members[0], 4)
    assert not group.all_at(3)
    group.moved(members[1], 4)
    assert group.all_at(3) and not group.all_at(4)


@pytest.mark.server
def test_members_form_a_group_are_joined_and_left(ottla_server: Serving) -> None:
    create_topics(ottla_server.address, {"measured": 12}, {})
    host, port = ottla_server.address
    with Members(host=host, port=port, topic="measured", partitions=12, protocol="consumer") as members:
        answers = [members.do(command) for command in ("form 5", "join", "leave")]
    assert [(answer["members"], answer["fenced"]) for answer in answers] == [(5, 0), (6, 0), (5, 0)]

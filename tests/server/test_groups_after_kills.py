"""Groups survive kill -9 of a real server: members continue without a rebalance, and no offset goes back."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.wire import framing
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from serving import Serving

pytestmark = pytest.mark.server

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}
LOADING, CREATING, NOT_HERE = 14, 15, 16


def ask(server: Serving, request: object, response: type, version: int) -> object:
    """One request on a connection of its own."""
    with socket.create_connection(server.address, timeout=20) as link:
        link.sendall(b"".join(framing.encode_request(request, version, 1, "test")))  # type: ignore[arg-type]
        size = int.from_bytes(exactly(link, 4), "big")
        return framing.decode_response(response, exactly(link, size), version)[1]


def exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        assert part, "the connection stays open"
        data += part
    return data


def found(server: Serving) -> None:
    """Waits until the group's coordinator is there and has loaded it."""
    deadline = time.monotonic() + 20
    while True:
        answer = ask(server, FindCoordinatorRequest(key="g"), FindCoordinatorResponse, 2)
        code = answer.error_code or fetched(server).groups[0].error_code  # type: ignore[attr-defined]
        if code == 0:
            return
        assert code in (LOADING, CREATING, NOT_HERE) and time.monotonic() < deadline, code
        time.sleep(0.02)


def fetched(server: Serving) -> OffsetFetchResponse:
    groups = [OffsetFetchRequestGroup(group_id="g", topics=None)]
    answer = ask(server, OffsetFetchRequest(groups=groups), OffsetFetchResponse, 8)
    assert isinstance(answer, OffsetFetchResponse)
    return answer


def test_a_group_and_its_offsets_outlive_kills(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", settings=SETTINGS) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result(20)
        found(server)
        join = JoinGroupRequest(
            group_id="g", session_timeout_ms=60_000, rebalance_timeout_ms=60_000, group_instance_id="one", protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"said")],
        )  # fmt: skip
        joined = ask(server, join, JoinGroupResponse, 9)
        assert isinstance(joined, JoinGroupResponse) and joined.error_code == 0
        member, generation = joined.member_id, joined.generation_id
        given = [SyncGroupRequestAssignment(member_id=member, assignment=b"all")]
        sync = SyncGroupRequest(group_id="g", generation_id=generation, member_id=member, assignments=given)
        assert ask(server, sync, SyncGroupResponse, 5).assignment == b"all"  # type: ignore[attr-defined]
        for offset in range(1, 6):
            reported = [OffsetCommitRequestPartition(partition_index=1, committed_offset=offset, committed_metadata=f"at {offset}")]
            commit = OffsetCommitRequest(
                group_id="g", generation_id_or_member_epoch=generation, member_id=member, group_instance_id="one",
                topics=[OffsetCommitRequestTopic(name="t", partitions=reported)],
            )  # fmt: skip
            answer = ask(server, commit, OffsetCommitResponse, 9)
            assert answer.topics[0].partitions[0].error_code == 0  # type: ignore[attr-defined]
            server.kill()
            server.start()
            found(server)
            [place] = fetched(server).groups[0].topics[0].partitions
            assert (place.partition_index, place.committed_offset, place.metadata) == (1, offset, f"at {offset}")
            beat = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member, group_instance_id="one")
            assert ask(server, beat, HeartbeatResponse, 4).error_code == 0  # type: ignore[attr-defined]
            assert ask(server, sync, SyncGroupResponse, 5).assignment == b"all"  # type: ignore[attr-defined]

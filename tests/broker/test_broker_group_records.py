"""Records of groups are Kafka's: a separate decoder reads ours, and records written by Kafka are read here."""

import struct
from typing import Any

import pytest
from cluster import WALL_MS, Cluster
from groups import INITIAL_DELAY_MS, cluster_of_groups, commit, coordinating, heartbeat, join, sync

from ottla.broker.groups.classic.states import TRANSITIONS, GroupState, IllegalTransition, check_transition
from ottla.broker.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
    encode_record,
)
from ottla.records.batch import headers
from ottla.records.build import build_batch
from ottla.records.read import records
from ottla.wire.compile import encode
from ottla.wire.declare import MalformedMessage


class Bytes:
    """Kafka's older, inflexible encoding, read by hand."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, code: str) -> int:
        [value] = struct.unpack_from(">" + code, self.data, self.at)
        self.at += struct.calcsize(">" + code)
        return int(value)

    def text(self) -> str | None:
        size = self.number("h")
        return None if size < 0 else self.take(size).decode()

    def blob(self) -> bytes:
        return self.take(self.number("i"))

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def end(self) -> None:
        assert self.at == len(self.data), "nothing follows"


def in_log(cluster: Cluster, group: str = "g") -> list[tuple[bytes, bytes | None]]:
    """Keys and values of the group's partition."""
    broker = coordinating(cluster)
    number = broker.node.groups.partition_of(group)
    assert number is not None
    data = broker.leader("__consumer_offsets", number).log.read(0)
    return [(key or b"", value) for at, _ in headers(data) for _, _, key, value, _ in records(data, at)]


def test_a_commit_is_stored_in_kafkas_format() -> None:
    cluster = cluster_of_groups()
    commit(coordinating(cluster), "g", "t", 3, 42, committed_leader_epoch=5, committed_metadata="Ω")
    [(key, value)] = in_log(cluster)
    read = Bytes(key)
    assert (read.number("h"), read.text(), read.text(), read.number("i")) == (1, "g", "t", 3)
    read.end()
    read = Bytes(value or b"")
    assert (read.number("h"), read.number("q"), read.number("i"), read.text(), read.number("q")) == (3, 42, 5, "Ω", WALL_MS)
    read.end()


def test_a_commit_with_its_own_timestamp_is_stored_in_version_1() -> None:
    cluster = cluster_of_groups()
    commit(coordinating(cluster), "g", "t", 3, 42, version=4, retention_time_ms=1000)
    [(_, value)] = in_log(cluster)
    read = Bytes(value or b"")
    assert (read.number("h"), read.number("q"), read.text(), read.number("q"), read.number("q")) == (1, 42, "", WALL_MS, WALL_MS + 1000)
    read.end()


def test_a_generation_is_stored_in_kafkas_format() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = join(broker, instance="one", protocols=(("range", b"reads"), ("other", b"x")))
    cluster.pass_ms(INITIAL_DELAY_MS)
    member_id = sent.answer.member_id
    sync(broker, sent.answer, given={member_id: b"all"})
    [(key, value)] = in_log(cluster)
    read = Bytes(key)
    assert (read.number("h"), read.text()) == (2, "g")
    read.end()
    read = Bytes(value or b"")
    assert [read.number("h"), read.text(), read.number("i"), read.text(), read.text(), read.number("q")] == [
        3, "consumer", 1, "range", member_id, WALL_MS + INITIAL_DELAY_MS,
    ]  # fmt: skip
    assert read.number("i") == 1, "members"
    assert [read.text(), read.text(), read.text(), read.text()] == [member_id, "one", "test", "/client"]
    assert [read.number("i"), read.number("i"), read.blob(), read.blob()] == [60_000, 10_000, b"reads", b"all"]
    read.end()


def test_an_empty_group_is_stored_without_protocol_leader_and_members() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = join(broker)
    cluster.pass_ms(INITIAL_DELAY_MS)
    sync(broker, sent.answer)
    cluster.pass_ms(10_000)
    value = Bytes(in_log(cluster)[-1][1] or b"")
    assert [value.number("h"), value.text(), value.number("i"), value.text(), value.text()] == [3, "consumer", 2, None, None]
    assert [value.number("q"), value.number("i")] == [WALL_MS + INITIAL_DELAY_MS + 10_000, 0]
    value.end()


def samples() -> list[tuple[Any, Any]]:
    member = MemberMetadata("m", "i", "client", "/1.2.3.4", 60_000, 10_000, b"said", b"given")
    return [
        (OffsetCommitKey("g", "t", 7), OffsetCommitValue(offset=2**40, leader_epoch=3, metadata="text", commit_timestamp=WALL_MS)),
        (OffsetCommitKey("g", "t", 7), OffsetCommitValue(offset=1, commit_timestamp=WALL_MS, expire_timestamp=WALL_MS + 1)),
        (OffsetCommitKey("g", "t", 7), None),
        (GroupMetadataKey("g"), GroupMetadataValue("consumer", 4, "range", "m", WALL_MS, [member])),
        (GroupMetadataKey("g"), GroupMetadataValue("", 0, None, None, -1, [])),
        (GroupMetadataKey("g"), None),
    ]


@pytest.mark.parametrize(("key", "value"), samples())
def test_records_of_groups_survive_encoding_and_decoding(key: Any, value: Any) -> None:
    assert decode_record(*encode_record(key, value)) == (key, value)


@pytest.mark.parametrize("version", range(5))
def test_values_of_every_version_of_kafka_are_read(version: int) -> None:

    lead = struct.pack(">h", version)
    key, _ = encode_record(OffsetCommitKey("g", "t", 1), None)
    written = OffsetCommitValue(offset=5, metadata="m", commit_timestamp=9)
    assert decode_record(key, lead + encode(written, version)) == (OffsetCommitKey("g", "t", 1), written)
    key, _ = encode_record(GroupMetadataKey("g"), None)
    group = GroupMetadataValue("consumer", 4, "range", "m", members=[MemberMetadata("m", session_timeout=10)])
    assert decode_record(key, lead + encode(group, version)) == (GroupMetadataKey("g"), group)


def test_a_record_of_a_later_version_is_left_alone_or_refused() -> None:
    assert decode_record(struct.pack(">h", 99) + b"whatever", b"") is None
    key, _ = encode_record(GroupMetadataKey("g"), None)
    for value in (struct.pack(">h", 99), b"", b"\0", struct.pack(">h", 3) + b"\0\5abc"):
        with pytest.raises(MalformedMessage):
            decode_record(key, value)


def test_a_log_that_cannot_be_read_fails_its_groups_alone() -> None:
    """The broker's other groups continue, and a warning is logged."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    commit(broker, "g", "t", 0, 1)
    commit(broker, "h", "t", 0, 1)
    leader = broker.leader("__consumer_offsets", 1)

    batch = build_batch([(WALL_MS, encode_record(GroupMetadataKey("g"), None)[0], b"\0\x63", ())])
    leader.append_own(memoryview(batch), wall_ms=WALL_MS)
    broker.node.partitions.wrote(leader)
    broker = cluster.restart(1)
    assert commit(broker, "g", "t", 0, 1) == 16 and commit(broker, "h", "t", 0, 1) == 0
    assert any("__consumer_offsets-1 cannot be loaded" in warning for warning in broker.warnings)


def test_a_group_written_by_kafka_is_continued() -> None:
    """Its record has the state's time of an older version, and members without a rebalance timeout."""

    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    leader = broker.leader("__consumer_offsets", 1)
    member = MemberMetadata("m", client_id="java", client_host="/10.0.0.1", session_timeout=10_000, subscription=b"s", assignment=b"a")
    value = struct.pack(">h", 0) + encode(GroupMetadataValue("consumer", 4, "range", "m", members=[member]), 0)
    batch = build_batch([(WALL_MS, encode_record(GroupMetadataKey("g"), None)[0], value, ())])
    leader.append_own(memoryview(batch), wall_ms=WALL_MS)
    broker.node.partitions.wrote(leader)
    broker = cluster.restart(1)

    class Joined:
        member_id, generation_id = "m", 4

    assert heartbeat(broker, Joined) == 0
    assert sync(broker, Joined).answer.assignment == b"a"


# The table of states.


def test_only_the_ways_of_the_table_are_gone() -> None:
    assert set(TRANSITIONS) == {(a, b) for a in GroupState for b in GroupState if may(a, b)}
    with pytest.raises(IllegalTransition, match="no way leads from Empty to Stable"):
        check_transition(GroupState.EMPTY, GroupState.STABLE, "a group")


def may(before: GroupState, after: GroupState) -> bool:
    """Kafka's table, seen from the state that is entered."""
    empty, preparing, completing, stable, dead = GroupState
    return (
        before
        in {
            empty: (preparing,),
            preparing: (stable, completing, empty),
            completing: (preparing,),
            stable: (completing,),
            dead: (empty, preparing, completing, stable),
        }[after]
    )


#: Longer than a string with a length of two bytes can be.
TOO_LONG = "x" * 2**15


@pytest.mark.parametrize("names", [("g", "t"), ("", ""), ("grüße", "töpfe"), ("g" * 2**15, "t"), ("g", "t" * (2**15 - 1))])
@pytest.mark.parametrize("text", ["", "here", "wörter", "x" * (2**15 - 1), TOO_LONG])
@pytest.mark.parametrize("expiry_ms", [-1, 2**40])
def test_an_offset_is_encoded_as_its_declaration_says(names: tuple[str, str], text: str, expiry_ms: int) -> None:
    key = OffsetCommitKey(*names, partition=2**31 - 1)
    value = OffsetCommitValue(offset=2**63 - 1, leader_epoch=-1, metadata=text, commit_timestamp=2**40, expire_timestamp=expiry_ms)
    version = 3 if expiry_ms == -1 else 1
    try:
        written = b"\0\1" + encode(key, 1)
        expected = written, struct.pack(">h", version) + encode(value, version)
    except Exception as error:
        with pytest.raises(type(error)):
            encode_record(key, value)
    else:
        assert encode_record(key, value) == expected
        assert encode_record(key, None) == (written, None)
        assert decode_record(*expected) == (key, value if version == 1 else OffsetCommitValue(2**63 - 1, -1, text, 2**40))

"""Records of consumer groups, byte for byte as Kafka writes them; written by hand from its schemas."""

from typing import Any

import pytest
from groups import cluster_of_groups, coordinating

from ottla.broker.groups.consumer import record_schemas as records
from ottla.broker.groups.consumer import records as writes
from ottla.broker.groups.consumer.changes import StartTimer, Timer
from ottla.broker.groups.consumer.deadlines import Deadlines
from ottla.broker.groups.consumer.group import ConsumerGroup, Resolved, TopicSize
from ottla.broker.groups.consumer.reconciliation import UNREVOKED_PARTITIONS, ConsumerGroupMember
from ottla.broker.groups.records import decode_record, encode_record

T = bytes(range(16))
T_HEX = "00010203 04050607 08090a0b 0c0d0e0f"
MEMBER = ConsumerGroupMember(
    member_id="m",
    epoch=5,
    previous_epoch=4,
    instance_id=None,
    rack_id="r",
    rebalance_timeout_ms=300_000,
    client_id="c",
    client_host="/h",
    topics=frozenset({"u", "t"}),
    pattern="x",
    assignor="range",
    state=UNREVOKED_PARTITIONS,
    assigned={T: frozenset({1, 0})},
    revoking={T: frozenset({2})},
    assignment_epochs={T: {0: 3, 1: 5, 2: 4}},
)
CLASSIC = records.ClassicMemberMetadata(
    session_timeout_ms=10_000, supported_protocols=[records.ClassicProtocol(name="range", metadata=b"\x01\x02")]
)


def classic_member() -> ConsumerGroupMember:
    return ConsumerGroupMember(
        member_id="m", client_id="c", client_host="/h", topics=frozenset({"t"}), rebalance_timeout_ms=1, classic=CLASSIC
    )


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (writes.epoch_record("g", 7), "0003 0001 67", "0000 00000007 00"),
        (
            writes.topics_record("g", {"t": TopicSize(T, 3)}),
            "0004 0001 67",
            f"0000 02 {T_HEX} 0274 00000003 01 00 00",
        ),
        (
            writes.member_record("g", MEMBER),
            "0005 0001 67 0001 6d",
            "0000 00 0272 0263 032f68 03 0274 0275 0278 000493e0 06 72616e6765 01 00 01 00",
        ),
        (
            writes.member_record("g", classic_member()),
            "0005 0001 67 0001 6d",
            "0000 00 00 0263 032f68 02 0274 01 00000001 00 01 00 11 01 00002710 02 06 72616e6765 03 0102 00 00",
        ),
        (writes.assignment_epoch_record("g", 7), "0006 0001 67", "0000 00000007 00"),
        (
            writes.target_record("g", "m", {T: frozenset({1, 0})}),
            "0007 0001 67 0001 6d",
            f"0000 02 {T_HEX} 03 00000000 00000001 00 00",
        ),
        (
            writes.current_record("g", MEMBER),
            "0008 0001 67 0001 6d",
            f"0000 00000005 00000004 01 02 {T_HEX} 03 00000000 00000001 01 00 09 03 00000003 00000005"
            f"02 {T_HEX} 02 00000002 01 00 05 02 00000004 00",
        ),
        (
            writes.pattern_record("g", "x.*", Resolved(frozenset({"x1"}), 3, 256)),
            "0010 0001 67 0003 782e2a",
            "0000 02 03 7831 0000000000000003 0000000000000100 00",
        ),
    ],
)
def test_record_is_what_kafka_writes(record: tuple[Any, Any], key: str, value: str) -> None:
    written = encode_record(*record)
    assert written == (bytes.fromhex(key), bytes.fromhex(value))
    assert decode_record(*written) == record


def test_member_without_classic_metadata_is_written_with_an_explicit_null() -> None:
    """Kafka 4.4 wrote these bytes. Where the tagged field is missing, it reads a member of the classic protocol without protocols."""
    member = ConsumerGroupMember(member_id="m", client_id="c", client_host="h", topics=frozenset({"t"}), rebalance_timeout_ms=1_000)
    _, value = encode_record(*writes.member_record("g", member))
    assert value == bytes.fromhex("0000 00 00 0263 0268 02 0274 01 000003e8 00 01 00 01 00")


def test_member_record_of_ottla_0_1_without_the_field_is_read_as_a_consumer_member() -> None:
    found = decode_record(bytes.fromhex("0005 0001 67 0001 6d"), bytes.fromhex("0000 00 00 0263 0268 02 0274 01 000003e8 00 00"))
    assert found is not None and found[1].classic_member_metadata is None


def test_tombstones_of_a_member_release_its_partitions_first() -> None:
    assert [encode_record(*record)[0][:2].hex() for record in writes.member_tombstones("g", "m")] == ["0008", "0007", "0005"]
    assert all(value is None for _, value in writes.member_tombstones("g", "m"))


def test_partition_that_another_member_has_by_now_is_not_let_go_by_what_compaction_left_of_the_one_before() -> None:
    """A compacted log may contain the assignment to b before the revocation from a."""
    group, topic_id = ConsumerGroup("g"), b"t" * 16
    for member_id, partitions in (("a", {0, 1}), ("b", {0}), ("a", {1})):
        member = ConsumerGroupMember(member_id=member_id, epoch=1, assigned={topic_id: frozenset(partitions)})
        group.apply(*writes.current_record("g", member))
    assert [group.owner(topic_id, partition) for partition in (0, 1)] == ["b", "a"]


def test_deadline_that_is_brought_forward_is_missed_then() -> None:
    """As of a static member that comes back with a shorter timeout."""
    cluster = cluster_of_groups()
    shard = coordinating(cluster).node.groups.shard_of("g")
    missed: list[tuple[Timer, str, int]] = []
    deadlines = Deadlines(shard, lambda timer, member_id, epoch: missed.append((timer, member_id, epoch)))
    for delay_ms in (50_000, 5_000):
        deadlines.arm(StartTimer(Timer.SESSION, "a", delay_ms, 1))
    cluster.pass_ms(4_900)
    assert not missed
    cluster.pass_ms(200)
    assert missed == [(Timer.SESSION, "a", 1)]
    cluster.pass_ms(60_000)
    assert len(missed) == 1

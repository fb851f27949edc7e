"""Embedded subscriptions and assignments with their version. Their bodies are compared in test_wire_oracles."""

from __future__ import annotations

import kafka.protocol.consumer
import pytest

from ottla.broker.groups.consumer.record_schemas import ClassicMemberMetadata, ConsumerGroupMemberMetadataValue
from ottla.wire.compile import decode, encode
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import UnsupportedVersion
from ottla.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.wire.messages.consumer_protocol import ELEMENTS_MAX, TopicPartition, decode_embedded, decode_subscription, encode_embedded

OWNED = [TopicPartition(topic="a", partitions=[0, 2]), TopicPartition(topic="b", partitions=[1])]
SUBSCRIPTION = ConsumerProtocolSubscription(topics=["a", "b"], user_data=b"u", owned_partitions=OWNED, generation_id=7, rack_id="r")
ASSIGNMENT = ConsumerProtocolAssignment(assigned_partitions=OWNED, user_data=b"")


@pytest.mark.parametrize("version", range(4))
def test_kafka_python_decodes_member_metadata(version: int) -> None:
    theirs = kafka.protocol.consumer.ConsumerProtocolSubscription.decode(encode_embedded(SUBSCRIPTION, version))
    assert (theirs.topics, theirs.user_data) == (["a", "b"], b"u")
    if version >= 1:
        assert [(owned.topic, owned.partitions) for owned in theirs.owned_partitions] == [("a", [0, 2]), ("b", [1])]
    assert theirs.encode(version=version) == encode_embedded(SUBSCRIPTION, version)
    assigned = kafka.protocol.consumer.ConsumerProtocolAssignment.decode(encode_embedded(ASSIGNMENT, version))
    assert assigned.encode(version=version) == encode_embedded(ASSIGNMENT, version)


def test_the_last_version_is_written_unless_another_is_wanted() -> None:
    assert encode_embedded(SUBSCRIPTION) == b"\0\3" + encode(SUBSCRIPTION, 3)
    assert decode_embedded(ConsumerProtocolSubscription, encode_embedded(SUBSCRIPTION)) == SUBSCRIPTION
    assert decode_embedded(ConsumerProtocolAssignment, encode_embedded(ASSIGNMENT)) == ASSIGNMENT
    with pytest.raises(UnsupportedVersion):
        encode_embedded(SUBSCRIPTION, 4)


def test_what_an_older_version_has_no_room_for_is_dropped() -> None:
    oldest = decode_embedded(ConsumerProtocolSubscription, memoryview(encode_embedded(SUBSCRIPTION, 0)))
    assert oldest == ConsumerProtocolSubscription(topics=["a", "b"], user_data=b"u")
    assert decode_embedded(ConsumerProtocolSubscription, encode_embedded(SUBSCRIPTION, 1)).owned_partitions == OWNED


def test_a_newer_version_is_read_as_the_last_one_known() -> None:
    for newer in (b"\0\4", b"\x7f\xff"):
        assert decode_embedded(ConsumerProtocolSubscription, newer + encode(SUBSCRIPTION, 3) + b"\0\1more") == SUBSCRIPTION
        assert decode_embedded(ConsumerProtocolAssignment, newer + encode(ASSIGNMENT, 3) + b"\0\1more") == ASSIGNMENT


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff" + encode(ASSIGNMENT, 0), b"\0\3", encode_embedded(ASSIGNMENT)[:-1]])
def test_what_is_not_an_assignment_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="ConsumerProtocolAssignment"):
        decode_embedded(ConsumerProtocolAssignment, data)


def test_more_partitions_than_a_request_may_have_elements_can_be_assigned_but_not_any_number() -> None:
    many = ConsumerProtocolAssignment(assigned_partitions=[TopicPartition(topic="a", partitions=[0] * (ELEMENTS_MAX - 1))])
    assert decode_embedded(ConsumerProtocolAssignment, encode_embedded(many)) == many
    many.assigned_partitions.append(TopicPartition())
    with pytest.raises(MalformedMessage, match="more elements"):
        decode_embedded(ConsumerProtocolAssignment, encode_embedded(many))


@pytest.mark.parametrize("version", range(1, 5))
def test_a_subscription_that_lacks_fields_at_the_end_is_read_without_them(version: int) -> None:
    """Version 0 is a prefix of every version; what follows the user data may be missing, or cut short."""
    topics_only = ConsumerProtocolSubscription(topics=["a", "b"], user_data=b"u")
    prefix = len(encode(SUBSCRIPTION, 0))
    whole = encode(SUBSCRIPTION, min(version, 3))
    assert decode_subscription(version.to_bytes(2, "big") + whole) == decode_embedded(
        ConsumerProtocolSubscription, encode_embedded(SUBSCRIPTION, min(version, 3))
    )
    for size in range(prefix, len(whole)):
        read = decode_subscription(version.to_bytes(2, "big") + whole[:size])
        assert (read.topics, read.user_data, read.rack_id) == (["a", "b"], b"u", None)
    assert decode_subscription(version.to_bytes(2, "big") + whole[:prefix]) == topics_only
    for size in range(prefix):
        with pytest.raises(MalformedMessage):
            decode_subscription(version.to_bytes(2, "big") + whole[:size])


def test_a_null_structure_in_a_tagged_field_is_read_as_kafka_writes_it() -> None:
    """Kafka 4.4 wrote these bytes: the tag has one byte, 0 for null; a structure that is present follows a 1."""
    member = "0000 08 72646b61666b61 0b 2f3132372e302e302e31 02 06 706c61696e 01 000493e0 00"
    for tag, expected in (("01 00 01 00", None), ("01 00 07 01 00000007 01 00", ClassicMemberMetadata(session_timeout_ms=7))):
        found = decode(ConsumerGroupMemberMetadataValue, bytes.fromhex(member + tag), 0)
        assert found.subscribed_topic_names == ["plain"] and found.classic_member_metadata == expected

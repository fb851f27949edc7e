"""Declarations of messages, and fields that a version lacks."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from ottla.wire import messages as all_messages
from ottla.wire.compile import decode, encode
from ottla.wire.declare import (
    ZERO_UUID,
    FieldNotInVersion,
    Float64,
    Int32,
    NullableSince,
    SharedStruct,
    Since,
    Struct,
    Tag,
    UInt16,
    UInt32,
    Until,
    Uuid,
    fields_of,
    message,
    schema_of,
)
from ottla.wire.messages import (
    API,
    ApiVersionsRequest,
    CreateTopicsRequest,
    DeletableGroupResult,
    DeleteGroupsResponse,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    InitProducerIdRequest,
    LeaderIdAndEpoch,
    Member,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.wire.messages.consumer_group_describe import TopicPartitions

#: What Kafka 4.4 advertises; Produce is advertised from 0, and implemented from 3.
KAFKA_4_4 = {
    0: (3, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5),
    15: (0, 6), 16: (0, 5), 18: (0, 5), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5),
    27: (1, 2), 28: (0, 6), 29: (1, 3), 30: (1, 3), 31: (1, 3), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 37: (0, 3), 42: (0, 3),
    43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 55: (0, 2), 56: (2, 3), 57: (0, 2), 58: (0, 0), 60: (0, 2), 61: (0, 0),
    64: (0, 0), 65: (0, 0), 66: (0, 2), 68: (0, 1), 69: (0, 1), 74: (0, 1), 75: (0, 0), 17: (0, 1), 36: (0, 2), 38: (1, 3), 39: (1, 2),
    40: (1, 2), 41: (1, 3), 48: (0, 1), 49: (0, 1), 50: (0, 0), 51: (0, 0),
    71: (0, 0), 72: (0, 0),
}  # fmt: skip


def test_every_api_has_the_versions_of_kafka_4_4() -> None:
    assert {key: api.versions for key, api in API.items()} == KAFKA_4_4


def test_a_message_is_named_after_its_api() -> None:
    for key, api in API.items():
        assert (api.key, api.request.__name__, api.response.__name__) == (key, f"{api.name}Request", f"{api.name}Response")


def test_a_version_that_is_not_final_is_encoded_but_not_advertised() -> None:
    assert API[22].versions == (0, 5)
    request = InitProducerIdRequest(enable2_pc=True)
    assert decode(InitProducerIdRequest, encode(request, 6), 6) == request


def test_a_client_names_its_cluster_and_broker_from_apiversions_5_on() -> None:
    request = ApiVersionsRequest(client_software_name="c", client_software_version="1", cluster_id="x", node_id=7)
    assert encode(request, 5) == b"\2c\0021\2x\0\0\0\7\0" and encode(request, 4) == b"\2c\0021\0"


def test_deleted_groups_have_error_messages_from_version_3_on() -> None:
    answer = DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=68, error_message="m")])
    assert encode(answer, 3) == bytes(4) + b"\2\2g\0\104\2m\0\0" and encode(answer, 2) == bytes(4) + b"\2\2g\0\104\0\0"


def test_offsets_of_a_transaction_name_topics_by_id_from_version_6_on() -> None:
    topic = TxnOffsetCommitRequestTopic(name="orders", topic_id=bytes(range(16)), partitions=[TxnOffsetCommitRequestPartition()])
    request = TxnOffsetCommitRequest(
        transactional_id="t", group_id="g", producer_id=1, producer_epoch=2, generation_id=3, member_id="m", topics=[topic]
    )
    head = b"\2t\2g" + (1).to_bytes(8) + (2).to_bytes(2) + (3).to_bytes(4) + b"\2m\0\2"
    partition = b"\2" + bytes(4) + bytes(8) + b"\xff" * 4 + b"\1\0\0\0"
    assert encode(request, 6) == head + bytes(range(16)) + partition
    assert encode(request, 5) == head + b"\7orders" + partition
    answer = TxnOffsetCommitResponse(
        topics=[TxnOffsetCommitResponseTopic(name="orders", topic_id=bytes(range(16)), partitions=[TxnOffsetCommitResponsePartition()])]
    )
    assert encode(answer, 6) == bytes(4) + b"\2" + bytes(range(16)) + b"\2" + bytes(6) + b"\0\0\0"
    assert encode(answer, 5) == bytes(4) + b"\2\7orders\2" + bytes(6) + b"\0\0\0"


def test_every_message_can_be_made_without_arguments_and_imported_from_one_place() -> None:
    for name in vars(all_messages):
        thing = getattr(all_messages, name)
        if isinstance(thing, type) and issubclass(thing, msgspec.Struct):
            assert thing() == thing()


def test_lists_of_two_messages_are_two_lists() -> None:
    first = MetadataResponse()
    first.topics.append(MetadataResponseTopic())
    assert MetadataResponse().topics == []


def test_assignments_of_two_described_members_are_two() -> None:
    Member().assignment.topic_partitions.append(TopicPartitions())
    assert Member().assignment.topic_partitions == Member().target_assignment.topic_partitions == []


def test_a_value_that_the_version_cannot_carry_is_refused() -> None:
    """Line 74."""
    cases: list[tuple[Any, int, str]] = [
        (MetadataRequest(allow_auto_topic_creation=False), 3, "allow_auto_topic_creation"),
        (MetadataRequest(topics=None), 0, "topics"),
        (MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 9, r"topics\[\].name"),
        (FetchRequest(replica_id=1), 15, "replica_id"),
        (FetchRequest(forgotten_topics_data=[ForgottenTopic()]), 4, "forgotten_topics_data"),
        (MetadataResponse(topics=[MetadataResponseTopic(topic_authorized_operations=1)]), 7, "topic_authorized_operations"),
        (ProduceResponse(responses=[topic_response(LeaderIdAndEpoch(leader_id=1))]), 9, "current_leader"),
    ]
    for value, version, field in cases:
        with pytest.raises(FieldNotInVersion, match=f"version {version} cannot carry the value of .*{field}"):
            encode(value, version)


def topic_response(leader: LeaderIdAndEpoch) -> TopicProduceResponse:
    return TopicProduceResponse(name="t", partition_responses=[PartitionProduceResponse(current_leader=leader)])


def test_an_ignorable_value_is_dropped_where_there_is_no_room_for_it() -> None:
    """Line 74."""
    response = MetadataResponse(throttle_time_ms=5, cluster_id="c", controller_id=3)
    assert decode(MetadataResponse, encode(response, 0), 0) == MetadataResponse()
    assert decode(MetadataResponse, encode(response, 2), 2) == MetadataResponse(cluster_id="c", controller_id=3)
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", topic_id=b"i" * 16)])
    assert decode(ProduceRequest, encode(request, 12), 12).topic_data == [TopicProduceData(name="t")]
    assert decode(ProduceRequest, encode(request, 13), 13).topic_data == [TopicProduceData(topic_id=b"i" * 16)]


def test_a_tagged_field_at_its_default_is_not_sent() -> None:
    plain = encode(ProduceResponse(responses=[topic_response(LeaderIdAndEpoch())]), 10)
    assert plain == encode(ProduceResponse(responses=[topic_response(LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1))]), 10)
    named = encode(ProduceResponse(responses=[topic_response(LeaderIdAndEpoch(leader_id=2, leader_epoch=7))]), 10)
    assert len(named) == len(plain) + 2 + 9


def test_the_error_of_an_unencodable_value_names_its_field() -> None:
    with pytest.raises(Exception) as caught:
        encode(FetchRequest(topics=[FetchTopic(topic=7)]), 11)  # type: ignore[arg-type]
    assert caught.value.__notes__ == ["while encoding FetchRequest v11, at topics[].topic"]


def test_a_uuid_that_is_not_sixteen_bytes_is_refused() -> None:
    with pytest.raises(FieldNotInVersion, match="16 bytes, not 4"):
        encode(FetchRequest(topics=[FetchTopic(topic_id=b"abcd")]), 13)


def test_a_string_longer_than_kafka_allows_is_refused() -> None:
    for version in (7, 9):
        with pytest.raises(Exception):  # noqa: B017
            encode(MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32768)]), version)
        encode(MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32767)]), version)


def test_a_part_of_a_message_is_not_a_message() -> None:
    with pytest.raises(TypeError, match="part of a message"):
        schema_of(FetchTopic)


def test_kafkas_defaults_are_ours() -> None:
    assert CreateTopicsRequest().timeout_ms == 60000
    assert FetchRequest().max_bytes == 2**31 - 1
    assert FetchTopic().topic_id == ZERO_UUID
    assert MetadataResponseTopic().topic_authorized_operations == -(2**31)


class Point(Struct):
    x: UInt16 = 0
    ids: list[Uuid] = []


class Shared(SharedStruct, frozen=True):
    a: Int32 = 5


@message(since=1, until=4, flexible_since=3)
class Everything(Struct):
    """Forms that the messages of today have no use for, and those of later issues do."""

    huge: UInt32 = 0
    ratio: Float64 = 0.0
    blob: bytes | None = b""
    inner: Shared = Shared()
    point: Annotated[Point | None, Since(2)] = None
    points: Annotated[list[Point] | None, NullableSince(2)] = []
    flags: list[bool] = []
    texts: Annotated[list[str], Until(3)] = []
    tagged_blob: Annotated[bytes | None, Since(3), Tag(7)] = None
    tagged_point: Annotated[Point | None, Since(3), Tag(2)] = None
    tagged_texts: Annotated[list[str] | None, Since(4), Tag(300)] = []


def test_every_form_reads_back_in_every_version() -> None:
    full = Everything(
        huge=2**32 - 1, ratio=-0.5, blob=b"b" * 200, inner=Shared(a=9), point=Point(x=65535, ids=[b"u" * 16]), points=[Point(), Point(x=1)],
        flags=[True, False] * 20, texts=[], tagged_blob=b"", tagged_point=Point(x=3), tagged_texts=None,
    )  # fmt: skip
    assert decode(Everything, encode(full, 4), 4) == full
    full.tagged_texts = []
    full.texts = ["a", ""]
    assert decode(Everything, encode(full, 3), 3) == full
    full.tagged_blob = full.tagged_point = None
    full.blob = full.points = None
    assert decode(Everything, encode(full, 2), 2) == full
    full.point, full.points = None, []
    assert decode(Everything, encode(full, 1), 1) == full


def test_tags_are_sent_in_ascending_order() -> None:
    data = encode(Everything(tagged_blob=b"x", tagged_point=Point(), tagged_texts=["t"]), 4)
    assert data.endswith(b"\3" + b"\2\5\1\0\0\1\0" + b"\7\2\2x" + b"\xac\2\3\2\2t")


def test_an_annotation_without_a_form_on_the_wire_is_a_type_error() -> None:
    class Wrong(Struct):
        number: int = 0

    with pytest.raises(TypeError, match=r"Wrong.number: .*int.* has no form on the wire"):
        fields_of(Wrong)

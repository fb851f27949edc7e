"""A well-behaved client: despite hostile clients it can write, read and commit, and finds all acknowledged records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from chaos.fuzz.oracle import Finding
from chaos.fuzz.vocabulary import RESERVED
from ottla.records.build import build_batch
from ottla.records.read import records as read_records
from ottla.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

GOOD_TOPIC, GOOD_GROUP = f"{RESERVED}-topic", f"{RESERVED}-group"
#: Topic settings of the client's topic, which override brokers' settings that hostile requests may change.
CLIENT_CONFIGS = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete", "max.message.bytes": "1048588",
                "min.insync.replicas": "1", "segment.bytes": "1048576", "message.timestamp.type": "CreateTime"}  # fmt: skip
#: Errors after which a client retries: leaders move, coordinators load.
RETRIABLE = (3, 5, 6, 7, 14, 15, 16, 19, 20, 41, 51, 74, 76, 100)
#: Topics for the hostile clients.
HOT_TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "hot-0": (3, {}),
    "hot-1": (1, {"cleanup.policy": "compact", "segment.ms": "100"}),
    "hot-2": (2, {"segment.bytes": "1048576"}),
}


class Service(Protocol):
    """Access of the client to the brokers."""

    @property
    def wall_ms(self) -> int: ...

    def ask(self, request: Any, version: int, *, until: Callable[[Any], int], leader: bool = False) -> Any:
        """Return a response for which ``until`` gives no error; retries after retriable ones. Raises: Finding."""
        ...


def create_topics(service: Service, *, replicas: int) -> None:
    """Create the client's topic and those for the hostile clients. Raises: Finding."""
    for name, (partitions, configs) in {GOOD_TOPIC: (1, CLIENT_CONFIGS), **HOT_TOPICS}.items():
        settings = [CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        requested = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=settings)
        service.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7, until=lambda answer: int(answer.topics[0].error_code))


class Client:
    """A well-behaved client: writes to its own topic and commits in its own group must always work."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._producer_id = service.ask(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4, until=_top_ok
        ).producer_id
        # Creates the topic of offsets.
        service.ask(FindCoordinatorRequest(coordinator_keys=[GOOD_GROUP]), 6, until=lambda answer: int(answer.coordinators[0].error_code))
        self.acknowledged = 0
        configs = [AlterableConfig(name=name, value=CLIENT_CONFIGS[name]) for name in ("min.insync.replicas", "max.message.bytes")]
        resource = AlterConfigsResource(resource_type=2, resource_name="__consumer_offsets", configs=configs)
        service.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1, until=lambda answer: int(answer.responses[0].error_code))

    def work(self) -> None:
        """Write a record, read it and commit its offset. Raises: Finding."""
        service, number = self._service, self.acknowledged
        batch = build_batch(
            [(service.wall_ms, None, b"%d" % number, ())], producer_id=self._producer_id, producer_epoch=0, base_sequence=number
        )
        data = PartitionProduceData(index=0, records=bytes(batch))
        topic_data = [TopicProduceData(name=GOOD_TOPIC, partition_data=[data])]
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=topic_data)
        written = service.ask(request, 12, until=_written, leader=True).responses[0].partition_responses[0]
        if written.base_offset != number:
            raise Finding("client: wrong offset", f"record {number} is at {written.base_offset}")
        self.acknowledged += 1
        self.read(number)
        place = OffsetCommitRequestPartition(partition_index=0, committed_offset=self.acknowledged, committed_metadata="")
        topics = [OffsetCommitRequestTopic(name=GOOD_TOPIC, partitions=[place])]
        service.ask(OffsetCommitRequest(group_id=GOOD_GROUP, generation_id_or_member_epoch=-1, topics=topics), 9, until=_committed)
        self.look_up()

    def read(self, offset: int) -> None:
        """Check all acknowledged records from an offset on. Raises: Finding."""
        found: list[bytes | None] = []
        while offset + len(found) < self.acknowledged:
            place = FetchPartition(partition=0, fetch_offset=offset + len(found), partition_max_bytes=1 << 20)
            request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[FetchTopic(topic=GOOD_TOPIC, partitions=[place])])
            answer = self._service.ask(request, 12, until=_fetched, leader=True).responses[0].partitions[0]
            records, position = bytes(answer.records or b""), 0
            if not records:
                raise Finding("client: records are missing", f"{offset + len(found)} of {self.acknowledged}: {answer}")
            while position < len(records):
                found += [record[3] for record in read_records(records, position)]
                position += 12 + int.from_bytes(records[position + 8 : position + 12], "big")
        if found != [b"%d" % number for number in range(offset, self.acknowledged)]:
            raise Finding("client: other records", f"from {offset}: {found[:20]}")

    def look_up(self) -> None:
        """Check the committed offset. Raises: Finding."""
        topics = [OffsetFetchRequestTopics(name=GOOD_TOPIC, partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GOOD_GROUP, topics=topics)])
        found = self._service.ask(request, 9, until=lambda answer: answer.groups[0].error_code).groups[0].topics[0].partitions[0]
        if (found.error_code, found.committed_offset) != (0, self.acknowledged):
            raise Finding("client: another committed offset", f"{self.acknowledged} was committed, found {found}")


def _top_ok(answer: Any) -> int:
    return int(answer.error_code)


def _written(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


def _fetched(answer: Any) -> int:
    return int(answer.error_code or answer.responses[0].partitions[0].error_code)


def _committed(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)

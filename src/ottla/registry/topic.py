"""The topic `_schemas`: a reader that replays every record, and a writer that waits until it has read its own records.

    write    records ──▶ producer ──▶ topic ──▶ reader ──▶ State.replay ──▶ the write returns

The topic has one partition and is compacted. It is created if it does not exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ottla.aio import Admin, Consumer, Producer
from ottla.base.ids import TopicPartition
from ottla.client.admin.results import NewTopic, Resource
from ottla.registry.records import Record
from ottla.wire.errors import InvalidConfig, KafkaError, RequestTimedOut, TopicAlreadyExists, UnknownTopicOrPartition

log = logging.getLogger(__name__)
DEFAULT_TOPIC = "_schemas"
#: As Confluent's default.
REPLICAS_MAX = 3
RETRY_S = 1.0
#: Records of a poll. Between two polls the loop answers requests.
POLL_RECORDS_MAX = 500
POLL_TIMEOUT_MS = 60_000


class SchemasTopic:
    """One instance's reader and writer of the topic. Belongs to one event loop."""

    def __init__(self, settings: dict[str, Any], name: str, replay: Callable[[bytes | None, bytes | None], str | None]) -> None:
        self.name = name
        self._settings = settings
        self._replay = replay
        self._partition = TopicPartition(name, 0)
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._task: asyncio.Task[None] | None = None
        #: All records below this offset were replayed.
        self.position = 0
        #: The end of the topic when the instance started.
        self._end = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.cluster_id = ""

    @property
    def is_read(self) -> bool:
        """Whether the records that existed at the start were replayed."""
        return self._task is not None and self.position >= self._end

    async def start(self) -> None:
        """Creates the topic if needed, and starts to read it. Raises: KafkaError."""
        async with Admin(client_id="ottla-registry", **self._settings) as admin:
            self.cluster_id = (await admin.describe_cluster()).cluster_id or ""
            await self._ensure(admin)
        self._producer = await Producer(client_id="ottla-registry", **self._settings).start()
        self._consumer = await Consumer(client_id="ottla-registry", **self._settings).start()
        self._consumer.assign([self._partition])
        self._consumer.seek_to_beginning(self._partition)
        self._end = await self._end_offset()
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def _ensure(self, admin: Admin) -> None:
        try:
            described = await admin.describe_topic(self.name)
        except UnknownTopicOrPartition:
            brokers = len((await admin.describe_cluster()).nodes)
            if brokers < REPLICAS_MAX:
                log.warning("the cluster has %d brokers: the topic %s gets as many replicas, not %d", brokers, self.name, REPLICAS_MAX)
            new = NewTopic(self.name, 1, min(brokers, REPLICAS_MAX), {"cleanup.policy": "compact"})
            try:
                await admin.create_topic(new)
            except TopicAlreadyExists:
                # Another instance started at the same time.
                await self._ensure(admin)
            return
        if len(described.partitions) != 1:
            raise InvalidConfig(
                f"topic {self.name} must have 1 partition, and has {len(described.partitions)}: the order of schemas is lost"
            )
        policy = (await admin.describe_config(Resource.topic(self.name), names=["cleanup.policy"]))["cleanup.policy"].value
        if policy != "compact":
            raise InvalidConfig(f"topic {self.name} has cleanup.policy={policy}, which would delete schemas: set it to compact")

    async def _end_offset(self) -> int:
        assert self._consumer is not None, "started"
        return (await self._consumer.end_offsets([self._partition]))[self._partition]

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for client in (self._producer, self._consumer):
            if client is not None:
                await client.close()

    async def _read(self) -> None:
        assert self._consumer is not None, "started"
        while True:
            try:
                for record in await self._consumer.poll(POLL_TIMEOUT_MS, POLL_RECORDS_MAX):
                    ignored = self._replay(record.key, record.value)
                    if ignored is not None:
                        log.error("%s at offset %d is ignored: %s", self.name, record.offset, ignored)
                self._advance(await self._consumer.position(self._partition))
            except KafkaError as error:
                log.error("reading %s failed: %s; retrying", self.name, error)
                await asyncio.sleep(RETRY_S)

    def _advance(self, position: int) -> None:
        self.position = position
        due = [one for one in self._waiting if one[0] <= position]
        self._waiting = [one for one in self._waiting if one[0] > position]
        for _, future in due:
            if not future.done():
                future.set_result(None)

    async def read_to(self, offset: int, timeout_s: float) -> None:
        """Waits until all records below the offset are replayed. Raises: RequestTimedOut."""
        if self.position >= offset:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, future))
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise RequestTimedOut(f"{self.name} was read to offset {self.position}, not to {offset}, within {timeout_s:.0f} s") from None

    async def catch_up(self, timeout_s: float) -> None:
        """Waits until the present end of the topic is read. Raises: KafkaError."""
        await self.read_to(await self._end_offset(), timeout_s)

    async def write(self, records: Sequence[Record], timeout_s: float) -> None:
        """Writes records in order and waits until they are replayed. Raises: KafkaError."""
        assert self._producer is not None, "started"
        sent = [await self._producer.send(self.name, value, key, partition=0) for key, value in records]
        offsets = [(await delivery).offset for delivery in sent]
        await self.read_to(max(offsets) + 1, timeout_s)

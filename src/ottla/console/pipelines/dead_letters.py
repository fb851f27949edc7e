"""Dead letters in a topic: what they say, and the re-drive, which sends their records to their topics again.

A dead letter has the bytes of the record, and headers with the reason, the view and the place (docs/pipelines.md). A re-drive reads from
the committed offset of the group `TOPIC.redrive` up to the present end, and sends each record to the topic that it came from, in
transactions that also commit the group's offsets. So each dead letter is sent once, also if the console fails in between, and a second
re-drive sends only what has come since.

Left out are rows of steps, since they are no records of a topic, and dead letters of other pipelines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ottla.aio import Admin, Consumer, Producer
from ottla.base.ids import TopicPartition
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.fetch.offsets import EARLIEST, LATEST
from ottla.client.group.commits import GroupMetadata
from ottla.console.watch.measure import succeeded
from ottla.wire.errors import KafkaError

#: Records of one transaction, and of one re-drive.
CHUNK, REDRIVE_MAX = 500, 50_000
#: Longest wait for records that the log has.
POLL_MS, EMPTY_POLLS_MAX = 1_000, 15
PREFIX = "ottla."
#: Header of a record that was sent again, with the place of its dead letter.
REDRIVEN = "ottla-redriven-from"


class Letter(msgspec.Struct, frozen=True):
    """A dead letter. `topic` empty: the place of its record is not known."""

    partition: int
    offset: int
    timestamp_ms: int
    reason: str
    rule: str
    view: str
    topic: str
    place: str
    key: bytes | None
    value: bytes | None


class RedriveRange(msgspec.Struct, frozen=True):
    """What a re-drive would read: first offsets and ends, by partition."""

    ranges: dict[TopicPartition, tuple[int, int]]

    @property
    def count(self) -> int:
        """By offsets: markers of transactions count too."""
        return sum(end - start for start, end in self.ranges.values())


class Redriven(msgspec.Struct):
    """The result. `is_whole`: up to the end when it began."""

    sent: int = 0
    left_out: int = 0
    is_whole: bool = True


def group_of(topic: str) -> str:
    """The group with the position of re-drives."""
    return f"{topic}.redrive"


def letter_of(record: ConsumerRecord) -> Letter:
    """A record of the topic of dead letters."""
    headers = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
    topic, partition, offset = (headers.get(f"{PREFIX}{name}", "") for name in ("topic", "partition", "offset"))
    return Letter(
        record.partition, record.offset, record.timestamp, headers.get("ottla.reason", ""), headers.get("ottla.rule", ""),
        headers.get("ottla.view", ""), topic, f"{topic}-{partition} at offset {offset}" if topic else "", record.key, record.value,
    )  # fmt: skip


def destination(record: ConsumerRecord, sources: Mapping[str, str]) -> str | None:
    """The topic that a dead letter goes back to; None for a row of a step. `sources`: topics by view, comma-separated."""
    letter = letter_of(record)
    topics = [one.strip() for one in sources.get(letter.view, "").split(",")]
    return letter.topic if letter.topic and letter.topic in topics else None


async def waiting(admin: Admin, topic: str) -> RedriveRange:
    """Raises: KafkaError."""
    described = await admin.describe_topic(topic)
    partitions = [TopicPartition(topic, one.partition) for one in described.partitions]
    starts = succeeded(await admin.list_offsets(dict.fromkeys(partitions, EARLIEST)))
    ends = succeeded(await admin.list_offsets(dict.fromkeys(partitions, LATEST)))
    offsets = (await admin.list_consumer_group_offsets([group_of(topic)]))[group_of(topic)]
    committed = {} if isinstance(offsets, KafkaError) else offsets
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for tp in partitions:
        if tp not in starts or tp not in ends:
            continue
        known = committed.get(tp)
        start = starts[tp].offset if known is None or isinstance(known, KafkaError) else max(known.offset, starts[tp].offset)
        if start < ends[tp].offset:
            ranges[tp] = (start, ends[tp].offset)
    return RedriveRange(ranges)


def _consumer(bootstrap: str, settings: Mapping[str, Any]) -> Consumer:
    return Consumer(
        bootstrap_servers=bootstrap, client_id="ottla-console", allow_auto_create_topics=False, isolation_level="read_committed",
        **{"default_api_timeout_ms": 15_000, **settings, "auto_offset_reset": "earliest"},
    )  # fmt: skip


async def newest(
    bootstrap: str, settings: Mapping[str, Any], topic: str, ends: Mapping[TopicPartition, tuple[int, int]], count: int
) -> list[Letter]:
    """The newest dead letters, at most `count`. `ends`: log start and end by partition."""
    wanted = {tp: (max(start, end - count), end) for tp, (start, end) in ends.items() if end > start}
    if not wanted:
        return []
    found: list[ConsumerRecord] = []
    async with _consumer(bootstrap, settings) as consumer:
        async for records in _ranges(consumer, wanted):
            found += records
    found.sort(key=lambda record: (record.timestamp, record.partition, record.offset), reverse=True)
    return [letter_of(record) for record in found[:count]]


async def _ranges(consumer: Consumer, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Any:
    """Yields records below the ends, until all are passed or nothing comes."""
    consumer.assign(ranges)
    consumer.seek_each({tp: start for tp, (start, _) in ranges.items()})
    empty = 0
    while empty < EMPTY_POLLS_MAX and not all(consumer.has_passed(tp, end) for tp, (_, end) in ranges.items()):
        records = await consumer.poll(POLL_MS, CHUNK)
        empty = 0 if records else empty + 1
        kept = [record for record in records if record.offset < ranges[TopicPartition(record.topic, record.partition)][1]]
        if kept:
            yield kept


async def redrive(bootstrap: str, settings: Mapping[str, Any], topic: str, sources: Mapping[str, str], found: RedriveRange) -> Redriven:
    """Sends the waiting dead letters to their topics. Raises: KafkaError; what was committed before stays sent."""
    done = Redriven()
    group = GroupMetadata(group_of(topic), -1, "", None)
    producer_settings = {"max_block_ms": 15_000, "delivery_timeout_ms": 60_000, **settings}
    async with (
        _consumer(bootstrap, settings) as consumer,
        Producer(
            bootstrap_servers=bootstrap, client_id="ottla-console", transactional_id=f"ottla-console-redrive-{topic}", **producer_settings
        ) as producer,
    ):
        async for records in _ranges(consumer, found.ranges):
            async with producer.transaction():
                positions: dict[TopicPartition, int] = {}
                sent = 0
                for record in records:
                    positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
                    back = destination(record, sources)
                    if back is None:
                        continue
                    headers = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
                    place = f"{record.topic}-{record.partition} at offset {record.offset}"
                    await producer.send(back, record.value, record.key, [*headers, (REDRIVEN, place.encode())])
                    sent += 1
                await producer.send_offsets_to_transaction(positions, group)
            done.sent += sent
            done.left_out += len(records) - sent
            if done.sent + done.left_out >= REDRIVE_MAX:
                done.is_whole = False
                break
    return done

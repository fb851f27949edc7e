"""Simulated clients: producers that retry for ever and consumers that read everything, with real frames. They report what they observe.

An idempotent producer keeps several batches in flight. After an error it restarts at the first unacknowledged batch with the same sequence
numbers. A producer without idempotence sends each batch once and reports an unclear outcome as unknown. Every value is unique.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

from ottla.base.ids import NO_EPOCH
from ottla.records.batch import crc_ok, headers
from ottla.records.build import build_batch
from ottla.records.compression import Codec
from ottla.records.errors import RecordsError
from ottla.records.read import records
from ottla.sim.client_connection import REQUEST_TIMEOUT_MS, RETRY_MS, Caller
from ottla.sim.compacted_topic import record_of, value_of
from ottla.sim.network import Host, Network
from ottla.sim.world import EPOCH_MS, World
from ottla.wire import errors
from ottla.wire import messages as m

TOPIC = "history"
IN_FLIGHT = 5


class ClientObserver(Protocol):
    """Receives what clients observe."""

    def sent(self, producer: int, partition: int, values: list[bytes], *, idempotent: bool) -> None: ...

    def acknowledged(self, partition: int, base_offset: int, values: list[bytes]) -> None: ...

    def read(self, reader: int, partition: int, offset: int, value: bytes) -> None: ...

    def watermark(self, reader: int, partition: int, offset: int) -> None: ...

    def complaint(self, text: str) -> None:
        """A client got a response that no correct broker sends."""
        ...


class Admin:
    """Creates the topic and then ends."""

    def __init__(
        self,
        world: World,
        network: Network,
        host: Host,
        partitions: int,
        configs: dict[str, str],
        *,
        topic: str = TOPIC,
        replication_factor: int = 1,
    ) -> None:
        self.done = False
        self._world = world
        self._caller = Caller(world, network, host, "admin", self._again)
        requested = m.CreatableTopic(
            name=topic,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[m.CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
        )
        self._request = m.CreateTopicsRequest(topics=[requested], timeout_ms=1000)
        world.after(0, self._create)

    def _again(self) -> None:
        self._world.after(RETRY_MS, self._create)

    def _create(self) -> None:
        if not self.done and not self._caller.call(self._request, self._created):
            self._again()

    def _created(self, response: Any) -> None:
        code = response.topics[0].error_code
        self.done = code in (errors.NONE, errors.TopicAlreadyExists.code)
        if self.done:
            self._caller.hang_up()
        else:
            self._again()


class UnacknowledgedBatch:
    """Records of one request, until they are acknowledged."""

    __slots__ = ("codec", "sequence", "values")

    def __init__(self, sequence: int, values: list[bytes], codec: Codec) -> None:
        self.sequence = sequence
        self.values = values
        self.codec = codec


def no_frame(rng: Random) -> bytes:
    """Of values without a schema."""
    return b""


class Producer:
    """A producer with acks=all for one partition."""

    def __init__(
        self,
        world: World,
        network: Network,
        host: Host,
        history: ClientObserver,
        *,
        number: int,
        partition: int,
        batches: int,
        idempotent: bool,
        keyed: bool = False,
        frame: Callable[[Random], bytes] = no_frame,
        pauses_ms: Sequence[int] = (0, 5, 20, 100),
        topic: str = TOPIC,
        patience_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """``keyed``: records have keys, and some are tombstones. ``frame``: what a value begins with. ``pauses_ms``: delays between
        two batches. ``patience_ms``: timeout after which it looks for another broker.
        """
        self._world = world
        self._topic = topic
        self._patience_ms = patience_ms
        self._pauses_ms = pauses_ms
        self._history = history
        self._rng = world.rng(f"producer {number}")
        self._caller = Caller(world, network, host, f"producer-{number}", self._broken)
        self._number = number
        self._partition = partition
        self._left = batches
        self._idempotent = idempotent
        self._keyed = keyed
        self._frame = partial(frame, world.rng(f"frames of {number}"))
        self._producer_id = -1
        self._epoch = -1
        self._sequence = 0
        #: Whether the broker has acknowledged a batch of this producer.
        self._known = False
        #: Unacknowledged batches, oldest first; the first ``_in_flight`` are sent.
        self._queue: deque[UnacknowledgedBatch] = deque()
        self._in_flight = 0
        #: Responses to requests of an earlier round are ignored.
        self._round = 0
        world.after(self._rng.randint(0, 200), self._begin)
        world.after(self._rng.randint(0, 200), self._write)

    @property
    def done(self) -> bool:
        return self._left == 0 and not self._queue

    def _write(self) -> None:
        """Adds a batch, as a user's program does now and then."""
        if self._left == 0:
            return
        self._left -= 1
        count = self._rng.randint(1, 8)
        values = [
            self._frame() + b"%d/%d/" % (self._number, self._sequence + i) + b"x" * self._rng.choice((0, 10, 100, 700, 3000))
            for i in range(count)
        ]
        codec = self._rng.choice((Codec.NONE, Codec.NONE, Codec.LZ4, Codec.GZIP, Codec.ZSTD, Codec.SNAPPY))
        self._queue.append(UnacknowledgedBatch(self._sequence, values, codec))
        self._sequence += count
        self._history.sent(self._number, self._partition, values, idempotent=self._idempotent)
        self._world.after(self._rng.choice(self._pauses_ms), self._write)
        self._pump()

    def _begin(self) -> None:
        if not self._idempotent or self._producer_id >= 0:
            self._pump()
        elif not self._caller.call(m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), self._named):
            self._retry()

    def _named(self, response: Any) -> None:
        if response.error_code:
            self._retry()
        else:
            self._producer_id, self._epoch = response.producer_id, response.producer_epoch
            self._pump()

    def _pump(self) -> None:
        if self._idempotent and self._producer_id < 0:
            return
        # The broker accepts any first sequence of an unknown producer (as Kafka does), so the first batch is sent alone.
        most = IN_FLIGHT if self._idempotent and self._known else 1
        while self._in_flight < min(most, len(self._queue)):
            if not self._send(self._queue[self._in_flight]):
                self._broken()
                return

    def _send(self, batch: UnacknowledgedBatch) -> bool:
        now = EPOCH_MS + self._world.now_ms
        ids = {"producer_id": self._producer_id, "producer_epoch": self._epoch, "base_sequence": batch.sequence} if self._idempotent else {}
        made = [record_of(now, value) if self._keyed else (now, b"k", value, ()) for value in batch.values]
        data = build_batch(made, codec=batch.codec, **ids)
        request = m.ProduceRequest(
            acks=-1,
            timeout_ms=2000,
            topic_data=[m.TopicProduceData(name=self._topic, partition_data=[m.PartitionProduceData(index=self._partition, records=data)])],
        )
        round_now = self._round

        def answered(response: Any) -> None:
            self._answered(round_now, batch, response)

        if not self._caller.call(request, answered, batch=data, timeout_ms=self._patience_ms):
            return False
        self._in_flight += 1
        return True

    def _answered(self, round_then: int, batch: UnacknowledgedBatch, response: Any) -> None:
        if round_then != self._round:
            return
        answer = response.responses[0].partition_responses[0]
        if answer.error_code == errors.NONE:
            assert self._queue[0] is batch, "answers come in the order of requests"
            self._queue.popleft()
            self._in_flight -= 1
            self._known = True
            self._history.acknowledged(self._partition, answer.base_offset, batch.values)
            self._pump()
            return
        self._world.note(f"producer {self._number}: error {answer.error_code} for {batch.sequence}: {answer.error_message}")
        if answer.error_code == errors.OutOfOrderSequenceNumber.code and self._queue[0] is batch:
            self._history.complaint(f"producer {self._number}: the first batch not acknowledged, {batch.sequence}, is out of order")
        self._broken()

    def _broken(self) -> None:
        """Restarts at the first unacknowledged batch; without idempotence its outcome stays unknown."""
        if not self._idempotent and self._in_flight:
            self._queue.popleft()
        self._in_flight = 0
        self._round += 1
        self._caller.hang_up()
        self._retry()

    def _retry(self) -> None:
        round_now = self._round
        self._world.after(RETRY_MS + self._rng.randint(0, RETRY_MS), lambda: self._begin() if round_now == self._round else None)


class Consumer:
    """Reads one partition from its start, for ever."""

    def __init__(
        self, world: World, network: Network, host: Host, history: ClientObserver, *, number: int, partition: int, topic: str = TOPIC
    ) -> None:
        self._world = world
        self._topic = topic
        self._history = history
        self._rng = world.rng(f"consumer {number}")
        self._caller = Caller(world, network, host, f"consumer-{number}", self._broken)
        self._number = number
        self._partition = partition
        self.position = 0
        #: Offset after the last batch read.
        self._behind = 0
        self._asking = False
        #: The leader epoch that it knows; -1 for none.
        self.leader_epoch: Callable[[], int] = lambda: NO_EPOCH
        #: Offset up to which records may have been deleted.
        self.deleted_to: Callable[[], int] = lambda: 0
        #: Its rack; empty for none.
        self.rack = ""
        #: Whether a gap in the offsets can only be damage. Kafka's clients do not check; only the broker's scrub finds it then.
        self.dense = False
        world.after(self._rng.randint(0, 100), self._ask)

    def _ask(self) -> None:
        if self._asking:
            return
        ask = m.FetchPartition(
            partition=self._partition,
            current_leader_epoch=self.leader_epoch(),
            fetch_offset=self.position,
            partition_max_bytes=self._rng.choice((1, 2000, 1 << 20)),
        )
        request = m.FetchRequest(
            max_wait_ms=self._rng.choice((0, 100, 500)),
            min_bytes=1,
            session_epoch=-1,
            topics=[m.FetchTopic(topic=self._topic, partitions=[ask])],
            rack_id=self.rack,
        )
        self._asking = self._caller.call(request, self._answered)
        if not self._asking:
            self._world.after(RETRY_MS, self._ask)

    def _broken(self) -> None:
        self._asking = False
        self._world.after(RETRY_MS, self._ask)

    def _answered(self, response: Any) -> None:
        self._asking = False
        data = response.responses[0].partitions[0] if response.responses else None
        if data is None or data.error_code:
            if data is not None and data.error_code == errors.OffsetOutOfRange.code:
                if self.position >= self.deleted_to():
                    self._history.complaint(
                        f"consumer {self._number}: offset {self.position} of partition {self._partition} was there, now it is out of range"
                    )
                self.position = self._behind = self.deleted_to()
            self._world.after(RETRY_MS, self._ask)
            return
        try:
            found = self._decoded(data.records)
        except RecordsError:
            # Damaged in transit or on the broker's disk; reading again shows which.
            self._world.after(RETRY_MS, self._ask)
            return
        self._history.watermark(self._number, self._partition, data.high_watermark)
        for offset, value in found:
            self._history.read(self._number, self._partition, offset, value)
            self.position = offset + 1
        self.position = max(self.position, self._behind)
        self._world.after(0 if found else self._world.unhurried(10), self._ask)

    def _decoded(self, batches: memoryview) -> list[tuple[int, bytes]]:
        found = []
        expected = self.position
        for place, header in headers(batches):
            if place + header.size > len(batches):
                break
            if not crc_ok(batches, place):
                raise RecordsError("checksum")
            if self.dense and not header.base_offset <= expected <= header.last_offset:
                raise RecordsError("offset")
            expected = header.last_offset + 1
            read = records(batches, place)
            found += [(offset, value_of(value, extra)) for offset, _, _, value, extra in read if offset >= self.position]
            # Compaction may have removed the end of a batch, or all of it.
            self._behind = header.last_offset + 1
        return found

"""Transactions as raw frames: a producer of transaction version 2 (KIP-890), as Kafka's own client since 4.0, that costs almost nothing.

    InitProducerId 5                               once
    Produce 12, Produce 12, ... five in flight     the leaders add their partitions to the transaction
    EndTxn 5                                       when the interval is over and everything is acknowledged

The batches are prepared. Each request stamps producer id, epoch and sequence into them and computes their checksums. The first requests of
a transaction are in flight together, as those of Kafka's client. A server may refuse them while it completes the last transaction; what it
refused is sent again, one by one.
"""

from __future__ import annotations

import statistics
import struct
import time
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple, Self

import psutil
from crc32c import crc32c

from bench import frames
from bench.load import Window
from bench.loads.raw import IN_FLIGHT, connect
from ottla.wire.framing import decode_response, encode_request
from ottla.wire.messages import (
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceResponse,
)
from ottla.wire.messages.find_coordinator import GROUP, TRANSACTION
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

#: Versions of Kafka's client with transaction.version 2.
PRODUCE, INIT, END, OFFSETS, FIND = 12, 5, 5, 5, 4
TIMEOUT_MS = 60_000
#: Errors after which a producer sends the same request again: coordinators and leaders that are not ready, CONCURRENT_TRANSACTIONS.
RETRIED = frozenset({5, 6, 7, 14, 15, 16, 19, 51})
OUT_OF_ORDER = 45
RETRY_S, PATIENCE_S = 0.002, 60.0
TRANSACTIONAL = 0x10
#: Requests in flight while many ids are initialized.
INIT_IN_FLIGHT = 100
RECEIVE_SIZE = 1 << 16
FETCH_BYTES = 1 << 20


class Line:
    """A connection on which requests are answered in order."""

    def __init__(self, host: str, port: int) -> None:
        self.sock = connect(host, port)
        self._received = bytearray()
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, message: Any, version: int) -> None:
        self._sent += 1
        self.sock.sendall(b"".join(encode_request(message, version, self._sent, "bench")))  # type: ignore[arg-type]

    def receive(self) -> memoryview:
        """The next response, from its correlation id on."""
        while len(self._received) < 4 or len(self._received) < 4 + (size := struct.unpack_from(">i", self._received)[0]):
            part = self.sock.recv(RECEIVE_SIZE)
            if not part:
                raise ConnectionError("the server closed the connection")
            self._received += part
        reply = memoryview(bytes(self._received[4 : 4 + size]))
        del self._received[: 4 + size]
        return reply

    def ask(self, message: Any, version: int, answer: Any, code_of: Any = lambda response: response.error_code) -> Any:
        """The response without error; retries. Raises: RequestFailed."""
        deadline = time.perf_counter() + PATIENCE_S
        while True:
            self.send(message, version)
            _, response = decode_response(answer, self.receive(), version)
            code = code_of(response)
            if not code:
                return response
            if code not in RETRIED or time.perf_counter() > deadline:
                raise frames.RequestFailed(f"{type(message).__name__} was answered with error code {code}")
            time.sleep(RETRY_S)


class Batches:
    """A Produce request with one batch for each partition, stamped again for each send."""

    def __init__(self, topic: str, batches: dict[int, bytes], transactional_id: str | None) -> None:
        self.topic, self._data, self._id = topic, batches, transactional_id
        #: Number of records by partition.
        self.records = {partition: struct.unpack_from(">i", data, 57)[0] for partition, data in batches.items()}
        self._frame, self._at = frames.stamped_produce_frame(topic, batches, version=PRODUCE, transactional_id=transactional_id)
        self._size = {partition: len(data) for partition, data in batches.items()}
        self._attributes = TRANSACTIONAL if transactional_id is not None else 0

    def only(self, partitions: Collection[int]) -> Batches:
        """The batches of some partitions."""
        return Batches(self.topic, {partition: self._data[partition] for partition in partitions}, self._id)

    def stamped(self, correlation_id: int, producer: Identity, sequences: Mapping[int, int]) -> bytearray:
        frame = self._frame
        frames.stamp(frame, correlation_id)
        for partition, at in self._at.items():
            # A batch that was fetched has an offset and a leader epoch.
            struct.pack_into(">q", frame, at, 0)
            struct.pack_into(">i", frame, at + 12, -1)
            struct.pack_into(">h", frame, at + 21, self._attributes)
            struct.pack_into(">qhi", frame, at + 43, producer.producer_id, producer.epoch, sequences[partition])
            struct.pack_into(">I", frame, at + 17, crc32c(memoryview(frame)[at + 21 : at + self._size[partition]]))
        return frame


class Identity(NamedTuple):
    """Producer id and epoch."""

    producer_id: int
    epoch: int


class Sent(NamedTuple):
    """A Produce request in flight, and the sequence of its batch of each partition."""

    batches: Batches
    sequences: dict[int, int]


def _codes(reply: memoryview) -> dict[int, int]:
    """The error codes of a Produce response, by partition, without 0."""
    _, answer = decode_response(ProduceResponse, reply, PRODUCE)
    return {one.index: one.error_code for topic in answer.responses for one in topic.partition_responses if one.error_code}


class TransactionalProducer:
    """A producer on one connection; without a transactional id it is idempotent only."""

    def __init__(self, line: Line, transactional_id: str | None) -> None:
        self._line, self._id = line, transactional_id
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
        answer: InitProducerIdResponse = line.ask(request, INIT, InitProducerIdResponse)
        self.identity = Identity(answer.producer_id, answer.producer_epoch)
        #: Next sequence by partition.
        self._sequences: dict[int, int] = defaultdict(int)
        self._correlation = 0
        #: Requests that are not answered.
        self._in_flight: deque[Sent] = deque()
        #: Whether a request of the transaction was accepted.
        self._begun = False
        self.requests = 0

    def send(self, batches: Batches) -> None:
        """Sends one batch to each partition; waits while the pipeline is full."""
        if len(self._in_flight) >= IN_FLIGHT:
            self._take()
        self._write(batches)
        self.requests += 1

    def _write(self, batches: Batches) -> None:
        self._correlation += 1
        self._line.sock.sendall(batches.stamped(self._correlation, self.identity, self._sequences))
        self._in_flight.append(Sent(batches, {partition: self._sequences[partition] for partition in batches.records}))
        for partition, records in batches.records.items():
            self._sequences[partition] += records

    def _take(self) -> None:
        sent, reply = self._in_flight.popleft(), self._line.receive()
        try:
            frames.check_produced(reply, sent.batches.topic, len(sent.batches.records))
        except frames.RequestFailed:
            if self._begun:
                raise
            self._send_again(sent, reply)
        self._begun = True

    def _send_again(self, sent: Sent, reply: memoryview) -> None:
        """A server that completes the last transaction refused the first request of the next one: sends what it refused again, in order."""
        refused: list[Batches] = []
        first: dict[int, int] = {}
        while True:
            codes = _codes(reply)
            # What follows a refused batch of its partition is out of order.
            allowed = {partition: RETRIED | {OUT_OF_ORDER} if partition in first else RETRIED for partition in codes}
            if any(code not in allowed[partition] for partition, code in codes.items()):
                raise frames.RequestFailed(f"Produce to {sent.batches.topic} was answered with error codes {sorted(set(codes.values()))}")
            for partition in codes:
                first.setdefault(partition, sent.sequences[partition])
            if codes:
                refused.append(sent.batches.only(codes))
            if not self._in_flight:
                break
            sent, reply = self._in_flight.popleft(), self._line.receive()
        self._sequences.update(first)
        for batches in refused:
            self._send_alone(batches)

    def _send_alone(self, batches: Batches) -> None:
        """Sends a request until all partitions accepted it."""
        deadline = time.perf_counter() + PATIENCE_S
        wanted: Batches | None = batches
        while wanted is not None:
            self._write(wanted)
            self._in_flight.clear()
            codes = _codes(self._line.receive())
            if not RETRIED.issuperset(codes.values()) or (codes and time.perf_counter() > deadline):
                raise frames.RequestFailed(f"Produce to {batches.topic} was answered with error codes {sorted(set(codes.values()))}")
            for partition in codes:
                self._sequences[partition] -= batches.records[partition]
            wanted = batches.only(codes) if codes else None
            if codes:
                time.sleep(RETRY_S)

    def flush(self) -> None:
        while self._in_flight:
            self._take()

    def commit(self) -> float:
        """Ends the transaction; the seconds from EndTxn to its response."""
        self.flush()
        assert self._id is not None, "only transactional producers commit"
        request = EndTxnRequest(transactional_id=self._id, committed=True, producer_id=self.identity.producer_id)
        request.producer_epoch = self.identity.epoch
        began = time.perf_counter()
        answer: EndTxnResponse = self._line.ask(request, END, EndTxnResponse)
        took = time.perf_counter() - began
        self.identity = Identity(answer.producer_id, answer.producer_epoch)
        self._sequences.clear()
        self._begun = False
        return took


def find_coordinators(host: str, port: int, keys: dict[int, str]) -> None:
    """Makes the server create the topics of its coordinators, and waits for them."""
    with Line(host, port) as line:
        for key_type, key in keys.items():
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            line.ask(request, FIND, FindCoordinatorResponse, lambda response: response.coordinators[0].error_code)


def produce(
    host: str,
    port: int,
    pid: int | list[int],
    topic: str,
    *,
    partitions: int,
    value_size: int,
    batch_size: int,
    commit_ms: float | None,
    seconds: float,
    warm_s: float = 0.3,
) -> dict[str, Any]:
    """Send batches for `seconds`, with a commit every `commit_ms`; None: an idempotent producer."""
    transactional_id = None if commit_ms is None else f"{topic}-{time.time_ns()}"
    if transactional_id is not None:
        find_coordinators(host, port, {TRANSACTION: transactional_id})
    batch = frames.batch_of(value_size, batch_size)
    batches = Batches(topic, dict.fromkeys(range(partitions), batch.data), transactional_id)
    with Line(host, port) as line:
        producer = TransactionalProducer(line, transactional_id)
        _produce_until(producer, batches, commit_ms, time.perf_counter() + warm_s)
        before = producer.requests
        window = Window(pid)
        commits = _produce_until(producer, batches, commit_ms, window.open() + seconds)
        measured = window.close()
    requests = producer.requests - before
    return {
        **measured,
        **latencies(commits),
        "requests": requests,
        "records": requests * batch.records * partitions,
        "bytes": requests * batch.value_bytes * partitions,
    }


def _produce_until(producer: TransactionalProducer, batches: Batches, commit_ms: float | None, until: float) -> list[float]:
    """The seconds that each commit took."""
    commits: list[float] = []
    now = began = time.perf_counter()
    while now < until:
        producer.send(batches)
        now = time.perf_counter()
        if commit_ms is not None and now - began >= commit_ms / 1000:
            commits.append(producer.commit())
            now = began = time.perf_counter()
    if commit_ms is not None and began != now:
        commits.append(producer.commit())
    producer.flush()
    return commits


def commit_latency(
    host: str, port: int, pid: int | list[int], topic: str, *, partitions: int, value_size: int, seconds: float, warm_s: float = 0.5
) -> dict[str, Any]:
    """Transactions with one record in each of the partitions, one after another."""
    transactional_id = f"{topic}-{time.time_ns()}"
    find_coordinators(host, port, {TRANSACTION: transactional_id})
    batch = frames.batch_of(value_size, value_size + 80)
    batches = Batches(topic, dict.fromkeys(range(partitions), batch.data), transactional_id)
    with Line(host, port) as line:
        producer = TransactionalProducer(line, transactional_id)
        _cycles(producer, batches, time.perf_counter() + warm_s)
        window = Window(pid)
        commits, cycles = _cycles(producer, batches, window.open() + seconds)
        measured = window.close()
    return {**measured, **latencies(commits), "cycle_p50_ms": statistics.median(cycles) * 1000}


def _cycles(producer: TransactionalProducer, batches: Batches, until: float) -> tuple[list[float], list[float]]:
    """The seconds of each commit, and of each transaction from its first Produce to the end of its commit."""
    commits: list[float] = []
    cycles: list[float] = []
    began = time.perf_counter()
    while began < until or not commits:
        producer.send(batches)
        commits.append(producer.commit())
        ended = time.perf_counter()
        cycles.append(ended - began)
        began = ended
    return commits, cycles


def many_ids(host: str, port: int, pid: int, topic: str, *, ids: int) -> dict[str, Any]:
    """InitProducerId for `ids` new transactional ids: seconds, and memory of the server."""
    names = deque(f"{topic}-{number}" for number in range(ids))
    find_coordinators(host, port, {TRANSACTION: names[0]})
    before = _resident(pid)
    with Line(host, port) as line:
        window = Window(pid)
        window.open()
        pending: deque[str] = deque()
        deadline = time.perf_counter() + PATIENCE_S
        while names or pending:
            while names and len(pending) < INIT_IN_FLIGHT:
                pending.append(names.popleft())
                line.send(InitProducerIdRequest(transactional_id=pending[-1], transaction_timeout_ms=TIMEOUT_MS), INIT)
            name = pending.popleft()
            _, answer = decode_response(InitProducerIdResponse, line.receive(), INIT)
            if answer.error_code in RETRIED and time.perf_counter() < deadline:
                names.append(name)
            elif answer.error_code:
                raise frames.RequestFailed(f"InitProducerId was answered with error code {answer.error_code}")
        measured = window.close()
    return {**measured, "ids": ids, "memory_bytes": _resident(pid) - before}


def _resident(pid: int) -> int:
    """Resident memory of a server and its children."""
    process = psutil.Process(pid)
    return sum(one.memory_info().rss for one in [process, *process.children(recursive=True)])


def process(
    host: str,
    port: int,
    pid: int | list[int],
    topic: str,
    *,
    output: str,
    partitions: int,
    value_size: int,
    commit_ms: float,
    seconds: float,
    warm_s: float = 0.3,
) -> dict[str, Any]:
    """Consume, process, produce: read `topic` at read_committed, write each batch to `output`, commit the offsets in the transaction."""
    name = f"{output}-{time.time_ns()}"
    find_coordinators(host, port, {TRANSACTION: name, GROUP: name})
    with Line(host, port) as line, Line(host, port) as source:
        copier = Copier(line, source, topic, output, partitions, name)
        copier.run(commit_ms, time.perf_counter() + warm_s)
        before, records = copier.producer.requests, copier.records
        window = Window(pid)
        commits = copier.run(commit_ms, window.open() + seconds)
        measured = window.close()
    records = copier.records - records
    return {
        **measured,
        **latencies(commits),
        "requests": copier.producer.requests - before,
        "records": records,
        "bytes": records * value_size,
    }


class Copier:
    """Copies batches from one topic to another in transactions, partition by partition."""

    def __init__(self, line: Line, source: Line, topic: str, output: str, partitions: int, name: str) -> None:
        self._line, self._source, self._topic, self._output, self._name = line, source, topic, output, name
        self._offsets = dict.fromkeys(range(partitions), 0)
        self.records = 0
        self.producer = TransactionalProducer(line, name)

    def run(self, commit_ms: float, until: float) -> list[float]:
        commits: list[float] = []
        began = time.perf_counter()
        while (now := time.perf_counter()) < until:
            self._copy_once()
            if now - began >= commit_ms / 1000:
                commits.append(self._commit())
                began = time.perf_counter()
        commits.append(self._commit())
        return commits

    def _copy_once(self) -> None:
        """Copies what one Fetch returns; begins again at the end of the topic."""
        self._source.sock.sendall(
            frames.fetch_frame(self._topic, self._offsets, partition_bytes_max=FETCH_BYTES, wait_ms=10, read_committed=True)
        )
        found = frames.fetched_batches(self._source.receive(), self._offsets)
        if not any(found.values()):
            self._offsets = dict.fromkeys(self._offsets, 0)
        # One batch of each partition in a request, as Java's producer under load.
        for row in zip_longest(*found.values()):
            batches = {partition: batch for partition, batch in zip(found, row, strict=True) if batch is not None}
            prepared = Batches(self._output, batches, self._name)
            self.producer.send(prepared)
            self.records += sum(prepared.records.values())

    def _commit(self) -> float:
        """Commits the offsets and the transaction; the seconds of EndTxn."""
        self.producer.flush()
        identity = self.producer.identity
        request = TxnOffsetCommitRequest(
            transactional_id=self._name,
            group_id=self._name,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=self._topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
                        for partition, offset in self._offsets.items()
                    ],
                )
            ],
        )
        self._line.ask(request, OFFSETS, TxnOffsetCommitResponse, _offset_code)
        return self.producer.commit()


def _offset_code(response: TxnOffsetCommitResponse) -> int:
    return next((one.error_code for topic in response.topics for one in topic.partitions if one.error_code), 0)


def latencies(commits: list[float]) -> dict[str, float]:
    """Number of commits, and percentiles in milliseconds."""
    ordered = sorted(commits)
    if not ordered:
        return {"commits": 0}
    return {
        "commits": len(ordered),
        "commit_p50_ms": ordered[len(ordered) // 2] * 1000,
        "commit_p99_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000,
    }

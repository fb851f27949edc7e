"""An in-memory cluster that speaks real frames: nodes without sockets, logs without files, and injected faults.

`MemoryCluster.connect` replaces `open_connection`. It returns a real `ClientConnection` whose transport passes the bytes to a node. The
node decodes the request, acts as a broker would, and feeds the encoded response back through the event loop.

A fault is a function `(node, request) -> response | CUT | CUT_AFTER | None`, called before each request of its kind. None lets the
request through and keeps the fault; any other result uses it up. CUT breaks the connection before the request is processed, CUT_AFTER
after.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from group_simulation import ClassicCoordinator, ConsumerProtocolCoordinator, GroupSimulation
from memory_transactions import MemoryTransactions

from ottla.base.ids import TopicPartition
from ottla.net.client_connection import ClientConnection, ConnectionBroken
from ottla.records.batch import parse_header, patch
from ottla.records.build import build_batch
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, marker, records
from ottla.wire import messages as m
from ottla.wire.compile import decode
from ottla.wire.errors import KafkaError
from ottla.wire.framing import decode_request_header, encode_response
from ottla.wire.messages import API
from ottla.wire.messages.fetch import AbortedTransaction, FetchableTopicResponse, PartitionData

CUT = "cut"
CUT_AFTER = "cut after"
SEQUENCES = 2**31


#: Answered by the coordinator of the only group, possibly later.
GROUP_APIS = ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "ConsumerGroupHeartbeat")


class MemoryGroups(GroupSimulation):
    """The group of an in-memory cluster: the coordinators of `group_simulation` on the event loop's clock, and the committed offsets."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.classic = ClassicCoordinator(self)
        self.consumer = ConsumerProtocolCoordinator(self)
        self.consumer.heartbeat_interval_ms = 50
        #: (offset, leader epoch, metadata) by topic and partition.
        self.offsets: dict[tuple[str, int], tuple[int, int, str]] = {}

    @property
    def now_ms(self) -> float:  # type: ignore[override]
        return asyncio.get_running_loop().time() * 1000

    @property
    def topics(self) -> dict[str, int]:  # type: ignore[override]
        return {name: len(logs) for name, logs in self.cluster.logs.items()}

    def topic_id(self, topic: str) -> bytes:
        return self.cluster.topic_ids.get(topic, bytes(16))

    def at(self, at_ms: float, what: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_at(at_ms / 1000, what)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return getattr(self.consumer if name == "on_ConsumerGroupHeartbeat" else self.classic, name)

    def refuse(self, request: Any) -> int:
        """The error code of a commit by this member; 0 if it may commit."""
        if request.generation_id_or_member_epoch < 0:
            return 25 if self.classic.members or self.consumer.members else 0
        return self.refuse_member(request.member_id, request.generation_id_or_member_epoch)

    def refuse_member(self, member_id: str, generation: int) -> int:
        """The error code of a commit by a member of this generation or epoch."""
        known = self.consumer.members.get(member_id)
        if known is not None:
            return 0 if generation == known["epoch"] else 113
        if member_id not in self.classic.members:
            return 25
        return 0 if generation == self.classic.generation else 22


class MemoryLog:
    """One partition: its batches and its producer state."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.start = 0
        #: Start of the local log. Records before it are in remote storage.
        self.local_start = 0
        self.end = 0
        self.epoch = 0
        #: (producer id) -> (epoch, [(base sequence, last sequence, base offset)] of five batches)
        self.producers: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}
        #: First offset of the open transaction by producer id, and (producer id, first offset, marker's offset) of aborted ones.
        self.open: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []

    @property
    def last_stable_offset(self) -> int:
        return min(self.open.values(), default=self.end)

    def mark(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Append a transaction's marker."""
        record = (0, *marker(COMMIT_MARKER if commit else ABORT_MARKER, 0), ())
        batch = build_batch([record], producer_id=producer_id, producer_epoch=epoch, transactional=True, control=True)
        first = self.open.pop(producer_id, None)
        if first is not None and not commit:
            self.aborted.append((producer_id, first, self.end))
        patch(batch, base_offset=self.end, leader_epoch=self.epoch)
        self.batches.append(bytes(batch))
        self.end += 1
        known, past = self.producers.get(producer_id, (epoch, []))
        self.producers[producer_id] = (epoch, past if known == epoch else [])

    def append(self, data: bytes) -> tuple[int, int]:
        """(error code, base offset). Checks sequence numbers as a broker does: five batches are remembered, an epoch starts at 0."""
        batch = bytearray(data)
        header = parse_header(batch)
        if header.has_producer:
            epoch, past = self.producers.get(header.producer_id, (-1, []))
            for first, last, offset in past if epoch == header.producer_epoch else ():
                if (first, last) == (header.base_sequence, header.last_sequence):
                    return 0, offset
            if header.producer_epoch < epoch:
                return 47, -1
            if header.producer_epoch > epoch:
                past = []
                if epoch >= 0 and header.base_sequence:
                    return 45, -1
            elif past and header.base_sequence != (past[-1][1] + 1) % SEQUENCES:
                return 45, -1
            entry = (header.base_sequence, header.last_sequence, self.end)
            self.producers[header.producer_id] = (header.producer_epoch, [*past, entry][-5:])
        offset = self.end
        patch(batch, base_offset=offset, leader_epoch=self.epoch)
        self.batches.append(bytes(batch))
        self.end += header.last_offset_delta + 1
        return 0, offset

    def first_at(self, time_ms: int) -> tuple[int, int]:
        """(offset, timestamp) of the first record with at least this timestamp; (-1, -1) without one."""
        times = (
            (offset, time) for batch in self.batches for offset, time, *_ in records(batch) if offset >= self.start and time >= time_ms
        )
        return next(times, (-1, -1))

    def read(self, offset: int, bytes_max: int, end: int | None = None) -> bytes:
        found = b""
        for batch in self.batches:
            last = parse_header(batch).last_offset
            if last >= offset and (end is None or last < end) and (not found or len(found) + len(batch) <= bytes_max):
                found += batch
        return found


class MemoryTransport(asyncio.Transport):
    """The transport of a ClientConnection. After close it drops what is written."""

    def __init__(self, node: MemoryNode, link: ClientConnection) -> None:
        super().__init__()
        self.node = node
        self.link = link
        self.closed = False
        #: Correlation ids in order of arrival, and responses that wait for earlier ones.
        self.line: list[int] = []
        self.waiting: dict[int, bytes] = {}

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, chunks: Any) -> None:
        frame = b"".join(chunks)
        if not self.closed:
            asyncio.get_running_loop().call_soon(self.node.receive, self, frame[4:])

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True

    def cut(self) -> None:
        """The node closes the connection."""
        if not self.closed:
            self.closed = True
            self.link.connection_lost(None)

    def answered(self, correlation_id: int, data: bytes) -> None:
        """A response is ready; empty data means no response. Responses are sent in the order of the requests."""
        self.waiting[correlation_id] = data
        while self.line and self.line[0] in self.waiting:
            self.feed(self.waiting.pop(self.line.pop(0)))

    def feed(self, data: bytes) -> None:
        """Pass received bytes to the connection, in pieces that fit its buffer."""
        while data and not self.closed:
            room = self.link.get_buffer(-1)
            piece = data[: len(room)]
            room[: len(piece)] = piece
            data = data[len(piece) :]
            self.link.buffer_updated(len(piece))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class MemoryNode:
    def __init__(self, cluster: MemoryCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.up = True
        self.transports: list[MemoryTransport] = []
        self.sessions: dict[int, dict[tuple[str, int], Any]] = {}
        self.parked: list[tuple[MemoryTransport, Any, Any]] = []

    def receive(self, transport: MemoryTransport, frame: bytes) -> None:
        if not self.up or transport.closed:
            return
        header, position = decode_request_header(frame)
        transport.line.append(header.correlation_id)
        request = decode(API[header.api_key].request, frame, header.api_version, position)
        self.cluster.requests.append((self.node_id, request))
        name = type(request).__name__.removesuffix("Request")
        response = None
        for fault in list(self.cluster.faults[name]):
            response = fault(self, request)
            if response is not None:
                self.cluster.faults[name].remove(fault)
                break
        if response == CUT:
            transport.cut()
            return
        if response is None and name in GROUP_APIS and not hasattr(self, f"on_{name}"):
            handler = getattr(self.cluster.groups, f"on_{name}")
            handler(request, lambda answer: self.answer(transport, header, answer))
            return
        if response is None or response == CUT_AFTER:
            cut = response == CUT_AFTER
            response = getattr(self, f"on_{name}")(request, header)
            if cut:
                transport.cut()
                return
        if response is not None:
            self.answer(transport, header, response)
        elif name == "Fetch":
            self.parked.append((transport, header, request))
        else:
            transport.answered(header.correlation_id, b"")

    def answer(self, transport: MemoryTransport, header: Any, response: Any) -> None:
        data = b"".join(bytes(chunk) for chunk in encode_response(response, header.api_version, header.correlation_id))  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(transport.answered, header.correlation_id, data)

    def stop(self) -> None:
        self.up = False
        self.sessions.clear()
        self.parked.clear()
        for transport in self.transports:
            transport.cut()
        self.transports.clear()

    # -- groups

    def on_FindCoordinator(self, request: Any, header: Any) -> Any:
        here = {"node_id": self.node_id, "host": f"node{self.node_id}", "port": 9092}
        if header.api_version < 4:
            return m.FindCoordinatorResponse(**here)  # type: ignore[arg-type]
        return m.FindCoordinatorResponse(coordinators=[m.find_coordinator.Coordinator(key=key, **here) for key in request.coordinator_keys])  # type: ignore[arg-type]

    def on_OffsetCommit(self, request: Any, header: Any) -> Any:
        code = self.cluster.groups.refuse(request)
        topics = []
        for topic in request.topics:
            name = self.cluster.name_of(topic)
            answers = []
            for one in topic.partitions:
                if not code:
                    kept = (one.committed_offset, one.committed_leader_epoch, one.committed_metadata or "")
                    self.cluster.groups.offsets[name, one.partition_index] = kept
                answers.append(m.offset_commit.OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code))
            topics.append(m.offset_commit.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
        return m.OffsetCommitResponse(topics=topics)

    def on_OffsetFetch(self, request: Any, header: Any) -> Any:
        messages, kept = m.offset_fetch, self.cluster.groups.offsets
        if header.api_version < 8:
            topics = []
            for topic in request.topics:
                partitions = []
                for index in topic.partition_indexes:
                    offset, epoch, metadata = kept.get((topic.name, index), (-1, -1, ""))
                    partitions.append(messages.OffsetFetchResponsePartition(index, offset, epoch, metadata))
                topics.append(messages.OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
            return m.OffsetFetchResponse(topics=topics)
        (group,) = request.groups
        found = []
        for topic in group.topics:
            several = []
            for index in topic.partition_indexes:
                offset, epoch, metadata = kept.get((self.cluster.name_of(topic), index), (-1, -1, ""))
                several.append(messages.OffsetFetchResponsePartitions(index, offset, epoch, metadata))
            found.append(messages.OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=several))
        return m.OffsetFetchResponse(groups=[messages.OffsetFetchResponseGroup(group_id=group.group_id, topics=found)])

    # -- APIs

    def on_ApiVersions(self, request: Any, header: Any) -> Any:
        keys = [m.ApiVersion(api_key=key, min_version=api.versions[0], max_version=api.versions[1]) for key, api in API.items()]
        # With transaction.two.phase.commit.enable.
        for key, (first, last) in {22: (0, 6), **self.cluster.versions}.items():
            keys = [one for one in keys if one.api_key != key] + [m.ApiVersion(api_key=key, min_version=first, max_version=last)]
        level = self.cluster.transactions.version
        features = [m.api_versions.FinalizedFeatureKey(name="transaction.version", max_version_level=level, min_version_level=level)]
        return m.ApiVersionsResponse(api_keys=keys, finalized_features_epoch=1, finalized_features=features if level else [])

    def on_Metadata(self, request: Any, header: Any) -> Any:
        if request.topics is None:
            wanted = list(self.cluster.logs)
        else:
            wanted = [topic.name or self.cluster.name_of(topic) for topic in request.topics]
            if self.cluster.auto_create and request.allow_auto_topic_creation:
                for name in set(wanted) - set(self.cluster.logs):
                    self.cluster.create(name)
        return m.MetadataResponse(
            brokers=[
                m.MetadataResponseBroker(node_id=node.node_id, host=f"node{node.node_id}", port=9092)
                for node in self.cluster.nodes.values()
                if self.cluster.knows(node)
            ],
            cluster_id="memory",
            controller_id=self.cluster.controller,
            topics=[self._topic(name) for name in dict.fromkeys(wanted)],
        )  # fmt: skip

    def _topic(self, name: str) -> Any:
        logs = self.cluster.logs.get(name)
        if logs is None:
            return m.MetadataResponseTopic(error_code=3, name=name)
        partitions = []
        for index, log in enumerate(logs):
            leader = self.cluster.leaders[name, index]
            up = leader in self.cluster.nodes and self.cluster.knows(self.cluster.nodes[leader])
            partitions.append(
                m.MetadataResponsePartition(
                    partition_index=index, leader_id=leader if up else -1, leader_epoch=log.epoch, replica_nodes=[leader]
                )
            )
        topic_id, internal = self.cluster.topic_ids[name], name in self.cluster.internal
        return m.MetadataResponseTopic(name=name, topic_id=topic_id, is_internal=internal, partitions=partitions)

    def on_DescribeTopicPartitions(self, request: Any, header: Any) -> Any:
        """Returns one topic per page."""
        after = request.cursor.topic_name if request.cursor else ""
        (name, *more) = [one.name for one in request.topics if one.name >= after]
        topic = self._topic(name)
        partitions = [
            m.DescribeTopicPartitionsResponsePartition(
                partition_index=one.partition_index,
                leader_id=one.leader_id,
                leader_epoch=one.leader_epoch,
                replica_nodes=one.replica_nodes,
                isr_nodes=one.isr_nodes,
                offline_replicas=one.offline_replicas,
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
            for one in topic.partitions
        ]
        return m.DescribeTopicPartitionsResponse(
            topics=[
                m.DescribeTopicPartitionsResponseTopic(
                    error_code=topic.error_code, name=name, topic_id=topic.topic_id, partitions=partitions
                )
            ],
            next_cursor=m.Cursor(topic_name=more[0]) if more else None,
        )

    def on_InitProducerId(self, request: Any, header: Any) -> Any:
        if request.transactional_id is not None:
            try:
                return self.cluster.transactions.initialize(request)
            except KafkaError as error:
                return m.InitProducerIdResponse(error_code=error.code)
        self.cluster.last_producer_id += 1
        return m.InitProducerIdResponse(producer_id=self.cluster.last_producer_id, producer_epoch=0)

    def on_AddPartitionsToTxn(self, request: Any, header: Any) -> Any:
        return self.cluster.transactions.on_AddPartitionsToTxn(request)

    def on_AddOffsetsToTxn(self, request: Any, header: Any) -> Any:
        return self.cluster.transactions.on_AddOffsetsToTxn(request)

    def on_EndTxn(self, request: Any, header: Any) -> Any:
        return self.cluster.transactions.on_EndTxn(request, header.api_version)

    def on_TxnOffsetCommit(self, request: Any, header: Any) -> Any:
        return self.cluster.transactions.on_TxnOffsetCommit(request, header.api_version)

    def on_Produce(self, request: Any, header: Any) -> Any:
        response = m.ProduceResponse(responses=[])
        for topic in request.topic_data:
            name = self.cluster.name_of(topic)
            answers = []
            for data in topic.partition_data:
                code, offset = self.produce(name, data.index, bytes(data.records), request.transactional_id, header.api_version)
                answers.append(m.PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset))
            response.responses.append(m.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
        self.look_again()
        return response if request.acks else None

    def look_again(self) -> None:
        """Answer the waiting fetches that have records now."""
        for entry in list(self.parked):
            transport, header, request = entry
            answer = self.on_Fetch(request, header, waited=True)
            if answer is not None:
                self.parked.remove(entry)
                self.answer(transport, header, answer)

    def produce(self, name: str, partition: int, data: bytes, transactional_id: str | None = None, version: int = 0) -> tuple[int, int]:
        for fault in list(self.cluster.batch_faults):
            code = fault(name, partition, parse_header(data))
            if code is not None:
                self.cluster.batch_faults.remove(fault)
                return code, -1
        if name not in self.cluster.logs:
            return 100, -1
        if self.cluster.leaders.get((name, partition)) != self.node_id:
            return 6, -1
        if (batch := parse_header(data)).is_transactional:
            code = self.cluster.transactions.refuse_batch(transactional_id, batch, TopicPartition(name, partition), version)
            if code:
                return code, -1
        log = self.cluster.logs[name][partition]
        end = log.end
        code, offset = log.append(data)
        if batch.is_transactional and not code:
            log.open.setdefault(batch.producer_id, end)
        return code, offset

    def on_Fetch(self, request: Any, header: Any, *, waited: bool = False) -> Any:
        if not all(self.cluster.name_of_fetch(topic) for topic in request.topics):
            return m.FetchResponse(error_code=100)
        session_id, wanted = self._session(request)
        if session_id is None:
            return m.FetchResponse(error_code=70)
        topics: dict[str, Any] = {}
        changes = False
        for (name, partition), ask in wanted.items():
            data = self._fetch(name, partition, ask, request)
            if data.error_code or data.records or request.session_epoch <= 0:
                changes |= bool(data.error_code or data.records)
                topic_id = self.cluster.topic_ids.get(name, bytes(16))
                topics.setdefault(name, FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=[])).partitions.append(data)
        if not changes and wanted and request.max_wait_ms:
            if not waited:
                asyncio.get_running_loop().call_later(request.max_wait_ms / 1000, self._wait_over, header)
            return None
        return m.FetchResponse(session_id=session_id, responses=list(topics.values()))

    def _wait_over(self, header: Any) -> None:
        for entry in list(self.parked):
            transport, parked_header, request = entry
            if parked_header is header:
                self.parked.remove(entry)
                self.answer(transport, header, m.FetchResponse(session_id=request.session_id or self._last_session, responses=[]))

    _last_session = 0

    def _session(self, request: Any) -> tuple[int | None, dict[tuple[str, int], Any]]:
        asked = {
            (self.cluster.name_of_fetch(topic), partition.partition): partition
            for topic in request.topics
            for partition in topic.partitions
        }
        if request.session_epoch == -1:
            return 0, asked
        if request.session_epoch == 0:
            self.sessions.pop(request.session_id, None)
            self._last_session = session_id = self.cluster.next_session()
            self.sessions[session_id] = asked
            return session_id, asked
        held = self.sessions.get(request.session_id)
        if held is None:
            return None, {}
        held.update(asked)
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                held.pop((self.cluster.name_of_fetch(topic), partition), None)
        return request.session_id, held

    def _fetch(self, name: str, partition: int, ask: Any, request: Any) -> Any:
        log = self.cluster.logs[name][partition] if name in self.cluster.logs else None
        if log is None or self.cluster.leaders[name, partition] != self.node_id:
            return PartitionData(partition_index=partition, error_code=6 if log else 3)
        if not log.start <= ask.fetch_offset <= log.end:
            return PartitionData(partition_index=partition, error_code=1, log_start_offset=log.start)
        committed = bool(request.isolation_level)
        records = log.read(ask.fetch_offset, ask.partition_max_bytes, log.last_stable_offset if committed else None)
        aborted = [
            AbortedTransaction(producer_id=producer_id, first_offset=first)
            for producer_id, first, last in log.aborted
            if last >= ask.fetch_offset
        ]
        return PartitionData(
            partition_index=partition,
            high_watermark=log.end,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.start,
            aborted_transactions=self.cluster.aborted.get((name, partition), (aborted or None) if committed else None),
            records=records,
        )

    def on_ListOffsets(self, request: Any, header: Any) -> Any:
        response = m.ListOffsetsResponse(topics=[])
        for topic in request.topics:
            answers = []
            for one in topic.partitions:
                leader = self.cluster.leaders.get((topic.name, one.partition_index))
                if leader != self.node_id:
                    code = 3 if leader is None else 6
                    answers.append(m.ListOffsetsPartitionResponse(partition_index=one.partition_index, error_code=code))
                    continue
                log = self.cluster.logs[topic.name][one.partition_index]
                end = log.last_stable_offset if request.isolation_level else log.end
                offset, timestamp = {-1: end, -4: log.local_start}.get(one.timestamp, log.start), -1
                if one.timestamp >= 0:
                    offset, timestamp = log.first_at(one.timestamp)
                epoch = log.epoch if header.api_version > 3 else -1
                answers.append(
                    m.ListOffsetsPartitionResponse(
                        partition_index=one.partition_index, offset=offset, timestamp=timestamp, leader_epoch=epoch
                    )
                )
            response.topics.append(m.ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return response

    def on_CreateTopics(self, request: Any, header: Any) -> Any:
        results = []
        for topic in request.topics:
            code = 41 if self.node_id != self.cluster.controller else 36 if topic.name in self.cluster.logs else 0
            if not code:
                self.cluster.create(topic.name, max(topic.num_partitions, 1))
            results.append(
                m.CreatableTopicResult(name=topic.name, error_code=code, topic_id=self.cluster.topic_ids.get(topic.name, bytes(16)))
            )
        return m.CreateTopicsResponse(topics=results)


class MemoryCluster:
    """Nodes, topics, leaders and the injected faults."""

    def __init__(self, nodes: int = 1) -> None:
        self.nodes = {node_id: MemoryNode(self, node_id) for node_id in range(1, nodes + 1)}
        self.controller = 1
        #: Whether a metadata request creates missing topics.
        self.auto_create = False
        self.logs: dict[str, list[MemoryLog]] = {}
        self.leaders: dict[tuple[str, int], int] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.internal: set[str] = set()
        self.versions: dict[int, tuple[int, int]] = {}
        self.faults: dict[str, list[Callable[[MemoryNode, Any], Any]]] = defaultdict(list)
        #: (topic, partition, header) -> error code returned instead of appending, or None.
        self.batch_faults: list[Callable[[str, int, Any], int | None]] = []
        self.aborted: dict[tuple[str, int], Any] = {}
        self.requests: deque[tuple[int, Any]] = deque()
        self.last_producer_id = 1000
        self.refused = 0
        #: Nodes that are down but still in the metadata.
        self.unnoticed: set[int] = set()
        self.groups = MemoryGroups(self)
        self.transactions = MemoryTransactions(self)
        self._sessions = 0
        self._topics_made = 0

    def create(self, name: str, partitions: int = 1) -> None:
        self.logs[name] = [MemoryLog() for _ in range(partitions)]
        self.topic_ids[name] = self._topics_made.to_bytes(15, "big") + b"\x01"
        self._topics_made += 1
        for index in range(partitions):
            self.leaders[name, index] = 1 + index % len(self.nodes)

    def delete(self, name: str) -> None:
        """The topic id stays known, for the error that requests with it get."""
        for index in range(len(self.logs.pop(name))):
            del self.leaders[name, index]

    def move(self, name: str, partition: int, node_id: int) -> None:
        self.leaders[name, partition] = node_id
        self.logs[name][partition].epoch += 1

    def knows(self, node: MemoryNode) -> bool:
        """Whether the metadata lists the node as alive."""
        return node.up or node.node_id in self.unnoticed

    def name_of(self, topic: Any) -> str:
        """The topic's name; empty if it does not exist."""
        return topic.name or next((name for name, topic_id in self.topic_ids.items() if topic_id == topic.topic_id), "")

    def name_of_fetch(self, topic: Any) -> str:
        return topic.topic or next((name for name, topic_id in self.topic_ids.items() if topic_id == topic.topic_id), "")

    def next_session(self) -> int:
        self._sessions += 1
        return self._sessions

    def sent(self, kind: type[Any]) -> list[Any]:
        """Requests of this type that arrived."""
        return [request for _, request in self.requests if isinstance(request, kind)]

    async def connect(self, host: str, port: int, *, client_id: str, frame_bytes_max: int, lost: Any, **_: Any) -> ClientConnection:
        """Replaces `open_connection`."""
        await asyncio.sleep(0)
        node = next((node for node in self.nodes.values() if node.up and host in (f"node{node.node_id}", "boot")), None)
        if node is None:
            self.refused += 1
            raise ConnectionBroken(f"connection refused by {host}:{port}: nothing listens on that port; is the broker running?")
        link = ClientConnection(f"{host}:{port}", client_id=client_id, frame_bytes_max=frame_bytes_max, lost=lost)
        transport = MemoryTransport(node, link)
        link.connection_made(transport)
        node.transports.append(transport)
        return link

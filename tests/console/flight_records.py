"""A flight record, as the recorder of a broker writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.base.ids import BrokerId, ConnectionId, LeaderEpoch, TopicId
from ottla.base.ports import NodeState
from ottla.broker import events
from ottla.records.build import build_batch
from ottla.server.flight_recorder import FlightRecorder
from ottla.store import layout
from ottla.wire import framing
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

TOPIC_ID = TopicId(b"0123456789abcdef")
NO_TIMESTAMP = -1


def flight_record(directory: Path) -> Path:
    """A record with a topic, three produce requests and a closed connection."""
    recorder = FlightRecorder(1 << 20)

    def node(path: str, data: bytes) -> None:
        recorder.note(5_000, events.StoreChanged(state=NodeState(path, data, 0, 1)), None)

    node(layout.topic("t"), layout.encode_topic(layout.TopicAssignment(topic_id=TOPIC_ID, replicas={0: (BrokerId(3),)})))
    state = layout.PartitionState(leader=3, leader_epoch=LeaderEpoch(4), isr=(3,), controller_epoch=1)
    node(layout.partition_state("t", 0), layout.encode_partition_state(state))
    for number in range(3):
        records = build_batch([(NO_TIMESTAMP, None, b"value" * 10, ())])
        data = [TopicProduceData(topic_id=TOPIC_ID, partition_data=[PartitionProduceData(index=0, records=records)])]
        message: Any = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data)
        frame = memoryview(b"".join(map(bytes, framing.encode_request(message, 13, 7, "billing"))))[4:]  # type: ignore[arg-type]
        event = events.RequestArrived(
            connection=ConnectionId(1), correlation_id=7, api_key=0, api_version=13, client_id="billing", body=message
        )
        recorder.note(5_010 + 10 * number, event, frame)
    recorder.note(5_040, events.ConnectionClosed(connection=ConnectionId(1)), None)
    return recorder.write(directory, broker_id=3, settings={"log.dirs": "elsewhere"}, error=AssertionError("a promise"))

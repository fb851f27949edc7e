"""The simulator replays a flight record that the server's recorder wrote."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.base.ids import BrokerId, ConnectionId, LeaderEpoch, Offset, TopicId, TopicPartition
from ottla.base.ports import NodeState
from ottla.base.units import KiB
from ottla.broker import events
from ottla.broker.replica.leader import Leader
from ottla.cli.sim.commands import command
from ottla.records.build import build_batch
from ottla.server.flight_recorder import FRAME_KEPT_BYTES, FlightRecorder
from ottla.sim.replay import UnreadableRecord, read_record, replay
from ottla.store import layout
from ottla.wire import framing
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

TOPIC_ID = TopicId(b"0123456789abcdef")
#: Fits every calendar.
NO_TIMESTAMP = -1
EPOCH = LeaderEpoch(4)


class Recording:
    """A recorder with a topic of two partitions, of which broker 3 leads the first, and what was noted since."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        self.recorder = FlightRecorder(bytes_max)
        self.now_ms = 5_000
        self.node(
            layout.topic("t"),
            layout.encode_topic(layout.TopicAssignment(topic_id=TOPIC_ID, replicas={0: (BrokerId(3),), 1: (BrokerId(4),)})),
        )
        for partition, leader in ((0, 3), (1, 4)):
            state = layout.PartitionState(leader=leader, leader_epoch=EPOCH, isr=(leader,), controller_epoch=1)
            self.node(layout.partition_state("t", partition), layout.encode_partition_state(state))

    def node(self, path: str, data: bytes) -> None:
        self.recorder.note(self.now_ms, events.StoreChanged(state=NodeState(path, data, 0, 1)), None)

    def request(self, message: Any, version: int, connection: int = 1) -> None:
        self.now_ms += 10
        frame = memoryview(b"".join(map(bytes, framing.encode_request(message, version, 7, "test"))))[4:]  # type: ignore[arg-type]
        event = events.RequestArrived(
            connection=ConnectionId(connection), correlation_id=7, api_key=0, api_version=version, client_id="test", body=message
        )
        self.recorder.note(self.now_ms, event, frame)

    def produce(self, size: int = 10, *, topic_id: bytes = TOPIC_ID) -> None:
        records = build_batch([(NO_TIMESTAMP, None, bytes(size), ())])
        data = [TopicProduceData(topic_id=topic_id, partition_data=[PartitionProduceData(index=0, records=records)])]
        self.request(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data), 13)

    def fetch(self, offset: int) -> None:
        partitions = [FetchPartition(partition=0, current_leader_epoch=EPOCH, fetch_offset=offset, partition_max_bytes=1000)]
        topic = FetchTopic(topic_id=TOPIC_ID, partitions=partitions)
        self.request(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=-1, topics=[topic]), 13, connection=2)

    def written(self, directory: Path, error: str = "a promise") -> Path:
        return self.recorder.write(directory, broker_id=3, settings={"log.dirs": "elsewhere"}, error=AssertionError(error))


def test_a_failure_that_requests_bring_about_happens_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording()
    for _ in range(3):
        recording.produce()
    recording.now_ms += 200
    recording.fetch(2)
    inner = Leader.read

    def read(self: Leader, offset: int, **rest: Any) -> Any:
        assert not (offset == 2 and self.high_watermark == 3), "the third record is not readable"
        return inner(self, offset, **rest)

    monkeypatch.setattr(Leader, "read", read)
    outcome = replay(read_record(recording.written(tmp_path)))
    assert outcome.requests == 4 and outcome.lacks == []
    assert "the third record is not readable" in outcome.story()


def test_a_failure_that_is_not_reproduced_is_reported_with_what_the_record_lacks(tmp_path: Path) -> None:
    recording = Recording(bytes_max=64 * KiB)
    for _ in range(300):
        recording.produce()
    recording.produce(FRAME_KEPT_BYTES)
    recording.fetch(0)
    shown = CliRunner().invoke(command, ["replay", str(recording.written(tmp_path, "the moon is full"))])
    assert shown.exit_code == 0
    assert "recorded of broker 3: AssertionError('the moon is full')" in shown.output
    assert "it did not happen again" in shown.output
    assert "events before the first one kept" in shown.output and "1 requests too large to be kept whole" in shown.output


def test_the_topics_of_events_that_are_no_longer_kept_are_in_the_record(tmp_path: Path) -> None:
    recording = Recording(bytes_max=4 * KiB)
    for _ in range(50):
        recording.produce()
    record = read_record(recording.written(tmp_path))
    assert record.failure.dropped > 3
    assert layout.decode_topic(record.nodes[layout.topic("t")].data or b"").topic_id == TOPIC_ID


def test_a_request_of_another_broker_of_the_process_is_kept_as_a_frame(tmp_path: Path) -> None:
    recording = Recording()
    body = FetchRequest(max_wait_ms=5)
    event = events.RequestArrived(connection=ConnectionId(-1), correlation_id=0, api_key=1, api_version=12, client_id=None, body=body)
    recording.recorder.note(6_000, event, None)
    ((_, request),) = read_record(recording.written(tmp_path)).requests
    header, _ = framing.decode_request_header(request.frame)
    assert (header.api_key, header.api_version, request.size) == (1, 12, len(request.frame))


def test_events_of_every_kind_can_be_written_down(tmp_path: Path) -> None:
    recording = Recording()
    recording.recorder.note(6_000, events.Flushed(marks=((TopicPartition("t", 0), Offset(1)),)), None)
    recording.recorder.note(6_001, events.ConnectionClosed(connection=ConnectionId(1)), None)
    record = read_record(recording.written(tmp_path))
    assert record.closings == [(6_001, 1)] and record.last_ms == 6_001


@pytest.mark.parametrize("content", ["", "not json\n", '{"a": 1}\n', '[1]\n{"b": 2}\n'])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(UnreadableRecord, match="is not a flight record"):
        read_record(path)
    assert CliRunner().invoke(command, ["replay", str(path)]).exit_code == 2

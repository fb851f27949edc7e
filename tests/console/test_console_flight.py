"""Flight records: the list, a record's events, an uploaded record, and its replay with effects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Browser, browsing, seen

from ottla.base.ids import BrokerId, ConnectionId, LeaderEpoch, TopicId
from ottla.base.ports import NodeState
from ottla.broker import events
from ottla.records.build import build_batch
from ottla.server.flight_recorder import FlightRecorder
from ottla.store import layout
from ottla.wire import framing
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

NOWHERE = "127.0.0.1:9"
TOPIC_ID = TopicId(b"0123456789abcdef")
NO_TIMESTAMP = -1


def written(directory: Path) -> Path:
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


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A console that shows a directory with one record; it needs no cluster."""
    with browsing(NOWHERE, flight_records=(tmp_path,), audit=tmp_path / "audit") as made:
        yield made


def test_a_record_is_listed_opened_and_its_requests_are_decoded(browser: Browser, tmp_path: Path) -> None:
    path = written(tmp_path)
    assert path.name in browser.text("/flight")
    text = browser.text(f"/flight/{path.name}")
    assert "AssertionError('a promise')" in text and "Produce v13 of billing on connection 1" in text and "log.dirs=elsewhere" in text
    request = browser.text(f"/flight/{path.name}/3")
    assert "Event 3: Request" in request and "timeout_ms : 1000" in request and "Replay it to see the effects" in request, request
    assert "/brokers/topics/t" in browser.text(f"/flight/{path.name}/1")
    assert browser.get(f"/flight/{path.name}/9").status_code == 404
    assert "no such event" in browser.text(f"/flight/{path.name}?kind=Nothing")


def test_an_uploaded_record_is_opened_and_another_file_is_refused(browser: Browser, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    data = written(elsewhere).read_bytes()
    answer = browser.post("/flight/upload", files={"file": ("mine.jsonl", data)})
    assert "The record was read" in seen(answer.text) and "Produce v13" in seen(answer.text)
    refused = browser.post("/flight/upload", files={"file": ("x.jsonl", b"not a record")})
    assert refused.status_code == 400 and "it is not a flight record" in seen(refused.text)
    assert browser.text("/flight").count("uploaded-") == 1
    assert [line.split('"outcome":')[1][:6] for line in (tmp_path / "audit").read_text().splitlines()] == ['"done"', '"faile']


def test_a_path_outside_of_the_directories_is_not_opened(browser: Browser, tmp_path: Path) -> None:
    written(tmp_path)
    assert browser.get("/flight/..%2F..%2Fetc%2Fpasswd").status_code == 404


@pytest.mark.server
def test_a_replay_shows_the_effects_of_each_request(browser: Browser, tmp_path: Path) -> None:
    path = written(tmp_path)
    assert "3 requests sent again; it did not happen again" in seen(browser.post(f"/flight/{path.name}/replay").text)
    steps = browser.text(f"/flight/{path.name}/steps?event=RequestArrived&sort=number")
    assert steps.count("RequestArrived") >= 3
    request = browser.text(f"/flight/{path.name}/3")
    assert re.search(r"Step \d+ of the replay : \w+", request), request
    number = request.partition("Step ")[2].split()[0]
    step = browser.text(f"/flight/{path.name}/steps/{number}")
    assert "RequestArrived" in step and "Effect: " in step and "billing" in step, step

"""Flight records: the list, a record's events, an uploaded record, and its replay with effects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Browser, browsing, seen
from flight_records import flight_record

NOWHERE = "127.0.0.1:9"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A console that shows a directory with one record; it needs no cluster."""
    with browsing(NOWHERE, flight_records=(tmp_path,), audit=tmp_path / "audit") as made:
        yield made


def test_a_record_is_listed_opened_and_its_requests_are_decoded(browser: Browser, tmp_path: Path) -> None:
    path = flight_record(tmp_path)
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
    data = flight_record(elsewhere).read_bytes()
    answer = browser.post("/flight/upload", files={"file": ("mine.jsonl", data)})
    assert "The record was read" in seen(answer.text) and "Produce v13" in seen(answer.text)
    refused = browser.post("/flight/upload", files={"file": ("x.jsonl", b"not a record")})
    assert refused.status_code == 400 and "it is not a flight record" in seen(refused.text)
    assert browser.text("/flight").count("uploaded-") == 1
    assert [line.split('"outcome":')[1][:6] for line in (tmp_path / "audit").read_text().splitlines()] == ['"done"', '"faile']


def test_a_path_outside_of_the_directories_is_not_opened(browser: Browser, tmp_path: Path) -> None:
    flight_record(tmp_path)
    assert browser.get("/flight/..%2F..%2Fetc%2Fpasswd").status_code == 404


@pytest.mark.server
def test_a_replay_shows_the_effects_of_each_request(browser: Browser, tmp_path: Path) -> None:
    path = flight_record(tmp_path)
    assert "3 requests sent again; it did not happen again" in seen(browser.post(f"/flight/{path.name}/replay").text)
    steps = browser.text(f"/flight/{path.name}/steps?event=RequestArrived&sort=number")
    assert steps.count("RequestArrived") >= 3
    request = browser.text(f"/flight/{path.name}/3")
    assert re.search(r"Step \d+ of the replay : \w+", request), request
    number = request.partition("Step ")[2].split()[0]
    step = browser.text(f"/flight/{path.name}/steps/{number}")
    assert "RequestArrived" in step and "Effect: " in step and "billing" in step, step

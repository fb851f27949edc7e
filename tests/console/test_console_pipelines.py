"""Pipelines: their status while they run, and dead letters that go back to their topics once."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from browsing import Browser, browsing, seen

from ottla.aio import Admin, Consumer, Producer
from ottla.client.admin.results import NewTopic
from ottla.console.pipelines.watch import pipelines_of
from serving import Elsewhere, Serving

NOWHERE = "127.0.0.1:9"
pytestmark = pytest.mark.server


def pipeline_file(directory: Path, bootstrap: str, topic: str) -> Path:
    """A pipeline with a checkpoint as a run leaves it: one batch, in which two rows were dead letters."""
    checkpoint = directory / "checkpoint"
    query = checkpoint / "records-append"
    for name in ("offsets", "commits"):
        (query / name).mkdir(parents=True)
    (query / "metadata").write_text('{"id":"5a0b"}')
    offsets = json.dumps({topic: {"0": 3}})
    (query / "offsets" / "0").write_text('v1\n{"batchTimestampMs":1761000000000}\n' + offsets + "\n")
    (query / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}\n')
    last = {"batch": 0, "rows_in_per_s": 120.5, "rows_out_per_s": 20.0, "batch_ms": 250, "watermark": None, "state_rows": 7}
    notes = {"records-append": {"last": last, "total": {"rows_in": 3, "rows_out": 1, "dead_letters": 2}, "targets": []}}
    (checkpoint / "pipeline.json").write_text(json.dumps({"version": 1, "queries": notes}))
    file = directory / "shop.toml"
    file.write_text(
        f'bootstrap = "{bootstrap}"\ncheckpoint = "{checkpoint}"\n[source]\ntopic = "{topic}"\n[decode]\nformat = "json"\n'
        f'fields = {{ id = "int" }}\nbad_records = "dead_letter"\n[dead_letters]\ntopic = "{topic}-dead"\n'
        f'[[sink]]\ntype = "topic"\ntopic = "{topic}-out"\n'
    )
    return file


async def prepare(bootstrap: str, topic: str) -> None:
    """Three records, and their dead letters: two of the source, one of a step."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name, 1, 1) for name in (topic, f"{topic}-dead", f"{topic}-out")])
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(5):
            await producer.send(topic, b"%d" % number)
        for number, (view, of) in enumerate((("records", topic), ("totals", ""), ("records", topic))):
            headers: list[tuple[str, bytes | None]] = [
                ("ottla.reason", b"the value is not json"), ("ottla.view", view.encode()), ("ottla.topic", of.encode() or None),
                ("ottla.partition", b"0"), ("ottla.offset", b"%d" % number), ("trace", b"t1"),
            ]  # fmt: skip
            await producer.send(f"{topic}-dead", b"bad %d" % number, b"key", headers)
        await producer.flush()


async def records(bootstrap: str, topic: str, count: int) -> list[Any]:
    found: list[Any] = []
    async with Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        while len(found) < count:
            found += await consumer.poll(10_000)
    return found


def test_a_pipeline_shows_its_queries_and_its_dead_letters_are_sent_again_once(ottla_server: Serving | Elsewhere, tmp_path: Path) -> None:
    bootstrap, topic = ottla_server.bootstrap, f"shop-{uuid.uuid4().hex[:8]}"
    asyncio.run(prepare(bootstrap, topic))
    file = pipeline_file(tmp_path, bootstrap, topic)
    with browsing(bootstrap, pipelines=(file,), audit=tmp_path / "audit") as browser:
        assert "shop" in browser.text("/pipelines")
        text = browser.text("/pipelines/shop")
        assert "stopped" in text and "250" in text and "7" in text and f"{topic} / 0 3 5 2" in text, text
        assert "Up to 3 were not sent to their topics again" in text and "the value is not json" in text and "a row of a step" in text, text
        refused = browser.post("/pipelines/shop/redrive", {"confirm": "something"})
        assert refused.status_code == 400
        sent = seen(browser.post("/pipelines/shop/redrive", {"confirm": f"{topic}-dead"}).text)
        assert "2 records were sent to their topics again. 1 were left out" in sent, sent
        assert "All were sent to their topics again" in browser.text("/pipelines/shop")
        again = seen(browser.post("/pipelines/shop/redrive", {"confirm": f"{topic}-dead"}).text)
        assert "0 records were sent" in again
    found = asyncio.run(records(bootstrap, topic, 7))
    assert [record.value for record in found[5:]] == [b"bad 0", b"bad 2"]
    names = dict(found[5].headers)
    assert (
        names["trace"] == b"t1" and names["ottla-redriven-from"] == f"{topic}-dead-0 at offset 0".encode() and "ottla.reason" not in names
    )
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [(line["outcome"], line.get("sent")) for line in lines] == [("failed", None), ("done", 2), ("done", 0)]


def test_a_pipeline_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("[sorce]\n")
    with browsing(NOWHERE, pipelines=(file,)) as browser:
        assert "unknown key" in browser.text("/pipelines")
        assert "unknown key" in browser.text("/pipelines/wrong")
        assert browser.get("/pipelines/other").status_code == 404


def test_files_of_the_same_name_have_numbers_and_without_files_the_page_says_what_to_do(offline: Browser) -> None:
    assert list(pipelines_of((Path("a/x.toml"), Path("b/x.toml")))) == ["x", "x-2"]
    assert "--pipeline FILE.toml" in offline.text("/pipelines")

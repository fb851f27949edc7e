"""The idioms of docs/migrating.md: every form of each runs, and all forms of one write, or print and commit, the same."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.conftest import ELSEWHERE, NewTopicName
from ottla import Admin, Consumer, NewTopic, Producer
from serving import Serving

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
pytestmark = [pytest.mark.server, pytest.mark.interop]


def idioms(of: str) -> dict[str, list[str]]:
    """Code by heading; the last form of each is Ottla's."""
    _, _, text = PAGE.read_text().partition(f"\n## Idioms of {of}\n")
    sections = re.split(r"^### (.+)$", text.partition("\n## ")[0], flags=re.MULTILINE)[1:]
    return {title: re.findall(r"```python\n(.*?)```", body, re.DOTALL) for title, body in zip(sections[::2], sections[1::2], strict=True)}


PRODUCERS, CONSUMERS = idioms("producers"), idioms("consumers")
TIMEOUT_S = 20
#: A timeout for clients that wait forever for missing records.
RUN_S = 90


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"not done after {RUN_S} s")


def run(code: str, bootstrap: str, **names: str) -> None:
    """Run the code, which may await, as a program of its own, with other names for its topics and groups. Raises: TimeoutError."""
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(RUN_S)
    try:
        _run(code, bootstrap, names)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _run(code: str, bootstrap: str, names: dict[str, str]) -> None:
    code = code.replace("localhost:9092", bootstrap)
    for name, instead in names.items():
        code = re.sub(rf"\b{name}\b", instead, code)
    compiled = compile(code, str(PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:

        async def awaited() -> None:
            await eval(compiled, {})

        asyncio.run(awaited())
    else:
        exec(compiled, {})


def written(bootstrap: str, topic: str, at_least: int) -> list[Any]:
    """The records in the topic, sorted; with the partition if it is deterministic, and the timestamp if it was set."""
    found: list[Any] = []
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        at_least = max(at_least, sum(consumer.end_offsets(partitions).values()))
        # With acks=1, the default of aiokafka, a record can be acknowledged before it can be read.
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < at_least and time.monotonic() < deadline:
            found += consumer.poll(500)
        found += consumer.poll(100)
    return sorted(
        (
            record.key or b"",
            record.value or b"",
            record.value is None,
            list(record.headers),
            record.partition if record.key or record.headers else None,
            record.timestamp if record.headers else None,
        )
        for record in found
    )


def are_named(foreign: list[str], mine: str) -> None:
    assert foreign and all(code.startswith(("# kafka-python", "# aiokafka", "# confluent-kafka")) for code in foreign)
    assert mine.startswith("# ottla")


@pytest.mark.parametrize("title", PRODUCERS)
def test_an_idiom_writes_the_same_in_every_client(title: str, bootstrap: str, new_topic: NewTopicName) -> None:
    *foreign, mine = PRODUCERS[title]
    are_named(foreign, mine)
    topic = new_topic(3)
    run(mine, bootstrap, orders=topic)
    expected = written(bootstrap, topic, 1)
    assert expected
    for code in foreign:
        topic = new_topic(3)
        run(code, bootstrap, orders=topic)
        assert written(bootstrap, topic, len(expected)) == expected, code.splitlines()[0]


# -- consumers


@pytest.fixture(scope="module")
def groups(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a short initial rebalance delay.

    Without any, kafka-python 3.0 sometimes computes the assignment before it has the topic's metadata, assigns nothing and keeps it so.
    """
    if ELSEWHERE:
        yield ELSEWHERE
        return
    with Serving(tmp_path_factory.mktemp("migrating") / "data", settings={"group.initial.rebalance.delay.ms": "100"}) as server:
        yield server.bootstrap


def filled(bootstrap: str) -> str:
    """A new topic with the records that the page describes."""
    topic = f"t{uuid.uuid4().hex[:12]}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic(topic, 3))
    with Producer(bootstrap_servers=bootstrap, key_serializer="str", value_serializer="json") as producer:
        for number in range(12):
            producer.send(
                topic, {"id": number}, key=f"customer-{number}", partition=number % 3, timestamp_ms=1_700_000_000_000 + number * 1000
            )
    return topic


def read(code: str, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], dict[str, Any]]:
    """The sorted output of the code, and the offsets committed by its group."""
    orders, refunds, billing = filled(bootstrap), filled(bootstrap), f"g{uuid.uuid4().hex[:12]}"
    capsys.readouterr()
    run(code, bootstrap, orders=orders, refunds=refunds, billing=billing)
    printed = sorted(capsys.readouterr().out.splitlines())
    with Consumer(bootstrap_servers=bootstrap, group_id=billing) as consumer:
        kept = consumer.committed([(topic, partition) for topic in (orders, refunds) for partition in range(3)])
    names = {orders: "orders", refunds: "refunds"}
    return printed, {f"{names[tp.topic]}-{tp.partition}": one.offset for tp, one in kept.items() if one is not None}


@pytest.mark.parametrize("title", CONSUMERS)
def test_an_idiom_reads_and_commits_the_same_in_every_client(title: str, groups: str, capsys: pytest.CaptureFixture[str]) -> None:
    *foreign, mine = CONSUMERS[title]
    are_named(foreign, mine)
    expected = read(mine, groups, capsys)
    assert expected[0]
    for code in foreign:
        assert read(code, groups, capsys) == expected, code.splitlines()[0]

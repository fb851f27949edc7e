"""The idioms of docs/migrating.md: every form of each is run, and all forms of one write the same records."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import time
from pathlib import Path
from typing import Any

import pytest

from interop.conftest import NewTopicName
from ottla import Consumer

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
pytestmark = [pytest.mark.server, pytest.mark.interop]


def idioms() -> dict[str, list[str]]:
    """Code by heading; the last of each is Ottla's."""
    _, _, text = PAGE.read_text().partition("\n## Idioms\n")
    sections = re.split(r"^### (.+)$", text, flags=re.MULTILINE)[1:]
    return {title: re.findall(r"```python\n(.*?)```", body, re.DOTALL) for title, body in zip(sections[::2], sections[1::2], strict=True)}


IDIOMS = idioms()
TIMEOUT_S = 20


def run(code: str, bootstrap: str, topic: str) -> None:
    """Run the code, which may await, as a program of its own."""
    code = code.replace("localhost:9092", bootstrap).replace('"orders"', repr(topic))
    compiled = compile(code, str(PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:

        async def awaited() -> None:
            await eval(compiled, {})

        asyncio.run(awaited())
    else:
        exec(compiled, {})


def written(bootstrap: str, topic: str, at_least: int) -> list[Any]:
    """What is in the topic, sorted; with the partition where that is not left to chance, and the time where it was given."""
    found = []
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        at_least = max(at_least, sum(consumer.end_offsets(partitions).values()))
        # With acks=1, which aiokafka has by default, a record may be acknowledged before it can be read.
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


@pytest.mark.parametrize("title", IDIOMS)
def test_an_idiom_writes_the_same_in_every_client(title: str, bootstrap: str, new_topic: NewTopicName) -> None:
    *foreign, mine = IDIOMS[title]
    assert foreign and all(code.startswith(("# kafka-python", "# aiokafka", "# confluent-kafka")) for code in foreign)
    assert mine.startswith("# ottla")
    topic = new_topic(3)
    run(mine, bootstrap, topic)
    wanted = written(bootstrap, topic, 1)
    assert wanted
    for code in foreign:
        topic = new_topic(3)
        run(code, bootstrap, topic)
        assert written(bootstrap, topic, len(wanted)) == wanted, code.splitlines()[0]

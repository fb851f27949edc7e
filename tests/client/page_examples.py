"""Runs the examples of a documentation page unchanged, with a topic of their own that has records."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import uuid
from pathlib import Path

from ottla import Admin, NewTopic, Producer


def examples(page: Path) -> dict[str, str]:
    """Code by heading and its number under the heading."""
    found = {}
    for section in re.split(r"^##+ ", page.read_text(), flags=re.MULTILINE)[1:]:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", section, re.DOTALL), 1):
            found[f"{section.splitlines()[0]} {number}"] = code
    return found


def run_example(code: str, page: Path) -> None:
    """Run it with a new topic of 30 records in 3 partitions for "orders", and a new group for "billing". It may `await`."""
    topic, group = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    with Admin() as admin:
        admin.create_topic(NewTopic(topic, 3))
    with Producer(value_serializer="json") as producer:
        for number in range(30):
            producer.send(topic, {"id": number, "amount": number * 1.5}, partition=number % 3)
    code = re.sub(r'"orders(["/@])', rf'"{topic}\1', code).replace('"billing"', repr(group))
    compiled = compile(code, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:

        async def awaited() -> None:
            await eval(compiled, {})

        asyncio.run(awaited())
    else:
        exec(compiled, {})

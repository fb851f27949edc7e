"""The examples of docs/arrow.md, each run as it stands against a broker."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import uuid
from pathlib import Path

import pytest

from ottla import Admin, NewTopic, Producer
from ottla.client.options import ClientOptions
from serving import Serving

PAGE = Path(__file__).parents[2] / "docs" / "arrow.md"
pytestmark = pytest.mark.server


def examples() -> dict[str, str]:
    """Code by heading, and number below it."""
    found = {}
    for section in re.split(r"^##+ ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", section, re.DOTALL), 1):
            found[f"{section.splitlines()[0]} {number}"] = code
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("code", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_runs(code: str, ottla_server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("polars", "pandas", "duckdb"):
        if library in code:
            pytest.importorskip(library)
    if "to_pandas" in code:
        pytest.importorskip("pandas")
    # The examples leave the broker's address at its default, or name it.
    bootstrap = ottla_server.bootstrap
    monkeypatch.setattr(ClientOptions, "bootstrap_servers", (bootstrap,))
    topic, group = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    with Admin() as admin:
        admin.create_topic(NewTopic(topic, 3))
    with Producer(value_serializer="json") as producer:
        for number in range(30):
            producer.send(topic, {"id": number, "amount": number * 1.5}, partition=number % 3)
    code = re.sub(r'"orders(["/@])', rf'"{topic}\1', code).replace('"billing"', repr(group)).replace("127.0.0.1:9092", bootstrap)
    compiled = compile(code, str(PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:

        async def awaited() -> None:
            await eval(compiled, {})

        asyncio.run(awaited())
    else:
        exec(compiled, {})

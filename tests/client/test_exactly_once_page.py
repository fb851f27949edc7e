"""The examples of docs/exactly-once.md, each run unchanged against a broker."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest
from page_examples import examples, run_example

import ottla
from ottla.client.options import ClientOptions
from serving import Serving

PAGE = Path(__file__).parents[2] / "docs" / "exactly-once.md"
STARTED = Path(__file__).parents[2] / "docs" / "getting-started.md"
EXAMPLES = examples(PAGE)
pytestmark = pytest.mark.server


@pytest.mark.parametrize("code", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_runs(code: str, ottla_server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    # The examples use the default bootstrap address.
    monkeypatch.setattr(ClientOptions, "bootstrap_servers", (ottla_server.bootstrap,))
    run_example(code, PAGE)


def test_the_example_for_beginners_writes_both_records(ottla_server: Serving) -> None:
    found = re.search(r"<!-- example: transaction -->\n```python\n(.*?)```", STARTED.read_text(), re.DOTALL)
    assert found is not None
    topic = f"t-{uuid.uuid4().hex[:8]}"
    code = found[1].replace("127.0.0.1:9092", ottla_server.bootstrap).replace('"orders"', repr(topic))
    exec(compile("import ottla\n" + code, str(STARTED), "exec"), {})
    table = ottla.read_table(topic, isolation_level="read_committed", bootstrap_servers=ottla_server.bootstrap)
    assert table["value"].to_pylist() == [b"one apple"]


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 5

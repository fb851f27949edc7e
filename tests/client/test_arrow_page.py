"""The examples of docs/arrow.md, each run unchanged against a broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_examples import examples, run_example

from ottla.client.options import ClientOptions
from serving import Serving

PAGE = Path(__file__).parents[2] / "docs" / "arrow.md"
pytestmark = pytest.mark.server

EXAMPLES = examples(PAGE)


@pytest.mark.parametrize("code", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_runs(code: str, ottla_server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("polars", "pandas", "duckdb"):
        if library in code:
            pytest.importorskip(library)
    if "to_pandas" in code:
        pytest.importorskip("pandas")
    # The examples use the default bootstrap address, or name it.
    bootstrap = ottla_server.bootstrap
    monkeypatch.setattr(ClientOptions, "bootstrap_servers", (bootstrap,))
    run_example(code.replace("127.0.0.1:9092", bootstrap), PAGE)

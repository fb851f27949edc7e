"""The blocking clients in a thread whose event loop runs, as in a notebook's kernel; and the example notebook in a kernel."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla.testing import Broker

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook" / "clients.ipynb"
pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def bootstrap() -> object:
    with Broker() as broker:
        yield broker.bootstrap_servers


def test_blocking_clients_work_inside_a_running_event_loop(bootstrap: str) -> None:
    async def cell() -> list[bytes]:
        """A cell of a notebook: the kernel's loop runs, and the cell blocks it."""
        asyncio.get_running_loop()
        with ottla.Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(ottla.NewTopic("in-a-loop", partitions=1))
        with ottla.Producer(bootstrap_servers=bootstrap) as producer:
            producer.send("in-a-loop", b"blocking").result()
        async with ottla.aio.Producer(bootstrap_servers=bootstrap) as producer:
            await (await producer.send("in-a-loop", b"asyncio"))
        return [record.value for record in ottla.consume("in-a-loop@start:end", bootstrap_servers=bootstrap)]

    assert asyncio.run(cell()) == [b"blocking", b"asyncio"]


@pytest.mark.slow
def test_the_notebook_of_the_examples_runs_in_a_kernel(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="pip install nbclient ipykernel")
    import nbformat

    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVERS", bootstrap)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(Path(ottla.__file__).parents[1]), os.environ.get("PYTHONPATH")))))
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the notebook is stored without output"
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    shown = [output.data.get("text/html", "") for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    tables = [html for html in shown if html.startswith("<table>")]
    assert len(tables) == 4, "topics, records, lag and the topic are tables"
    assert "anna" in tables[1]

"""The pytest fixtures as users get them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Consumer, Producer
from ottla.testing import Broker, Topic
from ottla.testing.plugin import Topics

pytestmark = pytest.mark.server
ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str, cwd: Path) -> str:
    """Output of a Python process that must succeed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_worked_example_passes_in_parallel() -> None:
    output = python(
        "-m", "pytest", "-p", "ottla.testing.plugin", "-p", "no:cacheprovider", "-q", "-n", "2", cwd=ROOT / "examples" / "testing"
    )
    assert "8 passed" in output


def test_without_use_nothing_is_imported(tmp_path: Path) -> None:
    look = (
        "import sys; before = set(sys.modules); import ottla.testing; assert 'pytest' not in sys.modules; import ottla.testing.plugin;"
        "print(*sorted(name for name in sys.modules if name.startswith(('ottla.', 'msgspec', 'uvloop', 'kazoo'))))"
    )
    assert python("-c", look, cwd=tmp_path).split() == ["ottla.testing", "ottla.testing.plugin"]


def test_an_own_broker_serves_one_test_and_has_its_settings(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nottla_broker_settings =\n    num.partitions = 2\n    default.replication.factor = 1\n")
    (tmp_path / "test_it.py").write_text(
        """
import pytest
from ottla import NewTopic

def test_the_ini_file_configures_the_broker(ottla_broker, ottla_admin):
    assert ottla_broker.settings["num.partitions"] == "2"
    assert ottla_admin.create_topic(NewTopic("a")).num_partitions == 2

@pytest.mark.ottla(settings={"num.partitions": 5})
def test_the_marker_configures_the_broker(ottla_own_broker, ottla_broker, ottla_admin):
    assert ottla_own_broker is not ottla_broker
    assert ottla_admin.create_topic(NewTopic("a")).num_partitions == 5

def test_the_sessions_broker_is_shared(ottla_broker, ottla_admin):
    assert [topic.name for topic in ottla_admin.list_topics()] == ["a"]
"""
    )
    assert "3 passed" in python("-m", "pytest", "-p", "ottla.testing.plugin", "-p", "no:cacheprovider", "-q", str(tmp_path), cwd=tmp_path)


def billed(bootstrap: str, over: threading.Event) -> None:
    """Bills orders, as an application would."""
    with (
        Producer(bootstrap_servers=bootstrap) as producer,
        Consumer("orders", bootstrap_servers=bootstrap, group_id="billing", auto_offset_reset="earliest") as consumer,
    ):
        while not over.is_set():
            for record in consumer.poll(50):
                producer.send("invoices", b"invoice for " + record.value)


@contextmanager
def billing(bootstrap: str) -> Iterator[None]:
    over = threading.Event()
    worker = threading.Thread(target=billed, args=(bootstrap, over))
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


def test_the_example_of_the_page_passes(ottla_own_broker: Broker, ottla_topics: Topics) -> None:
    found = re.search(r"<!-- example: testing -->\n```python\n(.*?)```", (ROOT / "docs" / "getting-started.md").read_text(), re.DOTALL)
    assert found is not None, "the page has the example"
    names: dict[str, Any] = {"billing": billing}
    exec(compile(found[1], "getting-started.md", "exec"), names)
    names["test_an_order_is_billed_once_whatever_happens"](ottla_own_broker, ottla_topics)


@pytest.mark.ottla(partitions=4, value="json", config={"cleanup.policy": "compact"})
def test_a_marker_configures_the_topic(ottla_topic: Topic, ottla_admin: Admin) -> None:
    assert ottla_topic.name == "test_a_marker_configures_the_topic"
    assert len(ottla_admin.describe_topic(ottla_topic.name).partitions) == 4
    ottla_topic.send({"a": 1}, key=b"k")
    assert ottla_topic.values() == [{"a": 1}]


def test_each_topic_is_fresh(ottla_topics: Topics) -> None:
    first, second, third = ottla_topics("same"), ottla_topics("same"), ottla_topics()
    first.send(b"1")
    assert (second.values(), third.values()) == ([], [])
    assert len({first.name, second.name, third.name}) == 3


@pytest.mark.parametrize("value", ["a b/c", "ä"])
def test_an_invalid_topic_name_is_replaced(ottla_topic: Topic, value: str) -> None:
    ottla_topic.send(value.encode())
    assert ottla_topic.values() == [value.encode()]


def test_client_fixtures_are_ready(ottla_topic: Topic, ottla_producer: Producer, ottla_consumer: Consumer) -> None:
    ottla_producer.send(ottla_topic.name, b"1").result(timeout_ms=30_000)
    assert [record.value for record in ottla_consumer.poll(30_000)] == [b"1"]


async def test_topics_work_in_tests_with_an_event_loop(ottla_broker: Broker, ottla_topic: Topic) -> None:
    from ottla.aio import Producer

    async with Producer(bootstrap_servers=ottla_broker.bootstrap_servers) as producer:
        await producer.send(ottla_topic.name, b"1")
    assert ottla_topic.values() == [b"1"]


@pytest.mark.parametrize("wrong", [{"partition": 3}])
def test_a_marker_with_an_unknown_argument_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n@pytest.mark.ottla(**{wrong!r})\ndef test_it(ottla_topic):\n    raise AssertionError('not reached')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "ottla.testing.plugin", "-p", "no:cacheprovider", "-q", "-c", os.devnull, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 1 and f"not {next(iter(wrong))}" in done.stdout

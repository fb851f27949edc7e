"""The examples of docs/consuming.md, each run unchanged against a broker."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_examples import examples, run_example

from ottla import Admin, Consumer, NewTopic, Producer, TopicPartition
from ottla.client.options import ClientOptions
from serving import ELSEWHERE, Serving

PAGE = Path(__file__).parents[2] / "docs" / "consuming.md"
pytestmark = pytest.mark.server

EXAMPLES = examples(PAGE)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with an initial rebalance delay of 0."""
    if ELSEWHERE:
        yield ELSEWHERE
        return
    with Serving(tmp_path_factory.mktemp("consuming") / "data", settings={"group.initial.rebalance.delay.ms": "0"}) as server:
        yield server.bootstrap


@pytest.mark.parametrize("code", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_runs(code: str, bootstrap: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # The examples use the default bootstrap address.
    monkeypatch.setattr(ClientOptions, "bootstrap_servers", (bootstrap,))
    run_example(code, PAGE)


def test_ctrl_c_ends_a_loop_at_once_and_keeps_committed_work(bootstrap: str) -> None:
    topic, group = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic(topic, 1))
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number)
    program = (
        "import sys, ottla\n"
        "address, topic, group = sys.argv[1:]\n"
        "for record in ottla.consume(topic, group=group, bootstrap_servers=address):\n"
        "    print(record.offset, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, bootstrap, topic, group], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "4\n":
            assert process.poll() is None, "it ended before it had read everything"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert err.rstrip().endswith("KeyboardInterrupt")
    with Consumer(bootstrap_servers=bootstrap, group_id=group) as consumer:
        kept = consumer.committed([(topic, 0)])[TopicPartition(topic, 0)]
    # The last record may or may not be processed: the signal can arrive in the loop body or in the wait for the next record.
    assert kept is not None
    assert kept.offset in (4, 5)

"""Consumers in groups against a real broker, and the examples of docs/getting-started.md."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla import Admin, Consumer, NewTopic, Producer, TopicPartition, aio
from serving import ELSEWHERE, SOURCE, Serving

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[2]
HOWS: dict[str, dict[str, Any]] = {
    "eager": {"partition_assignment_strategy": "range"},
    "cooperative": {"partition_assignment_strategy": "cooperative-sticky"},
    "next": {"group_protocol": "consumer"},
}
ALL = pytest.mark.parametrize("how", HOWS.values(), ids=HOWS)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with an initial rebalance delay of 0."""
    if ELSEWHERE:
        yield ELSEWHERE
        return
    with Serving(tmp_path_factory.mktemp("groups") / "data", settings={"group.initial.rebalance.delay.ms": "0"}) as server:
        yield server.bootstrap


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A topic of four partitions."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic(name, 4))
    return name


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


def fill(bootstrap: str, topic: str, values: range) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            producer.send(topic, b"%d" % value, partition=value % 4)


class Member(threading.Thread):
    """A consumer in its own thread."""

    def __init__(self, bootstrap: str, topic: str, group: str, **settings: Any) -> None:
        super().__init__(daemon=True)
        self.settings = {"bootstrap_servers": bootstrap, "group_id": group, "auto_offset_reset": "earliest", **settings}
        self.topic = topic
        self.values: list[int] = []
        self.assigned: list[TopicPartition] = []
        self.done = threading.Event()
        self.failed: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with Consumer(self.topic, **self.settings) as consumer:
                while not self.done.is_set():
                    self.values += [int(record.value) for record in consumer.poll(100)]
                    self.assigned = consumer.assignment()
                self.assigned = []
        except BaseException as error:
            self.failed = error
            raise

    def leave(self) -> None:
        self.done.set()
        self.join(30)


def wait_until(holds: Callable[[], Any], limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "in time"
        time.sleep(0.05)


def shares(*members: Member) -> list[int]:
    return sorted(len(member.assigned) for member in members)


@ALL
def test_each_record_goes_to_one_member_while_members_join_and_leave(bootstrap: str, topic: str, group: str, how: dict[str, Any]) -> None:
    heartbeat = {} if "group_protocol" in how else {"heartbeat_interval_ms": 200}
    fill(bootstrap, topic, range(1000))
    one = Member(bootstrap, topic, group, **how, **heartbeat)
    wait_until(lambda: len(one.values) >= 500)
    two = Member(bootstrap, topic, group, **how, **heartbeat)
    wait_until(lambda: shares(one, two) == [2, 2])
    fill(bootstrap, topic, range(1000, 2000))
    three = Member(bootstrap, topic, group, **how, **heartbeat)
    wait_until(lambda: shares(one, two, three) == [1, 1, 2])
    one.leave()
    fill(bootstrap, topic, range(2000, 3000))
    wait_until(lambda: shares(two, three) == [2, 2])
    members = (one, two, three)
    wait_until(lambda: sum(len(member.values) for member in members) >= 3000)
    for member in members:
        member.leave()
        assert member.failed is None
    counts = Counter(value for member in members for value in member.values)
    assert counts == Counter(range(3000)), "each record once, since all members left gracefully"
    assert two.values and three.values
    with Consumer(bootstrap_servers=bootstrap, group_id=group) as consumer:
        found = consumer.committed([TopicPartition(topic, index) for index in range(4)])
    assert [kept and kept.offset for kept in found.values()] == [750] * 4


LOOP = """
import sys, ottla
with ottla.Consumer(sys.argv[2], bootstrap_servers=sys.argv[1], group_id=sys.argv[3], auto_offset_reset="earliest",
                    enable_auto_commit=False, session_timeout_ms=6000, heartbeat_interval_ms=500) as consumer:
    for record in consumer:
        print(int(record.value), flush=True)
        if int(record.value) < 100:
            consumer.commit({(record.topic, record.partition): record.offset + 1})
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, env=env)


def test_a_killed_member_is_replaced_and_its_committed_records_are_not_read_again(bootstrap: str, topic: str, group: str) -> None:
    fill(bootstrap, topic, range(200))
    child = python(LOOP, bootstrap, topic, group)
    try:
        assert child.stdout is not None
        first = [int(child.stdout.readline()) for _ in range(200)]
        assert sorted(first) == list(range(200))
    finally:
        child.kill()
        child.wait()
    began = time.monotonic()
    member = Member(bootstrap, topic, group, session_timeout_ms=6000, heartbeat_interval_ms=500)
    wait_until(lambda: len(member.values) >= 100)
    assert time.monotonic() - began < 15
    member.leave()
    assert sorted(member.values) == list(range(100, 200))


@pytest.mark.parametrize("how", [{}, {"group_protocol": "consumer"}], ids=["classic", "next"])
def test_a_static_member_rejoins_with_the_same_partitions(bootstrap: str, topic: str, group: str, how: dict[str, Any]) -> None:
    one = Member(bootstrap, topic, group, group_instance_id="one", **how)
    two = Member(bootstrap, topic, group, group_instance_id="two", **how)
    wait_until(lambda: shares(one, two) == [2, 2])
    had, other = one.assigned, two.assigned
    one.leave()
    again = Member(bootstrap, topic, group, group_instance_id="one", **how)
    wait_until(lambda: sorted(again.assigned) == sorted(had))
    assert two.assigned == other
    again.leave()
    two.leave()


@pytest.mark.parametrize("how", [{}, {"group_protocol": "consumer"}], ids=["classic", "next"])
def test_a_pattern_finds_topics_created_later(bootstrap: str, group: str, how: dict[str, Any]) -> None:
    prefix = uuid.uuid4().hex[:8]
    with (
        Admin(bootstrap_servers=bootstrap) as admin,
        Consumer(bootstrap_servers=bootstrap, group_id=group, metadata_max_age_ms=500, **how) as consumer,
    ):
        admin.create_topic(NewTopic(f"{prefix}-a", 1))
        consumer.subscribe(pattern=f"{prefix}-.*")
        poll_until(consumer, lambda: len(consumer.assignment()) == 1)
        admin.create_topic(NewTopic(f"{prefix}-b", 1))
        poll_until(consumer, lambda: len(consumer.assignment()) == 2)


def poll_until(consumer: Consumer, holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 40
    while not holds():
        assert time.monotonic() < deadline
        consumer.poll(100)


@ALL
async def test_many_members_in_one_event_loop_become_stable(bootstrap: str, topic: str, group: str, how: dict[str, Any]) -> None:
    heartbeat = {} if "group_protocol" in how else {"heartbeat_interval_ms": 200}
    consumers = [aio.Consumer(topic, bootstrap_servers=bootstrap, group_id=group, **how, **heartbeat) for _ in range(8)]  # type: ignore[arg-type]
    tasks = [asyncio.create_task(polling(consumer)) for consumer in consumers]
    async with asyncio.timeout(60):
        while sorted(len(consumer.assignment()) for consumer in consumers) != [0, 0, 0, 0, 1, 1, 1, 1]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert {tp.partition for consumer in consumers for tp in consumer.assignment()} == {0, 1, 2, 3}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(consumer.close() for consumer in consumers))


async def polling(consumer: aio.Consumer) -> None:
    while True:
        await consumer.poll(1000)


# -- the command line


def test_consume_as_a_group_prints_each_record_once_over_all_runs(bootstrap: str, topic: str, group: str) -> None:
    fill(bootstrap, topic, range(20))
    first = consume(bootstrap, topic, group, "-n", "5")
    second = consume(bootstrap, topic, group, "-e")
    fill(bootstrap, topic, range(20, 24))
    third = consume(bootstrap, topic, group, "-e")
    assert (len(first), len(third)) == (5, 4)
    assert sorted(first + second + third) == list(range(24))


@pytest.mark.parametrize("word", [signal.SIGINT, signal.SIGTERM])
def test_consume_leaves_the_group_on_a_signal(bootstrap: str, topic: str, group: str, word: signal.Signals) -> None:
    fill(bootstrap, topic, range(20))
    command = [sys.executable, "-m", "ottla", "consume", topic, "-g", group, "-b", bootstrap, "--from-beginning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}) as reading:
        assert reading.stdout is not None
        first = [int(reading.stdout.readline()) for _ in range(20)]
        reading.send_signal(word)
        assert reading.wait(20) == 0
    fill(bootstrap, topic, range(20, 24))
    began_s = time.monotonic()
    assert sorted(first + consume(bootstrap, topic, group, "-e")) == list(range(24)), "all was committed"
    assert time.monotonic() - began_s < 30, "no member waits for a session timeout"


def consume(bootstrap: str, topic: str, group: str, *arguments: str) -> list[int]:
    command = [sys.executable, "-m", "ottla", "consume", topic, "-g", group, "-b", bootstrap, "--from-beginning", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(SOURCE)})
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


# -- docs/getting-started.md


def example(name: str, bootstrap: str, topic: str, group: str) -> str:
    """Code of the page with another broker address and other names."""
    text = (ROOT / "docs" / "getting-started.md").read_text()
    found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    code = found[1].replace("127.0.0.1:9092", bootstrap).replace('"orders"', repr(topic))
    assert len(found[1].splitlines()) <= 5 and bootstrap in code and topic in code
    for word in ("billing", "shipping"):
        code = code.replace(f'"{word}"', repr(f"{word}-{group}"))
    return "import ottla\n" + code


def test_the_groups_of_the_page_each_read_everything(bootstrap: str, topic: str, group: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(bootstrap, topic, range(40))
    exec(compile(example("publish and subscribe", bootstrap, topic, group), "getting-started.md", "exec"), {})
    printed = capsys.readouterr().out
    for word in ("billing", "shipping"):
        lines = [line for line in printed.splitlines() if line.startswith(word)]
        assert sorted(int(value) for value in re.findall(r"b'(\d+)'", "".join(lines))) == list(range(40))


def test_the_group_of_the_page_shares_the_topic(bootstrap: str, topic: str, group: str) -> None:
    code = example("point to point", bootstrap, topic, group)
    children = [python(code), python(code)]
    printed: list[list[str]] = [[], []]
    readers = [threading.Thread(target=collect, args=(child, into), daemon=True) for child, into in zip(children, printed, strict=True)]
    for reader in readers:
        reader.start()
    try:
        name = f"billing-{group}"
        with Admin(bootstrap_servers=bootstrap) as admin:
            wait_until(lambda: both_read(admin, name))
        fill(bootstrap, topic, range(400))
        wait_until(lambda: sum(map(len, printed)) >= 400)
    finally:
        for child in children:
            child.send_signal(signal.SIGINT)
            child.wait(20)
    lines = printed[0] + printed[1]
    assert all(printed), "both had a share"
    assert sorted(int(line.split("b'")[1].rstrip("'")) for line in lines) == list(range(400))


def collect(child: subprocess.Popen[str], into: list[str]) -> None:
    assert child.stdout is not None
    into.extend(line.strip() for line in child.stdout)


def both_read(admin: Admin, group: str) -> bool:
    described = admin.describe_consumer_groups([group])[group]
    return not isinstance(described, ottla.KafkaError) and [len(member.assignment) for member in described.members] == [2, 2]

"""`ottla group` on groups whose members are another client's, with both group protocols if the broker supports them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner

import ottla
from ottla.cli.main import main
from ottla.client.admin.group_results import GroupState
from ottla.client.options import AdminOptions, from_keywords
from ottla.client.transport.network import Network

pytestmark = [pytest.mark.server, pytest.mark.interop]

DEADLINE_S = 30.0
CONSUMER_GROUP_HEARTBEAT = 68
NewTopicName = Callable[..., str]


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest, bootstrap: str) -> str:
    """A group protocol that this broker supports."""

    async def apis() -> dict[int, tuple[int, int]]:
        network = Network(from_keywords(AdminOptions, {"bootstrap_servers": bootstrap}))
        try:
            return (await network.peer(network.any_node())).versions
        finally:
            await network.close()

    if request.param == "consumer" and CONSUMER_GROUP_HEARTBEAT not in asyncio.run(apis()):
        pytest.skip("this broker has no groups of the new protocol")
    return str(request.param)


@pytest.fixture(scope="module")
def admin_of_ours(bootstrap: str) -> Iterator[ottla.Admin]:
    with ottla.Admin(bootstrap_servers=bootstrap) as made:
        yield made


@pytest.fixture
def filled(bootstrap: str, new_topic: NewTopicName) -> str:
    """A topic of two partitions with ten records each, written one second apart until now."""
    topic = new_topic(partitions=2)
    now_ms = int(time.time() * 1000)
    with ottla.Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(20):
            producer.send(topic, b"%d" % number, partition=number % 2, timestamp_ms=now_ms - 10_000 + 1000 * (number // 2))
    return topic


def consumer(bootstrap: str, group: str, protocol: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": group, "client.id": f"reader-of-{group}", "group.protocol": protocol,
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        }
    )  # fmt: skip


@contextmanager
def member(bootstrap: str, topic: str, group: str, protocol: str) -> Iterator[None]:
    """A member that polls in its own thread, once it has partitions."""
    stop, assigned = threading.Event(), threading.Event()

    def poll() -> None:
        made = consumer(bootstrap, group, protocol)
        made.subscribe([topic], on_assign=lambda _, partitions: assigned.set() if partitions else None)
        while not stop.is_set():
            message = made.poll(0.1)
            if message is not None and message.error() is None:
                made.commit(message=message, asynchronous=False)
        made.close()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        assert assigned.wait(DEADLINE_S), "the member has partitions"
        yield
    finally:
        stop.set()
        thread.join()


def run(bootstrap: str, *arguments: str, code: int = 0) -> Any:
    """JSON output of a command; its error output if it must fail."""
    result = CliRunner().invoke(main, ["group", *arguments, "-o", "json", "-b", bootstrap])
    assert result.exit_code == code, result.output
    return result.stderr if code else json.loads(result.stdout)


def wait_for(what: Callable[[], object]) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, "it arrived in time"
        time.sleep(0.1)


def read(bootstrap: str, topic: str, group: str, protocol: str, count: int) -> list[bytes]:
    """The values read by a new member, which commits them and leaves."""
    made = consumer(bootstrap, group, protocol)
    made.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    try:
        while len(found) < count and time.monotonic() < deadline:
            message = made.poll(0.5)
            if message is not None and message.error() is None:
                found.append(message.value())
                made.commit(message=message, asynchronous=False)
        return found
    finally:
        made.close()


def test_members_are_described_with_their_assignment(bootstrap: str, filled: str, protocol: str) -> None:
    group = f"described-{filled}"
    with member(bootstrap, filled, group, protocol):
        wait_for(lambda: run(bootstrap, "describe", group)[0]["state"] == GroupState.STABLE)
        (report,) = run(bootstrap, "describe", group)
        assert (report["type"], report["members"][0]["client_id"], report["members"][0]["topics"]) == (
            protocol,
            f"reader-of-{group}",
            [filled],
        )
        assert report["members"][0]["assignment"] == {filled: [0, 1]}
        assert report["assignor"] == {"classic": "range", "consumer": "uniform"}[protocol]
        (listed,) = [one for one in run(bootstrap, "list", "--state", "stable", "--type", protocol) if one["group"] == group]
        assert (listed["state"], listed["type"], listed["protocol_type"]) == ("Stable", protocol, "consumer")
    wait_for(lambda: run(bootstrap, "describe", group)[0]["state"] == GroupState.EMPTY)


def test_a_watched_lag_falls_to_zero_while_a_member_reads(bootstrap: str, filled: str, protocol: str, admin_of_ours: ottla.Admin) -> None:
    group = f"watched-{filled}"
    admin_of_ours.alter_consumer_group_offsets(group, {(filled, 0): 0, (filled, 1): 4})
    (before,) = run(bootstrap, "lag", group)
    assert (before["lag"], [one["lag"] for one in before["partitions"]]) == (16, [10, 6])
    assert 10_000 <= before["time_lag_ms"] < 60_000
    assert [one["unread_span_ms"] for one in before["partitions"]] == [9000, 5000]
    command = [sys.executable, "-m", "ottla", "group", "lag", group, "-w", "200ms", "-o", "json", "-b", bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch, member(bootstrap, filled, group, protocol):
        assert watch.stdout is not None
        for line in watch.stdout:
            report = json.loads(line)
            if report["lag"] == 0 and report["partitions"][0]["client_id"]:
                break
        watch.send_signal(signal.SIGINT)
        watch.stdout.read()
        assert watch.wait(20) == 0
    assert report["time_lag_ms"] == 0
    assert {one["client_id"] for one in report["partitions"]} == {f"reader-of-{group}"}


def test_a_group_with_members_keeps_its_offsets_and_a_closed_one_can_be_deleted(bootstrap: str, filled: str, protocol: str) -> None:
    group = f"guarded-{filled}"
    with member(bootstrap, filled, group, protocol):
        wait_for(lambda: [one["committed_offset"] for one in run(bootstrap, "lag", group)[0]["partitions"]] == [10, 10])
        refused = run(bootstrap, "reset", group, "--to-earliest", "--all-topics", "--execute", code=1)
        assert f"ottla group describe {group}" in refused
        for command in (["delete", group, "-y"], ["delete-offsets", group, "-t", filled, "-y"]):
            result = CliRunner().invoke(main, ["group", *command, "-b", bootstrap])
            assert result.exit_code == 1, result.output
            assert "Stop" in result.stderr
    wait_for(lambda: run(bootstrap, "describe", group)[0]["state"] == GroupState.EMPTY)
    assert run(bootstrap, "reset", group, "--to-earliest", "-t", f"{filled}:0", "--execute")["executed"]
    assert [one["committed_offset"] for one in run(bootstrap, "lag", group)[0]["partitions"]] == [0, 10]
    assert run(bootstrap, "delete-offsets", group, "-t", f"{filled}:1", "-y")[0]["outcome"] == "deleted"
    assert [one["partition"] for one in run(bootstrap, "lag", group)[0]["partitions"]] == [0]
    assert run(bootstrap, "delete", group, "-y")[0]["outcome"] == "deleted"
    assert f"group {group} does not exist" in run(bootstrap, "describe", group, code=1)


def test_a_member_reads_from_the_offset_of_a_reset(bootstrap: str, filled: str, protocol: str) -> None:
    group = f"reset-{filled}"
    first = read(bootstrap, filled, group, protocol, 20)
    assert sorted(map(int, first)) == list(range(20))
    wait_for(lambda: run(bootstrap, "describe", group)[0]["state"] == GroupState.EMPTY)
    run(bootstrap, "reset", group, "--shift-by", "-2", "--all-topics", "--execute")
    assert sorted(map(int, read(bootstrap, filled, group, protocol, 4))) == [16, 17, 18, 19]
    wait_for(lambda: run(bootstrap, "describe", group)[0]["state"] == GroupState.EMPTY)
    run(bootstrap, "reset", group, "--by-duration", "4500ms", "-t", filled)
    planned = run(bootstrap, "reset", f"copy-of-{group}", "--from-group", group)
    assert [(one["from"], one["to"]) for one in planned["partitions"]] == [(None, 10), (None, 10)]


def test_a_static_member_is_removed_by_its_instance_id(bootstrap: str, filled: str, admin_of_ours: ottla.Admin) -> None:
    group = f"static-{filled}"
    static = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, "group.instance.id": "one"})
    static.subscribe([filled])
    try:
        wait_for(lambda: static.poll(0.1) is None and static.assignment())
    finally:
        static.close()
    described = admin_of_ours.describe_consumer_groups([group])[group]
    assert not isinstance(described, ottla.KafkaError)
    assert [one.instance_id for one in described.members] == ["one"], "a static member does not leave when it closes"
    assert admin_of_ours.remove_members_from_consumer_group(group, ["one"]) == {"one": None}
    wait_for(lambda: run(bootstrap, "describe", group)[0]["members"] == [])

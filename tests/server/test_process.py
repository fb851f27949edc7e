"""A process of brokers inside the test: failing disks, stores and code."""

import asyncio
import json
import os
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import Any, NoReturn

import pytest
from socket_peers import Peer, until

from ottla.broker import effects, events
from ottla.broker.apis import k60_describe_cluster
from ottla.records.build import build_batch
from ottla.server import performer, request_decoder
from ottla.server.data_directory import CannotStart
from ottla.server.disk import RealDisk, RealFile
from ottla.server.process import BROKEN, FAILED, STOPPED, Process
from ottla.server.process_plan import ProcessPlan
from ottla.server.store_factory import EmbeddedStoreFactory
from ottla.wire import errors, framing
from ottla.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from ottla.wire.messages.create_topics import CreatableTopic
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource
from ottla.wire.messages.produce import PartitionProduceData, TopicProduceData

pytestmark = pytest.mark.server


class Died(BaseException):
    """Stands in for the end of the process."""


class Running:
    """A process under test and clients of it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.died: list[int] = []

    async def client(self, number: int = 0) -> Peer:
        return await Peer.connected(self.process.brokers[number].address)


async def ask(peer: Peer, request: Any, version: int, response: type[Any], client_id: str = "test") -> Any:
    await peer.send(b"".join(framing.encode_request(request, version, 1, client_id)))  # type: ignore[arg-type]
    return framing.decode_response(response, await peer.frame(), version)[1]


async def create(peer: Peer, *names: str) -> None:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    answer = await ask(peer, CreateTopicsRequest(topics=topics, timeout_ms=5000), 5, CreateTopicsResponse)
    assert [topic.error_code for topic in answer.topics] == [0] * len(names)


async def produce(peer: Peer, name: str) -> tuple[int, int]:
    """Error code and offset."""
    records = bytes(build_batch([(0, None, b"value", ())]))
    data = [TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=records)])]
    answer = await ask(peer, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=data), 9, ProduceResponse)
    partition = answer.responses[0].partition_responses[0]
    return partition.error_code, partition.base_offset


@asynccontextmanager
async def running(data_dir: Path, texts: dict[str, str] | None = None, brokers: int = 1) -> AsyncIterator[Running]:
    """Ends cleanly, unless the process died."""
    died: list[int] = []

    def die(code: int) -> NoReturn:
        died.append(code)
        raise Died

    plan = ProcessPlan(data_dir=data_dir, texts={"listeners": "PLAINTEXT://127.0.0.1:0", **(texts or {})}, brokers=brokers)
    process = Process(plan, die=die)
    run = Running(process)
    run.died = died
    try:
        await process.start()
        yield run
    finally:
        await process.stop()


def flight_record(data_dir: Path) -> list[Any]:
    """The one record in the directory, line by line."""
    (record,) = data_dir.glob("flight-*-broker-1.jsonl")
    return [json.loads(line) for line in record.read_text().splitlines()]


async def test_flushes_that_come_while_one_is_under_way_share_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as run:
        first = await run.client()
        names = [f"topic-{number}" for number in range(12)]
        await create(first, *names)
        clients = [await run.client() for _ in names]
        for peer, name in zip(clients, names, strict=True):
            assert await produce(peer, name) == (0, 0)
        counters = run.process.counters
        commits, flushes = counters.commits, counters.flushes
        for _ in range(5):
            answers = await asyncio.gather(*(produce(peer, name) for peer, name in zip(clients, names, strict=True)))
            assert [error for error, _ in answers] == [0] * len(names)
        assert counters.flushes - flushes == 60
        assert counters.commits - commits < 40


async def test_a_failed_sync_takes_the_directory_offline_and_is_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    inner = RealFile.sync

    def sync(file: RealFile) -> None:
        if "bad" not in file._disk.root:
            return inner(file)
        synced.append(file.path)
        raise OSError(5, "Input/output error")

    texts = {"log.dirs": f"{tmp_path}/good,{tmp_path}/bad"}
    async with running(tmp_path / "data", texts) as run:
        peer = await run.client()
        names = [f"topic-{number}" for number in range(4)]
        await create(peer, *names)
        monkeypatch.setattr(RealFile, "sync", sync)
        codes = [(await produce(peer, name))[0] for name in names]
        assert codes.count(0) == 2 and codes.count(56) == 2
        tried = len(synced)
        assert tried > 0
        again = [(await produce(peer, name))[0] for name in names]
        assert again == codes and len(synced) == tried
        assert not run.process.stopping
    assert (tmp_path / "good" / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "bad" / ".kafka_cleanshutdown").exists()


async def test_without_any_log_directory_left_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def sync(file: RealFile) -> None:
        raise OSError(5, "Input/output error")

    async with running(tmp_path) as run:
        peer = await run.client()
        await create(peer, "t")
        monkeypatch.setattr(RealFile, "sync", sync)
        assert (await produce(peer, "t"))[0] == 56
        assert await asyncio.wait_for(run.process.ended(), 5) == FAILED
    assert "no log directory is left" in caplog.text


async def test_a_broken_promise_ends_the_process_with_a_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as run:
        peer = await run.client()
        await ask(peer, MetadataRequest(topics=None), 1, MetadataResponse)
        shell = run.process.brokers[0].shell

        def step(event: events.Event, now_ms: int) -> list[effects.Effect]:
            raise AssertionError("water flows downhill")

        inner, shell.node.step = shell.node.step, step  # type: ignore[method-assign]
        with pytest.raises(Died):
            shell.handle(events.Flushed(marks=((("t", 0), 1),)))  # type: ignore[arg-type]
        shell.node.step = inner  # type: ignore[method-assign]
        shell._stepping = False
        assert run.died == [BROKEN]
    said = caplog.text
    assert "internal error at" in said and "water flows downhill" in said
    lines = flight_record(tmp_path)
    assert lines[0]["error"] == "AssertionError('water flows downhill')"
    kinds = [line["kind"] for line in lines[1:]]
    assert kinds[-1] == "Flushed" and {"StoreChanged", "StoreAnswered", "Ticked", "Request"} <= set(kinds)


def request_records(data_dir: Path) -> list[tuple[str, str]]:
    """Path and text of the flight records of requests that failed."""
    return [(str(path), path.read_text()) for path in data_dir.glob("flight-*-request-*.jsonl")]


def fail_requests(run: Any, client_id: str, error: Callable[[], Exception]) -> None:
    """Every request with a client id raises while it is handled.

    Not one of the first connection: that can be of a client of an earlier test, whose broker had the same port.
    """
    node = run.process.brokers[0].node
    inner = node.context.isolation.handle

    def arrived(call: events.RequestArrived[Any]) -> None:
        if call.client_id == client_id:
            raise error()
        inner(call)

    node.context.isolation.handle = arrived


async def test_an_unforeseen_error_in_a_request_is_answered_logged_counted_and_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as run:
        bad, good = await run.client(), await run.client()
        await ask(bad, MetadataRequest(topics=None), 1, MetadataResponse)
        fail_requests(run, "bad", lambda: KeyError("unforeseen"))
        assert (await ask(bad, MetadataRequest(topics=None), 13, MetadataResponse, "bad")).error_code == errors.UnknownServerError.code
        assert (await ask(good, MetadataRequest(topics=None), 1, MetadataResponse)).brokers
        assert run.process.counters.failed_requests == 1 and not run.died
        lines = [record.getMessage() for record in caplog.records if "unforeseen" in record.getMessage() and record.levelname == "ERROR"]
        [line] = lines
        assert "Metadata version 13, client 'bad' at 127.0.0.1, correlation id" in line
        [(path, text)] = request_records(tmp_path)
        assert path in line and "KeyError('unforeseen')" in text


async def test_a_version_without_a_field_for_the_error_loses_its_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        bad, good = await run.client(), await run.client()
        await ask(bad, MetadataRequest(topics=None), 1, MetadataResponse)
        fail_requests(run, "bad", lambda: KeyError("unforeseen"))
        await bad.send(b"".join(framing.encode_request(MetadataRequest(topics=None), 1, 1, "bad")))  # type: ignore[arg-type]
        assert await bad.closed()
        assert (await ask(good, MetadataRequest(topics=None), 1, MetadataResponse)).brokers and not run.died


async def test_repeated_failures_fill_neither_the_log_nor_the_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as run:
        bad = await run.client()
        await ask(bad, MetadataRequest(topics=None), 1, MetadataResponse)
        fail_requests(run, "bad", lambda: KeyError("x" * 100_000))
        for _ in range(100):
            await ask(bad, MetadataRequest(topics=None), 13, MetadataResponse, "bad")
        lines = [record.getMessage() for record in caplog.records if "KeyError" in record.getMessage()]
        assert len(lines) <= 11 and max(map(len, lines)) < 1_000
        assert len(request_records(tmp_path)) == 1
        failures = run.process.brokers[0].shell.failures
        failures.tick(run.process.now_ms() + 120_000)
        assert f"{100 - len(lines)} more requests failed" in caplog.text
        assert run.process.counters.failed_requests == 100 and not run.died


async def test_an_answer_that_cannot_be_encoded_is_answered_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as run:
        bad = await run.client()
        await ask(bad, MetadataRequest(topics=None), 1, MetadataResponse)
        monkeypatch.setattr(k60_describe_cluster, "address_for", lambda node, call, broker: ("host", "no number"))
        response = await ask(bad, DescribeClusterRequest(), 1, DescribeClusterResponse)
        assert response.error_code == errors.UnknownServerError.code
        assert run.process.counters.failed_requests == 1 and not run.died


async def test_an_unforeseen_error_while_decoding_is_answered_or_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*args: Any) -> Any:
        raise KeyError("unforeseen")

    async with running(tmp_path) as run:
        reported, untold = await run.client(), await run.client()
        monkeypatch.setattr(request_decoder, "decode", decode)
        response = await ask(reported, DescribeClusterRequest(), 1, DescribeClusterResponse)
        assert response.error_code == errors.UnknownServerError.code
        await untold.send(b"".join(framing.encode_request(MetadataRequest(topics=None), 1, 1, "test")))  # type: ignore[arg-type]
        assert await untold.closed()
        monkeypatch.undo()
        assert (await ask(reported, MetadataRequest(topics=None), 1, MetadataResponse)).brokers and not run.died


async def test_a_store_that_cannot_be_written_ends_the_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as run:
        peer = await run.client()
        assert isinstance(run.process.store_factory, EmbeddedStoreFactory)
        run.process.store_factory.store._file.connection.execute("DROP TABLE node")
        topics = [CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
        request = framing.encode_request(CreateTopicsRequest(topics=topics, timeout_ms=1000), 5, 1, "test")
        await peer.send(b"".join(request))  # type: ignore[arg-type]
        assert await asyncio.wait_for(run.process.ended(), 5) == FAILED
    said = caplog.text
    assert "stopping: the coordination store" in said and "all of its nodes were written to" in said


async def test_paused_broker_revalidates_its_session_before_it_continues(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.client()
        await create(peer, "topic")
        broker = run.process.brokers[0]
        shell = broker.shell
        moments = count(shell._now_ms() + 10_000)
        states: list[str] = []
        step = shell.node.step

        def seen(event: events.Event, now_ms: int) -> list[effects.Effect]:
            if isinstance(event, events.SessionChanged):
                states.append(event.state)
            return step(event, now_ms)

        # A clock that moves between any two looks at it.
        shell._now_ms = lambda: next(moments)
        shell.node.step = seen  # type: ignore[method-assign]
        shell._session, shell._pause_max_ms = broker.session, 5_000
        answer = await ask(peer, MetadataRequest(topics=None), 1, MetadataResponse)
        assert len(answer.topics) == 1
        await until(lambda: shell.node.context.connected)
        assert states == ["suspended", "connected"]
        assert len(shell.node.partitions.leaders) == 1 and not run.died


async def test_a_request_to_the_controller_is_answered_by_any_broker(tmp_path: Path) -> None:
    async with running(tmp_path, brokers=3) as run:
        for number in range(3):
            await create(await run.client(number), f"topic-{number}")
        answer = await ask(await run.client(), MetadataRequest(topics=None), 1, MetadataResponse)
        assert len(answer.topics) == 3


async def test_a_stop_ends_the_process_with_exit_code_0(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        asyncio.get_running_loop().call_later(0.01, run.process.request_stop)
        assert await run.process.ended() == STOPPED


async def test_a_failed_start_releases_the_directory_lock(tmp_path: Path) -> None:
    texts = {"broker.id": "1"}
    async with running(tmp_path, texts):
        with pytest.raises(CannotStart, match=f"in use by process {os.getpid()}"):
            async with running(tmp_path, texts):
                pass
    (tmp_path / "broker-1" / "meta.properties").write_text("version=1\nbroker.id=9\ncluster.id=x\n")
    for _ in range(2):
        with pytest.raises(CannotStart, match="belongs to cluster x, not to"):
            async with running(tmp_path, texts):
                pass


async def test_write_back_begins_without_changing_the_file(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    file = disk.open("log", create=True)
    file.append(b"x" * 100_000)
    performer._write_back(os.dup(file.fileno()), 0, 100_000)
    assert file.read(99_990, 100) == b"x" * 10


async def test_space_is_measured_before_the_first_request_and_again(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        node = run.process.brokers[0].node
        (root,) = node.context.space
        assert node.context.space[root].total_bytes >= node.context.space[root].free_bytes > 0
        node.context.space.clear()
        await until(lambda: node.context.space)


async def set_for_all(peer: Peer, **texts: str) -> None:
    """Changes settings of all brokers."""
    changes = [AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value) for name, value in texts.items()]
    request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(resource_type=4, resource_name="", configs=changes)])
    answer = await ask(peer, request, 1, IncrementalAlterConfigsResponse)
    assert [resource.error_code for resource in answer.responses] == [0]


async def test_limits_of_connections_change_while_a_broker_runs(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.client()
        await set_for_all(peer, max_connections_per_ip="1")
        await until(lambda: run.process.connection_context.limits.connections_per_host_max == 1)
        assert await (await run.client()).closed()
        await set_for_all(peer, max_connections_per_ip_overrides="localhost:2")
        await until(lambda: run.process.connection_context.host_limits.get("127.0.0.1") == 2)
        # Kept, because a peer that is not referenced disconnects.
        second = await run.client()
        await create(second, "t")
        assert await (await run.client()).closed()


async def test_the_number_of_threads_changes_while_a_broker_runs(tmp_path: Path) -> None:
    async with running(tmp_path, {"num.io.threads": "1"}) as run:
        peer = await run.client()
        await create(peer, "t")
        assert await produce(peer, "t") == (0, 0)
        await set_for_all(peer, num_io_threads="3")
        barrier = Barrier(3)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            # Passes only with three threads at the same time.
            await asyncio.gather(*(loop.run_in_executor(run.process.sync_threads, barrier.wait) for _ in range(3)))
        assert await produce(peer, "t") == (0, 1)


async def test_pipelined_requests_of_many_kinds_are_answered_in_order(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        peer = await run.client()
        await create(peer, "t")
        records = bytes(build_batch([(0, None, b"value", ())]))
        data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])]
        slow = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=data)
        for number in range(60):
            request, version = (slow, 9) if number % 3 == 0 else (MetadataRequest(topics=None), 1)
            await peer.send(b"".join(framing.encode_request(request, version, number, "test")))  # type: ignore[arg-type]
        assert [struct.unpack_from(">i", await peer.frame())[0] for _ in range(60)] == list(range(60))

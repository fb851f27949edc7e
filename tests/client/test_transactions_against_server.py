"""Transactional producers against a real `ottla serve`: all readers, other clients, and crashes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla import Admin, Consumer, NewTopic, Producer
from ottla.client.producer.transaction_requests import PreparedTransaction, end_transaction
from ottla.client.transport.network import Network
from ottla.wire.errors import KafkaError, ProducerFenced
from serving import ELSEWHERE, Elsewhere, Serving, needs_its_own

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=(2, 1), ids=lambda version: f"transaction.version {version}")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving | Elsewhere]:
    if ELSEWHERE:
        if request.param == 1:
            needs_its_own("with transaction.version 1")
        yield Elsewhere()
        return
    settings = {"transaction.two.phase.commit.enable": "true"}
    with Serving(tmp_path_factory.mktemp("transactions") / "data", settings=settings) as made:
        if request.param == 1:
            with Admin(bootstrap_servers=made.bootstrap) as admin:
                admin.update_features({"transaction.version": 1}, downgrade=True)
        yield made


def create(server: Serving, name: str, partitions: int = 1) -> str:
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topic(NewTopic(name, partitions))
    return name


def read(server: Serving, topic: str, isolation_level: str = "read_committed") -> list[bytes]:
    """Values up to the end that this isolation level sees."""
    with Consumer(bootstrap_servers=server.bootstrap, auto_offset_reset="earliest", isolation_level=isolation_level) as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[bytes] = []
        while not all(consumer.core.has_passed(tp, end) for tp, end in ends.items()):
            found += [record.value or b"" for record in consumer.poll(100)]
    return found


async def test_committed_aborted_and_open_transactions_of_the_asyncio_producer(server: Serving) -> None:
    topic = create(server, "asyncio", 3)
    async with ottla.aio.Producer(bootstrap_servers=server.bootstrap, transactional_id="asyncio") as producer:
        async with producer.transaction():
            for number in range(300):
                await producer.send(topic, b"%d" % number, partition=number % 3)
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await (await producer.send(topic, b"aborted"))
                _ = 1 / 0
        producer.begin()
        await (await producer.send(topic, b"open"))
        expected = [b"%d" % number for number in range(300)]
        assert sorted(await asyncio.to_thread(read, server, topic), key=int) == expected
        assert {b"aborted", b"open"} < set(await asyncio.to_thread(read, server, topic, "read_uncommitted"))
        await producer.commit()
        assert b"open" in await asyncio.to_thread(read, server, topic)


def test_offsets_and_records_are_committed_together(server: Serving) -> None:
    source, target = create(server, "source"), create(server, "target")
    with Producer(bootstrap_servers=server.bootstrap) as producer:
        for number in range(10):
            producer.send(source, b"%d" % number)
    settings: dict[str, Any] = {"bootstrap_servers": server.bootstrap, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with (
        Producer(bootstrap_servers=server.bootstrap, transactional_id="together") as producer,
        Consumer(source, group_id="together", **settings) as consumer,
    ):
        records: list[Any] = []
        while len(records) < 10:
            records += consumer.poll(1000)
        for end, commit in ((3, True), (7, False), (10, True)):
            producer.init_transactions() if end == 3 else None
            producer.begin()
            for record in records[:end]:
                producer.send(target, record.value)
            producer.send_offsets_to_transaction({(source, 0): end}, consumer.group_metadata())
            producer.commit() if commit else producer.abort()
            (kept,) = consumer.committed([(source, 0)]).values()
            assert kept is not None
            assert kept.offset == (end if commit else 3)
    assert read(server, target) == [record.value for record in records[:3] + records]


def test_a_second_producer_of_the_id_fences_the_first(server: Serving) -> None:
    topic = create(server, "fenced")
    settings: dict[str, Any] = {"bootstrap_servers": server.bootstrap, "transactional_id": "fenced"}
    with Producer(**settings) as old, Producer(**settings) as new:
        old.init_transactions()
        old.begin()
        old.send(topic, b"old").result()
        with new.transaction():
            new.send(topic, b"new")
        with pytest.raises(ProducerFenced):
            old.commit()
        with pytest.raises(ProducerFenced):
            old.begin()
    assert read(server, topic) == [b"new"]


def test_a_prepared_transaction_survives_its_process_and_is_completed(server: Serving) -> None:
    if ELSEWHERE:
        needs_its_own("with two-phase commit")
    topic = create(server, "prepared")
    settings: dict[str, Any] = {
        "bootstrap_servers": server.bootstrap,
        "transactional_id": "prepared",
        "transaction_two_phase_commit_enable": True,
    }
    for value in (b"a", b"b"):
        with Producer(**settings) as producer:
            producer.init_transactions()
            producer.begin()
            producer.send(topic, value)
            prepared = producer.prepare()
        with Producer(**settings) as producer:
            producer.init_transactions(keep_prepared=True)
            producer.complete(prepared if value == b"a" else PreparedTransaction(prepared.producer_id, 31_000))
    assert read(server, topic) == [b"a"]


def test_another_process_ends_the_transaction(server: Serving) -> None:
    topic = create(server, "handed_over")
    for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
        with Producer(bootstrap_servers=server.bootstrap, transactional_id="handed over") as producer:
            producer.init_transactions()
            producer.begin()
            producer.send(topic, value)
            identity = producer._thread.call(producer.transactions.hand_over())

        async def end(identity: PreparedTransaction = identity, commit: bool = commit) -> None:
            network = Network(
                ottla.client.options.from_keywords(ottla.client.options.ProducerOptions, {"bootstrap_servers": server.bootstrap})
            )
            for _ in range(2):
                await end_transaction(network, "handed over", *identity, commit=commit)
            await network.close()

        asyncio.run(end())
    assert read(server, topic) == [b"a", b"c"]


def test_a_server_that_dies_during_commits_tears_no_transaction(tmp_path: Path) -> None:
    """Each transaction writes its number to three partitions. Afterwards a number is in all of them or in none."""
    with Serving(tmp_path / "data") as server:
        topic = create(server, "crash", 3)
        committed: list[int] = []
        stop = threading.Event()

        def write() -> None:
            with Producer(bootstrap_servers=server.bootstrap, transactional_id="crash", linger_ms=0) as producer:
                number = 0
                while not stop.is_set():
                    number += 1
                    try:
                        with producer.transaction():
                            for partition in range(3):
                                producer.send(topic, b"%d" % number, partition=partition)
                    except KafkaError as error:
                        assert error.kind is ottla.errors.ErrorKind.ABORTABLE, error
                        continue
                    committed.append(number)

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(3):
            before = len(committed)
            while len(committed) < before + 20:
                stop.wait(0.01)
                assert writer.is_alive()
            server.kill()
            server.start()
        before = len(committed)
        while len(committed) < before + 5:
            stop.wait(0.01)
            assert writer.is_alive()
        stop.set()
        writer.join(30)
        values = read(server, topic)
        assert sorted(values, key=int) == sorted([value for value in set(values) for _ in range(3)], key=int)
        assert {b"%d" % number for number in committed} <= set(values)

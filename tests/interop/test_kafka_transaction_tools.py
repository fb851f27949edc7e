"""Apache Kafka's tools on transactions of Ottla: they list, describe, find, abort and terminate them, produce transactionally, and decode
the records of the coordinator. All commands run in one JVM. What they print is what Ottla's own admin client finds.
"""

from __future__ import annotations

import re
import time
from itertools import groupby
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka_tools import Run

from ottla import Admin, NewTopic
from ottla.results import TransactionState
from plain_kafka import hanging_transaction
from serving import Serving

pytestmark = [pytest.mark.interop, pytest.mark.server, pytest.mark.timeout(240), pytest.mark.usefixtures("own_server_only")]

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
FORMATTER = "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
DUMP = "org.apache.kafka.tools.DumpLogSegments"
SETTINGS = {"transaction.state.log.num.partitions": "1", "transaction.partition.verification.enable": "false"}
HOUR_MS = 3_600_000


def cells(table: str) -> list[list[str]]:
    """The rows of a table of Kafka's tools, without headings."""
    lines = [line for line in table.splitlines() if "\t" in line]
    return [[cell.strip() for cell in line.rstrip("\t").split("\t")] for line in lines[1:]]


def open_transaction(bootstrap: str, name: str) -> Producer:
    """A committed transaction in orders-0, and an open one in orders-0 and orders-1."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "client.id": "biller"})
    producer.init_transactions(30)
    for partitions in ((0,), (0, 1)):
        producer.begin_transaction()
        for partition in partitions:
            producer.produce("orders", b"x", partition=partition)
        producer.flush(30)
        if partitions == (0,):
            producer.commit_transaction(30)
    return producer


def test_kafkas_tools_see_and_end_the_transactions_of_ottla(tmp_path: Path, run: Run) -> None:
    with Serving(tmp_path / "data", settings=SETTINGS) as server, Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topics([NewTopic("orders", 2), NewTopic("stuck", 1)])
        producer = open_transaction(server.bootstrap, "billing-1")
        hanging_id = hanging_transaction(server.address, "zombie", "stuck", timestamp_ms=int(time.time() * 1000) - HOUR_MS)
        at = ("--bootstrap-server", server.bootstrap)

        # What they show.
        mine = {one.transactional_id: one for one in admin.list_transactions()}
        listed = cells(run(TRANSACTIONS, *at, "list"))
        assert sorted(listed) == [[name, str(one.coordinator), str(one.producer_id), one.state.value] for name, one in mine.items()]
        described = admin.describe_transaction("billing-1")
        [row] = cells(run(TRANSACTIONS, *at, "describe", "--transactional-id", "billing-1"))
        assert row[:7] == ["1", "billing-1", str(described.producer_id), "0", "Ongoing", str(described.timeout_ms), str(described.start_ms)]
        assert set(row[8].split(",")) == {str(tp) for tp in described.partitions} == {"orders-0", "orders-1"}
        [opened] = admin.open_transactions([("orders", 0)]).popitem()[1]  # type: ignore[misc]
        [state] = cells(run(TRANSACTIONS, *at, "describe-producers", "--topic", "orders", "--partition", "0"))
        assert (state[0], state[5]) == (str(opened.producer_id), str(opened.start_offset)) == (str(described.producer_id), "2")

        # What hangs, by topic and by broker, and its end.
        [hanging] = admin.find_hanging_transactions()
        for where in (("--topic", "stuck"), ("--broker-id", "1")):
            [found] = cells(run(TRANSACTIONS, *at, "find-hanging", *where))
            assert found[:7] == ["stuck", "0", str(hanging_id), "0", "-1", "0", str(hanging.last_timestamp)]
        run(TRANSACTIONS, *at, "abort", "--topic", "stuck", "--partition", "0", "--start-offset", "0")
        assert cells(run(TRANSACTIONS, *at, "find-hanging", "--topic", "stuck")) == []
        assert admin.find_hanging_transactions() == []

        # A transaction that is terminated, and those of the performance tool.
        run(TRANSACTIONS, *at, "forceTerminateTransaction", "--transactionalId", "billing-1")
        assert admin.describe_transaction("billing-1").state in (TransactionState.EMPTY, TransactionState.COMPLETE_ABORT)
        assert admin.find_blocked_partitions([("orders", 0), ("orders", 1)]) == {}
        with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
            producer.commit_transaction(30)
        load = ("--topic", "orders", "--num-records", "2000", "--record-size", "100", "--throughput", "-1")
        measured = run(
            PERFORMANCE, *load, *at, "--command-property", "linger.ms=0", "--transactional-id", "perf", "--transaction-duration-ms", "5"
        )
        assert "2000 records sent" in measured
        # A commit is answered before its markers are written.
        deadline = time.monotonic() + 20
        while admin.describe_transaction("perf").state is not TransactionState.COMPLETE_COMMIT:
            assert time.monotonic() < deadline, "the markers are written"
            time.sleep(0.05)

        # The coordinator's records: by the formatter, and from the file.
        log = ("--topic", "__transaction_state", "--partition", "0", "--offset", "earliest", "--timeout-ms", "1500")
        formatted = run(CONSUMER, *at, *log, "--formatter", FORMATTER)
        records = re.findall(
            r'"transactionalId":"([\w-]+)"\}\},"value":\{"version":1,"data":\{[^}]*?"transactionStatus":"(\w+)"', formatted
        )
        # Each added partition is a record.
        states = {name: [state for state, _ in groupby(state for other, state in records if other == name)] for name, _ in records}
        committed = ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
        assert states["zombie"] == ["Empty"]
        assert states["billing-1"][:7] == [*committed, "Ongoing", "PrepareAbort", "CompleteAbort"]
        assert states["perf"][:4] == committed and states["perf"][-3:] == committed[1:]
        [file] = (tmp_path / "data").rglob("__transaction_state-0/*.log")
        dumped = run(DUMP, "--transaction-log-decoder", "--files", str(file))
        assert re.findall(r'"transactionStatus":"(\w+)"', dumped) == [state for _, state in records]

"""Exactly once without Spark: writers write the tasks of a batch and commit it, against a server with two-phase commit.

A task is a call of `write_all` in this process. A killed driver is a commit that is interrupted, a killed task one whose message is lost.
"""

import asyncio
import random
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from ottla import Admin, Consumer, NewTopic
from ottla.base.ids import TopicPartition
from ottla.client.admin.transaction_results import TransactionState
from ottla.client.errors import BrokerIncompatible
from ottla.demo.brokers import serving
from ottla.spark.sink import task_producer
from ottla.spark.sink.batch_commits import BatchCommits, BatchToCommit, BlockingCommits, SinkFenced, TransactionLost
from ottla.spark.sink.decision import DECISIONS_TOPIC, Names, Participant, SinkDecision, decoded, encoded, short_run
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.writer import BatchWriter, Origin, StreamWriter, TaskResult, run_of
from ottla.wire.errors import KafkaError, ProducerFenced

from .clients import close_clients

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module", params=["two phases", "timeouts", "one epoch"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that serves two-phase commit, one that does not, and one whose producers keep their epoch (transaction.version 1)."""
    directory = tmp_path_factory.mktemp("brokers")
    settings = {"transaction.two.phase.commit.enable": "true"} if request.param == "two phases" else {}
    with serving(directory / "data", directory / "server.log", brokers=2, settings=settings) as address:
        if request.param == "one epoch":
            with Admin(bootstrap_servers=address) as admin:
                admin.update_features({"transaction.version": 1}, downgrade=True)
        yield address
        close_clients()


class Query:
    """A streaming query that writes to a topic of two partitions."""

    def __init__(self, bootstrap: str, **options: str) -> None:
        self.topic = f"t-{uuid.uuid4().hex[:12]}"
        self.bootstrap = bootstrap
        self.id = str(uuid.uuid4())
        self.run = "run-1"
        self.options = {"bootstrap.servers": bootstrap, "topic": self.topic, **options}
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(NewTopic(self.topic, 2))

    @property
    def writer(self) -> StreamWriter:
        return StreamWriter(SinkOptions.of(self.options), ("value", "partition"))

    def task(self, batch: int, number: int, *values: str, attempt: int = 0) -> TaskResult:
        """Runs a task, which writes to the topic's partition of its number."""
        rows = pa.record_batch(
            {"value": pa.array([one.encode() for one in values]), "partition": pa.array([number % 2] * len(values), pa.int32())}
        )
        return self.writer.write_all(iter([rows]), Origin(self.id, batch, number, attempt, self.run))

    def rows(self, *, committed: bool = True) -> list[str]:
        """The values of the topic that a reader sees, sorted."""
        isolation = "read_committed" if committed else "read_uncommitted"
        found = []
        with Consumer(bootstrap_servers=self.bootstrap, isolation_level=isolation, auto_offset_reset="earliest") as consumer:
            partitions = consumer.partitions_for(self.topic)
            ends = consumer.end_offsets(partitions)
            consumer.assign(partitions)
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                found += [(record.value or b"").decode() for record in consumer.poll(timeout_ms=500)]
        return sorted(found)

    def open_transactions(self, application: str | None = None) -> list[str]:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            return [
                one.transactional_id
                for one in admin.list_transactions(states=[TransactionState.ONGOING])
                if (application or self.id) in one.transactional_id
            ]

    def commits(self, names: Names | None = None) -> BlockingCommits:
        return BlockingCommits(names or Names(self.id), SinkOptions.of(self.options).admin_settings())

    def batch(self, number: int, *tasks: TaskResult) -> BatchToCommit:
        return BatchToCommit(number, short_run(self.run), tuple(one.participant for one in tasks if one.participant is not None))

    def decide_only(self, number: int, *tasks: TaskResult, names: Names | None = None, run: str | None = None) -> None:
        """The driver is killed after the decision."""
        batch = replace(self.batch(number, *tasks), run=short_run(run or self.run))

        async def part(commits: BatchCommits) -> None:
            driver, before = await commits._initialize(), await commits.decision()
            if before.batch < 0:
                await commits._create_topic()
            await commits._decide(driver, before.next(number, batch.run, batch.tasks))

        with self.commits(names) as commits:
            commits.call(part)

    def decision(self) -> SinkDecision:
        with self.commits() as commits:
            return commits.call(lambda to: to.decision())


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it does not hold in 30 s"
        time.sleep(0.02)


@pytest.fixture
def query(server: str) -> Query:
    return Query(server)


def test_a_batch_is_visible_when_the_driver_commits_it(query: Query) -> None:
    tasks = [query.task(0, 0, "a", "b"), query.task(0, 1, "c"), query.task(0, 2)]
    assert query.rows() == []
    assert query.rows(committed=False) == ["a", "b", "c"]
    assert tasks[2].participant is None, "a task without rows has no transaction"
    query.writer.commit(tasks, 0)
    assert query.rows() == ["a", "b", "c"]
    query.writer.commit([query.task(1, 0, "d")], 1)
    assert query.rows() == ["a", "b", "c", "d"]
    assert query.decision().batch == 1


def test_an_aborted_batch_is_never_visible(query: Query) -> None:
    query.writer.abort([query.task(0, 0, "a"), None], 0)
    query.writer.commit([query.task(0, 0, "b")], 0)
    assert query.rows() == ["b"]


def test_a_job_that_fails_leaves_no_transaction_of_a_killed_task(query: Query) -> None:
    # The process of the task was killed, so it could not abort, and its message is missing.
    query.task(0, 0, "a")
    query.writer.abort([None, query.task(0, 1, "b")], 0)
    assert query.open_transactions() == []


@pytest.mark.parametrize("numbered", [True, False])
def test_a_batch_write_whose_tasks_are_all_killed_leaves_no_transaction(query: Query, numbered: bool) -> None:
    options = {"txnAppId": query.id, "txnVersion": "7"} if numbered else {}
    writer = BatchWriter(SinkOptions.of({**query.options, **options}), ("value", "partition"))
    rows = pa.record_batch({"value": pa.array([b"a"]), "partition": pa.array([0], pa.int32())})
    writer.write_all(iter([rows]), Origin(None, None, 0, 0))
    assert len(query.open_transactions(query.id if numbered else writer.nonce)) == 1
    writer.abort([None])
    assert query.open_transactions(query.id if numbered else writer.nonce) == []


def test_an_abort_keeps_what_is_decided_about_another_batch(query: Query) -> None:
    query.decide_only(0, query.task(0, 0, "a"), query.task(0, 1, "b"))
    query.run = "run-2"
    query.writer.abort([query.task(1, 0, "c")], 1)
    query.writer.commit([query.task(1, 0, "c")], 1)
    assert query.rows() == ["a", "b", "c"]


def test_only_the_attempts_in_the_messages_count(query: Query) -> None:
    # The first attempt was killed, or lost to a speculative one, after it had written all.
    query.task(0, 0, "a")
    query.writer.commit([query.task(0, 0, "a", attempt=1), query.task(0, 1, "b")], 0)
    assert query.rows() == ["a", "b"]
    assert query.open_transactions() == [], "the transaction of the lost attempt is aborted"


def test_an_attempt_that_still_runs_is_fenced_by_the_next_batch(query: Query) -> None:
    query.writer.commit([query.task(0, 0, "a", attempt=1)], 0)
    late = query.task(0, 0, "a")
    query.writer.commit([query.task(1, 0, "b")], 1)
    assert query.rows() == ["a", "b"]
    with pytest.raises(TransactionLost, match="aborted before"):
        query.writer.commit([late], 2)


def test_a_batch_that_is_run_again_after_it_was_committed_is_not_written_again(query: Query) -> None:
    query.writer.commit([query.task(3, 0, "a"), query.task(3, 1, "b")], 3)
    query.run = "run-2"
    # Other partitions, and other rows in them.
    query.writer.commit([query.task(3, 0, "b", "a"), query.task(3, 5, "a")], 3)
    assert query.open_transactions() == []
    query.writer.commit([query.task(4, 0, "c")], 4)
    assert query.rows() == ["a", "b", "c"]


def test_a_driver_killed_after_the_decision_is_completed_by_the_next_one(query: Query) -> None:
    tasks = [query.task(0, 0, "a"), query.task(0, 1, "b")]
    # One of another attempt, which takes no part.
    query.task(0, 0, "a", attempt=1)
    query.decide_only(0, *tasks)
    assert query.rows() == []
    query.run = "run-2"
    again = [query.task(0, 0, "b", "a"), query.task(0, 1)]
    query.writer.commit(again, 0)
    assert query.rows() == ["a", "b"]
    assert query.open_transactions() == []


def test_the_start_of_a_query_completes_what_was_decided(query: Query) -> None:
    with query.commits() as commits:
        assert commits.call(lambda to: to.recover(short_run("run-1"))) == SinkDecision()
    tasks = [query.task(0, 0, "a"), query.task(0, 1, "b")]
    query.task(0, 0, "lost", attempt=1)
    query.decide_only(0, *tasks)
    with query.commits() as commits:
        assert commits.call(lambda to: to.recover(short_run("run-2"))).batch == 0
    assert query.rows() == ["a", "b"]
    assert query.open_transactions() == []


def test_a_driver_killed_before_the_decision_leaves_nothing(query: Query) -> None:
    query.task(0, 0, "a")
    query.task(0, 1, "b")
    query.run = "run-2"
    query.writer.commit([query.task(0, 0, "a", "b")], 0)
    assert query.rows() == ["a", "b"]
    assert query.open_transactions() == []


def test_an_earlier_start_of_the_query_is_fenced(query: Query) -> None:
    query.writer.commit([query.task(0, 0, "a")], 0)
    late = query.task(1, 0, "b")
    query.run = "run-2"
    query.writer.commit([query.task(1, 0, "b")], 1)
    query.run = "run-1"
    with pytest.raises(SinkFenced, match="a later start"):
        query.writer.commit([query.task(2, 0, "c")], 2)
    query.writer.abort([late], 1)
    assert query.rows() == ["a", "b"]


def test_an_abort_after_the_decision_commits(query: Query) -> None:
    # Spark calls abort when commit fails, also when the driver has decided.
    tasks = [query.task(0, 0, "a"), query.task(0, 1, "b")]
    query.decide_only(0, *tasks)
    query.writer.abort(tasks, 0)
    assert query.rows() == ["a", "b"]


def test_a_batch_whose_decided_transactions_timed_out_is_written_again(query: Query) -> None:
    tasks = [query.task(0, 0, "a"), query.task(0, 1, "b")]
    query.decide_only(0, *tasks)
    with Admin(bootstrap_servers=query.bootstrap) as admin:
        for task in tasks:
            admin.force_terminate_transaction(Names(query.id).task(short_run("run-1"), task.origin.partition, 0))
    query.run = "run-2"
    query.writer.commit([query.task(0, 0, "a", "b")], 0)
    assert query.rows() == ["a", "b"]
    assert query.decision().batch == 0


def test_two_drivers_of_a_batch_commit_it_once(query: Query) -> None:
    mine = query.batch(0, query.task(0, 0, "a"), query.task(0, 1, "b"))
    query.run = "run-2"
    other = query.batch(0, query.task(0, 0, "b"), query.task(0, 1, "a"))

    async def both() -> list[Any]:
        settings = SinkOptions.of(query.options).admin_settings()
        drivers = [BatchCommits(Names(query.id), settings, random.Random(seed)) for seed in range(2)]
        try:
            return await asyncio.gather(
                *(driver.commit(batch) for driver, batch in zip(drivers, (mine, other), strict=True)), return_exceptions=True
            )
        finally:
            for driver in drivers:
                await driver.close()

    outcomes = asyncio.run(both())
    assert sum(outcome is True for outcome in outcomes) == 1, outcomes
    assert query.rows() == ["a", "b"]


def test_a_batch_write_is_visible_as_a_whole_and_each_one_counts(query: Query) -> None:
    for _ in range(2):
        writer = BatchWriter(SinkOptions.of(query.options), ("value", "partition"))
        rows = pa.record_batch({"value": pa.array([b"a"]), "partition": pa.array([0], pa.int32())})
        tasks = [writer.write_all(iter([rows]), Origin(None, None, number, 0)) for number in range(2)]
        before = query.rows()
        writer.commit(tasks)
        assert query.rows() == before + ["a", "a"]
    writer.abort([writer.write_all(iter([rows]), Origin(None, None, 0, 0))])
    assert query.rows() == ["a"] * 4


@pytest.mark.parametrize("runs", [("1", "2"), (None, None), ("1", "1")], ids=["in two starts", "in one session", "in one start"])
def test_a_batch_write_with_an_application_and_a_version_is_done_once(query: Query, runs: tuple[str | None, ...]) -> None:
    for run in runs:
        writer = BatchWriter(SinkOptions.of({**query.options, "txnAppId": query.id, "txnVersion": "7"}), ("value", "partition"))
        rows = pa.record_batch({"value": pa.array([b"a"]), "partition": pa.array([0], pa.int32())})
        origin = Origin("q", 7, 0, 0, run) if run else Origin(None, None, 0, 0)
        writer.settle()
        writer.commit([writer.write_all(iter([rows]), origin)])
    assert query.rows() == ["a"]
    assert query.open_transactions() == []


def _version(query: Query, number: int, *values: str, run: str = "1") -> tuple[BatchWriter, list[TaskResult]]:
    """Writes a version in foreachBatch, a task for each value, without its commit."""
    writer = BatchWriter(SinkOptions.of({**query.options, "txnAppId": query.id, "txnVersion": str(number)}), ("value", "partition"))
    writer.settle()
    rows = [pa.record_batch({"value": pa.array([one.encode()]), "partition": pa.array([0], pa.int32())}) for one in values]
    return writer, [writer.write_all(iter([one]), Origin("q", number, task, 0, run)) for task, one in enumerate(rows)]


def test_a_write_that_is_repeated_after_a_driver_was_killed_in_its_commit_completes_it(query: Query) -> None:
    # In the same start of the query: the program catches the error, and writes the batch again.
    names = Names(f"{query.id}-{query.topic}")
    _, tasks = _version(query, 7, "a", "b")
    query.decide_only(7, *tasks, names=names, run="1")
    first = tasks[0].participant
    assert first is not None
    with query.commits(names) as commits:
        commits.call(lambda to: to._end({names.task(short_run("1"), 0, 0, 7): first}, commit=True))
    assert query.rows() == ["a"], "the driver is killed after its first EndTxn"
    writer, again = _version(query, 7, "a", "b")
    writer.commit(again)
    assert query.rows() == ["a", "b"]
    assert query.open_transactions() == []


def test_versions_of_two_topics_with_one_application_are_both_written(query: Query) -> None:
    other = Query(query.bootstrap)
    other.id = query.id
    for one in (query, other):
        writer, tasks = _version(one, 7, "a")
        writer.commit(tasks)
    assert (query.rows(), other.rows()) == (["a"], ["a"])


def test_a_lower_version_is_not_written_after_a_higher_one(query: Query) -> None:
    for number in (7, 5, 9):
        writer, tasks = _version(query, number, str(number))
        writer.commit(tasks)
    assert query.rows() == ["7", "9"]
    assert query.open_transactions() == []


def test_a_batch_is_decided_after_a_decided_one_was_completed(query: Query) -> None:
    # The driver dies after it has decided batch 0, and its next start has no rows in that batch.
    query.decide_only(0, query.task(0, 0, "a"), query.task(0, 1, "b"))
    query.run = "run-2"
    query.writer.commit([query.task(0, 0)], 0)
    query.writer.commit([query.task(1, 0, "c")], 1)
    assert query.rows() == ["a", "b", "c"]
    assert query.open_transactions() == []


def test_a_committed_batch_stays_committed_when_its_ids_are_used_by_the_batch_after_an_empty_one(
    query: Query, spark_log: Callable[[], list[str]]
) -> None:
    query.writer.commit([query.task(0, 0, "a")], 0)
    query.writer.commit([query.task(1, 0)], 1)
    query.task(2, 0, "c")
    with query.commits() as commits:
        assert commits.call(lambda to: to.recover(short_run("run-2"))).has(0)
    assert query.decision().has(0)
    assert query.rows() == ["a"]
    assert spark_log() == [], "nothing was lost"


def test_a_committed_batch_stays_committed_when_its_ids_have_expired(query: Query) -> None:
    query.writer.commit([query.task(0, 0, "a")], 0)
    with Admin(bootstrap_servers=query.bootstrap) as admin:
        # Another producer id or epoch: what the coordinator answers about the old one is the same.
        admin.fence_producers([Names(query.id).task(short_run("run-1"), 0, 0, 0)])
    query.run = "run-2"
    query.writer.commit([query.task(0, 0, "a")], 0)
    assert query.rows() == ["a"]


def test_a_driver_that_finds_transactions_lost_does_not_undo_the_decision_of_a_later_one(query: Query) -> None:
    task = query.task(0, 0, "a")
    first = query.batch(0, task)
    query.run = "run-2"

    class Slow(BatchCommits):
        """Another driver decides the next batch, while this one commits its transactions."""

        async def _end(self, tasks: Any, *, commit: bool) -> list[Participant]:
            missing = await super()._end(tasks, commit=commit)
            await asyncio.to_thread(lambda: query.writer.commit([query.task(1, 0, "b")], 1))
            return missing or list(tasks.values())

    async def commit() -> None:
        slow = Slow(Names(query.id), SinkOptions.of(query.options).admin_settings(), random.Random(1))
        try:
            await slow.commit(first)
        finally:
            await slow.close()

    with pytest.raises(ProducerFenced):
        asyncio.run(commit())
    assert query.decision().batch == 1
    query.run = "run-3"
    query.writer.commit([query.task(1, 0, "b")], 1)
    assert query.rows() == ["a", "b"]


def test_a_task_whose_transaction_another_driver_aborts_meanwhile_takes_no_part(query: Query) -> None:
    first, written = threading.Event(), threading.Event()

    def rows() -> Iterator[pa.RecordBatch]:
        # More than the writer gathers, so that they are sent before the others.
        yield pa.record_batch({"value": pa.array([b"x" * 900_000] * 6), "partition": pa.array([0] * 6, pa.int32())})
        first.set()
        assert written.wait(60)
        yield pa.record_batch({"value": pa.array([b"y"]), "partition": pa.array([1], pa.int32())})

    def write() -> TaskResult:
        return query.writer.write_all(rows(), Origin(query.id, 0, 0, 0, query.run))

    with ThreadPoolExecutor() as pool:
        task = pool.submit(write)
        assert first.wait(60)
        until(lambda: query.open_transactions() != [])
        with query.commits() as commits:
            commits.call(lambda to: to.recover(short_run("run-2")))
        written.set()
        with pytest.raises((KafkaError, TransactionLost)):
            query.writer.commit([task.result()], 0)
    assert query.rows() == []


def _killed_after(query: Query, seconds: float, work: Callable[[BatchCommits], Coroutine[Any, Any, Any]]) -> bool:
    """Whether `work` of a driver ended before the driver was killed."""

    async def drive() -> bool:
        driver = BatchCommits(Names(query.id), SinkOptions.of(query.options).admin_settings(), random.Random(1))
        try:
            await asyncio.wait_for(work(driver), seconds)
        except TimeoutError:
            return False
        finally:
            await driver.close()
        return True

    return asyncio.run(drive())


def test_each_batch_is_there_once_wherever_its_drivers_are_killed(query: Query) -> None:
    # Times are random, so each run of the test kills at other steps.
    expected, starts = [], 0
    for number in range(12):
        rows = [f"{number}-{row}" for row in range(3)]
        expected += rows
        for seconds in (*(random.expovariate(50) for _ in range(3)), 60):
            query.run, starts = f"run-{starts}", starts + 1
            tasks = 1 + starts % 3
            batch = query.batch(number, *(query.task(number, task, *rows[task::tasks]) for task in range(tasks)))
            done = _killed_after(query, seconds, partial(BatchCommits.commit, batch=batch))
            if not done and starts % 2:
                _killed_after(query, seconds, partial(BatchCommits.abort, batch=batch))
            if done and starts % 3:
                break
    with query.commits() as commits:
        commits.call(lambda to: to.recover(short_run("last")))
    assert query.rows() == sorted(expected)
    assert query.open_transactions() == []


def test_a_group_of_jobs_that_the_program_has_set_is_no_start_of_a_query() -> None:
    run = str(uuid.uuid4())
    assert run_of("q", run) == run
    assert run_of("q", "nightly") is None
    assert run_of("q", None) is None
    assert run_of(None, run) is None


def test_a_driver_killed_while_the_next_batch_is_written_has_committed_the_last_one(
    query: Query, spark_log: Callable[[], list[str]]
) -> None:
    query.writer.commit([query.task(0, 0, "a"), query.task(0, 1, "b")], 0)
    query.task(1, 0, "c")
    with query.commits() as commits:
        assert commits.call(lambda to: to.recover(short_run("run-2"))).has(0)
    assert query.decision().has(0)
    assert query.open_transactions() == []
    assert query.rows() == ["a", "b"]
    assert spark_log() == [], "nothing was lost, so nothing is written again"


def test_a_late_attempt_of_the_last_batch_is_aborted_by_the_next_start(query: Query) -> None:
    query.writer.commit([query.task(0, 0, "a", attempt=1)], 0)
    query.task(0, 0, "a")
    with query.commits() as commits:
        assert commits.call(lambda to: to.recover(short_run("run-2"))).has(0)
    assert query.open_transactions() == []
    assert query.rows() == ["a"]


def test_at_least_once_writes_without_transactions(server: str) -> None:
    query = Query(server, delivery="at_least_once")
    tasks = [query.task(0, 0, "a"), query.task(0, 0, "a", attempt=1)]
    assert query.rows() == ["a", "a"]
    query.writer.commit(tasks, 0)
    assert query.decision() == SinkDecision()


def test_a_failed_task_leaves_no_transaction(query: Query) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        # More than the writer gathers.
        yield pa.record_batch({"value": pa.array([b"x" * 900_000] * 6), "partition": pa.array([0] * 6, pa.int32())})
        raise RuntimeError("the task fails")

    with pytest.raises(RuntimeError, match="the task fails"):
        query.writer.write_all(failing(), Origin(query.id, 0, 0, 0, query.run))
    assert query.open_transactions() == []
    query.writer.commit([query.task(0, 0, "a")], 0)
    assert query.rows() == ["a"]


def test_later_batches_use_the_same_ids_and_connections(query: Query) -> None:
    producers = []
    for batch in range(5):
        query.writer.commit([query.task(batch, 0, f"{batch}"), query.task(batch, 1, f"{batch}")], batch)
        producers.append({one for idle in task_producer._idle.values() for one in idle})
    with Admin(bootstrap_servers=query.bootstrap) as admin:
        ids = [one.transactional_id for one in admin.list_transactions() if query.id in one.transactional_id]
    assert len(ids) == 5, "two tasks in two turns, and the driver"
    assert producers[0] == producers[-1]


def test_a_decision_has_room_for_thousands_of_tasks() -> None:
    rng = random.Random(1)
    tasks = [Participant(number, 0, 2**33 + rng.randrange(10**6), rng.randrange(2**15)) for number in range(4_000)]
    decision = SinkDecision().next(2**40, "8e2064bc", tasks)
    parts = encoded(decision)
    assert 1 < len(parts) <= 16 and all(len(part) <= 4_096 for part in parts)
    assert decoded(dict(enumerate(parts)) | {15: "of an earlier decision"} if len(parts) < 16 else dict(enumerate(parts))) == decision
    with pytest.raises(ValueError, match="write fewer partitions"):
        encoded(SinkDecision().next(0, "8e2064bc", [Participant(number, 0, rng.randrange(2**60), 1) for number in range(20_000)]))


def test_a_pattern_names_the_tasks_of_one_application_only() -> None:
    import re

    names, other = Names("q/a.b"), Names("q/a.b-00000000-1")
    assert re.fullmatch(names.of_tasks(), names.task("8e2064bc", 3, 1))
    assert not re.fullmatch(names.of_tasks(), other.task("8e2064bc", 3, 1))
    assert not re.fullmatch(names.of_tasks(), Names("q/axb").task("8e2064bc", 3, 1))
    assert not re.fullmatch(names.of_tasks(), names.driver)


def test_the_topic_of_decisions_has_no_records(query: Query) -> None:
    query.writer.commit([query.task(0, 0, "a")], 0)
    with Consumer(bootstrap_servers=query.bootstrap) as consumer:
        assert set(consumer.end_offsets([TopicPartition(DECISIONS_TOPIC, 0)]).values()) == {0}


def test_two_phase_commit_that_was_asked_for_is_an_error_where_brokers_refuse_it(server: str, request: pytest.FixtureRequest) -> None:
    query = Query(server, **{"kafka.transaction.two.phase.commit.enable": "true"})
    if request.node.callspec.params["server"] == "two phases":
        query.writer.commit([query.task(0, 0, "a")], 0)
        assert query.rows() == ["a"]
        return
    with pytest.raises(BrokerIncompatible, match="needed are 6"):
        query.task(0, 0, "a")

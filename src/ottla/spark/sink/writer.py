"""Writes DataFrames to topics: each task sends Arrow tables with the client's `send_table`, acknowledged by all in-sync replicas.

Columns, as with Spark's Kafka sink: `value` (string or binary, required), `key`, `headers`, `topic` (the option `topic` takes precedence)
and `partition`. Other columns of the source (`offset`, `timestamp`, `timestampType`) are ignored, so that rows of the source can be
written unchanged. `task_producer` describes partitioning.

A task ends only after every batch is acknowledged.

    exactly_once     each task writes in a transaction of its own, and the driver commits all of them, or none (batch_commits.py)
    at_least_once    rows are visible at once; a task that Spark retries writes its rows again

A stream's batch is identified by query and number, a batch write by txnAppId and txnVersion: one that was committed before is not written
again. A batch write without them is committed as a whole when the job ends, but a repeated write is another one.
"""

import random
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ottla.base.options import suggestion
from ottla.base.units import MiB
from ottla.client.arrow.columns import gathered
from ottla.spark.sink.decision import Names, Participant, short_run
from ottla.spark.sink.options import SinkOptions
from ottla.spark.worker_setup import prepare_task_process
from ottla.wire.errors import UnsupportedVersion

if TYPE_CHECKING:
    from ottla.spark.sink.batch_commits import BlockingCommits

SINK_TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
#: Columns of the source that are not written.
SOURCE_ONLY_COLUMNS = frozenset({"offset", "timestamp", "timestampType"})
#: Size to which Spark's batches of 10,000 rows are combined before partitioning. Smaller ones would make small record batches.
GATHER_BYTES = 4 * MiB


@dataclass(frozen=True, slots=True)
class Origin:
    """Identifies the rows that a task wrote.

    In a query, (query_id, batch_id) identifies the batch permanently, also after a restart. Which of its rows a partition holds depends on
    the plan, for example on the number of cores. A batch write has no ids. Source: local properties that Spark's StreamExecution and
    MicroBatchExecution set for the jobs of a batch, also for a batch write inside foreachBatch.
    """

    query_id: str | None
    batch_id: int | None
    partition: int
    attempt: int
    #: The start of the query.
    run_id: str | None = None

    @classmethod
    def current(cls) -> "Origin":
        """The origin of the task in this process, or of the driver."""
        context = TaskContext.get()
        if context is None:
            return cls(None, None, 0, 0)
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        query_id = context.getLocalProperty("sql.streaming.queryId")
        run_id = run_of(query_id, context.getLocalProperty("spark.jobGroup.id"))
        return cls(query_id, None if batch_id is None else int(batch_id), context.partitionId(), context.attemptNumber(), run_id)


def run_of(query_id: str | None, job_group: str | None) -> str | None:
    """The start of the query: Spark makes each one a group of jobs, with a UUID. None for a group that a program has set, inside of
    foreachBatch say: it may be the same in every start, and in some batches only.
    """
    if query_id is None or job_group is None:
        return None
    with suppress(ValueError):
        return job_group if str(uuid.UUID(job_group)) == job_group else None
    return None


@dataclass
class TaskResult(WriterCommitMessage):  # type: ignore[misc]
    """The number of records that a task wrote, its origin, and its open transaction."""

    records: int
    origin: Origin
    #: The application and the run in the transaction's id; None without a transaction.
    application: str | None = None
    run: str = ""
    participant: Participant | None = None


class Report(msgspec.Struct, frozen=True):
    """The result of a batch write in the file `reportTo`: the number of records, and with commitBy=caller the transactions to commit."""

    records: int
    run: str = ""
    tasks: list[Participant] = []


def sink_columns(schema: "StructType") -> tuple[str, ...]:
    """The names of the columns to write. Raises: ValueError if one is unknown or has an unsupported type."""
    fields = [field for field in schema.fields if field.name not in SOURCE_ONLY_COLUMNS]
    for field in fields:
        if field.name not in SINK_TYPES:
            raise ValueError(
                f"a topic has no column {field.name!r}{suggestion(field.name, SINK_TYPES)}; it has {', '.join(SINK_TYPES)}. "
                "Put other columns into the value, with to_json(struct(*)) AS value"
            )
        kind = field.dataType.simpleString()
        if kind not in SINK_TYPES[field.name]:
            raise ValueError(f"column {field.name} is {kind} and must be {' or '.join(SINK_TYPES[field.name])}; cast it with SQL")
    if "value" not in schema.fieldNames():
        raise ValueError("there is no column value; select one, such as to_json(struct(*)) AS value")
    return tuple(field.name for field in fields)


def require_topic(options: SinkOptions, names: tuple[str, ...]) -> None:
    if options.topic is None and "topic" not in names:
        raise ValueError("no topic to write to; set the option topic, or select a column topic")


class _Writer:
    def __init__(self, options: SinkOptions, names: tuple[str, ...]) -> None:
        require_topic(options, names)
        self.options = options
        self.names = names
        #: Identifies a batch write.
        self.nonce = uuid.uuid4().hex

    def application(self, origin: Origin) -> tuple[str, int | None]:
        """The application in transactional ids, and the number of the batch if it has one."""
        raise NotImplementedError

    def write_all(self, batches: "Iterator[pa.RecordBatch]", origin: Origin | None = None) -> TaskResult:
        # Imported here: only processes that write need the client.
        from ottla.spark.sink.task_producer import TaskProducer

        origin = origin or Origin.current()
        prepared = self.options.transactional
        application, number = self.application(origin)
        # Without a known start each write is one of its own, also one that is repeated in the same session.
        run, rng = short_run(self.nonce if origin.run_id is None else origin.run_id), random.Random()
        if prepared:
            name = Names(application, self.options.prefix).task(run, origin.partition, origin.attempt, number)
            # A write without a number is not finished after a crash, so its transactions need a timeout.
            producer = TaskProducer(self.options, rng, name, two_phase=number is not None)
        else:
            producer = TaskProducer(self.options, rng)
        prepare_task_process()
        written = 0
        try:
            for batch in gathered((one.select(self.names) for one in batches), GATHER_BYTES):
                for topic, rows in _by_topic(batch, self.options.topic):
                    producer.send(topic, rows)
                written += batch.num_rows
            identity = producer.finish()
        except BaseException:
            producer.fail()
            raise
        if identity is None:
            return TaskResult(written, origin)
        return TaskResult(written, origin, application, run, Participant(origin.partition, origin.attempt, *identity))

    def report(self, messages: list[Any], tasks: "Sequence[Participant]" = (), run: str = "") -> None:
        """Writes the result of the write to the file `reportTo`."""
        if self.options.report_to is not None:
            written = sum(message.records for message in messages if message is not None)
            Path(self.options.report_to).write_bytes(msgspec.json.encode(Report(written, run, list(tasks))))

    def commits(self, application: str | None) -> "BlockingCommits":
        from ottla.spark.sink.batch_commits import BlockingCommits

        assert application is not None, "a prepared task has an application"
        return BlockingCommits(Names(application, self.options.prefix), self.options.admin_settings())

    def commit_numbered(
        self, prepared: "Sequence[TaskResult]", number: int, *, aborts: bool = False, application: str | None = None
    ) -> None:
        """Commits or aborts a batch that has a number. `application`: if there may be no result of a task."""
        from ottla.spark.sink.batch_commits import BatchToCommit

        tasks = tuple(one.participant for one in prepared if one.participant is not None)
        batch = BatchToCommit(number, prepared[0].run if prepared else "", tasks)
        with self.commits(prepared[0].application if prepared else application) as commits:
            commits.call(lambda to: to.abort(batch) if aborts else to.commit(batch))


def _prepared(messages: list[Any]) -> list[TaskResult]:
    """The results with a transaction. A failed task has no message, and a task without rows no transaction."""
    return [one for one in messages if one is not None and one.participant is not None]


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """``df.write.format("ottla").mode("append")``."""

    def application(self, origin: Origin) -> tuple[str, int | None]:
        if self.options.application is not None:
            # As in Delta Lake, a version belongs to what it is written to. A caller that commits has its own names.
            suffix = f"-{self.options.topic}" if self.options.topic and not self.options.committed_by_caller else ""
            return f"{self.options.application}{suffix}", self.options.version
        if origin.query_id is None:
            return self.nonce, None
        # Inside of foreachBatch: the ids of a batch are used by the next one again.
        return f"{origin.query_id}-{zlib.crc32((self.options.topic or '').encode()):08x}", None

    def settle(self) -> None:
        """Finishes what an earlier write of the application has decided, before tasks write: inside of a query they use its ids again."""
        if self.options.version is None or self.options.committed_by_caller:
            return
        application, _ = self.application(Origin.current())
        try:
            with self.commits(application) as commits:
                commits.call(lambda to: to.settle())
        except UnsupportedVersion:
            if self.options.required:
                raise

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskResult:
        return self.write_all(iterator)

    def commit(self, messages: list[Any]) -> None:
        """Makes the rows visible, and reports their number."""
        prepared = _prepared(messages)
        tasks = [one.participant for one in prepared if one.participant is not None]
        if self.options.committed_by_caller:
            self.report(messages, tasks, prepared[0].run if prepared else "")
            return
        if prepared and self.options.version is not None:
            self.commit_numbered(prepared, self.options.version)
        elif prepared:
            with self.commits(prepared[0].application) as commits:
                commits.call(lambda to: to.commit_once(prepared[0].run, tasks))
        self.report(messages)

    def abort(self, messages: list[Any]) -> None:
        """Aborts the transactions. Rows that were written at least once stay in the log."""
        if not self.options.transactional:
            return
        prepared = _prepared(messages)
        tasks = [one.participant for one in prepared if one.participant is not None]
        # Also if every task was killed, after it had begun a transaction.
        application = prepared[0].application if prepared else self.application(Origin.current())[0]
        try:
            if self.options.version is not None:
                self.commit_numbered(prepared, self.options.version, aborts=True, application=application)
                return
            with self.commits(application) as commits:
                commits.call(lambda to: to.abort_once(prepared[0].run if prepared else "", tasks))
        except UnsupportedVersion:
            # Nothing was written in transactions.
            if prepared:
                raise


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """``df.writeStream.format("ottla")``."""

    def application(self, origin: Origin) -> tuple[str, int | None]:
        # Without Spark there is no query.
        return origin.query_id or self.nonce, origin.batch_id

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskResult:
        return self.write_all(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Makes the rows of the batch visible, unless an earlier run of the batch did."""
        prepared = _prepared(messages)
        if prepared:
            self.commit_numbered(prepared, batchId)
        self.report(messages)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Aborts the transactions of the batch. Rows that were written at least once stay in the log."""
        prepared = _prepared(messages)
        if prepared:
            self.commit_numbered(prepared, batchId, aborts=True)


def _by_topic(batch: "pa.RecordBatch", topic: str | None) -> "Iterator[tuple[str, pa.RecordBatch]]":
    """Each topic with its rows. Raises: ValueError for a row without a topic."""
    if topic is not None:
        yield topic, batch
        return
    names = batch.column("topic")
    if names.null_count:
        raise ValueError("a row has no topic: its column topic is null; set the option topic, or filter such rows out")
    for name in pc.unique(names):
        yield name.as_py(), batch.filter(pc.equal(names, name))

"""Commits the batches of a topic sink in the pipeline's process, which keeps its connections.

    tasks                 write in transactions, and report them (`commitBy=caller`)
    first batch of a run  what an earlier run decided is finished before any task writes
    each batch            one that is decided is not written; another one is decided and committed (`sink.batch_commits`)

Dead letters of a batch may differ when it runs again. Others than those that were decided are written too.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from ottla.spark.sink.batch_commits import BatchToCommit, BlockingCommits
from ottla.spark.sink.decision import Names, Participant, SinkDecision, short_run
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.writer import Report
from ottla.wire.errors import UnsupportedVersion

log = logging.getLogger("ottla.spark")


class NumberedBatch(Protocol):
    """A batch of a query (`sinks.MicroBatch`)."""

    @property
    def number(self) -> int: ...
    @property
    def content(self) -> int | None: ...
    @property
    def run_id(self) -> str | None: ...


class TopicCommits:
    """The batches of one sink."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._sink = SinkOptions.of(options)
        self._commits: BlockingCommits | None = None
        #: The start of the query that has recovered.
        self._recovered: str | None = None
        self._last = SinkDecision()

    def has(self, application: str, batch: NumberedBatch) -> bool:
        """Whether the batch is written. Finishes what an earlier start of the query decided. Raises: SinkFenced, KafkaError."""
        if not self._sink.transactional:
            return False
        run = short_run(batch.run_id)
        if self._recovered != run:
            try:
                self._last = self._to(application).call(lambda commits: commits.recover(run))
            except UnsupportedVersion as error:
                if self._sink.required:
                    raise
                log.warning("topic %s is written at least once, because the brokers serve no transactions: %s", self._sink.topic, error)
            self._recovered = run
        return self._last.has(batch.number, batch.content or 0)

    def options(self, application: str, batch: NumberedBatch) -> dict[str, str]:
        """Further options of a batch write that this object commits."""
        if not self._sink.transactional:
            return {}
        return {"txnAppId": application, "txnVersion": str(batch.number), "commitBy": "caller"}

    def commit(self, application: str, batch: NumberedBatch, report: str) -> int:
        """Commits what a write reported. Returns the number of records. Raises: SinkFenced, TransactionLost, KafkaError."""
        found = msgspec.json.decode(report, type=Report)
        self._commit(application, BatchToCommit(batch.number, found.run, tuple(found.tasks), batch.content or 0))
        return found.records

    def commit_task(self, application: str, batch: NumberedBatch, run: str, participant: Participant | None) -> None:
        """Commits what this process wrote."""
        self._commit(application, BatchToCommit(batch.number, run, () if participant is None else (participant,), batch.content or 0))

    def _commit(self, application: str, batch: BatchToCommit) -> None:
        if batch.tasks:
            to = self._to(application)
            try:
                to.call(lambda commits: commits.commit(batch))
            except BaseException:
                # The query's next start recovers.
                self._recovered = None
                raise

    def _to(self, application: str) -> BlockingCommits:
        if self._commits is None or self._commits.names.application != application:
            self._commits = BlockingCommits(Names(application, self._sink.prefix), self._sink.admin_settings())
        return self._commits


def application_of(query_id: str, topic: str, alike: Sequence[str], key: str) -> str:
    """The application of a sink; its position in the file does not matter. `alike`: the keys of the query's sinks of this topic. Dead
    letters are none of them, and may go to the same topic.
    """
    if key not in alike:
        return f"{query_id}-{topic}#dead-letters"
    number = alike.index(key)
    return f"{query_id}-{topic}{f'#{number}' if number else ''}"

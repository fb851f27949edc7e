"""Keeps the checkpoint of a pipeline in a compacted topic: ``checkpoint = "ottla:TOPIC"``. For pipelines without state.

Spark writes its checkpoint to a local working directory. Its files are copied to the topic, in transactions (checkpoint_records.py):

    start         take over: InitProducerId of ottla-checkpoint-NAME[@TOPIC], read the topic, replace the content of the working directory
    batch N       Spark plans it: offsets/N
                  transaction: offsets/N, commits/N-1, ...     before any sink writes a row of the batch
                  sinks write the batch
                  Spark notes that it is finished: commits/N
    in between    transaction: new files, and a heartbeat every `BEAT_S`
    end           transaction: the last files, and that the process has ended

So a machine that takes over knows every batch of which a sink may have rows, and runs it again with the same offsets and the same identity,
as after a restart with a directory. A process that was taken over cannot commit a transaction, so it ends before its next batch.

A coordinator that aborts a transaction for its timeout fences its producer too. Then nobody else is the owner in the topic, and the process
takes its checkpoint back.

All records are in partition 0. A reader waits for open transactions of other pipelines, at most for their timeout.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ottla import Admin, Consumer, Producer
from ottla.base.ids import TopicPartition
from ottla.base.units import MiB
from ottla.client.admin.calls import good
from ottla.client.admin.results import NewTopic, Resource
from ottla.client.fetch.offsets import LATEST
from ottla.client.options import ClientOptions, ConsumerOptions, ProducerOptions
from ottla.client.producer.transaction_state import ProducerTransactionState
from ottla.spark.pipeline.checkpoint import LOCK, HeldCheckpoint
from ottla.spark.pipeline.checkpoint_errors import CheckpointTakenOver, CheckpointUnavailable
from ottla.spark.pipeline.checkpoint_records import Changes, Files, InvalidRecord, LocalFiles, differences, key_of, replay, restore
from ottla.spark.pipeline.config.model import CHECKPOINTS_TOPIC, Pipeline
from ottla.spark.sink.options import SinkOptions
from ottla.wire import errors
from ottla.wire.errors import KafkaError

log = logging.getLogger("ottla.spark")

#: A heartbeat counts for `checkpoint.BEAT_OLD_S`.
BEAT_S = 5.0
#: Between batches, files are copied at most so often.
COPY_INTERVAL_S = 1.0
#: A killed process blocks readers of the topic for so long.
TRANSACTION_TIMEOUT_MS = 30_000
#: How long a reader waits for the end of the topic.
READ_TIMEOUT_S = 60.0
POLL_MS = 500
#: Limit of a commit, so that an unreachable broker is reported as one: the query is retried.
BLOCK_MS = 20_000
CLOSE_MS = 5_000
#: Bytes of a batch with one record besides its key and value.
OVERHEAD_BYTES = 200
#: Attempts of a transaction: one that is aborted, one after it was taken back.
ATTEMPTS = 3
FENCED = (errors.ProducerFenced, errors.InvalidProducerEpoch)
#: Settings of the pipeline's clients that would change what the transactions promise.
OURS = ("acks", "enable_idempotence", "transactional_id", "transaction_timeout_ms", "transaction_two_phase_commit_enable", "linger_ms",
        "group_id", "isolation_level", "auto_offset_reset", "enable_auto_commit", "client_id")  # fmt: skip


class CheckpointTopic(HeldCheckpoint):
    """The checkpoint of one pipeline, held by this process. Batches of several queries call `save` from their threads."""

    def __init__(self, pipeline: Pipeline) -> None:
        assert pipeline.checkpoint_topic is not None, "the checkpoint is in a topic"
        self._pipeline = pipeline
        self._topic = pipeline.checkpoint_topic
        super().__init__(pipeline.checkpoint)
        self._local = LocalFiles(self._directory)
        self._lock = threading.Lock()
        self._run, self._since = uuid.uuid4().hex, time.time()
        #: The files in the topic.
        self._written: Files = {}
        #: Changes of a transaction whose outcome is not known.
        self._in_doubt: Changes | None = None
        #: The call of the producer that has not returned yet: commit, or abort. The same call learns its outcome.
        self._unanswered: Callable[[], None] | None = None
        #: The producer was fenced, and who owns the checkpoint was not read since.
        self._fenced = False
        #: Times of the last heartbeat and the last copy.
        self._beat_s = self._copied_s = 0.0
        self._largest = MiB
        self._taken_over = False
        self._producer: Producer | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the topic has no checkpoint of this pipeline."""
        return not any(path != LOCK for path in self._written)

    def take_over(self) -> None:
        """Fences every other process of this pipeline and restores the working directory. The caller has the directory's lock.

        Raises: CheckpointUnavailable, OSError.
        """
        with _reported(self._pipeline):
            self._largest = _require_topic(self._pipeline, create=True)
            self._initialize()
            self._written = read_files(self._pipeline)
            restore(self._written, self._directory)
            self.save(beat=True)

    def save(self, *, beat: bool = False, ended: bool = False) -> None:
        """Copies the new files of the working directory to the topic, in one transaction. They are there when it returns.

        Raises: CheckpointTakenOver; CheckpointUnavailable for a file that is too large; KafkaError, temporary if it is retriable.
        """
        with self._lock:
            for left in reversed(range(ATTEMPTS)):
                if self._fenced:
                    self._take_back()
                try:
                    self._save(beat=beat, ended=ended)
                    return
                except errors.TransactionAbortable:
                    # The next attempt aborts the transaction first, and learns whether the producer was fenced.
                    if not left:
                        raise
                except FENCED:
                    self._fenced = True
                    if not left:
                        raise

    def forget(self, queries: Sequence[str]) -> None:
        """Raises: as `save`."""
        super().forget(queries)
        self.save()

    def keep(self) -> None:
        """Copies new files and writes heartbeats, if due. Temporary errors are left to the next batch. Raises: as `save`."""
        now_s = time.monotonic()
        if now_s - self._copied_s < COPY_INTERVAL_S or self._lock.locked():
            return
        self._copied_s = now_s
        try:
            self.save(beat=now_s - self._beat_s >= BEAT_S)
        except KafkaError as error:
            if not error.retriable:
                raise CheckpointUnavailable(_problem(self._pipeline, error)) from None
            log.info("%s is not reached: %s", self._pipeline.checkpoint_place, error)

    def close(self) -> None:
        """Copies the last files and notes the end. A failure is a warning: the next start repeats the last batch."""
        if self._producer is None:
            return
        try:
            if not self._taken_over:
                self.save(ended=True)
        except (KafkaError, OSError, CheckpointUnavailable) as error:
            log.warning("the end of the last batch is not noted in %s: %s", self._pipeline.checkpoint_place, error)
        self._producer.close(CLOSE_MS)

    def _initialize(self) -> None:
        options = _options(self._pipeline)
        settings = {
            name: value for name, value in options.producer_settings().items() if name not in OURS and name in _names(ProducerOptions)
        }
        settings |= {
            "max_block_ms": min(int(settings.get("max_block_ms", BLOCK_MS)), BLOCK_MS),
            "max_request_size": max(int(settings.get("max_request_size", 0)), self._largest + MiB),
        }
        self._producer = Producer(
            bootstrap_servers=options.bootstrap,
            client_id="ottla-checkpoint",
            transactional_id=transactional_id(self._pipeline.name, self._topic),
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            **settings,
        )
        self._producer.init_transactions()

    def _take_back(self) -> None:
        """Goes on after a transaction that the coordinator aborted for its timeout. Raises: CheckpointTakenOver; KafkaError."""
        for initialize in (False, True):
            if initialize:
                assert self._producer is not None, "it was fenced"
                self._producer.close(0)
                self._initialize()
            written = read_files(self._pipeline)
            if _owner(written) != self._run:
                self._taken_over = True
                other = json.loads(written.get(LOCK, b"{}"))
                by = f"process {other['pid']} on {other['host']}" if {"pid", "host"} <= other.keys() else "another process"
                raise CheckpointTakenOver(
                    f"the checkpoint {self._pipeline.checkpoint_place} of {self._pipeline.name} was taken over by {by}, which runs the"
                    " pipeline now; this process stops. Run a pipeline once, or give one of the two another name"
                ) from None
        self._written, self._in_doubt, self._unanswered, self._fenced = written, None, None, False

    def _save(self, *, beat: bool, ended: bool) -> None:
        assert self._producer is not None, "take_over was called"
        self._finish(self._producer)
        changes = differences(self._local.read(), self._written)
        if beat or ended:
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": self._since, "beat": time.time()}
            changes[LOCK] = json.dumps({**owner, "run": self._run, "ended": ended}).encode()
        if not changes:
            return
        self._require_small(changes)
        self._producer.begin()
        self._in_doubt = changes
        for path, content in changes.items():
            self._producer.send(self._topic, content, key=key_of(self._pipeline.name, path), partition=0)
        self._end(self._producer.commit)
        self._committed()

    def _end(self, call: Callable[[], None]) -> None:
        """Ends the transaction. Raises: KafkaError; after RequestTimedOut the same call has to be repeated."""
        self._unanswered = call
        try:
            call()
        except errors.RequestTimedOut:
            raise
        except KafkaError:
            self._unanswered = None
            raise
        self._unanswered = None

    def _committed(self) -> None:
        for path, content in (self._in_doubt or {}).items():
            if content is None:
                self._written.pop(path, None)
            else:
                self._written[path] = content
        if LOCK in (self._in_doubt or {}):
            self._beat_s = time.monotonic()
        self._in_doubt = None

    def _finish(self, producer: Producer) -> None:
        """Ends a transaction that failed or timed out before. Raises: KafkaError."""
        if self._in_doubt is None:
            return
        state = producer.transactions.machine.state
        if self._unanswered == producer.abort or state in (
            ProducerTransactionState.IN_TRANSACTION,
            ProducerTransactionState.ABORTABLE_ERROR,
        ):
            self._end(producer.abort)
            self._in_doubt = None
        elif self._unanswered == producer.commit or state is ProducerTransactionState.FATAL_ERROR:
            self._end(producer.commit)
            self._committed()

    def _require_small(self, changes: Changes) -> None:
        for path, content in changes.items():
            size = len(content or b"")
            if size + len(key_of(self._pipeline.name, path)) + OVERHEAD_BYTES > self._largest:
                raise CheckpointUnavailable(
                    f"{path} of the checkpoint has {size:,} bytes, and a record of {self._topic} may have {self._largest:,}: raise"
                    " max.message.bytes of this topic, or keep the checkpoint in a directory"
                )


def transactional_id(pipeline: str, topic: str = CHECKPOINTS_TOPIC) -> str:
    """Pipelines with the same name, and checkpoints in other topics, do not fence each other."""
    return f"ottla-checkpoint-{pipeline}{'' if topic == CHECKPOINTS_TOPIC else f'@{topic}'}"


@contextmanager
def holding(pipeline: Pipeline) -> Iterator[CheckpointTopic | None]:
    """Takes the checkpoint in a topic over for the block; None for one in a directory. The caller has the lock of the (working) directory.

    Raises: CheckpointUnavailable, OSError.
    """
    if pipeline.checkpoint_topic is None:
        yield None
        return
    topic = CheckpointTopic(pipeline)
    try:
        topic.take_over()
        yield topic
    finally:
        topic.close()


@contextmanager
def to_read(pipeline: Pipeline) -> Iterator[Pipeline]:
    """The pipeline with a directory from which its checkpoint can be read during the block: a copy, if the checkpoint is in a topic.

    Raises: CheckpointUnavailable.
    """
    if pipeline.checkpoint_topic is None:
        yield pipeline
        return
    with _reported(pipeline):
        files = read_files(pipeline)
    with TemporaryDirectory(prefix="ottla-checkpoint-") as directory:
        restore(files, Path(directory))
        if LOCK in files:
            (Path(directory) / LOCK).write_bytes(files[LOCK])
        yield replace(pipeline, checkpoint=directory)


def read_files(pipeline: Pipeline) -> Files:
    """The files of the pipeline in the topic; none if there is no topic. Raises: CheckpointUnavailable, KafkaError."""
    try:
        _require_topic(pipeline, create=False)
    except errors.UnknownTopicOrPartition:
        return {}
    options, partition = _options(pipeline), TopicPartition(pipeline.checkpoint_topic or "", 0)
    with Admin(**_admin_settings(options)) as admin:
        # Not the last stable offset: records behind an open transaction count too, and are waited for.
        end = good(admin.list_offsets({partition: LATEST})[partition]).offset
    settings = {name: value for name, value in _client(options).items() if name in _names(ConsumerOptions) and name not in OURS}
    files: Files = {}
    deadline_s = time.monotonic() + READ_TIMEOUT_S
    with Consumer(
        bootstrap_servers=options.bootstrap, client_id="ottla-checkpoint", isolation_level="read_committed", **settings
    ) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        while consumer.position(partition) < end:
            for record in consumer.poll(POLL_MS):
                replay(files, pipeline.name, record.key, record.value)
            if time.monotonic() > deadline_s:
                raise CheckpointUnavailable(
                    f"{pipeline.checkpoint_place} was read to offset {consumer.position(partition)} of {end} in {READ_TIMEOUT_S:.0f} s. An"
                    " open transaction of another pipeline may block it: ottla transaction list --state ongoing shows it"
                )
    return files


def _owner(files: Files) -> str | None:
    with suppress(ValueError, AttributeError):
        return str(json.loads(files.get(LOCK, b"{}")).get("run"))
    return None


def _require_topic(pipeline: Pipeline, *, create: bool) -> int:
    """The topic's largest batch in bytes. Raises: CheckpointUnavailable, UnknownTopicOrPartition, KafkaError."""
    name = pipeline.checkpoint_topic or ""
    with Admin(**_admin_settings(_options(pipeline))) as admin:
        try:
            admin.describe_topic(name)
        except errors.UnknownTopicOrPartition:
            if not create:
                raise
            with suppress(errors.TopicAlreadyExists):
                admin.create_topic(NewTopic(name, 1, configs={"cleanup.policy": "compact"}))
        configs = admin.describe_config(Resource.topic(name), names=["cleanup.policy", "max.message.bytes"])
    policy = configs["cleanup.policy"].value
    if policy != "compact":
        raise CheckpointUnavailable(
            f"the topic {name} of the checkpoint has cleanup.policy={policy}, which would delete offsets: set it to compact, or name"
            " another topic"
        )
    return int(configs["max.message.bytes"].value or MiB)


def _options(pipeline: Pipeline) -> SinkOptions:
    return SinkOptions.of({**pipeline.broker_options(), "topic": pipeline.checkpoint_topic or "", "delivery": "at_least_once"})


def _client(options: SinkOptions) -> dict[str, Any]:
    return {name.replace(".", "_"): value for name, value in options.client.items()}


def _admin_settings(options: SinkOptions) -> dict[str, Any]:
    return {**options.admin_settings(), "client_id": "ottla-checkpoint"}


def _names(table: type[ClientOptions]) -> set[str]:
    return {spec.attribute for spec in table.SPECS.values()}


@contextmanager
def _reported(pipeline: Pipeline) -> Iterator[None]:
    """Errors of the block name the checkpoint. Raises: CheckpointUnavailable."""
    try:
        yield
    except (KafkaError, InvalidRecord, TimeoutError) as error:
        raise CheckpointUnavailable(_problem(pipeline, error)) from error


def _problem(pipeline: Pipeline, error: Exception) -> str:
    return f"the checkpoint {pipeline.checkpoint_place} of {pipeline.name} cannot be used: {error}"

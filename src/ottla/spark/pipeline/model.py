"""What a pipeline file says, as data: made and checked by file.py and sink_file.py, carried out by decode.py, run.py and sinks.py."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ottla.spark.pipeline.table import PipelineError, line_of

#: The view that the first step reads: the topic's records, decoded.
RECORDS = "records"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DURATION = re.compile(r"\d+\s+(millisecond|second|minute|hour|day)s?")

BadRecords = Literal["keep", "drop", "fail", "dead_letter"]
SinkMode = Literal["append", "merge", "replace", "update"]


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late a record may be: `delay` after the newest time in `column`, records are too late and windows close."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Source:
    """Which topics are read, and how."""

    #: Options of ``format("ottla")`` that name the topics and everything else.
    options: Mapping[str, str]
    watermark: Watermark | None


@dataclass(frozen=True, slots=True)
class Field:
    """A decoded column."""

    type: str
    #: Of a timestamp: Spark's pattern, such as ``dd/MMM/yyyy:HH:mm:ss Z``, or ``epoch_ms`` or ``epoch_s`` for a number.
    format: str | None = None


@dataclass(frozen=True, slots=True)
class Decode:
    """How a value becomes columns. ``text`` gives one column, ``value``."""

    format: Literal["json", "regex", "text"]
    fields: Mapping[str, Field] = field(default_factory=dict)
    #: Spark DDL, instead of fields.
    schema: str | None = None
    pattern: str | None = None
    #: Texts that mean nothing, such as ``-`` in web logs.
    nulls: tuple[str, ...] = ()
    bad_records: BadRecords = "keep"


@dataclass(frozen=True, slots=True)
class Step:
    """A query over earlier views; its result is a view of this name."""

    name: str
    sql: str
    watermark: Watermark | None
    #: The key of its SQL, for errors.
    key: str


@dataclass(frozen=True, slots=True)
class Compaction:
    """When a Delta sink puts the small files of its table together: whichever is reached first."""

    every_batches: int | None = None
    #: Files that the last batches added.
    files: int | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a view goes."""

    type: Literal["delta", "topic", "parquet", "jdbc", "console"]
    view: str
    mode: SinkMode | None
    #: The prefix of its keys in the file, such as ``sink[0].``.
    key: str
    #: Of a table: its directory.
    path: str | None = None
    #: Of a merge: the columns that identify a row.
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    schema: Literal["fixed", "evolve"] = "fixed"
    compaction: Compaction | None = None
    topic: str | None = None
    #: SQL expressions for a record's key, value (without one: the row as JSON), partition, and headers by name.
    key_sql: str | None = None
    value_sql: str | None = None
    partition_sql: str | None = None
    headers_sql: Mapping[str, str] = field(default_factory=dict)
    compression: str = "none"
    #: Of JDBC: the database, its table, the driver's class, and further options of Spark's JDBC writer.
    url: str | None = None
    table: str | None = None
    driver: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    rows: int = 20


@dataclass(frozen=True, slots=True)
class Rule:
    """What must be true of each row of a view; a row for which it is false or null leaves before anything else sees it."""

    name: str
    view: str
    check: str
    action: Literal["dead_letter", "drop", "fail"]
    key: str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where rows go that do not decode or break a rule: a Delta table, or a topic."""

    path: str | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole file."""

    file: Path
    text: str
    name: str
    bootstrap: str
    checkpoint: str
    #: A duration between batches; ``continuous``: one batch after the other; ``available-now``: read what is there and end; ``once``: the
    #: same as one batch.
    trigger: str
    source: Source
    decode: Decode
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    #: Settings of the Spark session.
    spark: Mapping[str, str]
    rules: tuple[Rule, ...] = ()
    dead_letters: DeadLetters | None = None

    def error(self, key: str, problem: str) -> PipelineError:
        """An error that points into this pipeline's file."""
        return PipelineError(line_of(self.file, self.text, key), key, problem)

"""What a pipeline file says, as data: made and checked by file.py and sink_file.py, carried out by decode.py, run.py and sinks.py."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ottla.spark.pipeline.config.toml_table import PipelineError, line_of

#: All cores of this machine, and a task tried four times, which is Spark's own number for clusters: with one try the first Python process
#: that ends would end the query.
MASTER = "local[*,4]"
#: The view of a source that has no name.
RECORDS = "records"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DURATION = re.compile(r"\d+\s+(millisecond|second|minute|hour|day)s?")

DecodeFormat = Literal["json", "regex", "csv", "avro", "protobuf", "text", "raw"]
BadRecords = Literal["keep", "drop", "fail", "dead_letter"]
SinkMode = Literal["append", "merge", "replace", "update"]


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late a record may be: `delay` after the newest time in `column`, records are too late and windows close."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Field:
    """A decoded column."""

    type: str
    #: Of a timestamp: Spark's pattern, such as ``dd/MMM/yyyy:HH:mm:ss Z``, or ``epoch_ms`` or ``epoch_s`` for a number.
    format: str | None = None


@dataclass(frozen=True, slots=True)
class Decode:
    """How a value becomes columns. ``text`` and ``raw`` give one column, ``value``."""

    format: DecodeFormat
    fields: Mapping[str, Field] = field(default_factory=dict)
    #: Spark DDL, instead of fields.
    schema: str | None = None
    pattern: str | None = None
    #: Texts that mean nothing, such as ``-`` in web logs.
    nulls: tuple[str, ...] = ()
    bad_records: BadRecords = "keep"
    #: Of csv.
    separator: str = ","
    #: Of avro and protobuf: options of ``format("ottla")``, which decodes them itself.
    options: Mapping[str, str] = field(default_factory=dict)
    #: How the record's key becomes the column ``_key``.
    record_key: "KeyDecode" = field(default_factory=lambda: KeyDecode("text"))
    #: Whether there is a column ``_headers``.
    headers: bool = False
    #: The prefix of its keys in the file, such as ``source[0].decode.``.
    key: str = "decode."


@dataclass(frozen=True, slots=True)
class KeyDecode:
    """How a record's key becomes one column."""

    format: Literal["text", "raw", "json"]
    #: Of json, in Spark's DDL.
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """What is read as one view: topics, files or a table."""

    #: The view.
    name: str
    #: The prefix of its keys in the file, such as ``source[0].``.
    key: str
    type: Literal["topic", "files", "delta"]
    #: Of topics: options of ``format("ottla")`` that name them and everything else; of files: options of Spark's reader.
    options: Mapping[str, str] = field(default_factory=dict)
    watermark: Watermark | None = None
    #: Of topics.
    decode: "Decode | None" = None
    #: Of topics: brokers, where they are others than the pipeline's.
    bootstrap: str | None = None
    #: Of files and tables: a directory, a file, or a pattern for several.
    path: str | None = None
    format: str | None = None
    #: Of files: their columns, in Spark's DDL; None where the files tell.
    schema: str | None = None
    #: Whether new rows come while the pipeline runs.
    stream: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """A query over earlier views; its result is a view of this name."""

    name: str
    sql: str
    watermark: Watermark | None
    #: The key of its SQL, for errors.
    key: str
    #: Which character of the SQL, with its variables filled in, begins which line of the file: (index, line).
    lines: tuple[tuple[int, int], ...] = ()
    #: Columns by which later repetitions of a row are left out.
    deduplicate: tuple[str, ...] = ()
    #: Whether a row is forgotten, and so may come again, when the watermark has passed it.
    within_watermark: bool = False

    def line_at(self, index: int) -> int | None:
        """The line of the file on which the character `index` of the SQL stands."""
        return max((line for start, line in self.lines if start <= index), default=None)


@dataclass(frozen=True, slots=True)
class Functions:
    """A Python module whose public functions are functions of SQL."""

    module: Path
    #: Further modules and packages that it imports.
    files: tuple[Path, ...] = ()


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
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    #: Settings of the Spark session.
    spark: Mapping[str, str]
    functions: Functions | None = None
    rules: tuple[Rule, ...] = ()
    dead_letters: DeadLetters | None = None

    @property
    def master(self) -> str:
        """Where Spark runs."""
        return self.spark.get("spark.master", MASTER)

    @property
    def views(self) -> tuple[str, ...]:
        """The names of all views, in the order in which they are made."""
        return (*(source.name for source in self.sources), *(step.name for step in self.steps))

    def source_of(self, view: str) -> Source | None:
        """The source that is this view; None for a step."""
        return next((source for source in self.sources if source.name == view), None)

    def error(self, key: str, problem: str, *, line: int | None = None) -> PipelineError:
        """An error that points into this pipeline's file: to the line of the key, or to another one."""
        return PipelineError(line_of(self.file, self.text, key) if line is None else f"{self.file}:{line}", key, problem)

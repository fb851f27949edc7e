"""The data model of a pipeline file. The other modules of this folder parse and check it; decode.py, run.py and sinks.py use it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ottla.base.paths import is_object_url
from ottla.lake.storage import Location
from ottla.lake.table.iceberg_partitions import parsed
from ottla.spark.pipeline.config.toml_table import PipelineError, line_of

#: All cores of this machine, and four attempts per task as on clusters: with one attempt a crash of a Python process fails the query.
MASTER = "local[*,4]"
#: The view of a source without a name.
RECORDS = "records"
#: A checkpoint in a topic: `ottla:TOPIC`. Without a name, in this one.
IN_TOPIC, CHECKPOINTS_TOPIC = "ottla:", "__ottla_checkpoints"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DURATION = re.compile(r"\d+\s+(millisecond|second|minute|hour|day)s?")

DecodeFormat = Literal["json", "regex", "csv", "avro", "protobuf", "json-schema", "text", "raw"]
BadRecords = Literal["keep", "drop", "fail", "dead_letter"]
SinkMode = Literal["append", "merge", "replace", "update"]
StorageOptions = tuple[tuple[str, str], ...]


def place_of(path: str | None, storage: StorageOptions) -> Location:
    """A location. A directory of this machine is absolute: Spark's processes may have another working directory."""
    assert path is not None, "checked with the file"
    return Location(path if is_object_url(path) else str(Path(path).absolute()), storage)


@dataclass(frozen=True, slots=True)
class Watermark:
    """The limit for late records: those older than the newest time in `column` minus `delay` are dropped, and windows close."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Field:
    """A decoded column."""

    type: str
    #: Timestamps only: Spark's pattern, such as ``dd/MMM/yyyy:HH:mm:ss Z``, or ``epoch_ms`` or ``epoch_s`` for a number.
    format: str | None = None
    #: For a format without a year: the year, or ``record``: the one that brings the time nearest to the record's timestamp.
    year: str | None = None


@dataclass(frozen=True, slots=True)
class Decode:
    """How a value is decoded to columns. ``text`` and ``raw`` give one column, ``value``."""

    format: DecodeFormat
    fields: Mapping[str, Field] = field(default_factory=dict)
    #: Spark DDL, instead of fields.
    schema: str | None = None
    pattern: str | None = None
    #: Texts that mean null, such as ``-`` in web logs.
    nulls: tuple[str, ...] = ()
    bad_records: BadRecords = "keep"
    #: csv only.
    separator: str = ","
    #: avro and protobuf only: options of ``format("ottla")``, which decodes these formats itself.
    options: Mapping[str, str] = field(default_factory=dict)
    #: How the record's key is decoded to the column ``_key``.
    record_key: "KeyDecode" = field(default_factory=lambda: KeyDecode("text"))
    #: Whether there is a column ``_headers``.
    headers: bool = False
    #: The prefix of its keys in the file, such as ``source[0].decode.``.
    key: str = "decode."


@dataclass(frozen=True, slots=True)
class KeyDecode:
    """How a record's key is decoded to one column."""

    format: Literal["text", "raw", "json"]
    #: json only: Spark's DDL.
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A source, read as one view: topics, files or a table."""

    #: The view's name.
    name: str
    #: The prefix of its keys in the file, such as ``source[0].``.
    key: str
    type: Literal["topic", "files", "delta"]
    #: For topics: options of ``format("ottla")``; for files: options of Spark's reader.
    options: Mapping[str, str] = field(default_factory=dict)
    watermark: Watermark | None = None
    #: For topics.
    decode: "Decode | None" = None
    #: For topics: brokers other than the pipeline's.
    bootstrap: str | None = None
    #: For files and tables: a directory, a file, or a pattern; for tables also the address of an object store.
    path: str | None = None
    #: Options of the object store. Secrets are references.
    storage: StorageOptions = ()
    format: str | None = None
    #: For files: columns in Spark's DDL; None: Spark infers them.
    schema: str | None = None
    #: Whether new rows are read while the pipeline runs.
    stream: bool = True

    @property
    def place(self) -> Location:
        """The location of a table."""
        return place_of(self.path, self.storage)


@dataclass(frozen=True, slots=True)
class Step:
    """A query over earlier views; its result is a view of this name."""

    name: str
    sql: str
    watermark: Watermark | None
    #: The key of its SQL, for errors.
    key: str
    #: For each line of the file: (index of its first character in the SQL after substitution of variables, line number).
    lines: tuple[tuple[int, int], ...] = ()
    #: Columns that identify duplicate rows.
    deduplicate: tuple[str, ...] = ()
    #: Whether a row is forgotten, and may occur again, after the watermark has passed it.
    within_watermark: bool = False
    #: A function of record batches, which gets the rows of the query; its result has `columns`, in Spark's DDL.
    function: str | None = None
    columns: str | None = None

    @property
    def prefix(self) -> str:
        """The prefix of its keys in the file, such as ``step[0].``."""
        return self.key.removesuffix("sql")

    def line_at(self, index: int) -> int | None:
        """The line of the file that contains the character `index` of the SQL."""
        return max((line for start, line in self.lines if start <= index), default=None)


@dataclass(frozen=True, slots=True)
class Functions:
    """A Python module whose public functions become SQL functions."""

    module: Path
    #: Further modules and packages that it imports.
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Compaction:
    """When a sink compacts its table: after a number of batches or files, whichever comes first."""

    every_batches: int | None = None
    #: Files added since the last compaction.
    files: int | None = None


#: What sinks promise about a batch that runs again, the weakest first.
PROMISES = ("none", "at least once", "once per key", "exactly once")


@dataclass(frozen=True, slots=True)
class Sink:
    """A target of a view's rows."""

    type: Literal["delta", "iceberg", "topic", "parquet", "jdbc", "console"]
    view: str
    mode: SinkMode | None
    #: The prefix of its keys in the file, such as ``sink[0].``.
    key: str
    #: For tables and files: the directory, or the address of an object store.
    path: str | None = None
    #: Options of the object store. Secrets are references.
    storage: StorageOptions = ()
    #: For a merge: the columns that identify a row.
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    schema: Literal["fixed", "evolve"] = "fixed"
    compaction: Compaction | None = None
    topic: str | None = None
    #: SQL expressions for a record's key, value (default: the row as JSON), partition, and headers by name.
    key_sql: str | None = None
    value_sql: str | None = None
    partition_sql: str | None = None
    headers_sql: Mapping[str, str] = field(default_factory=dict)
    compression: str = "none"
    #: For a topic: formats of keys and values with schemas (avro, protobuf, json-schema), and the registry's address.
    key_format: str | None = None
    value_format: str | None = None
    registry: str | None = field(default=None, repr=False)
    #: For a topic: exactly_once, at_least_once, or None: exactly once where the brokers serve transactions.
    delivery: str | None = None
    #: For JDBC: the database, its table, the driver's class, and further options of Spark's JDBC writer. The table of a catalog.
    url: str | None = None
    table: str | None = None
    #: For an Iceberg table: a catalog of pyiceberg's configuration, in which `table` is NAMESPACE.TABLE. Its properties are `options`.
    catalog: str | None = None
    #: For an Iceberg table: older snapshots are removed.
    expire_hours: int | None = None
    driver: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    rows: int = 20

    @property
    def place(self) -> Location:
        """The location of a table or of files."""
        return place_of(self.path, self.storage)

    @property
    def target(self) -> str:
        """The topic, directory, address or table, for people."""
        return self.topic or self.path or (f"{self.table} in catalog {self.catalog}" if self.catalog else self.table) or ""

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The columns of `partition_by`."""
        return tuple(parsed(text).column for text in self.partition_by) if self.type == "iceberg" else self.partition_by

    @property
    def promise(self) -> str:
        """One of `PROMISES`: the effect of a batch that runs again. For a topic, if its brokers serve transactions."""
        match self.type:
            case "delta" | "iceberg" | "parquet":
                return "exactly once"
            case "topic":
                return "at least once" if self.delivery == "at_least_once" else "exactly once"
            case "jdbc":
                return "once per key" if self.mode == "merge" else "at least once"
            case "console":
                return "none"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition for each row of a view. A row for which it is false or null is rejected."""

    name: str
    view: str
    check: str
    action: Literal["dead_letter", "drop", "fail"]
    key: str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The target of rejected rows."""

    type: Literal["delta", "iceberg", "topic"]
    path: str | None = None
    topic: str | None = None
    #: Options of the object store. Secrets are references.
    storage: StorageOptions = ()
    #: Of an Iceberg table in a catalog, with the catalog's properties.
    catalog: str | None = None
    table: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def sink(self) -> Sink:
        """A sink for them. Errors name the keys of `[dead_letters]`."""
        return Sink(
            self.type,
            "dead_letters",
            "append",
            "dead_letters.",
            path=self.path,
            topic=self.topic,
            storage=self.storage,
            catalog=self.catalog,
            table=self.table,
            options=self.options,
        )


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline file."""

    file: Path
    text: str
    name: str
    bootstrap: str
    #: The directory of the checkpoint: all of it, or a working copy of one in a topic or at a URL.
    checkpoint: str
    #: A duration between batches; ``continuous``: one batch after the other; ``available-now``: read the existing records and end;
    #: ``once``: the same in one batch.
    trigger: str
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    #: Settings of the Spark session.
    spark: Mapping[str, str]
    functions: Functions | None = None
    rules: tuple[Rule, ...] = ()
    dead_letters: DeadLetters | None = None
    #: Settings of clients of the brokers in ``bootstrap``, as options of ``format("ottla")``: with the prefix ``kafka.``.
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: The topic that keeps the checkpoint.
    checkpoint_topic: str | None = None
    #: The URL of a Hadoop file system that keeps the checkpoint.
    checkpoint_url: str | None = None

    @property
    def all_sinks(self) -> tuple[Sink, ...]:
        """The sinks, and that of dead letters."""
        return self.sinks if self.dead_letters is None else (*self.sinks, self.dead_letters.sink)

    @property
    def checkpoint_place(self) -> str:
        """Where the checkpoint is, as a pipeline file names it."""
        if self.checkpoint_url is not None:
            return self.checkpoint_url
        return self.checkpoint if self.checkpoint_topic is None else f"{IN_TOPIC}{self.checkpoint_topic}"

    @property
    def checkpoint_is_copy(self) -> bool:
        """Whether the checkpoint is in a topic or at a URL, so that other machines may use it too."""
        return self.checkpoint_topic is not None or self.checkpoint_url is not None

    def broker_options(self, source: Source | None = None) -> dict[str, str]:
        """The options of ``format("ottla")`` for the brokers of a source of topics, or None: of the sinks.

        A source with brokers of its own does not get the credentials of others.
        """
        if source is not None and source.bootstrap not in (None, self.bootstrap):
            return {"kafka.bootstrap.servers": source.bootstrap or ""}
        return {"kafka.bootstrap.servers": self.bootstrap, **self.kafka}

    @property
    def master(self) -> str:
        """Spark's master URL."""
        return self.spark.get("spark.master", MASTER)

    @property
    def views(self) -> tuple[str, ...]:
        """The names of all views, in the order of their creation."""
        return (*(source.name for source in self.sources), *(step.name for step in self.steps))

    def source_of(self, view: str) -> Source | None:
        """The source that is this view; None for a step."""
        return next((source for source in self.sources if source.name == view), None)

    def error(self, key: str, problem: str, *, line: int | None = None) -> PipelineError:
        """An error with a line of this pipeline's file: `line`, or that of the key."""
        return PipelineError(line_of(self.file, self.text, key) if line is None else f"{self.file}:{line}", key, problem)

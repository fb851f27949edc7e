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

BadRecords = Literal["keep", "drop", "fail"]
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
class Sink:
    """Where a view goes."""

    type: Literal["delta", "topic", "console"]
    view: str
    mode: SinkMode | None
    key: str
    path: str | None = None
    keys: tuple[str, ...] = ()
    topic: str | None = None
    #: SQL expression for the record's key.
    key_sql: str | None = None
    compression: str = "none"
    rows: int = 20


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole file."""

    file: Path
    text: str
    name: str
    bootstrap: str
    checkpoint: str
    #: A duration, or ``available-now``: read what is there and end.
    trigger: str
    source: Source
    decode: Decode
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    #: Settings of the Spark session.
    spark: Mapping[str, str]

    def error(self, key: str, problem: str) -> PipelineError:
        """An error that points into this pipeline's file."""
        return PipelineError(line_of(self.file, self.text, key), key, problem)

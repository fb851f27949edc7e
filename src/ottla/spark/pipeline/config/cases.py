"""Reads the tests of a pipeline: `[[test]]` in its file, and in the file `NAME.test.toml` beside it.

    [[test]]
    name = "a payment after ten minutes is too late"
    [test.input]                                                         by source: records of topics, rows of files and tables
    orders = [{ value = { id = "1", at = "2026-05-17T10:00:00Z" } }]
    payments = "payments.jsonl"                                          or a file with one of them per line
    [test.expect]                                                        by view, or by topic of a sink: all rows
    settled = [{ id = "1" }]                                             columns that no row names are not compared
    dead_letters = []

    [[test.batch]]                                                       or several batches, one after the other, as a stream
    input.orders = [...]
    expect.settled = [...]                                               rows that this batch writes

A record has `value` (a table is written as JSON), and optionally `key`, `timestamp`, `headers`, `partition`, `topic`. With avro and
protobuf it has `row`, the decoded value, instead.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any

from ottla.base.options import suggestion
from ottla.spark.pipeline.config.model import Pipeline, Source
from ottla.spark.pipeline.config.toml_table import PipelineError, Table

RECORD_KEYS = ("value", "row", "key", "timestamp", "headers", "partition", "topic")
DEAD_LETTERS = "dead_letters"
ENDING = ".test.toml"
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A record of a topic."""

    value: bytes | None
    key: bytes | None
    #: ms since 1970.
    timestamp: int
    headers: tuple[tuple[str, bytes], ...]
    topic: str
    partition: int
    offset: int
    #: The decoded value, for formats that the source decodes.
    row: Row | None = None


@dataclass(frozen=True, slots=True)
class CaseBatch:
    """One of several batches of a test."""

    #: By source of topics.
    records: Mapping[str, Sequence[InputRecord]]
    #: By source of files that streams.
    rows: Mapping[str, Sequence[Row]]
    #: Rows that the batch writes, by view or topic.
    expect: Mapping[str, Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Case:
    """A test of a pipeline."""

    name: str
    #: The file and line of the test.
    where: str
    #: By source of topics.
    records: Mapping[str, Sequence[InputRecord]]
    #: By source of files or tables.
    rows: Mapping[str, Sequence[Row]]
    #: Expected rows, by view or topic; `DEAD_LETTERS` too.
    expect: Mapping[str, Sequence[Row]]
    #: Whether the order of rows counts.
    ordered: bool = False
    #: A part of the message with which the pipeline is expected to fail.
    fails: str | None = None
    #: Without them, all records are one batch, which is not a stream.
    batches: tuple[CaseBatch, ...] = ()

    @property
    def expectations(self) -> list[Mapping[str, Sequence[Row]]]:
        """Of all batches, and at the end."""
        return [*(batch.expect for batch in self.batches), self.expect]


@dataclass(slots=True)
class _Numbering:
    """Numbers the records of a test, across its batches."""

    #: The number of records of each source.
    records: dict[str, int] = field(default_factory=dict)
    #: The next offset of each partition.
    ends: dict[tuple[str, int], int] = field(default_factory=dict)


def read_cases(pipeline: Pipeline, variables: Mapping[str, str]) -> list[Case]:
    """The tests of a pipeline. Raises: PipelineError, also if there are none."""
    cases: list[Case] = []
    beside = pipeline.file.with_name(pipeline.file.name.removesuffix(".toml") + ENDING)
    files = [pipeline.file, *([beside] if beside.is_file() else [])]
    for path in files:
        text = pipeline.text if path == pipeline.file else path.read_text(encoding="utf-8")
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PipelineError(str(path), "", f"is not TOML: {error}") from None
        table = Table(raw, "", path, text, variables)
        if path != pipeline.file:
            table.allow_only(["test"])
        cases += [_case(pipeline, inner) for inner in table.tables("test")]
    if not cases:
        raise PipelineError(str(pipeline.file), "test", f"there are no tests: add [[test]] here or in {beside.name}")
    return cases


def _case(pipeline: Pipeline, table: Table) -> Case:
    name = table.text("name", required="name what the test shows")
    numbering = _Numbering()
    batches = tuple(_batch(pipeline, inner, numbering) for inner in table.tables("batch"))
    records, rows = _input(pipeline, table, numbering, streams=False if batches else None)
    expect = _expect(pipeline, table)
    fails = table.text("fails")
    if not expect and fails is None and not any(batch.expect for batch in batches):
        raise table.missing("expect", "give the expected rows of a view, or with fails a part of the expected error")
    case = Case(name, table.fail("name", "").where, records, rows, expect, table.flag("ordered", False), fails, batches)
    table.finish()
    return case


def _batch(pipeline: Pipeline, table: Table, numbering: _Numbering) -> CaseBatch:
    batch = CaseBatch(*_input(pipeline, table, numbering, streams=True), _expect(pipeline, table))
    table.finish()
    return batch


def _input(
    pipeline: Pipeline, table: Table, numbering: _Numbering, *, streams: bool | None
) -> tuple[dict[str, list[InputRecord]], dict[str, list[Row]]]:
    """Records and rows by source. `streams`: only of sources that are streams, or that are none; None: of all."""
    given = table.table("input", "records or rows by source, such as { orders = [{ value = { id = 1 } }] }")
    records: dict[str, list[InputRecord]] = {}
    rows: dict[str, list[Row]] = {}
    for source in given.values:
        found = pipeline.source_of(source)
        if found is None:
            known = [one.name for one in pipeline.sources]
            raise given.fail(source, f"there is no source {source}{suggestion(source, known)}; the pipeline has {', '.join(known)}")
        if streams is not None and streams != (found.type == "topic" or found.stream):
            problem = "is no stream: give its rows in [test.input]" if streams else "is a stream: give its records in [[test.batch]]"
            raise given.fail(source, f"{source} {problem}")
        items = _items(given, source)
        if found.type == "topic":
            records[source] = _records(given, found, items, numbering)
        else:
            rows[source] = [_plain(item) for item in items]
    return records, rows


def _expect(pipeline: Pipeline, table: Table) -> dict[str, list[Row]]:
    """Expected rows by view or topic."""
    expected = table.table("expect", "rows by view, such as { settled = [{ id = 1 }] }")
    known = [*pipeline.views, *(sink.topic for sink in pipeline.sinks if sink.topic is not None), DEAD_LETTERS]
    for view in expected.values:
        if view not in known:
            raise expected.fail(view, f"there is no view or topic {view}{suggestion(view, known)}; expected one of {', '.join(known)}")
    return {view: [_plain(item) for item in _items(expected, view)] for view in expected.values}


def _items(table: Table, name: str) -> list[Row]:
    """The tables of an array, or of the lines of a file."""
    value = table.values[name]
    if isinstance(value, str):
        path = table.companion_file(name, table.text(name))
        items = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                items += [json.loads(line)] if line.strip() else []
            except ValueError as error:
                raise PipelineError(f"{path}:{number}", "", f"is not JSON: {error}") from None
        value = items
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise table.fail(name, "expected a list of tables, or a file with a JSON object per line")
    return value


def _records(table: Table, source: Source, items: Sequence[Row], numbering: _Numbering) -> list[InputRecord]:
    assert source.decode is not None, "topics have one"
    decoded = source.decode.format in ("avro", "protobuf", "json-schema")
    topics = (source.options.get("subscribe") or source.options.get("subscribePattern", source.name)).split(",")
    ends, first = numbering.ends, numbering.records.get(source.name, 0)
    records = []
    for number, item in enumerate(items):
        for key in item:
            if key not in RECORD_KEYS:
                raise table.fail(
                    source.name, f"record {number}: unknown key {key}{suggestion(key, RECORD_KEYS)}; known are {', '.join(RECORD_KEYS)}"
                )
        if decoded and "value" in item:
            raise table.fail(
                source.name, f"record {number}: give row, the decoded columns: values of {source.decode.format} are not decoded in tests"
            )
        if not decoded and "row" in item:
            raise table.fail(source.name, f"record {number}: row is for avro and protobuf; give value")
        headers = item.get("headers", {})
        if not isinstance(headers, dict):
            raise table.fail(source.name, f"record {number}: expected headers as a table, not {headers!r}")
        topic, partition = str(item.get("topic", topics[0])), item.get("partition", 0)
        if type(partition) is not int or partition < 0:
            raise table.fail(source.name, f"record {number}: expected a partition such as 0, not {partition!r}")
        offset = ends.get((topic, partition), 0)
        ends[topic, partition] = offset + 1
        try:
            timestamp = _ms(item["timestamp"]) if "timestamp" in item else first + number
        except ValueError:
            raise table.fail(
                source.name, f"record {number}: {item['timestamp']!r} is not a time such as 2026-05-17T10:00:00Z, or ms"
            ) from None
        written = tuple((str(name), _bytes(value) or b"") for name, value in headers.items())
        row = _plain(item["row"]) if "row" in item else None
        records.append(InputRecord(_bytes(item.get("value")), _bytes(item.get("key")), timestamp, written, topic, partition, offset, row))
    numbering.records[source.name] = first + len(items)
    return records


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(_plain(value)).encode()


def _ms(value: Any) -> int:
    """A time as ms since 1970. Raises: ValueError."""
    if isinstance(value, int):
        return value
    at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _plain(value: Any) -> Any:
    """TOML's values as JSON's: times become ISO text."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, date | datetime | time) else value

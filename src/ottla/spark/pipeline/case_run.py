"""Runs the tests of a pipeline: decoding, rules and steps by Spark over the records of a test, as one batch, without brokers and sinks.

One batch has all records, so it shows the result after all of them: the last row of each group, and windows that a stream would keep open.
Watermarks drop nothing. Files and tables without rows in the test are read as they are; topics and streams of files are empty then.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from ottla.base.options import suggestion
from ottla.spark.pipeline.config.cases import DEAD_LETTERS, Case, InputRecord, Row
from ottla.spark.pipeline.config.model import Pipeline, Sink, Source
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.decode import CORRUPT, source_schema
from ottla.spark.pipeline.query import dead_letter_views
from ottla.spark.pipeline.rejected_rows import UnfilteredView, literal
from ottla.spark.pipeline.row_differences import Differences, compared
from ottla.spark.pipeline.sinks import TopicTarget
from ottla.spark.pipeline.spark_refusals import failure, spark_errors
from ottla.spark.pipeline.views import build_views, options_of

JSON_OPTIONS = "map('ignoreNullFields', 'false')"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one test."""

    case: Case
    differences: list[Differences] = field(default_factory=list)
    #: The error of a failed run, or of an expected one that did not come.
    error: str | None = None

    @property
    def passed(self) -> bool:
        return self.error is None and not self.differences


def run_case(pipeline: Pipeline, case: Case, session: Any) -> CaseResult:
    """Raises: PipelineError if the pipeline itself or the test is wrong."""
    unfiltered: dict[str, UnfilteredView] = {}
    frames = build_views(pipeline, session, unfiltered, inputs=_inputs(pipeline, case, session))
    try:
        found = [_compared_view(pipeline, case, view, frames) for view in case.expect if view != DEAD_LETTERS]
        if pipeline.dead_letters is not None or DEAD_LETTERS in case.expect:
            found.append(_compared_dead_letters(pipeline, case, unfiltered))
        if case.fails is not None and not case.expect:
            for sink in pipeline.sinks:
                frames[sink.view].write.format("noop").mode("overwrite").save()
    except spark_errors() as error:
        said = failure(pipeline, error)
        if case.fails is not None and case.fails in said:
            return CaseResult(case)
        return CaseResult(case, error=said)
    if case.fails is not None:
        return CaseResult(case, error=f"it did not fail; expected an error with {case.fails!r}")
    return CaseResult(case, [one for one in found if one])


def _inputs(pipeline: Pipeline, case: Case, session: Any) -> dict[str, Any]:
    """A frame for each source that the test replaces."""
    frames = {}
    for source in pipeline.sources:
        if source.type == "topic":
            frames[source.name] = _records(pipeline, source, case.records.get(source.name, ()), session)
        elif source.name in case.rows or source.stream:
            frames[source.name] = _rows(source, case.rows.get(source.name, ()), session)
    return frames


def _records(pipeline: Pipeline, source: Source, records: Sequence[InputRecord], session: Any) -> Any:
    """The records as a frame with the columns of ``format("ottla")``."""
    assert source.decode is not None, "topics have one"
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    columns = {
        "key": pa.array([one.key for one in records], pa.binary()),
        "value": pa.array([one.value for one in records], pa.binary()),
        "topic": pa.array([one.topic for one in records], pa.string()),
        "partition": pa.array([one.partition for one in records], pa.int32()),
        "offset": pa.array([one.offset for one in records], pa.int64()),
        "timestamp": pa.array([datetime.fromtimestamp(one.timestamp / 1000, UTC) for one in records], pa.timestamp("us", "UTC")),
        "headers": pa.array([[{"key": k, "value": v} for k, v in one.headers] or None for one in records], pa.list_(header)),
        "row": pa.array([None if one.row is None else json.dumps(one.row) for one in records], pa.string()),
    }
    frame = session.createDataFrame(pa.table(columns))
    if not source.decode.options:
        return frame.select(*[name.split()[0] for name in source_schema(source.decode).split(", ") if name.split()[0] in columns])
    schema = session.readStream.format("ottla").options(**options_of(pipeline, source)).load().schema["value"].dataType
    decoded = f"from_json(`row`, {literal(schema.simpleString())}, map('mode', 'FAILFAST')) AS value"
    return frame.selectExpr("key", decoded, "topic", "partition", "offset", "timestamp", "headers", f"CAST(NULL AS BINARY) AS {CORRUPT}")


def _rows(source: Source, rows: Sequence[Row], session: Any) -> Any:
    """Rows of files or a table as a frame, with the types of the source's schema if it has one."""
    schema = source.schema or ("value STRING" if source.format == "text" else None)
    if schema is None:
        names = list(dict.fromkeys(name for row in rows for name in row))
        return session.createDataFrame(pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]))
    lines = pa.table({"line": pa.array([json.dumps(row) for row in rows], pa.string())})
    parsed = f"from_json(line, {literal(schema)}, map('mode', 'FAILFAST')) AS row"
    return session.createDataFrame(lines).selectExpr(parsed).selectExpr("row.*")


def _compared_view(pipeline: Pipeline, case: Case, name: str, frames: dict[str, Any]) -> Differences:
    frame = frames[name] if name in frames else _topic_rows(pipeline, name, frames)
    expected = case.expect[name]
    for column in dict.fromkeys(column for row in expected for column in row):
        if column not in frame.columns:
            known = ", ".join(frame.columns)
            raise PipelineError(
                case.where, f"expect.{name}", f"{name} has no column {column}{suggestion(column, frame.columns)}; it has {known}"
            )
    times = [column for column, kind in frame.dtypes if kind.startswith("timestamp")]
    rows = _collected(frame)
    if name not in frames:
        rows = [{**row, "value": _parsed_as(row["value"], [one.get("value") for one in expected])} for row in rows]
    return compared(name, expected, rows, times, ordered=case.ordered)


def _topic_rows(pipeline: Pipeline, topic: str, frames: dict[str, Any]) -> Any:
    """The records that sinks write to a topic: key and value as text, headers as text by name."""
    found = None
    for sink in pipeline.sinks:
        if sink.topic == topic:
            frame = _written(pipeline, sink, frames[sink.view])
            found = frame if found is None else found.unionByName(frame)
    assert found is not None, "checked with the test"
    return found


def _written(pipeline: Pipeline, sink: Sink, frame: Any) -> Any:
    target = TopicTarget(sink, pipeline)
    target.prepare(frame)
    key = f"CAST({target.columns['key']} AS STRING)" if "key" in target.columns else "CAST(NULL AS STRING)"
    headers = target.columns.get("headers")
    pairs = f"map_from_entries(transform({headers}, h -> struct(h.key, CAST(h.value AS STRING))))" if headers else "NULL"
    return frame.selectExpr(
        f"{key} AS key", f"CAST({target.columns['value']} AS STRING) AS value", f"CAST({pairs} AS MAP<STRING, STRING>) AS headers"
    )


def _compared_dead_letters(pipeline: Pipeline, case: Case, unfiltered: dict[str, UnfilteredView]) -> Differences:
    rows: list[Row] = []
    for whole in dead_letter_views(pipeline, unfiltered).values():
        letters = whole.dead_letters(whole.frame).drop("at")
        text = {name: f"CAST(`{name}` AS STRING) AS `{name}`" for name in ("key", "value")}
        rows += _collected(letters.selectExpr(*[text.get(name, f"`{name}`") for name in letters.columns]))
    expected = case.expect.get(DEAD_LETTERS, [])
    for name in ("value", "row"):
        rows = [{**row, name: _parsed_as(row[name], [one.get(name) for one in expected])} for row in rows]
    return compared(DEAD_LETTERS, expected, rows, ["timestamp"], ordered=case.ordered)


def _parsed_as(text: str | None, expected: Sequence[Any]) -> Any:
    """The text as JSON if a test expects a table or a list there."""
    if text is None or not any(isinstance(one, dict | list) for one in expected):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _collected(frame: Any) -> list[Row]:
    lines = frame.selectExpr(f"to_json(struct(*), {JSON_OPTIONS}) AS line").toArrow().column("line").to_pylist()
    return [json.loads(line) for line in lines]

"""Runs the tests of a pipeline: decoding, rules and steps by Spark over the records of a test, without brokers and sinks.

A test without batches has all records at once, and shows the result after all of them: the last row of each group, and windows that a
stream would keep open. Watermarks drop nothing. A test with batches runs as a stream (case_stream.py). Files and tables without rows in the
test are read as they are; topics and streams of files are empty then.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from ottla.base.options import suggestion
from ottla.spark.pipeline.case_stream import StreamedView, form_and_keys, stream_of, write_files
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


#: A frame that a test compares, with the sink that writes it; None: a view or dead letters.
Target = tuple[Any, Sink | None]


def run_case(pipeline: Pipeline, case: Case, session: Any) -> CaseResult:
    """Raises: PipelineError if the pipeline itself or the test is wrong."""
    try:
        if case.batches:
            with TemporaryDirectory(prefix="ottla-test-") as directory:
                found = _run_batches(pipeline, case, session, Path(directory))
        else:
            found = _run_at_once(pipeline, case, session)
    except spark_errors() as error:
        said = failure(pipeline, error)
        if case.fails is not None and case.fails in said:
            return CaseResult(case)
        return CaseResult(case, error=said)
    if case.fails is not None:
        return CaseResult(case, error=f"it did not fail; expected an error with {case.fails!r}")
    return CaseResult(case, [one for one in found if one])


def _run_at_once(pipeline: Pipeline, case: Case, session: Any) -> list[Differences]:
    unfiltered: dict[str, UnfilteredView] = {}
    frames = build_views(pipeline, session, unfiltered, inputs=_inputs(pipeline, case, session, None))
    found = []
    for name, targets in _targets(pipeline, _names(pipeline, case), frames, unfiltered).items():
        expected = case.expect.get(name, [])
        _check_columns(case, name, expected, targets)
        rows = [row for frame, _ in targets for row in _collected(frame)]
        found.append(_difference(pipeline, case, name, expected, rows, targets))
    if case.fails is not None and not case.expect:
        for sink in pipeline.sinks:
            frames[sink.view].write.format("noop").mode("overwrite").save()
    return found


def _run_batches(pipeline: Pipeline, case: Case, session: Any, directory: Path) -> list[Differences]:
    unfiltered: dict[str, UnfilteredView] = {}
    frames = build_views(pipeline, session, unfiltered, inputs=_inputs(pipeline, case, session, directory))
    targets = _targets(pipeline, _names(pipeline, case), frames, unfiltered)
    if case.fails is not None and not targets:
        targets = {sink.view: [(frames[sink.view], None)] for sink in pipeline.sinks}
    for name in targets:
        _check_columns(case, name, [row for expect in case.expectations for row in expect.get(name, ())], targets[name])
    views = {name: [_streamed(pipeline, directory, name, number, *one) for number, one in enumerate(targets[name])] for name in targets}
    found = []
    for number, batch in enumerate(case.batches, 1):
        for source in pipeline.sources:
            table = _table_of(source, batch.records.get(source.name), batch.rows.get(source.name))
            if table is not None:
                write_files(directory / "in" / source.name, number, table)
        for name, streamed in views.items():
            for one in streamed:
                one.run()
            expected = batch.expect.get(name)
            if expected is None and name == DEAD_LETTERS and name not in case.expect:
                expected = []
            if expected is not None:
                rows = [row for one in streamed for row in one.rows]
                found.append(replace(_difference(pipeline, case, name, expected, rows, targets[name]), batch=number))
    for name, expected in case.expect.items():
        rows = [row for one in views[name] for row in one.rows_at_end]
        found.append(_difference(pipeline, case, name, expected, rows, targets[name]))
    return found


def _streamed(pipeline: Pipeline, directory: Path, name: str, number: int, frame: Any, sink: Sink | None) -> StreamedView:
    form, keys = ("append", ()) if name == DEAD_LETTERS else form_and_keys(pipeline, name, frame, sink)
    # A record of a topic has no column of the keys.
    return StreamedView(frame, form, () if sink is not None else keys, directory / "checkpoint" / f"{name}-{number}", _collected)


def _names(pipeline: Pipeline, case: Case) -> list[str]:
    """The views and topics that a test compares, and dead letters if the file has them."""
    names = dict.fromkeys(name for expect in case.expectations for name in expect)
    return [*names, *([DEAD_LETTERS] if pipeline.dead_letters is not None and DEAD_LETTERS not in names else [])]


def _targets(
    pipeline: Pipeline, names: Sequence[str], frames: Mapping[str, Any], unfiltered: Mapping[str, UnfilteredView]
) -> dict[str, list[Target]]:
    """The frames by the name of their view or topic."""
    found: dict[str, list[Target]] = {}
    for name in names:
        if name == DEAD_LETTERS:
            found[name] = [(_letters(whole), None) for whole in dead_letter_views(pipeline, unfiltered).values()]
        elif name in frames:
            found[name] = [(frames[name], None)]
        else:
            found[name] = [(_written(pipeline, sink, frames[sink.view]), sink) for sink in pipeline.sinks if sink.topic == name]
    return found


def _letters(whole: UnfilteredView) -> Any:
    """The dead letters of a view, with key and value as text."""
    letters = whole.dead_letters(whole.frame).drop("at")
    text = {name: f"CAST(`{name}` AS STRING) AS `{name}`" for name in ("key", "value")}
    return letters.selectExpr(*[text.get(name, f"`{name}`") for name in letters.columns])


def _check_columns(case: Case, name: str, expected: Sequence[Row], targets: Sequence[Target]) -> None:
    """Raises: PipelineError for an expected row with a column that the view does not have."""
    for column in dict.fromkeys(column for row in expected for column in row):
        known = targets[0][0].columns if targets and name != DEAD_LETTERS else []
        if known and column not in known:
            problem = f"{name} has no column {column}{suggestion(column, known)}; it has {', '.join(known)}"
            raise PipelineError(case.where, f"expect.{name}", problem)


def _difference(
    pipeline: Pipeline, case: Case, name: str, expected: Sequence[Row], rows: list[Row], targets: Sequence[Target]
) -> Differences:
    if name == DEAD_LETTERS:
        times, parsed = ["timestamp"], ["value", "row"]
    else:
        times = [column for frame, _ in targets[:1] for column, kind in frame.dtypes if kind.startswith("timestamp")]
        parsed = [] if name in pipeline.views else ["value"]
    for column in parsed:
        rows = [{**row, column: _parsed_as(row[column], [one.get(column) for one in expected])} for row in rows]
    return compared(name, expected, rows, times, ordered=case.ordered)


def _inputs(pipeline: Pipeline, case: Case, session: Any, directory: Path | None) -> dict[str, Any]:
    """A frame for each source that the test replaces: of its rows, or a stream of the files in a directory."""
    frames = {}
    for source in pipeline.sources:
        streams = source.type == "topic" or source.stream
        if directory is not None and streams:
            empty = _table_of(source, (), ())
            assert empty is not None, "a source that streams has records or rows"
            frames[source.name] = _as_source(pipeline, source, stream_of(session, directory / "in" / source.name, empty), session)
        elif source.type == "topic" or source.name in case.rows or source.stream:
            frames[source.name] = _static(pipeline, source, case, session)
    return frames


def _static(pipeline: Pipeline, source: Source, case: Case, session: Any) -> Any:
    rows = case.rows.get(source.name, ())
    if source.type != "topic" and _ddl(source) is None:
        names = list(dict.fromkeys(name for row in rows for name in row))
        return session.createDataFrame(pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]))
    table = _table_of(source, case.records.get(source.name, ()), rows)
    return _as_source(pipeline, source, session.createDataFrame(table), session)


def _ddl(source: Source) -> str | None:
    return source.schema or ("value STRING" if source.format == "text" else None)


def _table_of(source: Source, records: Sequence[InputRecord] | None, rows: Sequence[Row] | None) -> pa.Table | None:
    """The records of a topic, or the rows of files as JSON; None without any."""
    if source.type == "topic":
        return None if records is None else _record_table(records)
    return None if rows is None else pa.table({"line": pa.array([json.dumps(row) for row in rows], pa.string())})


def _record_table(records: Sequence[InputRecord]) -> pa.Table:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.table(
        {
            "key": pa.array([one.key for one in records], pa.binary()),
            "value": pa.array([one.value for one in records], pa.binary()),
            "topic": pa.array([one.topic for one in records], pa.string()),
            "partition": pa.array([one.partition for one in records], pa.int32()),
            "offset": pa.array([one.offset for one in records], pa.int64()),
            "timestamp": pa.array([datetime.fromtimestamp(one.timestamp / 1000, UTC) for one in records], pa.timestamp("us", "UTC")),
            "headers": pa.array([[{"key": k, "value": v} for k, v in one.headers] or None for one in records], pa.list_(header)),
            "row": pa.array([None if one.row is None else json.dumps(one.row) for one in records], pa.string()),
        }
    )


def _as_source(pipeline: Pipeline, source: Source, frame: Any, session: Any) -> Any:
    """The frame of `_table_of` with the columns of ``format("ottla")``, or with the types of the schema of files."""
    if source.type != "topic":
        ddl = _ddl(source)
        assert ddl is not None, "checked with the file, or by the caller"
        return frame.selectExpr(f"from_json(line, {literal(ddl)}, map('mode', 'FAILFAST')) AS row").selectExpr("row.*")
    assert source.decode is not None, "topics have one"
    if not source.decode.options:
        return frame.select(*[name.split()[0] for name in source_schema(source.decode).split(", ") if name.split()[0] in frame.columns])
    schema = session.readStream.format("ottla").options(**options_of(pipeline, source)).load().schema["value"].dataType
    decoded = f"from_json(`row`, {literal(schema.simpleString())}, map('mode', 'FAILFAST')) AS value"
    return frame.selectExpr("key", decoded, "topic", "partition", "offset", "timestamp", "headers", f"CAST(NULL AS BINARY) AS {CORRUPT}")


def _written(pipeline: Pipeline, sink: Sink, frame: Any) -> Any:
    target = TopicTarget(sink, pipeline)
    target.prepare(frame)
    key = f"CAST({target.columns['key']} AS STRING)" if "key" in target.columns else "CAST(NULL AS STRING)"
    headers = target.columns.get("headers")
    pairs = f"map_from_entries(transform({headers}, h -> struct(h.key, CAST(h.value AS STRING))))" if headers else "NULL"
    return frame.selectExpr(
        f"{key} AS key", f"CAST({target.columns['value']} AS STRING) AS value", f"CAST({pairs} AS MAP<STRING, STRING>) AS headers"
    )


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

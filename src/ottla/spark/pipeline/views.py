"""Builds a pipeline's views as Spark DataFrames: the decoded sources, then the result of each step. Reads no records.

topic   a stream of decoded records
files   a stream of new files, or the existing files, listed once
delta   a table, read again by every batch
step    SQL over earlier views, then its function of record batches, its watermark, and its deduplication
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ottla.spark.pipeline import functions, spark_refusals
from ottla.spark.pipeline.config.decode import in_file_terms
from ottla.spark.pipeline.config.model import Pipeline, Source, Step, Watermark
from ottla.spark.pipeline.decode import decoded, source_schema
from ottla.spark.pipeline.rejected_rows import UnfilteredView, reject_rows
from ottla.spark.pipeline.reset import with_reset_start
from ottla.spark.pipeline.spark_refusals import reason, spark_errors, without_code
from ottla.spark.pipeline.table_source import TableSource


def build_views(
    pipeline: Pipeline,
    session: Any,
    unfiltered: dict[str, UnfilteredView] | None = None,
    *,
    static: bool = False,
    inputs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Every view by name, in the order of the file. Each is also a temporary view of the session.

    `unfiltered` receives the views with rejected rows. `inputs` replaces sources by frames, those of topics with the columns of
    ``format("ottla")``. `static` replaces streams by empty frames with the same columns, since Spark shows
    physical plans of static frames only.

    Raises: PipelineError if Spark rejects a source or a step.
    """

    def without_rejected(view: str, frame: Any) -> Any:
        frame, before = reject_rows(pipeline, view, frame)
        if before is not None and unfiltered is not None:
            unfiltered[view] = before
        return frame

    functions.register(pipeline, session)
    made: dict[str, Any] = {}
    for source in pipeline.sources:
        given = (inputs or {}).get(source.name)
        frame = _loaded(pipeline, source, session, static=static) if given is None else _given(pipeline, source, given)
        frame = without_rejected(source.name, frame)
        if source.watermark is not None:
            frame = _watermarked(pipeline, frame, source.watermark, f"{source.key}watermark.column")
        frame.createOrReplaceTempView(source.name)
        made[source.name] = frame
    for step in pipeline.steps:
        made[step.name] = _step(pipeline, step, session, made, without_rejected)
        made[step.name].createOrReplaceTempView(step.name)
    return made


def options_of(pipeline: Pipeline, source: Source) -> dict[str, str]:
    """The options of ``format("ottla")`` for a source of topics."""
    options = {**pipeline.broker_options(source), **source.options}
    if source.decode is not None:
        options |= source.decode.options
        if source.decode.headers:
            options["includeHeaders"] = "true"
    return with_reset_start(pipeline, source, options)


def _loaded(pipeline: Pipeline, source: Source, session: Any, *, static: bool) -> Any:
    try:
        match source.type:
            case "topic":
                assert source.decode is not None, "topics have one"
                reader = session.readStream.format("ottla").options(**options_of(pipeline, source))
                # If the source itself decodes values, it defines the schema.
                frame = (reader if source.decode.options else reader.schema(source_schema(source.decode))).load()
                return decoded(_empty(session, frame.schema) if static else frame, pipeline, source.decode)
            case "files" if source.stream and static:
                return _empty(session, source.schema or "value STRING")
            case "files":
                reader = (session.readStream if source.stream else session.read).format(source.format).options(**source.options)
                return (reader.schema(source.schema) if source.schema else reader).load(_absolute(source))
            case "delta":
                session.dataSource.register(TableSource)
                return session.read.format(TableSource.name()).option("place", msgspec.json.encode(source.place).decode()).load()
    except spark_errors() as error:
        raise _refused_source(pipeline, source, error) from None


def _given(pipeline: Pipeline, source: Source, frame: Any) -> Any:
    return frame if source.decode is None else decoded(frame, pipeline, source.decode)


def _absolute(source: Source) -> str:
    """The absolute path: Spark's processes may have another working directory."""
    assert source.path is not None, "checked with the file"
    return str(Path(source.path).absolute())


def _empty(session: Any, schema: Any) -> Any:
    # Not an empty list: Spark would optimize the plan away.
    return session.createDataFrame(session.sparkContext.emptyRDD(), schema)


def _refused_source(pipeline: Pipeline, source: Source, error: Exception) -> Exception:
    problem = without_code(reason(error))
    if source.type == "topic":
        assert source.decode is not None, "topics have one"
        return pipeline.error(*in_file_terms(problem, source.decode))
    condition = str(getattr(error, "getCondition", lambda: "")())
    if condition == "PATH_NOT_FOUND":
        problem = f"no files at {source.path}"
    if "SCHEMA" in condition or "PARSE" in condition:
        return pipeline.error(f"{source.key}schema", problem)
    return pipeline.error(f"{source.key}path", problem)


def _step(pipeline: Pipeline, step: Step, session: Any, made: dict[str, Any], without_rejected: Callable[[str, Any], Any]) -> Any:
    prefix = step.prefix
    try:
        frame = session.sql(step.sql)
    except spark_errors() as error:
        raise spark_refusals.refused_sql(pipeline, step, error, {name: frame.columns for name, frame in made.items()}) from None
    if step.function is not None:
        frame = frame.mapInArrow(*functions.batch_function(pipeline, step))
    frame = without_rejected(step.name, frame)
    if step.watermark is not None:
        frame = _watermarked(pipeline, frame, step.watermark, f"{prefix}watermark.column")
    if step.deduplicate:
        for name in step.deduplicate:
            if name not in frame.columns:
                raise pipeline.error(f"{prefix}deduplicate", spark_refusals.no_column(name, {step.name: frame.columns}))
        columns = list(step.deduplicate)
        # Spark rejects the first variant without a stream, where both mean the same.
        within = step.within_watermark and frame.isStreaming
        frame = frame.dropDuplicatesWithinWatermark(columns) if within else frame.dropDuplicates(columns)
    return frame


def _watermarked(pipeline: Pipeline, frame: Any, watermark: Watermark, key: str) -> Any:
    kinds = dict(frame.dtypes)
    if not kinds.get(watermark.column, "").startswith("timestamp"):
        problem = f"is {kinds[watermark.column]}" if watermark.column in kinds else f"is not among {', '.join(kinds)}"
        raise pipeline.error(key, f"column {watermark.column} {problem}; a watermark needs a column of type timestamp")
    return frame.withWatermark(watermark.column, watermark.delay)

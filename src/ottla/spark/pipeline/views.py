"""The views of a pipeline as Spark's frames: its sources, decoded, then the result of each step. Nothing is read from a topic.

topic   a stream of decoded records
files   a stream of new files, or the files that are there now, listed once
delta   a table, read anew by every batch
step    SQL over earlier views, then its watermark, then its deduplication
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ottla.spark.pipeline import functions, spark_refusals
from ottla.spark.pipeline.config.decode import in_words_of_the_file
from ottla.spark.pipeline.config.model import Pipeline, Source, Step, Watermark
from ottla.spark.pipeline.decode import decoded, source_schema
from ottla.spark.pipeline.rejected_rows import Judged, judge
from ottla.spark.pipeline.reset import started_at
from ottla.spark.pipeline.spark_refusals import reason, spark_errors, without_code
from ottla.spark.pipeline.table_source import TableSource


def views(pipeline: Pipeline, session: Any, judged: dict[str, Judged] | None = None, *, standing: bool = False) -> dict[str, Any]:
    """Every view by name, in the order of the file; each is also a temporary view of the session. `judged` is filled with those that bad
    rows leave, as they were before. `standing` puts empty frames of the same columns in the place of streams: Spark shows how it would
    compute these, and not how it would compute a stream.

    Raises: PipelineError when Spark refuses a source or a step.
    """

    def kept(view: str, frame: Any) -> Any:
        frame, whole = judge(pipeline, view, frame)
        if whole is not None and judged is not None:
            judged[view] = whole
        return frame

    functions.register(pipeline, session)
    made: dict[str, Any] = {}
    for source in pipeline.sources:
        frame = kept(source.name, _loaded(pipeline, source, session, standing=standing))
        if source.watermark is not None:
            frame = _watermarked(pipeline, frame, source.watermark, f"{source.key}watermark.column")
        frame.createOrReplaceTempView(source.name)
        made[source.name] = frame
    for step in pipeline.steps:
        made[step.name] = _step(pipeline, step, session, made, kept)
        made[step.name].createOrReplaceTempView(step.name)
    return made


def options_of(pipeline: Pipeline, source: Source) -> dict[str, str]:
    """Options of ``format("ottla")`` for a source of topics."""
    options = {"kafka.bootstrap.servers": source.bootstrap or pipeline.bootstrap, **source.options}
    if source.decode is not None:
        options |= source.decode.options
        if source.decode.headers:
            options["includeHeaders"] = "true"
    return started_at(pipeline, source, options)


def _loaded(pipeline: Pipeline, source: Source, session: Any, *, standing: bool) -> Any:
    try:
        match source.type:
            case "topic":
                assert source.decode is not None, "topics have one"
                reader = session.readStream.format("ottla").options(**options_of(pipeline, source))
                # What the source decodes has the columns of its own schema.
                frame = (reader if source.decode.options else reader.schema(source_schema(source.decode))).load()
                return decoded(_empty(session, frame.schema) if standing else frame, pipeline, source.decode)
            case "files" if source.stream and standing:
                return _empty(session, source.schema or "value STRING")
            case "files":
                reader = (session.readStream if source.stream else session.read).format(source.format).options(**source.options)
                return (reader.schema(source.schema) if source.schema else reader).load(_absolute(source))
            case "delta":
                session.dataSource.register(TableSource)
                return session.read.format(TableSource.name()).option("path", _absolute(source)).load()
    except spark_errors() as error:
        raise _refused_source(pipeline, source, error) from None


def _absolute(source: Source) -> str:
    """Its path as seen from here: Spark's processes may be somewhere else."""
    assert source.path is not None, "checked with the file"
    return str(Path(source.path).absolute())


def _empty(session: Any, schema: Any) -> Any:
    # Not a list: of what is known to be empty, Spark would plan nothing.
    return session.createDataFrame(session.sparkContext.emptyRDD(), schema)


def _refused_source(pipeline: Pipeline, source: Source, error: Exception) -> Exception:
    said = without_code(reason(error))
    if source.type == "topic":
        assert source.decode is not None, "topics have one"
        return pipeline.error(*in_words_of_the_file(said, source.decode))
    condition = str(getattr(error, "getCondition", lambda: "")())
    if condition == "PATH_NOT_FOUND":
        said = f"there are no files at {source.path}"
    if "SCHEMA" in condition or "PARSE" in condition:
        return pipeline.error(f"{source.key}schema", said)
    return pipeline.error(f"{source.key}path", said)


def _step(pipeline: Pipeline, step: Step, session: Any, made: dict[str, Any], kept: Callable[[str, Any], Any]) -> Any:
    prefix = step.key.removesuffix("sql")
    try:
        frame = session.sql(step.sql)
    except spark_errors() as error:
        raise spark_refusals.refused_sql(pipeline, step, error, {name: frame.columns for name, frame in made.items()}) from None
    frame = kept(step.name, frame)
    if step.watermark is not None:
        frame = _watermarked(pipeline, frame, step.watermark, f"{prefix}watermark.column")
    if step.deduplicate:
        for name in step.deduplicate:
            if name not in frame.columns:
                raise pipeline.error(f"{prefix}deduplicate", spark_refusals.no_column(name, {step.name: frame.columns}))
        columns = list(step.deduplicate)
        # Spark refuses the first of both where nothing streams, though it means the same there.
        within = step.within_watermark and frame.isStreaming
        frame = frame.dropDuplicatesWithinWatermark(columns) if within else frame.dropDuplicates(columns)
    return frame


def _watermarked(pipeline: Pipeline, frame: Any, watermark: Watermark, key: str) -> Any:
    kinds = dict(frame.dtypes)
    if not kinds.get(watermark.column, "").startswith("timestamp"):
        said = f"is {kinds[watermark.column]}" if watermark.column in kinds else f"is not among {', '.join(kinds)}"
        raise pipeline.error(key, f"column {watermark.column} {said}; a watermark needs a column of type timestamp")
    return frame.withWatermark(watermark.column, watermark.delay)

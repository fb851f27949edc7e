"""The views of a pipeline as Spark's frames: the records of its source, decoded, then the result of each step. Nothing is read."""

from typing import Any

from ottla.spark.pipeline.decode import SOURCE_SCHEMA, decoded
from ottla.spark.pipeline.model import RECORDS, Pipeline, Watermark
from ottla.spark.pipeline.refusals import reason, spark_errors
from ottla.spark.pipeline.rejects import Judged, judge


def views(pipeline: Pipeline, session: Any, judged: dict[str, Judged] | None = None) -> dict[str, Any]:
    """Every view by name, in the order of the file; each is also a temporary view of the session. `judged` is filled with those that bad
    rows leave, as they were before.

    Raises: PipelineError when Spark refuses a step.
    """

    def kept(view: str, frame: Any) -> Any:
        frame, whole = judge(pipeline, view, frame)
        if whole is not None and judged is not None:
            judged[view] = whole
        return frame

    reader = session.readStream.format("ottla").schema(SOURCE_SCHEMA).options(**options_of(pipeline))
    try:
        frame = decoded(reader.load(), pipeline)
    except spark_errors() as error:
        raise pipeline.error("source", reason(error)) from None
    frame = kept(RECORDS, frame)
    if pipeline.source.watermark is not None:
        frame = _watermarked(pipeline, frame, pipeline.source.watermark, "source.watermark.column")
    frame.createOrReplaceTempView(RECORDS)
    made = {RECORDS: frame}
    for step in pipeline.steps:
        try:
            frame = session.sql(step.sql)
        except spark_errors() as error:
            raise pipeline.error(step.key, reason(error)) from None
        frame = kept(step.name, frame)
        if step.watermark is not None:
            frame = _watermarked(pipeline, frame, step.watermark, step.key.removesuffix("sql") + "watermark.column")
        frame.createOrReplaceTempView(step.name)
        made[step.name] = frame
    return made


def options_of(pipeline: Pipeline) -> dict[str, str]:
    """Options of ``format("ottla")`` for the pipeline's source."""
    return {"kafka.bootstrap.servers": pipeline.bootstrap, **pipeline.source.options}


def _watermarked(pipeline: Pipeline, frame: Any, watermark: Watermark, key: str) -> Any:
    kinds = dict(frame.dtypes)
    if not kinds.get(watermark.column, "").startswith("timestamp"):
        said = f"is {kinds[watermark.column]}" if watermark.column in kinds else f"is not among {', '.join(kinds)}"
        raise pipeline.error(key, f"column {watermark.column} {said}; a watermark needs a column of type timestamp")
    return frame.withWatermark(watermark.column, watermark.delay)

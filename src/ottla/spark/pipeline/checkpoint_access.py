"""Opens the checkpoint of a pipeline, in a directory, in a topic or at a URL: to hold it, or to read it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ottla.spark.pipeline import checkpoint_topic
from ottla.spark.pipeline.checkpoint import HeldCheckpoint
from ottla.spark.pipeline.config.model import Pipeline


@contextmanager
def holding(
    pipeline: Pipeline, session: Any, *, tell: Callable[[str], None] = lambda _: None, wait: Callable[[float], bool | None] | None = None
) -> Iterator[HeldCheckpoint]:
    """Takes the checkpoint over for the block. The caller has the lock of the directory. `session`: of Spark, needed for a URL.

    `tell` reports that the start waits for another process; `wait` sleeps, and returns True to give up.

    Raises: InUse, CheckpointUnavailable, OSError.
    """
    if pipeline.checkpoint_url is not None:
        from ottla.spark.pipeline.checkpoint_url import holding_url

        with holding_url(pipeline, session, tell=tell, **({} if wait is None else {"wait": wait})) as held:
            yield held
        return
    with checkpoint_topic.holding(pipeline) as topic:
        yield topic or HeldCheckpoint(pipeline.checkpoint)


@contextmanager
def to_read(pipeline: Pipeline, session: Any = None) -> Iterator[Pipeline]:
    """The pipeline with a directory from which its checkpoint can be read, for the block. One at a URL may need a session, or starts one.

    Raises: CheckpointUnavailable, NoJava, PipelineError.
    """
    if pipeline.checkpoint_url is None:
        reading = checkpoint_topic.to_read(pipeline)
    else:
        from ottla.spark.pipeline.checkpoint_url import url_to_read

        reading = url_to_read(pipeline, session)
    with reading as local:
        yield local


@contextmanager
def session_to_change(pipeline: Pipeline) -> Iterator[Any]:
    """A small session that changes a checkpoint at a URL; None for others. Raises: NoJava, PipelineError."""
    if pipeline.checkpoint_url is None:
        yield None
        return
    from ottla.spark.pipeline.session import planning_session

    with planning_session(pipeline, files=True) as session:
        yield session

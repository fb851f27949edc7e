"""The consumer groups of a pipeline's sources (`kafka.group.id`) at its end.

While it runs, each source tells its group how far it is when the next batch is asked for (`spark.progress_group`). Of a pipeline that is
stopped the last batch has no next one, so it is told here: of each partition the lowest offset that a query has done, since a record that
one of them has still to read is not done with.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.views import options_of
from ottla.spark.source.offset_ranges import OffsetsError, from_json
from ottla.spark.source.options import SourceOptions, Subscription
from ottla.spark.source.progress_group import ProgressGroup

Offsets = dict[TopicPartition, int]


def done_by(reports: Iterable[Mapping[str, Any] | None]) -> Offsets:
    """The lowest ends of what Spark reports of queries' last batches."""
    done: Offsets = {}
    for source in (source for report in reports if report is not None for source in report["sources"]):
        end = source["endOffset"]
        try:
            offsets = from_json(json.loads(end) if isinstance(end, str) else end or {})
        except (OffsetsError, ValueError):
            continue  # Files have no offsets of partitions.
        done |= {tp: min(offset, done.get(tp, offset)) for tp, offset in offsets.items()}
    return done


def reads(subscription: Subscription, tp: TopicPartition) -> bool:
    match subscription.kind:
        case "assign":
            return tp in subscription.partitions
        case "subscribe":
            return tp.topic in subscription.topics
        case _:
            return re.fullmatch(subscription.pattern, tp.topic) is not None


def publish(pipeline: Pipeline, reports: Iterable[Mapping[str, Any] | None]) -> None:
    """Tell each group. A group that cannot be told is a warning."""
    done = done_by(reports)
    for source in pipeline.sources:
        if source.type != "topic":
            continue
        options = SourceOptions.of(options_of(pipeline, source), streaming=True)
        offsets = {tp: offset for tp, offset in done.items() if reads(options.subscription, tp)}
        if options.commits and options.group and offsets:
            from ottla.spark.source.log_client import open_log_client

            ProgressGroup(options.group).publish(open_log_client(options.bootstrap, options.client), offsets)

"""Checks before a start: the state that Spark keeps for each streaming view, and whether Spark supports the stream.

State of                     is removed
an aggregate                 after the watermark passes its window; never, if it does not group by a time with a watermark
a join of two streams        after the watermark, if the condition limits the distance of both times and both have one; else never
a deduplication              after the watermark, if by a time with one, or with `within = "watermark"`; else never

Spark's errors about streams have no position in the SQL. So each step is checked here: the first rejected step is the one to change.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.spark_refusals import reason, spark_errors, without_code

WATERMARKED = re.compile(r"-T\d+ms")
WATERMARKED_NAME = re.compile(r"(\w+#\d+)-T\d+ms")
EXPRESSION_ID = re.compile(r"#\d+L?(-T\d+ms)?")
#: Text in Spark's error -> what to do.
ADVICE = {
    "aggregations without watermark": (
        "the result of this grouping keeps changing, so it cannot be appended: give its source a watermark and group by window(...) "
        'of that column, or set mode = "merge" or "update" of the sink'
    ),
    "session window streaming aggregations": (
        "the bounds of a session change until it ends, so it can only be written at its end: give its source a watermark and set "
        'mode = "append" of the sink'
    ),
    "no streaming aggregations": 'mode = "replace" writes the whole result again, which only an aggregate has; use mode = "append"',
    "Sorting is not supported": (
        'a stream has no end and so no order: leave ORDER BY out, or sort an aggregate for a sink with mode = "replace"'
    ),
    "dropDuplicatesWithinWatermark": (
        'within = "watermark" needs one: give this step or its source watermark = { column = ..., delay = ... }'
    ),
    "Distinct aggregations": (
        "distinct values of a stream cannot be counted exactly: use approx_count_distinct(...), or group by them in a step before"
    ),
    "Window function is not supported": (
        "OVER (...) needs the whole result: use GROUP BY window(...), or max_by(...) for the newest row of a group"
    ),
    "possible 'correctness' issue": (
        "two successive steps keep state, and the second would lose late rows of the first: write the first to a topic or a table and read "
        'that in another pipeline, or set mode = "append" of the sink'
    ),
    "Union between streaming and batch": ("UNION cannot combine a stream and static data: read the files with stream = true, or join"),
}
#: Advice about unbounded state. Aggregates are left out: many count by key on purpose.
UNBOUNDED_STATE = {
    "deduplicate": (
        '{view} keeps {by} of every row forever: to remove old state, set within = "watermark", or add a column with a watermark to '
        "deduplicate = [...]"
    ),
    "join": (
        "{view} keeps every row of both joined streams forever: give both a watermark, and limit the distance of their times in the join"
    ),
}
#: Other operators that keep state -> their kind.
OTHER_STATE = {"GlobalLimit": "limit"}
STATE_IN_TOPIC = (
    "{view} keeps state ({kinds}), which is not in a topic: use a directory or a URL that all machines reach, such as "
    'checkpoint = "/mnt/shared/checkpoint" or "s3a://bucket/checkpoint", or write the rows before to a topic or a table and aggregate them '
    "in another pipeline"
)
OUTER_JOIN = (
    "an outer join of two streams must know when a row has no match: give both sources a watermark, and limit the distance of their times "
    "in the join, such as ON a.id = b.id AND b.at BETWEEN a.at AND a.at + INTERVAL 10 MINUTES"
)


@dataclass(frozen=True, slots=True)
class OperatorState:
    """State of one operator of a view."""

    #: aggregate, join or deduplicate.
    kind: str
    #: The grouping, the join's condition, or the columns.
    by: str
    #: Whether a watermark removes old state; otherwise it grows with every new key.
    bounded: bool


def operator_states(frame: Any) -> list[OperatorState]:
    """The state of the view itself, without the views it reads."""
    return [kept for node in plan_nodes(frame) if (kept := _operator_state(node)) is not None]


def unbounded_state_warnings(frames: Mapping[str, Any]) -> list[str]:
    """Advice about unbounded state in these views, as sentences."""
    kept = [(name, one) for name, frame in frames.items() if frame.isStreaming for one in operator_states(frame)]
    return [UNBOUNDED_STATE[one.kind].format(view=name, by=one.by) for name, one in kept if not one.bounded and one.kind in UNBOUNDED_STATE]


def keeps_state(frame: Any) -> bool:
    """Whether the view or one that it reads keeps state."""
    return bool(_kinds_of_state(frame))


def require_no_state(pipeline: Pipeline, frames: Mapping[str, Any]) -> None:
    """Raises: PipelineError if the checkpoint is in a topic and a query with state reads one of these views."""
    if pipeline.checkpoint_topic is not None:
        for view, frame in frames.items():
            if kinds := _kinds_of_state(frame):
                raise pipeline.error("checkpoint", STATE_IN_TOPIC.format(view=view, kinds=" and ".join(kinds)))


def _kinds_of_state(frame: Any) -> list[str]:
    found = []
    for node in plan_nodes(frame, views=True):
        if (kept := _operator_state(node)) is not None:
            found.append(kept.kind)
        elif node.isStreaming() and node.nodeName() in OTHER_STATE:
            found.append(OTHER_STATE[node.nodeName()])
    return list(dict.fromkeys(found))


def reads(frame: Any) -> list[str]:
    """The views that a view reads directly."""
    return list(dict.fromkeys(node.desc().identifier().table() for node in plan_nodes(frame) if node.nodeName() == "View"))


def lineage(view: str, frames: Mapping[str, Any]) -> list[str]:
    """A view and all views that it reads, directly or not, in the order of the file."""
    pending, found = [view], set()
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += [read for read in reads(frames[name]) if read in frames]
    return [name for name in frames if name in found]


def check(pipeline: Pipeline, session: Any, frames: Mapping[str, Any], view: str, form: str, key: str) -> None:
    """Checks that Spark supports the view as a stream in the form `append`, `update` or `complete`, for the sink at `key`.

    Raises: PipelineError at the step to change, or at the sink.
    """
    if not frames[view].isStreaming:
        raise pipeline.error(
            f"{key}from",
            f"the view {view} reads only static tables and files, so it is not a stream; "
            "read at least one topic in it, or files with stream = true",
        )
    refused = _refusal(session, frames[view], form)
    if refused is None:
        return
    if "no streaming aggregations" in str(refused):
        raise pipeline.error(f"{key}mode", _advice(refused))
    for name in lineage(view, frames):
        step = next((step for step in pipeline.steps if step.name == name), None)
        if step is not None and (one := _refusal(session, frames[name], form)) is not None and _sentence(one) == _sentence(refused):
            where = "deduplicate" if "Duplicates" in str(one) else "sql"
            raise pipeline.error(step.prefix + where, f"{_advice(one)} (the sink {key.rstrip('.')} wants {form})")
    raise pipeline.error(f"{key}mode", _advice(refused))


def _refusal(session: Any, frame: Any, form: str) -> Exception | None:
    checker = session._jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = session._jvm.org.apache.spark.sql.streaming.OutputMode
    mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[form]()
    try:
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)
    except spark_errors() as error:
        return error
    return None


def _advice(error: Exception) -> str:
    text = str(error)
    for marker, advice in ADVICE.items():
        if marker in text:
            return advice
    if re.search(r"(Left|Right|Full)\w* join", text):
        return OUTER_JOIN
    return _sentence(error)


def _sentence(error: Exception) -> str:
    return without_code(reason(error))


def plan_nodes(frame: Any, *, views: bool = False) -> Iterator[Any]:
    """The operators of a view; with `views` also those of the views that it reads."""
    pending = [frame._jdf.queryExecution().analyzed()]
    while pending:
        node = pending.pop()
        yield node
        if views or node.nodeName() != "View":
            children = node.children()
            pending += [children.apply(index) for index in reversed(range(children.size()))]


def _operator_state(node: Any) -> OperatorState | None:
    if not node.isStreaming():
        return None
    match node.nodeName():
        case "Aggregate":
            by = node.groupingExpressions().mkString(", ")
            return OperatorState("aggregate", _plain(by), not by or bool(WATERMARKED.search(by)))
        case "Distinct":
            return OperatorState("deduplicate", "all columns", False)
        case "Deduplicate" | "DeduplicateWithinWatermark":
            by = node.keys().mkString(", ")
            return OperatorState("deduplicate", _plain(by), node.nodeName() != "Deduplicate" or bool(WATERMARKED.search(by)))
        case "Join" if node.left().isStreaming() and node.right().isStreaming():
            by = node.condition().get().sql() if node.condition().isDefined() else "nothing"
            raw = node.condition().get().toString() if node.condition().isDefined() else ""
            return OperatorState("join", _plain(by), len(set(WATERMARKED_NAME.findall(raw))) > 1)
    return None


def _plain(expressions: str) -> str:
    """Without Spark's expression ids."""
    return EXPRESSION_ID.sub("", expressions).replace("`", "")

"""What Spark keeps in state for each view of a stream, and whether it takes the stream at all; told before anything runs.

State of                     is let go of
an aggregate                 when the watermark has passed its window; never, if it does not group by a time with a watermark
a join of two streams        when the condition says how far apart the times of both sides may be, and both have a watermark; else never
a deduplication              by a time with a watermark, or `within = "watermark"`: when that has passed; else never

Spark's refusals of streams have no place in the SQL. They are found step by step here: the first step that is refused is the one to change.
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
#: In Spark's refusal -> what to do.
ADVICE = {
    "aggregations without watermark": (
        "the result of this grouping never stops changing, so it cannot be appended: give its source a watermark and group by window(...) "
        'of that column, or let the sink take changing rows with mode = "merge" or "update"'
    ),
    "session window streaming aggregations": (
        "a session begins earlier and ends later as it grows, so it is written once, when it is over: give its source a watermark and let "
        'the sink take rows that do not change any more, mode = "append"'
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
        "two steps in a row keep state here, and what the first gives late the second would lose: write the first to a topic or a table "
        'and read that in a pipeline of its own, or let the sink take rows that do not change any more, mode = "append"'
    ),
    "Union between streaming and batch": (
        "a stream and what does not change cannot be one view by UNION: read the files with stream = true, or join"
    ),
}
#: What to do about state that no watermark lets go of. An aggregate is left out: to go on counting by key is what many are for.
FOR_EVER = {
    "deduplicate": (
        '{view} remembers {by} of every row for ever: deduplicate = [...] with within = "watermark", or with a column that has a watermark '
        "among its columns, lets go of it"
    ),
    "join": (
        "{view} keeps every row of both streams that it joins for ever: give both a watermark, and join on how far apart their times may be"
    ),
}
OUTER_JOIN = (
    "an outer join of two streams must know when a row stays alone: give both sources a watermark, and join on how far apart their times "
    "may be, such as ON a.id = b.id AND b.at BETWEEN a.at AND a.at + INTERVAL 10 MINUTES"
)


@dataclass(frozen=True, slots=True)
class Kept:
    """State that a view keeps."""

    #: aggregate, join or deduplicate.
    kind: str
    #: By what: the grouping, the join's condition, the columns.
    by: str
    #: Whether a watermark lets go of it; otherwise it grows as long as new keys come.
    bounded: bool


def state_of(frame: Any) -> list[Kept]:
    """What the view itself keeps, without the views it reads."""
    return [kept for node in _nodes(frame) if (kept := _kept(node)) is not None]


def kept_for_ever(frames: Mapping[str, Any]) -> list[str]:
    """What grows in these views as long as they run though a watermark could end it, as sentences that say how."""
    kept = [(name, one) for name, frame in frames.items() if frame.isStreaming for one in state_of(frame)]
    return [FOR_EVER[one.kind].format(view=name, by=one.by) for name, one in kept if not one.bounded and one.kind in FOR_EVER]


def keeps_state(frame: Any) -> bool:
    """Whether the view, or one that it is made from, keeps state."""
    return any(_kept(node) is not None for node in _nodes(frame, views=True))


def reads(frame: Any) -> list[str]:
    """The views that a view reads itself."""
    return list(dict.fromkeys(node.desc().identifier().table() for node in _nodes(frame) if node.nodeName() == "View"))


def lineage(view: str, frames: Mapping[str, Any]) -> list[str]:
    """A view and all that it is made from, in the order of the file."""
    wanted, found = [view], set()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += [read for read in reads(frames[name]) if read in frames]
    return [name for name in frames if name in found]


def check(pipeline: Pipeline, session: Any, frames: Mapping[str, Any], view: str, form: str, key: str) -> None:
    """Whether Spark takes the view as a stream in the form `append`, `update` or `complete`, for the sink at `key`.

    Raises: PipelineError, at the step to change, or at the sink.
    """
    if not frames[view].isStreaming:
        raise pipeline.error(
            f"{key}from",
            f"the view {view} reads only tables and files that do not change, so there is no end to wait for; "
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
            raise pipeline.error(step.key.removesuffix("sql") + where, f"{_advice(one)} (the sink {key.rstrip('.')} wants {form})")
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
    said = str(error)
    for words, advice in ADVICE.items():
        if words in said:
            return advice
    if re.search(r"(Left|Right|Full)\w* join", said):
        return OUTER_JOIN
    return _sentence(error)


def _sentence(error: Exception) -> str:
    return without_code(reason(error))


def _nodes(frame: Any, *, views: bool = False) -> Iterator[Any]:
    """The operators of a view, down to the views that it reads; or with theirs."""
    pending = [frame._jdf.queryExecution().analyzed()]
    while pending:
        node = pending.pop()
        yield node
        if views or node.nodeName() != "View":
            children = node.children()
            pending += [children.apply(index) for index in reversed(range(children.size()))]


def _kept(node: Any) -> Kept | None:
    if not node.isStreaming():
        return None
    match node.nodeName():
        case "Aggregate":
            by = node.groupingExpressions().mkString(", ")
            return Kept("aggregate", _plain(by), not by or bool(WATERMARKED.search(by)))
        case "Distinct":
            return Kept("deduplicate", "all columns", False)
        case "Deduplicate" | "DeduplicateWithinWatermark":
            by = node.keys().mkString(", ")
            return Kept("deduplicate", _plain(by), node.nodeName() != "Deduplicate" or bool(WATERMARKED.search(by)))
        case "Join" if node.left().isStreaming() and node.right().isStreaming():
            by = node.condition().get().sql() if node.condition().isDefined() else "nothing"
            raw = node.condition().get().toString() if node.condition().isDefined() else ""
            return Kept("join", _plain(by), len(set(WATERMARKED_NAME.findall(raw))) > 1)
    return None


def _plain(expressions: str) -> str:
    """Without Spark's numbers of expressions."""
    return EXPRESSION_ID.sub("", expressions).replace("`", "")

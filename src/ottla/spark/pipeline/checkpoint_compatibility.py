"""Whether a checkpoint still fits a pipeline file that was changed.

When a query starts, what its checkpoint depends on is noted beside it. At the next start the notes are compared with the file, before Spark
is there as far as the file tells, and once more when Spark has read the SQL, before any query runs:

    goes on      steps, rules and decoding that change no state; sinks that come, go or change; a topic more; Spark settings; a newer Spark
    is refused   a topic less, or other kinds or another number of sources: the offsets in the checkpoint are of others
                 sources in another order of Spark's plan, by which it numbers them; the order in the file counts for nothing
                 other grouping, deduplication or joins of streams, where the checkpoint holds state: it is of other keys
                 another spark.sql.shuffle.partitions in the file, where it holds state: that lies in so many parts
                 an older Spark than the one that wrote it

A view or a form that is new has a new checkpoint, and reads from the `start` of its sources; one that is gone is left alone.

Where other rules go on, and a query writes the dead letters of a view whose good rows go to another query, the records that only one of
both has read are judged by the old rules here and by the new ones there. That is told, with the offsets.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ottla.spark.pipeline import checkpoint
from ottla.spark.pipeline.config.model import Pipeline, Source, Step
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.rejected_rows import REJECTS

#: How SQL names what has state, to find the clauses that must not change.
GROUPING = re.compile(
    r"\bgroup\s+by\b(.*?)(?=\bhaving\b|\border\s+by\b|\blimit\b|\bunion\b|\)\s*(?:as\s+)?\w*\s*$|$)", re.IGNORECASE | re.DOTALL
)
#: The options that say which topics are read.
SUBSCRIPTIONS = ("assign", "subscribe", "subscribePattern")
COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
#: Beginnings of the names of Spark's plan nodes that keep state.
STATEFUL = ("Aggregate", "Deduplicate", "Distinct", "Join")
#: Columns of one node that are told; Spark's default is 25.
FIELDS_MAX = 1000
PARTITIONS = "spark.sql.shuffle.partitions"
APART = (
    "bad rows of {view} are told otherwise than before, when {letters} and {other} had read {spots}: a record between may be good to one "
    "of them and bad to the other, and so be in the results of both or of none"
)
#: A source's name, and what it reads.
Named = tuple[str, Mapping[str, str]]
WHAT_TO_DO = "Start over with: ottla pipeline reset {file}, or give the pipeline another checkpoint"


def of_file(pipeline: Pipeline, view: str, form: str) -> dict[str, Any]:
    """What of a file a query's checkpoint depends on, as JSON."""
    sources, steps = path_of(pipeline, view)
    return {
        "view": view,
        "form": form,
        "sources": {source.name: dict(_reads(source)) for source in sources},
        "groupings": {step.name: [grouping_of(step.sql), *step.deduplicate] for step in steps},
        "partitions": pipeline.spark.get(PARTITIONS),
        "judging": judging(pipeline, view),
    }


def of_query(pipeline: Pipeline, view: str, form: str, frame: Any, noted: Mapping[str, Any], spark_version: str) -> dict[str, Any]:
    """`of_file`, and what Spark's plan of the view tells besides: the state, and the order of the sources.

    Raises: PipelineError when the checkpoint that was noted with `noted` is of another plan.
    """
    directory = Path(pipeline.checkpoint) / f"{view}-{form}"
    plan, state = sources_of(pipeline, frame), state_of(frame)
    refuse_other_plan(pipeline, directory, view, noted, plan)
    refuse_other_state(pipeline, directory, view, noted, state)
    return {**of_file(pipeline, view, form), "plan": plan, "state": state, "spark": spark_version}


def judging(pipeline: Pipeline, view: str) -> str:
    """A digest of what decides which rows of a view are bad: decoding, rules, and the steps in between."""
    sources, steps = path_of(pipeline, view)
    decodes = [{**asdict(source.decode), "key": ""} for source in sources if source.decode is not None]
    names = _names(pipeline, view)
    rules = [(rule.view, rule.check, rule.action) for rule in pipeline.rules if rule.view in names]
    return hashlib.sha256(json.dumps([decodes, rules, [_plain(step.sql).split() for step in steps]]).encode()).hexdigest()


def _reads(source: Source) -> Mapping[str, str]:
    """What a stream reads."""
    if source.type != "topic":
        return {"path": str(source.path)}
    return {name: source.options[name] for name in SUBSCRIPTIONS if name in source.options}


def path_of(pipeline: Pipeline, view: str) -> tuple[list[Source], list[Step]]:
    """The streams and the steps that a view is made from, by the names in the SQL; one too many does no harm."""
    steps = {step.name: step for step in pipeline.steps}
    found, waiting = {view}, [view]
    while waiting:
        step = steps.get(waiting.pop())
        if step is not None:
            words = {word.lower() for word in re.findall(r"\w+", _plain(step.sql))}
            named = {name for name in pipeline.views if name.lower() in words} - found
            found |= named
            waiting.extend(named)
    streams = [source for source in pipeline.sources if source.name in found and (source.type == "topic" or source.stream)]
    return streams, [step for step in pipeline.steps if step.name in found]


def grouping_of(sql: str) -> str:
    """The GROUP BY of a query in a form that spaces, comments and upper case do not change; empty without one."""
    return "; ".join(re.sub(r"\s+", " ", found).strip().lower() for found in GROUPING.findall(_plain(sql)))


def _plain(sql: str) -> str:
    return COMMENT.sub(" ", sql)


def state_of(frame: Any) -> list[str]:
    """The parts of a view that keep state, as Spark plans them, without what differs from run to run: numbers of columns, names of
    results.
    """
    found = []
    for node in _nodes(frame._jdf.queryExecution().analyzed()):
        name = node.nodeName()
        if not name.startswith(STATEFUL) or not node.isStreaming():
            continue
        if name == "Join" and not all(side.isStreaming() for side in _children(node)):
            continue
        found.append(re.sub(r" AS \w+", "", re.sub(r"#\d+L?", "", node.simpleString(FIELDS_MAX))).replace("`", "").strip())
    return found


def sources_of(pipeline: Pipeline, frame: Any) -> list[dict[str, str]]:
    """What the streams of a view read, in the order of Spark's plan, by which it numbers their offsets in the checkpoint."""
    found = []
    for node in _nodes(frame._jdf.queryExecution().analyzed()):
        if node.nodeName() == "StreamingRelationV2":
            options = {name: node.extraOptions().get(name) for name in SUBSCRIPTIONS}
            found.append({name: value for name, value in options.items() if value is not None})
        elif node.nodeName() == "StreamingRelation":
            path = str(node.sourceName()).partition("[")[2].removesuffix("]")
            # As the file has it: the directory that a relative one is looked up in may be another.
            streams = [source.path for source in pipeline.sources if source.stream and source.path is not None]
            found.append({"path": next((one for one in streams if path.endswith(one.removeprefix("./"))), path)})
    return found


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from _nodes(child)


def _children(plan: Any) -> list[Any]:
    children = plan.children()
    return [children.apply(index) for index in range(children.size())]


def refuse_unfit(pipeline: Pipeline, directory: Path, spark_version: str | None) -> list[str]:
    """What is new since the checkpoint was made, in sentences. Raises: PipelineError when it does not fit any more.

    Looks at the file alone; Spark has not started. `spark_version`: None where there is no Spark to run it.
    """
    told = []
    noted = checkpoint.read_notes(directory)
    for name, note in noted.items():
        fit = note.get("fit")
        if not isinstance(fit, dict) or not (directory / name).is_dir():
            continue
        told += _compared(pipeline, directory / name, fit, spark_version)
    return told + _apart(pipeline, directory, noted)


def new_queries(directories: Sequence[str], noted: Mapping[str, Any]) -> list[str]:
    """Which queries of a pipeline that has a checkpoint have none in it, in sentences."""
    return [f"{name} is new, and reads from the start of its sources" for name in directories if noted and name not in noted]


def _apart(pipeline: Pipeline, directory: Path, noted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Which records a query of dead letters and another one of the same view judge differently, in sentences."""
    begun = {name: note["fit"] for name, note in noted.items() if "fit" in note and (directory / name / "metadata").is_file()}
    told = []
    for letters in (name for name, fit in begun.items() if fit["form"] == REJECTS and _judges_anew(pipeline, fit)):
        view = begun[letters]["view"]
        read = checkpoint.read_query(directory / letters).offsets
        for other in (name for name, fit in begun.items() if fit["form"] != REJECTS and view in _names(pipeline, fit["view"])):
            there = checkpoint.read_query(directory / other).offsets
            places = [tp for tp in sorted({*read, *there}) if read.get(tp) != there.get(tp)]
            if places:
                spots = ", ".join(f"{tp} up to {read.get(tp, 'its start')} and {there.get(tp, 'its start')}" for tp in places)
                told.append(APART.format(view=view, letters=letters, other=other, spots=spots))
    return told


def _judges_anew(pipeline: Pipeline, fit: Mapping[str, Any]) -> bool:
    return fit["view"] in pipeline.views and fit.get("judging") not in (None, judging(pipeline, fit["view"]))


def _names(pipeline: Pipeline, view: str) -> set[str]:
    """The views that a view is made from, and itself."""
    sources, steps = path_of(pipeline, view)
    return {source.name for source in sources} | {step.name for step in steps}


def _compared(pipeline: Pipeline, directory: Path, fit: Mapping[str, Any], spark_version: str | None) -> list[str]:
    if fit["view"] not in pipeline.views:
        return [f"the view {fit['view']} is gone; its checkpoint {directory} is left alone"]
    now = of_file(pipeline, fit["view"], fit["form"])
    if spark_version is not None and _version(spark_version) < _version(str(fit.get("spark", ""))):
        raise PipelineError(
            str(pipeline.file), "", f"{directory} was written by Spark {fit['spark']}, and this is {spark_version}, which is older"
        )
    told = _compared_sources(pipeline, directory, fit["sources"], now["sources"], anywhere="plan" in fit)
    if not fit.get("state"):
        return told
    for step, before in fit["groupings"].items():
        after = now["groupings"].get(step)
        if after is not None and after != before:
            raise _unfit(pipeline, _key_of(pipeline, step), directory, f"groups by {_by(after)} and grouped by {_by(before)} before")
    parts = checkpoint.read_query(directory).settings.get(PARTITIONS)
    if None not in (now["partitions"], parts) and now["partitions"] != parts:
        said = f"is {now['partitions']}, and the state is kept in {parts} parts"
        raise _unfit(pipeline, f"spark.{PARTITIONS.removeprefix('spark.')}", directory, said)
    return told


def _compared_sources(
    pipeline: Pipeline,
    directory: Path,
    before: Mapping[str, Mapping[str, str]],
    now: Mapping[str, Mapping[str, str]],
    *,
    anywhere: bool,
) -> list[str]:
    """What is new in the sources, in sentences. `anywhere`: their order is compared with that of the plan. Raises: PipelineError."""
    told = []
    if len(before) != len(now):
        raise _unfit(
            pipeline, pipeline.sources[0].key.removesuffix("."), directory, f"reads {_listed(now)} and read {_listed(before)} before"
        )
    for (name, reads), (new_name, new) in _pairs(before, now) if anywhere else zip(before.items(), now.items(), strict=True):
        if not _goes_on(reads, new):
            raise _unfit(
                pipeline,
                pipeline.sources[0].key.removesuffix("."),
                directory,
                f"{new_name} reads {_said(new)} and {name} read {_said(reads)} before",
            )
        added = _topics(new) - _topics(reads)
        if added:
            told.append(f"{', '.join(sorted(added))} is new in {new_name} and read from its beginning")
    return told


def _pairs(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[tuple[Named, Named]]:
    """Sources of before with those of now, wherever they stand in the file: that read the same, else of one name, else in order."""
    found: list[tuple[Named, Named]] = []
    olds, news = list(before.items()), list(now.items())
    for alike in (slice(None), slice(1, None), slice(1)):
        for old in list(olds):
            new = next((one for one in news if one[alike] == old[alike]), None)
            if new is not None:
                found.append((old, new))
                olds.remove(old)
                news.remove(new)
    return found + list(zip(olds, news, strict=True))


def _goes_on(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether offsets of the one are offsets of the other too."""
    return before == now or (set(before) == set(now) == {"subscribe"} and _topics(before) <= _topics(now))


def _topics(reads: Mapping[str, str]) -> set[str]:
    return set(reads["subscribe"].split(",")) if "subscribe" in reads else set()


def refuse_other_plan(pipeline: Pipeline, directory: Path, view: str, noted: Mapping[str, Any], plan: Sequence[Mapping[str, str]]) -> None:
    """Raises: PipelineError when Spark's plan has the sources in another order than the checkpoint has their offsets."""
    before = noted.get("plan")
    if before is None or not (directory / "offsets").is_dir():
        return
    if len(before) == len(plan) and all(_goes_on(old, new) for old, new in zip(before, plan, strict=True)):
        return
    now, then = ("; ".join(map(_said, reads)) or "nothing" for reads in (plan, before))
    said = f"{view} reads, in this order, {now}, and read {then} before; put what it reads back into that order"
    raise _unfit(pipeline, _key_of(pipeline, view), directory, said)


def refuse_other_state(pipeline: Pipeline, directory: Path, view: str, noted: Mapping[str, Any], state: Sequence[str]) -> None:
    """Raises: PipelineError when Spark's plan has other state than the checkpoint."""
    before = noted.get("state")
    if before is None or list(before) == list(state) or not (directory / "commits").is_dir():
        return
    new, gone = [line for line in state if line not in before], [line for line in before if line not in state]
    said = f"{view} keeps {'; '.join(new) or 'less'} where the checkpoint has {'; '.join(gone) or 'less'}"
    raise _unfit(pipeline, _key_of(pipeline, view), directory, said)


def _unfit(pipeline: Pipeline, key: str, directory: Path, said: str) -> PipelineError:
    what = WHAT_TO_DO.format(file=pipeline.file)
    step = next((one for one in pipeline.steps if one.key == key), None)
    grouping = None if step is None else GROUPING.search(step.sql)
    line = None if step is None or grouping is None else step.line_at(grouping.start())
    return pipeline.error(key, f"{said}: the checkpoint {directory} does not fit any more. {what}", line=line)


def _key_of(pipeline: Pipeline, step: str) -> str:
    return next((one.key for one in pipeline.steps if one.name == step), pipeline.sources[0].key.removesuffix("."))


def _listed(sources: Mapping[str, Mapping[str, str]]) -> str:
    return ", ".join(f"{name} ({_said(reads)})" for name, reads in sources.items())


def _said(reads: Mapping[str, str]) -> str:
    return ", ".join(reads.values()) or "nothing"


def _by(grouping: Sequence[str]) -> str:
    return ", ".join(filter(None, grouping)) or "nothing"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])

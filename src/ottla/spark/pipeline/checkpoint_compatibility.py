"""Checks whether a checkpoint is compatible with a changed pipeline file.

When a query starts, its checkpoint's dependencies are written to `pipeline.json` (key `fit`). The next start compares them with the file:
first without Spark, as far as possible, and again after Spark has parsed the SQL, before any query runs.

    compatible     changes of steps, rules and decoding that do not affect state; of sinks; an added topic; Spark settings; a newer Spark
    incompatible   a removed topic, or another number or type of sources: the checkpoint's offsets belong to others
                   another order of sources in Spark's plan, which numbers them; the order in the file does not matter
                   with state: another grouping, deduplication or join of streams, so other keys
                   with state: another spark.sql.shuffle.partitions in the file than the state's, or another state store, which Spark
                   would ignore
                   an older Spark than the one that wrote the checkpoint

A new view or form gets a new checkpoint and reads from the `start` of its sources. The checkpoint of a removed one is left alone.

After a change of rules, two queries of a view (its dead letters, and its good rows) may have read up to different offsets. The records in
between are rejected by the old rules in one query and by the new rules in the other. A note reports the offsets.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ottla.spark.pipeline import checkpoint
from ottla.spark.pipeline.config.model import Pipeline, Source, Step
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.rejected_rows import REJECTED_FORM
from ottla.spark.pipeline.streaming_checks import plan_nodes

#: The GROUP BY clause of a query.
GROUPING = re.compile(
    r"\bgroup\s+by\b(.*?)(?=\bhaving\b|\border\s+by\b|\blimit\b|\bunion\b|\)\s*(?:as\s+)?\w*\s*$|$)", re.IGNORECASE | re.DOTALL
)
#: The options that say which topics are read.
SUBSCRIPTIONS = ("assign", "subscribe", "subscribePattern")
COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
#: Prefixes of the names of Spark's stateful plan nodes.
STATEFUL = ("Aggregate", "Deduplicate", "Distinct", "Join")
#: Columns of a node in its text; Spark's default is 25.
FIELDS_MAX = 1000
PARTITIONS = "spark.sql.shuffle.partitions"
STORE = "spark.sql.streaming.stateStore.providerClass"
DEFAULT_STORE = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
REJECTIONS_DIFFER = (
    "the rules for rejected rows of {view} have changed, and {letters} and {other} had read {offsets}: a record in between may be good in "
    "one query and rejected in the other, so it may be in both results or in none"
)
#: A source's name, and what it reads.
Named = tuple[str, Mapping[str, str]]
WHAT_TO_DO = "Start over with: ottla pipeline reset {file}, or give the pipeline another checkpoint"


def file_dependencies(pipeline: Pipeline, view: str, form: str) -> dict[str, Any]:
    """The parts of a file that a query's checkpoint depends on, as JSON."""
    sources, steps = path_of(pipeline, view)
    return {
        "view": view,
        "form": form,
        "sources": {source.name: dict(_reads(source)) for source in sources},
        "groupings": {step.name: [grouping_of(step.sql), *step.deduplicate] for step in steps},
        "partitions": pipeline.spark.get(PARTITIONS),
        "judging": rejection_digest(pipeline, view),
    }


def query_dependencies(
    pipeline: Pipeline, view: str, form: str, frame: Any, noted: Mapping[str, Any], spark_version: str
) -> dict[str, Any]:
    """`file_dependencies`, with the state and the order of sources from Spark's plan of the view.

    Raises: PipelineError if the checkpoint with the dependencies `noted` has another plan.
    """
    directory = Path(pipeline.checkpoint) / f"{view}-{form}"
    plan, state = sources_of(pipeline, frame), state_of(frame)
    refuse_other_plan(pipeline, directory, view, noted, plan)
    refuse_other_state(pipeline, directory, view, noted, state)
    return {**file_dependencies(pipeline, view, form), "plan": plan, "state": state, "spark": spark_version}


def rejection_digest(pipeline: Pipeline, view: str) -> str:
    """A digest of everything that decides which rows of a view are rejected: decoding, rules, and the steps in between."""
    sources, steps = path_of(pipeline, view)
    decodes = [{**asdict(source.decode), "key": ""} for source in sources if source.decode is not None]
    names = _names(pipeline, view)
    rules = [(rule.view, rule.check, rule.action) for rule in pipeline.rules if rule.view in names]
    # Without functions as before they existed, so that older checkpoints compare as equal.
    queries = [plain_sql(step.sql).split() + [one for one in (step.function, step.columns) if one is not None] for step in steps]
    return hashlib.sha256(json.dumps([decodes, rules, queries]).encode()).hexdigest()


def _reads(source: Source) -> Mapping[str, str]:
    """What a source reads, as options."""
    if source.type != "topic":
        return {"path": str(source.path)}
    return {name: source.options[name] for name in SUBSCRIPTIONS if name in source.options}


def path_of(pipeline: Pipeline, view: str) -> tuple[list[Source], list[Step]]:
    """The streams and steps of a view, found by names in the SQL. It may contain more than needed, which is harmless."""
    steps = {step.name: step for step in pipeline.steps}
    found, waiting = {view}, [view]
    while waiting:
        step = steps.get(waiting.pop())
        if step is not None:
            words = {word.lower() for word in re.findall(r"\w+", plain_sql(step.sql))}
            named = {name for name in pipeline.views if name.lower() in words} - found
            found |= named
            waiting.extend(named)
    streams = [source for source in pipeline.sources if source.name in found and (source.type == "topic" or source.stream)]
    return streams, [step for step in pipeline.steps if step.name in found]


def grouping_of(sql: str) -> str:
    """The GROUP BY clauses of a query without comments, normalized in spaces and case; empty without one."""
    return "; ".join(re.sub(r"\s+", " ", found).strip().lower() for found in GROUPING.findall(plain_sql(sql)))


def plain_sql(sql: str) -> str:
    return COMMENT.sub(" ", sql)


def state_of(frame: Any) -> list[str]:
    """The stateful plan nodes of a view as text, without the parts that differ between runs (column ids, result names)."""
    found = []
    for node in plan_nodes(frame, views=True):
        name = node.nodeName()
        if not name.startswith(STATEFUL) or not node.isStreaming():
            continue
        if name == "Join" and not (node.left().isStreaming() and node.right().isStreaming()):
            continue
        found.append(re.sub(r" AS \w+", "", re.sub(r"#\d+L?", "", node.simpleString(FIELDS_MAX))).replace("`", "").strip())
    return found


def sources_of(pipeline: Pipeline, frame: Any) -> list[dict[str, str]]:
    """What the streams of a view read, in the order of Spark's plan, which numbers their offsets in the checkpoint."""
    found = []
    for node in plan_nodes(frame, views=True):
        if node.nodeName() == "StreamingRelationV2":
            options = {name: node.extraOptions().get(name) for name in SUBSCRIPTIONS}
            found.append({name: value for name, value in options.items() if value is not None})
        elif node.nodeName() == "StreamingRelation":
            path = str(node.sourceName()).partition("[")[2].removesuffix("]")
            # As written in the file: a relative path may now resolve to another directory.
            streams = [source.path for source in pipeline.sources if source.stream and source.path is not None]
            found.append({"path": next((one for one in streams if path.endswith(one.removeprefix("./"))), path)})
    return found


def require_compatible(pipeline: Pipeline, directory: Path, spark_version: str | None) -> list[str]:
    """Changes since the checkpoint was created, in sentences. Raises: PipelineError if the checkpoint is incompatible.

    Checks only the file, without Spark. `spark_version`: None if Spark is not installed.
    """
    news = []
    noted = checkpoint.read_notes(directory)
    for name, note in noted.items():
        fit = note.get("fit")
        if not isinstance(fit, dict) or not (directory / name).is_dir():
            continue
        news += _compared(pipeline, directory / name, fit, spark_version)
    return news + _rejection_differences(pipeline, directory, noted)


def require_compatible_if_local(pipeline: Pipeline, spark_version: str | None) -> list[str]:
    """`require_compatible` for commands that ask no broker and no store. Raises: PipelineError."""
    if pipeline.checkpoint_is_copy:
        return [f"the checkpoint {pipeline.checkpoint_place} is compared at the start, which reads it"]
    return require_compatible(pipeline, Path(pipeline.checkpoint), spark_version)


def new_queries(directories: Sequence[str], noted: Mapping[str, Any]) -> list[str]:
    """The queries without a checkpoint, of a pipeline that has one, in sentences."""
    return [f"{name} is new, and reads from the start of its sources" for name in directories if noted and name not in noted]


def _rejection_differences(pipeline: Pipeline, directory: Path, noted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The records for which two queries of a view apply different rules, in sentences."""
    begun = {name: note["fit"] for name, note in noted.items() if "fit" in note and (directory / name / "metadata").is_file()}
    news = []
    for letters in (name for name, fit in begun.items() if fit["form"] == REJECTED_FORM and _rejects_differently(pipeline, fit)):
        view = begun[letters]["view"]
        read = checkpoint.read_query(directory / letters).offsets
        for other in (name for name, fit in begun.items() if fit["form"] != REJECTED_FORM and view in _names(pipeline, fit["view"])):
            other_read = checkpoint.read_query(directory / other).offsets
            different = [tp for tp in sorted({*read, *other_read}) if read.get(tp) != other_read.get(tp)]
            if different:
                offsets = ", ".join(f"{tp} up to {read.get(tp, 'its start')} and {other_read.get(tp, 'its start')}" for tp in different)
                news.append(REJECTIONS_DIFFER.format(view=view, letters=letters, other=other, offsets=offsets))
    return news


def _rejects_differently(pipeline: Pipeline, fit: Mapping[str, Any]) -> bool:
    return fit["view"] in pipeline.views and fit.get("judging") not in (None, rejection_digest(pipeline, fit["view"]))


def _names(pipeline: Pipeline, view: str) -> set[str]:
    """The view and all views that it reads."""
    sources, steps = path_of(pipeline, view)
    return {source.name for source in sources} | {step.name for step in steps}


def _compared(pipeline: Pipeline, directory: Path, fit: Mapping[str, Any], spark_version: str | None) -> list[str]:
    if fit["view"] not in pipeline.views:
        return [f"the view {fit['view']} no longer exists; its checkpoint {_shown(pipeline, directory)} is kept"]
    now = file_dependencies(pipeline, fit["view"], fit["form"])
    if spark_version is not None and _version(spark_version) < _version(str(fit.get("spark", ""))):
        raise PipelineError(
            str(pipeline.file),
            "",
            f"{_shown(pipeline, directory)} was written by Spark {fit['spark']}, and this is {spark_version}, which is older",
        )
    news = _compared_sources(pipeline, directory, fit["sources"], now["sources"], anywhere="plan" in fit)
    if not fit.get("state"):
        return news
    for step, before in fit["groupings"].items():
        after = now["groupings"].get(step)
        if after is not None and after != before:
            raise _incompatible(pipeline, _key_of(pipeline, step), directory, f"groups by {_by(after)} and grouped by {_by(before)} before")
    _require_same_settings(pipeline, directory)
    return news


def _require_same_settings(pipeline: Pipeline, directory: Path) -> None:
    """Raises: PipelineError if the file has other settings of state than the checkpoint, which Spark takes without settings in the file."""
    kept = checkpoint.read_query(directory).settings
    for name, how in ((PARTITIONS, "in {} parts"), (STORE, "by {}")):
        before, now = kept.get(name), pipeline.spark.get(name)
        if None not in (before, now) and before != now:
            raise _incompatible(pipeline, name, directory, f"is {now}, and the state is kept {how.format(before)}")


def _compared_sources(
    pipeline: Pipeline,
    directory: Path,
    before: Mapping[str, Mapping[str, str]],
    now: Mapping[str, Mapping[str, str]],
    *,
    anywhere: bool,
) -> list[str]:
    """Changes of the sources, in sentences. `anywhere`: ignore the order, since the plan's is compared. Raises: PipelineError."""
    news = []
    if len(before) != len(now):
        raise _incompatible(
            pipeline, pipeline.sources[0].key.removesuffix("."), directory, f"reads {_listed(now)} and read {_listed(before)} before"
        )
    for (name, reads), (new_name, new) in pairs_of_sources(before, now) if anywhere else zip(before.items(), now.items(), strict=True):
        if not can_resume(reads, new):
            raise _incompatible(
                pipeline,
                pipeline.sources[0].key.removesuffix("."),
                directory,
                f"{new_name} reads {_text_of(new)} and {name} read {_text_of(reads)} before",
            )
        added = _topics(new) - _topics(reads)
        if added:
            news.append(f"{', '.join(sorted(added))} is new in {new_name} and read from its beginning")
    return news


def pairs_of_sources(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[tuple[Named, Named]]:
    """Pairs the old and new sources: equal ones first, then those that read the same, then those with the same name, then by order."""
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


def can_resume(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether offsets of the old source are valid for the new one."""
    return before == now or (set(before) == set(now) == {"subscribe"} and _topics(before) <= _topics(now))


def _topics(reads: Mapping[str, str]) -> set[str]:
    return set(reads["subscribe"].split(",")) if "subscribe" in reads else set()


def refuse_other_plan(pipeline: Pipeline, directory: Path, view: str, noted: Mapping[str, Any], plan: Sequence[Mapping[str, str]]) -> None:
    """Raises: PipelineError if the sources have another order in Spark's plan than in the checkpoint."""
    before = noted.get("plan")
    if before is None or not (directory / "offsets").is_dir():
        return
    if len(before) == len(plan) and all(can_resume(old, new) for old, new in zip(before, plan, strict=True)):
        return
    now, then = ("; ".join(map(_text_of, reads)) or "nothing" for reads in (plan, before))
    problem = f"{view} reads, in this order, {now}, and read {then} before; put what it reads back into that order"
    raise _incompatible(pipeline, _key_of(pipeline, view), directory, problem)


def refuse_other_state(pipeline: Pipeline, directory: Path, view: str, noted: Mapping[str, Any], state: Sequence[str]) -> None:
    """Raises: PipelineError if Spark's plan has other state than the checkpoint."""
    before = noted.get("state")
    if before is None or list(before) == list(state) or not (directory / "commits").is_dir():
        return
    new, gone = [line for line in state if line not in before], [line for line in before if line not in state]
    problem = f"{view} keeps {'; '.join(new) or 'less'} where the checkpoint has {'; '.join(gone) or 'less'}"
    raise _incompatible(pipeline, _key_of(pipeline, view), directory, problem)


def _incompatible(pipeline: Pipeline, key: str, directory: Path, problem: str) -> PipelineError:
    what = WHAT_TO_DO.format(file=pipeline.file)
    step = next((one for one in pipeline.steps if one.key == key), None)
    grouping = None if step is None else GROUPING.search(step.sql)
    line = None if step is None or grouping is None else step.line_at(grouping.start())
    return pipeline.error(key, f"{problem}: the checkpoint {_shown(pipeline, directory)} is not compatible. {what}", line=line)


def _shown(pipeline: Pipeline, directory: Path) -> str:
    """A query's checkpoint, for people."""
    return str(directory) if pipeline.checkpoint_url is None else f"{pipeline.checkpoint_url}/{directory.name}"


def _key_of(pipeline: Pipeline, step: str) -> str:
    return next((one.key for one in pipeline.steps if one.name == step), pipeline.sources[0].key.removesuffix("."))


def _listed(sources: Mapping[str, Mapping[str, str]]) -> str:
    return ", ".join(f"{name} ({_text_of(reads)})" for name, reads in sources.items())


def _text_of(reads: Mapping[str, str]) -> str:
    return ", ".join(reads.values()) or "nothing"


def _by(grouping: Sequence[str]) -> str:
    return ", ".join(filter(None, grouping)) or "nothing"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])

"""Compares two versions of a pipeline file: what a restart with the new one does to the checkpoint of the old one. Needs no Spark.

    effect        a restart with the new file
    refused       is refused, by the rules of checkpoint_compatibility.py
    unsure        may be refused: only Spark's plan shows whether the state is the same
    recomputed    reads from the start of the sources
    new records   applies the change to records that it reads from then on; rows that were written before stay
    stopped       no longer writes; the table or topic stays
    none          has the same result

Changes are compared per query, a view in one form: its sources, decoding, rules and steps, its state, and its sinks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ottla.spark.pipeline.checkpoint_compatibility import (
    DEFAULT_STORE,
    PARTITIONS,
    STORE,
    can_resume,
    file_dependencies,
    pairs_of_sources,
    path_of,
    plain_sql,
)
from ottla.spark.pipeline.config.model import Pipeline, Sink, Step
from ottla.spark.pipeline.quick_check import CheckedView, output_form, quick_check

Effect = Literal["refused", "unsure", "recomputed", "new records", "stopped", "none"]
#: The worst first.
EFFECTS: tuple[Effect, ...] = ("refused", "unsure", "recomputed", "new records", "stopped", "none")
RESET = "start over with ottla pipeline reset, or give the new file another checkpoint"
IN_SPARK = "with the checkpoint in place, ottla pipeline validate --spark compares Spark's plans"
#: Settings of the whole file without an effect on the output.
SETTINGS = ("name", "trigger", "spark", "kafka")


@dataclass(frozen=True, slots=True)
class FileChange:
    """One change and its effect."""

    effect: Effect
    #: A view, sink or key of the file.
    what: str
    sentence: str


@dataclass(frozen=True, slots=True)
class _Version:
    pipeline: Pipeline
    views: Mapping[str, CheckedView]
    #: The sinks of each query, by view and form.
    queries: Mapping[tuple[str, str], tuple[Sink, ...]]


def file_differences(old: Pipeline, new: Pipeline) -> list[FileChange]:
    """The changes, those with the worst effect first. Raises: PipelineError; ImportError without sqlglot."""
    before, after = _version(old), _version(new)
    changes = [*_of_file(old, new)]
    if _checkpoint(old) == _checkpoint(new):
        for (view, form), sinks in before.queries.items():
            if (view, form) in after.queries:
                changes += _of_query(before, after, view, form)
                changes += _of_sinks(view, sinks, after.queries[view, form])
            else:
                changes += [FileChange("stopped", one, f"the new file has no such sink of {view}") for one in map(_named, sinks)]
        for (view, form), sinks in after.queries.items():
            if (view, form) not in before.queries:
                into = ", ".join(map(_named, sinks))
                changes.append(
                    FileChange(
                        "recomputed", view, f"a new query, {view} as {_form(form)} into {into}: it reads from the start of its sources"
                    )
                )
    return sorted(dict.fromkeys(changes), key=lambda one: EFFECTS.index(one.effect))


def _version(pipeline: Pipeline) -> _Version:
    views = quick_check(pipeline)
    queries: dict[tuple[str, str], tuple[Sink, ...]] = {}
    for sink in pipeline.sinks:
        # Without the form, the sinks of a view are compared as one query.
        key = (sink.view, output_form(pipeline, sink, views[sink.view]) or "")
        queries[key] = (*queries.get(key, ()), sink)
    return _Version(pipeline, views, queries)


def _of_file(old: Pipeline, new: Pipeline) -> Iterator[FileChange]:
    if _checkpoint(old) != _checkpoint(new):
        problem = f"{_checkpoint(new)} instead of {_checkpoint(old)}: a new pipeline, which reads everything from the start of its sources"
        yield FileChange("recomputed", "checkpoint", problem)
    if old.bootstrap != new.bootstrap:
        problem = f"{new.bootstrap}, not {old.bootstrap}: on another cluster the topics are others, and the queries fail with data loss"
        yield FileChange("unsure", "bootstrap", problem)
    for name in SETTINGS:
        if getattr(old, name) != getattr(new, name):
            yield FileChange("none", name, "changed" if name != "name" else f"{new.name} instead of {old.name}")
    if old.functions != new.functions or _text_of_functions(old) != _text_of_functions(new):
        yield FileChange("new records", "functions", "the functions changed")
    if old.dead_letters != new.dead_letters:
        yield FileChange("new records", "dead_letters", "later dead letters go to another place")


def _checkpoint(pipeline: Pipeline) -> str:
    """Identifies the checkpoint. In a topic, it has the pipeline's name."""
    return pipeline.checkpoint_place if pipeline.checkpoint_topic is None else f"{pipeline.checkpoint_place} of {pipeline.name}"


def _text_of_functions(pipeline: Pipeline) -> list[bytes]:
    functions = pipeline.functions
    return [] if functions is None else [path.read_bytes() for path in (functions.module, *functions.files)]


def _of_query(before: _Version, after: _Version, view: str, form: str) -> Iterator[FileChange]:
    old, new = before.pipeline, after.pipeline
    was, now = (file_dependencies(one, view, form) for one in (old, new))
    yield from _of_sources(view, was["sources"], now["sources"])
    had, has = (_stateful(one, view) for one in (before, after))
    if had or has:
        yield from _of_state(old, new, view, had, has, was, now)
    yield from _of_rows(old, new, view, {*had, *has})


def _of_sources(view: str, was: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> Iterator[FileChange]:
    if len(was) != len(now):
        yield FileChange(
            "refused",
            view,
            f"reads {', '.join(now) or 'nothing'} and read {', '.join(was) or 'nothing'}: the offsets belong to others; {RESET}",
        )
        return
    for (name, reads), (new_name, new) in pairs_of_sources(was, now):
        if not can_resume(reads, new):
            there, here = (", ".join(one.values()) for one in (reads, new))
            yield FileChange("refused", view, f"{new_name} reads {here} and {name} read {there}: the offsets belong to others; {RESET}")
        elif reads != new:
            added = sorted(set(new["subscribe"].split(",")) - set(reads["subscribe"].split(",")))
            yield FileChange("new records", view, f"{', '.join(added)} is new in {new_name} and read from its beginning")


def _stateful(version: _Version, view: str) -> dict[str, Step]:
    """The steps of a view that may keep state, by name."""
    found = {}
    for step in path_of(version.pipeline, view)[1]:
        names = version.views[step.name].names
        assert names is not None, "a step has a query"
        streams = sum(version.views[name].is_stream for name in names.reads)
        if step.deduplicate or names.aggregates is not False or names.unparsed or (names.joins and streams > 1):
            found[step.name] = step
    return found


def _of_state(
    old: Pipeline,
    new: Pipeline,
    view: str,
    had: Mapping[str, Step],
    has: Mapping[str, Step],
    was: Mapping[str, Any],
    now: Mapping[str, Any],
) -> Iterator[FileChange]:
    for name in dict.fromkeys([*had, *has]):
        if name not in had or name not in has:
            yield FileChange("unsure", view, f"step {name} {'may keep state now' if name in has else 'kept state, perhaps'}; {IN_SPARK}")
            continue
        before, after = was["groupings"][name], now["groupings"][name]
        if before != after:
            texts = [", ".join(filter(None, one)) or "nothing" for one in (after, before)]
            yield FileChange(
                "refused", view, f"step {name} groups by {texts[0]} and grouped by {texts[1]}: the state has other keys; {RESET}"
            )
        elif had[name].within_watermark != has[name].within_watermark:
            yield FileChange("refused", view, f"step {name} keeps its state for another time (within): the state is another one; {RESET}")
        elif plain_sql(had[name].sql).split() != plain_sql(has[name].sql).split() or had[name].watermark != has[name].watermark:
            yield FileChange(
                "unsure",
                view,
                f"step {name} keeps state and has changed: other aggregates, join conditions or watermarks are refused; {IN_SPARK}",
            )
    if old.spark.get(PARTITIONS) != new.spark.get(PARTITIONS) and None not in (old.spark.get(PARTITIONS), new.spark.get(PARTITIONS)):
        yield FileChange("refused", view, f"{PARTITIONS} changes, and the state has that number of parts; {RESET}")
    # Without the setting, Spark takes the store of the checkpoint.
    if new.spark.get(STORE) not in (None, old.spark.get(STORE, DEFAULT_STORE)):
        yield FileChange("refused", view, f"{STORE} changes, and the state is in the other store; {RESET}")


def _of_rows(old: Pipeline, new: Pipeline, view: str, stateful: set[str]) -> Iterator[FileChange]:
    """Changes of decoding, rules and steps."""
    (sources, steps), (new_sources, new_steps) = path_of(old, view), path_of(new, view)
    decodes, new_decodes = ({one.name: _decoding(one.decode) for one in found} for found in (sources, new_sources))
    texts, new_texts = (
        {one.name: (plain_sql(one.sql).split(), one.watermark, _function(one)) for one in found} for found in (steps, new_steps)
    )
    names = {*decodes, *new_decodes, *texts, *new_texts}
    rules, new_rules = ([replace(rule, key="") for rule in one.rules if rule.view in names] for one in (old, new))
    changed = [f"decoding of {name}" for name in new_decodes if name in decodes and decodes[name] != new_decodes[name]]
    changed += [f"step {name}" for name in new_texts if name not in stateful and texts.get(name) != new_texts[name]]
    changed += [f"function of {name}" for name in stateful & texts.keys() & new_texts.keys() if texts[name][2] != new_texts[name][2]]
    changed += [f"step {name} (removed)" for name in texts if name not in new_texts and name not in stateful]
    changed += ["rules"] if rules != new_rules else []
    if changed:
        yield FileChange(
            "new records", view, f"{', '.join(changed)}: rows that were written before stay; for all records: ottla pipeline reset"
        )


def _function(step: Step) -> tuple[str | None, list[str]]:
    return step.function, (step.columns or "").split()


def _decoding(decode: Any) -> Any:
    return None if decode is None else {**asdict(decode), "key": ""}


def _of_sinks(view: str, old: tuple[Sink, ...], new: tuple[Sink, ...]) -> Iterator[FileChange]:
    before, after = ({_named(sink): replace(sink, key="") for sink in sinks} for sinks in (old, new))
    for name in after:
        if name not in before:
            yield FileChange("new records", name, f"a new sink of {view}: it gets the batches from the restart on, not what others have")
        elif before[name] != after[name]:
            yield FileChange("new records", name, f"the settings of this sink of {view} changed; what it has stays as it is")
    yield from (FileChange("stopped", name, f"the new file has no such sink of {view}") for name in before if name not in after)


def _named(sink: Sink) -> str:
    return f"{sink.type} {sink.target}".strip()


def _form(form: str) -> str:
    return {"append": "final rows", "update": "changed rows", "complete": "the whole result"}.get(form, "rows")

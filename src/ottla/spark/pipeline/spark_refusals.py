"""What Spark refuses, as sentences for the reader of a pipeline file."""

import re
from collections.abc import Mapping, Sequence

from ottla.base.options import suggestion
from ottla.lake.table.parquet_files import AGAIN, FULL
from ottla.spark.pipeline import functions
from ottla.spark.pipeline.config.model import Pipeline, Step
from ottla.spark.pipeline.config.toml_table import PipelineError

#: Functions of Spark whose names are often misspelt; those of the pipeline's own module are added.
COMMON_FUNCTIONS = (
    "approx_count_distinct", "array_contains", "avg", "coalesce", "collect_list", "concat", "count", "date_format", "date_trunc",
    "element_at", "explode", "from_json", "get_json_object", "greatest", "if", "ifnull", "least", "lower", "max", "max_by", "min",
    "min_by", "length", "percentile_approx", "regexp_extract", "regexp_replace", "round", "session_window", "size", "split", "struct",
    "substring", "sum", "timestamp_millis", "timestamp_seconds", "to_date", "to_json", "to_timestamp", "trim", "try_cast",
    "unix_timestamp", "upper", "window",
)  # fmt: skip


FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)', re.MULTILINE)
#: How Spark shows the line of a query at which a row failed; of a long one a part.
SHOWN_SQL = re.compile(r"^== SQL.*\(line (?P<line>\d+), position \d+\) ==\n(?P<sql>.*)$", re.MULTILINE)
MISSING_TOPIC = re.compile(r"topic (?P<topic>\S+) does not exist")


def spark_errors() -> type[Exception]:
    """The class of everything Spark raises."""
    from pyspark.errors import PySparkException

    base: type[Exception] = PySparkException
    return base


def reason(error: BaseException) -> str:
    """The sentence in an error of Spark: what was raised in a Python process, or else Spark's first line without its plan."""
    text = str(getattr(error, "getMessage", str)() or error)
    raised, within = [], False
    for line in text.splitlines():
        if line.endswith("Traceback (most recent call last):"):
            # One may be told within another.
            within = True
        elif within and line and not line[0].isspace():
            raised.append(line)
            within = False
    ours = [_without_class(line) for line in raised if not line.startswith("py4j.")]
    # What Java raised when Python called it, such as a driver of a database.
    ours = ours or [line[2:].partition(": ")[2] for line in text.splitlines() if line.startswith(": ")][:1]
    sentence = ours[-1] if ours else text.split(";\n")[0].splitlines()[0].strip()
    return re.sub(r"\.? SQLSTATE: \w+$", "", sentence).removeprefix("[USER_RAISED_EXCEPTION] ")


def _without_class(line: str) -> str:
    """What was raised: our classes, ValueError and OSError have sentences that need no name; a KeyError says nothing without its own."""
    name, colon, said = line.partition(": ")
    return said if colon and said and ("." in name or name in ("ValueError", "OSError")) else line


def failure(pipeline: Pipeline, error: BaseException) -> str:
    """What a query ended with, with the line of the file or of the functions' module that it is about, where that is told."""
    text, said = str(error), reason(error)
    told = _in_function(pipeline, text) or str(_at_fault(pipeline, text, said) or said)
    if "java.lang.OutOfMemoryError" in text:
        told = (
            f'Spark ran out of memory; give it more with "driver.memory" of [spark], or make batches smaller (maxOffsetsPerTrigger): {told}'
        )
    return f"{told}; {AGAIN}" if FULL in text else told


def _in_function(pipeline: Pipeline, text: str) -> str | None:
    """What a function of the pipeline's module raised, with its line."""
    if pipeline.functions is None:
        return None
    files = {str(path): path for path in (pipeline.functions.module, *pipeline.functions.files)}
    for trace in reversed(text.split("Traceback (most recent call last):\n")):
        frames = [match for match in FRAME.finditer(trace) if match["file"] in files]
        raised = next((line for line in trace.splitlines() if line and not line[0].isspace()), None)
        if frames and raised is not None:
            return f"{frames[-1]['file']}:{frames[-1]['line']}: {frames[0]['name']}: {raised}"
    return None


def _at_fault(pipeline: Pipeline, text: str, said: str) -> PipelineError | None:
    """The same as an error of the file: of a step where Spark shows its SQL, of a source where that is a topic that is not there."""
    shown, missing = SHOWN_SQL.search(text), MISSING_TOPIC.match(said)
    for step in pipeline.steps if shown is not None else ():
        assert shown is not None
        number, line = int(shown["line"]), shown["sql"].removeprefix("...").removesuffix("...")
        lines = step.sql.split("\n")
        if number <= len(lines) and line in lines[number - 1]:
            index = sum(len(one) + 1 for one in lines[: number - 1])
            return pipeline.error(step.key, without_code(said), line=step.line_at(index))
    for source in pipeline.sources if missing is not None else ():
        assert missing is not None
        topics = source.options.get("subscribe", "").split(",")
        if missing["topic"] in topics:
            return pipeline.error(f"{source.key}{'topic' if len(topics) == 1 else 'topics'}", said)
    return None


def refused_sql(pipeline: Pipeline, step: Step, error: Exception, columns: Mapping[str, Sequence[str]]) -> PipelineError:
    """Spark's refusal of a step, with the line of the file that it is about and what to do; `columns` are those of each earlier view."""
    index, fragment = _spot(step.sql, error)
    line = step.line_at(index) if index is not None else None
    return pipeline.error(step.key, _said(pipeline, step, error, fragment, columns), line=line)


def no_column(name: str, columns: Mapping[str, Sequence[str]]) -> str:
    """A sentence about a column that none of some views has."""
    known = list(dict.fromkeys(column for there in columns.values() for column in there))
    has = "; ".join(f"{view} has {', '.join(there)}" for view, there in columns.items())
    return f"there is no column {name}{suggestion(name, known)}{'; ' if has else ''}{has}"


def refused_expression(pipeline: Pipeline, error: Exception, view: str, columns: Sequence[str]) -> str:
    """Spark's refusal of an expression over a view with these columns, such as a rule's check, as a sentence."""
    condition = str(getattr(error, "getCondition", str)() or "")
    told: Mapping[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    if condition.startswith("UNRESOLVED_COLUMN"):
        return no_column(told.get("objectName", "").replace("`", ""), {view: columns})
    return _no_function(pipeline, told) if condition == "UNRESOLVED_ROUTINE" else without_code(reason(error))


def _no_function(pipeline: Pipeline, told: Mapping[str, str]) -> str:
    name = told.get("routineName", "").replace("`", "")
    ours = functions.names(pipeline.functions) if pipeline.functions is not None else ()
    where = f"{pipeline.functions.module.name} has {', '.join(ours)}" if pipeline.functions is not None else "Spark has none of this name"
    return f"there is no function {name}{suggestion(name, [*ours, *COMMON_FUNCTIONS])}; {where}"


def _spot(sql: str, error: Exception) -> tuple[int | None, str]:
    """Where in the SQL an error is, as the index of a character, and what stands there; None where Spark does not tell."""
    for context in getattr(error, "getQueryContext", list)() or ():
        start, fragment = context.startIndex(), context.fragment()
        # An expression that is no part of the step, such as those of decoding, has a context of its own.
        if start >= 0 and fragment and sql[start : start + len(fragment)] == fragment:
            return start, fragment
    told = re.search(r"\(?line (\d+), pos (\d+)\)", str(error))
    if told is None:
        return None, ""
    lines = sql.split("\n")
    return sum(len(line) + 1 for line in lines[: int(told[1]) - 1]) + int(told[2]), ""


def _said(pipeline: Pipeline, step: Step, error: Exception, fragment: str, columns: Mapping[str, Sequence[str]]) -> str:
    condition = str(getattr(error, "getCondition", lambda: "")() or "")
    told: Mapping[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        name = told.get("relationName", "").replace("`", "")
        if name in pipeline.views:
            return f"the view {name} is made by {'this step itself' if name == step.name else 'a later step; put that one first'}"
        return f"there is no view {name}{suggestion(name, columns)}; before this step there are {', '.join(columns)}"
    if condition.startswith("UNRESOLVED_COLUMN"):
        words = set(re.findall(r"\w+", step.sql))
        return no_column(
            told.get("objectName", fragment).replace("`", ""), {view: there for view, there in columns.items() if view in words}
        )
    if condition == "UNRESOLVED_ROUTINE":
        return _no_function(pipeline, told)
    said, here = without_code(reason(error)), " ".join(fragment.split())
    return said if not here or here in said or here == " ".join(step.sql.split()) else f"{said}, in: {here}"


def without_code(sentence: str) -> str:
    """Without the name that Spark gives the kind of an error."""
    return re.sub(r"^\[[A-Z0-9_.]+\] ", "", sentence)

"""Translates Spark's errors into messages about the pipeline file."""

import re
from collections.abc import Mapping, Sequence

from ottla.base.options import suggestion
from ottla.lake.full_disk import AGAIN, FULL
from ottla.spark.pipeline import functions
from ottla.spark.pipeline.arrow_functions import NOTE
from ottla.spark.pipeline.config.model import Pipeline, Step
from ottla.spark.pipeline.config.spark import hidden, secrets_in
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.session import tasks_python

#: Functions of Spark to suggest for a misspelt name, besides those of the pipeline's module.
COMMON_FUNCTIONS = (
    "approx_count_distinct", "array_contains", "avg", "coalesce", "collect_list", "concat", "count", "date_format", "date_trunc",
    "element_at", "explode", "from_json", "get_json_object", "greatest", "if", "ifnull", "least", "lower", "max", "max_by", "min",
    "min_by", "length", "percentile_approx", "regexp_extract", "regexp_replace", "round", "session_window", "size", "split", "struct",
    "substring", "sum", "timestamp_millis", "timestamp_seconds", "to_date", "to_json", "to_timestamp", "trim", "try_cast",
    "unix_timestamp", "upper", "window",
)  # fmt: skip


FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)', re.MULTILINE)
#: Spark's quotation of the line of a query at which a row failed. Long lines are shortened.
SHOWN_SQL = re.compile(r"^== SQL.*\(line (?P<line>\d+), position \d+\) ==\n(?P<sql>.*)$", re.MULTILINE)
#: What Java's exception in another thread starts with, without a word on its cause.
WAITED = "Exception thrown in awaitResult"
CAUSED = re.compile(r"^Caused by: (?:[\w$]+\.)+[\w$]+: (?P<message>.+)$", re.MULTILINE)
TASK = re.compile(r"^Job aborted due to stage failure: .*?Lost task \S+ in stage \S+ \(TID \d+\) \([^)]*\): (?:(?:[\w$]+\.)+[\w$]+: )?")
#: error=2 of a process's start is a program that does not exist.
NO_PROGRAM = re.compile(r'Cannot run program "(?P<program>[^"]+)"[^\n]*error=2\b')
SAME_PYTHON = (
    "The driver and all executors start it by the same name: set PYSPARK_PYTHON to a path that all machines have, or to a name that each"
    " finds in its PATH, such as python3.11"
)
MISSING_TOPIC = re.compile(r"topic (?P<topic>\S+) does not exist")


def spark_errors() -> type[Exception]:
    """The base class of Spark's exceptions."""
    from pyspark.errors import PySparkException

    base: type[Exception] = PySparkException
    return base


def reason(error: BaseException) -> str:
    """The message of a Spark error: the exception of a Python process, else Spark's first line without the plan."""
    text = str(getattr(error, "getMessage", str)() or error)
    raised, within = [], False
    for line in text.splitlines():
        if line.endswith("Traceback (most recent call last):"):
            # Tracebacks may be nested.
            within = True
        elif within and line and not line[0].isspace():
            raised.append(line)
            within = False
    ours = [_without_class(line) for line in raised if not line.startswith("py4j.")]
    # Java's exception in a call from Python, for example of a database driver.
    ours = ours or [line[2:].partition(": ")[2] for line in text.splitlines() if line.startswith(": ")][:1]
    sentence = ours[-1] if ours else text.split(";\n")[0].splitlines()[0].strip()
    caused = CAUSED.search(text) if sentence.startswith(WAITED) else None
    if caused is not None:
        sentence = TASK.sub("", caused["message"])
    return re.sub(r"\.? SQLSTATE: \w+$", "", sentence).removeprefix("[USER_RAISED_EXCEPTION] ")


def _without_class(line: str) -> str:
    """The message without its class, if the class adds nothing: ours, ValueError and OSError. A KeyError needs its name."""
    name, colon, message = line.partition(": ")
    return message if colon and message and ("." in name or name in ("ValueError", "OSError")) else line


def failure(pipeline: Pipeline, error: BaseException) -> str:
    """The message for a query's error, with the line of the file or of the functions' module if known."""
    text, cause = str(error), reason(error)
    message = _in_function(pipeline, text) or str(_in_file(pipeline, text, cause) or cause)
    absent = NO_PROGRAM.search(text)
    if absent is not None and absent["program"] == tasks_python(pipeline.spark):
        message = f"an executor has no Python {absent['program']}. {SAME_PYTHON}"
    if "java.lang.OutOfMemoryError" in text:
        remedy = 'give it more with "driver.memory" of [spark], or make batches smaller (maxOffsetsPerTrigger)'
        message = f"Spark ran out of memory; {remedy}: {message}"
    message = hidden(message, secrets_in(pipeline.spark))
    return f"{message}; {AGAIN}" if FULL in text else message


def _in_function(pipeline: Pipeline, text: str) -> str | None:
    """The exception of a function in the pipeline's module, with its line."""
    if pipeline.functions is None:
        return None
    files = {str(path): path for path in (pipeline.functions.module, *pipeline.functions.files)}
    for trace in reversed(text.split("Traceback (most recent call last):\n")):
        frames = [match for match in FRAME.finditer(trace) if match["file"] in files]
        raised = next((line for line in trace.splitlines() if line and not line[0].isspace()), None)
        if frames and raised is not None:
            batch = next((f" ({line[0].lower()}{line[1:]})" for line in trace.splitlines() if line.startswith(NOTE)), "")
            return f"{frames[-1]['file']}:{frames[-1]['line']}: {frames[0]['name']}: {raised}{batch}"
    return None


def _in_file(pipeline: Pipeline, text: str, cause: str) -> PipelineError | None:
    """The error with its position in the file: a step, if Spark quotes its SQL; a source, if its topic does not exist."""
    shown, missing = SHOWN_SQL.search(text), MISSING_TOPIC.match(cause)
    for step in pipeline.steps if shown is not None else ():
        assert shown is not None
        number, line = int(shown["line"]), shown["sql"].removeprefix("...").removesuffix("...")
        lines = step.sql.split("\n")
        if number <= len(lines) and line in lines[number - 1]:
            index = sum(len(one) + 1 for one in lines[: number - 1])
            return pipeline.error(step.key, without_code(cause), line=step.line_at(index))
    for source in pipeline.sources if missing is not None else ():
        assert missing is not None
        topics = source.options.get("subscribe", "").split(",")
        if missing["topic"] in topics:
            return pipeline.error(f"{source.key}{'topic' if len(topics) == 1 else 'topics'}", cause)
    return None


def refused_sql(pipeline: Pipeline, step: Step, error: Exception, columns: Mapping[str, Sequence[str]]) -> PipelineError:
    """Spark's error about a step, with the line of the file and a remedy. `columns`: those of each earlier view."""
    index, fragment = _error_position(step.sql, error)
    line = step.line_at(index) if index is not None else None
    return pipeline.error(step.key, _step_message(pipeline, step, error, fragment, columns), line=line)


def no_column(name: str, columns: Mapping[str, Sequence[str]]) -> str:
    """The message for an unknown column. `columns`: those of each view."""
    known = list(dict.fromkeys(column for names in columns.values() for column in names))
    has = "; ".join(f"{view} has {', '.join(names)}" for view, names in columns.items())
    return f"there is no column {name}{suggestion(name, known)}{'; ' if has else ''}{has}"


def refused_expression(pipeline: Pipeline, error: Exception, view: str, columns: Sequence[str]) -> str:
    """The message for Spark's error about an expression over a view with these columns, such as a rule's check."""
    condition = str(getattr(error, "getCondition", str)() or "")
    parameters: Mapping[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    if condition.startswith("UNRESOLVED_COLUMN"):
        return no_column(parameters.get("objectName", "").replace("`", ""), {view: columns})
    return _no_function(pipeline, parameters) if condition == "UNRESOLVED_ROUTINE" else without_code(reason(error))


def _no_function(pipeline: Pipeline, parameters: Mapping[str, str]) -> str:
    name = parameters.get("routineName", "").replace("`", "")
    ours = functions.names(pipeline.functions) if pipeline.functions is not None else ()
    if pipeline.functions is not None and functions.kinds(pipeline.functions).get(name) == "batches":
        return f'{name} takes record batches, so SQL cannot call it; write function = "{name}" in the step'
    where = f"{pipeline.functions.module.name} has {', '.join(ours)}" if pipeline.functions is not None else "Spark has none of this name"
    return f"there is no function {name}{suggestion(name, [*ours, *COMMON_FUNCTIONS])}; {where}"


def _error_position(sql: str, error: Exception) -> tuple[int | None, str]:
    """The index of an error in the SQL, and the fragment there; None if Spark does not report it."""
    for context in getattr(error, "getQueryContext", list)() or ():
        start, fragment = context.startIndex(), context.fragment()
        # The context may be another expression, for example one of decoding.
        if start >= 0 and fragment and sql[start : start + len(fragment)] == fragment:
            return start, fragment
    position = re.search(r"\(?line (\d+), pos (\d+)\)", str(error))
    if position is None:
        return None, ""
    lines = sql.split("\n")
    return sum(len(line) + 1 for line in lines[: int(position[1]) - 1]) + int(position[2]), ""


def _step_message(pipeline: Pipeline, step: Step, error: Exception, fragment: str, columns: Mapping[str, Sequence[str]]) -> str:
    condition = str(getattr(error, "getCondition", lambda: "")() or "")
    parameters: Mapping[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        name = parameters.get("relationName", "").replace("`", "")
        if name in pipeline.views:
            return f"the view {name} is made by {'this step itself' if name == step.name else 'a later step; put that one first'}"
        return f"there is no view {name}{suggestion(name, columns)}; before this step there are {', '.join(columns)}"
    if condition.startswith("UNRESOLVED_COLUMN"):
        words = set(re.findall(r"\w+", step.sql))
        name = parameters.get("objectName", fragment).replace("`", "")
        return no_column(name, {view: names for view, names in columns.items() if view in words})
    if condition == "UNRESOLVED_ROUTINE":
        return _no_function(pipeline, parameters)
    message, shown = without_code(reason(error)), " ".join(fragment.split())
    return message if not shown or shown in message or shown == " ".join(step.sql.split()) else f"{message}, in: {shown}"


def without_code(sentence: str) -> str:
    """The sentence without Spark's error class in front."""
    return re.sub(r"^\[[A-Z0-9_.]+\] ", "", sentence)

"""Spark's errors, translated to the names of the pipeline file."""

from pathlib import Path
from typing import NoReturn

import pytest
from pyspark.errors import PySparkException

from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.rejected_rows import RAW_KEY, RAW_VALUE, reject_rows
from ottla.spark.pipeline.sinks import TopicTarget
from ottla.spark.pipeline.spark_refusals import failure, reason

FILE = """[source]
topic = "t"
[[rule]]
name = "positive"
check = "CHECK"
action = "drop"
[[sink]]
type = "topic"
topic = "u"
value = "CHECK"
"""


class Refusal(PySparkException):  # type: ignore[misc]
    """An error as Spark raises it for an expression: with a code, and with all columns, including the pipeline's internal ones."""

    def __init__(self, condition: str, message: str, parameters: dict[str, str]) -> None:
        super().__init__(message=f"{message} SQLSTATE: 42703;\nplan")
        self.condition = condition
        self.parameters = parameters

    def getCondition(self) -> str:
        return self.condition

    def getMessageParameters(self) -> dict[str, str]:
        return self.parameters


class Refuses:
    """A frame that refuses every expression."""

    def __init__(self, refusal: Refusal, *hidden: str) -> None:
        self.refusal = refusal
        self.columns = ("amount", "user", *hidden)

    def where(self, _: str) -> NoReturn:
        raise self.refusal

    def selectExpr(self, _: str) -> NoReturn:
        raise self.refusal


NO_COLUMN = Refusal(
    "UNRESOLVED_COLUMN.WITH_SUGGESTION",
    "A column with name `amout` cannot be resolved. Did you mean one of the following? [`amount`, `__key`].",
    {"objectName": "`amout`"},
)
NO_FUNCTION = Refusal("UNRESOLVED_ROUTINE", "Cannot resolve routine `ruond` on search path [`system`].", {"routineName": "`ruond`"})
OTHER = Refusal("PARSE_SYNTAX_ERROR", "Syntax error at or near end of input.", {})


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        (NO_COLUMN, "there is no column amout; did you mean amount?; records has amount, user"),
        (NO_FUNCTION, "there is no function ruond; did you mean round?; Spark has none of this name"),
        (OTHER, "Syntax error at or near end of input"),
    ],
)
def test_errors_about_rules_and_sinks_use_the_files_names(refusal: Refusal, sentence: str) -> None:
    pipeline = parse(FILE, Path("p.toml"), {})
    with pytest.raises(PipelineError) as of_rule:
        reject_rows(pipeline, "records", Refuses(refusal, RAW_KEY, RAW_VALUE))
    assert str(of_rule.value) == f"p.toml:5: rule[0].check: {sentence}"
    with pytest.raises(PipelineError) as of_sink:
        TopicTarget(pipeline.sinks[0], pipeline).prepare(Refuses(refusal))
    assert str(of_sink.value) == f"p.toml:10: sink[0].value: {sentence}"


FULL = "[Errno 28] No space left on device: '/t'"


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        ("java.io.IOException: No space left on device", "java.io.IOException: No space left on device"),
        (f'Traceback (most recent call last):\n  File "part_files.py", line 1, in write\nOSError: {FULL}\n', FULL),
    ],
)
def test_a_full_disk_is_reported_with_advice(raised: str, sentence: str) -> None:
    message = failure(parse(FILE, Path("p.toml"), {}), RuntimeError(raised))
    assert message == f"{sentence}; free some space and start it again: it continues where it stopped"


NESTED = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function. Reason: Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
pyspark.errors.exceptions.captured.AnalysisException: [PYTHON_DATA_SOURCE_ERROR] Failed to initialize: Traceback (most recent call last):
  File "sink.py", line 92, in sink_columns
    raise ValueError("column headers is text")
ValueError: column headers is text
 SQLSTATE: 38000
"""


def test_the_inner_exception_is_the_reason() -> None:
    assert reason(PySparkException(message=NESTED)) == "column headers is text"


TASK_FAILED = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred. Reason: Traceback (most recent call last):
  File "protocol.py", line 327, in get_return_value
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: An error occurred while calling o955.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:{space}
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: \
Lost task 0.3 in stage 0.0 (TID 4) (node-1 executor 1): java.io.IOException: {cause}
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
"""


def test_the_reason_of_a_failed_task_is_its_exception() -> None:
    error = PySparkException(message=TASK_FAILED.format(cause="No such volume", space=" "))
    assert reason(error) == "No such volume"


def test_a_python_that_executors_do_not_have_is_named_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/driver/python")
    pipeline = parse(f'{FILE}[spark]\nmaster = "yarn"\n', Path("p.toml"), {})
    cause = 'Cannot run program "/opt/driver/python": error=2, No such file or directory'
    message = failure(pipeline, PySparkException(message=TASK_FAILED.format(cause=cause, space=" ")))
    assert message.startswith("an executor has no Python /opt/driver/python. ")
    assert "set PYSPARK_PYTHON" in message

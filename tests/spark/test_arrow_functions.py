"""User functions of columns and of record batches: their declared types, their checks, and their errors."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.spark.pipeline.arrow_functions import checked_batch, checked_column, note_of, of_batches, of_columns, sql_type_of
from ottla.spark.pipeline.case_run import run_case
from ottla.spark.pipeline.config.cases import read_cases
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.functions import register, sql_type
from ottla.spark.pipeline.plan import plan
from ottla.spark.pipeline.quick_check import quick_check

SCHEMA = pa.schema([("a", pa.int64()), ("t", pa.string())])
MODULE = """
from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc


def doubled(n: pa.Int64Array) -> pa.Int64Array:
    return pc.multiply(n, 2)


def parts(text: pa.StringArray) -> Annotated[pa.Array, list[str]]:
    return pc.split_pattern(text, "-")


def full_hour(at: pa.TimestampArray) -> pa.TimestampArray:
    return pc.floor_temporal(at, unit="hour")


def shorter(n: pa.Int64Array) -> pa.Int64Array:
    return n[1:]


def even(batch: pa.RecordBatch) -> pa.RecordBatch:
    kept = batch.filter(pc.equal(pc.bit_wise_and(batch["n"], 1), 0))
    if kept.num_rows and pc.max(kept["n"]).as_py() > 100:
        raise ValueError("too large")
    return kept.append_column("at2", kept["at"]).select(["at2", "n"])


def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    place = 0
    for batch in batches:
        yield pa.record_batch({"n": batch["n"], "place": pa.array(range(place, place + batch.num_rows), pa.int64())})
        place += batch.num_rows
"""
HEAD = """bootstrap = "127.0.0.1:1"
[source]
topic = "events"
[decode]
format = "json"
fields = { n = "bigint", text = "string", at = "timestamp" }
[functions]
module = "own.py"
"""
FILE = f"""{HEAD}
[[step]]
name = "columns"
sql = "SELECT n, doubled(n) AS twice, get(parts(text), 1) AS second, full_hour(at) AS hour FROM records"
[[step]]
name = "evens"
sql = "SELECT n, at, _topic, _partition, _offset FROM records"
function = "even"
columns = "n INT, at2 TIMESTAMP"
watermark = {{ column = "at2", delay = "1 minute" }}
deduplicate = ["n"]
[[step]]
name = "places"
sql = "SELECT n FROM evens"
function = "numbered"
columns = "n BIGINT, place BIGINT"
[[step]]
name = "wrong"
sql = "SELECT shorter(n) AS n FROM records"
[[sink]]
type = "console"
[[test]]
name = "types and rows"
[test.input]
records = [
  {{ value = {{ n = 2, text = "a-b", at = 2026-05-17T10:05:00Z }} }},
  {{ value = {{ n = 3, at = 2026-05-17T10:05:00Z }} }},
  {{ value = {{ n = 4, text = "c", at = 2026-05-17T12:00:00+02:00 }} }},
]
[test.expect]
columns = [
  {{ n = 2, twice = 4, second = "b", hour = 2026-05-17T10:00:00Z }},
  {{ n = 3, twice = 6, hour = 2026-05-17T10:00:00Z }},
  {{ n = 4, twice = 8, hour = 2026-05-17T10:00:00Z }},
]
evens = [{{ n = 2, at2 = 2026-05-17T10:05:00Z }}, {{ n = 4, at2 = 2026-05-17T10:00:00Z }}]
[[test]]
name = "an exception names the batch"
fails = "own.py:28: even: ValueError: too large (in a batch of 1 rows that begins at events-1, offset 0)"
[test.input]
records = [{{ value = {{ n = 102 }}, partition = 1 }}]
[test.expect]
evens = []
[[test]]
name = "a wrong length names the function"
fails = "own.py:21: shorter returned 0 values for 1 rows; return one for each row"
[test.input]
records = [{{ value = {{ n = 1 }} }}]
[test.expect]
wrong = []
"""


def written(directory: Path, text: str, module: str = MODULE) -> Pipeline:
    (directory / "own.py").write_text(module)
    return parse(text, directory / "p.toml", {})


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_columns_and_batches_pass_through_user_functions(spark: Any, tmp_path: Path) -> None:
    pipeline = written(tmp_path, FILE)
    assert [(column.name, column.type) for column in quick_check(pipeline)["evens"].columns or ()] == [
        ("n", "int"),
        ("at2", "timestamp"),
    ]
    for case in read_cases(pipeline, {}):
        result = run_case(pipeline, case, spark)
        assert result.passed, result
    document = plan(pipeline, spark)
    assert {one["name"]: one["type"] for one in document["functions"]} == {
        "doubled": "BIGINT",
        "parts": "ARRAY<STRING>",
        "full_hour": "TIMESTAMP",
        "shorter": "BIGINT",
        "even": "BATCHES",
        "numbered": "BATCHES",
    }
    views = {view["name"]: view for view in document["views"]}
    assert (views["evens"]["function"], views["evens"]["stream"]) == ("even", True)
    assert [state["until"] for state in views["evens"]["state"]] == ["never"]
    in_sql = written(tmp_path, f"{HEAD}[[step]]\nname = 'a'\nsql = 'SELECT even(n) FROM records'\n[[sink]]\ntype = 'console'\n")
    with pytest.raises(PipelineError, match=r"even takes record batches, so SQL cannot call it; write function = \"even\" in the step"):
        plan(in_sql, spark)
    no_type = written(tmp_path, HEAD + "[[sink]]\ntype = 'console'\n", MODULE.replace("list[str]", "'LIST<STRING>'"))
    with pytest.raises(PipelineError, match=r"own.py:13: parts: 'LIST<STRING>' is not a type of Spark"):
        register(no_type, spark)


@pytest.mark.parametrize(
    ("step", "key", "sentence"),
    [
        (
            "function = 'evn'\ncolumns = 'n INT'",
            "function",
            "own.py has no function evn; did you mean even?; of record batches: even, numbered",
        ),
        ("function = 'doubled'\ncolumns = 'n INT'", "function", "doubled is a function of SQL, not of record batches"),
        ("function = 'even'", "columns", "declare what even returns, such as columns = "),
        ("columns = 'n INT'", "columns", "is for a step with a function"),
        ("function = 'even'\ncolumns = 'n INT'\ndeduplicate = ['m']", "deduplicate", "there is no column m; a has n"),
    ],
)
def test_a_step_with_a_wrong_function_is_refused_without_spark(tmp_path: Path, step: str, key: str, sentence: str) -> None:
    with pytest.raises(PipelineError) as refused:
        quick_check(written(tmp_path, f"{HEAD}[[step]]\nname = 'a'\nsql = 'SELECT n FROM records'\n{step}\n[[sink]]\ntype = 'console'\n"))
    assert refused.value.key == f"step[0].{key}" and sentence in refused.value.problem, refused.value


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("def f(n: pa.Array) -> pa.Array:\n  return n\n", "returns pa.Array, which has no type"),
        ("def f(a: pa.RecordBatch, b: int) -> pa.RecordBatch:\n  return a\n", "takes record batches, so it has one parameter"),
    ],
)
def test_annotations_of_arrow_functions_are_checked_without_an_import(tmp_path: Path, function: str, sentence: str) -> None:
    with pytest.raises(PipelineError) as refused:
        written(tmp_path, f"{HEAD}[[sink]]\ntype = 'console'\n", f"import pyarrow as pa\n{function}")
    assert refused.value.where == f"{tmp_path / 'own.py'}:2" and sentence in refused.value.problem, refused.value


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (lambda: checked_column([1], pa.int64(), 1, "f"), "f returned a list; return an Arrow array"),
        (lambda: checked_column(pa.array([1, 2]), pa.int64(), 1, "f"), "f returned 2 values for 1 rows"),
        (lambda: checked_column(pa.array([1.5]), pa.int64(), 1, "f"), "f returned double, which is not int64"),
        (lambda: checked_column(pa.array(["1"]), pa.int64(), 1, "f"), "f returned string; expected int64"),
        (lambda: checked_column(pa.array([1]), pa.string(), 1, "f"), "f returned int64; expected string"),
        (lambda: checked_column(pa.array([[1]]), pa.int64(), 1, "f"), "f returned list<item: int64>, which is not int64"),
        (lambda: checked_batch(pa.table({"a": [1]}), SCHEMA, "f"), "f returned a Table; return a pa.RecordBatch"),
        (lambda: checked_batch(pa.record_batch({"b": [1]}), SCHEMA, "f"), "f returned the columns b; the step declares a, t"),
        (lambda: checked_batch(pa.record_batch({"t": [1], "a": [1]}), SCHEMA, "f"), "f, column t: returned int64; expected string"),
        (
            lambda: list(of_batches(lambda batches: [], SCHEMA, "f")(iter([pa.record_batch({"a": [1]})]))),
            "f returned a list; return a pa.Rec",
        ),
    ],
)
def test_a_wrong_result_names_the_function_and_what_it_returned(check: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        check()
    assert str(refused.value).startswith(sentence)


def test_results_are_cast_if_no_value_changes() -> None:
    assert checked_column(pa.chunked_array([[1], [2]]), pa.float64(), 2, "f").to_pylist() == [1.0, 2.0]
    assert checked_column(pa.nulls(1), pa.string(), 1, "f").to_pylist() == [None]
    assert checked_column(pa.array(["a"]).dictionary_encode(), pa.string(), 1, "f").to_pylist() == ["a"]
    result = checked_batch(pa.record_batch({"t": ["x"], "a": pa.array([1], pa.int8())}), SCHEMA, "f")
    assert result.schema == SCHEMA and result.to_pylist() == [{"a": 1, "t": "x"}]


def test_an_exception_has_a_note_about_its_batch() -> None:
    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        next(batches)
        raise KeyError("gone")

    places = [pa.record_batch({"_topic": ["t"] * 2, "_partition": [3] * 2, "_offset": [7 + n, 8 + n], "a": [1, 2]}) for n in (0, 10)]
    schema = pa.schema([("_topic", pa.string()), ("_partition", pa.int64()), ("_offset", pa.int64()), ("a", pa.int64())])
    with pytest.raises(KeyError) as raised:
        list(of_batches(failing, schema, "f")(iter(places)))
    assert raised.value.__notes__ == ["In a batch of 2 rows that begins at t-3, offset 17"]
    assert note_of(pa.record_batch({"a": [1]})) == "In a batch of 1 rows"
    with pytest.raises(ZeroDivisionError) as divided:
        of_columns(lambda n: 1 / 0, pa.int64(), "f")(pa.array([1, 2]))
    assert divided.value.__notes__ == ["In a batch of 2 rows"]


def test_types_of_columns_are_classes_of_arrays_or_annotated() -> None:
    from typing import Annotated

    assert [
        sql_type_of(one, sql_type) for one in (pa.DoubleArray, Annotated[pa.Array, "MAP<STRING, INT>"], Annotated[pa.Array, list[int]])
    ] == [
        "DOUBLE",
        "MAP<STRING, INT>",
        "ARRAY<BIGINT>",
    ]
    with pytest.raises(ValueError, match="has no SQL type here"):
        sql_type_of(pa.ListArray, sql_type)

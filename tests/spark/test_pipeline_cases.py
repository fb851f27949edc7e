"""``ottla pipeline test``: records in, rows expected, without a broker."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.cli.main import main
from ottla.spark.pipeline import session as sessions
from ottla.spark.pipeline.case_run import run_case
from ottla.spark.pipeline.config.cases import Case, read_cases
from ottla.spark.pipeline.config.file import load, parse
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.row_differences import compared, differences_text

PIPELINE = """bootstrap = "127.0.0.1:1"
[[source]]
name = "orders"
topic = "orders"
watermark = { column = "at", delay = "1 minute" }
decode = { format = "json", schema = "id STRING, code STRING, n INT, at TIMESTAMP", bad_records = "dead_letter", headers = true }
[[source]]
name = "products"
type = "files"
path = "${dir}/products.csv"
[[rule]]
name = "positive"
on = "orders"
check = "n > 0"
[dead_letters]
path = "bad"
[[step]]
name = "known"
sql = "SELECT o.id, o.at, o.n, p.label, twice(o.n) AS m, _key FROM orders o LEFT JOIN products p USING (code)"
[[step]]
name = "counts"
sql = "SELECT window(at, '1 minute').start AS minute, sum(n) AS n, avg(n) AS mean FROM orders GROUP BY window(at, '1 minute')"
[[sink]]
type = "delta"
path = "t"
mode = "merge"
keys = ["minute"]
[[sink]]
type = "topic"
from = "known"
topic = "out"
key = "id"
value = "struct(n, label)"
headers = { source = "_key" }
[functions]
module = "own.py"
"""
CASES = """
[[test]]
name = "rows of a view, of a topic and dead letters"
[test.input]
orders = [
  { value = { id = "1", code = "a", n = 2, at = 2026-05-17T10:00:00Z }, key = "k1" },
  { value = { id = "2", code = "b", n = 3, at = "2026-05-17T10:00:30Z" } },
  { value = { id = "3", code = "a", n = -1, at = "2026-05-17T10:00:30Z" }, partition = 1 },
  { value = "{broken", timestamp = 2026-05-17T11:00:00Z },
]
[test.expect]
known = [{ id = "2", m = 6 }, { id = "1", label = "Apple", m = 4 }]
counts = [{ minute = 2026-05-17T12:00:00+02:00, n = 5, mean = 2.5 }]
out = [
  { key = "1", value = { n = 2, label = "Apple" }, headers = { source = "k1" } },
  { key = "2", value = { n = 3 }, headers = {} },
]
dead_letters = [
  { rule = "positive", partition = 1, value = { id = "3", code = "a", n = -1, at = "2026-05-17T10:00:30Z" } },
  { partition = 0, value = "{broken" },
]

[[test]]
name = "files may be replaced, and unexpected rows are shown"
[test.input]
orders = "orders.jsonl"
products = [{ code = "a", label = "Other" }]
[test.expect]
known = [{ id = "1", label = "Apple", m = 4 }, { id = "9", label = "Apple", m = 1 }]

[[test]]
name = "an expected failure"
fails = "it is seven"
[test.input]
orders = [{ value = { id = "1", code = "a", n = 7, at = "2026-05-17T10:00:00Z" } }]
[test.expect]
known = []
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "products.csv").write_text("code,label\na,Apple\n")
    (tmp_path / "own.py").write_text(
        "def twice(n: int) -> int:\n    if n == 7:\n        raise ValueError('it is seven')\n    return 2 * n\n"
    )
    record = {"value": {"id": "1", "code": "a", "n": 2, "at": "2026-05-17T10:00:00Z"}}
    (tmp_path / "orders.jsonl").write_text(json.dumps(record) + "\n")
    path = tmp_path / "p.toml"
    path.write_text(PIPELINE)
    (tmp_path / "p.test.toml").write_text(CASES)
    return path


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_the_tests_of_a_pipeline_run_in_one_session(spark: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    @contextmanager
    def session(_: Any) -> Iterator[Any]:
        started.append(1)
        yield spark

    monkeypatch.setattr(sessions, "planning_session", session)
    done = CliRunner().invoke(main, ["pipeline", "test", str(file), "--var", f"dir={file.parent}", "-o", "json"])
    assert done.exit_code == 1, done.output
    document = json.loads(done.stdout)
    assert (document["passed"], document["failed"], len(started)) == (2, 1, 1), document
    (failed,) = [one for one in document["tests"] if not one["passed"]]
    assert failed["differences"] == [
        {
            "view": "known",
            "batch": None,
            "missing": [{"id": "1", "label": "Apple", "m": 4}, {"id": "9", "label": "Apple", "m": 1}],
            "unexpected": [{"id": "1", "label": "Other", "m": 4}],
            "other_order": False,
        }
    ]
    shown = CliRunner().invoke(main, ["pipeline", "test", str(file), "--var", f"dir={file.parent}", "-k", "files"])
    assert shown.exit_code == 1
    assert 'label is "Other", not "Apple"' in shown.stdout and shown.stdout.endswith(f"{file}: 0 passed, 1 failed\n")


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_a_time_without_a_year_gets_the_year_nearest_to_the_record(spark: Any, tmp_path: Path) -> None:
    (case,), pipeline = with_syslog(tmp_path)
    result = run_case(pipeline, case, spark)
    assert result.passed, result


def with_syslog(directory: Path) -> tuple[list[Case], Pipeline]:
    path = directory / "s.toml"
    path.write_text("""
[source]
topic = "log"
[decode]
format = "regex"
pattern = '^(?<at>\\w+ +\\d+ \\S+) (?<fixed>\\w+ \\d+ \\S+) (?<n>\\d)$'
[decode.fields]
at = { type = "timestamp", format = "MMM d HH:mm:ss", year = "record" }
fixed = { type = "timestamp", format = "MMM d HH:mm:ss", year = 2016 }
[[sink]]
type = "console"
[[test]]
name = "syslog"
[test.input]
records = [
  { value = "Dec 31 23:59:58 Feb 29 01:02:03 1", timestamp = 2026-01-01T00:00:05Z },
  { value = "Jan  1 00:00:01 Feb 29 01:02:03 2", timestamp = 2025-12-31T23:59:59Z },
  { value = "Mar  1 12:00:00 Feb 29 01:02:03 3", timestamp = 2026-03-01T12:00:01Z },
  { value = "Feb 29 12:00:00 Feb 29 01:02:03 4", timestamp = 2025-01-01T00:00:00Z },
  { value = "Feb 30 12:00:00 Feb 29 01:02:03 5", timestamp = 2025-01-01T00:00:00Z },
]
[test.expect]
records = [
  { n = "1", at = 2025-12-31T23:59:58Z, fixed = 2016-02-29T01:02:03Z, _malformed = false },
  { n = "2", at = 2026-01-01T00:00:01Z, fixed = 2016-02-29T01:02:03Z, _malformed = false },
  { n = "3", at = 2026-03-01T12:00:00Z, fixed = 2016-02-29T01:02:03Z, _malformed = false },
  { n = "4", at = 2024-02-29T12:00:00Z, fixed = 2016-02-29T01:02:03Z, _malformed = false },
  { n = "5", fixed = 2016-02-29T01:02:03Z, _malformed = true },
]
""")
    pipeline = load(path)
    return read_cases(pipeline, {}), pipeline


STREAMED = """
[[source]]
name = "orders"
topic = "orders"
watermark = { column = "at", delay = "1 minute" }
decode = { format = "json", schema = "id STRING, n INT, at TIMESTAMP", bad_records = "dead_letter" }
[[source]]
name = "names"
type = "files"
path = "none.csv"
schema = "id STRING, name STRING"
[dead_letters]
path = "bad"
[[step]]
name = "minutes"
sql = "SELECT window(at, '1 minute').start AS minute, sum(n) AS n FROM orders GROUP BY window(at, '1 minute')"
[[step]]
name = "users"
sql = "SELECT o.id, name, sum(n) AS n FROM orders o JOIN names USING (id) GROUP BY o.id, name"
[[sink]]
type = "topic"
topic = "closed"
from = "minutes"
mode = "append"
[[sink]]
type = "delta"
path = "users"
from = "users"
mode = "merge"
keys = ["id"]
[[test]]
name = "a late order is dropped and a minute closes"
[test.input]
names = [{ id = "a", name = "Ann" }, { id = "b", name = "Bob" }]
[[test.batch]]
input.orders = [{ value = { id = "a", n = 1, at = 2026-05-17T10:00:10Z } }, { value = { id = "b", n = 2, at = 2026-05-17T10:00:20Z } }]
expect.closed = []
expect.users = [{ id = "a", name = "Ann", n = 1 }, { id = "b", name = "Bob", n = 2 }]
[[test.batch]]
input.orders = [{ value = { id = "a", n = 4, at = 2026-05-17T10:00:50Z } }, { value = { id = "a", n = 8, at = 2026-05-17T10:05:00Z } }]
expect.closed = [{ value = { minute = "2026-05-17T10:00:00.000Z", n = 7 } }]
expect.users = [{ id = "a", name = "Ann", n = 13 }]
[[test.batch]]
input.orders = [{ value = { id = "b", n = 16, at = 2026-05-17T10:00:30Z } }, { value = "{bad" }]
expect.closed = []
expect.dead_letters = [{ offset = 5, value = "{bad" }]
[test.expect]
closed = [{ value = { minute = "2026-05-17T10:00:00.000Z", n = 7 } }]
users = [{ id = "a", n = 13 }, { id = "b", n = 3 }]
dead_letters = [{ value = "{bad" }]
"""


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_batches_of_a_test_are_a_stream_with_watermarks_and_state(spark: Any, tmp_path: Path) -> None:
    pipeline = parse(STREAMED, tmp_path / "s.toml", {})
    result = run_case(pipeline, read_cases(pipeline, {})[0], spark)
    assert result.error is None
    # An update by key is not dropped when it is late: only Bob's row differs.
    assert [(one.view, one.batch, one.missing, one.unexpected) for one in result.differences] == [
        ("users", None, [{"id": "b", "n": 3}], [{"id": "b", "n": 18}])
    ]


@pytest.mark.parametrize(
    ("year", "pattern", "sentence"),
    [
        ("'now'", "MMM d", 'expected "record"'),
        ("2016", "yyyy MMM d", "is for a format without a year"),
        ("16", "MMM d", 'expected "record"'),
    ],
)
def test_a_year_is_for_times_without_one(year: str, pattern: str, sentence: str) -> None:
    field = f"{{ type = 'timestamp', format = '{pattern}', year = {year} }}"
    text = f"[source]\ntopic = 't'\n[decode]\nformat = 'json'\nfields = {{ at = {field} }}\n[[sink]]\ntype = 'console'\n"
    with pytest.raises(PipelineError, match=sentence) as refused:
        parse(text, Path("p.toml"), {})
    assert refused.value.key == "decode.fields.at.year"


@pytest.mark.parametrize(
    ("text", "where", "sentence"),
    [
        (
            '[[test]]\nname = "x"\n[test.input]\nordres = []\n[test.expect]\nknown = []\n',
            "4",
            "there is no source ordres; did you mean orders?",
        ),
        ('[[test]]\nname = "x"\n[test.expect]\nknwon = []\n', "4", "there is no view or topic knwon; did you mean known?"),
        ('[[test]]\nname = "x"\n', "1", "give the expected rows of a view, or with fails"),
        ('[[test]]\nname = "x"\n[test.input]\norders = [{ vlaue = 1 }]\n', "4", "record 0: unknown key vlaue; did you mean value?"),
        ('[[test]]\nname = "x"\n[test.input]\norders = [{ timestamp = "soon" }]\n', "4", "record 0: 'soon' is not a time"),
        ('[[test]]\nname = "x"\n[test.input]\norders = "none.jsonl"\n', "4", "there is no file"),
        (
            '[[test]]\nname = "x"\n[test.input]\norders = []\n[[test.batch]]\nexpect.known = []\n',
            "4",
            "orders is a stream: give its records",
        ),
        ('[[test]]\nname = "x"\n[[test.batch]]\ninput.products = []\nexpect.known = []\n', "4", "products is no stream: give its rows in"),
        ('[[test]]\nname = "x"\n[[test.batch]]\nexpct = 1\nexpect.known = []\n', "4", "unknown key; did you mean expect?"),
        ('[[tset]]\nname = "x"\n', "1", "unknown key; did you mean test?"),
    ],
)
def test_a_wrong_test_is_refused_with_its_line(file: Path, text: str, where: str, sentence: str) -> None:
    beside = file.with_name("p.test.toml")
    beside.write_text(text)
    with pytest.raises(PipelineError) as refused:
        read_cases(parse(PIPELINE, file, {"dir": str(file.parent)}), {})
    assert refused.value.where == f"{beside}:{where}" and sentence in refused.value.problem, refused.value


def test_rows_are_compared_without_order_and_by_the_columns_that_a_test_names() -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": "x", "t": "2026-05-17T10:00:00.000Z"}, {"a": 0.1 + 0.2, "b": None, "t": None}]
    expected: list[dict[str, Any]] = [{"a": 0.3, "t": None}, {"a": 1, "t": "2026-05-17T12:00:00+02:00"}]
    assert not compared("v", expected, rows, ["t"])
    assert not compared("v", list(reversed(expected)), rows, ["t"], ordered=True)
    assert compared("v", expected, rows, ["t"], ordered=True).other_order
    assert compared("v", [], rows).unexpected == rows
    assert compared("v", [{"a": True}], [{"a": 1}])
    assert compared("v", [{"a": 1}, {"a": 1}], [{"a": 1}]).missing == [{"a": 1}]


def test_differences_pair_rows_that_are_alike() -> None:
    lines = differences_text(compared("v", [{"a": 1, "b": "x"}], [{"a": 5, "b": "y"}, {"a": 1, "b": "z"}]))
    assert lines == [
        "v: 1 missing, 2 unexpected",
        '  - {"a": 1, "b": "x"}',
        '  + {"a": 1, "b": "z"}',
        '    b is "z", not "x"',
        '  + {"a": 5, "b": "y"}',
    ]

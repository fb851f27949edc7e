"""SQL of pipelines checked by names, without Spark and Java: what is refused, with its line and column, and what is not judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli.main import main
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.quick_check import not_judged, quick_check
from ottla.spark.pipeline.sql_names import OutColumn, ddl_columns, resolve

HEAD = """bootstrap = "127.0.0.1:1"
[[source]]
name = "events"
topic = "events"
watermark = { column = "at", delay = "1 minute" }
[source.decode]
format = "json"
schema = "code STRING, n INT, at TIMESTAMP, tags ARRAY<STRING>, place STRUCT<city: STRING>"
[[source]]
name = "other"
topic = "other"
decode = { format = "json", schema = "code STRING, seen TIMESTAMP" }
[[step]]
name = "asked"
"""
#: The line on which SQL begins in a file of `asking`.
FIRST = 16
AVRO = '{"type": "record", "name": "R", "fields": [{"name": "f", "type": "int"}]}'
DELTA = 'type = "delta"\npath = "t"'


def asking(sql: str, sink: str = 'type = "console"', more: str = "") -> str:
    return f'{HEAD}sql = """\n{sql}"""\n{more}\n[[sink]]\n{sink}\n'


def read(text: str, path: Path = Path("p.toml")) -> Pipeline:
    return parse(text, path, {})


@pytest.mark.parametrize(
    ("text", "where", "key", "sentence"),
    [
        (
            asking("SELECT code,\n cod\nFROM events"),
            f"{FIRST + 1}:2",
            "step[0].sql",
            "there is no column cod; did you mean code?; events has code",
        ),
        (asking("SELECT e.cod\nFROM events e"), f"{FIRST}:8", "step[0].sql", "there is no column e.cod; did you mean code?"),
        (asking("SELECT code\nFROM evnts"), f"{FIRST + 1}:6", "step[0].sql", "there is no view evnts; did you mean events?"),
        (asking("SELECT code\nFROM asked"), f"{FIRST + 1}:6", "step[0].sql", "made by this step itself"),
        (asking("SELECT code\nFRM events x"), f"{FIRST + 1}:5", "step[0].sql", "syntax error at 'events'"),
        (asking("SELECT (code\nFROM events"), f"{FIRST + 1}:1", "step[0].sql", "syntax error at 'FROM': Expecting )"),
        (asking("SELECT 'code\nFROM events"), f"{FIRST}:8", "step[0].sql", "a text begins here with ' and does not end"),
        (asking("SELECT code FROM events WHERE cdoe = 'x'"), f"{FIRST}:31", "step[0].sql", "there is no column cdoe; did you mean code?"),
        (
            asking("WITH a AS (SELECT n FROM events)\nSELECT code FROM a"),
            f"{FIRST + 1}:8",
            "step[0].sql",
            "there is no column code; a has n",
        ),
        (asking("SELECT d.code FROM (SELECT n FROM events) d"), f"{FIRST}:8", "step[0].sql", "there is no column d.code; d has n"),
        (asking("SELECT transform(tags, t -> t || cod) AS x FROM events"), f"{FIRST}:34", "step[0].sql", "there is no column cod"),
        (
            asking("SELECT code FROM events WHERE EXISTS (SELECT 1 FROM other WHERE other.cod = events.code)"),
            f"{FIRST}:65",
            "step[0].sql",
            "there is no column other.cod",
        ),
        (
            asking("SELECT code, n AS Code FROM events", DELTA),
            f"{FIRST - 1}",
            "step[0].sql",
            "asked has two columns code, and a sink of type delta",
        ),
        (
            asking("SELECT n FROM events", more='deduplicate = ["code"]'),
            f"{FIRST + 1}",
            "step[0].deduplicate",
            "there is no column code; asked has n",
        ),
        (
            asking("SELECT code FROM events", f'{DELTA}\nmode = "merge"\nkeys = ["cod"]'),
            f"{FIRST + 6}",
            "sink[0].keys",
            "did you mean code?",
        ),
        (
            asking("SELECT code FROM events", f'{DELTA}\npartition_by = ["day"]'),
            f"{FIRST + 5}",
            "sink[0].partition_by",
            "asked has no column day",
        ),
        (
            asking("SELECT code FROM events", 'type = "topic"\ntopic = "t"\nvalue = "struct(cod)"'),
            f"{FIRST + 5}",
            "sink[0].value",
            "did you mean code?",
        ),
        (
            asking("SELECT code FROM events", 'type = "topic"\ntopic = "t"\nkey = "n"'),
            f"{FIRST + 5}",
            "sink[0].key",
            "there is no column n",
        ),
        (
            asking("SELECT 1 AS one FROM events") + '[[rule]]\nname = "r"\ncheck = "m > 0"\naction = "drop"',
            f"{FIRST + 6}",
            "rule[0].check",
            "no column m",
        ),
        (asking("SELECT 1 AS one"), f"{FIRST + 2}", "sink[0].from", "reads only static tables and files"),
        (
            asking("SELECT 1 AS one FROM events").replace('column = "at"', 'column = "n"'),
            "5",
            "source[0].watermark.column",
            "column n is int",
        ),
        (
            asking("SELECT n FROM events", more='watermark = { column = "at", delay = "1 day" }'),
            f"{FIRST + 1}",
            "step[0].watermark.column",
            "not among n",
        ),
    ],
)
def test_an_error_in_sql_has_its_line_and_column_without_spark(text: str, where: str, key: str, sentence: str) -> None:
    with pytest.raises(PipelineError) as refused:
        quick_check(read(text))
    assert (refused.value.where, refused.value.key) == (f"p.toml:{where}", key), refused.value
    assert sentence in refused.value.problem


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT window.start, window.end, code, count(*) AS n FROM events GROUP BY window(at, '1 minute'), code ORDER BY start",
        "SELECT session_window(at, '5 minutes') AS s, count(*) AS n FROM events GROUP BY session_window(at, '5 minutes')",
        "SELECT n + 1 AS m, m * 2 AS k FROM events",
        "SELECT upper(code) AS c, count(*) AS many FROM events GROUP BY c HAVING many > 1 ORDER BY many",
        "SELECT transform(tags, (t, i) -> t || code || i) AS x, filter(tags, t -> t > code) AS y FROM events",
        "SELECT tag, e.col FROM events LATERAL VIEW explode(tags) t AS tag LATERAL VIEW explode(tags) e",
        "SELECT explode(tags) FROM events",
        "SELECT place.city, events.place.city AS c2, place.* FROM events",
        "SELECT city FROM (SELECT place.* FROM events)",
        "SELECT `count(1)` FROM (SELECT code, count(*) FROM events GROUP BY code)",
        "SELECT CODE, Events.N FROM EVENTS",
        "SELECT * EXCEPT (n) FROM events",
        "SELECT code, seen, at FROM events JOIN other USING (code)",
        "SELECT e.code FROM events e LEFT SEMI JOIN other o ON e.code = o.code AND o.seen BETWEEN e.at AND e.at + INTERVAL 10 MINUTES",
        "SELECT id, code FROM range(3), events",
        "SELECT k, code FROM VALUES (1, 2) AS v(k, w), events",
        "SELECT code FROM events WHERE n = (SELECT max(o.n) FROM events o WHERE o.code = events.code AND tags IS NOT NULL)",
        "SELECT code FROM events WHERE code IN (SELECT code FROM other WHERE seen > at)",
        "SELECT current_date, current_timestamp, current_user, extract(YEAR FROM at), dateadd(DAY, 1, at) FROM events",
        "SELECT my_own(code), no_such_function(n, mode => 'x') FROM events",
        "SELECT * FROM events PIVOT (sum(n) FOR code IN ('a', 'b'))",
        "FROM events |> WHERE n > 1 |> SELECT code",
        "FROM events SELECT code",
        "WITH RECURSIVE t(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM t WHERE k < 3) SELECT k, code FROM t, events",
        "SELECT code FROM events UNION ALL SELECT code FROM other",
        "SELECT code, row_number() OVER w AS r FROM events WINDOW w AS (PARTITION BY code ORDER BY n)",
        "SELECT /*+ BROADCAST(other) */ `code`, n::BIGINT, X '1F', 4 >>> 1 FROM events -- the end",
        "SELECT percentile_approx(n, 0.5) FILTER (WHERE n > 0) AS p, max_by(struct(*), at) AS newest FROM events",
        "SELECT from_json(code, 'a INT, b STRING').a, map('x', n)['x'], tags[0], named_struct('q', n).q FROM events",
        "SELECT CASE WHEN n > 1 THEN 'it''s' ELSE \"two\" END AS kind, _partition, _offset FROM events",
        "SELECT _metadata.file_name, code FROM events",
        "SELECT a.x, b.x FROM (SELECT n AS x FROM events) a CROSS JOIN LATERAL (SELECT a.x + 1 AS x) b",
    ],
)
def test_what_spark_may_accept_is_not_refused(sql: str) -> None:
    quick_check(read(asking(sql)))


def test_columns_and_their_types_are_passed_on() -> None:
    views = {"e": (OutColumn("a", "int"), OutColumn("b", "string")), "u": None}
    assert resolve("SELECT *, CAST(b AS DATE) AS d, a + 1 AS x, count(*) FROM e", views).columns == (
        OutColumn("a", "int"),
        OutColumn("b", "string"),
        OutColumn("d", "date"),
        OutColumn("x"),
        OutColumn(None),
    )
    assert resolve("SELECT * FROM e JOIN u ON a = z", views).columns is None
    assert resolve("SELECT y.a FROM e y JOIN u ON q = z", views).columns == (OutColumn("a", "int"),)
    assert ddl_columns("STRUCT<`a`: INT, b MAP<STRING, ARRAY<INT>> NOT NULL>") == (
        OutColumn("a", "int"),
        OutColumn("b", "map<string, array<int>>"),
    )
    assert ddl_columns("INT") is None


def test_sources_have_their_columns_without_spark(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "table"), pa.table({"id": [1], "at": ["x"]}))
    pq.write_table(pa.table({"p": [1]}), tmp_path / "f.parquet")
    (tmp_path / "f.csv").write_text("code;label\n1;2\n")
    (tmp_path / "f.json").write_text('{"j": 1}\n')
    sources = {
        "delta": 'type = "delta"\npath = "DIR/table"',
        "parquet": 'type = "files"\npath = "DIR/*.parquet"',
        "csv": 'type = "files"\npath = "DIR/f.csv"\noptions = { sep = ";" }',
        "json": 'type = "files"\npath = "DIR/f.json"',
        "regex": "topic = 't'\ndecode = { format = 'regex', pattern = '(?<a>.) (?<b>.)', fields = { b = 'int' } }",
        "avro": f"topic = 't'\ndecode = {{ format = 'avro', schema = '{AVRO}' }}",
        "registry": "topic = 't'\ndecode = { format = 'avro', registry = 'http://h:1' }",
    }
    text = "".join(f'[[source]]\nname = "{name}"\n{more}\n' for name, more in sources.items()).replace("DIR", str(tmp_path))
    views = quick_check(read(f"{text}[[sink]]\ntype = 'console'\nfrom = 'regex'\n"))
    found = {
        name: None if view.columns is None else [one.name for one in view.columns if not str(one.name).startswith("_")]
        for name, view in views.items()
    }
    assert found == {
        "delta": ["id", "at"],
        "parquet": ["p"],
        "csv": ["code", "label"],
        "json": None,
        "regex": ["a", "b"],
        "avro": ["f"],
        "registry": None,
    }
    assert not_judged(views) == ["only Spark knows the columns of json, registry"]


def test_several_files_are_checked_in_one_call(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(asking("SELECT code FROM events"))
    bad.write_text(asking("SELECT cod FROM events"))
    done = CliRunner().invoke(main, ["pipeline", "validate", str(good), str(bad), str(tmp_path / "none.toml")])
    assert done.exit_code == 2
    assert done.stdout.startswith(
        f"{good}: pipeline good: 2 sources, 1 step, 1 sink; SQL checked by names (functions, types and state: --spark)"
    )
    assert f"ottla: {bad}:{FIRST}:8: step[0].sql: there is no column cod" in done.stderr and "none.toml: cannot be read" in done.stderr
    document = json.loads(CliRunner().invoke(main, ["pipeline", "validate", str(good), str(bad), "-o", "json"]).stdout)
    assert [(one["name"], one["checked_by"], one["error"] is None) for one in document] == [("good", "names", True), (None, None, False)]


def test_a_plan_without_spark_shows_views_state_and_sinks(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    more = (
        '[[step]]\nname = "near"\nsql = "SELECT e.code FROM events e JOIN other o ON e.code = o.code"\n'
        '[[step]]\nname = "once"\nsql = "SELECT code FROM events"\ndeduplicate = ["code"]\n'
    )
    file.write_text(
        asking("SELECT window(at, '1 minute') AS w, code, count(*) AS n FROM events GROUP BY window(at, '1 minute'), code", more=more)
    )
    document = json.loads(CliRunner().invoke(main, ["pipeline", "plan", str(file), "-o", "json"]).stdout)
    views = {view["name"]: view for view in document["views"]}
    assert document["checked_by"] == "names"
    assert views["asked"]["columns"] == [{"name": "w", "type": None}, {"name": "code", "type": "string"}, {"name": "n", "type": None}]
    assert views["asked"]["state"] == [{"kind": "aggregate", "by": "window(at, '1 minute'), code", "until": None}]
    assert [views[name]["state"][0]["kind"] for name in ("near", "once")] == ["join", "deduplicate"]
    assert (views["near"]["reads"], document["sinks"][0]["output"]) == (["events", "other"], "update")
    shown = CliRunner().invoke(main, ["pipeline", "plan", str(file)])
    assert "Made without Spark. All types, and when state expires: --spark" in shown.stderr


def test_without_sqlglot_the_rest_is_checked_and_a_note_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p.toml"
    file.write_text(asking("SELECT cod FROM events"))
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    for module in ("quick_check", "source_columns", "sql_names"):
        monkeypatch.delitem(sys.modules, f"ottla.spark.pipeline.{module}", raising=False)
    done = CliRunner().invoke(main, ["pipeline", "validate", str(file)])
    assert (done.exit_code, done.stdout.endswith("SQL not checked\n")) == (0, True), done.output
    assert "The SQL is not checked: it needs sqlglot, pip install" in done.stderr


def test_a_check_needs_neither_pyspark_nor_java(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(asking("SELECT cod FROM events"))
    program = f"import sys; sys.modules['pyspark'] = None; from ottla.cli.main import main; main(['pipeline', 'validate', {str(file)!r}])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, "there is no column cod" in done.stderr) == (2, True), done.stderr

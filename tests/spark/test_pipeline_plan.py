"""Plans without a run, and errors with the line to change. No broker runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.cli.main import main
from ottla.spark.pipeline import plan as plans
from ottla.spark.pipeline import session as sessions
from ottla.spark.pipeline.checkpoint import CheckpointNotes
from ottla.spark.pipeline.checkpoint_compatibility import query_dependencies
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.model import MASTER
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.query import gathers, planned_queries

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

#: A closed port.
HEAD = """bootstrap = "127.0.0.1:1"
[[source]]
name = "events"
topic = "events"
watermark = { column = "at", delay = "1 minute" }
[source.decode]
format = "json"
schema = "code STRING, n INT, at TIMESTAMP"
[[source]]
name = "other"
topic = "other"
decode = { format = "json", schema = "code STRING, seen TIMESTAMP" }
[[step]]
name = "asked"
"""
#: The line on which SQL begins in a file of `asking`.
FIRST = 16
DELTA = 'type = "delta"\npath = "t"'


def asking(sql: str, sink: str = 'type = "console"', more: str = "") -> str:
    return f'{HEAD}sql = """\n{sql}"""\n{more}\n[[sink]]\n{sink}\n'


@pytest.mark.parametrize(
    ("text", "line", "key", "sentence"),
    [
        (
            asking("SELECT code,\n cod\nFROM events"),
            FIRST + 1,
            "step[0].sql",
            "there is no column cod; did you mean code?; events has code, n, at,",
        ),
        (asking("SELECT e.cod\nFROM events e"), FIRST, "step[0].sql", "there is no column e.cod"),
        (asking("SELECT code\nFROM evnts"), FIRST + 1, "step[0].sql", "there is no view evnts; did you mean events?"),
        (asking("SELECT code\nFROM asked"), FIRST + 1, "step[0].sql", "made by this step itself"),
        (asking("SELECT code\nFRM events x"), FIRST + 1, "step[0].sql", "Syntax error at or near 'events'"),
        (asking("SELECT code,\ncuont(*)\nFROM events"), FIRST + 1, "step[0].sql", "there is no function cuont; did you mean count?"),
        (asking("SELECT code,\nat +\n1 FROM events"), FIRST + 1, "step[0].sql", "incompatible types"),
        (asking("SELECT code, count(*) FROM events GROUP BY code", DELTA), FIRST - 1, "step[0].sql", "keeps changing"),
        (asking("SELECT code FROM events ORDER BY code"), FIRST - 1, "step[0].sql", "leave ORDER BY out"),
        (asking("SELECT count(DISTINCT code) FROM events"), FIRST - 1, "step[0].sql", "approx_count_distinct"),
        (asking("SELECT row_number() OVER (PARTITION BY code ORDER BY n) FROM events"), FIRST - 1, "step[0].sql", "GROUP BY window"),
        (
            asking("SELECT events.code FROM events LEFT JOIN other ON events.code = other.code", DELTA),
            FIRST - 1,
            "step[0].sql",
            "an outer join of two streams must know when a row has no match",
        ),
        (
            asking("SELECT * FROM other", more='deduplicate = ["code"]\nwithin = "watermark"'),
            FIRST + 1,
            "step[0].deduplicate",
            "give this step or its source watermark",
        ),
        (
            asking("SELECT n FROM events", more='deduplicate = ["code"]'),
            FIRST + 1,
            "step[0].deduplicate",
            "there is no column code; asked has n",
        ),
        (asking("SELECT code FROM events", f'{DELTA}\nmode = "replace"'), FIRST + 5, "sink[0].mode", "which only an aggregate has"),
        (asking("SELECT code FROM events", f'{DELTA}\nmode = "merge"\nkeys = ["cod"]'), FIRST + 6, "sink[0].keys", "did you mean code?"),
        (asking("SELECT 1 AS one", 'type = "console"\nfrom = "asked"'), FIRST + 4, "sink[0].from", "reads only static tables and files"),
        (asking("SELECT 1").replace("n INT", "n INTT"), 8, "source[0].decode.schema", "is not a list of columns in Spark's DDL"),
        (asking("SELECT 1").replace("code STRING, n INT, at TIMESTAMP", "INT"), 8, "source[0].decode.schema", "is not a list of columns"),
        (
            asking("SELECT 1") + '[spark]\n"sql.shuffle.partition" = 2\n',
            FIRST + 5,
            "spark.sql.shuffle.partition",
            "did you mean spark.sql.shuffle.partitions?",
        ),
        (
            asking("SELECT 1") + '[spark]\n"sql.streaming.stateStore.rocksdb.boundMemoryUsage" = true\n',
            FIRST + 5,
            "spark.sql.streaming.stateStore.rocksdb.boundMemoryUsage",
            "did you mean spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage?",
        ),
        (asking("SELECT 1") + '[spark]\ndriver.memroy = "2g"\n', FIRST + 5, "spark.driver.memroy", "did you mean spark.driver.memory?"),
        (asking("SELECT 1").replace('column = "at"', 'column = "n"'), 5, "source[0].watermark.column", "column n is int"),
    ],
)
def test_a_spark_error_names_the_line_to_change(spark: Any, tmp_path: Path, text: str, line: int, key: str, sentence: str) -> None:
    with pytest.raises(PipelineError) as refused:
        plans.checked(parse(text, tmp_path / "p.toml", {}), spark)
    assert (refused.value.where, refused.value.key) == (f"{tmp_path / 'p.toml'}:{line}", key), refused.value
    assert sentence in refused.value.problem


@pytest.mark.parametrize(
    ("rest", "key", "sentence"),
    [
        ('from = "asked"\ntype = "topic"\ntopic = "t"\nvalue = "struct(cod)"', "sink[0].value", "there is no column cod"),
        ('from = "asked"\ntype = "parquet"\npath = "t"\npartition_by = ["day"]', "sink[0].partition_by", "asked has no column day"),
        (
            'from = "asked"\ntype = "console"\n[[rule]]\nname = "r"\non = "asked"\ncheck = "n > 1"\naction = "drop"',
            "rule[0].on",
            "are aggregates",
        ),
    ],
)
def test_a_plan_refuses_what_a_run_refuses_at_its_start(spark: Any, tmp_path: Path, rest: str, key: str, sentence: str) -> None:
    text = asking("SELECT code, count(*) AS n FROM events GROUP BY code" if "[[rule]]" in rest else "SELECT code FROM events")
    with pytest.raises(PipelineError) as refused:
        plans.checked(parse(text.partition("[[sink]]")[0] + "[[sink]]\n" + rest + "\n", tmp_path / "p.toml", {}), spark)
    assert refused.value.key == key
    assert sentence in refused.value.problem


@pytest.mark.usefixtures("shared_session")
def test_commands_report_whether_the_checkpoint_is_compatible(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    text = f'checkpoint = "{tmp_path}/checkpoint"\n' + asking("SELECT code FROM events")
    file.write_text(text)
    pipeline = parse(text, file, {})
    notes = CheckpointNotes(tmp_path / "checkpoint")
    noted = query_dependencies(pipeline, "asked", "append", plans.checked(pipeline, spark)["asked"], {}, spark.version)
    notes.begin("asked-append", noted, [])
    notes.save()
    (tmp_path / "checkpoint" / "asked-append" / "offsets").mkdir(parents=True)

    file.write_text(text.replace('topic = "events"', 'topics = ["events", "more"]'))
    for command in (["validate", "--no-spark"], ["validate"], ["validate", "--spark"], ["plan"], ["plan", "--spark"]):
        result = CliRunner().invoke(main, ["pipeline", *command, str(file), "-o", "json"])
        assert json.loads(result.stdout)["notes"] == ["more is new in events and read from its beginning"], command
    assert "more is new in events and read from" in CliRunner().invoke(main, ["pipeline", "validate", str(file), "--no-spark"]).output
    file.write_text(text.replace('topic = "events"', 'topic = "more"'))
    for command in (["validate", "--no-spark"], ["plan"], ["plan", "--spark"]):
        refused = CliRunner().invoke(main, ["pipeline", *command, str(file)])
        assert (refused.exit_code, "is not compatible" in refused.output) == (2, True), command


WHOLE = (
    asking("SELECT window(at, '1 minute') AS w, count(*) AS n FROM events GROUP BY 1")
    + """from = "near"
[[step]]
name = "once"
sql = "SELECT code, at FROM events"
deduplicate = ["code"]
[[step]]
name = "near"
sql = "SELECT e.code FROM events e JOIN other o ON e.code = o.code AND e.at = o.seen"
[[step]]
name = "sessions"
sql = "SELECT session_window(at, '5 minutes') AS s, code, count(*) AS n FROM events GROUP BY session_window(at, '5 minutes'), code"
[[sink]]
type = "delta"
path = "tables/sessions"
"""
)


@pytest.fixture
def shared_session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands plan in the tests' session: a process has only one."""

    @contextmanager
    def session(_: Any) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(sessions, "planning_session", session)


@pytest.mark.usefixtures("shared_session")
def test_a_plan_shows_views_state_and_sinks(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(WHOLE)
    done = CliRunner().invoke(main, ["pipeline", "plan", str(file), "--physical", "-o", "json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert document["master"] == MASTER, "the master of the run, not of the plan"
    views = {view["name"]: view for view in document["views"]}
    assert views["events"]["columns"][:3] == [
        {"name": "code", "type": "string"},
        {"name": "n", "type": "int"},
        {"name": "at", "type": "timestamp"},
    ]
    assert [views[name]["reads"] for name in ("events", "near")] == [["events"], ["events", "other"]]
    kept = {name: [(state["kind"], state["until"]) for state in view["state"]] for name, view in views.items()}
    assert kept == {
        "events": [],
        "other": [],
        "asked": [("aggregate", "watermark")],
        "once": [("deduplicate", "never")],
        "near": [("join", "never")],
        "sessions": [("aggregate", "watermark")],
    }
    assert document["notes"] == [
        'once keeps code of every row forever: to remove old state, set within = "watermark", or add a column with a watermark to '
        "deduplicate = [...]",
        "near keeps every row of both joined streams forever: give both a watermark, and limit the distance of their times in the join",
    ]
    assert [(sink["type"], sink["from"], sink["output"]) for sink in document["sinks"]] == [
        ("console", "near", "append"),
        ("delta", "sessions", "append"),
    ]
    assert [one["view"] for one in document["physical"]] == ["near", "sessions"]
    assert "Join" in document["physical"][0]["plan"]


@pytest.mark.parametrize("name", ["weekday", "Explode"])
def test_a_function_that_spark_already_has_is_refused_with_its_line(spark: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "own.py").write_text(f"RATE = 1\n\n\ndef {name}(at: str) -> str:\n    return at\n")
    text = '[functions]\nmodule = "own.py"\n[source]\ntopic = "t"\n[[sink]]\ntype = "console"\n'
    with pytest.raises(PipelineError, match="is also a function of Spark") as refused:
        plans.checked(parse(text, tmp_path / "p.toml", {}), spark)
    assert refused.value.where == f"{tmp_path / 'own.py'}:4"


@pytest.mark.parametrize(
    ("sql", "more", "sink", "form", "gather"),
    [
        ("SELECT code FROM events", "", DELTA, "append", False),
        ("SELECT code FROM events", "", 'type = "console"\nmode = "update"', "update", False),
        ("SELECT code FROM events", 'deduplicate = ["code"]', DELTA, "append", False),
        ("SELECT code FROM events", 'deduplicate = ["code"]', 'type = "console"', "update", False),
        ("SELECT code FROM events", 'deduplicate = ["code"]', f'{DELTA}\nmode = "merge"\nkeys = ["code"]', "update", True),
        ("SELECT DISTINCT code FROM events", "", 'type = "console"', "update", True),
        ("SELECT code, count(*) AS n FROM events GROUP BY code", "", 'type = "console"', "update", True),
        ("SELECT window(at, '1 minute') AS w, count(*) AS n FROM events GROUP BY 1", "", DELTA, "append", True),
    ],
)
def test_small_or_merged_results_are_coalesced(spark: Any, tmp_path: Path, sql: str, more: str, sink: str, form: str, gather: bool) -> None:
    pipeline = parse(asking(sql, sink, more), tmp_path / "p.toml", {})
    (planned,) = planned_queries(pipeline, plans.checked(pipeline, spark), {})
    assert (planned.form, gathers(planned)) == (form, gather)


@pytest.mark.usefixtures("shared_session")
def test_commands_print_errors_and_known_names(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(asking("SELECT cod FROM events"))
    refused = CliRunner().invoke(main, ["pipeline", "validate", "--spark", str(file)])
    assert (refused.exit_code, refused.output.startswith(f"ottla: {file}:{FIRST}: step[0].sql: there is no column cod")) == (2, True)
    unseen = CliRunner().invoke(main, ["pipeline", "validate", str(file), "--no-spark"])
    assert unseen.output == f"{file}: pipeline p: 2 sources, 1 step, 1 sink; SQL not checked\n"
    file.write_text(asking("SELECT code FROM events"))
    assert CliRunner().invoke(main, ["pipeline", "validate", "--spark", str(file)]).output.endswith("SQL checked\n")
    shown = CliRunner().invoke(main, ["pipeline", "plan", "--spark", str(file)]).output.splitlines()
    assert "view\tasked\tstep\tevents\tcode string\t\t" in shown
    assert "sink\tconsole\tasked\t\t\tfinal rows\tnone" in shown


@pytest.mark.usefixtures("shared_session")
def test_spark_checks_several_files_in_one_session(tmp_path: Path) -> None:
    texts = {"a": asking("SELECT at + 1 FROM events"), "b": asking("SELECT n FROM events"), "c": asking("SELECT cuont(n) FROM events")}
    files = [tmp_path / f"{name}.toml" for name in texts]
    for file, text in zip(files, texts.values(), strict=True):
        file.write_text(text + '[spark]\n"sql.ansi.enabled" = true\n')
    done = CliRunner().invoke(main, ["pipeline", "validate", "--spark", *map(str, files)])
    assert (done.exit_code, done.stdout) == (2, f"{files[1]}: pipeline b: 2 sources, 1 step, 1 sink; SQL checked\n")
    first, second = done.stderr.splitlines()
    assert "a.toml" in first and "incompatible types" in first and "there is no function cuont; did you mean count?" in second

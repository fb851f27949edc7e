"""Pipeline files: parsing and errors."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.spark.pipeline.config.file import load, parse
from ottla.spark.pipeline.config.model import Field, Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.functions import NoSqlType, sql_type

WHOLE = """
name = "requests"
bootstrap = "${servers:-127.0.0.1:9092}"
checkpoint = "${dir}/checkpoint"
trigger = "5 seconds"

[source]
topic = "access"
options = { maxOffsetsPerTrigger = 100, failOnDataLoss = false }

[decode]
format = "regex"
pattern = '(?<host>\\S+) \\[(?P<at>[^]]+)\\] (?<bytes>\\S+)'
nulls = ["-"]
[decode.fields]
at = { type = "timestamp", format = "dd/MMM/yyyy:HH:mm:ss Z" }
bytes = "bigint"

[[step]]
name = "sized"
sql = "SELECT * FROM records WHERE bytes > 0"
watermark = { column = "at", delay = "10 seconds" }

[[step]]
name = "by_host"
sql = "SELECT host, count(*) AS n FROM sized GROUP BY host"

[[sink]]
type = "delta"
path = "${dir}/table"
mode = "merge"
keys = ["host"]

[[sink]]
type = "topic"
from = "sized"
topic = "out"

[spark]
"sql.shuffle.partitions" = 3
"""
SMALL = '[source]\ntopic = "t"\n[[sink]]\ntype = "console"\n'


def read(text: str, **variables: str) -> Pipeline:
    return parse(text, Path("p.toml"), variables)


def test_a_whole_file_is_read() -> None:
    pipeline = read(WHOLE, dir="/d")
    assert (pipeline.name, pipeline.bootstrap, pipeline.checkpoint, pipeline.trigger) == (
        "requests",
        "127.0.0.1:9092",
        "/d/checkpoint",
        "5 seconds",
    )
    assert pipeline.sources[0].options == {
        "subscribe": "access",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "100",
        "failOnDataLoss": "false",
    }
    assert pipeline.sources[0].decode.fields["at"] == Field("timestamp", "dd/MMM/yyyy:HH:mm:ss Z")  # type: ignore[union-attr]
    assert [step.name for step in pipeline.steps] == ["sized", "by_host"]
    assert [(sink.type, sink.view, sink.mode) for sink in pipeline.sinks] == [("delta", "by_host", "merge"), ("topic", "sized", None)]
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "3"}


def test_the_smallest_pipeline_is_named_after_its_file_and_shows_text() -> None:
    pipeline = read(SMALL)
    assert (pipeline.name, pipeline.sources[0].decode.format, pipeline.sinks[0].view) == ("p", "text", "records")  # type: ignore[union-attr]
    assert pipeline.trigger == "1 second"


def test_variables_come_from_the_command_line_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "v.toml"
    file.write_text('bootstrap = "${OTTLA_A}-${OTTLA_B}:9"\n' + SMALL)
    monkeypatch.setenv("OTTLA_A", "env")
    monkeypatch.setenv("OTTLA_B", "env")
    assert load(file, {"OTTLA_A": "given"}).bootstrap == "given-env:9"


@pytest.mark.parametrize(
    ("text", "where", "key", "sentence"),
    [
        ("nmae = 'x'\n" + SMALL, "p.toml:1", "nmae", "unknown key; did you mean name?"),
        ("trigger = 'often'\n" + SMALL, "p.toml:1", "trigger", "expected continuous, available-now, once, or a time"),
        ("name = 3\n" + SMALL, "p.toml:1", "name", "expected text, not 3"),
        ("bootstrap = 'broker1'\n" + SMALL, "p.toml:1", "bootstrap", "'broker1' has no port; write broker1:9092 if the broker listens"),
        ("bootstrap = 'a:1, [::1]'\n" + SMALL, "p.toml:1", "bootstrap", "'[::1]' has no port; write [::1]:9092"),
        (SMALL.replace("[[", "bootstrap = 'h:'\n[[", 1), "p.toml:3", "source.bootstrap", "'h:' has no port; write h:9092"),
        (SMALL + "[[sink]]\ntype = 'delta'\npath = 'x'\nmode = 'upsert'\n", "p.toml:8", "sink[1].mode", "did you mean merge?"),
        (SMALL + "[[sink]]\ntype = 'delta'\npath = 'x'\nmode = 'overwrite'\n", "p.toml:8", "sink[1].mode", "did you mean replace?"),
        ("bootstrap = '${nobody_set_this}'\n" + SMALL, "p.toml:1", "bootstrap", "give one with --var nobody_set_this=VALUE"),
        (SMALL + "[[step]]\nname = 'a'\nsql = 'SELECT ${c}'\n", "p.toml:7", "step[0].sql", "--var c=VALUE"),
        (SMALL.replace("[[", "options = { groupIdPrefix = '${p}' }\n[[", 1), "p.toml:3", "source.options.groupIdPrefix", "--var p=VALUE"),
        ("", "p.toml", "source", "is missing; name the topic"),
        ("[source]\ntopic = 't'\n", "p.toml", "sink", "add a target for results"),
        ("[source]\n[[sink]]\ntype = 'console'\n", "p.toml:1", "source.topic", "exactly one of topic, topics and pattern"),
        ("[source]\ntopic = 't'\nstart = 'first'\n[[sink]]\ntype = 'console'\n", "p.toml:3", "source.start", "expected earliest or latest"),
        (SMALL + "[decode]\nformat = 'jsno'\n", "p.toml:6", "decode.format", "did you mean json?"),
        (SMALL + "[decode]\nformat = 'json'\n", "p.toml:5", "decode.fields", "give either fields"),
        (SMALL + "[decode]\nformat = 'regex'\n", "p.toml:5", "decode.pattern", "named groups"),
        (SMALL + "[decode]\nformat = 'regex'\npattern = '('\n", "p.toml:7", "decode.pattern", "not a regular expression"),
        (SMALL + "[decode]\nformat = 'regex'\npattern = '(a)'\n", "p.toml:7", "decode.pattern", "no named group"),
        (
            SMALL + "[decode]\nformat = 'regex'\npattern = '(?<user>a)'\nfields = { usr = 'int' }\n",
            "p.toml:8",
            "decode.fields.usr",
            "the pattern has no group usr; did you mean user?",
        ),
        (
            SMALL + "[decode]\nformat = 'json'\nfields = { a = 'int' }\nbad_records = 'skip'\n",
            "p.toml:8",
            "decode.bad_records",
            "keep or drop or fail",
        ),
        (SMALL + "[[step]]\nname = 'a b'\nsql = 'SELECT 1'\n", "p.toml:6", "step[0].name", "not a valid view name"),
        (
            SMALL + "[[step]]\nname = 'a'\nsql = 'SELECT 1'\n[[step]]\nname = 'a'\nsql = 'SELECT 1'\n",
            "p.toml:9",
            "step[1].name",
            "already a view a",
        ),
        (SMALL + "[[step]]\nname = 'a'\n", "p.toml:5", "step[0].sql", "give the query"),
        (
            SMALL + "[[step]]\nname = 'a'\nsql = 'SELECT 1'\nwatermark = { column = 'at', delay = 'soon' }\n",
            "p.toml:8",
            "step[0].watermark.delay",
            "a number and a unit",
        ),
        (SMALL + "[[sink]]\ntype = 'delta'\n", "p.toml:5", "sink[1].path", "name the directory"),
        (SMALL + "[[sink]]\ntype = 'delta'\npath = 'x'\nmode = 'merge'\n", "p.toml:5", "sink[1].keys", "merge replaces the row"),
        (SMALL + "[[sink]]\ntype = 'topic'\ntopic = 'x'\nfrom = 'recrods'\n", "p.toml:8", "sink[1].from", "did you mean records?"),
        (SMALL + "[[sink]]\ntype = 'console'\nrows = 0\n", "p.toml:7", "sink[1].rows", "a whole number above 0"),
        ("name = \n", "p.toml:1", "", "is not TOML: Invalid value (column 8)"),
        (SMALL + "name = 'x'\nname = 'y'\n", "p.toml:6", "", "is not TOML: Cannot overwrite a value"),
        (SMALL + "[source]\n", "p.toml:5", "", "is not TOML: Cannot declare"),
        (SMALL + "rows = [1,\n", "p.toml:5", "", "is not TOML"),
        (SMALL + 'name = "x\nrows = 1\n', "p.toml:5", "", "is not TOML: Illegal character"),
    ],
)
def test_an_error_names_file_line_key_and_remedy(text: str, where: str, key: str, sentence: str) -> None:
    with pytest.raises(PipelineError) as refused:
        read(text)
    assert (refused.value.where, refused.value.key) == (where, key)
    assert sentence in refused.value.problem


NAMED = '[[source]]\nname = "a"\ntopic = "t"\n[[source]]\n'
CONSOLE = '[[sink]]\ntype = "console"\n'


@pytest.mark.parametrize(
    ("text", "line", "key", "meant"),
    [
        (f"{NAMED}nmae = 'b'\ntopic = 'u'\n{CONSOLE}", 5, "source[1].nmae", "name"),
        (f"{NAMED}name = 'b'\ntpoic = 'u'\n{CONSOLE}", 6, "source[1].tpoic", "topic"),
        (f"{NAMED}name = 'b'\ntopcis = ['u']\n{CONSOLE}", 6, "source[1].topcis", "topics"),
        (f"{NAMED}name = 'b'\ntype = 'files'\npth = 'x.csv'\n{CONSOLE}", 7, "source[1].pth", "path"),
        (f"{NAMED}name = 'b'\ntype = 'files'\nPath = 'x.csv'\n{CONSOLE}", 7, "source[1].Path", "path"),
        (f"{NAMED}name = 'b'\ntype = 'files'\npath = 'x'\nfromat = 'csv'\n{CONSOLE}", 8, "source[1].fromat", "format"),
        (f"{NAMED}name = 'b'\ntype = 'files'\npath = 'x.csv'\nstream = true\nshema = 'a INT'\n{CONSOLE}", 9, "source[1].shema", "schema"),
        (f"{NAMED}name = 'b'\ntpye = 'files'\npath = 'x.csv'\n{CONSOLE}", 6, "source[1].tpye", "type"),
        (f"{SMALL}[decode]\nfromat = 'json'\nfields = {{ a = 'int' }}\n", 6, "decode.fromat", "format"),
        (f"{SMALL}[decode]\nformat = 'json'\nfeilds = {{ a = 'int' }}\n", 7, "decode.feilds", "fields"),
        (f"{SMALL}[decode]\nformat = 'regex'\npatern = '(?<a>.)'\n", 7, "decode.patern", "pattern"),
        (f"{SMALL}[decode]\nformat = 'avro'\nregistyr = 'http://h'\n", 7, "decode.registyr", "registry"),
        (f"{SMALL}[[step]]\nname = 'a'\nsqll = 'SELECT 1'\n", 7, "step[0].sqll", "sql"),
        (f"{SMALL}[[step]]\nname = 'a'\nsql = 'SELECT 1'\nwatermark = {{ colunm = 'at' }}\n", 8, "step[0].watermark.colunm", "column"),
        (f"{SMALL}[[sink]]\ntyp = 'delta'\npath = 'x'\n", 6, "sink[1].typ", "type"),
        (f"{SMALL}[[sink]]\ntype = 'delta'\npth = 'x'\n", 7, "sink[1].pth", "path"),
        (f"{SMALL}[[sink]]\ntype = 'delta'\npath = 'x'\nmode = 'merge'\nkey = ['a']\n", 9, "sink[1].key", "keys"),
        (f"{SMALL}[dead_letters]\npaht = 'x'\n", 6, "dead_letters.paht", "path"),
        (f"{SMALL}[[rule]]\nname = 'a'\nchekc = 'x > 0'\n", 7, "rule[0].chekc", "check"),
    ],
)  # fmt: skip
def test_a_misspelled_required_key_is_reported_with_its_line(text: str, line: int, key: str, meant: str) -> None:
    with pytest.raises(PipelineError) as refused:
        read(text)
    assert (refused.value.where, refused.value.key, refused.value.problem) == (f"p.toml:{line}", key, f"unknown key; did you mean {meant}?")


@pytest.mark.parametrize(
    ("text", "line", "key", "meant"),
    [
        ("[source]\ntopic = 't'\n[[sinks]]\ntype = 'console'\n", 3, "sinks", "sink"),
        ("[source]\ntopic = 't'\n[[snik]]\ntype = 'console'\n", 3, "snik", "sink"),
        (f"[[sources]]\ntopic = 't'\n{CONSOLE}", 1, "sources", "source"),
        (f"[source]\ntopic = 't'\n[[steps]]\nname = 'a'\nsql = 'SELECT 1'\n{CONSOLE}from = 'a'\n", 3, "steps", "step"),
    ],
)
def test_a_misspelled_table_is_reported_before_what_is_missing(text: str, line: int, key: str, meant: str) -> None:
    with pytest.raises(PipelineError) as refused:
        read(text)
    assert (refused.value.where, refused.value.key) == (f"p.toml:{line}", key)
    assert refused.value.problem.startswith(f"unknown key; did you mean {meant}?; known here are")


@pytest.mark.parametrize(
    ("text", "key", "holds"),
    [
        (f"source = 'orders'\n{CONSOLE}", "source", "topic and more"),
        (f"[source]\ntopic = 't'\nwatermark = '10 seconds'\n{CONSOLE}", "source.watermark", "column and delay, such as {"),
        (f"[source]\ntopic = 't'\ndecode = 'json'\n{CONSOLE}", "source.decode", "format and what belongs to it"),
        (f"decode = 'json'\n{SMALL}", "decode", "format and what belongs to it"),
        (f"{SMALL}[decode]\nformat = 'json'\nfields = 'a INT'\n", "decode.fields", "columns and their types"),
        (f"functions = 'own.py'\n{SMALL}", "functions", "module and files"),
        (f"dead_letters = 'bad'\n{SMALL}", "dead_letters", "path, the directory of a Delta table, or topic"),
        (f"spark = '4g'\n{SMALL}", "spark", "settings of Spark"),
        (f"{SMALL}[[sink]]\ntype = 'topic'\ntopic = 'x'\nheaders = '_topic'\n", "sink[1].headers", "names and SQL expressions"),
    ],
)
def test_a_value_in_place_of_a_table_is_refused_with_the_expected_content(text: str, key: str, holds: str) -> None:
    with pytest.raises(PipelineError) as refused:
        read(text)
    assert refused.value.key == key
    assert refused.value.problem.startswith(f"expected a table with {holds}")


def test_a_json_key_needs_columns() -> None:
    with pytest.raises(PipelineError, match=r"decode\.key: json needs columns: expected \{ format"):
        read(f"{SMALL}[decode]\nformat = 'text'\nkey = 'json'\n")


def test_known_keys_are_not_suggested_for_a_missing_one() -> None:
    with pytest.raises(PipelineError, match=r"source\.topic: set exactly one of topic, topics and pattern"):
        read(f"[source]\noptions = {{ maxOffsetsPerTrigger = 1 }}\n{CONSOLE}")


def test_a_missing_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"nothing\.toml: cannot be read: No such file"):
        load(tmp_path / "nothing.toml")


SEVERAL = """
[[source]]
name = "clicks"
topic = "clicks"
watermark = { column = "at", delay = "1 minute" }
[source.decode]
format = "csv"
schema = "id STRING, at TIMESTAMP"
separator = ";"
headers = true
key = { format = "json", schema = "user STRING" }
[[source]]
name = "people"
type = "files"
path = "people/*.csv"
[[source]]
name = "incoming"
type = "files"
path = "in/*.jsonl"
schema = "id STRING"
stream = true
[[source]]
name = "limits"
type = "table"
path = "tables/limits"
[[sink]]
type = "console"
from = "clicks"
"""


def test_options_of_a_source_do_not_name_its_view() -> None:
    source = read(SMALL.replace("[[", "options = { maxOffsetsPerTrigger = 5 }\n[[", 1)).sources[0]
    assert (source.name, source.options["maxOffsetsPerTrigger"]) == ("records", "5")


def test_several_sources_are_views_of_their_own() -> None:
    clicks, people, incoming, limits = read(SEVERAL).sources
    assert clicks.decode is not None
    assert (clicks.name, clicks.decode.format, clicks.decode.separator, clicks.decode.headers) == ("clicks", "csv", ";", True)
    assert clicks.decode.record_key.schema == "user STRING"
    assert (people.format, people.stream, people.options) == ("csv", False, {"header": "true", "inferSchema": "true"})
    assert (incoming.format, incoming.stream, incoming.schema) == ("json", True, "id STRING")
    assert (limits.type, limits.path, limits.stream) == ("delta", "tables/limits", False)
    assert read(SEVERAL).views == ("clicks", "people", "incoming", "limits")


def _with(old: str, new: str) -> str:
    assert old in SEVERAL
    return SEVERAL.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "where", "key", "sentence"),
    [
        (_with('name = "people"\n', ""), "p.toml:12", "source[1].name", "several sources need names"),
        (_with('name = "people"', 'name = "clicks"'), "p.toml:13", "source[1].name", "already a view clicks"),
        (_with('path = "people/*.csv"', 'path = "people"'), "p.toml:12", "source[1].format", "name the format of the files"),
        (
            _with('path = "people/*.csv"', 'topic = "x"'),
            "p.toml:15",
            "source[1].topic",
            'only for a source of type = "topic"; this one is files',
        ),
        (_with('schema = "id STRING"\nstream', "stream"), "p.toml:16", "source[2].schema", "a stream of files needs its columns"),
        (_with("stream = true", "stream = 1"), "p.toml:21", "source[2].stream", "expected true or false"),
        (_with('separator = ";"', 'separator = ";;"'), "p.toml:9", "source[0].decode.separator", "one character"),
        (_with('separator = ";"', 'pattern = "x"'), "p.toml:9", "source[0].decode.pattern", 'is only for regex; this is format = "csv"'),
        (_with('"json", schema', '"text", schema'), "p.toml:11", "source[0].decode.key.schema", "is for json"),
        (SEVERAL + '[decode]\nformat = "text"\n', "p.toml:29", "decode", "write [source.decode] below its [[source]]"),
        (
            _with("topic =", "options = { maxOffsetPerTrigger = 1 }\ntopic ="),
            "p.toml:4",
            "source[0].options.maxOffsetPerTrigger",
            "did you mean",
        ),
        (
            _with("topic =", "options = { valueFormat = 'json' }\ntopic ="),
            "p.toml:4",
            "source[0].options.valueFormat",
            "belongs in [decode]",
        ),
        (SMALL + "[decode]\nformat = 'avro'\n", "p.toml:5", "decode.schema", "exactly one of schema (JSON), schema_file and registry"),
        (SMALL + "[decode]\nformat = 'avro'\nschema = 'id STRING'\n", "p.toml:7", "decode.schema", "is not an Avro schema in JSON"),
        (SMALL + "[decode]\nformat = 'avro'\nschema_file = 'no.avsc'\n", "p.toml:7", "decode.schema_file", "there is no file no.avsc"),
        (SMALL + "[decode]\nformat = 'protobuf'\nmessage = 'a.B'\n", "p.toml:5", "decode.descriptor", "--descriptor_set_out"),
        (
            SMALL + "[decode]\nformat = 'protobuf'\nregistry = 'http://h'\ndescriptor = 'd'\n",
            "p.toml:8",
            "decode.descriptor",
            "exclude each other",
        ),
        (SMALL + "[decode]\nformat = 'protobuf'\nsubject = 's'\ndescriptor = 'd'\n", "p.toml:7", "decode.subject", "needs registry"),
        (SMALL + "[decode]\nformat = 'json-schema'\n", "p.toml:5", "decode.registry", 'are format = "json"'),
        (SMALL + "[functions]\nmodule = 'none.py'\n", "p.toml:6", "functions.module", "there is no file none.py"),
        (SMALL + "[functions]\nfiles = []\n", "p.toml:5", "functions.module", "name the Python file"),
        (SMALL + "[[step]]\nname = 'a'\nsql = '/* x */ DROP VIEW records'\n", "p.toml:7", "step[0].sql", "is not a query"),
        (SMALL + "[[step]]\nname = 'a'\nsql = 'SELECT 1'\nwithin = 'watermark'\n", "p.toml:8", "step[0].within", "needs deduplicate"),
    ],
)
def test_an_error_of_sources_steps_and_functions_names_its_line(text: str, where: str, key: str, sentence: str) -> None:
    with pytest.raises(PipelineError) as refused:
        read(text)
    assert (refused.value.where, refused.value.key) == (where, key)
    assert sentence in refused.value.problem


def test_lines_of_sql_match_the_file_after_substitution() -> None:
    text = SMALL + "[[step]]\nname = 'a'\nsql = '''\nSELECT ${columns},\n  last\nFROM records'''\n"
    step = read(text, columns="one,\ntwo,\nthree").steps[0]
    assert [step.line_at(step.sql.index(word)) for word in ("SELECT", "two", "last", "FROM")] == [8, 8, 9, 10]


@pytest.mark.parametrize(
    ("module", "line", "sentence"),
    [
        ("def f(x) -> str:\n  return", None, ""),
        ("\ndef f(x):\n  return x\n", 2, "has no return type; write def f(...) -> str:"),
        ("\n\nasync def f(x) -> str:\n  return x\n", 3, "is async"),
        ("def f(x) -> str:\n  return (\n", 2, "is not Python"),
        ("import os\n", 1, "has no public function"),
    ],
)
def test_a_module_of_functions_is_checked_without_running_it(tmp_path: Path, module: str, line: int | None, sentence: str) -> None:
    (tmp_path / "own.py").write_text(module)
    text = SMALL + "[functions]\nmodule = 'own.py'\n"
    if line is None:
        assert parse(text, tmp_path / "p.toml", {}).functions is not None
        return
    with pytest.raises(PipelineError) as refused:
        parse(text, tmp_path / "p.toml", {})
    assert refused.value.where == f"{tmp_path / 'own.py'}:{line}"
    assert sentence in refused.value.problem


def test_python_types_are_types_of_sql() -> None:
    @dataclass
    class Pair:
        left: str
        right: list[int]

    assert sql_type(Pair) == "STRUCT<`left`: STRING, `right`: ARRAY<BIGINT>>"
    assert sql_type(dict[str, float | None]) == "MAP<STRING, DOUBLE>"
    with pytest.raises(NoSqlType, match="complex"):
        sql_type(complex)

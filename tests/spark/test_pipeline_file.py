"""What a pipeline file may say, and what is answered to one that cannot be run."""

from pathlib import Path

import pytest

from ottla.spark.pipeline.file import load, parse
from ottla.spark.pipeline.model import Field, Pipeline
from ottla.spark.pipeline.table import PipelineError

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
    assert pipeline.sources[0].decode.fields["at"] == Field("timestamp", "dd/MMM/yyyy:HH:mm:ss Z")
    assert [step.name for step in pipeline.steps] == ["sized", "by_host"]
    assert [(sink.type, sink.view, sink.mode) for sink in pipeline.sinks] == [("delta", "by_host", "merge"), ("topic", "sized", None)]
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "3"}


def test_the_smallest_pipeline_is_named_after_its_file_and_shows_text() -> None:
    pipeline = read(SMALL)
    assert (pipeline.name, pipeline.sources[0].decode.format, pipeline.sinks[0].view) == ("p", "text", "records")
    assert pipeline.trigger == "1 second"


def test_variables_come_from_the_command_line_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "v.toml"
    file.write_text('bootstrap = "${OTTLA_A}:${OTTLA_B}"\n' + SMALL)
    monkeypatch.setenv("OTTLA_A", "env")
    monkeypatch.setenv("OTTLA_B", "env")
    assert load(file, {"OTTLA_A": "given"}).bootstrap == "given:env"


@pytest.mark.parametrize(
    ("text", "where", "key", "sentence"),
    [
        ("nmae = 'x'\n" + SMALL, "p.toml:1", "nmae", "unknown key; did you mean name?"),
        ("trigger = 'often'\n" + SMALL, "p.toml:1", "trigger", "expected continuous, available-now, once, or a time"),
        ("name = 3\n" + SMALL, "p.toml:1", "name", "expected text, not 3"),
        ("bootstrap = '${nobody_set_this}'\n" + SMALL, "p.toml:1", "bootstrap", "give one with --var nobody_set_this=VALUE"),
        (SMALL + "[[step]]\nname = 'a'\nsql = 'SELECT ${c}'\n", "p.toml:7", "step[0].sql", "--var c=VALUE"),
        (SMALL.replace("[[", "options = { groupIdPrefix = '${p}' }\n[[", 1), "p.toml:3", "source.options.groupIdPrefix", "--var p=VALUE"),
        ("", "p.toml", "source", "is missing; say which topic is read"),
        ("[source]\ntopic = 't'\n", "p.toml", "sink", "say where results go"),
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
        (SMALL + "[[step]]\nname = 'a b'\nsql = 'x'\n", "p.toml:6", "step[0].name", "no name for a view"),
        (SMALL + "[[step]]\nname = 'a'\nsql = 'x'\n[[step]]\nname = 'a'\nsql = 'x'\n", "p.toml:9", "step[1].name", "already a view a"),
        (SMALL + "[[step]]\nname = 'a'\n", "p.toml:5", "step[0].sql", "give the query"),
        (
            SMALL + "[[step]]\nname = 'a'\nsql = 'x'\nwatermark = { column = 'at', delay = 'soon' }\n",
            "p.toml:8",
            "step[0].watermark.delay",
            "a number and a unit",
        ),
        (SMALL + "[[sink]]\ntype = 'delta'\n", "p.toml:5", "sink[1].path", "in which directory"),
        (SMALL + "[[sink]]\ntype = 'delta'\npath = 'x'\nmode = 'merge'\n", "p.toml:5", "sink[1].keys", "merge replaces the row"),
        (SMALL + "[[sink]]\ntype = 'topic'\ntopic = 'x'\nfrom = 'recrods'\n", "p.toml:8", "sink[1].from", "did you mean records?"),
        (SMALL + "[[sink]]\ntype = 'console'\nrows = 0\n", "p.toml:7", "sink[1].rows", "a whole number above 0"),
        ("name = \n", "p.toml", "", "is not TOML"),
    ],
)
def test_an_error_names_file_line_and_key_and_says_what_to_do(text: str, where: str, key: str, sentence: str) -> None:
    with pytest.raises(PipelineError) as refused:
        read(text)
    assert (refused.value.where, refused.value.key) == (where, key)
    assert sentence in refused.value.problem


def test_a_file_that_is_not_there_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"nothing\.toml: cannot be read: No such file"):
        load(tmp_path / "nothing.toml")

"""URLs in place of a path are refused by name before anything is created, in every command and key that takes a path."""

import itertools
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ottla.base.paths import NotLocal, local_path
from ottla.cli.common.lazy import LazyGroup
from ottla.cli.common.paths import LocalFile, LocalPath
from ottla.cli.main import main
from ottla.spark.pipeline.config.file import load
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.sink.options import SinkOptions
from ottla.spark.source.options import OptionError, SourceOptions

SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss", "wasb", "hdfs", "http", "https", "az", "ftp", "S3", "x-y.z+1")
CONSOLE = '[[sink]]\ntype = "console"\n'
#: Every key of a pipeline file that takes a path, but no checkpoint: it may be at a URL of Hadoop (test_checkpoint_url.py).
KEYS = {
    "sink[0].path": '[source]\ntopic = "t"\n[[sink]]\ntype = "delta"\npath = "{}"\n',
    "source.path": '[source]\ntype = "files"\nformat = "csv"\npath = "{}"\n[[sink]]\ntype = "console"\n',
    "dead_letters.path": '[source]\ntopic = "t"\n[[rule]]\nname = "r"\ncheck = "1"\n[dead_letters]\npath = "{}"\n' + CONSOLE,
    "functions.module": '[functions]\nmodule = "{}"\n[source]\ntopic = "t"\n[[sink]]\ntype = "console"\n',
    "decode.schema_file": '[source]\ntopic = "t"\n[decode]\nformat = "avro"\nschema_file = "{}"\n[[sink]]\ntype = "console"\n',
}
#: Those of them that take object stores of the known schemes.
OPENED = ("sink[0].path", "dead_letters.path")
MORE_SINKS = ('[[sink]]\ntype = "parquet"\npath = "{}"\n', '[[sink]]\ntype = "delta"\nmode = "replace"\npath = "{}"\n')


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_url_scheme_but_file_is_refused_by_name(scheme: str) -> None:
    with pytest.raises(NotLocal, match=f"bucket/x is not a local path: .*{scheme.lower().replace('+', '.')}://"):
        local_path(f"{scheme}://me:secret@bucket/x")
    with pytest.raises(NotLocal) as refused:
        local_path(f"{scheme}://me:secret@bucket/x")
    assert "secret" not in str(refused.value)


def test_local_paths_are_unchanged_and_file_urls_become_paths() -> None:
    for path in ("a/b", "/a/b", "C:/a", "a:b", "s3:/b", "logs/*.csv", "-"):
        assert local_path(path) == path
    assert local_path("file:///a%20b/c") == local_path("file://localhost/a%20b/c") == "/a b/c"
    with pytest.raises(NotLocal, match="names another machine"):
        local_path("file://elsewhere/a")


@pytest.mark.parametrize(("key", "scheme"), [(key, "wasb" if key in OPENED else "s3") for key in KEYS])
def test_validate_refuses_a_url_with_line_and_key_and_creates_nothing(
    key: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "p.toml"
    file.write_text(KEYS[key].format(f"{scheme}://bucket/x"))
    for command in (["validate", "--no-spark"], ["run"], ["status"], ["plan"]):
        done = CliRunner().invoke(main, ["pipeline", command[0], str(file), *command[1:]])
        assert done.exit_code == 2, done.output
        assert f"{key}: {scheme}://bucket/x is not a local path: object stores ({scheme}://) are not supported" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["p.toml"]


@pytest.mark.parametrize("sink", MORE_SINKS)
def test_every_sink_with_a_path_refuses_a_url(sink: str, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('[source]\ntopic = "t"\n' + sink.format("wasb://c/x"))
    with pytest.raises(PipelineError, match=r"sink\[0\].path: wasb://c/x is not a local path"):
        load(file)


@pytest.mark.parametrize(
    "words",
    [
        ["table", "sync", "t", "--to", "wasb://b/x"],
        ["table", "status", "wasb://b/x"],
        ["table", "compact", "wasb://b/x"],
        ["pipeline", "export", "t", "--to", "wasb://b/x"],
        ["pipeline", "export", "t", "--to", "wasb://b/x", "--format", "parquet"],
        ["pipeline", "load", "wasb://b/x/*.csv", "--to", "t", "--dry-run"],
        ["pipeline", "load", "x.csv", "--to", "t", "--state", "s3://b/x"],
        ["pipeline", "load", "x.csv", "--to", "t", "--bad-records", "s3://b/x"],
        ["pipeline", "run", "s3://b/x"],
        ["consume", "t", "--parquet", "s3://b/x"],
        ["produce", "t", "s3://b/x"],
        ["serve", "--data-dir", "s3://b/x"],
        ["serve", "--data-dir", "d", "--set", "log.dirs=s3://b/x"],
    ],
)
def test_every_command_refuses_a_url_and_creates_nothing(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # `serve` sets up the log of its process, which here is that of all tests.
    monkeypatch.setattr("ottla.server.broker_log.set_up", lambda *_: None)
    done = CliRunner().invoke(main, words)
    assert done.exit_code in (1, 2) and re.search(r"(s3|wasb)://b/x.* is not a local path: object stores \(\1://\)", done.output), (
        done.output
    )
    assert list(tmp_path.iterdir()) == []


def commands(group: click.Command, context: click.Context) -> list[click.Command]:
    if not isinstance(group, LazyGroup):
        return [group]
    below = [group.get_command(context, name) for name in group.list_commands(context)]
    return [group, *itertools.chain.from_iterable(commands(one, context) for one in below if one is not None)]


def test_every_option_and_argument_with_a_path_refuses_urls() -> None:
    with click.Context(main) as context:
        taking = [
            (command.name, parameter.name, parameter.type)
            for command in commands(main, context)
            for parameter in command.params
            if isinstance(parameter.type, click.Path | click.File)
        ]
    assert len(taking) > 20
    assert [one for one in taking if not isinstance(one[2], LocalPath | LocalFile)] == []


def test_source_and_sink_options_refuse_urls() -> None:
    base = {"bootstrap.servers": "h:1", "subscribe": "t"}
    for options in ({"dataLossReportTo": "s3://b/x"}, {"valueFormat": "protobuf", "valueMessage": "m", "valueDescriptor": "s3://b/x"}):
        with pytest.raises(OptionError, match="s3://b/x is not a local path"):
            SourceOptions.of({**base, **options}, streaming=True)
    with pytest.raises(OptionError, match="reportTo: s3://b/x is not a local path"):
        SinkOptions.of({"bootstrap.servers": "h:1", "topic": "t", "reportTo": "s3://b/x"})

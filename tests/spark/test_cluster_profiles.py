"""Sources, sinks and pipeline files take brokers and settings from profiles and from the environment, as clients do. Without Spark."""

from pathlib import Path

import pytest

from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.sink.options import SinkOptions
from ottla.spark.source.options import OptionError, SourceOptions

FILE = """\
[profiles.staging]
bootstrap_servers = "staging:9092"
request_timeout_ms = 5000
group_id = "billing"
auto_offset_reset = "latest"

[profiles.secured]
bootstrap_servers = "secured:9092"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "alice"
sasl_password = "env:PASSWORD"
"""
PIPELINE = '[source]\ntopic = "t"\n[[sink]]\ntype = "console"\n'


@pytest.fixture(autouse=True)
def profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("OTTLA_BOOTSTRAP", "OTTLA_BOOTSTRAP_SERVERS", "OTTLA_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    monkeypatch.setenv("OTTLA_CONFIG", str(path))
    return path


def source(**options: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", **options}, streaming=True)


def pipeline(text: str = "", **options: str) -> Pipeline:
    return parse(text + PIPELINE, Path("p.toml"), {}, **options)


def test_a_source_takes_brokers_and_settings_of_a_profile() -> None:
    found = source(profile="staging")
    assert (found.bootstrap, found.client["request.timeout.ms"], found.group) == ("staging:9092", "5000", None)
    assert "auto.offset.reset" not in found.client, "Spark decides where a query starts"
    given = source(profile="staging", **{"kafka.request.timeout.ms": "7", "bootstrap.servers": "other:1"})
    assert (given.bootstrap, given.client["request.timeout.ms"]) == ("other:1", "7")


def test_a_sink_takes_the_secret_of_a_profile_from_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "hush")
    found = SinkOptions.of({"profile": "secured", "topic": "t"})
    assert (found.bootstrap, found.client["sasl.password"]) == ("secured:9092", "hush")
    assert "hush" not in repr(found)


def test_without_an_address_the_environment_and_the_profile_in_use_apply(monkeypatch: pytest.MonkeyPatch, profiles: Path) -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers: is missing; give the address of a broker, .*, or a profile"):
        source()
    profiles.write_text('current = "staging"\n' + FILE)
    assert source().bootstrap == "staging:9092"
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVERS", "environment:9092")
    assert (source().bootstrap, dict(source().client)) == ("environment:9092", {})
    assert source(profile="staging").bootstrap == "staging:9092"


def test_with_an_address_no_profile_is_read(profiles: Path) -> None:
    profiles.write_text("no file of profiles")
    assert source(**{"bootstrap.servers": "h:1"}).bootstrap == "h:1"
    assert pipeline('bootstrap = "h:1"\n').bootstrap == "h:1"


def test_a_profile_that_does_not_exist_is_refused_with_a_suggestion() -> None:
    with pytest.raises(OptionError, match=r"option profile: .*did you mean staging"):
        source(profile="stageing")
    with pytest.raises(PipelineError, match="did you mean staging"):
        pipeline('profile = "stageing"\n')


def test_a_pipeline_names_a_profile_or_takes_that_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pipeline().bootstrap == "127.0.0.1:9092"
    found = pipeline('profile = "staging"\nkafka = { "client.id" = "me" }\n')
    assert (found.bootstrap, found.kafka) == ("staging:9092", {"kafka.request.timeout.ms": "5000", "kafka.client.id": "me"})
    assert pipeline('bootstrap = "h:1"\n', profile="staging").bootstrap == "staging:9092"
    monkeypatch.setenv("OTTLA_PROFILE", "staging")
    assert pipeline().bootstrap == "staging:9092"
    with pytest.raises(PipelineError, match="is given besides bootstrap"):
        pipeline('profile = "staging"\nbootstrap = "h:1"\n')

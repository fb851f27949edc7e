"""`[kafka]` of a pipeline file: settings of clients for the pipeline's brokers."""

from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.sinks import TopicTarget
from ottla.spark.pipeline.views import options_of

SASL = """
[kafka]
security.protocol = "SASL_SSL"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "visits"
"sasl.password" = "${SECRET}"
"""
SOURCE = '[source]\ntopic = "in"\n'
SINK = '[[sink]]\ntype = "topic"\ntopic = "out"\n'


def pipeline(kafka: str = SASL, source: str = SOURCE) -> Pipeline:
    return parse(f'bootstrap = "h:1"\n{kafka}{source}{SINK}', Path("p.toml"), {"SECRET": "s3cret"})


def credentials(options: Any) -> tuple[str | None, str | None]:
    return options.get("kafka.sasl.username"), options.get("kafka.sasl.password")


def test_sources_and_sinks_have_the_settings() -> None:
    parsed = pipeline()
    for options in (options_of(parsed, parsed.sources[0]), TopicTarget(parsed.sinks[0], parsed).options):
        assert options["kafka.security.protocol"] == "SASL_SSL"
        assert credentials(options) == ("visits", "s3cret")
    assert "s3cret" not in repr(parsed)


def test_a_sources_own_settings_come_first_and_other_brokers_get_no_credentials() -> None:
    own = pipeline(source=SOURCE + 'options = { "kafka.sasl.username" = "other" }\n')
    assert credentials(options_of(own, own.sources[0])) == ("other", "s3cret")
    elsewhere = pipeline(source=SOURCE + 'bootstrap = "elsewhere:1"\n')
    options = options_of(elsewhere, elsewhere.sources[0])
    assert options["kafka.bootstrap.servers"] == "elsewhere:1"
    assert credentials(options) == (None, None)


@pytest.mark.parametrize(
    ("kafka", "problem"),
    [
        ('security.protocl = "SSL"', "p.toml:3: kafka.security.protocl: is not a setting of a client; did you mean security.protocol?"),
        ('security.protocol = "SASL_SSL"', "kafka.sasl.mechanism: is not set"),
        ('ssl.truststore.location = "/ca.pem"', "kafka.ssl.truststore.location: has no effect with security_protocol=PLAINTEXT"),
        ('bootstrap.servers = "h:1"', "kafka.bootstrap.servers: may not be set here; set bootstrap"),
        ('transactional.id = "x"', "kafka.transactional.id: may not be set here; the sinks choose it"),
        ("client.id = []", "kafka.client.id: expected a text, a number, true or false"),
        ('sasl.password = "${MISSING}"', "has no value; give one with --var MISSING=VALUE, or in the environment"),
    ],
)
def test_mistakes_are_named_with_their_key(kafka: str, problem: str) -> None:
    with pytest.raises(PipelineError) as refused:
        pipeline(f"[kafka]\n{kafka}\n")
    assert problem in str(refused.value)

"""Spark and pipelines against a broker with TLS, SCRAM and access rules, and what Spark shows of the secrets: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from certificates import Certificate
from ottla.results import Acl, AclOperation, AclPatternType, AclResourceType
from ottla.spark.sink.decision import DECISIONS_PARTITIONS, DECISIONS_TOPIC
from ottla.testing import broker

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.xdist_group("spark_processes"), pytest.mark.timeout(300)]

SENTINEL = "s3ntinel"
#: What a job with the two-phase sink may do, and nothing else.
RULES = (
    (AclResourceType.TOPIC, "", (AclOperation.READ, AclOperation.WRITE)),
    (AclResourceType.GROUP, "ottla-spark", (AclOperation.READ, AclOperation.DESCRIBE)),
    (AclResourceType.TRANSACTIONAL_ID, "ottla-spark", (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.TWO_PHASE_COMMIT)),
)
PIPELINE = """
bootstrap = "{bootstrap}"
checkpoint = "{directory}/pipeline"
trigger = "available-now"

[kafka]
security.protocol = "SASL_SSL"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "spark"
sasl.password = "${{PIPELINE_PASSWORD}}"
"ssl.truststore.type" = "PEM"
"ssl.truststore.location" = "{ca}"

[source]
topic = "in"

[[sink]]
type = "topic"
topic = "piped"
"""


def rules() -> Iterator[Acl]:
    for kind, prefix, operations in RULES:
        for operation in operations:
            name, form = (prefix, AclPatternType.PREFIXED) if prefix else ("*", AclPatternType.LITERAL)
            yield Acl(principal="User:spark", operation=operation, resource_type=kind, name=name, pattern_type=form)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], Path, str]]:
    """What the job showed, its directory, and a line of the client's private key."""
    directory = tmp_path_factory.mktemp("secured")
    settings = {"transaction.two.phase.commit.enable": "true"}
    with broker(tls=True, users={"spark": SENTINEL}, acls=rules(), settings=settings) as started:
        for topic in ("in", "out", "piped"):
            started.topic(topic)
        started.topic(DECISIONS_TOPIC, partitions=DECISIONS_PARTITIONS)
        options = {f"kafka.{name}": value for name, value in started.java_settings("spark", "SCRAM-SHA-512").items()}
        # Not needed here, and secret.
        certificate = Certificate.authority().issue("spark")
        key = certificate.key_pem()
        options |= {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.key": key,
            "kafka.ssl.keystore.certificate.chain": certificate.pem,
        }
        wrong = {"kafka.sasl.jaas.config": options["kafka.sasl.jaas.config"].replace(SENTINEL, f"{SENTINEL}-wrong")}
        job = directory / "job"
        job.mkdir()
        text = PIPELINE.format(bootstrap=started.bootstrap_servers, directory=job, ca=started.ca_file)
        (directory / "settings.json").write_text(json.dumps({"options": options, "wrong": wrong, "directory": str(job), "text": text}))
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("secured_job.py")), str(directory / "settings.json")],
            env={**os.environ, "PIPELINE_PASSWORD": SENTINEL},
            capture_output=True,
            text=True,
            timeout=280,
        )
        shown: dict[str, Any] = json.loads((job / "shown.json").read_text()) if (job / "shown.json").exists() else {}
        (job / "output").write_text(done.stdout + done.stderr)
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        yield shown, job, key.splitlines()[1]


def test_batches_streams_and_pipelines_read_and_write_with_scram_over_tls(ran: tuple[dict[str, str], Path, str]) -> None:
    shown, *_ = ran
    assert (shown["batch rows"], shown["rows out"], shown["rows of the pipeline"]) == ("20", "20", "20")
    assert '"brokers": null' in shown["pipeline status"]
    for who in ("reader", "writer"):
        assert "refused the credentials" in shown[f"error of a {who}"]


def test_secrets_show_nowhere(ran: tuple[dict[str, str], Path, str]) -> None:
    shown, job, key = ran
    assert len([name for name in shown if name.startswith("page of execution")]) > 3, "there is something to look at"
    assert [name for name in shown if name.startswith("arguments of")], "there are workers"
    written = {str(path.relative_to(job)): path.read_bytes() for path in job.rglob("*") if path.is_file() and path.name != "shown.json"}
    assert any(name.startswith("events/") for name in written)
    for secret in (SENTINEL, key):
        assert [name for name, text in shown.items() if secret in text] == []
        assert [name for name, data in written.items() if secret.encode() in data] == []

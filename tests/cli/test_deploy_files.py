"""Files for containers in `deploy/`: the Dockerfile, the compose files and the Helm chart, read as the broker would be started by them.

`make deploy-check` brings the tools without which some tests are skipped: hadolint, helm, kubernetes-validate.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from commands import command
from ottla.base.version import VERSION
from ottla.server.process_plan import ProcessPlan
from ottla.server.server_properties import accepted_settings, parse_properties, settings_of_environment

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKER, CHART = DEPLOY / "docker", DEPLOY / "helm" / "ottla"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE = ("compose.yaml", "compose-cluster.yaml")
KUBERNETES = "1.30"


def instructions(name: str) -> list[str]:
    """Arguments of the instructions of this name in the last stage of the Dockerfile."""
    stage = DOCKERFILE.replace("\\\n", " ").split("\nFROM ")[-1]
    return [line.split(None, 1)[1] for line in stage.splitlines() if line.split(None, 1)[:1] == [name]]


def image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for line in instructions("ENV") for pair in shlex.split(line))


def parsed(words: list[str]) -> click.Context:
    """A command line of the image. Raises: UsageError."""
    return command(words[0]).make_context(words[0], words[1:])


def broker_accepts(environment: dict[str, str], properties: str = "") -> ProcessPlan:
    """The plan of a broker with these variables; a setting without effect is an error."""
    given = {**parse_properties(properties), **settings_of_environment(environment)}
    accepted = accepted_settings(given)
    assert (accepted.warnings, accepted.plugins) == ([], {})
    plan = ProcessPlan(data_dir=Path("data"), texts=accepted.texts)
    assert not plan.warnings() and plan.listeners()
    return plan


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: make deploy-check")
    return found


def run(*words: str, code: int = 0) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


# The image


def test_hadolint_has_nothing_to_say() -> None:
    assert run(tool("hadolint"), str(DOCKER / "Dockerfile")) == ""


def test_the_image_runs_a_broker_as_a_user_without_rights_and_is_asked_for_its_health() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", instructions("USER")[0])
    assert parsed(json.loads(instructions("CMD")[0])).params["from_environment"]
    assert "/health/ready" in instructions("HEALTHCHECK")[0]
    assert not re.search(r"\bapt-get\b|:latest\b", DOCKERFILE)
    broker_accepts(image_environment())


def test_what_the_image_is_built_from_is_sent_to_the_builder() -> None:
    sent = {line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {word for line in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()}
    assert copied == sent and all((DEPLOY.parent / path).exists() for path in copied)


# Compose


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_files_start_brokers_with_settings_that_they_accept(name: str) -> None:
    services: dict[str, Any] = yaml.safe_load((DOCKER / name).read_text())["services"]
    brokers = {key: one for key, one in services.items() if one["image"] == "ottla" and "command" not in one}
    ids = set()
    for key, one in brokers.items():
        plan = broker_accepts({**image_environment(), **one["environment"]})
        ids.add(plan.options().broker_id)
        inside, outside = plan.listeners().advertised
        assert inside.host == key and outside.host == "localhost"
        assert one["ports"] == [f"127.0.0.1:{outside.port}:{outside.port}"]
        assert one["read_only"] and one["cap_drop"] == ["ALL"]
    assert len(ids) == len(brokers) == (3 if "cluster" in name else 1)
    console = parsed(services["console"]["command"]).params
    assert console["is_read_only" if "is_read_only" in console else "read_only"]


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_files_name_what_exists_and_open_ports_to_this_machine_only(name: str) -> None:
    content = yaml.safe_load((DOCKER / name).read_text())
    services: dict[str, Any] = content["services"]
    for one in services.values():
        assert one["image"] == "ottla" or re.search(r":v?\d+\.\d+", one["image"]), "versions are named"
        assert all(port.startswith("127.0.0.1:") for port in one.get("ports", ()))
        assert set(one.get("depends_on", ())) <= services.keys()
        for volume in one.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DOCKER / source).exists() if source.startswith(".") else source in content["volumes"]
    scraped = yaml.safe_load((DOCKER / name.replace("compose", "prometheus").replace(".yaml", ".yml")).read_text())
    targets = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    assert {target.removesuffix(":9644") for target in targets} == {key for key in services if key.startswith("broker")}


# The chart


def test_the_chart_has_the_version_and_the_alerts_of_this_tree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == VERSION
    assert (CHART / "files" / "alerts.yml").read_text() == (DEPLOY / "prometheus" / "alerts.yml").read_text()


def test_every_value_of_the_chart_is_in_its_schema() -> None:
    def missing(values: dict[str, Any], schema: dict[str, Any], where: str) -> list[str]:
        found = []
        for key, value in values.items():
            below = schema.get("properties", {}).get(key)
            if below is None:
                found.append(f"{where}{key}")
            elif isinstance(value, dict) and below.get("additionalProperties") is False:
                found += missing(value, below, f"{where}{key}.")
        return found

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert missing(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "") == []


def rendered(*settings: str) -> list[dict[str, Any]]:
    """Objects of the chart."""
    options = [f"--set={one}" for one in settings]
    text = run(tool("helm"), "template", "r", str(CHART), "--namespace=kafka", f"--kube-version={KUBERNETES}", *options)
    return [one for one in yaml.safe_load_all(text) if one]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(one for one in objects if one["kind"] == kind)


THREE = ("replicas=3", "zookeeper.connect=zk-0.zk:2181\\,zk-1.zk:2181/ottla", "settings.log\\.segment\\.bytes=1073741824")
EVERYTHING = (
    *THREE, "console.enabled=true", "client.existingSecret=client", "networkPolicy.enabled=true", "spread=required",
    "networkPolicy.clients[0].namespaceSelector.matchLabels.team=a", "existingSecret=passwords", "persistence.storageClass=fast",
    "imagePullSecrets[0].name=registry", "nodeSelector.disk=ssd", "podAnnotations.a=b", "priorityClassName=high",
)  # fmt: skip


@pytest.mark.parametrize("settings", [(), EVERYTHING, ("persistence.enabled=false", "spread=none")], ids=("default", "all", "least"))
def test_the_chart_renders_to_objects_of_kubernetes(settings: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(rendered(*settings)))
    run(tool("kubernetes-validate"), "--strict", str(path))


def test_monitoring_objects_have_the_alerts() -> None:
    objects = rendered("metrics.serviceMonitor.enabled=true", "metrics.rules.enabled=true")
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    assert of_kind(objects, "PrometheusRule")["spec"] == alerts
    labels = of_kind(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
    assert [one["metadata"]["name"] for one in objects if one["kind"] == "Service" and labels <= one["metadata"]["labels"].items()] == [
        "r-ottla-brokers"
    ]


def test_pods_are_brokers_with_settings_that_they_accept() -> None:
    objects = rendered(*THREE)
    pod = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]
    (broker,) = pod["containers"]
    assert parsed(broker["args"]).params["from_environment"]
    environment = {one["name"]: one.get("value", "2") for one in broker["env"]}
    name = environment.pop("POD_NAME")
    environment["KAFKA_ADVERTISED_LISTENERS"] = environment["KAFKA_ADVERTISED_LISTENERS"].replace("$(POD_NAME)", name)
    plan = broker_accepts({**image_environment(), **environment}, of_kind(objects, "ConfigMap")["data"]["server.properties"])
    assert (plan.options().broker_id, plan.options().zookeeper_connect) == (2, "zk-0.zk:2181,zk-1.zk:2181/ottla")
    assert plan.texts["log.segment.bytes"] == "1073741824"
    assert plan.listeners().advertised[0].host == "2.r-ottla-brokers.kafka.svc"
    assert pod["securityContext"]["runAsNonRoot"] and broker["securityContext"]["readOnlyRootFilesystem"]
    assert pod["securityContext"]["runAsUser"] == int(instructions("USER")[0].split(":")[0])


def test_a_rolling_restart_waits_for_a_healthy_cluster() -> None:
    objects = rendered(*THREE, "healthyWaitSeconds=300", "closeSeconds=60")
    spec = of_kind(objects, "StatefulSet")["spec"]
    pod = spec["template"]["spec"]
    (broker,) = pod["containers"]
    words = broker["lifecycle"]["preStop"]["exec"]["command"]
    assert words[0] == "ottla" and command(*words[1:3]).make_context("health", words[3:]).params["exit_when_healthy"]
    assert "--timeout=300s" in words and pod["terminationGracePeriodSeconds"] == 360
    assert broker["readinessProbe"]["httpGet"]["path"] == "/health/ready" and broker["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert spec["minReadySeconds"] > 0 and of_kind(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (("replicas=3",), "several brokers need ZooKeeper: set zookeeper.connect"),
        (("console.enabled=true", "console.readOnly=false"), "without console.loginSecret the console has no login"),
        (("replica=3",), "replica"),
        (("settings.listeners=x",), "invalid propertyName 'listeners'"),
        (("zookeeper.connect=zk",), "zookeeper"),
    ],
)
def test_values_that_cannot_work_are_refused(settings: tuple[str, ...], problem: str) -> None:
    options = [f"--set={one}" for one in settings]
    assert problem in run(tool("helm"), "template", "r", str(CHART), f"--kube-version={KUBERNETES}", *options, code=1)


def test_helm_lints_the_chart() -> None:
    run(tool("helm"), "lint", "--strict", "--quiet", str(CHART), f"--kube-version={KUBERNETES}")

"""The alerts for Prometheus and the dashboard for Grafana in deploy/: their metrics exist, and each alert has its section in the docs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ottla.server.metrics.families import FAMILIES, HISTOGRAM, SUMMARY

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROMTOOL = shutil.which("promtool")
RULES: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "grafana" / "ottla.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
NAME = re.compile(r"\b(?:kafka|ottla|jvm)_[a-z_]+\b")


def unknown(expression: str) -> set[str]:
    """Names in an expression that no metric has."""
    ends = {HISTOGRAM: ("_bucket", "_count", "_sum"), SUMMARY: ("", "_count", "_sum")}
    known = {family.name + end for family in FAMILIES.values() for end in ends.get(family.kind, ("",))}
    return set(NAME.findall(expression)) - known


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_uses_existing_metrics_and_names_its_section(rule: dict[str, Any]) -> None:
    assert not unknown(rule["expr"])
    assert rule["labels"]["severity"] in ("critical", "warning") and rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    sections = (ROOT / page).read_text().split("\n## ")[1:]
    found = [one for one in sections if re.sub(r"[^a-z0-9-]", "", one.splitlines()[0].lower().replace(" ", "-")) == anchor]
    assert len(found) == 1 and f"`{rule['alert']}`" in found[0], "the section says what the alert means"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_draws_existing_metrics(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        assert not unknown(target["expr"])


def test_panels_do_not_overlap_and_the_file_is_up_to_date() -> None:
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "dashboard.py"), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: apt-get install prometheus)")
@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "alerts.yml"), ("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")],
    ids=" ".join,
)
def test_promtool_accepts_the_files_and_the_alerts_fire(arguments: tuple[str, ...]) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: apt-get install prometheus)")
def test_promtool_reads_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}:x", "expr": target["expr"]} for number, panel in enumerate(PANELS) for target in panel["targets"]]
    unique = list({rule["expr"]: rule for rule in rules}.values())
    for number, rule in enumerate(unique):
        rule["record"] = f"panel:expression_{number}:x"
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": unique}]}))
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

"""`make audit` tells what is known, and does not pass when nothing could be looked up."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from tools import audit

LOCK = (
    "a==1.5 \\\n    --hash=sha256:00\nb[extra]==2.0 ; sys_platform == 'win32' \\\n    --hash=sha256:00\nB.c==3.1 \\\n    --hash=sha256:00\n"
)
TODAY = datetime.date(2026, 11, 29)


def advisory(
    name: str, *events: dict[str, str], versions: tuple[str, ...] = (), published: str = "2026-11-20T10:00:00Z", **more: Any
) -> Any:
    affected: dict[str, Any] = {"package": {"ecosystem": "PyPI", "name": name}, "versions": list(versions)}
    affected["ranges"] = [{"type": "ECOSYSTEM", "events": list(events)}] if events else []
    return {"id": f"PYSEC-{name}", "published": published, "affected": [affected], **more}


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "requirements.lock"
    path.write_text(LOCK)
    return path


def looked_up(lock: Path, *advisories: Any) -> audit.Audit:
    directory = lock.parent / "advisories" / "vulns"
    directory.mkdir(parents=True)
    (directory / "README.md").write_text("no advisory")
    for number, one in enumerate(advisories):
        text = json.dumps(one)
        # JSON is YAML too; PyPA's times are YAML's timestamps.
        (directory / f"{number}.{'json' if number % 2 else 'yaml'}").write_text(text)
    return audit.offline(lock, lock.parent / "advisories", TODAY)


@pytest.mark.parametrize(
    ("events", "affected"),
    [
        ([{"introduced": "0"}], True),
        ([{"introduced": "0"}, {"fixed": "1.5"}], False),
        ([{"introduced": "0"}, {"fixed": "1.10"}], True),
        ([{"introduced": "1.5"}], True),
        ([{"introduced": "1.6"}], False),
        ([{"introduced": "0"}, {"last_affected": "1.5"}], True),
        ([{"introduced": "0"}, {"last_affected": "1.4"}], False),
        # Two spans in one list, in any order.
        ([{"introduced": "2.0"}, {"fixed": "2.1"}, {"introduced": "0"}, {"fixed": "1.0"}], False),
        ([{"introduced": "1.2"}, {"introduced": "0"}, {"fixed": "1.0"}], True),
    ],
)
def test_a_version_is_affected_between_the_events_around_it(lock: Path, events: list[dict[str, str]], affected: bool) -> None:
    found = looked_up(lock, advisory("A", *events))
    assert list(found.vulnerable) == (["a"] if affected else [])
    assert found.report() == (audit.VULNERABLE if affected else audit.CLEAN)


def test_a_listed_version_is_affected_and_a_withdrawn_advisory_counts_no_more(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = advisory("b", versions=("2.0",), withdrawn="2026-11-21T00:00:00Z")
    other = advisory("b", versions=("2.0",))
    other["affected"][0]["package"]["ecosystem"] = "npm"
    found = looked_up(lock, advisory("b-c", {"introduced": "0"}, {"fixed": "3.2"}, versions=("3.1",)), gone, other, advisory("unused"))
    assert found.report() == audit.VULNERABLE
    assert "b-c 3.1: PYSEC-b-c, fixed in 3.2\n3 packages were checked, 1 have known vulnerabilities" in capsys.readouterr().out


def test_an_old_or_empty_copy_does_not_pass(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.offline(lock, lock.parent, TODAY).report() == audit.UNKNOWN
    assert looked_up(lock, advisory("unused", published="2026-10-01T00:00:00Z")).report() == audit.UNKNOWN
    assert "NOT AUDITED: the copy of advisories ends at 2026-10-01" in capsys.readouterr().err


def test_packages_that_the_database_does_not_know_do_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = {"name": "a", "skip_reason": "not found"}
    clean = {"name": "b", "version": "2.0", "vulns": []}
    bad = {"name": "c", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": []}]}
    assert audit.answered(json.dumps({"dependencies": [clean]}), ["?"]).report() == audit.CLEAN
    assert audit.answered(json.dumps({"dependencies": [unknown, clean]}), ["?"]).report() == audit.UNKNOWN
    assert audit.answered(json.dumps({"dependencies": [unknown, clean, bad]}), ["?"]).report() == audit.VULNERABLE
    capsys.readouterr()
    assert audit.answered(json.dumps({"dependencies": [unknown]}), ["?"]).report() == audit.UNKNOWN
    shown = capsys.readouterr()
    assert "checked, 0 have" not in shown.out and "NOT AUDITED: 1 packages could not be checked: a" in shown.err


@pytest.mark.parametrize("output", ["", "{}", "[]", '{"dependencies": []}'])
def test_no_answer_does_not_pass(output: str) -> None:
    assert audit.answered(output, ["connection refused"]).report() == audit.UNKNOWN

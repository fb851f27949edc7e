"""`ottla doctor` on its own machine: limits, profiles, a data directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from doctor_facts import NOW_MS, a_healthy_cluster, a_probe, found, only, place

from ottla.cli.doctor import local
from ottla.client.admin.results import Node
from ottla.client.doctor.facts import DataDir, Facts, MachineFacts
from ottla.server.data_directory import LockedDirectory

GIB = 2**30


def with_data_dir(**more: object) -> Facts:
    """A healthy data directory with the given changes."""
    facts = Facts(now_ms=NOW_MS, timeout_ms=5000)
    facts.data_dir = DataDir(
        path="/data", free_bytes=50 * GIB, total_bytes=100 * GIB, free_files=10**6, owner="kafka", has_lock=True, holder=7
    )
    for name, value in more.items():
        setattr(facts.data_dir, name, value)
    return facts


def test_a_low_limit_of_open_files_is_a_warning() -> None:
    facts = a_healthy_cluster()
    facts.machine = MachineFacts(files_max=1024)
    assert found(facts) == []
    facts.nodes = [Node(number, "h", 1) for number in range(400)]
    assert "ulimit -n 1300" in only(facts, "client").remedy
    facts.machine = MachineFacts(files_max=None)
    assert found(facts, "client") == []


def test_profile_problems_are_warnings_even_without_a_broker() -> None:
    facts = Facts(now_ms=NOW_MS, timeout_ms=5000, bootstrap=[a_probe(place(1), error="refused")])
    facts.machine = MachineFacts(profile_problems=[("what", "evidence", "remedy")])
    assert [(one.check, one.severity) for one in found(facts)] == [("bootstrap", "problem"), ("profiles", "warning")]


def test_an_unreachable_cluster_is_reported_whichever_checks_were_selected() -> None:
    facts = Facts(now_ms=NOW_MS, timeout_ms=5000, bootstrap=[a_probe(place(1), error="refused")])
    assert only(facts, "partitions").check == "bootstrap"


def test_a_valid_profile_file_has_no_findings(isolated_environment: Path) -> None:
    assert local.profile_problems({}) == []
    isolated_environment.write_text('current = "a"\n[profiles.a]\nbootstrap_servers = "h:9092"\n')
    assert local.profile_problems({"OTTLA_PROFILE": "a"}) == []


def test_profile_problems_are_reported_one_by_one(isolated_environment: Path) -> None:
    isolated_environment.write_text('[profiles.a]\nrequest_timeout_ms = "soon"\nfetch_min_bytes = "few"\nsasl_password = "hush"\n')
    isolated_environment.chmod(0o644)
    report = local.profile_problems({"OTTLA_PROFILE": "b"})
    assert [what for what, _, _ in report] == [
        "Other users can read the secrets of profiles",
        "A profile has an invalid setting",
        "A profile has an invalid setting",
        "OTTLA_PROFILE names a profile that does not exist",
    ]
    assert "hush" not in str(report)
    isolated_environment.write_text("[profiles")
    assert [what for what, _, _ in local.profile_problems({})] == ["The file of profiles is invalid or unreadable"]


def test_contradicting_environment_variables_are_reported() -> None:
    report = local.profile_problems({"OTTLA_BOOTSTRAP": "a:1", "OTTLA_BOOTSTRAP_SERVERS": "b:1"})
    assert "OTTLA_BOOTSTRAP_SERVERS is used" in report[0][2]
    report = local.profile_problems({"OTTLA_BOOTSTRAP": "a:1", "OTTLA_PROFILE": "p"})
    assert report[0][0] == "The profile in OTTLA_PROFILE is ignored"


def test_a_healthy_data_directory_has_no_findings() -> None:
    assert found(with_data_dir(), "data-dir") == [], "and no cluster is needed for that"


@pytest.mark.parametrize(
    ("illness", "severity", "message"),
    [
        ({"error": "it does not exist"}, "problem", "does not exist"),
        ({"is_read_only": True}, "problem", "read-only"),
        ({"free_bytes": 2**20}, "problem", "the reserve is 256 MiB"),
        ({"free_bytes": 9 * GIB}, "warning", "9.0 GiB of 100 GiB free"),
        ({"free_files": 5000}, "warning", "5000 more files"),
        ({"free_files": 10}, "problem", "10 more files"),
        ({"foreign_files": ["a-0 (root)", "b-0 (root)", "c-0 (root)", "d-0 (root)"]}, "problem", "c-0 (root) and 1 more"),
        ({"holder": None}, "note", "its lock is free"),
        ({"holder": None, "has_lock": False}, "note", "no lock file"),
        ({"holder_files": 900, "holder_files_max": 1024}, "warning", "900 open, its limit is 1024"),
        ({"holder_files": 9, "holder_files_max": 1024}, "note", "9 open, its limit is 1024"),
    ],
)
def test_each_problem_of_a_data_directory_is_found(illness: dict[str, object], severity: str, message: str) -> None:
    finding = only(with_data_dir(**illness), "data-dir")
    assert finding.severity == severity and message in finding.evidence


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="who holds a lock is read from /proc")
def test_a_directory_is_inspected_with_the_process_that_holds_its_lock(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    assert local.data_dir(tmp_path).has_lock is False
    held = LockedDirectory(tmp_path)
    try:
        seen = local.data_dir(tmp_path)
        assert (seen.error, seen.has_lock, seen.holder, seen.foreign_files) == (None, True, os.getpid(), [])
        assert 0 < seen.free_bytes <= seen.total_bytes
        assert seen.holder_files is not None and seen.holder_files > 0
    finally:
        held.release()
    assert (local.data_dir(tmp_path).has_lock, local.data_dir(tmp_path).holder) == (True, None)


def test_a_path_that_is_not_a_directory_is_reported(tmp_path: Path) -> None:
    assert local.data_dir(tmp_path / "none").error == "it does not exist"
    (tmp_path / "file").touch()
    assert local.data_dir(tmp_path / "file").error == "it is not a directory"

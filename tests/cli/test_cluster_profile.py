"""The profile that `ottla cluster up` adds and `ottla cluster down` removes."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import Ottla, good
from ottla.cli.cluster.profile import add_profile, remove_profile
from ottla.client import profiles
from ottla.server.local_cluster import ClusterSpec, LocalCluster


def cluster_of(directory: Path, brokers: int = 2, port: int = 9192) -> LocalCluster:
    return LocalCluster(
        directory, ClusterSpec("127.0.0.1:2281", 1, {number: f"127.0.0.1:{port + number}" for number in range(1, brokers + 1)})
    )


def test_a_cluster_gets_a_profile_that_follows_its_brokers_and_goes_with_it(tmp_path: Path, ottla: Ottla) -> None:
    made = cluster_of(tmp_path)
    assert add_profile(made) == "profile local added: use it with --profile local"
    assert add_profile(made) == ""
    assert profiles.cluster_address(None, "local").bootstrap == made.bootstrap
    assert profiles.read().current is None, "the default cluster of commands is unchanged"
    grown = cluster_of(tmp_path, 3)
    assert add_profile(grown).startswith("profile local updated")
    good(ottla("profile", "use", "local"))
    assert remove_profile(grown) == "profile local removed"
    assert profiles.read() == profiles.Profiles(None, {})
    assert remove_profile(grown) == ""


def test_a_profile_of_another_cluster_with_the_same_name_is_kept(tmp_path: Path, ottla: Ottla) -> None:
    good(ottla("profile", "add", "local", "other:9092"))
    made = cluster_of(tmp_path)
    assert f"ottla profile add NAME {made.bootstrap}" in add_profile(made)
    assert remove_profile(made) == ""
    assert profiles.read().by_name["local"].settings == {"bootstrap_servers": "other:9092"}


def test_settings_of_a_user_are_kept(tmp_path: Path, ottla: Ottla) -> None:
    made = cluster_of(tmp_path)
    good(ottla("profile", "add", "local", made.bootstrap, "-X", "client.id=me"))
    assert add_profile(cluster_of(tmp_path, 3)).startswith("profile local updated")
    assert profiles.read().by_name["local"].settings["client_id"] == "me"
    assert "has other settings and was kept" in remove_profile(cluster_of(tmp_path, 3))


def test_a_cluster_starts_without_a_profile_if_the_file_is_invalid(
    tmp_path: Path, isolated_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolated_environment.write_text("not toml")
    assert add_profile(cluster_of(tmp_path)).startswith("no profile was added to ")

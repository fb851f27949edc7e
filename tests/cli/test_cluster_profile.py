"""The profile that `ottla cluster up` adds and `ottla cluster down` removes."""

from __future__ import annotations

from pathlib import Path

from commands import Ottla, good
from ottla.cli.cluster.profile import add_profile, remove_profile
from ottla.client import profiles

TWO = ["127.0.0.1:9193", "127.0.0.1:9194"]
THREE = [*TWO, "127.0.0.1:9195"]


def test_a_cluster_gets_a_profile_that_follows_its_brokers_and_goes_with_it(ottla: Ottla) -> None:
    assert add_profile("local", TWO) == "profile local added: use it with --profile local"
    assert add_profile("local", TWO) == ""
    assert profiles.cluster_address(None, "local").bootstrap == ",".join(TWO)
    assert profiles.read().current is None, "the default cluster of commands is unchanged"
    assert add_profile("local", THREE).startswith("profile local updated")
    good(ottla("profile", "use", "local"))
    assert remove_profile("local", THREE) == "profile local removed"
    assert profiles.read() == profiles.Profiles(None, {})
    assert remove_profile("local", THREE) == ""


def test_a_profile_of_another_cluster_with_the_same_name_is_kept(ottla: Ottla) -> None:
    good(ottla("profile", "add", "local", "other:9092"))
    assert f"ottla profile add NAME {','.join(TWO)}" in add_profile("local", TWO)
    assert remove_profile("local", TWO) == ""
    assert profiles.read().by_name["local"].settings == {"bootstrap_servers": "other:9092"}


def test_settings_of_a_user_are_kept(ottla: Ottla) -> None:
    good(ottla("profile", "add", "local", ",".join(TWO), "-X", "client.id=me"))
    assert add_profile("local", THREE).startswith("profile local updated")
    assert profiles.read().by_name["local"].settings["client_id"] == "me"
    assert "has other settings and was kept" in remove_profile("local", THREE)


def test_a_cluster_starts_without_a_profile_if_the_file_is_invalid(isolated_environment: Path) -> None:
    isolated_environment.write_text("not toml")
    assert add_profile("local", TWO).startswith("no profile was added to ")

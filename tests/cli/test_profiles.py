"""Cluster profiles: the file format, changes by commands, and the choice of the cluster."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from fake_admin import FakeAdmin

from commands import Ottla, documents, good, refused
from ottla.client import profiles
from ottla.net.client_connection import ClientConnection, ConnectionBroken

FILE = """# my clusters
current = "staging"  # for now

[profiles.staging]
# two of three
bootstrap_servers = "s1:9092,s2:9092"
request_timeout_ms = 5000

[profiles.production]
bootstrap_servers = ["p1:9092", "p2:9092"]
client.id = "me"
"""


def test_a_file_defines_settings_as_text_under_their_python_names() -> None:
    found = profiles.parsed(FILE)
    assert found.current == "staging"
    assert list(found.by_name) == ["production", "staging"]
    assert found.by_name["staging"].settings == {"bootstrap_servers": "s1:9092,s2:9092", "request_timeout_ms": "5000"}
    assert found.by_name["production"].settings == {"bootstrap_servers": "p1:9092,p2:9092", "client_id": "me"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('curent = "x"', "did you mean current?"),
        ('current = "x"', "names a profile that does not exist"),
        ("[profiles]\nx = 1", "each profile as a table"),
        ("[profiles.x]\na = 1979-05-27", "neither text nor a number"),
        ("[profiles.x", "Expected"),
        ("[profiles.x]\nstorage = 1", "tables [profiles.x.storage.KIND]"),
        ("[profiles.x.storage]\nendpoint = 1", "tables [profiles.x.storage.KIND]"),
        ("[profiles.x.storage.s4]\nendpoint = 1", "storage.s4 is no kind of object store; there are s3, gs, az"),
    ],
)
def test_an_invalid_file_is_refused_with_its_name(isolated_environment: Path, ottla: Ottla, text: str, message: str) -> None:
    isolated_environment.write_text(text)
    error = refused(ottla("profile", "list"))
    assert message in error
    assert "config.toml" in error


def test_commands_keep_comments_and_unchanged_lines(isolated_environment: Path, ottla: Ottla) -> None:
    isolated_environment.write_text(FILE)
    good(ottla("profile", "add", "local", "localhost:9092", "-X", "request.timeout.ms=1000"))
    good(ottla("profile", "use", "local"))
    good(ottla("profile", "remove", "production"))
    written = isolated_environment.read_text()
    assert "# my clusters" in written
    assert "# two of three" in written
    found = profiles.parsed(written)
    assert found.current == "local"
    assert list(found.by_name) == ["local", "staging"]
    assert found.by_name["local"].settings == {"bootstrap_servers": "localhost:9092", "request_timeout_ms": "1000"}


def test_options_of_object_stores_are_added_shown_and_removed_with_the_profile(isolated_environment: Path, ottla: Ottla) -> None:
    options = [
        "s3.endpoint=https://h:9000",
        "s3.secret_access_key=env:KEY",
        "s3.aws_region=eu-central-1",
        "gs.service_account=/etc/gcs.json",
    ]
    words = [word for one in options for word in ("--storage-option", one)]
    good(ottla("profile", "add", "lake", "h:1", *words))
    text = isolated_environment.read_text()
    found = profiles.parsed(text).by_name["lake"]
    s3 = {"endpoint": "https://h:9000", "secret_access_key": "env:KEY", "region": "eu-central-1"}
    assert found.storage == {"s3": s3, "gs": {"service_account": "/etc/gcs.json"}} and "[profiles.lake.storage.s3]" in text
    shown = documents(ottla("profile", "show", "lake", "-o", "json"), "profile", "show")
    assert shown["settings"]["storage.s3.endpoint"] == "https://h:9000"
    assert shown["settings"]["storage.s3.secret_access_key"] == "(hidden)"
    good(ottla("profile", "remove", "lake"))
    assert "storage" not in isolated_environment.read_text()


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("s3.secret_access_key=hunter22", "secret_access_key=env:VARIABLE"),
        ("az.account_key=hunter22", "account_key is a secret"),
        ("s3.endpiont=x", "did you mean endpoint?"),
        ("endpoint=x", "expects KIND.NAME=VALUE with a KIND of s3, gs, az, not 'endpoint'"),
    ],
)
def test_an_option_of_object_stores_that_cannot_be_used_is_refused(
    isolated_environment: Path, ottla: Ottla, option: str, problem: str
) -> None:
    error = refused(ottla("profile", "add", "lake", "h:1", "--storage-option", option), code=2)
    assert problem in error and "hunter22" not in error


def test_a_secret_of_an_object_store_in_the_file_is_refused_and_hidden(isolated_environment: Path, ottla: Ottla) -> None:
    isolated_environment.write_text('[profiles.lake.storage.az]\naccount_key = "hunter22"\n')
    error = refused(ottla("topic", "list", "--profile", "lake"))
    assert "profile lake" in error and "account_key=env:VARIABLE" in error and "hunter22" not in error
    assert "hunter22" not in good(ottla("profile", "show", "lake"))


def test_the_first_profile_becomes_current_and_a_deleted_one_stops_being_current(isolated_environment: Path, ottla: Ottla) -> None:
    good(ottla("profile", "add", "local", "localhost:9092"))
    good(ottla("profile", "add", "other", "localhost:9093"))
    report = documents(ottla("profile", "list", "-o", "json"), "profile", "list")
    assert [(one["name"], one["in_use"]) for one in report] == [("local", True), ("other", False)]
    good(ottla("profile", "remove", "local"))
    assert profiles.read().current is None
    assert "no profile is in use" in refused(ottla("profile", "show"))


def test_a_profile_is_not_overwritten_by_accident(isolated_environment: Path, ottla: Ottla) -> None:
    good(ottla("profile", "add", "a", "localhost:1"))
    assert "--replace" in refused(ottla("profile", "add", "a", "localhost:2"))
    good(ottla("profile", "add", "a", "localhost:2", "--replace"))
    assert profiles.read().by_name["a"].settings == {"bootstrap_servers": "localhost:2"}


def test_a_dry_run_writes_nothing(isolated_environment: Path, ottla: Ottla) -> None:
    assert good(ottla("profile", "add", "a", "localhost:1", "--dry-run")) == "a\twould be added\n"
    assert not isolated_environment.exists()


def test_only_the_owner_can_read_the_file(isolated_environment: Path, ottla: Ottla) -> None:
    good(ottla("profile", "add", "a", "localhost:1"))
    assert stat.S_IMODE(isolated_environment.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "a", "localhost:1", "-X", "request.timeot.ms=1"], "did you mean request_timeout_ms?"),
        (["add", "a", "localhost:1", "-X", "request.timeout.ms=soon"], "expected a whole number"),
        (["add", "a", "localhost:1", "-X", "request.timeout.ms"], "NAME=VALUE"),
    ],
)
def test_unknown_settings_are_refused(ottla: Ottla, arguments: list[str], message: str) -> None:
    assert message in refused(ottla("profile", *arguments), 2)


def test_an_invalid_name_is_refused(ottla: Ottla) -> None:
    assert "letters" in refused(ottla("profile", "add", "a b", "localhost:1"))


def test_secrets_are_not_printed(isolated_environment: Path, ottla: Ottla) -> None:
    isolated_environment.write_text('[profiles.a]\nbootstrap_servers = "x:1"\nsasl_password = "hush"\nsasl.jaas.config = "hush"\n')
    for arguments in (["list", "-o", "wide"], ["list", "-o", "json"], ["show", "a"], ["show", "a", "-o", "yaml"]):
        assert "hush" not in ottla("profile", *arguments).output
    assert "(hidden)" in good(ottla("profile", "show", "a"))
    # Not in the error of a refused command either.
    assert "hush" not in ottla("topic", "list", "--profile", "a").output


# -- which cluster


@pytest.fixture
def staged(isolated_environment: Path) -> Path:
    isolated_environment.write_text(FILE)
    return isolated_environment


def asked(cluster: FakeAdmin) -> str:
    return str(cluster.made[-1]["bootstrap_servers"])


def test_options_override_the_environment_and_the_environment_the_current_profile(
    monkeypatch: pytest.MonkeyPatch, staged: Path, cluster: FakeAdmin, ottla: Ottla
) -> None:
    good(ottla("topic", "list"))
    assert asked(cluster) == "s1:9092,s2:9092"
    monkeypatch.setenv("OTTLA_PROFILE", "production")
    good(ottla("topic", "list"))
    assert asked(cluster) == "p1:9092,p2:9092"
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVERS", "e:9092")
    good(ottla("topic", "list"))
    assert asked(cluster) == "e:9092"
    good(ottla("topic", "list", "--profile", "staging"))
    assert asked(cluster) == "s1:9092,s2:9092"
    good(ottla("topic", "list", "-b", "f:9092"))
    assert asked(cluster) == "f:9092"


def test_the_default_is_localhost(cluster: FakeAdmin, ottla: Ottla) -> None:
    good(ottla("topic", "list"))
    assert asked(cluster) == "127.0.0.1:9092"


def test_other_settings_of_a_profile_are_passed_to_the_client(staged: Path, cluster: FakeAdmin, ottla: Ottla) -> None:
    good(ottla("topic", "list"))
    assert cluster.made[-1]["request_timeout_ms"] == "5000"
    good(ottla("topic", "list", "--profile", "production"))
    assert cluster.made[-1]["client_id"] == "me"
    staged.write_text(FILE + 'acks = "1"\n')
    # A producer setting, which other clients do not have.
    good(ottla("topic", "list", "--profile", "production"))
    assert "acks" not in cluster.made[-1]
    good(ottla("topic", "list", "--profile", "staging", "-b", "f:9092"))
    assert (asked(cluster), cluster.made[-1]["request_timeout_ms"]) == ("f:9092", "5000")
    good(ottla("topic", "list", "-b", "f:9092"))
    assert "request_timeout_ms" not in cluster.made[-1]


def test_a_missing_profile_suggests_a_similar_name(staged: Path, ottla: Ottla) -> None:
    assert "did you mean staging?" in refused(ottla("topic", "list", "--profile", "stageing"))


def test_an_invalid_setting_of_a_profile_is_named(isolated_environment: Path, cluster: FakeAdmin, ottla: Ottla) -> None:
    isolated_environment.write_text('[profiles.a]\nrequest_timeot_ms = "1"\n')
    assert "request_timeot_ms: unknown setting; did you mean request_timeout_ms?" in refused(ottla("topic", "list", "--profile", "a"))


def test_an_empty_address_is_ignored(ottla: Ottla) -> None:
    assert "HOST:PORT" in refused(ottla("topic", "list", "-b", ""), 2)


def test_an_unreachable_cluster_is_one_line_that_names_the_source_of_the_address(
    monkeypatch: pytest.MonkeyPatch, staged: Path, ottla: Ottla
) -> None:
    async def refuse(host: str, port: int, **_: Any) -> ClientConnection:
        raise ConnectionBroken(f"connection refused by {host}:{port}")

    monkeypatch.setattr("ottla.client.transport.network.open_connection", refuse)
    staged.write_text('[profiles.gone]\nbootstrap_servers = "x:1"\nreconnect_backoff_max_ms = 1\nreconnect_backoff_ms = 1\n')
    message = refused(ottla("topic", "list", "--profile", "gone"))
    assert message == "Error: no broker can be reached: connection refused by x:1 The address comes from profile gone.\n"
    assert "The address" not in refused(ottla("topic", "list", "--profile", "gone", "-b", "x:1"))
    assert "ottla serve" in refused(ottla("topic", "list", env={"OTTLA_CONFIG": "/nowhere"}))

"""Clients take their address and other settings from the environment and from profiles, as the command line does."""

from __future__ import annotations

from pathlib import Path

import pytest

import ottla
from ottla.client.options import AdminOptions, ConsumerOptions, ProducerOptions
from ottla.client.profiles import ProfileError, client_options

FILE = """\
current = "staging"

[profiles.staging]
bootstrap_servers = "staging:9092"
request_timeout_ms = 5000
group_id = "billing"

[profiles.production]
bootstrap_servers = "production:9092"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "alice"
sasl_password = "env:PASSWORD"
partition_assignment_strategy = "roundrobin"
"""


@pytest.fixture(autouse=True)
def profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of profiles; no variable names another cluster."""
    for name in ("OTTLA_BOOTSTRAP", "OTTLA_BOOTSTRAP_SERVERS", "OTTLA_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    monkeypatch.setenv("OTTLA_CONFIG", str(path))
    return path


def test_without_an_address_the_profile_in_use_applies() -> None:
    with ottla.Producer() as producer:
        assert (producer.options.bootstrap_servers, producer.options.request_timeout_ms) == (("staging:9092",), 5000)
    with ottla.Consumer() as consumer:
        assert consumer.options.group_id == "billing"


def test_with_an_address_no_profile_is_read(profiles: Path) -> None:
    profiles.write_text("no file of profiles")
    with ottla.Admin(bootstrap_servers="here:9092") as admin:
        assert (admin.options.bootstrap_servers, admin.options.request_timeout_ms) == (("here:9092",), 30_000)


def test_arguments_precede_the_profile_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "hush")
    options = client_options(ConsumerOptions, {"profile": "production", "sasl_username": "bob", "bootstrap_servers": "other:9092"})
    assert options.bootstrap_servers == ("other:9092",)
    assert (options.sasl_username, options.sasl_password, options.security_protocol) == ("bob", "hush", "SASL_SSL")
    assert options.partition_assignment_strategy == ("roundrobin",)
    assert client_options(ProducerOptions, {"profile": "production"}).bootstrap_servers == ("production:9092",)


def test_the_environment_precedes_the_profile_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "hush")
    monkeypatch.setenv("OTTLA_PROFILE", "production")
    assert client_options(AdminOptions, {}).bootstrap_servers == ("production:9092",)
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVERS", "variable:9092")
    assert client_options(AdminOptions, {}).bootstrap_servers == ("variable:9092",)
    assert client_options(AdminOptions, {"profile": "staging"}).bootstrap_servers == ("staging:9092",)


def test_without_environment_and_profiles_the_address_is_the_default(profiles: Path) -> None:
    profiles.unlink()
    assert client_options(AdminOptions, {}).bootstrap_servers == ("127.0.0.1:9092",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"profile": "stagin"}, "profile stagin does not exist in .*config.toml; did you mean staging"),
        ({"profile": 3}, "expected the name of a profile, not 3"),
        ({"profile": "production"}, "no variable PASSWORD"),
    ],
)
def test_a_profile_that_cannot_be_used_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ottla.ConfigError, match=message):
        client_options(AdminOptions, settings)


def test_a_client_does_not_ask_for_a_secret(profiles: Path) -> None:
    profiles.write_text(FILE.replace("env:PASSWORD", "prompt:"))
    with pytest.raises(ProfileError, match="only a command can ask"):
        ottla.Producer(profile="production")


def test_process_gives_the_profile_to_both_of_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "hush")
    processor = ottla.process("orders", group="billing", profile="production")
    plan = processor._plan
    assert (plan.consumer["profile"], plan.producer["profile"]) == ("production", "production")

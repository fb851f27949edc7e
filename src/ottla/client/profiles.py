"""Profiles: named clusters, in `~/.config/ottla/config.toml`. XDG_CONFIG_HOME moves the directory, OTTLA_CONFIG names another file.

    current = "staging"

    [profiles.staging]
    bootstrap_servers = "10.0.0.1:9092,10.0.0.2:9092"
    request_timeout_ms = 5000

    [profiles.staging.storage.s3]                   also gs, az: options of object stores (`storage_options`)
    endpoint = "https://minio.example:9000"
    secret_access_key = "file:/run/secrets/s3"

Keys are client settings, with underscores. Only the owner can read the file, because it may hold secrets. A secret setting may also say
where the secret is:

    sasl_password = "file:/run/secrets/kafka"       the first line of a file, or all of a file in PEM form
    sasl_password = "env:KAFKA_PASSWORD"            an environment variable
    sasl_password = "prompt:"                       asked at a terminal by each command; clients refuse it

A client or command without an address uses the first of these that is set:

    profile="staging", --profile            a profile by name
    OTTLA_BOOTSTRAP_SERVERS                 environment; OTTLA_BOOTSTRAP is the same
    OTTLA_PROFILE                           environment, a profile by name
    the profile in use                      `ottla profile use`
    127.0.0.1:9092

The other settings of the profile and its options of object stores apply too, except those that are given. With an address no profile is
read unless one is named.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ottla.base.options import ConfigError, ConfigType, suggestion
from ottla.client import storage_options
from ottla.client.options import PROVIDER, AdminOptions, ClientOptions, ConsumerOptions, ProducerOptions, from_keywords

T = TypeVar("T", bound=ClientOptions)
DEFAULT_BOOTSTRAP = ",".join(ClientOptions.bootstrap_servers)
#: Keyword arguments of all clients that have no text form of Kafka.
PYTHON_SETTINGS = ("profile", PROVIDER)
ENVIRONMENT = ("OTTLA_BOOTSTRAP_SERVERS", "OTTLA_BOOTSTRAP")
#: Where a secret is.
FILE, VARIABLE, PROMPT = storage_options.FILE, storage_options.VARIABLE, "prompt:"
STORAGE = "storage"
#: Names of settings that hold secrets contain one of these.
_SECRET = re.compile(r"password|secret|token|credential|jaas|private|keystore_key|_certificate")
HIDDEN = "(hidden)"


class ProfileError(ConfigError):
    """A profile that does not exist or cannot be used, or a secret that cannot be read."""

    def __init__(self, problem: str) -> None:
        ValueError.__init__(self, problem)
        self.name = "profile"
        self.problem = problem


class Profile(NamedTuple):
    """A profile: client settings as text, by their Python names, and options of object stores by kind of store."""

    name: str
    settings: dict[str, str]
    storage: Mapping[str, Mapping[str, str]] = {}

    def shown(self) -> dict[str, str]:
        """The settings, and the options as `storage.KIND.NAME`, with secrets hidden."""
        options = {f"{STORAGE}.{kind}.{name}": value for kind, options in self.storage.items() for name, value in options.items()}
        secret = {name for name in options if is_secret(name) or name.lower().endswith(storage_options.SECRETS)}
        return {name: HIDDEN if is_secret(name) or name in secret else value for name, value in (self.settings | options).items()}

    def problems(self) -> Iterator[str]:
        """What is invalid, without values of secrets."""
        for name, value in self.settings.items():
            if problem := setting_problem(name, value):
                yield problem
        for kind, options in self.storage.items():
            try:
                storage_options.checked_options(kind, options)
            except storage_options.StorageOptionError as error:
                yield str(error)


class Profiles(NamedTuple):
    """All profiles, sorted by name, and the name of the one in use."""

    current: str | None
    by_name: dict[str, Profile]

    def named(self, name: str) -> Profile:
        """Raises: ProfileError."""
        if name not in self.by_name:
            raise ProfileError(f"profile {name} does not exist in {config_path()}{suggestion(name, self.by_name)}")
        return self.by_name[name]


def config_path() -> Path:
    """Path of the file, which may not exist."""
    if named := os.environ.get("OTTLA_CONFIG"):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "ottla" / "config.toml"


def is_secret(name: str) -> bool:
    """Whether a setting holds a secret."""
    return _SECRET.search(name.lower().replace(".", "_")) is not None


def holds_secret(setting: str) -> bool:
    """Whether a client setting is declared as a secret."""
    tables = (AdminOptions, ProducerOptions, ConsumerOptions)
    return any(spec.attribute == setting and spec.kind is ConfigType.PASSWORD for table in tables for spec in table.SPECS.values())


def read() -> Profiles:
    """The profiles; none without a file. Raises: ProfileError, if the file cannot be read."""
    try:
        return parsed(config_path().read_text())
    except FileNotFoundError:
        return Profiles(None, {})
    except (OSError, ValueError) as error:
        raise ProfileError(f"{config_path()}: {error}") from None


def parsed(text: str) -> Profiles:
    """The profiles in a file's text. Raises: ValueError."""
    document = tomllib.loads(text)
    if unknown := sorted(set(document) - {"current", "profiles"}):
        raise ValueError(f"unknown key {unknown[0]}{suggestion(unknown[0], ['current', 'profiles'])}")
    current, tables = document.get("current"), document.get("profiles", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ValueError("expected each profile as a table [profiles.NAME]")
    if current is not None and current not in tables:
        raise ValueError(f"current = {current!r} names a profile that does not exist")
    return Profiles(current, {name: _profile(name, tables[name]) for name in sorted(tables)})


def active_profile(name: str | None) -> Profile | None:
    """The profile with this name, or the one in use, with valid settings. Raises: ProfileError."""
    profiles = read()
    name = name or profiles.current
    if name is None:
        return None
    profile = profiles.named(name)
    for problem in profile.problems():
        raise ProfileError(f"profile {name} in {config_path()}: {problem}")
    return profile


def setting_problem(setting: str, value: str) -> str | None:
    """Why a setting is invalid; None if it is valid."""
    several = (AdminOptions, ProducerOptions, ConsumerOptions)
    known = {spec.attribute: spec for table in several for spec in table.SPECS.values()}
    spec = known.get(setting)
    if spec is None:
        return f"{setting}: unknown setting{suggestion(setting, known)}"
    if spec.kind is ConfigType.PASSWORD and is_source(value):
        return None
    try:
        spec.parse(value)
    except ConfigError as error:
        # The message would repeat the value, which may be a secret.
        return f"{setting}: invalid value" if is_secret(setting) else str(error)
    return None


def _profile(name: str, table: Mapping[str, Any]) -> Profile:
    """Raises: ValueError."""
    by_kind = table.get(STORAGE, {})
    if not isinstance(by_kind, dict) or not all(isinstance(options, dict) for options in by_kind.values()):
        raise ValueError(f"profile {name}: expected options of object stores in tables [profiles.{name}.{STORAGE}.KIND]")
    if unknown := sorted(set(by_kind) - set(storage_options.OPTIONS)):
        kinds = ", ".join(storage_options.OPTIONS)
        raise ValueError(f"profile {name}: {STORAGE}.{unknown[0]} is no kind of object store; there are {kinds}")
    settings = _flat(name, {key: value for key, value in table.items() if key != STORAGE})
    return Profile(name, settings, {kind: _flat(name, options) for kind, options in by_kind.items()})


def _flat(profile: str, table: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Settings as text; `a.b` and `[a] b` become `a_b`. Raises: ValueError."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        name = before + key.replace(".", "_").replace("-", "_")
        match value:
            case dict():
                flat.update(_flat(profile, value, name + "_"))
            case list() if all(isinstance(part, str) for part in value):
                flat[name] = ",".join(value)
            case bool():
                flat[name] = "true" if value else "false"
            case str() | int() | float():
                flat[name] = str(value)
            case _:
                raise ValueError(f"profile {profile}: {name} is neither text nor a number")
    return flat


def is_source(value: str) -> bool:
    """Whether the value says where the secret is."""
    return value.startswith((FILE, VARIABLE, PROMPT))


def secret_from(name: str, value: str) -> str:
    """The secret of a setting. Raises: ProfileError."""
    if value.startswith(FILE):
        return password_in(Path(value.removeprefix(FILE)))
    if value.startswith(VARIABLE):
        return password_in_variable(value.removeprefix(VARIABLE))
    if value.startswith(PROMPT):
        raise ProfileError(f"{name}: only a command can ask for a secret; write file:FILE or env:VARIABLE, or give {name}")
    return value


def password_in(file: Path) -> str:
    """The first line of a file, or all of it if it is in PEM form. Raises: ProfileError."""
    try:
        text = file.read_text()
        password = text if text.startswith("-----BEGIN ") else text.partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"cannot read the password in {file}: {error}") from None
    if not password:
        raise ProfileError(f"the first line of {file} is empty; it should be the password")
    return password


def password_in_variable(variable: str) -> str:
    """Raises: ProfileError."""
    if not (password := os.environ.get(variable)):
        raise ProfileError(f"the environment has no variable {variable}, or it is empty; it should be the password")
    return password


class ClusterAddress(NamedTuple):
    """Bootstrap servers of a cluster, the source of that address, other settings for its clients, and options of object stores by kind."""

    bootstrap: str
    source: str
    settings: dict[str, str]
    storage: Mapping[str, Mapping[str, str]] = {}


def cluster_address(bootstrap: str | None, profile: str | None) -> ClusterAddress:
    """The cluster for an address and a profile, each of which may be given. Raises: ProfileError."""
    if bootstrap is not None:
        named = active_profile(profile) if profile is not None else None
        settings = {} if named is None else {name: value for name, value in named.settings.items() if name != "bootstrap_servers"}
        return ClusterAddress(bootstrap, "--bootstrap-server", settings, {} if named is None else named.storage)
    if profile is None and (variable := next((name for name in ENVIRONMENT if os.environ.get(name)), None)):
        return ClusterAddress(os.environ[variable], variable, {})
    active = active_profile(profile or os.environ.get("OTTLA_PROFILE") or None)
    if active is None:
        return ClusterAddress(",".join(ClientOptions.bootstrap_servers), "default", {})
    settings = dict(active.settings)
    return ClusterAddress(settings.pop("bootstrap_servers", DEFAULT_BOOTSTRAP), f"profile {active.name}", settings, active.storage)


def settings_in(table: type[ClientOptions], settings: Mapping[str, str], secret: Callable[[str, str], str] = secret_from) -> dict[str, str]:
    """The settings of a profile that a kind of client has, with their secrets. Raises: ProfileError."""
    known = {spec.attribute: spec for spec in table.SPECS.values()}
    given = {name: value for name, value in settings.items() if name in known}
    return {name: secret(name, value) if known[name].kind is ConfigType.PASSWORD else value for name, value in given.items()}


def client_options(table: type[T], keywords: Mapping[str, Any]) -> T:
    """The options of a client: keyword arguments over those of the profile; `profile` names one.

    Raises: ConfigError, as `from_keywords`; ProfileError.
    """
    given = dict(keywords)
    profile = given.pop("profile", None)
    if profile is not None and not isinstance(profile, str):
        raise ConfigError("profile", f"expected the name of a profile, not {profile!r}")
    if profile is None and "bootstrap_servers" in given:
        return from_keywords(table, given)
    address = cluster_address(None, profile)
    return from_keywords(table, {"bootstrap_servers": address.bootstrap, **settings_in(table, address.settings), **given})

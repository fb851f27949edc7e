"""Profiles: named clusters, in `~/.config/ottla/config.toml`. XDG_CONFIG_HOME moves the directory, OTTLA_CONFIG names another file.

    current = "staging"

    [profiles.staging]
    bootstrap_servers = "10.0.0.1:9092,10.0.0.2:9092"
    request_timeout_ms = 5000

Keys are client settings, with underscores. Commands change only the lines of a profile and keep the rest of the file, with its comments.
Only the owner can read the file, because it may hold secrets. A secret setting may also say where the secret is (`secret_sources.py`).
Secrets are never printed.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.base.options import ConfigError, Kind, suggestion
from ottla.cli.common.secret_sources import is_source, secret_from
from ottla.client.options import AdminOptions, ConsumerOptions, ProducerOptions

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Names of settings that hold secrets contain one of these.
_SECRET = re.compile(r"password|secret|token|credential|jaas|private|keystore_key|_certificate")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
HIDDEN = "(hidden)"


class Profile(NamedTuple):
    """A profile: client settings as text, by their Python names."""

    name: str
    settings: dict[str, str]

    def shown(self) -> dict[str, str]:
        """The settings, with secrets hidden."""
        return {name: HIDDEN if is_secret(name) else value for name, value in self.settings.items()}


class Profiles(NamedTuple):
    """All profiles, sorted by name, and the name of the one in use."""

    current: str | None
    by_name: dict[str, Profile]

    def named(self, name: str) -> Profile:
        """Raises: ClickException."""
        if name not in self.by_name:
            raise click.ClickException(f"profile {name} does not exist in {config_path()}{suggestion(name, self.by_name)}")
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


def argument_value(name: str, value: str) -> str:
    """The value of NAME=VALUE on a command line; a secret is named by its source. Raises: UsageError, ClickException."""
    if not value or not is_secret(name):
        return value
    if not is_source(value):
        sources = f"write {name}=file:FILE, env:VARIABLE or prompt:"
        raise click.UsageError(f"{name}: a secret is not given in an argument, which others can see; {sources}")
    return secret_from(name, value)


def holds_secret(setting: str) -> bool:
    """Whether a client setting is declared as a secret."""
    tables = (AdminOptions, ProducerOptions, ConsumerOptions)
    return any(spec.attribute == setting and spec.kind is Kind.PASSWORD for table in tables for spec in table.SPECS.values())


def read() -> Profiles:
    """The profiles; none without a file. Raises: ClickException, if the file cannot be read."""
    try:
        return parsed(config_path().read_text())
    except FileNotFoundError:
        return Profiles(None, {})
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{config_path()}: {error}") from None


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
    return Profiles(current, {name: Profile(name, _flat(name, tables[name])) for name in sorted(tables)})


def active_profile(name: str | None) -> Profile | None:
    """The profile with this name, or the one in use, with valid settings. Raises: ClickException."""
    profiles = read()
    name = name or profiles.current
    if name is None:
        return None
    profile = profiles.named(name)
    for setting, value in profile.settings.items():
        if problem := setting_problem(setting, value):
            raise click.ClickException(f"profile {name} in {config_path()}: {problem}")
    return profile


def setting_problem(setting: str, value: str) -> str | None:
    """Why a setting is invalid; None if it is valid."""
    several = (AdminOptions, ProducerOptions, ConsumerOptions)
    known = {spec.attribute: spec for table in several for spec in table.SPECS.values()}
    spec = known.get(setting)
    if spec is None:
        return f"{setting}: unknown setting{suggestion(setting, known)}"
    if spec.kind is Kind.PASSWORD and is_source(value):
        return None
    try:
        spec.parse(value)
    except ConfigError as error:
        # The message would repeat the value, which may be a secret.
        return f"{setting}: invalid value" if is_secret(setting) else str(error)
    return None


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


def with_profile(text: str, name: str, settings: Mapping[str, str]) -> str:
    """The file's text with a profile added or replaced. Raises: ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"invalid profile name {name!r}: use letters, digits, - and _")
    kept = without_profile(text, name, keep_current=True).rstrip("\n")
    lines = [f"[profiles.{name}]", *(f"{key} = {_quoted(value)}" for key, value in settings.items())]
    made = (kept + "\n\n" if kept else "") + "\n".join(lines) + "\n"
    assert parsed(made).by_name[name].settings == dict(settings), "the new text parses to the same settings"
    return made


def without_profile(text: str, name: str, *, keep_current: bool = False) -> str:
    """The file's text without a profile; `current` is removed if it names the profile.

    Raises: ValueError, if the profile is not a table of its own.
    """
    kept, inside = [], False
    current = tomllib.loads(text).get("current")
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            inside = re.match(rf"\s*\[\s*profiles\s*\.\s*[\"']?{re.escape(name)}[\"']?\s*[.\]]", line) is not None
        if not inside:
            kept.append(line)
    made = "".join(kept)
    if not keep_current and current == name:
        made = _current_line.sub("", made, count=1)
    if name in tomllib.loads(made).get("profiles", {}):
        raise ValueError(f"profile {name} is not written as a table [profiles.{name}]: edit the file")
    return made


_current_line = re.compile(r"^\s*current\s*=.*\n?", re.MULTILINE)


def with_current(text: str, name: str) -> str:
    """The file's text with this profile in use."""
    line = f"current = {_quoted(name)}\n"
    if "current" in tomllib.loads(text):
        return _current_line.sub(lambda _: line, text, count=1)
    return line + ("\n" if text else "") + text


def write(text: str) -> None:
    """Replaces the file; only its owner can read it. Raises: ValueError, if the text is invalid; OSError."""
    parsed(text)
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    beside.replace(path)


def text() -> str:
    """The file's text; "" without a file. Raises: OSError."""
    try:
        return config_path().read_text()
    except FileNotFoundError:
        return ""


def _quoted(value: str) -> str:
    """A basic string of TOML: JSON's strings, and DEL escaped."""
    import json

    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


Completion = Callable[[click.Context, click.Parameter, str], list["CompletionItem"]]


def completion(candidates: Callable[[click.Context, str], Iterable[tuple[str, str]]]) -> Completion:
    """A completion from (value, help) pairs. It offers nothing if it fails, and no value that the command line has already."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        values = context.params.get(parameter.name or "")
        before = set(values) if isinstance(values, list | tuple) else set()
        try:
            pairs = sorted(candidates(context, incomplete))
        except (Exception, SystemExit):
            # The command itself reports the error when it runs.
            return []
        return [CompletionItem(value, help=help or None) for value, help in pairs if value.startswith(incomplete) and value not in before]

    return complete


def _profile_names(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    return [(name, profile.settings.get("bootstrap_servers", "")) for name, profile in read().by_name.items()]


profile_names = completion(_profile_names)

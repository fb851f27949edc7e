"""Profiles on the command line: the editor of their file, which keeps comments, and completion. `ottla.client.profiles` reads them."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import click

from ottla.cli.common.secret_sources import secret_from
from ottla.client.profiles import config_path, is_secret, is_source, parsed, read

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def argument_value(name: str, value: str) -> str:
    """The value of NAME=VALUE on a command line; a secret is named by its source. Raises: UsageError, ClickException."""
    if not value or not is_secret(name):
        return value
    if not is_source(value):
        sources = f"write {name}=file:FILE, env:VARIABLE or prompt:"
        raise click.UsageError(f"{name}: a secret is not given in an argument, which others can see; {sources}")
    return secret_from(name, value)


def with_profile(text: str, name: str, settings: Mapping[str, str], storage: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """The file's text with a profile added or replaced; `storage`: options of object stores by kind. Raises: ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"invalid profile name {name!r}: use letters, digits, - and _")
    kept = without_profile(text, name, keep_current=True).rstrip("\n")
    lines = [f"[profiles.{name}]", *(f"{key} = {_quoted(value)}" for key, value in settings.items())]
    for kind, options in (storage or {}).items():
        lines += ["", f"[profiles.{name}.storage.{kind}]", *(f"{key} = {_quoted(value)}" for key, value in options.items())]
    made = (kept + "\n\n" if kept else "") + "\n".join(lines) + "\n"
    assert parsed(made).by_name[name] == (name, dict(settings), storage or {}), "the new text parses to the same profile"
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


def text_of_file() -> str:
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

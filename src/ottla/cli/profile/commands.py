"""`ottla profile`: list, show, use, add, remove. The file: `ottla.client.profiles`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from ottla.cli.common.confirmation import NOTHING_CHANGED, dry_run_option
from ottla.cli.common.errors import assignments
from ottla.cli.common.lazy import CommandGroup
from ottla.cli.common.output_formats import OUTCOME, OutputFormat, fields, note, output_option
from ottla.cli.common.profiles import profile_names, text_of_file, with_current, with_profile, without_profile, write
from ottla.cli.common.tables import Column
from ottla.client import profiles
from ottla.client.storage_options import OPTIONS, StorageOptionError, checked_options

PROFILE = {
    "name": "name of the profile",
    "in_use": "whether it is the default",
    "settings.*": "client settings, and options of object stores as storage.KIND.NAME; secrets are (hidden)",
}
LISTED = (
    Column("PROFILE", "name", colour=lambda row: "green" if row["in_use"] else None),
    Column("IN-USE", lambda row: "yes" if row["in_use"] else ""),
    Column("BOOTSTRAP-SERVERS", lambda row: row["settings"].get("bootstrap_servers")),
    Column("OTHER-SETTINGS", lambda row: [name for name in row["settings"] if name != "bootstrap_servers"], wide=True),
)
SETTINGS = (Column("SETTING", "setting"), Column("VALUE", "value"))


@click.group(name="profile", cls=CommandGroup)
def command() -> None:
    """Name clusters and choose the default one.

    Profiles are in ~/.config/ottla/config.toml. -b, --profile and OTTLA_BOOTSTRAP_SERVERS override the profile in use.
    """


@contextmanager
def _reporting_errors() -> Iterator[None]:
    try:
        yield
    except profiles.ProfileError as error:
        raise click.ClickException(str(error)) from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{profiles.config_path()}: {error}") from None


@fields(PROFILE)
@command.command(name="list")
@output_option
def list_(output: OutputFormat) -> None:
    """List profiles."""
    with _reporting_errors():
        found = profiles.read()
    if not found.by_name and not output.is_structured:
        note(f"{profiles.config_path()} has no profiles. Add one with ottla profile add NAME HOST:PORT.")
        return
    output.show([_document(found, one) for one in found.by_name.values()], LISTED)


def _document(found: profiles.Profiles, one: profiles.Profile) -> dict[str, object]:
    return {"name": one.name, "in_use": one.name == found.current, "settings": one.shown()}


@fields(PROFILE)
@command.command()
@click.argument("name", required=False, metavar="[NAME]", shell_complete=profile_names)
@output_option
def show(name: str | None, output: OutputFormat) -> None:
    """Show the settings of a profile, by default of the one in use. Secrets are hidden."""
    with _reporting_errors():
        found = profiles.read()
        name = name or found.current
        if name is None:
            raise click.ClickException("no profile is in use: add the name of a profile")
        one = found.named(name)
    if output.is_structured:
        output.document(_document(found, one))
    else:
        output.table([{"setting": key, "value": value} for key, value in one.shown().items()], SETTINGS, title=one.name)


@fields(OUTCOME, bootstrap_servers="bootstrap servers of the profile")
@command.command()
@click.argument("name", shell_complete=profile_names)
@output_option
def use(name: str, output: OutputFormat) -> None:
    """Make a profile the default."""
    with _reporting_errors():
        one = profiles.read().named(name)
        write(with_current(text_of_file(), name))
    servers = one.settings.get("bootstrap_servers", profiles.DEFAULT_BOOTSTRAP)
    output.outcome(name, "in use", shown=servers, bootstrap_servers=servers)


@fields(OUTCOME)
@command.command()
@click.argument("name")
@click.argument("bootstrap", metavar="HOST:PORT[,...]")
@click.option("-X", "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Client setting; repeatable.")
@click.option("--storage-option", "storage", multiple=True, metavar="KIND.NAME=VALUE",
              help="Option of object stores of the kind s3, gs or az, such as s3.endpoint=URL; repeatable.")  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace a profile of the same name.")
@click.option("--use", "set_default", is_flag=True, help="Make it the default; the first profile always is.")
@dry_run_option
@output_option
def add(
    name: str,
    bootstrap: str,
    settings: tuple[str, ...],
    storage: tuple[str, ...],
    replace: bool,
    set_default: bool,
    dry_run: bool,
    output: OutputFormat,
) -> None:
    """Add a profile. Does not connect to the cluster."""
    values = {"bootstrap_servers": bootstrap}
    for key, value in assignments(settings, "-X").items():
        values[key.replace(".", "_").replace("-", "_")] = value
    for key, value in values.items():
        if profiles.holds_secret(key) and not profiles.is_source(value):
            sources = f"write {key}=file:FILE, env:VARIABLE or prompt:"
            raise click.UsageError(f"{key}: a secret is not given in an argument, which others can see; {sources}")
        if problem := profiles.setting_problem(key, value):
            raise click.UsageError(problem)
    options = _storage(storage)
    with _reporting_errors():
        found = profiles.read()
        if name in found.by_name and not replace:
            raise click.ClickException(f"profile {name} exists already: use --replace to replace it")
        text = with_profile(text_of_file(), name, values, options)
        if set_default or not found.by_name:
            text = with_current(text, name)
        _write(text, name, "added", dry_run, output)


def _storage(pairs: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """The options of object stores by kind. Raises: UsageError."""
    found: dict[str, dict[str, str]] = {}
    for key, value in assignments(pairs, "--storage-option").items():
        kind, _, option = key.partition(".")
        if kind not in OPTIONS or not option:
            raise click.UsageError(f"--storage-option expects KIND.NAME=VALUE with a KIND of {', '.join(OPTIONS)}, not {key!r}")
        found.setdefault(kind, {})[option] = value
    try:
        return {kind: checked_options(kind, options) for kind, options in found.items()}
    except StorageOptionError as error:
        raise click.UsageError(str(error)) from None


@fields(OUTCOME)
@command.command()
@click.argument("name", shell_complete=profile_names)
@dry_run_option
@output_option
def remove(name: str, dry_run: bool, output: OutputFormat) -> None:
    """Remove a profile."""
    with _reporting_errors():
        profiles.read().named(name)
        _write(without_profile(text_of_file(), name), name, "removed", dry_run, output)


def _write(text: str, name: str, done: str, dry_run: bool, output: OutputFormat) -> None:
    if not dry_run:
        write(text)
    output.outcome(name, f"would be {done}" if dry_run else done)
    if dry_run:
        note(NOTHING_CHANGED)

"""`ottla profile`: list, show, use, add, remove. What a profile is: `ottla.cli.common.profiles`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from ottla.cli.common import profiles
from ottla.cli.common.complete import profile_names
from ottla.cli.common.confirmation import DRY, dry_run_option
from ottla.cli.common.errors import assignments
from ottla.cli.common.lazy import Commands
from ottla.cli.common.output_formats import Form, fields, note, output_option
from ottla.cli.common.tables import Column

PROFILE = {
    "name": "its name",
    "in_use": "whether it holds where nothing else is said",
    "settings.*": "settings of clients by name; secrets are (hidden)",
}
LISTED = (
    Column("PROFILE", "name", colour=lambda row: "green" if row["in_use"] else None),
    Column("IN USE", lambda row: "yes" if row["in_use"] else ""),
    Column("BOOTSTRAP SERVERS", lambda row: row["settings"].get("bootstrap_servers")),
    Column("OTHER SETTINGS", lambda row: [name for name in row["settings"] if name != "bootstrap_servers"], wide=True),
)
SETTINGS = (Column("SETTING", "setting"), Column("VALUE", "value"))


@click.group(name="profile", cls=Commands)
def command() -> None:
    """Name clusters, and choose the one that commands talk to.

    Profiles are in ~/.config/ottla/config.toml; -b, --profile and OTTLA_BOOTSTRAP_SERVERS go before the one in use.
    """


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{profiles.config_path()}: {error}") from None


@fields(PROFILE)
@command.command(name="list")
@output_option
def list_(output: Form) -> None:
    """List profiles."""
    found = profiles.read()
    if not found.by_name and not output.for_programs:
        note(f"There are no profiles in {profiles.config_path()}; ottla profile add NAME HOST:PORT makes one.")
        return
    output.show([_document(found, one) for one in found.by_name.values()], LISTED)


def _document(found: profiles.Profiles, one: profiles.Profile) -> dict[str, object]:
    return {"name": one.name, "in_use": one.name == found.current, "settings": one.shown()}


@fields(PROFILE)
@command.command()
@click.argument("name", required=False, metavar="[NAME]", shell_complete=profile_names)
@output_option
def show(name: str | None, output: Form) -> None:
    """Show the settings of a profile, or of the one in use; secrets are not printed."""
    found = profiles.read()
    name = name or found.current
    if name is None:
        raise click.ClickException("no profile is in use: name one")
    one = found.named(name)
    if output.for_programs:
        output.document(_document(found, one))
    else:
        output.table([{"setting": key, "value": value} for key, value in one.shown().items()], SETTINGS, title=one.name)


@command.command()
@click.argument("name", shell_complete=profile_names)
def use(name: str) -> None:
    """Let a profile hold where nothing else is said."""
    with _told():
        one = profiles.read().named(name)
        profiles.write(profiles.with_current(profiles.text(), name))
    click.echo(f"{name}\t{one.settings.get('bootstrap_servers', '')}")


@command.command()
@click.argument("name")
@click.argument("bootstrap", metavar="HOST:PORT[,...]")
@click.option("-X", "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Another setting of clients; may be repeated.")
@click.option("--replace", is_flag=True, help="Put it in place of one of the same name.")
@click.option("--use", "at_once", is_flag=True, help="And let it hold where nothing else is said; the first profile does anyway.")
@dry_run_option
def add(name: str, bootstrap: str, settings: tuple[str, ...], replace: bool, at_once: bool, dry_run: bool) -> None:
    """Name a cluster. Nothing is asked of it."""
    wanted = {"bootstrap_servers": bootstrap}
    wanted |= {key.replace(".", "_").replace("-", "_"): value for key, value in assignments(settings, "-X").items()}
    for key, value in wanted.items():
        if problem := profiles.refused(key, value):
            raise click.UsageError(problem)
    with _told():
        found = profiles.read()
        if name in found.by_name and not replace:
            raise click.ClickException(f"there is a profile {name} already: --replace puts this one in its place")
        text = profiles.with_profile(profiles.text(), name, wanted)
        if at_once or not found.by_name:
            text = profiles.with_current(text, name)
        _written(text, f"{name}\tadded", dry_run)


@command.command()
@click.argument("name", shell_complete=profile_names)
@dry_run_option
def remove(name: str, dry_run: bool) -> None:
    """Forget a profile."""
    with _told():
        profiles.read().named(name)
        _written(profiles.without_profile(profiles.text(), name), f"{name}\tremoved", dry_run)


def _written(text: str, done: str, dry_run: bool) -> None:
    if dry_run:
        name, _, outcome = done.partition("\t")
        click.echo(f"{name}\twould be {outcome}")
        note(DRY)
        return
    profiles.write(text)
    click.echo(done)

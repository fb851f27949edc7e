"""`ottla user`: add, list, show and remove users of SCRAM. With `--data-dir`, `add` writes to the store of a server that does not run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from ottla.base.scram import BY_NAME, ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.lazy import CommandGroup
from ottla.cli.common.output_formats import OUTCOME, OutputFormat, fields, note
from ottla.cli.common.passwords import password_of, password_options
from ottla.cli.common.tables import Column
from ottla.client.admin.user_results import ScramCredentialInfo
from ottla.wire.errors import KafkaError

USER = {
    "user": "name of the user",
    "credentials[].mechanism": "SCRAM-SHA-256 or SCRAM-SHA-512",
    "credentials[].iterations": "iterations of the key derivation",
}
COLUMNS = (
    Column("USER", "user"),
    Column("MECHANISMS", lambda row: [one["mechanism"] for one in row["credentials"]]),
    Column("ITERATIONS", lambda row: [one["iterations"] for one in row["credentials"]]),
)
mechanism_option = click.option(
    "-m", "--mechanism", "mechanisms", multiple=True, type=click.Choice(list(BY_NAME), case_sensitive=False), metavar="MECHANISM",
    help="SCRAM-SHA-256 or SCRAM-SHA-512; repeatable.",
)  # fmt: skip


@click.group(name="user", cls=CommandGroup)
def command() -> None:
    """Add, list, show and remove users and their passwords (SCRAM)."""


@fields(OUTCOME)
@command.command()
@click.argument("name")
@mechanism_option
@click.option(
    "--iterations", type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX), default=ITERATIONS_MIN, show_default=True, metavar="N",
    help="Iterations of the key derivation.",
)  # fmt: skip
@password_options
@click.option(
    "--data-dir", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
    help="Write to the store of a server that does not run, before its first start for instance.",
)  # fmt: skip
@dry_run_option
@admin_options
def add(
    name: str, mechanisms: tuple[str, ...], iterations: int, password_file: Path | None, password_env: str | None,
    data_dir: Path | None, dry_run: bool, output: OutputFormat, bootstrap: str,
) -> None:  # fmt: skip
    """Add a user, or change its password. [default: -m SCRAM-SHA-512]

    The password comes from a file, a variable or a prompt. The server gets keys that are derived from it.
    """
    chosen = [BY_NAME[one] for one in mechanisms] or [ScramMechanism.SHA_512]
    if dry_run:
        output.outcome(name, "would be added")
        note(NOTHING_CHANGED)
        return
    password = password_of(password_file, password_env, prompt=f"Password of {name}")
    if data_dir is not None:
        _add_offline(data_dir, name, chosen, password, iterations)
    else:
        with admin_client(bootstrap) as admin:
            for mechanism in chosen:
                admin.set_scram_credential(name, mechanism, password, iterations=iterations)
    output.outcome(name, "added")


def _add_offline(data_dir: Path, name: str, mechanisms: list[ScramMechanism], password: str, iterations: int) -> None:
    from ottla.server.data_directory import CannotStart, LockedDirectory
    from ottla.server.initial_users import InitialUser, store_in_directory

    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        held = LockedDirectory(data_dir.absolute())
    except (OSError, CannotStart) as error:
        raise click.ClickException(str(error)) from None
    try:
        users = [InitialUser(name, mechanism, password, iterations) for mechanism in mechanisms]
        asyncio.run(store_in_directory(data_dir.absolute(), users))
    except CannotStart as error:
        raise click.ClickException(str(error)) from None
    finally:
        held.release()


@fields(USER)
@command.command(name="list")
@admin_options
def list_(output: OutputFormat, bootstrap: str) -> None:
    """List users with their mechanisms. Users of other mechanisms, such as PLAIN, are in the brokers' settings."""
    with admin_client(bootstrap) as admin:
        found = admin.describe_scram_credentials()
    output.show([_document(user, infos) for user, infos in sorted(found.items()) if not isinstance(infos, KafkaError)], COLUMNS)


def _document(user: str, infos: list[ScramCredentialInfo]) -> dict[str, Any]:
    return {"user": user, "credentials": [{"mechanism": one.mechanism.mechanism, "iterations": one.iterations} for one in infos]}


@fields(USER)
@command.command()
@click.argument("name")
@admin_options
def show(name: str, output: OutputFormat, bootstrap: str) -> None:
    """Show the mechanisms of a user."""
    with admin_client(bootstrap) as admin:
        infos = admin.describe_scram_credentials([name])[name]
    if isinstance(infos, KafkaError):
        raise click.ClickException(str(infos))
    if output.is_structured:
        output.document(_document(name, infos))
    else:
        output.table([_document(name, infos)], COLUMNS)


@fields(OUTCOME)
@command.command()
@click.argument("name")
@mechanism_option
@yes_option
@dry_run_option
@admin_options
def remove(name: str, mechanisms: tuple[str, ...], yes: bool, dry_run: bool, output: OutputFormat, bootstrap: str) -> None:
    """Remove a user's credentials, of all mechanisms or of some. Open connections stay open until they authenticate again."""
    with admin_client(bootstrap) as admin:
        infos = admin.describe_scram_credentials([name])[name]
        if isinstance(infos, KafkaError):
            raise click.ClickException(f"user {name} has no credentials")
        chosen = [one.mechanism for one in infos if not mechanisms or one.mechanism.mechanism in mechanisms]
        if not chosen:
            raise click.ClickException(f"user {name} has no credentials for {', '.join(mechanisms)}")
        if dry_run:
            output.outcome(name, "would be removed")
            note(NOTHING_CHANGED)
            return
        confirm(f"Remove the credentials of user {name}.", [one.mechanism for one in chosen], yes=yes)
        for mechanism in chosen:
            admin.delete_scram_credential(name, mechanism)
    output.outcome(name, "removed")

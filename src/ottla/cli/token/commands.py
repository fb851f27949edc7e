"""`ottla token`: create, list, renew and expire delegation tokens. Tokens are named by id; their HMACs are never arguments."""

from __future__ import annotations

import os
from typing import Any

import click

import ottla
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import duration_ms, time_text
from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.lazy import CommandGroup
from ottla.cli.common.output_formats import OUTCOME, OutputFormat, fields, note
from ottla.cli.common.tables import Column
from ottla.client.admin.user_results import DelegationToken

TOKEN = {
    "token_id": "id of the token, its user name",
    "owner": "principal that the token stands for",
    "requester": "principal that requested it",
    "renewers": "principals that may renew and expire it",
    "issued_ms": "time of its creation, in milliseconds since 1970",
    "expires_ms": "time of its expiry",
    "max_ms": "time after which it cannot be renewed",
}
EXPIRY = {"expires_ms": "new time of its expiry; null in a dry run"}
COLUMNS = (
    Column("TOKEN-ID", "token_id"),
    Column("OWNER", "owner"),
    Column("RENEWERS", "renewers"),
    Column("EXPIRES", lambda row: time_text(row["expires_ms"])),
    Column("RENEWABLE-UNTIL", lambda row: time_text(row["max_ms"])),
)


@click.group(name="token", cls=CommandGroup)
def command() -> None:
    """Create, list, renew and expire delegation tokens."""


def _document(token: DelegationToken) -> dict[str, Any]:
    return {name: list(value) if isinstance(value := getattr(token, name), tuple) else value for name in TOKEN}


@fields(TOKEN)
@command.command()
@click.option(
    "--renewer", "renewers", multiple=True, metavar="PRINCIPAL", help="Principal that may renew it, such as User:bob; repeatable."
)
@click.option("--max-lifetime", metavar="DURATION", help="Time after which it cannot be renewed. [default: the broker's]")
@click.option("--owner", metavar="PRINCIPAL", help="Principal that it stands for. [default: the own one]")
@click.option(
    "--hmac-file", required=True, metavar="FILE", type=click.Path(dir_okay=False), help="New file for the HMAC, the token's password."
)
@admin_options
def create(
    renewers: tuple[str, ...], max_lifetime: str | None, owner: str | None, hmac_file: str, output: OutputFormat, bootstrap: str
) -> None:
    """Create a token. Its password is written to a file that only you can read."""
    lifetime_ms = -1 if max_lifetime is None else duration_ms(max_lifetime, "--max-lifetime")
    # The file is created before the token: its password must have a place.
    with admin_client(bootstrap) as admin, open(os.open(hmac_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        try:
            token = admin.create_delegation_token(renewers=renewers, max_lifetime_ms=lifetime_ms, owner=owner)
        except BaseException:
            os.unlink(hmac_file)
            raise
        file.write(token.password + "\n")
    if output.is_structured:
        output.document(_document(token))
    else:
        output.table([_document(token)], COLUMNS)


@fields(TOKEN)
@command.command(name="list")
@click.option("--owner", "owners", multiple=True, metavar="PRINCIPAL", help="Only tokens of this owner; repeatable.")
@admin_options
def list_(owners: tuple[str, ...], output: OutputFormat, bootstrap: str) -> None:
    """List the tokens that you own or may renew."""
    with admin_client(bootstrap) as admin:
        found = admin.describe_delegation_tokens(owners or None)
    output.show([_document(token) for token in sorted(found, key=lambda token: token.issued_ms)], COLUMNS)


def _named(admin: ottla.Admin, token_id: str) -> DelegationToken:
    """Raises: ClickException."""
    found = [token for token in admin.describe_delegation_tokens() if token.token_id == token_id]
    if not found:
        raise click.ClickException(f"there is no token {token_id} that you own or may renew")
    return found[0]


@fields(OUTCOME, EXPIRY)
@command.command()
@click.argument("token_id")
@click.option("--period", metavar="DURATION", help="Time from now until it expires. [default: the broker's]")
@admin_options
def renew(token_id: str, period: str | None, output: OutputFormat, bootstrap: str) -> None:
    """Let a token expire later."""
    period_ms = -1 if period is None else duration_ms(period, "--period")
    with admin_client(bootstrap) as admin:
        expires_ms = admin.renew_delegation_token(_named(admin, token_id).hmac, period_ms=period_ms)
    output.outcome(token_id, "renewed", shown=f"expires {time_text(expires_ms)}", expires_ms=expires_ms)


@fields(OUTCOME, EXPIRY)
@command.command()
@click.argument("token_id")
@click.option("--period", metavar="DURATION", help="Time from now until it expires. [default: at once]")
@yes_option
@dry_run_option
@admin_options
def expire(token_id: str, period: str | None, yes: bool, dry_run: bool, output: OutputFormat, bootstrap: str) -> None:
    """Delete a token, or let it expire at a time."""
    period_ms = -1 if period is None else duration_ms(period, "--period")
    with admin_client(bootstrap) as admin:
        token = _named(admin, token_id)
        if dry_run:
            output.outcome(token_id, "would expire", expires_ms=None)
            note(NOTHING_CHANGED)
            return
        confirm(f"Expire the token of {token.owner}.", [token_id], yes=yes)
        expires_ms = admin.expire_delegation_token(token.hmac, period_ms=period_ms)
    output.outcome(token_id, "expired", shown=f"expires {time_text(expires_ms)}", expires_ms=expires_ms)

"""`ottla quota list`, `set` and `remove`.

    ottla quota set --user alice producer_byte_rate=1MiB
    ottla quota set --client-id-default request_percentage=50
    ottla quota list --user alice
    ottla quota remove --user alice producer_byte_rate

A user and a client id together are one entity. Each broker applies a quota for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

import ottla
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import setting_value
from ottla.cli.common.confirmation import NOTHING_CHANGED, dry_run_option
from ottla.cli.common.output_formats import OutputFormat, fields, note
from ottla.cli.common.tables import Column, Row
from ottla.cli.config.alter import setting_cell
from ottla.client.admin.calls import good
from ottla.client.admin.quotas import QuotaEntity

Command = TypeVar("Command", bound=Callable[..., Any])
#: Name of the default of all others, which has no name.
DEFAULT = ""
ENTITY = {
    "user": "user; empty: the default of all others; null: any user",
    "client_id": "client id; empty: the default of all others; null: any client id",
    "ip": "address; empty: the default of all others; null: a quota of users or client ids",
    "quota": "producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate or connection_creation_rate",
}


def _name(part: str) -> Callable[[Row], str]:
    return lambda row: "-" if row[part] is None else row[part] or "(default)"


def _number(value: float | None) -> str | None:
    return None if value is None else str(int(value)) if value == int(value) else str(value)


def _cell(part: str) -> Callable[[Row], str | None]:
    return lambda row: setting_cell(row["quota"].replace("_byte_", ".bytes."), _number(row[part]))


WHOSE = (Column("USER", _name("user")), Column("CLIENT-ID", _name("client_id")), Column("IP", _name("ip")), Column("QUOTA", "quota"))
LISTED = (*WHOSE, Column("VALUE", _cell("value"), number=True))
CHANGED = (*WHOSE, Column("BEFORE", _cell("before"), number=True), Column("AFTER", _cell("after"), number=True))


def entity_options(command: Command) -> Command:
    """`--user`, `--client-id`, `--ip` and their defaults; the command receives `entity`."""

    def received(
        user: str | None,
        user_default: bool,
        client_id: str | None,
        client_id_default: bool,
        ip: str | None,
        ip_default: bool,
        **others: Any,
    ) -> Any:
        names = {}
        for option, name, default in (("user", user, user_default), ("client_id", client_id, client_id_default), ("ip", ip, ip_default)):
            flag = f"--{option.replace('_', '-')}"
            if name is not None and default:
                raise click.UsageError(f"{flag} and {flag}-default exclude each other")
            if name == DEFAULT:
                raise click.UsageError(f"{flag} is empty; name the default with {flag}-default")
            names[option] = DEFAULT if default else name
        if names["ip"] is not None and (names["user"] is not None or names["client_id"] is not None):
            raise click.UsageError("an address has quotas of its own: --ip excludes --user and --client-id")
        return command(entity=QuotaEntity(**names), **others)

    received.__doc__, received.__name__ = command.__doc__, command.__name__
    received.__dict__.update(getattr(command, "__dict__", {}))
    found: Any = received
    for option, whose in (("--ip", "an address"), ("--client-id", "a client id"), ("--user", "a user")):
        found = click.option(f"{option}-default", is_flag=True, help=f"The default of every other {whose.split()[-1]}.")(found)
        found = click.option(option, metavar="ADDRESS" if option == "--ip" else "NAME", help=f"Quotas of {whose}.")(found)
    return found  # type: ignore[no-any-return]


@fields(ENTITY, value="the quota: bytes, partitions or connections per second, or a percentage of a broker's event loop")
@click.command(name="list")
@entity_options
@admin_options
def list_(entity: QuotaEntity, output: OutputFormat, bootstrap: str) -> None:
    """List quotas: all, or those of entities with this user, client id or address. [default: all]"""
    with admin_client(bootstrap) as admin:
        found = admin.describe_client_quotas(user=entity.user, client_id=entity.client_id, ip=entity.ip)
    output.show([_document(one, key, value=value) for one, quotas in _sorted(found) for key, value in sorted(quotas.items())], LISTED)


CHANGE = {**ENTITY, "before": "quota before; null: none", "after": "quota after; null: none"}


@fields(CHANGE)
@click.command(name="set")
@click.argument("pairs", nargs=-1, required=True, metavar="QUOTA=NUMBER...")
@dry_run_option
@entity_options
@admin_options
def set_(entity: QuotaEntity, pairs: tuple[str, ...], dry_run: bool, output: OutputFormat, bootstrap: str) -> None:
    """Set quotas, such as: --user alice producer_byte_rate=10MiB request_percentage=50."""
    values: dict[str, float | None] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        try:
            values[key] = float(setting_value(key.replace("_byte_", ".bytes."), text))
        except ValueError:
            raise click.UsageError(f"expected QUOTA=NUMBER, not {pair!r}") from None
        if not equals or not key:
            raise click.UsageError(f"expected QUOTA=NUMBER, not {pair!r}")
    with admin_client(bootstrap) as admin:
        _change(admin, _named(entity), values, dry_run, output)


@fields(CHANGE)
@click.command()
@click.argument("keys", nargs=-1, metavar="[QUOTA...]")
@dry_run_option
@entity_options
@admin_options
def remove(entity: QuotaEntity, keys: tuple[str, ...], dry_run: bool, output: OutputFormat, bootstrap: str) -> None:
    """Remove quotas of an entity, all or these; the next less specific quota applies then."""
    entity = _named(entity)
    with admin_client(bootstrap) as admin:
        present = _present(admin, entity)
        if missing := [key for key in keys if key not in present]:
            raise click.ClickException(
                f"{entity} has no quota {missing[0]}" + (f"; it has {', '.join(sorted(present))}" if present else "")
            )
        if not present:
            raise click.ClickException(f"{entity} has no quotas")
        _change(admin, entity, dict.fromkeys(keys or sorted(present)), dry_run, output)


def _named(entity: QuotaEntity) -> QuotaEntity:
    """Raises: UsageError."""
    if not entity.parts:
        raise click.UsageError("missing an entity: --user, --client-id, --ip, or one of their defaults")
    return entity


def _present(admin: ottla.Admin, entity: QuotaEntity) -> Mapping[str, float]:
    found = admin.describe_client_quotas(user=entity.user, client_id=entity.client_id, ip=entity.ip, strict=True)
    return found.get(entity, {})


def _change(admin: ottla.Admin, entity: QuotaEntity, values: Mapping[str, float | None], dry: bool, output: OutputFormat) -> None:
    before = _present(admin, entity)
    good(admin.alter_client_quotas({entity: values}, validate_only=dry)[entity])
    output.show([_document(entity, key, before=before.get(key), after=after) for key, after in values.items()], CHANGED)
    if dry:
        note(NOTHING_CHANGED)


def _sorted(found: Mapping[QuotaEntity, Mapping[str, float]]) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
    return sorted(
        found.items(), key=lambda item: [(name is not None, name or "") for name in (item[0].user, item[0].client_id, item[0].ip)]
    )


def _document(entity: QuotaEntity, key: str, **values: float | None) -> dict[str, Any]:
    return {"user": entity.user, "client_id": entity.client_id, "ip": entity.ip, "quota": key, **values}

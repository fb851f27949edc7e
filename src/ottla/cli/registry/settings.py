"""`ottla registry config` and `mode`: compatibility levels and modes, global or of a subject."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from ottla.cli.common.output_formats import OutputFormat, fields, note
from ottla.cli.registry.schemas import registry_client, registry_options

CONFIG = {"subject": "subject or context; null: global", "compatibility": "level in effect", "own": "whether it is set here"}
MODE = {"subject": "subject or context; null: global", "mode": "mode in effect", "own": "whether it is set here"}
LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
_remove_option = click.option("--remove", is_flag=True, help="Remove the setting, so that the wider one applies.")


def _path(kind: str, subject: str | None) -> str:
    return f"/{kind}" + (f"/{quote(subject, safe='')}" if subject else "")


def _change(
    kind: str, subject: str | None, value: str | None, remove: bool, body: dict[str, Any], output: OutputFormat, address: str
) -> None:
    """Changes the setting if asked, and shows it."""
    from ottla.client.schema_registry import SchemaNotFound

    if value is not None and remove:
        raise click.UsageError("give a value or --remove, not both")
    answered = "compatibilityLevel" if kind == "config" else "mode"
    with registry_client(address) as registry:
        if value is not None:
            registry.ask("PUT", _path(kind, subject), body)
        elif remove:
            registry.ask("DELETE", _path(kind, subject))
        found = registry.ask("GET", _path(kind, subject) + ("?defaultToGlobal=true" if subject else ""))
        own = True
        if subject:
            try:
                registry.ask("GET", _path(kind, subject))
            except SchemaNotFound:
                own = False
    if output.is_structured:
        output.document({"subject": subject, "compatibility" if kind == "config" else "mode": found[answered], "own": own})
    else:
        click.echo(found[answered])
        if not own:
            note(f"{subject} has no setting of its own: this is the global one")


@fields(CONFIG)
@click.command(name="config")
@click.argument("subject", required=False)
@click.option("--set", "level", type=click.Choice(LEVELS, case_sensitive=False), help="Set the compatibility level.")
@_remove_option
@registry_options
def config(subject: str | None, level: str | None, remove: bool, output: OutputFormat, address: str) -> None:
    """Show or set the compatibility level, global or of SUBJECT."""
    _change("config", subject, level, remove, {"compatibility": level}, output, address)


@fields(MODE)
@click.command(name="mode")
@click.argument("subject", required=False)
@click.option("--set", "mode_", type=click.Choice(MODES, case_sensitive=False), help="Set the mode.")
@_remove_option
@registry_options
def mode(subject: str | None, mode_: str | None, remove: bool, output: OutputFormat, address: str) -> None:
    """Show or set the mode, global or of SUBJECT: READWRITE, READONLY or IMPORT."""
    _change("mode", subject, mode_, remove, {"mode": mode_}, output, address)

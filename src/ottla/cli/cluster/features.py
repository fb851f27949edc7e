"""`ottla cluster features-update`: raises or lowers the finalized levels of features."""

from __future__ import annotations

import click

from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.output_formats import OUTCOME, OutputFormat, fields, note
from ottla.client.admin.cluster_results import Features

#: Features whose level cannot be lowered again.
FIXED = ("ottla.version",)


@fields(OUTCOME)
@click.command(name="features-update")
@click.argument("levels", nargs=-1, metavar="[FEATURE=LEVEL]...")
@click.option("--latest", is_flag=True, help="Raise every feature to the highest level that the brokers support.")
@click.option("--downgrade", is_flag=True, help="Permit lower levels that lose no metadata.")
@click.option("--unsafe", is_flag=True, help="Permit lower levels that lose metadata.")
@dry_run_option
@yes_option
@admin_options
def command(
    levels: tuple[str, ...], latest: bool, downgrade: bool, unsafe: bool, dry_run: bool, yes: bool, output: OutputFormat, bootstrap: str
) -> None:
    """Raise or lower feature levels, after all brokers were upgraded. All levels change, or none.

    A raised ottla.version cannot be lowered, and brokers of an older version cannot join afterwards; this needs a confirmation.
    """
    if bool(levels) == latest:
        raise click.UsageError("expected either FEATURE=LEVEL or --latest")
    with admin_client(bootstrap) as admin:
        found = admin.describe_features()
        wanted = _latest(found) if latest else dict(_level(pair) for pair in levels)
        changes = {name: level for name, level in wanted.items() if level != _finalized(found, name)}
        outcomes = {name: f"{_finalized(found, name)} to {level}" for name, level in changes.items()}
        if not changes:
            note("All features have these levels.")
            return
        fixed = [f"{name}: {outcomes[name]}" for name in FIXED if changes.get(name, 0) > _finalized(found, name)]
        if fixed and not dry_run:
            confirm("Brokers of an older version cannot join the cluster afterwards.", fixed, yes=yes)
        admin.update_features(changes, downgrade=downgrade, unsafe=unsafe, validate_only=dry_run)
    if dry_run:
        note(NOTHING_CHANGED)
    output.report(outcomes, {}, "", outcomes)


def _latest(found: Features) -> dict[str, int]:
    return {name: levels.last for name, levels in found.supported.items() if levels.last > _finalized(found, name)}


def _finalized(found: Features, name: str) -> int:
    return found.finalized[name].last if name in found.finalized else 0


def _level(pair: str) -> tuple[str, int]:
    """Raises: UsageError."""
    name, _, level = pair.partition("=")
    if not name or not level.isdecimal():
        raise click.UsageError(f"expected FEATURE=LEVEL, such as metadata.version=33, not {pair!r}")
    return name, int(level)

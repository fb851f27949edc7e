"""`ottla top`: opens the live view until `q` or Ctrl-C."""

from __future__ import annotations

import sys

import click

from ottla.base.options import ConfigError
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import give_up
from ottla.cli.common.record_options import client_settings, setting_option
from ottla.client.options import AdminOptions, from_keywords


@click.command(name="top")
@click.option(
    "--interval", metavar="SECONDS", type=click.FloatRange(0.5, 3600), default=3.0, show_default=True, help="Time between two measurements."
)
@setting_option
@bootstrap_option
def command(interval: float, settings: tuple[str, ...], bootstrap: str) -> None:
    """Show brokers, topics by rate, groups by lag, and what moves, live in the terminal.

    Works against every broker that speaks Kafka's protocol. Keys: q quits, p pauses, t and g change the order of topics and groups,
    / searches by name.
    """
    try:
        from ottla.cli.top.view import Top
    except ImportError as error:
        give_up(f"the view needs packages that are not installed ({error.name}); pip install 'ottla[top]'", 1)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        give_up("the view needs a terminal; for a program there are ottla topic list, group lag and cluster describe with -o json", 2)
    try:
        given = {name: value for name, value in client_settings(AdminOptions, settings).items() if name != "bootstrap_servers"}
        from_keywords(AdminOptions, {"bootstrap_servers": bootstrap, **given})
    except ConfigError as error:
        give_up(str(error), 2)
    Top(bootstrap, given, interval_s=interval).run()

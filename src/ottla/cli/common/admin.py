"""Shared by the commands that query a cluster: their options, and the admin client with its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

import ottla
from ottla.cli.common.complete import topic_names
from ottla.cli.common.connection import admin, bootstrap_option, combined
from ottla.cli.common.errors import reporting_errors
from ottla.cli.common.output_formats import output_option

#: `-o`, `-b` and `--profile`; the command receives `output` and `bootstrap`.
admin_options = combined(bootstrap_option, output_option)
#: `-t`, partitions of topics; the command receives `topics`.
partitions_option = click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,2-5]",
    shell_complete=topic_names,
    help="Only these partitions; repeatable.",
)


@contextmanager
def admin_client(bootstrap: str) -> Iterator[ottla.Admin]:
    """An admin client, whose errors become one line and an exit code."""
    with reporting_errors(), admin(bootstrap) as client:
        yield client

"""Words that the commands of ``ottla pipeline`` share: exit codes, variables of a file, a last sentence.

Exit codes: 0 done or stopped, 1 a query failed, 2 the file or a setting is wrong, 3 no Java or no Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import click

from ottla.cli.common.paths import LocalPath

EXIT_FAILED, EXIT_USAGE, EXIT_NO_JAVA = 1, 2, 3

file_argument = click.argument("file", type=LocalPath(path_type=Path))
variables_option = click.option(
    "--var", "variables", multiple=True, metavar="NAME=VALUE", help="Fill ${NAME} in the file; may be given several times."
)


def _with_ports(context: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    from ottla.client.options import address_problem

    if given is not None and (problem := address_problem(given)):
        raise click.BadParameter(problem, context, parameter)
    return given


bootstrap_option = click.option(
    "-b",
    "--bootstrap-server",
    "--bootstrap",
    "bootstrap",
    metavar="HOST:PORT[,...]",
    callback=_with_ports,
    help="Brokers to use instead of the file's.",
)


def variables_of(given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise click.BadParameter(f"{name!r} is not NAME=VALUE", param_hint="--var")
    return {name: value for name, _, value in pairs}


def stop_with(message: str, code: int) -> NoReturn:
    click.echo(f"ottla: {message}", err=True)
    raise SystemExit(code)

"""`ottla console`: serves the web application until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.base.options import ConfigError
from ottla.cli.common.arguments import listen_address
from ottla.cli.common.connection import bootstrap_option, connection_flags
from ottla.cli.common.errors import assignments, give_up, say
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.record_options import client_settings, registry_option, setting_option
from ottla.client.options import AdminOptions, ConsumerOptions, ProducerOptions, from_keywords

if TYPE_CHECKING:
    from ottla.console.options import ConsoleOptions


@click.command(name="console")
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Address of the console; port 0: a free one."
)
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option("--login", "login_file", metavar="FILE", type=LocalPath(path_type=Path), help="File with users, roles and OpenID Connect.")
@click.option("--no-login", is_flag=True, help="Serve without login at an address that other machines reach.")
@click.option("--host", "hosts", metavar="NAME", multiple=True, help="Further name of the console in its address; repeatable.")
@click.option("--https", is_flag=True, help="A proxy serves the console over https: cookies are Secure.")
@click.option(
    "--http",
    metavar="HOST:PORT",
    multiple=True,
    help="HTTP listener of a broker (ottla serve --http), for timelines; :PORT: on all brokers; repeatable.",
)
@click.option(
    "--pipeline",
    "pipelines",
    metavar="FILE",
    type=LocalPath(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="File of a Spark pipeline, whose checkpoint this machine reaches; repeatable.",
)
@click.option(
    "--flight-records",
    metavar="PATH",
    type=LocalPath(exists=True, path_type=Path),
    multiple=True,
    help="Flight record to show, or a data directory with some; repeatable.",
)
@click.option(
    "--audit", metavar="FILE", type=LocalPath(path_type=Path, dir_okay=False), help="Audit log, JSON lines. [default: standard error]"
)
@click.option(
    "--key-format", "key_formats", metavar="TOPIC=FORMAT", multiple=True, help="Format of a topic's keys, as in ottla consume; repeatable."
)
@click.option("--value-format", "value_formats", metavar="TOPIC=FORMAT", multiple=True, help="Format of a topic's values; repeatable.")
@registry_option
@setting_option
@click.option("--hash-password", is_flag=True, help="Ask for a password, print its hash for the login file, and exit.")
@bootstrap_option
def command(hash_password: bool, **options: Any) -> None:
    """Serve a web application that shows and changes a cluster.

    Prints "ottla: console at http://HOST:PORT" once browsers can connect.
    """
    if hash_password:
        from ottla.base.passwords import SALT_BYTES, hashed

        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        click.echo(hashed(password, os.urandom(SALT_BYTES)))
        return
    try:
        from ottla.console.serve import serve
    except ImportError as error:
        give_up(f"the console needs packages that are not installed ({error.name}); pip install 'ottla[console]'", 1)
    try:
        made = _options(**options)
        serve(made, _ready)
    except ConfigError as error:
        give_up(str(error), 2)
    except (OSError, ImportError) as error:
        give_up(f"cannot start at {options['listen']}: {error}", 1)


def _options(
    *, listen: str, read_only: bool, login_file: Path | None, no_login: bool, hosts: tuple[str, ...], https: bool, audit: Path | None,
    key_formats: tuple[str, ...], value_formats: tuple[str, ...], registry: str | None, settings: tuple[str, ...], bootstrap: str,
    http: tuple[str, ...], flight_records: tuple[Path, ...], pipelines: tuple[Path, ...],
) -> ConsoleOptions:  # fmt: skip
    """Raises: ConfigError, UsageError."""
    from ottla.base.listeners import is_loopback
    from ottla.console.options import ConsoleOptions, read_login
    from ottla.console.timelines.reader import checked_http

    host, port = listen_address(listen, "--listen")
    if login_file is None and not is_loopback(host) and not no_login:
        raise ConfigError("--listen", f"others reach {host}, and there is no login; use --login FILE, or --no-login to let everyone in")
    login = None if login_file is None else read_login(login_file, os.environ)
    clients = _client_settings(settings, bootstrap)
    return ConsoleOptions(
        bootstrap=bootstrap, settings=clients, command_flags=connection_flags(), host=host, port=port, hosts=hosts, is_read_only=read_only,
        login=login, audit=audit, registry=registry, formats=_formats(key_formats, value_formats, registry), is_https=https,
        http=checked_http(http),
        flight_records=flight_records,
        pipelines=pipelines,
    )  # fmt: skip


def _client_settings(pairs: tuple[str, ...], bootstrap: str) -> dict[str, Any]:
    """Settings that all clients have, from the profile and `-X`. Raises: ConfigError."""
    shared = {spec.attribute for spec in AdminOptions.SPECS.values()} - {"bootstrap_servers", "client_id", "retries"}
    given = {name: value for name, value in client_settings(AdminOptions, pairs).items() if name not in ("bootstrap_servers", "client_id")}
    from_keywords(AdminOptions, {"bootstrap_servers": bootstrap, **given})
    both = shared & {spec.attribute for table in (ConsumerOptions, ProducerOptions) for spec in table.SPECS.values()}
    return {name: value for name, value in given.items() if name in both}


def _formats(keys: tuple[str, ...], values: tuple[str, ...], registry: str | None) -> dict[str, tuple[str, str]]:
    """Formats of keys and values by topic, each checked. Raises: ConfigError, UsageError."""
    from ottla.client.values.parse import parse_value_format

    given = {"--key-format": assignments(keys, "--key-format"), "--value-format": assignments(values, "--value-format")}
    for option, by_topic in given.items():
        for name in by_topic.values():
            try:
                parse_value_format(name, option, registry=registry)
            except (ValueError, OSError, ImportError) as error:
                raise ConfigError(option, str(error)) from None
    topics = {topic for by_topic in given.values() for topic in by_topic}
    return {topic: (given["--key-format"].get(topic, ""), given["--value-format"].get(topic, "")) for topic in topics}


def _ready(url: str) -> None:
    say(f"console at {url}")
    sys.stderr.flush()

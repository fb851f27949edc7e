"""``ottla serve``: runs brokers until SIGTERM or Ctrl-C.

Settings come from the file, then from the environment (``--env``), then from ``--set``, then from the options; later ones win. Exit codes,
each with one line on stderr: 2 for an invalid setting, 1 if the server cannot start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ottla.base.options import ConfigError
from ottla.cli.common.errors import give_up
from ottla.cli.common.paths import LocalPath
from ottla.cli.serve.initial_user import initial_user
from ottla.server.addresses import address_text, listener_text, parse_address
from ottla.server.data_directory import CannotStart, default_data_directory

if TYPE_CHECKING:
    from ottla.server.process_plan import ProcessPlan
    from ottla.server.sidecars import SidecarPlan

LOOPS = ("uvloop", "asyncio")
#: Values of --log-level and of the environment variable OTTLA_LOG.
LOG_LEVELS = ("error", "warning", "info", "debug")
log = logging.getLogger("ottla.server")


@click.command(name="serve")
@click.option("--data-dir", metavar="DIR", type=LocalPath(path_type=Path), help=f"Data directory. [default: {default_data_directory()}]")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address to serve at; further brokers use the following ports, or free ports if it is 0. [default: 127.0.0.1:9092]",
)
@click.option(
    "--brokers", metavar="N", type=click.IntRange(1, 1000), default=1, show_default=True, help="Number of brokers in this process."
)
@click.option("--broker-id", metavar="N", type=click.IntRange(0), help="Id of the first broker. [default: 1]")
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[,...][/PATH]",
    help="ZooKeeper of a cluster of several processes, each with its own --broker-id and --data-dir. [default: the embedded store]",
)
@click.option(
    "--config", "config_file", metavar="FILE", type=LocalPath(path_type=Path), help="File of settings, like Kafka's server.properties."
)
@click.option(
    "--env", "from_environment", is_flag=True, help="Read settings from KAFKA_* variables, as the usual container images of Kafka do."
)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Setting by Kafka's name; repeatable.")
@click.option(
    "--init-scram",
    "users",
    metavar="MECHANISM=[name=...,password-file=...]",
    multiple=True,
    help="Add a user before the first start; password-file, password-env or prompt. Repeatable.",
)
@click.option(
    "--log-file",
    metavar="FILE",
    type=LocalPath(path_type=Path, dir_okay=False),
    help="Log file; rotated to FILE.1, ..., FILE.4 at 16 MiB. [default: standard error]",
)
@click.option("--log-format", type=click.Choice(("text", "json")), default="text", show_default=True, help="Form of log lines.")
@click.option("--log-level", metavar="LEVEL", help="Log error, warning, info or debug and above. [default: OTTLA_LOG, else info]")
@click.option("--http", metavar="HOST:PORT", help="Serve /metrics and /health at this address, such as 127.0.0.1:9644. [default: none]")
@click.option("--registry", metavar="HOST:PORT", help="Serve a schema registry at this address, such as 127.0.0.1:8081. [default: none]")
@click.option("--otlp", metavar="URL", help="Push metrics to this OpenTelemetry collector, such as http://127.0.0.1:4318. [default: none]")
@click.option(
    "--console",
    metavar="HOST:PORT",
    is_flag=False,
    flag_value="127.0.0.1:8080",
    help="Serve the web console at this address, in a process of its own. [default: none; without an address 127.0.0.1:8080]",
)
@click.option(
    "--console-login",
    metavar="FILE",
    type=LocalPath(exists=True, dir_okay=False, path_type=Path),
    help="Users of the console, as ottla console --login.",
)
@click.option("--loop", type=click.Choice(LOOPS), envvar="OTTLA_LOOP", help="Event loop. [default: uvloop if installed]")
def command(
    log_file: Path | None, log_format: str, log_level: str | None, http: str | None, registry: str | None, otlp: str | None,
    console: str | None, console_login: Path | None, loop: str | None, **options: Any,
) -> None:  # fmt: skip
    """Run one or more brokers until SIGTERM or Ctrl-C.

    Prints "ottla: ready on HOST:PORT[,HOST:PORT...]" once clients can connect.
    """
    _set_up_log(log_file, log_format, log_level)
    from ottla.server.process import Beside, serve

    try:
        plan = _plan(**options)
        metrics = None if http is None else parse_address(http, name="--http")
        beside = Beside(metrics, otlp, _sidecars(console, console_login, registry, plan))
    except ConfigError as error:
        give_up(str(error), 2)

    try:
        with asyncio.Runner(loop_factory=_loop_factory(loop)) as runner:
            code = runner.run(serve(plan, _ready, beside))
    except ConfigError as error:
        give_up(str(error), 2)
    except CannotStart as error:
        give_up(str(error), 1)
    sys.exit(code)


def _sidecars(console: str | None, login: Path | None, registry: str | None, plan: ProcessPlan) -> tuple[SidecarPlan, ...]:
    """Raises: ConfigError."""
    from ottla.server.sidecars import console_plan, registry_plan

    if console is None and login is not None:
        raise ConfigError("--console-login", "it needs --console HOST:PORT")
    found = []
    registry_at = None if registry is None else parse_address(registry, name="--registry")
    if registry_at is not None:
        found.append(registry_plan(registry_at))
    if console is not None:
        found.append(console_plan(parse_address(console, name="--console"), login, plan.data_dir, registry_at))
    return tuple(found)


def _set_up_log(log_file: Path | None, log_format: str, log_level: str | None) -> None:
    from ottla.base.log_levels import LogLevel
    from ottla.server.broker_log import set_up
    from ottla.server.log_file import LogFile

    option, level = ("--log-level", log_level) if log_level is not None else ("OTTLA_LOG", os.environ.get("OTTLA_LOG") or "info")
    if level not in LOG_LEVELS:
        give_up(f"{option}: expected {', '.join(LOG_LEVELS)}, not {level!r}", 2)
    handler = None
    if log_file is not None:
        try:
            handler = LogFile(log_file.absolute())
        except OSError as error:
            give_up(f"--log-file: cannot write to {log_file}: {error.strerror}", 2)
    set_up(log_format, LogLevel[level.upper()], handler)


def _plan(
    *, data_dir: Path | None, listen: str | None, brokers: int, broker_id: int | None, zookeeper: str | None,
    config_file: Path | None, from_environment: bool, settings: tuple[str, ...], users: tuple[str, ...],
) -> ProcessPlan:  # fmt: skip
    """Raises: ConfigError."""
    from ottla.server.process_plan import ProcessPlan
    from ottla.server.server_properties import accepted_settings, parse_properties, settings_of_environment

    values: dict[str, str] = {}
    if config_file is not None:
        try:
            values.update(parse_properties(config_file.read_text()))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("--config", f"cannot read {config_file}: {error}") from None
    if from_environment:
        values.update(settings_of_environment(os.environ))
    typed = set()
    for pair in settings:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError("--set", f"expected KEY=VALUE, such as write.caching=true, not {pair!r}")
        values[name.strip()] = value
        typed.add(name.strip())
    if broker_id is not None:
        values["broker.id"] = str(broker_id)
    if zookeeper is not None:
        values["zookeeper.connect"] = zookeeper
    if listen is not None:
        values["listeners"] = listener_text(parse_address(listen, name="--listen"))
    accepted = accepted_settings(values, typed=typed)
    plan = ProcessPlan(
        data_dir=(data_dir or default_data_directory()).absolute(),
        texts=accepted.texts,
        brokers=brokers,
        plugins=accepted.plugins,
        users=tuple(map(initial_user, users)),
    )
    # Reject invalid settings before creating a directory.
    plan.listeners()
    plan.log_dirs(0)
    for warning in [*accepted.warnings, *plan.warnings()]:
        log.warning("%s", warning)
    return plan


def _loop_factory(name: str | None) -> Callable[[], asyncio.AbstractEventLoop]:
    if name != "asyncio":
        try:
            import uvloop
        except ImportError:
            if name == "uvloop":
                give_up("--loop: uvloop is not installed; use --loop asyncio", 2)
        else:
            return cast("Callable[[], asyncio.AbstractEventLoop]", uvloop.new_event_loop)
    return asyncio.new_event_loop


def _ready(addresses: list[tuple[str, int]]) -> None:
    print(f"ottla: ready on {','.join(map(address_text, addresses))}", flush=True)

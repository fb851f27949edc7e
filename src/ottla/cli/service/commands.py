"""`ottla service install`, `uninstall` and `status`: a broker as a service of systemd.

python3 -m venv /opt/ottla && /opt/ottla/bin/pip install ottla
/opt/ottla/bin/ottla service install
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath
from typing import Any

import click

from ottla.base.listeners import plaintext
from ottla.base.options import ConfigError
from ottla.cli.common.confirmation import NOTHING_CHANGED, dry_run_option
from ottla.cli.common.lazy import CommandGroup
from ottla.cli.common.output_formats import OutputFormat, fields, note, output_option
from ottla.cli.common.tables import Column
from ottla.cli.service.steps import BOOTED, Step, carry_out, installation, is_ours, removal
from ottla.cli.service.unit import UNITS, Service

PROPERTIES = (
    "LoadState",
    "UnitFileState",
    "ActiveState",
    "SubState",
    "MainPID",
    "NRestarts",
    "StatusText",
    "ActiveEnterTimestamp",
    "Result",
)
STATUS = (
    Column("UNIT", "unit"), Column("ENABLED", "enabled"), Column("STATE", "state"), Column("PID", "pid", number=True),
    Column("RESTARTS", "restarts", number=True), Column("SINCE", "since"), Column("READY", "ready"), Column("STATUS", "status"),
)  # fmt: skip
HTTP_TIMEOUT_S = 5
name_option = click.option("--name", metavar="NAME", default="ottla", show_default=True, help="Name of the unit.")


@click.group(name="service", cls=CommandGroup)
def command() -> None:
    """Run a broker as a service of systemd on this machine."""


@command.command()
@name_option
@click.option("--user", metavar="USER", default="ottla", show_default=True, help="User of the service; added if it does not exist.")
@click.option("--data-dir", metavar="DIR", default="/var/lib/ottla", show_default=True, help="Data directory.")
@click.option(
    "--config-dir", metavar="DIR", default="/etc/ottla", show_default=True, help="Directory of server.properties and environment."
)
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:9092", show_default=True, help="Address in a new server.properties.")
@click.option("--http", metavar="HOST:PORT", default="127.0.0.1:9644", show_default=True, help="Address of /metrics and /health.")
@click.option("--program", metavar="FILE", help="Program that the service runs. [default: this one]")
@click.option("--no-start", is_flag=True, help="Only enable the service for the next boot.")
@click.option("--root", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Write the files below DIR, for an image.")
@click.option("--print", "only_print", is_flag=True, help="Print the unit and do nothing else.")
@dry_run_option
def install(
    name: str, user: str, data_dir: str, config_dir: str, listen: str, http: str, program: str | None, no_start: bool, root: Path | None,
    only_print: bool, dry_run: bool,
) -> None:  # fmt: skip
    """Install a broker as a systemd service.

    This makes the unit, the user, directories and the first settings. Repeat it after an upgrade.

    An existing server.properties is kept. Needs root. See the unit with --print, and the steps with --dry-run.
    """
    service = _service(name=name, user=user, data_dir=data_dir, config_dir=config_dir, listen=listen, http=http, program=program)
    if only_print:
        click.echo(service.unit_text(), nl=False)
        return
    if root is None and not dry_run:
        _check_machine()
        if program is None:
            _check_reachable(service)
    _perform(list(installation(service, start=not no_start)), root, dry_run)
    if not dry_run and root is None:
        note(f"Settings: {service.config}. After a change: systemctl restart {name}. Log: journalctl -u {name} -f")
        note(f"If it ran before, it still runs as before until: systemctl restart {name}")


@command.command()
@name_option
@dry_run_option
def uninstall(name: str, dry_run: bool) -> None:
    """Stop a service and remove its unit. Data, settings and the user stay."""
    unit = UNITS / f"{_checked_name(name)}.service"
    if not unit.exists():
        raise click.ClickException(f"there is no {unit}")
    if not is_ours(unit):
        raise click.ClickException(f"{unit} was not written by ottla service install; remove it with systemctl disable --now {name} and rm")
    if not dry_run:
        _check_machine()
    kept = re.findall(r"(?:--data-dir|--config) (\S+)", unit.read_text())
    _perform(list(removal(unit)), None, dry_run)
    note(f"Kept: {', '.join(kept)} and the user.")


@fields(
    unit="name of the unit",
    enabled="whether it starts at boot: enabled, disabled, or null: there is no such unit",
    state="active, activating, deactivating, failed or inactive, and systemd's own word for it",
    pid="process id; null: it does not run",
    restarts="automatic restarts since it was started",
    since="when it became active; null: it did not",
    ready="whether /health/ready answers that clients are served; null: it cannot be asked",
    reasons="why it is not ready",
    status="what the broker reports",
)
@command.command()
@name_option
@output_option
def status(name: str, output: OutputFormat) -> None:
    """Show whether a service runs and serves clients. Exit code 1 if not."""
    unit = f"{_checked_name(name)}.service"
    found = _properties(unit)
    ready, reasons = _readiness(UNITS / unit) if found.get("ActiveState") == "active" else (None, [])
    document: dict[str, Any] = {
        "unit": unit,
        "enabled": found.get("UnitFileState") or None,
        "state": f"{found.get('ActiveState', 'inactive')} ({found.get('SubState', 'dead')})",
        "pid": int(found.get("MainPID") or 0) or None,
        "restarts": int(found.get("NRestarts") or 0),
        "since": found.get("ActiveEnterTimestamp") or None,
        "ready": ready,
        "reasons": reasons,
        "status": found.get("StatusText") or None,
    }
    if output.is_structured:
        output.document(document)
    else:
        output.table([document], STATUS)
        for reason in reasons:
            note(f"Not ready: {reason}")
    if found.get("LoadState") == "not-found":
        raise click.ClickException(f"there is no unit {unit}; install it with ottla service install")
    if found.get("ActiveState") != "active" or ready is False:
        raise SystemExit(1)


def _service(
    *, name: str, user: str, data_dir: str, config_dir: str, listen: str, http: str, program: str | None
) -> Service:  # fmt: skip
    """Raises: UsageError."""
    service = Service(
        name=name, user=user, program=program or this_program(), data_dir=PurePosixPath(data_dir), config_dir=PurePosixPath(config_dir),
        listen=plaintext(*_address(listen, "--listen")).text, http=http,
    )  # fmt: skip
    _address(http, "--http")
    try:
        service.check()
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    return service


def _address(text: str, option: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or not re.fullmatch(r"[\w.-]*|\[[0-9a-fA-F:]+\]", host):
        raise click.UsageError(f"{option}: expected HOST:PORT, such as 127.0.0.1:9092, not {text!r}")
    return host.strip("[]"), int(port)


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"[\w-]+", name):
        raise click.UsageError(f"--name: use letters, digits, - and _, not {name!r}")
    return name


def this_program() -> str:
    """The installed script of this Python."""
    return str(Path(sysconfig.get_path("scripts")) / "ottla")


def _check_machine() -> None:
    """Raises: ClickException."""
    if not BOOTED.is_dir():
        raise click.ClickException("this machine does not run systemd; --print shows the unit, --root DIR writes the files for an image")
    if os.geteuid() != 0:
        raise click.ClickException("only root can do this; use sudo, or see the steps with --dry-run")


def _check_reachable(service: Service) -> None:
    """Whether another user may run this program, and Python and the package behind it. Raises: ClickException."""
    for path in (Path(service.program), Path(sys.executable).resolve(), Path(__file__)):
        closed = next((one for one in [path, *path.parents] if not one.exists() or not one.stat().st_mode & 0o001), None)
        if path == Path(__file__) and closed == path:
            # A module is read, not run.
            closed = next((one for one in path.parents if not one.stat().st_mode & 0o001), None)
        hidden = next((one for one in ("/home", "/root") if path.is_relative_to(one)), None)
        if closed is not None or hidden is not None:
            remedy = "python3 -m venv /opt/ottla && /opt/ottla/bin/pip install ottla && /opt/ottla/bin/ottla service install"
            reason = f"{hidden or closed} is closed to it"
            raise click.ClickException(f"user {service.user} cannot run {path}: {reason}; install Ottla elsewhere: {remedy}")


def _perform(steps: list[Step], root: Path | None, dry_run: bool) -> None:
    for step in steps:
        if not dry_run:
            carry_out(step, root)
        click.echo(str(step))
    if dry_run:
        note(NOTHING_CHANGED)


def _properties(unit: str) -> dict[str, str]:
    """Properties of a unit as systemctl shows them. Raises: ClickException."""
    try:
        done = subprocess.run(
            ["systemctl", "show", unit, f"--property={','.join(PROPERTIES)}"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise click.ClickException("systemctl is not installed on this machine") from None
    if done.returncode:
        raise click.ClickException(f"systemctl show failed: {done.stderr.strip()}")
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def _readiness(unit: Path) -> tuple[bool | None, list[str]]:
    """What /health/ready says, at the address in the unit."""
    try:
        address = re.search(r"--http (\S+)", unit.read_text())
    except OSError:
        return None, []
    if address is None:
        return None, []
    url = f"http://{address[1].replace('0.0.0.0', '127.0.0.1')}/health/ready"
    try:
        with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S):
            return True, []
    except urllib.error.HTTPError as error:
        try:
            return False, [str(reason) for reason in json.load(error)["reasons"]]
        except (ValueError, KeyError, TypeError):
            return False, [str(error)]
    except OSError as error:
        return False, [f"{url}: {getattr(error, 'reason', error)}"]

"""The cluster of a command, and the settings of its clients.

The address is the first of these that is set:

    -b HOST:PORT[,...]                   command line
    --profile NAME                       command line, a profile by name (`ottla.cli.common.profiles`)
    OTTLA_BOOTSTRAP_SERVERS              environment; OTTLA_BOOTSTRAP is the same
    OTTLA_PROFILE                        environment, a profile by name
    the profile in use (`ottla profile use`)
    127.0.0.1:9092

The other settings of the profile go to the clients. With `-b` or OTTLA_BOOTSTRAP_SERVERS no profile is read, except that `-b` with
`--profile` uses the profile's other settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import click

import ottla
from ottla.base.options import Kind, Options
from ottla.cli.common.profiles import active_profile, profile_names
from ottla.cli.common.secret_sources import secret_from
from ottla.client.options import AdminOptions, address_problem

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
ENVIRONMENT = ("OTTLA_BOOTSTRAP_SERVERS", "OTTLA_BOOTSTRAP")
_PROFILE, _ADDRESS = "ottla.profile", "ottla.address"


class ClusterAddress(NamedTuple):
    """Bootstrap servers of a cluster, the source of that address, and other settings for its clients."""

    bootstrap: str
    source: str
    settings: dict[str, str]


def cluster_address(bootstrap: str | None = None, profile: str | None = None) -> ClusterAddress:
    """The cluster for these options of the command line. Raises: UsageError; ClickException, if the profile does not exist."""
    if bootstrap is not None and not bootstrap.strip(", "):
        raise click.UsageError("-b expects HOST:PORT[,...]")
    address = _resolved_address(bootstrap, profile)
    if problem := address_problem(address.bootstrap):
        raise click.UsageError(f"{'-b' if address.source == '--bootstrap-server' else address.source}: {problem}")
    return address


def _resolved_address(bootstrap: str | None, profile: str | None) -> ClusterAddress:

    if bootstrap is not None:
        return ClusterAddress(bootstrap, "--bootstrap-server", _other_settings(profile))
    if profile is None and (name := next((name for name in ENVIRONMENT if os.environ.get(name)), None)):
        return ClusterAddress(os.environ[name], name, {})
    active = active_profile(profile or os.environ.get("OTTLA_PROFILE") or None)
    if active is None:
        return ClusterAddress(DEFAULT_BOOTSTRAP, "default", {})
    settings = dict(active.settings)
    return ClusterAddress(settings.pop("bootstrap_servers", DEFAULT_BOOTSTRAP), f"profile {active.name}", settings)


def _other_settings(profile: str | None) -> dict[str, str]:
    if profile is None:
        return {}
    active = active_profile(profile)
    return {name: value for name, value in (active.settings if active else {}).items() if name != "bootstrap_servers"}


def named_profile(context: click.Context) -> str | None:
    """The value of `--profile`, once it is parsed."""
    profile: str | None = context.meta.get(_PROFILE)
    return profile


class Decorator(Protocol):
    """Adds options to a command."""

    def __call__(self, function: F, /) -> F: ...


def combined(*options: Decorator) -> Decorator:
    """One decorator for several options; the last one is the first in the help."""

    def decorate(function: F) -> F:
        for option in options:
            function = option(function)
        return function

    return decorate


def _cluster_options(*, required: bool) -> Decorator:
    """`required`: resolve an address even if neither option is set."""

    def resolve(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        profile = context.meta.get(_PROFILE)
        if not required and value is None and profile is None:
            return None
        if context.resilient_parsing:
            return value
        address = cluster_address(value, profile)
        context.meta[_ADDRESS] = address
        return address.bootstrap

    def set_profile(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        context.meta[_PROFILE] = value

    profile_option = click.option(
        "--profile",
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        callback=set_profile,
        shell_complete=profile_names,
        help="Use the cluster and the settings of a profile; see ottla profile.",
    )
    default = f" [default: the profile in use, or {DEFAULT_BOOTSTRAP}]" if required else ""
    bootstrap = click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT[,...]",
        callback=resolve,
        help=("Bootstrap servers; also OTTLA_BOOTSTRAP_SERVERS." if required else "Bootstrap servers of a cluster to query.") + default,
    )
    return combined(profile_option, bootstrap)


#: `-b` and `--profile`, the command's cluster; the command receives `bootstrap`.
bootstrap_option = _cluster_options(required=True)
#: `-b` and `--profile` of a command that defaults to this machine: `bootstrap` is None if neither is set.
remote_option = _cluster_options(required=False)


def configured_bootstrap() -> str | None:
    """The cluster of the environment or of the profile in use, or None. Its settings become those of the command."""
    address = cluster_address()
    if address.source == "default":
        return None
    click.get_current_context().meta[_ADDRESS] = address
    return address.bootstrap


def profile_settings(table: type[Options]) -> dict[str, str]:
    """The profile's settings that are in a client's table of options."""
    address = _current_address()
    known = {spec.attribute: spec for spec in table.SPECS.values()}
    given = {} if address is None else {name: value for name, value in address.settings.items() if name in known}
    return {name: secret_from(name, value) if known[name].kind is Kind.PASSWORD else value for name, value in given.items()}


def address_source_hint() -> str:
    """A hint where an unreachable address comes from; "" if it is from the command line."""
    address = _current_address()
    if address is None or address.source == "--bootstrap-server":
        return ""
    if address.source == "default":
        return " This is the default address. Set another one with -b or a profile, or start a broker with ottla serve."
    return f" The address comes from {address.source}."


def connection_flags() -> str:
    """The options, with a leading blank, with which another command uses the same cluster; "" if the command line has none."""
    from shlex import quote

    address, context = _current_address(), click.get_current_context(silent=True)
    profile = None if context is None else named_profile(context)
    flags = f" -b {quote(address.bootstrap)}" if address is not None and address.source == "--bootstrap-server" else ""
    return flags + (f" --profile {quote(profile)}" if profile else "")


def _current_address() -> ClusterAddress | None:
    context = click.get_current_context(silent=True)
    address: ClusterAddress | None = None if context is None else context.meta.get(_ADDRESS)
    return address


def admin(bootstrap: str) -> ottla.Admin:
    """An admin client with short timeouts, so that a command fails soon if no broker is reachable."""
    from ottla.client.sync.admin import Admin

    settings: dict[str, Any] = {"client_id": "ottla-cli", "default_api_timeout_ms": 30_000, "retries": 3, **profile_settings(AdminOptions)}
    return Admin(bootstrap_servers=bootstrap, **settings)

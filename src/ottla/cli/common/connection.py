"""The cluster of a command, and the settings of its clients: those of `-b` and `--profile`, else of `ottla.client.profiles`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import click

import ottla
from ottla.cli.common import secret_sources
from ottla.cli.common.profiles import profile_names
from ottla.client.options import AdminOptions, ClientOptions, address_problem
from ottla.client.profiles import DEFAULT_BOOTSTRAP, ClusterAddress, settings_in

F = TypeVar("F", bound=Callable[..., Any])
_PROFILE, _ADDRESS = "ottla.profile", "ottla.address"


def cluster_address(bootstrap: str | None = None, profile: str | None = None) -> ClusterAddress:
    """The cluster for these options of the command line. Raises: UsageError; ClickException, if the profile does not exist."""
    if bootstrap is not None and not bootstrap.strip(", "):
        raise click.UsageError("-b expects HOST:PORT[,...]")
    address = secret_sources.cluster_address(bootstrap, profile)
    if problem := address_problem(address.bootstrap):
        raise click.UsageError(f"{'-b' if address.source == '--bootstrap-server' else address.source}: {problem}")
    return address


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


def _set_profile(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[_PROFILE] = value


def profile_option(help: str) -> Decorator:
    """`--profile`."""
    return click.option(
        "--profile", metavar="NAME", is_eager=True, expose_value=False, callback=_set_profile, shell_complete=profile_names, help=help
    )


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

    default = f" [default: the profile in use, or {DEFAULT_BOOTSTRAP}]" if required else ""
    bootstrap = click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT[,...]",
        callback=resolve,
        help=("Bootstrap servers; also OTTLA_BOOTSTRAP_SERVERS." if required else "Bootstrap servers of a cluster to query.") + default,
    )
    return combined(profile_option("Use the cluster and the settings of a profile; see ottla profile."), bootstrap)


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


def profile_settings(table: type[ClientOptions]) -> dict[str, str]:
    """The profile's settings that are in a client's table of options."""
    address = _current_address()
    return {} if address is None else settings_in(table, address.settings, secret_sources.secret_from)


def profile_storage(url: str) -> dict[str, str]:
    """The options of the command's profile for the object store of an address. Raises: ClickException."""
    from ottla.base.paths import ADDRESS, OPENED
    from ottla.client.storage_options import kind_of

    scheme = ADDRESS.match(url)
    assert scheme is not None, "an address of an object store"
    context = click.get_current_context(silent=True)
    address = _current_address() or cluster_address(None, None if context is None else named_profile(context))
    return dict(address.storage.get(kind_of(OPENED[scheme["scheme"].lower()]), {}))


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

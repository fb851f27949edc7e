"""Which cluster a command talks to, and as whom.

The first of these that says something is taken:

    -b HOST:PORT[,...]                   the command line
    --profile NAME                       ... a profile by name (`ottla.cli.common.profiles`)
    OTTLA_BOOTSTRAP_SERVERS              the environment; OTTLA_BOOTSTRAP is the same
    OTTLA_PROFILE                        ... a profile by name
    the profile that `ottla profile use` chose
    127.0.0.1:9092

Other settings of a profile go to the clients. With `-b` or OTTLA_BOOTSTRAP_SERVERS no profile is read; one that is named beside `-b` lends
its other settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from ottla.base.options import Options
    from ottla.client.sync.admin import Admin

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
ENVIRONMENT = ("OTTLA_BOOTSTRAP_SERVERS", "OTTLA_BOOTSTRAP")
_PROFILE, _PLACE = "ottla.profile", "ottla.place"


class Place(NamedTuple):
    """A cluster: where it is, who says so, and the other settings of clients for it."""

    bootstrap: str
    source: str
    settings: dict[str, str]


def place(bootstrap: str | None = None, profile: str | None = None) -> Place:
    """The cluster that is meant, with what the command line says. Raises: UsageError; ClickException, when there is no such profile."""
    if bootstrap is not None and not bootstrap.strip(", "):
        raise click.UsageError("-b expects HOST:PORT[,...]")
    found = _found(bootstrap, profile)
    from ottla.client.options import address_problem

    if problem := address_problem(found.bootstrap):
        raise click.UsageError(f"{'-b' if found.source == '--bootstrap-server' else found.source}: {problem}")
    return found


def _found(bootstrap: str | None, profile: str | None) -> Place:
    """See `place`."""
    if bootstrap is not None:
        return Place(bootstrap, "--bootstrap-server", _other(profile))
    if profile is None and (name := next((name for name in ENVIRONMENT if os.environ.get(name)), None)):
        return Place(os.environ[name], name, {})
    from ottla.cli.common.profiles import chosen

    named = profile or os.environ.get("OTTLA_PROFILE") or None
    found = chosen(named)
    if found is None:
        return Place(DEFAULT_BOOTSTRAP, "default", {})
    settings = dict(found.settings)
    return Place(settings.pop("bootstrap_servers", DEFAULT_BOOTSTRAP), f"profile {found.name}", settings)


def _other(profile: str | None) -> dict[str, str]:
    if profile is None:
        return {}
    from ottla.cli.common.profiles import chosen

    found = chosen(profile)
    return {name: value for name, value in (found.settings if found else {}).items() if name != "bootstrap_servers"}


def named_profile(context: click.Context) -> str | None:
    """The profile that the command line names, as far as it is read."""
    found: str | None = context.meta.get(_PROFILE)
    return found


def _with_options(function: F, *, anywhere: bool) -> F:
    def resolved(context: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
        profile = context.meta.get(_PROFILE)
        if not anywhere and given is None and profile is None:
            return None
        if context.resilient_parsing:
            return given
        where = place(given, profile)
        context.meta[_PLACE] = where
        return where.bootstrap

    def named(context: click.Context, parameter: click.Parameter, given: str | None) -> None:
        context.meta[_PROFILE] = given

    from ottla.cli.common.complete import profile_names

    function = click.option(
        "--profile",
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        callback=named,
        shell_complete=profile_names,
        help="The cluster that a profile names; see ottla profile.",
    )(function)
    shown = f" [default: that of the profile in use, or {DEFAULT_BOOTSTRAP}]" if anywhere else ""
    return click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT[,...]",
        callback=resolved,
        help=("Brokers to begin with; OTTLA_BOOTSTRAP_SERVERS sets it too." if anywhere else "Ask this cluster, wherever it is.") + shown,
    )(function)


def bootstrap_option(function: F) -> F:
    """`-b` and `--profile`, the cluster to talk to; the command gets `bootstrap`."""
    return _with_options(function, anywhere=True)


def remote_option(function: F) -> F:
    """`-b` and `--profile` of a command that otherwise looks at this machine: `bootstrap` is None when neither is given."""
    return _with_options(function, anywhere=False)


def named_elsewhere() -> str | None:
    """The cluster that the environment or the profile in use names; None when neither does. Its settings hold from then on."""
    where = place()
    if where.source == "default":
        return None
    click.get_current_context().meta[_PLACE] = where
    return where.bootstrap


def profile_settings(table: type[Options]) -> dict[str, str]:
    """Settings of the profile in use, besides where the cluster is, for a client that has those of this table."""
    where = _here()
    known = {spec.attribute for spec in table.SPECS.values()}
    return {} if where is None else {name: value for name, value in where.settings.items() if name in known}


def whence() -> str:
    """Who named the cluster that cannot be reached, and what to do; nothing when the command line did."""
    where = _here()
    if where is None or where.source == "--bootstrap-server":
        return ""
    if where.source == "default":
        return " That is where commands look by default: name another cluster with -b or a profile, or start one with ottla serve."
    return f" The address comes from {where.source}."


def place_flags() -> str:
    """What a command needs behind it to talk to the same cluster, where the command line said which; else nothing."""
    from shlex import quote

    where, context = _here(), click.get_current_context(silent=True)
    profile = None if context is None else named_profile(context)
    flags = f" -b {quote(where.bootstrap)}" if where is not None and where.source == "--bootstrap-server" else ""
    return flags + (f" --profile {quote(profile)}" if profile else "")


def _here() -> Place | None:
    context = click.get_current_context(silent=True)
    found: Place | None = None if context is None else context.meta.get(_PLACE)
    return found


def admin(bootstrap: str) -> Admin:
    """An admin client with a person's patience: it gives up soon when no broker can be reached."""
    from ottla.client.options import AdminOptions
    from ottla.client.sync.admin import Admin

    ours = profile_settings(AdminOptions)
    settings: dict[str, Any] = {"client_id": "ottla-cli", "default_api_timeout_ms": 30_000, "retries": 3, **ours}
    return Admin(bootstrap_servers=bootstrap, **settings)

"""Options of the console, and the file with its users.

    [users.alice]
    role = "admin"                      # viewer, editor or admin
    password = "scrypt:..."             # printed by: ottla console --hash-password

    [oidc]
    issuer = "https://id.example.com/realms/main"
    client_id = "ottla-console"
    client_secret = "env:CONSOLE_SECRET"    # or file:PATH
    roles_claim = "groups"
    roles = { "kafka-admins" = "admin", "everyone" = "viewer" }

Without a file there is no login: everyone who reaches the address has the role `admin`, so the console then listens on loopback only.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ottla.base.listeners import is_loopback
from ottla.base.options import ConfigError
from ottla.console.web.roles import Role

LOGIN = "--login"


class User(msgspec.Struct, frozen=True):
    """A user with a password in the login file."""

    name: str
    role: Role
    password_hash: str


class Oidc(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenID Connect provider. `roles` maps values of the claim `roles_claim` to roles; the highest one counts."""

    issuer: str
    client_id: str
    client_secret: str
    scopes: str = "openid profile email"
    name_claim: str = "preferred_username"
    roles_claim: str = "groups"
    roles: dict[str, Role] = {}


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """Who may log in: users with passwords, and those of an OpenID Connect provider."""

    users: dict[str, User] = {}
    oidc: Oidc | None = None


class ConsoleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one console."""

    bootstrap: str
    #: Settings of the clients, by their Python names: those of the profile and of the command line.
    settings: Mapping[str, Any] = {}
    #: Options with which `ottla` reaches the same cluster, for the commands that pages show.
    command_flags: str = ""
    host: str = "127.0.0.1"
    port: int = 8080
    #: Names of the console in the Host header, in addition to the address and, on loopback, localhost.
    hosts: tuple[str, ...] = ()
    is_read_only: bool = False
    #: None: no login.
    login: Login | None = None
    #: File of the audit log; None: standard error.
    audit: Path | None = None
    #: Schema registry for Avro.
    registry: str | None = None
    #: Formats by topic: {"orders": ("text", "protobuf:FILE:NAME")}.
    formats: Mapping[str, tuple[str, str]] = {}
    #: HTTP listeners of the brokers, for timelines: HOST:PORT, or :PORT for this port on each broker's host.
    http: tuple[str, ...] = ()
    #: Files of Spark pipelines.
    pipelines: tuple[Path, ...] = ()
    #: Flight records that pages show: files, and directories that have them.
    flight_records: tuple[Path, ...] = ()
    #: The browser reaches the console over https, through a proxy.
    is_https: bool = False

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the console."""
        return is_loopback(self.host)


def read_login(path: Path, environment: Mapping[str, str]) -> Login:
    """The login file. Raises: ConfigError with the problem."""
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(LOGIN, f"cannot read {path}: {error}") from None
    if unknown := sorted(set(document) - {"users", "oidc"}):
        raise ConfigError(LOGIN, f"{path}: unknown table {unknown[0]}; tables are users.NAME and oidc")
    users = {name: _user(path, name, table) for name, table in _tables(path, document, "users").items()}
    oidc = _oidc(path, document["oidc"], environment) if "oidc" in document else None
    if not users and oidc is None:
        raise ConfigError(LOGIN, f"{path}: nobody could log in; add [users.NAME] with role and password, or [oidc]")
    return Login(users=users, oidc=oidc)


def _tables(path: Path, document: dict[str, Any], name: str) -> dict[str, Any]:
    tables = document.get(name, {})
    if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
        raise ConfigError(LOGIN, f"{path}: expected each user as a table [users.NAME]")
    return tables


def _user(path: Path, name: str, table: dict[str, Any]) -> User:
    where = f"{path}: users.{name}"
    if unknown := sorted(set(table) - {"role", "password"}):
        raise ConfigError(LOGIN, f"{where}: unknown key {unknown[0]}; keys are role and password")
    password = table.get("password")
    if not isinstance(password, str) or not password.startswith("scrypt:"):
        raise ConfigError(LOGIN, f"{where}: password expects the output of ottla console --hash-password, not a password")
    return User(name, _role(where, table.get("role", "viewer")), password)


def _role(where: str, name: Any) -> Role:
    try:
        return Role[str(name).upper()]
    except KeyError:
        raise ConfigError(LOGIN, f"{where}: role expects viewer, editor or admin, not {name!r}") from None


def _oidc(path: Path, table: Any, environment: Mapping[str, str]) -> Oidc:
    where = f"{path}: oidc"
    if not isinstance(table, dict):
        raise ConfigError(LOGIN, f"{where}: expected a table")
    fields = set(Oidc.__struct_fields__)
    if unknown := sorted(set(table) - fields):
        raise ConfigError(LOGIN, f"{where}: unknown key {unknown[0]}; keys are {', '.join(sorted(fields))}")
    if missing := [name for name in ("issuer", "client_id", "client_secret") if not isinstance(table.get(name), str)]:
        raise ConfigError(LOGIN, f"{where}: {missing[0]} is missing")
    issuer = table["issuer"]
    if not issuer.startswith("https://") and not issuer.startswith(("http://127.0.0.1", "http://localhost")):
        raise ConfigError(LOGIN, f"{where}: issuer expects an https:// URL, not {issuer!r}")
    roles = table.get("roles", {})
    if not isinstance(roles, dict):
        raise ConfigError(LOGIN, f"{where}: roles expects a table of claim values and roles")
    given = {name: value for name, value in table.items() if name not in ("roles", "client_secret")}
    if wrong := [name for name, value in given.items() if not isinstance(value, str)]:
        raise ConfigError(LOGIN, f"{where}: {wrong[0]} expects text")
    return Oidc(
        **given,
        client_secret=_secret(where, table["client_secret"], environment),
        roles={str(value): _role(f"{where}: roles", role) for value, role in roles.items()},
    )


def _secret(where: str, source: str, environment: Mapping[str, str]) -> str:
    """The secret of `file:PATH` or `env:NAME`. Raises: ConfigError."""
    kind, _, name = source.partition(":")
    if kind == "env" and environment.get(name):
        return environment[name]
    if kind == "file":
        try:
            return Path(name).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(LOGIN, f"{where}: cannot read the client secret: {error}") from None
    raise ConfigError(LOGIN, f"{where}: client_secret expects file:PATH, or env:NAME of a variable that is set")

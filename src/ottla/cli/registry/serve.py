"""`ottla registry serve`: runs an instance of the schema registry until SIGTERM or Ctrl-C."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.base.options import ConfigError
from ottla.cli.common.arguments import listen_address
from ottla.cli.common.connection import address_source_hint, bootstrap_option
from ottla.cli.common.errors import give_up, say
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.record_options import client_settings, setting_option
from ottla.client.options import AdminOptions, ConsumerOptions, ProducerOptions, from_keywords
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.registry.serve import ServeOptions

FILE = LocalPath(path_type=Path, dir_okay=False, exists=True)


@click.command(name="serve")
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:8081", show_default=True, help="Address of the registry; port 0: a free one."
)
@click.option("--advertise", metavar="HOST:PORT", help="Address at which other instances reach this one. [default: --listen]")
@click.option("--topic", metavar="TOPIC", default="_schemas", show_default=True, help="Topic of the schemas; created if missing.")
@click.option("--group", metavar="GROUP", default="schema-registry", show_default=True, help="Group that elects the writing instance.")
@click.option("--never-write", is_flag=True, help="Never be elected to write: only answer reads and forward writes.")
@click.option("--auth", metavar="FILE", type=FILE, help="File of users for basic authentication: NAME HASH [reader|writer] on each line.")
@click.option("--no-auth", is_flag=True, help="Serve without users at an address that other machines reach.")
@click.option("--tls-certificate", metavar="FILE", type=FILE, help="Certificate chain (PEM): serve HTTPS.")
@click.option("--tls-key", metavar="FILE", type=FILE, help="Private key (PEM). [default: in the certificate's file]")
@click.option("--tls-client-ca", metavar="FILE", type=FILE, help="Authorities (PEM) of client certificates, which are required then.")
@click.option("--peer-ca", metavar="FILE", type=FILE, help="Authorities (PEM) of other instances. [default: the system's]")
@setting_option
@bootstrap_option
def command(**options: Any) -> None:
    """Serve schemas over Confluent's HTTP API, from a topic of the cluster.

    Prints "ottla: registry at http://HOST:PORT" once clients can connect.
    """
    try:
        from ottla.registry.serve import serve as run
    except ImportError as error:
        give_up(f"the registry needs packages that are not installed ({error.name}); pip install 'ottla[registry]'", 1)
    try:
        run(_options(**options), _ready)
    except ConfigError as error:
        give_up(str(error), 2)
    except KafkaError as error:
        give_up(f"the cluster cannot be used: {error}.{address_source_hint()}", 1)
    except TimeoutError:
        give_up("no instance was elected to write in time; do the brokers coordinate groups?", 1)
    except OSError as error:
        give_up(f"cannot start at {options['listen']}: {error}", 1)


def _options(
    *, listen: str, advertise: str | None, topic: str, group: str, never_write: bool, auth: Path | None, no_auth: bool,
    tls_certificate: Path | None, tls_key: Path | None, tls_client_ca: Path | None, peer_ca: Path | None, settings: tuple[str, ...],
    bootstrap: str,
) -> ServeOptions:  # fmt: skip
    """Raises: ConfigError, UsageError."""
    from ottla.base.listeners import is_loopback
    from ottla.registry.basic_auth import read_users
    from ottla.registry.election import InstanceIdentity
    from ottla.registry.instance import InstanceOptions
    from ottla.registry.serve import ServeOptions

    host, port = listen_address(listen, "--listen")
    if auth is None and tls_client_ca is None and not no_auth and not is_loopback(host):
        raise ConfigError("--listen", f"others reach {host}, and there are no users; use --auth FILE, --tls-client-ca FILE, or --no-auth")
    if (tls_key is not None or tls_client_ca is not None) and tls_certificate is None:
        raise ConfigError("--tls-key" if tls_key is not None else "--tls-client-ca", "needs --tls-certificate")
    shown, shown_port = (host, port) if advertise is None else listen_address(advertise, "--advertise")
    if shown in ("0.0.0.0", "::", ""):
        raise ConfigError("--advertise", f"other instances cannot reach {shown}; give the name of this machine and the port")
    scheme = "http" if tls_certificate is None else "https"
    instance = InstanceOptions(
        settings=_client_settings(settings, bootstrap), identity=InstanceIdentity(shown, shown_port, not never_write, scheme), topic=topic,
        group=group, peer_ca=None if peer_ca is None else str(peer_ca),
    )  # fmt: skip
    users = None if auth is None else read_users(auth)
    return ServeOptions(instance, host, port, users, tls_certificate, tls_key, tls_client_ca)


def _client_settings(pairs: tuple[str, ...], bootstrap: str) -> dict[str, Any]:
    """Settings that all clients have, from the profile and `-X`. Raises: ConfigError."""
    given = {name: value for name, value in client_settings(AdminOptions, pairs).items() if name not in ("bootstrap_servers", "client_id")}
    from_keywords(AdminOptions, {"bootstrap_servers": bootstrap, **given})
    names = [{spec.attribute for spec in table.SPECS.values()} for table in (AdminOptions, ConsumerOptions, ProducerOptions)]
    shared = names[0] & names[1] & names[2]
    return {"bootstrap_servers": bootstrap, **{name: value for name, value in given.items() if name in shared}}


def _ready(url: str) -> None:
    say(f"registry at {url}")
    sys.stderr.flush()

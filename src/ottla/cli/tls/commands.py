"""`ottla tls`: init, issue, show. The files: `ottla.net.tls.authority`."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.lazy import CommandGroup
from ottla.cli.common.output_formats import OutputFormat, fields, note, output_option
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.tables import Column

if TYPE_CHECKING:
    from cryptography import x509

CERTIFICATE = {
    "file": "file with the certificate",
    "subject": "distinguished name, which is the principal of a client without mapping rules",
    "issuer": "distinguished name of the authority",
    "hosts[]": "hosts and addresses of the certificate",
    "not_after": "end of its validity, in UTC",
    "days_left": "days until then; negative if it has expired",
}
SHOWN = (
    Column("FILE", "file"),
    Column("SUBJECT", "subject"),
    Column("ISSUER", "issuer"),
    Column("HOSTS", "hosts"),
    Column("NOT-AFTER", "not_after"),
    Column("DAYS-LEFT", "days_left", colour=lambda row: "red" if row["days_left"] < 30 else None),
)
directory_option = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=LocalPath(path_type=Path),
    default="tls",
    show_default=True,
    help="Directory of the authority.",
)


@click.group(name="tls", cls=CommandGroup)
def command() -> None:
    """Create a private authority and certificates for a small cluster.

    Keep DIR/ca-key.pem away from the brokers: with it, anyone can act as a broker or a client.
    """


@contextmanager
def _reporting_errors() -> Iterator[None]:
    from ottla.net.tls.authority import AuthorityError

    try:
        yield
    except AuthorityError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None


@fields(CERTIFICATE)
@command.command()
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...")
@directory_option
@click.option("--client", "clients", multiple=True, metavar="NAME", help="Name of a client to issue a certificate for; repeatable.")
@click.option("--name", default="Ottla private authority", show_default=True, help="Name of the authority.")
@click.option(
    "--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Validity of the certificates of hosts and clients."
)
@output_option
def init(hosts: tuple[str, ...], directory: Path, clients: tuple[str, ...], name: str, days: int, output: OutputFormat) -> None:
    """Create an authority, and a certificate for each broker HOST.

    A certificate also has the names localhost, 127.0.0.1 and ::1. Nothing is overwritten.
    """
    from ottla.net.tls.authority import CERTIFICATE as CA
    from ottla.net.tls.authority import Authority

    now = _now()
    with _reporting_errors():
        authority = Authority.create(directory, name, now=now)
        paths = [authority.issue(host, [*dict.fromkeys([host, "localhost", "127.0.0.1", "::1"])], now=now, days=days) for host in hosts]
        paths += [authority.issue(client, [], now=now, days=days) for client in clients]
    output.show([_document(path) for path in (directory / CA, *paths)], SHOWN)
    if not output.is_structured:
        note(f"Settings of a broker, in a file for ottla serve --config:\n\n{_settings(directory, hosts[0])}")


@fields(CERTIFICATE)
@command.command()
@click.argument("name", metavar="NAME")
@directory_option
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="Host or address of a broker; repeatable. Without: for a client.")
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Validity.")
@output_option
def issue(name: str, directory: Path, hosts: tuple[str, ...], days: int, output: OutputFormat) -> None:
    """Issue a certificate NAME.pem with its key."""
    from ottla.net.tls.authority import Authority

    with _reporting_errors():
        path = Authority.load(directory).issue(name, hosts, now=_now(), days=days)
    output.show([_document(path)], SHOWN)


@fields(CERTIFICATE)
@command.command()
@click.argument("files", nargs=-1, metavar="[FILE...]", type=LocalPath(path_type=Path))
@directory_option
@output_option
def show(files: tuple[Path, ...], directory: Path, output: OutputFormat) -> None:
    """Show names and validity of certificates in PEM files. [default: all of the directory]"""
    with _reporting_errors():
        found = files or sorted(path for path in directory.iterdir() if path.suffix == ".pem" and path.name != "ca-key.pem")
        output.show([_document(path) for path in found], SHOWN)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _document(path: Path) -> dict[str, Any]:
    """Raises: AuthorityError, OSError."""
    from cryptography import x509

    from ottla.net.tls.authority import AuthorityError
    from ottla.net.tls.principal import distinguished_name

    try:
        certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
    except ValueError:
        raise AuthorityError(f"{path} has no certificate in PEM form") from None
    return {
        "file": str(path),
        "subject": distinguished_name(certificate.subject),
        "issuer": distinguished_name(certificate.issuer),
        "hosts": _hosts(certificate),
        "not_after": certificate.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "days_left": (certificate.not_valid_after_utc - _now()).days,
    }


def _hosts(certificate: x509.Certificate) -> list[str]:
    from ottla.net.tls.listener_tls import alternative_names

    return sorted(alternative_names(certificate))


def _settings(directory: Path, host: str) -> str:
    place = directory.absolute()
    return "\n".join(
        [
            f"listeners=SSL://{host}:9093",
            "security.inter.broker.protocol=SSL",
            "ssl.client.auth=required",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={place / host}.pem",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={place / 'ca.pem'}",
        ]
    )

"""A private certificate authority in a directory, for clusters without one.

::

    DIR/ca.pem          certificate of the authority: the trust store of all brokers and clients
    DIR/ca-key.pem      its private key: needed only to issue certificates; keep it away from brokers
    DIR/NAME.pem        private key, certificate and chain: the key store of a broker or client

Keys are ECDSA P-256. Files are created with mode 0600 and never overwritten. A certificate serves as server and as client, because brokers
are both.
"""

import datetime
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CERTIFICATE, KEY = "ca.pem", "ca-key.pem"
AUTHORITY_DAYS = 3650
DAYS = 365
#: Clocks of other machines may be behind.
BACKDATED = datetime.timedelta(hours=1)


class AuthorityError(Exception):
    """The authority cannot do it; the message says why."""


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority that can issue certificates."""

    directory: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, directory: Path, name: str, *, now: datetime.datetime, days: int = AUTHORITY_DAYS) -> "Authority":
        """A new authority in a directory, which is created if missing. Raises: AuthorityError if there is one already; OSError."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = _builder(subject, subject, key, now, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).add_extension(usage, critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        certificate = builder.sign(key, hashes.SHA256())
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for existing in (KEY, CERTIFICATE):
            if (directory / existing).exists():
                raise AuthorityError(f"{directory / existing} exists; choose another directory, or issue certificates with it")
        write_new(directory / KEY, key_pem(key))
        write_new(directory / CERTIFICATE, certificate.public_bytes(Encoding.PEM))
        return cls(directory, certificate, key)

    @classmethod
    def load(cls, directory: Path) -> "Authority":
        """Raises: AuthorityError."""
        try:
            certificate = x509.load_pem_x509_certificate((directory / CERTIFICATE).read_bytes())
            key = load_pem_private_key((directory / KEY).read_bytes(), None)
        except FileNotFoundError as error:
            raise AuthorityError(f"{error.filename} does not exist; create an authority with ottla tls init") from None
        except (OSError, ValueError, TypeError) as error:
            raise AuthorityError(f"cannot read the authority in {directory}: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise AuthorityError(f"{directory / KEY} is no key of ottla tls init")
        return cls(directory, certificate, key)

    def issue(self, name: str, hosts: Sequence[str], *, now: datetime.datetime, days: int = DAYS) -> Path:
        """A certificate ``CN=name`` for these hosts and addresses, with its key in one file. Raises: AuthorityError, OSError."""
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise AuthorityError(f"{name!r} cannot name a file; use letters, digits, dots, - and _")
        path = self.directory / f"{name}.pem"
        if path.exists():
            raise AuthorityError(f"{path} exists; move it away to issue another one")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), self.certificate.subject, key, now, days
        ).add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(usages, critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        write_new(path, key_pem(key) + certificate.public_bytes(Encoding.PEM))
        return path


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise AuthorityError(f"{host!r} is neither a host name nor an address") from None


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_new(path: Path, data: bytes) -> None:
    """A file that only its owner can read. Raises: FileExistsError, OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)

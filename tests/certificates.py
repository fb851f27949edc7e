"""Certificates for tests: a private authority, and certificates that it signs."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat, pkcs12
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


def name_of(**parts: str) -> x509.Name:
    """``name_of(CN="alice", O="Example")``, in the order of encoding reversed."""
    oids = {
        "CN": NameOID.COMMON_NAME,
        "O": NameOID.ORGANIZATION_NAME,
        "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
        "C": NameOID.COUNTRY_NAME,
    }
    return x509.Name([x509.NameAttribute(oids[kind], text) for kind, text in reversed(parts.items())])


class Certificate:
    """A certificate with its key; an authority if it signed itself."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, issuer: "Certificate | None" = None) -> None:
        self.certificate, self.key, self.issuer = certificate, key, issuer

    @classmethod
    def authority(cls, name: str = "test authority", *, issuer: "Certificate | None" = None) -> Self:
        return cls._signed(name_of(CN=name), issuer, authority=True, names=(), days=3650)

    def issue(
        self, name: x509.Name | str = "broker", *, names: Sequence[str] = ("localhost", "127.0.0.1"), days: float = 365
    ) -> "Certificate":
        """A certificate for these hosts and addresses that is valid for ``days`` from now; negative: it has expired."""
        return self._signed(name_of(CN=name) if isinstance(name, str) else name, self, authority=False, names=names, days=days)

    @classmethod
    def _signed(cls, subject: x509.Name, issuer: "Certificate | None", *, authority: bool, names: Sequence[str], days: float) -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.datetime.now(datetime.UTC) + days * DAY
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.certificate.subject if issuer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(end, datetime.datetime.now(datetime.UTC)) - DAY)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        return cls(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key, issuer)

    @property
    def chain(self) -> list[x509.Certificate]:
        """This one and its issuers, without the root."""
        return [self.certificate, *(self.issuer.chain if self.issuer is not None and self.issuer.issuer is not None else [])]

    @property
    def pem(self) -> str:
        return "".join(each.public_bytes(Encoding.PEM).decode() for each in self.chain)

    def key_pem(self, password: str = "") -> str:
        kind = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, kind).decode()

    def write_pem(self, path: Path, password: str = "") -> Path:
        """Key and chain in one file."""
        path.write_text(self.key_pem(password) + self.pem)
        return path

    def write_pkcs12(self, path: Path, password: str) -> Path:
        kind = BestAvailableEncryption(password.encode())
        path.write_bytes(pkcs12.serialize_key_and_certificates(b"key", self.key, self.certificate, self.chain[1:], kind))
        return path

    def write_trusted(self, path: Path) -> Path:
        """This certificate, as PEM."""
        path.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        return path


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)

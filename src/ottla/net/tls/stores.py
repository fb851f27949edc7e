"""Key stores and trust stores: PEM, PKCS#12 and JKS.

=======  ================================================  =====================================================
type     key store                                         trust store
=======  ================================================  =====================================================
PEM      private key (PKCS#8), certificate, chain          certificates
PKCS12   the private key with its certificate and chain    all certificates
JKS      the first private key with its chain              trusted certificates; needs ``ottla[jks]``
=======  ================================================  =====================================================

PKCS12 and JKS are distinguished by the content, as Java does: its keytool writes PKCS#12 under the name of JKS, too.

Rules of which settings go together are those of Kafka's DefaultSslEngineFactory. Source: KIP-651.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_der_private_key, load_pem_private_key, pkcs12

from ottla.base.options import ConfigError
from ottla.base.ssl_options import SslOptions

T = TypeVar("T")
#: First bytes of a JKS and of a JCEKS store.
JKS_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


@dataclass(frozen=True, slots=True, eq=False)
class KeyMaterial:
    """A private key, its certificate, and the certificates between it and the authority."""

    key: PrivateKeyTypes
    #: The own certificate first.
    chain: tuple[x509.Certificate, ...]

    @property
    def certificate(self) -> x509.Certificate:
        return self.chain[0]


def load_key_material(options: SslOptions) -> KeyMaterial | None:
    """The key store of the settings; None without one. Reads files. Raises: ConfigError."""
    _check_key_store(options)
    kind = options.ssl_keystore_type
    if options.ssl_keystore_key:
        name = "ssl.keystore.key"
        key = _read(name, "the key", lambda: _pem_key(options.ssl_keystore_key.encode(), options.ssl_key_password))
        name = "ssl.keystore.certificate.chain"
        chain = _read(name, "the certificates", lambda: x509.load_pem_x509_certificates(options.ssl_keystore_certificate_chain.encode()))
        return _material(name, key, chain)
    if not options.ssl_keystore_location:
        return None
    name, data = "ssl.keystore.location", _file("ssl.keystore.location", options.ssl_keystore_location)
    if kind == "PEM":
        key = _read(name, "the key", lambda: _pem_key(data, options.ssl_key_password))
        return _material(name, key, _read(name, "the certificates", lambda: x509.load_pem_x509_certificates(data)))
    if not _is_jks(data):
        found = _read(name, "the store", lambda: pkcs12.load_pkcs12(data, options.ssl_keystore_password.encode()))
        if found.key is None or found.cert is None:
            raise ConfigError(name, f"{options.ssl_keystore_location} has no private key with a certificate")
        return _material(name, found.key, [found.cert.certificate, *(each.certificate for each in found.additional_certs)])
    return _jks_key(name, data, options)


def load_trusted(options: SslOptions) -> tuple[x509.Certificate, ...] | None:
    """The trusted certificates of the settings; None without a trust store. Reads files. Raises: ConfigError."""
    _check_trust_store(options)
    kind = options.ssl_truststore_type
    if options.ssl_truststore_certificates:
        text = options.ssl_truststore_certificates.encode()
        return tuple(_read("ssl.truststore.certificates", "the certificates", lambda: x509.load_pem_x509_certificates(text)))
    if not options.ssl_truststore_location:
        return None
    name, data = "ssl.truststore.location", _file("ssl.truststore.location", options.ssl_truststore_location)
    if kind == "PEM":
        found = _read(name, "the certificates", lambda: x509.load_pem_x509_certificates(data))
    elif not _is_jks(data):
        password = options.ssl_truststore_password.encode() or None
        store = _read(name, "the store", lambda: pkcs12.load_pkcs12(data, password))
        found = [each.certificate for each in (*([store.cert] if store.cert else []), *store.additional_certs)]
    else:
        found = _jks_trusted(name, data, options)
    if not found:
        raise ConfigError(name, f"{options.ssl_truststore_location} has no certificate")
    return tuple(found)


def _check_key_store(options: SslOptions) -> None:
    pem = options.ssl_keystore_type == "PEM"
    if options.ssl_keystore_key:
        if not pem:
            raise ConfigError("ssl.keystore.key", f"it needs ssl.keystore.type=PEM, not {options.ssl_keystore_type}")
        if not options.ssl_keystore_certificate_chain:
            raise ConfigError("ssl.keystore.certificate.chain", "ssl.keystore.key is set, and the certificate of the key is not")
        if options.ssl_keystore_location:
            raise ConfigError("ssl.keystore.location", "ssl.keystore.key is set as well; set only one of them")
    elif options.ssl_keystore_certificate_chain:
        raise ConfigError("ssl.keystore.certificate.chain", "ssl.keystore.key is not set, and the certificate needs its key")
    if pem and options.ssl_keystore_password:
        raise ConfigError("ssl.keystore.password", "a PEM store has no password; the password of its key is ssl.key.password")
    if options.ssl_keystore_password and not options.ssl_keystore_location:
        raise ConfigError("ssl.keystore.password", "ssl.keystore.location is not set")
    if options.ssl_keystore_location and not pem and not options.ssl_keystore_password:
        raise ConfigError("ssl.keystore.password", f"a key store of type {options.ssl_keystore_type} needs it")


def _check_trust_store(options: SslOptions) -> None:
    pem = options.ssl_truststore_type == "PEM"
    if options.ssl_truststore_certificates:
        if not pem:
            raise ConfigError("ssl.truststore.certificates", f"it needs ssl.truststore.type=PEM, not {options.ssl_truststore_type}")
        if options.ssl_truststore_location:
            raise ConfigError("ssl.truststore.location", "ssl.truststore.certificates is set as well; set only one of them")
    if pem and options.ssl_truststore_password:
        raise ConfigError("ssl.truststore.password", "a PEM store has no password")
    if options.ssl_truststore_password and not options.ssl_truststore_location:
        raise ConfigError("ssl.truststore.password", "ssl.truststore.location is not set")


def _is_jks(data: bytes) -> bool:
    return data.startswith(JKS_MAGIC)


def _jks(name: str, data: bytes, password: str | None, path: str) -> Any:
    """Raises: ConfigError."""
    try:
        import jks
    except ImportError:
        raise ConfigError(name, f"{path} is a JKS store, and the package to read it is missing; install ottla[jks]") from None
    try:
        return jks.KeyStore.loads(data, password)
    except jks.util.KeystoreSignatureException:
        raise ConfigError(name, f"{path} cannot be read; is the password right?") from None
    except (jks.util.KeystoreException, ValueError, struct.error):
        raise ConfigError(name, f"{path} is no JKS store that can be read") from None


def _file(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(name, f"cannot read {path}: {error.strerror or error}") from None


def _read(name: str, what: str, load: Callable[[], T]) -> T:
    """The loaded thing. Raises: ConfigError without the text, which may be secret."""
    try:
        return load()
    except (ValueError, TypeError) as error:
        hint = "is the password right?" if "password" in str(error).lower() or isinstance(error, TypeError) else "is the type right?"
        raise ConfigError(name, f"{what} cannot be read; {hint}") from None


def _pem_key(data: bytes, password: str) -> PrivateKeyTypes:
    """The private key among PEM sections. Raises: ValueError, TypeError for a password too much or too few."""
    begin = data.find(b"-----BEGIN", max(0, _key_position(data)))
    end = data.find(b"-----END", begin)
    section = data[begin : data.find(b"-----", end + len("-----END")) + len("-----")]
    return load_pem_private_key(section, password.encode() or None)


def _key_position(data: bytes) -> int:
    at = data.find(b"PRIVATE KEY-----")
    if at < 0:
        raise ValueError("there is no private key")
    return data.rfind(b"-----BEGIN", 0, at)


def _material(name: str, key: PrivateKeyTypes, chain: Sequence[x509.Certificate]) -> KeyMaterial:
    """Checks that key and certificate belong together. Raises: ConfigError."""
    ours = key.public_key()
    for certificate in chain:
        if certificate.public_key() == ours:
            rest = [each for each in chain if each is not certificate]
            return KeyMaterial(key, (certificate, *_ordered(certificate, rest)))
    raise ConfigError(name, "the private key belongs to none of the certificates")


def _ordered(certificate: x509.Certificate, others: Sequence[x509.Certificate]) -> list[x509.Certificate]:
    """The others from issuer to issuer, as TLS sends them; the rest is left out."""
    found: list[x509.Certificate] = []
    while certificate.issuer != certificate.subject:
        issuer = next((each for each in others if each.subject == certificate.issuer and each not in found), None)
        if issuer is None:
            break
        found.append(issuer)
        certificate = issuer
    return found


def _jks_key(name: str, data: bytes, options: SslOptions) -> KeyMaterial:
    store = _jks(name, data, options.ssl_keystore_password, options.ssl_keystore_location)
    import jks

    for alias, entry in store.private_keys.items():
        if not entry.is_decrypted():
            try:
                entry.decrypt(options.ssl_key_password or options.ssl_keystore_password)
            except (jks.util.KeystoreException, ValueError):
                raise ConfigError(
                    "ssl.key.password", f"the key {alias} in {options.ssl_keystore_location} needs another password"
                ) from None
        key = _read(name, "the key", lambda: load_der_private_key(entry.pkey_pkcs8, None))  # noqa: B023
        chain = _read(name, "the certificates", lambda: [x509.load_der_x509_certificate(each) for _, each in entry.cert_chain])  # noqa: B023
        return _material(name, key, chain)
    raise ConfigError(name, f"{options.ssl_keystore_location} has no private key")


def _jks_trusted(name: str, data: bytes, options: SslOptions) -> list[x509.Certificate]:
    store = _jks(name, data, options.ssl_truststore_password or None, options.ssl_truststore_location)
    return _read(name, "the certificates", lambda: [x509.load_der_x509_certificate(each.cert) for each in store.certs.values()])

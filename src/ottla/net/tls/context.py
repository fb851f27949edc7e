"""TLS contexts of OpenSSL from Kafka's settings.

Certificates in a trust store are trusted themselves, also without their issuer, as in Java. The private key reaches OpenSSL through an
anonymous file in memory, encrypted with a random password, because Python's ``ssl`` loads keys from files only.

Differences from Kafka: ssl.client.auth=required or requested needs a trust store, where Java falls back on the public authorities. Suites
of TLS 1.3 cannot be selected one by one.
"""

import os
import secrets
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from ottla.base.options import ConfigError
from ottla.base.ssl_options import SslOptions
from ottla.net.tls.stores import KeyMaterial, load_key_material, load_trusted

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
TLS13_SUITES = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True, eq=False)
class TlsContext:
    """A context, and the certificates in it."""

    context: ssl.SSLContext
    own: KeyMaterial | None
    trusted: tuple[x509.Certificate, ...] | None
    #: Files and their times of change when they were read.
    files: tuple[tuple[str, float], ...] = ()
    #: Whether the client checks that the server's certificate has the name of its host.
    checks_host: bool = False

    @property
    def certificates(self) -> Iterator[x509.Certificate]:
        """The own certificates and the trusted ones."""
        yield from self.own.chain if self.own is not None else ()
        yield from self.trusted or ()

    @property
    def changed(self) -> bool:
        """Whether a file has changed since it was read. Asks the file system."""
        return any(change_time(path) != at for path, at in self.files)


def server_context(options: SslOptions, client_auth: str) -> TlsContext:
    """The context of a listener. Reads files. Raises: ConfigError."""
    files = _files(options)
    own, trusted = load_key_material(options), load_trusted(options)
    if own is None:
        raise ConfigError("ssl.keystore.location", "a listener with TLS needs a key store with its certificate")
    if client_auth != "none" and trusted is None:
        raise ConfigError("ssl.truststore.location", f"ssl.client.auth={client_auth} needs a trust store with the authorities of clients")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = CLIENT_AUTH[client_auth]
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_RENEGOTIATION | ssl.OP_IGNORE_UNEXPECTED_EOF
    _configure(context, options, own, trusted)
    return TlsContext(context, own, trusted, files)


def client_context(options: SslOptions) -> TlsContext:
    """The context of a client. Without a trust store the authorities of the system are trusted. Reads files. Raises: ConfigError."""
    files = _files(options)
    own, trusted = load_key_material(options), load_trusted(options)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    checks_host = bool(options.ssl_endpoint_identification_algorithm)
    context.check_hostname = checks_host
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    _configure(context, options, own, trusted)
    if trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return TlsContext(context, own, trusted, files, checks_host)


def change_time(path: str) -> float:
    """Time of a file's last change; -1 if it cannot be read."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return -1.0


def _files(options: SslOptions) -> tuple[tuple[str, float], ...]:
    # Before the files are read: a change in between is seen as one.
    return tuple((path, change_time(path)) for path in (options.ssl_keystore_location, options.ssl_truststore_location) if path)


def _configure(context: ssl.SSLContext, options: SslOptions, own: KeyMaterial | None, trusted: Sequence[x509.Certificate] | None) -> None:
    _set_versions_and_suites(context, options)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if own is not None:
        _load_key(context, own)
    if trusted is not None:
        context.load_verify_locations(cadata=b"".join(each.public_bytes(Encoding.DER) for each in trusted))


def _set_versions_and_suites(context: ssl.SSLContext, options: SslOptions) -> None:
    versions = [VERSIONS[name] for name in options.ssl_enabled_protocols]
    if options.ssl_protocol == "TLSv1.2":
        versions = [version for version in versions if version is ssl.TLSVersion.TLSv1_2]
    if not versions:
        raise ConfigError("ssl.enabled.protocols", "no version of TLS is left; enable one that ssl.protocol allows")
    suites = options.ssl_cipher_suites
    if suites:
        newest, older = TLS13_SUITES & set(suites), [suite for suite in suites if suite not in TLS13_SUITES]
        if newest and newest != TLS13_SUITES:
            problem = f"suites of TLS 1.3 cannot be selected one by one; list all of {', '.join(sorted(TLS13_SUITES))}, or none"
            raise ConfigError("ssl.cipher.suites", problem)
        allowed = [ssl.TLSVersion.TLSv1_3] * bool(newest) + [ssl.TLSVersion.TLSv1_2] * bool(older)
        versions = [version for version in versions if version in allowed]
        if not versions:
            raise ConfigError("ssl.cipher.suites", "no suite belongs to an enabled version of TLS")
        if older:
            _set_older(context, older)
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _set_older(context: ssl.SSLContext, suites: Sequence[str]) -> None:
    names = [openssl_name(suite) for suite in suites]
    try:
        context.set_ciphers(":".join(names))
    except ssl.SSLError:
        raise ConfigError("ssl.cipher.suites", f"OpenSSL has none of {', '.join(suites)}") from None
    known = {cipher["name"] for cipher in context.get_ciphers()}
    missing = [suite for suite, name in zip(suites, names, strict=True) if name not in known]
    if missing:
        raise ConfigError("ssl.cipher.suites", f"OpenSSL does not have {', '.join(missing)}, or not at this security level")


def openssl_name(suite: str) -> str:
    """Java's name of a suite of TLS 1.2 as OpenSSL's: TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 is ECDHE-RSA-AES256-GCM-SHA384."""
    exchange, separator, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return suite
    cipher = cipher.replace("_CBC", "").replace("AES_", "AES").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return "-".join(part.replace("_", "-") for part in ("" if exchange == "RSA" else exchange, cipher) if part)


def _load_key(context: ssl.SSLContext, own: KeyMaterial) -> None:
    password = secrets.token_bytes(16).hex().encode()
    key = own.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password))
    with _path_of(_pem(own.chain) + key) as path:
        try:
            context.load_cert_chain(path, password=password)
        except ssl.SSLError as error:
            raise ConfigError("ssl.keystore.location", f"OpenSSL refuses the certificate or its key: {error.reason}") from None


def _pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


@contextmanager
def _path_of(data: bytes) -> Iterator[str]:
    """A path with these bytes, in memory where the system has anonymous files."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        fd = os.memfd_create("ottla-tls")
        try:
            os.write(fd, data)
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name

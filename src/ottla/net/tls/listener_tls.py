"""TLS of one listener: the certificates in use, and their exchange while the listener serves.

New connections use the new certificates; open ones keep theirs. An exchange is refused, and the old certificates stay, if

- the files or settings cannot be read, or do not belong together;
- a key store or trust store is added to a listener that had none;
- the new certificate has another distinguished name, or lacks a subject alternative name of the old one, without
  ``ssl.allow.dn.changes`` or ``ssl.allow.san.changes``: clients that connect to the known names would refuse it;
- brokers use the listener among themselves, and a client with the new certificates cannot connect to it, or one with the old ones.

Source: KIP-226, KIP-978; Kafka's SslFactory.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from cryptography import x509

from ottla.base.options import ConfigError
from ottla.base.origin import ANONYMOUS
from ottla.base.ssl_options import ListenerSslOptions
from ottla.net.tls.context import TlsContext, client_context, server_context
from ottla.net.tls.principal import PrincipalMapper, distinguished_name
from ottla.net.tls.transport import HandshakeSteps

#: Steps of a handshake in memory; TLS 1.2 takes four.
STEPS_MAX = 10


@dataclass(frozen=True, slots=True, eq=False)
class TlsState:
    """The certificates and rules of a listener at one time."""

    options: ListenerSslOptions
    context: TlsContext
    #: For brokers as clients of the other brokers; None unless brokers use this listener.
    client: TlsContext | None
    mapper: PrincipalMapper

    @classmethod
    def load(cls, options: ListenerSslOptions, *, between_brokers: bool) -> "TlsState":
        """Reads the files. Raises: ConfigError."""
        made = server_context(options, options.ssl_client_auth)
        client = client_context(options) if between_brokers else None
        state = cls(options, made, client, PrincipalMapper(options.ssl_principal_mapping_rules))
        state.check_connects(state)
        return state

    def principal(self, secured: ssl.SSLObject) -> str:
        """Of the client's certificate. Raises: ValueError when no rule applies to its name."""
        if self.options.ssl_client_auth == "none":
            return ANONYMOUS
        found = secured.getpeercert(binary_form=True)
        return self.mapper.principal(x509.load_der_x509_certificate(found)) if found else ANONYMOUS

    def check_connects(self, server: "TlsState") -> None:
        """Whether a broker with these certificates can connect to a broker with the others; nothing without a client context.

        Raises: ConfigError.
        """
        if self.client is not None and (problem := _handshake_problem(self.client.context, server.context.context)):
            raise ConfigError("ssl.truststore.location", f"brokers could not connect to each other on this listener: {problem}")


class ListenerTls:
    """TLS of a listener that serves."""

    def __init__(self, state: TlsState, steps: HandshakeSteps, *, changed: Callable[[], None] = lambda: None) -> None:
        """``changed`` is called after an exchange."""
        self.present = state
        self.steps = steps
        self._changed = changed

    def adopt(self, state: TlsState) -> None:
        """New connections use these certificates, which ``check_exchange`` accepted."""
        self.present = state
        self._changed()


def check_exchange(old: TlsState, new: TlsState) -> None:
    """Whether the certificates of a listener may be exchanged. Raises: ConfigError."""
    before, after = old.context.own, new.context.own
    assert before is not None and after is not None, "a listener with TLS has a key store"
    if old.context.trusted is None and new.context.trusted is not None:
        raise ConfigError("ssl.truststore.location", "a trust store cannot be added to a listener that had none; restart the broker")
    names = [distinguished_name(each.certificate.subject) for each in (before, after)]
    if names[0] != names[1] and not new.options.ssl_allow_dn_changes:
        problem = f"the certificate has another distinguished name, {names[1]} instead of {names[0]}; see ssl.allow.dn.changes"
        raise ConfigError("ssl.keystore.location", problem)
    missing = alternative_names(before.certificate) - alternative_names(after.certificate)
    if missing and not new.options.ssl_allow_san_changes:
        problem = f"the certificate lacks the names {', '.join(sorted(missing))} of the present one; see ssl.allow.san.changes"
        raise ConfigError("ssl.keystore.location", problem)
    old.check_connects(new)
    new.check_connects(old)


def alternative_names(certificate: x509.Certificate) -> set[str]:
    """The subject alternative names."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in found}


def _handshake_problem(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    """Why a client cannot connect to a server, apart from the name of its host; empty if it can. In memory."""
    checked, client.check_hostname = client.check_hostname, False
    try:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
        waiting = [True, True]
        for _ in range(STEPS_MAX):
            for number, side in enumerate(sides):
                try:
                    side.do_handshake()
                    waiting[number] = False
                except ssl.SSLWantReadError:
                    pass
        if not any(waiting):
            # TLS 1.3: the server's verdict on the client's certificate comes after the client's handshake.
            try:
                sides[0].read(1)
            except ssl.SSLWantReadError:
                return ""
        return "the handshake does not end"
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError as error:
        return error.reason or str(error)
    finally:
        client.check_hostname = checked

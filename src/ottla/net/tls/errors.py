"""Errors of TLS in words: what happened, and what to do."""

import ssl

#: OpenSSL's reasons, and what they mean.
_REASONS = {
    "HTTP_REQUEST": "the peer speaks HTTP",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS; is one side plaintext?",
    "UNSUPPORTED_PROTOCOL": "the peer has no version of TLS in common; see ssl.enabled.protocols",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer has no version of TLS in common; see ssl.enabled.protocols",
    "NO_SHARED_CIPHER": "there is no cipher suite in common; see ssl.cipher.suites",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer refused the handshake; there is no cipher suite in common, or it needs a certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate, and ssl.client.auth=required needs one",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server needs a certificate of the client; set ssl.keystore.location",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the authority of our certificate; see its trust store",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer refused our certificate: it has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer refused our certificate: it does not trust its authority, or its name is another one",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer refused our certificate",
    "TLSV1_ALERT_INTERNAL_ERROR": "the peer failed with an internal error",
    "UNEXPECTED_EOF_WHILE_READING": "the peer closed the connection during the handshake; is it a listener without TLS?",
}
#: Reasons that the next attempt may not have: the peer ended, or is overloaded.
_PASSING = ("UNEXPECTED_EOF_WHILE_READING", "TLSV1_ALERT_INTERNAL_ERROR")
#: X509_V_ERR_* of OpenSSL.
_EXPIRED, _NOT_YET_VALID = 10, 9
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_WRONG_NAME = (62, 64)


class TlsError(ConnectionError):
    """TLS failed; the message says why."""

    def __init__(self, message: str, *, timed_out: bool = False, permanent: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        #: Whether the next attempt fails in the same way, until someone changes a certificate or a setting.
        self.permanent = permanent


def explained(error: OSError) -> TlsError:
    """The error of OpenSSL or of the system, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(_about_certificate(error), permanent=True)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            reason = "UNEXPECTED_EOF_WHILE_READING"
        permanent = reason in _REASONS and reason not in _PASSING
        return TlsError(_REASONS.get(reason) or f"TLS failed: {reason or error.strerror or error}", permanent=permanent)
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return TlsError("the peer closed the connection")
    return TlsError(error.strerror or str(error))


def _about_certificate(error: ssl.SSLCertVerificationError) -> str:
    code, message = error.verify_code, error.verify_message
    if code in _WRONG_NAME:
        return f"the certificate is for another host: {message}; see ssl.endpoint.identification.algorithm"
    if code == _EXPIRED:
        return "the certificate of the peer has expired"
    if code == _NOT_YET_VALID:
        return "the certificate of the peer is not valid yet; is a clock wrong?"
    if code in _UNKNOWN_AUTHORITY:
        return f"the authority of the peer's certificate is unknown: {message}; add it to the trust store (ssl.truststore.location)"
    return f"the certificate of the peer is refused: {message}"

"""Settings of TLS that brokers and clients share, with Kafka's names and defaults. ``net/tls`` gives them their meaning."""

from functools import partial

from ottla.base.options import Options, Secret, option

#: Types of key stores and trust stores.
STORE_TYPES = ("JKS", "PKCS12", "PEM")
#: Each listener can have its own value, which can change at run time.
_per_listener = partial(option, scope="per-broker", per_listener=True)


class SslOptions(Options):
    """Where the certificates are, and which versions and ciphers are allowed."""

    ssl_keystore_type: str = _per_listener("JKS", choices=STORE_TYPES, doc="Type of the key store.")
    ssl_keystore_location: str = _per_listener(
        "", doc="File with the own certificate, its chain and its private key. A broker reads it again when it changes."
    )
    ssl_keystore_password: Secret = _per_listener(
        "", doc="Password of the key store; not for PEM, whose key is encrypted with ssl.key.password."
    )
    ssl_keystore_key: Secret = _per_listener(
        "", doc="Private key in PEM form (PKCS#8), instead of ssl.keystore.location, with ssl.keystore.type=PEM."
    )
    ssl_keystore_certificate_chain: Secret = _per_listener("", doc="Own certificate and its chain in PEM form, with ssl.keystore.key.")
    ssl_key_password: Secret = _per_listener(
        "", doc="Password of the private key. Empty: ssl.keystore.password, or, for PEM, a key without encryption."
    )
    ssl_truststore_type: str = _per_listener("JKS", choices=STORE_TYPES, doc="Type of the trust store.")
    ssl_truststore_location: str = _per_listener(
        "", doc="File with the certificates of trusted authorities. A broker reads it again when it changes."
    )
    ssl_truststore_password: Secret = _per_listener(
        "", doc="Password of the trust store; not for PEM. Empty: the store's integrity is not checked."
    )
    ssl_truststore_certificates: Secret = _per_listener(
        "", doc="Trusted certificates in PEM form, instead of ssl.truststore.location, with ssl.truststore.type=PEM."
    )
    ssl_enabled_protocols: tuple[str, ...] = _per_listener(
        ("TLSv1.2", "TLSv1.3"), choices=("TLSv1.2", "TLSv1.3"), doc="Allowed versions of TLS."
    )
    ssl_protocol: str = _per_listener(
        "TLSv1.3", choices=("TLS", "TLSv1.2", "TLSv1.3"), doc="Highest version of TLS: TLSv1.2 excludes TLSv1.3."
    )
    ssl_cipher_suites: tuple[str, ...] = _per_listener(
        (), doc="Allowed cipher suites, by their names in Java or OpenSSL. Empty: those of OpenSSL. Of TLS 1.3, all three suites or none."
    )
    ssl_endpoint_identification_algorithm: str = _per_listener(
        "https", form=(r"(?i:https)?", "https or nothing"),
        doc="https: the certificate of a server must have the name of its host. Empty: any name is accepted.",
    )  # fmt: skip


class ListenerSslOptions(SslOptions):
    """What a listener has besides the certificates."""

    ssl_client_auth: str = _per_listener(
        "none",
        choices=("none", "requested", "required"),
        doc="Whether clients show a certificate: none, requested (they may), or required. Its name is the principal of the client.",
    )
    ssl_principal_mapping_rules: str = option(
        "DEFAULT",
        per_listener=True,
        doc=(
            "How the distinguished name of a client's certificate becomes its principal: rules RULE:PATTERN/REPLACEMENT/[L|U] and "
            "DEFAULT, separated by commas; the first that matches applies."
        ),
    )
    ssl_allow_dn_changes: bool = option(False, doc="Whether a certificate may be exchanged for one with another distinguished name.")
    ssl_allow_san_changes: bool = option(
        False, doc="Whether a certificate may be exchanged for one without some of its subject alternative names."
    )
